//! Importing a folder of many small files against `tar cf FILE DIR && sync -f FILE`, onto the same
//! disk, durable at the end.
//!
//! ```text
//! cargo bench --bench import_vs_tar                                # 100,000 files of 4 KiB, 5 pairs
//! cargo bench --bench import_vs_tar -- FILES BYTES PAIRS DIR
//! ```
//! The two alternate, after a `sync` each; the folder is read once before, so that it is warm. Also
//! prints the import's peak memory: VmHWM of this process.

#[path = "support/results.rs"]
mod results;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::import::{ImportOptions, import};
use dlfs::qpair::ConnectOptions;

fn main() {
    results::record("import_vs_tar");
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let mut number =
        |default: usize| args.next().map_or(default, |arg| arg.parse().expect("a number"));
    let files = number(100_000);
    let bytes = number(4096);
    let pairs = number(5);
    let parent = args.next().map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(parent).expect("a folder to work in");
    let source = dir.path().join("source");
    let tar = dir.path().join("a.tar");
    let image = dir.path().join("a.dlfs");
    make(&source, files, bytes);
    println!("{files} files of {bytes} bytes in {}", source.display());
    // GNU tar reads nothing if it writes to /dev/null directly.
    let warm = r#"tar cf - -C "$1" . | cat > /dev/null"#;
    run("sh", &["-c", warm, "sh", &source.to_string_lossy()]);
    let mut tar_times = Vec::new();
    let mut import_times = Vec::new();
    for _ in 0..pairs {
        tar_times.push(timed(&tar, || {
            let script = r#"tar cf "$1" -C "$2" . && sync -f "$1""#;
            let tar = tar.to_string_lossy();
            let source = source.to_string_lossy();
            run("sh", &["-c", script, "sh", &tar, &source]);
        }));
        import_times.push(timed(&image, || import_to(&source, &image)));
    }
    let tar = median(&mut tar_times);
    let import = median(&mut import_times);
    println!(
        "tar and sync   {:8.3} s (median of {pairs}: {})",
        tar.as_secs_f64(),
        list(&tar_times)
    );
    println!(
        "dlfs import    {:8.3} s (median of {pairs}: {})",
        import.as_secs_f64(),
        list(&import_times)
    );
    println!(
        "ratio          {:8.2} (tar / import: above 1, the import is faster)",
        tar.as_secs_f64() / import.as_secs_f64()
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("{line}"));
}

fn import_to(source: &Path, image: &Path) {
    let options = ImportOptions::default();
    let connect = ConnectOptions::default();
    let image = [Address::from_path(image)];
    import(&[source.to_path_buf()], &image, &options, &connect, &mut ()).expect("the import works");
}

/// Files in a hundred class folders, all different.
fn make(root: &Path, files: usize, bytes: usize) {
    let mut content = vec![0; bytes];
    for i in 0..files {
        let class = root.join(format!("class{:02}", i % 100));
        if i < 100 {
            std::fs::create_dir_all(&class).expect("a class folder");
        }
        let mut state = i as u64 + 1;
        for word in content.chunks_mut(8) {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        std::fs::write(class.join(format!("{i:08}.bin")), &content).expect("a file");
    }
}

/// Times `work`, which creates `file`, on an idle disk.
fn timed(file: &Path, work: impl FnOnce()) -> Duration {
    // The file does not exist the first time.
    let _ = std::fs::remove_file(file);
    run("sync", &[]);
    let began = Instant::now();
    work();
    began.elapsed()
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().expect("the program starts");
    assert!(status.success(), "{program} {args:?}: {status}");
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn list(times: &[Duration]) -> String {
    times.iter().map(|time| format!("{:.2}", time.as_secs_f64())).collect::<Vec<_>>().join(" ")
}
