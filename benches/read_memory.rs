//! Memory of a reading process: the window and the directory, whatever the size of the data set.

mod support;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{ImportOptions, import};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::reader::Batch;
use support::{Options, Side};

const USAGE: &str =
    "cargo bench --bench read_memory -- [--samples N,N,...] [--len BYTES] [--window BYTES]

Imports tar archives of so many samples, and reads one epoch of each, shuffled, in a process of its
own. Its peak of resident memory is set beside the window and the directory.";

fn main() {
    support::results::record("read_memory");
    let options = Options::parse(
        USAGE,
        &[
            ("samples", "10000,100000,400000"),
            ("len", "4096"),
            ("window", "64M"),
            ("order", "grouped"),
            ("at", "target"),
            ("side", ""),
        ],
    );
    if !options.text("side").is_empty() {
        return read_epoch(&options);
    }
    println!("{}", support::machine());
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let window = options.number("window");
    let order = options.text("order");
    println!("window {:.0} MiB, order {order}; all in MiB", mib(window));
    println!(
        "{:>10}{:>10}{:>12}{:>12}{:>14}",
        "samples", "data", "directory", "peak", "peak - window"
    );
    for count in options.text("samples").split(',') {
        let count = count.parse().expect("--samples is a list of numbers");
        let work = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
        let image = import_archive(work.path(), count, options.number("len"));
        let image = image.to_str().expect("a path of this program's making");
        let window_text = window.to_string();
        let arguments = ["--side", image, "--window", &window_text, "--order", order];
        let line = Side::start(&arguments).line();
        let (directory, peak) = line.split_once(' ').expect("two numbers");
        let directory: u64 = directory.parse().expect("a number");
        let peak: u64 = peak.parse().expect("a number");
        let data = count * options.number("len");
        println!(
            "{count:>10}{:>10.0}{:>12.1}{:>12.1}{:>14.1}",
            mib(data),
            mib(directory),
            mib(peak),
            mib(peak) - mib(window)
        );
    }
}

fn import_archive(folder: &Path, count: u64, len: u64) -> PathBuf {
    let archive = folder.join("samples.tar");
    let image = folder.join("image.dlfs");
    let mut tar = tar::Builder::new(BufWriter::new(File::create(&archive).expect("a new file")));
    let mut bytes = vec![0u8; len as usize];
    for number in 0..count {
        bytes.iter_mut().zip(number..).for_each(|(byte, at)| *byte = (at ^ (at >> 7)) as u8);
        let mut header = tar::Header::new_gnu();
        header.set_size(len);
        header.set_mode(0o644);
        let name = format!("{:04}/{number:08}.bin", number / 1000);
        tar.append_data(&mut header, name, &bytes[..]).expect("room for the archive");
    }
    tar.into_inner().and_then(|mut file| file.flush()).expect("room for the archive");
    let how = ImportOptions::default();
    let connect = ConnectOptions::default();
    let addresses = [Address::from_path(&image)];
    import(&[archive], &addresses, &how, &connect, &mut ()).expect("an import");
    image
}

/// The reading process: prints the bytes of the directory and the peak of its resident memory.
fn read_epoch(options: &Options) {
    let address = Address::from_path(options.text("side"));
    let image = Image::open(&[address], &OpenOptions::default());
    let image = image.expect("the image that was imported");
    let kind = match options.text("order") {
        "global" => OrderKind::Global,
        _ => OrderKind::Grouped { lanes: 1, group: 8 },
    };
    let mut how = LoaderOptions::new(OrderSpec { kind, seed: 7 }, 256, 1);
    how.window_bytes = options.number("window") as usize;
    let mut loader = image.prefetcher(how).expect("a loader");
    let mut batch = Batch::new();
    while loader.next_into(&mut batch).expect("verified samples") {}
    println!("{} {}", image.directory().memory_bytes().total(), peak_resident_bytes());
}

fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status of this process");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.expect("VmHWM in kB") * 1024
}
