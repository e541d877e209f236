//! Reads samples from streams of archives and TFRecord shards: pipes, compressed files, objects of stores, and single
//! shards that are read without an import.
//!
//! Samples are members of archives, or records of TFRecord shards, in the order in which they arrive. Nothing is known
//! of a stream before it is read. So the first sample determines the fields, unless an image or an earlier import of
//! the stream has done so. Samples of a plain archive have no labels: the numbers of its folders would be known only at
//! the end.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use xxhash_rust::xxh3::xxh3_128;

use super::SourceOptions;
use super::bad::{BadEntry, BadReason};
use super::detect::given_file;
use super::expansion::Expansion;
use super::file_counts::{FileCount, FileCounts, REPLACED, Role};
use super::index::{MAX_NAME_BYTES, TOO_LONG_A_NAME, TOO_MANY_FIELDS, has_room_for_field};
use super::inputs::{Inputs, Stream};
use super::sample_stream::{FieldBytes, SampleStream, StreamPlace, StreamSample};
use super::source_kind::SourceKind;
use super::spool::is_stream;
use super::tar::{Judge, first_below, key_and_field, parse_label, undecided};
use super::tar_members::{Member, MemberKind, Members};
use dlfs_base::{Error, ErrorKind, Result};

/// Reads the samples of streams, one after the other.
#[derive(Default)]
pub struct StreamSource {
    inputs: Inputs,
    /// The path and the members of the current stream; `None`: the next stream is to be opened.
    members: Option<(PathBuf, Members<Stream>)>,
    /// Counts of replaced members, and of archives after the first one of their stream.
    appended: FileCounts,
    /// Counts of members that are left out, or that the report mentions.
    counted: FileCounts,
    /// Decompressed bytes of the pipes that have ended.
    piped_bytes: u64,
    judge: Judge,
    /// Set if each name is prefixed with the name of its stream.
    prefix: bool,
    /// The name of the current stream.
    shard: Vec<u8>,
    /// The names of the fields; empty for one field without a name. `None`: the first sample will determine them.
    fields: Option<Vec<Vec<u8>>>,
    /// Set until the first sample is complete, if it determines the fields of all samples.
    fields_grow: bool,
    /// The group of members that is being assembled.
    open: Option<StreamSample>,
    /// Byte offset, in the current stream, of the first member of the group `open`.
    open_at: u64,
    /// Byte offset and number of the record in the first stream at which reading begins.
    begin_at: (u64, u64),
    /// Hashes of the sample names so far: a stream cannot be read again to compare names.
    names: HashSet<u128>,
    /// Hashes of the names read from the current stream, before a prefix is added.
    stream_names: HashSet<u128>,
    /// Set while the current stream is the first one and was resumed: `names` are then all of this stream.
    is_resumed_first: bool,
    /// The folders of plain archives so far, without those that samples in them followed.
    folders: Vec<Vec<u8>>,
    bad: Vec<BadEntry>,
    spare: SpareBuffers,
    /// Length in bytes above which a file is read in pieces.
    most_at_once: u64,
}

impl StreamSource {
    /// The streams at `paths` (`-`: standard input), which contain `kind`. `fields`: the image's fields, and samples
    /// may have no others; `None`: the first sample determines the fields.
    ///
    /// # Errors
    /// `BadSource`: a stream of this kind needs a spool.
    pub fn new(
        paths: Vec<PathBuf>,
        kind: SourceKind,
        fields: Option<Vec<Vec<u8>>>,
    ) -> Result<StreamSource> {
        let files = paths.iter().map(|path| given_file(path)).collect();
        let inputs = Inputs::new(files, Expansion::default());
        StreamSource::of_inputs(inputs, kind, fields, &SourceOptions::default(), false)
    }

    /// As [`new`](Self::new), for any inputs; `options` select the members and define their names. `is_open`: the kind
    /// was not given, so a pair of files with one key is an error.
    pub(crate) fn of_inputs(
        inputs: Inputs,
        kind: SourceKind,
        fields: Option<Vec<Vec<u8>>>,
        options: &SourceOptions,
        is_open: bool,
    ) -> Result<StreamSource> {
        use SourceKind::{Tar, TfRecord, WebDataset};
        if !matches!(kind, Tar | WebDataset | TfRecord) {
            let message = format!("a stream of the kind {kind} cannot be imported as it comes");
            return Err(Error::new(ErrorKind::BadSource, message)
                .hint("give it room for a copy with --spool DIR"));
        }
        let fields = if kind == WebDataset { fields } else { Some(Vec::new()) };
        let mut judge = Judge::new(kind, options, is_open);
        judge.is_stream = true;
        let fields_grow = fields.is_none();
        let prefix = options.prefix;
        let most_at_once = u64::MAX;
        let empty = StreamSource::default();
        Ok(StreamSource { inputs, judge, prefix, fields_grow, fields, most_at_once, ..empty })
    }

    /// Leaves files of more than `most` bytes to be [read in pieces](SampleStream::read_on), if each file is a sample.
    pub(crate) fn at_once(self, most: u64) -> StreamSource {
        StreamSource { most_at_once: most, ..self }
    }

    /// Resumes at `place`, in the first of the inputs. `names`: hashes of the names of the samples before it. If the
    /// input has number 0, all of these are names of this input; otherwise it is not known which are.
    pub(crate) fn after(self, place: StreamPlace, names: HashSet<u128>) -> StreamSource {
        let StreamPlace { input, offset, record, .. } = place;
        StreamSource { begin_at: (offset, record), is_resumed_first: input == 0, names, ..self }
    }

    /// Adds a member; returns the sample that it completes.
    fn take(&mut self, member: &Member) -> Option<StreamSample> {
        if member.kind == MemberKind::Folder {
            if !self.judge.grouped {
                self.folders.extend(self.judge.folder_name(member));
            }
            return None;
        }
        self.try_take(member).unwrap_or_else(|reason| {
            use BadReason::{BadCrc, Name, TooLarge};
            // After any other error, the end of a record is not known.
            if self.judge.numbered && !matches!(reason, BadCrc { .. } | Name(_) | TooLarge(_)) {
                return self.lose_rest(reason);
            }
            self.reject(&member.name, reason);
            None
        })
    }

    /// Ends the current stream, whose rest cannot be read; returns the sample that this completes.
    fn lose_rest(&mut self, reason: BadReason) -> Option<StreamSample> {
        let lost = self.members.as_ref();
        self.bad.extend(lost.map(|(path, members)| members.lost(&self.shard, path, reason)));
        self.end_of_stream()
    }

    /// As [`take`](Self::take), for a member that is not a folder.
    fn try_take(&mut self, member: &Member) -> Result<Option<StreamSample>, BadReason> {
        let Some(name) = self.judge.name_of(member, &mut self.counted)? else {
            return Ok(None);
        };
        if !self.judge.grouped {
            let unread = if member.len_bytes > self.most_at_once { member.len_bytes } else { 0 };
            let bytes =
                if unread > 0 { Vec::new().into() } else { self.payload(member.len_bytes)? };
            if !self.judge.numbered {
                self.judge.count(&name, member.len_bytes, &mut self.counted);
            }
            return Ok(Some(StreamSample { unread, ..StreamSample::new(name, vec![Some(bytes)]) }));
        }
        let (key, field) = key_and_field(&name)?;
        let completed = match &self.open {
            Some(open) if open.name == key => None,
            _ => self.open.take(),
        };
        let payload = self.payload(member.len_bytes);
        let added = payload.and_then(|payload| self.add_field(key, field, payload));
        match (added, completed) {
            (Ok(()), completed) => Ok(completed),
            (Err(reason), None) => Err(reason),
            (Err(reason), completed) => {
                self.reject(&member.name, reason);
                Ok(completed)
            }
        }
    }

    /// Adds a field to the group of `key`; starts the group if it is not open.
    fn add_field(
        &mut self,
        key: &[u8],
        field: Vec<u8>,
        payload: FieldBytes,
    ) -> Result<(), BadReason> {
        let known = self.fields.get_or_insert_default();
        let at = match known.iter().position(|name| *name == field) {
            Some(at) => at,
            None if self.fields_grow && !has_room_for_field(known, &field) => {
                return Err(TOO_MANY_FIELDS);
            }
            None if self.fields_grow => {
                known.push(field.clone());
                known.len() - 1
            }
            None => return Err(BadReason::InStream("has a field that the first sample lacks")),
        };
        if self.open.is_none() {
            self.open_at = self.members.as_ref().map_or(0, |(_, members)| members.member_at);
        }
        let open = self.open.get_or_insert_with(|| StreamSample::new(key.to_vec(), Vec::new()));
        open.fields.resize(known.len().max(open.fields.len()), None);
        if let Some(before) = &open.fields[at] {
            self.appended.add(REPLACED, Role::SetAside, before.len() as u64, key);
        }
        if field == b"cls" {
            open.label = parse_label(&payload);
        }
        open.fields[at] = Some(payload);
        Ok(())
    }

    /// Ends the current stream; returns the sample that this completes.
    fn end_of_stream(&mut self) -> Option<StreamSample> {
        self.judge.begin_shard();
        if let Some((path, members)) = self.members.take() {
            if is_stream(&path) {
                self.piped_bytes += members.position;
            }
            if let Some(appended) = members.appended {
                let bytes = members.position - appended.from;
                self.appended.add_appended(appended.archives, bytes, path.as_os_str().as_bytes());
            }
        }
        self.open.take()
    }

    /// Finishes a completed sample: adds the fields that it lacks as `None`. Prefixes its name with the stream's name
    /// if another stream has the same name, or if all names have a prefix. `None`: an earlier sample of the stream has
    /// the name, or the name with its prefix is taken or too long; the sample is bad.
    fn finish(&mut self, mut sample: StreamSample) -> Option<StreamSample> {
        self.fields_grow = false;
        sample.fields.resize(self.fields().len().max(1), None);
        if self.judge.numbered {
            return Some(sample); // names of records are distinct
        }
        // A folder comes just before what is in it, so this leaves few that are not empty.
        while self.folders.last().is_some_and(|folder| first_below(&sample.name, folder).is_some())
        {
            self.folders.pop();
        }
        let hash = xxh3_128(&sample.name);
        let is_of_this_stream = !self.stream_names.insert(hash);
        let is_of_another = !self.is_resumed_first && self.names.contains(&hash);
        if !is_of_this_stream && (self.prefix || is_of_another) {
            sample.name = [&self.shard[..], b"/", &sample.name].concat();
        }
        let reason = if is_of_this_stream {
            BadReason::ComesAgain
        } else if sample.name.len() > MAX_NAME_BYTES {
            TOO_LONG_A_NAME
        } else if self.names.insert(xxh3_128(&sample.name)) {
            return Some(sample);
        } else if self.is_resumed_first {
            BadReason::ComesAgain
        } else {
            BadReason::Twice
        };
        self.reject(&sample.name, reason);
        None
    }

    /// Reads the payload of the current member, whose header states `len_bytes`. Memory grows with the bytes that
    /// arrive.
    fn payload(&mut self, len_bytes: u64) -> Result<FieldBytes, BadReason> {
        let (_, members) = self.members.as_mut().expect("a member was just read from it");
        if let Some(payload) = members.lend_payload(Stream::lend) {
            return payload;
        }
        let mut payload = self.spare.take();
        payload.truncate(len_bytes as usize); // at most `MAX_SAMPLE_BYTES`
        members.fill(&mut payload)?;
        while (payload.len() as u64) < len_bytes {
            let filled = payload.len();
            let more = (len_bytes - filled as u64).min(PIECE_BYTES) as usize;
            payload.try_reserve(more).map_err(|_| BadReason::Unreadable(libc::ENOMEM))?;
            payload.resize(filled + more, 0);
            members.fill(&mut payload[filled..])?;
        }
        Ok(payload.into())
    }
}

impl SampleStream for StreamSource {
    fn fields(&self) -> &[Vec<u8>] {
        self.fields.as_deref().unwrap_or_default()
    }

    fn folders(&self) -> &[Vec<u8>] {
        &self.folders
    }

    fn give_back(&mut self, sample: StreamSample) {
        let buffers = sample.fields.into_iter().flatten().filter_map(FieldBytes::into_own);
        buffers.for_each(|buffer| self.spare.give_back(buffer));
    }

    fn appended(&self) -> Vec<FileCount> {
        let mut counts = self.counted.clone();
        counts.append(self.appended.0.iter().cloned());
        counts.0
    }

    fn piped_bytes(&self) -> u64 {
        self.piped_bytes
    }

    fn bad(&self) -> &[BadEntry] {
        &self.bad
    }

    fn take_bad(&mut self) -> Vec<BadEntry> {
        self.appended.0.clear(); // these counts also keep `place` from being known
        std::mem::take(&mut self.bad)
    }

    fn read_on(&mut self, into: &mut [u8]) -> Result<usize, BadReason> {
        let Some((_, members)) = &mut self.members else { return Ok(0) };
        let read = members.read_payload(into);
        if read.is_err() && self.judge.numbered {
            members.leave_member();
        }
        read
    }

    fn reject(&mut self, name: &[u8], reason: BadReason) {
        let within = self.members.as_ref().map(|(path, _)| path.clone());
        self.bad.push(BadEntry { within, ..BadEntry::new(name, reason) });
    }

    fn place(&self) -> Option<StreamPlace> {
        let is_clean = self.bad.is_empty() && self.appended.0.is_empty() && !self.fields_grow;
        let begun = self.inputs.begun_objects().filter(|_| is_clean)?;
        let (input, offset, record) = match &self.members {
            None => (begun, 0, 0),
            Some((_, members)) if members.appended.is_some() => return None,
            Some(_) if self.open.is_some() => (begun - 1, self.open_at, 0),
            Some((_, members)) => (begun - 1, members.next_at(), members.next_record()),
        };
        Some(StreamPlace { input, offset, record, ..StreamPlace::default() })
    }

    fn next_sample(&mut self) -> Result<Option<StreamSample>> {
        loop {
            if self.members.is_none() {
                let Some((file, stream)) = self.inputs.next()? else { return Ok(None) };
                let (at, record) = std::mem::take(&mut self.begin_at);
                if at == 0 {
                    self.stream_names.clear();
                    self.is_resumed_first = false;
                }
                self.shard = file.name;
                let members = Members::from(stream, at);
                let numbered = self.judge.numbered;
                let members = if numbered { members.records(record) } else { members };
                self.members = Some((file.path, members));
            }
            let (_, members) = self.members.as_mut().expect("opened just above");
            let completed = match members.next_member() {
                Ok(Some(mut member)) => {
                    if self.judge.numbered {
                        member.put_in_front(&self.shard);
                    }
                    self.take(&member)
                }
                Ok(None) => self.end_of_stream(),
                Err(reason) => self.lose_rest(reason),
            };
            self.inputs.check()?;
            if let Some(pair) = self.judge.pair() {
                let path = self.members.as_ref().map(|(path, _)| path.clone());
                return Err(undecided(&path.unwrap_or_default(), pair));
            }
            if let Some(sample) = completed.and_then(|sample| self.finish(sample)) {
                return Ok(Some(sample));
            }
        }
    }
}

/// Buffers for reuse, with a limited total capacity.
#[derive(Default)]
struct SpareBuffers {
    buffers: Vec<Vec<u8>>,
    /// Total capacity of the buffers in bytes.
    capacity_bytes: usize,
}

impl SpareBuffers {
    /// A buffer with any contents.
    fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.capacity_bytes -= buffer.capacity();
        buffer
    }

    /// Keeps a buffer, unless the buffers would then have more than [`MAX_SPARE_BYTES`].
    fn give_back(&mut self, buffer: Vec<u8>) {
        let capacity_bytes = self.capacity_bytes + buffer.capacity();
        if capacity_bytes <= MAX_SPARE_BYTES {
            self.capacity_bytes = capacity_bytes;
            self.buffers.push(buffer);
        }
    }
}

/// Enough for the samples of one shuffle window.
const MAX_SPARE_BYTES: usize = 64 << 20;
/// Bytes by which the buffer of a payload grows at a time.
const PIECE_BYTES: u64 = 1 << 20;
