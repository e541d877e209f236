//! A driver of accelerators without a device: `libcuda.so.1` and `libamdhip64.so` as far as dlfs calls them.
//!
//! A device's memory is memory of the process. Each stream has a thread, which does its copies late, in any order
//! beside other streams. It checks its user, and counts what is wrong; with anything wrong, the process aborts at its
//! end. A call in a forked child aborts it at once. `DLFS_CUDA_LIBRARY` names the library to the program under test.
//!
//! | exported | effect |
//! |---|---|
//! | `fake_violations()` | how often it was used wrongly |
//! | `fake_counts(*mut Counts)` | counters, see [`Counts`] |
//! | `fake_refuse_registration(n)` | registering fails behind the next n times |
//! | `fake_fail_allocation(n)` | allocating on a device fails behind the next n times |
//! | `fake_lose_after(n)` | the device is lost behind the next n copies |
//! | `fake_refuse_copies(n)` | copying fails with code 900 behind the next n copies, and the device is not lost |
//! | `fake_fail_events(code)` | asking for an event and waiting for one fails with this code; 0: no more |
//! | `fake_capture(0 or 1)` | another thread captures a graph in global mode: calls that invalidate it are wrong |
//! | `fake_hold(0 or 1)` | streams begin no work |
//! | `fake_delay(0 or 1)` | work of streams begins after random times |
//! | `fake_is_registered(address, len)` | 1 if all these bytes of the host are registered |
//! | `fake_expect(stream, address, len, digest)` | queues work that reads bytes; wrong if they have another digest |
//!
//! `FAKE_CUDA_REFUSE_REGISTRATION` and `FAKE_CUDA_LOSE_AFTER` in the environment do the same from the start.
//! Rust's tests use [`Fake`].

mod calls;
mod fake;
mod memory;
mod state;
mod stream;

pub use fake::Fake;
pub use memory::digest;
pub use state::Counts;
