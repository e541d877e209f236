//! The memory of a directory's columns: immutable bytes that several columns and directories share.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, KnownLayout};

use dlfs_base::buf::{IoBuf, SealedBytes, SharedBuf};

/// Shared, immutable bytes: a slice of a buffer that was read from media, built in memory, or mapped from another
/// process.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<BytesOwner>,
    /// The slice of the owner's bytes.
    range: Range<usize>,
}

/// The memory that [`Bytes`] are a slice of.
enum BytesOwner {
    Heap(Vec<u8>),
    Shared(SharedBuf),
    Sealed(Arc<SealedBytes>),
}

impl Bytes {
    /// `first`, followed by `second`.
    pub(crate) fn joined(first: &[u8], second: Vec<u8>) -> Bytes {
        if first.is_empty() {
            return second.into();
        }
        let mut both = Vec::with_capacity(first.len() + second.len());
        both.extend_from_slice(first);
        both.extend_from_slice(&second);
        both.into()
    }

    /// The subslice `range`; `None` if it exceeds the bytes.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        self.get(range.clone())?;
        let start = self.range.start;
        Some(Bytes { owner: self.owner.clone(), range: start + range.start..start + range.end })
    }

    /// The bytes as items of an unaligned type; a partial item at the end is ignored.
    #[inline]
    pub(crate) fn items<T: FromBytes + Immutable + KnownLayout>(&self) -> &[T] {
        let bytes: &[u8] = self;
        let whole = bytes.len() - bytes.len() % size_of::<T>();
        <[T]>::ref_from_bytes(&bytes[..whole]).expect("whole items of an unaligned type")
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &*self.owner {
            BytesOwner::Heap(bytes) => &bytes[self.range.clone()],
            BytesOwner::Shared(bytes) => &bytes[self.range.clone()],
            BytesOwner::Sealed(bytes) => &bytes[self.range.clone()],
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        let range = 0..bytes.len();
        Bytes { owner: Arc::new(BytesOwner::Heap(bytes)), range }
    }
}

impl From<SharedBuf> for Bytes {
    fn from(bytes: SharedBuf) -> Bytes {
        let range = 0..bytes.len();
        Bytes { owner: Arc::new(BytesOwner::Shared(bytes)), range }
    }
}

impl From<Arc<SealedBytes>> for Bytes {
    fn from(bytes: Arc<SealedBytes>) -> Bytes {
        let range = 0..bytes.len();
        Bytes { owner: Arc::new(BytesOwner::Sealed(bytes)), range }
    }
}

impl From<IoBuf> for Bytes {
    fn from(bytes: IoBuf) -> Bytes {
        bytes.freeze().into()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}
