//! Changes to bytes that are too large or too constrained to be an input themselves.
//!
//! A script is a list of changes. This keeps inputs small, and a fuzzer that changes one byte of a
//! script changes one field of an image, wherever it is.

/// Changes `bytes` according to `script`; bytes missing at its end are zero.
///
/// | bytes | meaning                                                                               |
/// |-------|---------------------------------------------------------------------------------------|
/// | 0     | bits 0..2: the change; bits 3..7: its parameter                                       |
/// | 1..4  | offset, little-endian, modulo the length                                              |
/// | 4..   | 0 put: parameter + 1 bytes. 1 number: width 2^(parameter % 4), a kind and an operand. |
/// |       | 2 copy: three bytes of the offset to copy 2^(parameter % 16) bytes from. 3 cut here.  |
/// |       | 4 zero 2^(parameter % 16) bytes. Any other: flip bit parameter % 8.                   |
pub fn apply(script: &[u8], bytes: &mut Vec<u8>) {
    let mut script = Script(script);
    while !script.0.is_empty() && !bytes.is_empty() {
        let op = script.byte();
        let change = op & 7;
        let parameter = usize::from(op >> 3);
        let at = script.next_u24() % bytes.len();
        match change {
            0 => {
                for byte in bytes[at..].iter_mut().take(parameter + 1) {
                    *byte = script.byte();
                }
            }
            1 => {
                let width = 1 << (parameter % 4);
                let kind = script.byte();
                let operand = script.byte();
                let end = bytes.len().min(at + width);
                change_number(&mut bytes[at..end], kind, operand);
            }
            2 => {
                let from = script.next_u24() % bytes.len();
                let len = (1 << (parameter % 16)).min(bytes.len() - from.max(at));
                bytes.copy_within(from..from + len, at);
            }
            3 => bytes.truncate(at),
            4 => {
                let end = bytes.len().min(at + (1 << (parameter % 16)));
                bytes[at..end].fill(0);
            }
            _ => bytes[at] ^= 1 << (parameter % 8),
        }
    }
}

/// Sets a little-endian number to a value that challenges arithmetic.
fn change_number(field: &mut [u8], kind: u8, operand: u8) {
    let mut old = [0; 8];
    old[..field.len()].copy_from_slice(field);
    let old = u64::from_le_bytes(old);
    let top = 1_u64 << (8 * field.len() as u32 - 1);
    let operand = u64::from(operand);
    let new = match kind % 8 {
        0 => operand,
        1 => u64::MAX - operand,
        2 => top.wrapping_add(operand),
        3 => top.wrapping_sub(operand),
        4 => old.wrapping_add(operand),
        5 => old.wrapping_sub(operand),
        6 => old.wrapping_mul(operand),
        _ => 1 << (operand % 64),
    };
    field.copy_from_slice(&new.to_le_bytes()[..field.len()]);
}

/// Reads a script from the front.
pub struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// The next three bytes, as a number.
    pub fn next_u24(&mut self) -> usize {
        let bytes = [self.byte(), self.byte(), self.byte(), 0];
        u32::from_le_bytes(bytes) as usize
    }
}

/// One change of a script: a number of `1 << width` bytes at `offset`.
pub fn number(offset: usize, width: u8, kind: u8, operand: u8) -> Vec<u8> {
    let [a, b, c, _] = (offset as u32).to_le_bytes();
    vec![1 | width << 3, a, b, c, kind, operand]
}
