//! Peers of a sequence: the options that name them, and the caller's functions where ranks meet.

use std::ffi::{CString, c_void};
use std::time::{Duration, Instant};

use dlfs::dataset::{Dataset, TokenOptions};
use dlfs::peers::rendezvous::Rendezvous;
use dlfs::peers::{JoinOptions, MAX_RECORD_BYTES, Means, Meeting, Peers, Record};
use dlfs::prefetch::LoaderOptions;
use dlfs::store::StoreOptions;
use dlfs::{Error, ErrorKind};

use crate::error::{DLFS_E_BUSY, Failure};
use crate::mount::Mount;
use crate::options::{DLFS_PEER_RECORD, SequenceOptions};

/// The peers that a mount has joined.
pub(crate) struct Joined {
    /// The data set, read through the peers.
    dataset: Dataset,
    /// The meeting at which the ranks have joined, and will leave.
    meeting: Meeting,
    /// The options of the sequence that has joined. Its functions are called again when the ranks leave.
    given: SequenceOptions,
}

// SAFETY: of the options only the functions and their arguments are used again, and the header says that any
// thread that makes a call may call them.
unsafe impl Send for Joined {}

impl Mount {
    /// The data set for a sequence, or for `rows` of tokens, and its options: read through peers if `given` names
    /// them. The first such sequence of a mount joins, later ones read through the same peers.
    ///
    /// # Safety
    /// Strings and functions satisfy the header.
    pub(crate) unsafe fn for_sequence(
        &self,
        given: &SequenceOptions,
        rows: Option<&TokenOptions>,
    ) -> Result<(Dataset, LoaderOptions), Failure> {
        // SAFETY: the caller's promise is the one that both functions require.
        let (join, stored) = unsafe { (given.join()?, given.store()?.options()?) };
        if let Some(stored) = stored {
            // SAFETY: the caller's promise is the one that the called function requires.
            return unsafe { self.with_store(given, stored, join) };
        }
        let directory = Some(&**self.dataset.directory());
        let Some(join) = join else {
            // SAFETY: the caller's promise is the one that the called function requires.
            return Ok((self.dataset.clone(), unsafe { given.options(None, directory)? }));
        };
        let busy = "another thread joins the peers of this mount";
        let joined = self.through_peers.try_lock();
        let mut joined = joined.ok_or_else(|| Failure::new(DLFS_E_BUSY, busy))?;
        if let Some(Joined { dataset, .. }) = &*joined {
            let place = dataset.image().peers().map(Peers::place);
            // SAFETY: the caller's promise is the one that the called function requires.
            return Ok((dataset.clone(), unsafe { given.options(place, directory)? }));
        }
        let meeting = join.meeting_here()?;
        let place = Some((meeting.rank, meeting.world_size));
        // SAFETY: the caller's promise is the one that the called function requires.
        let mut options = unsafe { given.options(place, directory)? };
        if let Some(rows) = rows {
            options = rows.run(self.dataset.directory(), options)?;
        }
        let object: &mut dyn Rendezvous = &mut Functions::of(given);
        let dataset = self.dataset.with_peers(
            &meeting,
            Some(&options),
            &self.connect,
            Some(object),
            &mut given.stop(),
        )?;
        *joined = Some(Joined { dataset: dataset.clone(), meeting, given: *given });
        Ok((dataset, options))
    }

    /// The data set as a rank reads it from its own store. The store ends with the sequence.
    ///
    /// # Safety
    /// Strings and arrays satisfy the header.
    unsafe fn with_store(
        &self,
        given: &SequenceOptions,
        stored: StoreOptions,
        join: Option<JoinOptions>,
    ) -> Result<(Dataset, LoaderOptions), Failure> {
        let meeting = join.map(|join| join.meeting_here()).transpose()?;
        let place = meeting.as_ref().map(|meeting| (meeting.rank, meeting.world_size));
        // SAFETY: the caller's promise is the one that the called function requires.
        let options = unsafe { given.options(place, Some(&**self.dataset.directory()))? };
        let object: &mut dyn Rendezvous = &mut Functions::of(given);
        let how = (&self.connect, Some(object));
        let stop = &mut given.stop();
        let dataset = self.dataset.with_store(stored, &options, meeting.as_ref(), how, stop)?;
        Ok((dataset, options))
    }

    /// Goes on serving peers until all ranks leave, or for a time; see `dlfs_leave_peers`.
    pub(crate) fn leave_peers(&self, timeout_ms: u32) -> Result<(), Failure> {
        let busy = "another thread joins or leaves the peers of this mount";
        let joined = self.through_peers.try_lock();
        let joined = joined.ok_or_else(|| Failure::new(DLFS_E_BUSY, busy))?;
        let Some(Joined { dataset, meeting, given }) = &*joined else { return Ok(()) };
        let timeout = match timeout_ms {
            0 => meeting.options.timeout,
            given => Duration::from_millis(given.into()),
        };
        let object: &mut dyn Rendezvous = &mut Functions::of(given);
        Ok(dataset.leave_peers(meeting, timeout, &self.connect, Some(object), &mut given.stop())?)
    }

    /// The data set as the last sequence has read it.
    pub(crate) fn latest(&self) -> Dataset {
        // While a thread joins, nothing has come from peers. While one leaves, the peers are left out.
        let joined = self.through_peers.try_lock();
        let joined = joined.as_ref().and_then(|joined| joined.as_ref());
        joined.map_or_else(|| self.dataset.clone(), |joined| joined.dataset.clone())
    }
}

impl SequenceOptions {
    /// The options to join the peers, if any are named.
    ///
    /// # Safety
    /// Strings satisfy the header.
    unsafe fn join(&self) -> Result<Option<JoinOptions>, Failure> {
        let has_functions = match (self.peer_set.is_some(), self.peer_get.is_some()) {
            (true, true) if self.peers.is_null() => true,
            (false, false) => false,
            (true, true) => {
                let text =
                    "peers says where the ranks find each other, and so do peer_set and peer_get";
                return Err(Failure::invalid(text));
            }
            _ => return Err(Failure::invalid("peer_set and peer_get go together")),
        };
        // SAFETY: the caller's promise is the one that the called function requires.
        let peers = unsafe { self.peers()? };
        let means = match &peers.peers {
            _ if has_functions => Means::Object,
            Some(text) => Means::of(text)?,
            None => return Ok(None),
        };
        let place = (self.world_size > 1).then_some((self.rank, self.world_size));
        Ok(Some(peers.join(means, place)?))
    }
}

/// The caller's functions where the ranks meet.
struct Functions {
    /// The options that name the functions.
    given: SequenceOptions,
    /// The round of the last `set`.
    round: CString,
}

impl Functions {
    fn of(given: &SequenceOptions) -> Functions {
        Functions { given: *given, round: CString::default() }
    }
}

impl Rendezvous for Functions {
    fn set(&mut self, rank: u32, record: &[u8]) -> dlfs::Result<()> {
        let round = Record::from_bytes(record).map(|record| record.round).unwrap_or_default();
        self.round = CString::new(round)
            .map_err(|_| Error::new(ErrorKind::InvalidArgument, "round has a NUL"))?;
        let SequenceOptions { peer_set: Some(set), peer_user, .. } = self.given else {
            return Err(absent());
        };
        // SAFETY: the caller's function with the caller's argument; the round and the record live as long as
        // the call, and have the lengths that the header promises.
        let status = unsafe {
            set(peer_user, self.round.as_ptr(), rank, record.as_ptr().cast(), record.len())
        };
        checked("peer_set", status)
    }

    fn get(&mut self, world_size: u32, deadline: Instant) -> dlfs::Result<Vec<Option<Vec<u8>>>> {
        let SequenceOptions { peer_get: Some(get), peer_user, .. } = self.given else {
            return Err(absent());
        };
        let left = deadline.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
        let mut records = vec![0_u8; world_size as usize * MAX_RECORD_BYTES];
        let at = records.as_mut_ptr().cast::<c_void>();
        // SAFETY: the caller's function with the caller's argument; `records` has room for as many records as
        // the header promises, and nobody else has it.
        let status =
            unsafe { get(peer_user, self.round.as_ptr(), world_size, at, left.as_millis() as u32) };
        checked("peer_get", status)?;
        let record = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0).then(|| bytes.to_vec());
        Ok(records.chunks(MAX_RECORD_BYTES).map(record).collect())
    }

    fn describe(&self) -> String {
        "the caller's peer_set and peer_get".to_owned()
    }
}

/// The error for a function of the caller that returned another number than 0.
fn checked(what: &str, status: i32) -> dlfs::Result<()> {
    match status {
        0 => Ok(()),
        other => Err(Error::new(ErrorKind::Io, format!("{what} returned {other}"))),
    }
}

/// The error for functions that are not given.
fn absent() -> Error {
    Error::new(ErrorKind::InvalidArgument, "neither peers nor peer_set and peer_get are given")
}

/// The longest wait that is asked of the caller's function: `should_stop` is called between two waits.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

const _: () = assert!(DLFS_PEER_RECORD as usize == MAX_RECORD_BYTES);
