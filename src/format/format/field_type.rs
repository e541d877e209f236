//! Types of fields: they tell a reader to decode the bytes of a field as a number or an array.
//!
//! A type is a string, the same on media and in the user's command: an element type, a shape and, after `=`, the file
//! form if the field's files are not raw elements. Behind `;` follows the [tokenizer](Tokenizer) of a list of
//! tokens, if it is known.
//!
//! | type           | the bytes of the field                                                     |
//! |----------------|----------------------------------------------------------------------------|
//! | `i64`          | one number                                                                 |
//! | `f32[768]`     | 768 numbers                                                                |
//! | `u8[3,224,224]`| an array of this shape, in C order                                         |
//! | `u16[*]`       | numbers; each sample may have a different number of them                   |
//! | `u16[*,3]`     | rows of 3 numbers; each sample may have a different number of rows         |
//! | `f32[768]=npy` | as without `=npy`; the field's files are `.npy` files                      |
//! | `i64=text`     | as without `=text`; the field's files hold the number in decimal           |
//!
//! On media, the bytes of a field are always the bare elements, little-endian and without padding, in every file form.
//!
//! In the header of a chunk the types are one column of the [table](super::table): the number of fields, and for each
//! field its type as a length-prefixed string, empty for a field without a type. Numbers are LEB128. A reader treats a
//! field whose type it does not know as bytes.
//!
//! A type names the tokenizer of a field of tokens as in `u16[*];vocabulary=50257;tokenizer=HASH`. HASH is the SHA-256
//! of the tokenizer's file, in hexadecimal digits. Tokens of one tokenizer mean nothing to another, so types with
//! different tokenizers are different types.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use crate::format::cursor::{Cursor, number_len, put_number, put_string};
use crate::format::error::equal;
use crate::format::{FormatError, npy};

pub use crate::format::element::Element;

/// The form of a field's files: of the source files of an import, and of the files that an export or mount shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FileForm {
    /// The bare elements.
    #[default]
    Raw,
    /// One number, in decimal.
    Text,
    /// An `.npy` file.
    Npy,
}

impl FileForm {
    /// Name of the form: `raw`, `text` or `npy`.
    pub fn name(self) -> &'static str {
        match self {
            FileForm::Raw => "raw",
            FileForm::Text => "text",
            FileForm::Npy => "npy",
        }
    }

    /// The default file form of a field with this name: WebDataset's convention for the last extension of the name.
    pub fn of_name(field: &[u8]) -> FileForm {
        match field.rsplit(|byte| *byte == b'.').next() {
            Some(b"npy") => FileForm::Npy,
            Some(b"cls" | b"cls2" | b"index" | b"inx" | b"id") => FileForm::Text,
            _ => FileForm::Raw,
        }
    }
}

/// The type of a field.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FieldType {
    element: Element,
    /// True if there is a first dimension that varies from sample to sample, before `dims`.
    is_free: bool,
    dims: Vec<u32>,
    form: FileForm,
    tokenizer: Option<Tokenizer>,
}

/// A field as an array: its elements and their shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldArray<'a> {
    /// The type of an element.
    pub element: Element,
    /// The length in each dimension; empty for a single number.
    pub shape: Vec<u64>,
    /// The elements, little-endian, in C order.
    pub bytes: &'a [u8],
}

impl FieldType {
    /// The type of arrays with dimensions `dims`; `is_free` adds a first dimension that varies from sample to sample.
    ///
    /// # Errors
    /// A dimension is 0, there are more than 16, or such a field (one row of it, if `is_free`) would have 4 GiB or
    /// more.
    pub fn new(element: Element, is_free: bool, dims: Vec<u32>) -> Result<FieldType, String> {
        if dims.len() + usize::from(is_free) > MAX_DIMS {
            return Err(format!("a shape has at most {MAX_DIMS} dimensions"));
        }
        if dims.contains(&0) {
            return Err("a dimension is at least 1".to_owned());
        }
        let each = u64::from(element.len_bytes());
        let len = dims.iter().try_fold(each, |len, dim| len.checked_mul((*dim).into()));
        if len.is_none_or(|len| len > u64::from(u32::MAX)) {
            return Err("a field has less than 4 GiB".to_owned());
        }
        Ok(FieldType { element, is_free, dims, form: FileForm::Raw, tokenizer: None })
    }

    /// The same type with another file form.
    ///
    /// # Errors
    /// `form` is text, and the type is not a single number, or is f16 or bf16.
    pub fn in_form(self, form: FileForm) -> Result<FieldType, String> {
        let is_text = form == FileForm::Text;
        if is_text && (self.is_free || !self.dims.is_empty()) {
            return Err("only a single number is read from text".to_owned());
        }
        if is_text && matches!(self.element, Element::F16 | Element::Bf16) {
            return Err(format!("{} is not read from text: take f32", self.element.name()));
        }
        Ok(FieldType { form, ..self })
    }

    /// The same type for tokens of `tokenizer`.
    ///
    /// # Errors
    /// Values of this type are not lists of u8, u16, u32 or i32.
    pub fn of_tokenizer(self, tokenizer: Tokenizer) -> Result<FieldType, String> {
        use Element::{I32, U8, U16, U32};
        let is_list = self.is_free && self.dims.is_empty();
        if !is_list || !matches!(self.element, U8 | U16 | U32 | I32) {
            let text = "has no tokenizer: tokens are u8[*], u16[*], u32[*] or i32[*]";
            return Err(format!("{self} {text}"));
        }
        Ok(FieldType { tokenizer: Some(tokenizer), ..self })
    }

    /// The tokenizer of the field's tokens, if it is known.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Returns whether both types are equal apart from their tokenizers: the same value then has the same bytes.
    pub fn has_layout_of(&self, other: &FieldType) -> bool {
        let plain = |kind: &FieldType| FieldType { tokenizer: None, ..kind.clone() };
        plain(self) == plain(other)
    }

    /// The type of an element.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The form of the field's files.
    pub fn form(&self) -> FileForm {
        self.form
    }

    /// The dimensions; `None` for one that varies from sample to sample. Only the first dimension may vary.
    pub fn dims(&self) -> impl ExactSizeIterator<Item = Option<u32>> + '_ {
        let free = usize::from(self.is_free);
        (0..free + self.dims.len()).map(move |at| at.checked_sub(free).map(|at| self.dims[at]))
    }

    /// Bytes of a field of this type; `None` if they vary from sample to sample.
    pub fn len_bytes(&self) -> Option<u32> {
        (!self.is_free).then(|| self.each_bytes())
    }

    /// The shape of a field of `len` bytes; `None` if no field of this type can have this length.
    pub fn shape_of(&self, len: u64) -> Option<Vec<u64>> {
        let each = u64::from(self.each_bytes());
        let dims = self.dims.iter().map(|dim| (*dim).into());
        if self.is_free {
            len.is_multiple_of(each).then(|| std::iter::once(len / each).chain(dims).collect())
        } else {
            (len == each).then(|| dims.collect())
        }
    }

    /// The bytes of a field as an array.
    ///
    /// # Errors
    /// `Mismatch`: the number of bytes does not match the type.
    pub fn array<'a>(&self, bytes: &'a [u8]) -> Result<FieldArray<'a>, FormatError> {
        let len = bytes.len() as u64;
        let Some(shape) = self.shape_of(len) else {
            let each = u64::from(self.each_bytes());
            let expected = if self.is_free { len - len % each } else { each };
            let what = "length of a field with a type";
            return Err(FormatError::Mismatch { what, expected, found: len });
        };
        Ok(FieldArray { element: self.element, shape, bytes })
    }

    /// Checks that a field of this type may have `len` bytes. The error names both lengths.
    pub fn check_len(&self, len: u64) -> Result<(), String> {
        if self.shape_of(len).is_some() {
            return Ok(());
        }
        let of = if self.is_free { "a multiple of " } else { "" };
        Err(format!("is {self}, which has {of}{} bytes, and this has {len}", self.each_bytes()))
    }

    /// Returns whether an array of this shape is of this type.
    pub fn fits(&self, shape: &[u64]) -> bool {
        let dims = self.dims();
        dims.len() == shape.len()
            && dims.zip(shape).all(|(dim, len)| dim.is_none_or(|dim| u64::from(dim) == *len))
    }

    /// Converts a field's elements to its file form. Raw files are the elements themselves. A field
    /// whose length does not match its type is returned unchanged.
    pub fn to_file<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match (self.form, self.shape_of(bytes.len() as u64)) {
            (FileForm::Text, Some(_)) => text_of(self.element, bytes).into_bytes().into(),
            (FileForm::Npy, Some(shape)) => {
                let mut file = npy::header(self.element, &shape);
                file.extend_from_slice(bytes);
                file.into()
            }
            _ => bytes.into(),
        }
    }

    /// The bytes before the elements in the file of a field of `len` bytes; `None` if the file does not contain the
    /// elements as bytes, because it is text.
    pub fn file_head(&self, len: u64) -> Option<Vec<u8>> {
        match (self.form, self.shape_of(len)) {
            (FileForm::Text, Some(_)) => None,
            (FileForm::Npy, Some(shape)) => Some(npy::header(self.element, &shape)),
            _ => Some(Vec::new()),
        }
    }

    /// Parses a decimal number, or for a bool also a word such as `true`, into the bytes of a field.
    ///
    /// # Errors
    /// `text` is not a number of this type.
    pub fn read_text(&self, text: &[u8]) -> Result<Vec<u8>, String> {
        let shown = || format!("`{}`", text.trim_ascii().escape_ascii());
        let number = std::str::from_utf8(text).unwrap_or_default().trim();
        let bytes = bytes_of(self.element, number);
        bytes.ok_or_else(|| format!("is {}, and this is {}", self.element.name(), shown()))
    }

    /// Bytes of one array of `dims`: of the whole field, or of one row if the first dimension varies.
    fn each_bytes(&self) -> u32 {
        self.dims.iter().product::<u32>() * self.element.len_bytes()
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.element.name())?;
        for (at, dim) in self.dims().enumerate() {
            f.write_str(if at == 0 { "[" } else { "," })?;
            match dim {
                Some(dim) => dim.fmt(f)?,
                None => f.write_str("*")?,
            }
        }
        if self.dims().len() > 0 {
            f.write_str("]")?;
        }
        if self.form != FileForm::Raw {
            write!(f, "={}", self.form.name())?;
        }
        match &self.tokenizer {
            Some(tokenizer) => write!(f, ";{tokenizer}"),
            None => Ok(()),
        }
    }
}

impl TryFrom<String> for FieldType {
    type Error = String;

    fn try_from(text: String) -> Result<FieldType, String> {
        text.parse()
    }
}

impl From<FieldType> for String {
    fn from(kind: FieldType) -> String {
        kind.to_string()
    }
}

impl FromStr for FieldType {
    type Err = String;

    fn from_str(text: &str) -> Result<FieldType, String> {
        if let Some((kind, tokenizer)) = text.split_once(';') {
            return kind.parse::<FieldType>()?.of_tokenizer(tokenizer.parse()?);
        }
        let (kind, form) = match text.split_once('=') {
            Some((kind, form)) => (kind, form.parse()?),
            None => (text, FileForm::Raw),
        };
        let (name, shape) = match kind.split_once('[') {
            Some((name, shape)) => {
                let inner = shape.strip_suffix(']');
                (name, Some(inner.ok_or_else(|| format!("{text:?} ends without a ]"))?))
            }
            None => (kind, None),
        };
        let element = Element::named(name).ok_or_else(|| {
            format!("{name:?} is no element type: {}", Element::ALL.map(Element::name).join(", "))
        })?;
        let mut is_free = false;
        let mut dims = Vec::new();
        for (at, dim) in shape.iter().flat_map(|shape| shape.split(',')).enumerate() {
            match dim.trim() {
                "*" if at == 0 => is_free = true,
                "*" => return Err("only the first dimension may be *".to_owned()),
                dim => {
                    let number = dim.parse().map_err(|_| format!("{dim:?} is no dimension"))?;
                    dims.push(number);
                }
            }
        }
        FieldType::new(element, is_free, dims)?.in_form(form)
    }
}

impl FromStr for FileForm {
    type Err = String;

    fn from_str(text: &str) -> Result<FileForm, String> {
        let forms = [FileForm::Raw, FileForm::Text, FileForm::Npy];
        let found = forms.into_iter().find(|form| form.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of raw, text and npy"))
    }
}

/// The types of an image's fields, in the order of the fields. By default no field has a type.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(from = "Vec<Option<FieldType>>")]
pub struct FieldTypes(Vec<Option<FieldType>>);

impl From<Vec<Option<FieldType>>> for FieldTypes {
    fn from(types: Vec<Option<FieldType>>) -> FieldTypes {
        FieldTypes::new(types)
    }
}

impl FieldTypes {
    /// From one entry per field; `None` for a field without a type.
    pub fn new(types: Vec<Option<FieldType>>) -> FieldTypes {
        if types.iter().all(Option::is_none) { FieldTypes::default() } else { FieldTypes(types) }
    }

    /// Returns whether no field has a type.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The type of the field with 0-based index `field`; `None` if the field is bytes.
    pub fn of(&self, field: usize) -> Option<&FieldType> {
        self.0.get(field)?.as_ref()
    }

    /// The number of fields; 0 if no field has a type.
    pub(crate) fn num_fields(&self) -> usize {
        self.0.len()
    }

    /// Index and type of each field that has a type.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &FieldType)> {
        self.0.iter().enumerate().filter_map(|(field, kind)| Some((field, kind.as_ref()?)))
    }

    /// Appends the encoded types: the bytes of a column of a chunk's table.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, self.0.len() as u64);
        for kind in &self.0 {
            let text = kind.as_ref().map(FieldType::to_string).unwrap_or_default();
            put_string(out, text.as_bytes());
        }
    }

    /// Bytes of the column with its kind and length; 0 if no field has a type.
    pub(crate) fn column_len(&self, kind: u64) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut column = Vec::new();
        self.encode(&mut column);
        number_len(kind) + number_len(column.len() as u64) + column.len()
    }

    /// Decodes the column of a chunk whose samples have `num_fields` fields.
    ///
    /// # Errors
    /// The column is damaged, or has another number of fields.
    pub(crate) fn decode(bytes: &[u8], num_fields: usize) -> Result<FieldTypes, FormatError> {
        let mut from = Cursor::new(WHAT, bytes);
        let types = FieldTypes::read(&mut from, num_fields)?;
        equal("bytes behind the types of the fields", 0, from.len() as u64)?;
        Ok(types)
    }

    /// Reads the output of [`encode`](Self::encode) from the front of `from`.
    pub(crate) fn read(
        from: &mut Cursor<'_>,
        num_fields: usize,
    ) -> Result<FieldTypes, FormatError> {
        let count = from.count(1)?;
        equal("number of types of the fields", num_fields as u64, count as u64)?;
        let mut types = Vec::with_capacity(count);
        for _ in 0..count {
            let text = std::str::from_utf8(from.string()?).unwrap_or_default();
            types.push(text.parse().ok()); // an empty text, or a type that a later release added: no type
        }
        Ok(FieldTypes::new(types))
    }
}

/// `number`, or `None` if it overflowed: it is infinite although `text` has digits.
fn within<T: Copy>(text: &str, number: T, is_infinite: fn(T) -> bool) -> Option<T> {
    let has_digits = text.contains(|c: char| c.is_ascii_digit());
    Some(number).filter(|number| !(is_infinite(*number) && has_digits))
}

/// Parses a number, or the word for a bool, into little-endian bytes.
fn bytes_of(element: Element, text: &str) -> Option<Vec<u8>> {
    fn parse<T: FromStr>(text: &str) -> Option<T> {
        text.parse().ok()
    }
    Some(match element {
        Element::U8 => parse::<u8>(text)?.to_le_bytes().to_vec(),
        Element::I8 => parse::<i8>(text)?.to_le_bytes().to_vec(),
        Element::U16 => parse::<u16>(text)?.to_le_bytes().to_vec(),
        Element::I16 => parse::<i16>(text)?.to_le_bytes().to_vec(),
        Element::U32 => parse::<u32>(text)?.to_le_bytes().to_vec(),
        Element::I32 => parse::<i32>(text)?.to_le_bytes().to_vec(),
        Element::U64 => parse::<u64>(text)?.to_le_bytes().to_vec(),
        Element::I64 => parse::<i64>(text)?.to_le_bytes().to_vec(),
        Element::F32 => within(text, parse::<f32>(text)?, f32::is_infinite)?.to_le_bytes().to_vec(),
        Element::F64 => within(text, parse::<f64>(text)?, f64::is_infinite)?.to_le_bytes().to_vec(),
        Element::Bool => match text {
            "0" | "false" | "False" => vec![0],
            "1" | "true" | "True" => vec![1],
            _ => return None,
        },
        Element::F16 | Element::Bf16 => return None,
    })
}

/// Formats the number in these bytes in decimal. No type of f16 or bf16 has the file form text
/// ([`FieldType::in_form`]).
fn text_of(element: Element, bytes: &[u8]) -> String {
    fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.first_chunk().copied().unwrap_or([0; N])
    }
    match element {
        Element::U8 | Element::Bool => array::<1>(bytes)[0].to_string(),
        Element::I8 => i8::from_le_bytes(array(bytes)).to_string(),
        Element::U16 | Element::F16 | Element::Bf16 => u16::from_le_bytes(array(bytes)).to_string(),
        Element::I16 => i16::from_le_bytes(array(bytes)).to_string(),
        Element::U32 => u32::from_le_bytes(array(bytes)).to_string(),
        Element::I32 => i32::from_le_bytes(array(bytes)).to_string(),
        Element::U64 => u64::from_le_bytes(array(bytes)).to_string(),
        Element::I64 => i64::from_le_bytes(array(bytes)).to_string(),
        Element::F32 => f32::from_le_bytes(array(bytes)).to_string(),
        Element::F64 => f64::from_le_bytes(array(bytes)).to_string(),
    }
}

/// The tokenizer that made the tokens of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tokenizer {
    /// The size of the vocabulary, gaps included: each token is below it.
    pub vocabulary: u32,
    /// SHA-256 of the tokenizer's file.
    pub sha256: [u8; 32],
}

impl Tokenizer {
    /// The hash in hexadecimal digits.
    pub fn hash(&self) -> String {
        self.sha256.iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}"); // a String takes everything
            digits
        })
    }
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vocabulary={};tokenizer={}", self.vocabulary, self.hash())
    }
}

impl FromStr for Tokenizer {
    type Err = String;

    fn from_str(text: &str) -> Result<Tokenizer, String> {
        let parts =
            text.strip_prefix("vocabulary=").and_then(|rest| rest.split_once(";tokenizer="));
        let parsed = parts.and_then(|(vocabulary, hash)| {
            let mut sha256 = [0; 32];
            for (byte, digits) in sha256.iter_mut().zip(hash.as_bytes().chunks(2)) {
                *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            }
            Some(Tokenizer { vocabulary: vocabulary.parse().ok()?, sha256 })
        });
        // Accepts one spelling only: a type is compared as a string.
        let parsed = parsed.filter(|found| found.to_string() == text);
        parsed.ok_or_else(|| format!("{text:?} is not vocabulary=TOKENS;tokenizer=SHA256"))
    }
}

/// Maximum dimensions of a type, a varying one included.
#[doc(hidden)]
pub const MAX_DIMS: usize = 16;
/// The name of the column of types in errors.
const WHAT: &str = "types of the fields";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind(text: &str) -> FieldType {
        text.parse().unwrap()
    }

    #[test]
    fn types_read_as_they_are_written() {
        for text in [
            "i64",
            "f32[768]",
            "u8[3,224,224]",
            "u16[*]",
            "u16[*,3]",
            "bf16[4]",
            "bool",
            "f32[2]=npy",
            &format!("u16[*];vocabulary=50257;tokenizer={}", "0f".repeat(32)),
        ] {
            assert_eq!(kind(text).to_string(), text);
        }
        assert_eq!(kind("float32[ 2, 3 ]=raw").to_string(), "f32[2,3]");
        assert_eq!(kind("int64=text").to_string(), "i64=text");
        assert_eq!((kind("u8[3,4]").len_bytes(), kind("u16[*,3]").len_bytes()), (Some(12), None));
        assert_eq!(kind("u16[*,3]").shape_of(12), Some(vec![2, 3]));
        assert_eq!(
            (kind("u16[*,3]").shape_of(0), kind("u16[*,3]").shape_of(10)),
            (Some(vec![0, 3]), None)
        );
        assert_eq!(kind("i64").array(&[7; 8]).unwrap().shape, [0u64; 0]);
        assert!(
            kind("i64").array(&[7; 7]).is_err()
                && kind("f32[2]").fits(&[2])
                && !kind("f32[2]").fits(&[2, 1])
        );
    }

    #[test]
    fn wrong_types_are_refused_with_words() {
        for (text, what) in [
            ("f33", "\"f33\" is no element type: u8, i8"),
            ("", "is no element type"),
            ("f32[0]", "at least 1"),
            ("f32[]", "\"\" is no dimension"),
            ("f32[-1]", "\"-1\" is no dimension"),
            ("f32[3", "ends without a ]"),
            ("f32[3,*]", "only the first"),
            ("f64[65536,65536]", "less than 4 GiB"),
            ("u8[4294967295,4294967295,4294967295]", "less than 4 GiB"),
            ("u8[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "at most 16"),
            ("i64=xml", "none of raw, text and npy"),
            ("f32[2]=text", "only a single number"),
            ("bf16=text", "take f32"),
            ("u16[*];vocabulary=7", "is not vocabulary=TOKENS;tokenizer=SHA256"),
            (&format!("u16[*];vocabulary=7;tokenizer={}", "0F".repeat(32)), "is not vocabulary="),
            (&format!("f32[*];vocabulary=7;tokenizer={}", "0f".repeat(32)), "has no tokenizer"),
            (&format!("u16;vocabulary=7;tokenizer={}", "0f".repeat(32)), "has no tokenizer"),
        ] {
            let refused = text.parse::<FieldType>().unwrap_err();
            assert!(refused.contains(what), "{text}: {refused}");
        }
    }

    #[test]
    fn numbers_of_text_have_their_type_and_are_written_again() {
        for (element, text) in
            [("i64", "-7"), ("u8", "255"), ("f64", "0.1"), ("f32", "-2.5"), ("bool", "1")]
        {
            let kind = kind(&format!("{element}=text"));
            let bytes = kind.read_text(format!(" {text}\n").as_bytes()).unwrap();
            assert_eq!(bytes.len() as u32, kind.len_bytes().unwrap());
            assert_eq!(&*kind.to_file(&bytes), text.as_bytes());
        }
        for (element, text) in [
            ("u8", "256"),
            ("u8", "-1"),
            ("i64", "7.0"),
            ("i32", ""),
            ("bool", "2"),
            ("f32", "x"),
            ("f32", "1e40"),
        ] {
            let refused = kind(&format!("{element}=text")).read_text(text.as_bytes()).unwrap_err();
            assert_eq!(refused, format!("is {element}, and this is `{text}`"));
        }
    }

    #[test]
    fn the_column_of_types_reads_back_and_takes_the_length_that_it_says() {
        let types = FieldTypes::new(vec![None, Some(kind("f32[768]=npy")), Some(kind("i64"))]);
        let mut bytes = Vec::new();
        types.encode(&mut bytes);
        assert_eq!(types.column_len(66), 2 + bytes.len());
        assert_eq!(FieldTypes::decode(&bytes, 3), Ok(types));
        assert!(FieldTypes::decode(&bytes, 2).is_err(), "of another number of fields");
        bytes.push(0);
        assert!(FieldTypes::decode(&bytes, 3).is_err(), "bytes behind it");
        let later = b"\x02\x03c64\x03i64";
        let types = FieldTypes::decode(later, 2).unwrap();
        assert_eq!(
            (types.of(0), types.of(1)),
            (None, Some(&kind("i64"))),
            "a later release's is bytes"
        );
        assert!(FieldTypes::new(vec![None, None]).is_empty());
    }

    proptest! {
        #[test]
        fn no_text_and_no_bytes_panic(
            text in ".{0,24}", bytes in prop::collection::vec(any::<u8>(), 0..64), n in 0usize..8,
        ) {
            if let Ok(kind) = text.parse::<FieldType>() {
                prop_assert_eq!(kind.to_string().parse::<FieldType>(), Ok(kind.clone()));
                let _ = kind.array(&bytes); // only a panic would matter
                let _ = kind.to_file(&bytes);
            }
            let _ = FieldTypes::decode(&bytes, n); // likewise
        }

        #[test]
        fn every_type_reads_as_it_is_written(
            element in prop::sample::select(&Element::ALL[..]), is_free: bool,
            dims in prop::collection::vec(1u32..50, 0..5), npy: bool,
        ) {
            let form = if npy { FileForm::Npy } else { FileForm::Raw };
            let kind = FieldType::new(element, is_free, dims).unwrap().in_form(form).unwrap();
            prop_assert_eq!(kind.to_string().parse::<FieldType>(), Ok(kind));
        }
    }
}
