//! A rank that takes its batches from the loader of its node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buf::{IoBuf, Loan, SealedBytes, SealedLocation, SharedBuf};
use crate::cache::{Listener, connect_to};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::order::State;
use crate::prefetch::copiers::gather;
use crate::prefetch::walk::{Head, Walk};
use crate::prefetch::window::registrar;
use crate::prefetch::{Course, LoaderOptions, LoaderStats, NextBatch, NodePlace};
use crate::reader::{Batch, SampleLocation};
use crate::report::Cause;
use crate::tokens::Layout;
use crate::units::{Epoch, SampleId};

use super::link::{Link, Received};
use super::messages::{BatchHead, LOOSE, SamplePlace, ToClient, ToOwner, malformed};
use super::owner::NodeOwner;
use super::puller::Origin;
use super::{reading, seat, socket_name};

/// A run of one rank, read by its node's loader.
pub(crate) struct NodeClient {
    /// Makes the node's prefetcher, if this process becomes the owner.
    origin: Origin,
    /// The options of this rank.
    options: LoaderOptions,
    place: NodePlace,
    directory: Arc<Directory>,
    pub(crate) course: Course,
    /// Computes the batches of this rank, to check those of the owner. `None` for batches by a budget: to compute them
    /// takes the lengths of all samples.
    walk: Option<Walk>,
    /// The next batch by `walk`.
    next: Option<Head>,
    /// The connection to the owner; `None`: there is none yet, or the owner has ended.
    link: Option<Link>,
    /// The owner's threads, if this process is the owner.
    owner: Option<NodeOwner>,
    /// The number of the current request: see [`ToOwner::Want`].
    turn: u32,
    /// A message that arrived while another was awaited.
    pending: Option<ToClient>,
    /// The time of the next attempt to connect, and the pause after it.
    retry: Instant,
    pause: Duration,
    /// The time that earlier calls have waited for the next batch.
    waited: Duration,
    /// Until this time the process that has this rank's seat may still be ending, so [`ErrorKind::Busy`] is not final.
    busy_until: Instant,
    /// Set once this process has had a connection: a new owner then waits only briefly for the other ranks.
    was_connected: bool,
    /// The layout of the last batch, if batches are rows of tokens.
    pub(crate) layout: Layout,
}

impl NodeClient {
    /// Connects to the owner of the node's loader, or becomes the owner. `len` is the number of positions of an epoch.
    ///
    /// # Errors
    /// `Busy`: another process has this rank's seat. Errors of [`NodeOwner::start`] and [`Link::open`].
    pub(crate) fn start(
        origin: Origin,
        (options, place): (LoaderOptions, NodePlace),
        (directory, len): (Arc<Directory>, u64),
        state: State,
    ) -> Result<NodeClient> {
        let mut client = NodeClient {
            origin,
            walk: None,
            options,
            place,
            directory,
            course: Course::new(state),
            next: None,
            link: None,
            owner: None,
            turn: 0,
            pending: None,
            retry: Instant::now(),
            pause: FIRST_PAUSE,
            waited: Duration::ZERO,
            busy_until: Instant::now() + BUSY_WAIT,
            was_connected: false,
            layout: Layout::default(),
        };
        client.begin(len)?;
        if !client.course.ended {
            client.connect()?;
        }
        Ok(client)
    }

    /// Continues from `state`, with the same seat.
    ///
    /// # Errors
    /// As [`NodeClient::start`].
    pub(crate) fn restart(mut self, state: State, len: u64) -> Result<NodeClient> {
        if let Some(ToClient::Batch(head, ..)) = self.pending.take() {
            self.push(ToOwner::Release { entry: head.entry });
        }
        if state.order != self.course.state.order {
            let NodeClient { origin, options, place, directory, link, owner, .. } = self;
            drop((link, owner)); // first: the next owner counts on from its counters
            return NodeClient::start(origin, (options, place), (directory, len), state);
        }
        let mut client = NodeClient { course: Course::new(state), pending: None, ..self };
        client.begin(len)?;
        client.want();
        Ok(client)
    }

    /// Begins a turn at the current state.
    fn begin(&mut self, len: u64) -> Result<()> {
        self.turn += 1;
        self.walk = None;
        if self.options.budget.is_none() {
            self.walk = Some(Walk::new(len, &self.options, &self.course.state)?);
            self.step();
        }
        self.course.ended |= self.course.state.epoch.0 >= self.options.epochs.end;
        Ok(())
    }

    /// Computes the next batch by `walk`, if there is a walk.
    fn step(&mut self) {
        if let Some(walk) = &mut self.walk {
            self.next = walk.next_fixed().map(|taken| taken.head);
            self.course.ended = self.next.is_none();
        }
    }

    /// As `Prefetcher::next_within`.
    pub(crate) fn next_within(&mut self, batch: &mut Batch, limit: Duration) -> Result<NextBatch> {
        self.course.check()?;
        // The release of the last batch goes with the next message.
        self.link.iter().for_each(Link::hold);
        batch.clear();
        let taken = if self.course.ended { Ok(NextBatch::End) } else { self.take(batch, limit) };
        self.link.iter().for_each(Link::flush);
        self.course.noted(taken)
    }

    /// Waits for the next batch of this turn, and fills `batch` with it.
    fn take(&mut self, batch: &mut Batch, limit: Duration) -> Result<NextBatch> {
        let began = Instant::now();
        let until = began + limit;
        loop {
            let Some(message) = self.receive(until)? else {
                // The cause of the wait comes with the batch.
                self.waited += began.elapsed();
                return Ok(NextBatch::Later);
            };
            match message {
                ToClient::Batch(head, samples, layout) if head.turn == self.turn => {
                    let cause = Cause::ALL.get(head.cause as usize).unwrap_or(&Cause::Window);
                    let waited = std::mem::take(&mut self.waited) + began.elapsed();
                    self.course.stats.stalls.add(*cause, waited);
                    if self.fill(batch, &head, &samples)? {
                        self.layout = layout;
                        return Ok(NextBatch::Ready);
                    }
                }
                ToClient::Batch(head, ..) => self.push(ToOwner::Release { entry: head.entry }),
                ToClient::End { turn } if turn == self.turn && self.next.is_some() => {
                    let text = "the process that reads for this node ended before this rank had all its batches";
                    return Err(Error::new(ErrorKind::Internal, text));
                }
                ToClient::End { turn } if turn == self.turn => {
                    self.course.ended = true;
                    return Ok(NextBatch::End);
                }
                ToClient::Failed { turn, kind, text } if turn == self.turn => {
                    return Err(Error::new(kind, text));
                }
                ToClient::End { .. } | ToClient::Holders(_) | ToClient::Failed { .. } => {}
                ToClient::Welcome { .. } => return Err(malformed()),
            }
        }
    }

    /// The next message; `None`: none has arrived by `until`. Connects to the next owner if the last one has ended.
    fn receive(&mut self, until: Instant) -> Result<Option<ToClient>> {
        loop {
            if let Some(message) = self.pending.take() {
                return Ok(Some(message));
            }
            if self.link.is_none() && !self.connect_by(until)? {
                return Ok(None);
            }
            let Some(link) = &mut self.link else { return Ok(None) };
            match link.receive(until)? {
                Received::Message(message) => return Ok(Some(message)),
                Received::Nothing => return Ok(None),
                Received::Ended => self.lose_owner()?,
            }
        }
    }

    /// Handles the owner's end: another rank or this one will be the next owner.
    ///
    /// # Errors
    /// This process was the owner, and one of its threads died.
    fn lose_owner(&mut self) -> Result<()> {
        self.link = None;
        if let Some(died) = self.owner.take().and_then(|owner| owner.fate.died()) {
            return Err(died);
        }
        self.pause = FIRST_PAUSE;
        self.retry = Instant::now();
        self.busy_until = self.retry + BUSY_WAIT;
        Ok(())
    }

    /// Tries to connect until `until`; returns whether it did.
    fn connect_by(&mut self, until: Instant) -> Result<bool> {
        while !self.connect()? {
            let now = Instant::now();
            if now >= until {
                return Ok(false);
            }
            std::thread::sleep(self.retry.min(until).saturating_duration_since(now));
        }
        Ok(true)
    }

    /// Connects to the owner, or becomes the owner and connects. `false`: neither is possible now, so try again.
    fn connect(&mut self) -> Result<bool> {
        if Instant::now() < self.retry {
            return Ok(false);
        }
        self.retry = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let state = &self.course.state;
        let name = socket_name(&self.place, &self.options, state);
        let stream = match connect_to(&name) {
            Ok(None) => {
                let listener = match Listener::on(&name) {
                    Ok(listener) => listener,
                    // Another process has just become the owner.
                    Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                        return Ok(false);
                    }
                    Err(error) => return Err(error.into()),
                };
                let reading = reading(&self.place, &self.options, state.clone());
                let gather = if self.was_connected { GATHER_AGAIN } else { GATHER };
                let base = state.clone();
                self.owner =
                    Some(NodeOwner::start(listener, &self.origin, (&reading, base), gather)?);
                connect_to(&name)
            }
            found => found,
        };
        let stream = match stream {
            Ok(Some(stream)) => stream,
            Ok(None) => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let link = match Link::open(stream, seat(&self.place, &self.options)) {
            // The process that had the seat may just be ending, or this process may have had it before.
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < self.busy_until => {
                return Ok(false);
            }
            link => link?,
        };
        let Some(link) = link else { return Ok(false) };
        if let Some(registrar) = registrar(&self.options) {
            link.register(registrar);
        }
        link.hold();
        self.link = Some(link);
        self.was_connected = true;
        self.want();
        Ok(true)
    }

    /// Asks the owner for the batches from the current state on.
    fn want(&self) {
        let State { epoch, consumed, .. } = self.course.state;
        let position = (epoch.0, consumed);
        self.push(ToOwner::Want { turn: self.turn, position });
    }

    fn push(&self, message: ToOwner) {
        self.link.iter().for_each(|link| link.push(message));
    }

    /// Fills `batch` with the batch that a message describes. `false`: the owner has ended, and the bytes outside the
    /// window with it.
    fn fill(
        &mut self,
        batch: &mut Batch,
        head: &BatchHead,
        samples: &[SamplePlace],
    ) -> Result<bool> {
        let Some(link) = &self.link else { return Err(malformed()) };
        let loan = link.loan(head.entry); // from here on, dropping it releases the entry
        link.push(ToOwner::Took { turn: head.turn });
        let after = (Epoch(head.after.0), head.after.1);
        if self.next.is_some_and(|next| next.after != after) {
            let text = "the process that reads for this node counts other batches than this rank";
            return Err(Error::new(ErrorKind::Internal, text)
                .hint("start all ranks of a node with the same options and data"));
        }
        match &self.options.mixture {
            Some(mix) => batch.reset_mixed(&mix.directories, Epoch(head.epoch)),
            None => batch.reset(&self.directory, Epoch(head.epoch)),
        }
        let mut builder = BatchBuilder { loan, loose: 0, assigned: 0, run: None };
        if let Some(location) = &head.loose {
            match copied(location, samples) {
                Ok(loose) => builder.loose = batch.add_buf(loose),
                Err(error) if !link.has_ended() => {
                    return Err(error.hint(
                        "ranks of a node need one PID namespace, and enough descriptors (ulimit -n)",
                    ));
                }
                Err(error) => {
                    tracing::warn!(%error, "a batch of this node was lost with its owner, and is read again");
                    batch.clear();
                    self.lose_owner()?;
                    return Ok(false);
                }
            }
        }
        for sample in samples {
            if self.options.mixture.is_some() {
                batch.push_source(sample.source);
            }
            builder.push(batch, sample)?;
        }
        builder.end_run(batch)?;
        self.delivered(batch, head)?;
        Ok(true)
    }

    /// Gathers a batch into one buffer if the options say so, counts it, and moves the state behind it.
    fn delivered(&mut self, batch: &mut Batch, head: &BatchHead) -> Result<()> {
        if head.ends_epoch {
            batch.set_ends_epoch();
        }
        if self.options.copy_threads.is_some() {
            self.course.stats.copied_bytes += gather(batch, None)? as u64;
        }
        let after = (Epoch(head.after.0), head.after.1);
        self.course.deliver(batch, head.skipped, (after, head.place));
        self.step();
        self.course.ended |= head.after.0 >= self.options.epochs.end;
        Ok(())
    }

    /// Asks the owner whether this rank has waited for other ranks. Returns the error of such a wait of `limit`, or
    /// `None` if the owner waits for something else.
    pub(crate) fn why_late(&mut self, limit: Duration) -> Option<Error> {
        self.push(ToOwner::Why);
        self.link.iter().for_each(Link::flush);
        match self.receive(Instant::now() + WHY_WAIT) {
            Ok(Some(ToClient::Holders(seats))) if !seats.is_empty() => {
                let seats: Vec<String> = seats.iter().map(u32::to_string).collect();
                let text = format!(
                    "no batch was ready within {limit:?}: local ranks of this node hold batches that the window \
                     has no room beside, or have not taken theirs: {}",
                    seats.join(", ")
                );
                Some(Error::new(ErrorKind::TimedOut, text).hint(
                    "all ranks of a node take their batches in step: see what these wait for, drop batches that \
                     are kept, or give the loader a larger window",
                ))
            }
            Ok(message) => {
                self.pending = message;
                None
            }
            Err(error) => Some(error),
        }
    }

    /// The counters of this rank, without those of reads: [`Origin::reads`] has them.
    pub(crate) fn stats(&self) -> LoaderStats {
        let link = self.link.as_ref();
        let registered_bytes = link.map_or(0, |link| link.window.registered_bytes());
        LoaderStats { registered_bytes: registered_bytes as u64, ..self.course.stats }
    }

    /// The size of the window in bytes, which all ranks of the node share.
    pub(crate) fn window_bytes(&self) -> usize {
        self.link.as_ref().map_or(0, |link| link.window.len())
    }
}

/// Adds samples to a batch. Samples that are neighbours in the window share a buffer.
struct BatchBuilder {
    /// The loan of the window for this batch.
    loan: Loan,
    /// The index of the buffer of the loose bytes, and how many of these bytes have been assigned to samples.
    loose: u32,
    assigned: u64,
    /// The last samples, which are neighbours in the window.
    run: Option<WindowRun>,
}

/// A range of the window that becomes one buffer.
struct WindowRun {
    /// The index of the buffer in the batch.
    buf: u32,
    /// The first byte, and the byte after the last one.
    start: u64,
    end: u64,
}

impl BatchBuilder {
    /// Adds a sample.
    fn push(&mut self, batch: &mut Batch, sample: &SamplePlace) -> Result<()> {
        let (buf, offset) = if sample.offset & LOOSE != 0 {
            let offset = self.assigned;
            self.assigned += u64::from(sample.len);
            (self.loose, offset)
        } else {
            let end = sample.offset + u64::from(sample.len);
            match &mut self.run {
                Some(run) if run.end == sample.offset => {
                    run.end = end;
                    (run.buf, sample.offset - run.start)
                }
                _ => {
                    self.end_run(batch)?;
                    let buf = batch.add_buf(SharedBuf::empty());
                    self.run = Some(WindowRun { buf, start: sample.offset, end });
                    (buf, 0)
                }
            }
        };
        let id = SampleId(sample.id);
        batch.push(SampleLocation { id, buf, len_bytes: sample.len, offset: offset as usize });
        Ok(())
    }

    /// Makes the buffer of the last neighbours.
    fn end_run(&mut self, batch: &mut Batch) -> Result<()> {
        if let Some(WindowRun { buf, start, end }) = self.run.take() {
            let part = self.loan.part(start as usize, (end - start) as usize);
            batch.set_buf(buf, part.ok_or_else(malformed)?);
        }
        Ok(())
    }
}

/// A copy of the loose bytes of `samples`, one sample after the other.
///
/// # Errors
/// The owner has ended, or its file cannot be opened. The message is invalid.
fn copied(location: &SealedLocation, samples: &[SamplePlace]) -> Result<SharedBuf> {
    let found = SealedBytes::open(location)?;
    let loose = samples.iter().filter(|sample| sample.offset & LOOSE != 0);
    let mut copy = IoBuf::try_zeroed(loose.clone().map(|sample| sample.len as usize).sum())?;
    let mut rest = &mut copy[..];
    for sample in loose {
        let from = (sample.offset & !LOOSE) as usize;
        let bytes = from.checked_add(sample.len as usize).and_then(|to| found.get(from..to));
        let bytes = bytes.ok_or_else(malformed)?;
        let (place, behind) = rest.split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        rest = behind;
    }
    Ok(copy.freeze())
}

/// The pauses between attempts to connect, which double. The first is short, since another rank may be becoming the
/// owner.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The time for which a new owner keeps the shares of missing ranks: at the start of a job, and after another owner.
const GATHER: Duration = Duration::from_secs(10);
const GATHER_AGAIN: Duration = Duration::from_secs(1);

/// The time for which a seat that another process has is asked for again.
const BUSY_WAIT: Duration = Duration::from_secs(2);

/// The timeout of the owner's answer to [`ToOwner::Why`].
const WHY_WAIT: Duration = Duration::from_secs(1);
