//! The owner of a node's loader: one thread serves the clients, another reads (`puller.rs`).

use std::collections::HashMap;
use std::io::{ErrorKind as IoKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::buf::Pool;
use crate::cache::{Listener, is_same_user};
use crate::error::{ErrorKind, Result};
use crate::order::State;
use crate::prefetch::walk::Head;
use crate::prefetch::{LoaderOptions, Returns};
use crate::process::{NotInherited, mark_ours, send_files};
use crate::threads::{self, Fate, Thread};

use super::link::send_queued;
use super::messages::{
    BatchHead, MAX_TO_OWNER_BYTES, PROTOCOL, SamplePlace, ToClient, ToOwner, unframe,
};
use super::puller::{Answer, Command, Entry, Origin, Pulled, Puller, ring};
use super::schedule::{NewShare, Schedule, Share, Step};

/// The two threads of an owner. They end when this is dropped, and with them the connections.
pub(super) struct NodeOwner {
    /// Tells the threads to end.
    stop: Arc<AtomicBool>,
    /// Wakes the thread that serves clients.
    bell: Arc<OwnedFd>,
    threads: Vec<Thread>,
    /// The reason that a thread died.
    pub(super) fate: Fate,
}

impl NodeOwner {
    /// Serves the clients that connect to `listener`. `options` are those of the node's prefetcher, and `base` is the
    /// state of the run at any position. Keeps the shares of missing ranks for up to `gather`.
    ///
    /// # Errors
    /// `OutOfMemory`: the window cannot be allocated. Errors of the operating system.
    pub(super) fn start(
        listener: Listener,
        origin: &Origin,
        (options, base): (&LoaderOptions, State),
        gather: Duration,
    ) -> Result<NodeOwner> {
        let window = (origin.window)(base.order)?;
        let pool = window.pool.clone();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).map_err(std::io::Error::from)?);
        mark_ours(&bell);
        let stop = Arc::<AtomicBool>::default();
        let fate = Fate::default();
        let (commands, ordered) = unbounded();
        let (results, pulled) = unbounded();
        let puller = Puller {
            origin: origin.clone(),
            window,
            base,
            prefetcher: None,
            run: 0,
            stop: Arc::clone(&stop),
            commands: ordered,
            results,
            bell: Arc::clone(&bell),
            past: origin.reads.lock().ended(),
            published: Instant::now(),
        };
        let seats = options.seats.unwrap_or(1);
        let most_bytes = pool.capacity_bytes() as u64 / 2;
        // A rank may hold two batches and ask for a third. A batch by a budget is of one rank.
        let least = if options.budget.is_some() { 4 * seats as usize } else { 4 };
        let server = Server {
            listener: Some(listener),
            listens_from: Instant::now(),
            bell: Arc::clone(&bell),
            stop: Arc::clone(&stop),
            clients: Vec::new(),
            schedule: Schedule::new(seats, (options.epochs.end, 0), least, most_bytes),
            gather_until: Instant::now() + gather,
            entries: HashMap::new(),
            run: 0,
            dealt: (0, 0),
            seats,
            drops_short_of: match (&options.budget, options.drop_short) {
                (None, true) => options.batch_size as u64 / u64::from(seats),
                _ => 1,
            },
            is_whole: options.budget.is_some(),
            is_mixed: options.mixture.is_some(),
            pool,
            commands,
            pulled,
            returns: None,
        };
        let threads = vec![
            threads::start("dlfs-node-pull", &fate, puller, Puller::run)?,
            threads::start("dlfs-node", &fate, server, Server::run)?,
        ];
        Ok(NodeOwner { stop, bell, threads, fate })
    }
}

impl Drop for NodeOwner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        ring(&self.bell);
        for thread in self.threads.drain(..).rev() {
            thread.join_within(2 * JOIN_TIMEOUT); // the thread that serves clients waits for the other
        }
    }
}

/// The state of the thread that serves clients.
struct Server {
    /// `None` once the owner ends.
    listener: Option<Listener>,
    /// The end of a pause in which no connection is accepted.
    listens_from: Instant,
    bell: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    clients: Vec<Client>,
    schedule: Schedule,
    /// The time at which the gathering ends at the latest.
    gather_until: Instant,
    /// The batches that clients have or will get, by number.
    entries: HashMap<u64, Entry>,
    /// The number of the last [`Command::Begin`]. Answers to earlier ones are ignored.
    run: u64,
    /// For batches by a budget, which go to the seats in turn: the epoch, and the number of its batches so far.
    dealt: (u64, u64),
    /// The number of ranks on this node.
    seats: u32,
    /// The fewest samples of a share: a rank with fewer of an epoch's last batch gets none.
    drops_short_of: u64,
    /// Set if a batch is the share of one seat: batches by a budget. Otherwise its samples go to the seats in turn.
    is_whole: bool,
    /// Set if batches are of a mixture.
    is_mixed: bool,
    /// The pool of the window.
    pool: Pool,
    /// Commands to the thread that reads, and its answers.
    commands: Sender<Command>,
    pulled: Receiver<Pulled>,
    /// Wakes the poller when entries are dropped; `None` until reading has begun.
    returns: Option<Returns>,
}

/// A connection to a client.
struct Client {
    /// `None` before its [`ToOwner::Hello`], and after its [`ToOwner::Leave`].
    seat: Option<u32>,
    /// The entries that the client has not released since it left its seat.
    kept: Vec<u64>,
    /// Bytes of an incomplete message.
    inbox: Vec<u8>,
    /// Bytes that are to be sent.
    outbox: Vec<u8>,
    /// Set once the connection has ended or has sent an invalid message.
    is_gone: bool,
    /// Keeps forked children from holding the connection open.
    _own: NotInherited,
    stream: UnixStream,
}

impl Server {
    /// Serves clients until the owner ends or the other thread dies.
    fn run(&mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let (is_connecting, readable) = self.wait();
            for at in readable {
                self.read(at);
            }
            loop {
                match self.pulled.try_recv() {
                    Ok(Pulled { run, answer }) if run == self.run => self.take(answer),
                    Ok(_) => {}
                    Err(TryRecvError::Empty) => break,
                    // The other thread died: clients see the end of their connections.
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            if self.schedule.gathering && Instant::now() >= self.gather_until {
                self.schedule.stop_gathering();
            }
            self.step();
            self.clients.iter_mut().for_each(Client::flush);
            self.remove_gone();
            if is_connecting {
                self.accept();
            }
        }
    }

    /// Waits for a connection, a message, an answer or a timeout. Returns whether a process is connecting, and the
    /// clients whose sockets are ready.
    fn wait(&self) -> (bool, Vec<usize>) {
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        for client in &self.clients {
            let out = if client.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::new(&client.stream, PollFlags::IN | out));
        }
        let listens = Instant::now() >= self.listens_from;
        let listener = self.listener.as_ref().filter(|_| listens).map(Listener::socket);
        fds.extend(listener.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let limit = if self.schedule.gathering { GATHER_TICK } else { IDLE_WAIT };
        let limit = if listens { limit } else { limit.min(LISTEN_AGAIN) };
        let limit = Timespec::try_from(limit).expect("a few seconds");
        if poll(&mut fds, Some(&limit)).is_err() {
            return (false, Vec::new()); // interrupted
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if is_ready(&fds[0]) {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]); // it does not block
        }
        let (clients, listener) = fds[1..].split_at(self.clients.len());
        let readable = (0..clients.len()).filter(|&at| is_ready(&clients[at])).collect();
        (listener.iter().any(is_ready), readable)
    }

    /// Accepts all processes that are connecting.
    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        loop {
            let stream = match listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(error) => {
                    // Without a free descriptor the listener would stay ready, so nothing is accepted for a while.
                    // The connected ranks are still served.
                    tracing::warn!(%error, "no more ranks can join this node's loader for now");
                    self.listens_from = Instant::now() + LISTEN_AGAIN;
                    return;
                }
            };
            if !is_same_user(&stream) {
                continue;
            }
            self.clients.push(Client {
                seat: None,
                kept: Vec::new(),
                inbox: Vec::new(),
                outbox: Vec::new(),
                is_gone: false,
                _own: NotInherited::close(stream.as_fd()),
                stream,
            });
        }
    }

    /// Reads and handles the messages of a client.
    fn read(&mut self, at: usize) {
        let mut bytes = [0; READ_BYTES];
        let client = &mut self.clients[at];
        match client.stream.read(&mut bytes) {
            Ok(0) => client.is_gone = true,
            Ok(count) => client.inbox.extend(&bytes[..count]),
            Err(error) => {
                client.is_gone |= !matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted);
            }
        }
        let inbox = std::mem::take(&mut self.clients[at].inbox);
        let mut handled = 0;
        loop {
            match unframe(&inbox[handled..], MAX_TO_OWNER_BYTES) {
                Ok(Some((message, _, len))) => {
                    handled += len;
                    self.handle(at, message);
                }
                Ok(None) => break,
                Err(_) => {
                    tracing::warn!("a process sent a node's loader what no version of dlfs sends");
                    self.clients[at].is_gone = true;
                    break;
                }
            }
        }
        self.clients[at].inbox = inbox[handled..].to_vec();
    }

    /// Handles a message of a client.
    fn handle(&mut self, at: usize, message: ToOwner) {
        let seat = match (self.clients[at].seat, message) {
            (None, ToOwner::Hello { protocol, seat }) => return self.welcome(at, protocol, seat),
            (None, ToOwner::Release { entry }) => {
                let kept = &mut self.clients[at].kept;
                if let Some(at) = kept.iter().position(|kept| *kept == entry) {
                    kept.swap_remove(at);
                    self.schedule.forget(entry);
                }
                return;
            }
            (Some(seat), _) => seat,
            (None, _) => return self.clients[at].is_gone = true,
        };
        match message {
            ToOwner::Hello { .. } => self.clients[at].is_gone = true,
            ToOwner::Want { turn, position } => self.schedule.want(seat, turn, position),
            ToOwner::Took { turn } => self.schedule.took(seat, turn),
            ToOwner::Release { entry } => self.schedule.release(seat, entry),
            ToOwner::Leave => {
                self.clients[at].seat = None;
                self.clients[at].kept = self.schedule.leave(seat);
            }
            ToOwner::Why => {
                let holders = self.schedule.holders(seat);
                self.clients[at].send(&ToClient::Holders(holders));
            }
        }
    }

    /// Gives a client its seat and the window, or refuses it.
    fn welcome(&mut self, at: usize, protocol: u32, seat: u32) {
        let client = &mut self.clients[at];
        let refused = |kind, text: String| ToClient::Failed { turn: 0, kind, text };
        if protocol != PROTOCOL {
            let text = "the processes of this node run different versions of dlfs".to_owned();
            return client.send(&refused(ErrorKind::Unsupported, text));
        }
        if !self.schedule.take_seat(seat) {
            let text = format!(
                "another process has the place of local rank {seat} in the loader of this node, of {} ranks",
                self.seats
            );
            return client.send(&refused(ErrorKind::Busy, text));
        }
        client.seat = Some(seat);
        if let Err(error) = client.send_window(&self.pool) {
            tracing::warn!(%error, "a rank did not get the window of its node");
            client.is_gone = true;
        }
    }

    /// Handles an answer of the thread that reads.
    fn take(&mut self, answer: Answer) {
        match answer {
            Answer::Begun(returns) => self.returns = returns,
            Answer::Batch(entry) => self.add(*entry),
            Answer::End => self.schedule.end(),
            Answer::Failed(error) => {
                for client in &mut self.clients {
                    let seat = client.seat.filter(|&seat| self.schedule.is_wanting(seat));
                    let Some(turn) = seat.map(|seat| self.schedule.turn(seat)) else { continue };
                    let text = error.to_string();
                    client.send(&ToClient::Failed { turn, kind: error.kind(), text });
                }
                self.schedule.fail();
            }
        }
    }

    /// Adds a batch that was read: divides it among the seats.
    fn add(&mut self, entry: Entry) {
        let Head { epoch, ends_epoch, after, left, .. } = entry.head;
        let planned = entry.batch.len() as u64 + entry.skipped;
        let seats = u64::from(self.seats);
        let bytes = entry.batch.len_bytes();
        let after = (after.0.0, after.1);
        if self.dealt.0 != epoch.0 {
            self.dealt = (epoch.0, 0);
        }
        let own = self.dealt.1 % seats;
        self.dealt.1 += 1;
        let is_whole = self.is_whole;
        let short = self.drops_short_of;
        let number = self.schedule.add(
            bytes,
            (0..seats).map(|seat| {
                if is_whole {
                    let share = NewShare { epoch: epoch.0, after, ends_epoch, planned };
                    return (seat == own).then_some(share);
                }
                let of_seat = |samples: u64| samples.saturating_sub(seat).div_ceil(seats);
                let ends_epoch = of_seat(left) < short;
                let after = if ends_epoch { (epoch.0 + 1, 0) } else { after };
                let planned = of_seat(planned);
                let share = NewShare { epoch: epoch.0, after, ends_epoch, planned };
                (planned >= short).then_some(share)
            }),
        );
        self.entries.insert(number, entry);
    }

    /// Executes all steps of the schedule that are due.
    fn step(&mut self) {
        let mut returned = false;
        while let Some(step) = self.schedule.next() {
            match step {
                Step::Free(entry) => returned |= self.entries.remove(&entry).is_some(),
                Step::Begin(position) => {
                    self.run += 1;
                    self.dealt = (position.0, 0);
                    self.command(Command::Begin { run: self.run, position });
                }
                Step::Read => self.command(Command::Pull),
                Step::Send(seat, share) => self.send(seat, share),
                Step::End(seat) => {
                    let turn = self.schedule.turn(seat);
                    self.send_to(seat, &ToClient::End { turn });
                }
                Step::Refuse(seat, (epoch, consumed)) => {
                    let text = format!(
                        "no batch of this node begins behind {consumed} samples of epoch {epoch}: all ranks go on from \
                         the same state"
                    );
                    let turn = self.schedule.turn(seat);
                    let kind = ErrorKind::InvalidArgument;
                    self.send_to(seat, &ToClient::Failed { turn, kind, text });
                }
            }
        }
        if returned && let Some(returns) = &self.returns {
            returns.returned();
        }
    }

    fn command(&self, command: Command) {
        let _ = self.commands.send(command); // fails only when the other thread died: `run` notices that
    }

    /// Sends a share of an entry: all samples, or every `seats`-th from the seat's number on.
    fn send(&mut self, seat: u32, share: Share) {
        let Some(entry) = self.entries.get(&share.entry) else { return };
        let (first, step) = if self.is_whole { (0, 1) } else { (seat, self.seats) };
        let sources = entry.batch.sources().filter(|_| self.is_mixed);
        let place = |index: usize| {
            let location = entry.batch.location(index);
            SamplePlace {
                id: location.id.0,
                offset: entry.offsets[index],
                len: location.len_bytes,
                source: sources.map_or(0, |sources| sources[index]),
            }
        };
        let indices = (first as usize..entry.batch.len()).step_by(step as usize);
        let samples: Vec<SamplePlace> = indices.map(place).collect();
        let loose = entry.loose.as_ref().and_then(|loose| loose.location().ok());
        let head = BatchHead {
            turn: self.schedule.turn(seat),
            cause: entry.cause as u32,
            ends_epoch: share.ends_epoch,
            entry: share.entry,
            epoch: entry.head.epoch.0,
            after: share.after,
            place: entry.head.place,
            skipped: share.planned.saturating_sub(samples.len() as u64),
            loose,
        };
        let message = ToClient::Batch(head, samples, entry.layout.clone());
        self.send_to(seat, &message);
    }

    /// Sends a message to the client of a seat, if there is one.
    fn send_to(&mut self, seat: u32, message: &ToClient) {
        let client = self.clients.iter_mut().find(|client| client.seat == Some(seat));
        client.into_iter().for_each(|client| client.send(message));
    }

    /// Removes the clients that are gone, and releases their entries.
    fn remove_gone(&mut self) {
        let gone: Vec<Client> = self.clients.extract_if(.., |client| client.is_gone).collect();
        for Client { seat, kept, .. } in &gone {
            let has = seat.map(|seat| self.schedule.leave(seat)).unwrap_or_default();
            has.iter().chain(kept).for_each(|&entry| self.schedule.forget(entry));
        }
        if !gone.is_empty() {
            ring(&self.bell); // steps may be due for other clients now
        }
    }
}

impl Drop for Server {
    /// Clients may still read the entries that they were sent, so the entries' memory is returned only after the other
    /// thread, which could fill the memory again, has ended.
    fn drop(&mut self) {
        self.listener = None; // another process may be the next owner
        self.clients.clear();
        self.commands = unbounded().0; // ends the other thread, which drops the prefetcher before `pulled`'s sender
        let ended = loop {
            match self.pulled.recv_timeout(JOIN_TIMEOUT) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        if ended == RecvTimeoutError::Timeout {
            // The other thread hangs, and may still write to the memory of the entries.
            std::mem::forget(std::mem::take(&mut self.entries));
        }
    }
}

impl Client {
    /// Queues a message.
    fn send(&mut self, message: &ToClient) {
        message.write(&mut self.outbox);
    }

    /// Sends the first message, with the file descriptor of the window. The buffer of a new socket has room for it.
    fn send_window(&mut self, pool: &Pool) -> std::io::Result<()> {
        let window_len = pool.capacity_bytes() as u64;
        let mut bytes = Vec::new();
        ToClient::Welcome { protocol: PROTOCOL, window_len }.write(&mut bytes);
        let files = [pool.file().ok_or(IoKind::Unsupported)?];
        let sent = send_files(&self.stream, &bytes, &files)?;
        if sent == bytes.len() { Ok(()) } else { Err(IoKind::WriteZero.into()) }
    }

    /// Sends as much of the queued messages as the socket has room for.
    fn flush(&mut self) {
        if !self.is_gone {
            self.is_gone = !send_queued(&self.stream, &mut self.outbox);
        }
    }
}

/// The timeout of joining a thread: the prefetcher may be connecting.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for a message; while the ranks gather, the second.
const IDLE_WAIT: Duration = Duration::from_secs(5);
const GATHER_TICK: Duration = Duration::from_millis(50);

/// The pause after a connection could not be accepted.
const LISTEN_AGAIN: Duration = Duration::from_millis(500);

/// Bytes read from a client in one turn.
const READ_BYTES: usize = 4096;
