//! The user's request: options of the run, and options of jobs (`job.rs`), each a field that clap parses.
//!
//! A job is a section of a job file (`job_file.rs`) or begins with `--name` on the command line. Entries of sections
//! become arguments `--KEY=VALUE`, so that files and command line share names, limits and messages.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};

use crate::job::Job;
use crate::job_file::{Environment, Section, WrittenOption, read, sections_of};
use crate::output::VERSION;
use crate::values::boolean;

/// Measures namespaces and data sets, with fio's job files, options and output
#[derive(Debug, Parser)]
#[command(name = "dlfs-bench", version = VERSION, after_help = AFTER_HELP)]
#[command(
    override_usage = "dlfs-bench [OPTIONS] JOBFILE...\n       dlfs-bench [OPTIONS] --name=NAME --KEY=VALUE..."
)]
struct CommandLine {
    #[command(flatten)]
    run: RunOptions,
    #[command(flatten)]
    job: Job,
}

/// Options of the run as a whole.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RunOptions {
    /// Job files; - is standard input
    #[arg(value_name = "JOBFILE")]
    files: Vec<PathBuf>,
    /// Write the result to this file instead of standard output
    #[arg(long)]
    pub(crate) output: Option<PathBuf>,
    /// Formats of the result, with commas between
    #[arg(long, value_enum, value_delimiter = ',', default_value = "normal")]
    pub(crate) output_format: Vec<Format>,
    /// Parse the jobs, report errors, and exit
    #[arg(long)]
    pub(crate) parse_only: bool,
    /// Refuse jobs that write
    #[arg(long)]
    pub(crate) readonly: bool,
    /// Run only this section of the job files; may be repeated
    #[arg(long)]
    section: Vec<String>,
}

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Normal,
    Json,
}

/// The requested action.
#[derive(Debug)]
pub(crate) enum Action {
    Run(Box<Request>),
    /// The help or the version.
    Print(String),
}

/// A run: its options, its jobs, and the options that apply to all jobs.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) run: RunOptions,
    pub(crate) jobs: Vec<Job>,
    pub(crate) global: Given,
}

/// Options as the user wrote them: their names and values.
pub(crate) type Given = Vec<(String, String)>;

/// Reads the arguments, without the program's name, and the job files that they name.
///
/// # Errors
/// A sentence for the user; exit code 1, as in fio.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Action, String> {
    let mut command = prepare(CommandLine::command());
    let matches = match command.try_get_matches_from_mut(arguments) {
        Err(error) if !error.use_stderr() => return Ok(Action::Print(error.to_string())),
        matches => matches.map_err(|error| explain(&error))?,
    };
    let all = CommandLine::from_arg_matches(&matches).map_err(|error| explain(&error))?;
    let mut sections = command_line_sections(arguments, &mut command)?;
    if let [only] = &mut sections[..]
        && all.run.files.is_empty()
        && !only.entries.is_empty()
    {
        only.name = all.job.name; // options without a name are a job
    }
    for path in &all.run.files {
        sections.extend(read(path)?);
    }
    if sections.iter().all(|section| section.name == GLOBAL) {
        return Err("no job is given: name a job file, or --name=x and options; see --help".into());
    }
    let (jobs, global) = jobs_of(sections, &all.run.section)?;
    Ok(Action::Run(Box::new(Request { run: all.run, jobs, global })))
}

/// The request for one job file with this text, without arguments.
///
/// # Errors
/// As [`parse`].
pub(crate) fn request_of_text(text: &str, env: &Environment<'_>) -> Result<Request, String> {
    let (jobs, global) = jobs_of(sections_of(text, "job file", env)?, &[])?;
    Ok(Request { run: RunOptions::default(), jobs, global })
}

/// A section for each `--name`, after a global section with the options before the first `--name`.
fn command_line_sections(
    arguments: &[OsString],
    command: &mut Command,
) -> Result<Vec<Section>, String> {
    let begins = |argument: &OsString| {
        argument.to_str().is_some_and(|text| text == "--name" || text.starts_with("--name="))
    };
    let mut sections = Vec::new();
    let mut rest = arguments;
    while !rest.is_empty() {
        let more = rest.iter().skip(1).position(begins).map_or(rest.len(), |at| at + 1);
        let section;
        (section, rest) = rest.split_at(more);
        let matches = command.try_get_matches_from_mut(section).map_err(|error| explain(&error))?;
        let given = given(&matches, command);
        let name = given.iter().find(|(key, _)| key == "name").map(|(_, name)| name.clone());
        let origin = COMMAND_LINE.to_owned();
        let entry = |(key, value)| WrittenOption {
            argument: format!("--{key}={value}"),
            origin: COMMAND_LINE.to_owned(),
        };
        let entries = given.into_iter().map(entry).collect();
        let name = name.unwrap_or_else(|| GLOBAL.to_owned());
        sections.push(Section { name, entries, origin, begins_file: false });
    }
    Ok(sections)
}

/// Makes a job of each section with a name in `wanted` (if that is empty, of each), from the options of the global
/// sections before it and then its own. Also returns all global options.
fn jobs_of(sections: Vec<Section>, wanted: &[String]) -> Result<(Vec<Job>, Given), String> {
    if sections.len() > MAX_JOBS {
        return Err(format!("{} sections are more than {MAX_JOBS}", sections.len()));
    }
    let mut command = prepare(Job::augment_args(Command::new("job").disable_help_flag(true)));
    let mut base = Vec::new();
    let mut jobs: Vec<Job> = Vec::new();
    let mut file_begins = false;
    for section in sections {
        file_begins |= section.begins_file;
        if section.name == GLOBAL {
            base.extend(section.entries);
            continue;
        }
        if !wanted.is_empty() && !wanted.contains(&section.name) {
            continue;
        }
        let (_, given) = job_of(&section.entries, &mut command)?;
        let (mut job, _) = job_of(base.iter().chain(&section.entries), &mut command)?;
        (job.name, job.origin, job.given) = (section.name, section.origin, given);
        // A job file waits for the jobs before it.
        job.stonewall |= std::mem::take(&mut file_begins) && !jobs.is_empty();
        jobs.push(job);
    }
    if jobs.is_empty() {
        return Err(match wanted {
            [] => "there is no job beside [global]".to_owned(),
            wanted => format!("there is no section named {}", wanted.join(", ")),
        });
    }
    let (_, global) = job_of(&base, &mut command)?;
    Ok((jobs, global))
}

/// The job with these options, and the options as the user wrote them.
fn job_of<'a>(
    entries: impl IntoIterator<Item = &'a WrittenOption> + Clone,
    command: &mut Command,
) -> Result<(Job, Given), String> {
    let mut read = |entries: &mut dyn Iterator<Item = &'a WrittenOption>| {
        let matches = command.try_get_matches_from_mut(entries.map(|entry| &entry.argument))?;
        Ok((Job::from_arg_matches(&matches)?, given(&matches, command)))
    };
    read(&mut entries.clone().into_iter()).map_err(|error: clap::Error| {
        // Find the first option that fails by itself, to name it in the error.
        let mut alone = entries.into_iter();
        let found = alone.find_map(|entry| {
            let error = read(&mut std::iter::once(entry)).err()?;
            Some(format!("{}: {}", entry.origin, explain(&error)))
        });
        found.unwrap_or_else(|| explain(&error))
    })
}

/// The options of a job in the order in which they were written. Options of a job have a heading in the help; options
/// of the run have none.
fn given(matches: &ArgMatches, command: &Command) -> Given {
    let ids = command.get_arguments().filter(|arg| arg.get_help_heading().is_some());
    let mut given: Vec<(usize, (String, String))> = ids
        .map(|arg| arg.get_id().as_str())
        .filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine))
        .filter_map(|id| {
            let value = matches.get_raw(id)?.next_back()?.to_string_lossy().into_owned();
            Some((matches.indices_of(id)?.next_back()?, (id.to_owned(), value)))
        })
        .collect();
    given.sort_by_key(|(index, _)| *index);
    given.into_iter().map(|(_, option)| option).collect()
}

/// Lets the last of repeated options win, gives boolean options fio's values, and adds the options in
/// `FIXED_OPTIONS`.
fn prepare(command: Command) -> Command {
    let fixed = FIXED_OPTIONS.map(|(name, value)| {
        let arg = Arg::new(name).long(name).value_parser([value]).default_missing_value(value);
        let help = format!("Only {value}, which always holds");
        arg.num_args(0..=1).require_equals(true).help(help).help_heading("Options that hold anyway")
    });
    command.no_binary_name(true).args(fixed).mut_args(|arg| {
        let id = arg.get_id().clone();
        let is_set = matches!(arg.get_action(), ArgAction::Set);
        let is_boolean = arg.get_value_parser().type_id() == std::any::TypeId::of::<bool>();
        let arg = if is_set { arg.overrides_with(id) } else { arg };
        if !is_set || !is_boolean {
            return arg;
        }
        let is_off = arg.is_required_set(); // clap's derive requires a `Flag` without a default
        let arg = if is_off { arg.required(false).default_value("0") } else { arg };
        arg.value_parser(boolean).num_args(0..=1).require_equals(true).default_missing_value("1")
    })
}

/// A sentence for an error of clap: the option, its value, the fault, and the most similar option.
fn explain(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let option = text(ContextKind::InvalidArg);
    let option = option.trim_start_matches("--").split([' ', '[', '=']).next().unwrap_or("");
    let value = text(ContextKind::InvalidValue);
    let near = |kind| match text(kind).trim_start_matches("--") {
        "" => String::new(),
        near => format!("; did you mean '{near}'?"),
    };
    match (error.kind(), std::error::Error::source(error)) {
        (ErrorKind::UnknownArgument, _) => {
            format!("unknown option '{option}'{}; {POINTER}", near(ContextKind::SuggestedArg))
        }
        (ErrorKind::InvalidValue, _) if value.is_empty() => format!("{option} lacks its value"),
        (ErrorKind::InvalidValue, _) => format!(
            "{option}={value}: not one of {}{}; {POINTER}",
            text(ContextKind::ValidValue),
            near(ContextKind::SuggestedValue)
        ),
        (_, Some(why)) => format!("{option}={value}: {why}"),
        (_, None) => error.to_string().lines().next().unwrap_or("wrong arguments").to_owned(),
    }
}

/// Options of fio that are accepted only with these values, which describe what dlfs-bench does anyway.
const FIXED_OPTIONS: [(&str, &str); 8] = [
    ("thread", "1"),
    ("invalidate", "1"),
    ("overwrite", "1"),
    ("verify_fatal", "1"),
    ("disk_util", "0"),
    ("exitall", "0"),
    ("thinktime_blocks", "1"),
    ("fallocate", "none"),
];

/// A hint for users who need all of fio's options.
pub(crate) const POINTER: &str = "fio itself drives dlfs by ioengine=external:dlfs-fio.so; \
                       see 'fio on dlfs' in tools/bench/README.md";
const AFTER_HELP: &str = "\
SIGINT ends the run with the figures so far.

Examples:
  dlfs-bench --name=r --filename=train.dlfs --rw=randread --bs=4k --iodepth=32 --runtime=10 --time_based
  dlfs-bench --name=r --filename='nvme-tcp://node1/nqn.2026-11.io.dlfs:train' --rw=randread --iodepth=32
  dlfs-bench --name=s --filename=train.dlfs --rw=samples --order=grouped --batch_size=256 --thinktime=2ms
  dlfs-bench --output-format=json --output=out.json jobs.fio";
/// The section whose options apply to the sections after it.
const GLOBAL: &str = "global";
/// The position of options of the command line, for messages.
const COMMAND_LINE: &str = "command line";
/// The most sections, and the most threads of all jobs.
pub(crate) const MAX_JOBS: usize = 4096;

/// The job with these valid options.
#[cfg(test)]
pub(crate) fn job_of_options(options: &[(&str, &str)]) -> Job {
    let lines = options.iter().map(|(key, value)| format!("{key}={value}\n"));
    let text = format!("[j]\n{}", lines.collect::<String>());
    request_of_text(&text, &|_| None).expect("a valid job").jobs.remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Engine;

    fn request(arguments: &[&str]) -> Result<Request, String> {
        let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
        match parse(&arguments)? {
            Action::Run(request) => Ok(*request),
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
            "--ioengine=libaio",
            "--output-format=json,normal",
        ])
        .unwrap();
        assert_eq!(found.global, [("bs".to_owned(), "8k".to_owned())]);
        let names: Vec<_> =
            found.jobs.iter().map(|j| (j.name.as_str(), j.bs[0], j.ioengine)).collect();
        assert_eq!(names, [("a", Some(8192), Engine::Null), ("b", Some(8192), Engine::Auto)]);
        assert!(found.jobs[1].stonewall && !found.jobs[0].stonewall);
        assert_eq!(found.jobs[1].given.len(), 3, "{:?}", found.jobs[1].given);
        assert_eq!(found.run.output_format, [Format::Json, Format::Normal]);
    }

    #[test]
    fn unknown_options_and_missing_values_are_refused_with_the_nearest_name() {
        assert!(request(&["--nmae=a"]).unwrap_err().contains("'name'"));
        assert!(request(&["--name=a", "--outptu=x"]).unwrap_err().contains("'output'"));
        assert!(request(&["--name=a", "--bs", "--rw=read"]).unwrap_err().contains("lacks"));
        for fio in ["--server", "--steadystate=iops:1%", "--rw=trim", "--verify=md5", "--thread=0"]
        {
            assert!(request(&["--name=a", fio]).unwrap_err().contains("fio itself"), "{fio}");
        }
        assert!(request(&[]).unwrap_err().contains("no job"));
        assert!(request(&["--bs=4k", "--", "x"]).is_err(), "a file that is not there");
    }

    #[test]
    fn the_last_of_equal_options_wins_and_booleans_have_fio_s_values() {
        let text = "[global]
bs=4k
time_based
randrepeat=0
[a]
bs=8k
time_based=0
thread
    ";
        let found = request_of_text(text, &|_| None).unwrap();
        let job = &found.jobs[0];
        assert_eq!((job.bs[0], job.time_based, job.randrepeat), (Some(8192), false, false));
        assert_eq!(job.given[1], ("time_based".to_owned(), "0".to_owned()));
        assert_eq!(found.global[1], ("time_based".to_owned(), "1".to_owned()));
        for run in ["output=x", "help", "readonly", "=x", "-", "parse-only"] {
            assert!(
                request_of_text(
                    &format!(
                        "[a]
{run}
    "
                    ),
                    &|_| None
                )
                .is_err(),
                "{run}"
            );
        }
    }
}
