//! The program `dlfs-bench`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match dlfs_bench::command(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("dlfs-bench: {message}");
            ExitCode::from(1)
        }
    }
}
