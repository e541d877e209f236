//! The program `dlfs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(dlfs_cli::main(std::env::args_os()))
}
