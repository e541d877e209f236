//! Registration of memory with the driver of an accelerator, which then copies from it by DMA.
#![allow(unsafe_code)] // promises that memory stays mapped while a driver knows it

use std::ptr::NonNull;

use crate::error::Result;
use crate::process::process_id;

/// A driver that pins host memory once, so that its devices copy it without a detour.
///
/// # Safety
/// Neither method reads, writes or moves the bytes. After [`Registrar::unregister`] no device accesses them.
pub unsafe trait Registrar: Send + Sync {
    /// Pins `len` bytes from `start`, whole pages that stay mapped until [`Registrar::unregister`].
    ///
    /// # Errors
    /// The driver refuses, for example because a limit of the container is reached.
    fn register(&self, start: NonNull<u8>, len: usize) -> Result<Registered>;

    /// Undoes a [`Registrar::register`] that returned [`Registered::Ours`], with the same arguments. Ignores failures:
    /// the driver may have ended before the process does.
    fn unregister(&self, start: NonNull<u8>, len: usize);
}

/// The owner of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The caller, which has to undo it.
    Ours,
    /// Another part of the process, which registered the same pages before and undoes it.
    Others,
}

/// The registration of a mapping, until dropped. Drop it before the mapping.
///
/// The mapping is registered as one range: CUDA refuses a copy that crosses the border of two ranges, even adjacent
/// ones.
///
/// Private memory must not be inherited: a device would go on reading the pages from before the fork if a write of this
/// process copied them. A child neither unregisters nor unmaps anything.
pub(super) struct Registration {
    registrar: &'static dyn Registrar,
    start: NonNull<u8>,
    /// Length in bytes.
    pub(super) len: usize,
    owner: Registered,
    /// The process that registered the memory.
    pid: u32,
}

// SAFETY: the address is only passed on to `registrar`, which any thread may call.
unsafe impl Send for Registration {}

// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `len` mapped bytes from `start`.
    ///
    /// # Errors
    /// The driver's refusal.
    ///
    /// # Safety
    /// The bytes stay mapped until the registration is dropped, except in forked children.
    pub(super) unsafe fn new(
        registrar: &'static dyn Registrar,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<Registration> {
        let owner = registrar.register(start, len)?;
        Ok(Registration { registrar, start, len, owner, pid: process_id() })
    }

    /// Returns whether the parent process registered the memory, which this process then does not have.
    pub(super) fn is_foreign(&self) -> bool {
        self.pid != process_id()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.is_foreign() && self.owner == Registered::Ours {
            self.registrar.unregister(self.start, self.len);
        }
    }
}
