//! `dlfs import-parts`: one import by many processes.
//!
//! `import/mod.rs` has the options of sources and image; the work is in `src/import/import/many/`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use dlfs::address::Address;
use dlfs::dataset::cataloging::{self, Origin};
use dlfs::import::OnError;
use dlfs::import::many::{WritePlan, commit_import, import_part, plan_import};
use dlfs::{Error, ErrorKind};

use super::import::ImportSpec;
use crate::args::{ConnectionArgs, DatasetName};
use crate::exit::{Failure, Outcome};
use crate::out::{self, Out, progress};

/// Import by many processes, on any number of hosts: plan, then a part for each namespace, then commit
#[derive(Debug, Subcommand)]
pub(crate) enum PartsCommand {
    Plan(Box<PlanArgs>),
    Part(PartArgs),
    Commit(CommitArgs),
}

/// Plan an import that many processes share: one part for each namespace of the image
///
/// Indexes the sources, lays out all chunks, prepares the namespaces, and writes the plan to a file. The parts and the
/// commit read that file and find the sources by the same paths, on whatever host. The image is the one that
/// dlfs import would make, byte for byte. With --append it is the next generation of an image that is there; any other
/// change of the image gives the plan up.
#[derive(Debug, Args)]
#[command(override_usage = "dlfs import-parts plan [OPTIONS] <SOURCE>... <IMAGE>")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    spec: ImportSpec,
    /// Refuse unless the image has this many namespaces
    #[arg(long, value_name = "K")]
    parts: Option<usize>,
    /// The file for the plan, which must not exist
    #[arg(short, long, value_name = "PLAN", default_value = "import.plan")]
    output: PathBuf,
}

/// Import one part of a plan: the chunks of one namespace
///
/// May run on any host, in any order, and again after it failed or was killed: what is on the namespace is found
/// and not written again. While an attempt is running, another fails with exit code 1.
#[derive(Debug, Args)]
pub(crate) struct PartArgs {
    /// The plan
    plan: PathBuf,
    /// The number of the part, from 0: $SLURM_PROCID, $JOB_COMPLETION_INDEX
    #[arg(value_name = "N")]
    part: u16,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Commit a plan whose parts are all complete
///
/// If some are not, lists them (the first 100) and changes nothing. May run again: a plan that is committed stays so.
#[derive(Debug, Args)]
pub(crate) struct CommitArgs {
    /// The plan
    plan: PathBuf,
    /// The number of parts, where programs write them (dlfs.WritePlan): of each, the last complete attempt counts
    #[arg(long, value_name = "K")]
    parts: Option<u64>,
    /// Add the image to a catalogue, under this name: dlfs://CATALOGUE/NAME
    #[arg(long, value_name = "NAME")]
    catalog: Option<DatasetName>,
    /// Print the report as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(command: PartsCommand, quiet: bool) -> Result<Outcome, Failure> {
    match command {
        PartsCommand::Plan(args) => plan(&args, quiet),
        PartsCommand::Part(args) => part(&args, quiet),
        PartsCommand::Commit(args) => commit(&args, quiet),
    }
}

fn plan(args: &PlanArgs, quiet: bool) -> Result<Outcome, Failure> {
    let (sources, image) = args.spec.places()?;
    let image = &image.0;
    if let Some(parts) = args.parts.filter(|parts| *parts != image.len()) {
        let found = out::counted(image.len() as u64, "address");
        let text = format!("{parts} parts need as many namespaces, and the image has {found}");
        return Err(Error::new(ErrorKind::InvalidArgument, text)
            .hint("name one namespace for each part: ADDRESS,ADDRESS...")
            .into());
    }
    if args.spec.catalog.is_some() {
        let text = "the image is added to a catalogue when it is committed";
        return Err(Error::new(ErrorKind::InvalidArgument, text)
            .hint("give --catalog to dlfs import-parts commit")
            .into());
    }
    let mut progress = progress(quiet)?;
    let connect = args.spec.connection.options(true)?;
    let mut options = args.spec.options(&connect)?;
    options.places.cancel = progress.cancel();
    let report = plan_import(sources, image, &options, &connect, &args.output, &mut progress)?;
    drop(progress);
    let part = |(address, chunks): &(String, u64)| json!({"address": address, "chunks": chunks});
    let facts = json!({
        "plan": report.id.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        "uuid": report.uuid.to_string(),
        "samples": report.samples,
        "bytes": report.sample_bytes,
        "parts": report.parts.iter().map(part).collect::<Vec<_>>(),
        "left_out": report.bad.len(),
    });
    Out::answer(args.spec.json, &facts, |out| {
        out.line(format!(
            "planned {} ({}) in {}: {}",
            out.bold(&out::counted(report.samples, "sample")),
            out::bytes(report.sample_bytes),
            out::counted(report.parts.len() as u64, "part"),
            args.output.display(),
        ))?;
        for (number, (address, chunks)) in report.parts.iter().enumerate() {
            let chunks = out::counted(*chunks, "chunk");
            out.line(format!("  part {number}     {chunks} onto {address}"))?;
        }
        if options.on_error == OnError::Skip && !report.bad.is_empty() {
            out.line(format!("  left out   {}", out::counted(report.bad.len() as u64, "entry")))?;
            report.bad.iter().try_for_each(|entry| out.line(format!("    {entry}")))?;
        }
        let plan = args.output.display();
        let next = format!(
            "  next       dlfs import-parts part {plan} N for each, then dlfs import-parts commit {plan}"
        );
        out.line(out.dim(&next))
    })
}

fn part(args: &PartArgs, quiet: bool) -> Result<Outcome, Failure> {
    let connect = args.connection.options(true)?;
    let report = import_part(&args.plan, args.part, &connect, &mut progress(quiet)?)?;
    Out::answer(args.json, &report, |out| {
        let found = match report.found {
            0 => String::new(),
            found => format!(", of which {} were in place", out::count(found)),
        };
        out.line(format!(
            "part {} is complete: {} in {}{found}, onto {}",
            report.part,
            out.bold(&out::counted(report.samples, "sample")),
            out::counted(report.chunks, "chunk"),
            report.address,
        ))
    })
}

fn commit(args: &CommitArgs, quiet: bool) -> Result<Outcome, Failure> {
    let mut progress = progress(quiet)?;
    let connect = args.connection.options(true)?;
    let (report, image) = match args.parts {
        None => commit_import(&args.plan, &connect, &mut progress)?,
        Some(parts) => {
            let plan = WritePlan::load(&args.plan)?;
            (plan.commit_all(parts, &connect, &mut progress)?, plan.image().to_vec())
        }
    };
    drop(progress);
    // The record says "import" for an append, too.
    cataloging::committed(&image, report.generation, &connect, "import");
    if let Some(name) = &args.catalog {
        let origin = Origin { made_by: "import".to_owned(), ..Origin::default() };
        cataloging::add(&name.0, &image, &connect, origin)
            .map_err(|error| error.hint("the image is committed: add it with dlfs catalog add"))?;
    }
    let facts = json!({
        "uuid": report.uuid.to_string(),
        "generation": report.generation.0,
        "samples": report.samples,
        "bytes": report.sample_bytes,
        "chunks": report.chunks,
        "image_bytes": report.image_bytes,
    });
    Out::answer(args.json, &facts, |out| {
        let image = Address::list_to_string(&image);
        out.line(format!(
            "committed {} ({}) as generation {}, {} in {}",
            out.bold(&out::counted(report.samples, "sample")),
            out::bytes(report.sample_bytes),
            report.generation,
            out::bytes(report.image_bytes),
            out::counted(report.chunks, "chunk"),
        ))?;
        out.line(out.dim(&format!("  next       dlfs read {image}")))
    })
}
