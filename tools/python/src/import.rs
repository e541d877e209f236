//! Imports of files, as the command `dlfs import` does.

use std::path::{Path, PathBuf};

use dlfs::dataset::cataloging::Origin;
use dlfs::dataset::{Watch, class_names};
use dlfs::format::field_type::Element;
use dlfs::import::{self, ColumnsFrom, ImportOptions, Onto, PlacementOrder, RowOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dataset::addresses;
use crate::error::{OrRaise as _, detached, raise_invalid};
use crate::options::{self, given_or};
use crate::writer::{catalog_name, committed, onto, pack, written};

/// Imports files; see `dlfs.import_`. Returns a dict that says what was committed.
#[pyfunction]
pub(crate) fn import_files<'py>(
    paths: Vec<PathBuf>,
    address: &Bound<'py, PyAny>,
    how: &Bound<'py, PyDict>,
    connection: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = address.py();
    let image = addresses(address)?;
    let connect = options::connection(connection)?;
    let catalog = given_or(how, "catalog", None::<String>)?;
    let catalog = catalog.map(|name| catalog_name(py, &name)).transpose()?;
    let mut options = import_options(how)?;
    options.folders = connect.folders;
    let classes = given_or(how, "classes", None::<PathBuf>)?;
    let made_by = if options.onto == Onto::Append { "append" } else { "import" };
    let report = detached(py, move |watch| {
        options.places.cancel = watch.cancel();
        if let Some(from) = &classes {
            options.classes = class_names(from.as_os_str(), &connect)?;
        }
        let report =
            import::import(&paths, &image, &options, &connect, &mut (watch as &mut dyn Watch))?;
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

/// Options of the import, except its address and how to connect.
fn import_options(how: &Bound<'_, PyDict>) -> PyResult<ImportOptions> {
    let py = how.py();
    let is_set = |key| given_or(how, key, false);
    let text = |key| given_or(how, key, None::<String>);
    let texts = |key| given_or(how, key, Vec::<String>::new());
    let path = |key| given_or(how, key, None::<PathBuf>);
    let types = texts("field_types")?;
    let types = types
        .iter()
        .map(|text| text.parse().map_err(|why| raise_invalid(py, format!("fields: {why}"))));
    let columns = path("columns")?;
    let union = columns.as_deref() == Some(Path::new("union"));
    let columns = columns.filter(|_| !union);
    let columns = columns.map(|path| ColumnsFrom { path, key: None, only: Vec::new() });
    let onto = match (is_set("resume")?, onto(how)?) {
        (true, Onto::Empty) => Onto::Resume,
        (true, _) => {
            let text = "resume continues as the import began: without append and overwrite";
            return Err(raise_invalid(py, text.into()));
        }
        (false, onto) => onto,
    };
    let element = |text: String| {
        let wrong = || raise_invalid(py, format!("tokens: '{text}' is no type"));
        Element::named(&text).ok_or_else(wrong)
    };
    let shuffled = is_set("shuffle")?;
    Ok(ImportOptions {
        from: text("from")?.unwrap_or_default().parse().or_raise(py)?,
        onto,
        placement: if shuffled { PlacementOrder::Shuffled } else { PlacementOrder::Source },
        seed: given_or(how, "seed", 0)?,
        chunk_size_bytes: given_or(how, "chunk_size", 0)?,
        pack: pack(how)?,
        on_error: text("on_error")?.unwrap_or_default().parse().or_raise(py)?,
        field_types: types.collect::<PyResult<_>>()?,
        columns,
        rows: RowOptions {
            name: text("name")?,
            label: text("label")?,
            fields: texts("fields")?,
            files: None,
            tokens: text("tokens")?.map(element).transpose()?,
            end_of_document: given_or(how, "end_of_document", None)?,
            tokenizer: path("tokenizer")?,
            text: text("text")?,
            union,
        },
        splits: texts("split")?,
        prefix: is_set("prefix")?,
        nested: is_set("nested")?,
        max_expansion: given_or(how, "max_expansion", 0)?,
        accept_older_generation: is_set("accept_older_generation")?,
        ..ImportOptions::default()
    })
}
