//! Queries of a controller that need no I/O queue: the subsystems that a target offers, Identify data, ANA states.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::link::SCRATCH_LEN;
use super::queue::sleep;
use super::terms::{check_tls, keyring_psk, terms_of};
use super::{Admin, resolve};
use crate::address::TcpAddress;
use crate::qpair::ConnectOptions;
use crate::qpair::remote::Admin as _;
use crate::qpair::session::{AdminEvent, Failure, Goal, HostIdentity, Terms};
use dlfs_base::error::{ErrorKind, Result};
use dlfs_base::units::{Nsid, deadline};
use dlfs_nvme::nvme::Nqn;
use dlfs_nvme::nvme::fabrics::DiscoveryRecord;

/// Reads the records of the discovery service at a transport address (port 8009, or 4420 if the target itself
/// answers).
///
/// Blocks for at most `options.connect_timeout`. The strings in the records come from the target: check them.
///
/// # Errors
/// `Refused`, `TimedOut`, `NotFound`, `Disconnected`: as for connecting to a namespace. `Corrupt`: the log is
/// malformed. `Busy`: the log kept changing.
pub fn discover(
    traddr: &str,
    trsvcid: u16,
    options: &ConnectOptions,
) -> Result<Vec<DiscoveryRecord>> {
    let admin = reach(traddr, trsvcid, Nqn::discovery(), Goal::Discovery, options)?;
    Ok(admin.controller.records)
}

/// Reads the Identify data of the controller and of all active namespaces of a subsystem, 4,096 bytes each, by
/// NSID. The controller's data come first, with NSID 0. Connects an admin queue only.
///
/// Blocks for at most `options.connect_timeout`. The strings in the data come from the target: check them.
///
/// # Errors
/// As for connecting to a namespace; `NotFound` also: the subsystem has no namespace.
pub fn identify(address: &TcpAddress, options: &ConnectOptions) -> Result<Vec<(Nsid, Vec<u8>)>> {
    let TcpAddress { traddr, trsvcid, subnqn, .. } = address;
    let admin = reach(traddr, *trsvcid, subnqn.clone(), Goal::Pages, options)?;
    let mut pages = admin.controller.pages;
    pages.sort_by_key(|(nsid, _)| *nsid);
    Ok(pages)
}

/// Reads the worst ANA state of the namespaces of a subsystem on one path. Connects an admin queue only. `None`: the
/// controller reports no ANA states.
///
/// # Errors
/// As [`identify`].
pub fn ana_state(address: &TcpAddress, options: &ConnectOptions) -> Result<Option<&'static str>> {
    let TcpAddress { traddr, trsvcid, subnqn, .. } = address;
    let admin = reach(traddr, *trsvcid, subnqn.clone(), Goal::Pages, options)?;
    Ok(admin.controller.ana)
}

/// Connects an admin queue to the first socket address that answers, and waits until `goal` is reached.
fn reach(
    traddr: &str,
    trsvcid: u16,
    subnqn: Nqn,
    goal: Goal,
    options: &ConnectOptions,
) -> Result<Admin> {
    let deadline = deadline(Instant::now(), options.connect_timeout);
    let name = format!("{traddr}:{trsvcid}");
    check_tls(options).map_err(|error| error.target(name.clone()))?;
    let sockets = resolve(traddr, trsvcid, options.connect_timeout)
        .map_err(|error| error.target(name.clone()))?;
    let mut failure = None;
    for address in sockets {
        let host = HostIdentity::new(options);
        let stored =
            keyring_psk(options, &host.nqn, &subnqn).map_err(|error| error.target(name.clone()))?;
        let terms = terms_of(options, host, &subnqn, stored, goal.clone());
        let terms = Terms {
            digests: terms.required,
            nr_io_queues: 0,
            keep_alive_tmo: Duration::ZERO,
            least_progress_bytes: 0,
            ..terms
        };
        match reach_at(address, terms, deadline) {
            Ok(admin) => return Ok(admin),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.expect("a name stands for at least one address").to_error(&name))
}

/// As [`reach`], at one socket address.
fn reach_at(address: SocketAddr, terms: Terms, deadline: Instant) -> Result<Admin, Failure> {
    let mut scratch = vec![0; SCRATCH_LEN];
    let mut admin = Admin::connect(Instant::now(), address, terms)?;
    loop {
        let now = Instant::now();
        if admin.poll(now, &mut scratch)? == AdminEvent::Ready {
            return Ok(admin);
        }
        if now >= deadline {
            let message = "no answer within its time";
            return Err(Failure::new(ErrorKind::TimedOut, message).at(admin.stage()));
        }
        let until = admin.poll_timeout().unwrap_or(deadline).min(deadline);
        sleep(admin.wait(), until.saturating_duration_since(now));
    }
}
