//! The index of a source: one row per sample, in id order, in flat columns.
//!
//! Columns are compact: no allocation per sample, and columns that a kind of source does not need stay empty.

mod saved;

use std::ops::Range;
use std::path::PathBuf;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::bad::{BadEntry, BadReason};
use super::file_counts::{FileCounts, REPLACED, Role};
use dlfs_format::format::builder::MAX_FIELD_NAMES_BYTES;
use dlfs_format::format::columns::ColumnTable;

/// Rows in id order. Row `i` is the sample of id `i` of an import into an empty image.
#[derive(Debug, Default)]
pub struct Index {
    /// Files or folders that hold the payloads: shards, or the roots of folder trees.
    pub containers: Vec<Container>,
    /// Treatment of every file of the source.
    pub(crate) file_counts: FileCounts,
    /// Names of the fields; one field with an empty name if a sample is a file or a record.
    pub fields: Vec<Vec<u8>>,
    /// Names of the classes, indexed by label; empty if the source has numbers as labels.
    pub classes: Vec<Vec<u8>>,
    /// All entries that cannot be imported, in the order found.
    pub bad: Vec<BadEntry>,
    names: Names,
    /// Label of each row, or [`NO_LABEL`]; empty while no row has a label.
    labels: Vec<i64>,
    /// The payloads of all rows, in order.
    pub(super) payloads: Payloads,
    /// Index of the first payload of row `i`; empty while every row has exactly one payload.
    payload_starts: Vec<u64>,
    /// Values of fields that replace the bytes of payloads.
    values: Vec<FieldValues>,
    /// Values of the typed columns that fields provide, by row; `None`: no field provides any.
    pub(crate) columns: Option<ColumnTable>,
}

/// The values of one field of all rows, `width` bytes for each row.
#[derive(Debug)]
struct FieldValues {
    /// Index of the field in [`Index::fields`].
    field: u16,
    /// Length of each value in bytes.
    width: usize,
    /// The values, by row.
    bytes: Vec<u8>,
}

/// A file or folder that holds payloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Path of the file or folder.
    pub path: PathBuf,
    /// A number that changes when the file changes: see `stamp` of `mod.rs`. Zero for folders and prefixes of stores;
    /// for lists and spooled files, a hash of the bytes.
    pub stamp: u64,
    /// Length of a shard in bytes; otherwise, the length of the prefix that was put in front of the names.
    pub len_bytes: u64,
}

/// The payload of one field of one row: where a source holds its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// Index of the field in [`Index::fields`].
    pub field: u16,
    /// Length in bytes.
    pub len_bytes: u32,
    /// Byte offset in the shard; for a file or object that is a sample by itself, its stamp.
    pub offset_or_stamp: u64,
    /// Index of the container in [`Index::containers`].
    pub container: u32,
}

impl Index {
    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.names.len() as u64
    }

    /// Returns whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.names.len() == 0
    }

    /// The name of a row.
    pub fn name(&self, row: u64) -> &[u8] {
        self.names.at(row as usize)
    }

    /// The label of a row; `None` if it has none.
    pub fn label(&self, row: u64) -> Option<i64> {
        self.labels.get(row as usize).copied().filter(|&label| label != NO_LABEL)
    }

    /// Prefetches the columns of some rows into the processor's caches.
    ///
    /// Rows are used in the order of their slots, which is random: each first access to a column waits for memory. The
    /// accesses here do not depend on each other, so the processor waits for many at once.
    pub(crate) fn touch(&self, rows: &[u64]) {
        let mut sum = 0u64;
        for &row in rows {
            let at = row as usize;
            sum = sum.wrapping_add(self.names.start(at) as u64);
            sum = sum.wrapping_add(self.labels.get(at).map_or(0, |label| *label as u64));
            if self.payload_starts.is_empty() {
                sum = sum.wrapping_add(self.payloads.get(at).offset_or_stamp);
            } else {
                sum = sum.wrapping_add(self.payload_starts[at]);
            }
        }
        for &row in rows {
            let name = self.name(row);
            let ends = name.first().zip(name.last());
            sum = sum.wrapping_add(ends.map_or(0, |(a, b)| u64::from(*a) + u64::from(*b)));
        }
        std::hint::black_box(sum);
    }

    /// The payloads of a row, in the order of the source.
    pub fn payloads(&self, row: u64) -> impl ExactSizeIterator<Item = Payload> + '_ {
        self.payload_range(row).map(|place| self.payloads.get(place))
    }

    /// The length of a row's payload for `field`; `None` if the row lacks the field.
    pub fn field_len_bytes(&self, row: u64, field: u16) -> Option<u32> {
        let mut payloads = self.payloads(row);
        payloads.find(|payload| payload.field == field).map(|payload| payload.len_bytes)
    }

    /// Total length of a row's payloads.
    pub(crate) fn payload_bytes(&self, row: u64) -> u64 {
        self.payloads(row).map(|payload| u64::from(payload.len_bytes)).sum()
    }

    /// Appends a row; [`Index::push_payload`] then adds its payloads.
    pub(crate) fn push(&mut self, name: &[u8], label: Option<i64>) {
        let row = self.names.len();
        self.names.push(name);
        let label = label.unwrap_or(NO_LABEL);
        if label != NO_LABEL || !self.labels.is_empty() {
            self.labels.resize(row, NO_LABEL);
            self.labels.push(label);
        }
        if !self.payload_starts.is_empty() {
            self.payload_starts.push(self.payloads.len() as u64);
        }
    }

    /// Appends a row that is a file or a record, and its payload.
    ///
    /// # Errors
    /// The name or the length exceeds an image's limits.
    pub(super) fn push_file(
        &mut self,
        name: &[u8],
        label: Option<i64>,
        len: u64,
        offset_or_stamp: u64,
        container: u32,
    ) -> Result<(), BadReason> {
        TOO_LONG_A_NAME.unless(name.len() <= MAX_NAME_BYTES)?;
        BadReason::TooLarge(len).unless(len <= MAX_SAMPLE_BYTES)?;
        self.push(name, label);
        let len_bytes = len as u32; // within the limit just tested
        self.push_payload(Payload { field: 0, len_bytes, offset_or_stamp, container });
        Ok(())
    }

    /// Appends a payload to the last row.
    pub(crate) fn push_payload(&mut self, payload: Payload) {
        let rows = self.names.len() as u64;
        let payloads = self.payloads.len() as u64;
        if self.payload_starts.is_empty() && payloads + 1 != rows {
            self.begin_payload_starts();
        }
        self.payloads.push(payload);
    }

    /// Fills `payload_starts`. Each row so far has one payload, except the last rows, which may have none.
    fn begin_payload_starts(&mut self) {
        let payloads = self.payloads.len() as u64;
        self.payload_starts = (0..self.len()).map(|row| row.min(payloads)).collect();
    }

    /// Replaces the bytes of the payload number `place`, which is of `row`, by `bytes`. All rows have values of the
    /// same length.
    pub(super) fn replace(&mut self, row: u64, place: usize, bytes: &[u8]) {
        let width = bytes.len();
        let payload = self.payloads.get(place);
        let field = payload.field;
        self.payloads.set(place, Payload { len_bytes: width as u32, ..payload });
        let at = self.values.iter().position(|values| values.field == field);
        let at = at.unwrap_or_else(|| {
            self.values.push(FieldValues { field, width, bytes: Vec::new() });
            self.values.len() - 1
        });
        let start = row as usize * width;
        let values = &mut self.values[at].bytes;
        values.resize(values.len().max(start + width), 0);
        values[start..start + width].copy_from_slice(bytes);
    }

    /// The value that replaces the bytes of a field's payload; `None`: there is none.
    pub(super) fn value(&self, row: u64, field: u16) -> Option<&[u8]> {
        let values = self.values.iter().find(|values| values.field == field)?;
        let start = row as usize * values.width;
        values.bytes.get(start..start + values.width)
    }

    /// Sets the label of the last row.
    pub(crate) fn set_last_label(&mut self, label: i64) {
        let rows = self.names.len();
        assert!(rows > 0, "a label belongs to a row");
        self.labels.resize(rows, NO_LABEL);
        self.labels[rows - 1] = label;
    }

    /// Sets every row's label from its name and the classes.
    pub(crate) fn label_by(&mut self, label: impl Fn(&[u8], &[Vec<u8>]) -> Option<i64>) {
        let labels = (0..self.len()).map(|row| label(self.name(row), &self.classes));
        self.labels = labels.map(|label| label.unwrap_or(NO_LABEL)).collect();
    }

    /// The number of the field called `name`, added if it is new; `None` beyond the limit.
    pub(crate) fn field(&mut self, name: &[u8]) -> Option<u16> {
        if let Some(at) = self.fields.iter().position(|field| field == name) {
            return u16::try_from(at).ok();
        }
        if !has_room_for_field(&self.fields, name) {
            return None;
        }
        self.fields.push(name.to_vec());
        u16::try_from(self.fields.len() - 1).ok()
    }

    /// The number of the single field of a plain source.
    pub(crate) fn only_field(&mut self) -> u16 {
        if self.fields.is_empty() {
            self.fields.push(Vec::new());
        }
        0
    }

    /// Drops the rows `drop`, which is sorted; ids are renumbered without gaps.
    pub(crate) fn drop_rows(&mut self, drop: &[u64]) {
        if !drop.is_empty() {
            *self = self.without(drop);
        }
    }

    /// A copy without the rows `drop`, which is sorted.
    fn without(&self, drop: &[u64]) -> Index {
        let left = || (0..self.len()).filter(|row| drop.binary_search(row).is_err());
        let columns = self.columns.as_ref().map(|all| {
            let mut kept = all.without_rows();
            left().for_each(|row| kept.push(|column| all.row(row as usize).get(column)));
            kept
        });
        let bad = self.bad.clone();
        let file_counts = self.file_counts.clone();
        Index { columns, bad, file_counts, ..self.select(left()) }
    }

    /// An index of the rows `rows` only, in this order. Lacks the values of typed columns, the bad entries and the file
    /// counts.
    pub(crate) fn select(&self, rows: impl Iterator<Item = u64>) -> Index {
        let mut selected = Index {
            containers: self.containers.clone(),
            fields: self.fields.clone(),
            classes: self.classes.clone(),
            ..Index::default()
        };
        for row in rows {
            selected.push(self.name(row), self.label(row));
            for payload in self.payloads(row) {
                selected.push_payload(payload);
                if let Some(value) = self.value(row, payload.field) {
                    let row = selected.len() - 1;
                    let place = selected.payloads.len() - 1;
                    selected.replace(row, place, value);
                }
            }
        }
        selected
    }

    /// The bad entry for a row that cannot be imported.
    pub(crate) fn bad_row(&self, row: u64, reason: BadReason) -> BadEntry {
        let container = self.container_of(row).map(|number| &self.containers[number as usize]);
        // In a single folder, the name tells the file's location.
        let is_named = |container: &&Container| container.stamp != 0 || self.containers.len() > 1;
        let container = container.filter(is_named);
        let within = container.map(|container| container.path.clone());
        BadEntry { within, ..BadEntry::new(self.name(row), reason) }
    }

    /// Rows whose name an earlier row has, sorted; each with the first row of that name.
    pub(crate) fn rows_with_a_taken_name(&self) -> Vec<(u64, u64)> {
        let mut order = self.rows_with_the_hash_of_another();
        self.sort_by_name(&mut order); // the first row with a name keeps it
        let same = order.chunk_by(|&a, &b| self.name(a) == self.name(b));
        let taken = same.flat_map(|same| same[1..].iter().map(|&row| (row, same[0])));
        let mut taken: Vec<(u64, u64)> = taken.collect();
        taken.sort_unstable();
        taken
    }

    /// The container of the first payload of a row.
    pub(super) fn container_of(&self, row: u64) -> Option<u32> {
        self.payloads(row).next().map(|payload| payload.container)
    }

    /// Prefixes each row's name with `front(row, container)` and a slash; `None`: the name stays. Drops rows whose
    /// names would become too long, and lists them as bad.
    pub(super) fn put_in_front<'f>(&mut self, front: impl Fn(u64, u32) -> Option<&'f [u8]>) {
        let mut names = Names::default();
        let mut too_long = Vec::new();
        for row in 0..self.len() {
            let front = self.container_of(row).and_then(|container| front(row, container));
            let name = self.name(row);
            match front.map(|front| [front, b"/", name].concat()) {
                Some(whole) if whole.len() > MAX_NAME_BYTES => {
                    too_long.push(row);
                    names.push(name);
                }
                whole => names.push(whole.as_deref().unwrap_or(name)),
            }
        }
        self.names = names;
        for &row in &too_long {
            self.bad.push(self.bad_row(row, TOO_LONG_A_NAME));
        }
        self.drop_rows(&too_long);
    }

    /// Replaces a row's payloads by the payloads of later rows with the same name in the same container, since later
    /// members of an archive replace earlier ones. A later row with a field that the earlier row lacks replaces
    /// nothing. Returns the rows that replaced others, sorted; the caller drops them.
    pub(super) fn take_replaced(&mut self) -> Vec<u64> {
        let mut order = self.rows_with_the_hash_of_another();
        self.sort_by_name(&mut order);
        let mut taken: Vec<u64> = Vec::new();
        // Rows of one name in one container that replace no other: one for each set of fields. Thousands of containers
        // may have the same names, and those of a name follow one another in `order`.
        let mut kept: Vec<u64> = Vec::new();
        for row in order {
            let is_next = kept.first().is_some_and(|&first| {
                self.container_of(first) != self.container_of(row)
                    || self.name(first) != self.name(row)
            });
            if is_next {
                kept.clear();
            }
            match kept.iter().copied().find(|&first| self.replaces(row, first)) {
                Some(first) => {
                    for place in self.payload_range(row) {
                        let payload = self.payloads.get(place);
                        self.replace_payload(first, payload);
                        let is_label = self.fields[usize::from(payload.field)] == b"cls";
                        if is_label && !self.labels.is_empty() {
                            self.labels[first as usize] = self.labels[row as usize];
                        }
                    }
                    taken.push(row);
                }
                None => kept.push(row),
            }
        }
        taken.sort_unstable();
        taken
    }

    /// Returns whether `row` has no field that `first` lacks.
    fn replaces(&self, row: u64, first: u64) -> bool {
        self.payloads(row).all(|payload| self.field_len_bytes(first, payload.field).is_some())
    }

    /// Replaces the payload of the same field of `row` by `payload`, and counts the replaced member.
    pub(super) fn replace_payload(&mut self, row: u64, payload: Payload) {
        let mut places = self.payload_range(row);
        let place = places.find(|&place| self.payloads.get(place).field == payload.field);
        let place = place.expect("the row has the field");
        let replaced = self.payloads.get(place);
        let name = self.name(row).to_vec();
        self.file_counts.add(REPLACED, Role::SetAside, replaced.len_bytes.into(), &name);
        let Payload { len_bytes, offset_or_stamp, .. } = payload;
        self.payloads.set(place, Payload { len_bytes, offset_or_stamp, ..replaced });
    }

    /// All rows, sorted by name and then by id.
    pub(super) fn by_name(&self) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.len()).collect();
        self.sort_by_name(&mut order);
        order
    }

    /// Sorts rows by name and then by id.
    fn sort_by_name(&self, rows: &mut [u64]) {
        rows.sort_unstable_by(|&a, &b| self.name(a).cmp(self.name(b)).then(a.cmp(&b)));
    }

    /// Rows that share the hash of their name with another row. These are few, and include all rows that share a name.
    /// Sorting hashes costs far less than sorting names, which are scattered over memory.
    fn rows_with_the_hash_of_another(&self) -> Vec<u64> {
        let hash = |row| xxh3_64(self.name(row));
        let mut hashes: Vec<u64> = (0..self.len()).map(hash).collect();
        hashes.sort_unstable();
        let mut shared: Vec<u64> =
            hashes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        drop(hashes);
        shared.dedup();
        if shared.is_empty() {
            return Vec::new();
        }
        (0..self.len()).filter(|&row| shared.binary_search(&hash(row)).is_ok()).collect()
    }

    /// A hash of everything that indexing found and that determines the bytes of the image: an import resumes only if
    /// the source still has the same hash. Values that replace payloads are not hashed.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        for name in self.fields.iter().chain(&self.classes) {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        for container in &self.containers {
            hash.update(&container.stamp.to_le_bytes());
            hash.update(&container.len_bytes.to_le_bytes());
        }
        hash.update(&self.names.bytes);
        let ends = (0..self.names.len()).map(|row| self.names.end(row) as u64);
        ends.for_each(|end| hash.update(&end.to_le_bytes()));
        self.labels.iter().for_each(|label| hash.update(&label.to_le_bytes()));
        self.payload_starts.iter().for_each(|start| hash.update(&start.to_le_bytes()));
        (0..self.payloads.len()).for_each(|at| hash.update(&self.payloads.get(at).to_bytes()));
        hash.digest()
    }

    /// The numbers of a row's payloads among all payloads.
    pub(super) fn payload_range(&self, row: u64) -> Range<usize> {
        let row = row as usize;
        if self.payload_starts.is_empty() {
            return row..row + 1;
        }
        let end = self.payload_starts.get(row + 1).map_or(self.payloads.len(), |&end| end as usize);
        self.payload_starts[row] as usize..end
    }
}

impl Payload {
    /// Bytes for the hash of an index.
    fn to_bytes(self) -> [u8; 24] {
        let both = u64::from(self.len_bytes) << 32 | u64::from(self.container);
        let numbers = [self.offset_or_stamp, both, self.field.into()];
        zerocopy::transmute!(numbers.map(u64::to_le_bytes))
    }
}

/// Payloads, by columns. Most sources are many files, each with one field, or one shard. So containers and fields are
/// mostly 0, and both columns leave out the zeroes after their last other value.
#[derive(Debug, Default)]
pub(super) struct Payloads {
    lens_bytes: Vec<u32>,
    offsets_or_stamps: Vec<u64>,
    containers: Vec<u32>,
    fields: Vec<u16>,
}

impl Payloads {
    pub(super) fn len(&self) -> usize {
        self.lens_bytes.len()
    }

    /// The payload with this number.
    pub(super) fn get(&self, at: usize) -> Payload {
        Payload {
            field: self.fields.get(at).copied().unwrap_or_default(),
            len_bytes: self.lens_bytes[at],
            offset_or_stamp: self.offsets_or_stamps[at],
            container: self.containers.get(at).copied().unwrap_or_default(),
        }
    }

    /// Replaces the payload with this number.
    pub(super) fn set(&mut self, at: usize, payload: Payload) {
        let Payload { field, len_bytes, offset_or_stamp, container } = payload;
        self.lens_bytes[at] = len_bytes;
        self.offsets_or_stamps[at] = offset_or_stamp;
        set_sparse(&mut self.containers, at, container);
        set_sparse(&mut self.fields, at, field);
    }

    /// Appends a payload.
    fn push(&mut self, payload: Payload) {
        self.lens_bytes.push(0);
        self.offsets_or_stamps.push(0);
        self.set(self.len() - 1, payload);
    }
}

/// Sets a value of a column that leaves out zeroes at its end.
fn set_sparse<T: Copy + Default + PartialEq>(column: &mut Vec<T>, at: usize, value: T) {
    if at >= column.len() && value != T::default() {
        column.resize(at + 1, T::default());
    }
    if let Some(stored) = column.get_mut(at) {
        *stored = value;
    }
}

/// Returns whether `name` can be added to `fields`: an image limits their number and the length of their names.
pub(super) fn has_room_for_field(fields: &[Vec<u8>], name: &[u8]) -> bool {
    let bytes: usize = fields.iter().map(|field| 2 + field.len()).sum();
    fields.len() < MAX_FIELDS && bytes + 2 + name.len() <= MAX_FIELD_NAMES_BYTES
}

/// The reason for rejecting a name longer than [`MAX_NAME_BYTES`].
pub(crate) const TOO_LONG_A_NAME: BadReason = BadReason::Name("is longer than 4,096 bytes");

/// The reason for rejecting a member whose field exceeds the limit of fields.
pub(super) const TOO_MANY_FIELDS: BadReason = BadReason::Syntax(
    "has one field too many: an image has at most 256, with 8 KiB for their \
     names",
);

/// Concatenated names, with 2.5 bytes per name for its offset.
#[derive(Debug, Default)]
pub(super) struct Names {
    bytes: Vec<u8>,
    /// Offset of the first name of each block of [`NAMES_A_BLOCK`] names.
    blocks: Vec<u64>,
    /// Offset of each name in its block.
    starts: Vec<u16>,
}

/// Names in a block: few enough that offsets in it fit 16 bits, with 15 names of the maximum length before the last.
const NAMES_A_BLOCK: usize = 16;
const _: () = assert!((NAMES_A_BLOCK - 1) * MAX_NAME_BYTES <= u16::MAX as usize);

impl Names {
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn at(&self, row: usize) -> &[u8] {
        &self.bytes[self.start(row)..self.end(row)]
    }

    /// Offset of a name in `bytes`.
    fn start(&self, row: usize) -> usize {
        self.blocks[row / NAMES_A_BLOCK] as usize + usize::from(self.starts[row])
    }

    fn end(&self, row: usize) -> usize {
        if row + 1 < self.len() { self.start(row + 1) } else { self.bytes.len() }
    }

    /// Appends a name of at most [`MAX_NAME_BYTES`].
    pub(super) fn push(&mut self, name: &[u8]) {
        assert!(name.len() <= MAX_NAME_BYTES, "sources refuse longer names");
        if self.len().is_multiple_of(NAMES_A_BLOCK) {
            self.blocks.push(self.bytes.len() as u64);
        }
        let block = self.blocks.last().map_or(0, |block| *block as usize);
        self.starts.push((self.bytes.len() - block) as u16); // see NAMES_A_BLOCK
        self.bytes.extend_from_slice(name);
    }
}

/// The value of the label column for a row without a label. The numbers of classes begin at 0, and the label -1 in a
/// list counts as no label.
pub(crate) const NO_LABEL: i64 = -1;

/// Maximum bytes of a name.
pub(crate) const MAX_NAME_BYTES: usize = 4096;

/// Maximum bytes of a sample.
pub(crate) const MAX_SAMPLE_BYTES: u64 = u32::MAX as u64;

/// Maximum fields of a sample: more than any data set has; damaged archives may seem to have more.
const MAX_FIELDS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(field: u16, len_bytes: u32) -> Payload {
        Payload { field, len_bytes, offset_or_stamp: u64::from(len_bytes) * 10, container: 0 }
    }

    #[test]
    fn plain_rows_have_one_payload_each_and_no_starts() {
        let mut index = Index::default();
        for (name, len) in [("a", 1), ("b", 2)] {
            index.push(name.as_bytes(), None);
            index.push_payload(payload(0, len));
        }
        assert_eq!(index.payloads(1).collect::<Vec<_>>(), [payload(0, 2)]);
        assert!(index.payload_starts.is_empty() && index.labels.is_empty());
        assert_eq!((index.name(0), index.label(0)), (&b"a"[..], None));
    }

    #[test]
    fn rows_with_several_fields_keep_their_payloads_apart_also_when_they_begin_late() {
        let mut index = Index::default();
        index.push(b"plain", None);
        index.push_payload(payload(0, 5));
        index.push(b"none", None);
        index.push(b"two", Some(3));
        index.push_payload(payload(1, 7));
        index.push_payload(payload(0, 8));
        let payloads = |row| index.payloads(row).collect::<Vec<_>>();
        assert_eq!((payloads(0), payloads(1)), (vec![payload(0, 5)], vec![]));
        assert_eq!(payloads(2), [payload(1, 7), payload(0, 8)]);
        assert_eq!((index.payload_bytes(2), index.field_len_bytes(2, 1)), (15, Some(7)));
        assert_eq!((index.label(0), index.label(2)), (None, Some(3)));
    }

    #[test]
    fn a_name_used_twice_is_found_wherever_it_stands() {
        let mut index = Index::default();
        for name in ["x", "b", "x", "a", "x"] {
            index.push(name.as_bytes(), None);
            index.push_payload(payload(0, 1));
        }
        assert_eq!(index.rows_with_a_taken_name(), [(2, 0), (4, 0)]);
        let kept = index.without(&[2, 4]);
        assert_eq!((kept.len(), kept.name(2)), (3, &b"a"[..]));
        assert_ne!(kept.fingerprint(), index.fingerprint());
    }

    #[test]
    fn names_of_every_length_are_found_again() {
        let lengths = [0, 1, 4096, 4096, 255, 7, 4095, 4096];
        let name = |row: usize| vec![row as u8; lengths[row % lengths.len()]];
        let mut names = Names::default();
        (0..200).for_each(|row| names.push(&name(row)));
        (0..40).for_each(|_| names.push(&[b'x'; MAX_NAME_BYTES]));
        assert!((0..200).all(|row| names.at(row) == name(row)));
        assert!((200..240).all(|row| names.at(row) == [b'x'; MAX_NAME_BYTES]));
        assert_eq!((names.len(), names.end(239)), (240, names.bytes.len()));
    }
}
