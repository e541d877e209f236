//! Passes bytes from peers, media and users to their decoders: the drivers of all fuzzing.
//!
//! A [`Target`] decodes one kind of input and asserts its invariants. `src/main.rs` is the libFuzzer program of
//! all; `tests/heap/fuzz.rs` of dlfs runs the same targets with seeded damage and replays their corpora, without a
//! fuzzing engine.
//!
//! A checksum stops accidents, not an adversary. So each input is decoded as it is and, if its
//! format has checksums, again with all of them corrected; otherwise the code behind the checks
//! would not be reached.

pub mod archives;
#[path = "../../support/counting_alloc.rs"]
pub mod counting_alloc;
pub mod damage;
pub mod device;
pub mod image;
#[path = "../../images/mod.rs"]
pub mod images;
pub mod media;
#[allow(dead_code, unreachable_pub)] // the control socket uses a part of it, as `crate::net`
#[path = "../../../tools/cli/src/net.rs"]
pub mod net;
#[allow(dead_code, unreachable_pub)] // tests use other parts of it
#[path = "../../support/raw_host.rs"]
pub mod raw_host;
pub mod rows;
pub mod script;
pub mod servers;
pub mod session;
pub mod text;
pub mod tiers;
pub mod wire;

use counting_alloc::CountingAlloc;

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// One kind of input, and its decoder.
pub struct Target {
    /// Its name, also of its program and its corpus.
    pub name: &'static str,
    /// Valid inputs to start with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Corrects the checksums in an input.
    pub refit: Option<fn(&mut [u8])>,
    /// Decodes an input; panics if an invariant does not hold.
    pub run: fn(&[u8]),
    /// Heap bytes that an input may use in addition to 64 times its own length.
    pub heap_bytes: usize,
    /// The number of damaged inputs that a test without a fuzzing engine tries.
    pub rounds: u64,
}

/// All of them.
pub const TARGETS: &[&Target] = &[
    &rows::ARROW,
    &rows::PARQUET,
    &rows::ROWS,
    &archives::GZIP,
    &archives::LIST,
    &archives::TAR,
    &archives::TFRECORD,
    &image::EDIT,
    &image::IMAGE,
    &image::REBUILD,
    &image::RESUME,
    &media::CHUNK,
    &media::RECORD,
    &media::SNAPSHOT,
    &media::SUPERBLOCK,
    &servers::CATALOG,
    &servers::CONTROL,
    &servers::REDIS,
    #[cfg(feature = "cloud")]
    &servers::STORE,
    &session::SESSION,
    &text::ADDRESS,
    &text::OPTION,
    &text::STATE,
    &tiers::TIER_INDEX,
    &wire::WIRE_ADMIN,
    &wire::WIRE_CONTROLLER,
    &wire::WIRE_HOST,
];

impl Target {
    /// Decodes `input`, and again with corrected checksums.
    ///
    /// # Panics
    /// An assertion of the target does not hold, or it used too much heap.
    pub fn check(&self, input: &[u8]) {
        self.check_heap(input);
        if let Some(refit) = self.refit {
            let mut refitted = input.to_vec();
            refit(&mut refitted);
            if refitted != input {
                self.check_heap(&refitted);
            }
        }
    }

    fn check_heap(&self, input: &[u8]) {
        let (grown, ()) = counting_alloc::peak_during(|| (self.run)(input));
        let limit = 64 * input.len() + self.heap_bytes;
        let name = self.name;
        let len = input.len();
        assert!(grown <= limit, "{name}: {grown} bytes of heap for {len} of input");
    }
}
