//! Rows of tokens: documents packed into arrays of the caller.

use std::ffi::{c_char, c_int, c_void};

use dlfs::dataset::{TokenBatch, TokenLoader};
use dlfs::order::State;
use dlfs::tokens::{Arrays, Columns, TokensMut};
use parking_lot::Mutex;

use crate::converted::{Stop, unknown};
use crate::error::{DLFS_END, DLFS_OK, Failure, guard, guard_long};
use crate::field_type::{
    DLFS_ELEMENT_BYTES, DLFS_ELEMENT_I32, DLFS_ELEMENT_I64, DLFS_ELEMENT_U16, DLFS_ELEMENT_U32,
};
use crate::handles::{self, Handle, get};
use crate::mixture::Mix;
use crate::mount::Fs;
use crate::options::{SequenceOptions, TokensOptions};
use crate::structs::{Struct, fill_text, give, put, take, utf8};

/// A loader of rows of tokens: an opaque handle.
pub struct TokensHandle(());

/// The object behind the handle.
pub(crate) struct Tokens {
    loader: TokenLoader,
    /// The columns of a row that this rank has.
    columns: Columns,
    /// The number of elements of each array: enough for every batch.
    most_elements: usize,
    stop: Stop,
    /// Batches that no call uses, which are kept for their memory; locked for a moment only.
    spare: Mutex<Vec<Taken>>,
}

/// A batch, and the starts of its segments.
#[derive(Default)]
struct Taken {
    batch: TokenBatch,
    starts: Vec<i32>,
}

/// The arrays of a batch of rows, in memory of the caller. Set `size` to `sizeof(dlfs_rows)`, and the arrays that are
/// wanted; others are NULL.
///
/// An array has room for `batch_size` rows of C columns, row by row; with phases, for the batch of the phase that has
/// the most. Without context-parallel ranks C is `seq_len` + 1: columns 0 to `seq_len` - 1 are inputs, and columns 1 to
/// `seq_len` their labels. A context-parallel rank has one part of the inputs, or with `cp_zigzag` two, each with one
/// column more behind it for the label of its last input. The call sets the rows and columns that it has filled: with
/// DLFS_PACK_NONE rows are only as wide as the longest one of all ranks needs, one behind the other all the same.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RowsOut {
    /// sizeof(dlfs_rows).
    pub size: usize,
    /// The tokens, of type `element`.
    pub tokens: *mut c_void,
    /// The number of the segment, from 1 in each row; 0 for padding.
    pub segment_ids: *mut i32,
    /// The number of the token within its segment, from 0; 0 for padding.
    pub position_ids: *mut i32,
    /// 1 if the token is learned from as a label, else 0.
    pub loss_mask: *mut u8,
    /// The id of the token's sample; -1 for padding.
    pub sample_ids: *mut i64,
    /// The starts of segments and paddings in all inputs of the batch, one row behind the other, and their end: as many
    /// places as an array has. Not with context-parallel ranks.
    pub cu_seqlens: *mut i32,
    /// Set by the call: the places of `cu_seqlens` that are in use.
    pub num_cu_seqlens: usize,
    /// The type of `tokens`: DLFS_ELEMENT_I64, also for 0; DLFS_ELEMENT_I32, _U32 or _U16.
    pub element: u32,
    /// Set by the call: 1 if it is the last batch of its epoch, else 0.
    pub ends_epoch: u32,
    /// Set by the call: the epoch of the rows.
    pub epoch: u64,
    /// Set by the call: the rows of each array.
    pub num_rows: usize,
    /// Set by the call: the columns of each row, C or less.
    pub num_columns: usize,
}
// SAFETY: numbers and pointers, the size first.
unsafe impl Struct for RowsOut {
    const NAME: &str = "dlfs_rows";
}

/// Creates a loader of rows of tokens along an order, and stores its handle in `*tokens`, to be closed with
/// dlfs_tokens_close. Samples are documents, and `batch_size` of `sequence` is a number of rows. Lengths of documents
/// are known without I/O, so the rows are, too. Readahead begins with the first dlfs_tokens_next. Any thread.
///
/// DLFS_E_INVALID: the samples have no such field or no whole number of tokens, or no row can be filled.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_tokens_open(
    fs: *const Fs,
    sequence: *const SequenceOptions,
    options: *const TokensOptions,
    tokens: *mut *mut TokensHandle,
) -> c_int {
    // SAFETY: by the header `tokens` is NULL or a place for a handle, and the options are NULL or structs of the sizes
    // that they state, whose strings end with NUL.
    unsafe {
        handles::open(tokens, "tokens", || {
            let sequence = take(sequence)?;
            let options = take(options)?;
            let rows = options.options(sequence.batch_size)?;
            let (dataset, of_loader) = get(fs)?.for_sequence(&sequence, Some(&rows))?;
            Tokens::of(dataset.token_loader(rows, of_loader)?, &sequence, &options)
        })
    }
}

/// Creates a loader of rows over a mixture, as dlfs_tokens_open does over a data set: documents of all its data sets
/// are packed together. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_mixture_tokens(
    mixture: *const Mix,
    sequence: *const SequenceOptions,
    options: *const TokensOptions,
    tokens: *mut *mut TokensHandle,
) -> c_int {
    // SAFETY: as in `dlfs_tokens_open`.
    unsafe {
        handles::open(tokens, "tokens", || {
            let sequence = take(sequence)?;
            let options = take(options)?;
            let mixed = get(mixture)?;
            let of_loader = mixed.loader_options(&sequence)?;
            let rows = options.options(sequence.batch_size)?;
            Tokens::of(mixed.mixture.token_loader(rows, of_loader)?, &sequence, &options)
        })
    }
}

/// Writes the next rows into the arrays of `rows`; waits until they are read. DLFS_END after the last batch of the last
/// epoch. Any thread; threads get different rows. Errors and forks as for dlfs_bread.
///
/// DLFS_E_CORRUPT: a document has a token outside of the vocabulary, or one that `element` does not hold;
/// dlfs_last_error says which.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_tokens_next(tokens: *const TokensHandle, rows: *mut RowsOut) -> c_int {
    guard_long(|| {
        // SAFETY: by the header `rows` is NULL or points to a struct of the size in its first field.
        let mut out = unsafe { take(rows.cast_const())? };
        let loader = get(tokens)?;
        let mut taken = loader.spare.lock().pop().unwrap_or_default();
        // SAFETY: by the header each array is NULL or has the places that the struct's documentation says, which
        // nobody else accesses meanwhile.
        let filled = unsafe { out.fill(&loader, &mut taken) };
        loader.spare.lock().push(taken);
        if !filled? {
            return Ok(DLFS_END.into());
        }
        // SAFETY: as for `take`, and nobody else accesses it meanwhile.
        unsafe { give(rows, out)? };
        Ok(DLFS_OK.into())
    }) as c_int
}

/// Stores the number of batches of a whole epoch on this rank. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_tokens_len(tokens: *const TokensHandle, batches: *mut u64) -> c_int {
    guard(|| {
        let count = get(tokens)?.loader.loader().batches_per_epoch();
        // SAFETY: by the header `batches` is NULL or points to a `uint64_t`.
        unsafe { put(batches, count, "batches") }
    })
}

/// Moves to the start of `epoch`. Any thread, between its batches.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_tokens_set_epoch(tokens: *const TokensHandle, epoch: u64) -> c_int {
    guard(|| Ok(get(tokens)?.loader.loader().set_epoch(epoch)?))
}

/// Copies the state of the run as dlfs_state_get does. A loader of rows of the same data set, order, length and packing
/// resumes from it, also with another world size or batch size. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_tokens_state_get(
    tokens: *const TokensHandle,
    json: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `json` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe { fill_text(json, len, needed, || Ok(get(tokens)?.loader.loader().state().to_json())) }
}

/// Resumes from the state in `json`. Errors as for dlfs_state_load. Any thread, between its batches.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_tokens_state_set(
    tokens: *const TokensHandle,
    json: *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `json` is NULL or ends with NUL, and does not change during the call.
        let state = State::from_json(unsafe { utf8(json, "json")? })?;
        Ok(get(tokens)?.loader.loader().set_state(&state)?)
    })
}

/// Closes the handle: readahead ends, and a dlfs_tokens_next in another thread ends with DLFS_E_INTERRUPTED. Any
/// thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_tokens_close(tokens: *mut TokensHandle) -> c_int {
    guard(|| {
        handles::remove(tokens)?.loader.loader().close();
        Ok(())
    })
}

impl Handle for TokensHandle {
    type Object = Tokens;
    const NAME: &str = "loader of rows of tokens";
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.loader.loader().close();
    }
}

impl Tokens {
    /// A loader of rows for C.
    fn of(
        loader: TokenLoader,
        sequence: &SequenceOptions,
        options: &TokensOptions,
    ) -> Result<Tokens, Failure> {
        let columns = options.columns()?;
        let most_elements = loader.most_elements(&columns)?;
        let stop = sequence.stop();
        Ok(Tokens { loader, columns, most_elements, stop, spare: Mutex::default() })
    }
}

impl RowsOut {
    /// Takes the next batch and fills the arrays with it; `false` at the end.
    ///
    /// # Safety
    /// Each array is NULL or has the places that its documentation says, which nobody else accesses meanwhile.
    unsafe fn fill(&mut self, of: &Tokens, taken: &mut Taken) -> Result<bool, Failure> {
        let Taken { batch, starts } = taken;
        starts.clear();
        // SAFETY: the caller's promise is the one that the called function requires.
        let mut arrays = unsafe { self.arrays(of, starts)? };
        if !of.loader.next(batch, &mut of.stop.clone())? {
            return Ok(false);
        }
        batch.fill(&of.columns, &mut arrays)?;
        if !self.cu_seqlens.is_null() {
            // SAFETY: as above; there is at most a start for each input, and the end.
            unsafe { self.cu_seqlens.copy_from_nonoverlapping(starts.as_ptr(), starts.len()) };
        }
        self.num_cu_seqlens = starts.len();
        self.epoch = batch.samples().epoch().0;
        self.ends_epoch = batch.samples().ends_epoch().into();
        self.num_rows = batch.num_rows();
        self.num_columns = batch.columns(&of.columns)?.width();
        Ok(true)
    }

    /// The arrays that the caller wants. The starts of segments, whose number is not known yet, go to `starts` first.
    ///
    /// # Safety
    /// Each array is NULL or has a place for each column of each row, which nobody else accesses during `'a`.
    unsafe fn arrays<'a>(
        &self,
        of: &Tokens,
        starts: &'a mut Vec<i32>,
    ) -> Result<Arrays<'a>, Failure> {
        let len = of.most_elements;
        let tokens = self.tokens;
        // SAFETY: the caller's promise is the one that the called function requires.
        unsafe {
            let what = "tokens";
            let tokens = match self.element {
                DLFS_ELEMENT_BYTES | DLFS_ELEMENT_I64 => {
                    lent(tokens.cast(), len, what)?.map(TokensMut::I64)
                }
                DLFS_ELEMENT_I32 => lent(tokens.cast(), len, what)?.map(TokensMut::I32),
                DLFS_ELEMENT_U32 => lent(tokens.cast(), len, what)?.map(TokensMut::U32),
                DLFS_ELEMENT_U16 => lent(tokens.cast(), len, what)?.map(TokensMut::U16),
                other => return Err(unknown("element", other)),
            };
            Ok(Arrays {
                tokens: tokens.ok_or_else(|| Failure::invalid("tokens is NULL"))?,
                segment_ids: lent(self.segment_ids, len, "segment_ids")?,
                position_ids: lent(self.position_ids, len, "position_ids")?,
                loss_mask: lent(self.loss_mask, len, "loss_mask")?,
                cu_seqlens: (!self.cu_seqlens.is_null()).then_some(starts),
                sample_ids: lent(self.sample_ids, len, "sample_ids")?,
            })
        }
    }
}

/// The `len` values at `at`; `None` for NULL.
///
/// # Safety
/// `at` is NULL or points to `len` values that nobody else accesses during `'a`.
unsafe fn lent<'a, T>(at: *mut T, len: usize, what: &str) -> Result<Option<&'a mut [T]>, Failure> {
    if !at.is_aligned() {
        return Err(Failure::invalid(format!("{what} is not aligned")));
    }
    // SAFETY: not NULL and aligned, and the caller promises the rest; any bytes are a number.
    Ok((!at.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(at, len) }))
}
