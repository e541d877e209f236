//! A user-space driver of NVMe controllers whose queues lie in memory, as those on PCIe do.
//!
//! The pure half knows registers, rings and commands: [`registers`] is what a bus must offer, [`queue`] a submission
//! and completion queue, [`controller`] a controller from its reset to its shutdown. It has no socket, no file and no
//! clock of its own, and believes nothing that the device writes: wrong, late or repeated command identifiers, garbage
//! and registers of all ones end in an error, never in a panic.
//!
//! The other half reaches a device: [`memory`] is memory for DMA, [`vfio`] a device of this machine's PCI bus that the
//! kernel hands over, and [`vfio_user`] one that another process of this machine emulates, over a socket (vfio-user
//! 0.1: SPDK's target, libvfio-user, QEMU), without root and without the kernel.
//!
//! It is not an engine: it owns no I/O and knows no buffer, only device addresses. `dlfs-io` makes queue pairs of it,
//! and decides when a command is aborted, a controller reset, or given up.
//!
//! Read `queue.rs` first, then `controller.rs`.

pub mod area;
pub mod controller;
pub mod fault;
pub mod memory;
pub mod queue;
pub mod registers;
pub mod vfio;
pub mod vfio_user;

pub use area::{Area, Words};
pub use controller::{Controller, Settings};
pub use fault::Fault;
pub use memory::DmaRegion;
pub use queue::{Ended, Queue, Span};
pub use registers::{Bus, Clock, Registers};
