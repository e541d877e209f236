//! The command's version, and the commit that it was built from.

use std::path::Path;
use std::process::Command;

use crate::common::run;

#[test]
fn the_version_and_info_say_the_commit_and_its_date() {
    let commit = dlfs::COMMIT;
    let date = dlfs::COMMIT_DATE;
    let told = format!("dlfs {} (commit {commit}, {date}", env!("CARGO_PKG_VERSION"));
    assert!(run(&["--version"]).quiet().text().starts_with(&told), "{told}");
    assert!(run(&["info"]).quiet().text().starts_with(&told), "{told}");
    let info = run(&["info", "--json"]).quiet().json();
    assert_eq!((&info["commit"], &info["commit_date"]), (&commit.into(), &date.into()));
}

/// The build script, built and run as cargo would, in a folder with only this file of ours.
#[test]
fn the_commit_is_told_by_variables_or_by_the_package_where_there_is_no_git() {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build.rs");
    let program = dir.path().join("stamp");
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let built =
        Command::new(rustc).args(["--edition=2024", "-o"]).arg(&program).arg(script).status();
    assert!(built.unwrap().success());
    let stamp = |variables: &[(&str, &str)]| {
        let mut command = Command::new(&program);
        command.current_dir(dir.path()).env_remove("DLFS_COMMIT").env_remove("DLFS_COMMIT_DATE");
        command.env("GIT_CEILING_DIRECTORIES", dir.path().parent().unwrap());
        let done = command.envs(variables.iter().copied()).output().unwrap();
        assert!(done.status.success());
        String::from_utf8(done.stdout).unwrap()
    };
    let unknown = stamp(&[]);
    assert!(
        unknown.contains("DLFS_COMMIT=unknown") && unknown.contains("DLFS_COMMIT_DATE=unknown")
    );
    // cargo would rebuild the library every time if this file did not exist.
    assert!(!unknown.contains("rerun-if-changed=.cargo_vcs_info.json"), "{unknown}");
    let noted =
        "{\n  \"git\": {\n    \"sha1\": \"0123456789abcdef0123456789abcdef01234567\"\n  }\n}\n";
    std::fs::write(dir.path().join(".cargo_vcs_info.json"), noted).unwrap();
    assert!(stamp(&[]).contains("DLFS_COMMIT=0123456789ab\n"));
    let told = stamp(&[("DLFS_COMMIT", "abc"), ("DLFS_COMMIT_DATE", "2026-11-22")]);
    assert!(told.contains("DLFS_COMMIT=abc\n") && told.contains("DLFS_COMMIT_DATE=2026-11-22\n"));
}
