//! The namespaces of an image as an import sees them: written by several threads, each through queue
//! pairs of its own, and flushed together.

use std::sync::Arc;

use crate::buf::IoBuf;
use crate::format::geometry::MAX_NAMESPACE_BYTES;
use crate::format::open::Copies;
use crate::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use crate::qpair::Device;
use crate::qpair::blocking::Blocking;
use crate::{Error, ErrorKind, Result};

/// The namespaces of an image, in the image's order.
#[derive(Clone)]
pub(super) struct Media {
    devices: Arc<[Arc<dyn Device>]>,
}

/// One thread's way to all namespaces.
pub(super) struct Channel {
    media: Media,
    pairs: Vec<Option<Blocking>>,
}

impl Media {
    /// Of `devices`, in this order.
    ///
    /// # Errors
    /// `InvalidArgument`: none, too many, or one that refuses writes.
    pub(super) fn new(devices: Vec<Arc<dyn Device>>) -> Result<Media> {
        let media = Media::for_reading(devices)?;
        for device in media.devices() {
            let namespace = device.namespace();
            if namespace.read_only {
                return Err(Error::new(ErrorKind::Refused, "the namespace refuses writes")
                    .target(namespace.address)
                    .hint("serve it with --writable"));
            }
        }
        Ok(media)
    }

    /// Of `devices`, which need not take writes.
    ///
    /// # Errors
    /// `InvalidArgument`: none, or too many.
    pub(super) fn for_reading(devices: Vec<Arc<dyn Device>>) -> Result<Media> {
        if devices.is_empty() || devices.len() > usize::from(u16::MAX) {
            let message = format!("an image has 1 to 65,535 namespaces, not {}", devices.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Media { devices: devices.into() })
    }

    /// The same namespaces in another order: `order[i]` says which of these is number `i`.
    pub(super) fn in_order(&self, order: &[usize]) -> Media {
        Media { devices: order.iter().map(|&at| self.devices[at].clone()).collect() }
    }

    /// How many namespaces.
    pub(super) fn len(&self) -> u16 {
        self.devices.len() as u16 // `new` allows no more
    }

    /// The namespaces.
    pub(super) fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// What each namespace may come to hold, in bytes.
    pub(super) fn capacities(&self) -> Vec<u64> {
        let capacity = |device: &Arc<dyn Device>| match device.can_grow() {
            true => MAX_NAMESPACE_BYTES,
            false => device.namespace().len_bytes(),
        };
        self.devices.iter().map(capacity).collect()
    }

    /// Makes a namespace at least `len_bytes` long.
    ///
    /// # Errors
    /// `NoSpace`: it does not become that long.
    pub(super) fn grow(&self, namespace: u16, len_bytes: u64) -> Result<()> {
        self.devices[usize::from(namespace)].grow(len_bytes)
    }

    /// A way to all namespaces for one thread. Queue pairs are made when they are first used.
    pub(super) fn channel(&self) -> Channel {
        let pairs = self.devices.iter().map(|_| None).collect();
        Channel { media: self.clone(), pairs }
    }
}

impl Channel {
    /// Reads whole or part blocks.
    ///
    /// # Errors
    /// Those of [`Blocking::read`].
    pub(super) fn read(&mut self, namespace: u16, offset: u64, len: usize) -> Result<IoBuf> {
        let read = self.pair(namespace)?.read(offset, len);
        self.forget_if_failed(namespace, read)
    }

    /// Writes whole blocks and gives the buffer back.
    ///
    /// # Errors
    /// Those of [`Blocking::write`]. The queue pair is given up: what was under way on it may or may
    /// not have been written, and a late one may still be. That does no harm, since an import writes
    /// any place with the same bytes again; but it must look before it believes.
    pub(super) fn write(&mut self, namespace: u16, offset: u64, buf: IoBuf) -> Result<IoBuf> {
        let written = self.pair(namespace)?.write(offset, buf);
        self.forget_if_failed(namespace, written)
    }

    /// Writes whole blocks from `bytes`.
    ///
    /// # Errors
    /// As [`Channel::write`].
    pub(super) fn write_bytes(&mut self, namespace: u16, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = self.pair(namespace)?.write_at(offset, bytes);
        self.forget_if_failed(namespace, written)
    }

    /// Makes what was written on a namespace durable, by whichever thread.
    ///
    /// # Errors
    /// Those of [`Blocking::flush`]. Nothing may be taken for durable then.
    pub(super) fn flush(&mut self, namespace: u16) -> Result<()> {
        let flushed = self.pair(namespace)?.flush();
        self.forget_if_failed(namespace, flushed)
    }

    /// The superblock copies of a namespace; blank where it is too short to have them.
    ///
    /// # Errors
    /// The blocks could not be read.
    pub(super) fn superblocks(&mut self, namespace: u16) -> Result<Copies> {
        let len = self.media.devices[usize::from(namespace)].namespace().len_bytes();
        let mut copy = |offset: u64| match offset + SUPERBLOCK_BYTES as u64 <= len {
            true => self.read(namespace, offset, SUPERBLOCK_BYTES),
            false => Ok(IoBuf::zeroed(SUPERBLOCK_BYTES)),
        };
        let (a, b) = (copy(COPY_OFFSETS[0])?, copy(COPY_OFFSETS[1])?);
        Ok(Copies::parse(&a, &b))
    }

    /// Overwrites a run of bytes with zeroes.
    ///
    /// # Errors
    /// As [`Channel::write`].
    pub(super) fn zero(&mut self, namespace: u16, offset: u64, len: u64) -> Result<()> {
        let mut at = 0;
        let mut zeroes = IoBuf::zeroed(len.min(ZERO_BYTES) as usize);
        while at < len {
            zeroes.truncate((len - at).min(ZERO_BYTES) as usize);
            let written = zeroes.len() as u64;
            zeroes = self.write(namespace, offset + at, zeroes)?;
            at += written;
        }
        Ok(())
    }

    /// The namespaces behind it.
    pub(super) fn media(&self) -> &Media {
        &self.media
    }

    fn pair(&mut self, namespace: u16) -> Result<&mut Blocking> {
        let at = usize::from(namespace);
        if self.pairs[at].is_none() {
            self.pairs[at] = Some(Blocking::new(self.media.devices[at].queue_pair()?)?);
        }
        Ok(self.pairs[at].as_mut().expect("made just above"))
    }

    fn forget_if_failed<T>(&mut self, namespace: u16, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.pairs[usize::from(namespace)] = None;
        }
        result
    }
}

/// Zeroes of one write.
const ZERO_BYTES: u64 = 1 << 20;
