//! Files that an installation needs beside the program: completions and manual pages.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::common::{TestDir, run};

#[test]
fn each_shell_gets_completions_of_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]).code(0);
        for word in ["import", "shuffle-report", "epochs", "completions"] {
            assert!(ran.text().contains(word), "{word} for {shell}");
        }
    }
    run(&["completions", "csh"]).code(2).complains_of(&["bash", "fish", "zsh"]);
}

#[test]
fn bash_completes_what_it_is_given() {
    let dir = TestDir::new();
    let script = dir.path("dlfs.bash");
    fs::write(&script, &run(&["completions", "bash"]).code(0).stdout).expect("a new file");
    let ask = "source \"$0\"; COMP_WORDS=(dlfs imp); COMP_CWORD=1; _dlfs dlfs imp dlfs; echo ${COMPREPLY[@]}";
    let output = Command::new("bash").args(["-c", ask]).arg(&script).output().expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "import import-parts", "{errors}");
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = TestDir::new();
    let folder = dir.arg("share/man/man1");
    run(&["man", &folder]).code(0);
    for name in
        ["dlfs", "dlfs-import", "dlfs-serve", "dlfs-read", "dlfs-snapshot-save", "dlfs-tokens-plan"]
    {
        let page = fs::read_to_string(dir.path("share/man/man1").join(format!("{name}.1")));
        let page = page.unwrap_or_else(|error| panic!("{name}.1: {error}"));
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}.1");
    }
    let page = run(&["man"]).code(0);
    assert!(page.text().contains(".TH dlfs 1"), "{}", page.text());
    fs::write(dir.path("file"), "").expect("a new file");
    run(&["man", &dir.arg("file/man1")]).code(1).complains_of(&["file/man1"]);
}

/// A copy of the script in a folder of its own, so that no release of this tree is in its way.
#[test]
fn a_second_release_at_the_same_time_ends_with_the_process_of_the_first() {
    let dir = TestDir::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::create_dir_all(dir.path("tools")).unwrap();
    fs::create_dir_all(dir.path("target/packages/stage")).unwrap();
    // By another process: see `mounting.rs`.
    let mut copy = Command::new("cp");
    let copied = copy.arg(root.join("tools/release")).arg(dir.path("tools/release")).status();
    assert!(copied.unwrap().success());
    fs::copy(root.join("Cargo.toml"), dir.path("Cargo.toml")).unwrap();
    let mut lock = fs::File::create(dir.path("target/packages/lock")).unwrap();
    lock.lock().unwrap();
    writeln!(lock, "4711").unwrap();
    let mut command = Command::new(dir.path("tools/release"));
    let output = command.env_remove("CARGO_TARGET_DIR").output().expect("python3 runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("process 4711 builds a release in"), "{errors}");
    assert!(dir.path("target/packages/stage").exists(), "the stage of the first is left alone");
}
