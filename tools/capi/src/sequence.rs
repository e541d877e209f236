//! Sequences: batches of a data set along an order, and the state of the run.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use dlfs::dataset::{Loader, load_state, save_state};
use dlfs::directory::Directory;
use dlfs::order::State;
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::prefetch::LoaderOptions;
use dlfs::store::Staged;

use crate::batch::{BatchOut, Division, FieldTable, hand_out, item_of};
use crate::converted::{Stop, flag};
use crate::error::{DLFS_E_NOT_FOUND, DLFS_END, DLFS_OK, Failure, guard, guard_long};
use crate::handles::{self, Handle, get};
use crate::mount::Fs;
use crate::options::{DLFS_ORDER_WEIGHTED, SequenceOptions};
use crate::structs::{
    Struct, array, check_out, fill_text, give, path, put, put_if_asked, take, utf8,
};

/// A sequence of batches: an opaque handle.
pub struct Seq(());

/// The object behind a sequence handle.
pub(crate) struct Sequence {
    pub(crate) loader: Loader,
    pub(crate) stop: Stop,
    pub(crate) division: Division,
    /// True if a state with another order of shares is accepted, and its epoch then begins anew.
    pub(crate) restarts_shares: bool,
}

impl Sequence {
    /// The epoch of the next batch, and how many of that epoch's batches are left.
    fn place(&self) -> (u64, u64) {
        loop {
            let epoch = self.loader.epoch();
            if epoch >= self.loader.options().epochs.end {
                return (epoch, 0);
            }
            let left = self.loader.batches_left();
            if self.loader.epoch() == epoch {
                return (epoch, left);
            }
        }
    }

    /// Continues from `state`.
    fn resume(&self, state: State) -> Result<(), Failure> {
        let order = self.loader.options().order;
        let len = self.loader.directory().num_live();
        let state = if self.restarts_shares && state.order != order {
            state.begun_anew(&order, len)?
        } else {
            state
        };
        Ok(self.loader.set_state(&state)?)
    }
}

impl Handle for Seq {
    type Object = Sequence;
    const NAME: &str = "sequence";
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.loader.close();
    }
}

/// Creates a sequence of batches along an order, and stores its handle in `*seq`, to be closed with
/// dlfs_sequence_close. Readahead begins with the first dlfs_bread. No I/O. Any thread.
///
/// With `peers`, or `peer_set` and `peer_get`, the first such sequence of a mount waits until all
/// ranks have joined, and from then on serves the mount's tiers to them, until the mount and its
/// sequences are closed. DLFS_E_TIMED_OUT: ranks are missing, and dlfs_last_error names them.
/// DLFS_E_INVALID: a rank is there twice or differs, or the mount has no tier. DLFS_E_BUSY: a port
/// is taken, or another thread is joining.
///
/// With `store` each sequence joins for itself, and its store exchanges samples until it is closed: close it
/// when the other ranks are at the end of their epochs, too, or the data set must still be there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_sequence(
    fs: *const Fs,
    options: *const SequenceOptions,
    seq: *mut *mut Seq,
) -> c_int {
    // SAFETY: by the header `seq` is NULL or a place for a handle, and `options` is NULL or
    // points to a struct of the size in its first field.
    unsafe {
        handles::open(seq, "seq", || {
            let options = take(options)?;
            let mount = get(fs)?;
            let restarts_shares = options.store()?.restart_shares;
            let (dataset, of_loader) = mount.for_sequence(&options, None)?;
            let loader = dataset.loader(of_loader)?;
            let stop = options.stop();
            let division = mount.division;
            Ok(Sequence { loader, stop, division, restarts_shares })
        })
    }
}

/// Stores the next batch in `batch`, to be released with dlfs_release; waits until it is ready.
/// DLFS_END after the last batch of the last epoch. Any thread; threads get different batches.
///
/// After DLFS_E_TIMED_OUT and DLFS_E_INTERRUPTED nothing is lost: call again. Any other error
/// repeats until dlfs_set_epoch or a state restarts the run. After DLFS_E_DISCONNECTED, mount the
/// data set again: a new sequence resumes from the state that dlfs_state_get of the old one
/// returns. In a forked child the sequence continues after the batch that the parent got last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_bread(seq: *const Seq, batch: *mut BatchOut) -> c_int {
    guard_long(|| {
        // SAFETY: by the header `batch` is NULL or points to a struct of the size in its first
        // field, which nobody else accesses meanwhile.
        unsafe {
            check_out(batch)?;
            give(batch, BatchOut::zeroed())?;
        }
        let sequence = get(seq)?;
        let next = sequence.loader.next(&mut sequence.stop.clone())?;
        let Some(next) = next else { return Ok(DLFS_END.into()) };
        let division = sequence.division;
        let mut fields = FieldTable::new(division, next.len());
        let mut items = Vec::with_capacity(next.len());
        for index in 0..next.len() {
            let record = next.bytes(index);
            let mut item = item_of(&next, index);
            fields.add(&mut item, record, record.as_ptr().wrapping_add(division.table_len()));
            items.push(item);
        }
        let place = (next.epoch().0, next.ends_epoch());
        // SAFETY: the items point into the batch that is passed with them.
        unsafe { hand_out(batch, Some(next), items, fields, place)? };
        Ok(DLFS_OK.into())
    }) as c_int
}

/// Allocates the readahead memory (`window_bytes`) in the background; otherwise the first
/// dlfs_bread does. Call it before a model is built, in the process that will read. Returns at
/// once; does nothing if the memory exists. No I/O. Any thread.
///
/// DLFS_E_NO_MEMORY: the system does not provide it.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_sequence_prepare(seq: *const Seq) -> c_int {
    guard(|| Ok(get(seq)?.loader.prepare()?))
}

/// Called during dlfs_sequence_stage, with the `samples` of this rank's share, of which `done` are in
/// its store; anything but 0 ends the call.
pub type Staging =
    Option<unsafe extern "C" fn(user: *mut c_void, done: u64, samples: u64) -> c_int>;

/// Brings this rank's share of the samples into its store, for the position of the run: call it after
/// dlfs_state_load; otherwise the first dlfs_bread does it. What lies there is checked and kept. Calls
/// `progress`, unless it is NULL, with `user`. Does nothing without a store, or if the share is there. In a
/// forked child it asks the process that has the store, and returns. Any thread.
///
/// DLFS_E_INTERRUPTED: `progress` or `should_stop` ended it; call again. DLFS_E_NO_SPACE: the file system
/// of the store is full.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_sequence_stage(
    seq: *const Seq,
    progress: Staging,
    user: *mut c_void,
) -> c_int {
    guard(|| {
        let sequence = get(seq)?;
        let mut goes_on = true;
        Ok(sequence.loader.stage(
            &mut sequence.stop.clone(),
            |Staged { done, samples, .. }| {
                if let Some(progress) = progress
                    && goes_on
                {
                    // SAFETY: the caller's function, with the caller's argument, on the caller's thread.
                    goes_on = unsafe { progress(user, done, samples) } == 0;
                }
                goes_on
            },
        )?)
    })
}

/// Stores the epoch of the next batch in `*epoch`, and in `*batches_left` how many of its batches
/// are left for this rank; 0 at the end of the run. Either may be NULL. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_sequence_at(
    seq: *const Seq,
    epoch: *mut u64,
    batches_left: *mut u64,
) -> c_int {
    guard(|| {
        let sequence = get(seq)?;
        let (at, left) = sequence.place();
        // SAFETY: by the header each is NULL or points to a `uint64_t`.
        unsafe {
            put_if_asked(epoch, at, "epoch")?;
            put_if_asked(batches_left, left, "batches_left")
        }
    })
}

/// Stores the number of batches of a whole epoch on this rank. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_sequence_len(seq: *const Seq, batches: *mut u64) -> c_int {
    guard(|| {
        let count = get(seq)?.loader.batches_per_epoch();
        // SAFETY: by the header `batches` is NULL or points to a `uint64_t`.
        unsafe { put(batches, count, "batches") }
    })
}

/// Moves to the start of `epoch`. Any thread, between its batches.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_set_epoch(seq: *const Seq, epoch: u64) -> c_int {
    guard(|| Ok(get(seq)?.loader.set_epoch(epoch)?))
}

/// Closes the handle: readahead ends, and a dlfs_bread in another thread ends with
/// DLFS_E_INTERRUPTED. Batches stay valid. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_sequence_close(seq: *mut Seq) -> c_int {
    guard(|| {
        handles::remove(seq)?.loader.close();
        Ok(())
    })
}

/// Saves the state of the run, after the batches delivered so far, in the file `path`, atomically
/// and durably: a crash leaves the old file or the new one. Any thread.
///
/// A sequence of the same data set and order resumes from it, also with another world size or batch
/// size; for that, save it when all ranks have received the same number of batches.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_state_save(seq: *const Seq, path: *const c_char) -> c_int {
    guard(|| {
        let sequence = get(seq)?;
        // SAFETY: by the header `path` is NULL or ends with NUL, and does not change during the
        // call.
        Ok(save_state(unsafe { self::path(path, "path")? }, &sequence.loader.state())?)
    })
}

/// Resumes from the state in the file `path`. Any thread, between its batches.
///
/// DLFS_E_NOT_FOUND: there is no such file. DLFS_E_INVALID, DLFS_E_STALE: it is not a state, or one
/// of another data set or order, and dlfs_last_error says which; the run is then unchanged.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_state_load(seq: *const Seq, path: *const c_char) -> c_int {
    guard(|| {
        let sequence = get(seq)?;
        // SAFETY: by the header `path` is NULL or ends with NUL, and does not change during the
        // call.
        let path = unsafe { self::path(path, "path")? };
        let state = load_state(path)?.ok_or_else(|| {
            Failure::new(DLFS_E_NOT_FOUND, format!("there is no state file {}", path.display()))
        })?;
        sequence.resume(state)
    })
}

/// Copies the state of the run as one line of JSON and a NUL to `json`, which has `len` bytes;
/// `needed` as for dlfs_name. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_state_get(
    seq: *const Seq,
    json: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `json` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe { fill_text(json, len, needed, || Ok(get(seq)?.loader.state().to_json())) }
}

/// Resumes from the state in `json`, as returned by dlfs_state_get. Errors as for dlfs_state_load.
/// Any thread, between its batches.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_state_set(seq: *const Seq, json: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: by the header `json` is NULL or ends with NUL, and does not change during the
        // call.
        let json = unsafe { utf8(json, "json")? };
        get(seq)?.resume(State::from_json(json)?)
    })
}

impl SequenceOptions {
    /// `options` with samples of `directory` drawn by the weights, if the order is weighted.
    ///
    /// # Safety
    /// `weights` and `weight_labels` are NULL or have `num_weights` entries.
    pub(crate) unsafe fn weighted(
        &self,
        options: LoaderOptions,
        draws: Draws,
        directory: Option<&Directory>,
    ) -> Result<LoaderOptions, Failure> {
        let is_balanced = flag(self.balanced, "balanced")?;
        if self.order != DLFS_ORDER_WEIGHTED {
            let has_weights = self.num_weights > 0 || !self.weights.is_null();
            for (what, is_given) in [
                ("weights", has_weights || !self.weight_labels.is_null()),
                ("balanced", is_balanced),
                ("without_replacement", !draws.replacement),
                ("epoch_size", draws.epoch_size.is_some()),
            ] {
                if is_given {
                    return Err(Failure::invalid(format!("{what} is for DLFS_ORDER_WEIGHTED")));
                }
            }
            return Ok(options);
        }
        let Some(directory) = directory else {
            let text = "weights are of the samples of one data set, not of a mixture";
            return Err(Failure::invalid(text));
        };
        // SAFETY: the caller promises `num_weights` entries in both arrays, unless they are NULL.
        let (numbers, labels) = unsafe {
            let labels = if self.weight_labels.is_null() {
                None
            } else {
                Some(array(self.weight_labels, self.num_weights, "weight_labels")?)
            };
            (array(self.weights, self.num_weights, "weights")?, labels)
        };
        let len = directory.num_live();
        let is_given = !numbers.is_empty();
        let by_label = match (labels, is_balanced) {
            (None, false) => None,
            (None, true) if !is_given => Some(LabelWeights::Balanced),
            (Some(labels), false) => Some(LabelWeights::Each(each(labels, numbers)?)),
            (_, true) => {
                let text = "balanced gives each label the same share: leave the weights out";
                return Err(Failure::invalid(text));
            }
        };
        let weights = match by_label {
            None if !is_given => {
                let text = "a weighted order draws by weights: set weights, or balanced";
                return Err(Failure::invalid(text));
            }
            None => Weights::of_samples(len, numbers, draws),
            Some(by_label) => {
                let labels = (0..len).map(|rank| directory.label(directory.id_of_live(rank)));
                Weights::of_labels(len, labels, &by_label, draws)
            }
        };
        Ok(options.weighted(Arc::new(weights?)))
    }
}

/// The weight of each label.
fn each(labels: &[i64], weights: &[f64]) -> Result<BTreeMap<i64, f64>, Failure> {
    let mut each = BTreeMap::new();
    for (&label, &weight) in labels.iter().zip(weights) {
        if each.insert(label, weight).is_some() {
            return Err(Failure::invalid(format!("label {label} has two weights")));
        }
    }
    Ok(each)
}
