//! The command line: options of the run, job files, and jobs written as arguments.

use std::path::PathBuf;

use super::file::{self, Entry, Section};
use super::fio;
use super::job::{Job, with_defaults};
use super::table::{apply, find, unknown};
use super::tables::RUN;

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Normal,
    Json,
    /// JSON with every bin of the histograms.
    JsonPlus,
    Terse,
}

/// When the progress line is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eta {
    /// When standard error is a terminal.
    Auto,
    Always,
    Never,
}

with_defaults! {
    /// Options of the run as a whole.
    RunOptions {
        output: Option<PathBuf> = None,
        formats: Vec<Format> = vec![Format::Normal],
        terse_version: u64 = 3,
        report: Option<PathBuf> = None,
        eta: Eta = Eta::Auto,
        eta_interval_us: u64 = 1_000_000,
        eta_newline_us: u64 = 0,
        status_interval_us: u64 = 0,
        parse_only: bool = false,
        showcmd: bool = false,
        readonly: bool = false,
        max_jobs: u64 = 4096,
        sections: Vec<String> = Vec::new(),
    }
}

/// The command that the arguments ask for.
#[derive(Debug)]
pub(crate) enum Command {
    Run(Box<Request>),
    Help,
    Version,
    /// Help of all options of jobs, of one, or of those whose heading or name contains the word.
    OptionHelp(String),
    EngineHelp(String),
}

/// A run: its options, its jobs, and the options that apply to all jobs.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) run: RunOptions,
    pub(crate) jobs: Vec<Job>,
    pub(crate) global: Given,
}

/// Options as they were written.
pub(crate) type Given = Vec<(String, String)>;

/// Reads the arguments, without the program's name, and the job files that they name.
///
/// # Errors
/// A sentence for the user; exit code 1, as in fio.
pub(crate) fn parse(arguments: &[String]) -> Result<Command, String> {
    let mut run = RunOptions::default();
    let mut global = section("global", "command line");
    let mut jobs: Vec<Section> = Vec::new();
    let mut files: Vec<Vec<Section>> = Vec::new();
    let mut arguments = arguments.iter().peekable();
    while let Some(argument) = arguments.next() {
        let Some(option) = argument.strip_prefix("--") else {
            if argument.starts_with('-') && argument != "-" {
                match argument.as_str() {
                    "-h" => return Ok(Command::Help),
                    "-v" => return Ok(Command::Version),
                    _ => return Err(format!("unknown option '{argument}'; --help lists them")),
                }
            }
            files.push(file::read(&PathBuf::from(argument))?);
            continue;
        };
        let (key, mut value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (option, None),
        };
        match key {
            "help" => return Ok(Command::Help),
            "version" => return Ok(Command::Version),
            "cmdhelp" => return Ok(Command::OptionHelp(value.unwrap_or_default())),
            "enghelp" => return Ok(Command::EngineHelp(value.unwrap_or_default())),
            _ => {}
        }
        let of_the_run = RUN.iter().find(|opt| opt.name == key);
        let takes_value = match of_the_run {
            Some(opt) => !opt.may_stand_alone(),
            None => find(key).is_some_and(|opt| !opt.may_stand_alone()),
        };
        if value.is_none() && takes_value {
            value = arguments.next_if(|next| !next.starts_with("--")).cloned();
            if value.is_none() {
                return Err(format!("--{key} lacks its value"));
            }
        }
        let text = value.as_deref().unwrap_or("");
        if let Some(opt) = of_the_run {
            (opt.set)(&mut run, text).map_err(|why| format!("--{key}: {why}"))?;
            continue;
        }
        if find(key).is_none() && !fio::holds(key, text) {
            return Err(unknown(key, RUN.iter().map(|opt| opt.name)));
        }
        let origin = "command line".to_owned();
        if key == "name" {
            let name = value.clone().unwrap_or_default();
            jobs.push(section(&name, "command line"));
            if name == "global" {
                continue;
            }
        }
        let target = jobs.last_mut().unwrap_or(&mut global);
        target.entries.push(Entry { key: key.to_owned(), value, origin });
    }
    if jobs.is_empty() && files.is_empty() {
        if global.entries.is_empty() {
            return Err(
                "no job is given: name a job file, or --name=x and options; see --help".into()
            );
        }
        jobs.push(Section {
            name: "dlfs-bench".into(),
            ..std::mem::replace(&mut global, section("global", ""))
        });
    }
    let sections = std::iter::once(global).chain(jobs).chain(files.into_iter().flatten());
    let (jobs, global) = jobs_of(sections.collect(), &run)?;
    Ok(Command::Run(Box::new(Request { run, jobs, global })))
}

/// The request for one job file with this text, without arguments.
///
/// # Errors
/// As [`parse`].
pub(crate) fn request_of_text(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Request, String> {
    let run = RunOptions::default();
    let sections = file::sections_of(text, env)?;
    let (jobs, global) = jobs_of(sections, &run)?;
    Ok(Request { run, jobs, global })
}

fn section(name: &str, origin: &str) -> Section {
    Section { name: name.into(), entries: Vec::new(), origin: origin.into(), begins_file: false }
}

/// Applies each section to a copy of the options from the global sections before it.
fn jobs_of(sections: Vec<Section>, run: &RunOptions) -> Result<(Vec<Job>, Given), String> {
    let mut base = Job::default();
    let mut jobs: Vec<Job> = Vec::new();
    let mut global = Vec::new();
    let mut file_begins = false;
    for section in sections {
        file_begins |= section.begins_file;
        if section.name == "global" {
            for entry in &section.entries {
                apply(&mut base, entry)?;
            }
            for (key, value) in base.given.drain(..) {
                global.retain(|(known, _): &(String, String)| *known != key);
                global.push((key, value));
            }
            continue;
        }
        if !run.sections.is_empty() && !run.sections.contains(&section.name) {
            continue;
        }
        if jobs.len() as u64 >= run.max_jobs {
            return Err(format!("there are more jobs than --max-jobs, {}", run.max_jobs));
        }
        let mut job = base.clone();
        (job.name, job.origin) = (section.name.clone(), section.origin.clone());
        for entry in &section.entries {
            apply(&mut job, entry)?;
        }
        // A job file waits for the jobs before it.
        job.stonewall |= std::mem::take(&mut file_begins) && !jobs.is_empty();
        jobs.push(job);
    }
    if jobs.is_empty() {
        let wanted = run.sections.join(", ");
        return Err(if wanted.is_empty() {
            "there is no job beside [global]".to_owned()
        } else {
            format!("there is no section named {wanted}")
        });
    }
    Ok((jobs, global))
}

#[cfg(test)]
mod tests {
    use super::super::job::Engine;
    use super::*;

    fn request(arguments: &[&str]) -> Result<Request, String> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        match parse(&arguments)? {
            Command::Run(request) => Ok(*request),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_name_begins_a_job_and_options_before_the_first_hold_for_all() {
        let found = request(&[
            "--bs=8k",
            "--name=a",
            "--ioengine=null",
            "--size",
            "1m",
            "--name=b",
            "--stonewall",
            "--ioengine=mem",
            "--output-format=json,terse",
        ])
        .unwrap();
        assert_eq!(found.global, [("bs".to_owned(), "8k".to_owned())]);
        let names: Vec<_> =
            found.jobs.iter().map(|j| (j.name.as_str(), j.bs[0], j.engine)).collect();
        assert_eq!(names, [("a", 8192, Engine::Null), ("b", 8192, Engine::Mem)]);
        assert!(found.jobs[1].stonewall && !found.jobs[0].stonewall);
        assert_eq!(found.run.formats, [Format::Json, Format::Terse]);
    }

    #[test]
    fn unknown_options_and_missing_values_are_refused_with_the_nearest_name() {
        assert!(request(&["--nmae=a"]).unwrap_err().contains("'name'"));
        assert!(request(&["--name=a", "--outptu=x"]).unwrap_err().contains("'output'"));
        assert!(request(&["--name=a", "--bs", "--rw=read"]).unwrap_err().contains("lacks"));
        assert!(request(&["--server"]).unwrap_err().contains("not offer"));
        assert!(
            request(&["--name=a", "--steadystate=iops:1%"]).unwrap_err().contains("fio itself")
        );
        assert!(request(&[]).unwrap_err().contains("no job"));
    }
}
