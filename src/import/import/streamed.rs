//! Imports a stream: reads it once, and writes its samples as they arrive, in their order or shuffled in windows.
//!
//! An indexed import lays out all chunks before it begins; this import lays them out as it reads. A resumed import
//! reads the stream again, but does not write chunks again that are on the media with the expected bytes. Of shards or
//! rows in an object store, it reads only what follows the newest usable point that the interrupted import has
//! recorded: see `points.rs` and `chunk_stream.rs`.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use super::tokenizer::GivenTokenizer;
use super::write_behind::PIECE_BYTES;
use crate::import::bad_entries::{BadEntries, no_samples};
use crate::import::checked::{Checked, Checks};
use crate::import::chunk_stream::{ChunkStream, Restored, Streamed};
use crate::import::columns::{ColumnFile, RowColumns};
use crate::import::formats::{self, Encoder, RowSource, SharedOrigins};
use crate::import::lease::Lease;
use crate::import::media::Media;
use crate::import::options::{
    ImportOptions, ImportReport, OnError, PlacementOrder, Progress, Stage, other_fields,
    source_options, stopped,
};
use crate::import::points::{Points, listed_objects};
use crate::import::prepare::{self, ImportState};
use crate::import::sources::expansion::Expansion;
use crate::import::sources::file_counts::set_piped_bytes;
use crate::import::sources::objects::push_origin;
use crate::import::sources::sample_stream::{SampleStream, StreamPlace, StreamSample};
use crate::import::sources::stream::StreamSource;
use crate::import::sources::{
    BadEntry, BadReason, Decided, FileCount, Found, FoundFile, Inputs, Shuffled, SourceKind,
};
use dlfs_base::error::invalid;
use dlfs_base::units::SampleId;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::columns::{ColumnTable, RowValues};
use dlfs_format::format::{FieldTypes, OriginsBuilder, SampleMeta, fields};
use dlfs_places::{Client, Object};

/// Imports the streams `found` onto `media`.
///
/// # Errors
/// As [`import`](crate::import::import).
pub(super) fn run(
    found: Found,
    columns: Option<ColumnFile>,
    media: Media,
    lease: &Lease,
    options: &ImportOptions,
    progress: &mut dyn Progress,
) -> Result<ImportReport> {
    let tokenizer = GivenTokenizer::read(options, found.kind)?;
    let state = prepare::prepare(media, options, NO_FINGERPRINT)?;
    if state.done {
        return Err(Error::new(ErrorKind::NotFound, "there is no unfinished import to resume"));
    }
    let image = state.image();
    let of_tokens = tokenizer.as_ref().map(|given| given.options(options, image)).transpose()?;
    let options = of_tokens.as_ref().unwrap_or(options);
    let encoder = tokenizer.as_ref().and_then(|given| given.encoder.as_ref());
    options.numbered(image)?;
    let columns = columns.map(|columns| columns.for_image(image)).transpose()?;
    let mut detected = DetectedKind { kind: found.kind, decided: found.decided };
    let origins = SharedOrigins::default();
    let objects = listed_objects(&found.files);
    let files_again = state.resumed.then(|| found.files.clone());
    let field_columns = OnceLock::new();
    let checks = Checks { image, file: columns.as_ref(), options, field_columns: &field_columns };
    let expansion = Expansion::new(options.max_expansion);
    let mut opened = open(found.files, &mut detected, checks, encoder, &origins, &expansion)?;
    if let Some(image) = image {
        opened.check_fields(detected.kind, image)?;
    }
    if let Opened::Rows(rows) = &mut opened
        && !state.resumed
    {
        rows.begin()?;
    }
    let kind = detected.kind;
    let shards = opened.shards();
    let points = Points::of(kind, objects, shards, columns.as_ref(), &state, options);
    progress.stage(Stage::Writing, 0, 0);
    state.make_way(options)?;
    state.begin()?;
    let mut import = StreamImport {
        state: &state,
        lease,
        checks,
        row: None,
        values: checks.file.map(ColumnFile::of_stream),
        example: None,
        progress,
        chunks: ChunkStream::new(&state, lease, checks.columns())?,
        points,
        samples: 0,
        sample_bytes: 0,
        only_lists_bad: false,
    };
    let restored = files_again.as_ref().map(|files| import.restore(files, opened.shards()));
    let restored = restored.transpose()?.flatten();
    let mut source = match files_again.zip(restored) {
        Some((files, restored)) => {
            open_after(opened, files, &detected, checks, restored, expansion)?
        }
        None => placed(Checked::new(opened.samples(), checks, FieldTypes::default()), options, 0),
    };
    loop {
        import.note(&*source)?;
        let Some(sample) = source.next_sample()? else { break };
        import.only_lists_bad = options.on_error == OnError::Stop && !source.bad().is_empty();
        import.take(&sample, &mut *source)?;
        source.give_back(sample);
        if import.only_lists_bad && import.progress.stop() {
            break; // the error lists the bad entries so far
        }
    }
    let bad = found.bad.iter().chain(source.bad()).cloned().collect();
    let bad = checked_bad(bad, options)?;
    let mut file_counts: Vec<FileCount> =
        found.file_counts.0.into_iter().chain(source.appended()).collect();
    set_piped_bytes(&mut file_counts, source.piped_bytes());
    if import.samples == 0 {
        return Err(no_samples(bad, kind, &file_counts));
    }
    let classes = [source.classes(), &options.classes].into_iter().find(|all| !all.is_empty());
    import.finish(detected, bad, file_counts, classes.unwrap_or_default(), &origins.lock())
}

/// Returns the bad entries of a stream that was read completely.
///
/// # Errors
/// `BadSource`: the options do not allow to leave them out, or one of them should have replaced a sample.
fn checked_bad(bad: Vec<BadEntry>, options: &ImportOptions) -> Result<Vec<BadEntry>> {
    // A later member of the same name was left out. It should have replaced the earlier one, which is imported.
    let is_older = bad.iter().any(|bad| bad.reason == BadReason::ComesAgain);
    if is_older || options.on_error == OnError::Stop && !bad.is_empty() {
        return Err(BadEntries(bad).into_error());
    }
    Ok(bad)
}

/// The kind of a source, and the reason for that kind.
pub(super) struct DetectedKind {
    pub(super) kind: SourceKind,
    pub(super) decided: Option<Decided>,
}

impl DetectedKind {
    /// Returns whether archives count as plain archives only because no pair has been found so far.
    fn is_open(&self) -> bool {
        self.decided == Some(Decided::NoPair)
    }

    /// The samples of archives or of TFRecords from `place` on, where `inputs` begin. `names` are the hashes of the
    /// names before it. Samples with more bytes than `most_at_once` are read in pieces.
    ///
    /// # Errors
    /// `BadSource`: samples of this kind do not come in streams.
    pub(super) fn samples(
        &self,
        inputs: Inputs,
        fields: Option<Vec<Vec<u8>>>,
        options: &ImportOptions,
        most_at_once: u64,
        place: StreamPlace,
        names: HashSet<u128>,
    ) -> Result<Box<dyn SampleStream>> {
        let members = source_options(options, Vec::new());
        let source = StreamSource::of_inputs(inputs, self.kind, fields, &members, self.is_open())?;
        Ok(Box::new(source.at_once(most_at_once).after(place, names)))
    }
}

/// A source of which no sample has been read yet.
enum Opened {
    /// Files of rows.
    Rows(Box<RowSource>),
    /// Archives, or TFRecords.
    Other(Box<dyn SampleStream>),
}

impl Opened {
    /// The objects that are read although the user did not list them.
    fn shards(&self) -> &[(Client, Object)] {
        match self {
            Opened::Rows(rows) => rows.shards(),
            Opened::Other(_) => &[],
        }
    }

    /// Checks that samples have the fields of the image that they are appended to. Of an append, the fields are known
    /// before the first sample: a group of files takes those of the image, if this has any.
    ///
    /// # Errors
    /// `InvalidArgument`: they have other fields.
    fn check_fields(&self, kind: SourceKind, image: &Directory) -> Result<()> {
        let fields = match self {
            Opened::Rows(rows) => rows.fields(),
            Opened::Other(samples) => samples.fields(),
        };
        if kind == SourceKind::WebDataset && image.fields().is_empty() {
            return Err(invalid("samples of the source have fields, and those of the image none"));
        }
        if fields == image.fields() {
            return Ok(());
        }
        Err(other_fields("source", fields, image.fields()))
    }

    /// All samples of the source.
    fn samples(self) -> Box<dyn SampleStream> {
        match self {
            Opened::Rows(rows) => rows,
            Opened::Other(samples) => samples,
        }
    }
}

/// Opens `files`, and records their objects as origins. Corrects `detected` if the first archive shows pairs.
fn open(
    files: Vec<FoundFile>,
    detected: &mut DetectedKind,
    checks: Checks<'_>,
    encoder: Option<&Arc<Encoder>>,
    origins: &SharedOrigins,
    expansion: &Expansion,
) -> Result<Opened> {
    for (client, object) in files.iter().filter_map(|file| file.object.as_ref()) {
        push_origin(&mut origins.lock(), client, object);
    }
    let Checks { image, options, .. } = checks;
    if detected.kind.is_rows() {
        let rows =
            formats::open(files, detected.kind, image, options, encoder, origins, expansion)?;
        return Ok(Opened::Rows(Box::new(rows)));
    }
    let mut inputs = Inputs::new(files, expansion.clone());
    if detected.is_open()
        && let Some(pair) = inputs.pair_at_beginning()?
    {
        *detected = DetectedKind { kind: SourceKind::WebDataset, decided: Some(pair) };
    }
    let fields = image.map(|image| image.fields().to_vec());
    let place = StreamPlace::default();
    let most = most_at_once(checks);
    detected.samples(inputs, fields, options, most, place, HashSet::new()).map(Opened::Other)
}

/// The limit above which a sample is read in pieces, in bytes. There is none if types or columns need the whole sample.
fn most_at_once(Checks { image, options, .. }: Checks<'_>) -> u64 {
    let has_types = image.is_some_and(|image| image.field_types().iter().next().is_some());
    if options.field_types.is_empty() && options.field_columns.is_empty() && !has_types {
        WINDOW_BYTES as u64
    } else {
        u64::MAX
    }
}

/// Opens the samples that follow those on the media, from the position of the last point.
fn open_after<'a>(
    opened: Opened,
    files: Vec<FoundFile>,
    detected: &DetectedKind,
    checks: Checks<'a>,
    (place, restored): (StreamPlace, Restored),
    expansion: Expansion,
) -> Result<Box<dyn SampleStream + 'a>> {
    let options = checks.options;
    let source: Box<dyn SampleStream> = match opened {
        Opened::Rows(rows) => Box::new(rows.after(&place, restored.names, &restored.classes)?),
        Opened::Other(_) => {
            let inputs = Inputs::from(files, place.input, place.offset, expansion)?;
            let most = most_at_once(checks);
            detected.samples(inputs, Some(restored.fields), options, most, place, restored.names)?
        }
    };
    let source = Checked::new(source, checks, restored.field_types);
    Ok(placed(source, options, place.windows))
}

/// The samples in the order of placement, after `windows` earlier windows.
fn placed<'a>(
    source: Checked<'a>,
    options: &ImportOptions,
    windows: u64,
) -> Box<dyn SampleStream + 'a> {
    let source = Box::new(source);
    match options.placement {
        PlacementOrder::Source => source,
        PlacementOrder::Shuffled => {
            Box::new(Shuffled::new(source, options.seed, WINDOW_BYTES, windows))
        }
    }
}

/// A stream that is being imported.
struct StreamImport<'a> {
    state: &'a ImportState,
    lease: &'a Lease,
    checks: Checks<'a>,
    /// A table of one row for column values that come from fields, if there are any.
    row: Option<ColumnTable>,
    /// The values of the samples so far, if there is a file of values.
    values: Option<RowColumns<'a>>,
    /// The name of the first sample, if there is a file of values.
    example: Option<Vec<u8>>,
    progress: &'a mut dyn Progress,
    /// The chunks of the import.
    chunks: ChunkStream<'a>,
    /// The points at which the import can resume after an interruption, if it can.
    points: Option<Points>,
    /// Samples so far.
    samples: u64,
    /// Bytes of these samples.
    sample_bytes: u64,
    /// Set if the import has failed, and reads the rest of the stream only to list bad entries.
    only_lists_bad: bool,
}

impl StreamImport<'_> {
    /// Takes over the samples on the media up to the last point of an interrupted import before which no chunk
    /// is missing. Returns the position at which to continue reading; `None`: at the beginning.
    fn restore(
        &mut self,
        files: &[FoundFile],
        shards: &[(Client, Object)],
    ) -> Result<Option<(StreamPlace, Restored)>> {
        let Some(points) = &mut self.points else { return Ok(None) };
        for (point, classes) in points.saved(self.state, files, shards)? {
            let values = &mut self.values;
            let example = &mut self.example;
            let mut seen = |name: &[u8]| {
                if let Some(values) = values {
                    example.get_or_insert_with(|| name.to_vec());
                    values.next(name);
                }
            };
            let restored = self.chunks.restore(point.samples, &mut seen, self.progress)?;
            if let Some(mut restored) = restored {
                restored.classes = classes;
                (self.samples, self.sample_bytes) = (point.samples, restored.sample_bytes);
                points.begin_at(point, &restored.classes, self.sample_bytes);
                self.progress.advance(self.samples, self.sample_bytes);
                return Ok(Some((point.place, restored)));
            }
            self.chunks = ChunkStream::new(self.state, self.lease, self.checks.columns())?;
            self.values = self.checks.file.map(ColumnFile::of_stream);
            self.example = None;
        }
        Ok(None)
    }

    /// Notes the source's position, and writes the last noted position before which all chunks are written.
    fn note(&mut self, source: &dyn SampleStream) -> Result<()> {
        let Some(points) = &mut self.points else { return Ok(()) };
        points.write(&mut self.chunks)?;
        if !self.only_lists_bad {
            points.note(self.samples, self.sample_bytes, source);
        }
        Ok(())
    }

    /// Writes a sample. If its unread bytes turn out to be bad, tells `source` and leaves it out.
    fn take(&mut self, sample: &StreamSample, source: &mut dyn SampleStream) -> Result<()> {
        if self.only_lists_bad {
            return Ok(());
        }
        if self.samples == 0 {
            // The first sample determines the fields and their types.
            self.chunks.set_fields(source.fields(), source.field_types());
        }
        let values = match &mut self.values {
            Some(values) => {
                self.example.get_or_insert_with(|| sample.name.clone());
                values.next(&sample.name)
            }
            None => RowValues::default(),
        };
        let Checks { file, field_columns, .. } = self.checks;
        let values = match field_columns.get() {
            Some(columns) => {
                let row = self.row.get_or_insert_with(|| {
                    self.chunks.spec.columns = columns.join(self.checks.columns());
                    columns.table()
                });
                row.clear();
                columns.push(row, &sample.name, file, &sample.values);
                row.row(0)
            }
            None => values,
        };
        let lens = sample.lens();
        let len = fields::record_len(&lens)?;
        // Slots equal ids here: samples are on the media in the order of the stream.
        let id = SampleId(self.chunks.next_slot().0);
        let meta = SampleMeta { id, name: &sample.name, label: sample.label, values };
        let mut bad = None;
        let mut give = |take: &mut dyn FnMut(&[u8]) -> Result<()>| match sample.unread {
            0 => {
                // The length table if there are several fields, then the fields.
                take(&fields::table(&lens))?;
                sample.fields.iter().flatten().try_for_each(|field| take(field))
            }
            len => give_unread(source, len, take, &mut bad),
        };
        let pushed = self.chunks.push(&meta, len, &mut give);
        if let Some(reason) = bad {
            self.values.iter_mut().for_each(RowColumns::forget_last);
            source.reject(&sample.name, reason);
            return Ok(());
        }
        pushed?;
        self.samples += 1;
        self.sample_bytes += u64::from(len);
        self.progress.advance(1, u64::from(len));
        if self.progress.stop() {
            return Err(stopped());
        }
        Ok(())
    }

    /// Commits the samples.
    fn finish(
        self,
        DetectedKind { kind, decided }: DetectedKind,
        bad: Vec<BadEntry>,
        file_counts: Vec<FileCount>,
        classes: &[Vec<u8>],
        origins: &OriginsBuilder,
    ) -> Result<ImportReport> {
        if let Some(values) = &self.values {
            values.check(self.example.as_deref())?;
        }
        self.progress.stage(Stage::Committing, 0, 0);
        let Streamed { commit, chunks, found, media } = self.chunks.commit(classes, origins)?;
        Ok(ImportReport {
            decided,
            samples: self.samples,
            sample_bytes: self.sample_bytes,
            chunks,
            chunks_found: found,
            media,
            bad,
            file_counts,
            columns: self.values.as_ref().map(RowColumns::counts),
            ..ImportReport::of(kind, &commit.directory, &commit.superblocks)
        })
    }
}

/// Passes the `len` unread bytes of the last sample to `take`. If the sample cannot be imported, sets `bad` to
/// the reason.
fn give_unread(
    source: &mut dyn SampleStream,
    len: u64,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
    bad: &mut Option<BadReason>,
) -> Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut left = len;
    while left > 0 {
        let read = source.read_on(&mut piece).and_then(|read| {
            // The length is laid out already. With fewer bytes, old data would fill the rest of the sample.
            let rest = left.checked_sub(read as u64).filter(|_| read > 0);
            left = rest.ok_or(BadReason::Truncated("it has not as many bytes as it states"))?;
            Ok(read)
        });
        match read {
            Ok(read) => take(&piece[..read])?,
            Err(reason) => {
                let error = Error::new(ErrorKind::BadSource, reason.to_string());
                *bad = Some(reason);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Size of a shuffle window in bytes. Larger samples are read in pieces if possible.
const WINDOW_BYTES: usize = 64 << 20;
/// A stream has no fingerprint before it is read.
const NO_FINGERPRINT: u64 = 0;
