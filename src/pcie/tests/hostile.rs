//! The driver's pure half against a controller in memory that answers rightly, wrongly, twice or never: no panic, no
//! wrong byte where the controller answered right, and no write outside of the memory given.
//!
//! `DLFS_PCIE_TURNS` sets the number of turns, and `DLFS_PCIE_SEED` the first seed.

#[path = "../../../tests/support/nvme_model.rs"]
#[allow(dead_code, unreachable_pub)] // other tests use the rest
mod nvme_model;
#[path = "../../../tests/support/random.rs"]
#[allow(dead_code, unreachable_pub)] // other tests use the rest
mod random;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlfs_base::units::{Lba, Nsid};
use dlfs_nvme::nvme::{Sgl, Sqe};
use dlfs_pcie::{Area, Clock, Controller, Ended, Fault, Queue, Registers, Settings, Span, Words};
use nvme_model::{HostMemory, Model};
use random::Random;

#[test]
fn a_controller_that_answers_anything_makes_no_panic_and_no_wrong_byte() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let turns = number("DLFS_PCIE_TURNS").unwrap_or(20_000u64);
    let first = number("DLFS_PCIE_SEED").unwrap_or(1);
    let mut told = Told::default();
    for seed in first..first + turns / TURNS_A_SEED {
        Scene::new(seed).play(&mut told);
    }
    println!("{told:?}");
    assert!(told.reads > turns / 20 && told.writes > turns / 20, "it read and wrote");
    assert!(told.faults > 0 && told.resets > 0 && told.failed > 0, "the device was hostile");
    // One lie in 10,000 turns: few turns may have none.
    assert!(told.aborts > 0 && (told.lies > 0 || turns < 200_000), "and it was silent, and lied");
}

#[test]
fn a_controller_that_is_right_answers_every_command() {
    for sgls in [false, true] {
        let mut scene = Scene::new(7);
        scene.world.model.lock().unwrap().mischief = None;
        scene.world.model.lock().unwrap().sgls = sgls;
        let mut told = Told::default();
        scene.play(&mut told);
        assert_eq!((told.faults, told.failed, told.resets), (0, 0, 0), "{told:?}");
        assert!(told.reads > 100 && told.writes > 100, "{told:?}");
    }
}

#[test]
fn a_start_fails_in_time_for_each_thing_that_a_controller_may_lack() {
    let refused = |change: fn(&mut Model)| {
        let world = World::new(3);
        world.model.lock().unwrap().mischief = None;
        change(&mut world.model.lock().unwrap());
        world.start().err().expect("it cannot start")
    };
    assert!(matches!(refused(|model| model.is_gone = true), Fault::Gone));
    assert!(matches!(refused(|model| model.is_silent = true), Fault::TimedOut { .. }));
    let mut controller = World::new(4).honest().start().unwrap();
    assert!(matches!(controller.namespace(Some(Nsid(9))), Err(Fault::NoNamespace)));
    assert_eq!(controller.namespace(None).unwrap().0, Nsid(1));
    assert_eq!(controller.max_transfer_bytes(), 128 << 10);
    let queues: Vec<Queue<()>> =
        (0..controller.num_queues()).map(|_| controller.create_queue().unwrap()).collect();
    assert!(matches!(controller.create_queue::<()>(), Err(Fault::NoQueue(4))));
    controller.delete_queue(&queues[2], true).unwrap();
    assert_eq!(controller.create_queue::<()>().unwrap().qid(), 3);
    controller.shut_down().unwrap();
}

/// Counts of a run.
#[derive(Debug, Default)]
struct Told {
    reads: u64,
    writes: u64,
    failed: u64,
    faults: u64,
    resets: u64,
    aborts: u64,
    lies: u64,
}

/// The model behind registers, memory and time.
struct World {
    model: Mutex<Model>,
    memory: Arc<Vec<AtomicU32>>,
    now: Mutex<Instant>,
}

impl World {
    fn new(seed: u64) -> Arc<World> {
        let mut model = Model::new(NUM_BLOCKS as usize * BLOCK_LEN, BLOCK_LEN);
        let mut random = Random::new(seed);
        model.sgls = random.one_in(2);
        model.mischief = Some((random, 25));
        let guard = || AtomicU32::new(GUARD);
        let memory = (0..MEMORY_LEN / 4).map(|_| guard()).collect::<Vec<_>>();
        memory[AREA_START / 4..][..AREA_LEN / 4].iter().for_each(|w| w.store(0, Ordering::Relaxed));
        Arc::new(World {
            model: Mutex::new(model),
            memory: Arc::new(memory),
            now: Mutex::new(Instant::now()),
        })
    }

    fn honest(self: Arc<World>) -> Arc<World> {
        self.model.lock().unwrap().mischief = None;
        self
    }

    fn area(&self) -> Area {
        let words: Words = Arc::clone(&self.memory) as Words;
        Area::new(words, BASE).part(AREA_START, AREA_LEN)
    }

    fn start(self: &Arc<World>) -> Result<Controller, Fault> {
        assert!(Controller::area_bytes(&SETTINGS) <= AREA_LEN);
        let registers = Arc::clone(self);
        let clock = Arc::clone(self);
        Controller::start(registers, clock, &self.area(), SETTINGS)
    }

    fn work(&self) {
        self.model.lock().unwrap().work(self);
    }

    fn pass(&self, time: Duration) {
        *self.now.lock().unwrap() += time;
    }

    /// The words outside of queues and data are as they were.
    fn check_guards(&self) {
        let inside = |at: usize| {
            (AREA_START..AREA_START + AREA_LEN).contains(&at)
                || (DATA_START..DATA_START + DATA_LEN).contains(&at)
        };
        for (word, at) in self.memory.iter().zip((0..).step_by(4)) {
            assert!(inside(at) || word.load(Ordering::Relaxed) == GUARD, "a write at {at}");
        }
    }

    fn words(&self, address: u64, len: usize) -> &[AtomicU32] {
        let at = (address - BASE) as usize;
        assert!(at + len <= MEMORY_LEN && at.is_multiple_of(4), "a command says {address:X}h");
        &self.memory[at / 4..][..len / 4]
    }
}

impl HostMemory for World {
    fn read(&self, address: u64, bytes: &mut [u8]) {
        for (word, bytes) in self.words(address, bytes.len()).iter().zip(bytes.chunks_mut(4)) {
            let word = u32::from_le(word.load(Ordering::Relaxed));
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        for (word, bytes) in self.words(address, bytes.len()).iter().zip(bytes.chunks(4)) {
            let value = u32::from_le_bytes(bytes.try_into().unwrap());
            word.store(value.to_le(), Ordering::Relaxed);
        }
    }
}

impl Registers for World {
    fn read32(&self, offset: u32) -> Result<u32, Fault> {
        Ok(self.model.lock().unwrap().read_register(offset))
    }

    fn write32(&self, offset: u32, value: u32) -> Result<(), Fault> {
        self.model.lock().unwrap().write_register(offset, value);
        Ok(())
    }
}

impl Clock for World {
    fn now(&self) -> Instant {
        *self.now.lock().unwrap()
    }

    fn nap(&self) {
        self.pass(Duration::from_millis(20));
        self.work();
    }
}

/// A command of the test.
#[derive(Debug, Clone)]
struct Job {
    is_write: bool,
    slba: u64,
    count: u64,
    /// Offset of its data in the memory.
    at: usize,
    value: u32,
}

/// One controller's life.
struct Scene {
    world: Arc<World>,
    random: Random,
    controller: Option<Controller>,
    queue: Option<Queue<Job>>,
    /// The values that a block may hold: the last one that was surely written, and later ones that may have been.
    blocks: HashMap<u64, Vec<u32>>,
    /// Blocks of commands without an answer, and their places of data.
    busy: Vec<Job>,
    value: u32,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let world = World::new(seed);
        let random = Random::new(seed ^ 0xD1F5);
        let blocks = (0..NUM_BLOCKS).map(|block| (block, vec![0])).collect();
        let value = 0;
        Scene { world, random, controller: None, queue: None, blocks, busy: Vec::new(), value }
    }

    fn play(&mut self, told: &mut Told) {
        self.recover(told);
        for _ in 0..TURNS_A_SEED {
            if let Err(fault) = self.turn(told) {
                told.faults += 1;
                let text = fault.to_string();
                assert!(!text.is_empty(), "{fault:?} of kind {:?}", fault.kind());
                self.recover(told);
            }
        }
        self.world.check_guards();
        told.resets += self.world.model.lock().unwrap().num_resets as u64;
    }

    fn turn(&mut self, told: &mut Told) -> Result<(), Fault> {
        let world = Arc::clone(&self.world);
        let queue = self.queue.as_mut().expect("recovered");
        for _ in 0..self.random.below(4) {
            let Some(job) = next_job(&mut self.random, &self.busy, &mut self.value) else { break };
            if !queue.has_room() {
                break;
            }
            let bytes = job.count as usize * BLOCK_LEN;
            let fill = if job.is_write { job.value } else { POISON };
            for word in world.words(BASE + job.at as u64, bytes) {
                word.store(fill, Ordering::Relaxed);
            }
            let blocks = job.slba..job.slba + job.count;
            for block in blocks.filter(|_| job.is_write) {
                self.blocks.get_mut(&block).expect("all are there").push(job.value);
            }
            let sqe = if job.is_write {
                Sqe::write(0, Nsid(1), Lba(job.slba), job.count as u32, Sgl::transport(0))
            } else {
                Sqe::read(0, Nsid(1), Lba(job.slba), job.count as u32, 0)
            };
            let span = Span { address: BASE + job.at as u64, len: bytes as u32 };
            self.busy.push(job.clone());
            queue.push(world.now(), sqe, Some(span), job);
        }
        queue.ring(&*world)?;
        world.work();
        let mut ended: Vec<(Job, Ended)> = Vec::new();
        let max = self.random.below(6) as usize;
        let polled = queue.poll(&*world, max, |job, end| ended.push((job, end)));
        assert!(ended.len() <= max);
        self.judge(ended, told)?;
        polled?;
        world.pass(Duration::from_millis(self.random.below(100)));
        let queue = self.queue.as_mut().expect("recovered");
        let controller = self.controller.as_mut().expect("recovered");
        if let Some(late) = queue.overdue(world.now(), SETTINGS.limit) {
            if late.aborting {
                let limit = SETTINGS.limit;
                return Err(Fault::TimedOut { step: "a command", limit });
            }
            queue.mark_aborting(world.now(), late.cid);
            controller.abort(queue.qid(), late.cid)?;
            told.aborts += 1;
        }
        if self.random.one_in(10) { controller.check() } else { Ok(()) }
    }

    /// Checks the ended commands, unless one of them was answered without a reason: then nothing is known.
    fn judge(&mut self, ended: Vec<(Job, Ended)>, told: &mut Told) -> Result<(), Fault> {
        let lied = {
            let lies = &self.world.model.lock().unwrap().lies;
            ended.iter().any(|(_, end)| lies.contains(&end.cid))
        };
        if lied {
            told.lies += 1;
            return Err(Fault::Protocol("the model lied"));
        }
        for (job, end) in ended {
            self.busy.retain(|other| other.at != job.at);
            if !end.status.is_success() {
                told.failed += 1;
                continue;
            }
            for nth in 0..job.count {
                let allowed = self.blocks.get_mut(&(job.slba + nth)).expect("all are there");
                if job.is_write {
                    *allowed = vec![job.value];
                    continue;
                }
                let at = BASE + job.at as u64 + nth * BLOCK_LEN as u64;
                let words = self.world.words(at, BLOCK_LEN);
                let found = words[0].load(Ordering::Relaxed);
                assert!(
                    allowed.contains(&found),
                    "block {}: {found}, not {allowed:?}",
                    job.slba + nth
                );
                assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == found));
            }
            if job.is_write {
                told.writes += 1;
            } else {
                told.reads += 1;
            }
        }
        Ok(())
    }

    /// Resets the controller until it and its queue are there; it is honest after some attempts.
    fn recover(&mut self, told: &mut Told) {
        self.busy.clear();
        let kept = self.world.model.lock().unwrap().mischief.clone();
        for attempt in 0.. {
            assert!(attempt < 100, "an honest controller does not start");
            let mut model = self.world.model.lock().unwrap();
            if self.random.one_in(2) || attempt > 20 {
                model.is_gone = false;
            }
            if attempt > 10 {
                model.mischief = None;
            }
            drop(model);
            match self.try_recover() {
                Ok(()) => break,
                Err(_) => told.faults += 1,
            }
        }
        let mut model = self.world.model.lock().unwrap();
        if model.mischief.is_none() {
            model.mischief = kept;
        }
    }

    fn try_recover(&mut self) -> Result<(), Fault> {
        match &mut self.controller {
            Some(controller) => controller.restart()?,
            None => self.controller = Some(self.world.start()?),
        }
        let controller = self.controller.as_mut().expect("started above");
        match &mut self.queue {
            Some(queue) => {
                queue.drain();
                controller.attach(queue)
            }
            None => {
                self.queue = Some(controller.create_queue()?);
                Ok(())
            }
        }
    }
}

/// A command on blocks and memory that no other has.
fn next_job(random: &mut Random, busy: &[Job], value: &mut u32) -> Option<Job> {
    let count = [1, 2, 3, 9, 64][random.below(5) as usize];
    let slba = random.below(NUM_BLOCKS - count + 1);
    let place = random.below(NUM_PLACES) as usize;
    let at = DATA_START + place * PLACE_LEN + random.below(256) as usize * 4;
    let overlaps = |other: &Job| {
        (other.at - DATA_START) / PLACE_LEN == place
            || other.slba < slba + count && slba < other.slba + other.count
    };
    if busy.iter().any(overlaps) {
        return None;
    }
    *value += 1;
    Some(Job { is_write: random.one_in(2), slba, count, at, value: *value })
}

const SETTINGS: Settings = Settings { queues: 4, entries: 16, limit: Duration::from_secs(1) };
const TURNS_A_SEED: u64 = 1000;

const BLOCK_LEN: usize = 512;
const NUM_BLOCKS: u64 = 256;

/// The host's memory: a guard, the queues, a guard, the data, a guard.
const BASE: u64 = 0x7_0000_0000;
const AREA_START: usize = 4096;
const AREA_LEN: usize = 512 << 10;
const DATA_START: usize = AREA_START + AREA_LEN + 4096;
const NUM_PLACES: u64 = 24;
const PLACE_LEN: usize = 40 << 10;
const DATA_LEN: usize = NUM_PLACES as usize * PLACE_LEN;
const MEMORY_LEN: usize = DATA_START + DATA_LEN + 4096;

const GUARD: u32 = 0x6A6A_6A6A;
const POISON: u32 = 0xDEAD_BEEF;
