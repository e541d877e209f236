//! The header of an `.npy` file: element type and shape of an array, and the offset of its elements.
//!
//! ```text
//! \x93NUMPY | major, minor | length of the text: u16, from major 2 on u32 | text | elements
//! {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
//! ```
//!
//! Other headers (big-endian, Fortran order, Python objects) are refused with an error message: a field holds
//! little-endian elements in C order.

pub use crate::format::element::Element;

/// A decoded header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyHeader {
    /// The type of an element as a numpy dtype string; see [`NpyHeader::element`].
    descr: String,
    /// The length in each dimension; empty for a single number.
    pub shape: Vec<u64>,
    /// Offset of the first element.
    pub len_bytes: u64,
}

/// The error if bytes are not a complete, valid header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NpyError {
    /// The header takes at least this many bytes, and fewer were given.
    Needs(u64),
    /// The header is invalid or not supported, for this reason.
    Wrong(String),
}

impl NpyHeader {
    /// Reads the header at the front of `bytes`.
    ///
    /// # Errors
    /// `Needs`: more bytes are needed to decide. `Wrong`: the header is invalid or not supported.
    pub fn parse(bytes: &[u8]) -> Result<NpyHeader, NpyError> {
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return wrong("is no .npy file");
        }
        let Some(version) = bytes.get(MAGIC.len()) else { return Err(NpyError::Needs(FRONT)) };
        let width = match version {
            1 => 2,
            2 | 3 => 4,
            other => return wrong(&format!("is an .npy file of version {other}")),
        };
        let start = MAGIC.len() + 2 + width;
        let Some(len) = bytes.get(MAGIC.len() + 2..start) else {
            return Err(NpyError::Needs(start as u64));
        };
        let len = len.iter().rev().fold(0usize, |len, byte| len << 8 | usize::from(*byte));
        if len > MAX_TEXT_BYTES {
            return wrong("is an .npy file with a header of more than 64 KiB");
        }
        let Some(text) = bytes.get(start..start + len) else {
            return Err(NpyError::Needs((start + len) as u64));
        };
        Text { rest: text }.header((start + len) as u64).map_err(NpyError::Wrong)
    }

    /// The type of an element.
    ///
    /// # Errors
    /// A field cannot have such elements, for the reason given.
    pub fn element(&self) -> Result<Element, String> {
        let descr = &*self.descr;
        let (order, kind) = descr.split_at_checked(1).unwrap_or(("", descr));
        match (order, kind) {
            (">", _) => return Err(format!("is big-endian ({descr}): store it little-endian")),
            ("|", "O") => return Err("holds Python objects".to_owned()),
            _ => {}
        }
        // "V2" is any void of two bytes, not only bf16.
        let is_kind = |element: &Element| element.dtype() == kind && *element != Element::Bf16;
        let found = Element::ALL.into_iter().find(is_kind).filter(|_| order == "<" || order == "|");
        found.ok_or_else(|| format!("holds elements of type {descr}, which no field has"))
    }

    /// Returns whether the elements may be of this type. numpy has no bf16 dtype, and stores bf16 as voids of two
    /// bytes.
    pub fn has(&self, element: Element) -> bool {
        let is_void = self.descr == "<V2" || self.descr == "|V2";
        self.element() == Ok(element) || element == Element::Bf16 && is_void
    }

    /// Type and shape, for an error message.
    pub fn shown(&self) -> String {
        format!("{}{}", self.descr, shown_shape(&self.shape))
    }
}

/// The header that numpy writes before an array of this type and shape.
pub fn header(element: Element, shape: &[u64]) -> Vec<u8> {
    let descr = element.dtype();
    let order = if element.len_bytes() == 1 { '|' } else { '<' };
    let shown = shown_shape(shape);
    let mut text =
        format!("{{'descr': '{order}{descr}', 'fortran_order': False, 'shape': {shown}, }}");
    // Leave room for the first dimension to grow, as numpy does.
    if let Some(first) = shape.first() {
        let digits = first.to_string().len();
        text.extend(std::iter::repeat_n(' ', GROWTH_DIGITS.saturating_sub(digits)));
    }
    let front = MAGIC.len() + 4;
    let unpadded = front + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', ALIGN - unpadded % ALIGN));
    text.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((text.len() as u16).to_le_bytes()); // 16 dimensions take a few hundred bytes
    out.extend_from_slice(text.as_bytes());
    out
}

fn shown_shape(shape: &[u64]) -> String {
    match shape {
        [one] => format!("({one},)"),
        _ => format!("({})", shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// A parser of the header's text: the literal of a Python dictionary.
struct Text<'a> {
    rest: &'a [u8],
}

impl Text<'_> {
    fn header(mut self, len_bytes: u64) -> Result<NpyHeader, String> {
        let mut descr = None;
        let mut is_fortran = None;
        let mut shape = None;
        self.expect(b'{')?;
        while !self.takes(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            match &*key {
                "descr" if self.is_at(b'[') => return Err("holds structures".to_owned()),
                "descr" => descr = Some(self.string()?),
                "fortran_order" => is_fortran = Some(self.bool()?),
                "shape" => shape = Some(self.tuple()?),
                _ => return Err(BROKEN.to_owned()),
            }
            if !self.takes(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        let (Some(descr), Some(is_fortran), Some(shape)) = (descr, is_fortran, shape) else {
            return Err(BROKEN.to_owned());
        };
        if !self.rest.trim_ascii().is_empty() {
            return Err(BROKEN.to_owned());
        }
        if is_fortran && shape.len() > 1 {
            return Err("is in Fortran order: store it in C order".to_owned());
        }
        Ok(NpyHeader { descr, shape, len_bytes })
    }

    fn is_at(&mut self, byte: u8) -> bool {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first() == Some(&byte)
    }

    fn takes(&mut self, byte: u8) -> bool {
        let is_there = self.is_at(byte);
        if is_there {
            self.rest = &self.rest[1..];
        }
        is_there
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.takes(byte) { Ok(()) } else { Err(BROKEN.to_owned()) }
    }

    fn string(&mut self) -> Result<String, String> {
        let quote = if self.takes(b'"') { b'"' } else { self.expect(b'\'').map(|()| b'\'')? };
        let end = self.rest.iter().position(|byte| *byte == quote).ok_or(BROKEN)?;
        let text = std::str::from_utf8(&self.rest[..end]).map_err(|_| BROKEN)?;
        self.rest = &self.rest[end + 1..];
        Ok(text.escape_debug().to_string())
    }

    fn bool(&mut self) -> Result<bool, String> {
        self.rest = self.rest.trim_ascii_start();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(BROKEN.to_owned())
    }

    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        self.expect(b'(')?;
        let mut numbers = Vec::new();
        while !self.takes(b')') {
            let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number =
                std::str::from_utf8(&self.rest[..digits]).ok().and_then(|text| text.parse().ok());
            numbers.push(number.ok_or(BROKEN)?);
            self.rest = &self.rest[digits..];
            self.takes(b'L'); // suffix of a Python 2 long
            if !self.takes(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(numbers)
    }
}

fn wrong<T>(what: &str) -> Result<T, NpyError> {
    Err(NpyError::Wrong(what.to_owned()))
}

const MAGIC: [u8; 6] = *b"\x93NUMPY";
/// Magic, version and the length of the text.
const FRONT: u64 = 10;
/// Alignment of the first element in the file, in bytes.
const ALIGN: usize = 64;
/// Digits that numpy reserves for the first dimension.
const GROWTH_DIGITS: usize = 21;
/// Limit for untrusted files: the header of a field's array takes a few hundred bytes.
const MAX_TEXT_BYTES: usize = 64 << 10;
const BROKEN: &str = "has a broken .npy header";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(text: &str) -> Result<NpyHeader, NpyError> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        NpyHeader::parse(&bytes)
    }

    #[test]
    fn headers_are_those_that_numpy_writes() {
        // As written by `numpy.save` of numpy 2.
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (768,), }";
        let bytes = header(Element::F32, &[768]);
        assert_eq!((bytes.len(), &bytes[..10]), (128, &b"\x93NUMPY\x01\x00\x76\x00"[..]));
        assert!(bytes[10..].starts_with(text.as_bytes()) && bytes.ends_with(b" \n"));
        let read = NpyHeader::parse(&bytes).unwrap();
        assert_eq!(
            (read.element(), read.shape, read.len_bytes),
            (Ok(Element::F32), vec![768], 128)
        );
        assert_eq!(header(Element::U8, &[]).len(), 128);
        assert!(header(Element::U8, &[]).windows(5).any(|part| part == b"'|u1'"));
    }

    #[test]
    fn keys_come_in_any_order_and_spelling() {
        let read = with("{\"shape\":(3, 4L) , 'descr': '|b1','fortran_order':False}   \n").unwrap();
        assert_eq!((read.element(), &read.shape[..]), (Ok(Element::Bool), &[3, 4][..]));
        let read = with("{'descr': '<i8', 'fortran_order': True, 'shape': (), }").unwrap();
        assert_eq!((read.element(), read.shape.len()), (Ok(Element::I64), 0));
        let mut later =
            b"\x93NUMPY\x02\x00\x36\0\0\0{'descr': '<V2', 'fortran_order': True, 'shape': (5,)}"
                .to_vec();
        later.resize(66, b' ');
        let read = NpyHeader::parse(&later).unwrap();
        assert!(read.has(Element::Bf16) && !read.has(Element::U16) && read.element().is_err());
    }

    #[test]
    fn what_no_field_holds_is_refused_with_words() {
        let of = |descr: &str, order: &str| {
            let read =
                with(&format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': (2, 3), }}"));
            read.map_err(|error| format!("{error:?}")).and_then(|read| read.element())
        };
        for (descr, order, what) in [
            ("'>f4'", "False", "big-endian (>f4)"),
            ("'|O'", "False", "Python objects"),
            ("'<f4'", "True", "Fortran order"),
            ("'<c8'", "False", "type <c8"),
            ("'<U3'", "False", "type <U3"),
            ("'\u{e9}'", "False", "type"),
            ("''", "False", "type"),
            ("[('a', '<f4')]", "False", "structures"),
            ("3", "False", BROKEN),
            ("'<f4'", "Maybe", BROKEN),
        ] {
            let refused = of(descr, order).unwrap_err();
            assert!(refused.contains(what), "{descr} {order}: {refused}");
        }
        for text in [
            "",
            "{",
            "{}",
            "{'descr': '<f4', 'shape': (2,), }",
            "{'descr",
            "{'shape': (-2,), }",
            "{'x': 1}",
        ] {
            assert_eq!(with(text), Err(NpyError::Wrong(BROKEN.to_owned())), "{text}");
        }
        assert_eq!(NpyHeader::parse(b"GIF89a"), Err(NpyError::Wrong("is no .npy file".to_owned())));
        assert_eq!(NpyHeader::parse(b"\x93NUMPY\x01\x00\xff\xff"), Err(NpyError::Needs(65_545)));
        assert_eq!(NpyHeader::parse(b"\x93NUM"), Err(NpyError::Needs(10)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in ".{0,80}") {
            let _ = NpyHeader::parse(&bytes); // only a panic would matter
            if let Ok(read) = with(&text) {
                let _ = read.element(); // likewise
            }
        }

        #[test]
        fn every_header_reads_back(at in 0..Element::ALL.len(), shape in prop::collection::vec(0u64..1 << 40, 0..17)) {
            let element = Element::ALL[at];
            prop_assume!(element != Element::Bf16);
            let bytes = header(element, &shape);
            prop_assert_eq!(bytes.len() % ALIGN, 0);
            let read = NpyHeader::parse(&bytes).unwrap();
            prop_assert_eq!(read.element(), Ok(element));
            prop_assert_eq!((read.shape, read.len_bytes), (shape, bytes.len() as u64));
            for len in 0..bytes.len() {
                prop_assert!(matches!(NpyHeader::parse(&bytes[..len]), Err(NpyError::Needs(_))));
            }
        }
    }
}
