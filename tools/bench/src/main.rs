//! The program `dlfs-bench`: see the library.

use std::process::ExitCode;

use dlfs::report::text::safe_text;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match dlfs_bench::command(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            dlfs_bench::complain(&safe_text(&message));
            ExitCode::from(1)
        }
    }
}
