//! `dlfs top` in a build without the feature `top`.

use clap::Args;
use dlfs::{Error, ErrorKind};

use crate::exit::{Failure, Outcome};

/// Show what targets and jobs do now: not in this build, which lacks the feature `top`
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _any: Vec<String>,
}

pub(crate) fn run(_: TopArgs) -> Result<Outcome, Failure> {
    let error = Error::new(ErrorKind::Unsupported, "this build of dlfs has no page over metrics");
    Err(error.hint("install the command with --features top; released packages have it").into())
}
