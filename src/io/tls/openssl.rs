//! OpenSSL's part of a session: its handshake, and the cipher of its records.
//!
//! OpenSSL calls back for a key once per ClientHello, so up to twice if the controller asks for another group, and
//! with the secrets from which the keys of the records follow (RFC 8446, 7.1).
#![allow(unsafe_code)] // calls functions of OpenSSL, and is called back by it

use std::ffi::{CStr, c_char, c_int, c_long, c_uchar, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::library::{
    Bio, CipherContext, FindSession, KeyLog, Library, MessageDigest, Ssl, SslContext, SslSession,
    UseSession,
};
use super::{Keys, TlsError};
use dlfs_nvme::auth::{Hash, TlsPsk};

/// The secrets of the records from the host and of those from the controller.
pub(super) type Secrets = [Option<Zeroizing<Vec<u8>>>; 2];

/// The library with the one `SSL_CTX` that all sessions of the process share.
pub(super) struct OpenSsl {
    library: Library,
    ssl_context: NonNull<SslContext>,
}

// SAFETY: functions may be called from any thread. The context is not changed after it was made, and OpenSSL counts
// its users with atomics.
unsafe impl Send for OpenSsl {}
// SAFETY: as above.
unsafe impl Sync for OpenSsl {}

/// Loads OpenSSL, once.
///
/// # Errors
/// There is no OpenSSL 3, or a system policy forbids what NVMe/TCP needs. Later calls return the same error.
pub(super) fn shared() -> Result<&'static OpenSsl, TlsError> {
    static SHARED: OnceLock<Result<OpenSsl, TlsError>> = OnceLock::new();
    let loaded = SHARED.get_or_init(|| {
        let library = Library::open().map_err(TlsError::NoLibrary)?;
        let ssl_context = make_context(&library).ok_or_else(|| reason(&library))?;
        Ok(OpenSsl { library, ssl_context })
    });
    loaded.as_ref().map_err(TlsError::clone)
}

/// The `SSL_CTX`; `None` if OpenSSL refuses a setting.
fn make_context(library: &Library) -> Option<NonNull<SslContext>> {
    let groups = |ssl_context, list: &CStr| {
        // SAFETY: the context is live, and OpenSSL reads a text that ends with 0.
        unsafe {
            (library.SSL_CTX_ctrl)(ssl_context, SET_GROUPS_LIST, 0, list.as_ptr().cast_mut().cast())
                == 1
        }
    };
    // SAFETY: the context is live, and ours alone. The callbacks have the types that OpenSSL documents.
    unsafe {
        let ssl_context = NonNull::new((library.SSL_CTX_new)((library.TLS_method)()))?;
        let context = ssl_context.as_ptr();
        let set = |command, value: c_long| {
            (library.SSL_CTX_ctrl)(context, command, value, ptr::null_mut())
        };
        let is_set = set(SET_MIN_PROTO_VERSION, TLS1_3_VERSION.into()) == 1
            && set(SET_MAX_PROTO_VERSION, TLS1_3_VERSION.into()) == 1
            // A policy that forbids X25519 (FIPS) leaves the other two.
            && (groups(context, GROUPS) || groups(context, GROUPS_OF_FIPS))
            && (library.SSL_CTX_set_num_tickets)(context, 0) == 1;
        set(SET_SESS_CACHE_MODE, 0);
        (library.SSL_CTX_set_options)(context, NO_TICKET | NO_RENEGOTIATION);
        (library.SSL_CTX_set_psk_use_session_callback)(context, use_session as UseSession);
        (library.SSL_CTX_set_psk_find_session_callback)(context, find_session as FindSession);
        (library.SSL_CTX_set_keylog_callback)(context, keep_secret as KeyLog);
        is_set.then_some(ssl_context)
    }
}

/// Data of the callbacks, to which the `SSL` points.
struct Context {
    side: Side,
    /// On a controller, the identity for which a key was found.
    identity: Mutex<Option<String>>,
    secrets: Mutex<Secrets>,
}

/// One side of a session, with its keys.
pub(super) enum Side {
    /// The host offers this PSK.
    Host(TlsPsk),
    /// The controller accepts these PSKs.
    Controller(Arc<dyn Keys>),
}

/// One side of a handshake.
pub(super) struct Handshake {
    shared: &'static OpenSsl,
    ssl: NonNull<Ssl>,
    /// Memory from which OpenSSL reads; it belongs to `ssl`.
    received: NonNull<Bio>,
    /// Memory to which OpenSSL writes; it belongs to `ssl`.
    to_send: NonNull<Bio>,
    context: Arc<Context>,
}

// SAFETY: OpenSSL wants one thread at a time on an `SSL`, and has no state of a thread but the queue of errors, which
// is cleared before each call. The context may be used by any thread.
unsafe impl Send for Handshake {}

impl Handshake {
    /// Creates one side of a handshake, which begins with [`Handshake::step`].
    ///
    /// # Errors
    /// `NoLibrary`, or OpenSSL refuses a setting or has no memory.
    pub(super) fn new(side: Side) -> Result<Handshake, TlsError> {
        let shared = shared()?;
        let OpenSsl { library, ssl_context } = shared;
        let context = Context { side, identity: Mutex::default(), secrets: Mutex::default() };
        let failed = || reason(library);
        // SAFETY: takes the live context, and a kind of memory that OpenSSL owns.
        let (ssl, received, to_send) = unsafe {
            let ssl = NonNull::new((library.SSL_new)(ssl_context.as_ptr())).ok_or_else(failed)?;
            let bio = || NonNull::new((library.BIO_new)((library.BIO_s_mem)()));
            let (Some(received), Some(to_send)) = (bio(), bio()) else {
                (library.SSL_free)(ssl.as_ptr()); // a `Bio` leaks if only one was created
                return Err(failed());
            };
            (library.SSL_set_bio)(ssl.as_ptr(), received.as_ptr(), to_send.as_ptr());
            (ssl, received, to_send)
        };
        let made = Handshake { shared, ssl, received, to_send, context: Arc::new(context) };
        if made.configure() { Ok(made) } else { Err(failed()) }
    }

    /// Gives OpenSSL the side, the cipher suites and the context; returns whether it took them.
    fn configure(&self) -> bool {
        let library = &self.shared.library;
        let ssl = self.ssl.as_ptr();
        let suites = match &self.context.side {
            Side::Host(psk) => suite(psk.hash()).0,
            Side::Controller(_) => SUITES,
        };
        // SAFETY: `ssl` is live and ours alone. The text ends with 0. `self` keeps the context until `ssl` is freed.
        unsafe {
            let context = Arc::as_ptr(&self.context).cast_mut().cast();
            match self.context.side {
                Side::Host(_) => {
                    // A controller without the key might present a certificate instead: none is ever accepted.
                    (library.SSL_set_verify)(ssl, VERIFY_PEER, refuse);
                    (library.SSL_set_connect_state)(ssl);
                }
                Side::Controller(_) => (library.SSL_set_accept_state)(ssl),
            }
            (library.SSL_set_ciphersuites)(ssl, suites.as_ptr()) == 1
                && (library.SSL_set_ex_data)(ssl, APP_DATA, context) == 1
        }
    }

    /// Hands over one received record.
    pub(super) fn put(&mut self, record: &[u8]) -> Result<(), TlsError> {
        let library = &self.shared.library;
        let len = record.len() as c_int; // at most a record
        // SAFETY: OpenSSL copies `len` bytes into memory that lives as long as `self`.
        let written =
            unsafe { (library.BIO_write)(self.received.as_ptr(), record.as_ptr().cast(), len) };
        if written == len { Ok(()) } else { Err(reason(library)) }
    }

    /// Continues; returns whether the handshake has succeeded. Passes bytes to send to `send`, also an alert with the
    /// reason of a failure.
    pub(super) fn step(&mut self, mut send: impl FnMut(&[u8])) -> Result<bool, TlsError> {
        let library = &self.shared.library;
        let ssl = self.ssl.as_ptr();
        // SAFETY: `ssl` is live, and `&mut self` gives this thread its only use. Callbacks find the context.
        let (code, is_reused) = unsafe {
            (library.ERR_clear_error)();
            let done = (library.SSL_do_handshake)(ssl);
            let code = if done == 1 { DONE } else { (library.SSL_get_error)(ssl, done) };
            (code, (library.SSL_session_reused)(ssl) == 1)
        };
        let result = match code {
            // Neither side has a certificate, so only a PSK can have authenticated them; this check makes sure.
            DONE if is_reused => Ok(true),
            DONE => Err(TlsError::NoKey),
            WANT_READ => Ok(false),
            ZERO_RETURN => Err(TlsError::Closed),
            _ => Err(reason(library)),
        };
        let mut bytes = [0; 1024];
        loop {
            let room = bytes.len() as c_int;
            // SAFETY: OpenSSL writes at most `room` bytes.
            let len = unsafe {
                (library.BIO_read)(self.to_send.as_ptr(), bytes.as_mut_ptr().cast(), room)
            };
            match usize::try_from(len) {
                Ok(len @ 1..) => send(&bytes[..len]),
                _ => return result,
            }
        }
    }

    /// The results of a handshake that has succeeded: the secrets, and on a controller the identity of the host's key.
    pub(super) fn results(&self) -> (Secrets, Option<String>) {
        (std::mem::take(&mut *self.context.secrets.lock()), self.context.identity.lock().clone())
    }

    pub(super) fn is_host(&self) -> bool {
        matches!(self.context.side, Side::Host(_))
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        // SAFETY: `ssl` is live, and not used again; it owns the two `Bio`s. The context is dropped after it.
        unsafe { (self.shared.library.SSL_free)(self.ssl.as_ptr()) };
    }
}

/// AES-GCM with one key, which either seals or opens.
pub(super) struct Cipher {
    library: &'static Library,
    context: NonNull<CipherContext>,
}

// SAFETY: as for `Handshake`.
unsafe impl Send for Cipher {}

impl Cipher {
    /// Takes a key of 16 or 32 bytes.
    pub(super) fn new(key: &[u8], seals: bool) -> Result<Cipher, TlsError> {
        let library = &shared()?.library;
        // SAFETY: returns null or a new context, which `Cipher` frees.
        let made = NonNull::new(unsafe { (library.EVP_CIPHER_CTX_new)() });
        let cipher = Cipher { library, context: made.ok_or_else(|| reason(library))? };
        let context = cipher.context.as_ptr();
        let init = library.EVP_CipherInit_ex;
        // SAFETY: the context is live; OpenSSL copies the key, whose length is that of the cipher. There is no nonce.
        let is_set = unsafe {
            let kind = match key.len() {
                16 => (library.EVP_aes_128_gcm)(),
                32 => (library.EVP_aes_256_gcm)(),
                len => panic!("no cipher of TLS has a key of {len} bytes"),
            };
            init(context, kind, ptr::null_mut(), key.as_ptr(), ptr::null(), seals.into())
        };
        cipher.succeeded(is_set).map(|()| cipher)
    }

    /// Begins a message with a nonce that was not used before, and bytes that are only authenticated.
    pub(super) fn begin(&mut self, nonce: &[u8; 12], header: &[u8]) -> Result<(), TlsError> {
        let context = self.context.as_ptr();
        let init = self.library.EVP_CipherInit_ex;
        let null = ptr::null_mut();
        // SAFETY: the context has its key and its cipher, whose nonce has 12 bytes; the direction (-1) stays.
        self.succeeded(unsafe {
            init(context, ptr::null(), null, ptr::null(), nonce.as_ptr(), -1)
        })?;
        // SAFETY: without memory for results, OpenSSL reads the header alone.
        unsafe { self.update_into(header, ptr::null_mut()) }
    }

    /// Seals or opens `from`, the next bytes of the message, into `into`.
    pub(super) fn update(&mut self, from: &[u8], into: &mut [u8]) -> Result<(), TlsError> {
        assert_eq!(from.len(), into.len(), "the cipher keeps lengths");
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: GCM writes as many bytes as it reads, and `into` has as many; they do not overlap.
        unsafe { self.update_into(from, into.as_mut_ptr()) }
    }

    /// # Safety
    /// `into` is null, or memory for as many bytes as `from` has.
    unsafe fn update_into(&mut self, from: &[u8], into: *mut c_uchar) -> Result<(), TlsError> {
        let from_len = c_int::try_from(from.len()).expect("at most a record");
        let update = self.library.EVP_CipherUpdate;
        let context = self.context.as_ptr();
        let mut len = 0;
        // SAFETY: the context is live, and `into` is as the caller promises.
        self.succeeded(unsafe { update(context, into, &raw mut len, from.as_ptr(), from_len) })
    }

    /// Ends a sealed message; returns its tag.
    pub(super) fn tag(&mut self) -> Result<[u8; TAG_LEN], TlsError> {
        let mut tag = [0; TAG_LEN];
        let ended = self.end();
        self.succeeded(ended)?;
        self.control(GET_TAG, &mut tag)?;
        Ok(tag)
    }

    /// Ends an opened message; returns whether it is authentic.
    pub(super) fn has_tag(&mut self, tag: &[u8; TAG_LEN]) -> Result<bool, TlsError> {
        self.control(SET_TAG, &mut { *tag })?;
        Ok(self.end() == 1)
    }

    /// Reads or sets the tag.
    fn control(&mut self, command: c_int, tag: &mut [u8; TAG_LEN]) -> Result<(), TlsError> {
        let control = self.library.EVP_CIPHER_CTX_ctrl;
        let context = self.context.as_ptr();
        // SAFETY: both commands take the length of a tag, and read or write so many bytes.
        self.succeeded(unsafe {
            control(context, command, TAG_LEN as c_int, tag.as_mut_ptr().cast())
        })
    }

    /// Ends the message; returns OpenSSL's code.
    fn end(&mut self) -> c_int {
        let mut none = [0; 16]; // a block, in case; GCM writes nothing
        let mut len = 0;
        let end = self.library.EVP_CipherFinal_ex;
        // SAFETY: the context is live, and OpenSSL writes at most a block.
        unsafe { end(self.context.as_ptr(), none.as_mut_ptr(), &raw mut len) }
    }

    fn succeeded(&self, code: c_int) -> Result<(), TlsError> {
        if code == 1 { Ok(()) } else { Err(reason(self.library)) }
    }
}

impl Drop for Cipher {
    fn drop(&mut self) {
        // SAFETY: the context is live, and not used again; OpenSSL wipes the key.
        unsafe { (self.library.EVP_CIPHER_CTX_free)(self.context.as_ptr()) };
    }
}

/// The error for the first reason in OpenSSL's queue, which other users of OpenSSL in this thread then find empty.
fn reason(library: &Library) -> TlsError {
    // SAFETY: returns a number, and a text of static lifetime or null.
    let (code, text) = unsafe {
        let code = (library.ERR_get_error)();
        (library.ERR_clear_error)();
        let text = (library.ERR_reason_error_string)(code);
        (code, if text.is_null() { c"no reason is known" } else { CStr::from_ptr(text) })
    };
    match code & REASON_MASK {
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
        _ => TlsError::Failed(text.to_string_lossy().into_owned()),
    }
}

/// Calls `call` with the context of an `SSL`. A panic must not unwind through OpenSSL: it ends the handshake.
///
/// # Safety
/// `ssl` is the live `SSL` of a [`Handshake`], as OpenSSL passes it to a callback.
unsafe fn with_context(
    ssl: *const Ssl,
    call: impl FnOnce(&OpenSsl, &Context) -> Option<c_int>,
) -> c_int {
    let call = || {
        let shared = shared().ok()?;
        // SAFETY: `Handshake::configure` has put the context there, which outlives `ssl`.
        let context: &Context =
            unsafe { (shared.library.SSL_get_ex_data)(ssl, APP_DATA).cast::<Context>().as_ref()? };
        call(shared, context)
    };
    catch_unwind(AssertUnwindSafe(call)).ok().flatten().unwrap_or(0)
}

/// Offers the host's PSK. OpenSSL takes ownership of the session, and reads the identity at once.
extern "C" fn use_session(
    ssl: *mut Ssl,
    _: *const MessageDigest,
    identity: *mut *const c_uchar,
    identity_len: *mut usize,
    session: *mut *mut SslSession,
) -> c_int {
    let offer = |shared: &OpenSsl, context: &Context| {
        let Side::Host(psk) = &context.side else { return None };
        let made = psk_session(&shared.library, ssl, psk)?;
        let text = psk.identity();
        // SAFETY: the three pointers are OpenSSL's and valid for this call. The text lies in the context, which
        // outlives the handshake.
        unsafe {
            *identity = text.as_ptr();
            *identity_len = text.len();
            *session = made.as_ptr();
        }
        Some(1)
    };
    // SAFETY: OpenSSL passes the live `SSL` of this call.
    unsafe { with_context(ssl, offer) }
}

/// Finds the PSK of the identity that a host offers. Without one, the handshake continues, and fails because
/// there is no certificate.
extern "C" fn find_session(
    ssl: *mut Ssl,
    identity: *const c_uchar,
    identity_len: usize,
    session: *mut *mut SslSession,
) -> c_int {
    let find = |shared: &OpenSsl, context: &Context| {
        // SAFETY: OpenSSL passes the bytes of the ClientHello and their length; `session` is its own.
        let identity = unsafe {
            *session = ptr::null_mut();
            if identity_len == 0 { &[] } else { std::slice::from_raw_parts(identity, identity_len) }
        };
        let Side::Controller(keys) = &context.side else { return None };
        let Ok(identity) = std::str::from_utf8(identity) else { return Some(1) };
        let Some(psk) = keys.find(identity) else { return Some(1) };
        let made = psk_session(&shared.library, ssl, &psk)?;
        *context.identity.lock() = Some(identity.to_owned());
        // SAFETY: as above; OpenSSL takes the session over.
        unsafe { *session = made.as_ptr() };
        Some(1)
    };
    // SAFETY: OpenSSL passes the live `SSL` of this call.
    unsafe { with_context(ssl, find) }
}

/// Keeps the secrets of the records: a line is `LABEL RANDOM SECRET`, in hexadecimal digits.
extern "C" fn keep_secret(ssl: *const Ssl, line: *const c_char) {
    let keep = |_: &OpenSsl, context: &Context| {
        // SAFETY: OpenSSL passes a text that ends with 0.
        let line = unsafe { CStr::from_ptr(line) }.to_str().ok()?;
        let mut words = line.split(' ');
        let label = words.next()?;
        let index = SECRETS.iter().position(|known| *known == label)?;
        let digits = words.nth(1)?;
        let mut secret = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
        for at in (0..digits.len()).step_by(2) {
            secret.push(u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?);
        }
        context.secrets.lock()[index] = Some(secret);
        Some(1)
    };
    // SAFETY: OpenSSL passes the live `SSL` of this call.
    unsafe { with_context(ssl, keep) };
}

/// Accepts no certificate.
extern "C" fn refuse(_: c_int, _: *mut c_void) -> c_int {
    0
}

/// A session that stands for an external key: `None` if there is no memory or no such cipher suite.
fn psk_session(library: &Library, ssl: *mut Ssl, psk: &TlsPsk) -> Option<NonNull<SslSession>> {
    let number = suite(psk.hash()).1;
    let key = psk.key();
    // SAFETY: `ssl` is live; the number has the two bytes that OpenSSL reads; the key is copied; the session
    // is ours until it is returned or freed.
    unsafe {
        let cipher = (library.SSL_CIPHER_find)(ssl, number.as_ptr());
        let session = NonNull::new((library.SSL_SESSION_new)())?;
        let session_ptr = session.as_ptr();
        let is_set = !cipher.is_null()
            && (library.SSL_SESSION_set1_master_key)(session_ptr, key.as_ptr(), key.len()) == 1
            && (library.SSL_SESSION_set_cipher)(session_ptr, cipher) == 1
            && (library.SSL_SESSION_set_protocol_version)(session_ptr, TLS1_3_VERSION) == 1;
        if !is_set {
            (library.SSL_SESSION_free)(session_ptr);
        }
        is_set.then_some(session)
    }
}

/// The cipher suite of a key with this hash: its name, and its number on the wire.
fn suite(hash: Hash) -> (&'static CStr, [u8; 2]) {
    match hash {
        Hash::Sha256 => (c"TLS_AES_128_GCM_SHA256", [0x13, 0x01]),
        Hash::Sha384 | Hash::Sha512 => (c"TLS_AES_256_GCM_SHA384", [0x13, 0x02]),
    }
}

/// Length of an AEAD tag.
pub(super) const TAG_LEN: usize = 16;

/// The cipher suites that a controller accepts.
const SUITES: &CStr = c"TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256";

/// The groups of the key exchange.
const GROUPS: &CStr = c"X25519:P-256:P-384";

/// The groups under a policy that forbids X25519 (FIPS).
const GROUPS_OF_FIPS: &CStr = c"P-256:P-384";
/// The labels of the secrets, in the order of [`Secrets`].
const SECRETS: [&str; 2] = ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"];

// Numbers of openssl/ssl.h.
const SET_SESS_CACHE_MODE: c_int = 44;
const SET_GROUPS_LIST: c_int = 92;
const SET_MIN_PROTO_VERSION: c_int = 123;
const SET_MAX_PROTO_VERSION: c_int = 124;
const NO_TICKET: u64 = 1 << 14;
const NO_RENEGOTIATION: u64 = 1 << 30;
const TLS1_3_VERSION: c_int = 0x0304;
const VERIFY_PEER: c_int = 1;
const APP_DATA: c_int = 0;
/// SSL_ERROR_NONE.
const DONE: c_int = 0;
const WANT_READ: c_int = 2;
const ZERO_RETURN: c_int = 6;

// Numbers of openssl/evp.h.
const GET_TAG: c_int = 0x10;
const SET_TAG: c_int = 0x11;

// Reasons of openssl/sslerr.h, and their bits of an error's code.
const REASON_MASK: c_ulong = 0x7F_FFFF;
const REASON_ALERT: c_ulong = 1000;
const REASON_ALERT_LAST: c_ulong = 1255;
const REASON_BAD_RECORD: c_ulong = 281;
const REASON_WRONG_VERSION: c_ulong = 267;
const REASON_BAD_RECORD_TYPE: c_ulong = 443;
const REASON_BAD_LEGACY_VERSION: c_ulong = 292;
const REASON_NO_SHARED_CIPHER: c_ulong = 193;
const REASON_NO_SUITABLE_SIGNATURE: c_ulong = 118;
const REASON_CERTIFICATE: c_ulong = 134;
const REASON_BAD_BINDER: c_ulong = 253;
