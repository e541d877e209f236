//! Headers of arrays in shards of MDS and LitData: an element type and a shape.

use crate::import::sources::BadReason;
use dlfs_format::format::field_type::{Element, FieldType};

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

/// The encoding of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderForm {
    /// MDS `ndarray` and `ndarray:TYPE`: a byte for the element type, unless `TYPE` names it; a byte with the number of
    /// dimensions in the upper 6 bits, and log2 of the bytes of each dimension in the lower 2 bits; the dimensions.
    Mds(Option<Element>),
    /// LitData `numpy`: the number of the element type, the number of dimensions, and the dimensions, 4 bytes each.
    Numpy,
    /// LitData `tensor`: as `numpy`, but big-endian and with other numbers for the types.
    Tensor,
    /// LitData `no_header_numpy:N`, `no_header_tensor:N`: an array of one dimension, without a header.
    Bare(Element),
}

impl HeaderForm {
    /// The type of all arrays of this form, if it is known without reading one.
    pub(super) fn known(self) -> Option<FieldType> {
        match self {
            HeaderForm::Bare(element) => FieldType::new(element, true, Vec::new()).ok(),
            _ => None,
        }
    }

    /// Reads the header of the array `bytes`.
    ///
    /// # Errors
    /// The header is broken, or dlfs lacks its element type.
    pub(super) fn read(self, bytes: &[u8]) -> Result<ArrayHeader, BadReason> {
        let mut rest = bytes;
        let (element, shape) = match self {
            HeaderForm::Mds(element) => {
                let element = match element {
                    Some(element) => element,
                    None => mds_element(take(&mut rest, 1)?[0]).ok_or(NO_TYPE)?,
                };
                let dims = take(&mut rest, 1)?[0];
                let each = 1 << (dims & 3);
                let shape = (0..dims >> 2).map(|_| Ok(little(take(&mut rest, each)?)));
                (element, shape.collect::<Result<_, BadReason>>()?)
            }
            HeaderForm::Numpy => {
                let element = numpy_element(little(take(&mut rest, 4)?)).ok_or(NO_TYPE)?;
                (element, words(&mut rest, little)?)
            }
            HeaderForm::Tensor => {
                let element = torch_element(big(take(&mut rest, 4)?)).ok_or(NO_TYPE)?;
                (element, words(&mut rest, big)?)
            }
            HeaderForm::Bare(element) => {
                (element, vec![bytes.len() as u64 / u64::from(element.len_bytes())])
            }
        };
        Ok(ArrayHeader { element, shape, len: bytes.len() - rest.len() })
    }
}

/// Reads the number of dimensions and returns the dimensions.
fn words(rest: &mut &[u8], number: fn(&[u8]) -> u64) -> Result<Vec<u64>, BadReason> {
    let dims = number(take(rest, 4)?);
    if dims > MAX_DIMS {
        return Err(BadReason::Syntax("an array has more than 64 dimensions"));
    }
    (0..dims).map(|_| Ok(number(take(rest, 4)?))).collect()
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], BadReason> {
    let (taken, behind) =
        rest.split_at_checked(len).ok_or(BadReason::Syntax("an array ends within its header"))?;
    *rest = behind;
    Ok(taken)
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

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
    use Element::{Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    const TYPES: [Element; 11] = [I8, I16, I32, I64, U8, U16, U32, U64, F16, F32, F64];
    match number {
        13 => Some(Bool),
        _ => TYPES.get(usize::try_from(number).ok()?).copied(),
    }
}

/// The PyTorch type with a LitData number.
pub(super) fn torch_element(number: u64) -> Option<Element> {
    use Element::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16};
    Some(match number {
        0 | 1 => F32,
        2 | 3 => F64,
        8 | 9 => F16,
        10 => Bf16,
        11 => U8,
        12 => I8,
        13 | 14 => I16,
        15 | 16 => I32,
        17 | 18 => I64,
        19 => Bool,
        20 => U16,
        _ => return None,
    })
}

const NO_TYPE: BadReason =
    BadReason::Syntax("an array has elements of a type that dlfs does not have");
const MAX_DIMS: u64 = 64;
