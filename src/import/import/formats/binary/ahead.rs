//! Decodes batches of rows on a separate thread, one batch ahead of the reader.
//!
//! Decoders of other crates panic on some damaged files: [`caught`] turns this into an error of the file. The panic hook that is set here suppresses the message and backtrace of
//! such a panic; all other panics go to the previous hook.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use arrow_array::RecordBatch;
use crossbeam_channel::{Receiver, bounded};

use super::arrow_cells::BatchCells;
use crate::import::formats::column::{Cells, Column, is_wanted};
use crate::import::formats::rows::{RowError, RowReader};
use crate::import::options::RowOptions;
use crate::import::sources::BadReason;
use crate::import::sources::sample_stream::StreamPlace;
use dlfs_base::Result;
use dlfs_base::threads::panic_message;

/// A batch of rows.
pub(super) struct Batch {
    /// Its rows.
    pub(super) rows: RecordBatch,
    /// The position in the file from which a reader can begin with this batch, if that is possible.
    pub(super) at: Option<u64>,
}

/// The batches of a file from a place on.
pub(super) struct Batches {
    /// The batches, in order.
    pub(super) each: Box<dyn Iterator<Item = Result<Batch, String>> + Send>,
    /// Number of rows to skip at the beginning.
    pub(super) unwanted: u64,
}

/// Batches that a thread decodes.
struct Ahead(Receiver<Result<Batch, String>>);

impl Ahead {
    /// Starts a thread that decodes `batches`. It ends after the last batch, or when the result is dropped.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    fn start(
        mut batches: impl Iterator<Item = Result<Batch, String>> + Send + 'static,
    ) -> Result<Ahead> {
        let (send, batch) = bounded(1);
        std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            while let Some(next) = caught(|| batches.next().transpose()).transpose() {
                let is_last = next.is_err();
                if send.send(next).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Ahead(batch))
    }
}

/// Decoder of a file from a place on.
type Decode = Box<dyn FnOnce(StreamPlace) -> Result<Batches>>;

/// The rows of decoded batches.
pub(super) struct AheadRows {
    columns: Vec<Column>,
    /// The columns of a batch that are read; `None`: all.
    read: Option<Vec<usize>>,
    /// The decoder, until it has begun.
    decode: Option<Decode>,
    batches: Option<Ahead>,
    batch: Option<BatchCells>,
    /// The place of the next row.
    next: StreamPlace,
    /// Number of rows to skip before the next row.
    unwanted: u64,
    /// The first row and the offset of each row group, if places are rows of these.
    groups: Vec<(u64, u64)>,
}

impl AheadRows {
    /// The rows of the batches that `decode` returns, which have the columns `columns`.
    pub(super) fn new(
        columns: Vec<Column>,
        decode: impl FnOnce(StreamPlace) -> Result<Batches> + 'static,
    ) -> AheadRows {
        let next = StreamPlace::default();
        let decode = Some(Box::new(decode) as Decode);
        AheadRows {
            columns,
            read: None,
            decode,
            batches: None,
            batch: None,
            next,
            unwanted: 0,
            groups: Vec::new(),
        }
    }

    /// Takes these row groups for places: the first row and the offset of each.
    pub(super) fn in_groups(self, groups: Vec<(u64, u64)>) -> AheadRows {
        AheadRows { groups, ..self }
    }

    /// Reads only the columns that `options` select, so that a defect in another column rejects no row.
    pub(super) fn only(mut self, options: &RowOptions) -> AheadRows {
        let wanted = |at: &usize| is_wanted(&self.columns[*at], options);
        let read: Vec<usize> = (0..self.columns.len()).filter(wanted).collect();
        if read.len() < self.columns.len() {
            self.columns = read.iter().map(|at| self.columns[*at].clone()).collect();
            self.read = Some(read);
        }
        self
    }

    /// Continues with the rows of `batch`.
    ///
    /// # Errors
    /// The decoder's message.
    fn enter(&mut self, batch: &Batch) -> Result<(), String> {
        let mut cells = caught(|| Ok(BatchCells::new(&batch.rows, self.read.as_deref())))?;
        if let Some(at) = batch.at {
            self.next = StreamPlace { offset: at, ..StreamPlace::default() };
        }
        let left_out = cells.leave_out(self.unwanted);
        self.unwanted -= left_out;
        self.next.left_out += left_out;
        self.batch = Some(cells);
        Ok(())
    }
}

impl RowReader for AheadRows {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn begin(&mut self, from: StreamPlace) -> Result<()> {
        let Some(decode) = self.decode.take() else { return Ok(()) };
        let Batches { each, unwanted } = decode(from)?;
        self.batches = Some(Ahead::start(each)?);
        self.unwanted = unwanted;
        self.next = StreamPlace { left_out: from.left_out.saturating_sub(unwanted), ..from };
        Ok(())
    }

    fn place(&self, rows: u64) -> StreamPlace {
        let begun = self.groups.partition_point(|(first, _)| *first <= rows);
        let Some((first, offset)) = begun.checked_sub(1).map(|at| self.groups[at]) else {
            return self.next;
        };
        StreamPlace { offset, left_out: rows - first, ..self.next }
    }

    fn next_row(&mut self, cells: &mut Cells) -> Result<bool, RowError> {
        loop {
            if let Some(row) = self.batch.as_mut().and_then(|batch| batch.next_row(cells)) {
                self.next.left_out += 1;
                return row.map(|()| true).map_err(RowError::Row);
            }
            self.batch = None;
            let Some(Ok(batch)) = self.batches.as_ref().map(|batches| batches.0.recv()) else {
                return Ok(false);
            };
            let entered = batch.and_then(|batch| self.enter(&batch));
            entered.map_err(|what| RowError::File(BadReason::Decoder(what)))?;
        }
    }
}

thread_local! {
    /// Set while this thread runs a decoder.
    static DECODES: Cell<bool> = const { Cell::new(false) };
    /// Description of the decoder's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `decode`. A panic of the decoder becomes an error with the panic's location and message.
pub(super) fn caught<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    set_hook_once();
    let was_set = DECODES.replace(true);
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    DECODES.set(was_set);
    decoded.unwrap_or_else(|_| Err(format!("its decoder failed {}", PANIC.take())))
}

fn set_hook_once() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(
            move |panic| if DECODES.get() { PANIC.set(described(panic)) } else { others(panic) },
        ));
    });
}

/// The panic's location, with a path from the crate's name on, and its message, on one line.
fn described(panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map_or_else(String::new, |at| {
        let krate = at.file().rfind("/src/").and_then(|src| at.file()[..src].rfind('/'));
        let file = &at.file()[krate.map_or(0, |slash| slash + 1)..];
        format!("at {file}:{}", at.line())
    });
    let message = panic_message(panic.payload()).replace('\n', " ");
    format!("{place}: {message}")
}

/// The name of the thread.
const NAME: &str = "dlfs-decode";

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn panics_of_decoders_are_told_on_one_line_and_all_others_are_printed() {
        const AGAIN: &str = "DLFS_TEST_GUARD";
        if std::env::var_os(AGAIN).is_some() {
            let told = caught::<()>(|| panic!("hidden\none")).unwrap_err();
            assert!(told.starts_with("its decoder failed at "), "{told}");
            assert!(told.contains("ahead.rs:") && told.ends_with(": hidden one"), "{told}");
            std::thread::spawn(|| panic!("of a thread")).join().unwrap_err();
            catch_unwind(|| panic!("behind it")).unwrap_err();
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        let name = std::thread::current().name().unwrap().to_owned();
        let ran = again.args(["--exact", &name, "--nocapture"]).env(AGAIN, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{printed}");
        assert!(printed.contains("of a thread") && printed.contains("behind it"), "{printed}");
        assert!(!printed.contains("hidden"), "{printed}");
    }
}
