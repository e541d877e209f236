//! A model of an NVMe controller with queues in memory, which may answer wrongly: registers, the admin commands of a
//! host that polls, and Read, Write and Flush on bytes of its own.

use std::collections::{BTreeMap, HashSet};

use super::random::Random;

/// The host's memory, by the addresses that the host gives.
pub trait HostMemory {
    fn read(&self, address: u64, bytes: &mut [u8]);
    /// Writes whole words in ascending order.
    fn write(&self, address: u64, bytes: &[u8]);
}

/// The controller and its namespace 1.
pub struct Model {
    pub media: Vec<u8>,
    pub block_len: usize,
    pub mdts: u8,
    pub sgls: bool,
    pub max_entries: u16,
    /// Answers nothing, and starts nothing, while it is set.
    pub is_silent: bool,
    /// Reads that touch this block fail.
    pub bad_block: Option<u64>,
    /// Answers wrongly, in one of so many cases.
    pub mischief: Option<(Random, u64)>,
    /// Mischief includes answers to commands that have not been given, and bytes by chance.
    pub may_lie: bool,
    /// Registers read as all ones.
    pub is_gone: bool,
    /// Identifiers that were answered without a reason.
    pub lies: HashSet<u16>,
    pub num_resets: usize,
    pub num_aborts: usize,
    pub num_commands: usize,
    registers: BTreeMap<u32, u32>,
    rings: BTreeMap<u16, Ring>,
    /// Completion queues that have no submission queue yet: address and entries.
    completions: BTreeMap<u16, (u64, u16)>,
}

struct Ring {
    commands: u64,
    entries: u16,
    head: u16,
    tail: u16,
    completions: u64,
    next: u16,
    num_completions: u16,
    phase: bool,
}

struct Answer {
    cid: u16,
    status: u16,
    result: u32,
}

impl Model {
    pub fn new(len: usize, block_len: usize) -> Model {
        Model {
            media: vec![0; len],
            block_len,
            mdts: 5,
            sgls: false,
            max_entries: 64,
            is_silent: false,
            bad_block: None,
            mischief: None,
            may_lie: true,
            is_gone: false,
            lies: HashSet::new(),
            num_resets: 0,
            num_aborts: 0,
            num_commands: 0,
            registers: BTreeMap::new(),
            rings: BTreeMap::new(),
            completions: BTreeMap::new(),
        }
    }

    pub fn read_register(&self, offset: u32) -> u32 {
        let cap = u64::from(self.max_entries - 1) | 1 << 16 | 4 << 24 | 1 << 37;
        match offset {
            _ if self.is_gone => u32::MAX,
            0 => cap as u32,
            4 => (cap >> 32) as u32,
            8 => 0x0001_0400,
            _ => self.register(offset),
        }
    }

    pub fn write_register(&mut self, offset: u32, value: u32) {
        if self.is_gone {
            return;
        }
        if offset >= DOORBELLS {
            let nth = (offset - DOORBELLS) / 4;
            if nth.is_multiple_of(2) {
                self.ring_doorbell((nth / 2) as u16, value);
            }
            return;
        }
        let was_enabled = self.register(CC) & 1 != 0;
        self.registers.insert(offset, value);
        let is_enabled = self.register(CC) & 1 != 0;
        if was_enabled && !is_enabled {
            self.reset();
        }
        if is_enabled && !was_enabled {
            let entries = (self.register(AQA) & 0xFFF) as u16 + 1;
            let ring = Ring::new(self.address(ASQ), entries, self.address(ACQ), entries);
            self.rings.insert(0, ring);
            self.registers.insert(CSTS, 1);
        }
        if value >> 14 & 3 != 0 && offset == CC {
            self.registers.insert(CSTS, 1 | 2 << 2);
        }
    }

    pub fn ring_doorbell(&mut self, qid: u16, tail: u32) {
        if let Some(ring) = self.rings.get_mut(&qid).filter(|ring| tail < u32::from(ring.entries)) {
            ring.tail = tail as u16;
        }
    }

    /// The submission queues that exist.
    pub fn qids(&self) -> Vec<u16> {
        self.rings.keys().copied().collect()
    }

    /// Forgets all queues, as when it is disabled or its host is gone.
    pub fn reset(&mut self) {
        self.registers.insert(CSTS, 0);
        self.registers.remove(&CC);
        self.rings.clear();
        self.completions.clear();
        self.lies.clear();
        self.num_resets += 1;
    }

    /// Fails by itself, and forgets its queues.
    pub fn fail(&mut self) {
        self.rings.clear();
        self.registers.insert(CSTS, 1 | 2);
    }

    /// Runs the commands that it was told of; returns their number.
    pub fn work(&mut self, memory: &dyn HostMemory) -> usize {
        let mut count = 0;
        for qid in self.qids() {
            while !self.is_silent && !self.is_gone {
                let Some(ring) = self.rings.get_mut(&qid).filter(|ring| ring.head != ring.tail)
                else {
                    break;
                };
                let mut sqe = [0; 64];
                memory.read(ring.commands + u64::from(ring.head) * 64, &mut sqe);
                ring.head = (ring.head + 1) % ring.entries;
                count += 1;
                self.num_commands += 1;
                let (status, result) =
                    if qid == 0 { self.admin(&sqe, memory) } else { self.io(&sqe, memory) };
                let cid = u16::from_le_bytes([sqe[2], sqe[3]]);
                self.answer(qid, Answer { cid, status, result }, memory);
            }
        }
        count
    }

    fn admin(&mut self, sqe: &[u8; 64], memory: &dyn HostMemory) -> (u16, u32) {
        let prp1 = u64_at(sqe, 24);
        let dw10 = u32_at(sqe, 40);
        let dw11 = u32_at(sqe, 44);
        let qid = dw10 as u16;
        let entries = (dw10 >> 16) as u16 + 1;
        match sqe[0] {
            0x06 => return (self.identify(dw10 as u8, u32_at(sqe, 4), prp1, memory), 0),
            0x09 => return (0, dw11.min(0x0007_0007)),
            0x08 => {
                self.num_aborts += 1;
                return (0, 1); // not aborted
            }
            0x05 => {
                self.completions.insert(qid, (prp1, entries));
            }
            0x01 => match self.completions.get(&((dw11 >> 16) as u16)) {
                Some(&(address, num)) => {
                    self.rings.insert(qid, Ring::new(prp1, entries, address, num));
                }
                None => return (INVALID_FIELD, 0),
            },
            0x00 if self.rings.remove(&qid).is_none() => return (INVALID_FIELD, 0),
            0x00 => {}
            0x04 => {
                self.completions.remove(&qid);
            }
            _ => return (INVALID_OPCODE, 0),
        }
        (0, 0)
    }

    fn identify(&mut self, cns: u8, nsid: u32, to: u64, memory: &dyn HostMemory) -> u16 {
        let mut page = [0; 4096];
        match cns {
            0 if nsid == 1 => {
                let blocks = (self.media.len() / self.block_len) as u64;
                page[..8].copy_from_slice(&blocks.to_le_bytes());
                page[104..120].fill(7);
                page[130] = self.block_len.trailing_zeros() as u8;
            }
            0 => return INVALID_NAMESPACE,
            1 => {
                page[77] = self.mdts;
                (page[512], page[513], page[516], page[525]) = (0x66, 0x44, 1, 1);
                page[536] = u8::from(self.sgls);
                page[768..768 + SUBNQN.len()].copy_from_slice(SUBNQN.as_bytes());
            }
            2 => page[0] = 1,
            _ => return INVALID_FIELD,
        }
        if let Some((random, chances)) = &mut self.mischief
            && random.one_in(*chances)
        {
            random.fill(&mut page);
        }
        memory.write(to, &page);
        0
    }

    fn io(&mut self, sqe: &[u8; 64], memory: &dyn HostMemory) -> (u16, u32) {
        let opcode = sqe[0];
        if opcode == 0 {
            return (0, 0);
        }
        let slba = u64_at(sqe, 40);
        let count = u64::from(u32_at(sqe, 48) & 0xFFFF) + 1;
        let start = slba as usize * self.block_len;
        let len = count as usize * self.block_len;
        if start + len > self.media.len() {
            return (OUT_OF_RANGE, 0);
        }
        let is_short = self.mdts == 0 || len <= 4096 << self.mdts;
        assert!(is_short, "{len} bytes are more than MDTS allows");
        if opcode == 2 && self.bad_block.is_some_and(|bad| (slba..slba + count).contains(&bad)) {
            return (UNRECOVERED_READ, 0);
        }
        let mut at = start;
        // Garbage in Identify may have said that there are SGLs.
        let has_sgls = self.sgls || self.mischief.is_some();
        for (address, len) in pieces(sqe, len, has_sgls, memory) {
            let bytes = &mut self.media[at..at + len];
            match opcode {
                1 => memory.read(address, bytes),
                2 => memory.write(address, bytes),
                _ => return (INVALID_OPCODE, 0),
            }
            at += len;
        }
        (0, 0)
    }

    /// Answers rightly, or wrongly if it may.
    fn answer(&mut self, qid: u16, answer: Answer, memory: &dyn HostMemory) {
        let Some(ring) = self.rings.get_mut(&qid) else { return };
        let Some((random, chances)) = &mut self.mischief else {
            return ring.complete(&answer, memory);
        };
        if !random.one_in(*chances) {
            return ring.complete(&answer, memory);
        }
        match random.below(8) {
            2 | 5 if !self.may_lie => ring.complete(&answer, memory),
            0 => {} // never
            1 => {
                ring.complete(&answer, memory);
                ring.complete(&answer, memory);
            }
            2 => {
                let cid = if random.one_in(2) { random.below(1 << 16) } else { random.below(40) };
                let cid = cid as u16 | answer.cid & 0xFF00;
                self.lies.insert(cid);
                ring.complete(&Answer { cid, ..answer }, memory);
            }
            3 => {
                let status = (random.below(1 << 16) as u16 | 1) << 1;
                ring.complete(&Answer { status, ..answer }, memory);
            }
            4 => {
                ring.phase ^= true; // an entry that is not seen
                ring.complete(&answer, memory);
                ring.phase ^= true;
            }
            5 => {
                let mut bytes = [0; 16];
                random.fill(&mut bytes);
                self.lies.insert(u16::from_le_bytes([bytes[12], bytes[13]]));
                memory.write(ring.completions + u64::from(ring.next) * 16, &bytes);
            }
            6 => self.fail(),
            _ => self.is_gone = true,
        }
    }

    fn register(&self, offset: u32) -> u32 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    fn address(&self, offset: u32) -> u64 {
        u64::from(self.register(offset + 4)) << 32 | u64::from(self.register(offset))
    }
}

impl Ring {
    fn new(commands: u64, entries: u16, completions: u64, num_completions: u16) -> Ring {
        Ring {
            commands,
            entries,
            head: 0,
            tail: 0,
            completions,
            next: 0,
            num_completions,
            phase: true,
        }
    }

    fn complete(&mut self, answer: &Answer, memory: &dyn HostMemory) {
        let mut entry = [0; 16];
        entry[..4].copy_from_slice(&answer.result.to_le_bytes());
        entry[8..10].copy_from_slice(&self.head.to_le_bytes());
        entry[12..14].copy_from_slice(&answer.cid.to_le_bytes());
        let status = answer.status | u16::from(self.phase);
        entry[14..].copy_from_slice(&status.to_le_bytes());
        memory.write(self.completions + u64::from(self.next) * 16, &entry);
        self.next = (self.next + 1) % self.num_completions;
        self.phase ^= self.next == 0;
    }
}

/// The places of a command's data, as its SGL or PRPs say.
fn pieces(sqe: &[u8; 64], len: usize, sgls: bool, memory: &dyn HostMemory) -> Vec<(u64, usize)> {
    let first = u64_at(sqe, 24);
    let second = u64_at(sqe, 32);
    if sqe[1] & 0xC0 != 0 {
        assert!(sgls && sqe[39] == 0 && second as usize == len, "an SGL that was not asked for");
        return vec![(first, len)];
    }
    let mut found = vec![(first, len.min(4096 - (first % 4096) as usize))];
    let mut left = len - found[0].1;
    let is_list = left > 4096;
    for nth in 0.. {
        if left == 0 {
            break;
        }
        let mut entry = second.to_le_bytes();
        if is_list {
            memory.read(second + nth * 8, &mut entry);
        }
        let address = u64::from_le_bytes(entry);
        assert!(address.is_multiple_of(4096), "a page that is none");
        found.push((address, left.min(4096)));
        left -= left.min(4096);
    }
    found
}

fn u32_at(bytes: &[u8; 64], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8; 64], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub const SUBNQN: &str = "nqn.2026-11.io.dlfs:model";

const CC: u32 = 0x14;
const CSTS: u32 = 0x1C;
const AQA: u32 = 0x24;
const ASQ: u32 = 0x28;
const ACQ: u32 = 0x30;
const DOORBELLS: u32 = 0x1000;

const INVALID_OPCODE: u16 = 0x01 << 1;
const INVALID_FIELD: u16 = 0x02 << 1;
const INVALID_NAMESPACE: u16 = 0x0B << 1;
const OUT_OF_RANGE: u16 = 0x80 << 1;
const UNRECOVERED_READ: u16 = (2 << 8 | 0x81) << 1;
