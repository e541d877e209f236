//! `dlfs verify` reads and verifies a whole image, and lists all damage.

use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use dlfs::dataset::{Damage, VerifyOptions, VerifyReport};

use crate::args::{ConnectionArgs, ImageArgs, engines};
use crate::commands::samples::json_name;
use crate::exit::{Failure, Outcome};
use crate::out::{self, Meter, Out, known};
use crate::reading::check_complete;

/// Read and verify everything, and list what is damaged
///
/// The exit code is 3 if anything is damaged: superblock copies, chunk headers, samples.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: VerifyArgs, quiet: bool) -> Result<Outcome, Failure> {
    let image = args.image.open(&args.connection)?;
    let chunks = u64::from(image.directory().num_chunks());
    let mut meter = Meter::new("verifying", chunks, quiet).counting("chunk");
    let began = Instant::now();
    let mut done = 0;
    let mut bytes = 0;
    let report = image.verify(&VerifyOptions::default(), &mut |len| {
        done += 1;
        bytes += len;
        meter.update(done, bytes);
    })?;
    let time = began.elapsed();
    drop(meter);
    if report.damages.is_empty() {
        check_complete(report.samples, image.directory().num_live())?;
    }
    Out::answer(args.json, &verify_json(&report, time.as_secs_f64()), |out| {
        for damage in &report.damages {
            out.line(format!("damaged: {}", describe(damage)))?;
        }
        let verdict = match report.damages.len() {
            0 => out.green("no damage"),
            damages => out.bold(&out::counted(damages as u64, "damage")),
        };
        out.line(format!(
            "{verdict}: {} in {}, {} read in {} ({}, {})",
            out::counted(report.samples, "sample"),
            out::counted(report.chunks, "chunk"),
            out::bytes(report.bytes),
            out::duration(time),
            out::rate(report.bytes, time),
            engines(std::iter::once(&image)),
        ))
    })?;
    Ok(if report.damages.is_empty() { Outcome::Done } else { Outcome::Damaged })
}

/// Damage as a line of text.
fn describe(damage: &Damage) -> String {
    let place = format!("namespace {} at byte {}", damage.namespace, damage.offset_bytes);
    match (damage.sample, &damage.name) {
        (Some(id), Some(name)) => {
            format!("{} (sample {id}, {place}): {}", out::safe_name(name), damage.what)
        }
        (Some(id), None) => format!("sample {id} ({place}): {}", damage.what),
        _ => format!("{place}: {}", damage.what),
    }
}

/// The report as JSON.
fn verify_json(report: &VerifyReport, seconds: f64) -> Value {
    let damage = |damage: &Damage| {
        let (name, name_hex) = damage.name.as_deref().map(json_name).unzip();
        known(json!({
            "id": damage.sample.map(|id| id.0),
            "name": name,
            "name_hex": name_hex.flatten(),
            "namespace": damage.namespace,
            "offset_bytes": damage.offset_bytes,
            "what": damage.what,
        }))
    };
    json!({
        "verified": report.damages.is_empty(),
        "samples": report.samples,
        "bytes": report.bytes,
        "chunks": report.chunks,
        "seconds": seconds,
        "damages": report.damages.iter().map(damage).collect::<Vec<_>>(),
    })
}
