//! Joining a round: a rank listens, exchanges records with all other ranks, and reads through them.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::chunk_map::{ChunkMap, LatestPlan, PlanMap, live_page_bytes};
use super::job_key::{GROUPS, Hosts, JobKey, KeyMark, PeerKeys, RoundKeys};
use super::links::{Links, Reached};
use super::pair::{PeersDevice, PeersShared};
use super::rendezvous::{self, Rendezvous};
use super::round::{self, Record, Round, nguid_of, nqn_of};
use super::{Counters, PeerStats};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::process::Forked;
use dlfs_base::random::draw;
use dlfs_base::registry::Registration;
use dlfs_base::units::Generation;
use dlfs_format::directory::{Directory, Intact};
use dlfs_io::qpair::{ConnectOptions, Device, hostnqn};
use dlfs_nvme::auth::Hash;
use dlfs_nvme::nvme::Nqn;
use dlfs_order::order::{HexId, Locality};
use dlfs_target::keys::{generate_secret, generate_tls_key};
use dlfs_target::{HostKeys, Target, TargetOptions, TargetStats};

/// The options of a rank that joins its round.
#[derive(Debug, Clone)]
pub struct PeerOptions {
    /// The name of the round: the same on all ranks of this start of the job, and different for any other
    /// start.
    pub round: String,
    /// This rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// The address on which peers reach this rank; port 0 takes a free port.
    pub listen: SocketAddr,
    /// The name that identifies this node; `None`: this machine's identity.
    pub node: Option<String>,
    /// This node's answer to a peer that asks for data that its tiers lack.
    pub serving: Serving,
    /// Limits each node to 1.02 times the share that its ranks read, while other nodes have room: for local
    /// shares.
    pub keep_shares: bool,
    /// Timeout for all ranks to join.
    pub timeout: Duration,
    /// Options for connecting to peers. This module sets queues, timeouts, paths and keys.
    pub connect: ConnectOptions,
    /// The keys by which ranks authenticate each other. `None`: no authentication; anyone who claims the NQN
    /// of a rank's host may read the data that it serves.
    pub keys: Option<PeerKeys>,
}

/// A function that makes devices with these NGUIDs, in the order of the image's namespaces.
type Views<'a> = Box<dyn Fn(&[[u8; 16]]) -> Vec<Arc<dyn Device>> + 'a>;

/// The data and devices that a rank brings when it joins.
pub struct Served<'a> {
    /// The data set's directory.
    pub directory: &'a Directory,
    /// The checksums of the samples.
    pub intact: Arc<Intact>,
    /// This rank's cache of each origin namespace, in the order of the image.
    pub cache: &'a [Arc<dyn Device>],
    /// Makes the devices, with these NGUIDs, that this rank serves to peers: its whole cache, or only the
    /// copies.
    pub views: Views<'a>,
    /// Identifier of the tiers: the same for all processes that share them; 0 if the tiers cannot be shared.
    pub tiers: u64,
    /// Capacity of each of the node's tiers in pages, fastest first.
    pub room_pages: Vec<u64>,
    /// A hash of the options that must be the same on all ranks.
    pub order: u64,
}

/// The data by which another process of this rank can read through the peers that this process has joined.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    records: Vec<Record>,
    rank: u32,
    keep_shares: bool,
    serving: Serving,
    /// The user's option for the job's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job_key: Option<String>,
}

impl Pass {
    /// Formats the pass as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings always become JSON")
    }

    /// Parses a pass.
    ///
    /// # Errors
    /// `InvalidArgument`: the text is not a pass.
    pub fn from_json(text: &str) -> Result<Pass> {
        serde_json::from_str(text).map_err(|error| {
            let what = "this is no text that says how to reach the peers of another process";
            Error::new(ErrorKind::InvalidArgument, what).source(error)
        })
    }

    /// The mode in which the round was joined.
    pub fn serving(&self) -> Serving {
        self.serving
    }

    /// The keys between the ranks, if they have any.
    ///
    /// # Errors
    /// The key of the job cannot be read.
    fn keys(&self) -> Result<Option<RoundKeys>> {
        let own = &self.records[self.rank as usize];
        let (Some(mark), Some(said)) = (&own.keys, &self.job_key) else { return Ok(None) };
        let keys = PeerKeys { key: JobKey::of(said)?, tls: mark.tls };
        RoundKeys::new(&keys, self.records[0].keys.as_ref(), &own.round).map(Some)
    }
}

/// Leaves out the key of the job.
impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pass(rank {} of {})", self.rank, self.records.len())
    }
}

/// This rank among its peers: serves its cache to them, and reads through theirs. When this is dropped, peers
/// read elsewhere.
pub struct Peers {
    shared: Arc<PeersShared>,
    devices: Vec<Arc<dyn Device>>,
    round: Round,
    pass: Pass,
    /// Serves the cache; `None` if another process of this rank does, such as the parent of a forked child.
    target: Option<Target>,
    home: Forked<()>,
    _metered: Registration,
}

impl Peers {
    /// Serves the cache, and waits until all ranks of the round do the same.
    ///
    /// # Errors
    /// `TimedOut`: ranks are missing; the message names them. `InvalidArgument`: a rank is present twice, or does
    /// not belong to this start of the job ([`Round::new`]). `Busy`: the port is in use. Errors of the rendezvous.
    pub fn join(
        served: &Served<'_>,
        options: &PeerOptions,
        rendezvous: &mut dyn Rendezvous,
    ) -> Result<Peers> {
        let (image, generation) = identity_of(served.directory);
        let own_host = hostnqn(&options.connect);
        let nqn = nqn_of(image, generation);
        let numbers = 0..served.cache.len() as u16;
        let nguids: Vec<_> = numbers.map(|number| nguid_of(image, generation, number)).collect();
        // No host may connect before the round is known; ranks that know it earlier wait.
        let (allow_hosts, host_keys) = match &options.keys {
            Some(PeerKeys { tls, .. }) => (Vec::new(), nobody(&own_host, *tls)?),
            None => (vec![own_host.clone()], Hosts::new()),
        };
        let target_options = TargetOptions {
            listen: options.listen,
            allow_hosts,
            host_keys,
            dhchap_groups: GROUPS.to_vec(),
            max_memory_wait: Some(MAX_MEMORY_WAIT),
            hold: true,
            ..TargetOptions::new(nqn.clone())
        };
        let mut target = Target::bind(target_options, (served.views)(&nguids))?;
        let mark = |keys: &PeerKeys| KeyMark::new(keys, &options.round, options.rank);
        let (node, host) = round::identity(options.node.as_deref());
        let mut process = [0; 8];
        draw(&mut process)?;
        let own = Record {
            round: options.round.clone(),
            rank: options.rank,
            world_size: options.world_size,
            process: u64::from_le_bytes(process),
            node,
            host,
            image,
            generation,
            order: served.order,
            version: format!("{}/{PROTOCOL}", env!("CARGO_PKG_VERSION")),
            hostnqn: own_host.to_string(),
            addresses: vec![target.local_addr()],
            tiers: served.tiers,
            room_pages: served.room_pages.clone(),
            keys: options.keys.as_ref().map(mark).transpose()?,
        };
        let deadline = Instant::now() + options.timeout;
        let records = rendezvous::gather(rendezvous, &own, deadline, std::thread::sleep)?;
        let PeerOptions { rank, keep_shares, serving, .. } = *options;
        let job_key = options.keys.as_ref().map(|keys| keys.key.said().to_owned());
        let pass = Pass { records, rank, keep_shares, serving, job_key };
        let peers = Peers::through(served, pass, &options.connect)?;
        let hosts = hosts_of(&peers.round)?;
        match peers.pass.keys()? {
            Some(keys) => target.set_host_keys(keys.of_hosts(hosts, rank))?,
            None => target.set_allowed_hosts(hosts),
        }
        Ok(Peers { target: Some(target), ..peers })
    }

    /// Reads through the peers of a round that another process of this rank has joined and is still serving.
    ///
    /// # Errors
    /// `InvalidArgument`: the pass is damaged. `Stale`: it is for another image or generation.
    pub fn attach(served: &Served<'_>, pass: Pass, connect: &ConnectOptions) -> Result<Peers> {
        let ranks = pass.records.iter().map(|record| record.rank);
        if pass.rank as usize >= pass.records.len() || !ranks.eq(0..pass.records.len() as u32) {
            return Err(invalid("these are not the records of all ranks of a round"));
        }
        let (image, generation) = identity_of(served.directory);
        let Record { image: joined, generation: of, .. } = pass.records[pass.rank as usize];
        if (joined, of) != (image, generation) {
            let text = format!(
                "its peers serve image {joined}, generation {of}, and this is {image}, generation {generation}"
            );
            return Err(Error::new(ErrorKind::Stale, text).hint("join the peers again"));
        }
        Peers::through(served, pass, connect)
    }

    /// The peers of a rank that knows the records of all ranks. Connections are made at the first reads; serves
    /// nothing.
    fn through(served: &Served<'_>, pass: Pass, connect: &ConnectOptions) -> Result<Peers> {
        let (image, generation) = identity_of(served.directory);
        let round = Round::new(pass.records.clone(), pass.rank)?;
        let holders = round.holders(&live_page_bytes(served.directory), pass.keep_shares)?;
        let expected = (0..).zip(served.cache).map(|(number, cache)| {
            (nguid_of(image, generation, number), cache.namespace().len_bytes())
        });
        let nqn = nqn_of(image, generation);
        let reached = reached(&round, pass.rank);
        let keys = pass.keys()?;
        let links = Links::new(reached, expected.collect(), &nqn, connect, keys);
        let shared = Arc::new(PeersShared {
            links: Arc::new(links),
            map: ChunkMap::new(served.directory, holders),
            own: round.node_of(pass.rank),
            counters: Counters::new(round.nodes().len()),
            intact: Arc::clone(&served.intact),
            plan: (pass.serving == Serving::Planned).then(LatestPlan::default),
            avoids: AtomicBool::new(false),
        });
        let devices = (0..).zip(served.cache).map(|(number, cache)| -> Arc<dyn Device> {
            let shared = Arc::clone(&shared);
            let cache = Arc::clone(cache);
            Arc::new(PeersDevice { shared, cache, number })
        });
        Ok(Peers {
            devices: devices.collect(),
            _metered: Registration::new(&shared),
            shared,
            round,
            pass,
            target: None,
            home: Forked::new(()),
        })
    }

    /// The namespaces of the image, read through the peers.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// Connects to the node of `rank`; the devices read from that node alone. Waits for its answer, up to a
    /// second for each connection.
    ///
    /// # Errors
    /// `Disconnected`, `TimedOut`: the node cannot be reached. `Stale`: it serves another image or
    /// generation.
    pub fn devices_of(&self, rank: u32) -> Result<Vec<Arc<dyn Device>>> {
        self.shared.links.open(self.round.node_of(rank))
    }

    /// The ranks and nodes of the round.
    pub fn round(&self) -> &Round {
        &self.round
    }

    /// The nodes that hold the chunks.
    pub fn holders(&self) -> &dlfs_order::plan::ChunkHolders {
        &self.shared.map.holders
    }

    /// The node that each rank is on, and the node that holds each chunk.
    pub fn locality(&self) -> Locality {
        let node_of_rank = (0..self.round.records().len() as u32).map(|r| self.round.node_of(r));
        let holders = self.holders();
        let holder_of_chunk = (0..holders.num_chunks()).map(|chunk| holders.holder(chunk));
        Locality::new(node_of_rank.collect(), holder_of_chunk)
    }

    /// Continues to serve until all ranks have called this, or until `timeout`: when a rank ends earlier, its
    /// peers lose its cache. `rendezvous` is for the round named [`end_of`](rendezvous::end_of) this one.
    ///
    /// # Errors
    /// `TimedOut`: ranks are missing; the message names them. Errors of the rendezvous.
    pub fn wait_for_end(&self, rendezvous: &mut dyn Rendezvous, timeout: Duration) -> Result<()> {
        let own = &self.round.records()[self.pass.rank as usize];
        let own = Record { round: rendezvous::end_of(&own.round), ..own.clone() };
        let deadline = Instant::now() + timeout;
        rendezvous::gather(rendezvous, &own, deadline, std::thread::sleep).map(drop)
    }

    /// Counters of reads from peers since the start.
    pub fn stats(&self) -> PeerStats {
        self.shared.counters.read()
    }

    /// Counters of what this rank has served to its peers; `None` if another process of this rank serves them.
    pub fn served(&self) -> Option<TargetStats> {
        self.target.as_ref().map(Target::stats)
    }

    /// This rank, and the number of ranks.
    pub fn place(&self) -> (u32, u32) {
        (self.pass.rank, self.pass.records.len() as u32)
    }

    /// The nodes' answer for data that they lack, and the rule by which nodes hold data.
    pub fn serving(&self) -> Serving {
        self.pass.serving
    }

    /// Sets which node keeps which data, by the plan of the run that begins. No effect unless the mode is
    /// [`Serving::Planned`]; in that mode, no peer is asked before this call.
    pub fn set_plan(&self, plan: PlanMap) {
        if let Some(latest) = &self.shared.plan {
            latest.set(plan);
        }
    }

    /// Sets whether the origin is faster than any peer; then no peer is asked. Returns the previous value.
    pub fn set_avoided(&self, is_avoided: bool) -> bool {
        self.shared.avoids.swap(is_avoided, Ordering::AcqRel)
    }

    /// The data by which another process of this rank can read through the same peers.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// Returns whether this process serves the rank's tiers to peers.
    pub fn is_serving(&self) -> bool {
        self.target.is_some() && self.home.is_ours()
    }

    /// The index of this rank's node.
    pub fn own_node(&self) -> u16 {
        self.shared.own
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peers(rank {} of {} nodes)", self.pass.rank, self.round.nodes().len())
    }
}

/// The image and its generation.
fn identity_of(directory: &Directory) -> (HexId, Generation) {
    (HexId(directory.uuid().0), directory.generation())
}

/// Random keys that no host has, used until the keys of the round are known.
fn nobody(host: &Nqn, tls: bool) -> Result<Hosts> {
    let keys = if tls {
        HostKeys { tls_keys: vec![generate_tls_key(Hash::Sha256)?], ..HostKeys::default() }
    } else {
        HostKeys { secrets: vec![generate_secret(None)?], ..HostKeys::default() }
    };
    Ok(Hosts::from([(host.clone(), keys)]))
}

/// The NQNs of the hosts of all ranks, each once.
fn hosts_of(round: &Round) -> Result<Vec<Nqn>> {
    let nqn = |text: &String| {
        Nqn::new(text.clone()).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, "a rank's host NQN is none").source(error)
        })
    };
    let mut hosts =
        round.records().iter().map(|record| nqn(&record.hostnqn)).collect::<Result<Vec<_>>>()?;
    hosts.sort_unstable();
    hosts.dedup();
    Ok(hosts)
}

/// The address at which `rank` reaches each node, and the rank that serves there: the n-th rank of a node connects to
/// the n-th serving rank of each other node, modulo their number.
fn reached(round: &Round, rank: u32) -> Vec<Reached> {
    let own = round.node_of(rank);
    let local = round.nodes()[usize::from(own)].ranks.iter().position(|&other| other == rank);
    let of_node = |(index, node): (u16, &super::round::Node)| {
        let ranks = node.ranks.iter().map(|&rank| &round.records()[rank as usize]);
        let serving: Vec<(SocketAddr, u32)> = ranks
            .filter_map(|record| record.addresses.first().map(|&address| (address, record.rank)))
            .collect();
        let reached = (index != own && !serving.is_empty())
            .then(|| serving[local.unwrap_or(0) % serving.len()]);
        (node.host.clone(), reached)
    };
    (0..).zip(round.nodes()).map(of_node).collect()
}

/// A node's answer to a peer that asks for data that its tiers lack, and the rule by which nodes hold data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serving {
    /// The node reads the data from the origin, keeps them if it holds their chunk, and answers.
    #[default]
    ReadThrough,
    /// The node answers that it does not have the data. It serves only copies, and fetches the chunks that it
    /// holds without being asked.
    #[serde(rename = "copies")]
    CopiesOnly,
    /// Like `CopiesOnly`, but the plan of the run instead of a hash decides which node holds which data. Each
    /// node keeps the data that its own ranks read most often, and serves these (NoPFS).
    #[serde(rename = "plan")]
    Planned,
}

impl Serving {
    /// All modes, with their names in the command line, Python and C.
    pub const NAMES: &[(&str, Serving)] = &[
        ("read-through", Serving::ReadThrough),
        ("copies", Serving::CopiesOnly),
        ("plan", Serving::Planned),
    ];

    /// Returns whether peers can never make this node read the origin.
    pub fn is_copies_only(self) -> bool {
        self != Serving::ReadThrough
    }
}

impl FromStr for Serving {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument`: no mode has this name.
    fn from_str(text: &str) -> Result<Serving, Error> {
        let found = Serving::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, serving)| serving).ok_or_else(|| {
            let names: Vec<&str> = Serving::NAMES.iter().map(|&(name, _)| name).collect();
            invalid(format!("peers have no mode {text:?}"))
                .hint(format!("one of {}", names.join(", ")))
        })
    }
}

/// Timeout of a peer's read that waits for memory; after it the peer reads elsewhere.
const MAX_MEMORY_WAIT: Duration = Duration::from_millis(200);

/// The version of the exchange between peers, and of the computation of holders.
const PROTOCOL: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_has_the_same_name_everywhere_and_others_are_refused_with_the_names() {
        for (name, serving) in Serving::NAMES {
            assert_eq!(name.parse::<Serving>().unwrap(), *serving);
            assert_eq!(serde_json::to_value(serving).unwrap(), *name);
        }
        let error = "through".parse::<Serving>().unwrap_err().report();
        assert!(
            error.contains("\"through\"") && error.contains("read-through, copies, plan"),
            "{error}"
        );
    }
}
