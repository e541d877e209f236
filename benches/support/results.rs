//! Records results: with `DLFS_RESULTS=1` a bench adds its output to `benches/results/NAME.md`.
#![allow(dead_code, unreachable_pub)] // a module of each bench, which uses a part of it

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio, exit};

/// The first line of a bench's `main`. With `DLFS_RESULTS=1` it runs this program again, prints the
/// output, adds it as a dated section to the results of `name`, and ends the process; otherwise it
/// does nothing.
pub fn record(name: &str) {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let explains = ["--help", "--list"].iter().any(|word| arguments.iter().any(|a| a == word));
    if std::env::var_os("DLFS_RESULTS").is_none_or(|value| value != "1") || explains {
        return;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let mut bench = Command::new(program)
        .args(&arguments)
        .env_remove("DLFS_RESULTS")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program runs a second time");
    let mut printed = Vec::new();
    for line in BufReader::new(bench.stdout.take().expect("piped above")).lines() {
        let line = line.expect("a bench prints text");
        println!("{line}");
        printed.push(line);
    }
    let status = bench.wait().expect("a child of this process");
    if !status.success() {
        exit(status.code().unwrap_or(1)); // what failed is no result
    }
    let arguments: Vec<_> =
        arguments.iter().map(|a| a.to_string_lossy()).filter(|a| a != "--bench").collect();
    let options =
        if arguments.is_empty() { String::new() } else { format!(" -- {}", arguments.join(" ")) };
    let title = format!("{}, commit {}", ask("date", &["-u", "+%F"]), commit());
    let profile = profile();
    let command = format!("cargo bench --profile {profile} --bench {name}{options}");
    let built = format!("{}; profile {profile}", machine());
    let added = section(&title, &command, &built, &printed);
    let path = root().join(format!("benches/results/{name}.md"));
    let before =
        std::fs::read_to_string(&path).unwrap_or_else(|_| format!("# {name}\n\nNewest first.\n"));
    std::fs::write(&path, insert(&before, &added)).expect("benches/results can be written");
    eprintln!("added to {}", path.display());
    exit(0);
}

/// A section of results: tables stay tables, and other lines are kept as printed.
pub fn section(title: &str, command: &str, machine: &str, printed: &[String]) -> String {
    let mut text = format!("## {title}\n\n    {command}\n\nMachine: {machine}.\n");
    let mut in_table = None;
    let printed = printed.iter().filter(|line| !line.trim().is_empty());
    for line in printed {
        let is_row = line.starts_with('|');
        if in_table != Some(is_row) {
            text += if in_table == Some(false) { "```\n\n" } else { "\n" };
            text += if is_row { "" } else { "```text\n" };
            in_table = Some(is_row);
        }
        text += line;
        text.push('\n');
    }
    text + if in_table == Some(false) { "```\n" } else { "" }
}

/// `results` with `section` before the existing sections: the newest comes first.
pub fn insert(results: &str, section: &str) -> String {
    match results.find("\n## ") {
        Some(at) => format!("{}{section}{}", &results[..=at], &results[at..]),
        None => format!("{}\n\n{section}", results.trim_end()),
    }
}

/// Processor, number of processors, memory and kernel, on one line.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let meminfo = read("/proc/meminfo");
    let field = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let model = field.map_or("unknown processor", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: f64 =
        total.and_then(|rest| rest.trim().split(' ').next()?.parse().ok()).unwrap_or(0.0);
    let kernel = read("/proc/sys/kernel/osrelease");
    let kernel = kernel.trim().split('-').next().unwrap_or_default(); // without the distributor's part
    format!("{model}, {cpus} processors, {:.0} GiB, Linux {kernel}", kib / 1048576.0)
}

/// The profile that this program was built with, by the folder that it lies in: `dist` has link-time optimization.
fn profile() -> &'static str {
    let program = std::env::current_exe().expect("the path of this program");
    if program.iter().any(|folder| folder == "dist") { "dist" } else { "release" }
}

/// The commit of the tree, and whether it has uncommitted changes other than results and the pages made of them.
fn commit() -> String {
    let root = root().to_string_lossy();
    let hash = ask("git", &["-C", &root, "rev-parse", "--short", "HEAD"]);
    let status = "status --porcelain --untracked-files=no -- . :!benches/results :!docs".split(' ');
    let status: Vec<&str> = ["-C", &root].into_iter().chain(status).collect();
    let changes = ask("git", &status);
    if changes.is_empty() { hash } else { format!("{hash} with changes") }
}

/// The output of `program`, or `unknown`.
fn ask(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or_else(|| "unknown".into(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

/// The root of the repository, also for benches of the packages in it.
fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().find(|folder| folder.join("benches/results").is_dir()).unwrap_or(package)
}
