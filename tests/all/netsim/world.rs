//! One host and one target in simulated time: the session state machines of the library, the network between
//! them, the faults, and the requests to the host.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::TcpAddress;
use dlfs::buf::IoBuf;
use dlfs::error::ErrorKind;
use dlfs::nvme::Nqn;
use dlfs::qpair::session::lifecycle::{Level, NUM_SLOTS};
use dlfs::qpair::session::queue::TcpShared;
use dlfs::qpair::session::{
    self, AdminEvent, Answer, Attached, Attempt, Carrier, Channel, Controller, Failure, Goal,
    HostIdentity, Identified, IoQueue, JoinInfo, Keeping, Lifecycle, Limits, Phase, Portal, Shared,
    Terms,
};
use dlfs::qpair::{Completion, Io, IoError, IoOp};
use dlfs::tcp::Digests;
use dlfs::units::{Lba, Nsid};

use super::oracle::{Oracle, Outcome};
use super::random::Random;
use super::schedule::{Ask, Fault, Schedule, WRITE_BLOCKS, namespace_of};
use super::subsystem::{BLOCK_LEN, Path, Subsystem, Wires};
use super::wire::Wire;

/// Everything that is simulated.
pub(crate) struct World {
    start: Instant,
    now: Instant,
    terms: Terms,
    shared: Arc<TcpShared>,
    /// The state of the keeper's thread.
    admins: [Option<Admin>; NUM_SLOTS],
    /// Admin queues that are connecting or connected.
    num_admins: u32,
    keeper_until: Option<Instant>,
    pairs: Vec<Pair>,
    network: Network,
    target: Subsystem,
    faults: VecDeque<(Instant, Fault)>,
    asks: VecDeque<(Instant, Ask)>,
    oracle: Oracle,
    /// True if nothing breaks, so that all that the target has taken must be answered.
    is_calm: bool,
    /// When a session was last live, or opening began.
    last_live: Instant,
    trace: Option<String>,
    seen_phase: String,
    num_sessions: u64,
}

/// The counts of a run that kept the rules.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The trace, if it was asked for.
    pub(crate) trace: String,
    pub(crate) num_sessions: u64,
    pub(crate) num_failed: u64,
    pub(crate) num_failed_flushes: u64,
    pub(crate) num_late: u64,
    pub(crate) num_given_up: u64,
}

/// The connections between the host and the target.
struct Network {
    portals: Arc<[Portal]>,
    /// The reachability of each portal.
    reach: Vec<Reach>,
    wires: Wires,
    next_wire: u64,
    random: Random,
}

/// The reachability of a path: until when it refuses connections, or stays silent.
#[derive(Clone, Copy)]
struct Reach {
    refused_until: Instant,
    silent_until: Instant,
}

pub(crate) struct Admin {
    controller: Controller,
    wire: u64,
}

struct Pair {
    queue: IoQueue,
    wires: [Option<u64>; NUM_SLOTS],
    /// The member of each namespace.
    members: Vec<Member>,
    until: Option<Instant>,
}

struct Member {
    number: usize,
    pending: VecDeque<Io>,
    /// Its submitted I/Os without a completion.
    owed: Vec<u64>,
}

thread_local! {
    /// Set when the keeper was woken.
    static WOKEN: Cell<bool> = const { Cell::new(false) };
}

impl World {
    /// A host that has not opened the namespaces yet, and a working target.
    pub(crate) fn new(schedule: Schedule, is_traced: bool) -> World {
        // Stands for 0: only differences matter.
        let start = Instant::now() + Duration::from_secs(1);
        let mut random = Random::new(schedule.seed);
        let nqn = |name: &str| Nqn::new(format!("nqn.2026-11.io.dlfs:{name}")).expect("a name");
        let portal = |number: usize| {
            let traddr = format!("10.0.0.{}", number + 1);
            let trsvcid = 4420;
            let address = TcpAddress { traddr, trsvcid, subnqn: nqn("train"), nsid: None };
            let socket = SocketAddr::from(([10, 0, 0, number as u8 + 1], 4420));
            Portal { address, socket, psk: None }
        };
        let portals: Arc<[Portal]> = (0..schedule.paths).map(portal).collect();
        let limits = Limits { connect_timeout: CONNECT_TIMEOUT, ctrl_loss_tmo: CTRL_LOSS_TMO };
        let mut lifecycle =
            Lifecycle::new(start, limits, Arc::clone(&portals), None, random.next());
        if schedule.keeps_two {
            lifecycle = lifecycle.keep_two(true);
        }
        WOKEN.set(false);
        let terms = Terms {
            subnqn: nqn("train"),
            goal: if schedule.are_named {
                Goal::Namespaces((1..=schedule.namespaces as u32).map(Nsid).collect())
            } else {
                Goal::AllNamespaces
            },
            host: HostIdentity { nqn: nqn("host"), id: [3; 16], credentials: None },
            digests: Digests::default(),
            required: Digests::default(),
            psk: None,
            psk_v0: None,
            nr_io_queues: 4,
            keep_alive_tmo: Duration::from_millis(400),
            tcp_timeout: Duration::from_millis(200),
            io_timeout: IO_TIMEOUT,
            least_progress_bytes: 0,
        };
        let Schedule { paths, namespaces, has_cache, .. } = schedule;
        let of_target = Random::new(random.next());
        let mut target = Subsystem::new(start, paths, namespaces, has_cache, of_target);
        (target.mdts, target.has_ana) = (schedule.mdts, schedule.has_ana);
        let at = |ms: u64| start + Duration::from_millis(ms);
        World {
            start,
            now: start,
            terms,
            shared: Arc::new(Shared::new(lifecycle, schedule.paths > 1, || WOKEN.set(true))),
            admins: [None, None],
            num_admins: 0,
            keeper_until: Some(start),
            pairs: Vec::new(),
            network: Network {
                portals,
                reach: vec![Reach { refused_until: start, silent_until: start }; schedule.paths],
                wires: Wires::new(),
                next_wire: 0,
                random,
            },
            target,
            faults: schedule.faults.into_iter().map(|(ms, fault)| (at(ms), fault)).collect(),
            asks: schedule.asks.into_iter().map(|(ms, ask)| (at(ms), ask)).collect(),
            oracle: Oracle::new(namespaces),
            is_calm: schedule.is_calm,
            last_live: start,
            trace: is_traced.then(String::new),
            seen_phase: String::new(),
            num_sessions: 0,
        }
    }

    /// Opens the namespaces, runs the requests, waits for their end, and closes.
    ///
    /// # Errors
    /// The broken rules.
    pub(crate) fn run(mut self, num_pairs: usize) -> Result<Report, String> {
        let mut steps = 0;
        let mut asked_for_more = false;
        let ending = loop {
            steps += 1;
            if steps > MAX_STEPS {
                break Err(format!("it goes round without an end: {}", self.waits()));
            }
            if self.pairs.is_empty() && self.shared.live() != 0 {
                self.open_pairs(num_pairs);
            }
            let is_dead = matches!(self.shared.phase(), Phase::Dead(_));
            let is_quiet = self.asks.is_empty() && self.faults.is_empty() && self.is_idle();
            if is_quiet && !asked_for_more && !is_dead && self.can_work() {
                // After the last fault has passed, I/O must succeed again.
                asked_for_more = true;
                let at = self.now + SETTLING;
                let blocks = (0..self.target.num_namespaces() as u64).map(|at| at * WRITE_BLOCKS);
                let pairs =
                    (0..num_pairs).flat_map(|pair| blocks.clone().map(move |at| (pair, at)));
                let probe = |(pair, block)| (at, Ask::Probe { pair, block });
                self.asks.extend(pairs.map(probe));
                continue;
            }
            if is_quiet && (is_dead || asked_for_more || !self.can_work()) {
                break Ok(());
            }
            if is_dead && self.pairs.is_empty() {
                break Ok(()); // opening has failed
            }
            if let Err(error) = self.step() {
                break Err(error);
            }
        };
        let mut broken = std::mem::take(&mut self.target.broken_rules);
        broken.extend(ending.err());
        self.close_pairs(&mut broken);
        broken.append(&mut self.oracle.broken_rules);
        if self.target.num_flushes > self.oracle.num_flushes {
            broken.push("a flush was sent again".to_owned());
        }
        if broken.is_empty() {
            Ok(Report {
                trace: self.trace.unwrap_or_default(),
                num_sessions: self.num_sessions,
                num_failed: self.oracle.num_failed,
                num_failed_flushes: self.oracle.num_failed_flushes,
                num_late: self.oracle.num_late,
                num_given_up: self.shared.with(|lifecycle| lifecycle.is_dead()).into(),
            })
        } else {
            Err(format!("{}\n{}", broken.join("\n"), self.trace.unwrap_or_default()))
        }
    }

    fn is_idle(&self) -> bool {
        let waits = |pair: &Pair| pair.members.iter().any(|member| !member.pending.is_empty());
        self.pairs.iter().all(|pair| pair.queue.owed() == 0 && !waits(pair))
    }

    /// Returns whether the target currently has the namespaces and queues that the host needs.
    fn can_work(&self) -> bool {
        self.target.paths.iter().any(Path::is_right)
            && usize::from(self.target.granted) >= self.pairs.len()
            && !self.pairs.is_empty()
    }

    /// Returns whether the host was not given up, and its live session, if any, has a queue for each queue pair.
    fn is_well(&self) -> bool {
        match self.shared.phase() {
            Phase::Live(session) => usize::from(session.num_io_queues) >= self.pairs.len(),
            Phase::Opening | Phase::Lost(_) => true,
            Phase::Dead(_) => false,
        }
    }

    fn open_pairs(&mut self, num_pairs: usize) {
        for _ in 0..num_pairs {
            if self.shared.with(Lifecycle::add_pair).is_err() {
                break; // fewer are granted
            }
            let mut queue = IoQueue::new(self.now, self.terms.clone(), CTRL_LOSS_TMO);
            let places = 0..self.target.num_namespaces();
            let members = places.map(|place| add_member(&mut queue, place, &self.shared)).collect();
            let wires = [None; NUM_SLOTS];
            self.pairs.push(Pair { queue, wires, members, until: Some(self.now) });
        }
    }

    fn close_pairs(&mut self, broken: &mut Vec<String>) {
        for index in 0..self.pairs.len() {
            let (queue, shared, mut wires) = self.parts(index);
            queue.leave("the queue pair was dropped", shared, &mut wires);
            self.shared.with(Lifecycle::remove_pair);
        }
        for slot in 0..NUM_SLOTS {
            let live = self.shared.with(|lifecycle| lifecycle.live_in(slot).cloned());
            let Some(session) = live else { continue };
            let number = session.number;
            let mut free: Vec<u16> =
                std::iter::from_fn(|| self.shared.with(|lifecycle| lifecycle.take_qid(number)))
                    .collect();
            free.sort_unstable();
            if free != Vec::from_iter(1..=session.num_io_queues) {
                broken.push(format!("queue identifiers {free:?} are left in the end"));
            }
        }
    }

    /// Advances to the next time at which something happens.
    fn step(&mut self) -> Result<(), String> {
        let host = |wire: u64, is_opening| self.network.wires.get(&wire)?.host_ready_at(is_opening);
        let admins = self.admins.iter().flatten();
        let admins = admins.filter_map(|a| host(a.wire, a.controller.channel.is_opening()));
        let keeper = admins.chain(self.keeper_until).min();
        let keeper = if WOKEN.get() { Some(self.now) } else { keeper };
        let mut pairs = Vec::with_capacity(self.pairs.len());
        for Pair { queue, wires, until, .. } in &mut self.pairs {
            let ready = wires.iter().enumerate().filter_map(|(slot, wire)| {
                let is_opening = queue.channel(slot).is_some_and(|channel| channel.is_opening());
                host((*wire)?, is_opening)
            });
            pairs.push(ready.chain(*until).min());
        }
        let events = [
            self.faults.front().map(|(at, _)| *at),
            self.asks.front().map(|(at, _)| *at).filter(|_| !self.pairs.is_empty()),
            self.target.next(),
            keeper,
        ];
        let wires = self.network.wires.values().filter_map(Wire::target_ready_at);
        let next = events.into_iter().chain(pairs.iter().copied()).flatten().chain(wires).min();
        let Some(next) = next else {
            return Err(format!("nothing will ever happen, and this waits: {}", self.waits()));
        };
        self.now = self.now.max(next);
        if self.now > self.start + END {
            return Err(format!("after {} s this still waits: {}", END.as_secs(), self.waits()));
        }
        while self.faults.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, fault) = self.faults.pop_front().expect("just seen");
            self.inflict(fault);
        }
        self.target.turn(self.now, &mut self.network.wires);
        if keeper.is_some_and(|at| at <= self.now) {
            self.keeper_turn();
        }
        for (index, at) in pairs.iter().enumerate() {
            if at.is_some_and(|at| at <= self.now) {
                self.pair_turn(index);
            }
        }
        while !self.pairs.is_empty() && self.asks.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, ask) = self.asks.pop_front().expect("just seen");
            self.submit(ask);
        }
        self.note_phase();
        Ok(())
    }

    fn waits(&self) -> String {
        let owed: Vec<usize> = self.pairs.iter().map(|pair| pair.queue.owed()).collect();
        let phase = self.shared.with(|lifecycle| format!("{:?}", lifecycle.phase()));
        let in_us = |at: Instant| at.saturating_duration_since(self.start).as_micros();
        let wires =
            self.network.wires.iter().filter_map(|(n, w)| Some((n, in_us(w.target_ready_at()?))));
        format!(
            "I/Os {owed:?}, {phase}; at {} us, keeper {:?} at {:?}, pairs {:?}, target {:?}, wires {:?}",
            in_us(self.now),
            self.keeper_until.map(in_us),
            self.admins.each_ref().map(|a| a.as_ref().map(|a| (a.wire, a.controller.stage()))),
            self.pairs.iter().map(|pair| pair.until.map(in_us)).collect::<Vec<_>>(),
            self.target.next().map(in_us),
            wires.collect::<Vec<_>>()
        )
    }

    // The keeper's thread.

    fn keeper_turn(&mut self) {
        WOKEN.set(false);
        let now = self.now;
        let shared = Arc::clone(&self.shared);
        let mut admins = std::mem::take(&mut self.admins);
        if !session::turn(now, &shared, &mut admins, self) {
            std::mem::take(&mut admins).into_iter().flatten().for_each(|a| self.close_admin(a));
        }
        self.admins = admins;
        let admins = self.admins.iter().flatten().filter_map(|a| a.controller.poll_timeout());
        let lifecycle = self.shared.with(|lifecycle| lifecycle.poll_timeout());
        self.keeper_until = admins.chain(lifecycle).min();
    }

    fn close_admin(&mut self, admin: Admin) {
        self.network.wires.get_mut(&admin.wire).expect("open").close(self.now, false);
        self.num_admins -= 1;
    }

    // A thread that polls a queue pair, with the turn of the library.

    fn pair_turn(&mut self, index: usize) {
        let now = self.now;
        let was_joined = self.pairs[index].queue.is_joined();
        let (queue, shared, mut wires) = self.parts(index);
        queue.turn(now, shared, &mut wires);
        let mut done = Vec::new();
        while let Some(answer) = self.pairs[index].queue.next_completion(&self.shared) {
            done.push(answer);
        }
        let pair = &mut self.pairs[index];
        pair.until = pair.queue.poll_timeout();
        match (was_joined, pair.queue.is_joined()) {
            (false, true) => self.say(|| format!("pair {index} joins")),
            (true, false) => self.say(|| format!("pair {index} is out")),
            _ => {}
        }
        done.into_iter().for_each(|answer| self.complete(index, answer));
        (0..self.target.num_namespaces()).for_each(|place| self.take_pending(index, place));
    }

    fn send(&mut self, index: usize) {
        let now = self.now;
        let (queue, shared, mut wires) = self.parts(index);
        queue.send(now, shared, &mut wires);
    }

    /// The parts of the world on which a turn of a queue pair works.
    fn parts(&mut self, index: usize) -> (&mut IoQueue, &TcpShared, PairWires<'_>) {
        let now = self.now;
        let network = &mut self.network;
        let Pair { queue, wires, .. } = &mut self.pairs[index];
        (queue, &self.shared, PairWires { now, network, wires })
    }

    // Requests to the host.

    fn submit(&mut self, ask: Ask) {
        let io = |op, slba: u64, blocks: u64, tag| Io {
            op,
            slba: Lba(slba),
            buf: IoBuf::zeroed(blocks as usize * BLOCK_LEN),
            tag,
        };
        let (index, io) = match ask {
            Ask::Probe { .. } if !self.is_well() => return,
            Ask::Probe { pair, block } => {
                let tag = self.oracle.read(block..block + 1, true);
                (pair, io(IoOp::Read, block, 1, tag))
            }
            Ask::Read { pair, blocks } => {
                let tag = self.oracle.read(blocks.clone(), false);
                (pair, io(IoOp::Read, blocks.start, blocks.end - blocks.start, tag))
            }
            Ask::Write { pair, blocks } => {
                let tag = self.oracle.write(blocks.clone());
                let mut io = io(IoOp::Write, blocks.start, blocks.end - blocks.start, tag);
                for block in io.buf.chunks_exact_mut(BLOCK_LEN) {
                    block[..8].copy_from_slice(&tag.to_le_bytes());
                }
                (pair, io)
            }
            Ask::Flush { pair, namespace } => {
                // Without reads or writes, a block only tells its namespace.
                let block = namespace as u64 * WRITE_BLOCKS;
                (pair, io(IoOp::Flush, block, 0, self.oracle.flush(namespace)))
            }
            Ask::Renew { pair, namespace } => {
                return self.renew(pair % self.pairs.len(), namespace);
            }
        };
        let index = index % self.pairs.len();
        let place = namespace_of(io.slba.0, self.target.num_namespaces());
        let io = if io.op == IoOp::Flush { Io { slba: Lba(0), ..io } } else { io };
        let what = format!("{:?} {} of {} blocks", io.op, io.tag, io.buf.len() / BLOCK_LEN);
        self.say(|| format!("pair {index} takes {what}"));
        self.pairs[index].members[place].owed.push(io.tag);
        self.pairs[index].members[place].pending.push_back(io);
        self.take_pending(index, place);
    }

    /// Removes a member with its outstanding I/Os.
    fn renew(&mut self, index: usize, place: usize) {
        self.say(|| format!("pair {index}: who uses namespace {} is another", place + 1));
        let Pair { queue, members, until, .. } = &mut self.pairs[index];
        let new = add_member(queue, place, &self.shared);
        let old = std::mem::replace(&mut members[place], new);
        *until = Some(self.now);
        let writes = self.oracle.abandon(&old.owed);
        let late = writes.into_iter().map(|blocks| (blocks, self.network.next_wire));
        self.target.abandoned.extend(late);
        let (queue, shared, mut wires) = self.parts(index);
        queue.remove_member(old.number, shared, &mut wires);
    }

    fn take_pending(&mut self, index: usize, place: usize) {
        let pair = &mut self.pairs[index];
        let member = &mut pair.members[place];
        if pair.queue.take(member.number, &mut member.pending) > 0 {
            pair.queue.issue(self.now, &self.shared);
            self.send(index);
            // A poller polls once before it sleeps.
            self.pairs[index].until = Some(self.now);
        }
    }

    fn complete(&mut self, index: usize, answer: Answer) {
        let Completion { tag, buf, result } = answer.completion;
        let mut members = self.pairs[index].members.iter_mut();
        match members.find(|member| member.number == answer.member) {
            Some(member) if member.owed.contains(&tag) => member.owed.retain(|owed| *owed != tag),
            _ => self.oracle.broken_rules.push(format!("{tag} comes to somebody else")),
        }
        let text = match &result {
            Ok(()) => "is done".to_owned(),
            Err(error) => format!("has failed: {error}"),
        };
        if let Err(IoError::Disconnected(why)) = &result
            && self.is_calm
            && !NEVER_SENT.iter().any(|known| why.starts_with(known))
        {
            let message = format!("nothing broke, and {tag} was left without its answer: {why}");
            self.oracle.broken_rules.push(message);
        }
        self.say(|| format!("pair {index}: {tag} {text}"));
        let live = self.shared.with(|lifecycle| Some(lifecycle.live()?.join_info.cntlid));
        let outcome = Outcome { tag, buf: &buf, is_ok: result.is_ok(), live };
        self.oracle.complete(outcome, &self.target);
    }

    // Faults.

    fn inflict(&mut self, fault: Fault) {
        self.say(|| format!("-- {fault}"));
        let now = self.now;
        let until = |ms: u64| now + Duration::from_millis(ms);
        let on = |wires: &mut Wires, path: usize, f: &mut dyn FnMut(&mut Wire)| {
            wires.values_mut().filter(|wire| wire.portal == path).for_each(f);
        };
        match fault {
            Fault::Cut { nth } => {
                let open: Vec<u64> = self.target.wires_of_queues().into_iter().collect();
                if let Some(wire) = open.get(nth % open.len().max(1)) {
                    self.network.wires.get_mut(wire).expect("known").break_off(now);
                }
            }
            Fault::Hold { nth, ms } => {
                let open: Vec<u64> = self.network.wires.keys().copied().collect();
                if let Some(wire) = open.get(nth % open.len().max(1)) {
                    self.network.wires.get_mut(wire).expect("known").hold(until(ms));
                }
            }
            Fault::Silent { path, ms } => {
                self.network.reach[path].silent_until = until(ms);
                on(&mut self.network.wires, path, &mut |wire| wire.hold(until(ms)));
            }
            Fault::Refuse { path, ms } => {
                self.network.reach[path].refused_until = until(ms);
                on(&mut self.network.wires, path, &mut |wire| wire.break_off(now));
            }
            Fault::Restart { ms } => {
                self.target.restart(now, &mut self.network.wires);
                self.network.reach.iter_mut().for_each(|reach| reach.refused_until = until(ms));
            }
            // The first contents are the right ones.
            Fault::Replace { .. } if self.shared.identity().is_none() => {}
            Fault::Replace { path, nth } => {
                self.target.replace(path, nth, &self.network.wires);
                on(&mut self.network.wires, path, &mut |wire| wire.break_off(now));
            }
            Fault::PathError { path, ms } => self.target.paths[path].path_error_until = until(ms),
            Fault::Busy { path, ms } => self.target.paths[path].busy_until = until(ms),
            Fault::Hang { ms } => self.target.hangs_until = until(ms),
            Fault::Grow => {
                self.target.num_blocks += 8;
                self.target.tell_events(now, &mut self.network.wires);
                // Later sessions would see another size, so it shrinks again.
                self.faults.push_front((until(20), Fault::ShrinkBack));
                self.faults.make_contiguous().sort_by_key(|(at, _)| *at);
            }
            Fault::ShrinkBack => self.target.num_blocks = super::subsystem::NUM_BLOCKS as u64,
            Fault::Transfer { mdts } => self.target.mdts = mdts,
            Fault::Grant { queues } => self.target.granted = queues,
            Fault::Ana { path, state, ms } => {
                self.target.paths[path].ana = state;
                self.target.tell_ana(now, path, &mut self.network.wires);
                if ms > 0 {
                    self.faults.push_front((until(ms), Fault::Ana { path, state: 1, ms: 0 }));
                    self.faults.make_contiguous().sort_by_key(|(at, _)| *at);
                }
            }
        }
    }

    fn note_phase(&mut self) {
        let phase = self.shared.phase();
        if matches!(phase, Phase::Live(_)) {
            self.last_live = self.now;
        }
        let text = match &phase {
            Phase::Live(session) => format!("session {} on {}", session.number, session.portal),
            Phase::Opening => "opening".to_owned(),
            Phase::Lost(_) => "no session".to_owned(),
            Phase::Dead(failure) => format!("given up: {failure}"),
        };
        if text == self.seen_phase {
            return;
        }
        if let Phase::Live(session) = &phase {
            self.num_sessions = session.number;
        }
        if let Phase::Dead(failure) = &phase {
            let is_opening = self.shared.identity().is_none();
            let had_its_time = self.now - self.last_live >= CTRL_LOSS_TMO;
            if !is_opening && !had_its_time && failure.kind != ErrorKind::Stale {
                self.oracle.broken_rules.push(format!("given up too early: {failure}"));
            }
        }
        self.say(|| text.clone());
        self.seen_phase = text;
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let at = (self.now - self.start).as_micros();
            writeln!(trace, "{:>6}.{:03} ms  {}", at / 1000, at % 1000, text())
                .expect("a String takes it");
        }
    }
}

/// The keeper's surroundings: wires instead of sockets.
impl Network {
    fn connect(&mut self, now: Instant, portal: usize) -> u64 {
        let Reach { refused_until, silent_until } = self.reach[portal];
        let later = now + Duration::from_micros(20 + self.random.below(200));
        let refusal = || Failure::new(ErrorKind::Refused, "connection refused");
        let answer = match () {
            () if now < silent_until => None,
            () if now < refused_until => Some((later, Err(refusal()))),
            () => Some((later, Ok(()))),
        };
        let number = self.next_wire;
        self.next_wire += 1;
        let random = Random::new(self.random.next());
        self.wires.insert(number, Wire::new(now, portal, answer, random));
        number
    }
}

/// The connections of a queue pair during a turn.
struct PairWires<'a> {
    now: Instant,
    network: &'a mut Network,
    wires: &'a mut [Option<u64>; NUM_SLOTS],
}

impl PairWires<'_> {
    fn wire(&mut self, slot: usize) -> Option<&mut Wire> {
        let number = self.wires[slot].as_ref()?;
        Some(self.network.wires.get_mut(number).expect("open"))
    }
}

impl Carrier for PairWires<'_> {
    fn open(&mut self, slot: usize, address: SocketAddr) -> Result<(), Failure> {
        let portal = self.network.portals.iter().position(|portal| portal.socket == address);
        self.wires[slot] = Some(self.network.connect(self.now, portal.expect("one of them")));
        Ok(())
    }

    fn transfer(
        &mut self,
        slot: usize,
        now: Instant,
        channel: &mut Channel<Attempt>,
    ) -> Result<(), Failure> {
        self.wire(slot).map_or(Ok(()), |wire| wire.pump(now, channel))
    }

    fn send(
        &mut self,
        slot: usize,
        now: Instant,
        channel: &mut Channel<Attempt>,
    ) -> Result<(), Failure> {
        if let Some(wire) = self.wire(slot) {
            wire.send(now, channel);
        }
        Ok(())
    }

    fn close(&mut self, slot: usize, owes_data: bool) {
        let now = self.now;
        if let Some(wire) = self.wire(slot) {
            wire.close(now, owes_data);
        }
        self.wires[slot] = None;
    }
}

impl Keeping for World {
    type Portal = Portal;
    type JoinInfo = JoinInfo;
    type Admin = Admin;

    fn connect(&mut self, now: Instant, portal: usize) -> Result<Admin, Failure> {
        self.say(|| format!("keeper: connects to path {portal}"));
        self.num_admins += 1;
        // With a single session at a time the second one is being left.
        if self.num_admins as usize > NUM_SLOTS {
            self.oracle.broken_rules.push(format!("{} controllers at a time", self.num_admins));
        }
        let wire = self.network.connect(now, portal);
        Ok(Admin { controller: Controller::new(now, self.terms.clone()), wire })
    }

    fn poll(&mut self, now: Instant, admin: &mut Admin) -> Result<AdminEvent, Failure> {
        let Admin { controller, wire } = admin;
        let wire = self.network.wires.get_mut(wire).expect("it is not closed");
        let moved = wire.pump(now, &mut controller.channel);
        let turn = controller.advance(now, moved);
        wire.send(now, &mut controller.channel);
        turn
    }

    fn close(&mut self, _now: Instant, admin: Admin, _failure: &Failure) {
        self.close_admin(admin);
    }

    fn identified<'a>(&self, admin: &'a Admin) -> &'a Identified {
        &admin.controller.identified
    }

    fn join_info(&self, admin: &Admin) -> JoinInfo {
        admin.controller.join_info.clone()
    }

    fn describe(&self, identified: &Identified) -> Vec<Attached> {
        identified.attached(|_| "train".to_owned(), "tcp", 16, true)
    }

    fn stage(&self, admin: &Admin) -> &'static str {
        admin.controller.stage()
    }

    fn say(&mut self, _level: Level, text: String) {
        World::say(self, || format!("keeper: {text}"));
    }
}

fn add_member(queue: &mut IoQueue, place: usize, shared: &TcpShared) -> Member {
    let namespace = shared.identity().expect("it was live")[place].namespace.clone();
    let number = queue.add_member(place, namespace);
    Member { number, pending: VecDeque::new(), owed: Vec::new() }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const CTRL_LOSS_TMO: Duration = Duration::from_secs(2);
const IO_TIMEOUT: Duration = Duration::from_millis(300);

/// The time after the start of the last fault until it has passed and every lost session is replaced.
const SETTLING: Duration = Duration::from_secs(5);

/// The reasons for which an I/O fails without having been sent.
const NEVER_SENT: [&str; 3] = ["nothing worked", "given up", "writes that had completed"];

/// The longest time of any run.
const END: Duration = Duration::from_secs(120);

/// More steps than any run needs.
const MAX_STEPS: u64 = 200_000;
