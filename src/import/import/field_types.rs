//! Types of fields: given by the user or by the first file, and applied to the files of a source, of which only the
//! elements are imported.

use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

use crate::import::sources::sample_stream::StreamSample;
use crate::import::sources::{BadEntry, BadReason, Elements, Front, Source};
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::Directory;
use dlfs_format::format::FieldTypes;
use dlfs_format::format::columns::{ColumnType, check_column_name};
use dlfs_format::format::field_type::{FieldType, FileForm};
use dlfs_format::format::npy::{NpyError, NpyHeader};

/// The type that an import gives a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSpec {
    /// The name of the field.
    pub field: Vec<u8>,
    /// The type. `None`: the type of the first `.npy` file.
    pub kind: Option<FieldType>,
}

impl FromStr for FieldSpec {
    type Err = String;

    /// Parses `FIELD:TYPE`. TYPE may end in `=raw`, `=text` or `=npy`, the form of the field's files; the
    /// default is [`FileForm::of_name`] of the field. `FIELD:npy` takes the type from the first file.
    fn from_str(text: &str) -> Result<FieldSpec, String> {
        let Some((field, kind)) = text.rsplit_once(':').filter(|(field, _)| !field.is_empty())
        else {
            return Err(format!("{text:?} is not FIELD:TYPE"));
        };
        let field = field.to_ascii_lowercase().into_bytes(); // sources use lower-case names of fields
        if kind == "npy" {
            return Ok(FieldSpec { field, kind: None });
        }
        let kind: FieldType = kind.parse()?;
        if text.contains('=') {
            return Ok(FieldSpec { field, kind: Some(kind) });
        }
        let in_form = kind.clone().in_form(FileForm::of_name(&field));
        Ok(FieldSpec { field, kind: Some(in_form.unwrap_or(kind)) })
    }
}

/// A typed column, and the field that holds its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldColumn {
    /// The name of the column.
    pub column: String,
    /// The name of the field.
    pub field: Vec<u8>,
    /// The type of the column. `None`: the type of the image's column, or else of the field.
    pub kind: Option<ColumnType>,
}

impl FromStr for FieldColumn {
    type Err = String;

    /// Parses `FIELD` or `FIELD:TYPE`, each optionally with the prefix `COLUMN=`.
    fn from_str(text: &str) -> Result<FieldColumn, String> {
        let (column, rest) =
            text.split_once('=').map_or((None, text), |(column, rest)| (Some(column), rest));
        let (field, kind) = match rest.rsplit_once(':') {
            Some((field, kind)) => (field, Some(kind.parse()?)),
            None => (rest, None),
        };
        if field.is_empty() {
            return Err(format!("{text:?} is not [COLUMN=]FIELD[:TYPE]"));
        }
        let field = field.to_ascii_lowercase(); // sources use lower-case names of fields
        let column = column.unwrap_or(&field).to_owned();
        check_column_name(&column).map_err(|what| format!("column `{column}`: {what}"))?;
        Ok(FieldColumn { column, field: field.into_bytes(), kind })
    }
}

/// The types of the fields of a source.
#[derive(Debug)]
pub(super) struct Typing {
    /// The name of each field, escaped for messages; empty if samples are not divided into fields.
    names: Vec<String>,
    /// The type of each of these fields.
    kinds: Vec<Kind>,
}

/// The type of a field, possibly not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// The field has no type.
    Bytes,
    /// The first file of the field determines its type.
    OfFirst,
    /// The type is known.
    Is(FieldType),
}

impl Typing {
    /// The types of a source's fields: those that `specs` gives, and those of the fields of `image`.
    ///
    /// # Errors
    /// `InvalidArgument`: the source has no field of that name, a field is given twice, or the image has
    /// another type.
    pub(super) fn new(
        specs: &[FieldSpec],
        fields: &[Vec<u8>],
        image: Option<&Directory>,
    ) -> Result<Typing> {
        let fields = if matches!(fields, [only] if only.is_empty()) { &[] } else { fields };
        let names = fields.iter().map(|name| name.escape_ascii().to_string()).collect();
        let mut kinds: Vec<Kind> = fields
            .iter()
            .map(|name| type_in_image(image, name).map_or(Kind::Bytes, Kind::Is))
            .collect();
        for (at, spec) in specs.iter().enumerate() {
            let shown = spec.field.escape_ascii();
            let refuse = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
            let Some(field) = fields.iter().position(|name| is_named(name, &spec.field)) else {
                return Err(no_field(&spec.field, fields));
            };
            if specs[..at].iter().any(|other| other.field == spec.field) {
                return refuse(format!("field {shown} is given two types"));
            }
            let given = spec.kind.clone().map_or(Kind::OfFirst, Kind::Is);
            let known = &kinds[field];
            let is_npy = matches!(known, Kind::Is(known) if known.form() == FileForm::Npy);
            if image.is_none() {
                kinds[field] = given;
            } else if *known != given && !(is_npy && given == Kind::OfFirst) {
                let known = known.shown();
                let given = given.shown();
                return refuse(format!("field {shown} is {given}, and in the image it is {known}"));
            }
        }
        Ok(Typing { names, kinds })
    }

    /// Takes types that are not known yet from `types`, those of earlier samples.
    pub(super) fn with_known(mut self, types: &FieldTypes) -> Typing {
        for (field, kind) in self.kinds.iter_mut().enumerate() {
            if let (Kind::OfFirst, Some(known)) = (&kind, types.of(field)) {
                *kind = Kind::Is(known.clone());
            }
        }
        self
    }

    /// The types, in the order of the source's fields.
    pub(super) fn types(&self) -> FieldTypes {
        let known = |kind: &Kind| match kind {
            Kind::Is(kind) => Some(kind.clone()),
            Kind::Bytes | Kind::OfFirst => None,
        };
        FieldTypes::new(self.kinds.iter().map(known).collect())
    }

    /// Replaces the files of the fields by their elements. Returns the rows whose files have other content.
    ///
    /// # Errors
    /// `Interrupted`: `goes_on` returned false.
    pub(super) fn of_source(
        &mut self,
        source: &mut Source,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<(u64, BadEntry)>> {
        if self.kinds.iter().all(|kind| *kind == Kind::Bytes) {
            return Ok(Vec::new());
        }
        let mut take =
            |field: u16, len: u64, front: &mut Front<'_>| self.elements(field.into(), len, front);
        source.replace_payloads(&mut take, goes_on)
    }

    /// Replaces the files of the fields of a stream's sample by their elements.
    ///
    /// # Errors
    /// The reason to reject the sample: the content of one of its files, or the lack of a file that would determine a
    /// type. The first sample determines the types that are not given.
    pub(super) fn of_sample(&mut self, sample: &mut StreamSample) -> Result<(), BadReason> {
        for (field, bytes) in sample.fields.iter_mut().enumerate() {
            let Some(bytes) = bytes else { continue };
            let len = bytes.len() as u64;
            let mut front = |most: u64| Ok(bytes[..len.min(most) as usize].to_vec());
            match self.elements(field, len, &mut front)? {
                Elements::Behind(len) => bytes.skip(len as usize),
                Elements::Are(elements) => *bytes = elements.into(),
            }
        }
        let unknown = self.kinds.iter().position(|kind| *kind == Kind::OfFirst);
        let what = "is not in the first sample: give its type as FIELD:TYPE";
        unknown.map_or(Ok(()), |field| Err(BadReason::field(&self.names[field], what)))
    }

    /// The elements in the file of a field, which has `len` bytes.
    fn elements(
        &mut self,
        field: usize,
        len: u64,
        front: &mut Front<'_>,
    ) -> Result<Elements, BadReason> {
        let found = match self.kinds.get(field) {
            None | Some(Kind::Bytes) => return Ok(Elements::Behind(0)),
            Some(Kind::OfFirst) => of_npy(None, len, front),
            Some(Kind::Is(kind)) => match kind.form() {
                FileForm::Raw => Ok(kind.check_len(len).map(|()| (Elements::Behind(0), None))),
                FileForm::Text => of_text(kind, len, front),
                FileForm::Npy => of_npy(Some(kind), len, front),
            },
        };
        match found? {
            Ok((elements, None)) => Ok(elements),
            Ok((elements, Some(kind))) => {
                self.kinds[field] = Kind::Is(kind);
                Ok(elements)
            }
            Err(what) => Err(BadReason::field(&self.names[field], what)),
        }
    }
}

impl Kind {
    /// The type as messages show it.
    fn shown(&self) -> String {
        match self {
            Kind::Bytes => "bytes, without a type".to_owned(),
            Kind::OfFirst => "npy".to_owned(),
            Kind::Is(kind) => kind.to_string(),
        }
    }
}

/// Returns whether a user's name `given` means this field. Case is ignored: options have names in lower case, and
/// columns of tables may have others.
pub(super) fn is_named(field: &[u8], given: &[u8]) -> bool {
    field.eq_ignore_ascii_case(given)
}

/// The error for a field that samples of a source do not have.
pub(super) fn no_field(field: &[u8], fields: &[Vec<u8>]) -> Error {
    let names: Vec<String> = fields.iter().map(|name| name.escape_ascii().to_string()).collect();
    let known = if fields.iter().all(Vec::is_empty) {
        "they are not divided into fields".to_owned()
    } else {
        format!("they have {}", names.join(", "))
    };
    let text = format!("samples of the source have no field {}: {known}", field.escape_ascii());
    Error::new(ErrorKind::InvalidArgument, text)
}

/// A hash of the types and of the columns from fields that the user gave. 0 if there are none.
pub(super) fn fingerprint(specs: &[FieldSpec], columns: &[FieldColumn]) -> u64 {
    if specs.is_empty() && columns.is_empty() {
        0
    } else {
        xxh3_64(format!("{specs:?} {columns:?}").as_bytes())
    }
}

/// Names and types of the fields that have a type.
pub(super) fn typed_fields(directory: &Directory) -> Vec<(Vec<u8>, FieldType)> {
    let named =
        |(field, kind): (usize, &FieldType)| (directory.fields()[field].clone(), kind.clone());
    directory.field_types().iter().map(named).collect()
}

/// The type that a field has in an image; `None`: there is no image, no such field, or the field has no type.
pub(super) fn type_in_image(image: Option<&Directory>, name: &[u8]) -> Option<FieldType> {
    let image = image?;
    let field = image.fields().iter().position(|field| field == name)?;
    image.field_types().of(field).cloned()
}

/// Elements, and the type if it was not known before. The inner error describes the file's actual content.
type Found = Result<Result<(Elements, Option<FieldType>), String>, BadReason>;

/// The number in a text file of `len` bytes.
fn of_text(kind: &FieldType, len: u64, front: &mut Front<'_>) -> Found {
    if len > MAX_NUMBER_BYTES {
        return Ok(Err(format!("is {kind}, and this is a text of {len} bytes")));
    }
    let text = front(len)?;
    Ok(kind.read_text(&text).map(|number| (Elements::Are(number), None)))
}

/// The elements of an `.npy` file of `len` bytes. `kind`: the type of the field, if it is known.
fn of_npy(kind: Option<&FieldType>, len: u64, front: &mut Front<'_>) -> Found {
    let mut read = USUAL_HEADER_BYTES;
    let header = loop {
        match NpyHeader::parse(&front(read)?) {
            Ok(header) => break header,
            Err(NpyError::Wrong(what)) => return Ok(Err(what)),
            Err(NpyError::Needs(bytes)) if bytes > len => {
                return Ok(Err("ends within its .npy header".to_owned()));
            }
            Err(NpyError::Needs(bytes)) => read = bytes,
        }
    };
    Ok(fits_npy(kind, &header, len).map(|found| (Elements::Behind(header.len_bytes as u32), found)))
}

/// Checks an `.npy` file of `len` bytes against `kind`. Returns its type if `kind` is unknown.
fn fits_npy(
    kind: Option<&FieldType>,
    header: &NpyHeader,
    len: u64,
) -> Result<Option<FieldType>, String> {
    let shown = header.shown();
    let found = match kind {
        Some(kind) if header.has(kind.element()) && kind.fits(&header.shape) => None,
        Some(kind) => {
            // If no type has these elements, that is the better error message.
            let other = header.element().err().filter(|_| !header.has(kind.element()));
            return Err(other.unwrap_or_else(|| format!("is {kind}, and this is {shown}")));
        }
        None => {
            let dims = header.shape.iter().map(|dim| u32::try_from(*dim).unwrap_or(u32::MAX));
            let found = FieldType::new(header.element()?, false, dims.collect());
            let found = found.and_then(|kind| kind.in_form(FileForm::Npy));
            let advised = |what| format!("is {shown}: {what}; give its type as FIELD:TYPE");
            Some(found.map_err(advised)?)
        }
    };
    let each = kind.or(found.as_ref()).map_or(0, |kind| kind.element().len_bytes().into());
    let needed = header.shape.iter().try_fold(each, |len: u64, dim| len.checked_mul(*dim));
    let there = len - header.len_bytes; // the header was read from these bytes
    let wrong = || format!("is {shown}, and has {there} bytes behind its header");
    (needed == Some(there)).then_some(found).ok_or_else(wrong)
}

/// Maximum length of a decimal number, with whitespace around it.
const MAX_NUMBER_BYTES: u64 = 64;
/// Usual length of the header that numpy writes for an array of a few dimensions.
const USUAL_HEADER_BYTES: u64 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> String {
        let spec: FieldSpec = text.parse().unwrap();
        let kind = spec.kind.map_or("npy".to_owned(), |kind| kind.to_string());
        format!("{}:{kind}", spec.field.escape_ascii())
    }

    #[test]
    fn a_column_is_named_as_its_field_unless_a_name_is_given() {
        let parse = |text: &str| text.parse::<FieldColumn>();
        let column = |column: &str, field: &str, kind| {
            Ok(FieldColumn { column: column.into(), field: field.into(), kind })
        };
        assert_eq!(parse("cls"), column("cls", "cls", None));
        assert_eq!(parse("Score:f32"), column("score", "score", Some(ColumnType::Float32)));
        assert_eq!(parse("Q=meta.score:float"), column("Q", "meta.score", Some(ColumnType::Float)));
        for (text, what) in [
            ("", "is not [COLUMN=]FIELD[:TYPE]"),
            ("a=", "is not"),
            ("label=cls", "of this name"),
            ("cls:u8", "none of int, float"),
            ("=cls", "a column has a name"),
        ] {
            assert!(parse(text).unwrap_err().contains(what), "{text}");
        }
    }

    #[test]
    fn what_files_of_a_field_hold_follows_from_its_name_or_is_given() {
        for (text, read) in [
            ("emb:f32[768]", "emb:f32[768]"),
            ("emb.npy:f32[768]", "emb.npy:f32[768]=npy"),
            ("npy:npy", "npy:npy"),
            ("cls:i64", "cls:i64=text"),
            ("CLS:int64", "cls:i64=text"),
            ("cls:i64=raw", "cls:i64"),
            ("cls:f32[3]", "cls:f32[3]"),
            ("score:f32=text", "score:f32=text"),
            ("a:b:u8[*]", "a:b:u8[*]"),
        ] {
            assert_eq!(spec(text), read, "{text}");
        }
        for (text, what) in [
            ("emb", "is not FIELD:TYPE"),
            (":f32", "is not FIELD:TYPE"),
            ("emb:f31", "no element type"),
        ] {
            assert!(text.parse::<FieldSpec>().unwrap_err().contains(what), "{text}");
        }
    }
}
