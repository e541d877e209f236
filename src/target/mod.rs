//! Serves any device's namespace over NVMe/TCP: the embedded default, and each node's cache for its
//! peers.
//!
//! One [`Target`] is one subsystem with one namespace a [`Device`], its discovery service on the same
//! port, and one or several *pollers*: threads that each own connections, one queue pair a namespace
//! and a pool of buffers. A read travels: capsule, check, buffer from the pool, queue pair, one
//! gathered send from that buffer; its payload is copied by nobody but the kernel. Where the device
//! holds the bytes in memory and lends them, buffer and queue pair are left out.
//!
//! It is not a volume manager: it changes no byte on its own, and it knows no image. Hosts are told
//! apart by their NQN only, which keeps out mistakes, not attackers.
//!
//! Invariants:
//! - Read-only unless asked otherwise; loopback unless hosts are named.
//! - No memory is sized by what a host sent before it was checked, and before Connect a connection
//!   has no more than its state and 1,024 bytes of Connect data.
//! - What hosts can make a poller hold is bounded, whether they read or not: `buffer_bytes` and 4 MiB
//!   for data of all kinds, some 10 KiB for a connection, some 200 bytes for a command; and a queue has
//!   no more commands, with answers that are not sent, than it has entries.
//! - One address cannot take all places, and when all are taken the address with most gives way. What
//!   is refused or closed for a limit is counted, and warned of now and then.
//! - A write reaches the device only when all its data have come with the right digests.
//! - Every wait has a limit: Connect, keep alive, answers that nobody reads, stopping.
//!
//! Read `poller.rs` first (the turn of the pump), then `connection.rs`.

mod admin;
mod complaints;
mod connection;
mod hosts;
mod io;
mod options;
mod peers;
mod poller;
mod stats;
mod subsystem;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

pub use options::TargetOptions;
pub use stats::TargetStats;

use crate::error::{Error, ErrorKind, Result};
use crate::nvme::{Address, Nqn, TcpAddress};
use crate::process::Forked;
use crate::qpair::Device;
use crate::threads::{self, Fate, Thread, caught};
use crate::units::Nsid;
use poller::{Door, Poller};
use stats::Counters;
use subsystem::Subsystem;

/// A running NVMe/TCP target. It stops when it is dropped, and as a whole when one of its threads dies.
pub struct Target {
    subsystem: Arc<Subsystem>,
    counters: Arc<Counters>,
    doors: Arc<[Door]>,
    threads: Vec<Thread>,
    /// What a poller died of.
    fate: Fate,
    local_addr: SocketAddr,
    /// Of the process whose threads serve. A forked child has the handle, but not the threads.
    home: Forked<()>,
}

impl Target {
    /// Listens, and serves `devices` as namespaces 1, 2, ... on threads of its own.
    ///
    /// # Errors
    /// `InvalidArgument`: no device, or an address beyond this machine without hosts being named.
    /// `Busy`: the port is in use. What a device says when it has no queue pair to give.
    pub fn bind(options: TargetOptions, devices: Vec<Arc<dyn Device>>) -> Result<Target> {
        check(&options, &devices)?;
        let address = options.listen;
        let listener = TcpListener::bind(address).map_err(|e| poller::listen_error(address, e))?;
        // A thousand hosts may come at once; the standard library leaves room for 128.
        rustix::net::listen(&listener, LISTEN_BACKLOG).map_err(std::io::Error::from)?;
        listener.set_nonblocking(true)?;
        let local_addr = listener.local_addr()?;
        let num_pollers = options.num_pollers.max(1);
        let doors = (0..num_pollers).map(|_| Door::new()).collect::<Result<Arc<[Door]>>>()?;
        let counters = Arc::<Counters>::default();
        let mut target = Target {
            subsystem: Arc::new(Subsystem::new(options, devices, counters.clone())),
            counters,
            doors,
            threads: Vec::new(),
            fate: Fate::default(),
            local_addr,
            home: Forked::new(()),
        };
        let mut listener = Some(listener);
        for number in 0..num_pollers {
            let (subsystem, counters) = (target.subsystem.clone(), target.counters.clone());
            let doors = target.doors.clone();
            let cpu = subsystem.options.cpus.as_ref().map(|cpus| cpus.nth(number));
            let listener = listener.take();
            let make = || Poller::new(subsystem, counters, doors, number, listener);
            // Made where it will run, so that its memory lies there.
            let poller = match &cpu {
                None => make()?,
                Some(cpu) => cpu.run(make)??,
            };
            let (name, fate) = (format!("dlfs-target-{number}"), target.fate.clone());
            let (who, all) = (format!("the thread {name}"), target.doors.clone());
            target.threads.push(threads::start(name, &target.fate, poller, move |poller| {
                if let Some(Err(error)) = cpu.map(|cpu| cpu.bind_this_thread()) {
                    // It was there a moment ago, when the poller was made on it.
                    tracing::warn!(%error, "a poller runs anywhere");
                }
                if let Err(error) = caught(&who, || poller.run()) {
                    // Half a target would leave hosts waiting at doors that nobody opens.
                    fate.tell(&error);
                    all.iter().for_each(Door::stop);
                }
            })?);
        }
        Ok(target)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Name of the subsystem.
    pub fn nqn(&self) -> &Nqn {
        &self.subsystem.options.nqn
    }

    /// The address by which a host on this machine reaches namespace `nsid`, from 1.
    pub fn address(&self, nsid: Nsid) -> Address {
        Address::Tcp(TcpAddress {
            traddr: self.local_addr.ip().to_string(),
            trsvcid: self.local_addr.port(),
            subnqn: self.nqn().clone(),
            nsid: Some(nsid),
        })
    }

    /// What it has done so far.
    pub fn stats(&self) -> TargetStats {
        self.counters.read(self.subsystem.num_controllers() as u64)
    }

    /// I/O queues on each poller, with the connections that have yet to say which queue they are.
    pub fn queues_by_poller(&self) -> Vec<usize> {
        self.doors.iter().map(Door::load).collect()
    }

    /// Whether it serves.
    ///
    /// # Errors
    /// `Internal`: one of its threads has died, and the target with it.
    pub fn check(&self) -> Result<()> {
        self.fate.died().map_or(Ok(()), Err)
    }

    /// Closes all connections, waits for what the devices still do (5 s at most) and ends the
    /// threads; one that hangs in a call of a device is left behind. Dropping does the same.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if !self.home.is_ours() {
            // They are the parent's, which goes on serving.
            std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
            return;
        }
        self.doors.iter().for_each(Door::stop);
        let until = Instant::now() + poller::STOP_LIMIT + poller::TICK;
        for thread in self.threads.drain(..) {
            thread.join_within(until.saturating_duration_since(Instant::now()));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({} on {})", self.nqn(), self.local_addr)
    }
}

/// Connections that wait to be accepted.
const LISTEN_BACKLOG: i32 = 4096;

/// What cannot be served at all.
fn check(options: &TargetOptions, devices: &[Arc<dyn Device>]) -> Result<()> {
    let invalid = |message: String| Error::new(ErrorKind::InvalidArgument, message);
    if devices.is_empty() {
        return Err(invalid("a target needs at least one namespace".to_owned()));
    }
    if options.max_queue_entries < 2 {
        return Err(invalid("a queue has at least 2 entries".to_owned()));
    }
    if options.nqn.as_str() == Nqn::DISCOVERY {
        return Err(invalid(
            "a subsystem cannot have the name of the discovery service".to_owned(),
        ));
    }
    let is_open = options.allow_any_host || !options.allow_hosts.is_empty();
    if !options.listen.ip().is_loopback() && !is_open {
        let message =
            format!("{} is reachable from other machines, and no host is allowed", options.listen);
        return Err(invalid(message)
            .hint("name the hosts (--allow-host NQN), or allow all (--allow-any-host)"));
    }
    for device in devices {
        let namespace = device.namespace();
        if !(512..=4096).contains(&namespace.block_len_bytes)
            || !namespace.block_len_bytes.is_power_of_two()
        {
            let message = format!("blocks of {} bytes cannot be served", namespace.block_len_bytes);
            return Err(invalid(message).target(namespace.address));
        }
    }
    Ok(())
}
