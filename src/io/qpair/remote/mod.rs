//! The remote namespaces of one controller, over any transport: their paths and their current session.
//!
//! A *session* is one association with a controller. The keeper thread connects it, keeps it alive and
//! replaces it when it is lost. Queue pairs join the session, and issue their reads again in the next one. Over TCP,
//! with several paths, two sessions are live at a time, on two paths: see `session/lifecycle.rs`.
//! [`super::session`] decides what to do and when, without a socket, a thread or a clock; this module
//! provides them. A [`Transport`] defines how to reach a controller.
//!
//! The keeper thread sets the session of a [`Remote`]; queue pairs follow it, and report a session that they
//! find broken. A child process creates its own remote, because the child's copy of a lock may be held for ever.
//!
//! Invariants:
//! - A write or flush that was sent is never sent again, unless the controller said that it did nothing.
//! - A flush succeeds only if no write that it should cover was lost with an earlier session.
//! - Writes and flushes use one session at a time, and so do the reads of a host that writes. Those on their way in a
//!   session whose path became inaccessible end there.
//! - A session is only ever replaced by one on the same namespaces: same identifiers, sizes, block lengths.
//! - Every wait has a limit.
//!
//! Read `session/lifecycle.rs` first, then this file.
//!
//! The keeper is the thread of a process that owns all admin queues of a transport. It connects controllers, keeps
//! them alive, handles their events, and reconnects when they are lost. It does so also while no queue pair is
//! polled: a trainer that computes for a minute keeps its connections. It starts with the first controller. A child
//! process has none of its parent's threads, so it starts its own keeper.
//!
//! A panic while serving one controller ends that controller only: its remote is given up with the message of
//! the panic, and the others are served as before.

pub(in crate::qpair) use super::session::{
    AdminEvent, Attached, Failure, HostIdentity, Identified,
};

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use xxhash_rust::xxh3::xxh3_128;

use super::session::lifecycle::{Level, NUM_SLOTS};
use super::session::{self, Backlog, Credentials, Keeping, Lifecycle, Limits, Phase, Shared};
use super::{Capabilities, ConnectOptions};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_base::process::{Forked, mark_ours};
use dlfs_base::random::draw;
use dlfs_base::threads::{caught, map_at_once};
use dlfs_base::units::Nsid;
use dlfs_nvme::auth::Randomness;
use dlfs_nvme::nvme::Nqn;

/// A transport: how to reach controllers.
pub(in crate::qpair) trait Transport: Sized + Send + Sync + 'static {
    /// One route to the namespace; prints as the address of a connection.
    type Portal: Portal;
    /// The admin queue of a controller, while it connects and afterwards.
    type Admin: Admin<Self> + Send;
    /// The data that a queue pair needs in order to join a session.
    type JoinInfo: Send + Sync;
    /// Counters of the connections to a controller.
    type Counters: Default + Send + Sync;

    /// True if its queue pairs use two sessions at a time, where the user names several paths.
    const KEEPS_TWO: bool = false;

    /// The scratch memory of [`Admin::poll`], in bytes.
    const SCRATCH_LEN_BYTES: usize;

    /// The keepers of this transport.
    fn keepers() -> &'static Keepers<Self>;

    /// The name of the engine: `tcp (header digest)`.
    fn engine(remote: &Remote<Self>, identified: &Identified) -> String;
}

/// One route to the namespaces: a socket address that the name in one of the user's paths resolves to.
pub(in crate::qpair) trait Portal: Clone + fmt::Display + Send + Sync {
    /// The user's address; with `nsid`, the address of that namespace.
    fn address(&self, nsid: Option<Nsid>) -> String;
}

/// The namespaces of a controller to open.
#[derive(Debug, Clone)]
pub(in crate::qpair) enum Selection {
    /// The namespace that each path names, or the first active one if the path names none.
    OfPath,
    /// These namespaces, on each path.
    These(Arc<[Nsid]>),
    /// All namespaces that are active at the time of opening, or the one that a path names.
    All,
}

/// An admin queue. No method blocks for long, so one thread serves any number of controllers.
pub(in crate::qpair) trait Admin<T: Transport>: Sized {
    /// Starts to connect.
    fn start(now: Instant, remote: &Remote<T>, portal: &T::Portal) -> Result<Self, Failure>;

    /// Polls the queue. After an error the controller is lost.
    fn poll(&mut self, now: Instant, scratch: &mut [u8]) -> Result<AdminEvent, Failure>;

    /// The identified controller and namespaces; complete after [`AdminEvent::Ready`].
    fn identified(&self) -> &Identified;

    /// The data that queue pairs need to join the session; valid after [`AdminEvent::Ready`].
    fn join_info(&self) -> T::JoinInfo;

    /// The name of the current step.
    fn stage(&self) -> &'static str;

    /// The time at which to call [`Admin::poll`], even if no bytes arrive.
    fn poll_timeout(&self) -> Option<Instant>;

    /// The descriptor to sleep on, if there is one.
    fn wait(&self) -> Option<PollFd<'_>>;

    /// Called before the queue is dropped because of a failure; not when it is no longer needed.
    fn give_up(&mut self, _failure: &Failure) {}
}

/// The shared state of a controller's open namespaces: its sessions, and the options for connecting them.
pub(in crate::qpair) struct Remote<T: Transport> {
    pub(in crate::qpair) selection: Selection,
    pub(in crate::qpair) options: ConnectOptions,
    pub(in crate::qpair) host: HostIdentity,
    pub(in crate::qpair) counters: Arc<T::Counters>,
    /// Never empty; in the user's order.
    pub(in crate::qpair) portals: Arc<[T::Portal]>,
    shared: Shared<T::Portal, T::JoinInfo>,
    /// The remote that replaces this one in a child process; `None` in the process that created this one.
    successor: Forked<Option<Arc<Remote<T>>>>,
}

impl<T: Transport> Deref for Remote<T> {
    type Target = Shared<T::Portal, T::JoinInfo>;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

impl<T: Transport> Remote<T> {
    pub(in crate::qpair) fn new(
        options: ConnectOptions,
        portals: Vec<T::Portal>,
        selection: Selection,
        seen: Option<Arc<[Attached]>>,
    ) -> Arc<Remote<T>> {
        let limits = Limits {
            connect_timeout: options.connect_timeout,
            ctrl_loss_tmo: options.ctrl_loss_tmo,
        };
        let portals: Arc<[T::Portal]> = portals.into();
        let random = RandomState::new().build_hasher().finish();
        let now = Instant::now();
        let mut lifecycle = Lifecycle::new(now, limits, Arc::clone(&portals), seen, random);
        // The addresses of one name usually lead to the same port of a target.
        if T::KEEPS_TWO && !options.paths.is_empty() {
            lifecycle = lifecycle.keep_two(!options.writable);
        }
        Arc::new(Remote {
            host: HostIdentity::new(&options),
            selection,
            options,
            shared: Shared::new(lifecycle, portals.len() > 1, || T::keepers().wake()),
            portals,
            counters: Arc::default(),
            successor: Forked::new(None),
        })
    }

    /// The remote of the calling process: this one, or after a fork a new one that connects again.
    ///
    /// All holders of one remote get the same result. They keep the original, and call this again in each
    /// process.
    pub(in crate::qpair) fn for_this_process(self: &Arc<Remote<T>>) -> Result<Arc<Remote<T>>> {
        let successor = self.successor.get_or_try_init(|| self.new_successor().map(Some))?;
        Ok(Arc::clone(successor.as_ref().unwrap_or(self)))
    }

    fn new_successor(&self) -> Result<Arc<Remote<T>>> {
        let keeper = T::keepers().of_this_process()?;
        let seen = self.identity().cloned();
        let options = self.options.clone();
        let selection = self.selection.clone();
        let next = Remote::new(options, self.portals.to_vec(), selection, seen);
        // If another thread creates the successor that is used, the keeper drops this one.
        keeper.keep(&next);
        Ok(next)
    }

    /// The user's address of the controller's namespaces.
    fn name(&self) -> String {
        self.portals[0].address(None)
    }

    /// The user's address of a namespace, one of `count`.
    fn name_of(&self, nsid: Nsid, count: usize) -> String {
        let is_named = match self.selection {
            Selection::OfPath => false,
            Selection::These(_) => true,
            Selection::All => count > 1,
        };
        self.portals[0].address(is_named.then_some(nsid))
    }

    /// The library's error for a failure of the controller, or of the namespace that the failure names.
    pub(in crate::qpair) fn error(&self, failure: &Failure) -> Error {
        let seen = self.identity().map_or(usize::MAX, |seen| seen.len());
        failure.to_error(&failure.nsid.map_or_else(|| self.name(), |nsid| self.name_of(nsid, seen)))
    }

    /// Waits until the namespaces are identified or given up, at most until `deadline`; returns them.
    pub(in crate::qpair) fn wait_open(&self, deadline: Instant) -> Result<Arc<[Attached]>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let opened = self.shared.wait(left, |lifecycle| match lifecycle.phase() {
            Phase::Live(_) => lifecycle.identity().cloned().map(Ok),
            Phase::Dead(failure) => Some(Err(failure)),
            Phase::Opening | Phase::Lost(_) => None,
        });
        match opened {
            Some(Ok(namespaces)) => Ok(namespaces),
            Some(Err(failure)) => Err(self.error(&failure)),
            None => {
                let error = Error::new(ErrorKind::TimedOut, "connecting took too long");
                Err(error.target(self.name()))
            }
        }
    }

    /// Checks that a new queue pair, which has not joined a session yet, may keep trying; `stage` names its
    /// current step.
    ///
    /// # Errors
    /// The controller was given up, or `deadline` has passed.
    pub(in crate::qpair) fn may_wait(
        &self,
        now: Instant,
        deadline: Instant,
        backlog: &Backlog,
        stage: &str,
    ) -> Result<()> {
        if let Phase::Dead(failure) = self.phase() {
            return Err(self.error(&failure));
        }
        if now < deadline {
            return Ok(());
        }
        let mut error = Error::new(ErrorKind::TimedOut, format!("no I/O queue: {stage}"));
        if let Some(failure) = &backlog.last_failure {
            error = error.source(self.error(failure));
        }
        Err(error.target(self.name()))
    }

    /// Adds a queue pair to the count.
    ///
    /// # Errors
    /// `Refused`: all I/O queues that the target granted are in use.
    pub(in crate::qpair) fn add_pair(&self) -> Result<()> {
        self.shared.with(Lifecycle::add_pair).map_err(|granted| {
            let message = format!("all {granted} I/O queues are in use");
            let error = Error::new(ErrorKind::Refused, message).target(self.name());
            error.hint("ask for more with --nr-io-queues, if the target grants more")
        })
    }

    /// The capabilities of a namespace, with the number of I/O queues that the live session grants, or that a
    /// session will ask for.
    pub(in crate::qpair) fn capabilities(&self, checks_writes: bool) -> Capabilities {
        // In a child process the lock is the parent's.
        let max_queue_pairs = match self.is_ours().then(|| self.phase()) {
            Some(Phase::Live(session)) => session.num_io_queues.into(),
            _ => self.options.nr_io_queues.into(),
        };
        let late_writes = self.options.late_writes();
        Capabilities { max_queue_pairs, late_writes, checks_writes, ..Capabilities::default() }
    }

    /// Ends the sessions for good.
    pub(in crate::qpair) fn give_up(&self, failure: Failure) {
        self.shared.with(|lifecycle| lifecycle.give_up(failure));
    }

    /// The namespaces of `identified`, as queue pairs see them.
    pub(in crate::qpair) fn describe(&self, identified: &Identified) -> Vec<Attached> {
        let ConnectOptions { queue_size, writable, .. } = self.options;
        let count = identified.namespaces.len();
        let name = |nsid| self.name_of(nsid, count);
        identified.attached(name, &T::engine(self, identified), queue_size, writable)
    }
}

/// The portals of all `addresses`, looked for at once: a slow host name does not take the time of the others.
///
/// # Errors
/// That of the first address without a portal, if none has one.
pub(in crate::qpair) fn portals_of<A: Sync, P: Send>(
    addresses: &[A],
    of: impl Fn(&A) -> Result<Vec<P>> + Sync,
) -> Result<Vec<P>> {
    let mut portals = Vec::new();
    let mut first_error = None;
    for found in map_at_once("dlfs-resolve", addresses, |address| Ok(of(address)))? {
        match found {
            Ok(found) => portals.extend(found),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    match first_error {
        Some(error) if portals.is_empty() => Err(error),
        _ => Ok(portals),
    }
}

impl<T: Transport> Drop for Remote<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            T::keepers().wake(); // so that it drops a controller that nobody uses
        }
    }
}

impl HostIdentity {
    /// Takes the identity from the options, else from nvme-cli's files, else derives it from the machine's
    /// identity.
    pub(in crate::qpair) fn new(options: &ConnectOptions) -> HostIdentity {
        let id_file = || parse_uuid(&fs::read_to_string("/etc/nvme/hostid").ok()?);
        let (nqn, configured_id) = match &options.hostnqn {
            Some(nqn) => (nqn.clone(), None),
            None => match nqn_file() {
                Some(nqn) => (nqn, id_file()),
                None => (Nqn::host_of_uuid(machine_uuid()), None),
            },
        };
        let id = options.hostid.or(configured_id).unwrap_or_else(|| id_of_nqn(&nqn));
        HostIdentity { nqn, id, credentials: credentials(options) }
    }
}

/// The NQN and the identifier that this host presents: from `options`, else from `/etc/nvme`, else derived from
/// this machine's identity.
pub fn host_identity(options: &ConnectOptions) -> (Nqn, [u8; 16]) {
    let HostIdentity { nqn, id, .. } = HostIdentity::new(options);
    (nqn, id)
}

/// The NQN that this host presents with `options`.
pub fn hostnqn(options: &ConnectOptions) -> Nqn {
    HostIdentity::new(options).nqn
}

/// The secrets of the host, if the options have them.
fn credentials(options: &ConnectOptions) -> Option<Credentials> {
    let secret = options.dhchap_secret.clone()?;
    let ctrl_secret = options.dhchap_ctrl_secret.clone();
    Some(Credentials { secret, ctrl_secret, concatenates: options.concat, randomness })
}

/// Random numbers for one authentication.
fn randomness() -> Result<Randomness> {
    let mut bytes = [0; Randomness::LEN_BYTES];
    draw(&mut bytes)?;
    Ok(Randomness::from_bytes(bytes))
}

fn nqn_file() -> Option<Nqn> {
    Nqn::new(fs::read_to_string("/etc/nvme/hostnqn").ok()?.trim()).ok()
}

/// The UUID in a host NQN of the UUID format; for any other NQN a hash, which is never zero in practice.
fn id_of_nqn(nqn: &Nqn) -> [u8; 16] {
    let uuid = nqn.as_str().split_once(":uuid:").and_then(|(_, uuid)| parse_uuid(uuid));
    uuid.unwrap_or_else(|| xxh3_128(nqn.as_str().as_bytes()).to_be_bytes())
}

/// A UUID that is the same on every start on this machine, derived from the machine id without revealing it. On
/// a machine without a machine id, it changes when the machine boots.
pub fn machine_uuid() -> [u8; 16] {
    let files = ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"];
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let mut uuid = xxh3_128(format!("dlfs host {}", text.trim()).as_bytes()).to_be_bytes();
    uuid[6] = uuid[6] & 0x0F | 0x80; // version 8: custom
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> =
        text.trim().chars().filter(|c| *c != '-').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks(2).map(|p| p.iter().fold(0, |b, d| b << 4 | *d as u8)).collect();
    (digits.len() == 32).then(|| bytes.try_into().ok())?
}

/// A handle of the thread.
pub(in crate::qpair) struct Keeper<T: Transport> {
    event: OwnedFd,
    inbox: Mutex<Vec<Weak<Remote<T>>>>,
    /// Set when the thread has died, before the inbox is emptied for the last time.
    is_dead: AtomicBool,
}

/// The keepers of a transport: each process has at most one that is alive.
pub(in crate::qpair) struct Keepers<T: Transport>(Forked<Mutex<Option<Arc<Keeper<T>>>>>);

impl<T: Transport> Keepers<T> {
    pub(in crate::qpair) const fn new() -> Keepers<T> {
        Keepers(Forked::empty())
    }

    /// The keeper of this process; starts one if there is none or if it has died.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(in crate::qpair) fn of_this_process(&self) -> Result<Arc<Keeper<T>>> {
        let mut keeper = self.0.get_or_init(Mutex::default).lock();
        match &*keeper {
            Some(living) if living.is_alive() => Ok(Arc::clone(living)),
            _ => Ok(Arc::clone(keeper.insert(Keeper::start()?))),
        }
    }

    /// Wakes the keeper of this process, if there is one.
    pub(in crate::qpair) fn wake(&self) {
        let Some(keeper) = self.0.get() else { return };
        if let Some(keeper) = &*keeper.lock() {
            keeper.wake();
        }
    }
}

impl<T: Transport> Keeper<T> {
    fn start() -> Result<Arc<Keeper<T>>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        mark_ours(&event);
        let keeper = Arc::new(Keeper {
            event,
            inbox: Mutex::new(Vec::new()),
            is_dead: AtomicBool::new(false),
        });
        let thread = Arc::clone(&keeper);
        std::thread::Builder::new()
            .name("dlfs-keeper".into())
            .spawn(move || {
                let mut remotes = Vec::new();
                let Err(error) = caught(WHO, || thread.run(&mut remotes));
                thread.die(&remotes, &error);
            })
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start the keeper thread").source(error)
            })?;
        Ok(keeper)
    }

    /// Returns whether its thread accepts new remotes.
    fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Acquire)
    }

    /// Connects `remote`, and serves it while another owner holds it.
    pub(in crate::qpair) fn keep(&self, remote: &Arc<Remote<T>>) {
        let mut inbox = self.inbox.lock();
        if self.is_alive() {
            inbox.push(Arc::downgrade(remote));
        } else {
            remote.give_up(Failure::new(ErrorKind::Internal, format!("{WHO} has just died")));
        }
        drop(inbox);
        self.wake();
    }

    fn wake(&self) {
        // It fails when the counter is full; then the thread is awake already.
        let _ = rustix::io::write(&self.event, &[1; 8]);
    }

    fn run(&self, remotes: &mut Vec<KeptRemote<T>>) -> ! {
        let mut scratch = vec![0; T::SCRATCH_LEN_BYTES];
        loop {
            let new = |remote| KeptRemote { remote, admins: [None, None] };
            remotes.extend(self.inbox.lock().drain(..).map(new));
            remotes.retain_mut(|kept| kept.turn_or_give_up(Instant::now(), &mut scratch));
            self.sleep(remotes);
        }
    }

    /// Handles the thread's death: gives up its remotes. Another thread will serve later ones.
    fn die(&self, remotes: &[KeptRemote<T>], error: &Error) {
        self.is_dead.store(true, Ordering::Release);
        let waiting = self.inbox.lock().drain(..).collect::<Vec<_>>();
        let remotes = remotes.iter().map(|kept| &kept.remote).chain(&waiting);
        for remote in remotes.filter_map(Weak::upgrade) {
            remote.give_up(Failure::new(ErrorKind::Internal, error.to_string()));
        }
    }

    /// Sleeps until a controller has sent something, a timeout expires, or a thread wakes it.
    fn sleep(&self, remotes: &[KeptRemote<T>]) {
        let now = Instant::now();
        let until = remotes.iter().filter_map(KeptRemote::poll_timeout).min();
        // Longer by the granularity of `poll`: otherwise the thread would wake too early, and again.
        let limit = until.map(|until| until.saturating_duration_since(now) + GRANULARITY);
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let admins = remotes.iter().flat_map(|kept| kept.admins.iter().flatten());
        let mut fds: Vec<PollFd<'_>> = admins.filter_map(|admin| admin.wait()).collect();
        fds.push(PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN));
        let _ = poll(&mut fds, limit.as_ref()); // an error is a signal: the loop continues
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count); // fails if no thread has woken it
    }
}

/// One remote that the keeper serves, and the admin queue of each slot.
struct KeptRemote<T: Transport> {
    remote: Weak<Remote<T>>,
    admins: [Option<Box<T::Admin>>; NUM_SLOTS],
}

impl<T: Transport> KeptRemote<T> {
    fn poll_timeout(&self) -> Option<Instant> {
        let admins = self.admins.iter().flatten().filter_map(|admin| admin.poll_timeout());
        // If every other owner has dropped the remote meanwhile, dropping it here wakes the keeper, and the next
        // turn forgets it.
        let remote = self.remote.upgrade();
        let remote = remote.and_then(|remote| remote.with(|lifecycle| lifecycle.poll_timeout()));
        admins.chain(remote).min()
    }

    /// As [`KeptRemote::turn`]; a panic in it ends this remote only.
    fn turn_or_give_up(&mut self, now: Instant, scratch: &mut [u8]) -> bool {
        caught(WHO, || self.turn(now, scratch)).unwrap_or_else(|error| {
            if let Some(remote) = self.remote.upgrade() {
                remote.give_up(Failure::new(ErrorKind::Internal, error.to_string()));
            }
            false
        })
    }

    /// Serves the remote once; returns `false` when it is finished.
    fn turn(&mut self, now: Instant, scratch: &mut [u8]) -> bool {
        let Some(remote) = self.remote.upgrade() else { return false };
        let mut service = Service { remote: &remote, scratch };
        session::turn(now, &remote, &mut self.admins, &mut service)
    }
}

/// Serves one remote over its transport.
struct Service<'a, T: Transport> {
    remote: &'a Remote<T>,
    scratch: &'a mut [u8],
}

impl<T: Transport> Keeping for Service<'_, T> {
    type Portal = T::Portal;
    type JoinInfo = T::JoinInfo;
    type Admin = Box<T::Admin>;

    fn connect(&mut self, now: Instant, portal: usize) -> Result<Box<T::Admin>, Failure> {
        T::Admin::start(now, self.remote, &self.remote.portals[portal]).map(Box::new)
    }

    fn poll(&mut self, now: Instant, admin: &mut Box<T::Admin>) -> Result<AdminEvent, Failure> {
        admin.poll(now, self.scratch)
    }

    fn close(&mut self, _now: Instant, mut admin: Box<T::Admin>, failure: &Failure) {
        admin.give_up(failure);
    }

    fn identified<'a>(&self, admin: &'a Box<T::Admin>) -> &'a Identified {
        admin.identified()
    }

    fn join_info(&self, admin: &Box<T::Admin>) -> T::JoinInfo {
        admin.join_info()
    }

    fn describe(&self, identified: &Identified) -> Vec<Attached> {
        self.remote.describe(identified)
    }

    fn stage(&self, admin: &Box<T::Admin>) -> &'static str {
        admin.stage()
    }

    fn say(&mut self, level: Level, text: String) {
        match level {
            Level::Warn => tracing::warn!("{text}"),
            Level::Info => tracing::info!("{text}"),
            Level::Debug => tracing::debug!("{text}"),
        }
    }
}

/// The name of the thread in errors.
const WHO: &str = "the thread dlfs-keeper";

/// The granularity of `poll`, which may wake too early by this much.
const GRANULARITY: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests;
