//! dlfs-bench: measures namespaces and data sets, with fio's job files, options and output.
//!
//! `options` parses the request. `run` runs the jobs, each in a thread that executes the loop of
//! `worker` (or of `samples`) over a queue pair of `engine`. `workload` generates the blocks,
//! `stats` counts, `output` prints. Only the result goes to its stream; messages go to standard
//! error, and there are none on success.

mod engine;
mod options;
mod output;
mod run;
mod samples;
mod signals;
mod stats;
mod worker;
mod workload;

use options::command_line::{Command, Request, parse, request_of_text};
use options::help;
use output::Writer;
use signals::Signals;

/// Runs the command with its arguments, without the program's name; returns the exit code.
///
/// # Errors
/// A sentence for the user; exit code 1, like fio's.
pub fn command(arguments: &[String]) -> Result<u8, String> {
    let text = match parse(arguments)? {
        Command::Run(request) => return run_jobs(*request),
        Command::Help => help::command(),
        Command::Version => format!("{}\n", output::VERSION),
        Command::OptionHelp(word) => help::options(&word)?,
        Command::EngineHelp(word) => help::engines(&word)?,
    };
    output::print(&text)?;
    Ok(0)
}

fn run_jobs(request: Request) -> Result<u8, String> {
    let tasks = run::tasks(&request)?;
    if request.run.showcmd {
        output::print(&output::command_lines(&request.jobs))?;
        return Ok(0);
    }
    if request.run.parse_only {
        return Ok(0);
    }
    let signals = Signals::catch()?;
    let mut writer = Writer::create(&request)?;
    writer.begin(&tasks)?;
    let finished = run::run(&request, &tasks, &signals, &mut writer)?;
    writer.end(&finished)?;
    let mut failed = false;
    for task in finished.iter().filter(|task| task.outcome.error != 0) {
        failed = true;
        let why = task.outcome.message.as_deref().unwrap_or("it failed");
        let errno = std::io::Error::from_raw_os_error(task.outcome.error);
        eprintln!("dlfs-bench: {}: {why} ({errno})", task.task.job.name);
    }
    Ok(match (signals.stop(), failed) {
        (true, _) => INTERRUPTED,
        (false, true) => 1,
        (false, false) => 0,
    })
}

/// The output of `--showcmd` for the text of a job file, which is checked as far as possible
/// without its target. `env` looks up `${NAME}`.
///
/// # Errors
/// A sentence that names the line.
pub fn show_job_file(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let request = request_of_text(text, env)?;
    run::tasks(&request)?;
    Ok(output::command_lines(&request.jobs))
}

/// fio's exit code after a signal.
const INTERRUPTED: u8 = 128;
