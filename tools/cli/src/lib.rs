//! The command `dlfs`: all operations on a data set, from the shell.
//!
//! The command is a library for the sake of the Python package, whose wheel contains it; the binary only calls
//! [`main`]. It uses only the public interfaces of dlfs and dlfs-mount. Only results go to standard output;
//! progress, warnings and errors go to stderr. Read `commands/mod.rs` first.

mod args;
mod commands;
mod exit;
mod export;
mod help;
mod identify;
mod log;
mod mix;
mod net;
mod out;
mod reading;
mod run_stats;
mod service;
mod weights;

#[cfg(feature = "top")]
mod top;

use std::ffi::OsString;
use std::io::Write;

use clap::{CommandFactory, FromArgMatches};

/// Runs the command with its arguments, which begin with the program's name, and returns the exit code.
/// Invalid arguments, `--help` and `--version` end the process at once, unless their text must be escaped.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_brief = arguments.iter().any(|argument| argument == "-h");
    let mut command = help::of_level(commands::Cli::command(), is_brief);
    let parsed = command.try_get_matches_from_mut(arguments);
    let cli = parsed.and_then(|found| commands::Cli::from_arg_matches(&found));
    let cli = match cli.map_err(|error| error.format(&mut command)) {
        Ok(cli) => cli,
        Err(error) => {
            let text = error.render().to_string();
            let safe = out::safe_text(&text);
            if *safe == *text {
                error.exit(); // in colours
            }
            let _ = write!(std::io::stderr(), "{safe}"); // the exit code reports it too
            return error.exit_code() as u8;
        }
    };
    log::start(cli.verbose, cli.quiet, cli.serves());
    exit::outlive_size_limits();
    // A panic has already printed its message; its exit code is that of any other failure.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cli.run()));
    log::finish();
    match ended {
        Ok(Ok(outcome)) => outcome as u8,
        Ok(Err(failure)) => failure.conclude(),
        Err(_) => 1,
    }
}
