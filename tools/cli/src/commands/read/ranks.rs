//! The other ranks of a job: joining them, reading through their nodes or through this rank's store, and leaving.

use dlfs::dataset::Image;
use dlfs::options::Peers;
use dlfs::peers::rendezvous::Rendezvous;
use dlfs::peers::{Means, Meeting};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::store::StoreOptions;

use crate::args::warn_of_key_text;
use crate::exit::{Failure, complain, usage};

/// The membership in a job: this rank has joined the others, and leaves together with them.
pub(super) struct Joined {
    meeting: Meeting,
    connect: ConnectOptions,
}

/// The meeting of the ranks and this rank's number in it, if `--peers` is given. `place` is the rank and the
/// world size from the command line or the launcher.
///
/// # Errors
/// `Usage`: as [`JoinOptions::meeting`](dlfs::peers::JoinOptions::meeting).
pub(super) fn meeting(
    peers: &Peers,
    place: Option<(u32, u32)>,
) -> Result<Option<Meeting>, Failure> {
    let Some(means) = &peers.peers else { return Ok(None) };
    peers.job_key.iter().for_each(|key| warn_of_key_text("--job-key", key));
    let options = peers.join(Means::of(means)?, place)?;
    options.meeting_here().map(Some).map_err(usage)
}

impl Joined {
    /// Joins the other ranks. Returns the image, which is then read through the other nodes or through this rank's
    /// store.
    ///
    /// # Errors
    /// Errors of [`Image::with_peers`], of [`Image::with_store`] and of the rendezvous.
    pub(super) fn join(
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
    pub(super) fn wait_for_end(&self, image: &Image) {
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
