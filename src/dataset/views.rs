//! Views: parts of an image's samples, selected, split, saved to a file, and opened from it.
//!
//! [`crate::view`] defines views and their file. A view of an image is an [`Image`], and a [`Dataset`], with another
//! directory: it shares namespaces, tiers and peers with the whole image.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::{Dataset, Image};
use crate::error::{Error, Result, invalid};
use crate::reader::Watch;
use crate::replace_file::{NewMode, replace_file};
use crate::units::SampleId;
use crate::view::{Filter, NamedView, Split, SplitBy, VIEW_HEADER_BYTES, View, ViewFile};

/// The source of a view: a file of views, or the bytes of one.
///
/// As text, `PATH`, or `PATH:NAME` if the file has several views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewSource {
    /// A file and the name of a view in it; without a name, the file's only view.
    File {
        /// The file.
        path: PathBuf,
        /// The name of the view.
        name: Option<String>,
    },
    /// The bytes of a file with one view.
    Bytes(Vec<u8>),
}

impl ViewSource {
    /// The view that `text` names: a path, optionally followed by a colon and the name of a view in the file.
    /// If `text` is an existing path, the whole of it is the path.
    pub fn of_text(text: &Path) -> ViewSource {
        let split = || {
            let (path, name) = text.to_str()?.rsplit_once(':')?;
            Some((PathBuf::from(path), Some(name.to_owned())))
        };
        let whole = || (text.to_owned(), None);
        let (path, name) = if text.exists() { whole() } else { split().unwrap_or_else(whole) };
        ViewSource::File { path, name }
    }

    /// Opens the view of `image`, which has all samples.
    ///
    /// # Errors
    /// `NotFound`: the file does not exist. `InvalidArgument`: the file has no such view, or a view of
    /// another image. `Stale`: its views belong to another generation. `Corrupt`: the file is damaged.
    /// `Unsupported`: a later release wrote the file.
    pub(super) fn open(&self, image: &Image) -> Result<Image> {
        let view = |bytes: &[u8], name: Option<&str>| {
            let file = ViewFile::from_bytes(bytes, image.directory())?;
            image.viewed(&file.view(name)?.view)
        };
        match self {
            ViewSource::Bytes(bytes) => view(bytes, None),
            ViewSource::File { path, name } => {
                view(&read_file(path)?, name.as_deref()).map_err(|error| error.path(path))
            }
        }
    }
}

impl FromStr for ViewSource {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<ViewSource, Self::Err> {
        Ok(ViewSource::of_text(Path::new(text)))
    }
}

impl fmt::Display for ViewSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewSource::Bytes(bytes) => write!(f, "a view of {} bytes", bytes.len()),
            ViewSource::File { path, name: None } => path.display().fmt(f),
            ViewSource::File { path, name: Some(name) } => write!(f, "{}:{name}", path.display()),
        }
    }
}

/// Writes `views` to a file, atomically: a crash leaves the old file or the new one.
///
/// # Errors
/// `InvalidArgument`: the views differ in image or generation, or a name is invalid; `path` is not a regular
/// file. Errors of the file system.
pub fn save_views(path: &Path, views: Vec<NamedView>) -> Result<()> {
    let file = ViewFile::new(views).map_err(|error| error.path(path))?;
    replace_file(path, NewMode::ByUmask, &file.to_bytes())
}

impl Image {
    /// The samples of `view` alone. Namespaces, tiers and peers are shared with this image, which may itself
    /// be a view. A store is not shared, since it holds the share of other samples.
    ///
    /// # Errors
    /// `InvalidArgument`: the view belongs to another image, or has samples that this image lacks. `Stale`:
    /// the view belongs to another generation.
    pub fn viewed(&self, view: &View) -> Result<Image> {
        let directory = Arc::new(view.directory(&self.directory)?);
        Ok(Image { directory, store: None, ..self.clone() })
    }

    /// The image with all samples: this one, unless it is a view.
    #[must_use]
    pub fn unviewed(&self) -> Image {
        if self.directory.view().is_none() {
            return self.clone();
        }
        Image { directory: Arc::clone(&self.whole), store: None, ..self.clone() }
    }
}

impl Dataset {
    /// The samples that match the expression `text`, as a data set that shares connections, tiers and peers
    /// with this one. [`crate::view`] describes the language. Loads the names if the expression compares
    /// names.
    ///
    /// # Errors
    /// `InvalidArgument`: `text` is not an expression over the columns of this data set (the message gives
    /// the character), or no sample matches. As [`Dataset::load_names`].
    pub fn select(&self, text: &str, watch: &mut dyn Watch) -> Result<Dataset> {
        self.viewed(&self.view_of(text, watch)?)
    }

    /// The view of the samples that match the expression `text`.
    ///
    /// # Errors
    /// Errors of [`Dataset::select`].
    pub(crate) fn view_of(&self, text: &str, watch: &mut dyn Watch) -> Result<View> {
        let filter = Filter::parse(text, self.directory())?;
        if filter.needs_names() {
            self.load_names(watch)?;
        }
        View::select(self.directory(), &filter)
    }

    /// The samples with these ids, which may be in any order and may repeat.
    ///
    /// # Errors
    /// `InvalidArgument`: there are no ids. `NotFound`: the data set has no sample with one of the ids.
    pub fn select_ids(&self, ids: impl IntoIterator<Item = SampleId>) -> Result<Dataset> {
        self.viewed(&View::of_ids(self.directory(), ids)?)
    }

    /// The parts of a keyed split, in the order of its shares. Loads the names if the key is the name.
    ///
    /// # Errors
    /// `InvalidArgument`: a part has no sample. As [`Dataset::load_names`].
    pub fn split(&self, split: &Split, watch: &mut dyn Watch) -> Result<Vec<NamedView>> {
        if split.by() != SplitBy::Id {
            self.load_names(watch)?;
        }
        let views = View::split(self.directory(), split)?;
        let named = views.into_iter().zip(split.shares()).map(|(view, (name, _))| NamedView {
            name: name.clone(),
            made: split.describe(name),
            view,
        });
        Ok(named.collect())
    }

    /// The samples of `view`, as a data set that shares connections, tiers and peers with this one.
    ///
    /// # Errors
    /// Errors of [`Image::viewed`].
    pub fn viewed(&self, view: &View) -> Result<Dataset> {
        Ok(Dataset::from_image(self.image().viewed(view)?, self.0.options.clone()))
    }

    /// All samples of this data set, as a view that can be saved.
    ///
    /// # Errors
    /// `InvalidArgument`: the data set is empty.
    pub fn as_view(&self) -> Result<View> {
        View::whole(self.directory())
    }
}

/// Reads a file of views, and no more of the file than its header says.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let about = |error| Error::of_file("cannot read the views", path, error);
    // Checked before opening, since opening a FIFO waits for its other end.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(invalid("views lie in a regular file, and this is not one").path(path));
    }
    let mut file = File::open(path).map_err(about)?;
    let mut bytes = Vec::new();
    file.by_ref().take(VIEW_HEADER_BYTES as u64).read_to_end(&mut bytes).map_err(about)?;
    // The header is checked before the rest is read: the file may be a large one, named by mistake.
    let len = ViewFile::len_of(&bytes).map_err(|error| error.path(path))?;
    file.take(len.saturating_add(1) - bytes.len() as u64).read_to_end(&mut bytes).map_err(about)?;
    Ok(bytes)
}
