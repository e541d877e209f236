//! Columns of row files, and the choice of columns for a sample's name, label and fields.

use std::collections::{HashMap, HashSet};

use crate::import::options::RowOptions;
use crate::import::sources::sample_stream::FieldBytes;
use dlfs_base::Result;
use dlfs_base::error::invalid;
use dlfs_format::format::FieldTypes;
use dlfs_format::format::builder::has_room_for_fields;
use dlfs_format::format::field_type::{Element, FieldType};

/// A column of a row file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    /// Name of the column.
    pub(super) name: String,
    /// Kind of the values.
    pub(super) kind: CellKind,
    /// Names of the classes, if the values are class numbers.
    pub(super) classes: Vec<String>,
    /// In JSON Lines: the key whose values name files, if the column holds the content of these files; else `None`.
    pub(super) files_of: Option<String>,
}

/// The kind of a column's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CellKind {
    /// There are no values.
    Nothing,
    /// Bytes or strings.
    Bytes,
    /// A number or an array of numbers.
    Elements(FieldType),
    /// A type that fields cannot hold, as the format names it.
    Other(String),
}

/// The values of a row, one per column; `None` for a missing value.
pub(super) type Cells = Vec<Option<FieldBytes>>;

impl Column {
    /// A column of `kind`.
    pub(super) fn new(name: impl Into<String>, kind: CellKind) -> Column {
        Column { name: name.into(), kind, classes: Vec::new(), files_of: None }
    }
}

impl CellKind {
    /// The kind for the values of both kinds, if there is one. A value that this kind does not hold exactly makes its
    /// row bad.
    pub(super) fn with(&self, other: &CellKind) -> Option<CellKind> {
        match (self, other) {
            (CellKind::Nothing, kind) | (kind, CellKind::Nothing) => Some(kind.clone()),
            (a, b) if a == b => Some(a.clone()),
            (CellKind::Elements(a), CellKind::Elements(b)) => wider(a, b).map(CellKind::Elements),
            _ => None,
        }
    }
}

/// The type for the arrays of both types; the first dimension is free if it differs.
fn wider(a: &FieldType, b: &FieldType) -> Option<FieldType> {
    let element = wider_element(a.element(), b.element())?;
    let [a, b] = [a, b].map(|kind| kind.dims().collect::<Vec<_>>());
    let is_free = a.first() != b.first() || a.first() == Some(&None);
    if a.len() != b.len() || a.get(1..) != b.get(1..) {
        return None;
    }
    let dims = a.iter().skip(is_free.into()).copied().collect::<Option<_>>()?;
    FieldType::new(element, is_free, dims).ok()
}

/// The element type for the numbers of both types. For integers and floats it is a float type, which holds only the
/// integers that are exact in it.
fn wider_element(a: Element, b: Element) -> Option<Element> {
    use Element::{Bool, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    if a == b || a == Bool || b == Bool {
        return Some(a).filter(|_| a == b);
    }
    let is_signed = |element| matches!(element, I8 | I16 | I32 | I64);
    let holds = |wide: Element, narrow: Element| {
        let has_room = narrow.len_bytes() < wide.len_bytes();
        match (is_float(wide), is_float(narrow)) {
            (true, false) => wide == F64 || narrow.len_bytes() <= 2,
            (false, false) if is_signed(narrow) && !is_signed(wide) => false,
            (false, false) if is_signed(narrow) == is_signed(wide) => {
                has_room || narrow.len_bytes() == wide.len_bytes()
            }
            _ => has_room || narrow == wide,
        }
    };
    let of_both = |wide: &Element| {
        is_float(*wide) == (is_float(a) || is_float(b)) && holds(*wide, a) && holds(*wide, b)
    };
    [U8, I8, U16, I16, U32, I32, U64, I64, F32, F64].into_iter().find(of_both)
}

/// Maps each name to its first index in `columns`.
pub(super) fn places(columns: &[Column]) -> HashMap<String, usize> {
    columns.iter().enumerate().rev().map(|(at, column)| (column.name.clone(), at)).collect()
}

/// Returns whether `options` select this column; other columns need not be read.
pub(super) fn is_wanted(column: &Column, options: &RowOptions) -> bool {
    let name = Some(&column.name);
    options.fields.is_empty()
        || options.fields.contains(&column.name)
        || name == options.name.as_ref()
        || name == options.label.as_ref()
        || options.label.is_none() && !column.classes.is_empty()
}

/// The roles of the columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The column of the names; `None`: a row names itself, or is named after its file and number.
    pub(super) name: Option<usize>,
    /// The column of the labels; `None`: rows have no labels.
    pub(super) label: Option<usize>,
    /// The columns of the fields.
    pub(super) fields: Vec<usize>,
}

impl Chosen {
    /// Chooses from `columns` by `options`. The chosen fields follow the order of `image`, the fields of the image that
    /// rows are appended to.
    ///
    /// # Errors
    /// `InvalidArgument`: a column does not exist, or its values do not fit its role.
    pub(super) fn new(
        columns: &[Column],
        options: &RowOptions,
        image: Option<&[Vec<u8>]>,
    ) -> Result<Chosen> {
        let find = |name: &String| {
            let found = columns.iter().position(|column| column.name == *name);
            found.ok_or_else(|| invalid(no_column(name, columns)))
        };
        let name = options.name.as_ref().map(find).transpose()?;
        let label = match &options.label {
            Some(label) => Some(find(label)?),
            // The column that the file's metadata marks as classes, if there is exactly one and it is no field.
            None => {
                let mut all = (0..columns.len()).filter(|at| !columns[*at].classes.is_empty());
                let only = all.next().filter(|_| all.next().is_none());
                only.filter(|at| !options.fields.contains(&columns[*at].name))
            }
        };
        let mut fields: Vec<usize> = if options.fields.is_empty() {
            (0..columns.len()).filter(|at| ![name, label].contains(&Some(*at))).collect()
        } else {
            options.fields.iter().map(find).collect::<Result<_>>()?
        };
        if fields.is_empty() {
            return Err(invalid("no column is left to be a field".to_owned()));
        }
        if let Some(image) = image {
            let index =
                |at: &usize| image.iter().position(|name| *name == columns[*at].name.as_bytes());
            fields.sort_by_key(|at| index(at).unwrap_or(usize::MAX));
        }
        let chosen = Chosen { name, label, fields };
        chosen.check(columns)?;
        Ok(chosen)
    }

    /// Checks that each column fits its role, and that there is room for the fields' names and types.
    fn check(&self, columns: &[Column]) -> Result<()> {
        let mut all = HashSet::new();
        let mut fields = HashSet::new();
        let twice = columns.iter().map(|column| &column.name).filter(|name| !all.insert(*name));
        let twice: HashSet<&String> = twice.collect();
        for at in self.fields.iter().chain(&self.name).chain(&self.label) {
            let name = &columns[*at].name;
            if twice.contains(name) {
                let text = format!("the rows have more than one column {name}");
                return Err(invalid(text).hint("rename them, or choose others with --fields"));
            }
            if name.contains('\0') {
                let text = format!("column {} has a NUL in its name", name.escape_debug());
                return Err(invalid(text).hint("choose others with --fields"));
            }
        }
        if let Some(at) = self.fields.iter().find(|at| !fields.insert(**at)) {
            let name = &columns[*at].name;
            return Err(invalid(format!("column {name} is given twice as a field")));
        }
        let is_neither = |at: &&usize| matches!(columns[**at].kind, CellKind::Other(_));
        let wrong = self.fields.iter().filter(is_neither).map(|at| &columns[*at]);
        let wrong = wrong.map(|column| format!("{} is {}", column.name, column.shown()));
        let wrong: Vec<String> = wrong.collect();
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
            && !matches!(column.kind, CellKind::Bytes | CellKind::Nothing)
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
    /// Describes the kind of its values, for messages.
    pub(super) fn shown(&self) -> String {
        match &self.kind {
            CellKind::Nothing => "nothing".to_owned(),
            CellKind::Bytes => "bytes".to_owned(),
            CellKind::Elements(kind) => kind.to_string(),
            CellKind::Other(what) => what.clone(),
        }
    }

    fn holds_labels(&self) -> bool {
        match &self.kind {
            CellKind::Nothing | CellKind::Bytes => true,
            CellKind::Elements(kind) => kind.dims().len() == 0 && !is_float(kind.element()),
            CellKind::Other(_) => false,
        }
    }
}

/// Returns whether elements have fractions.
pub(super) fn is_float(element: Element) -> bool {
    matches!(element, Element::F16 | Element::Bf16 | Element::F32 | Element::F64)
}

/// Describes the lack of a column.
pub(super) fn no_column(name: &str, columns: &[Column]) -> String {
    let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
    format!("the rows have no column {name}: they have {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_unified_to_what_holds_both() {
        let kind = |text: &str| match text {
            "nothing" => CellKind::Nothing,
            "bytes" => CellKind::Bytes,
            text => CellKind::Elements(text.parse().unwrap()),
        };
        for (a, b, both) in [
            ("i32", "i64", Some("i64")),
            ("u8", "u32", Some("u32")),
            ("u8", "i8", Some("i16")),
            ("u32", "i8", Some("i64")),
            ("u64", "i8", None),
            ("i16", "f32", Some("f32")),
            ("i32", "f32", Some("f64")),
            ("i64", "f64", Some("f64")),
            ("f16", "bf16", Some("f32")),
            ("bool", "i8", None),
            ("nothing", "f32[3]", Some("f32[3]")),
            ("nothing", "nothing", Some("nothing")),
            ("bytes", "i64", None),
            ("f32[3]", "f32[4]", Some("f32[*]")),
            ("i64[*]", "f64[2]", Some("f64[*]")),
            ("f32[*,3]", "f32[2,3]", Some("f32[*,3]")),
            ("f32[2,3]", "f32[2,4]", None),
            ("f32[2,3]", "f32[6]", None),
            ("f32", "f32[1]", None),
        ] {
            assert_eq!(kind(a).with(&kind(b)), both.map(kind), "{a} {b}");
            assert_eq!(kind(b).with(&kind(a)), both.map(kind), "{b} {a}");
        }
    }
}
