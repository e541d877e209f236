//! The changes that a process makes to the files of one folder, from strace: every modifying call, with its
//! bytes.

use std::path::Path;
use std::process::{Command, Stdio};

/// One modifying system call.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// A file was opened, and created if it did not exist.
    Create {
        name: String,
        truncates: bool,
    },
    /// `None`: where the previous call ended.
    Write {
        name: String,
        offset: Option<usize>,
        bytes: Vec<u8>,
    },
    Resize {
        name: String,
        len: usize,
    },
    Sync {
        name: String,
    },
    SyncFolder,
    Rename {
        from: String,
        to: String,
    },
    Unlink {
        name: String,
    },
}

/// Runs `command` under strace. Prints a line and returns `None` where that is not possible.
///
/// Denies io_uring: strace does not see its writes.
pub fn run(command: Command, folder: &Path) -> Option<Vec<Call>> {
    let outside = tempfile::tempdir().unwrap();
    let log = outside.path().join("log");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-qq", "-xx", "-s", "10000000", "-o"]).arg(&log);
    strace.args(["-e", CALLS, "-e", "inject=io_uring_setup:error=EPERM"]);
    let probe = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: strace is not installed, or may not look at other processes");
        return None;
    }
    strace.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        strace.env(name, value.unwrap_or_default());
    }
    let output = strace.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = std::fs::read_to_string(&log).unwrap();
    Some(whole_lines(&text).iter().filter_map(|line| parse(line, folder)).collect())
}

/// Each call on one line, in the order of completion.
fn whole_lines(text: &str) -> Vec<String> {
    let mut begun: Vec<(&str, &str)> = Vec::new();
    let mut lines = Vec::new();
    for line in text.lines() {
        let (pid, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim_start();
        if let Some(front) = rest.strip_suffix(" <unfinished ...>") {
            begun.push((pid, front));
        } else if let Some((_, back)) = rest.split_once(" resumed>") {
            let at = begun.iter().position(|(of, _)| *of == pid).expect("it was begun");
            lines.push(format!("{}{back}", begun.remove(at).1));
        } else {
            lines.push(rest.to_owned());
        }
    }
    lines
}

/// The call on a line, if it succeeded and concerns `folder` or a file in it.
fn parse(line: &str, folder: &Path) -> Option<Call> {
    let (call, result) = line.rsplit_once(" = ")?;
    let (name, arguments) = call.trim_end().strip_suffix(')')?.split_once('(')?;
    let result: usize = result.split([' ', '<']).next()?.parse().ok()?; // not a number: it failed
    let arguments: Vec<&str> = arguments.split(", ").collect();
    let path = |at: usize| text_of(arguments.get(at)?);
    let within = |path: Vec<u8>| {
        let path = String::from_utf8(path).ok()?;
        let name = path.strip_prefix(folder.to_str()?)?;
        Some(name.trim_start_matches('/').to_owned())
    };
    let file = |at: usize| within(path(at)?).filter(|name| !name.is_empty());
    match name {
        "openat" | "open" | "creat" => {
            let at = usize::from(name == "openat");
            let flags = arguments.get(at + 1)?;
            let name = file(at).filter(|_| flags.contains("O_CREAT"))?;
            Some(Call::Create { name, truncates: flags.contains("O_TRUNC") })
        }
        "write" | "pwrite64" => {
            let mut bytes = path(1)?;
            assert!(bytes.len() >= result, "strace cut {} bytes short", result - bytes.len());
            bytes.truncate(result);
            let offset = (name == "pwrite64").then(|| arguments[3].parse().unwrap());
            Some(Call::Write { name: file(0)?, offset, bytes })
        }
        // The space of a range is freed: it reads as zeros, and the length of the file stays.
        "fallocate" if file(0).is_some() => {
            let frees = arguments[1]
                .split('|')
                .all(|flag| ["FALLOC_FL_PUNCH_HOLE", "FALLOC_FL_KEEP_SIZE"].contains(&flag));
            assert!(frees, "fallocate with {}", arguments[1]);
            let offset = arguments[2].parse().unwrap();
            let len = arguments[3].parse().unwrap();
            Some(Call::Write { name: file(0)?, offset: Some(offset), bytes: vec![0; len] })
        }
        "ftruncate" => Some(Call::Resize { name: file(0)?, len: arguments[1].parse().unwrap() }),
        "fsync" | "fdatasync" => match within(path(0)?)? {
            name if name.is_empty() => Some(Call::SyncFolder),
            name => Some(Call::Sync { name }),
        },
        "rename" => Some(Call::Rename { from: file(0)?, to: file(1)? }),
        "renameat" | "renameat2" => Some(Call::Rename { from: file(1)?, to: file(3)? }),
        "unlink" => Some(Call::Unlink { name: file(0)? }),
        "unlinkat" => Some(Call::Unlink { name: file(1)? }),
        // A call that this model does not know must not go unnoticed.
        other => {
            let known = file(0).is_none();
            assert!(known, "{other} of a file that is watched");
            None
        }
    }
}

/// The bytes of `"\x61"`, or of the path of a descriptor, `3<\x61>`.
fn text_of(argument: &str) -> Option<Vec<u8>> {
    let inner = match argument.split_once('"') {
        Some((_, rest)) => rest.rsplit_once('"')?.0,
        None => argument.split_once('<')?.1.rsplit_once('>')?.0,
    };
    let digits = inner.split("\\x").skip(1);
    digits.map(|digits| u8::from_str_radix(digits, 16).ok()).collect()
}

const CALLS: &str = "trace=openat,open,creat,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,\
     fallocate,copy_file_range,sendfile,fsync,fdatasync,sync_file_range,rename,renameat,renameat2,link,\
     linkat,unlink,unlinkat,io_uring_setup";
