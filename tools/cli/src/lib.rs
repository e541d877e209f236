//! The command `dlfs`: everything that a user does with a data set, from the shell.
//!
//! It is a library for the Python package alone, whose wheel brings the command along; the binary is
//! one call of [`main`]. It sees only what dlfs makes public. Results go to standard output and nothing else does;
//! progress, warnings and errors go to stderr. Read `commands/mod.rs` first.

mod args;
mod commands;
mod demo_data;
mod demo_source;
mod epochs;
mod exit;
mod export;
mod help;
mod log;
mod open;
mod order_args;
mod out;
mod placement_args;
mod progress;
mod run_stats;
mod scratch;
mod signals;
mod size;
mod text;
mod tier_args;

use std::ffi::OsString;

use clap::Parser;

/// Runs the command with its arguments, the program's name first, and says how the process should
/// exit. Wrong arguments, `--help` and `--version` end the process at once.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match commands::Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let text = error.render().to_string();
            let safe = text::safe_text(&text);
            if *safe == *text {
                error.exit(); // in colours
            }
            eprint!("{safe}");
            return error.exit_code() as u8;
        }
    };
    log::start(cli.verbose, cli.quiet, cli.serves());
    // A panic has said what it is by itself; the exit code is that of any other failure.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cli.run()));
    log::finish();
    match ended {
        Ok(Ok(outcome)) => outcome.number(),
        Ok(Err(failure)) => failure.conclude(),
        Err(_) => 1,
    }
}
