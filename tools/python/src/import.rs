//! Imports files, as the command `dlfs import` does.

use std::path::{Path, PathBuf};

use dlfs::dataset::cataloging::Origin;
use dlfs::dataset::class_names;
use dlfs::format::Pack;
use dlfs::format::field_type::Element;
use dlfs::import::{self, ColumnsFrom, ImportOptions, Onto, PlacementOrder, RowOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dataset::addresses;
use crate::edit::Asking;
use crate::error::{raise, raise_invalid};
use crate::options;
use crate::watch::detached;
use crate::writer::{catalog_name, committed, onto, pack, written};

/// Options of the import, except its address and how to connect.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct How {
    field_types: Vec<String>,
    name: Option<String>,
    label: Option<String>,
    fields: Vec<String>,
    tokens: Option<String>,
    end_of_document: Option<u32>,
    tokenizer: Option<PathBuf>,
    text: Option<String>,
    split: Vec<String>,
    columns: Option<PathBuf>,
    #[pyo3(item("from"))]
    kind: String,
    on_error: String,
    resume: bool,
    append: bool,
    overwrite: bool,
    shuffle: bool,
    seed: u64,
    chunk_size: u32,
    pack: String,
    catalog: Option<String>,
    prefix: bool,
    nested: bool,
    max_expansion: u64,
    classes: Option<PathBuf>,
    accept_older_generation: bool,
}

/// Imports files; see `dlfs.import_`. Returns a dict that says what was committed.
#[pyfunction]
pub(crate) fn import_files<'py>(
    paths: Vec<PathBuf>,
    address: &Bound<'py, PyAny>,
    how: &Bound<'py, PyDict>,
    connection: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = address.py();
    let how: How = how.extract()?;
    let image = addresses(address)?;
    let connect = options::connection(connection)?;
    let catalog = how.catalog.as_deref().map(|name| catalog_name(py, name)).transpose()?;
    let mut options = how.options(py)?;
    options.folders = connect.folders;
    let classes = how.classes.clone();
    let made_by = if options.onto == Onto::Append { "append" } else { "import" };
    let report = detached(py, move |watch| {
        options.places.cancel = watch.cancel();
        if let Some(from) = &classes {
            options.classes = class_names(from.as_os_str(), &connect)?;
        }
        let report = import::import(&paths, &image, &options, &connect, &mut Asking(watch))?;
        let sources = paths.iter().map(|source| dlfs::places::shown(source)).collect();
        let origin = Origin { made_by: made_by.to_owned(), sources, ..Origin::default() };
        let at = (&image[..], report.generation);
        committed(at, &connect, catalog.as_ref(), origin, "the import is done")?;
        Ok(report)
    })?;
    written(
        py,
        &import::WriteReport {
            uuid: report.uuid,
            generation: report.generation,
            samples: report.samples,
            sample_bytes: report.sample_bytes,
            live_samples: report.live_samples,
            chunks: report.chunks,
            image_bytes: report.image_bytes,
        },
    )
}

impl How {
    fn options(&self, py: Python<'_>) -> PyResult<ImportOptions> {
        let types = self
            .field_types
            .iter()
            .map(|text| text.parse().map_err(|why| raise_invalid(py, format!("fields: {why}"))));
        let union = self.columns.as_deref() == Some(Path::new("union"));
        let columns = self.columns.clone().filter(|_| !union);
        let columns = columns.map(|path| ColumnsFrom { path, key: None, only: Vec::new() });
        let onto = match (self.resume, onto(py, self.append, self.overwrite)?) {
            (true, Onto::Empty) => Onto::Resume,
            (true, _) => {
                let text = "resume continues as the import began: without append and overwrite";
                return Err(raise_invalid(py, text.into()));
            }
            (false, onto) => onto,
        };
        let wrong = |text: &str| raise_invalid(py, format!("tokens: '{text}' is no type"));
        let element = |text: &str| Element::named(text).ok_or_else(|| wrong(text));
        let tokens = self.tokens.as_deref().map(element).transpose()?;
        let pack: Pack = pack(py, &self.pack)?;
        Ok(ImportOptions {
            from: self.kind.parse().map_err(|error| raise(py, &error))?,
            onto,
            placement: if self.shuffle { PlacementOrder::Shuffled } else { PlacementOrder::Source },
            seed: self.seed,
            chunk_size_bytes: self.chunk_size,
            pack,
            on_error: self.on_error.parse().map_err(|error| raise(py, &error))?,
            field_types: types.collect::<PyResult<_>>()?,
            columns,
            rows: RowOptions {
                name: self.name.clone(),
                label: self.label.clone(),
                fields: self.fields.clone(),
                files: None,
                tokens,
                end_of_document: self.end_of_document,
                tokenizer: self.tokenizer.clone(),
                text: self.text.clone(),
                union,
            },
            splits: self.split.clone(),
            prefix: self.prefix,
            nested: self.nested,
            max_expansion: self.max_expansion,
            accept_older_generation: self.accept_older_generation,
            ..ImportOptions::default()
        })
    }
}
