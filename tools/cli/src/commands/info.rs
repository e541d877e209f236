//! `dlfs info`: the version of this build, its engines, and the addresses that each can reach.

use std::sync::LazyLock;

use clap::Args;
use serde_json::json;

use dlfs::qpair::{self, Engine};

use crate::exit::{Failure, Outcome};
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

pub(crate) fn run(args: InfoArgs) -> Result<Outcome, Failure> {
    let engines = qpair::engines();
    let mut out = Out::new();
    if args.json {
        let engine = |engine: &Engine| {
            json!({
                "name": engine.name, "compiled_in": engine.compiled_in, "reaches": engine.reaches,
            })
        };
        out.json(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "commit": dlfs::COMMIT,
            "commit_date": dlfs::COMMIT_DATE,
            "engines": engines.iter().map(engine).collect::<Vec<_>>(),
        }))?;
    } else {
        out.line(format!("dlfs {}", *VERSION))?;
        for engine in &engines {
            let mark = if engine.compiled_in { "yes" } else { "no " };
            out.line(format!("  {:<6} {mark}  {}", engine.name, engine.reaches))?;
        }
    }
    out.end(Outcome::Done)
}
