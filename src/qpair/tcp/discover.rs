//! Reads the discovery log: which subsystems a target offers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::admin::Admin;
use super::link::SCRATCH_LEN;
use crate::error::{ErrorKind, Result};
use crate::nvme::Nqn;
use crate::nvme::fabrics::DiscoveryRecord;
use crate::qpair::ConnectOptions;
use crate::qpair::remote::Admin as _;
use crate::qpair::session::{AdminEvent, Failure, Goal, HostIdentity, Terms};
use crate::tcp::Digests;
use crate::units::deadline;

/// Reads the records of the discovery service at a transport address (port 8009, or 4420 if the target itself
/// answers).
///
/// Blocks for at most `options.connect_timeout`. The texts in the records come from the target: check them.
///
/// # Errors
/// `Refused`, `TimedOut`, `NotFound`, `Disconnected`: as for connecting to a namespace. `Corrupt`: the log is
/// malformed. `Busy`: it never stopped changing.
pub fn discover(
    traddr: &str,
    trsvcid: u16,
    options: &ConnectOptions,
) -> Result<Vec<DiscoveryRecord>> {
    let deadline = deadline(Instant::now(), options.connect_timeout);
    let name = format!("{traddr}:{trsvcid}");
    super::check_tls(options).map_err(|error| error.target(name.clone()))?;
    let sockets = super::resolve(traddr, trsvcid, options.connect_timeout)
        .map_err(|error| error.target(name.clone()))?;
    let mut failure = None;
    for address in sockets {
        let digests = Digests { header: options.hdr_digest, data: options.data_digest };
        let (subnqn, host) = (Nqn::discovery(), HostIdentity::new(options));
        let kept = super::keyring_psk(options, &host.nqn, &subnqn)
            .map_err(|error| error.target(name.clone()))?;
        let (psk, psk_v0) = match kept {
            Some(psk) => (Some(psk), None),
            None => super::psks(options, &host.nqn, &subnqn),
        };
        let terms = Terms {
            subnqn,
            goal: Goal::Discovery,
            host,
            digests,
            required: digests,
            psk,
            psk_v0,
            nr_io_queues: 0,
            keep_alive_tmo: Duration::ZERO,
            tcp_timeout: options.tcp_connect_timeout,
            io_timeout: options.io_timeout,
            least_progress_bytes: 0,
        };
        match read_records(address, terms, deadline) {
            Ok(records) => return Ok(records),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.expect("a name stands for at least one address").to_error(&name))
}

fn read_records(
    address: SocketAddr,
    terms: Terms,
    deadline: Instant,
) -> Result<Vec<DiscoveryRecord>, Failure> {
    let mut scratch = vec![0; SCRATCH_LEN];
    let mut admin = Admin::connect(Instant::now(), address, terms)?;
    loop {
        let now = Instant::now();
        if admin.poll(now, &mut scratch)? == AdminEvent::Ready {
            return Ok(admin.records().to_vec());
        }
        if now >= deadline {
            let message = "no answer within its time";
            return Err(Failure::new(ErrorKind::TimedOut, message).at(admin.stage()));
        }
        let until = admin.poll_timeout().unwrap_or(deadline).min(deadline);
        let limit = Timespec::try_from(until.saturating_duration_since(now)).ok();
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        if let Some(wait) = admin.wait() {
            let flags = if wait.writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::from_borrowed_fd(wait.fd, flags));
        }
        let _ = rustix::event::poll(&mut fds, limit.as_ref()); // an error is a signal: the loop continues
    }
}
