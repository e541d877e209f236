//! Options for the other nodes of a job.

use dlfs::dataset::Image;
use dlfs::options::Peers;
use dlfs::peers::rendezvous::Rendezvous;
use dlfs::peers::{Means, Meeting, PeerStats};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::store::StoreOptions;

use crate::args::warn_of_key_text;
use crate::exit::{Failure, complain, usage};
use crate::text;

/// A round that this rank has joined, which all ranks leave together.
pub(crate) struct Joined {
    meeting: Meeting,
    connect: ConnectOptions,
}

/// The meeting of the ranks and this rank's number in it, if `--peers` is given. `place` is the rank and the
/// world size from the command line or the launcher.
///
/// # Errors
/// `Usage`: as [`JoinOptions::meeting`](dlfs::peers::JoinOptions::meeting).
pub(crate) fn meeting(
    peers: &Peers,
    place: Option<(u32, u32)>,
) -> Result<Option<Meeting>, Failure> {
    let Some(means) = &peers.peers else { return Ok(None) };
    peers.job_key.iter().for_each(|key| warn_of_key_text("--job-key", key));
    let options = peers.join(Means::of(means)?, place)?;
    options.meeting_here().map(Some).map_err(usage)
}

impl Joined {
    /// Joins the round; returns the image read through its peers, or through this rank's store.
    ///
    /// # Errors
    /// Errors of [`Image::with_peers`], of [`Image::with_store`] and of the rendezvous.
    pub(crate) fn join(
        meeting: Meeting,
        image: Image,
        connect: ConnectOptions,
        run: &LoaderOptions,
        store: Option<StoreOptions>,
    ) -> Result<(Image, Joined), Failure> {
        let mut rendezvous = meeting.rendezvous(&connect)?.expect("the command has no object");
        let rendezvous: &mut dyn Rendezvous = &mut *rendezvous;
        let options = meeting.peer_options(&connect);
        let image = match store {
            None => image.with_peers(&options, run, rendezvous)?,
            Some(store) => image.with_store(store, run, Some((&options, rendezvous)))?,
        };
        Ok((image, Joined { meeting, connect }))
    }

    /// Serves until all ranks have finished reading, at most for the timeout of the meeting.
    pub(crate) fn wait_for_end(&self, image: &Image) {
        let Some(peers) = image.peers() else { return };
        let Joined { meeting, connect } = self;
        let ended = meeting.rendezvous_of_end(connect).and_then(|rendezvous| {
            let mut rendezvous = rendezvous.expect("the command has no object");
            peers.wait_for_end(&mut *rendezvous, meeting.options.timeout)
        });
        if let Err(error) = ended {
            // Only a message: this rank reads no more, and the others read elsewhere.
            complain(&error.report());
        }
    }
}

/// Report line about the data from other nodes.
pub(crate) fn peer_line(stats: &PeerStats) -> String {
    let used: Vec<_> = stats.nodes.iter().filter(|node| node.reads > 0).collect();
    let (reads, bytes) =
        used.iter().fold((0, 0), |(reads, bytes), node| (reads + node.reads, bytes + node.bytes));
    let seconds: f64 = used.iter().map(|node| node.read_s).sum();
    let mut line = format!(
        "  peers      {} of {} other nodes: {} reads, {}, {:.0} us each",
        used.len(),
        stats.nodes.len().saturating_sub(1),
        text::count(reads),
        text::bytes(bytes),
        1e6 * seconds / reads.max(1) as f64
    );
    for (bytes, what) in [
        (stats.not_there_bytes, "not there"),
        (stats.rerouted_bytes, "read elsewhere"),
        (stats.mismatched_bytes, "differed and were read again"),
    ] {
        if bytes > 0 {
            line.push_str(&format!("; {} {what}", text::bytes(bytes)));
        }
    }
    line
}
