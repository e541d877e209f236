//! A batch: ids, labels, and the bytes of each sample, wherever they lie.

use std::sync::Arc;

use crate::buf::SharedBuf;
use crate::checksum::crc32c;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind, Result};
use crate::units::{Epoch, SampleId};

/// Samples that were asked for together, in the order of asking, every byte verified.
///
/// The bytes stay where the read brought them; the memory goes back to its pool when the batch is
/// dropped or used again.
#[derive(Default)]
pub struct Batch {
    directory: Option<Arc<Directory>>,
    samples: Vec<Place>,
    pieces: Vec<SharedBuf>,
    kept: Vec<Kept>,
    epoch: Epoch,
    ends_epoch: bool,
}

/// Where one sample's bytes are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) id: SampleId,
    pub(crate) piece: u32,
    pub(crate) len_bytes: u32,
    pub(crate) offset: usize,
}

/// A sample shown from memory that batches of an earlier epoch showed too: whoever got those could write to
/// it through an alias, so its checksum is compared again when the batch is handed out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// Position in the batch.
    pub(crate) index: u32,
    pub(crate) crc32c: u32,
    pub(crate) chunk: u32,
    /// Which read brought the chunk.
    pub(crate) load: u32,
}

/// One sample of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// Which sample of the data set it is.
    pub id: SampleId,
    /// Its label, where the data set has labels.
    pub label: Option<i64>,
    /// Its whole record; for a sample of several fields see [`Batch::field`].
    pub bytes: &'a [u8],
}

impl Batch {
    /// An empty batch, to be filled.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty batch that allocates nothing until it holds more than this.
    pub(crate) fn with_room(samples: usize, pieces: usize) -> Batch {
        let (samples, pieces) = (Vec::with_capacity(samples), Vec::with_capacity(pieces));
        Batch { samples, pieces, ..Batch::default() }
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The epoch it belongs to; 0 for one that was read by ids.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether it is the last of its epoch on this rank.
    pub fn ends_epoch(&self) -> bool {
        self.ends_epoch
    }

    /// The id of the sample at `index`.
    ///
    /// # Panics
    /// When `index` is not below [`Batch::len`], as a slice does.
    pub fn id(&self, index: usize) -> SampleId {
        self.samples[index].id
    }

    /// The ids, in order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = SampleId> + '_ {
        self.samples.iter().map(|place| place.id)
    }

    /// The verified bytes of the sample at `index`: its whole record. Where samples have several fields,
    /// that is a table of lengths and then the fields: see [`Batch::field`].
    ///
    /// # Panics
    /// When `index` is not below [`Batch::len`], as a slice does.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let place = &self.samples[index];
        if place.len_bytes == 0 {
            return &[];
        }
        &self.pieces[place.piece as usize][place.offset..place.offset + place.len_bytes as usize]
    }

    /// Whether samples of the data set have labels, though those of this batch may have none.
    pub fn has_labels(&self) -> bool {
        self.directory.as_ref().is_some_and(|directory| directory.labels().is_some())
    }

    /// The label of the sample at `index`, from memory.
    ///
    /// # Panics
    /// When `index` is not below [`Batch::len`], as a slice does.
    pub fn label(&self, index: usize) -> Option<i64> {
        self.directory.as_ref()?.label(self.samples[index].id)
    }

    /// The bytes of field number `field` of the sample at `index`; fields are named by
    /// [`Directory::fields`]. `None`: this sample does not have the field.
    ///
    /// # Errors
    /// `NotFound`: there is no such field. `Corrupt`: the record's table of lengths does not fit it.
    ///
    /// # Panics
    /// When `index` is not below [`Batch::len`], as a slice does.
    pub fn field(&self, index: usize, field: usize) -> Result<Option<&[u8]>> {
        let fields = self.directory.as_ref().map_or(1, |directory| directory.fields().len().max(1));
        let record = self.bytes(index);
        if field >= fields {
            let text = format!("there is no field {field}, samples have {fields}");
            return Err(Error::new(ErrorKind::NotFound, text).sample(self.id(index)));
        }
        let range = crate::format::fields::find(record, fields, field)
            .map_err(|error| Error::from(error).sample(self.id(index)))?;
        Ok(range.map(|range| &record[range]))
    }

    /// The samples, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Sample<'_>> {
        (0..self.len()).map(|index| Sample {
            id: self.id(index),
            label: self.label(index),
            bytes: self.bytes(index),
        })
    }

    /// Sum of the samples' lengths.
    pub fn len_bytes(&self) -> u64 {
        self.samples.iter().map(|place| u64::from(place.len_bytes)).sum()
    }

    /// The whole batch as one `[batch, length]` array, where equal samples came to lie side by side.
    ///
    /// `None` when lengths differ or the samples lie apart; [`Batch::copy_to`] then makes one.
    pub fn contiguous(&self) -> Option<&[u8]> {
        let first = self.samples.first()?;
        let len = first.len_bytes as usize;
        let side_by_side = self.samples.iter().enumerate().all(|(index, place)| {
            place.piece == first.piece
                && place.len_bytes == first.len_bytes
                && place.offset == first.offset + index * len
        });
        if !side_by_side || len == 0 {
            return None;
        }
        let piece = &self.pieces[first.piece as usize];
        Some(&piece[first.offset..first.offset + len * self.samples.len()])
    }

    /// Copies all samples, one behind the other, into `out`; returns the bytes written.
    ///
    /// # Errors
    /// `InvalidArgument`: `out` is shorter than [`Batch::len_bytes`]; nothing was written.
    pub fn copy_to(&self, out: &mut [u8]) -> Result<usize> {
        let need = self.len_bytes() as usize;
        if out.len() < need {
            let text = format!("the batch has {need} bytes, the buffer {}", out.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let mut at = 0;
        for index in 0..self.len() {
            let bytes = self.bytes(index);
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        Ok(at)
    }

    pub(crate) fn reset(&mut self, directory: &Arc<Directory>, epoch: Epoch) {
        self.empty();
        self.epoch = epoch;
        self.ends_epoch = false;
        if !self.directory.as_ref().is_some_and(|known| Arc::ptr_eq(known, directory)) {
            self.directory = Some(Arc::clone(directory));
        }
    }

    /// Gives the memory back and keeps the vectors for the next use.
    pub(crate) fn empty(&mut self) {
        self.samples.clear();
        self.pieces.clear();
        self.kept.clear();
    }

    /// Whether all bytes lie one sample behind the other.
    pub(crate) fn is_one_piece(&self) -> bool {
        let mut end = None;
        self.samples.iter().filter(|place| place.len_bytes > 0).all(|place| {
            let here = (place.piece, place.offset);
            let follows = end.is_none_or(|end| end == here);
            end = Some((place.piece, place.offset + place.len_bytes as usize));
            follows
        })
    }

    /// The bytes have been copied, one sample behind the other, into `piece`.
    pub(crate) fn move_to(&mut self, piece: SharedBuf) {
        let mut offset = 0;
        for place in &mut self.samples {
            (place.piece, place.offset) = (0, offset);
            offset += place.len_bytes as usize;
        }
        self.pieces.clear();
        self.pieces.push(piece);
    }

    pub(crate) fn set_ends_epoch(&mut self) {
        self.ends_epoch = true;
    }

    /// Makes room for `count` samples that `place` will fill in any order.
    pub(crate) fn expect(&mut self, count: usize) {
        let nowhere = Place { id: SampleId(0), piece: NOWHERE, len_bytes: 0, offset: 0 };
        self.samples.resize(count, nowhere);
    }

    /// Makes room for `count` samples that `push` will add.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.samples.reserve(count);
    }

    pub(crate) fn place(&mut self, index: usize, place: Place) {
        self.samples[index] = place;
    }

    pub(crate) fn push(&mut self, place: Place) {
        self.samples.push(place);
    }

    pub(crate) fn add_piece(&mut self, piece: SharedBuf) -> u32 {
        self.pieces.push(piece);
        (self.pieces.len() - 1) as u32
    }

    /// Has the checksum of the sample that is pushed next compared when the batch is handed out.
    pub(crate) fn expect_kept(&mut self, crc32c: u32, chunk: u32, load: u32) {
        let index = self.samples.len() as u32;
        self.kept.push(Kept { index, crc32c, chunk, load });
    }

    /// The samples of kept memory whose bytes are not what was read. Compares checksums; allocates only
    /// where one differs.
    pub(crate) fn rewritten(&self) -> Vec<Kept> {
        #[cfg(feature = "unverified")]
        if super::unverified::is_set() {
            return Vec::new();
        }
        let differs = |kept: &&Kept| crc32c(self.bytes(kept.index as usize)) != kept.crc32c;
        self.kept.iter().filter(differs).copied().collect()
    }

    /// Shows the bytes of sample `nth` of `other` at `index`.
    pub(crate) fn show_instead(&mut self, index: usize, other: &Batch, nth: usize) {
        let place = other.samples[nth];
        let piece = match place.len_bytes {
            0 => 0,
            _ => self.add_piece(other.pieces[place.piece as usize].clone()),
        };
        self.samples[index] = Place { piece, ..place };
    }

    /// Takes the sample at `index` out again; [`Batch::drop_unplaced`] then closes the gaps.
    pub(crate) fn unplace(&mut self, index: usize) {
        self.samples[index].piece = NOWHERE;
    }

    /// Drops the samples that were never placed, because they failed and failures are skipped.
    pub(crate) fn drop_unplaced(&mut self) {
        self.samples.retain(|place| place.piece != NOWHERE);
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} samples, {} bytes)", self.len(), self.len_bytes())
    }
}

/// Piece of a sample that has no place yet.
const NOWHERE: u32 = u32::MAX;
