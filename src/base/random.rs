//! Random numbers from the operating system.

use crate::error::{Error, Result};

/// An unpredictable random number.
///
/// # Errors
/// The errors of [`draw`].
pub fn number() -> Result<u64> {
    bytes().map(u64::from_le_bytes)
}

/// Unpredictable random bytes.
///
/// # Errors
/// The errors of [`draw`].
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    draw(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` with unpredictable random numbers.
///
/// # Errors
/// The operating system's error if it provides no random numbers.
pub fn draw(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut bytes[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::from(std::io::Error::from(errno))),
        }
    }
    Ok(())
}
