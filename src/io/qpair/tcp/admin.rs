//! The admin queue of one controller: its state machine and its socket.

use std::net::SocketAddr;
use std::time::Instant;

use rustix::event::PollFd;

use super::link::Link;
use super::{Portal, Tcp};
use crate::qpair::remote::{self, Remote};
use crate::qpair::session::{AdminEvent, Controller, Failure, Identified, JoinInfo, Terms};
use dlfs_nvme::auth::TlsPsk;

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
        if link.refuses_identity()
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
