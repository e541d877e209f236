//! `dlfs completions`: generates shell completions.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use crate::exit::{Failure, Outcome};
use crate::out::Out;

/// Print shell completions of commands and options
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell to generate them for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: CompletionsArgs) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dlfs", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.end(Outcome::Done)
}

const EXAMPLES: &str = "\
Examples:
  dlfs completions bash > ~/.local/share/bash-completion/completions/dlfs
  dlfs completions zsh > ~/.zfunc/_dlfs        # where fpath has ~/.zfunc
  dlfs completions fish > ~/.config/fish/completions/dlfs.fish";
