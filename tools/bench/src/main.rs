//! The program `dlfs-bench`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    match dlfs_bench::command(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("dlfs-bench: {message}");
            ExitCode::from(1)
        }
    }
}
