//! Controllers through SPDK: connected once for all their namespaces, and kept alive.
//!
//! SPDK has one controller for each transport ID and host NQN, even if a process connects several times. So the
//! namespaces of one process share the controller: the first namespace connects, and the others find the
//! controller in the list of this file. It is shut down when its last namespace is dropped, or as soon as a namespace
//! finds it lost.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::{Portal, Spdk, failure};
use crate::qpair::remote::{self, AdminEvent, Failure, Identified, Remote};
use crate::qpair::session::IdentifiedNamespace;
use crate::spdk::{self, Connecting, Controller, ControllerOptions, Key, TransportId};
use dlfs_base::error::{Error, ErrorKind};
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::{IdentifyController, IdentifyNamespace};

/// The admin queue of a namespace's controller.
pub(super) struct Admin {
    target: TransportId,
    options: ControllerOptions,
    /// The namespace; `None`: the first active one, before the controller is identified.
    nsid: Option<Nsid>,
    stage: AdminStage,
    /// Set once the controller and the namespace are identified.
    is_ready: bool,
    /// Set if the controller itself has failed.
    is_lost: bool,
    identified: Identified,
    /// The number of events that were handled.
    num_events: u64,
    /// The time of the next poll.
    next_poll: Instant,
}

/// The progress of reaching the controller.
enum AdminStage {
    /// Another namespace is connecting to the controller or uses it with other options, or an earlier controller
    /// has not ended yet.
    Awaiting,
    /// This namespace is connecting to the controller.
    Connecting(Connecting),
    /// The controller is connected.
    Up(Arc<SharedController>),
}

/// A controller, and the number of [`Admin`]s that use it, one for each session.
struct SharedController {
    controller: Arc<Controller>,
    users: AtomicUsize,
}

/// The controllers of this process. Only the keeper's thread uses the list.
static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { entries: Vec::new(), orphans: Vec::new() });

/// The list of this process's controllers.
struct Registry {
    /// Controllers that are connected, or being connected.
    entries: Vec<Entry>,
    /// Attempts that were given up, and that SPDK cannot cancel before they end.
    orphans: Vec<(ControllerKey, Connecting)>,
}

/// The transport ID, and the host NQN.
type ControllerKey = (TransportId, String);

/// A controller in the list.
struct Entry {
    key: ControllerKey,
    /// The options of the connection, as text: namespaces with other options do not share the controller.
    terms: String,
    /// `None` while it is connecting.
    shared: Option<Arc<SharedController>>,
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Drops orphans that have ended by now.
    fn drop_ended(&mut self) {
        let Registry { entries, orphans } = self;
        orphans.retain_mut(|(key, connecting)| {
            match connecting.poll() {
                Ok(None) => return true,
                Ok(Some(controller)) => controller.shut(false),
                Err(_) => {} // the attempt was given up before
            }
            entries.retain(|entry| entry.key != *key);
            false
        });
    }
}

impl remote::Admin<Spdk> for Admin {
    fn start(now: Instant, remote: &Remote<Spdk>, portal: &Portal) -> Result<Admin, Failure> {
        let _at_work = spdk::at_work();
        let options = options(remote).map_err(|error| failure(&error).hint(Key::FILES))?;
        let mut admin = Admin {
            target: portal.target.clone(),
            options,
            nsid: portal.address.nsid(),
            stage: AdminStage::Awaiting,
            is_ready: false,
            is_lost: false,
            identified: Identified::default(),
            num_events: 0,
            next_poll: now,
        };
        admin.claim()?;
        Ok(admin)
    }

    fn poll(&mut self, now: Instant, _scratch: &mut [u8]) -> Result<AdminEvent, Failure> {
        let _at_work = spdk::at_work();
        registry().drop_ended();
        self.next_poll = now + CONNECT_INTERVAL;
        match &mut self.stage {
            AdminStage::Awaiting => {
                self.claim()?;
                Ok(AdminEvent::Nothing)
            }
            AdminStage::Connecting(connecting) => match connecting.poll() {
                Ok(None) => Ok(AdminEvent::Nothing),
                Ok(Some(controller)) => {
                    self.share(controller);
                    Ok(AdminEvent::Nothing)
                }
                Err(error) => {
                    let key = self.key();
                    registry().entries.retain(|entry| entry.key != key);
                    self.stage = AdminStage::Awaiting;
                    Err(explain(&error))
                }
            },
            AdminStage::Up(_) if !self.is_ready => self.become_ready(),
            AdminStage::Up(shared) => {
                self.next_poll = now + ADMIN_INTERVAL;
                let controller = Arc::clone(&shared.controller);
                controller.poll_admin().map_err(|error| failure(&error))?;
                if controller.num_events() == self.num_events {
                    return Ok(AdminEvent::Nothing);
                }
                self.read_identification()?;
                Ok(AdminEvent::Changed)
            }
        }
    }

    fn identified(&self) -> &Identified {
        &self.identified
    }

    fn join_info(&self) -> Arc<Controller> {
        match &self.stage {
            AdminStage::Up(shared) => Arc::clone(&shared.controller),
            _ => unreachable!("asked for once a turn was ready"),
        }
    }

    fn stage(&self) -> &'static str {
        match self.stage {
            AdminStage::Awaiting => {
                "waiting for the controller, which is in use with other options"
            }
            AdminStage::Connecting(_) => "connecting",
            AdminStage::Up(_) => "keeping the controller alive",
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next_poll)
    }

    fn wait(&self) -> Option<PollFd<'_>> {
        None // SPDK is polled
    }

    fn give_up(&mut self, failure: &Failure) {
        use ErrorKind::{NotFound, Stale, Unsupported};
        // A failure of a namespace is not a failure of the controller.
        self.is_lost = ![NotFound, Stale, Unsupported].contains(&failure.kind);
    }
}

impl Admin {
    fn key(&self) -> ControllerKey {
        (self.target.clone(), self.options.hostnqn.clone())
    }

    /// Takes the controller from the list. If the list does not have it, starts to connect. Does nothing while the
    /// controller is used with other options, is being connected, or ends.
    fn claim(&mut self) -> Result<(), Failure> {
        let key = self.key();
        let terms = format!("{:?}", self.options);
        let mut registry = registry();
        match registry.entries.iter().find(|entry| entry.key == key) {
            Some(Entry { shared: Some(shared), terms: theirs, .. }) if *theirs == terms => {
                if !shared.controller.is_over() {
                    shared.users.fetch_add(1, Ordering::Relaxed);
                    self.stage = AdminStage::Up(Arc::clone(shared));
                }
            }
            Some(_) => {}
            None => {
                let connecting = Connecting::start(&self.target, &self.options);
                let connecting = connecting.map_err(|error| explain(&error))?;
                registry.entries.push(Entry { key, terms, shared: None });
                self.stage = AdminStage::Connecting(connecting);
            }
        }
        Ok(())
    }

    /// Adds the controller to the list.
    fn share(&mut self, controller: Arc<Controller>) {
        let shared = Arc::new(SharedController { controller, users: AtomicUsize::new(1) });
        let key = self.key();
        for entry in registry().entries.iter_mut().filter(|entry| entry.key == key) {
            entry.shared = Some(Arc::clone(&shared));
        }
        self.stage = AdminStage::Up(shared);
    }

    fn become_ready(&mut self) -> Result<AdminEvent, Failure> {
        self.read_identification()?;
        self.nsid = self.identified.namespaces.first().map(|namespace| namespace.nsid);
        self.is_ready = true;
        Ok(AdminEvent::Ready)
    }

    /// Reads the Identify data that the controller has now.
    fn read_identification(&mut self) -> Result<(), Failure> {
        let AdminStage::Up(shared) = &self.stage else { return Ok(()) };
        self.num_events = shared.controller.num_events();
        let found = shared.controller.identify(self.nsid).map_err(|error| failure(&error))?;
        let unsupported = |message: String| Failure::new(ErrorKind::Unsupported, message);
        let controller = IdentifyController::decode(&found.controller)
            .map_err(|error| unsupported(error.to_string()))?;
        let namespace = IdentifyNamespace::decode(&found.namespace)
            .map_err(|error| unsupported(error.to_string()))?;
        let nguid = if namespace.nguid != [0; 16] { namespace.nguid } else { found.uuid };
        self.identified = Identified {
            num_io_queues: found.num_io_queues.min(u16::MAX.into()) as u16,
            max_entries: found.queue_entries,
            max_transfer_bytes: Some(found.max_transfer_bytes),
            has_volatile_write_cache: controller.has_volatile_write_cache(),
            namespaces: vec![IdentifiedNamespace {
                nsid: found.nsid,
                block_len_bytes: namespace.block_len_bytes(),
                num_blocks: namespace.num_blocks(),
                write_protected: namespace.is_write_protected(),
                nguid,
            }],
            ..Identified::default()
        };
        Ok(())
    }
}

impl Drop for Admin {
    /// Ends the session. The controller is shut down if this was its last session, or if it is lost.
    fn drop(&mut self) {
        let _at_work = spdk::at_work();
        let key = self.key();
        match std::mem::replace(&mut self.stage, AdminStage::Awaiting) {
            AdminStage::Awaiting => {}
            AdminStage::Connecting(connecting) => {
                registry().orphans.push((key, connecting));
            }
            AdminStage::Up(shared) => {
                let is_lost = self.is_lost || shared.controller.poll_admin().is_err();
                let is_last = shared.users.fetch_sub(1, Ordering::Relaxed) == 1;
                if is_lost || is_last {
                    shared.controller.shut(is_lost);
                    registry().entries.retain(|entry| {
                        !entry.shared.as_ref().is_some_and(|other| Arc::ptr_eq(other, &shared))
                    });
                }
            }
        }
    }
}

/// The options by which SPDK connects.
fn options(remote: &Remote<Spdk>) -> Result<ControllerOptions, Error> {
    let options = &remote.options;
    let key = |path: &Option<std::path::PathBuf>| {
        path.as_deref().map(|path: &Path| Key::read(path).map(Arc::new)).transpose()
    };
    Ok(ControllerOptions {
        hostnqn: remote.host.nqn.as_str().to_owned(),
        hostid: remote.host.id,
        hdr_digest: options.hdr_digest || options.prefer_digests,
        data_digest: options.data_digest || options.prefer_digests,
        // All namespaces of the controller share them.
        num_io_queues: u32::from(options.nr_io_queues).max(MIN_IO_QUEUES),
        queue_entries: u32::from(options.queue_size).clamp(2, MAX_QUEUE_ENTRIES),
        keep_alive_tmo: options.keep_alive_tmo,
        step_timeout: options.io_timeout,
        dhchap_key: key(&options.spdk.dhchap_key)?,
        dhchap_ctrl_key: key(&options.spdk.dhchap_ctrl_key)?,
        tls_key: key(&options.spdk.tls_key)?,
    })
}

/// A failure to connect, with a hint for the user.
fn explain(error: &Error) -> Failure {
    let failure = failure(error);
    let available = spdk::transports();
    if failure.message.contains("not available") {
        let message = format!("{} (SPDK was built with {})", failure.message, available.join(", "));
        return Failure::new(ErrorKind::Unsupported, message);
    }
    failure.hint("is the target running, does it know this host, and is the address right? -vv shows what SPDK says")
}

/// The interval at which an attempt to connect is polled.
const CONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// The interval at which the admin queue is polled, short beside usual Keep Alive Timeouts: SPDK sends Keep Alive only
/// when it is polled.
const ADMIN_INTERVAL: Duration = Duration::from_millis(50);

/// The least number of I/O queues to ask for.
const MIN_IO_QUEUES: u32 = 64;

/// The most entries of an I/O queue, as over NVMe/TCP.
const MAX_QUEUE_ENTRIES: u32 = 4096;
