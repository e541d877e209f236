//! Registers of a controller, what a bus offers beside them, and failures of both.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::memory::DmaRegion;
use dlfs_base::error::ErrorKind;
use dlfs_nvme::nvme::{IdentifyError, Status};

/// The registers of a controller: its BAR 0.
pub trait Registers: Send + Sync {
    /// Reads 4 bytes at `offset`, a multiple of 4.
    ///
    /// # Errors
    /// The bus is broken, or `offset` is outside the registers. A device that was removed reads as all ones.
    fn read32(&self, offset: u32) -> Result<u32, Fault>;

    /// Writes 4 bytes at `offset`, a multiple of 4, after all earlier writes to memory.
    ///
    /// # Errors
    /// As [`Registers::read32`].
    fn write32(&self, offset: u32, value: u32) -> Result<(), Fault>;

    /// Reads 8 bytes as two halves, the lower one first.
    ///
    /// # Errors
    /// As [`Registers::read32`].
    fn read64(&self, offset: u32) -> Result<u64, Fault> {
        let low = self.read32(offset)?;
        Ok(u64::from(self.read32(offset + 4)?) << 32 | u64::from(low))
    }

    /// Writes 8 bytes as two halves, the lower one first.
    ///
    /// # Errors
    /// As [`Registers::read32`].
    fn write64(&self, offset: u32, value: u64) -> Result<(), Fault> {
        self.write32(offset, value as u32)?;
        self.write32(offset + 4, (value >> 32) as u32)
    }
}

/// The way to a device: its registers, and the memory that it may access.
pub trait Bus: Registers {
    /// Lets the device read and write the memory, at its device address.
    ///
    /// # Errors
    /// The bus is broken, or the other side refuses, for example since it maps no more pieces.
    fn map(&self, memory: &DmaRegion) -> Result<(), Fault>;

    /// Undoes [`Bus::map`].
    ///
    /// # Errors
    /// As [`Bus::map`].
    fn unmap(&self, memory: &DmaRegion) -> Result<(), Fault>;

    /// Returns whether the machine wants the device back, since it is unplugged or gets another driver.
    fn is_wanted_back(&self) -> bool {
        false
    }

    /// Resets the device by other means than its registers. The memory stays mapped.
    ///
    /// # Errors
    /// The bus has no such means, or they fail.
    fn reset(&self) -> Result<(), Fault> {
        Err(Fault::Unsupported("the bus resets no devices"))
    }
}

/// The clock of waits for a controller.
pub trait Clock: Send + Sync {
    /// The time.
    fn now(&self) -> Instant;

    /// Waits a moment.
    fn nap(&self);
}

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

/// Admin queue attributes: the lengths of both admin queues, 0-based.
pub(crate) const AQA: u32 = 0x24;

/// Address of the admin submission queue.
pub(crate) const ASQ: u32 = 0x28;

/// Address of the admin completion queue.
pub(crate) const ACQ: u32 = 0x30;

/// Region indices of BAR 0 and of the configuration space, which vfio-user shares with VFIO.
pub(crate) const REGISTERS: u32 = 0;
pub(crate) const CONFIGURATION: u32 = 7;

/// The flag of a region that can be mapped.
pub(crate) const MAPPABLE: u32 = 1 << 2;

/// The command register in the configuration space.
pub(crate) const PCI_COMMAND: u32 = 4;

/// Memory space, bus master, interrupt line off.
pub(crate) const PCI_MASTER: u16 = 1 << 1 | 1 << 2 | 1 << 10;

/// The first doorbell.
pub(crate) const DOORBELLS: u32 = 0x1000;
