//! Options of opening namespaces, including timeouts.
//!
//! Options that nvme-cli also has are named as there.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::Address;
use dlfs_base::folders::FolderOptions;
use dlfs_nvme::auth::{ConfiguredPsk, Derivation, Secret};
use dlfs_nvme::nvme::Nqn;
use dlfs_places::PlaceOptions;

/// Options of [`crate::qpair::open`]; the defaults suit a training job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Ask for header digests; a target that declines them is refused.
    pub hdr_digest: bool,
    /// Ask for data digests; a target that declines them is refused.
    pub data_digest: bool,
    /// Ask for both digests, but accept a target that declines them. This library's host does not ask for them with
    /// TLS, which detects every change.
    pub prefer_digests: bool,
    /// Host NQN; `None`: from `/etc/nvme/hostnqn`, or else derived from this machine's identity.
    pub hostnqn: Option<Nqn>,
    /// Host identifier; `None`: from `/etc/nvme/hostid` if the NQN also comes from `/etc/nvme`, or else the
    /// UUID in the host NQN, or else derived from the host NQN.
    pub hostid: Option<[u8; 16]>,
    /// The secret by which this host authenticates if a controller requires it (DH-HMAC-CHAP). Not for
    /// `spdk:` addresses, which use files: [`SpdkOptions::dhchap_key`].
    pub dhchap_secret: Option<Secret>,
    /// The subsystem's secret: the controller must authenticate, too. Requires `dhchap_secret`.
    pub dhchap_ctrl_secret: Option<Secret>,
    /// Let the authentication generate the TLS PSK (secure channel concatenation): the admin queue
    /// authenticates on a plain connection, and then all queues connect with TLS. Requires `dhchap_secret`, and
    /// OpenSSL 3; not together with `tls_key`.
    pub concat: bool,
    /// The TLS PSK with which each connection first establishes TLS 1.3; `None`: plain TCP. Needs OpenSSL 3.
    /// Not for `spdk:` addresses, which use a file: [`SpdkOptions::tls_key`].
    pub tls_key: Option<ConfiguredPsk>,
    /// A kernel keyring that holds the TLS PSK instead, such as [`crate::tls::keyring::NVME`], where nvme-cli
    /// stores keys. Not together with `tls_key` or `concat`, and not for `spdk:` addresses.
    pub tls_keyring: Option<String>,
    /// The derivation of TLS PSKs: [`Derivation::Compatible`] for targets whose key was installed by a libnvme
    /// from before July 2025.
    pub tls_derivation: Derivation,
    /// The number of I/O queues to ask for. Over NVMe/TCP, the queue pairs of one controller in one
    /// [`PairScope`](super::PairScope) share an I/O queue; any other queue pair has its own. The target may grant
    /// fewer.
    pub nr_io_queues: u16,
    /// The entries of an I/O queue; one fewer may be outstanding. The target may have a lower limit.
    pub queue_size: u16,
    /// Keep Alive Timeout (KATO): a target gives up a host from which it receives nothing for this long, or up to twice
    /// as long. The host sends Keep Alive twice as often, and gives up a target that does not answer within
    /// `io_timeout`. Zero switches it off.
    pub keep_alive_tmo: Duration,
    /// The time for which the host tries to reconnect before it gives up a lost controller.
    pub ctrl_loss_tmo: Duration,
    /// The longest time without progress of a queue pair with outstanding I/O; over NVMe/TCP with further paths at most
    /// 1.1 `keep_alive_tmo`. After it, the connection is closed; the reads are issued again on another connection, and
    /// the writes and flushes fail, since the target may still apply them. On PCIe and over vfio-user the time counts
    /// for each command, which is then aborted.
    pub io_timeout: Duration,
    /// The least number of bytes that must arrive within `io_timeout` while no I/O completes. 0: one whole PDU
    /// without data counts as progress, or 64 KiB in either direction. Above 0: for read-only connections to
    /// data that another source has, too. `Progress` (`src/nvme/tcp/host/progress.rs`) has the whole rule.
    pub least_progress_bytes: u32,
    /// The timeout of opening, including all paths and steps.
    pub connect_timeout: Duration,
    /// The timeout of a TCP connect.
    pub tcp_connect_timeout: Duration,
    /// Further addresses of the same namespace. Over NVMe/TCP, sessions are kept on two paths at a time; through SPDK,
    /// another path is used when one is down. Not for `pcie:` and vfio-user addresses.
    pub paths: Vec<Address>,
    /// Use of O_DIRECT for files.
    pub direct: Direct,
    /// Allow writes; otherwise files are opened for reading only, and writes are refused.
    pub writable: bool,
    /// Options of SPDK.
    pub spdk: SpdkOptions,
    /// Options of reading object stores.
    pub places: PlaceOptions,
    /// Selects the entries of a folder, or of a prefix in a store, that are samples.
    pub folders: FolderOptions,
}

/// Options of namespaces that are reached through SPDK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpdkOptions {
    /// Memory for SPDK and its devices, in bytes. Only the first namespace that a process opens sets it.
    pub memory_bytes: usize,
    /// Put this memory in huge pages; `None`: if enough are free. Local drives need them. Only the first
    /// namespace that a process opens sets it.
    pub huge_pages: Option<bool>,
    /// File with this host's key for DH-HMAC-CHAP, in nvme-cli's format.
    pub dhchap_key: Option<PathBuf>,
    /// File with the controller's key for DH-HMAC-CHAP: the controller must authenticate too.
    pub dhchap_ctrl_key: Option<PathBuf>,
    /// File with the TLS PSK.
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

/// Use of O_DIRECT, which bypasses the page cache, by the file engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// For block devices, for images larger than half of the memory, and for writing under a lease.
    #[default]
    Auto,
    /// Always; opening fails if the file system does not support it.
    On,
    /// Never.
    Off,
}

impl ConnectOptions {
    /// Sets the timeout of opening, and lowers the timeout of a TCP connect to it.
    pub fn set_connect_timeout(&mut self, limit: Duration) {
        self.connect_timeout = limit;
        self.tcp_connect_timeout = self.tcp_connect_timeout.min(limit);
    }

    /// The time after sending in which a write may still reach the medium. A queue pair gives up after
    /// `io_timeout`. Bytes that the network still holds die with the controller, which a target gives up after
    /// at most two Keep Alive Timeouts.
    pub(super) fn late_writes(&self) -> Duration {
        let controller = if self.keep_alive_tmo.is_zero() {
            LONGEST_CONTROLLER
        } else {
            self.keep_alive_tmo.saturating_mul(2)
        };
        self.io_timeout.saturating_add(controller).saturating_add(SLACK)
    }
}

/// The assumed lifetime of a controller without keep alive after its host is gone; there is no real limit.
const LONGEST_CONTROLLER: Duration = Duration::from_secs(120);

/// The inaccuracy of a target's timers.
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
            concat: false,
            tls_key: None,
            tls_keyring: None,
            tls_derivation: Derivation::Specification,
            nr_io_queues: 16,
            queue_size: 128,
            keep_alive_tmo: Duration::from_secs(15),
            ctrl_loss_tmo: Duration::from_secs(600),
            io_timeout: Duration::from_secs(5),
            least_progress_bytes: 0,
            connect_timeout: Duration::from_secs(10),
            tcp_connect_timeout: Duration::from_secs(3),
            paths: Vec::new(),
            direct: Direct::Auto,
            writable: false,
            spdk: SpdkOptions::default(),
            places: PlaceOptions::default(),
            folders: FolderOptions::default(),
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
