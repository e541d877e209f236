//! How to open a namespace and how long to wait for what.
//!
//! The names are nvme-cli's where it has them.

use std::path::PathBuf;
use std::time::Duration;

use crate::auth::Secret;
use crate::nvme::{Address, Nqn};

/// Options of [`crate::qpair::open`]; the defaults suit a training job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Ask for header digests; a target that declines them is refused.
    pub hdr_digest: bool,
    /// Ask for data digests; a target that declines them is refused.
    pub data_digest: bool,
    /// Ask for both digests beside those asked for above, and do without what a target declines of these.
    pub prefer_digests: bool,
    /// Host NQN; `None`: that of `/etc/nvme/hostnqn`, else one of this machine's own.
    pub hostnqn: Option<Nqn>,
    /// Host identifier; `None`: that of `/etc/nvme/hostid` when the NQN comes from there too, else the
    /// UUID in the host NQN, else one derived from the host NQN.
    pub hostid: Option<[u8; 16]>,
    /// What this host proves itself with where a controller wants that (DH-HMAC-CHAP). Not for `spdk:`
    /// addresses, which have files: [`SpdkOptions::dhchap_key`].
    pub dhchap_secret: Option<Secret>,
    /// The subsystem's secret: the controller must prove itself, too. Not without `dhchap_secret`.
    pub dhchap_ctrl_secret: Option<Secret>,
    /// I/O queues to ask for: one for each queue pair. The target may grant fewer.
    pub nr_io_queues: u16,
    /// Entries of an I/O queue; one fewer may be outstanding. The target may have a lower limit.
    pub queue_size: u16,
    /// Keep Alive Timeout (KATO): a side that hears nothing for this long gives the other up; zero
    /// switches it off.
    pub keep_alive_tmo: Duration,
    /// How long reconnecting goes on before a lost controller is given up.
    pub ctrl_loss_tmo: Duration,
    /// How long a queue pair with outstanding I/O may go without progress before its connection is
    /// torn down and its reads are issued again on another.
    pub io_timeout: Duration,
    /// How long opening may take in all, every path and step included.
    pub connect_timeout: Duration,
    /// How long one TCP connection may take to be accepted.
    pub tcp_connect_timeout: Duration,
    /// Further addresses of the same namespace, used when the first is down.
    pub paths: Vec<Address>,
    /// Whether files are opened with O_DIRECT.
    pub direct: Direct,
    /// Whether writes are wanted: otherwise files are opened for reading only, and writes refused.
    pub writable: bool,
    /// What is SPDK's alone.
    pub spdk: SpdkOptions,
}

/// Options of namespaces that are reached through SPDK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpdkOptions {
    /// Memory for SPDK and its devices, in bytes. The first namespace that a process opens decides.
    pub memory_bytes: usize,
    /// Whether that lies in huge pages; `None`: when enough are free. Drives need them. The first
    /// namespace that a process opens decides.
    pub huge_pages: Option<bool>,
    /// File with this host's key for DH-HMAC-CHAP, as nvme-cli makes it.
    pub dhchap_key: Option<PathBuf>,
    /// File with the controller's key for DH-HMAC-CHAP: it has to prove itself too.
    pub dhchap_ctrl_key: Option<PathBuf>,
    /// File with the pre-shared key for TLS.
    pub tls_key: Option<PathBuf>,
}

impl Default for SpdkOptions {
    fn default() -> SpdkOptions {
        SpdkOptions {
            memory_bytes: 512 << 20,
            huge_pages: None,
            dhchap_key: None,
            dhchap_ctrl_key: None,
            tls_key: None,
        }
    }
}

/// Whether the file engine bypasses the page cache (O_DIRECT).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// For block devices and for images larger than half of the memory.
    #[default]
    Auto,
    /// Always; opening fails where it cannot be had.
    On,
    /// Never.
    Off,
}

impl ConnectOptions {
    /// Sets how long opening may take in all, and lets no single TCP connection take longer.
    pub fn set_connect_timeout(&mut self, limit: Duration) {
        self.connect_timeout = limit;
        self.tcp_connect_timeout = self.tcp_connect_timeout.min(limit);
    }

    /// How long after it was sent a write may still come to the medium: a queue pair gives up after
    /// `io_timeout`; bytes that the network holds then die with the controller, which a target gives up
    /// after up to two times without a sign of life.
    pub(super) fn late_writes(&self) -> Duration {
        let controller = match self.keep_alive_tmo.is_zero() {
            true => LONGEST_CONTROLLER,
            false => self.keep_alive_tmo.saturating_mul(2),
        };
        self.io_timeout.saturating_add(controller).saturating_add(SLACK)
    }
}

/// What a controller without a keep-alive is taken to last after its host is gone: there is no limit.
const LONGEST_CONTROLLER: Duration = Duration::from_secs(120);

/// What timers of a target are late by.
const SLACK: Duration = Duration::from_secs(1);

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            hdr_digest: false,
            data_digest: false,
            prefer_digests: false,
            hostnqn: None,
            hostid: None,
            dhchap_secret: None,
            dhchap_ctrl_secret: None,
            nr_io_queues: 16,
            queue_size: 128,
            keep_alive_tmo: Duration::from_secs(15),
            ctrl_loss_tmo: Duration::from_secs(600),
            io_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            tcp_connect_timeout: Duration::from_secs(3),
            paths: Vec::new(),
            direct: Direct::Auto,
            writable: false,
            spdk: SpdkOptions::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_wait_ends_and_inner_waits_end_before_outer_ones() {
        let options = ConnectOptions::default();
        assert!(options.tcp_connect_timeout < options.connect_timeout);
        assert!(options.connect_timeout < options.ctrl_loss_tmo);
        assert!(options.io_timeout < options.keep_alive_tmo);
    }
}
