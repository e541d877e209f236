//! The simulated target: controllers on several paths to its namespaces, and a cache that a restart may lose.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::time::{Duration, Instant};

use dlfs::buf::IoBuf;
use dlfs::nvme::identify::{IDENTIFY_LEN_BYTES, NamespaceDescriptors, encode_namespace_list};
use dlfs::nvme::sqe::{admin, cns, fctype, feature, log_page, nvm};
use dlfs::nvme::{Cap, Cqe, IdentifyController, IdentifyNamespace, Property, Sqe, Status};
use dlfs::tcp::Digests;
use dlfs::tcp::controller::{CommandId, Connection, ConnectionOptions, DataTransfer, Event};
use dlfs::units::Nsid;
use zerocopy::{FromZeros, IntoBytes};

use super::random::Random;
use super::schedule::namespace_of;
use super::wire::{Wire, bytes_of};

/// The connections of the network, by their numbers.
pub(crate) type Wires = BTreeMap<u64, Wire>;

impl Path {
    /// Returns whether it leads to the namespaces that the host must use.
    pub(crate) fn is_right(&self) -> bool {
        (0..).zip(&self.nguids).all(|(place, found)| *found == nguid(place))
    }
}

/// The contents of a block: the number of the write that wrote it, 0 before the first.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    durable: u64,
    cached: Option<u64>,
    /// The commands that wrote it.
    received: u32,
    /// How many of them were answered with a status which says that nothing was done.
    refused: u32,
}

/// The state of a path to the subsystem.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    /// The identifier of each namespace.
    pub(crate) nguids: Vec<[u8; 16]>,
    /// I/O is answered with a path error until this time.
    pub(crate) path_error_until: Instant,
    /// Connect of I/O queues is refused until this time.
    pub(crate) busy_until: Instant,
    /// The ANA state of all namespaces.
    pub(crate) ana: u8,
}

/// The target.
pub(crate) struct Subsystem {
    pub(crate) paths: Vec<Path>,
    blocks: Vec<Block>,
    pub(crate) num_blocks: u64,
    /// The transfer limit of a command, as in MDTS.
    pub(crate) mdts: u8,
    pub(crate) granted: u16,
    pub(crate) has_cache: bool,
    /// True if it reports ANA states.
    pub(crate) has_ana: bool,
    /// Until this time commands take longer by this much.
    pub(crate) hangs_until: Instant,
    connections: BTreeMap<u64, Queue>,
    controllers: BTreeMap<u16, Controller>,
    next_cntlid: u16,
    work: Vec<Work>,
    pub(crate) num_flushes: u64,
    /// The first controller that executed a part of a write, by the number of the write.
    writers: BTreeMap<u64, u16>,
    /// Writes whose queue pair was dropped, and the first connection that was opened after that.
    pub(crate) abandoned: Vec<(std::ops::Range<u64>, u64)>,
    /// The broken rules.
    pub(crate) broken_rules: Vec<String>,
    random: Random,
}

struct Queue {
    connection: Connection,
    /// Controller and queue identifier, once it is connected.
    of: Option<(u16, u16)>,
}

struct Controller {
    cc: u32,
    /// How often CSTS is read before it follows CC.
    lag: u64,
    /// Asynchronous event requests, on the admin queue of this wire.
    events: Vec<CommandId>,
    /// True if a changed ANA state is to be reported.
    owes_ana: bool,
    admin: u64,
}

struct Work {
    at: Instant,
    wire: u64,
    /// Controller, queue identifier and path of the command.
    of: (u16, u16),
    path: usize,
    id: CommandId,
    sqe: Sqe,
    data: Vec<u8>,
    room: u32,
    /// True if the path was inaccessible when the command was taken.
    is_refused: bool,
}

impl Subsystem {
    pub(crate) fn new(
        now: Instant,
        paths: usize,
        namespaces: usize,
        has_cache: bool,
        random: Random,
    ) -> Subsystem {
        let nguids = (0..namespaces).map(nguid).collect();
        let path = Path { nguids, path_error_until: now, busy_until: now, ana: 1 };
        Subsystem {
            paths: vec![path; paths],
            blocks: vec![Block::default(); NUM_BLOCKS],
            num_blocks: NUM_BLOCKS as u64,
            mdts: 1,
            granted: 4,
            has_cache,
            has_ana: false,
            hangs_until: now,
            connections: BTreeMap::new(),
            controllers: BTreeMap::new(),
            next_cntlid: 1,
            work: Vec::new(),
            num_flushes: 0,
            writers: BTreeMap::new(),
            abandoned: Vec::new(),
            broken_rules: Vec::new(),
            random,
        }
    }

    /// Returns whether the last blocks that `write` wrote are durable.
    pub(crate) fn is_durable(&self, blocks: std::ops::Range<u64>, write: u64) -> bool {
        self.range(blocks).all(|block| block.durable == write)
    }

    /// The first controller that executed a part of `write`.
    pub(crate) fn writer(&self, write: u64) -> Option<u16> {
        self.writers.get(&write).copied()
    }

    /// Returns whether a part of `write` is neither durable nor in the cache.
    pub(crate) fn is_lost(&self, blocks: std::ops::Range<u64>, write: u64) -> bool {
        self.range(blocks).any(|block| block.durable != write && block.cached != Some(write))
    }

    fn range(&self, blocks: std::ops::Range<u64>) -> impl Iterator<Item = &Block> {
        self.blocks[blocks.start as usize..blocks.end as usize].iter()
    }

    /// From now on a path leads to another target, which has another namespace and none of the controllers.
    pub(crate) fn replace(&mut self, path: usize, nth: usize, wires: &Wires) {
        self.paths[path].nguids[nth] = [8; 16];
        self.controllers.retain(|_, controller| {
            wires.get(&controller.admin).is_none_or(|wire| wire.portal != path)
        });
    }

    /// Restarts: data that are not durable survive only by chance, and all connections end.
    pub(crate) fn restart(&mut self, now: Instant, wires: &mut Wires) {
        let loses = !self.random.once_in(4);
        for block in &mut self.blocks {
            match block.cached.take() {
                Some(written) if !loses => block.durable = written,
                _ => {}
            }
        }
        self.work.clear();
        self.controllers.clear();
        self.connections.clear();
        wires.values_mut().for_each(|wire| wire.break_off(now));
    }

    /// A namespace has changed: sends the asynchronous event to the hosts that asked for it.
    pub(crate) fn tell_events(&mut self, now: Instant, wires: &mut Wires) {
        for controller in self.controllers.values_mut() {
            let Some(queue) = self.connections.get_mut(&controller.admin) else { continue };
            if let Some(id) = controller.events.pop() {
                // A notice: namespace attribute changed; details in the changed namespace log.
                queue.connection.finish(id, Status::SUCCESS, 0x04_00_02);
                send(now, queue, wires.get_mut(&controller.admin));
            }
        }
    }

    /// The ANA state of a path has changed: sends the asynchronous event, at once or when it is asked for.
    pub(crate) fn tell_ana(&mut self, now: Instant, path: usize, wires: &mut Wires) {
        for controller in self.controllers.values_mut() {
            let Some(queue) = self.connections.get_mut(&controller.admin) else { continue };
            if wires.get(&controller.admin).is_none_or(|wire| wire.portal != path) {
                continue;
            }
            controller.owes_ana = true;
            if let Some(id) = controller.events.pop() {
                controller.owes_ana = false;
                queue.connection.finish(id, Status::SUCCESS, ANA_EVENT);
                send(now, queue, wires.get_mut(&controller.admin));
            }
        }
    }

    /// When it must run again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.work.iter().map(|work| work.at).min()
    }

    /// Receives bytes, and executes commands whose time has come.
    pub(crate) fn turn(&mut self, now: Instant, wires: &mut Wires) {
        let ready = |wire: &Wire| wire.target_ready_at().is_some_and(|at| at <= now);
        let numbers: Vec<u64> =
            wires.iter().filter(|(_, wire)| ready(wire)).map(|(number, _)| *number).collect();
        for number in numbers {
            while let Some(bytes) = wires.get_mut(&number).and_then(|w| w.receive_at_target(now)) {
                self.receive(now, number, wires, &bytes);
            }
            if wires[&number].is_over(now) {
                self.forget(now, number, wires);
                wires.remove(&number);
            }
        }
        while let Some(at) = self.work.iter().position(|work| work.at <= now) {
            let work = self.work.swap_remove(at);
            self.execute(now, work, wires);
        }
    }

    /// A connection has ended; the end of an admin queue ends its controller.
    fn forget(&mut self, now: Instant, number: u64, wires: &mut Wires) {
        let queue = self.connections.remove(&number);
        if let Some((cntlid, 0)) = queue.and_then(|queue| queue.of) {
            self.controllers.remove(&cntlid);
            self.connections.retain(|number, queue| {
                let ours = queue.of.is_some_and(|(of, _)| of == cntlid);
                if let Some(wire) = wires.get_mut(number).filter(|_| ours) {
                    wire.break_off(now);
                }
                !ours
            });
        }
    }

    fn receive(&mut self, now: Instant, number: u64, wires: &mut Wires, bytes: &[u8]) {
        if wires[&number].is_broken() {
            return;
        }
        let new = || Queue {
            connection: Connection::new(ConnectionOptions {
                digests: Digests::default(),
                max_h2c_data_bytes: 4096,
            }),
            of: None,
        };
        let mut queue = self.connections.remove(&number).unwrap_or_else(new);
        let mut input = bytes;
        loop {
            match queue.connection.next(&mut input) {
                Ok(None) => break,
                Ok(Some(event)) => self.take(now, number, &mut queue, event, wires),
                Err(error) => {
                    // A host that gives up may send a termination request; any other PDU of the host is
                    // valid.
                    let error = error.to_string();
                    if !wires[&number].is_closed() {
                        self.broken_rules.push(format!("the host's bytes are wrong: {error}"));
                    }
                    break;
                }
            }
        }
        send(now, &mut queue, wires.get_mut(&number));
        self.connections.insert(number, queue);
    }

    fn take(&mut self, now: Instant, wire: u64, queue: &mut Queue, event: Event, wires: &Wires) {
        let (id, sqe, data, room) = match event {
            Event::Command { id, sqe, data: DataTransfer::FromHost { len, .. } } => {
                self.note_command(queue, &sqe, wire, wires[&wire].portal);
                queue.connection.receive(id, IoBuf::zeroed(len as usize));
                return;
            }
            Event::Command { id, sqe, data } => {
                self.note_command(queue, &sqe, wire, wires[&wire].portal);
                let room = if let DataTransfer::ToHost(len) = data { len } else { 0 };
                (id, sqe, Vec::new(), room)
            }
            Event::Received { id, sqe, buf } => (id, sqe, buf.to_vec(), 0),
            Event::Damaged { .. } => unreachable!("no digests"),
        };
        if sqe.fctype() == Some(fctype::CONNECT) {
            let answer = self.connect(now, wire, &sqe, &data, wires);
            if answer.status().is_success() {
                queue.of = Some((answer.dw0.get() as u16, sqe.connect_qid()));
                queue.connection.connected(sqe.connect_sqsize(), 4096, false);
            }
            return queue.connection.finish_with(id, answer);
        }
        let takes = match self.hangs_until.saturating_duration_since(now) {
            none if none.is_zero() => Duration::from_micros(20 + self.random.below(400)),
            rest => rest,
        };
        let Some(of) = queue.of else {
            return self.broken_rules.push("a command before Connect".to_owned());
        };
        let at = now + takes;
        let path = wires[&wire].portal;
        let is_refused = self.has_ana && self.paths[path].ana > 2;
        self.work.push(Work { at, wire, of, path, id, sqe, data, room, is_refused });
    }

    /// Checks an I/O command against the rules.
    fn note_command(&mut self, queue: &Queue, sqe: &Sqe, wire: u64, path: usize) {
        if queue.of.is_none_or(|(_, qid)| qid == 0) {
            return;
        }
        if !self.paths[path].is_right() {
            self.broken_rules.push("another namespace got an I/O".to_owned());
        }
        let nsid = sqe.nsid.get() as usize;
        let of_block = 1 + namespace_of(sqe.slba().0, self.num_namespaces());
        if nsid == 0 || nsid > self.num_namespaces() || sqe.opcode != nvm::FLUSH && nsid != of_block
        {
            let message = format!("an I/O of namespace {of_block} is for namespace {nsid}");
            return self.broken_rules.push(message);
        }
        match sqe.opcode {
            nvm::FLUSH => self.num_flushes += 1,
            nvm::WRITE => {
                let start = sqe.slba().0 as usize;
                let is_late = |(blocks, first): &(std::ops::Range<u64>, u64)| {
                    blocks.contains(&(start as u64)) && wire >= *first
                };
                if self.abandoned.iter().any(is_late) {
                    let message = format!("a write of block {start} was sent after it was dropped");
                    return self.broken_rules.push(message);
                }
                for block in &mut self.blocks[start..start + sqe.num_blocks() as usize] {
                    block.received += 1;
                    if block.received > block.refused + 1 {
                        let message = format!("a write of block {start} was sent again");
                        return self.broken_rules.push(message);
                    }
                }
            }
            _ => {}
        }
    }

    fn connect(&mut self, now: Instant, wire: u64, sqe: &Sqe, data: &[u8], wires: &Wires) -> Cqe {
        let qid = sqe.connect_qid();
        let path = &self.paths[wires[&wire].portal];
        if qid == 0 {
            let cntlid = self.next_cntlid;
            self.next_cntlid += 1;
            let lag = self.random.below(3);
            let events = Vec::new();
            let controller = Controller { cc: 0, lag, events, owes_ana: false, admin: wire };
            self.controllers.insert(cntlid, controller);
            return Cqe::new(0, Status::SUCCESS).with_result(cntlid.into());
        }
        let cntlid = u16::from_le_bytes([data[16], data[17]]);
        let same: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, queue)| queue.of == Some((cntlid, qid)))
            .map(|(number, _)| *number)
            .collect();
        if same.iter().any(|number| !wires[number].is_closed()) {
            self.broken_rules.push(format!("two queues of one session have QID {qid}"));
        }
        let known = self.controllers.contains_key(&cntlid);
        let refused = now < path.busy_until || !same.is_empty();
        Cqe::new(
            0,
            match (known, refused) {
                (false, _) => Status::CONNECT_INVALID_PARAMETERS,
                (true, true) => Status::CONNECT_CONTROLLER_BUSY,
                (true, false) => Status::SUCCESS,
            },
        )
        .with_result(if known && !refused { cntlid.into() } else { 0 })
    }

    fn execute(&mut self, now: Instant, work: Work, wires: &mut Wires) {
        // A received command is executed even if nobody waits for the answer.
        let queue = self.connections.remove(&work.wire);
        let answered = match work.of {
            (cntlid, 0) => self.execute_admin(cntlid, &work),
            _ => Some(self.execute_io(now, &work, queue.is_some())),
        };
        let Some((answer, data)) = answered else {
            // An asynchronous event request: it is answered when there is an event.
            if let Some(mut queue) = queue {
                queue.connection.park(work.id);
                self.connections.insert(work.wire, queue);
            }
            return;
        };
        let Some(mut queue) = queue else { return };
        match data {
            Some(mut data) if answer.status().is_success() => {
                data.resize(work.room as usize, 0);
                let mut buf = IoBuf::zeroed(data.len());
                buf.copy_from_slice(&data);
                queue.connection.send_data(work.id, buf.freeze());
            }
            _ => queue.connection.finish_with(work.id, answer),
        }
        send(now, &mut queue, wires.get_mut(&work.wire));
        self.connections.insert(work.wire, queue);
    }

    fn execute_io(
        &mut self,
        now: Instant,
        work: &Work,
        is_awaited: bool,
    ) -> (Cqe, Option<Vec<u8>>) {
        let start = work.sqe.slba().0;
        let range = start as usize..start as usize + work.sqe.num_blocks() as usize;
        let path = &self.paths[work.path];
        if is_awaited && (work.is_refused || now < path.path_error_until) {
            match work.sqe.opcode {
                nvm::WRITE => self.blocks[range].iter_mut().for_each(|block| block.refused += 1),
                nvm::FLUSH => self.num_flushes -= 1,
                _ => {}
            }
            let status =
                if work.is_refused { Status::ANA_INACCESSIBLE } else { Status::ANA_TRANSITION };
            return (Cqe::new(0, status), None);
        }
        let mut data = None;
        match work.sqe.opcode {
            nvm::FLUSH => {
                let nsid = work.sqe.nsid.get() as usize;
                let namespaces = self.num_namespaces();
                let is_of = |lba: u64| namespace_of(lba, namespaces) + 1 == nsid;
                let blocks = (0..).zip(&mut self.blocks).filter(|(lba, _)| is_of(*lba));
                for (_, block) in blocks {
                    block.durable = block.cached.take().unwrap_or(block.durable);
                }
            }
            nvm::WRITE => {
                let chunks = work.data.chunks_exact(BLOCK_LEN);
                for (block, bytes) in self.blocks[range].iter_mut().zip(chunks) {
                    let written = number_at(bytes, 0);
                    self.writers.entry(written).or_insert(work.of.0);
                    if self.has_cache {
                        block.cached = Some(written)
                    } else {
                        block.durable = written
                    }
                }
            }
            _ => {
                let mut bytes = vec![0; range.len() * BLOCK_LEN];
                for ((lba, block), out) in
                    (start..).zip(&self.blocks[range]).zip(bytes.chunks_exact_mut(BLOCK_LEN))
                {
                    let value = block.cached.unwrap_or(block.durable);
                    out[..8].copy_from_slice(&value.to_le_bytes());
                    out[8..16].copy_from_slice(&lba.to_le_bytes());
                }
                data = Some(bytes);
            }
        }
        (Cqe::new(0, Status::SUCCESS), data)
    }

    fn execute_admin(&mut self, cntlid: u16, work: &Work) -> Option<(Cqe, Option<Vec<u8>>)> {
        let Work { sqe, room, path, .. } = work;
        let done = |result| Some((Cqe::new(0, Status::SUCCESS).with_result(result), None));
        let data = |bytes| Some((Cqe::new(0, Status::SUCCESS), Some(bytes)));
        let Some(controller) = self.controllers.get_mut(&cntlid) else {
            return Some((Cqe::new(0, Status::INTERNAL_ERROR), None));
        };
        match (sqe.fctype(), sqe.property()) {
            (Some(fctype::PROPERTY_SET), _) => {
                controller.cc = sqe.property_value() as u32;
                return done(0);
            }
            (Some(_), Some(Property::Cap)) => return done(Cap::new(32, 500).0),
            (Some(_), Some(Property::Cc)) => return done(controller.cc.into()),
            (Some(_), _) => {
                let ready = controller.cc & 1 == 1 && controller.lag == 0;
                controller.lag = controller.lag.saturating_sub(1);
                return done(ready.into());
            }
            (None, _) => {}
        }
        match sqe.opcode {
            admin::IDENTIFY => data(match sqe.low_byte_of_cdw10() {
                cns::CONTROLLER => self.identify().as_bytes().to_vec(),
                cns::ACTIVE_NAMESPACES => {
                    let nsids = (sqe.nsid.get() + 1..=self.num_namespaces() as u32).map(Nsid);
                    encode_namespace_list(nsids).to_vec()
                }
                cns::NAMESPACE => {
                    let nguid = self.paths[*path].nguids[sqe.nsid.get() as usize - 1];
                    let mut id = IdentifyNamespace::new(self.num_blocks, 512, nguid, false);
                    id.anagrpid = u32::from(self.has_ana).into();
                    id.as_bytes().to_vec()
                }
                _ => NamespaceDescriptors::default().encode().to_vec(),
            }),
            admin::SET_FEATURES if sqe.low_byte_of_cdw10() == feature::NUMBER_OF_QUEUES => {
                let granted = u64::from(self.granted - 1);
                done(granted << 16 | granted)
            }
            admin::GET_LOG_PAGE => {
                let mut log = vec![0; *room as usize];
                if sqe.low_byte_of_cdw10() == log_page::ANA {
                    (log[8], log[16], log[32]) = (1, 1, self.paths[*path].ana);
                }
                data(log)
            }
            admin::ASYNC_EVENT_REQUEST if controller.owes_ana => {
                controller.owes_ana = false;
                done(ANA_EVENT)
            }
            admin::ASYNC_EVENT_REQUEST => {
                controller.events.push(work.id);
                None
            }
            _ => done(0),
        }
    }

    fn identify(&self) -> IdentifyController {
        let mut id = IdentifyController::new_zeroed();
        id.mdts = self.mdts;
        id.oaes = (1 << 8 | u32::from(self.has_ana) << 11).into();
        id.cmic = u8::from(self.has_ana) << 3;
        id.kas = 1.into();
        id.cntrltype = IdentifyController::TYPE_IO;
        (id.sqes, id.cqes) = (0x66, 0x44);
        id.maxcmd = 32.into();
        id.nn = (self.num_namespaces() as u32).into();
        id.sgls = (1 | 1 << 20).into();
        id.vwc = u8::from(self.has_cache);
        id.ioccsz = ((64 + 4096) / 16).into();
        id.iorcsz = 1.into();
        id
    }

    pub(crate) fn num_namespaces(&self) -> usize {
        self.paths[0].nguids.len()
    }

    /// The number of connections on its side of the network.
    pub(crate) fn wires_of_queues(&self) -> BTreeSet<u64> {
        self.connections.keys().copied().collect()
    }
}

fn send(now: Instant, queue: &mut Queue, wire: Option<&mut Wire>) {
    let Some(wire) = wire else { return };
    while !queue.connection.transmit().is_empty() {
        let mut slices = [IoSlice::new(&[]); 16];
        let used = queue.connection.gather(&mut slices);
        let bytes = bytes_of(&slices[..used]);
        wire.send_to_host(now, &bytes);
        queue.connection.sent(bytes.len());
    }
}

/// Dword 0 of the event that reports a changed ANA state.
const ANA_EVENT: u64 = 0x0C_03_02;

/// Numbers in a block: at byte 0 the number of the write, at byte 8 the number of the block.
pub(crate) fn number_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

pub(crate) const BLOCK_LEN: usize = 512;
pub(crate) const NUM_BLOCKS: usize = 2048;

/// The identifier of the namespace at an index that the host must use.
pub(crate) fn nguid(place: usize) -> [u8; 16] {
    let mut nguid = [7; 16];
    nguid[0] += place as u8;
    nguid
}
const _: () = assert!(IDENTIFY_LEN_BYTES == 4096);
