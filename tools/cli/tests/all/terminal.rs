//! The screen of a terminal while a command works, read through an emulator.

use std::fs::File;
use std::io::Read;
use std::num::NonZero;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::common::{TestDir, dlfs, wait};

const ROWS: u16 = 40;

/// The successive different screens of `dlfs ARGUMENTS` on a terminal of `columns`.
fn screens(columns: u16, arguments: &[&str]) -> Vec<Vec<String>> {
    let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .expect("a pseudoterminal");
    grantpt(&main).expect("ours");
    unlockpt(&main).expect("ours");
    let name = ptsname(&main, Vec::new()).expect("its name");
    let side = File::options().read(true).write(true).open(name.to_str().expect("ASCII"));
    let side = side.expect("the other end");
    let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&main, size).expect("a terminal has a size");
    let end = || Stdio::from(side.try_clone().expect("a descriptor"));
    let mut command = dlfs();
    command.args(arguments).env("TERM", "xterm-256color").stdout(end()).stderr(end());
    let mut child = command.spawn().expect("dlfs starts");
    drop((command, side));
    let size = |number| NonZero::new(number).expect("a terminal has a size");
    let mut screen = vt100::Parser::new(size(ROWS), size(columns), 0);
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut main = File::from(main);
    let mut bytes = [0; 4096];
    // The read fails with EIO once no process has the other end open.
    while let Ok(len @ 1..) = main.read(&mut bytes) {
        screen.process(&bytes[..len]);
        let rows = screen.screen().rows(0, columns).map(|row| row.trim_end().to_owned());
        let rows: Vec<String> = rows.filter(|row| !row.is_empty()).collect();
        if found.last() != Some(&rows) {
            found.push(rows);
        }
    }
    assert!(wait(&mut child).success(), "{found:?}");
    found
}

const LABELS: [&str; 6] = ["indexing", "writing", "committing", "making", "loading", "reading"];

/// A line of progress: a label right-aligned in ten columns.
fn is_progress(row: &str) -> bool {
    LABELS.iter().any(|label| row.starts_with(&format!("{label:>10} ")))
}

/// Progress is one complete line, which is gone at the end.
fn check(columns: u16, screens: &[Vec<String>], last: &str) {
    let mut bars = 0;
    for rows in screens {
        let lines: Vec<&String> = rows.iter().filter(|row| is_progress(row)).collect();
        assert!(lines.len() <= 1, "{columns} columns:\n{}", rows.join("\n"));
        for line in lines.iter().filter(|line| line.contains('%')) {
            bars += 1;
            assert!(line.ends_with("left"), "{columns} columns, wrapped:\n{}", rows.join("\n"));
        }
    }
    assert!(bars > 0, "{columns} columns: no bar was seen in {} screens", screens.len());
    let end = screens.last().expect("something was shown");
    assert!(!end.iter().any(|row| is_progress(row)), "{columns} columns:\n{}", end.join("\n"));
    assert!(end.iter().any(|row| row.contains(last)), "{columns} columns:\n{}", end.join("\n"));
}

#[test]
fn the_progress_of_an_import_is_one_line_and_leaves_none() {
    let dir = folder_with_many_files();
    for columns in [80, 100, 120] {
        let image = dir.arg(&format!("{columns}.dlfs"));
        let found = screens(columns, &["import", &dir.arg("source"), &image]);
        check(columns, &found, "imported 2,000 samples");
    }
}

#[test]
fn the_demo_fits_terminals_of_80_100_and_120_columns() {
    let dir = folder_with_many_files();
    for columns in [80, 100, 120] {
        let folder = dir.arg("source");
        let own = ["demo"];
        let arguments = if columns == 80 { &own[..] } else { &["demo", &folder] };
        let found = screens(columns, arguments);
        check(columns, &found, "What next");
        let end = found.last().expect("something was shown");
        // A wrapped line continues without an indent, or in the middle of a word.
        let wide = usize::from(columns);
        let full: Vec<_> = end.iter().filter(|row| row.chars().count() >= wide).collect();
        assert!(full.is_empty(), "{columns} columns: {full:?}");
    }
}

/// Enough files for a bar to be drawn, ten times per second.
fn folder_with_many_files() -> TestDir {
    let dir = TestDir::new();
    for class in 0..10 {
        let folder = dir.path("source").join(format!("class-{class}"));
        std::fs::create_dir_all(&folder).expect("a new folder");
        for index in 0..200 {
            let path = folder.join(format!("{index:04}.bin"));
            std::fs::write(path, [class; 20_000]).expect("a new file");
        }
    }
    dir
}
