//! All by which a controller is reached: its registers, the bus that they are on, and the clock of waits for it.
#![forbid(unsafe_code)]

use std::time::Instant;

use crate::fault::Fault;
use crate::memory::DmaRegion;

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

    /// Returns whether the machine wants the device back, since it is unplugged or gets another driver. A request is
    /// reported once.
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

/// The first doorbell.
pub(crate) const DOORBELLS: u32 = 0x1000;
