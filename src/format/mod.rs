//! How bytes lie on media. Pure: bytes in, bytes out, and a [`FormatError`] with numbers in it.
//!
//! # What it is
//! An *image* is a data set, generation by generation, on 1..65,535 namespaces. Each namespace is cut
//! into *cells* of the chunk size. Cell 0 holds the two superblock copies; every other cell is free,
//! or part of a *range*: a chunk of samples, a generation record, or a snapshot of the directory.
//!
//! ```text
//! namespace 0   | superblocks A B | chunk 0 | chunk 2 | record | snapshot .............. | free
//! namespace 1   | superblocks A B | chunk 1 | chunk 3 | free
//! chunk         | head 128 | field names | entries | names | pad to 4,096 | samples ...... |
//! ```
//!
//! Everything starts at a multiple of 4,096 bytes, whatever the block size of the namespace, so an
//! image may be copied byte by byte. All numbers are little-endian. Every structure begins with a
//! magic, a version, the image UUID and the generation, and has a CRC32C; reserved bytes are zero.
//!
//! # What it is not
//! It does no I/O, takes no time and draws no random number; `import` does, and `directory` turns
//! what is described here into something to look up in.
//!
//! # The order of writes (what `import` must do)
//! 1. Chunks of the new generation, into cells that [`space::Space`] gives out: never a cell of the
//!    current generation, nor one that the current generation freed. So the current and the previous
//!    generation stay readable, byte for byte, while the next one is written.
//! 2. The generation record and the snapshot ([`crate::directory::commit`] builds both).
//! 3. Flush on every namespace.
//! 4. Superblock copy (generation mod 2) on namespaces 1.., Flush on each of them.
//! 5. The same copy on namespace 0, Flush. *This write commits.*
//!
//! All that differs between two superblocks lies in one sector of 512 bytes, so a write of one is not torn.
//! `tests/power.rs` checks what every power loss during all this leaves.
//!
//! Opening takes namespace 0's newest valid copy and wants that generation on all others; a newer
//! copy there is an import that did not commit. [`superblock_set`] judges this, purely.
//!
//! # When a superblock copy is bad
//! A copy that cannot be read or does not check is read once more, from the device. It counts as bad
//! when it stays so, and also when nothing but zeroes lies there, unless the generation that opened is
//! the first one or says itself that the other copy is void ([`superblock::OTHER_COPY_VOID`]).
//! Generation g lies in copy g mod 2, so with g open, namespace 0's other copy held g - 1 or g + 1:
//!
//! | it held | because | what is right |
//! |---|---|---|
//! | g - 1 | it went bad since | g; nothing is lost |
//! | half of g + 1 | the medium tore a sector, or an earlier release wrote | g, or g + 1 |
//! | g + 1 | it went bad since | g + 1 |
//!
//! The bytes do not tell which, but for one case: another namespace whose copy is still that of g - 1
//! vouches for the first, since a commit writes namespace 0 last. And the journal does not tell the
//! second from the third. So readers open g and warn, `verify` reports damage, and who would commit
//! another g + 1 is refused, unless told to accept that. Both ways out end with g + 1 wherever it ever
//! was complete, since all of a generation is flushed before the first superblock is written (step 3):
//!
//! - a rebuild takes g + 1 if its record is there and as whole as g; otherwise it commits g again,
//!   makes the other copy blank, and sets the void bit. Either way both copies are good afterwards.
//! - `import --resume` goes on where the journal is that of g + 1 and no record of another g + 1 (of a
//!   delete or purge, which have no journal) lies on the media: it writes the same bytes again.
//!
//! On the other namespaces, a bad copy of g is stood in for by what namespace 0 says.
//!
//! A power loss alone leaves no such copy. An import that gives up an image makes the other copies blank
//! before those of g, and sets the void bit before that.
//!
//! # What is believed
//! Superblock, snapshot and chunks have checksums, and any program can make those right. So what is
//! said twice is compared before it is used: layout, generation, time, lengths and counts of snapshot
//! and superblock; the end of everything that a directory reads with the length in use, and that with
//! the namespace. No memory or file grows by a number from media that the namespace does not bear out.
//!
//! Read [`geometry`] first, then [`superblock`], [`chunk`], [`builder`].

pub mod builder;
pub mod checksum;
pub mod chunk;

pub(crate) mod cursor;
pub mod error;
pub mod fields;
pub mod fill;
pub mod geometry;
pub mod meta;
pub mod packing;
pub mod placement;
pub mod record;
pub mod snapshot;
pub mod space;
pub mod superblock;
pub mod superblock_copies;
pub mod superblock_set;
pub mod uuid;

pub use builder::{ChunkBuilder, ChunkSpec, FinishedChunk};
pub use chunk::{ChunkHead, ChunkHeader, ChunkId, SampleEntry};
pub use error::FormatError;
pub use fill::Fit;
pub use geometry::{CellRange, Extent, ImageLayout};
pub use meta::SampleMeta;
pub use packing::Pack;
pub use placement::{Part, Placement};
pub use record::GenerationRecord;
pub use space::Space;
pub use superblock::Superblock;
pub use uuid::Uuid;
