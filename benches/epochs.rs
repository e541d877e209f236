//! The main job against plain files: shuffled, verified epochs of small samples through a socket, and
//! one thread that opens, reads and closes the same files in shuffled order.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dlfs::import::{ImportOptions, import};
use dlfs::nvme::Address;
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{ConnectOptions, open};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;
use dlfs::volume::{Image, OpenOptions};
use support::files::{drop_caches, list, make_files, print_header, read_all};
use support::{Options, Side, Stopwatch};

const USAGE: &str = "cargo bench --bench epochs -- [--dir DIR] [--files N] [--len BYTES] [--order global]

Imports a folder (DIR, or one of N files of --len bytes that is made and removed), serves the image
from a process of its own, and reads two epochs of it in batches, every sample verified. Before each
run one thread opens, reads and closes the same files. Warm first, in pairs; then, as root, cold: the
caches are dropped before each side. The ratios are those of samples a second.";

fn main() {
    let options = Options::parse(
        USAGE,
        &[
            ("dir", ""),
            ("files", "100000"),
            ("len", "4096"),
            ("at", "target"),
            ("rounds", "3"),
            ("order", "grouped"),
            ("lanes", "1"),
            ("group", "8"),
            ("batch", "256"),
            ("window", "64M"),
            ("side", ""),
        ],
    );
    if !options.text("side").is_empty() {
        return serve_forever(Path::new(options.text("side")));
    }
    println!("{}", support::machine());
    let work = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
    let folder = match options.text("dir") {
        "" => {
            let folder = work.path().join("files");
            std::fs::create_dir(&folder).expect("a new folder");
            make_files(&folder, options.number("files"), options.number("len") as usize);
            folder
        }
        folder => PathBuf::from(folder),
    };
    let image = work.path().join("image.dlfs");
    let mut files = Vec::new();
    list(&folder, &mut files);
    import_folder(&folder, &image, &mut files);
    compare(&options, &image, &mut files);
}

fn import_folder(folder: &Path, image: &Path, files: &mut [PathBuf]) {
    let (sources, addresses) = ([folder.to_owned()], [Address::from_path(image)]);
    let (how, connect) = (ImportOptions::default(), ConnectOptions::default());
    let watch = Stopwatch::start();
    import(&sources, &addresses, &how, &connect, &mut ()).expect("an import");
    println!("{} files, imported in {:.1} s", files.len(), watch.seconds().0);
}

fn compare(options: &Options, image: &Path, files: &mut [PathBuf]) {
    print_header();
    read_all("open-read-close (to warm)", files, 0);
    let target = start_target(image);
    let address = &target.1;
    read_epochs("dlfs (to warm)", options, address);
    let mut ratios = Vec::new();
    for round in 1..=options.number("rounds") {
        let plain = read_all("open-read-close, warm", files, round);
        ratios.push(read_epochs("dlfs, warm", options, address) / plain);
    }
    ratios.sort_by(f64::total_cmp);
    println!("warm: {:.1} times as many samples a second (median)\n", ratios[ratios.len() / 2]);
    if let Err(error) = drop_caches() {
        return println!("cold: not run, the caches cannot be dropped ({error})");
    }
    let plain = read_all("open-read-close, cold", files, 100);
    drop_caches().expect("as before");
    let ours = read_epochs("dlfs, cold", options, address);
    println!("cold: {:.1} times as many samples a second", ours / plain);
}

fn start_target(image: &Path) -> (Side, Address) {
    let mut side =
        Side::start(&["--side", image.to_str().expect("a path of this program's making")]);
    let address = side.line().parse().expect("an address");
    (side, address)
}

fn serve_forever(image: &Path) {
    std::thread::spawn(|| {
        support::wait_for_end_of_input();
        std::process::exit(0);
    });
    let device = open(&Address::from_path(image), &ConnectOptions::default()).expect("the image");
    let nqn = "nqn.2026-11.io.dlfs:epochs".parse().expect("a valid name");
    let target = Target::bind(TargetOptions::new(nqn), vec![Arc::clone(&device)]);
    let target = target.expect("a free port");
    println!("{}", target.address(Nsid(1)));
    loop {
        std::thread::park();
    }
}

/// Connects, opens the image and reads two epochs; samples a second of the epochs.
fn read_epochs(name: &str, options: &Options, address: &Address) -> f64 {
    let image = Image::open(std::slice::from_ref(address), &OpenOptions::default());
    let image = image.expect("the image that was imported");
    let (lanes, group) = (options.number("lanes") as u32, options.number("group") as u32);
    let kind = match options.text("order") {
        "global" => OrderKind::Global,
        _ => OrderKind::Grouped { lanes, group },
    };
    let batch_size = options.number("batch") as usize;
    let mut how = LoaderOptions::new(OrderSpec { kind, seed: 7 }, batch_size, 2);
    how.window_bytes = options.number("window") as usize;
    how.deadline = Duration::from_secs(60);
    let watch = Stopwatch::start();
    let mut loader = image.loader(how).expect("a loader");
    let mut batch = Batch::new();
    let (mut samples, mut bytes) = (0u64, 0u64);
    while loader.next_into(&mut batch).expect("verified samples") {
        samples += batch.len() as u64;
        bytes += batch.len_bytes();
    }
    let (wall, cpu) = watch.seconds();
    assert_eq!(samples, 2 * image.directory().num_live(), "every sample once an epoch");
    let (samples_s, mb_s) = (samples as f64 / wall, bytes as f64 / 1e6 / wall);
    println!("{name:<26}{samples_s:>12.0}{mb_s:>10.1}{:>16.1}", cpu * 1e6 / samples as f64);
    samples_s
}
