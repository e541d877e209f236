//! The library's error type: a kind for programs, a context for readers, and a source.
//!
//! Decoders have small enums of their own (`ProtocolError`, `FormatError`, NVMe statuses). They become an
//! [`Error`] at the level that knows the context (target, sample, file).

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::units::{Lba, Nsid, SampleId};

/// The kind of a failure, on which callers act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The sample, file, namespace or target does not exist.
    NotFound,
    /// The call's arguments are invalid: correct them.
    InvalidArgument,
    /// Bytes on media or on the wire are damaged. For a sample, a second read did not help.
    Corrupt,
    /// This build does not know a newer format, a feature or a device property.
    Unsupported,
    /// The connection was lost and did not recover in time.
    Disconnected,
    /// The call's deadline passed.
    TimedOut,
    /// The target or the operating system refused.
    Refused,
    /// The image, medium or port is in use, for example by another importer.
    Busy,
    /// The image has a newer generation: open it again.
    Stale,
    /// The medium is full.
    NoSpace,
    /// The configured memory limits do not suffice, or the operating system has no memory.
    OutOfMemory,
    /// The source of an import is unusable or changed while it was read.
    BadSource,
    /// The work was stopped on request; it can be resumed.
    Interrupted,
    /// An accelerator was lost, or its driver ended: this process cannot use it any more.
    DeviceLost,
    /// Any other error of the operating system.
    Io,
    /// A bug in dlfs: one of its threads panicked, or ended without finishing its work.
    Internal,
}

/// A failure with its context.
///
/// `Display` prints message and context on one line; [`Error::report`] adds causes and the hint.
pub struct Error(Box<Inner>);

/// The fields of an error. An absent field of the context is `None`.
#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// The failed operation and the reason, on one line.
    message: Cow<'static, str>,
    nsid: Option<Nsid>,
    lba: Option<Lba>,
    sample: Option<SampleId>,
    path: Option<PathBuf>,
    /// The address of a target or image, as the user wrote it.
    target: Option<String>,
    /// A remedy for the user.
    hint: Option<Cow<'static, str>>,
    /// The cause. Shared, so that [`Error::to_others`] can copy it.
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// `Result` with this library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` tells the operation and its failure.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            nsid: None,
            lba: None,
            sample: None,
            path: None,
            target: None,
            hint: None,
            source: None,
        }))
    }

    /// An `InvalidArgument` error with a hint.
    pub fn invalid(
        text: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error::new(ErrorKind::InvalidArgument, text).hint(hint)
    }

    /// The operating system's error for the file at `path`; `what` names the failed operation.
    pub fn of_file(what: &'static str, path: impl Into<PathBuf>, error: std::io::Error) -> Error {
        let kind = Error::from(std::io::Error::from(error.kind())).kind();
        Error::new(kind, what).path(path).source(error)
    }

    /// The kind, for callers to act on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The sample that the error is about, if any.
    pub fn sample_id(&self) -> Option<SampleId> {
        self.0.sample
    }

    /// The file that the error is about, if any.
    pub fn file(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Adds the namespace to the context.
    pub fn nsid(mut self, nsid: Nsid) -> Error {
        self.0.nsid = Some(nsid);
        self
    }

    /// Adds the logical block to the context.
    pub fn lba(mut self, lba: Lba) -> Error {
        self.0.lba = Some(lba);
        self
    }

    /// Adds the sample to the context.
    pub fn sample(mut self, sample: SampleId) -> Error {
        self.0.sample = Some(sample);
        self
    }

    /// Adds the file to the context.
    pub fn path(mut self, path: impl Into<PathBuf>) -> Error {
        self.0.path = Some(path.into());
        self
    }

    /// Adds the target or image to the context, written as the user wrote its address.
    pub fn target(mut self, target: impl Into<String>) -> Error {
        self.0.target = Some(target.into());
        self
    }

    /// Adds a hint: a remedy for the user.
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Error {
        self.0.hint = Some(hint.into());
        self
    }

    /// A copy, for other threads that waited for the same work.
    #[doc(hidden)]
    pub fn to_others(&self) -> Error {
        Error(self.0.clone())
    }

    /// Adds the source error.
    pub fn source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let source: Box<dyn std::error::Error + Send + Sync> = source.into();
        self.0.source = Some(source.into());
        self
    }

    /// The error, its sources (one per line) and the hint, for a program to print when it fails.
    pub fn report(&self) -> String {
        self.report_with(&[])
    }

    /// The report, which calls options of the command by the names that they have elsewhere: pairs of an option, with
    /// more words if need be, and that name. File, target and address stay as they are.
    #[doc(hidden)]
    pub fn report_with(&self, names: &[(&str, &str)]) -> String {
        let whole = self.to_string();
        let context = whole.strip_prefix(&*self.0.message).unwrap_or_default();
        let mut text = renamed(&self.0.message, names) + context;
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(&format!("\n  because: {}", renamed(&error.to_string(), names)));
            cause = error.source();
        }
        if let Some(hint) = &self.0.hint {
            text.push_str(&format!("\n  try: {}", renamed(hint, names)));
        }
        text
    }
}

/// `text` with other names for options, as [`Error::report_with`] describes them.
#[doc(hidden)]
pub fn renamed(text: &str, names: &[(&str, &str)]) -> String {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    names.iter().fold(text.to_owned(), |text, (name, other)| {
        let mut found = String::with_capacity(text.len());
        let mut rest = &*text;
        while let Some(at) = rest.find(name) {
            let before = &rest[..at];
            rest = &rest[at + name.len()..];
            found.push_str(before);
            let is_part = before.ends_with(is_word) || rest.starts_with(is_word);
            found.push_str(if is_part { name } else { other });
        }
        found + rest
    })
}

/// An `InvalidArgument` error for an impossible request.
pub fn invalid(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Checks a condition of a request.
///
/// # Errors
/// `InvalidArgument`, with this text: the condition does not hold.
#[doc(hidden)]
pub fn ensure<T: Into<Cow<'static, str>>>(holds: bool, text: impl FnOnce() -> T) -> Result<()> {
    if holds { Ok(()) } else { Err(invalid(text())) }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.write_str(&inner.message)?;
        let path = inner.path.as_ref().map(|path| path.display().to_string());
        let items = [
            inner.sample.map(|sample| format!("sample {sample}")),
            path.map(|path| path.escape_debug().to_string()),
            inner.target.as_ref().map(|target| target.escape_debug().to_string()),
            inner.nsid.map(|nsid| format!("namespace {nsid}")),
            inner.lba.map(|lba| format!("LBA {lba}")),
        ];
        let items: Vec<String> = items.into_iter().flatten().collect();
        if items.is_empty() { Ok(()) } else { write!(f, " ({})", items.join(", ")) }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.report())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn std::error::Error + 'static))
    }
}

/// A vector of `len` zero bytes. For lengths that media, a peer or a source states: an absurd length is an error, where
/// `vec!` would abort the process.
///
/// # Errors
/// `OutOfMemory`: the operating system has no memory.
pub fn zeroed_vec(len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(len).map_err(|_| no_memory(len, "a buffer"))?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// The `OutOfMemory` error for `len` bytes for `what`.
#[doc(hidden)]
pub fn no_memory(len: usize, what: &str) -> Error {
    let text = format!("the system has no {len} bytes of memory for {what}");
    Error::new(ErrorKind::OutOfMemory, text)
}

/// The error for failing to listen on `address`; `what` names the purpose.
#[doc(hidden)]
pub fn cannot_listen(what: &str, address: SocketAddr, error: std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let (kind, hint) = match error.kind() {
        Io::AddrInUse => (ErrorKind::Busy, "another process listens there: choose another port"),
        Io::AddrNotAvailable => {
            (ErrorKind::InvalidArgument, "this machine does not have that address")
        }
        Io::PermissionDenied => {
            (ErrorKind::Refused, "ports below 1024 need a privilege: choose another")
        }
        _ => (ErrorKind::Io, "check the address"),
    };
    Error::new(kind, format!("cannot {what} on {address}")).source(error).hint(hint)
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Refused,
            std::io::ErrorKind::ConnectionRefused => ErrorKind::Refused,
            std::io::ErrorKind::TimedOut => ErrorKind::TimedOut,
            std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            std::io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            _ => ErrorKind::Io,
        };
        Error::new(kind, "the operating system refused a call").source(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_what_and_where_and_the_report_says_why_and_what_to_do() {
        let error = Error::new(ErrorKind::Corrupt, "checksum differs")
            .sample(SampleId(7))
            .lba(Lba(16))
            .source(std::io::Error::other("bit rot"))
            .hint("run dlfs verify");
        assert_eq!(error.to_string(), "checksum differs (sample 7, LBA 16)");
        assert_eq!(
            error.report(),
            "checksum differs (sample 7, LBA 16)\n  because: bit rot\n  try: run dlfs verify"
        );
    }

    #[test]
    fn a_report_has_other_names_of_options_but_leaves_paths_and_other_options() {
        let error = invalid("--from is missing").path("/x --from y").hint(
            "say --from tar, --forced, --skip bad or (--skip good); dlfs import --force ends",
        );
        let names = [
            ("dlfs import --force", "overwrite=True"),
            ("--from", "from_"),
            ("--skip bad", "bad=True"),
        ];
        assert_eq!(
            error.report_with(&names),
            "from_ is missing (/x --from y)\n  try: say from_ tar, --forced, bad=True or (--skip good); \
             overwrite=True ends"
        );
        assert_eq!(error.report(), error.report_with(&[]));
    }

    #[test]
    fn a_message_without_context_has_no_parentheses() {
        assert_eq!(Error::new(ErrorKind::Io, "no").to_string(), "no");
    }
}
