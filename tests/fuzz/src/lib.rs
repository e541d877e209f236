//! Bytes from peers, media and users, given to whatever decodes them: the drivers of all fuzzing.
//!
//! A [`Target`] decodes one kind of input and asserts what must hold of it. `src/bin` has one libFuzzer
//! program a target; `tests/fuzz.rs` of dlfs drives the same targets with seeded damage and replays their
//! corpus, without a fuzzing engine.
//!
//! A checksum stops accidents, not an adversary. So each input is decoded as it is and, where its format
//! has checksums, once more with all of them made right: else nothing would be reached behind them.

pub mod archives;
#[path = "../../support/counting_alloc.rs"]
pub mod counting_alloc;
pub mod damage;
pub mod device;
pub mod image;
#[path = "../../images/mod.rs"]
pub mod images;
pub mod media;
#[allow(dead_code, unreachable_pub)] // tests use other parts of it
#[path = "../../support/raw_host.rs"]
pub mod raw_host;
pub mod script;
pub mod session;
pub mod text;
pub mod tiers;
pub mod wire;

use counting_alloc::CountingAlloc;

#[global_allocator]
static ALLOC: CountingAlloc = CountingAlloc;

/// One kind of input, and what decodes it.
pub struct Target {
    /// Its name: that of its program and of its corpus.
    pub name: &'static str,
    /// Valid inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes the checksums in an input right.
    pub refit: Option<fn(&mut [u8])>,
    /// Decodes an input; panics where it finds what must not be.
    pub run: fn(&[u8]),
    /// Bytes of heap that an input may cost beside 64 times its own length.
    pub heap_bytes: usize,
    /// How many damaged inputs a test without a fuzzing engine tries.
    pub rounds: u64,
}

/// All of them.
pub const TARGETS: &[&Target] = &[
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
    /// Decodes `input`, and again with its checksums made right.
    ///
    /// # Panics
    /// An assertion of the target does not hold, or it took too much of the heap.
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
        let (name, len) = (self.name, input.len());
        assert!(grown <= limit, "{name}: {grown} bytes of heap for {len} of input");
    }
}
