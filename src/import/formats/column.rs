//! The columns of files of rows, and what of a row becomes a sample's name, label and fields.

use crate::format::FieldTypes;
use crate::format::builder::has_room_for_fields;
use crate::format::field_type::{Element, FieldType};
use crate::import::options::RowOptions;
use crate::import::sources::sample_stream::FieldBytes;
use crate::{Error, ErrorKind, Result};

/// A column of a file of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    /// Its name.
    pub(super) name: String,
    /// What its values are.
    pub(super) kind: CellKind,
    /// Names of the classes, if its values are their numbers.
    pub(super) classes: Vec<String>,
}

/// What the values of a column are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CellKind {
    /// Bytes or text.
    Bytes,
    /// A number or an array of numbers.
    Elements(FieldType),
    /// What a field does not hold, in the words of the format.
    Other(String),
}

/// The values of a row, one a column; `None`: there is none.
pub(super) type Cells = Vec<Option<FieldBytes>>;

impl Column {
    /// A column of bytes.
    pub(super) fn bytes(name: impl Into<String>) -> Column {
        Column::new(name, CellKind::Bytes)
    }

    /// A column of `kind`.
    pub(super) fn new(name: impl Into<String>, kind: CellKind) -> Column {
        Column { name: name.into(), kind, classes: Vec::new() }
    }
}

/// Which column is what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The column of the names; `None`: files and numbers of rows are.
    pub(super) name: Option<usize>,
    /// The column of the labels.
    pub(super) label: Option<usize>,
    /// The columns of the fields.
    pub(super) fields: Vec<usize>,
}

impl Chosen {
    /// What `options` choose among `columns`; fields come in the order of those of the image that is appended to.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such column, or its values cannot be what is asked for.
    pub(super) fn new(
        columns: &[Column],
        options: &RowOptions,
        image: Option<&[Vec<u8>]>,
    ) -> Result<Chosen> {
        let find = |name: &String| {
            let found = columns.iter().position(|column| column.name == *name);
            found.ok_or_else(|| no_column(name, columns))
        };
        let name = options.name.as_ref().map(find).transpose()?;
        let label = match &options.label {
            Some(label) => Some(find(label)?),
            None => only_class_label(columns, options),
        };
        let mut fields: Vec<usize> = match options.fields.is_empty() {
            true => (0..columns.len()).filter(|at| ![name, label].contains(&Some(*at))).collect(),
            false => options.fields.iter().map(find).collect::<Result<_>>()?,
        };
        if fields.is_empty() {
            return Err(invalid("no column is left to be a field".to_owned()));
        }
        if let Some(image) = image {
            let place =
                |at: &usize| image.iter().position(|own| *own == columns[*at].name.as_bytes());
            fields.sort_by_key(|at| place(at).unwrap_or(usize::MAX));
        }
        let chosen = Chosen { name, label, fields };
        chosen.check(columns)?;
        Ok(chosen)
    }

    fn check(&self, columns: &[Column]) -> Result<()> {
        for at in self.fields.iter().chain(&self.name).chain(&self.label) {
            let name = &columns[*at].name;
            if columns.iter().filter(|column| column.name == *name).count() > 1 {
                let text = format!("the rows have more than one column {name}");
                return Err(invalid(text).hint("rename them, or choose others with --fields"));
            }
            if name.contains('\0') {
                let text = format!("column {} has a NUL in its name", name.escape_debug());
                return Err(invalid(text).hint("choose others with --fields"));
            }
            if self.fields.iter().filter(|field| *field == at).count() > 1 {
                return Err(invalid(format!("column {name} is given twice as a field")));
            }
        }
        let is_neither = |at: &&usize| matches!(columns[**at].kind, CellKind::Other(_));
        let wrong: Vec<String> = self
            .fields
            .iter()
            .filter(is_neither)
            .map(|at| format!("{} is {}", columns[*at].name, columns[*at].shown()))
            .collect();
        if !wrong.is_empty() {
            let text = format!("columns are neither bytes nor numbers: {}", wrong.join(", "));
            return Err(invalid(text).hint("choose others with --fields"));
        }
        let names = self.fields.iter().map(|at| columns[*at].name.as_bytes());
        if !has_room_for_fields(names, &self.types(columns)) {
            let num = self.fields.len();
            let text = format!(
                "{num} columns are too many fields: their names and types have more than 8 KiB"
            );
            return Err(invalid(text).hint("choose some with --fields"));
        }
        if let Some(column) = self.name.map(|at| &columns[at])
            && column.kind != CellKind::Bytes
        {
            let text = format!("column {} has {}, not names", column.name, column.shown());
            return Err(invalid(text));
        }
        if let Some(column) = self.label.map(|at| &columns[at])
            && !column.holds_labels()
        {
            let text = format!("column {} has {}, not labels", column.name, column.shown());
            return Err(invalid(text).hint("a label is an integer, or the name of a class"));
        }
        Ok(())
    }

    /// The types of the fields.
    pub(super) fn types(&self, columns: &[Column]) -> FieldTypes {
        let kind = |at: &usize| match &columns[*at].kind {
            CellKind::Elements(kind) => Some(kind.clone()),
            _ => None,
        };
        FieldTypes::new(self.fields.iter().map(kind).collect())
    }
}

impl Column {
    /// What its values are, for messages.
    pub(super) fn shown(&self) -> String {
        match &self.kind {
            CellKind::Bytes => "bytes".to_owned(),
            CellKind::Elements(kind) => kind.to_string(),
            CellKind::Other(what) => what.clone(),
        }
    }

    fn holds_labels(&self) -> bool {
        match &self.kind {
            CellKind::Bytes => true,
            CellKind::Elements(kind) => {
                use Element::{Bf16, F16, F32, F64};
                kind.dims().len() == 0 && !matches!(kind.element(), F16 | Bf16 | F32 | F64)
            }
            CellKind::Other(_) => false,
        }
    }
}

/// The column that the file says to hold classes, if there is one such and it is not wanted as a field.
fn only_class_label(columns: &[Column], options: &RowOptions) -> Option<usize> {
    let mut with_classes = (0..columns.len()).filter(|at| !columns[*at].classes.is_empty());
    let only = with_classes.next().filter(|_| with_classes.next().is_none())?;
    (!options.fields.contains(&columns[only].name)).then_some(only)
}

fn no_column(name: &str, columns: &[Column]) -> Error {
    let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
    invalid(format!("the rows have no column {name}: they have {}", names.join(", ")))
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}
