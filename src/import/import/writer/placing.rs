//! The thread of a writer: it opens the image, places full windows in chunks, and commits. `window.rs` has the windows:
//! samples in memory that are placed together.

use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use crate::import::chunk_stream::{ChunkStream, Streamed};
use crate::import::columns::columns_of;
use crate::import::device::or_remove;
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::{ImportOptions, Onto, PlacementOrder};
use crate::import::prepare::{self, ImportState};
use crate::import::writer::options::{Windows, WriteOrder, WriteReport, WriterOptions};
use crate::import::writer::window::Window;
use dlfs_base::error::invalid;
use dlfs_base::units::{Generation, Slot};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::builder::encode_fields;
use dlfs_format::format::columns::{ColumnSpec, check_columns};
use dlfs_format::format::{
    ChunkSpec, FieldTypes, ImageLayout, OriginsBuilder, Part, Placement, Uuid,
};
use dlfs_io::qpair::Device;

/// Opens the namespaces, and lists the files that it creates.
pub(super) type Open =
    Box<dyn FnOnce(Onto, &mut Vec<PathBuf>) -> Result<Vec<Arc<dyn Device>>> + Send>;

/// The next work of the thread.
pub(in crate::import) enum Work {
    /// Write the samples of a window.
    Place(Window),
    /// Commit, with these class names. In a part they are those of the plan.
    Commit { classes: Vec<Vec<u8>> },
}

/// The thread's ends of the channels to its writer.
pub(in crate::import) struct Thread {
    /// Sends the writer the data that it needs, once.
    pub(super) started: Sender<Started>,
    /// Receives the next work. Disconnected when the writer is dropped.
    pub(super) work: Receiver<Work>,
    /// Returns windows whose samples are written.
    pub(super) spare: Sender<Window>,
}

impl Thread {
    /// Tells the writer that it may begin.
    ///
    /// # Errors
    /// The writer was dropped.
    pub(in crate::import) fn start(&self, started: Started) -> Result<()> {
        self.started.send(started).map_err(|_| discarded())
    }

    /// Waits for the next work.
    ///
    /// # Errors
    /// The writer was dropped.
    pub(in crate::import) fn next(&self) -> Result<Work> {
        self.work.recv().map_err(|_| discarded())
    }
}

/// Data about the image that the writer needs.
#[derive(Debug, Clone, Default)]
pub(in crate::import) struct Started {
    /// The number of the part, if the writer writes a part.
    pub(in crate::import) part: Option<u64>,
    /// The generation to append to.
    pub(in crate::import) image: Option<Arc<Directory>>,
    /// The id of the writer's first sample: the number of samples before it.
    pub(in crate::import) first_id: u64,
    /// With [`WriteOrder::Whole`]: the part that holds all samples.
    pub(in crate::import) whole: Option<Part>,
    pub(in crate::import) fields: Vec<Vec<u8>>,
    pub(in crate::import) field_types: FieldTypes,
    pub(in crate::import) columns: Vec<ColumnSpec>,
    pub(in crate::import) classes: Vec<Vec<u8>>,
}

/// Runs until the commit, a failure, or the end of `work`. Discards uncommitted samples: removes files that it
/// created, and truncates other files to their old length.
pub(super) fn run(options: &WriterOptions, open: Open, thread: &Thread) -> Result<WriteReport> {
    or_remove(|created| write_all(options, &open(options.image.onto, created)?, thread))
}

/// Takes the lease, and writes the image on open namespaces. After a failure, gives files their old length, unless the
/// generation may be committed: its superblock is written, and only the flush behind it failed, or it cannot be read.
fn write_all(
    options: &WriterOptions,
    devices: &[Arc<dyn Device>],
    thread: &Thread,
) -> Result<WriteReport> {
    if options.image.onto == Onto::Resume {
        return Err(invalid("a writer cannot be resumed: its samples do not come again"));
    }
    let lengths: Vec<u64> = devices.iter().map(|device| device.namespace().len_bytes()).collect();
    let media = prepare::in_image_order(&Media::new(devices.to_vec())?)?;
    let lease = Lease::take(&media, options.image.lease)?;
    let newest = || media.channel().superblocks(0).map(|copies| copies.newest().copied());
    let before = newest().ok();
    let result = lease.explain(write_leased(options, media.clone(), &lease, thread));
    let is_uncommitted = || newest().is_ok_and(|now| now.is_none() || Some(now) == before);
    if result.is_err() && lease.check().is_ok() && is_uncommitted() {
        for (device, len_bytes) in devices.iter().zip(lengths) {
            // Files get their old length again. No reader uses the bytes after it.
            let _ = device.trim(&[], len_bytes);
        }
    }
    result
}

/// Writes the samples of all windows, and commits. The caller holds the lease.
fn write_leased(
    options: &WriterOptions,
    media: Media,
    lease: &Lease,
    thread: &Thread,
) -> Result<WriteReport> {
    if options.image.onto != Onto::Append {
        // Check before the old image is discarded.
        let ImportOptions { chunk_size_bytes, pack, .. } = options.image;
        let layout = ImageLayout::new(Uuid([0; 16]), chunk_size_bytes, pack, media.len())?;
        check(layout, &options.fields, &options.field_types, &options.columns)?;
    }
    let state = prepare_image(options, media)?;
    let start = start_of(options, &state)?;
    super::order_of(&start.fields, &options.fields)?; // before another append's plan is given up
    state.make_way(&options.image)?;
    thread.start(start.clone())?;
    // Write nothing before the first window is full, or all samples are written: a writer that is dropped earlier
    // leaves the image as it was prepared.
    let next = thread.next()?;
    state.begin()?;
    let mut chunks = ChunkStream::new(&state, lease, start.columns)?;
    chunks.set_fields(&start.fields, start.field_types);
    let mut placer = Placer::new(options.windows(), start.first_id, chunks);
    let classes = placer.place_all(thread, next)?;
    placer.commit(classes)
}

/// Inspects the image, and decides what to write.
fn prepare_image(options: &WriterOptions, media: Media) -> Result<ImportState> {
    let image = ImportOptions { placement: PlacementOrder::Source, ..options.image.clone() };
    let mut state = prepare::prepare(media, &image, FINGERPRINT)?;
    if let WriteOrder::Whole { count } = options.order {
        let seed = options.image.seed;
        state.journal.part = Part { count, seed, window: count.max(1), ..state.journal.part };
        state.journal.part.check()?;
    }
    Ok(state)
}

/// The data about the image that the writer needs.
///
/// # Errors
/// `InvalidArgument`: a column or field has another type than in the image.
fn start_of(options: &WriterOptions, state: &ImportState) -> Result<Started> {
    let image = state.current.as_ref().map(|current| current.directory.clone());
    let mut columns = columns_of(image.as_deref());
    for given in &options.columns {
        match columns.iter().find(|column| column.name == given.name) {
            None => columns.push(given.clone()),
            Some(column) if column.kind == given.kind => {}
            Some(column) => {
                return Err(invalid(format!(
                    "the image's column {:?} is of type {}, the writer's of {}",
                    given.name, column.kind, given.kind
                )));
            }
        }
    }
    let fields = image.as_ref().map_or(options.fields.clone(), |image| image.fields().to_vec());
    let field_types = types_of(options, image.as_deref())?;
    check(state.journal.layout, &fields, &field_types, &columns)?;
    Ok(Started {
        part: None,
        first_id: state.journal.part.first,
        whole: (state.journal.part.window > 0).then_some(state.journal.part),
        fields,
        field_types,
        classes: image.as_ref().map_or_else(Vec::new, |image| image.classes().to_vec()),
        columns,
        image,
    })
}

/// Refuses names and types that no image can have, before the first sample is written.
pub(in crate::import) fn check(
    layout: ImageLayout,
    fields: &[Vec<u8>],
    field_types: &FieldTypes,
    columns: &[ColumnSpec],
) -> Result<()> {
    if let Some(twice) = (1..fields.len()).find(|&at| fields[..at].contains(&fields[at])) {
        return Err(invalid(format!("field {} is there twice", fields[twice].escape_ascii())));
    }
    check_columns(columns)?;
    let spec = ChunkSpec {
        layout,
        generation: Generation(1),
        part: Part::default(),
        fields: fields.to_vec(),
        field_types: field_types.clone(),
        columns: columns.to_vec(),
    };
    encode_fields(&spec)?;
    Ok(())
}

/// The types of the image's fields, or of a new image's fields.
fn types_of(options: &WriterOptions, image: Option<&Directory>) -> Result<FieldTypes> {
    let Some(image) = image else { return Ok(options.field_types.clone()) };
    for (at, given) in options.field_types.iter() {
        let name = &options.fields[at];
        let known = image.fields().iter().position(|field| field == name);
        let known = known.and_then(|field| image.field_types().of(field));
        if known != Some(given) {
            let known = known.map_or("bytes, without a type".into(), |known| known.to_string());
            return Err(invalid(format!(
                "field {} is {given}, and in the image it is {known}",
                name.escape_ascii()
            )));
        }
    }
    Ok(image.field_types().clone())
}

/// Places the samples of windows in chunks.
pub(in crate::import) struct Placer<'a> {
    windows: Windows,
    /// Number of windows so far.
    count: u64,
    /// The id of the writer's first sample.
    first: u64,
    /// The id of the next sample.
    next: u64,
    /// The number of bytes of all samples.
    pub(in crate::import) sample_bytes: u64,
    pub(in crate::import) chunks: ChunkStream<'a>,
}

impl<'a> Placer<'a> {
    /// Places samples in `chunks`, from the id `first` on.
    pub(in crate::import) fn new(
        windows: Windows,
        first: u64,
        chunks: ChunkStream<'a>,
    ) -> Placer<'a> {
        Placer { windows, count: 0, first, next: first, sample_bytes: 0, chunks }
    }

    /// Places all windows, beginning with `next`. Returns the names of the classes.
    ///
    /// # Errors
    /// Errors of writing; the writer was dropped.
    pub(in crate::import) fn place_all(
        &mut self,
        thread: &Thread,
        mut next: Work,
    ) -> Result<Vec<Vec<u8>>> {
        loop {
            match next {
                Work::Place(mut window) => {
                    self.place(&window)?;
                    window.clear(self.windows.window_bytes);
                    // The writer may have ended, and no longer takes windows.
                    let _ = thread.spare.send(window);
                }
                Work::Commit { classes } => return Ok(classes),
            }
            next = thread.next()?;
        }
    }

    /// Places the samples of a window, in the writer's order.
    fn place(&mut self, window: &Window) -> Result<()> {
        let count = window.len() as u64;
        match self.windows.order {
            WriteOrder::Windows => {
                let seed = self.windows.seed.wrapping_add(self.count);
                let part = Part { first: self.next, count, seed, window: count };
                self.chunks.begin_at(part, Slot(part.first))?;
                let placement = Placement::new(part);
                for slot in part.first..part.first + count {
                    let id = placement.id_at(Slot(slot));
                    self.push(window, (id.0 - part.first) as usize)?;
                }
            }
            // The samples arrive in the order of slots.
            WriteOrder::Written | WriteOrder::Whole { .. } => {
                for at in 0..window.len() {
                    self.push(window, at)?;
                }
            }
        }
        self.next += count;
        self.count += 1;
        Ok(())
    }

    /// Adds sample number `at` of a window to the chunks.
    fn push(&mut self, window: &Window, at: usize) -> Result<()> {
        let record = window.record(at);
        let len = record.len() as u32; // its length was checked to be a `u32`
        self.sample_bytes += u64::from(len);
        self.chunks.push(&window.meta(at), len, &mut |take| take(record))
    }

    /// Commits all samples as one generation.
    fn commit(self, classes: Vec<Vec<u8>>) -> Result<WriteReport> {
        let origins = OriginsBuilder::default();
        let Streamed { commit, chunks, .. } = self.chunks.commit(&classes, &origins)?;
        Ok(WriteReport {
            samples: self.next - self.first,
            sample_bytes: self.sample_bytes,
            chunks,
            ..WriteReport::of(&commit.directory, &commit.superblocks)
        })
    }
}

fn discarded() -> Error {
    Error::new(ErrorKind::Interrupted, "the writer was discarded before it was finished")
}

/// Marks a journal that no source can resume: "written!" in ASCII.
const FINGERPRINT: u64 = u64::from_be_bytes(*b"written!");
