//! Element types of fields that hold numbers or arrays.

/// The type of a field's elements: little-endian on media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Unsigned, 16 bits.
    U16,
    /// Signed, 16 bits.
    I16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 64 bits.
    I64,
    /// IEEE 754, 16 bits.
    F16,
    /// bfloat16: the upper half of an f32.
    Bf16,
    /// IEEE 754, 32 bits.
    F32,
    /// IEEE 754, 64 bits.
    F64,
    /// A byte: 0 or 1.
    Bool,
}

impl Element {
    /// All element types.
    pub const ALL: [Element; 13] = {
        use Element::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        [U8, I8, U16, I16, U32, I32, U64, I64, F16, Bf16, F32, F64, Bool]
    };

    /// Short name, such as `u8`, `bf16` or `bool`.
    pub fn name(self) -> &'static str {
        ELEMENTS.into_iter().find(|(own, ..)| *own == self).map_or("", |(_, name, ..)| name)
    }

    /// Name of the numpy dtype; for `Bf16`, of the ml_dtypes one.
    pub fn numpy_name(self) -> &'static str {
        ELEMENTS.into_iter().find(|(own, ..)| *own == self).map_or("", |(_, _, name, _)| name)
    }

    /// Bytes of one element.
    pub fn len_bytes(self) -> u32 {
        ELEMENTS.into_iter().find(|(own, ..)| *own == self).map_or(1, |(.., len)| len)
    }

    /// The element type with this short or numpy name.
    #[doc(hidden)]
    pub fn named(name: &str) -> Option<Element> {
        let found =
            ELEMENTS.into_iter().find(|(_, short, long, _)| name == *short || name == *long);
        found.map(|(element, ..)| element)
    }
}

/// Each element type with its short name, its numpy name, and its length in bytes.
const ELEMENTS: [(Element, &str, &str, u32); 13] = [
    (Element::U8, "u8", "uint8", 1),
    (Element::I8, "i8", "int8", 1),
    (Element::U16, "u16", "uint16", 2),
    (Element::I16, "i16", "int16", 2),
    (Element::U32, "u32", "uint32", 4),
    (Element::I32, "i32", "int32", 4),
    (Element::U64, "u64", "uint64", 8),
    (Element::I64, "i64", "int64", 8),
    (Element::F16, "f16", "float16", 2),
    (Element::Bf16, "bf16", "bfloat16", 2),
    (Element::F32, "f32", "float32", 4),
    (Element::F64, "f64", "float64", 8),
    (Element::Bool, "bool", "bool", 1),
];
