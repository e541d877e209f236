//! `dlfs man`: generates the manual pages from the `--help` texts.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::Cli;
use crate::exit::{Failure, Outcome, about_file};
use crate::out::Out;

/// Print the manual page, or write those of all commands to a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// The folder for dlfs.1, dlfs-import.1 and so on; created if it does not exist
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

pub(crate) fn run(args: ManArgs) -> Result<Outcome, Failure> {
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

const EXAMPLES: &str = "\
Examples:
  dlfs man | man -l -
  dlfs man ~/.local/share/man/man1             # then: man dlfs-read";
