//! Mixtures: several mounted data sets as one sequence, in given proportions.

use std::ffi::{c_char, c_int};
use std::str::FromStr;

use dlfs::dataset;
use dlfs::order::mixture::{Batching, Count, Mixture, Part};
use dlfs::prefetch::LoaderOptions;
use dlfs::units::Epoch;

use crate::batch::Division;
use crate::error::{Failure, guard};
use crate::handles::{self, Handle, get};
use crate::mount::Fs;
use crate::options::SequenceOptions;
use crate::sequence::{Seq, Sequence};
use crate::structs::{Struct, array, put, put_if_asked, take, take_or_zeroed, utf8};

/// A mixture of data sets: an opaque handle.
pub struct Mix(());

/// The object behind a mixture handle.
pub(crate) struct Mixed {
    pub(crate) mixture: dataset::Mixture,
    /// The division of the samples of all data sets.
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
        handles::open(mixture, "mixture", || {
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
    guard(|| handles::remove(mixture).map(drop))
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
        handles::open(seq, "seq", || {
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
