//! A run: one host, one link, one target, a number of commands at a queue depth; and the least time that they
//! can take.

use std::time::Instant;

use dlfs::tcp::pdu::PduType;

use super::ends::is_stamped;
use super::host::{Host, Job, mark};
use super::link::{LinkOptions, PS_PER_MS, Pauses, Pipe, Ps};
use super::target::{IN_CAPSULE_BYTES, Target};

/// The kind of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    /// A write with in-capsule data.
    WriteInCapsule,
    /// A write whose data the target requests by R2T.
    WriteByR2t,
}

/// The part that pauses periodically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stall {
    None,
    /// Both directions of the link.
    Link,
    /// The target's device.
    Device,
}

/// One row of the snapshot, at one depth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) kind: Kind,
    pub(crate) len: usize,
    pub(crate) depth: u16,
    pub(crate) rtt: Ps,
    pub(crate) gbit_per_s: u64,
    pub(crate) stall: Stall,
}

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) num_commands: u64,
    /// From the first submission to the last completion.
    pub(crate) took: Ps,
    /// The least time that it can take.
    pub(crate) least: Ps,
    pub(crate) bytes: u64,
    pub(crate) host_sends: u64,
    pub(crate) host_receives: u64,
    pub(crate) target_sends: u64,
    pub(crate) target_receives: u64,
    pub(crate) scratch_bytes: u64,
}

impl Outcome {
    pub(crate) fn mb_per_s(&self) -> f64 {
        mb_per_s(self.bytes, self.took)
    }

    pub(crate) fn bound_mb_per_s(&self) -> f64 {
        mb_per_s(self.bytes, self.least)
    }

    /// The reached share of the bound.
    pub(crate) fn share(&self) -> f64 {
        self.least as f64 / self.took as f64
    }
}

fn mb_per_s(bytes: u64, ps: Ps) -> f64 {
    bytes as f64 * 1e6 / ps as f64
}

impl Setting {
    fn link(&self) -> LinkOptions {
        let pauses = (self.stall == Stall::Link).then_some(PAUSES);
        LinkOptions { gbit_per_s: self.gbit_per_s, delay: self.rtt / 2, pauses }
    }

    /// Enough commands for several pauses, or else for the queue to turn over.
    fn num_commands(&self) -> u64 {
        let rounds = match self.len >> 10 {
            0..=16 => 16,
            17..=256 => 4,
            _ => 2,
        };
        let turned_over = (rounds * u64::from(self.depth)).max(64);
        let least = match self.stall {
            Stall::None => 0,
            Stall::Link | Stall::Device => {
                let least = self.least_at(turned_over, LinkOptions { pauses: None, ..self.link() });
                turned_over * 5 * PAUSES.every / least
            }
        };
        turned_over.max(least)
    }

    /// Bytes on the wire of one command in the direction of its data.
    fn wire_len(&self) -> u64 {
        let header = |pdu_type: PduType| u64::from(pdu_type.hlen());
        let headers = match self.kind {
            Kind::Read => header(PduType::C2HData),
            Kind::WriteInCapsule => header(PduType::CapsuleCmd),
            Kind::WriteByR2t => header(PduType::CapsuleCmd) + header(PduType::H2CData),
        };
        self.len as u64 + headers
    }

    /// The least time that this number of commands can take: each needs its round trips and the transmission
    /// of its own bytes, at most `depth` do so at once, and the link sends one byte after the other.
    pub(crate) fn least(&self, num_commands: u64) -> Ps {
        self.least_at(num_commands, self.link())
    }

    fn least_at(&self, num_commands: u64, link: LinkOptions) -> Ps {
        let unpaused = LinkOptions { pauses: None, ..link };
        let round_trips = if self.kind == Kind::WriteByR2t { 2 } else { 1 } * self.rtt;
        let one = round_trips + unpaused.sent(0, self.wire_len());
        let by_depth = num_commands.div_ceil(u64::from(self.depth)) * one;
        let by_link = round_trips + link.sent(0, num_commands * self.wire_len());
        by_depth.max(by_link)
    }

    /// Simulates it.
    pub(crate) fn run(&self) -> Outcome {
        let mut run = Run::start(self);
        let num_commands = self.num_commands();
        let begin = run.begin();
        let mut submitted = 0;
        while submitted < num_commands.min(u64::from(self.depth)) {
            run.submit(vec![0; self.len], submitted);
            submitted += 1;
        }
        run.host.send(&mut run.up);
        let mut num_done = 0;
        let mut done = Vec::new();
        while num_done < num_commands {
            run.step(&mut done);
            for Job { slba, data } in done.drain(..) {
                assert!(
                    self.kind != Kind::Read || is_stamped(&data, slba),
                    "read {slba} got other bytes"
                );
                num_done += 1;
                if submitted < num_commands {
                    run.submit(data, submitted);
                    submitted += 1;
                }
            }
            run.host.send(&mut run.up);
        }
        Outcome {
            num_commands,
            took: run.host.clock.at - begin,
            least: self.least(num_commands),
            bytes: num_commands * self.len as u64,
            host_sends: run.host.calls.sends,
            host_receives: run.host.calls.receives,
            target_sends: run.target.calls.sends,
            target_receives: run.target.calls.receives,
            scratch_bytes: run.host.scratch_bytes,
        }
    }
}

struct Run {
    kind: Kind,
    host: Host,
    target: Target,
    /// To the target, and back.
    up: Pipe,
    down: Pipe,
}

impl Run {
    /// Initialises the connection.
    fn start(setting: &Setting) -> Run {
        let start = Instant::now(); // stands for 0: only differences matter
        let device_pauses = (setting.stall == Stall::Device).then_some(PAUSES);
        let mut run = Run {
            kind: setting.kind,
            host: Host::new(start, setting.depth),
            target: Target::new(start, device_pauses),
            up: Pipe::new(setting.link()),
            down: Pipe::new(setting.link()),
        };
        while !run.host.is_initialised {
            run.step(&mut Vec::new());
        }
        run.target.connected(setting.depth);
        let in_capsule = setting.kind == Kind::WriteInCapsule;
        run.host.set_max_in_capsule(if in_capsule { IN_CAPSULE_BYTES } else { 0 });
        run
    }

    /// Advances both clocks to the beginning of a period and resets the counts.
    fn begin(&mut self) -> Ps {
        let at = self.host.clock.at.max(self.target.clock.at).next_multiple_of(PAUSES.every);
        (self.host.clock.at, self.target.clock.at) = (at, at);
        (self.host.calls, self.target.calls) = Default::default();
        self.host.scratch_bytes = 0;
        at
    }

    fn submit(&mut self, data: Vec<u8>, number: u64) {
        let mut job = Job { slba: number, data };
        let is_write = self.kind != Kind::Read;
        if is_write {
            mark(&mut job);
        }
        self.host.submit(job, is_write);
    }

    /// Runs the next turn of the end that is next; of the host if both are.
    fn step(&mut self, done: &mut Vec<Job>) {
        let host = self.host.next_turn(&self.up, &self.down);
        let target = self.target.next_turn(&self.up, &self.down);
        match (host, target) {
            (Some(host), target) if target.is_none_or(|target| host <= target) => {
                self.host.clock.at = host;
                self.host.turn(&mut self.up, &mut self.down, done);
            }
            (_, Some(target)) => {
                self.target.clock.at = target;
                self.target.turn(&mut self.up, &mut self.down);
            }
            _ => panic!("nothing will ever happen, and commands are outstanding"),
        }
    }
}

/// 2 ms of every 10.
const PAUSES: Pauses = Pauses { every: 10 * PS_PER_MS, length: 2 * PS_PER_MS };
