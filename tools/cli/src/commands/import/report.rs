//! The report of an import, as text and as JSON.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use serde_json::{Map, Value, json};

use dlfs::format::Pack;
use dlfs::import::ImportReport;
use dlfs::import::sources::{BadEntry, FileCount, Role};
use dlfs::units::total;

use crate::args::ImageAddress;
use crate::exit::Failure;
use crate::out::{self, Out, known};

/// The most lines for extensions of files that are samples. One more line shows the last extension, or sums up all
/// further ones.
const MAX_SHOWN: usize = 6;

/// The report as JSON.
pub(super) fn as_json(report: &ImportReport, time: Duration) -> Value {
    let bad = |entry: &BadEntry| {
        known(json!({
            "name": out::safe_name(&entry.name), "reason": entry.why(), "within": within(entry),
        }))
    };
    let taken = |taken: &FileCount| {
        json!({
            "what": taken.what, "as": taken.role.to_string(), "files": taken.files,
            "bytes": taken.bytes, "example": out::safe_name(&taken.example),
        })
    };
    let columns = report.columns.map(|counts| {
        json!({
            "samples": counts.samples,
            "samples_without": counts.samples_without,
            "rows_without": counts.rows_without,
        })
    });
    let field_types: Map<_, _> =
        field_types(report).map(|(name, kind)| (name, kind.into())).collect();
    known(json!({
        "samples": report.samples,
        "bytes": report.sample_bytes,
        "seconds": time.as_secs_f64(),
        "uuid": report.uuid.to_string(),
        "generation": report.generation.0,
        "from": report.kind.to_string(),
        "decided": report.decided.as_ref().map(ToString::to_string),
        "live_samples": report.live_samples,
        "chunks": report.chunks,
        "chunks_found": report.chunks_found,
        "image_bytes": report.image_bytes,
        "media": {
            "samples": report.media.sample_bytes,
            "headers": report.media.header_bytes,
            "padding": report.media.padding_of(report.pack),
            "directory": report.media.directory_bytes,
            "tight_saves": report.media.alignment_bytes, // whether --pack tight was given or not
        },
        "columns": columns,
        "field_types": (!field_types.is_empty()).then_some(field_types),
        "taken": report.file_counts.iter().map(taken).collect::<Vec<_>>(),
        "bad": report.bad.iter().map(bad).collect::<Vec<_>>(),
    }))
}

/// Names and types of the fields with a type.
fn field_types(report: &ImportReport) -> impl Iterator<Item = (String, String)> {
    report.field_types.iter().map(|(name, kind)| (out::safe_name(name), kind.to_string()))
}

/// Prints the report as text.
pub(super) fn print(
    out: &mut Out,
    image: &ImageAddress,
    report: &ImportReport,
    time: Duration,
) -> Result<(), Failure> {
    out.line(format!(
        "imported {} ({}) from {} in {}: {}",
        out.bold(&out::counted(report.samples, "sample")),
        out::bytes(report.sample_bytes),
        report.kind,
        out::duration(time),
        out.bold(&out::rate(report.sample_bytes, time)),
    ))?;
    out.line(format!(
        "  image      {}: generation {}, {} in {}",
        image.in_short(),
        report.generation,
        out::bytes(report.image_bytes),
        out::counted(report.chunks, "chunk"),
    ))?;
    if let Some(decided) = &report.decided {
        out.line(format!("  decided    {decided}"))?;
    }
    if let Some(counts) = &report.columns {
        let some = |count: u64, what: &str| match count {
            0 => String::new(),
            count => format!("; {} {what}", out::count(count)),
        };
        out.line(format!(
            "  columns    values of {}{}{}",
            out::counted(counts.samples, "sample"),
            some(counts.samples_without, "samples have none"),
            some(counts.rows_without, "rows name no sample of this import"),
        ))?;
    }
    if !report.field_types.is_empty() {
        let shown: Vec<String> =
            field_types(report).map(|(name, kind)| format!("{name} {kind}")).collect();
        out.line(format!("  types      {}", shown.join(", ")))?;
    }
    print_media(out, report)?;
    if report.chunks_found > 0 {
        out.line(format!("  resumed    {} chunks were in place", out::count(report.chunks_found)))?;
    }
    if report.live_samples != report.samples {
        out.line(format!("  in all     {}", out::counted(report.live_samples, "sample")))?;
    }
    print_taken(out, &report.file_counts)?;
    if !report.bad.is_empty() {
        out.line(format!("  left out   {}:", out::counted(report.bad.len() as u64, "entry")))?;
        for entry in &report.bad {
            let within = within(entry).map_or_else(String::new, |within| within + ": ");
            out.line(format!("    {within}{}: {}", out::safe_name(&entry.name), entry.why()))?;
        }
    }
    let image = image.as_argument();
    out.line(out.dim(&format!("  next       dlfs read {image}   or   dlfs serve {image}")))
}

/// Prints the share of the media that is not samples, and a note if tight packing saves little.
fn print_media(out: &mut Out, report: &ImportReport) -> Result<(), Failure> {
    let media = &report.media;
    let pack = report.pack;
    let overhead = media.overhead_bytes(pack);
    let written = media.sample_bytes + overhead;
    if written == 0 {
        return Ok(()); // the resumed import was already complete
    }
    let percent = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / written as f64);
    out.line(format!(
        "  media      {} of {} written are not samples: headers {}, padding {}, directory {}",
        percent(overhead),
        out::bytes(written),
        out::bytes(media.header_bytes),
        out::bytes(media.padding_of(pack)),
        out::bytes(media.directory_bytes),
    ))?;
    if pack == Pack::Tight && media.alignment_bytes < written / 100 {
        out.line(format!(
            "  pack       tight saves {}: without it, reads of single samples touch fewer blocks",
            percent(media.alignment_bytes)
        ))?;
    }
    Ok(())
}

/// Prints the kinds of files. If each file is a sample, a kind is an extension, of which [`MAX_SHOWN`] have a line.
fn print_taken(out: &mut Out, taken: &[FileCount]) -> Result<(), Failure> {
    let (shown, others) = match taken.split_at_checked(MAX_SHOWN) {
        Some((shown, [_, _, ..])) if shown[0].role == Role::Sample => (shown, &taken[MAX_SHOWN..]),
        _ => (taken, &[][..]),
    };
    for taken in shown {
        let (label, end) = match taken.role {
            Role::Sample if taken.files == 1 => ("taken", " as a sample"),
            Role::Sample => ("taken", ", each as a sample"),
            Role::Shard => ("taken", " for the samples within"),
            Role::Appended => ("taken", " in the same file"),
            Role::List => ("taken", " for the files named there"),
            Role::SetAside => ("set aside", ""),
            Role::Followed => ("followed", ""),
        };
        let example = out::safe_name(&taken.example);
        let example = match taken.files {
            1 => format!(": {example}"),
            _ => format!(", such as {example}"),
        };
        out.line(format!(
            "  {label:<10} {} {} ({}){end}{}{}",
            out::count(taken.files),
            taken.noun(),
            out::bytes(taken.bytes),
            if taken.role == Role::Sample { "" } else { &example },
            taken.option().map(|option| format!("; {option}")).unwrap_or_default(),
        ))?;
    }
    if !others.is_empty() {
        let files = others.iter().map(|taken| taken.files).sum();
        let bytes = total(others.iter().map(|taken| taken.bytes));
        out.line(format!(
            "  taken      {} ({}) of {} more extensions, each as a sample",
            out::counted(files, "file"),
            out::bytes(bytes),
            others.len()
        ))?;
    }
    Ok(())
}

/// The archive or file that holds an entry, if the entry is within one.
fn within(entry: &BadEntry) -> Option<String> {
    let path = entry.within.as_ref()?;
    Some(out::safe_name(path.as_os_str().as_bytes()))
}
