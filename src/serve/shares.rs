//! Fair turns: the order in which the connections of a poller start commands and send responses.
//!
//! Start-time fair queueing in three levels: hosts by weight, then the namespaces of a host, then the
//! connections of one namespace. A turn is charged its cost, so a host with 64 connections gets as much as a
//! host with one, and a host that asks for little waits for at most one turn of each other. A host that
//! comes back after a pause starts at the clock: it has saved nothing up, and owes nothing for turns that
//! nobody else wanted.
//!
//! Pure: it knows indices and costs, no time and no socket. `shares/pace.rs` keeps hosts in step across
//! pollers, `shares/rules.rs` has the limits of all hosts, and `sharing.rs` a poller's use of all of them.
//!
//! Pollers share token [`Bucket`]s, limits in bytes and I/Os a second. A bucket is one number: the time at which it
//! is empty. A command may begin when that time has come, and postpones it by its cost, so a command larger than the
//! burst passes too, and those after it wait longer. Pollers that look at the same moment may all begin one command;
//! what they overdraw, the next ones wait for. So limits are exact but for the burst and one command of each poller.

pub(super) mod pace;
pub(super) mod rules;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A connection that waits for turns, by the caller's indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) host: usize,
    /// The namespace of the connection's next command.
    pub(super) space: usize,
    pub(super) connection: usize,
}

/// A turn of a connection, which ends with [`Turns::served`] or [`Turns::put_off`].
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) flow: Flow,
    /// The places of host, namespace and connection in their queues.
    places: [Place; 3],
}

/// The flows that cannot use their turns now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    /// This connection alone.
    Connection,
    /// All connections of its host that wait for its namespace.
    Space,
}

/// The waiting connections, in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    hosts: Queue,
    by_host: Vec<Host>,
    /// The end tag of each connection's last turn.
    connections: Vec<Tag>,
    /// Turns put off until the end of the round.
    later: Vec<Turn>,
}

/// Virtual time: cost divided by weight.
type Tag = u128;

/// The start tag, and the number of the entry: the order among equal tags.
type Place = (Tag, u64);

#[derive(Debug)]
struct Host {
    weight: u32,
    node: Node,
    spaces: Vec<Node>,
}

/// A host or a namespace: its place among its siblings, and its waiting children.
#[derive(Debug, Default)]
struct Node {
    /// The end tag of its last turn.
    end: Tag,
    is_queued: bool,
    children: Queue,
}

/// Siblings that wait, by their places.
#[derive(Debug, Default)]
struct Queue {
    /// The highest start tag served.
    clock: Tag,
    heap: BinaryHeap<Reverse<(Place, usize)>>,
    num_entries: u64,
}

impl Default for Host {
    fn default() -> Host {
        Host { weight: DEFAULT_WEIGHT, node: Node::default(), spaces: Vec::new() }
    }
}

impl Queue {
    fn push(&mut self, place: Place, key: usize) {
        self.heap.push(Reverse((place, key)));
    }

    fn pop(&mut self) -> Option<(Place, usize)> {
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// The last place among equal tags.
    fn place(&mut self, tag: Tag) -> Place {
        self.num_entries += 1;
        (tag, self.num_entries)
    }

    /// The place of a sibling that begins to wait.
    fn start(&mut self, end: Tag) -> Place {
        self.place(self.clock.max(end))
    }

    /// Queues a sibling that has waiting children, unless it is queued already.
    fn requeue(&mut self, node: &mut Node, place: Place, key: usize) {
        if !node.is_queued && !node.children.heap.is_empty() {
            node.is_queued = true;
            self.push(place, key);
        }
    }
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.hosts.heap.is_empty() && self.later.is_empty()
    }

    /// Returns whether a connection of the host waits for the namespace, not counting those that were put off in
    /// this round.
    pub(super) fn is_waiting(&self, host: usize, space: usize) -> bool {
        let space = self.by_host.get(host).and_then(|host| host.spaces.get(space));
        space.is_some_and(|space| !space.children.heap.is_empty())
    }

    pub(super) fn set_weight(&mut self, host: usize, weight: u32) {
        at(&mut self.by_host, host).weight = weight.max(1);
    }

    /// Adds a connection that begins to wait. It must not be waiting.
    pub(super) fn enter(&mut self, flow: Flow) {
        let places = self.start(flow);
        self.insert(flow, places);
    }

    /// The places of a flow that begins to wait.
    fn start(&mut self, Flow { host, space, connection }: Flow) -> [Place; 3] {
        let end = *at(&mut self.connections, connection);
        let host = at(&mut self.by_host, host);
        let space = at(&mut host.spaces, space);
        let host_place = self.hosts.start(host.node.end);
        [host_place, host.node.children.start(space.end), space.children.start(end)]
    }

    fn insert(&mut self, flow: Flow, places: [Place; 3]) {
        self.by_host[flow.host].spaces[flow.space].children.push(places[2], flow.connection);
        self.requeue_space(flow, places[1]);
        self.requeue_host(flow, places[0]);
    }

    fn requeue_space(&mut self, flow: Flow, place: Place) {
        let Host { node, spaces, .. } = &mut self.by_host[flow.host];
        node.children.requeue(&mut spaces[flow.space], place, flow.space);
    }

    fn requeue_host(&mut self, flow: Flow, place: Place) {
        self.hosts.requeue(&mut self.by_host[flow.host].node, place, flow.host);
    }

    /// The next turn, if a connection waits that was not put off in this round.
    pub(super) fn next(&mut self) -> Option<Turn> {
        loop {
            let (host_place, host) = self.hosts.pop()?;
            let Host { node, spaces, .. } = &mut self.by_host[host];
            node.is_queued = false;
            let Some((space_place, space)) = node.children.pop() else { continue };
            spaces[space].is_queued = false;
            let next = spaces[space].children.pop();
            let connection = next.map_or(usize::MAX, |(_, connection)| connection);
            let flow = Flow { host, space, connection };
            match next {
                Some((place, _)) => {
                    return Some(Turn { flow, places: [host_place, space_place, place] });
                }
                None => self.requeue_host(flow, host_place), // its connections have closed
            }
        }
    }

    /// Charges a turn. The connection goes on waiting if `more` names the namespace of its next command.
    pub(super) fn served(&mut self, turn: Turn, cost: u64, more: Option<usize>) {
        let Turn { flow, places } = turn;
        self.charge_from(flow, places, cost);
        if let Some(space) = more {
            let end = self.connections[flow.connection];
            let its = at(&mut self.by_host[flow.host].spaces, space);
            let place = its.children.start(end);
            its.children.push(place, flow.connection);
            self.go_on(Flow { space, ..flow });
        }
        self.go_on(flow);
    }

    /// Queues the namespace and the host of a turn again: they have waited all the time.
    fn go_on(&mut self, flow: Flow) {
        let Host { node, spaces, .. } = &mut self.by_host[flow.host];
        let place = node.children.place(spaces[flow.space].end);
        let host_place = self.hosts.place(node.end);
        self.requeue_space(flow, place);
        self.requeue_host(flow, host_place);
    }

    /// Charges a turn that was taken without waiting, since nobody waited.
    pub(super) fn charge(&mut self, flow: Flow, cost: u64) {
        let places = self.start(flow);
        self.charge_from(flow, places, cost);
    }

    fn charge_from(&mut self, flow: Flow, places: [Place; 3], cost: u64) {
        let tags = places.map(|(tag, _)| tag);
        let Host { weight, node, spaces } = &mut self.by_host[flow.host];
        let cost = Tag::from(cost);
        let space = &mut spaces[flow.space];
        self.hosts.clock = self.hosts.clock.max(tags[0]);
        node.children.clock = node.children.clock.max(tags[1]);
        space.children.clock = space.children.clock.max(tags[2]);
        node.end = tags[0] + cost * SCALE / Tag::from(*weight);
        space.end = tags[1] + cost;
        self.connections[flow.connection] = tags[2] + cost;
    }

    /// Puts a turn off until the end of the round, with those of `others`. They keep their places.
    pub(super) fn put_off(&mut self, turn: Turn, others: Others) {
        if others == Others::Connection {
            self.requeue_space(turn.flow, turn.places[1]);
        }
        self.requeue_host(turn.flow, turn.places[0]);
        self.later.push(turn);
    }

    /// Ends a round: those put off wait again.
    pub(super) fn end_round(&mut self) {
        while let Some(Turn { flow, places }) = self.later.pop() {
            self.insert(flow, places);
        }
    }

    /// Removes connections that close.
    pub(super) fn leave(&mut self, closes: impl Fn(usize) -> bool) {
        self.later.retain(|turn| !closes(turn.flow.connection));
        for space in self.by_host.iter_mut().flat_map(|host| &mut host.spaces) {
            space.children.heap.retain(|Reverse((_, connection))| !closes(*connection));
        }
    }
}

/// The entry of `index`, which begins to exist with its first use.
fn at<T: Default>(table: &mut Vec<T>, index: usize) -> &mut T {
    if table.len() <= index {
        table.resize_with(index + 1, T::default);
    }
    &mut table[index]
}

/// Limits of a host, a group or a namespace; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Limits {
    /// Bytes a second that are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes a second that are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
    /// Reads a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    /// Writes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
    /// After a pause, as much passes at once as the limits allow in this many milliseconds.
    pub burst_ms: u32,
    /// The share of a host beside other hosts: with twice the weight it gets twice as much. `None`: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            read_bytes: None,
            write_bytes: None,
            read_iops: None,
            write_iops: None,
            burst_ms: 10,
            weight: None,
        }
    }
}

impl Limits {
    fn has_rates(&self) -> bool {
        let rates = [self.read_bytes, self.write_bytes, self.read_iops, self.write_iops];
        rates.iter().any(Option::is_some)
    }
}

/// The buckets of a host, a group or a namespace.
#[derive(Debug)]
pub(super) struct Class {
    limits: Limits,
    /// Those of reads, and those of writes.
    bytes: [Option<Bucket>; 2],
    ios: [Option<Bucket>; 2],
}

#[derive(Debug)]
struct Bucket {
    per_second: u64,
    burst: u64,
    /// The time, in ticks, at which the bucket is empty.
    empty_at: AtomicU64,
}

impl Class {
    pub(super) fn new(limits: Limits) -> Class {
        let Limits { read_bytes, write_bytes, read_iops, write_iops, burst_ms, .. } = limits;
        let bucket = |rate: Option<u64>| {
            let burst = u64::from(burst_ms) * (TICKS_PER_SECOND / 1000);
            rate.map(|rate| Bucket { per_second: rate.max(1), burst, empty_at: AtomicU64::new(0) })
        };
        Class {
            limits,
            bytes: [read_bytes, write_bytes].map(bucket),
            ios: [read_iops, write_iops].map(bucket),
        }
    }

    /// The time from which a command may begin, in ticks.
    pub(super) fn ready_at(&self, is_write: bool) -> u64 {
        let [bytes, ios] = [&self.bytes, &self.ios].map(|buckets| {
            let bucket = buckets[usize::from(is_write)].as_ref();
            bucket.map_or(0, |bucket| bucket.empty_at.load(Ordering::Relaxed))
        });
        bytes.max(ios)
    }

    /// Charges a command of `len` bytes that begins at `now`.
    pub(super) fn take(&self, is_write: bool, len: u32, now: u64) {
        for (buckets, amount) in [(&self.bytes, len), (&self.ios, 1)] {
            if let Some(bucket) = &buckets[usize::from(is_write)] {
                bucket.take(amount, now);
            }
        }
    }
}

impl Bucket {
    fn take(&self, amount: u32, now: u64) {
        let cost = u128::from(amount) * u128::from(TICKS_PER_SECOND) / u128::from(self.per_second);
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        let after = |at: u64| at.max(now.saturating_sub(self.burst)).saturating_add(cost);
        let order = Ordering::Relaxed;
        // Cannot fail: there is always a next value.
        let _ = self.empty_at.fetch_update(order, order, |at| Some(after(at)));
    }
}

/// The weight of a host without a rule.
pub(super) const DEFAULT_WEIGHT: u32 = 100;

/// Resolution of tags: the highest weight still divides a cost of one byte.
const SCALE: Tag = 1 << 20;
const TICKS_PER_SECOND: u64 = 1_000_000_000 * TICKS_PER_NANOSECOND;

/// Fine enough for small commands at 100 GB/s, and enough for 36 years.
pub(super) const TICKS_PER_NANOSECOND: u64 = 16;

#[cfg(test)]
mod tests;
