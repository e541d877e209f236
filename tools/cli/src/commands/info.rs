//! `dlfs info`: which engines this build has, and what each reaches.

use clap::Args;
use serde::Serialize;

use dlfs::qpair;

use crate::exit::{Failure, Outcome};
use crate::out::Out;

/// Show the engines of this build and what each can reach
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct JsonInfo {
    version: &'static str,
    engines: Vec<JsonEngine>,
}

#[derive(Serialize)]
struct JsonEngine {
    name: &'static str,
    compiled_in: bool,
    reaches: String,
}

pub(crate) fn run(args: InfoArgs) -> Result<Outcome, Failure> {
    let engines = qpair::engines().into_iter().map(|engine| JsonEngine {
        name: engine.name,
        compiled_in: engine.compiled_in,
        reaches: engine.reaches,
    });
    let info = JsonInfo { version: env!("CARGO_PKG_VERSION"), engines: engines.collect() };
    let mut out = Out::new();
    if args.json {
        out.json(&info)?;
    } else {
        out.line(format!("dlfs {}", info.version))?;
        for engine in &info.engines {
            let mark = if engine.compiled_in { "yes" } else { "no " };
            out.line(format!("  {:<5} {mark}  {}", engine.name, engine.reaches))?;
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}
