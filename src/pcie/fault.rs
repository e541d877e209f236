//! Failures of a controller, and of the bus to it.
#![forbid(unsafe_code)]

use std::time::Duration;

use dlfs_base::error::ErrorKind;
use dlfs_nvme::nvme::{IdentifyError, Status};

/// A failure of a controller, or of the bus to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The device does not exist any more.
    #[error("the controller is gone: its registers read as all ones")]
    Gone,
    /// The controller gave up by itself.
    #[error("the controller has failed (CSTS {0:08X}h)")]
    Failed(u32),
    /// No answer came in time.
    #[error("no answer within {limit:?}: {step}")]
    TimedOut {
        /// The operation.
        step: &'static str,
        /// The time it had.
        limit: Duration,
    },
    /// The controller refused a command.
    #[error("{step}: {status}")]
    Status {
        /// The operation.
        step: &'static str,
        /// The answer.
        status: Status,
    },
    /// The controller lacks something that this driver needs.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The machine has not been prepared for this driver.
    #[error("the device cannot be used: {0}")]
    Unready(String),
    /// The machine takes the device away.
    #[error("the kernel wants the device back: it is unplugged, or gets another driver")]
    WantedBack,
    /// Identify data that cannot be used.
    #[error("Identify: {0}")]
    Identify(#[from] IdentifyError),
    /// The controller has no namespace, or not the one asked for.
    #[error("the controller has no such namespace")]
    NoNamespace,
    /// All I/O queues are in use.
    #[error("all {0} I/O queues of the controller are in use")]
    NoQueue(u16),
    /// The other side of the bus refused a request.
    #[error("{step}: the device's process answered error {errno}")]
    Refused {
        /// The operation.
        step: &'static str,
        /// The error number.
        errno: u32,
    },
    /// The other side of the bus broke its protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// The operating system refused a call, or the connection has ended.
    #[error("{step}: {source}")]
    Io {
        /// The operation.
        step: &'static str,
        /// The reason.
        source: std::io::Error,
    },
}

impl Fault {
    /// The error kind that a caller can act on.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Fault::Gone | Fault::Failed(_) | Fault::WantedBack => ErrorKind::Disconnected,
            Fault::TimedOut { .. } => ErrorKind::TimedOut,
            Fault::Status { .. }
            | Fault::NoQueue(_)
            | Fault::Refused { .. }
            | Fault::Unready(_) => ErrorKind::Refused,
            Fault::Unsupported(_) | Fault::Identify(_) | Fault::Protocol(_) => {
                ErrorKind::Unsupported
            }
            Fault::NoNamespace => ErrorKind::NotFound,
            Fault::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ConnectionRefused => {
                    ErrorKind::Refused
                }
                _ => ErrorKind::Disconnected,
            },
        }
    }

    /// Returns whether a reset of the controller may help.
    pub fn is_of_the_controller(&self) -> bool {
        let is_of_the_bus = matches!(self, Fault::Io { .. } | Fault::Protocol(_));
        !is_of_the_bus && !matches!(self, Fault::Gone | Fault::WantedBack)
    }
}
