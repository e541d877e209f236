//! The functions of OpenSSL 3 that TLS needs: found at run time, and called by a table.
//!
//! Only functions of its stable interface are here, as the headers of OpenSSL 3.0 declare them. The library stays open
//! until the process ends.
#![allow(unsafe_code)] // opens a library of C

use std::ffi::{CStr, c_char, c_int, c_long, c_uchar, c_ulong, c_void};
use std::ptr::NonNull;

/// Objects that only OpenSSL looks into.
macro_rules! opaque {
    ($($name:ident)*) => { $(pub(super) enum $name {})* };
}

opaque! { Bio BioMethod CipherContext CipherKind MessageDigest SslCipher SslContext SslMethod SslSession Ssl }

pub(super) type UseSession = extern "C" fn(
    *mut Ssl,
    *const MessageDigest,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut SslSession,
) -> c_int;
pub(super) type FindSession =
    extern "C" fn(*mut Ssl, *const c_uchar, usize, *mut *mut SslSession) -> c_int;
pub(super) type KeyLog = extern "C" fn(*const Ssl, *const c_char);
pub(super) type Verify = extern "C" fn(c_int, *mut c_void) -> c_int;

/// Defines the table, and how it is filled.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $returned:ty)?;)*) => {
        /// OpenSSL's functions, by their names.
        #[allow(non_snake_case)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $returned)?,)*
        }

        impl Library {
            /// The table of an opened library; the error says which function is missing.
            fn find_all(opened: NonNull<c_void>) -> Result<Library, String> {
                Ok(Library {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) $(-> $returned)?;
                        let found = find(opened, concat!(stringify!($name), "\0"))?;
                        // SAFETY: OpenSSL 3 declares the function of this name with these types.
                        unsafe { std::mem::transmute::<NonNull<c_void>, Function>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    OpenSSL_version_num() -> c_ulong;
    OPENSSL_init_ssl(u64, *const c_void) -> c_int;
    ERR_get_error() -> c_ulong;
    ERR_clear_error();
    ERR_reason_error_string(c_ulong) -> *const c_char;
    TLS_method() -> *const SslMethod;
    SSL_CTX_new(*const SslMethod) -> *mut SslContext;
    SSL_CTX_ctrl(*mut SslContext, c_int, c_long, *mut c_void) -> c_long;
    SSL_CTX_set_options(*mut SslContext, u64) -> u64;
    SSL_CTX_set_num_tickets(*mut SslContext, usize) -> c_int;
    SSL_CTX_set_psk_use_session_callback(*mut SslContext, UseSession);
    SSL_CTX_set_psk_find_session_callback(*mut SslContext, FindSession);
    SSL_CTX_set_keylog_callback(*mut SslContext, KeyLog);
    SSL_new(*mut SslContext) -> *mut Ssl;
    SSL_free(*mut Ssl);
    SSL_set_ciphersuites(*mut Ssl, *const c_char) -> c_int;
    SSL_set_ex_data(*mut Ssl, c_int, *mut c_void) -> c_int;
    SSL_get_ex_data(*const Ssl, c_int) -> *mut c_void;
    SSL_set_verify(*mut Ssl, c_int, Verify);
    SSL_set_connect_state(*mut Ssl);
    SSL_set_accept_state(*mut Ssl);
    SSL_set_bio(*mut Ssl, *mut Bio, *mut Bio);
    SSL_do_handshake(*mut Ssl) -> c_int;
    SSL_get_error(*const Ssl, c_int) -> c_int;
    SSL_session_reused(*const Ssl) -> c_int;
    SSL_CIPHER_find(*mut Ssl, *const c_uchar) -> *const SslCipher;
    SSL_SESSION_new() -> *mut SslSession;
    SSL_SESSION_free(*mut SslSession);
    SSL_SESSION_set1_master_key(*mut SslSession, *const c_uchar, usize) -> c_int;
    SSL_SESSION_set_cipher(*mut SslSession, *const SslCipher) -> c_int;
    SSL_SESSION_set_protocol_version(*mut SslSession, c_int) -> c_int;
    BIO_s_mem() -> *const BioMethod;
    BIO_new(*const BioMethod) -> *mut Bio;
    BIO_write(*mut Bio, *const c_void, c_int) -> c_int;
    BIO_read(*mut Bio, *mut c_void, c_int) -> c_int;
    EVP_aes_128_gcm() -> *const CipherKind;
    EVP_aes_256_gcm() -> *const CipherKind;
    EVP_CIPHER_CTX_new() -> *mut CipherContext;
    EVP_CIPHER_CTX_free(*mut CipherContext);
    EVP_CIPHER_CTX_ctrl(*mut CipherContext, c_int, c_int, *mut c_void) -> c_int;
    EVP_CipherInit_ex(*mut CipherContext, *const CipherKind, *mut c_void, *const c_uchar, *const c_uchar, c_int)
        -> c_int;
    EVP_CipherUpdate(*mut CipherContext, *mut c_uchar, *mut c_int, *const c_uchar, c_int) -> c_int;
    EVP_CipherFinal_ex(*mut CipherContext, *mut c_uchar, *mut c_int) -> c_int;
}

impl Library {
    /// Opens the library; the error says why that fails.
    pub(super) fn open() -> Result<Library, String> {
        // SAFETY: the name ends with 0. The library's constructors run, as for every program that links with it.
        let opened = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW) };
        let library = Library::find_all(NonNull::new(opened).ok_or_else(last_error)?)?;
        // SAFETY: takes nothing, and returns a number.
        let version = unsafe { (library.OpenSSL_version_num)() };
        if version < VERSION {
            return Err(format!("it has version {version:#x}, older than 3.0.0"));
        }
        // SAFETY: takes flags, and null for no settings. OpenSSL is not to be torn down by `exit` while other threads
        // use it.
        match unsafe { (library.OPENSSL_init_ssl)(NO_ATEXIT | SSL_STRINGS, std::ptr::null()) } {
            1 => Ok(library),
            _ => Err("it cannot be initialised".to_owned()),
        }
    }
}

/// The function of this name, in the library or in libcrypto, which comes with it.
fn find(opened: NonNull<c_void>, name: &'static str) -> Result<NonNull<c_void>, String> {
    // SAFETY: the library is open and stays so; the name ends with 0.
    let found = unsafe { libc::dlsym(opened.as_ptr(), name.as_ptr().cast()) };
    NonNull::new(found).ok_or_else(last_error)
}

/// The text of the last failure of `dlopen` or `dlsym` in this thread.
fn last_error() -> String {
    // SAFETY: returns null, or a text that ends with 0 and is valid until the next such call of this thread.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { c"no reason is given" } else { CStr::from_ptr(text) }
    };
    text.to_string_lossy().into_owned()
}

const NAME: &CStr = c"libssl.so.3";
/// Version 3.0.0, as `OpenSSL_version_num` has it.
const VERSION: c_ulong = 0x3000_0000;
// OPENSSL_INIT_ of openssl/crypto.h and ssl.h.
const NO_ATEXIT: u64 = 0x0008_0000;
const SSL_STRINGS: u64 = 0x0020_0000;
