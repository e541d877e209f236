//! The cost of the C layer: batches of 256 through dlfs_bread and dlfs_release, compared with the
//! same batches through the loader in Rust. The two alternate, and each batch is requested only
//! when it is ready.
//!
//! `cargo bench -p dlfs-capi --bench layer [-- --batches N]`. The difference of the medians is the
//! cost of one batch: its handle, and the table of 256 items and fields.

#![allow(unsafe_code)] // calls the functions of dlfs.h as C does

#[path = "../../../benches/support/results.rs"]
mod results;

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Loader, Options};
use dlfs::import::{ImportOptions, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs_capi::batch::{BatchOut, dlfs_release};
use dlfs_capi::mount::{Fs, dlfs_mount, dlfs_unmount};
use dlfs_capi::options::{DLFS_ORDER_GLOBAL, DLFS_ORDER_GROUPED, SequenceOptions};
use dlfs_capi::sequence::{Seq, dlfs_bread, dlfs_sequence, dlfs_sequence_close};

const BATCH: usize = 256;
const SAMPLES: usize = 64 * BATCH;

fn main() {
    results::record("layer");
    let given: Vec<String> = std::env::args().collect();
    let batches = given.iter().position(|word| word == "--batches").map(|at| &given[at + 1]);
    let batches = batches.map_or(2000, |number| number.parse().expect("--batches is a number"));
    let folder = tempfile::tempdir_in("target").expect("a folder in target");
    let image = make_image(folder.path());
    println!(
        "{SAMPLES} samples of 4 KiB, {batches} batches of {BATCH}, us a batch: median (p10, p90)"
    );
    for (name, kind, order) in [
        ("grouped", OrderKind::Grouped { lanes: 8, group: 4 }, DLFS_ORDER_GROUPED),
        ("global", OrderKind::Global, DLFS_ORDER_GLOBAL),
    ] {
        let options = || {
            let mut options = LoaderOptions::new(OrderSpec { kind, seed: 7 }, BATCH, 0);
            options.epochs = 0..1 << 20;
            options
        };
        // Each has its own data set, so that the processor's caches hold the same for all.
        let [plain, looked] = [(); 2].map(|()| {
            let addresses = std::slice::from_ref(&image);
            let dataset = Dataset::open(addresses, &Options::default(), &mut ()).expect("opened");
            dataset.loader(options()).expect("a loader")
        });
        let c = OfC::open(&image, order);
        let mut of_rust = Vec::new();
        let mut in_looked = Vec::new();
        let mut of_c = Vec::new();
        for number in 0..batches + WARM {
            let times = (time_rust(&plain, false), time_rust(&looked, true), c.time());
            if number >= WARM {
                of_rust.push(times.0);
                in_looked.push(times.1);
                of_c.push(times.2);
            }
        }
        let rust = show(&mut of_rust);
        let looked = show(&mut in_looked);
        let layer = show(&mut of_c);
        println!(
            "{name:8} loader {rust}   and each sample looked at {looked}   dlfs_bread {layer}"
        );
        let beyond = |of_rust: &[f64]| median(&of_c) - median(of_rust);
        let rust = beyond(&of_rust);
        let looked = beyond(&in_looked);
        println!(
            "{name:8} the layer: {rust:.1} us a batch, {looked:.1} where Rust looks at each too"
        );
    }
}

/// Warm-up batches.
const WARM: usize = 200;

/// Takes and releases one batch; readahead gets time to prepare the next one.
fn time_rust(loader: &Loader, look: bool) -> f64 {
    std::thread::sleep(Duration::from_micros(400));
    let begun = Instant::now();
    let batch = loader.next(&mut ()).expect("a batch").expect("no end");
    if look {
        for index in 0..batch.len() {
            let all = (batch.id(index), batch.bytes(index), batch.label(index));
            std::hint::black_box(all);
        }
    }
    drop(batch);
    begun.elapsed().as_secs_f64() * 1e6
}

/// The same through the functions of dlfs.h.
struct OfC {
    fs: *mut Fs,
    seq: *mut Seq,
}

impl OfC {
    fn open(image: &Address, order: u32) -> OfC {
        let address = CString::new(image.to_string()).expect("no zero byte");
        let mut fs = null_mut();
        let mut seq = null_mut();
        // SAFETY: zero is the default of every field, as the header says.
        let mut options: SequenceOptions = unsafe { std::mem::zeroed() };
        options.size = size_of::<SequenceOptions>();
        (options.order, options.seed, options.batch_size) = (order, 7, BATCH as u32);
        // SAFETY: a string with its NUL, options with their size, and places for the handles.
        unsafe {
            assert_eq!(dlfs_mount(address.as_ptr(), null(), &mut fs), 0);
            assert_eq!(dlfs_sequence(fs, &options, &mut seq), 0);
        }
        OfC { fs, seq }
    }

    fn time(&self) -> f64 {
        std::thread::sleep(Duration::from_micros(400));
        // SAFETY: as in `open`; the batch is an empty one with its size.
        unsafe {
            let mut batch: BatchOut = std::mem::zeroed();
            batch.size = size_of::<BatchOut>();
            let begun = Instant::now();
            assert_eq!(dlfs_bread(self.seq, &mut batch), 0);
            assert_eq!(batch.count, BATCH);
            assert_eq!(dlfs_release(&mut batch), 0);
            begun.elapsed().as_secs_f64() * 1e6
        }
    }
}

impl Drop for OfC {
    fn drop(&mut self) {
        // SAFETY: handles of `open`.
        unsafe { (dlfs_sequence_close(self.seq), dlfs_unmount(self.fs)) };
    }
}

fn make_image(folder: &Path) -> Address {
    let files = folder.join("files");
    for id in 0..SAMPLES {
        let class = files.join(format!("class{}", id / 1024));
        fs::create_dir_all(&class).expect("a folder");
        fs::write(class.join(format!("{id:06}")), vec![id as u8; 4096]).expect("a file");
    }
    let image = Address::from_path(folder.join("train.dlfs"));
    let options = ImportOptions { chunk_size_bytes: 1 << 20, ..ImportOptions::default() };
    let to = [image.clone()];
    let connect = ConnectOptions::default();
    import(&[files], &to, &options, &connect, &mut ()).expect("imported");
    image
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn show(times: &mut [f64]) -> String {
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[times.len() * part / 10];
    format!("{:.1} ({:.1}, {:.1})", median(times), at(1), at(9))
}
