//! A keyring of this process, with keys of the type `user`: the type `psk` exists only where Linux's NVMe is.
#![allow(unsafe_code)] // add_key(2)

use std::ffi::{CString, c_long};
use std::io;

/// A keyring that ends with the process.
pub struct Keyring(c_long);

impl Keyring {
    /// Makes one; `None`: the kernel or a policy has none, and the reason was printed.
    pub fn make(name: &str) -> Option<Keyring> {
        match add("keyring", name, &[], PROCESS_KEYRING) {
            Ok(serial) => Some(Keyring(serial)),
            Err(error) => {
                eprintln!("SKIPPED: keys in the kernel's keyring: {error}");
                None
            }
        }
    }

    /// Puts a key into it.
    pub fn put(&self, description: &str, payload: &[u8]) {
        add("user", description, payload, self.0).expect("room for a key");
    }
}

fn add(kind: &str, name: &str, payload: &[u8], keyring: c_long) -> io::Result<c_long> {
    let kind = CString::new(kind).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: the two texts end in a zero, the payload has its length, and the kernel copies all of them.
    let serial = unsafe {
        let at = payload.as_ptr();
        let len = payload.len();
        libc::syscall(libc::SYS_add_key, kind.as_ptr(), name.as_ptr(), at, len, keyring)
    };
    if serial < 0 { Err(io::Error::last_os_error()) } else { Ok(serial) }
}

/// linux/keyctl.h: the keyring of the process.
const PROCESS_KEYRING: c_long = -2;
