//! The files of a source of rows: their columns are combined, and get roles and types.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::classes::Classes;
use super::column::{CellKind, Cells, Chosen, Column, is_wanted, places};
use super::input::{FoundPages, LOOKING_UP};
use super::{RowError, RowFile};
use crate::import::field_types::{FieldSpec, is_named, type_in_image};
use crate::import::options::{ImportOptions, RowOptions};
use crate::import::sources::sample_stream::StreamPlace;
use crate::import::sources::{FoundFile, SourceKind};
use dlfs_base::threads::map_at_once;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::FieldTypes;
use dlfs_format::format::field_type::FileForm;
use dlfs_places::{Client, Object};

/// The files of a source of rows, and the columns of all of them.
pub(crate) struct RowSet {
    /// The files, with the columns found in them.
    pub(super) files: Vec<(RowFile, Vec<Column>)>,
    /// Number of index files that name the files; 0 if the user named the files.
    pub(super) indexes: u64,
    /// The objects that index files name.
    pub(super) shards: Vec<(Client, Object)>,
    /// The options by which the user chose columns.
    pub(super) options: RowOptions,
    /// The columns of all files, each with the kind that holds its values in all files.
    pub(super) columns: Vec<Column>,
    /// The roles of these columns.
    pub(super) chosen: Chosen,
    /// The names of the fields.
    pub(super) fields: Vec<Vec<u8>>,
    /// The types of the fields.
    pub(super) types: FieldTypes,
    /// The classes that are known without reading rows.
    pub(super) classes: Classes,
    /// Set until the classes that only rows name have numbers.
    pub(super) has_unnumbered_classes: bool,
    /// Set if all names are those of files and numbers, so that none comes twice and no hashes are kept.
    pub(super) has_numbered_names: bool,
    /// Set if all names that rows define are prefixed with their file.
    pub(super) prefix: bool,
}

impl RowSet {
    /// The rows of `files`. `indexes`: number of index files that name them; 0 if the user named the files. `image`:
    /// the image that the rows are appended to.
    ///
    /// # Errors
    /// A file does not open, or lacks a column that the options select, or the files' columns differ.
    pub(super) fn new(
        files: Vec<RowFile>,
        indexes: u64,
        kind: SourceKind,
        image: Option<&Directory>,
        given: &ImportOptions,
    ) -> Result<RowSet> {
        let options = &given.rows;
        let Some(first) = files.first() else {
            return Err(Error::new(ErrorKind::BadSource, format!("there is no {kind} file")));
        };
        let path = first.input.path.clone();
        let objects = files.iter().filter(|_| indexes > 0).filter_map(RowFile::object);
        let shards = objects.collect();
        let found = map_at_once(LOOKING_UP, &files, |file| Ok(file.open(options, None)?.0))?;
        let types = Types { given: &given.field_types, image, kind };
        let columns = unified(&files, &found, options, &types)?;
        let stems = files.iter().map(|file| &file.stem).collect::<HashSet<_>>().len();
        let has_numbered_names =
            matches!(kind, SourceKind::Megatron | SourceKind::Tokens) && stems == files.len();
        let image_fields = image.map(Directory::fields);
        let chosen =
            Chosen::new(&columns, options, image_fields).map_err(|error| error.path(path))?;
        let field = |at: &usize| columns[*at].name.clone().into_bytes();
        let label = chosen.label.map(|at| &columns[at]);
        let classes = Classes::new(image, &given.classes, label);
        let is_by_name = label.is_some() && classes.element.is_none() && given.classes.is_empty();
        Ok(RowSet {
            files: files.into_iter().zip(found).collect(),
            indexes,
            shards,
            options: options.clone(),
            fields: chosen.fields.iter().map(field).collect(),
            types: chosen.types(&columns),
            columns,
            chosen,
            classes,
            has_unnumbered_classes: is_by_name,
            has_numbered_names,
            prefix: given.prefix,
        })
    }

    /// Names and types of the fields.
    pub(crate) fn layout(&self) -> (Vec<Vec<u8>>, FieldTypes) {
        (self.fields.clone(), self.types.clone())
    }

    /// The names of the classes that are known.
    pub(crate) fn classes(&self) -> &[Vec<u8>] {
        &self.classes.names
    }

    /// Numbers the classes of all files in the order in which an import would, so that each file can be read alone.
    ///
    /// # Errors
    /// As [`RowSource::begin`].
    pub(crate) fn with_all_classes(mut self) -> Result<RowSet> {
        let Some(label) = self.chosen.label else { return Ok(self) };
        let name = self.columns[label].name.clone();
        for (_, columns) in &self.files {
            if let Some(column) = columns.iter().find(|column| column.name == name) {
                self.classes.numbers(&column.classes);
            }
        }
        if std::mem::take(&mut self.has_unnumbered_classes) {
            let names = self.label_names()?;
            self.classes.numbers(names);
        }
        Ok(self)
    }

    /// The names of the classes that rows name. They are read before the rows, so that classes are numbered in the
    /// order of their names, as folders are. Bad rows are reported when rows are read.
    ///
    /// # Errors
    /// A file does not open. Errors of the store.
    pub(super) fn label_names(&self) -> Result<BTreeSet<Vec<u8>>> {
        let Some(label) = self.chosen.label else { return Ok(BTreeSet::new()) };
        let label = &self.columns[label].name;
        let only = RowOptions {
            label: Some(label.clone()),
            fields: vec![label.clone()],
            union: true,
            ..RowOptions::default()
        };
        let mut columns = self.columns.clone();
        columns.iter_mut().for_each(|column| column.files_of = None); // do not read files that rows name
        let names = |(file, _): &(RowFile, Vec<Column>)| names_in(file, &columns, &only, label);
        Ok(map_at_once(LOOKING_UP, &self.files, names)?.into_iter().flatten().collect())
    }

    /// The path, the object and the prefix of names of each file.
    pub(crate) fn files(&self) -> impl Iterator<Item = FoundFile> + '_ {
        self.files.iter().map(|(file, _)| {
            let RowFile { input, stem, .. } = file;
            FoundFile { path: input.path.clone(), name: stem.clone(), object: file.object() }
        })
    }

    /// The known pages of file number `number`; see [`FoundPages`].
    pub(crate) fn pages(&self, number: usize) -> &FoundPages {
        &self.files[number].0.input.pages
    }
}

/// The options and the image, which define the types of columns in the image.
struct Types<'a> {
    /// The types that the options give.
    given: &'a [FieldSpec],
    image: Option<&'a Directory>,
    /// The kind of the source.
    kind: SourceKind,
}

impl Types<'_> {
    /// The kind that a column with `kind` in the files has in the image. `None`: its values stay as they are, since
    /// options and image define no type, or since they are the bytes of elements already.
    fn of(&self, name: &str, kind: &CellKind) -> Option<CellKind> {
        let given = self.given.iter().find(|spec| is_named(name.as_bytes(), &spec.field));
        let kept = given
            .map_or_else(|| type_in_image(self.image, name.as_bytes()), |spec| spec.kind.clone());
        let kept = kept.filter(|kept| kept.form() == FileForm::Raw)?;
        // Bytes in binary files are the elements themselves; strings in JSON Lines are not.
        let is_raw = *kind == CellKind::Bytes && self.kind != SourceKind::JsonLines;
        (!is_raw).then_some(CellKind::Elements(kept))
    }
}

/// The hint in the error for a file that lacks a column.
const HOW_TO_UNITE: &str = "--columns union imports the rows of such files without a value there, \
                            --fields takes other columns";

/// Combines the columns `found` in `files`. Each gets the kind that holds its values in all files.
///
/// # Errors
/// `BadSource`: no kind holds the values of a column, or a file lacks a column.
fn unified(
    files: &[RowFile],
    found: &[Vec<Column>],
    options: &RowOptions,
    types: &Types<'_>,
) -> Result<Vec<Column>> {
    let shown = |file: &RowFile| file.input.path.display().to_string();
    // Each column, with the first file that has values in it.
    let mut all: Vec<(Column, usize)> = Vec::new();
    let mut known_at: HashMap<&str, usize> = HashMap::new();
    for (file, columns) in found.iter().enumerate() {
        for column in columns.iter().filter(|column| is_wanted(column, options)) {
            let known = known_at.get(&*column.name).copied();
            let Some(known) = known.filter(|_| file > 0) else {
                known_at.entry(&column.name).or_insert(all.len());
                all.push((column.clone(), file));
                continue;
            };
            let (known, first) = &mut all[known];
            if known.kind == CellKind::Nothing {
                *first = file;
            }
            let both = known.kind.with(&column.kind);
            let is_given = types.of(&known.name, &known.kind).is_some()
                && types.of(&known.name, &column.kind).is_some();
            known.kind = both.or(is_given.then(|| known.kind.clone())).ok_or_else(|| {
                let name = &known.name;
                let one = known.shown();
                let other = column.shown();
                let first = shown(&files[*first]);
                let file = shown(&files[file]);
                let text = format!("column {name} holds {one} in {first}, and {other} in {file}");
                Error::new(ErrorKind::BadSource, text).hint(match (&known.kind, &column.kind) {
                    (CellKind::Elements(_), CellKind::Elements(_)) => format!(
                        "--field-type {name}:TYPE gives it a type that holds both, --fields takes other columns"
                    ),
                    _ => "choose other columns with --fields".to_owned(),
                })
            })?;
        }
    }
    let places: Vec<_> = found.iter().map(|columns| places(columns)).collect();
    for (column, first) in &mut all {
        let is_without = |places: &HashMap<String, usize>| !places.contains_key(&column.name);
        if let Some(without) = places.iter().position(is_without).filter(|_| !options.union) {
            let with = shown(&files[*first]);
            let without = shown(&files[without]);
            let text = format!("column {} is in {with}, and not in {without}", column.name);
            return Err(Error::new(ErrorKind::BadSource, text).hint(HOW_TO_UNITE));
        }
        if let Some(kind) = types.of(&column.name, &column.kind) {
            column.kind = kind;
        }
    }
    // Columns that are not selected appear only in messages.
    let others = found.iter().take(1).flatten().filter(|column| !is_wanted(column, options));
    Ok(all.into_iter().map(|(column, _)| column).chain(others.cloned()).collect())
}

/// The strings in the column `label` of a file. `columns`: the columns of all files; `only`: the choice of `label`
/// alone.
fn names_in(
    file: &RowFile,
    columns: &[Column],
    only: &RowOptions,
    label: &str,
) -> Result<BTreeSet<Vec<u8>>> {
    let mut names = BTreeSet::new();
    let (columns, mut reader) = file.open(only, Some(columns))?;
    let Some(at) = places(&columns).get(label).copied() else { return Ok(names) };
    reader.begin(StreamPlace::default())?;
    let mut cells = Cells::new();
    loop {
        match reader.next_row(&mut cells) {
            Ok(true) => {
                if let Some(Some(name)) = cells.get(at)
                    && !names.contains(&name[..])
                {
                    names.insert(name.to_vec());
                }
            }
            Err(RowError::Row(_)) => {}
            Ok(false) | Err(RowError::File(_)) => break,
        }
    }
    file.input.check()?;
    Ok(names)
}
