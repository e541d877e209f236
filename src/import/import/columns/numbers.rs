//! Decodes the numbers of fields from the bytes of an element type, and encodes numbers as such bytes.

use std::fmt;

use dlfs_format::format::field_type::Element;

/// A number of a field.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    /// An integer of any element type.
    Int(i128),
    /// A floating-point number.
    Float(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(number) => number.fmt(f),
            Number::Float(number) => number.fmt(f),
        }
    }
}

/// Decodes a little-endian number; `bytes` has the length of the element.
pub(crate) fn number(element: Element, bytes: &[u8]) -> Number {
    let mut wide = [0; 8];
    wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    let bits = u64::from_le_bytes(wide);
    match element {
        Element::U8 | Element::U16 | Element::U32 | Element::U64 | Element::Bool => {
            Number::Int(bits.into())
        }
        Element::I8 => Number::Int((bits as i8).into()),
        Element::I16 => Number::Int((bits as i16).into()),
        Element::I32 => Number::Int((bits as i32).into()),
        Element::I64 => Number::Int((bits as i64).into()),
        Element::F16 => Number::Float(of_half(bits as u16)),
        Element::Bf16 => Number::Float(f32::from_bits((bits as u32) << 16).into()),
        Element::F32 => Number::Float(f32::from_bits(bits as u32).into()),
        Element::F64 => Number::Float(f64::from_bits(bits)),
    }
}

/// Appends `number` as a little-endian element. A float is rounded to an `F32` within its range; any other conversion
/// must be exact. `false`: the element type does not hold the number, or is a float of 16 bits.
pub(crate) fn put_number(element: Element, number: Number, into: &mut Vec<u8>) -> bool {
    let whole = match number {
        Number::Int(number) => Some(number),
        // `as i128` saturates, so floats of 2^64 or more are excluded.
        Number::Float(number) => Some(number as i128)
            .filter(|whole| *whole as f64 == number && whole.unsigned_abs() < 1 << 64),
    };
    let float = match number {
        Number::Int(whole) => Some(whole as f64).filter(|float| *float as i128 == whole),
        Number::Float(number) => Some(number),
    };
    use Element::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    let len = element.len_bytes() as usize;
    let (least, end) = match element {
        Bool => (0, 2),
        U8 | U16 | U32 | U64 => (0, 1 << (8 * len)),
        _ => (-1 << (8 * len - 1), 1 << (8 * len - 1)),
    };
    match element {
        U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64 | Bool => {
            let whole = whole.filter(|whole| (least..end).contains(whole));
            whole.map(|whole| into.extend_from_slice(&whole.to_le_bytes()[..len]))
        }
        F32 => {
            let is_held = |narrow: &f32| match number {
                Number::Int(_) => float == Some(f64::from(*narrow)),
                Number::Float(float) => narrow.is_finite() || !float.is_finite(),
            };
            let narrow = float.map(|float| float as f32).filter(is_held);
            narrow.map(|narrow| into.extend_from_slice(&narrow.to_le_bytes()))
        }
        F64 => float.map(|float| into.extend_from_slice(&float.to_le_bytes())),
        F16 | Bf16 => None,
    }
    .is_some()
}

/// Converts an IEEE 754 16-bit float.
fn of_half(bits: u16) -> f64 {
    let wide = u32::from(bits >> 15) << 31 | u32::from(bits & 0x7fff) << 13;
    if bits & 0x7c00 == 0x7c00 {
        f32::from_bits(wide | 0x7f80_0000).into() // infinity or NaN
    } else {
        f64::from(f32::from_bits(wide)) * 2f64.powi(112) // the exponent bias of a 32-bit float is larger by 112
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_beyond_the_integers_are_refused() {
        for float in [-2f64.powi(127), 2f64.powi(64), -1e300, 0.5, f64::NAN, f64::NEG_INFINITY] {
            assert!(!put_number(Element::I64, Number::Float(float), &mut Vec::new()), "{float}");
        }
        let mut bytes = Vec::new();
        assert!(put_number(Element::I64, Number::Float(-2f64.powi(63)), &mut bytes));
        assert_eq!(bytes, i64::MIN.to_le_bytes());
    }

    #[test]
    fn halves_are_the_numbers_that_they_are() {
        for (bits, number) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333251953125),
            (0x0001, 2f64.powi(-24)),
            (0x7bff, 65504.0),
            (0x7c00, f64::INFINITY),
            (0x8000, -0.0),
        ] {
            assert_eq!(of_half(bits), number, "{bits:#06x}");
        }
        assert!(of_half(0x7e00).is_nan());
    }
}
