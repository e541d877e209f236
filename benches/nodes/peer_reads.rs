//! A read of a peer's tier in memory, beside a plain NVMe/TCP read of a namespace in memory: two processes on
//! loopback, a processor each.

use std::io::BufRead as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dlfs::address::Address;
use dlfs::dataset::Image;
use dlfs::import::{ImportOptions, import};
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::target::{Target, TargetOptions};
use dlfs::tier::PAGE_BYTES;
use dlfs::units::{Lba, Nsid, SampleId};

use crate::origin::in_memory_copy;
use crate::sides;
use crate::support::random_reads::{random_below, random_reads};
use crate::support::{self, Options, Side, files};

/// Prints the ratio for each length.
pub(crate) fn compare(at: &Path) {
    let source = tempfile::tempdir_in(at).expect("a folder");
    files::make_files(source.path(), NUM_SAMPLES, SAMPLE_BYTES);
    let path = at.join("large.dlfs");
    let addresses = [Address::from_path(&path)];
    let sources = [source.path().to_owned()];
    let connect = ConnectOptions::default();
    import(&sources, &addresses, &ImportOptions::default(), &connect, &mut ()).expect("an image");
    let meeting = tempfile::tempdir_in(at).expect("a folder");
    let meeting = meeting.path().to_str().expect("a path of this program's making");
    let path = path.to_str().expect("a path of this program's making");
    let start = |side, rank, tier| {
        let both = ["--image", path, "--world", "2", "--listen", "127.0.0.1", "--peers", meeting];
        Side::start(&[&["--side", side, "--rank", rank, "--tier", tier][..], &both[..]].concat())
    };
    let mut holder = start("holder", "1", "ram:2G");
    // Room for a few pages: nearly all chunks are held by the other.
    let tier = format!("file:{meeting}:1M");
    let mut reader = start("reader", "0", &tier);
    reader.tell(&holder.line());
    println!("\n| read of | depth | peer, reads/s | plain, reads/s | peer / plain | bar |");
    println!("|---|---|---|---|---|---|");
    for _ in LENGTHS {
        println!("{}", reader.line());
    }
    reader.go_on();
    drop(reader);
    drop(holder);
}

/// Joins, holds everything in its tier, and serves the same bytes as a plain namespace in memory.
pub(crate) fn holder(options: &Options) {
    support::pin(0);
    let image = sides::join(options);
    sides::read_everything(&image, options);
    let device =
        qpair::open(&Address::from_path(options.text("image")), &ConnectOptions::default());
    let copy = in_memory_copy(&device.expect("the image")).expect("memory");
    let nqn = "nqn.2026-11.io.dlfs:plain".parse().expect("an NQN");
    let target = Target::bind(TargetOptions::new(nqn), vec![copy]).expect("a target on loopback");
    sides::say(&target.address(Nsid(1)).to_string());
    support::wait_for_end_of_input();
}

/// Joins, and reads random pieces of samples from the holder's tier and from its plain namespace, by turns.
pub(crate) fn reader(options: &Options) {
    support::pin(1);
    let image = sides::join(options);
    let mut lines = std::io::stdin().lock().lines();
    let address = lines.next().expect("a line").expect("a line of the bench");
    let address: Address = address.parse().expect("an address");
    let plain = qpair::open(&address, &ConnectOptions::default()).expect("the holder's namespace");
    let peer: Arc<dyn Device> = Arc::clone(&image.devices()[0]);
    for (len, depth) in LENGTHS {
        let places = places(&image, len);
        let speed = |device: &Arc<dyn Device>, round| {
            let mut nth = random_below(places.len() as u64, round);
            random_reads(&**device, len, depth, SLICE, || places[nth() as usize]).0
        };
        let mut rounds: Vec<(f64, f64)> =
            (0..ROUNDS).map(|round| (speed(&peer, round), speed(&plain, round))).collect();
        rounds.remove(0); // connects
        rounds.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
        let (peer_s, plain_s) = rounds[rounds.len() / 2];
        sides::say(&format!(
            "| {} KiB | {depth} | {peer_s:.0} | {plain_s:.0} | {:.3} | >= 0.95 |",
            len >> 10,
            peer_s / plain_s
        ));
    }
    let of_peer: u64 =
        image.peers().into_iter().flat_map(|peers| peers.stats().nodes).map(|n| n.bytes).sum();
    assert!(of_peer > 0, "no byte came from the peer");
    drop(lines.next());
}

/// The pages of samples at which reads of `len` bytes may begin.
fn places(image: &Image, len: usize) -> Vec<Lba> {
    let directory = image.directory();
    let mut places = Vec::new();
    for id in 0..directory.num_samples() {
        let extent = directory.extent(SampleId(id)).expect("a sample that is there");
        let first = extent.offset_bytes.div_ceil(PAGE_BYTES);
        let end = (extent.offset_bytes + u64::from(extent.len_bytes) - len as u64) / PAGE_BYTES;
        places.extend((first..=end).map(Lba));
    }
    places
}

/// Longer than the longest read by a page, so that it has whole pages wherever it begins.
const SAMPLE_BYTES: usize = (1 << 20) + 8192;
const NUM_SAMPLES: u64 = 300;
const LENGTHS: [(usize, usize); 2] = [(4096, 128), (1 << 20, 8)];
const ROUNDS: u64 = 8;
const SLICE: Duration = Duration::from_millis(400);
