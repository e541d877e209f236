//! The doors for programs that know only files, beside what they stand in for: `dlfs mount` and
//! `libdlfs_preload.so` against the library, ext4 in the page cache, squashfuse, and the calls that they are made of.
//!
//! Each part makes its data, measures all its sides once a round, one after the other, and prints the median of each
//! side and of the rounds' ratios. Files of a mount are measured twice: with the kernel's pages *dropped*, so that each
//! read goes through FUSE, and with the pages *kept*. All else is warm: files and images are in the page cache.

#[path = "../support/mod.rs"]
mod support;

mod guest;
mod names;
mod places;
mod programs;
mod reads;
mod records;
mod report;
mod shaped;

use support::Options;

const USAGE: &str = "cargo bench --bench doors -- [--only PARTS] [--rounds N] [--at DIR] ...

Needs `cargo build --release -p dlfs-cli` and the same with `-p dlfs-preload` before, root and /dev/fuse;
squashfuse and mksquashfs for the sides of that name, Python for the parts `folder` and `records`, with torchvision
(--python) for its ImageFolder, mke2fs, a loop device and control groups (blkio or io, memory) for `records`, and
for the part `guest` what tools/check --setup installs.
PARTS, separated by commas: small, long, names, folder, records, guest.";

/// Measures one part and prints its rows.
type Measure = fn(&places::Places, &Options);

fn main() {
    support::results::record("doors");
    let options = Options::parse(
        USAGE,
        &[
            ("only", "small,long,names,folder,records,guest"),
            ("rounds", "5"),
            ("at", "target"),
            ("files", "20000"),
            ("long-mib", "1024"),
            ("names", "1000000"),
            ("pictures", "4000"),
            ("records", "20"),
            ("record-mib", "128"),
            ("link-mb", "100"),
            ("python", "python3"),
            ("guest-files", "8192"),
            ("guest-pictures", "1024"),
            ("guest-window", "32M"),
            ("side", ""),
            ("folder", ""),
            ("paths", ""),
        ],
    );
    match options.text("side") {
        "files" => return reads::side(&options),
        "listed" => return reads::listed(&options),
        _ => {}
    }
    println!("{}", support::machine());
    let places = places::Places::new(options.text("at"));
    let parts: [(&str, Measure); 6] = [
        ("small", reads::small),
        ("long", reads::long),
        ("names", names::names),
        ("folder", programs::folder),
        ("records", records::records),
        ("guest", guest::guest),
    ];
    report::header();
    for part in options.text("only").split(',') {
        match parts.iter().find(|(name, _)| *name == part) {
            Some((_, measure)) => measure(&places, &options),
            None => eprintln!("'{part}' is no part; see --help"),
        }
    }
}
