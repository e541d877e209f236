//! The admin queue of one controller: it connects, initialises and identifies the controller, and keeps it
//! alive.
//!
//! Until it is ready, the state machine sends one command at a time, except that it identifies several
//! namespaces at once. `connect.rs` has the steps before, `identification.rs` the choice of namespaces.

use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use super::connect::Event;
use super::identification::{Ana, Goal, Identification, Known, unsupported};
use super::{AdminEvent, Channel, ConnectTerms, Failure, Identified, Terms};
use dlfs_base::error::ErrorKind;
use dlfs_base::units::{Nsid, deadline};
use dlfs_nvme::auth::TlsPsk;
use dlfs_nvme::nvme::fabrics::{DiscoveryLogHeader, DiscoveryRecord};
use dlfs_nvme::nvme::identify::IDENTIFY_LEN_BYTES;
use dlfs_nvme::nvme::sqe::{cns, feature, log_page};
use dlfs_nvme::nvme::{Cap, Cc, ConnectData, Cqe, Csts, IdentifyController, Property, Sqe};
use dlfs_nvme::tcp::Digests;
use dlfs_nvme::tcp::host::Transfer;

impl Terms {
    /// The parameters by which I/O queue `qid` connects to this admin queue's controller.
    pub(crate) fn of_io_queue(
        &self,
        join_info: &JoinInfo,
        qid: u16,
        num_entries: u16,
    ) -> ConnectTerms {
        let common = Terms {
            keep_alive_tmo: Duration::ZERO,
            // The same digests on all connections: damage on a connection without digests would go undetected.
            digests: join_info.digests,
            required: join_info.digests,
            psk: join_info.psk.clone(),
            ..self.clone()
        };
        ConnectTerms { common, cntlid: join_info.cntlid, qid, num_entries }
    }
}

/// The data that an I/O queue needs to join a session.
#[derive(Debug, Clone, Default)]
pub struct JoinInfo {
    /// The controller's identifier.
    pub cntlid: u16,
    /// The largest in-capsule data of an I/O command.
    pub max_in_capsule: u32,
    /// The digests of the admin queue.
    pub digests: Digests,
    /// The TLS PSK, if the admin queue uses TLS.
    pub psk: Option<TlsPsk>,
}

/// Facts about the controller that only the admin queue uses.
#[derive(Debug, Default)]
struct Properties {
    /// The property CAP.
    cap: u64,
    /// Optional Asynchronous Events Supported, from Identify Controller.
    oaes: u32,
    /// True if the subsystem reports ANA states.
    has_ana: bool,
    /// True if the controller supports Keep Alive.
    keeps_alive: bool,
}

/// The admin queue of one controller. It owns no socket and never reads a clock.
///
/// Transfer the bytes of `channel` (see [`Channel`]), call [`Controller::advance`], then send.
#[derive(Debug)]
pub struct Controller {
    /// The connection of the queue.
    pub channel: Channel<Task>,
    pub(crate) terms: Terms,
    /// The identified controller and namespaces; complete after [`AdminEvent::Ready`].
    pub identified: Identified,
    /// The data that I/O queues need to join the session; valid after [`AdminEvent::Ready`].
    pub join_info: JoinInfo,
    properties: Properties,
    identification: Identification,
    /// The ANA group of each namespace.
    anagrpids: Vec<u32>,
    /// Records of the discovery service.
    pub(crate) records: Vec<DiscoveryRecord>,
    /// The worst ANA state of the namespaces, if the controller reports any.
    pub(crate) ana: Option<&'static str>,
    /// Identify data, if they are the goal; the controller's have NSID 0.
    pub(crate) pages: Vec<(Nsid, Vec<u8>)>,
    /// The current step, until the goal is reached.
    step: Step,
    /// A step to start at a later time.
    later: Option<(Instant, Step)>,
    /// Set once the goal is reached.
    ready: bool,
    /// The time at which the controller must be ready, after it was disabled if it was enabled before.
    enable_deadline: Instant,
    /// The time of the next Keep Alive; `None`: none is sent.
    next_keep_alive: Option<Instant>,
    /// The earliest time of the next asynchronous event request, which limits a flood of events; `None`: one is
    /// outstanding, or the controller takes none.
    next_event_request: Option<Instant>,
    log: LogReading,
    /// The TLS PSK that the authentication has generated: a new controller with TLS replaces this one.
    pub(crate) generated: Option<TlsPsk>,
}

/// The payload of an admin command.
#[derive(Debug)]
pub struct Task {
    step: Step,
    /// Room for the data of the answer.
    bytes: Vec<u8>,
    /// The namespace that the command identifies, if any.
    about: Option<Known>,
}

impl AsRef<[u8]> for Task {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Task {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A step of the admin queue, each with a command. Until the goal is reached, the steps follow each other in this
/// order. Steps that are not needed are left out: disabling a controller that is disabled, features and namespaces of a
/// discovery controller, logs of another one, events and ANA states that the controller does not report, and the list
/// of namespaces if the goal names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    ReadCapabilities,
    ReadConfiguration,
    Disable,
    AwaitDisabled,
    Enable,
    AwaitReady,
    IdentifyController,
    SetNumQueues,
    ConfigureEvents,
    ListNamespaces,
    IdentifyNamespace,
    ReadDescriptors,
    ReadAna,
    ReadLogHeader,
    ReadLogRecords,
    CheckLogHeader,
    // After the goal is reached:
    KeepAlive,
    AwaitEvent,
    ReadChangedNamespaces,
}

impl Step {
    /// The name of the step.
    fn name(self) -> &'static str {
        match self {
            Step::ReadCapabilities => "reading CAP",
            Step::ReadConfiguration => "reading CC",
            Step::Disable | Step::AwaitDisabled => "disabling the controller",
            Step::Enable | Step::AwaitReady => "enabling the controller",
            Step::IdentifyController => "Identify Controller",
            Step::SetNumQueues => "Set Features, number of queues",
            Step::ConfigureEvents => "Set Features, asynchronous events",
            Step::ListNamespaces => "Identify, active namespaces",
            Step::IdentifyNamespace => "Identify Namespace",
            Step::ReadDescriptors => "Identify, namespace descriptors",
            Step::ReadAna => "reading the ANA log",
            Step::ReadLogHeader | Step::CheckLogHeader => "reading the discovery log header",
            Step::ReadLogRecords => "reading the discovery log",
            Step::KeepAlive => "Keep Alive",
            Step::AwaitEvent => "Asynchronous Event Request",
            Step::ReadChangedNamespaces => "reading the changed namespace log",
        }
    }
}

/// The progress of reading a discovery log.
#[derive(Debug, Clone, Default)]
struct LogReading {
    /// The generation counter when reading began.
    genctr: u64,
    num_records: u64,
    /// The times that reading began.
    rounds: u32,
}

impl Controller {
    /// Creates a controller whose TCP connection has been started.
    pub fn new(now: Instant, terms: Terms) -> Controller {
        let admin_terms = ConnectTerms {
            common: terms.clone(),
            cntlid: ConnectData::CNTLID_DYNAMIC,
            qid: 0,
            num_entries: ADMIN_QUEUE_ENTRIES,
        };
        Controller {
            channel: Channel::new(now, admin_terms),
            terms,
            identified: Identified::default(),
            join_info: JoinInfo::default(),
            properties: Properties::default(),
            identification: Identification::default(),
            anagrpids: Vec::new(),
            records: Vec::new(),
            ana: None,
            pages: Vec::new(),
            step: Step::ReadCapabilities,
            later: None,
            ready: false,
            enable_deadline: now,
            next_keep_alive: None,
            next_event_request: None,
            log: LogReading::default(),
            generated: None,
        }
    }

    /// Handles received bytes, and sends the commands that are due; `moved` is the result of transferring bytes.
    /// Afterwards there may be more to send.
    ///
    /// # Errors
    /// The controller is lost.
    pub fn advance(
        &mut self,
        now: Instant,
        moved: Result<(), Failure>,
    ) -> Result<AdminEvent, Failure> {
        let mut reported = AdminEvent::Nothing;
        while let Some(event) = self.channel.poll_event(now) {
            match event {
                Event::Ready { cntlid } => {
                    let digests = self.channel.digests();
                    self.join_info.cntlid = cntlid;
                    self.join_info.digests = digests;
                    self.join_info.psk = self.terms.psk.clone();
                    self.identified.is_secured = self.terms.psk.is_some();
                    self.identified.digests = digests;
                    self.begin(now, Step::ReadCapabilities)?;
                }
                // No `Ready` follows: the owner replaces this controller by one that uses the PSK.
                Event::Concatenated { psk } => self.generated = Some(psk),
                Event::Failed { failure, .. } => return Err(failure),
                Event::Done { payload, result } => {
                    let step = payload.step;
                    let nsid = payload.about.map(|about| about.identified.nsid);
                    let explain = |failure: Failure| {
                        let failure = failure.at(step.name());
                        Failure { nsid: failure.nsid.or(nsid), ..failure }
                    };
                    let cqe = result
                        .map_err(|error| Failure::new(ErrorKind::Corrupt, error.to_string()))
                        .map_err(explain)?;
                    let news = self.finish(now, payload, cqe).map_err(explain)?;
                    reported = if news == AdminEvent::Nothing { reported } else { news };
                }
            }
        }
        moved.map_err(|failure| self.channel.explain(failure).at(self.stage()))?;
        if self.later.is_some_and(|(at, _)| at <= now) {
            let (_, step) = self.later.take().expect("just seen");
            self.begin(now, step)?;
        }
        if self.ready {
            self.send_periodic(now)?;
        }
        Ok(reported)
    }

    /// The name of the current step.
    pub fn stage(&self) -> &'static str {
        self.channel.stage().unwrap_or(self.step.name())
    }

    /// The time at which to call [`Controller::advance`], even if no bytes arrive.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let later = self.later.map(|(at, _)| at);
        let channel = self.channel.poll_timeout();
        // Before the goal is reached there is no keep alive and no event request.
        let kept = [self.next_keep_alive, self.next_event_request];
        let kept = kept.into_iter().flatten().min().filter(|_| self.ready);
        [channel, later, kept].into_iter().flatten().min()
    }

    /// Keeps Identify data, if they are the goal.
    fn keep_page(&mut self, nsid: Nsid, bytes: &[u8]) {
        if self.terms.goal == Goal::Pages {
            self.pages.push((nsid, bytes.to_vec()));
        }
    }

    /// Sends Keep Alive when it is due, and keeps one asynchronous event request outstanding.
    fn send_periodic(&mut self, now: Instant) -> Result<(), Failure> {
        if self.next_keep_alive.is_some_and(|at| at <= now) {
            self.begin(now, Step::KeepAlive)?;
            self.next_keep_alive = Some(deadline(now, self.terms.keep_alive_tmo / 2));
        }
        if self.next_event_request.is_some_and(|at| at <= now) {
            self.next_event_request = None;
            self.begin(now, Step::AwaitEvent)?;
        }
        Ok(())
    }

    /// Sends the command of a step.
    fn begin(&mut self, now: Instant, step: Step) -> Result<(), Failure> {
        if !self.ready {
            self.step = step;
        }
        let log =
            |lid, offset, len: usize| (Sqe::get_log_page(0, lid, offset, len as u32), In, len);
        let bare = |sqe| (sqe, Transfer::None, 0);
        use Transfer::In;
        let (sqe, transfer, len) = match step {
            Step::ReadCapabilities => bare(Sqe::property_get(0, Property::Cap)),
            Step::ReadConfiguration => bare(Sqe::property_get(0, Property::Cc)),
            Step::Disable => bare(Sqe::property_set(0, Property::Cc, 0)),
            Step::Enable => bare(Sqe::property_set(0, Property::Cc, Cc::ENABLE.0.into())),
            Step::AwaitDisabled | Step::AwaitReady => bare(Sqe::property_get(0, Property::Csts)),
            Step::IdentifyController => {
                (Sqe::identify(0, cns::CONTROLLER, Nsid(0)), In, IDENTIFY_LEN_BYTES)
            }
            Step::SetNumQueues => bare(Sqe::set_num_queues(0, self.terms.nr_io_queues.max(1))),
            Step::ConfigureEvents => {
                let events = self.properties.oaes & EVENTS_WANTED;
                bare(Sqe::set_features(0, feature::ASYNC_EVENT_CONFIG, events))
            }
            Step::ListNamespaces => {
                let after = self.identification.last_listed();
                (Sqe::identify(0, cns::ACTIVE_NAMESPACES, after), In, IDENTIFY_LEN_BYTES)
            }
            Step::IdentifyNamespace | Step::ReadDescriptors => return self.identify_more(now),
            Step::ReadAna => {
                let (mut sqe, transfer, len) = log(log_page::ANA, 0, ANA_LOG_LEN);
                sqe.cdw10 = (sqe.cdw10.get() | ANA_GROUPS_ONLY).into();
                (sqe, transfer, len)
            }
            Step::ReadLogHeader | Step::CheckLogHeader => {
                log(log_page::DISCOVERY, 0, size_of::<DiscoveryLogHeader>())
            }
            Step::ReadLogRecords => {
                let have = self.records.len() as u64;
                let count = (self.log.num_records - have).min(RECORDS_AT_ONCE) as usize;
                let offset = (have + 1) * size_of::<DiscoveryRecord>() as u64;
                log(log_page::DISCOVERY, offset, count * size_of::<DiscoveryRecord>())
            }
            Step::KeepAlive => bare(Sqe::keep_alive(0)),
            Step::AwaitEvent => bare(Sqe::async_event_request(0)),
            Step::ReadChangedNamespaces => log(log_page::CHANGED_NAMESPACES, 0, 4096),
        };
        self.submit(now, sqe, transfer, Task { step, bytes: vec![0; len], about: None })
    }

    /// Starts to identify further namespaces, up to the limit at a time.
    fn identify_more(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some(ns_index) = self.identification.next() {
            let identified = self.identified.namespaces[ns_index];
            let known = Known { ns_index, identified, anagrpid: self.anagrpids[ns_index] };
            self.ask_about(now, Step::IdentifyNamespace, known)?;
        }
        Ok(())
    }

    /// Sends a command that identifies a namespace.
    fn ask_about(&mut self, now: Instant, step: Step, known: Known) -> Result<(), Failure> {
        if !self.ready {
            self.step = step;
        }
        let cns = match step {
            Step::ReadDescriptors => cns::NAMESPACE_DESCRIPTORS,
            _ => cns::NAMESPACE,
        };
        let sqe = Sqe::identify(0, cns, known.identified.nsid);
        let task = Task { step, bytes: vec![0; IDENTIFY_LEN_BYTES], about: Some(known) };
        self.submit(now, sqe, Transfer::In, task)
    }

    /// Sends the command of a step.
    fn submit(
        &mut self,
        now: Instant,
        sqe: Sqe,
        transfer: Transfer,
        task: Task,
    ) -> Result<(), Failure> {
        let no_timeout = task.step == Step::AwaitEvent;
        // The queue is full only if the target has left dozens of commands unanswered.
        self.channel.submit(now, sqe, transfer, no_timeout, task).map_err(|task| {
            Failure::new(ErrorKind::Disconnected, "the admin queue takes no command")
                .at(task.step.name())
        })
    }

    /// Handles the completion of a step's command, and starts the next step.
    fn finish(&mut self, now: Instant, task: Task, cqe: Cqe) -> Result<AdminEvent, Failure> {
        let Task { step, bytes, about } = task;
        let status = cqe.status();
        if !status.is_success() && !may_fail(step) {
            let message = format!("the controller answered {status}");
            return Err(Failure::new(ErrorKind::Refused, message));
        }
        let next = match step {
            Step::ReadCapabilities => {
                self.properties.cap = cqe.result();
                Step::ReadConfiguration
            }
            Step::ReadConfiguration => {
                let ready_in = u64::from(Cap(self.properties.cap).timeout_ms());
                self.enable_deadline =
                    now + Duration::from_millis(ready_in).max(MIN_ENABLE_TIMEOUT);
                if Cc(cqe.dw0.get()).is_enabled() { Step::Disable } else { Step::Enable }
            }
            Step::Disable => Step::AwaitDisabled,
            Step::Enable => Step::AwaitReady,
            Step::AwaitDisabled | Step::AwaitReady => {
                return self.await_ready(now, step, Csts(cqe.dw0.get()));
            }
            Step::IdentifyController => {
                self.keep_page(Nsid(0), &bytes);
                self.take_controller(&bytes)?
            }
            Step::SetNumQueues => self.take_num_queues(cqe.dw0.get()),
            Step::ConfigureEvents => {
                if status.is_success() {
                    self.next_event_request = Some(now);
                }
                self.after_events()
            }
            Step::ListNamespaces => {
                let may_continue = self.identification.take_page(&bytes, status)?;
                let wants_all = matches!(self.terms.goal, Goal::AllNamespaces | Goal::Pages);
                if may_continue && wants_all {
                    Step::ListNamespaces
                } else {
                    self.begin_identification()
                }
            }
            Step::IdentifyNamespace => {
                let mut known = about.expect("it identifies one");
                self.keep_page(known.identified.nsid, &bytes);
                known.take_namespace(&bytes)?;
                self.ask_about(now, Step::ReadDescriptors, known)?;
                return Ok(AdminEvent::Nothing);
            }
            Step::ReadDescriptors => {
                let mut known = about.expect("it identifies one");
                if status.is_success() {
                    known.take_descriptors(&bytes);
                }
                self.identified.namespaces[known.ns_index] = known.identified;
                self.anagrpids[known.ns_index] = known.anagrpid;
                match (self.identification.finish_one(), self.properties.has_ana) {
                    (false, _) => Step::IdentifyNamespace,
                    (true, false) => return Ok(self.reach(now)),
                    (true, true) => Step::ReadAna,
                }
            }
            Step::ReadAna => {
                if status.is_success() {
                    self.take_ana(&bytes)?;
                }
                return Ok(self.reach(now));
            }
            Step::ReadLogHeader | Step::CheckLogHeader => {
                let (header, _) = DiscoveryLogHeader::read_from_prefix(&bytes).expect("1024 bytes");
                match self.take_log_header(step, &header)? {
                    Some(next) => next,
                    None => return Ok(self.reach(now)),
                }
            }
            Step::ReadLogRecords => {
                let records = bytes.chunks_exact(size_of::<DiscoveryRecord>());
                let records = records.map(|r| DiscoveryRecord::read_from_bytes(r).expect("1024"));
                self.records.extend(records);
                let has_more = self.log.num_records > self.records.len() as u64;
                if has_more { Step::ReadLogRecords } else { Step::CheckLogHeader }
            }
            Step::KeepAlive => return Ok(AdminEvent::Nothing),
            Step::AwaitEvent => return self.take_event(now, &cqe),
            Step::ReadChangedNamespaces => {
                let known = &self.identified.namespaces;
                if !self.identification.begin_again(&bytes, status, known) {
                    return Ok(AdminEvent::Nothing);
                }
                Step::IdentifyNamespace
            }
        };
        self.begin(now, next)?;
        Ok(AdminEvent::Nothing)
    }

    /// Records the number of I/O queues that dword 0 grants; returns the next step.
    fn take_num_queues(&mut self, dw0: u32) -> Step {
        let nsqr = dw0 & 0xFFFF;
        let ncqr = dw0 >> 16;
        let granted = nsqr.min(ncqr).saturating_add(1).min(u32::from(u16::MAX)) as u16;
        self.identified.num_io_queues = granted.min(self.terms.nr_io_queues.max(1));
        if self.properties.oaes & EVENTS_WANTED == 0 {
            self.after_events()
        } else {
            Step::ConfigureEvents
        }
    }

    /// Records the ANA state of the namespaces.
    ///
    /// # Errors
    /// A namespace is inaccessible before the goal was reached, unless the goal is Identify data.
    fn take_ana(&mut self, log: &[u8]) -> Result<(), Failure> {
        let nsids = self.identified.namespaces.iter().map(|namespace| namespace.nsid);
        let groups: Vec<_> = nsids.zip(self.anagrpids.iter().copied()).collect();
        let ana = Ana::decode(log, &groups);
        match ana.check().err().filter(|_| self.terms.goal != Goal::Pages) {
            Some(failure) if !self.ready => return Err(failure),
            // Commands that the target has taken are still answered.
            lost => {
                let step = Step::ReadAna.name();
                self.identified.inaccessible = lost.map(|failure| failure.at(step));
            }
        }
        self.identified.is_non_optimized = ana == Ana::NonOptimized;
        self.ana = Some(ana.name());
        Ok(())
    }

    /// The step after the configuration of events.
    fn after_events(&mut self) -> Step {
        match self.terms.goal {
            Goal::Namespaces(_) => self.begin_identification(),
            _ => Step::ListNamespaces,
        }
    }

    /// Selects the namespaces to identify; returns the step for it.
    fn begin_identification(&mut self) -> Step {
        self.identified.namespaces = self.identification.begin(&self.terms.goal);
        self.anagrpids = vec![0; self.identified.namespaces.len()];
        Step::IdentifyNamespace
    }

    /// Records that the goal is reached, for the first time or again.
    fn reach(&mut self, now: Instant) -> AdminEvent {
        if self.ready {
            return AdminEvent::Changed;
        }
        self.ready = true;
        let wants = !self.terms.keep_alive_tmo.is_zero() && self.properties.keeps_alive;
        self.next_keep_alive = wants.then(|| deadline(now, self.terms.keep_alive_tmo / 2));
        AdminEvent::Ready
    }

    /// Handles CSTS while the controller is being enabled or disabled.
    fn await_ready(&mut self, now: Instant, step: Step, csts: Csts) -> Result<AdminEvent, Failure> {
        if csts.is_fatal() {
            return Err(Failure::new(ErrorKind::Refused, "the controller reports a fatal status"));
        }
        if csts.is_ready() == (step == Step::AwaitReady) {
            let next = match step {
                Step::AwaitReady => Step::IdentifyController,
                _ => Step::Enable,
            };
            self.begin(now, next)?;
        } else if now >= self.enable_deadline {
            return Err(Failure::new(ErrorKind::TimedOut, "CSTS.RDY does not change"));
        } else {
            self.later = Some((now + READY_INTERVAL, step));
        }
        Ok(AdminEvent::Nothing)
    }

    /// Handles Identify Controller; returns the next step.
    fn take_controller(&mut self, bytes: &[u8]) -> Result<Step, Failure> {
        let id = IdentifyController::decode(bytes).map_err(unsupported)?;
        if self.terms.goal == Goal::Discovery {
            return Ok(Step::ReadLogHeader);
        }
        if id.sgls.get() & 3 == 0 {
            let message = "the controller takes no SGLs, which NVMe over Fabrics needs";
            return Err(Failure::new(ErrorKind::Unsupported, message));
        }
        let cap = Cap(self.properties.cap);
        let maxcmd = match id.maxcmd.get() {
            0 => u32::MAX,
            // A queue holds one command less than it has entries.
            maxcmd => u32::from(maxcmd) + 1,
        };
        self.identified.max_entries = cap.max_queue_entries().min(maxcmd);
        self.identified.max_transfer_bytes = id.max_transfer_bytes(cap.mpsmin());
        self.join_info.max_in_capsule = id.in_capsule_data_bytes();
        self.identified.has_volatile_write_cache = id.has_volatile_write_cache();
        self.properties.oaes = id.oaes.get();
        self.properties.has_ana = id.cmic & CMIC_ANA != 0;
        self.properties.keeps_alive = id.kas.get() != 0;
        Ok(Step::SetNumQueues)
    }

    /// Handles the completion of an asynchronous event request.
    fn take_event(&mut self, now: Instant, cqe: &Cqe) -> Result<AdminEvent, Failure> {
        self.next_event_request = Some(now + EVENT_INTERVAL);
        if !cqe.status().is_success() {
            // The target takes no more requests, or none at all. Events are optional.
            self.next_event_request = None;
            return Ok(AdminEvent::Nothing);
        }
        let dw0 = cqe.dw0.get();
        let kind = dw0 & 7;
        let info = dw0 >> 8 & 0xFF;
        match (kind, info) {
            (EVENT_NOTICE, NOTICE_NAMESPACE) => self.begin(now, Step::ReadChangedNamespaces)?,
            (EVENT_NOTICE, NOTICE_ANA) => self.begin(now, Step::ReadAna)?,
            _ => {}
        }
        Ok(AdminEvent::Nothing)
    }

    /// The next step of reading the discovery log; `None` when it is complete.
    fn take_log_header(
        &mut self,
        step: Step,
        header: &DiscoveryLogHeader,
    ) -> Result<Option<Step>, Failure> {
        let genctr = header.genctr.get();
        let num_records = header.numrec.get();
        if step == Step::CheckLogHeader && genctr == self.log.genctr {
            return Ok(None);
        }
        self.log.rounds += 1;
        if self.log.rounds > MAX_LOG_ROUNDS {
            let message = format!("the discovery log changed {MAX_LOG_ROUNDS} times while read");
            return Err(Failure::new(ErrorKind::Busy, message));
        }
        if num_records > DiscoveryRecord::MAX_RECORDS {
            let message = format!("a discovery log of {num_records} records is not believed");
            return Err(Failure::new(ErrorKind::Corrupt, message));
        }
        if header.recfmt.get() != 0 {
            let message = format!("discovery records of format {} are not known", header.recfmt);
            return Err(Failure::new(ErrorKind::Unsupported, message));
        }
        self.records.clear();
        self.log.genctr = genctr;
        self.log.num_records = num_records;
        Ok((num_records > 0).then_some(Step::ReadLogRecords))
    }
}

/// Returns whether the controller can be used although this step failed.
fn may_fail(step: Step) -> bool {
    use Step::*;
    matches!(
        step,
        ConfigureEvents
            | ListNamespaces
            | ReadDescriptors
            | ReadAna
            | KeepAlive
            | AwaitEvent
            | ReadChangedNamespaces
    )
}

/// Entries of the admin queue: the usual number; some targets refuse more.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// The asynchronous events to enable: bit 8 namespace attributes, bit 11 ANA.
const EVENTS_WANTED: u32 = 1 << 8 | 1 << 11;
/// Type of an event: a notice.
const EVENT_NOTICE: u32 = 2;
/// A notice: a namespace's attributes have changed.
const NOTICE_NAMESPACE: u32 = 0;
/// A notice: an ANA state has changed.
const NOTICE_ANA: u32 = 3;
/// The wait between the completion of an event request and the next request.
const EVENT_INTERVAL: Duration = Duration::from_millis(20);

/// Identify Controller, CMIC bit 3: the subsystem reports ANA.
const CMIC_ANA: u8 = 1 << 3;
/// The bytes to read of an ANA log: the header and 127 groups.
const ANA_LOG_LEN: usize = 4096;
/// Log specific parameter of the ANA log, bit 0 (RGO): groups without their namespaces.
const ANA_GROUPS_ONLY: u32 = 1 << 8;

/// The interval of reading CSTS while the controller becomes ready.
const READY_INTERVAL: Duration = Duration::from_millis(10);
/// The least time that a controller gets to be disabled and to become ready, since CAP.TO may be 0.
const MIN_ENABLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most times that a discovery log is read: again each time it has changed meanwhile.
const MAX_LOG_ROUNDS: u32 = 8;
/// Discovery records in one command: 32 KiB, below any MDTS in use.
const RECORDS_AT_ONCE: u64 = 32;
