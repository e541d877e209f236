//! Runs tests in their own process, since SPDK can start only once per process.

use std::process::Command;

use dlfs::address::Address;

/// Runs the calling `test` again, alone in a new process.
pub(super) fn run(test: impl Fn(), case: &str, address: &Address) {
    run_as(Command::new(std::env::current_exe().unwrap()), test, case, address);
}

/// Like [`run`], through a command that runs this program.
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

/// In the new process: its task.
pub(super) fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

/// In the new process: the target.
pub(super) fn address() -> Address {
    std::env::var(ADDRESS).unwrap().parse().unwrap()
}

const CASE: &str = "DLFS_TEST_SPDK";
const ADDRESS: &str = "DLFS_TEST_SPDK_ADDRESS";
