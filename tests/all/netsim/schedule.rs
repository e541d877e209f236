//! The schedule of a run: faults and requests with their times, written down or drawn from a seed.

use std::fmt;
use std::ops::Range;

use super::random::Random;
use super::subsystem::NUM_BLOCKS;

/// A fault, or its end.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// A connection breaks, and both sides learn of it.
    Cut { nth: usize },
    /// Nothing arrives on one connection.
    Hold { nth: usize, ms: u64 },
    /// Nothing arrives on a path, and nothing is answered there.
    Silent { path: usize, ms: u64 },
    /// Connections on a path break, and new ones are refused.
    Refuse { path: usize, ms: u64 },
    /// The target restarts and cannot be reached for this time.
    Restart { ms: u64 },
    /// From now on a path leads to another namespace in place of the `nth`.
    Replace { path: usize, nth: usize },
    /// I/O on a path is answered with a path error.
    PathError { path: usize, ms: u64 },
    /// Connect of I/O queues is refused on a path.
    Busy { path: usize, ms: u64 },
    /// The target answers nothing for this time.
    Hang { ms: u64 },
    /// The namespace grows under a live session.
    Grow,
    /// The namespace has its old size again.
    ShrinkBack,
    /// Later sessions have another transfer limit: 4 KiB << `mdts`.
    Transfer { mdts: u8 },
    /// Later sessions grant this number of queues.
    Grant { queues: u16 },
    /// The ANA state of a path changes, and after this time to optimized; 0: it stays.
    Ana { path: usize, state: u8, ms: u64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Cut { nth } => write!(f, "connection {nth} breaks"),
            Fault::Hold { nth, ms } => write!(f, "connection {nth} is silent for {ms} ms"),
            Fault::Silent { path, ms } => write!(f, "path {path} is silent for {ms} ms"),
            Fault::Refuse { path, ms } => write!(f, "path {path} is cut for {ms} ms"),
            Fault::Restart { ms } => write!(f, "the target restarts, {ms} ms away"),
            Fault::Replace { path, .. } => write!(f, "path {path} leads to another namespace"),
            Fault::PathError { path, ms } => write!(f, "path {path} has path errors for {ms} ms"),
            Fault::Busy { path, ms } => write!(f, "path {path} takes no I/O queue for {ms} ms"),
            Fault::Hang { ms } => write!(f, "the target answers nothing for {ms} ms"),
            Fault::Grow => write!(f, "the namespace grows"),
            Fault::ShrinkBack => write!(f, "the namespace is as it was"),
            Fault::Transfer { mdts } => write!(f, "transfers of {} KiB", 4 << mdts),
            Fault::Grant { queues } => write!(f, "{queues} queues are granted"),
            Fault::Ana { path, state, .. } => write!(f, "path {path} has ANA state {state}"),
        }
    }
}

/// A request to the host, on an I/O queue. Blocks are distributed over the namespaces in turn: see
/// [`namespace_of`].
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    /// A read that must succeed.
    Probe {
        pair: usize,
        block: u64,
    },
    Read {
        pair: usize,
        blocks: Range<u64>,
    },
    Write {
        pair: usize,
        blocks: Range<u64>,
    },
    Flush {
        pair: usize,
        namespace: usize,
    },
    /// A member of a queue is removed, and another takes its place.
    Renew {
        pair: usize,
        namespace: usize,
    },
}

/// A run: times in milliseconds, in order.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) paths: usize,
    /// True if the host keeps two sessions, on two paths.
    pub(crate) keeps_two: bool,
    /// True if the target reports ANA states.
    pub(crate) has_ana: bool,
    /// True if nothing breaks, so that all that the target has taken is answered.
    pub(crate) is_calm: bool,
    pub(crate) pairs: usize,
    pub(crate) namespaces: usize,
    /// True if the host opens the namespaces by their numbers, and not all that exist.
    pub(crate) are_named: bool,
    pub(crate) has_cache: bool,
    pub(crate) mdts: u8,
    pub(crate) faults: Vec<(u64, Fault)>,
    pub(crate) asks: Vec<(u64, Ask)>,
}

impl Schedule {
    /// The schedule of a seed.
    pub(crate) fn random(seed: u64) -> Schedule {
        let mut random = Random::new(seed ^ 0xD1F5);
        let paths = 1 + random.below(3) as usize;
        let pairs = 1 + random.below(3) as usize;
        let namespaces = if random.once_in(2) { 1 } else { 2 + random.below(3) as usize };
        let length = 200 + random.below(1500);
        let mut faults: Vec<(u64, Fault)> = (0..random.below(7))
            .map(|_| {
                // Some at the same time, some while the namespaces are opened.
                let at = if random.once_in(6) { random.below(4) } else { random.below(length) };
                (at, fault(&mut random, paths, pairs, namespaces))
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        let mut asks: Vec<(u64, Ask)> = Vec::new();
        let mut next_write = 0;
        for _ in 0..4 + random.below(28) {
            let pair = random.below(pairs as u64) as usize;
            let length_blocks = [1, 8, 16, 32][random.below(4) as usize];
            let place = random.below(next_write + 2) * WRITE_BLOCKS;
            let namespace = random.below(namespaces as u64) as usize;
            let ask = match random.below(if namespaces == 1 { 20 } else { 22 }) / 2 {
                0..4 => Ask::Read { pair, blocks: place..place + length_blocks },
                4..8 => {
                    let start = next_write * WRITE_BLOCKS;
                    next_write += 1;
                    Ask::Write { pair, blocks: start..start + length_blocks }
                }
                8..10 => Ask::Flush { pair, namespace },
                _ => Ask::Renew { pair, namespace },
            };
            asks.push((random.below(length), ask));
        }
        asks.sort_by_key(|(at, _)| *at);
        assert!((next_write + 2) * WRITE_BLOCKS < NUM_BLOCKS as u64, "within the namespace");
        let has_cache = !random.once_in(5);
        let mdts = 1 + random.below(2) as u8;
        let are_named = random.once_in(2);
        // Last, so that the rest of a seed's schedule is as it was when it found something.
        let keeps_two = paths > 1 && random.once_in(2);
        let has_ana = keeps_two && random.once_in(2);
        if has_ana {
            for _ in 0..1 + random.below(4) {
                let path = random.below(paths as u64) as usize;
                let state = [2, 3, 3, 15][random.below(4) as usize];
                let ms = 1 + random.below(600);
                faults.push((random.below(length), Fault::Ana { path, state, ms }));
            }
            faults.sort_by_key(|(at, _)| *at);
        }
        Schedule {
            seed,
            paths,
            keeps_two,
            has_ana,
            is_calm: false,
            pairs,
            namespaces,
            are_named,
            has_cache,
            mdts,
            faults,
            asks,
        }
    }

    /// The schedule of a seed in which paths become inaccessible while commands are on their way, and nothing breaks.
    pub(crate) fn calm(seed: u64) -> Schedule {
        let mut random = Random::new(seed ^ 0xCA13);
        let paths = 1 + random.below(3) as usize;
        let pairs = 1 + random.below(3) as usize;
        let mut faults = Vec::new();
        let mut asks = Vec::new();
        for write in 0..2 + random.below(6) {
            let at = 50 + random.below(800);
            // A command taken now is answered late, one taken 5 ms later at once.
            let hang = Fault::Hang { ms: random.below(200) };
            let path = random.below(paths as u64) as usize;
            let state = [2, 3, 3, 15][random.below(4) as usize];
            let change = Fault::Ana { path, state, ms: 1 + random.below(300) };
            faults.extend([(at, hang), (at + 5, Fault::Hang { ms: 0 })]);
            faults.push((at + 5 + random.below(30), change));
            let blocks =
                write * WRITE_BLOCKS..write * WRITE_BLOCKS + [1, 8, 32][write as usize % 3];
            for _ in 0..1 + random.below(4) {
                let pair = random.below(pairs as u64) as usize;
                asks.push((at + random.below(60), Ask::Read { pair, blocks: blocks.clone() }));
            }
            let pair = random.below(pairs as u64) as usize;
            asks.push((at + random.below(5), Ask::Write { pair, blocks }));
            asks.push((at + random.below(8), Ask::Flush { pair, namespace: 0 }));
        }
        faults.sort_by_key(|(at, _)| *at);
        asks.sort_by_key(|(at, _)| *at);
        Schedule {
            seed,
            paths,
            keeps_two: paths > 1 && random.once_in(2),
            has_ana: true,
            is_calm: true,
            pairs,
            namespaces: 1,
            are_named: true,
            has_cache: random.once_in(2),
            mdts: 1 + random.below(2) as u8,
            faults,
            asks,
        }
    }
}

/// The index of the namespace that holds a block.
pub(crate) fn namespace_of(block: u64, namespaces: usize) -> usize {
    (block / WRITE_BLOCKS) as usize % namespaces
}

fn fault(random: &mut Random, paths: usize, pairs: usize, namespaces: usize) -> Fault {
    let path = random.below(paths as u64) as usize;
    let nth = random.below(8) as usize;
    // Mostly shorter than the time limits, sometimes longer than all of them.
    let ms = match random.below(8) {
        0..5 => random.below(150),
        5..7 => random.below(900),
        _ => 1500 + random.below(1500),
    };
    match random.below(24) {
        0..5 => Fault::Cut { nth },
        5..7 => Fault::Hold { nth, ms },
        7..9 => Fault::Silent { path, ms },
        9..12 => Fault::Refuse { path, ms },
        12..15 => Fault::Restart { ms },
        15 => Fault::Replace { path, nth: random.below(namespaces as u64) as usize },
        16..18 => Fault::PathError { path, ms },
        18 => Fault::Busy { path, ms },
        19..21 => Fault::Hang { ms },
        21 => Fault::Grow,
        22 => Fault::Transfer { mdts: 1 + random.below(2) as u8 },
        _ => Fault::Grant { queues: 1 + random.below(pairs as u64 + 1) as u16 },
    }
}

/// The blocks of each write, which no other write uses.
pub(crate) const WRITE_BLOCKS: u64 = 32;
