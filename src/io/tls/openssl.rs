//! A TLS session by OpenSSL.
//!
//! The crate `openssl` lacks only external PSKs with a chosen hash; the OpenSSL functions for them are declared
//! here. OpenSSL calls back for a key once per ClientHello, so up to twice if the controller asks for another
//! group.
#![allow(unsafe_code)] // declares functions of OpenSSL, and is called back by it

use std::ffi::c_int;
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, OnceLock};

use openssl::ex_data::Index;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslRef,
    SslSessionCacheMode, SslStream, SslVerifyMode, SslVersion,
};
use openssl_sys as ffi;
use parking_lot::Mutex;

use super::{Keys, RECORD_LEN_BYTES, TlsError};
use dlfs_nvme::auth::{Hash, TlsPsk};

/// One side of a TLS session. It owns no socket and reads no clock.
///
/// Lend received ciphertext with [`Session::give`]. Call [`Session::handshake`] until the session is
/// established, and afterwards [`Session::open`] until it needs more ciphertext; then take the memory back. After
/// each of these calls and after [`Session::seal`], send [`Session::outgoing`]. The first error ends the session.
pub struct Session {
    stream: SslStream<Wire>,
}

/// The two directions of ciphertext.
#[derive(Default)]
struct Wire {
    /// Lent memory with received bytes; the bytes from `at` to `end` are unread.
    incoming: Vec<u8>,
    at: usize,
    end: usize,
    /// Bytes to send; the first `sent` bytes were sent.
    outgoing: Vec<u8>,
    sent: usize,
}

/// Data of the callbacks, kept by OpenSSL beside the session.
enum Context {
    Host(TlsPsk),
    /// The keys, and the identity for which one was found.
    Controller(Arc<dyn Keys>, Mutex<Option<String>>),
}

impl Session {
    /// Creates the host's side, which offers only this PSK and its cipher suite. Its first message is ready to
    /// send after [`Session::handshake`].
    ///
    /// # Errors
    /// OpenSSL refuses: a system policy forbids an algorithm that NVMe/TCP needs, or there is no memory.
    pub fn host(psk: &TlsPsk) -> Result<Session, TlsError> {
        let context = Context::Host(psk.clone());
        Session::new(context, suite(psk.hash()).0, |ssl| {
            // A controller without the key might present a certificate instead: none is ever accepted.
            ssl.set_verify_callback(SslVerifyMode::PEER, |_, _| false);
            ssl.set_connect_state();
        })
    }

    /// Creates the controller's side, for hosts that have one of `keys`.
    ///
    /// # Errors
    /// As [`Session::host`].
    pub fn controller(keys: Arc<dyn Keys>) -> Result<Session, TlsError> {
        let context = Context::Controller(keys, Mutex::new(None));
        Session::new(context, SUITES, SslRef::set_accept_state)
    }

    fn new(context: Context, suites: &str, set_side: fn(&mut SslRef)) -> Result<Session, TlsError> {
        let Library { ssl_context, index } = library()?;
        let new = || {
            let mut ssl = Ssl::new(ssl_context)?;
            ssl.set_ciphersuites(suites)?;
            ssl.set_ex_data(*index, context);
            set_side(&mut ssl);
            SslStream::new(ssl, Wire::default())
        };
        new().map(|stream| Session { stream }).map_err(|stack| TlsError::Failed(stack.to_string()))
    }

    /// Continues the handshake; returns whether the session is established.
    ///
    /// # Errors
    /// The two sides have no common PSK, or the other side ended the handshake. The outgoing bytes may hold an
    /// alert.
    pub fn handshake(&mut self) -> Result<bool, TlsError> {
        match self.stream.do_handshake() {
            // Neither side has a certificate, so only a PSK can have authenticated them; this check makes sure.
            Ok(()) if self.stream.ssl().session_reused() => Ok(true),
            Ok(()) => Err(TlsError::NoKey),
            Err(error) => waiting(&error).map(|()| false),
        }
    }

    /// Returns whether the handshake has succeeded.
    pub fn is_established(&self) -> bool {
        self.stream.ssl().is_init_finished()
    }

    /// On a controller, the identity of the host's key once the session is established.
    pub fn identity(&self) -> Option<String> {
        match context_of(self.stream.ssl()) {
            Some(Context::Controller(_, found)) if self.is_established() => found.lock().clone(),
            _ => None,
        }
    }

    /// Lends memory whose first `len` bytes are ciphertext that has been received.
    ///
    /// # Panics
    /// Ciphertext that was given before has not been read to its end.
    pub fn give(&mut self, memory: Vec<u8>, len: usize) {
        let wire = self.stream.get_mut();
        assert!(wire.at == wire.end && len <= memory.len(), "ciphertext is read to its end");
        (wire.incoming, wire.at, wire.end) = (memory, 0, len);
    }

    /// Takes the lent memory back. Unread bytes are dropped, so leave some only after an error.
    pub fn take_back(&mut self) -> Vec<u8> {
        let wire = self.stream.get_mut();
        (wire.at, wire.end) = (0, 0);
        std::mem::take(&mut wire.incoming)
    }

    /// Decrypts into `into`; returns the number of bytes. If that is less than `into` has, more ciphertext is
    /// needed.
    ///
    /// # Errors
    /// A record is not authentic, or the other side ended the session.
    pub fn open(&mut self, into: &mut [u8]) -> Result<usize, TlsError> {
        let mut len = 0;
        while len < into.len() {
            match self.stream.ssl_read(&mut into[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) => {
                    waiting(&error)?;
                    break;
                }
            }
        }
        Ok(len)
    }

    /// Encrypts at most `most` bytes from the front of `slices`; returns their number.
    ///
    /// # Errors
    /// OpenSSL fails, such as for lack of memory.
    pub fn seal(&mut self, slices: &[IoSlice<'_>], most: usize) -> Result<usize, TlsError> {
        // Each record costs headers and calls, so small pieces share a record. Large pieces are encrypted
        // without a copy.
        let mut shared = [0; RECORD_LEN_BYTES];
        let mut filled = 0;
        let mut total = 0;
        for slice in slices {
            let mut rest = &slice[..slice.len().min(most - total)];
            total += rest.len();
            while !rest.is_empty() {
                let whole = rest.len() / RECORD_LEN_BYTES * RECORD_LEN_BYTES;
                let (now, later) = match filled {
                    0 if whole > 0 => {
                        self.write(&rest[..whole])?;
                        (whole, 0)
                    }
                    _ => {
                        let len = rest.len().min(RECORD_LEN_BYTES - filled);
                        shared[filled..filled + len].copy_from_slice(&rest[..len]);
                        (len, filled + len)
                    }
                };
                rest = &rest[now..];
                filled = later;
                if filled == RECORD_LEN_BYTES {
                    self.write(&shared)?;
                    filled = 0;
                }
            }
        }
        self.write(&shared[..filled])?;
        Ok(total)
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        while !bytes.is_empty() {
            match self.stream.ssl_write(bytes) {
                Ok(len) => bytes = &bytes[len..],
                Err(error) => return Err(describe(&error)),
            }
        }
        Ok(())
    }

    /// Ciphertext to send.
    pub fn outgoing(&self) -> &[u8] {
        let wire = self.stream.get_ref();
        &wire.outgoing[wire.sent..]
    }

    /// Reports that the first `len` bytes of [`Session::outgoing`] were sent.
    pub fn sent(&mut self, len: usize) {
        let wire = self.stream.get_mut();
        wire.sent += len;
        assert!(wire.sent <= wire.outgoing.len(), "sent more than there was");
        if wire.sent == wire.outgoing.len() {
            wire.outgoing.clear();
            wire.sent = 0;
        }
    }

    /// Exchanges the memory for outgoing ciphertext, so that sessions can share it. Does nothing while there is
    /// ciphertext to send.
    pub fn swap_outgoing(&mut self, memory: &mut Vec<u8>) {
        let wire = self.stream.get_mut();
        if wire.outgoing.is_empty() {
            memory.clear();
            std::mem::swap(&mut wire.outgoing, memory);
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.stream.ssl().state_string_long())
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = &self.incoming[self.at..self.end];
        if left.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = left.len().min(into.len());
        into[..len].copy_from_slice(&left[..len]);
        self.at += len;
        Ok(len)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `Ok` if more ciphertext is needed.
fn waiting(error: &openssl::ssl::Error) -> Result<(), TlsError> {
    match error.code() {
        ErrorCode::WANT_READ => Ok(()),
        _ => Err(describe(error)),
    }
}

fn describe(error: &openssl::ssl::Error) -> TlsError {
    if error.code() == ErrorCode::ZERO_RETURN {
        return TlsError::Closed;
    }
    let Some(first) = error.ssl_error().and_then(|stack| stack.errors().first()) else {
        return TlsError::Failed(error.to_string());
    };
    match first.reason_code() {
        // The reason of a received alert is this base plus the number of the alert.
        code @ REASON_ALERT..=REASON_ALERT_LAST => {
            TlsError::Alert { number: (code - REASON_ALERT) as u8 }
        }
        REASON_BAD_RECORD => TlsError::BadRecord,
        REASON_WRONG_VERSION | REASON_BAD_RECORD_TYPE | REASON_BAD_LEGACY_VERSION => {
            TlsError::NotTls
        }
        REASON_NO_SHARED_CIPHER | REASON_NO_SUITABLE_SIGNATURE | REASON_CERTIFICATE => {
            TlsError::NoKey
        }
        REASON_BAD_BINDER => TlsError::NoKey,
        _ => TlsError::Failed(first.reason().unwrap_or("no reason is known").to_owned()),
    }
}

/// State that all sessions of the process share.
struct Library {
    ssl_context: SslContext,
    index: Index<Ssl, Context>,
}

fn library() -> Result<&'static Library, TlsError> {
    static LIBRARY: OnceLock<Result<Library, TlsError>> = OnceLock::new();
    let made = LIBRARY.get_or_init(|| {
        let make = || {
            let ssl_context = make_context()?;
            let index = Ssl::new_ex_index()?;
            Ok(Library { ssl_context, index })
        };
        make().map_err(|stack: openssl::error::ErrorStack| TlsError::Failed(stack.to_string()))
    });
    made.as_ref().map_err(TlsError::clone)
}

fn make_context() -> Result<SslContext, openssl::error::ErrorStack> {
    let mut builder = SslContextBuilder::new(SslMethod::tls())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    // A policy that forbids X25519 (FIPS) leaves the other two.
    builder.set_groups_list(GROUPS).or_else(|_| builder.set_groups_list(GROUPS_OF_FIPS))?;
    builder.set_options(SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION);
    builder.set_num_tickets(0)?;
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_mode(SslMode::RELEASE_BUFFERS);
    // SAFETY: `builder` owns a live context, and both callbacks have the types that OpenSSL documents.
    unsafe {
        SSL_CTX_set_psk_use_session_callback(builder.as_ptr(), use_session);
        SSL_CTX_set_psk_find_session_callback(builder.as_ptr(), find_session);
    }
    Ok(builder.build())
}

fn context_of(ssl: &SslRef) -> Option<&Context> {
    ssl.ex_data(library().ok()?.index)
}

/// Offers the host's PSK. OpenSSL takes ownership of the session, and reads the identity at once.
extern "C" fn use_session(
    ssl: *mut ffi::SSL,
    _: *const ffi::EVP_MD,
    identity: *mut *const u8,
    identity_len: *mut usize,
    session: *mut *mut ffi::SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL passes the live `SSL` of this call, which nobody else uses meanwhile.
    let ssl = unsafe { foreign_types_ref(ssl) };
    let Some(Context::Host(psk)) = context_of(ssl) else { return 0 };
    let made = psk_session(ssl, psk);
    if made.is_null() {
        return 0;
    }
    let text = psk.identity();
    // SAFETY: the three places are OpenSSL's and valid for this call. The text lies in the context of `ssl`,
    // which outlives the handshake.
    unsafe {
        *identity = text.as_ptr();
        *identity_len = text.len();
        *session = made;
    }
    1
}

/// Finds the PSK of the identity that a host offers. Without one, the handshake continues, and fails because
/// there is no certificate.
extern "C" fn find_session(
    ssl: *mut ffi::SSL,
    identity: *const u8,
    identity_len: usize,
    session: *mut *mut ffi::SSL_SESSION,
) -> c_int {
    // SAFETY: as in `use_session`.
    let ssl = unsafe { foreign_types_ref(ssl) };
    // SAFETY: OpenSSL passes the bytes of the ClientHello and their length; the place is its own.
    let identity = unsafe {
        *session = ptr::null_mut();
        if identity_len == 0 { &[] } else { std::slice::from_raw_parts(identity, identity_len) }
    };
    let Some(Context::Controller(keys, found)) = context_of(ssl) else { return 0 };
    let Ok(identity) = std::str::from_utf8(identity) else { return 1 };
    // A panic must not unwind through OpenSSL.
    let Ok(key) = catch_unwind(AssertUnwindSafe(|| keys.find(identity))) else { return 0 };
    let Some(psk) = key else { return 1 };
    let made = psk_session(ssl, &psk);
    if made.is_null() {
        return 0;
    }
    *found.lock() = Some(identity.to_owned());
    // SAFETY: as above; OpenSSL takes the session over.
    unsafe { *session = made };
    1
}

/// The reference to an `SSL` of OpenSSL.
///
/// # Safety
/// `ssl` is live, and nobody else uses it during the lifetime.
unsafe fn foreign_types_ref<'a>(ssl: *mut ffi::SSL) -> &'a SslRef {
    use foreign_types::ForeignTypeRef as _;
    // SAFETY: as the caller promises.
    unsafe { SslRef::from_ptr(ssl) }
}

/// A session that stands for an external key: null if there is no memory or no such cipher suite.
fn psk_session(ssl: &SslRef, psk: &TlsPsk) -> *mut ffi::SSL_SESSION {
    use foreign_types::ForeignTypeRef as _;
    let number = suite(psk.hash()).1;
    let key = psk.key();
    // SAFETY: `ssl` is live; the number has the two bytes that OpenSSL reads; the key is copied; the session
    // is ours until it is returned or freed.
    unsafe {
        let cipher = SSL_CIPHER_find(ssl.as_ptr(), number.as_ptr());
        let session = SSL_SESSION_new();
        if cipher.is_null() || session.is_null() {
            ffi::SSL_SESSION_free(session);
            return ptr::null_mut();
        }
        let is_set = SSL_SESSION_set1_master_key(session, key.as_ptr(), key.len()) == 1
            && SSL_SESSION_set_cipher(session, cipher) == 1
            && SSL_SESSION_set_protocol_version(session, ffi::TLS1_3_VERSION) == 1;
        if !is_set {
            ffi::SSL_SESSION_free(session);
            return ptr::null_mut();
        }
        session
    }
}

/// The cipher suite of a key with this hash: its name, and its number on the wire.
fn suite(hash: Hash) -> (&'static str, [u8; 2]) {
    match hash {
        Hash::Sha256 => ("TLS_AES_128_GCM_SHA256", [0x13, 0x01]),
        Hash::Sha384 | Hash::Sha512 => ("TLS_AES_256_GCM_SHA384", [0x13, 0x02]),
    }
}

type UseSession = extern "C" fn(
    *mut ffi::SSL,
    *const ffi::EVP_MD,
    *mut *const u8,
    *mut usize,
    *mut *mut ffi::SSL_SESSION,
) -> c_int;
type FindSession =
    extern "C" fn(*mut ffi::SSL, *const u8, usize, *mut *mut ffi::SSL_SESSION) -> c_int;

// openssl/ssl.h of OpenSSL 1.1.1 and newer.
unsafe extern "C" {
    fn SSL_CTX_set_psk_use_session_callback(context: *mut ffi::SSL_CTX, callback: UseSession);
    fn SSL_CTX_set_psk_find_session_callback(context: *mut ffi::SSL_CTX, callback: FindSession);
    fn SSL_SESSION_new() -> *mut ffi::SSL_SESSION;
    fn SSL_SESSION_set1_master_key(s: *mut ffi::SSL_SESSION, key: *const u8, len: usize) -> c_int;
    fn SSL_SESSION_set_cipher(s: *mut ffi::SSL_SESSION, cipher: *const ffi::SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(s: *mut ffi::SSL_SESSION, version: c_int) -> c_int;
    fn SSL_CIPHER_find(ssl: *mut ffi::SSL, number: *const u8) -> *const ffi::SSL_CIPHER;
}

const SUITES: &str = "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256";
const GROUPS: &str = "X25519:P-256:P-384";
const GROUPS_OF_FIPS: &str = "P-256:P-384";

// Reasons of openssl/sslerr.h.
const REASON_ALERT: c_int = 1000;
const REASON_ALERT_LAST: c_int = 1255;
const REASON_BAD_RECORD: c_int = 281;
const REASON_WRONG_VERSION: c_int = 267;
const REASON_BAD_RECORD_TYPE: c_int = 443;
const REASON_BAD_LEGACY_VERSION: c_int = 292;
const REASON_NO_SHARED_CIPHER: c_int = 193;
const REASON_NO_SUITABLE_SIGNATURE: c_int = 118;
const REASON_CERTIFICATE: c_int = 134;
const REASON_BAD_BINDER: c_int = 253;
