//! Keys for authentication and TLS, held by SPDK's keyring.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Once;

use spdk_sys as sys;

use super::log;
use dlfs_base::error::{Error, ErrorKind, Result};

/// A key that SPDK has read from a file.
#[derive(Debug)]
pub struct Key(NonNull<sys::spdk_key>);

// SAFETY: the keyring has its own lock; the pointer is only passed to SPDK.
unsafe impl Send for Key {}
// SAFETY: as for `Send`: `&Key` exposes only the pointer.
unsafe impl Sync for Key {}

impl Key {
    /// SPDK's requirements for key files.
    pub const FILES: &str = "the file must be this user's, with mode 0600, and hold a key";

    /// Reads the key file at `path`, in the format of nvme-cli. The environment must have been
    /// started.
    ///
    /// # Errors
    /// `InvalidArgument`: the file does not exist, is accessible to others, or holds no key.
    pub fn read(path: &Path) -> Result<Key> {
        static KEYRING: Once = Once::new();
        // SAFETY: called once, after the environment was started.
        KEYRING.call_once(|| unsafe {
            sys::spdk_keyring_init();
        });
        let refused = || {
            let message = format!("SPDK does not accept the key file{}", log::reason());
            Error::new(ErrorKind::InvalidArgument, message).path(path).hint(Key::FILES)
        };
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| refused());
        let name = text(format!("dlfs {}", path.display()).as_bytes())?;
        let whole = std::path::absolute(path).map_err(|_| refused())?;
        let path = text(whole.as_os_str().as_bytes())?;
        log::forget();
        // SAFETY: NUL-terminated strings that are copied. Adding a name again fails and changes nothing.
        unsafe { sys::spdk_keyring_file_add_key(name.as_ptr(), path.as_ptr()) };
        // SAFETY: a NUL-terminated string that is copied; the key's reference is released in `drop`.
        let key = unsafe { sys::spdk_keyring_get_key(name.as_ptr()) };
        NonNull::new(key).map(Key).ok_or_else(refused)
    }

    /// The key as SPDK's options take it.
    pub(super) fn as_ptr(&self) -> *mut sys::spdk_key {
        self.0.as_ptr()
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the reference was taken in `read` and is released once.
        unsafe { sys::spdk_keyring_put_key(self.0.as_ptr()) };
    }
}
