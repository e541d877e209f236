//! The bytes of a batch on the device.

use std::ops::Range;
use std::sync::Arc;

use dlfs_base::error::Result;
use dlfs_base::process::Mutex;

use crate::Driver;
use crate::buffer::SlotMemory;
use crate::shared::RingShared;

/// A batch's bytes on a device. Clones share them; the buffer returns to its ring when the last one is dropped, and the
/// device has done what the consumer's streams had been given before.
#[derive(Clone)]
pub struct DeviceBytes(Arc<Lease>);

/// The consumer's right to a buffer.
struct Lease(Arc<Held>);

/// A buffer that is filled, and held by the consumer, the copy, or both.
pub(crate) struct Held {
    pub(crate) shared: Arc<RingShared>,
    /// `None` once returned.
    memory: Mutex<Option<SlotMemory>>,
    address: u64,
    len: usize,
    arrays: Vec<Range<usize>>,
}

impl DeviceBytes {
    /// The handle of the consumer on what `held` has.
    pub(crate) fn of(held: &Arc<Held>) -> DeviceBytes {
        DeviceBytes(Arc::new(Lease(Arc::clone(held))))
    }

    /// The address on the device, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.0.0.address
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.0.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address and length of array number `nth` of the [`Parts`](crate::Parts) that were copied.
    pub fn array(&self, nth: usize) -> Option<(u64, usize)> {
        let array = self.0.0.arrays.get(nth)?;
        Some((self.address() + array.start as u64, array.len()))
    }

    /// The number of the device.
    pub fn ordinal(&self) -> u32 {
        self.0.0.shared.ordinal
    }

    /// The driver of the device.
    pub fn driver(&self) -> &'static Driver {
        self.0.0.shared.driver
    }

    /// Lets later work of the consumer's `stream` begin behind the copy; 0 is the default stream. The buffer is not
    /// written again before the work that the stream has when the last clone is dropped. Does not wait on the host.
    ///
    /// # Errors
    /// `InvalidArgument`: the stream does not exist. `DeviceLost`. `Unsupported`: the process is a forked child.
    pub fn ready_on(&self, stream: u64) -> Result<()> {
        let Held { shared, memory, .. } = &*self.0.0;
        shared.driver.check_ours()?;
        let mut memory = memory.lock();
        let memory = memory.as_mut().expect("returned by the last handle only");
        shared.run(|driver| memory.wait_on(driver, stream as usize))
    }

    /// Waits on the host until the bytes are there.
    ///
    /// # Errors
    /// As [`DeviceBytes::ready_on`].
    pub fn wait(&self) -> Result<()> {
        let Held { shared, memory, .. } = &*self.0.0;
        shared.driver.check_ours()?;
        let copied = memory.lock().as_ref().expect("returned by the last handle only").copied;
        shared.run(|driver| driver.synchronize(copied))
    }
}

impl std::fmt::Debug for DeviceBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBytes({} bytes on {})", self.len(), self.0.0.shared.device())
    }
}

impl Held {
    pub(crate) fn new(
        shared: Arc<RingShared>,
        memory: SlotMemory,
        len: usize,
        arrays: Vec<Range<usize>>,
    ) -> Arc<Held> {
        let address = memory.address;
        Arc::new(Held { shared, memory: Mutex::new(Some(memory)), address, len, arrays })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Held { shared, memory, .. } = &*self.0;
        if !shared.driver.is_ours() {
            return; // a forked child: the parent has it
        }
        if let Some(memory) = memory.lock().as_mut()
            && let Err(error) = shared.run(|driver| memory.release(driver))
        {
            shared.fail(error); // the buffer cannot be written safely any more
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.shared.driver.is_ours()
            && let Some(memory) = self.memory.lock().take()
        {
            self.shared.give_back(memory);
        }
    }
}
