//! The index of a shard: its samples, and the places from which runs of them are decoded again.
//!
//! An index may be kept in a file or object, from which anything may come back: each number is checked before it is
//! used. Numbers below are LEB128 unless a length is given; a string has its length in front.
//!
//! | bytes   | field    | meaning                                                                       |
//! |---------|----------|-------------------------------------------------------------------------------|
//! | 0..8    | magic    | `DLFSSHIX`                                                                    |
//! | 8..12   | version  | 1, little-endian                                                              |
//! | ..      | head     | fields, types, classes, bad entries, runs, pages and empty folders: a string  |
//! |         |          | of JSON                                                                       |
//! | ..      | prefix   | the common prefix of all names: a string                                      |
//! | ..      | samples  | number of samples; for each: rest of its name (a string), length of its record |
//! |         |          | in bytes, CRC32C (4 bytes, little-endian), label code, offset                 |
//! | ..      | columns  | the values of typed columns: a string                                         |
//! | last 4  | checksum | CRC32C of all bytes before, little-endian                                     |
//!
//! The offset of a sample is 1 plus the number of bytes of the shard from the place of its run to the sample's first
//! byte. It is 0 if the sample cannot be decoded alone.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use dlfs_base::checksum::crc32c;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::FieldTypes;
use dlfs_format::format::columns::{ColumnSpec, ColumnTable, OwnedValue, RowValues, Value};
use dlfs_format::format::cursor::{Cursor, label_code, label_of, put_number, put_string};
use dlfs_format::format::geometry::MAX_NAME_BYTES;
use dlfs_format::format::table::check_label;
use dlfs_import::import::sources::sample_stream::StreamPlace;
use dlfs_import::import::{BadEntry, BadReason};

/// The samples of a shard.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ShardIndex {
    /// Names of the fields; empty for one unnamed field.
    pub fields: Vec<Vec<u8>>,
    /// Types of the fields.
    pub types: FieldTypes,
    /// Names of the classes, indexed by label; empty if labels are numbers of the source.
    pub classes: Vec<Vec<u8>>,
    /// The entries that cannot be read.
    pub bad: Vec<BadSample>,
    /// The folders of a plain archive that no sample followed at once; they are classes, too.
    pub(crate) folders: Vec<Vec<u8>>,
    runs: Vec<Run>,
    /// The data pages of a Parquet file whose rows are read alone or from within row groups: offsets in bytes, and
    /// numbers of values.
    pages: Vec<(u64, u64)>,
    /// Set if a row is read alone by its pages.
    has_row_pages: bool,
    /// The common prefix of all names.
    prefix: Vec<u8>,
    /// The names without the prefix, one after the other, and the end of each.
    rests: Vec<u8>,
    rest_ends: Vec<usize>,
    /// Lengths of the records in bytes.
    lens: Vec<u32>,
    /// CRC32C of the records.
    checksums: Vec<u32>,
    labels: Vec<Option<i64>>,
    /// Offsets as in the table above.
    offsets: Vec<u64>,
    /// Values of the typed columns; empty if there are no columns.
    values: ColumnTable,
}

/// The head of a kept index. Only [`ShardIndex::decode`] makes an index of it, with all checks.
#[derive(Serialize, Deserialize)]
struct Head<'a> {
    fields: Cow<'a, [Vec<u8>]>,
    types: Cow<'a, FieldTypes>,
    classes: Cow<'a, [Vec<u8>]>,
    bad: Cow<'a, [BadSample]>,
    runs: Cow<'a, [Run]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pages: Cow<'a, [(u64, u64)]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    folders: Cow<'a, [Vec<u8>]>,
}

/// Consecutive samples that are decoded together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The place in the shard at which decoding begins; `None`: decoding must begin at an earlier run.
    pub place: Option<StreamPlace>,
    /// Number of samples.
    pub samples: u32,
    /// Total length of the records in bytes.
    #[serde(skip)]
    pub len_bytes: u64,
    /// Number of the first sample in the shard.
    #[serde(skip)]
    pub first: usize,
}

/// An entry that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSample {
    /// The entry and the reason.
    pub text: String,
    /// Set if the entry would replace an earlier one: this stops an import even if bad entries are left out.
    pub is_newer: bool,
}

impl ShardIndex {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Returns whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// The runs, in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The name of a sample.
    pub fn name(&self, sample: usize) -> Vec<u8> {
        let start = if sample == 0 { 0 } else { self.rest_ends[sample - 1] };
        [&self.prefix[..], &self.rests[start..self.rest_ends[sample]]].concat()
    }

    /// The label of a sample.
    pub fn label(&self, sample: usize) -> Option<i64> {
        self.labels[sample]
    }

    /// The length of a sample's record.
    pub fn len_bytes(&self, sample: usize) -> u32 {
        self.lens[sample]
    }

    /// The lengths of the records of all samples.
    pub fn lens_bytes(&self) -> &[u32] {
        &self.lens
    }

    /// The CRC32C of a sample's record.
    pub fn crc32c(&self, sample: usize) -> u32 {
        self.checksums[sample]
    }

    /// The place of a sample of `run`; `None`: the sample cannot be decoded alone.
    pub(crate) fn place(&self, run: &Run, sample: usize) -> Option<StreamPlace> {
        let place = run.place?;
        let rows = (sample - run.first) as u64;
        let record = place.record.checked_add(rows)?;
        if self.has_row_pages {
            let left_out = place.left_out.checked_add(rows)?;
            return Some(StreamPlace { left_out, record, ..place });
        }
        let offset = place.offset.checked_add(self.offsets[sample].checked_sub(1)?)?;
        Some(StreamPlace { offset, record, ..place })
    }

    /// The data pages that readers should know.
    pub(crate) fn pages(&self) -> &[(u64, u64)] {
        &self.pages
    }

    /// Keeps the data `pages` of a Parquet file, if they serve to read less than whole row groups.
    pub(crate) fn set_pages(&mut self, pages: Vec<(u64, u64)>) {
        self.has_row_pages = self.is_worth_pages(&pages);
        let mut places = self.runs.iter().filter_map(|run| run.place);
        if self.has_row_pages || places.any(is_within_group) {
            self.pages = pages;
        }
    }

    /// Returns whether the pages of a row have, on average, far fewer bytes than a run.
    fn is_worth_pages(&self, pages: &[(u64, u64)]) -> bool {
        // A row is in a page as often as the page has values. What follows a page is counted as its own.
        let rows = self.len().max(1) as u128;
        let each = pages.windows(2).map(|two| {
            let len = two[1].0.saturating_sub(two[0].0);
            u128::from(len) * u128::from(two[0].1).min(rows)
        });
        let bytes = each.sum::<u128>() / rows;
        let all = self.lens.iter().map(|len| u128::from(*len)).sum::<u128>();
        let run_bytes = all / self.runs.len().max(1) as u128;
        bytes > 0 && bytes <= MOST_ROW_BYTES && 4 * bytes <= run_bytes
    }

    /// The typed columns.
    pub fn columns(&self) -> Vec<ColumnSpec> {
        self.values.specs().cloned().collect()
    }

    /// A sample's values in the typed columns.
    pub fn values(&self, sample: usize) -> RowValues<'_> {
        if self.values.is_empty() { RowValues::default() } else { self.values.row(sample) }
    }

    /// Adds entries that cannot be read.
    pub(crate) fn note_bad(&mut self, bad: Vec<BadEntry>) {
        self.bad.extend(bad.into_iter().map(|bad| BadSample {
            is_newer: bad.reason == BadReason::ComesAgain,
            text: bad.to_string(),
        }));
    }

    /// Begins a run with the next sample. `place`: as [`Run::place`].
    pub(crate) fn begin_run(&mut self, place: Option<StreamPlace>) {
        self.runs.push(Run { place, samples: 0, len_bytes: 0, first: self.len() });
    }

    /// Appends a sample to the last run. `place`: where decoding the sample can begin, if it can; `columns` returns the
    /// typed columns of all samples.
    pub(crate) fn push(
        &mut self,
        sample: &ShardSample,
        place: Option<StreamPlace>,
        columns: impl FnOnce() -> Vec<ColumnSpec>,
    ) {
        let run = self.runs.last_mut().expect("a run was begun");
        let places = run.place.zip(place.filter(|place| place.left_out == 0));
        let offset = places.and_then(|(run, sample)| sample.offset.checked_sub(run.offset));
        run.samples += 1;
        run.len_bytes += u64::from(sample.len_bytes);
        if !sample.values.is_empty() {
            if self.lens.is_empty() {
                self.values = ColumnTable::new(&columns());
            }
            let mut values = sample.values.iter();
            self.values.push(|_| values.next().map_or(Value::None, |value| value.as_value()));
        }
        self.push_columns(&sample.name, sample.len_bytes, sample.crc32c, sample.label);
        self.offsets.push(offset.map_or(0, |offset| offset + 1));
    }

    /// Appends a name without the prefix, the length and CRC32C of a record, and a label.
    fn push_columns(&mut self, rest: &[u8], len: u32, checksum: u32, label: Option<i64>) {
        self.rests.extend_from_slice(rest);
        self.rest_ends.push(self.rests.len());
        self.lens.push(len);
        self.checksums.push(checksum);
        self.labels.push(label);
    }

    /// Sets the fields, their types and the classes.
    pub(crate) fn describe(&mut self, fields: &[Vec<u8>], types: &FieldTypes, classes: &[Vec<u8>]) {
        (self.fields, self.types) = (fields.to_vec(), types.clone());
        self.classes = classes.to_vec();
    }

    /// The bytes to keep.
    pub fn encode(&self) -> Vec<u8> {
        let head = Head {
            fields: Cow::Borrowed(&self.fields),
            types: Cow::Borrowed(&self.types),
            classes: Cow::Borrowed(&self.classes),
            bad: Cow::Borrowed(&self.bad),
            runs: Cow::Borrowed(&self.runs),
            pages: Cow::Borrowed(&self.pages),
            folders: Cow::Borrowed(&self.folders),
        };
        let head = serde_json::to_vec(&head).expect("names, numbers and texts are JSON");
        let names: Vec<Vec<u8>> = (0..self.len()).map(|sample| self.name(sample)).collect();
        let prefix = common_prefix(&names);
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        put_string(&mut out, &head);
        put_string(&mut out, prefix);
        put_number(&mut out, self.len() as u64);
        for (sample, name) in names.iter().enumerate() {
            put_string(&mut out, &name[prefix.len()..]);
            put_number(&mut out, self.lens[sample].into());
            out.extend(self.checksums[sample].to_le_bytes());
            put_number(&mut out, label_code(self.labels[sample]));
            put_number(&mut out, self.offsets[sample]);
        }
        let mut values = Vec::new();
        if !self.values.is_empty() {
            self.values.encode(&mut values);
        }
        put_string(&mut out, &values);
        out.extend(crc32c(&out).to_le_bytes());
        out
    }

    /// Decodes the bytes of a kept index.
    ///
    /// # Errors
    /// `Corrupt`: they are damaged. `Unsupported`: another version.
    pub fn decode(bytes: &[u8]) -> Result<ShardIndex> {
        let damaged = |what: String| Error::new(ErrorKind::Corrupt, what);
        let body = bytes.strip_prefix(&MAGIC[..]).and_then(|rest| rest.split_first_chunk());
        let Some((version, rest)) = body else {
            return Err(damaged("it is no index of a shard".to_owned()));
        };
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            let text = format!("it has version {version}, and this release knows {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let Some((body, crc)) = rest.split_last_chunk() else {
            return Err(damaged("it ends early".to_owned()));
        };
        if crc32c(&bytes[..bytes.len() - 4]) != u32::from_le_bytes(*crc) {
            return Err(damaged("its checksum differs".to_owned()));
        }
        let mut from = Cursor::new("index of a shard", body);
        let head: Head<'_> =
            serde_json::from_slice(from.string()?).map_err(|error| damaged(error.to_string()))?;
        let mut index = ShardIndex {
            fields: head.fields.into_owned(),
            types: head.types.into_owned(),
            classes: head.classes.into_owned(),
            bad: head.bad.into_owned(),
            runs: head.runs.into_owned(),
            pages: head.pages.into_owned(),
            folders: head.folders.into_owned(),
            ..ShardIndex::default()
        };
        let is_wrong = |name: &Vec<u8>| name.len() > MAX_NAME_BYTES || name.contains(&0);
        if index.folders.iter().any(is_wrong) {
            return Err(damaged("a folder's name is too long, or holds a NUL".to_owned()));
        }
        index.read_samples(&mut from)?;
        index.count_runs().map_err(|what| damaged(what.to_owned()))?;
        index.has_row_pages = index.is_worth_pages(&index.pages);
        Ok(index)
    }

    /// Reads the part of a kept index behind the head.
    fn read_samples(&mut self, from: &mut Cursor<'_>) -> Result<()> {
        let wrong = |what: &'static str| Error::new(ErrorKind::Corrupt, what);
        self.prefix = from.string()?.to_vec();
        for _ in 0..from.count(8)? {
            let rest = from.string()?;
            let name_len = self.prefix.len() + rest.len();
            if name_len > MAX_NAME_BYTES || rest.contains(&0) || self.prefix.contains(&0) {
                return Err(wrong("a name is too long, or holds a NUL"));
            }
            let len = u32::try_from(from.number()?).map_err(|_| wrong("a sample is too long"))?;
            let crc: [u8; 4] = from.bytes(4)?.try_into().expect("the four bytes asked for");
            let crc = u32::from_le_bytes(crc);
            let label = label_of(from.number()?);
            check_label(label)?;
            if len == 0 && crc != 0 {
                return Err(wrong("an empty sample has a checksum"));
            }
            self.push_columns(rest, len, crc, label);
            self.offsets.push(from.number()?);
        }
        let values = from.string()?;
        if !values.is_empty() {
            self.values = ColumnTable::decode(values, self.len())?;
        }
        if from.len() > 0 { Err(wrong("there are bytes behind it")) } else { Ok(()) }
    }

    /// Sets length and first sample of each run, and checks that the runs have all samples.
    fn count_runs(&mut self) -> Result<(), &'static str> {
        let mut first = 0;
        for (number, run) in self.runs.iter_mut().enumerate() {
            let end = first + run.samples as usize;
            let lens = self.lens.get(first..end).ok_or("its runs have more samples than it")?;
            run.len_bytes = lens.iter().map(|len| u64::from(*len)).sum();
            run.first = first;
            if !(1..=MAX_RUN_SAMPLES).contains(&run.samples)
                || run.samples > 1 && run.len_bytes > LONGEST_RUN_BYTES
                || number == 0 && run.place != Some(StreamPlace::default())
                || run.place.is_some_and(is_beyond_any_shard)
            {
                return Err("a run has too many samples or bytes or none, or is in no shard");
            }
            first = end;
        }
        if first == self.len() { Ok(()) } else { Err("its runs have fewer samples than it") }
    }
}

/// Returns whether rows of the same row group lie before a place in a Parquet file.
pub(crate) fn is_within_group(place: StreamPlace) -> bool {
    place.offset > 0 && place.left_out > 0
}

/// Returns whether a number of a place is so large that adding to it could overflow.
fn is_beyond_any_shard(place: StreamPlace) -> bool {
    let StreamPlace { input, offset, left_out, record, windows, .. } = place;
    [input, offset, left_out, record, windows].iter().any(|number| *number > i64::MAX as u64)
}

/// The longest common prefix of all names.
fn common_prefix(names: &[Vec<u8>]) -> &[u8] {
    let Some((first, others)) = names.split_first() else { return &[] };
    let same = |name: &Vec<u8>| first.iter().zip(name).take_while(|(a, b)| a == b).count();
    &first[..others.iter().map(same).min().unwrap_or(first.len())]
}

/// A decoded sample; the reader appended its record to the caller's buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSample {
    /// The name in the shard.
    pub name: Vec<u8>,
    /// The label, if it has one.
    pub label: Option<i64>,
    /// Length of the record in bytes.
    pub len_bytes: u32,
    /// CRC32C of the record.
    pub crc32c: u32,
    /// Values of the typed columns.
    pub values: Vec<OwnedValue>,
}

const MAGIC: &[u8; 8] = b"DLFSSHIX";
const VERSION: u32 = 1;
/// Maximum bytes of a run, of its records and in its shard, unless the run is one sample; but row groups are not
/// divided at this length. This length is the default size of an import's chunks, so loaders' windows and shuffle
/// groups suit runs, too.
pub(crate) const RUN_BYTES: u64 = 4 << 20;
/// Maximum bytes of a run's records, unless the run is one sample: a longer row group becomes several runs.
pub(crate) const LONGEST_RUN_BYTES: u64 = 16 << 20;
/// Maximum bytes of the pages from which one row is read. Many rows are read at a time.
const MOST_ROW_BYTES: u128 = 2 << 20;
/// Maximum samples of a run: as of a chunk.
pub(crate) const MAX_RUN_SAMPLES: u32 = 65_535;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(number: u64) -> ShardSample {
        let name = format!("shard/{number}").into_bytes();
        let label = (!number.is_multiple_of(3)).then_some(number as i64 - 5);
        let len_bytes = number as u32;
        ShardSample { name, label, len_bytes, crc32c: 7 * len_bytes, values: Vec::new() }
    }

    fn index(samples: u64) -> ShardIndex {
        let mut index = ShardIndex::default();
        for number in 0..samples {
            if number.is_multiple_of(4) {
                let place = StreamPlace { offset: 512 * number, ..StreamPlace::default() };
                index.begin_run(Some(place));
            }
            let place = StreamPlace { offset: 512 * number, ..StreamPlace::default() };
            index.push(&sample(number), (!number.is_multiple_of(5)).then_some(place), Vec::new);
        }
        index.describe(&[b"jpg".to_vec(), b"cls".to_vec()], &FieldTypes::default(), &[]);
        index.bad.push(BadSample { text: "a: name appears twice".to_owned(), is_newer: false });
        index.folders = vec![b"empty".to_vec()];
        index
    }

    fn all(index: &ShardIndex) -> Vec<(Vec<u8>, Option<i64>, u32, u32)> {
        let of = |at| (index.name(at), index.label(at), index.len_bytes(at), index.crc32c(at));
        (0..index.len()).map(of).collect()
    }

    #[test]
    fn an_index_reads_back_and_names_take_their_common_prefix_once() {
        for samples in [0, 1, 2, 11] {
            let kept = index(samples);
            let read = ShardIndex::decode(&kept.encode()).unwrap();
            assert_eq!(all(&read), all(&kept));
            assert_eq!(
                (read.runs(), &read.bad, &read.offsets),
                (kept.runs(), &kept.bad, &kept.offsets)
            );
            assert_eq!((read.fields, read.folders), (kept.fields, kept.folders));
        }
        let bytes = index(11).encode();
        assert_eq!(bytes.windows(6).filter(|at| at == b"shard/").count(), 1);
    }

    #[test]
    fn rows_have_places_where_their_pages_are_far_shorter_than_a_run() {
        // Two row groups of 80 rows of 100,000 bytes.
        let mut index = ShardIndex::default();
        for row in 0..160 {
            let offset = if row < 80 { 4 } else { 8_000_100 };
            let place =
                StreamPlace { offset, left_out: row % 80, record: row, ..StreamPlace::default() };
            if row % 80 == 0 {
                index.begin_run(Some(if row == 0 { StreamPlace::default() } else { place }));
            }
            let sample = ShardSample { len_bytes: 100_000, ..sample(row) };
            index.push(&sample, Some(place), Vec::new);
        }
        for (rows, has_places) in [(10, true), (16, true), (40, false), (80, false)] {
            let mut index = index.clone();
            let pages = (0..160).step_by(rows as usize).map(|row| (4 + 100_000 * row, rows));
            index.set_pages(pages.collect());
            let read = ShardIndex::decode(&index.encode()).unwrap();
            for index in [index, read] {
                let run = &index.runs()[1];
                let place = run.place.unwrap();
                let third = StreamPlace { left_out: 2, record: 82, ..place };
                let expected = has_places.then_some(third);
                assert_eq!(index.place(run, 82), expected, "pages of {rows} rows");
                assert_eq!(index.place(run, 80), Some(place));
                assert_eq!(index.pages().is_empty(), !has_places);
            }
        }
        index.set_pages(vec![(u64::MAX, 1), (0, u64::MAX), (u64::MAX, u64::MAX), (0, 0)]);
        assert!(index.pages().is_empty(), "numbers that no file has");
    }

    #[test]
    fn every_bit_that_flips_is_found() {
        let bytes = index(5).encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(ShardIndex::decode(&damaged).is_err(), "byte {at}");
            assert!(ShardIndex::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_place_that_no_shard_has_is_refused() {
        for place in [
            StreamPlace { offset: u64::MAX, ..StreamPlace::default() },
            StreamPlace { record: u64::MAX, ..StreamPlace::default() },
            StreamPlace { left_out: u64::MAX, ..StreamPlace::default() },
        ] {
            let mut hostile = index(5);
            hostile.runs[1].place = Some(place);
            let error = ShardIndex::decode(&hostile.encode()).unwrap_err();
            assert!(error.to_string().contains("in no shard"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_an_error_and_no_panic(
            at in 12usize..400,
            bytes in proptest::collection::vec(any::<u8>(), 1..16),
        ) {
            let mut hostile = index(9).encode();
            hostile.truncate(hostile.len() - 4);
            let at = at.min(hostile.len());
            hostile.splice(at..hostile.len().min(at + bytes.len()), bytes);
            hostile.extend(crc32c(&hostile).to_le_bytes());
            if let Ok(index) = ShardIndex::decode(&hostile) {
                let runs = index.runs().iter().map(|run| run.samples as usize).sum::<usize>();
                prop_assert_eq!(runs, all(&index).len());
            }
        }
    }
}
