//! `dlfs tokens plan` reports the rows of tokens that the documents of an epoch make, without reading them.

use clap::{Args, Subcommand};
use serde_json::json;

use dlfs::dataset::RowPlan;
use dlfs::options::{Order, Rows};
use dlfs::prefetch::LoaderOptions;

use crate::args::{ConnectionArgs, ImageArgs, unweighted};
use crate::exit::{Failure, Outcome, usage};
use crate::mix::MixArgs;
use crate::out::{self, Out, known};
use crate::reading::{padding_share, token_loader};

/// Plan rows of tokens
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    Plan(Box<PlanArgs>),
}

/// Report the rows of tokens of an epoch: how many, how full, and what is cut
///
/// Only the directory is read. Samples are documents, and fill rows as with the same options of dlfs read;
/// rows do not depend on the ranks and batches that read them.
///
/// With --mix it also reports the documents and tokens of each image.
#[derive(Debug, Args)]
#[command(after_help = TOKENS_EXAMPLES, mut_arg("mix", |arg| arg.conflicts_with_all(OF_ONE_IMAGE)))]
#[command(mut_arg("epoch_size", |arg| arg.requires("mix")))]
#[command(mut_arg("seq_len", |arg| arg.required(true)))]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    mix: MixArgs,
    #[command(flatten)]
    rows: Rows,
    #[command(flatten)]
    order: Order,
    /// The epoch, from 0
    #[arg(long, value_name = "E", default_value_t = 0)]
    epoch: u64,
    /// Print the report as one line of JSON
    ///
    /// tokens counts separators, too; padding is its part of the rows; cuts are documents in more than one
    /// piece; dropped are the tokens behind the last row; phases are the rows of each phase, if there are some.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(Action::Plan(args): Action) -> Result<Outcome, Failure> {
    let order = unweighted(&args.order, 1)?.started(1);
    let rows = args.rows.options(Some(1)).map_err(usage)?.expect("--seq-len is required");
    let dataset = args.image.open_dataset(&args.connection)?;
    let mixture = args.mix.mixture(&dataset, &args.connection)?;
    let options = LoaderOptions::new(order, 1, args.epoch.saturating_add(1));
    let seq_len = rows.seq_len;
    let plan = token_loader(&dataset, mixture.as_ref(), rows, options)?.plan(args.epoch)?;
    let counts = &plan.counts;
    let sources = args.mix.images(&args.image.image).zip(&plan.sources).map(|(image, of)| {
        json!({"image": image.to_string(), "documents": of.documents, "tokens": of.tokens})
    });
    let facts = known(json!({
        "epoch": args.epoch,
        "order": order,
        "seq_len": seq_len,
        "pack": args.rows.pack,
        "rows": counts.rows,
        "documents": counts.documents,
        "tokens": counts.tokens,
        "padding": padding_share(counts.padding, counts.columns),
        "cuts": counts.cuts,
        "dropped": counts.dropped,
        "phases": (!args.rows.phases.is_empty()).then_some(&counts.phases),
        "sources": args.mix.is_given().then(|| sources.collect::<Vec<_>>()),
    }));
    Out::answer(args.json, &facts, |out| out.text(&plan_text(&args, seq_len, &plan)))
}

/// The report as text.
fn plan_text(args: &PlanArgs, seq_len: u32, plan: &RowPlan) -> String {
    let counts = &plan.counts;
    let padding = 100.0 * padding_share(counts.padding, counts.columns);
    let tokens = out::counted(counts.tokens, "token");
    let mut lines = vec![
        format!(
            "{} of {}, packed {}: {} of {tokens}",
            out::counted(counts.rows, "row"),
            out::counted(seq_len.into(), "token"),
            args.rows.pack,
            out::counted(counts.documents, "document"),
        ),
        format!("  padding    {padding:.2} % of the rows"),
        format!("  cut        {}", out::counted(counts.cuts, "document")),
        format!("  dropped    {} behind the last row", out::counted(counts.dropped, "token")),
    ];
    let later = args.rows.phases.iter().zip(&counts.phases[1..]);
    lines.extend(
        later.map(|(phase, rows)| format!("  phase      {phase}: {}", out::counted(*rows, "row"))),
    );
    let images = args.mix.images(&args.image.image).filter(|_| args.mix.is_given());
    lines.extend(images.zip(&plan.sources).map(|(image, of)| {
        format!(
            "  source     {}: {}, {}: {:.2} % of the tokens",
            out::safe_text(&image.in_short()),
            out::counted(of.documents, "document"),
            out::counted(of.tokens, "token"),
            100.0 * of.tokens as f64 / counts.tokens.max(1) as f64,
        )
    }));
    lines.join("\n") + "\n"
}

/// Options that apply to one image only.
const OF_ONE_IMAGE: [&str; 2] = ["snapshot", "view"];
const TOKENS_EXAMPLES: &str = "\
Examples:
  dlfs tokens plan text.dlfs --seq-len 2048 --separator 50256
  dlfs tokens plan text.dlfs --seq-len 2048 --pack best_fit --json
  dlfs tokens plan web.dlfs --part 0.7 --mix code.dlfs=0.3 --seq-len 4096";
