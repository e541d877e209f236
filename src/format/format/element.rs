//! Element types of fields: the names, length and numpy dtype of each.

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
        self.row().0
    }

    /// Name of the numpy dtype; for `Bf16`, of the ml_dtypes one.
    pub fn numpy_name(self) -> &'static str {
        self.row().1
    }

    /// The numpy dtype string without the byte order, such as `f4`; for `Bf16`, a void of two bytes.
    pub(crate) fn dtype(self) -> &'static str {
        self.row().3
    }

    /// Bytes of one element.
    pub fn len_bytes(self) -> u32 {
        self.row().2
    }

    /// The element type with this short or numpy name.
    #[doc(hidden)]
    pub fn named(name: &str) -> Option<Element> {
        let has_name = |element: &Element| name == element.name() || name == element.numpy_name();
        Element::ALL.into_iter().find(has_name)
    }

    /// Short name, numpy name, bytes of an element, and dtype string.
    fn row(self) -> (&'static str, &'static str, u32, &'static str) {
        match self {
            Element::U8 => ("u8", "uint8", 1, "u1"),
            Element::I8 => ("i8", "int8", 1, "i1"),
            Element::U16 => ("u16", "uint16", 2, "u2"),
            Element::I16 => ("i16", "int16", 2, "i2"),
            Element::U32 => ("u32", "uint32", 4, "u4"),
            Element::I32 => ("i32", "int32", 4, "i4"),
            Element::U64 => ("u64", "uint64", 8, "u8"),
            Element::I64 => ("i64", "int64", 8, "i8"),
            Element::F16 => ("f16", "float16", 2, "f2"),
            Element::Bf16 => ("bf16", "bfloat16", 2, "V2"),
            Element::F32 => ("f32", "float32", 4, "f4"),
            Element::F64 => ("f64", "float64", 8, "f8"),
            Element::Bool => ("bool", "bool", 1, "b1"),
        }
    }
}
