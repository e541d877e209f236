//! The admin queue of one controller: its state machine and its socket.

use std::net::SocketAddr;
use std::time::Instant;

use super::link::Link;
use super::{Portal, Tcp};
use crate::nvme::fabrics::DiscoveryRecord;
use crate::qpair::Wait;
use crate::qpair::remote::{self, Remote};
use crate::qpair::session::{AdminEvent, Controller, Failure, Identified, JoinInfo, Terms};

/// One admin queue.
pub(super) struct Admin {
    /// Dropped, and so closed, before the controller's buffers are freed.
    link: Link,
    controller: Controller,
}

impl remote::Admin<Tcp> for Admin {
    fn start(now: Instant, remote: &Remote<Tcp>, portal: &Portal) -> Result<Admin, Failure> {
        Admin::connect(now, portal.socket, super::terms(remote, portal))
    }

    fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<AdminEvent, Failure> {
        let Admin { link, controller } = self;
        let moved = link.poll(now, controller.channel(), scratch, false);
        let turn = controller.advance(now, moved)?;
        let sent = link.send(now, controller.channel());
        sent.map_err(|failure| failure.at(controller.stage()))?;
        Ok(turn)
    }

    fn identified(&self) -> &Identified {
        self.controller.identified()
    }

    fn join_info(&self) -> JoinInfo {
        self.controller.join_info()
    }

    fn stage(&self) -> &'static str {
        self.controller.stage()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.controller.poll_timeout()
    }

    fn wait(&self) -> Option<Wait<'_>> {
        Some(self.link.wait(self.controller.wants_writable()))
    }
}

impl Admin {
    /// Starts to connect.
    pub(super) fn connect(
        now: Instant,
        address: SocketAddr,
        terms: Terms,
    ) -> Result<Admin, Failure> {
        Ok(Admin { link: Link::start(address)?, controller: Controller::new(now, terms) })
    }

    /// The records of the discovery service.
    pub(super) fn records(&self) -> &[DiscoveryRecord] {
        self.controller.records()
    }
}
