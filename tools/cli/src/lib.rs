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
    show_warnings(cli.verbose, cli.quiet);
    // A panic has said what it is by itself; the exit code is that of any other failure.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cli.run()));
    match ended {
        Ok(Ok(outcome)) => outcome.number(),
        Ok(Err(failure)) => failure.conclude(),
        Err(_) => 1,
    }
}

/// Stderr for lines that quote what others wrote. The escape character is left to `tracing`, which
/// writes it for its colours and nothing else.
struct SafeStderr;

impl std::io::Write for SafeStderr {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let safe: Vec<_> = text.split('\x1b').map(text::safe_text).collect();
        std::io::stderr().write_all(safe.join("\x1b").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// What the library's threads have to say goes to stderr, without the clutter of a log.
fn show_warnings(verbose: u8, quiet: bool) {
    use tracing_subscriber::filter::LevelFilter;
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, _) => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| SafeStderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .without_time()
        .init();
}
