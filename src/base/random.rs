//! Random numbers from the operating system.

use crate::error::{Error, Result};

/// An unpredictable random number.
///
/// # Errors
/// The errors of [`draw`].
pub fn number() -> Result<u64> {
    let mut bytes = [0; 8];
    draw(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
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
