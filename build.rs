//! Stamps the commit that this is built from, and its date, into the library.
//!
//! Looked for in this order: the variables DLFS_COMMIT and DLFS_COMMIT_DATE, which builders without git set;
//! git, where this folder is the top of its work tree; what `cargo package` notes; else "unknown".

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for variable in ["DLFS_COMMIT", "DLFS_COMMIT_DATE"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let told = |variable| std::env::var(variable).ok().filter(|value| is_plain(value));
    let commit = told("DLFS_COMMIT").or_else(commit_of_git).or_else(commit_of_package);
    let date = told("DLFS_COMMIT_DATE").or_else(|| git(&["log", "-1", "--format=%cs"]));
    println!("cargo:rustc-env=DLFS_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo:rustc-env=DLFS_COMMIT_DATE={}", date.as_deref().unwrap_or("unknown"));
}

/// The commit, and what changes with it: a missing file would have cargo build every time.
fn commit_of_git() -> Option<String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_else(|| "HEAD".to_owned());
    for name in ["HEAD", "logs/HEAD", "packed-refs", &branch] {
        if let Some(path) = git(&["rev-parse", "--git-path", name])
            && Path::new(&path).exists()
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    Some(commit)
}

/// The output of git, if this folder is the top of its work tree: a package may lie in another's.
fn git(arguments: &[&str]) -> Option<String> {
    let ask = |arguments: &[&str]| {
        let done = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(done.stdout).ok()?.trim().to_owned();
        (done.status.success() && is_plain(&text)).then_some(text)
    };
    let top = ask(&["rev-parse", "--show-toplevel"])?;
    let here = std::env::current_dir().ok()?.canonicalize().ok()?;
    (Path::new(&top).canonicalize().ok()? == here).then(|| ask(arguments)).flatten()
}

fn commit_of_package() -> Option<String> {
    let file = ".cargo_vcs_info.json";
    let text = std::fs::read_to_string(file).ok()?;
    println!("cargo:rerun-if-changed={file}");
    let (_, rest) = text.split_once("\"sha1\": \"")?;
    rest.get(..12).filter(|commit| commit.bytes().all(|b| b.is_ascii_hexdigit())).map(str::to_owned)
}

/// Returns whether the text is one line of printing characters.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| (0x20..0x7f).contains(&b))
}
