//! Host memory that an accelerator copies by DMA, and batches on the device.
//!
//! A [`Driver`] is CUDA's or ROCm's library, opened at run time: one build serves machines with and without a GPU, and
//! nothing is opened unless somebody asks. It registers the memory of pools ([`Registrar`](dlfs_base::buf::Registrar)).
//! A [`Ring`] has a few buffers on a device and a stream of its own. [`Ring::slot`] waits for a buffer,
//! [`Slot::upload`] starts the copy of a batch into it, and [`DeviceBytes`] is the result, which a consumer orders
//! behind the copy by [`DeviceBytes::ready_on`], without waiting on the host.
//!
//! Invariants: the host's memory is kept until the device has read it or is lost; an error that says neither does not
//! release it. A buffer is written again only behind the work that its consumers had queued when they dropped it. A
//! forked child uses neither driver nor ring of its parent. Each call leaves the calling thread's current context as it
//! was. Registering memory and the calls of a ring leave graphs alone that other threads capture.
//!
//! It knows no samples, and converts nothing. No kernel is run. ROCm has the same functions under other names, and was
//! not tried on a device.
//!
//! Read `ring.rs` first, then `buffer.rs`. The tests run against the driver in `tests/fake_cuda`.

mod buffer;
mod driver;
mod ring;

pub use buffer::Parts;
pub use driver::{Driver, Pin};
pub use ring::{DeviceBytes, Ring, Slot};

#[cfg(test)]
mod tests;
