//! The bytes of a column in an item of MDS or LitData: plain values, or an array behind a header.

use std::str::FromStr;

use crate::import::formats::column::CellKind;
use crate::import::sources::BadReason;
use dlfs_format::format::field_type::{Element, FieldType};

/// The form of a column's bytes.
#[derive(Debug, Clone)]
pub(super) enum LeafForm {
    /// Plain values of this kind, without a header.
    Is(CellKind),
    /// MDS `ndarray` and `ndarray:TYPE`: a byte for the element type, unless `TYPE` names it; a byte with the number
    /// of dimensions in the upper 6 bits, and log2 of the bytes of each dimension in the lower 2 bits; the
    /// dimensions; then the array.
    Mds(Option<Element>),
    /// LitData `numpy`: the number of the element type, the number of dimensions, and the dimensions, 4 bytes each;
    /// then the array.
    Numpy,
    /// LitData `tensor`: as `numpy`, but big-endian and with other numbers for the types.
    Tensor,
    /// LitData `no_header_numpy:N`, `no_header_tensor:N`: an array of one dimension, without a header.
    Bare(Element),
}

/// The element type and shape of an array, and the length of the header before its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArrayHeader {
    /// The type of an element.
    pub(super) element: Element,
    /// The length in each dimension.
    pub(super) shape: Vec<u64>,
    /// Bytes of the header.
    pub(super) len: usize,
}

impl LeafForm {
    /// Plain bytes.
    pub(super) const BYTES: LeafForm = LeafForm::Is(CellKind::Bytes);

    /// Plain numbers of the type with this name.
    pub(super) fn scalar(element: &str) -> LeafForm {
        LeafForm::elements(FieldType::from_str(element).ok())
    }

    /// Plain values of this type; bytes if there is none.
    pub(super) fn elements(kind: Option<FieldType>) -> LeafForm {
        kind.map_or(LeafForm::BYTES, |kind| LeafForm::Is(CellKind::Elements(kind)))
    }

    /// The kind of the values; `Nothing` if it is known only from values.
    pub(super) fn known(&self) -> CellKind {
        match self {
            LeafForm::Is(kind) => kind.clone(),
            LeafForm::Bare(element) => {
                let kind = FieldType::new(*element, true, Vec::new());
                kind.map_or(CellKind::Nothing, CellKind::Elements)
            }
            _ => CellKind::Nothing,
        }
    }

    /// Reads the header of the array `bytes`; `None`: they are plain values.
    ///
    /// # Errors
    /// The header is broken, or dlfs lacks its element type.
    pub(super) fn header(&self, bytes: &[u8]) -> Result<Option<ArrayHeader>, BadReason> {
        let mut rest = bytes;
        let (element, shape) = match *self {
            LeafForm::Is(_) => return Ok(None),
            LeafForm::Mds(element) => {
                let element = match element {
                    Some(element) => element,
                    None => mds_element(take(&mut rest, 1)?[0]).ok_or(NO_TYPE)?,
                };
                let dims = take(&mut rest, 1)?[0];
                let each = 1 << (dims & 3);
                let shape = (0..dims >> 2).map(|_| Ok(little(take(&mut rest, each)?)));
                (element, shape.collect::<Result<_, BadReason>>()?)
            }
            LeafForm::Numpy => {
                let element = numpy_element(little(take(&mut rest, 4)?)).ok_or(NO_TYPE)?;
                (element, words(&mut rest, little)?)
            }
            LeafForm::Tensor => {
                let element = torch_element(big(take(&mut rest, 4)?)).ok_or(NO_TYPE)?;
                (element, words(&mut rest, big)?)
            }
            LeafForm::Bare(element) => {
                (element, vec![bytes.len() as u64 / u64::from(element.len_bytes())])
            }
        };
        Ok(Some(ArrayHeader { element, shape, len: bytes.len() - rest.len() }))
    }
}

/// Reads the number of dimensions and returns the dimensions.
fn words(rest: &mut &[u8], number: fn(&[u8]) -> u64) -> Result<Vec<u64>, BadReason> {
    let dims = number(take(rest, 4)?);
    BadReason::Syntax("an array has more than 64 dimensions").unless(dims <= MAX_DIMS)?;
    (0..dims).map(|_| Ok(number(take(rest, 4)?))).collect()
}

/// Takes the next `len` bytes of a header.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], BadReason> {
    let (taken, behind) =
        rest.split_at_checked(len).ok_or(BadReason::Syntax("an array ends within its header"))?;
    *rest = behind;
    Ok(taken)
}

/// The little-endian number in up to 8 bytes.
fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The big-endian number in up to 8 bytes.
fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The type with an MDS number: 8 times the bytes of an element, plus 0 for unsigned, 1 for signed, 2 for float.
fn mds_element(number: u8) -> Option<Element> {
    use Element::{F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    let kinds: &[[Element; 4]] = &[[U8, U16, U32, U64], [I8, I16, I32, I64], [F16, F16, F32, F64]];
    let kind = kinds.get(usize::from(number & 7))?;
    kind.iter().copied().find(|kind| kind.len_bytes() == u32::from(number >> 3))
}

/// The NumPy type with a LitData number.
pub(super) fn numpy_element(number: u64) -> Option<Element> {
    numbered("i8 i16 i32 i64 u8 u16 u32 u64 f16 f32 f64 - - bool", number)
}

/// The PyTorch type with a LitData number.
pub(super) fn torch_element(number: u64) -> Option<Element> {
    numbered("f32 f32 f64 f64 - - - - f16 f16 bf16 u8 i8 i16 i16 i32 i32 i64 i64 bool u16", number)
}

/// The type with this index in the list `names`; `-` stands for a type that dlfs lacks.
fn numbered(names: &str, number: u64) -> Option<Element> {
    names.split(' ').nth(usize::try_from(number).ok()?).and_then(Element::named)
}

/// The reason to reject an array of another type.
const NO_TYPE: BadReason =
    BadReason::Syntax("an array has elements of a type that dlfs does not have");
/// Maximum number of dimensions of an array.
const MAX_DIMS: u64 = 64;
