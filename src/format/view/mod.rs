//! Views: some of the samples of one generation, chosen by an expression, by ids, or by a keyed split.
//!
//! A [`View`] is a set of ids of one image and generation, with a hash. [`View::directory`] makes a
//! [`Directory`] of it, in which all other samples are marked as deleted; columns and names are
//! shared. So everything that takes a directory takes a view: orders, shares of ranks, tiers, peers, listings. The
//! checkpoint of a run contains the hash, so that a run over another view refuses the checkpoint.
//!
//! A view belongs to one generation, since orders depend on the number of samples. To get the same view of a later
//! generation, make it again: samples keep their ids, so an expression selects the same samples, and a
//! [`split`](Split) puts each sample into the same part, since the part depends only on a keyed hash of the sample.
//!
//! # What it is not
//! It reads no samples and no files: `dataset` loads and saves [`ViewFile`]s. Views are not stored on the image.
//!
//! Read this file first, then `filter.rs` (the expression language, which `text.rs` parses; `glob.rs` matches
//! patterns), `split.rs` and `file.rs` (the format of a view file).

mod file;
mod filter;
mod glob;
mod split;
mod text;

use split::shown;

use crate::directory::{Directory, ViewMark};
use crate::format::{FormatError, Uuid};
use dlfs_base::error::{Error, ErrorKind, Result, ensure, invalid};
use dlfs_base::units::{Generation, SampleId};

pub use crate::directory::IdSet;
pub use file::{NamedView, VIEW_HEADER_BYTES, ViewFile};
pub use filter::Filter;
pub use split::{Split, SplitBy, Splitter};

/// A nonempty set of samples of one generation of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    image: Uuid,
    generation: Generation,
    ids: IdSet,
    /// The number of successive splits that led to these samples.
    splits: u32,
    hash: [u8; 16],
}

impl View {
    /// The view of `ids`, which must be live samples of `directory`.
    ///
    /// # Errors
    /// There are no ids; or an id is not a live sample of `directory`.
    pub fn of_ids(directory: &Directory, ids: impl IntoIterator<Item = SampleId>) -> Result<View> {
        let mut set = IdSet::new(directory.num_samples());
        for id in ids {
            if !directory.is_live(id) {
                return Err(no_sample(id, directory.num_samples()));
            }
            set.insert(id.0);
        }
        View::of_set(directory, set)
    }

    /// The view of all samples of `directory`, which may be a view itself.
    ///
    /// # Errors
    /// `directory` has no live samples.
    pub fn whole(directory: &Directory) -> Result<View> {
        View::of_set(directory, directory.live_ids())
    }

    /// The view of the samples of `directory` for which `filter` holds. The filter must have been parsed for
    /// this directory. Takes tens of nanoseconds a sample, and more if names are compared.
    ///
    /// # Errors
    /// The filter holds for no sample; or it compares names, and they are not loaded.
    pub fn select(directory: &Directory, filter: &Filter) -> Result<View> {
        let mut set = directory.live_ids();
        filter.restrict(directory, &mut set)?;
        View::of_set(directory, set).map_err(|error| {
            error.hint(format!("no sample fits the expression `{}`", filter.text()))
        })
    }

    /// Divides the samples of `directory` into parts, one for each share of `split`.
    ///
    /// # Errors
    /// A part has no sample; or the split hashes names, and they are not loaded.
    pub fn split(directory: &Directory, split: &Split) -> Result<Vec<View>> {
        let splits = directory.view().map_or(0, |mark| mark.splits);
        let splitter = Splitter::new(split, splits);
        let mut parts = vec![IdSet::new(directory.num_samples()); split.shares().len()];
        let mut name = Vec::new();
        for id in directory.live_ids().iter() {
            parts[splitter.part_of(directory, SampleId(id), &mut name)?].insert(id);
        }
        let parts = parts.into_iter().zip(split.shares());
        let view = |(set, (part, share)): (IdSet, &(String, f64))| {
            View::of_splits(directory, set, splits + 1).map_err(|_| {
                let share = shown(*share);
                let of = directory.num_live();
                invalid(format!("part {part}, a share of {share}, has none of {of} samples"))
                    .hint("take a larger share, or another seed")
            })
        };
        parts.map(view).collect()
    }

    /// The view of `set`, for which no further split was made after those of `directory`.
    fn of_set(directory: &Directory, set: IdSet) -> Result<View> {
        let splits = directory.view().map_or(0, |mark| mark.splits);
        View::of_splits(directory, set, splits)
    }

    /// The view of `ids`, which are the result of `splits` successive splits.
    fn of_splits(directory: &Directory, ids: IdSet, splits: u32) -> Result<View> {
        ensure(!ids.is_empty(), || {
            format!("none of {} samples is selected", directory.num_live())
        })?;
        Ok(View::new(directory.uuid(), directory.generation(), ids, splits))
    }

    fn new(image: Uuid, generation: Generation, ids: IdSet, splits: u32) -> View {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        hasher.update(&image.0);
        hasher.update(&generation.0.to_le_bytes());
        hasher.update(&ids.limit().to_le_bytes());
        ids.words().iter().for_each(|word| hasher.update(&word.to_le_bytes()));
        View { image, generation, ids, splits, hash: hasher.digest128().to_be_bytes() }
    }

    /// UUID of the image.
    pub fn image(&self) -> Uuid {
        self.image
    }

    /// The generation of the image.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The ids of the samples.
    pub fn ids(&self) -> &IdSet {
        &self.ids
    }

    /// The number of samples; never 0.
    pub fn len(&self) -> u64 {
        self.ids.count()
    }

    /// Always returns false: no view is empty.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// A hash of image, generation and ids: views with the same hash have the same samples.
    pub fn hash(&self) -> [u8; 16] {
        self.hash
    }

    /// The directory of only the view's samples. `directory` must be of the same image and generation; it may be a view
    /// itself. Takes tens of nanoseconds for each sample in the view, or for each sample not in it if those are fewer.
    ///
    /// # Errors
    /// The view is of another image or generation; or `directory` lacks a sample of the view.
    pub fn directory(&self, directory: &Directory) -> Result<Directory> {
        if self.image != directory.uuid() {
            return Err(other_image(self.image, directory.uuid()));
        }
        let view = self.generation;
        let open = directory.generation();
        if view != open || self.ids.limit() != directory.num_samples() {
            return Err(other_generation(view, open));
        }
        let mut absent = self.ids.clone();
        absent.remove_all(&directory.live_ids());
        if let Some(id) = absent.iter().next() {
            return Err(no_sample(SampleId(id), directory.num_samples()));
        }
        let mark = ViewMark { hash: self.hash, splits: self.splits };
        Ok(directory.viewed(&self.ids, mark))
    }
}

fn no_sample(id: SampleId, num_samples: u64) -> Error {
    let text = if id.0 < num_samples {
        format!("there is no sample {id}: it is deleted, or not in the view that was open")
    } else {
        format!("there is no sample {id}: ids are below {num_samples}")
    };
    Error::new(ErrorKind::NotFound, text)
}

fn other_image(view: Uuid, open: Uuid) -> Error {
    invalid(format!("the view is of image {view}, and this is image {open}"))
}

fn other_generation(view: Generation, open: Generation) -> Error {
    let text = format!("the view is of generation {view}, and the image is at generation {open}");
    Error::new(ErrorKind::Stale, text).hint(
        "select or split again at this generation: ids keep their samples, and each stays in its part",
    )
}

/// The error if names cannot be read. It says that they are not loaded: loading verifies their checksum, so only names
/// of a forged image can be damaged here.
fn not_loaded(_: FormatError) -> Error {
    invalid("the names of the samples are not loaded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::DirectoryBuilder;
    use crate::format::{ImageLayout, Pack};

    #[test]
    fn a_view_of_another_image_or_generation_is_refused() {
        let directory = |uuid| {
            let layout = ImageLayout::new(Uuid([uuid; 16]), 1 << 20, Pack::Tight, 1).unwrap();
            DirectoryBuilder::new(layout).finish(Generation(1), 0).unwrap()
        };
        let one = directory(1);
        let two = directory(2);
        assert_eq!(View::whole(&one).unwrap_err().to_string(), "none of 0 samples is selected");
        let view = View::new(one.uuid(), one.generation(), IdSet::new(0), 0);
        let error = view.directory(&two).unwrap_err();
        assert!(error.to_string().contains("is of image"), "{error}");
        let view = View::new(one.uuid(), Generation(one.generation().0 + 1), IdSet::new(0), 0);
        assert_eq!(view.directory(&one).unwrap_err().kind(), ErrorKind::Stale);
    }
}
