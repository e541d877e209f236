//! Blocking calls on a queue pair: for opening an image, small writes, and tests.
//!
//! Each call is one of [`super::calls`] and returns when it has ended. The read path does not use these calls,
//! because it never waits for a single read.

use std::time::Duration;

use super::calls::Calls;
use super::{Namespace, QueuePair};
use dlfs_base::buf::IoBuf;
use dlfs_base::error::Result;

/// Reads and writes that return when they have ended, or at their deadline.
pub struct Blocking(Calls);

impl Blocking {
    /// Wraps `pair`. A call may last 60 seconds.
    ///
    /// # Errors
    /// The process has reached its limit of descriptors.
    pub fn new(pair: Box<dyn QueuePair>) -> Result<Blocking> {
        let mut calls = Calls::new(DEADLINE)?;
        calls.add(pair);
        Ok(Blocking(calls))
    }

    /// Sets how long later calls may last.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.0.set_deadline(deadline);
    }

    /// The namespace behind the queue pair.
    pub fn namespace(&self) -> &Namespace {
        self.0.namespace(0)
    }

    /// Reads `len` bytes from any offset into a new buffer.
    ///
    /// # Errors
    /// As [`Calls::read`].
    pub fn read(&mut self, offset_bytes: u64, len: usize) -> Result<IoBuf> {
        self.0.read(0, offset_bytes, len)
    }

    /// Reads from any offset into `bytes`, through a buffer: see [`Blocking::read`].
    ///
    /// # Errors
    /// As [`Blocking::read`]; `bytes` stay unchanged.
    pub fn read_at(&mut self, offset_bytes: u64, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(&self.read(offset_bytes, bytes.len())?);
        Ok(())
    }

    /// Reports corrupt bytes, as [`QueuePair::report_corrupt`] does.
    pub fn report_corrupt(&mut self, offset_bytes: u64, len: usize) {
        self.0.report_corrupt(0, offset_bytes, len);
    }

    /// Reads whole blocks into `buf` and returns it.
    ///
    /// # Errors
    /// As `Calls::read_into`.
    pub fn read_into(&mut self, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf> {
        self.0.read_into(0, offset_bytes, buf)
    }

    /// Writes whole blocks and returns the buffer. Durable only after [`Blocking::flush`].
    ///
    /// # Errors
    /// As [`Calls::write`].
    pub fn write(&mut self, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf> {
        self.0.write(0, offset_bytes, buf)
    }

    /// Writes whole blocks from `bytes`, through a buffer: see [`Blocking::write`].
    ///
    /// # Errors
    /// As [`Blocking::write`].
    pub fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
        let mut buf = IoBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        self.write(offset_bytes, buf).map(drop)
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// As [`Calls::flush`].
    pub fn flush(&mut self) -> Result<()> {
        self.0.flush(0)
    }
}

/// The default deadline of a call.
const DEADLINE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qpair::Device;
    use crate::qpair::mem::MemNamespace;
    use dlfs_base::error::ErrorKind;

    fn blocking(max_transfer_bytes: u32, queue_depth: u16) -> Blocking {
        let device = MemNamespace::new(1 << 20, 512).unwrap();
        let device = device.with_limits(max_transfer_bytes, queue_depth);
        Blocking::new(device.queue_pair().unwrap()).unwrap()
    }

    #[test]
    fn bytes_at_any_offset_are_read_in_pieces_of_the_largest_transfer() {
        let mut io = blocking(4096, 2);
        let bytes: Vec<u8> = (0..100_352u32).map(|at| (at % 253) as u8).collect();
        io.write_at(1024, &bytes).unwrap();
        io.flush().unwrap();
        let mut found = vec![0; 90_001];
        io.read_at(1024 + 777, &mut found).unwrap();
        assert_eq!(found, bytes[777..777 + 90_001]);
        assert!(io.read(5, 0).unwrap().is_empty());
    }

    #[test]
    fn bytes_past_the_end_are_refused_before_memory_is_taken() {
        let mut io = blocking(4096, 2);
        for (offset, len) in [(0, (1 << 20) + 1), (1 << 20, 1), (u64::MAX, 2), (0, usize::MAX)] {
            assert_eq!(io.read(offset, len).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        for (offset, len) in [(1, 512), (0, 511), (1 << 20, 512)] {
            let error = io.write(offset, IoBuf::zeroed(len)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn a_call_ends_at_its_deadline() {
        let mut io = blocking(4096, 2);
        io.set_deadline(Duration::ZERO);
        assert_eq!(io.read(0, 9000).unwrap_err().kind(), ErrorKind::TimedOut);
        io.set_deadline(Duration::from_secs(60));
        assert_eq!(io.read(0, 9000).unwrap().len(), 9000);
    }
}
