//! A training job without dlfs: one thread opens, reads and closes each file of a folder, in
//! shuffled order.

mod support;

use std::path::Path;

use support::Options;
use support::files::{drop_caches, list, make_files, print_header, read_all};

const USAGE: &str = "cargo bench --bench open_read_close -- [--dir DIR] [--files N] [--len BYTES]

Reads every file below DIR once a round. Without --dir, N files of --len bytes are made first, a
thousand to a folder, and removed at the end. The rounds are warm; as root, one cold round follows,
with the caches dropped.";

fn main() {
    support::results::record("open_read_close");
    let options = Options::parse(
        USAGE,
        &[("dir", ""), ("files", "100000"), ("len", "4096"), ("rounds", "3"), ("at", "target")],
    );
    println!("{}", support::machine());
    support::pin(0);
    let made = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
    let folder = match options.text("dir") {
        "" => {
            make_files(made.path(), options.number("files"), options.number("len") as usize);
            made.path()
        }
        folder => Path::new(folder),
    };
    let mut files = Vec::new();
    list(folder, &mut files);
    println!("{} files", files.len());
    print_header();
    read_all("to warm up", &mut files, 0);
    for round in 1..=options.number("rounds") {
        read_all("warm", &mut files, round);
    }
    match drop_caches() {
        Ok(()) => _ = read_all("cold", &mut files, 100),
        Err(error) => println!("cold: not run, the caches cannot be dropped ({error})"),
    }
}
