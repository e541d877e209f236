//! Percent-encoding: writes bytes in strings as `%XX`, and decodes them. Pure.

use std::fmt::{Result, Write};

/// Writes `bytes`, with `%XX` for each byte of a character that `is_special`, and for each byte that is not UTF-8.
pub fn escape(out: &mut impl Write, bytes: &[u8], is_special: impl Fn(char) -> bool) -> Result {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_special(c) {
                c.encode_utf8(&mut [0; 4])
                    .bytes()
                    .try_for_each(|byte| write!(out, "%{byte:02X}"))?;
            } else {
                out.write_char(c)?;
            }
        }
        chunk.invalid().iter().try_for_each(|byte| write!(out, "%{byte:02X}"))?;
    }
    Ok(())
}

/// Decodes each `%XX` in `text` whose byte passes `is_decoded`; leaves other percent signs unchanged.
pub fn unescape(text: &str, is_decoded: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    while let Some((&first, tail)) = rest.split_first() {
        match hex_pair(tail).filter(|&byte| first == b'%' && is_decoded(byte)) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

/// The byte that two hexadecimal digits at the start of `bytes` encode; `None` if it does not begin with them.
pub fn hex_pair(bytes: &[u8]) -> Option<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    Some((digit(bytes.first()?)? << 4 | digit(bytes.get(1)?)?) as u8)
}
