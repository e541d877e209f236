//! Changes of a service while it runs: requests of `dlfs ctl`, and reloads.
//!
//! The command's thread calls [`Changes::step`] again and again. Namespaces that a request or a reload needs are opened
//! on a thread ([`Openings`]), and the service goes on meanwhile; the request is answered when they are open. One
//! reload is in progress at a time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use dlfs::keys::read_hosts;
use dlfs::nvme::Nqn;
use dlfs::target::ServedNamespace;
use dlfs::{Error, ErrorKind, Result};

use self::ReloadError::{NothingChanged, PartlyChanged};
use super::access_log::LogDestination;
use super::config::{self, NamespaceConfig, ServiceConfig};
use super::control::{Event, Reply, Request};
use super::manager::Manager;
use super::reload::Opened;
use super::running::{self, DRAIN_LIMIT, Service};
use crate::log;

/// A service, and the changes in progress.
pub(crate) struct Changes {
    pub(crate) service: Service,
    source: Source,
    manager: Manager,
    openings: Openings<Purpose>,
    /// Requests for a reload that has not begun.
    requested: ReloadRequests,
    /// The time at which the service ends, even if hosts have not left; `None`: the service is not ending.
    ends: Option<Instant>,
    /// Set when another process has taken over.
    pub(crate) has_handed_over: bool,
}

/// The files and options that a reload reads.
pub(crate) struct Source {
    /// The configuration file; `None`: the command line defines the service.
    pub(crate) config: Option<PathBuf>,
    /// The hosts file from the command line.
    pub(crate) hosts: Option<PathBuf>,
    /// The destination from the command line, which has precedence over the configuration file's.
    pub(crate) access_log: Option<LogDestination>,
}

/// The purpose of opening namespaces.
enum Purpose {
    /// The request `add-ns`: the channel for its answer, and the namespace with its subsystem.
    Add(Reply, (Nqn, NamespaceConfig)),
    Reload(Reload),
}

/// A reload in progress.
struct Reload {
    requests: ReloadRequests,
    new: ServiceConfig,
    /// Namespaces that are being opened, with their subsystems.
    opening: Vec<(Nqn, NamespaceConfig)>,
    /// Namespaces that are open.
    opened: Vec<Opened>,
}

/// The requests that one reload answers: SIGHUP, and those of `dlfs ctl`.
#[derive(Default)]
struct ReloadRequests {
    hung_up: bool,
    replies: Vec<Reply>,
}

/// The result of a reload: a description of the changes.
type ReloadResult = Result<String, ReloadError>;

/// The error of a reload, by its effect on the service.
enum ReloadError {
    NothingChanged(Error),
    PartlyChanged(Error),
}

impl Source {
    /// The destination of the access log with this configuration file.
    pub(crate) fn access_log(&self, config: Option<&ServiceConfig>) -> Option<LogDestination> {
        self.access_log.clone().or_else(|| config?.access_log.clone())
    }
}

impl Changes {
    /// Begins without changes. `events` receives an event when namespaces are open, for [`Changes::step`].
    pub(crate) fn new(
        service: Service,
        source: Source,
        manager: Manager,
        events: Sender<Event>,
    ) -> Changes {
        let openings = Openings::new(events);
        let requested = ReloadRequests::default();
        let ends = None;
        let has_handed_over = false;
        Changes { service, source, manager, openings, requested, ends, has_handed_over }
    }

    /// Begins to end the service: sends all hosts away. Returns the number of controllers.
    pub(crate) fn begin_to_end(&mut self, why: &str) -> usize {
        if self.ends.is_none() {
            if !self.has_handed_over {
                self.manager.stopping(); // else the manager follows the other process
            }
            self.ends = Some(Instant::now() + DRAIN_LIMIT);
        }
        self.service.begin_to_drain(why)
    }

    /// Returns whether [`Changes::begin_to_end`] was called.
    pub(crate) fn is_ending(&self) -> bool {
        self.ends.is_some()
    }

    /// Returns whether the service is ending, and all hosts are gone or their deadline has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.is_some_and(|until| self.service.is_drained() || Instant::now() >= until)
    }

    /// Requests a reload for SIGHUP.
    pub(crate) fn hung_up(&mut self) {
        self.requested.hung_up = true;
    }

    /// Carries out a request. It is answered now, or by [`Changes::step`].
    pub(crate) fn answer(&mut self, request: &Request, reply: Reply) {
        let answer = match request.method.as_str() {
            "add-ns" | "reload" if self.is_ending() => Err(ending_error()),
            "add-ns" => match self.begin_to_add(request, &reply) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            "reload" => return self.requested.replies.push(reply),
            "drain" => Ok(json!({ "controllers": self.begin_to_end("dlfs ctl drain") })),
            "hand-over" => self.service.stop_listening().map(|()| {
                self.has_handed_over = true;
                let controllers = self.begin_to_end("another process takes over");
                json!({ "controllers": controllers })
            }),
            _ => self.service.answer(request),
        };
        send_answer(&reply, answer);
    }

    /// Begins to open the namespace of the request `add-ns`.
    fn begin_to_add(&mut self, request: &Request, reply: &Reply) -> Result<()> {
        let promised = self.openings.purposes().filter_map(|purpose| match purpose {
            Purpose::Add(_, added) => Some(added),
            Purpose::Reload(_) => None,
        });
        let added = self.service.to_add(request, promised)?;
        self.open(vec![added.1.clone()], Purpose::Add(reply.clone(), added));
        Ok(())
    }

    /// Begins to open namespaces.
    fn open(&mut self, namespaces: Vec<NamespaceConfig>, purpose: Purpose) {
        let connect = self.service.connect.clone();
        self.openings.begin(purpose, move || {
            namespaces.iter().map(|namespace| running::open(namespace, &connect)).collect()
        });
    }

    /// Advances all changes in progress, and gives the answers that are ready.
    pub(crate) fn step(&mut self) {
        self.service.step_leaving();
        for (purpose, opened) in self.openings.finished() {
            let opened = if self.is_ending() { Err(ending_error()) } else { opened };
            match purpose {
                Purpose::Add(reply, (nqn, config)) => {
                    let add = |mut served: Vec<ServedNamespace>| {
                        self.service.add_opened(&nqn, config, served.remove(0))
                    };
                    send_answer(&reply, opened.and_then(add));
                }
                Purpose::Reload(reload) => match opened {
                    Ok(served) => self.on_opened(reload, served),
                    Err(error) => self.end(reload.requests, Err(NothingChanged(error))),
                },
            }
        }
        let is_reloading =
            self.openings.purposes().any(|purpose| matches!(purpose, Purpose::Reload(_)));
        if !is_reloading && (self.requested.hung_up || !self.requested.replies.is_empty()) {
            self.begin_to_reload();
        }
    }

    /// Begins the requested reload, unless it has to wait for a subsystem to end.
    fn begin_to_reload(&mut self) {
        if self.is_ending() {
            let requests = std::mem::take(&mut self.requested);
            return self.end(requests, Err(NothingChanged(ending_error())));
        }
        let new = self.source.config.as_deref().map(config::read).transpose();
        if let Ok(Some(new)) = &new
            && new.subsystems.iter().any(|config| self.service.is_leaving(&config.nqn))
        {
            // The file contains a subsystem that is still ending. The reload waits for its end, for a few
            // seconds at most; other requests do not wait.
            return;
        }
        let requests = std::mem::take(&mut self.requested);
        self.manager.reloading();
        match new {
            Ok(Some(new)) => {
                let opening = Vec::new();
                let opened = Vec::new();
                self.open_missing_or_finish(Reload { requests, new, opening, opened });
            }
            Err(error) => self.end(requests, Err(NothingChanged(error))),
            Ok(None) => {
                let end = self.read_hosts_again().map_err(NothingChanged);
                self.end(requests, end);
            }
        }
    }

    /// Takes the namespaces that were opened for a reload.
    fn on_opened(&mut self, mut reload: Reload, served: Vec<ServedNamespace>) {
        let opening = std::mem::take(&mut reload.opening).into_iter().zip(served);
        let opened = opening.map(|((nqn, config), served)| Opened { nqn, config, served });
        reload.opened.extend(opened);
        self.open_missing_or_finish(reload);
    }

    /// Opens missing namespaces, or ends the reload. Namespaces may be missing again: `dlfs ctl` may remove
    /// one while others are opened.
    fn open_missing_or_finish(&mut self, mut reload: Reload) {
        match self.service.missing(&reload.new, &reload.opened) {
            Ok(missing) if !missing.is_empty() => {
                reload.opening = missing;
                let namespaces = reload.opening.iter().map(|(_, config)| config.clone()).collect();
                self.open(namespaces, Purpose::Reload(reload));
            }
            Ok(_) => {
                let Reload { requests, new, opened, .. } = reload;
                let end = self.apply(&new, opened);
                self.end(requests, end);
            }
            Err(error) => self.end(reload.requests, Err(NothingChanged(error))),
        }
    }

    /// Makes the service match `new`, for which all namespaces are open.
    fn apply(&mut self, new: &ServiceConfig, opened: Vec<Opened>) -> ReloadResult {
        let place = self.source.access_log(Some(new));
        let prepared = self.service.prepare(new, opened, place.as_ref()).map_err(NothingChanged)?;
        self.service.commit(new, prepared).map_err(PartlyChanged)
    }

    /// Reloads the hosts file from the command line, and opens the access log anew. Connected hosts stay.
    fn read_hosts_again(&mut self) -> Result<String> {
        let keys = self.source.hosts.as_deref().map(read_hosts).transpose()?;
        let output = self.service.next_access_log(self.source.access_log(None).as_ref())?;
        let count = keys.as_ref().map(|keys| keys.len());
        if let (Some(keys), Some(running)) = (keys, self.service.subsystems.first_mut()) {
            running.target.set_host_keys(keys.clone())?;
            running.config.host_keys = keys;
        }
        if let Some(output) = output {
            self.service.switch_access_log(output);
        }
        Ok(match count {
            None => "there is no hosts file to read again; serving goes on".to_owned(),
            Some(1) => "the hosts file names 1 host".to_owned(),
            Some(count) => format!("the hosts file names {count} hosts"),
        })
    }

    /// Reports the result of a reload: to the logs, to the service manager, and as the answer to all requests.
    fn end(&mut self, requests: ReloadRequests, end: ReloadResult) {
        let why = |error: &Error| error.report().replace("\n  ", "; "); // one line of the log
        let (event, text, failed) = match end {
            Ok(what) => ("reloaded", what, None),
            Err(NothingChanged(error)) => {
                let text = format!("all stays as it was: {}", why(&error));
                ("reload-refused", text, Some(error.kind()))
            }
            Err(PartlyChanged(error)) => {
                let text = format!("only a part has changed, restart it: {}", why(&error));
                ("reload-failed", text, Some(error.kind()))
            }
        };
        let key = if failed.is_some() { "why" } else { "what" };
        self.service.note(event, json!({ key: text }));
        let asker = if requests.hung_up { "SIGHUP" } else { "dlfs ctl reload" };
        log::say(&format!("{asker}: {text}"));
        if !self.is_ending() {
            self.manager.ready("serving");
        }
        for reply in requests.replies {
            let answer = match failed {
                None => Ok(json!({ "changed": text })),
                Some(kind) => Err(Error::new(kind, text.clone())),
            };
            send_answer(&reply, answer);
        }
    }
}

/// Openings of namespaces in progress, each with its purpose. Each runs on a thread, since a remote target may be slow
/// to answer.
struct Openings<P> {
    in_progress: Vec<Opening<P>>,
    /// Receives an event when a result is ready.
    events: Sender<Event>,
    /// Each thread has a clone: the reference count is the number of threads, and one more.
    threads: Arc<()>,
}

/// An opening in progress.
struct Opening<P> {
    purpose: P,
    /// The time at which the opening fails.
    until: Instant,
    result: Receiver<OpenResult>,
}

/// The open namespaces, or the error of the first that could not be opened.
type OpenResult = Result<Vec<ServedNamespace>>;

impl<P> Openings<P> {
    fn new(events: Sender<Event>) -> Openings<P> {
        Openings { in_progress: Vec::new(), events, threads: Arc::new(()) }
    }

    /// Starts `work`, which opens namespaces. [`Openings::finished`] returns the result, at the latest after
    /// [`OPEN_LIMIT`].
    fn begin(&mut self, purpose: P, work: impl FnOnce() -> OpenResult + Send + 'static) {
        let (done, result) = channel();
        self.in_progress.push(Opening { purpose, until: Instant::now() + OPEN_LIMIT, result });
        if let Err(error) = self.start(done.clone(), work) {
            let _ = done.send(Err(error)); // we still have the receiver
        }
    }

    /// Starts the thread, which sends the result to `done`.
    fn start(
        &self,
        done: Sender<OpenResult>,
        work: impl FnOnce() -> OpenResult + Send + 'static,
    ) -> Result<()> {
        // Threads that have hung for longer than their limit count too.
        if Arc::strong_count(&self.threads) > MAX_THREADS {
            let message = format!("{MAX_THREADS} threads open namespaces already");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let events = self.events.clone();
        let counted = self.threads.clone();
        thread::Builder::new().name("dlfs-serve-open".to_owned()).spawn(move || {
            let _counted = counted;
            // If the result is no longer wanted, the send fails and closes the opened namespaces.
            let _ = done.send(work());
            let _ = events.send(Event::Woken); // fails only if the service has ended
        })?;
        Ok(())
    }

    /// The purposes of all openings in progress.
    fn purposes(&self) -> impl Iterator<Item = &P> {
        self.in_progress.iter().map(|opening| &opening.purpose)
    }

    /// Openings that have ended, or whose time is over, with their results.
    fn finished(&mut self) -> Vec<(P, OpenResult)> {
        let now = Instant::now();
        let mut finished = Vec::new();
        for one in std::mem::take(&mut self.in_progress) {
            match one.result.try_recv() {
                Ok(opened) => finished.push((one.purpose, opened)),
                Err(_) if one.until <= now => {
                    let message = "the namespace could not be opened in time";
                    finished.push((one.purpose, Err(Error::new(ErrorKind::TimedOut, message))));
                }
                Err(_) => self.in_progress.push(one),
            }
        }
        finished
    }
}

fn send_answer(reply: &Reply, answer: Result<Value>) {
    let _ = reply.send(answer); // fails only if the client is gone
}

fn ending_error() -> Error {
    Error::new(ErrorKind::Busy, "the service is draining, and ends")
}

/// Time limit for opening namespaces. A remote target has less: see `ConnectOptions::connect_timeout`.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// The most threads that open namespaces at a time.
const MAX_THREADS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for the only opening.
    fn wait<P>(openings: &mut Openings<P>) -> (P, Result<Vec<ServedNamespace>>) {
        loop {
            if let Some(finished) = openings.finished().pop() {
                return finished;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn one_that_hangs_delays_no_other_and_fails_when_its_time_is_over() {
        let mut openings = Openings::new(channel().0);
        let (release, hang) = channel::<()>();
        let hangs = move || {
            let _ = hang.recv();
            Ok(Vec::new())
        };
        openings.begin("hangs", hangs);
        openings.begin("ends", || Ok(Vec::new()));
        let (name, result) = wait(&mut openings);
        assert!(name == "ends" && result.is_ok());
        assert_eq!(openings.purposes().collect::<Vec<_>>(), [&"hangs"]);
        openings.in_progress[0].until = Instant::now();
        let (name, result) = wait(&mut openings);
        assert_eq!((name, result.unwrap_err().kind()), ("hangs", ErrorKind::TimedOut));
        // A namespace that is opened too late is closed, without a report.
        drop(release);
        while Arc::strong_count(&openings.threads) > 1 {
            thread::yield_now();
        }
        assert!(openings.finished().is_empty());
    }

    #[test]
    fn more_than_the_limit_are_refused() {
        let mut openings = Openings::new(channel().0);
        let releases: Vec<_> = (0..MAX_THREADS)
            .map(|number| {
                let (release, hang) = channel::<()>();
                openings.begin(number, move || {
                    let _ = hang.recv();
                    Ok(Vec::new())
                });
                release
            })
            .collect();
        openings.begin(99, || Ok(Vec::new()));
        let (number, result) = wait(&mut openings);
        assert_eq!((number, result.unwrap_err().kind()), (99, ErrorKind::Busy));
        drop(releases);
        let mut ended = Vec::new();
        while ended.len() < MAX_THREADS {
            ended.extend(openings.finished().into_iter().map(|(number, _)| number));
            thread::yield_now();
        }
        ended.sort_unstable();
        assert_eq!(ended, (0..MAX_THREADS).collect::<Vec<usize>>());
    }
}
