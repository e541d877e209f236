//! Tests that run in a process of their own, since SPDK starts once a process.

use std::process::Command;

use dlfs::nvme::Address;

/// Runs `test`, which asks for it, again: alone in a new process.
pub(super) fn run(test: impl Fn(), case: &str, address: &Address) {
    run_as(Command::new(std::env::current_exe().unwrap()), test, case, address);
}

/// As [`run`], by a command that runs this program.
pub(super) fn run_as<T: Fn()>(mut command: Command, _test: T, case: &str, address: &Address) {
    let path = std::any::type_name::<T>(); // crate::module::test
    let name = path.split_once("::").expect("it begins with the crate").1;
    let output = command
        .args(["--exact", name, "--nocapture"])
        .env(CASE, case)
        .env(ADDRESS, address.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{case}: {text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{name}: {text}");
}

/// In such a process: what it is to do.
pub(super) fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

/// In such a process: the target.
pub(super) fn address() -> Address {
    std::env::var(ADDRESS).unwrap().parse().unwrap()
}

const CASE: &str = "DLFS_TEST_SPDK";
const ADDRESS: &str = "DLFS_TEST_SPDK_ADDRESS";
