//! The on-media format of an image: encoders and decoders. Pure: bytes in, bytes out; errors are [`FormatError`]s.
//!
//! # What it is
//! An *image* stores the generations of a data set on 1 to 65,535 namespaces. Each namespace is divided
//! into *cells* of 4,096 bytes. The first 9 cells are reserved: cells 0 and 8 are superblock copies A and B. Between
//! them, an unfinished import keeps class names (1 to 3), journal (4), checkpoint (5), lease (6) and the mark of a
//! plan (7). Every other cell is free, or belongs to a *cell range* that holds a chunk of samples, a generation record,
//! or a snapshot of the directory.
//!
//! ```text
//! namespace 0   | superblocks A B | chunk 0 | chunk 2 | record | snapshot .............. | free
//! namespace 1   | superblocks A B | chunk 1 | chunk 3 | free
//! chunk         | head 128 | field names | columns | pad to 4,096 | samples | pad to 4,096 |
//! ```
//!
//! Every structure starts at a multiple of 4,096 bytes, whatever the LBA size of the namespace, so an
//! image can be copied byte by byte. All numbers are little-endian. Every structure of a generation begins with a magic
//! number and a version, names the image UUID and the generation, and has a CRC32C. Reserved bytes are zero.
//!
//! # What it is not
//! This module does no I/O, reads no clock and draws no random numbers; `import` does. `directory` builds
//! the lookup structures from the decoded chunks and snapshots.
//!
//! # The order of writes (`import` must keep it)
//! 1. Chunks of the new generation, into cells that [`space::Space`] allocates. It never allocates a cell that the
//!    current generation uses or freed. So the current and the previous generation stay readable, byte for byte,
//!    while the next one is written.
//! 2. The generation record and the snapshot ([`crate::directory::commit`] builds both).
//! 3. Flush on every namespace.
//! 4. Superblock copy (generation mod 2) on namespaces 1.., Flush on each of them.
//! 5. The same copy on namespace 0, Flush. *This write commits.*
//!
//! Two superblocks of this release differ in only one sector of 512 bytes, so a superblock write cannot be torn.
//! `tests/all/power.rs` checks what a power loss leaves at every point of this sequence.
//!
//! Opening takes the newest valid copy on namespace 0 and requires the same generation on all other namespaces.
//! A newer copy on another namespace belongs to an import that did not commit. [`superblock_set`] implements this.
//!
//! # When a superblock copy is bad
//! A copy that cannot be read, or whose checksum is wrong, is read once more from the device. If that fails
//! too, the copy is bad. A copy of zeroes is bad too, unless the opened generation is the first one or
//! declares the other copy void ([`superblock::OTHER_COPY_VOID`]). Generation g is in copy g mod 2, so
//! with g open, the bad other copy of namespace 0 held g - 1 or g + 1:
//!
//! | it held | because | correct generation |
//! |---|---|---|
//! | g - 1 | it was damaged later | g; nothing is lost |
//! | half of g + 1 | power was lost, and the medium tore a sector, or a copy was an earlier release's | g, or g + 1 |
//! | g + 1 | it was damaged later | g + 1 |
//!
//! The bytes do not distinguish these cases, with one exception: if another namespace still has the copy of
//! g - 1, it is the first case, since a commit writes namespace 0 last. The journal does not distinguish
//! the second case from the third. So readers open g and warn, `verify` reports damage, and a commit of
//! another g + 1 is refused unless the user accepts the loss. There are two repairs, a rebuild and `import --resume`.
//! Both restore g + 1 if it was ever complete, since a whole generation is flushed before its first superblock is
//! written (step 3):
//!
//! - A rebuild takes g + 1 if its record exists and it is as complete as g. Otherwise it commits g again with the void
//!   bit, and erases the other copy. In both cases no copy is bad afterwards.
//! - `import --resume` continues if the journal belongs to g + 1 and the media hold no other record of g + 1
//!   (from a delete or purge, which have no journal). It writes the same bytes again.
//!
//! On other namespaces, the superblock of namespace 0 replaces a bad copy of g if the other copy there is valid. But if
//! the bad copy is zeroes, opening fails.
//!
//! On media that write sectors of 512 bytes whole, a power loss never makes a copy of this release bad. An import that
//! discards an image first sets the void bit, then erases the other copies, and the copies of g last.
//!
//! # Untrusted media
//! Superblock, snapshot and chunks have checksums, but any program can write a valid checksum. So every
//! fact that is stored twice is compared before it is used. Snapshot and superblock must agree in layout, generation,
//! time, lengths and counts. Everything that a directory reads must end within the used length, and the used length
//! within the namespace. A number from media never makes memory or a file larger than the namespace can hold.
//!
//! Read [`geometry`] first, then [`superblock`], [`chunk`], [`builder`].

pub mod builder;
pub mod chunk;
mod chunk_head;
pub mod columns;

#[doc(hidden)]
pub mod cursor;
mod element;
pub mod error;
pub mod field_type;
pub mod fields;
pub mod geometry;
#[doc(hidden)]
pub mod names;
pub mod npy;
pub mod pieces;
pub mod record;
pub mod snapshot;
pub mod space;
pub mod superblock;
pub mod superblock_set;
pub mod table;
pub mod uuid;

pub use builder::{ChunkBuilder, ChunkDraft, ChunkSpec, DraftLen, FinishedChunk, Fit};
pub use chunk::{ChunkHead, ChunkHeader, ChunkId, SampleEntry};
pub use error::FormatError;
pub use field_type::{FieldType, FieldTypes, Tokenizer};
pub use geometry::{CellRange, Extent, ImageLayout, Pack, Part, Placement};
pub use pieces::RecordSums;
pub use record::{GenerationRecord, Origin, OriginsBuilder};
pub use space::Space;
pub use superblock::Superblock;
pub use table::SampleMeta;
pub use uuid::Uuid;
