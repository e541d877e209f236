//! Record files of 128 MiB, read in pieces from a slow file system by a job whose memory holds 34 % of them, with
//! a tier for 55 %: Monarch's case (CCGrid 2022), of 68 GiB of memory and 110 GiB of SSD for 200 GiB on a parallel file
//! system.

use std::path::Path;

use crate::places::{Places, preloaded};
use crate::reads::drop_pages;
use crate::report::limited;
use crate::shaped::{Shape, ext4};
use crate::support::{Options, Side};

/// Three epochs, without the library and with it.
pub(crate) fn records(places: &Places, options: &Options) {
    let count = options.number("records");
    let len = options.number("record-mib") << 20;
    let source = places.folder("records");
    for file in 0..count {
        let word = |at: u64| (at ^ file << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let bytes: Vec<u8> = (0..len / 8).flat_map(word).collect();
        std::fs::write(source.join(format!("part-{file:05}.tfrecord")), bytes).expect("room");
    }
    let (mount, device) = ext4(places, &source, count * len);
    std::fs::remove_dir_all(&source).expect("it is ours");
    let rate = options.number("link-mb") * 1_000_000;
    let shape = Shape::new(&device, rate, count * len * MEMORY_PERCENT / 100);

    let opens = EPOCHS * count;
    let reads = EPOCHS * count * len.div_ceil(PIECE_BYTES);
    let report = places.path("records.report");
    let plain = epochs(&shape, &mount.folder, options, None);
    // So many files, and the tier's index.
    let tier = count * TIER_PERCENT / 100 * len.next_multiple_of(4096) + len / 2;
    let folder = places.folder("records-tier");
    let address = format!("{};tier=file:{}:{tier}", mount.folder.display(), folder.display());
    let tiered = epochs(&shape, &mount.folder, options, Some((&address, &report)));

    let part = format!("{count} record files");
    let report = std::fs::read_to_string(report).expect("the library's report");
    let at_origin = |name: &str| -> u64 {
        let line = report.lines().rfind(|line| line.contains("at the origin")).expect("a line");
        let value = line.split(name).nth(1).and_then(|rest| rest.split([',', ' ']).next());
        value.expect("a value").trim().parse().expect("a number")
    };
    for (name, before, bar) in [("reads ", reads, 52.0), ("opens ", opens, 36.0)] {
        let now = at_origin(name);
        let cut = (1.0 - now as f64 / before as f64) * 100.0;
        let text = format!("{now} of {before}, {cut:.1} % fewer");
        limited(&part, &format!("{name}of the origin"), &text, &format!("{bar} %"), cut >= bar);
    }
    let list = |seconds: &[f64]| seconds.iter().map(|s| format!("{s:.1}")).collect::<Vec<_>>();
    let text = format!(
        "{} s, without the library {} s",
        list(&tiered).join(", "),
        list(&plain).join(", ")
    );
    let sum = |seconds: &[f64]| seconds.iter().sum::<f64>();
    let all = sum(&tiered) / sum(&plain);
    let first = tiered[0] / plain[0];
    limited(
        &part,
        "all epochs, beside those without the library",
        &format!("{all:.2}: {text}"),
        "0.72",
        all <= 0.72,
    );
    limited(&part, "the first epoch, beside", &format!("{first:.2}"), "1.02", first <= 1.02);
}

/// Reads all files in each epoch; the seconds of each.
fn epochs(
    shape: &Shape,
    folder: &Path,
    options: &Options,
    library: Option<(&str, &Path)>,
) -> Vec<f64> {
    let mut command = shape.command(options.text("python"));
    command.args(["-c", include_str!("records.py")]).arg(folder).arg(PIECE_BYTES.to_string());
    if let Some((address, report)) = library {
        preloaded(&mut command, folder, address).env("DLFS_REPORT", report);
    }
    let mut side = Side::run(&mut command);
    drop_pages(folder);
    let epoch = |epoch: u64| {
        side.tell(&epoch.to_string());
        side.line().parse().expect("seconds")
    };
    (0..EPOCHS).map(epoch).collect()
}

const EPOCHS: u64 = 3;
/// The part of the files that fits into the job's memory, and the part that fits into its tier.
const MEMORY_PERCENT: u64 = 34;
const TIER_PERCENT: u64 = 55;
const PIECE_BYTES: u64 = 256 << 10;
