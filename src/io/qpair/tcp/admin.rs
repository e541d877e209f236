//! The admin queue of one controller: its state machine and its socket; queries of a controller without I/O: the subsystems that a target offers, and Identify data.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::link::{Link, SCRATCH_LEN};
use super::queue::sleep;
use super::{Portal, Tcp};
use crate::address::TcpAddress;
use crate::qpair::ConnectOptions;
use crate::qpair::remote::{self, Admin as _, Remote};
use crate::qpair::session::{
    AdminEvent, Controller, Failure, Goal, HostIdentity, Identified, JoinInfo, Terms,
};
use dlfs_base::error::{ErrorKind, Result};
use dlfs_base::units::{Nsid, deadline};
use dlfs_nvme::auth::TlsPsk;
use dlfs_nvme::nvme::Nqn;
use dlfs_nvme::nvme::fabrics::DiscoveryRecord;

/// One admin queue.
pub(super) struct Admin {
    /// Dropped, and so closed, before the controller's buffers are freed.
    link: Link,
    pub(super) controller: Controller,
    address: SocketAddr,
}

impl remote::Admin<Tcp> for Admin {
    fn start(now: Instant, remote: &Remote<Tcp>, portal: &Portal) -> Result<Admin, Failure> {
        Admin::connect(now, portal.socket, super::terms(remote, portal))
    }

    fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<AdminEvent, Failure> {
        let Admin { link, controller, .. } = self;
        let moved = link.poll(now, &mut controller.channel, scratch, false);
        if link.refuses_identity
            && let Some(psk) = controller.terms.psk_v0.take()
        {
            return self.connect_again(now, psk);
        }
        let turn = controller.advance(now, moved)?;
        if let Some(psk) = controller.generated.take() {
            return self.connect_again(now, psk);
        }
        let sent = link.send(now, &mut controller.channel);
        sent.map_err(|failure| failure.at(controller.stage()))?;
        Ok(turn)
    }

    fn identified(&self) -> &Identified {
        &self.controller.identified
    }

    fn join_info(&self) -> JoinInfo {
        self.controller.join_info.clone()
    }

    fn stage(&self) -> &'static str {
        self.controller.stage()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.controller.poll_timeout()
    }

    fn wait(&self) -> Option<PollFd<'_>> {
        Some(self.link.wait(self.controller.channel.wants_writable()))
    }
}

impl Admin {
    /// Starts to connect.
    pub(super) fn connect(
        now: Instant,
        address: SocketAddr,
        terms: Terms,
    ) -> Result<Admin, Failure> {
        let link = Link::start(address)?;
        Ok(Admin { link, controller: Controller::new(now, terms), address })
    }

    /// Replaces the connection by one with this TLS PSK, which is not replaced again.
    fn connect_again(&mut self, now: Instant, psk: TlsPsk) -> Result<AdminEvent, Failure> {
        let terms = Terms { psk: Some(psk), psk_v0: None, ..self.controller.terms.clone() };
        *self = Admin::connect(now, self.address, terms)?;
        Ok(AdminEvent::Nothing)
    }
}

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

/// Reads the worst ANA state of the namespaces of a subsystem on one path, as [`identify`] connects; `None`: the
/// controller reports no ANA states.
///
/// # Errors
/// As [`identify`].
pub fn ana_state(address: &TcpAddress, options: &ConnectOptions) -> Result<Option<&'static str>> {
    let TcpAddress { traddr, trsvcid, subnqn, .. } = address;
    let admin = reach(traddr, *trsvcid, subnqn.clone(), Goal::Pages, options)?;
    Ok(admin.controller.ana)
}

/// Connects an admin queue to the first address that answers, and reaches `goal`.
fn reach(
    traddr: &str,
    trsvcid: u16,
    subnqn: Nqn,
    goal: Goal,
    options: &ConnectOptions,
) -> Result<Admin> {
    let deadline = deadline(Instant::now(), options.connect_timeout);
    let name = format!("{traddr}:{trsvcid}");
    super::check_tls(options).map_err(|error| error.target(name.clone()))?;
    let sockets = super::resolve(traddr, trsvcid, options.connect_timeout)
        .map_err(|error| error.target(name.clone()))?;
    let mut failure = None;
    for address in sockets {
        let host = HostIdentity::new(options);
        let kept = super::keyring_psk(options, &host.nqn, &subnqn)
            .map_err(|error| error.target(name.clone()))?;
        let terms = super::terms_of(options, host, &subnqn, kept, goal.clone());
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
