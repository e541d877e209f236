//! Opening, reading and closing small files, and a long file in sequence.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::dataset::{Dataset, OnError, Options as Open, Query};
use dlfs::permutation::{Key, Permutation};
use rustix::fs::{Advice, fadvise};

use crate::places::{Mount, Places, is_installed, preloaded};
use crate::report::{Rounds, compared, figure};
use crate::support::files::{list, make_files, read_file};
use crate::support::{Options, Side};

/// Files of 4 KiB.
pub(crate) fn small(places: &Places, options: &Options) {
    let plain = places.folder("small");
    let count = options.number("files");
    make_files(&plain, count, 4096);
    let image = places.imported(&plain, "small.dlfs");
    let dataset = Dataset::open(&[Address::Path(image.clone())], &Open::default(), &mut ());
    let dataset = dataset.expect("the image opens");
    let ids: Vec<_> = (0..count).map(|nth| dataset.id_at(nth).expect("a sample")).collect();
    let mount = Mount::dlfs(places, &image.to_string_lossy(), "small-mount");
    let squash = squashed(places, &plain).and_then(|image| {
        let mounted = Mount::squashfuse(places, &image, "small-squash");
        mounted.map(|(mount, program)| (mount.folder.clone(), program, mount))
    });
    let mut preload = Files::start(&places.path("shown"), &image.to_string_lossy());
    let mut sides = Sides::default();
    for round in 0..=options.number("rounds") {
        let mut add = |side: &'static str, rate: f64| sides.add(round, side, rate);
        add("ext4", open_read_close(&plain, round));
        let began = Instant::now();
        for nth in order(ids.len(), round) {
            let read = dataset.read(Query::Ids(&[ids[nth]]), OnError::Raise, &mut ());
            assert_eq!(read.expect("it is there").batch.bytes(0).len(), 4096);
        }
        add("library", ids.len() as f64 / began.elapsed().as_secs_f64());
        drop_pages(&mount.folder);
        add("mount, dropped", open_read_close(&mount.folder, round));
        add("mount, kept", open_read_close(&mount.folder, round));
        if let Some((folder, ..)) = &squash {
            drop_pages(folder);
            add("squash, dropped", open_read_close(folder, round));
            add("squash, kept", open_read_close(folder, round));
        }
        add("preload", preload.pass(round));
    }
    let part = "4 KiB";
    let per_s = "files/s";
    let of = |side| sides.of(side);
    let beside = |own: &'static str, other: &'static str, bar| {
        compared(part, (own, of(own)), (other, of(other)), (per_s, bar));
    };
    beside("mount, dropped", "library", Some(0.25));
    beside("mount, kept", "library", Some(0.25));
    match &squash {
        Some((_, program, _)) => {
            beside("mount, dropped", "squash, dropped", Some(1.0));
            beside("mount, kept", "squash, kept", Some(1.0));
            figure(part, "squash is", program);
        }
        None => figure(part, "squash", "not measured: squashfuse, mksquashfs are not installed"),
    }
    beside("preload", "mount, dropped", None);
    beside("preload", "ext4", None);
    beside("mount, kept", "ext4", None);
}

/// A long file, 128 KiB after 128 KiB.
pub(crate) fn long(places: &Places, options: &Options) {
    let plain = places.folder("long");
    let len = options.number("long-mib") << 20;
    let bytes: Vec<u8> = (0..len / 8).flat_map(|word| (word * 0x9e37_79b9).to_le_bytes()).collect();
    std::fs::write(plain.join("long.bin"), bytes).expect("room for the file");
    let image = places.imported(&plain, "long.dlfs");
    let mount = Mount::dlfs(places, &image.to_string_lossy(), "long-mount");
    let kept = kept_in_tier(places, &plain, len);
    let mut sides = Sides::default();
    for round in 0..=options.number("rounds") {
        sides.add(round, "ext4", in_sequence(&plain));
        sides.add(round, "--passthrough, tier", in_sequence(&kept.folder));
        drop_pages(&mount.folder);
        sides.add(round, "mount, dropped", in_sequence(&mount.folder));
        sides.add(round, "mount, kept", in_sequence(&mount.folder));
        // Mounted anew, so that the first open reads the file into memory.
        let options = ["--passthrough", "4G"];
        let name = format!("long-passthrough-{round}");
        let mount = Mount::dlfs_with(places, &image.to_string_lossy(), &name, &options);
        sides.add(round, "--passthrough, first", in_sequence(&mount.folder));
        sides.add(round, "--passthrough, again", in_sequence(&mount.folder));
    }
    for side in [
        "mount, dropped",
        "mount, kept",
        "--passthrough, tier",
        "--passthrough, first",
        "--passthrough, again",
    ] {
        let what = ("MB/s", Some(0.7));
        compared("128 KiB in sequence", (side, sides.of(side)), ("ext4", sides.of("ext4")), what);
    }
}

/// The plain folder, mounted with a tier that has all of its file of this length.
fn kept_in_tier(places: &Places, plain: &Path, len: u64) -> Mount {
    let tier = format!("file:{}:{}", places.folder("long-tier").display(), 2 * len);
    let options = ["--passthrough", "0", "--tier", &tier];
    let mount = Mount::dlfs_with(places, &plain.to_string_lossy(), "long-folder", &options);
    in_sequence(&mount.folder);
    let path = mount.folder.join("long.bin");
    let mut value = [0; 32];
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let read = rustix::fs::getxattr(&path, "user.dlfs.kept", &mut value).expect("an attribute");
        if value[..read] == *len.to_string().as_bytes() {
            return mount;
        }
        assert!(Instant::now() < until, "the tier does not have the file");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The results of each side in each round but the first, which warms up.
#[derive(Default)]
pub(crate) struct Sides(Vec<(&'static str, Rounds)>);

impl Sides {
    pub(crate) fn add(&mut self, round: u64, side: &'static str, rate: f64) {
        if round == 0 {
            return self.0.push((side, Rounds(Vec::new())));
        }
        let known = self.0.iter_mut().find(|(known, _)| *known == side);
        known.expect("it was in the first round").1.0.push(rate);
    }

    pub(crate) fn of(&self, side: &str) -> &Rounds {
        &self.0.iter().find(|(known, _)| *known == side).expect("it was measured").1
    }
}

/// This program again, with the library in front of its C library: passes over the files of a folder.
struct Files(Side);

impl Files {
    fn start(folder: &Path, address: &str) -> Files {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command.args(["--side", "files", "--folder"]).arg(folder);
        let mut side = Side::run(preloaded(&mut command, folder, address));
        assert_eq!(side.line(), "ready");
        Files(side)
    }

    fn pass(&mut self, round: u64) -> f64 {
        self.0.tell(&round.to_string());
        self.0.line().parse().expect("a rate")
    }
}

/// The side that [`Files`] starts.
pub(crate) fn side(options: &Options) {
    let folder = PathBuf::from(options.text("folder"));
    println!("ready");
    for round in std::io::stdin().lines() {
        let round = round.expect("text").parse().expect("a number");
        println!("{}", open_read_close(&folder, round));
    }
}

/// Opens, reads and closes once the files of a list, in its order; prints files a second. It looks at the folder
/// before: preload then opens the data set, as a file system is mounted before.
pub(crate) fn listed(options: &Options) {
    let folder = PathBuf::from(options.text("folder"));
    let list = std::fs::read_to_string(options.text("paths")).expect("a list of paths");
    let files: Vec<PathBuf> = list.lines().map(|path| folder.join(path)).collect();
    assert!(std::fs::metadata(&folder).expect("the folder").is_dir());
    let mut buffer = vec![0; 256 << 10];
    let began = Instant::now();
    for path in &files {
        assert!(read_file(path, &mut buffer) > 0);
    }
    println!("{}", files.len() as f64 / began.elapsed().as_secs_f64());
}

/// Opens, reads and closes all files below `folder` in an order of this round; files a second.
fn open_read_close(folder: &Path, round: u64) -> f64 {
    let mut files = Vec::new();
    list(folder, &mut files);
    files.sort_unstable();
    let order: Vec<usize> = order(files.len(), round).collect();
    let mut buffer = vec![0; 64 << 10];
    let began = Instant::now();
    for nth in order {
        assert!(read_file(&files[nth], &mut buffer) > 0);
    }
    files.len() as f64 / began.elapsed().as_secs_f64()
}

/// Reads each file 128 KiB at a time; MB a second.
fn in_sequence(folder: &Path) -> f64 {
    let mut files = Vec::new();
    list(folder, &mut files);
    let mut buffer = vec![0; 128 << 10];
    let mut total = 0;
    let began = Instant::now();
    for path in files {
        let file = File::open(path).expect("it was listed");
        loop {
            match file.read_at(&mut buffer, total).expect("a readable file") {
                0 => break,
                len => total += len as u64,
            }
        }
    }
    total as f64 / 1e6 / began.elapsed().as_secs_f64()
}

/// A shuffled order of `count` that is the same for all sides of a round.
fn order(count: usize, round: u64) -> impl Iterator<Item = usize> {
    let permutation = Permutation::new(count as u64, Key::new(round));
    (0..count as u64).map(move |nth| permutation.forward(nth) as usize)
}

/// Takes the pages of all files below `folder` out of the kernel's cache.
pub(crate) fn drop_pages(folder: &Path) {
    let mut files = Vec::new();
    list(folder, &mut files);
    for path in files {
        let file = File::open(path).expect("it was listed");
        fadvise(&file, 0, None, Advice::DontNeed).expect("advice about a file");
    }
}

/// A squashfs image of `plain`, uncompressed, which is the fastest to read.
fn squashed(places: &Places, plain: &Path) -> Option<PathBuf> {
    if !is_installed("mksquashfs") {
        return None;
    }
    let image = places.path("small.sqfs");
    let mut command = Command::new("mksquashfs");
    command.arg(plain).arg(&image).args(["-noI", "-noD", "-noF", "-noX", "-quiet", "-no-progress"]);
    let status = command.status().expect("it is installed");
    status.success().then_some(image)
}
