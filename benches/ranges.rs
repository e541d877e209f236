//! Parts of large samples: bytes and time of a random 256 KiB, and of a sample read in sequence, beside reads of
//! whole samples. Pieces are verified as samples are.

mod support;

use std::fs;
use std::time::Instant;

use dlfs::address::Address;
use dlfs::dataset::{Dataset, OnError, Options as Open, Query};
use dlfs::import::{ImportOptions, Onto, import};
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::ReadStats;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::{Nsid, SampleId};

use support::Options;

const USAGE: &str = "cargo bench --bench ranges -- [--samples N] [--mib N] [--long-mib N] [--reads N] [--at DIR]

Imports N samples of --mib MiB and one of --long-mib, and reads parts of them from the image file and over
NVMe/TCP on loopback, from the page cache.";

fn main() {
    support::results::record("ranges");
    let options = Options::parse(
        USAGE,
        &[
            ("samples", "8"),
            ("mib", "64"),
            ("long-mib", "1024"),
            ("reads", "500"),
            ("at", "target"),
        ],
    );
    println!("{}", support::machine());
    let made = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
    let samples = options.number("samples");
    let source = made.path().join("source");
    fs::create_dir(&source).expect("the folder is new");
    for sample in 0..=samples {
        let mib = if sample < samples { options.number("mib") } else { options.number("long-mib") };
        let words =
            (0..mib << 17).map(|word| (word ^ sample << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        fs::write(source.join(format!("{sample:03}")), bytes).expect("room for the samples");
    }
    let image = Address::Path(made.path().join("ranges.dlfs"));
    let into = ImportOptions { onto: Onto::Empty, ..ImportOptions::default() };
    let connect = ConnectOptions::default();
    import(std::slice::from_ref(&source), std::slice::from_ref(&image), &into, &connect, &mut ())
        .expect("imported");
    fs::remove_dir_all(&source).expect("the source is ours");
    let device = qpair::open(&image, &connect).expect("the image opens");
    let nqn = "nqn.2026-11.io.dlfs:ranges".parse().expect("a valid name");
    let listen = "127.0.0.1:0".parse().expect("a valid address");
    let options_of = TargetOptions { listen, ..TargetOptions::new(nqn) };
    let target = Target::bind(options_of, vec![device]).expect("a free port");
    println!(
        "from  what                                  reads  bytes a read     us a read       MB/s"
    );
    for (from, address) in [("file", image.clone()), ("tcp", target.address(Nsid(1)))] {
        let dataset =
            Dataset::open(&[address], &Open::default(), &mut ()).expect("the image opens");
        // Everything once, so that the page cache has it.
        whole(&dataset, SampleId(samples));
        (0..samples).for_each(|id| whole(&dataset, SampleId(id)));
        let reads = options.number("reads");
        let piece = 256 << 10;
        let places = (options.number("mib") << 20) / piece;
        let at = |nth: u64| {
            let drawn = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            (SampleId(drawn % samples), drawn / samples % places * piece)
        };
        let few = reads.div_ceil(50);
        measure(from, "256 KiB of a sample, read whole", few, piece, &dataset, |nth| {
            whole(&dataset, at(nth).0);
        });
        measure(from, "256 KiB of a sample, as a range", reads, piece, &dataset, |nth| {
            let (id, start) = at(nth);
            let read = dataset.read_range(id, start..start + piece, &mut ()).expect("it is there");
            assert_eq!(read.bytes(0).len() as u64, piece);
        });
        let long = SampleId(samples);
        let len = options.number("long-mib") << 20;
        for _ in 0..3 {
            measure(from, "the long sample, read whole", 1, len, &dataset, |_| {
                whole(&dataset, long)
            });
            measure(from, "the long sample, 128 KiB in sequence", 1, len, &dataset, |_| {
                let file = dataset.open_sample(long, None, &mut ()).expect("it is there");
                let mut at = 0;
                let mut bytes = vec![0; 128 << 10];
                while at < len {
                    at += file.read_at(at, &mut bytes, &mut ()).expect("it is there") as u64;
                }
            });
        }
    }
}

fn whole(dataset: &Dataset, id: SampleId) {
    let read = dataset.read(Query::Ids(&[id]), OnError::Raise, &mut ()).expect("it is there");
    assert!(!read.batch.bytes(0).is_empty());
}

/// Prints what `count` calls of `work` cost that want `len` bytes each.
fn measure(from: &str, what: &str, count: u64, len: u64, dataset: &Dataset, work: impl Fn(u64)) {
    let before: ReadStats = dataset.stats();
    let start = Instant::now();
    (0..count).for_each(work);
    let seconds = start.elapsed().as_secs_f64();
    let bytes = (dataset.stats().bytes - before.bytes) / count;
    let us = seconds / count as f64 * 1e6;
    let rate = (len * count) as f64 / seconds / 1e6;
    println!("{from:<5} {what:<36} {count:>6} {bytes:>13} {us:>13.0} {rate:>10.0}");
}
