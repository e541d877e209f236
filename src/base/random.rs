//! Random numbers from the operating system.

use crate::error::{Error, Result};

/// Fills `bytes` with unpredictable random numbers.
///
/// # Errors
/// The operating system provides none.
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
