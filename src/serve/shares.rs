//! Fair turns: the order in which the connections of a poller start commands and send responses.
//!
//! Start-time fair queueing in three levels: hosts by weight, then the namespaces of a host, then the
//! connections of one namespace. A turn is charged its cost, so a host with 64 connections gets as much as a
//! host with one, and a host that asks for little waits for at most one turn of each other. A host that
//! comes back after a pause starts at the current virtual time: it saves no credit, and owes nothing for turns that
//! nobody else wanted.
//!
//! Pure: it knows indices and costs, no time and no socket. `shares/pace.rs` keeps hosts in step across pollers.
//! `shares/limits.rs` has the limits of one host, group or namespace, and `shares/rules.rs` those of all. `sharing.rs`
//! is a poller's use of these files.

pub(super) mod limits;
pub(super) mod pace;
pub(super) mod rules;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An entry that waits for turns: a waiting line of a connection, or a connection with bytes to send. By the caller's
/// indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    /// 0 for all connections without a Connect, else the index of the host plus 1.
    pub(super) host: usize,
    /// For the namespace of the connection's next command: twice the index of its queue, plus the number of the line.
    pub(super) namespace: usize,
    /// Twice the index of the connection, plus the number of its waiting line, 0 or 1: see [`Flow::connection_of`].
    pub(super) connection: usize,
}

impl Flow {
    /// The number in flows of waiting line `line` of the connection at `index`.
    pub(super) fn connection_of(index: usize, line: usize) -> usize {
        2 * index + line
    }

    /// The index of the connection.
    pub(super) fn connection_index(self) -> usize {
        self.connection / 2
    }

    /// The waiting line of the connection.
    pub(super) fn line(self) -> usize {
        self.connection % 2
    }
}

/// A turn of a connection, which ends with [`Turns::served`] or [`Turns::postpone`].
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) flow: Flow,
    priorities: Priorities,
}

/// The flows that cannot use their turns now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocked {
    /// This connection alone.
    Connection,
    /// All connections of its host that wait for its namespace.
    Namespace,
}

/// The waiting connections, in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    hosts: Siblings,
    /// All hosts by index, whether they wait or not.
    by_host: Vec<Host>,
    /// The finish tag of each connection's last turn.
    connections: Vec<VirtualTime>,
    /// Turns postponed until the end of the round.
    postponed: Vec<Turn>,
}

/// Virtual time: cost divided by weight. Start and finish tags are such times.
type VirtualTime = u128;

/// Start tag, then arrival number: ties are served in order of arrival.
type Priority = (VirtualTime, u64);

/// The priorities of a flow among its siblings at the three levels.
#[derive(Debug, Clone, Copy)]
struct Priorities {
    host: Priority,
    namespace: Priority,
    connection: Priority,
}

/// A host among the others, and its namespaces by index.
#[derive(Debug)]
struct Host {
    weight: u32,
    node: Node,
    namespaces: Vec<Node>,
}

/// A host or a namespace among its siblings, and its waiting children.
#[derive(Debug, Default)]
struct Node {
    /// The finish tag of its last turn.
    finish: VirtualTime,
    /// True while it waits among its siblings.
    is_queued: bool,
    children: Siblings,
}

/// Siblings that wait, by priority.
#[derive(Debug, Default)]
struct Siblings {
    /// The highest start tag served.
    virtual_time: VirtualTime,
    /// Priority and index of each sibling.
    heap: BinaryHeap<Reverse<(Priority, usize)>>,
    /// Arrivals so far, which number the next one.
    num_arrivals: u64,
}

impl Default for Host {
    fn default() -> Host {
        Host { weight: DEFAULT_WEIGHT, node: Node::default(), namespaces: Vec::new() }
    }
}

impl Siblings {
    fn push(&mut self, priority: Priority, key: usize) {
        self.heap.push(Reverse((priority, key)));
    }

    fn pop(&mut self) -> Option<(Priority, usize)> {
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// The priority of a sibling that arrives now, with this start tag.
    fn arrive(&mut self, start: VirtualTime) -> Priority {
        self.num_arrivals += 1;
        (start, self.num_arrivals)
    }

    /// The priority of a sibling that begins to wait; `finish` is the finish tag of its last turn.
    fn start(&mut self, finish: VirtualTime) -> Priority {
        self.arrive(self.virtual_time.max(finish))
    }

    /// Queues a sibling that has waiting children, unless it is queued already.
    fn requeue(&mut self, node: &mut Node, priority: Priority, key: usize) {
        if !node.is_queued && !node.children.heap.is_empty() {
            node.is_queued = true;
            self.push(priority, key);
        }
    }
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.hosts.heap.is_empty() && self.postponed.is_empty()
    }

    /// Returns whether a connection of the host waits for the namespace, not counting those that were postponed in
    /// this round.
    pub(super) fn is_waiting(&self, host: usize, namespace: usize) -> bool {
        let namespace = self.by_host.get(host).and_then(|host| host.namespaces.get(namespace));
        namespace.is_some_and(|namespace| !namespace.children.heap.is_empty())
    }

    pub(super) fn set_weight(&mut self, host: usize, weight: u32) {
        at(&mut self.by_host, host).weight = weight.max(1);
    }

    /// Adds a connection that begins to wait. It must not be waiting.
    pub(super) fn enter(&mut self, flow: Flow) {
        let priorities = self.start(flow);
        self.insert(flow, priorities);
    }

    /// The priorities of a flow that begins to wait.
    fn start(&mut self, Flow { host, namespace, connection }: Flow) -> Priorities {
        let finish = *at(&mut self.connections, connection);
        let host = at(&mut self.by_host, host);
        let namespace = at(&mut host.namespaces, namespace);
        Priorities {
            host: self.hosts.start(host.node.finish),
            namespace: host.node.children.start(namespace.finish),
            connection: namespace.children.start(finish),
        }
    }

    fn insert(&mut self, flow: Flow, priorities: Priorities) {
        let namespace = &mut self.by_host[flow.host].namespaces[flow.namespace];
        namespace.children.push(priorities.connection, flow.connection);
        self.requeue_namespace(flow, priorities.namespace);
        self.requeue_host(flow, priorities.host);
    }

    fn requeue_namespace(&mut self, flow: Flow, priority: Priority) {
        let Host { node, namespaces, .. } = &mut self.by_host[flow.host];
        node.children.requeue(&mut namespaces[flow.namespace], priority, flow.namespace);
    }

    fn requeue_host(&mut self, flow: Flow, priority: Priority) {
        self.hosts.requeue(&mut self.by_host[flow.host].node, priority, flow.host);
    }

    /// The next turn, if a connection waits that was not postponed in this round.
    pub(super) fn next(&mut self) -> Option<Turn> {
        loop {
            let (host_priority, host) = self.hosts.pop()?;
            let Host { node, namespaces, .. } = &mut self.by_host[host];
            node.is_queued = false;
            let Some((namespace_priority, namespace)) = node.children.pop() else { continue };
            namespaces[namespace].is_queued = false;
            let next = namespaces[namespace].children.pop();
            let connection = next.map_or(usize::MAX, |(_, connection)| connection);
            let flow = Flow { host, namespace, connection };
            match next {
                Some((connection, _)) => {
                    let priorities = Priorities {
                        host: host_priority,
                        namespace: namespace_priority,
                        connection,
                    };
                    return Some(Turn { flow, priorities });
                }
                None => self.requeue_host(flow, host_priority), // its connections have closed
            }
        }
    }

    /// Charges a turn. The connection goes on waiting if `more` names the namespace of its next command.
    pub(super) fn served(&mut self, turn: Turn, cost: u64, more: Option<usize>) {
        let Turn { flow, priorities } = turn;
        self.charge_from(flow, priorities, cost);
        if let Some(namespace) = more {
            let finish = self.connections[flow.connection];
            let node = at(&mut self.by_host[flow.host].namespaces, namespace);
            let priority = node.children.start(finish);
            node.children.push(priority, flow.connection);
            self.requeue(Flow { namespace, ..flow });
        }
        self.requeue(flow);
    }

    /// Queues the namespace and the host of a turn again: they have waited all the time.
    fn requeue(&mut self, flow: Flow) {
        let Host { node, namespaces, .. } = &mut self.by_host[flow.host];
        let priority = node.children.arrive(namespaces[flow.namespace].finish);
        let host_priority = self.hosts.arrive(node.finish);
        self.requeue_namespace(flow, priority);
        self.requeue_host(flow, host_priority);
    }

    /// Charges a turn that was taken without waiting, since nobody waited.
    pub(super) fn charge(&mut self, flow: Flow, cost: u64) {
        let priorities = self.start(flow);
        self.charge_from(flow, priorities, cost);
    }

    fn charge_from(&mut self, flow: Flow, priorities: Priorities, cost: u64) {
        let Priorities { host: (host, _), namespace: (namespace, _), connection: (connection, _) } =
            priorities;
        let Host { weight, node, namespaces } = &mut self.by_host[flow.host];
        let cost = VirtualTime::from(cost);
        let namespace_node = &mut namespaces[flow.namespace];
        self.hosts.virtual_time = self.hosts.virtual_time.max(host);
        node.children.virtual_time = node.children.virtual_time.max(namespace);
        namespace_node.children.virtual_time = namespace_node.children.virtual_time.max(connection);
        node.finish = host + cost * SCALE / VirtualTime::from(*weight);
        namespace_node.finish = namespace + cost;
        self.connections[flow.connection] = connection + cost;
    }

    /// Postpones a turn until the end of the round, with those of the `blocked` flows. They keep their priorities.
    pub(super) fn postpone(&mut self, turn: Turn, blocked: Blocked) {
        if blocked == Blocked::Connection {
            self.requeue_namespace(turn.flow, turn.priorities.namespace);
        }
        self.requeue_host(turn.flow, turn.priorities.host);
        self.postponed.push(turn);
    }

    /// Ends a round: postponed turns wait again.
    pub(super) fn end_round(&mut self) {
        while let Some(Turn { flow, priorities }) = self.postponed.pop() {
            self.insert(flow, priorities);
        }
    }

    /// Removes connections that close.
    pub(super) fn leave(&mut self, closes: impl Fn(usize) -> bool) {
        self.postponed.retain(|turn| !closes(turn.flow.connection));
        for namespace in self.by_host.iter_mut().flat_map(|host| &mut host.namespaces) {
            namespace.children.heap.retain(|Reverse((_, connection))| !closes(*connection));
        }
    }
}

/// The entry at `index`; grows the table to it.
fn at<T: Default>(table: &mut Vec<T>, index: usize) -> &mut T {
    if table.len() <= index {
        table.resize_with(index + 1, T::default);
    }
    &mut table[index]
}

/// The weight of a host without a rule.
pub(super) const DEFAULT_WEIGHT: u32 = 100;

/// Scale of tags, so that the cost of one byte divided by the highest weight is still above 0.
const SCALE: VirtualTime = 1 << 20;

#[cfg(test)]
mod tests;
