//! Peers: an image that is read through the tiers of all nodes of a job, and the meeting of the job's ranks.
//!
//! Each rank serves the tiers of its node (`tiers.rs`) to the others, and asks a peer for samples that the peer's node
//! holds. [`crate::peers`] has the protocol and the reads; this file joins and leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::{Dataset, Image};
use crate::cache::Cache;
use crate::directory::{Intact, ViewMark};
use crate::error::{Error, Result, invalid};
use crate::order::Sharding;
use crate::peers::rendezvous::Rendezvous;
use crate::peers::{Meeting, Pass, PeerOptions, Peers, Served, Serving};
use crate::plan::Source;
use crate::prefetch::LoaderOptions;
use crate::qpair::ConnectOptions;
use crate::reader::{Watch, interrupted};
use crate::tier::Policy;

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

    /// The same image, read through peers that another process of this rank has joined; this process serves nothing.
    /// `pass` comes from the process that joined.
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

    /// The image with the devices of `peers`; its tiers verify copies by `intact`.
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

    /// Decides whether peers are avoided while `processes` read from the origin: they are if, by the known rates, the
    /// origin is faster than every tier read over the network. Warns when that begins. Returns whether they are
    /// avoided.
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

    /// The tiers' content that this rank serves to its peers, and a hash of the options on which all ranks must agree.
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

    /// Checks that the policy of tiers and the shares of `run` suit `serving`. Without tiers, checks nothing.
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

    /// Makes the tiers verify copies, and keep room for the chunks that this node holds. They keep no such room with
    /// peers by plan, or while peers are avoided: then no other node asks for those chunks.
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
        let mut of_meeting = meeting.rendezvous(connect)?;
        let mut watched = Watched { rendezvous: chosen(&mut of_meeting, object)?, watch };
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
        let mut of_meeting = meeting.rendezvous_of_end(connect)?;
        let mut watched = Watched { rendezvous: chosen(&mut of_meeting, object)?, watch };
        peers.wait_for_end(&mut watched, timeout)
    }

    /// The same data set, read through peers that another process of this rank has joined.
    ///
    /// # Errors
    /// Errors of [`Image::attach_to_peers`].
    pub fn attach_to_peers(&self, pass: Pass, connect: &ConnectOptions) -> Result<Dataset> {
        let image = self.image().clone().attach_to_peers(pass, connect)?;
        Ok(Dataset::from_image(image, self.0.options.clone()))
    }
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

/// The rendezvous of the ranks: that of the meeting, or else the object that the program passed.
pub(super) fn chosen<'a, 'b>(
    of_meeting: &'a mut Option<Box<dyn Rendezvous>>,
    object: Option<&'a mut (dyn Rendezvous + 'b)>,
) -> Result<&'a mut (dyn Rendezvous + 'b)> {
    match (of_meeting, object) {
        (Some(of_meeting), _) => Ok(&mut **of_meeting),
        (None, Some(object)) => Ok(object),
        (None, None) => {
            Err(invalid("the ranks meet in an object of the program, and there is none"))
        }
    }
}

/// A rendezvous that asks a watch before each look at the records ([`Rendezvous::get`]), so that the watch can end a
/// wait of several looks.
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

/// A hash of the options that must be equal on all ranks of a job.
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

/// Rounds without a name that this process has joined; all ranks of a job join in the same order.
static JOINED: AtomicU32 = AtomicU32::new(0);
