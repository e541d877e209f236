//! `dlfs info`: the version of this build, its engines, and the addresses that each can reach. `completions` and `man`
//! generate shell completions and manual pages from the `--help` texts.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde_json::json;

use dlfs::qpair::{self, Engine};

use super::Cli;
use crate::exit::{Failure, Outcome, about_file};
use crate::out::Out;

/// The output of `--version` after the name: version, commit and date, and SPDK's version if it is built in.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = dlfs::COMMIT;
    let date = dlfs::COMMIT_DATE;
    #[cfg(feature = "spdk")]
    let spdk = format!(", SPDK {}", dlfs::spdk::version());
    #[cfg(not(feature = "spdk"))]
    let spdk = "";
    format!("{} (commit {commit}, {date}{spdk})", env!("CARGO_PKG_VERSION"))
});

/// Show the engines of this build and what each can reach
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn info(args: InfoArgs) -> Result<Outcome, Failure> {
    let engines = qpair::engines();
    let engine = |engine: &Engine| {
        json!({
            "name": engine.name, "compiled_in": engine.compiled_in, "reaches": engine.reaches,
        })
    };
    let facts = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": dlfs::COMMIT,
        "commit_date": dlfs::COMMIT_DATE,
        "engines": engines.iter().map(engine).collect::<Vec<_>>(),
    });
    Out::answer(args.json, &facts, |out| {
        out.line(format!("dlfs {}", *VERSION))?;
        engines.iter().try_for_each(|engine| {
            let mark = if engine.compiled_in { "yes" } else { "no " };
            out.line(format!("  {:<6} {mark}  {}", engine.name, engine.reaches))
        })
    })
}

/// Print shell completions of commands and options
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell to generate them for
    shell: Shell,
}

pub(crate) fn completions(args: CompletionsArgs) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dlfs", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.end(Outcome::Done)
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  dlfs completions bash > ~/.local/share/bash-completion/completions/dlfs
  dlfs completions zsh > ~/.zfunc/_dlfs        # where fpath has ~/.zfunc
  dlfs completions fish > ~/.config/fish/completions/dlfs.fish";

/// Print the manual page, or write those of all commands to a folder
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The folder for dlfs.1, dlfs-import.1 and so on; created if it does not exist
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(crate) fn man(args: ManArgs) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    match args.folder {
        None => {
            let mut page = Vec::new();
            // Writing to memory cannot fail.
            clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(dlfs::Error::from)?;
            out.bytes(&page)?;
        }
        Some(folder) => {
            let failed = |error| about_file("cannot write the manual pages to", &folder, error);
            std::fs::create_dir_all(&folder).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), &folder).map_err(failed)?;
            out.line(format!("the manual pages are in {}", folder.display()))?;
        }
    }
    out.end(Outcome::Done)
}

const MAN_EXAMPLES: &str = "\
Examples:
  dlfs man | man -l -
  dlfs man ~/.local/share/man/man1             # then: man dlfs-read";
