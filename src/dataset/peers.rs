//! Joins an image to the other ranks of a job: reads through the caches of other nodes, or from a rank's store.
//!
//! A store keeps the rank's share in its node's storage, and reads what other ranks' stores have.
//! The loader stages the share (`loader/reading.rs`), since it knows where the run begins.
//!
//! Also puts tiers in front of an image, which peers serve, and plans which copies they keep for a training run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use super::{Dataset, Image};
use crate::cache::{Cache, Identity, TierOptions, TierPlan, TierRooms};
use crate::directory::{Directory, Intact, ViewMark};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::order::{OrderSpec, Sharding, Tail};
use crate::peers::rendezvous::Rendezvous;
use crate::peers::{Meeting, Pass, PeerOptions, Peers, PlanMap, Served, Serving};
use crate::plan::{Accesses, ByPortion, HolderMap, Source, TrainingRun};
use crate::prefetch::LoaderOptions;
use crate::qpair::{ConnectOptions, Device};
use crate::reader::{Watch, interrupted};
use crate::store::{Meet, Owner, Reader, Store, StoreOptions, StoreStats};
use crate::tier::{Policy, Units};
use crate::units::SampleId;

impl Image {
    /// The same image, read through the caches of all nodes of a round: each serves its tiers to the others.
    /// Waits until all ranks have joined. Other clones of this handle are unchanged.
    ///
    /// `run` are the options by which this rank will read, if they are known: all ranks must have the same
    /// options except for their rank. With local shares, no node holds much more than its ranks read
    /// ([`PeerOptions::keep_shares`]).
    ///
    /// # Errors
    /// `InvalidArgument`: the image has no tiers, so there is nothing to serve; or peers by plan are combined
    /// with tiers of another policy or with local shares. Errors of [`Peers::join`].
    pub fn with_peers<'a>(
        self,
        options: &PeerOptions,
        run: impl Into<Option<&'a LoaderOptions>>,
        rendezvous: &mut dyn Rendezvous,
    ) -> Result<Image> {
        let run = run.into();
        self.check_mode(run, options.serving)?;
        let served = self.served(run, options.serving)?;
        // Ranks that share tiers are one node.
        let node = self.tiers().and_then(Cache::node).map(str::to_owned);
        let is_local = run.is_some_and(|run| run.sharding == Sharding::Local);
        let options = PeerOptions {
            node: options.node.clone().or(node),
            keep_shares: options.keep_shares || is_local,
            ..options.clone()
        };
        let is_by_hash = options.serving != Serving::Planned;
        if is_by_hash && self.tiers().map(Cache::policy) == Some(Policy::Clairvoyant) {
            tracing::warn!(
                "the tiers keep what this rank reads most, by the policy clairvoyant, and not what this node holds \
                 for others by a hash: take the policy first-touch, or peers by plan"
            );
        }
        let peers = Peers::join(&served, &options, rendezvous)?;
        let intact = Arc::clone(&served.intact);
        drop(served);
        Ok(self.through(peers, &intact))
    }

    /// As [`Image::with_peers`], for a process beside the one that joined as this rank: it reads through the
    /// same peers and serves nothing. `pass` comes from the process that joined.
    ///
    /// # Errors
    /// `InvalidArgument`: the image has no tiers. Errors of [`Peers::attach`].
    pub fn attach_to_peers(self, pass: Pass, connect: &ConnectOptions) -> Result<Image> {
        let served = self.served(None, pass.serving())?;
        let peers = Peers::attach(&served, pass, connect)?;
        let intact = Arc::clone(&served.intact);
        drop(served);
        Ok(self.through(peers, &intact))
    }

    fn through(mut self, peers: Peers, intact: &Arc<Intact>) -> Image {
        self.devices = peers.devices().to_vec();
        self.peers = Some(Arc::new(peers));
        self.hold(intact);
        self
    }

    /// `options` with the places of ranks and chunks, if they ask for local shares.
    ///
    /// # Errors
    /// `InvalidArgument`: the image has no peers, so the nodes that hold chunks are unknown.
    pub(super) fn located(&self, options: LoaderOptions) -> Result<LoaderOptions> {
        if options.sharding != Sharding::Local || options.locality.is_some() {
            return Ok(options);
        }
        let Some(peers) = self.peers() else {
            let text = "local shares go to the nodes that hold the samples, and this data set is read \
                        without peers";
            return Err(Error::invalid(text, "name the job's peers, or take strided shares"));
        };
        if peers.serving() == Serving::Planned {
            return Err(Error::invalid(LOCAL_BY_PLAN, LOCAL_BY_PLAN_HINT));
        }
        Ok(LoaderOptions { locality: Some(Arc::new(peers.locality())), ..options })
    }

    /// Decides by the known rates whether peers are avoided while `processes` read from the origin: they are if the
    /// origin is faster than every tier read over the network. Warns when it begins to avoid them. Returns whether
    /// they are avoided.
    pub(super) fn avoid_slow_peers(&self, processes: u32) -> bool {
        let (Some(cache), Some(peers)) = (self.tiers(), self.peers()) else { return false };
        let tiers = 0..cache.capacities().len() as u8;
        let is_slow = |tier: u8| cache.source(None, Some(tier), processes) == Source::Origin;
        let is_avoided = !tiers.is_empty() && tiers.into_iter().all(is_slow);
        if !peers.set_avoided(is_avoided) && is_avoided {
            tracing::warn!(
                "by the rates of the file of tiers, the data set is faster than another node, so no node is asked"
            );
        }
        is_avoided
    }

    /// The other nodes of the job, if the image is read through their caches.
    pub fn peers(&self) -> Option<&Peers> {
        self.peers.as_deref()
    }

    /// Counters of the places that bytes came from so far; `None` without tiers.
    pub fn places(&self) -> Option<Places> {
        let cache = self.tiers()?;
        let stats = cache.stats();
        let mut places = Vec::new();
        for tier in &stats.tiers {
            let is_memory = tier.name.starts_with("ram:");
            places.push(Place {
                place: if is_memory { PlaceKind::Memory } else { PlaceKind::Drive },
                name: tier.name.clone(),
                reads: tier.hits,
                bytes: tier.hit_bytes,
                read_s: tier.hit_s,
            });
        }
        let mut all = Places::default();
        if let Some(peers) = self.peers() {
            let of_peers = peers.stats();
            let nodes = (0..).zip(peers.round().nodes()).zip(&of_peers.nodes);
            for ((index, node), stats) in nodes {
                if index != peers.own_node() {
                    places.push(Place {
                        place: PlaceKind::Peer,
                        name: node.host.clone(),
                        reads: stats.reads,
                        bytes: stats.bytes,
                        read_s: stats.read_s,
                    });
                }
            }
            all.not_there_bytes = of_peers.not_there_bytes;
            all.not_there_reads = of_peers.not_there_reads;
            all.rerouted_bytes = of_peers.rerouted_bytes;
            all.mismatched_bytes = of_peers.mismatched_bytes;
        }
        let origin = stats.origin;
        places.push(Place {
            place: PlaceKind::Origin,
            name: String::new(),
            reads: origin.reads + origin.copier_reads,
            bytes: origin.bytes + origin.copier_bytes,
            read_s: origin.read_s,
        });
        Some(Places { places, ..all })
    }

    fn served(&self, run: Option<&LoaderOptions>, serving: Serving) -> Result<Served<'_>> {
        let Some(cache) = self.tiers() else {
            let text = "peers serve each other what their tiers hold, and there is no tier";
            return Err(Error::invalid(text, "add --tier ram:SIZE"));
        };
        Ok(Served {
            directory: &self.whole,
            intact: Arc::new(Intact::new(Arc::clone(&self.whole))),
            cache: cache.devices(),
            views: Box::new(move |nguids| cache.views(serving.is_copies_only(), nguids)),
            tiers: cache.shared_id(),
            room_pages: cache.capacities(),
            order: hash_of(run, self.directory.view().filter(|_| run.is_some()), serving),
        })
    }

    /// Checks that tiers and shares suit the mode.
    fn check_mode(&self, run: Option<&LoaderOptions>, serving: Serving) -> Result<()> {
        let Some(policy) = self.tiers().map(Cache::policy) else { return Ok(()) };
        if serving != Serving::Planned {
            return Ok(());
        }
        if policy != Policy::Clairvoyant {
            let text = "peers by plan serve what the plan of the run keeps in the tiers, and these keep by another \
                        policy";
            return Err(Error::invalid(text, "add --policy clairvoyant (policy in Python and C)"));
        }
        if run.is_some_and(|run| run.sharding == Sharding::Local) {
            Err(Error::invalid(LOCAL_BY_PLAN, LOCAL_BY_PLAN_HINT))
        } else {
            Ok(())
        }
    }

    /// Makes the tiers verify copies, and keep room for the chunks that this node holds unless nobody would ask for
    /// them.
    fn hold(&self, intact: &Arc<Intact>) {
        let (Some(cache), Some(peers)) = (self.tiers(), self.peers()) else { return };
        let serving = peers.serving();
        let is_avoided = self.avoid_slow_peers(peers.place().1);
        if serving == Serving::Planned || is_avoided {
            return cache.set_checked(intact);
        }
        let chunk = |number| {
            let chunk = self.directory.chunk(number);
            let bytes = chunk.offset_bytes..chunk.offset_bytes + chunk.len_bytes;
            let is_held = peers.holders().holder(number) == Some(peers.own_node());
            (chunk.namespace, bytes, is_held)
        };
        let chunks = (0..self.directory.num_chunks()).map(chunk);
        cache.set_held(chunks, serving.is_copies_only(), intact);
    }
}

impl Dataset {
    /// The same data set, read through the tiers of all nodes of the job. Waits on the calling thread until
    /// all ranks have joined.
    ///
    /// `run` is as for [`Image::with_peers`]. `object` is the program's rendezvous, used with
    /// [`Means::Object`](crate::peers::Means::Object). A process that joins several times must do so in the
    /// same order as all others, or name each round.
    ///
    /// # Errors
    /// `Interrupted`: `watch` ended the wait. Errors of [`Meeting::rendezvous`] and [`Image::with_peers`].
    pub fn with_peers(
        &self,
        meeting: &Meeting,
        run: Option<&LoaderOptions>,
        connect: &ConnectOptions,
        object: Option<&mut dyn Rendezvous>,
        watch: &mut dyn Watch,
    ) -> Result<Dataset> {
        // Checked before `of_this_round` counts the round: a call that is refused joins none.
        self.image().check_mode(run, meeting.options.serving)?;
        self.image().served(run, meeting.options.serving)?;
        let meeting = of_this_round(meeting);
        let mut own = meeting.rendezvous(connect)?;
        let mut watched = Watched { rendezvous: chosen(&mut own, object)?, watch };
        let image = self.image().clone();
        let image = image.with_peers(&meeting.peer_options(connect), run, &mut watched)?;
        Ok(Dataset::from_image(image, self.0.options.clone()))
    }

    /// Serves the tiers until all ranks of the round have called this, or until `timeout`: when a rank ends
    /// earlier, its peers lose its copies. Returns at once in a process that does not serve. `meeting` and
    /// `object` are those of [`Dataset::with_peers`].
    ///
    /// # Errors
    /// `TimedOut`: ranks are missing; the message names them. `Interrupted`: `watch` ended the wait. Errors
    /// of [`Meeting::rendezvous`]. This rank's own reads remain correct after any of these errors.
    pub fn leave_peers(
        &self,
        meeting: &Meeting,
        timeout: Duration,
        connect: &ConnectOptions,
        object: Option<&mut dyn Rendezvous>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let Some(peers) = self.image().peers().filter(|peers| peers.is_serving()) else {
            return Ok(());
        };
        // The round's name was chosen when it was joined.
        let (rank, _) = peers.place();
        let mut meeting = meeting.clone();
        meeting.round.clone_from(&peers.round().records()[rank as usize].round);
        let mut own = meeting.rendezvous_of_end(connect)?;
        let mut watched = Watched { rendezvous: chosen(&mut own, object)?, watch };
        peers.wait_for_end(&mut watched, timeout)
    }

    /// As [`Image::attach_to_peers`].
    ///
    /// # Errors
    /// As [`Image::attach_to_peers`].
    pub fn attach_to_peers(&self, pass: Pass, connect: &ConnectOptions) -> Result<Dataset> {
        let image = self.image().clone().attach_to_peers(pass, connect)?;
        Ok(Dataset::from_image(image, self.0.options.clone()))
    }
}

/// Counters of the places that bytes came from so far: the same in `dlfs read --json`, Python and C.
///
/// The counters of a tier and of the origin are of all reads of this process, for itself and for its peers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Places {
    /// This node's tiers, fastest first; the other nodes; the data set.
    pub places: Vec<Place>,
    /// Bytes that a peer was asked for and did not deliver.
    pub not_there_bytes: u64,
    /// The reads of those bytes: wrong guesses about a peer's content.
    pub not_there_reads: u64,
    /// Bytes that were read elsewhere after a peer had failed, had lacked them, or had delivered wrong bytes.
    pub rerouted_bytes: u64,
    /// Bytes from a peer that do not match the directory's checksum. The caller never sees them.
    pub mismatched_bytes: u64,
}

impl Places {
    /// The counters as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and names always become JSON")
    }
}

/// One place, and the reads from it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Place {
    /// Its kind.
    pub place: PlaceKind,
    /// The tier as its user wrote it, or the node's name; empty for the origin.
    pub name: String,
    /// Reads, or pieces of reads.
    pub reads: u64,
    /// Bytes.
    pub bytes: u64,
    /// Total time of the reads, in seconds; for the origin, only reads that somebody waited for.
    pub read_s: f64,
}

/// The kind of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlaceKind {
    /// A tier in this node's memory.
    Memory,
    /// A tier in a file or drive of this node.
    Drive,
    /// Another node.
    Peer,
    /// The namespaces of the data set.
    Origin,
}

/// `meeting` with a name that no earlier round of this process has, unless the user has named the round.
pub(super) fn of_this_round(meeting: &Meeting) -> Meeting {
    let mut meeting = meeting.clone();
    if meeting.options.round.is_none() {
        match JOINED.fetch_add(1, Ordering::Relaxed) {
            0 => {}
            // The records of an earlier round may still exist.
            nth => meeting.round = format!("{}/{nth}", meeting.round),
        }
    }
    meeting
}

/// The rendezvous of the ranks: the meeting's own, or the one that the program passed.
pub(super) fn chosen<'a, 'b>(
    own: &'a mut Option<Box<dyn Rendezvous>>,
    object: Option<&'a mut (dyn Rendezvous + 'b)>,
) -> Result<&'a mut (dyn Rendezvous + 'b)> {
    match (own, object) {
        (Some(own), _) => Ok(&mut **own),
        (None, Some(object)) => Ok(object),
        (None, None) => {
            Err(invalid("the ranks meet in an object of the program, and there is none"))
        }
    }
}

/// A rendezvous that a watch can end.
pub(super) struct Watched<'a, 'b, 'c> {
    pub(super) rendezvous: &'a mut (dyn Rendezvous + 'b),
    pub(super) watch: &'c mut dyn Watch,
}

impl Rendezvous for Watched<'_, '_, '_> {
    fn set(&mut self, rank: u32, record: &[u8]) -> Result<()> {
        self.rendezvous.set(rank, record)
    }

    fn get(&mut self, world_size: u32, deadline: Instant) -> Result<Vec<Option<Vec<u8>>>> {
        if self.watch.goes_on() {
            self.rendezvous.get(world_size, deadline)
        } else {
            Err(interrupted())
        }
    }

    fn leave(&mut self, rank: u32, deadline: Instant) -> Result<()> {
        self.rendezvous.leave(rank, deadline)
    }

    fn describe(&self) -> String {
        self.rendezvous.describe()
    }
}

/// Reason for refusing local shares by plan.
const LOCAL_BY_PLAN: &str =
    "local shares follow from what nodes hold, and by plan what nodes hold follows from the shares";
const LOCAL_BY_PLAN_HINT: &str = "take strided shares, or the mode read-through or copies";

/// A hash of the options that all ranks of a job must share.
pub(super) fn hash_of(
    run: Option<&LoaderOptions>,
    view: Option<ViewMark>,
    serving: Serving,
) -> u64 {
    let common = run.map(|run| {
        let LoaderOptions { order, batch_size, sharding, tail, drop_short, .. } = run;
        let rows = (run.budget.as_deref(), &run.rows);
        (order.started(run.world_size), batch_size, sharding, tail, drop_short, rows)
    });
    let mut json = serde_json::to_vec(&(common, serving)).expect("they always become JSON");
    json.extend(view.iter().flat_map(|mark| mark.hash));
    xxh3_64(&json)
}

impl Image {
    /// The same image, with a store of this rank. Loaders along the order of `run` read from the store, which
    /// exchanges samples with the other ranks' stores. The first loader stages the rank's share
    /// ([`Loader::stage`](super::Loader::stage)). Reads by id still go to the data set. Waits until all ranks
    /// have joined. Other clones of this handle are unchanged.
    ///
    /// `peers` is the way to join the other ranks; `None` if there are no others.
    ///
    /// # Errors
    /// `InvalidArgument`: the order gives ranks no shares, or the image is read through tiers or peers.
    /// Errors of [`Store::open`].
    pub fn with_store(
        mut self,
        options: StoreOptions,
        run: &LoaderOptions,
        peers: Option<(&PeerOptions, &mut dyn Rendezvous)>,
    ) -> Result<Image> {
        self.check_store(run)?;
        let owner = Owner {
            directory: &self.directory,
            origins: &self.devices,
            order: order_of(run),
            rank: run.rank,
            epochs: run.epochs.clone(),
        };
        let order = hash_of(Some(run), self.directory.view(), Serving::CopiesOnly);
        let meet = peers.map(|(options, rendezvous)| Meet { options, rendezvous, order });
        let (store, peers) = Store::open(owner, options, meet)?;
        (self.store, self.peers) = (Some(Arc::new(store)), peers);
        Ok(self)
    }

    /// The store of this rank, if it has one.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// The namespaces that a loader with these options reads.
    ///
    /// # Errors
    /// `InvalidArgument`: the store keeps the share of another rank or order.
    pub(super) fn devices_of_run(&self, run: &LoaderOptions) -> Result<Vec<Arc<dyn Device>>> {
        let Some(store) = &self.store else { return Ok(self.devices.clone()) };
        if reader_of(store, run).is_none() {
            let text = "the store keeps the share of another rank, order or seed";
            return Err(Error::invalid(text, "make a store for these options"));
        }
        Ok(store.devices().to_vec())
    }

    fn check_store(&self, run: &LoaderOptions) -> Result<()> {
        let invalid = |text, hint| Err(Error::invalid(text, hint));
        if self.cache.is_some() || self.peers.is_some() {
            let text = "a store takes the place of tiers, and brings peers of its own";
            return invalid(text, "open the data set without tiers");
        }
        if run.sharding != Sharding::Strided {
            let text = "each rank reads its own share, which no sharding may divide anew";
            return invalid(text, "take strided shards");
        }
        let uneven = !self.directory.num_live().is_multiple_of(run.world_size.max(1).into());
        if run.tail == Tail::Pad && uneven {
            let text = "a padded epoch repeats samples of other ranks, which a store has not got";
            return invalid(text, "keep the tail, or drop it");
        }
        Ok(())
    }
}

impl Dataset {
    /// As [`Image::with_store`]. `meeting`, `connect` and `object` are as for [`Dataset::with_peers`];
    /// `meeting` is `None` if there are no other ranks.
    ///
    /// # Errors
    /// `Interrupted`: `watch` ended the wait. Errors of [`Image::with_store`] and [`Meeting::rendezvous`].
    pub fn with_store(
        &self,
        options: StoreOptions,
        run: &LoaderOptions,
        meeting: Option<&Meeting>,
        (connect, object): (&ConnectOptions, Option<&mut dyn Rendezvous>),
        watch: &mut dyn Watch,
    ) -> Result<Dataset> {
        // Checked before `of_this_round` counts the round: a call that is refused joins none.
        self.image().check_store(run)?;
        let image = self.image().clone();
        let Some(meeting) = meeting else {
            let image = image.with_store(options, run, None)?;
            return Ok(Dataset::from_image(image, self.0.options.clone()));
        };
        let meeting = of_this_round(meeting);
        let mut own = meeting.rendezvous(connect)?;
        let mut watched = Watched { rendezvous: chosen(&mut own, object)?, watch };
        let peers = Some((&meeting.peer_options(connect), &mut watched as &mut dyn Rendezvous));
        let image = image.with_store(options, run, peers)?;
        Ok(Dataset::from_image(image, self.0.options.clone()))
    }

    /// Counters of this rank's store so far; `None` without a store.
    pub fn store_stats(&self) -> Option<StoreStats> {
        self.image().store().map(|store| store.stats())
    }
}

/// The reader of `store` for a loader with the options `run`; `None` if the loader does not read from the
/// store.
pub(super) fn reader_of(store: &Store, run: &LoaderOptions) -> Option<Reader> {
    store.reader(&order_of(run), run.rank, run.world_size)
}

fn order_of(run: &LoaderOptions) -> OrderSpec {
    match &run.resume {
        Some(state) => state.order,
        None => run.order.started(run.world_size),
    }
}

impl Image {
    /// The same image, read through the tiers of `options`. Other clones of this handle are unchanged.
    ///
    /// # Errors
    /// Errors of [`Cache::new`].
    pub fn with_tiers(mut self, options: &TierOptions) -> Result<Image> {
        if options.is_active() {
            let identity =
                Identity { uuid: self.whole.uuid(), generation: self.whole.generation() };
            let units = match options.policy {
                Policy::Clairvoyant => Units::of(&self.whole).with_portions(&self.whole),
                Policy::FirstTouch | Policy::None => Units::of(&self.whole),
            };
            let cache = Cache::new(&self.devices, units, identity, options)?;
            self.devices = cache.devices().to_vec();
            self.cache = Some(Arc::new(cache));
        }
        Ok(self)
    }

    /// The tiers, if the image is read through tiers.
    pub fn tiers(&self) -> Option<&Cache> {
        self.cache.as_deref()
    }

    /// Makes the tiers verify samples against the directory's checksums before they keep them: for a process
    /// that has no peers itself, but whose copies other nodes rely on.
    pub fn check_copies(&self) {
        let intact = Arc::new(Intact::new(Arc::clone(&self.whole)));
        self.tiers().into_iter().for_each(|cache| cache.set_checked(&intact));
    }

    /// Sets the number of reading ranks for tiers and peers.
    pub(super) fn expect_ranks(&self, ranks: u32) {
        self.tiers().into_iter().for_each(|cache| cache.set_processes(ranks));
        self.avoid_slow_peers(ranks);
    }

    /// Plans the tiers for the run of `options`, if their policy is clairvoyant.
    pub(super) fn plan_tiers(&self, options: &LoaderOptions) -> Result<()> {
        self.expect_ranks(options.world_size);
        let plans = |cache: &&Cache| cache.policy() == Policy::Clairvoyant;
        let Some(cache) = self.tiers().filter(plans) else {
            return Ok(());
        };
        if options.weights.is_some() {
            let text = "plans of tiers count how often an order reads each sample, and a weighted order is not planned";
            let hint = "open the data set with the policy first-touch";
            return Err(Error::new(ErrorKind::Unsupported, text).hint(hint));
        }
        if options.budget.is_some() && options.world_size > 1 {
            let text = "plans of tiers count what each rank reads, and batches by a budget are not planned";
            let hint = "open the data set with the policy first-touch";
            return Err(Error::new(ErrorKind::Unsupported, text).hint(hint));
        }
        let run = run_of(&self.directory, options)?;
        let units = cache.units();
        let portion_of = units.by_sample(&self.directory);
        let by_portion = ByPortion::new(&run, &portion_of);
        cache.set_plan(&TierPlan::of(&by_portion, options.rank, units, &cache.rooms()))?;
        if let Some(peers) = self.peers().filter(|peers| peers.serving() == Serving::Planned) {
            plan_peers(cache, peers, &by_portion);
        }
        Ok(())
    }
}

/// Plans the tiers of all nodes, and the node from which this one reads each chunk.
///
/// Loaders of worker processes divide a rank further: such a rank modulo the ranks of the round is the rank
/// of the process that joined. A run with other ranks, for example one that every rank reads alone, leaves
/// the plan as it is.
fn plan_peers(cache: &Cache, peers: &Peers, by_portion: &impl Accesses) {
    let round = peers.round();
    let (_, ranks) = peers.place();
    let run_ranks = by_portion.num_ranks();
    if !run_ranks.is_multiple_of(ranks) {
        return;
    }
    let units = cache.units();
    let mut others = HolderMap::empty(units.num_portions().into());
    let mut own = Vec::new();
    for (index, node) in (0_u16..).zip(round.nodes()) {
        let of_node = (0..run_ranks).filter(|rank| round.node_of(rank % ranks) == index);
        let rooms = TierRooms { pages: node.room_pages.clone(), keep_parts: true };
        let plans: Vec<TierPlan> =
            of_node.map(|rank| TierPlan::of(by_portion, rank, units, &rooms)).collect();
        let plan = TierPlan::merge(&plans.iter().collect::<Vec<_>>(), units, &rooms);
        if index == peers.own_node() {
            own = plan.tier_of_portions();
        } else {
            plan.copies_in_order(units, |copy| others.add(index.into(), &copy));
        }
    }
    let node = |portion: u32| {
        let Some(other) = others.holder(SampleId(portion.into())) else { return PlanMap::NOBODY };
        match cache.source(own[portion as usize], Some(other.tier), run_ranks) {
            Source::Remote(_) => other.rank as u16,
            Source::Local(_) | Source::Origin => PlanMap::NOBODY,
        }
    };
    let nodes = (0..units.num_portions()).map(node).collect();
    peers.set_plan(PlanMap::new(Arc::clone(units), nodes));
}

/// The ranks' accesses during the run of `options`.
fn run_of<'a>(
    directory: &'a Directory,
    options: &LoaderOptions,
) -> Result<TrainingRun<'a, Directory>> {
    let (first, consumed) = match &options.resume {
        // Rows do not tell how many positions they took, and the plan only counts reads: the whole epoch is planned.
        Some(state) if options.has_rows() => (state.epoch.0, 0),
        Some(state) => (state.epoch.0, state.consumed),
        None => (options.epochs.start, 0),
    };
    // A run may be endless, but a plan needs an end.
    let end = options.epochs.end.min(first.saturating_add(MAX_PLANNED_EPOCHS));
    let epochs = first..end.max(first);
    Ok(TrainingRun::new(directory, order_of(options), epochs, options.world_size, options.tail)?
        .after(consumed)
        .shared(options.sharding, options.locality.as_ref(), options.batch_size as u64))
}

/// Rounds without a name that this process has joined; all ranks of a job join in the same order.
static JOINED: AtomicU32 = AtomicU32::new(0);

/// Epochs that a plan covers: the most for which planning time was measured.
const MAX_PLANNED_EPOCHS: u64 = 100;
