//! [`Writer`]: writes an image of samples that a program creates.
//!
//! # What it is
//! [`Writer::write`] copies a sample into a *window* in memory. A full window goes to a thread, which places
//! its samples in chunks and writes them while the next window fills. [`Writer::finish`] commits.
//!
//! # What it is not
//! A writer cannot be resumed, since its samples cannot be read again. An interrupted writer leaves only free
//! space, which the next writer uses.
//!
//! # Invariants
//! - Until `finish` commits, a reader opens the previous generation, complete; if there was none, or
//!   `Onto::Force` has discarded it, opening fails.
//! - A refused sample changes nothing: the writer continues with the next one.
//! - Memory does not grow with the number of bytes: it holds two windows, and a few chunks. It grows with the
//!   number of samples, for fingerprints of their names and for the directory at the end.
//!
//! Read this file first, then `window.rs`, and `placing.rs`, which has the thread.

mod options;
mod placing;
mod window;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use xxhash_rust::xxh3::xxh3_128;

pub(super) use options::Windows;
pub use options::{Label, NewSample, WriteOrder, WriteReport, WriterOptions};
pub(super) use placing::{Placer, Started, Thread, check};

use crate::import::device::open_for_import;
use crate::import::options::other_fields;
use crate::import::writer::placing::Work;
use crate::import::writer::window::Window;
use crate::import::written_part::WrittenPart;
use dlfs_base::process::Forked;
use dlfs_base::units::{SampleId, Slot};
use dlfs_base::{Error, ErrorKind, Result, threads};
use dlfs_format::format::columns::ColumnSpec;
use dlfs_format::format::table::check_label;
use dlfs_format::format::{FieldTypes, Placement, fields};
use dlfs_io::address::Address;
use dlfs_io::qpair::file::FileCalls;
use dlfs_io::qpair::{ConnectOptions, Device};

/// Writes the samples of a program as a new image, or appends them to an existing one.
///
/// Dropping the writer without [`finish`](Writer::finish) discards the samples.
pub struct Writer {
    /// Size and order of windows.
    windows: Windows,
    /// For each field of the image, its index in a [`NewSample`].
    field_order: Vec<usize>,
    /// The properties of the image, from the thread.
    started: Started,
    /// With [`WriteOrder::Whole`]: the map to the next id.
    placement: Option<Placement>,
    /// Number of samples written so far.
    written: u64,
    /// The window that is being filled.
    window: Window,
    /// Fingerprints of the names so far.
    names: HashSet<u128>,
    /// The number of each class.
    classes: HashMap<Vec<u8>, i64>,
    /// The names of the classes, by number.
    class_names: Vec<Vec<u8>>,
    /// Set if the labels so far are names of classes, and not numbers. `None`: there is no label yet.
    are_classes: Option<bool>,
    /// `None` once the writer has ended. In a forked child it cannot be used.
    thread: Option<Forked<PlacingThread>>,
}

/// The thread that places full windows.
struct PlacingThread {
    /// Sends a window or the commit. Blocks until the thread takes it.
    work: Sender<Work>,
    /// Receives empty windows, whose memory is used again.
    spare: Receiver<Window>,
    handle: JoinHandle<Result<Written>>,
}

/// The result of a finished writer.
#[derive(Debug)]
enum Written {
    /// A committed generation.
    Image(WriteReport),
    /// A part of a generation.
    Part(WrittenPart),
}

impl Writer {
    /// Begins to write the image at `image`. A file that does not exist is created.
    ///
    /// # Errors
    /// `Refused`: the image holds data that the options do not allow to overwrite. `Busy`: an import or another
    /// writer is running. `InvalidArgument`: fields or columns differ from those of the image to append to.
    /// Errors of opening.
    pub fn create(
        image: &[Address],
        options: WriterOptions,
        connect: &ConnectOptions,
    ) -> Result<Writer> {
        let image = image.to_vec();
        let connect = connect.clone();
        let open = move |onto, created: &mut _| {
            open_for_import(&image, onto, &connect, FileCalls::Pread, created)
        };
        Writer::start_image(options, Box::new(open))
    }

    /// Same as [`create`](Self::create), for open namespaces.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_on(devices: &[Arc<dyn Device>], options: WriterOptions) -> Result<Writer> {
        let devices = devices.to_vec();
        Writer::start_image(options, Box::new(move |_, _| Ok(devices)))
    }

    /// Begins to write a part of an image, which is committed with the other parts. The writer's thread runs
    /// `place`.
    ///
    /// # Errors
    /// Errors of `place`, until it has started.
    pub(super) fn start_part(
        windows: Windows,
        fields: &[Vec<u8>],
        place: impl FnOnce(&Thread) -> Result<WrittenPart> + Send + 'static,
    ) -> Result<Writer> {
        Writer::start(windows, fields, move |thread| place(&thread).map(Written::Part))
    }

    /// Begins to write an image, whose namespaces the writer's thread opens.
    fn start_image(options: WriterOptions, open: placing::Open) -> Result<Writer> {
        let fields = options.fields.clone();
        Writer::start(options.windows(), &fields, move |thread| {
            placing::run(&options, open, &thread).map(Written::Image)
        })
    }

    /// Starts the writer's thread, which runs `place`, and waits until the thread has inspected the image.
    fn start(
        windows: Windows,
        fields: &[Vec<u8>],
        place: impl FnOnce(Thread) -> Result<Written> + Send + 'static,
    ) -> Result<Writer> {
        let (tell, told) = bounded(1);
        let (work, to_do) = bounded(0);
        let (give_back, spare) = unbounded();
        let thread = Thread { started: tell, work: to_do, spare: give_back };
        let place = move || place(thread);
        let handle = std::thread::Builder::new()
            .name(NAME.into())
            .spawn(move || threads::caught(NAME, place).flatten())?;
        let Ok(started) = told.recv() else {
            // The thread ended before it could begin. Its result is the reason.
            return Err(joined(handle).err().unwrap_or_else(ended_early));
        };
        let window = Window::new(&started.columns, windows.window_bytes);
        let classes = (0..).zip(&started.classes).map(|(number, name)| (name.clone(), number));
        let mut writer = Writer {
            windows,
            field_order: Vec::new(),
            placement: started.whole.map(Placement::new),
            written: 0,
            window,
            names: HashSet::new(),
            classes: classes.collect(),
            class_names: started.classes.clone(),
            started,
            are_classes: None,
            thread: Some(Forked::new(PlacingThread { work, spare, handle })),
        };
        // After an error the drop waits for the thread, which holds the lease.
        writer.field_order = order_of(&writer.started.fields, fields)?;
        Ok(writer)
    }

    /// The names of the fields, in the order of [`NewSample::fields`]. No name if samples
    /// have a single field without a name.
    pub fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let mut names = vec![&b""[..]; self.started.fields.len()];
        for (name, &at) in self.started.fields.iter().zip(&self.field_order) {
            names[at] = name;
        }
        names.into_iter()
    }

    /// The types of the fields, in the order of [`fields`](Self::fields).
    pub fn field_types(&self) -> FieldTypes {
        let mut types = vec![None; self.started.fields.len()];
        for (field, kind) in self.started.field_types.iter() {
            types[self.field_order[field]] = Some(kind.clone());
        }
        FieldTypes::new(types)
    }

    /// The typed columns: those of the options, and those of the image.
    pub fn columns(&self) -> &[ColumnSpec] {
        &self.started.columns
    }

    /// Number of samples written so far.
    pub fn len(&self) -> u64 {
        self.written
    }

    /// Returns whether no sample was written yet.
    pub fn is_empty(&self) -> bool {
        self.written == 0
    }

    /// The id of the next sample to write. Ids ascend, except with [`WriteOrder::Whole`].
    ///
    /// `None`: all announced samples are written.
    pub fn next_id(&self) -> Option<SampleId> {
        self.id_of(self.written)
    }

    /// The id of the sample that is written as number `nth`, counted from 0. `None`: fewer samples were
    /// announced.
    pub fn id_of(&self, nth: u64) -> Option<SampleId> {
        let slot = self.started.first_id.checked_add(nth)?;
        match &self.placement {
            None => Some(SampleId(slot)),
            Some(placement) => placement.contains(slot).then(|| placement.id_at(Slot(slot))),
        }
    }

    /// The lowest id that this writer assigns: the number of earlier samples, 0 in a part.
    pub fn first_id(&self) -> SampleId {
        SampleId(self.started.first_id)
    }

    /// Writes a sample, and returns its id. Blocks while one full window waits until another is written.
    ///
    /// # Errors
    /// `InvalidArgument`: the sample is not valid; the writer continues without it. All others are errors of
    /// writing; the writer is unusable afterwards.
    pub fn write(&mut self, sample: &NewSample<'_>) -> Result<SampleId> {
        let Some(id) = self.next_id() else {
            let text = format!("{} samples were announced, and more are written", self.written);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        let lens = self.lens(sample)?;
        self.check_values(sample)?;
        let len = fields::record_len(&lens).map_err(|_| {
            let bytes: u64 = lens.iter().flatten().sum();
            invalid(sample, format!("it has {bytes} bytes, and a sample has less than 4 GiB"))
        })?;
        let name = self.name(sample, id)?;
        let label = self.label(sample)?;
        let in_order = self.field_order.iter().map(|&at| sample.fields[at]);
        let table = fields::table(&lens);
        let parts = std::iter::once(&table[..]).chain(in_order.flatten());
        let value = |column: &ColumnSpec| sample.value(column);
        self.window.push((id, &name[..], label), len, parts, value).map_err(|error| {
            invalid(sample, format!("its name, label or values cannot be stored: {error}"))
        })?;
        self.names.insert(xxh3_128(&name));
        self.keep_label(sample.label);
        self.written += 1;
        if self.window.len_bytes() >= self.windows.window_bytes {
            self.hand_over()?;
        }
        Ok(id)
    }

    /// Writes the remaining samples, and commits all samples as one generation.
    ///
    /// # Errors
    /// Errors of writing: nothing is committed. `InvalidArgument`: there is no sample, or fewer than
    /// announced.
    pub fn finish(mut self) -> Result<WriteReport> {
        if let (WriteOrder::Whole { count }, true) = (self.windows.order, self.next_id().is_some())
        {
            let text = format!("{count} samples were announced, and {} written", self.written);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if self.written == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "no sample was written"));
        }
        match self.end()? {
            Written::Image(report) => Ok(report),
            Written::Part(_) => Err(Error::new(ErrorKind::Internal, "a part is no generation")),
        }
    }

    /// Writes the remaining samples of a part, and makes the part durable.
    ///
    /// # Errors
    /// Errors of writing: the part is not complete.
    pub(super) fn finish_part(mut self) -> Result<WrittenPart> {
        match self.end()? {
            Written::Part(part) => Ok(part),
            Written::Image(_) => Err(Error::new(ErrorKind::Internal, "a generation is no part")),
        }
    }

    /// Hands over the remaining samples, and waits for the result of the thread.
    fn end(&mut self) -> Result<Written> {
        self.hand_over()?;
        let commit = Work::Commit { classes: std::mem::take(&mut self.class_names) };
        let thread = self.take_thread()?;
        // If the thread has ended already, its result is the reason.
        let _ = thread.work.send(commit);
        joined(thread.handle)
    }

    /// The lengths of the sample's fields, in the image's order. Checks their number, and the lengths of typed
    /// fields.
    fn lens(&self, sample: &NewSample<'_>) -> Result<Vec<Option<u64>>> {
        if sample.fields.len() != self.field_order.len() {
            let found = sample.fields.len();
            let expected = self.field_order.len();
            let text = format!("it has {found} fields, and this image's samples have {expected}");
            return Err(invalid(sample, text));
        }
        for (field, kind) in self.started.field_types.iter() {
            let Some(bytes) = sample.fields[self.field_order[field]] else { continue };
            if let Err(why) = kind.check_len(bytes.len() as u64) {
                let name = self.started.fields[field].escape_ascii();
                return Err(invalid(sample, format!("field {name} {why}")));
            }
        }
        let len = |&at: &usize| sample.fields[at].map(|bytes| bytes.len() as u64);
        if sample.fields.len() == 1 && sample.fields[0].is_none() {
            return Err(invalid(sample, "its only field is absent".into()));
        }
        Ok(self.field_order.iter().map(len).collect())
    }

    /// Checks that the columns exist and can hold the sample's values.
    fn check_values(&self, sample: &NewSample<'_>) -> Result<()> {
        for (name, value) in sample.values {
            let Some(column) = self.started.columns.iter().find(|column| column.name == *name)
            else {
                return Err(invalid(sample, format!("there is no column {name}")));
            };
            if !column.kind.holds(*value) {
                let what = format!("column {name} is {}, which does not hold {value}", column.kind);
                return Err(invalid(sample, what));
            }
        }
        Ok(())
    }

    /// The sample's name. A sample without a name is named by its id; in a part, by the numbers of part and
    /// sample.
    fn name(&self, sample: &NewSample<'_>, id: SampleId) -> Result<Vec<u8>> {
        let name = match sample.name {
            Some(name) => name.to_vec(),
            None => match self.started.part {
                Some(part) => format!("{part:05}-{:09}", id.0).into_bytes(),
                None => format!("{:09}", id.0).into_bytes(),
            },
        };
        if sample.name.is_some_and(<[u8]>::is_empty) {
            return Err(invalid(sample, "its name is empty".into()));
        }
        let is_taken = self.names.contains(&xxh3_128(&name))
            || match &self.started.image {
                Some(image) => image.lookup(&name)?.is_some(),
                None => false,
            };
        if is_taken { Err(invalid(sample, "another sample has its name".into())) } else { Ok(name) }
    }

    /// The sample's label, as a number. A new class gets the next number once the sample is accepted.
    fn label(&self, sample: &NewSample<'_>) -> Result<Option<i64>> {
        let number = match sample.label {
            Label::None => return Ok(None),
            Label::Number(number) => number,
            Label::Class(name) => {
                let known = self.classes.get(name).copied();
                if known.is_none() && self.started.part.is_some() {
                    let text = format!(
                        "the plan has no class {:?}: a class has one number in all parts",
                        String::from_utf8_lossy(name)
                    );
                    return Err(invalid(sample, text));
                }
                known.unwrap_or(self.class_names.len() as i64)
            }
        };
        if check_label(Some(number)).is_err() {
            return Err(invalid(sample, format!("{number} is not a label")));
        }
        let is_class = matches!(sample.label, Label::Class(_));
        if self.are_classes.is_some_and(|before| before != is_class) {
            let text = "its label and those before are not alike: labels are numbers, or names";
            return Err(invalid(sample, text.into()));
        }
        Ok(Some(number))
    }

    /// Remembers the label of an accepted sample.
    fn keep_label(&mut self, label: Label<'_>) {
        if label != Label::None {
            self.are_classes = Some(matches!(label, Label::Class(_)));
        }
        if let Label::Class(name) = label
            && !self.classes.contains_key(name)
        {
            self.classes.insert(name.to_vec(), self.class_names.len() as i64);
            self.class_names.push(name.to_vec());
        }
    }

    /// Hands the window to the thread that places it.
    fn hand_over(&mut self) -> Result<()> {
        if self.window.len() == 0 {
            return Ok(());
        }
        let thread = self.thread.as_ref().ok_or_else(ended_early)?;
        let thread = thread.get().ok_or_else(forked)?;
        let next = thread.spare.try_recv().ok();
        let next =
            next.unwrap_or_else(|| Window::new(&self.started.columns, self.windows.window_bytes));
        let full = std::mem::replace(&mut self.window, next);
        if thread.work.send(Work::Place(full)).is_ok() {
            return Ok(());
        }
        let thread = self.take_thread()?;
        Err(joined(thread.handle).err().unwrap_or_else(ended_early))
    }

    /// Takes the thread, after which the writer has ended.
    fn take_thread(&mut self) -> Result<PlacingThread> {
        self.thread.take().ok_or_else(ended_early)?.into_inner().ok_or_else(forked)
    }
}

/// Discards all samples that are not committed.
impl Drop for Writer {
    fn drop(&mut self) {
        if let Ok(thread) = self.take_thread() {
            drop(thread.work);
            // Ignore the thread's error: the caller knows that nothing was committed.
            let _ = thread.handle.join();
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("first_id", &self.started.first_id)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

/// For each field of the image, its index among the caller's fields.
fn order_of(image: &[Vec<u8>], given: &[Vec<u8>]) -> Result<Vec<usize>> {
    if image.is_empty() && given.is_empty() {
        return Ok(vec![0]);
    }
    if given.is_empty() {
        return Ok((0..image.len()).collect());
    }
    let index = |name: &Vec<u8>| given.iter().position(|other| other == name);
    let order: Option<Vec<usize>> = image.iter().map(index).collect();
    let order = order.filter(|order| order.len() == given.len());
    order.ok_or_else(|| other_fields("writer", given, image))
}

/// The error for a sample that cannot be written.
fn invalid(sample: &NewSample<'_>, why: String) -> Error {
    let name = sample.name.map_or_else(
        || "without a name".into(),
        |name| format!("{:?}", String::from_utf8_lossy(name)),
    );
    Error::new(ErrorKind::InvalidArgument, format!("the sample {name} is not written: {why}"))
}

/// The result of the thread. The thread returns panics as errors.
fn joined(handle: JoinHandle<Result<Written>>) -> Result<Written> {
    handle.join().unwrap_or_else(|_| Err(ended_early()))
}

/// The error for a writer in a forked child.
fn forked() -> Error {
    let text = "a writer writes in the process that created it, not in a forked child";
    Error::new(ErrorKind::InvalidArgument, text)
}

/// The error for a writer whose thread has ended.
fn ended_early() -> Error {
    Error::new(ErrorKind::Interrupted, "this writer has ended: a write failed, or its thread did")
}

/// The name of the thread.
const NAME: &str = "dlfs-writer";
