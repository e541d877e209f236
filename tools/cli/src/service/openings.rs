//! Changes of a service while it runs: requests of `dlfs ctl`, and reloads.
//!
//! The command's thread calls [`Changes::step`] again and again. Opening namespaces may take long, since a remote
//! target may be slow to answer; so those of each request or reload are opened on a thread, and the service goes on
//! meanwhile. The request that needs a namespace is answered when it is open. One reload is in progress at a time.

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

use self::Failed::{NothingChanged, PartlyChanged};
use super::access_log::LogDestination;
use super::config::{self, NamespaceConfig, ServiceConfig};
use super::control::{Event, Reply, Request};
use super::reload::Opened;
use super::running::{self, DRAIN_LIMIT, Service};
use super::takeover::Manager;
use crate::log;

/// Openings in progress, each with its purpose.
pub(crate) struct Openings<P> {
    under_way: Vec<UnderWay<P>>,
    /// Is told when a result is ready.
    events: Sender<Event>,
    /// Each thread has a clone: the reference count tells how many threads there are.
    threads: Arc<()>,
}

struct UnderWay<P> {
    purpose: P,
    until: Instant,
    result: Receiver<Found>,
}

type Found = Result<Vec<ServedNamespace>>;

impl<P> Openings<P> {
    pub(crate) fn new(events: Sender<Event>) -> Openings<P> {
        Openings { under_way: Vec::new(), events, threads: Arc::new(()) }
    }

    /// Starts `work`, which opens namespaces. [`Openings::finished`] returns the result, at the latest after
    /// `limit`.
    pub(crate) fn begin(
        &mut self,
        purpose: P,
        limit: Duration,
        work: impl FnOnce() -> Found + Send + 'static,
    ) {
        let (done, result) = channel();
        self.under_way.push(UnderWay { purpose, until: Instant::now() + limit, result });
        if let Err(error) = self.start(done.clone(), work) {
            let _ = done.send(Err(error)); // we still have the receiver
        }
    }

    fn start(
        &self,
        done: Sender<Found>,
        work: impl FnOnce() -> Found + Send + 'static,
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
        self.under_way.iter().map(|under_way| &under_way.purpose)
    }

    /// Openings that have ended, or whose time is over, with their results.
    pub(crate) fn finished(&mut self) -> Vec<(P, Found)> {
        let now = Instant::now();
        let mut finished = Vec::new();
        for one in std::mem::take(&mut self.under_way) {
            match one.result.try_recv() {
                Ok(opened) => finished.push((one.purpose, opened)),
                Err(_) if one.until <= now => {
                    let message = "the namespace could not be opened in time";
                    finished.push((one.purpose, Err(Error::new(ErrorKind::TimedOut, message))));
                }
                Err(_) => self.under_way.push(one),
            }
        }
        finished
    }
}

/// The most threads that open namespaces at a time.
const MAX_THREADS: usize = 16;

/// A service, and the changes in progress.
pub(crate) struct Changes {
    pub(crate) service: Service,
    source: Source,
    manager: Manager,
    openings: Openings<Purpose>,
    /// Requests for a reload that has not begun.
    wanted: Askers,
    /// The deadline for hosts to leave; the service then ends.
    ends: Option<Instant>,
    /// Set when another process has taken over.
    pub(crate) has_handed_over: bool,
}

/// The files and options that a reload reads.
pub(crate) struct Source {
    pub(crate) config: Option<PathBuf>,
    /// The hosts file from the command line.
    pub(crate) hosts: Option<PathBuf>,
    /// The place from the command line, which has precedence over the configuration file's.
    pub(crate) access_log: Option<LogDestination>,
}

/// The purpose of opening namespaces.
enum Purpose {
    Add(Reply, (Nqn, NamespaceConfig)),
    Reload(Reload),
}

/// A reload in progress.
struct Reload {
    askers: Askers,
    new: ServiceConfig,
    /// Namespaces that are being opened.
    wanted: Vec<(Nqn, NamespaceConfig)>,
    opened: Vec<Opened>,
}

/// The requesters of a reload: SIGHUP, and clients of `dlfs ctl`.
#[derive(Default)]
struct Askers {
    hung_up: bool,
    replies: Vec<Reply>,
}

/// The end of a reload: the changes, in words.
type End = Result<String, Failed>;

/// The extent of a reload that failed.
enum Failed {
    NothingChanged(Error),
    PartlyChanged(Error),
}

impl Source {
    /// The place of the access log for this configuration file.
    pub(crate) fn access_log(&self, config: Option<&ServiceConfig>) -> Option<LogDestination> {
        self.access_log.clone().or_else(|| config?.access_log.clone())
    }
}

impl Changes {
    /// `events` is told when [`Changes::step`] has something to do.
    pub(crate) fn new(
        service: Service,
        source: Source,
        manager: Manager,
        events: Sender<Event>,
    ) -> Changes {
        let openings = Openings::new(events);
        let wanted = Askers::default();
        let ends = None;
        let has_handed_over = false;
        Changes { service, source, manager, openings, wanted, ends, has_handed_over }
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

    /// Notes that SIGHUP has arrived.
    pub(crate) fn hung_up(&mut self) {
        self.wanted.hung_up = true;
    }

    /// Carries out a request. It is answered now, or by [`Changes::step`].
    pub(crate) fn answer(&mut self, request: &Request, reply: Reply) {
        let answer = match request.method.as_str() {
            "add-ns" | "reload" if self.is_ending() => Err(it_ends()),
            "add-ns" => match self.begin_to_add(request, &reply) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            "reload" => return self.wanted.replies.push(reply),
            "drain" => Ok(json!({ "controllers": self.begin_to_end("dlfs ctl drain") })),
            "hand-over" => self.service.stop_listening().map(|()| {
                self.has_handed_over = true;
                let controllers = self.begin_to_end("another process takes over");
                json!({ "controllers": controllers })
            }),
            _ => self.service.answer(request),
        };
        give(&reply, answer);
    }

    fn begin_to_add(&mut self, request: &Request, reply: &Reply) -> Result<()> {
        let promised = self.openings.purposes().filter_map(|purpose| match purpose {
            Purpose::Add(_, added) => Some(added),
            Purpose::Reload(_) => None,
        });
        let added = self.service.to_add(request, promised)?;
        self.open(vec![added.1.clone()], Purpose::Add(reply.clone(), added));
        Ok(())
    }

    fn open(&mut self, namespaces: Vec<NamespaceConfig>, purpose: Purpose) {
        let connect = self.service.connect.clone();
        self.openings.begin(purpose, OPEN_LIMIT, move || {
            namespaces.iter().map(|namespace| running::open(namespace, &connect)).collect()
        });
    }

    /// Advances all changes in progress, and gives the answers that are ready.
    pub(crate) fn step(&mut self) {
        self.service.step_leaving();
        for (purpose, opened) in self.openings.finished() {
            let opened = if self.is_ending() { Err(it_ends()) } else { opened };
            match purpose {
                Purpose::Add(reply, (nqn, config)) => {
                    let add = |mut served: Vec<ServedNamespace>| {
                        self.service.add_opened(&nqn, config, served.remove(0))
                    };
                    give(&reply, opened.and_then(add));
                }
                Purpose::Reload(reload) => match opened {
                    Ok(served) => self.have_opened(reload, served),
                    Err(error) => self.end(reload.askers, Err(NothingChanged(error))),
                },
            }
        }
        let is_reloading =
            self.openings.purposes().any(|purpose| matches!(purpose, Purpose::Reload(_)));
        if !is_reloading && (self.wanted.hung_up || !self.wanted.replies.is_empty()) {
            self.begin_to_reload();
        }
    }

    fn begin_to_reload(&mut self) {
        if self.is_ending() {
            let askers = std::mem::take(&mut self.wanted);
            return self.end(askers, Err(NothingChanged(it_ends())));
        }
        let new = self.source.config.as_deref().map(config::read).transpose();
        if let Ok(Some(new)) = &new
            && new.subsystems.iter().any(|config| self.service.is_leaving(&config.nqn))
        {
            // The file contains a subsystem that is still ending. The reload waits for its end, for a few
            // seconds at most; other requests do not wait.
            return;
        }
        let askers = std::mem::take(&mut self.wanted);
        self.manager.reloading();
        match new {
            Ok(Some(new)) => {
                let wanted = Vec::new();
                let opened = Vec::new();
                self.go_on(Reload { askers, new, wanted, opened });
            }
            Err(error) => self.end(askers, Err(NothingChanged(error))),
            Ok(None) => {
                let end = self.read_hosts_again().map_err(NothingChanged);
                self.end(askers, end);
            }
        }
    }

    fn have_opened(&mut self, mut reload: Reload, served: Vec<ServedNamespace>) {
        let wanted = std::mem::take(&mut reload.wanted).into_iter().zip(served);
        let opened = wanted.map(|((nqn, config), served)| Opened { nqn, config, served });
        reload.opened.extend(opened);
        self.go_on(reload);
    }

    /// Opens missing namespaces, or ends the reload. Namespaces may be missing again: `dlfs ctl` may remove
    /// one while others are opened.
    fn go_on(&mut self, mut reload: Reload) {
        match self.service.missing(&reload.new, &reload.opened) {
            Ok(missing) if !missing.is_empty() => {
                reload.wanted = missing;
                let namespaces = reload.wanted.iter().map(|(_, config)| config.clone()).collect();
                self.open(namespaces, Purpose::Reload(reload));
            }
            Ok(_) => {
                let Reload { askers, new, opened, .. } = reload;
                let end = self.become_what(&new, opened);
                self.end(askers, end);
            }
            Err(error) => self.end(reload.askers, Err(NothingChanged(error))),
        }
    }

    fn become_what(&mut self, new: &ServiceConfig, opened: Vec<Opened>) -> End {
        let place = self.source.access_log(Some(new));
        let prepared = self.service.prepare(new, opened, place.as_ref()).map_err(NothingChanged)?;
        self.service.commit(new, prepared).map_err(PartlyChanged)
    }

    /// Reloads the hosts file from the command line. Connected hosts stay.
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

    /// Reports the result of a reload to all its requesters.
    fn end(&mut self, askers: Askers, end: End) {
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
        let asker = if askers.hung_up { "SIGHUP" } else { "dlfs ctl reload" };
        log::say(&format!("{asker}: {text}"));
        if !self.is_ending() {
            self.manager.ready("serving");
        }
        for reply in askers.replies {
            let answer = match failed {
                None => Ok(json!({ "changed": text })),
                Some(kind) => Err(Error::new(kind, text.clone())),
            };
            give(&reply, answer);
        }
    }
}

fn give(reply: &Reply, answer: Result<Value>) {
    let _ = reply.send(answer); // fails only if the client is gone
}

fn it_ends() -> Error {
    Error::new(ErrorKind::Busy, "the service is draining, and ends")
}

/// Time limit for opening namespaces. A remote target has less: see `ConnectOptions::connect_timeout`.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

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
        openings.begin("hangs", LONG, hangs);
        openings.begin("ends", LONG, || Ok(Vec::new()));
        let (name, result) = wait(&mut openings);
        assert!(name == "ends" && result.is_ok());
        assert_eq!(openings.purposes().collect::<Vec<_>>(), [&"hangs"]);
        openings.under_way[0].until = Instant::now();
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
                openings.begin(number, LONG, move || {
                    let _ = hang.recv();
                    Ok(Vec::new())
                });
                release
            })
            .collect();
        openings.begin(99, LONG, || Ok(Vec::new()));
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
