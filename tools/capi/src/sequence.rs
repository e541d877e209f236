//! Batches along an order: the next one, and the state of the run. Mixtures are several mounted data sets as one
//! sequence, in given proportions.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::str::FromStr;
use std::sync::Arc;

use dlfs::dataset::{self, Loader, load_state, save_state};
use dlfs::directory::Directory;
use dlfs::order::State;
use dlfs::order::mixture::{Batching, Count, Mixture, Part};
use dlfs::order::weighted::{Draws, LabelWeights, Weights};
use dlfs::prefetch::LoaderOptions;
use dlfs::store::Staged;
use dlfs::units::Epoch;

use crate::batch::{BatchOut, Division, FieldTable, hand_out, item_of};
use crate::error::{DLFS_E_NOT_FOUND, DLFS_END, DLFS_OK, Failure, guard, guard_long};
use crate::mount::Fs;
use crate::options::{DLFS_ORDER_WEIGHTED, SequenceOptions, Stop, flag};
use crate::structs::{
    self, Handle, Struct, array, check_out, fill_text, get, give, path, put, put_if_asked, take,
    take_or_zeroed, utf8,
};

/// A sequence of batches: an opaque handle.
pub struct Seq(());

/// The object behind a sequence handle.
pub(crate) struct Sequence {
    pub(crate) loader: Loader,
    pub(crate) stop: Stop,
    pub(crate) division: Division,
    restarts_shares: bool,
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
        structs::open(seq, "seq", || {
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
        structs::remove(seq)?.loader.close();
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

/// A mixture of data sets: an opaque handle.
pub struct Mix(());

/// The object behind a mixture handle.
pub(crate) struct Mixed {
    pub(crate) mixture: dataset::Mixture,
    division: Division,
}

/// Options of a mixture. Set `size` to `sizeof(dlfs_mixture_options)`, and all fields without a value to
/// zero. The call copies it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MixtureOptions {
    /// sizeof(dlfs_mixture_options).
    pub size: usize,
    /// Samples of an epoch; 0: what repeat and choose say, or as many as all data sets have.
    pub epoch_size: u64,
    /// "stratified": each global batch has its share of each data set, one or two samples more or less;
    /// "random": what chance gives; "per-source": each global batch is of one data set. "per-source:N" names
    /// the samples of a global batch of all ranks: a run may then resume with another batch size in the same
    /// sequence. NULL: "stratified".
    pub batching: *const c_char,
    /// A curriculum: `num_phases` strings "SAMPLE:WEIGHT,WEIGHT...", the weights of all data sets from this
    /// sample of the run on, counted over all ranks. With phases, a weight may be 0.
    pub phases: *const *const c_char,
    /// The number of phases.
    pub num_phases: usize,
    /// The unit of weights and of the starts of phases: "samples"; or tokens of documents, by "tokens",
    /// "tokens:FIELD" if several fields could have them, or "lengths:COLUMN" for those that a column of ints has.
    /// Other numbers of samples stay. NULL: "samples".
    pub count: *const c_char,
}
// SAFETY: numbers and pointers, the size first.
unsafe impl Struct for MixtureOptions {
    const NAME: &str = "dlfs_mixture_options";
    const EARLIER: &[usize] = &[std::mem::offset_of!(MixtureOptions, count)];
}

/// Mixes `count` mounted data sets, and stores a handle in `*mixture`, to be closed with
/// dlfs_mixture_close. `parts[i]` is the part of `sources[i]` in an epoch: a weight beside the others, such
/// as "0.7"; or, for all of them, "repeat:2", twice its samples, or "choose:1000", so many samples. The
/// counts of an epoch are exact: dlfs_mixture_counts. A data set that is used up begins again, shuffled
/// anew; one that is not goes on in the next epoch where it was. The mounts may be unmounted before.
/// `options` may be NULL. No I/O. Any thread.
///
/// DLFS_E_INVALID: this is no mixture, and dlfs_last_error says which data set is there twice, is empty or
/// is never read, or has other fields than the first, or which part or phase is none.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_mixture_open(
    sources: *const *const Fs,
    parts: *const *const c_char,
    count: usize,
    options: *const MixtureOptions,
    mixture: *mut *mut Mix,
) -> c_int {
    // SAFETY: by the header `mixture` is NULL or a place for a handle, `sources` and `parts` are NULL or
    // have `count` elements, `options` is NULL or a struct of the size that it states, and strings end
    // with NUL and do not change during the call.
    unsafe {
        structs::open(mixture, "mixture", || {
            let options = take_or_zeroed(options)?;
            let sources: &[*const Fs] = array(sources, count, "sources")?;
            let parts: &[*const c_char] = array(parts, count, "parts")?;
            let mut given = Vec::with_capacity(count);
            for (at, (&fs, &part)) in sources.iter().zip(parts).enumerate() {
                let mount = get(fs)?;
                let part: Part = parsed(part, &format!("parts[{at}]"))?;
                given.push((mount, part));
            }
            let division = given.first().map(|(mount, _)| mount.division);
            for (at, (mount, _)) in given.iter().enumerate() {
                let same_names =
                    mount.dataset.directory().fields() == given[0].0.dataset.directory().fields();
                if !same_names || Some(mount.division) != division {
                    let text = format!(
                        "the samples of sources[0] and sources[{at}] have other fields, or another field \
                         represents them: a mixture's samples have the same"
                    );
                    return Err(Failure::invalid(text));
                }
            }
            let batching = if options.batching.is_null() {
                Batching::Stratified
            } else {
                parsed(options.batching, "batching")?
            };
            let count = if options.count.is_null() {
                Count::Samples
            } else {
                parsed(options.count, "count")?
            };
            let texts: &[*const c_char] = array(options.phases, options.num_phases, "phases")?;
            let phases = texts.iter().enumerate();
            let phases = phases.map(|(at, &text)| parsed(text, &format!("phases[{at}]")));
            let phases = phases.collect::<Result<Vec<_>, _>>()?;
            let epoch_size = (options.epoch_size != 0).then_some(options.epoch_size);
            let given = given.iter().map(|(mount, part)| (mount.dataset.clone(), *part)).collect();
            let mixture = dataset::Mixture::counting(&count, given, epoch_size, batching, phases)?;
            let division = division.expect("a mixture has at least one source");
            Ok(Mixed { mixture, division })
        })
    }
}

/// Closes the handle. Its sequences stay valid. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_mixture_close(mixture: *mut Mix) -> c_int {
    guard(|| structs::remove(mixture).map(drop))
}

/// Stores how many samples of each data set `epoch` has in `counts`, one for each of its `count` data sets,
/// and the samples of an epoch in `*epoch_size`. Either may be NULL. For "per-source" without a number,
/// global batches of one sample are counted; name the number to know more. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_mixture_counts(
    mixture: *const Mix,
    epoch: u64,
    counts: *mut u64,
    count: usize,
    epoch_size: *mut u64,
) -> c_int {
    guard(|| {
        let sequence: Mixture = get(mixture)?.mixture.sequence()?;
        if !counts.is_null() {
            let sources = sequence.num_sources();
            if count != sources {
                let text = format!("counts has {count} places for {sources} data sets");
                return Err(Failure::invalid(text));
            }
            for (at, value) in sequence.counts(Epoch(epoch)).into_iter().enumerate() {
                // SAFETY: by the header `counts` has `count` elements, and `at` is less.
                unsafe { put(counts.wrapping_add(at), value, "counts")? };
            }
        }
        // SAFETY: by the header `epoch_size` is NULL or points to a `uint64_t`.
        unsafe { put_if_asked(epoch_size, sequence.epoch_size(), "epoch_size") }
    })
}

/// Creates a sequence of batches of the mixture, as dlfs_sequence does of a data set: `source` of an item
/// says which data set a sample is of, and its id, label and fields are those there. Each data set is in the
/// order of `options`. A state has one position for all, and resumes with any world size and batch size; one of
/// another mixture is refused, and dlfs_last_error says which data set differs. No I/O. Any thread.
///
/// DLFS_E_INVALID: `options` names peers, a store or an order of shares (DLFS_ORDER_LOCAL, _PARTIAL), which are
/// for runs over one data set.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_mixture_sequence(
    mixture: *const Mix,
    options: *const SequenceOptions,
    seq: *mut *mut Seq,
) -> c_int {
    // SAFETY: by the header `seq` is NULL or a place for a handle, and `options` is NULL or points to a
    // struct of the size in its first field.
    unsafe {
        structs::open(seq, "seq", || {
            let options = take(options)?;
            let mixed = get(mixture)?;
            let loader = mixed.mixture.loader(mixed.loader_options(&options)?)?;
            let stop = options.stop();
            let division = mixed.division;
            Ok(Sequence { loader, stop, division, restarts_shares: false })
        })
    }
}

impl Handle for Mix {
    type Object = Mixed;
    const NAME: &str = "mixture";
}

impl Mixed {
    /// The options of a loader over the mixture.
    ///
    /// # Safety
    /// Strings and arrays of `options` satisfy the header.
    pub(crate) unsafe fn loader_options(
        &self,
        options: &SequenceOptions,
    ) -> Result<LoaderOptions, Failure> {
        let has_functions = options.peer_set.is_some() || options.peer_get.is_some();
        let of_one = [
            ("peers", !options.peers.is_null() || has_functions),
            ("store", !options.store.is_null()),
            // SAFETY: the caller's promise is the one that the called function requires.
            ("restart_shares", unsafe { options.store()? }.restart_shares),
        ];
        if let Some((what, _)) = of_one.iter().find(|(_, is_given)| *is_given) {
            return Err(Failure::invalid(format!(
                "{what} is for a sequence of one data set: leave it out for a mixture"
            )));
        }
        // SAFETY: as above.
        unsafe { options.options(None, None) }
    }
}

/// Parses the text; `what` names it in an error.
///
/// # Safety
/// `text` is NULL or ends with NUL, and does not change meanwhile.
unsafe fn parsed<T: FromStr<Err = dlfs::Error>>(
    text: *const c_char,
    what: &str,
) -> Result<T, Failure> {
    // SAFETY: the caller's promise is the one that `utf8` requires.
    let text = unsafe { utf8(text, what)? };
    text.parse().map_err(|error| Failure::invalid(format!("{what}: {error}")))
}
