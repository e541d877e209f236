//! Record files of 128 MiB, read in pieces over a slow folder with a tier for 55 % of them: Monarch's case.
//!
//! The slow folder is a mount over a link of a fixed rate, whose pages are dropped before each epoch.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use dlfs::nvme::Address;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

use crate::places::{Mount, Places, preloaded};
use crate::reads::drop_pages;
use crate::report::{figure, limited};
use crate::support::{Options, Side};
use crate::throttle::Throttled;

/// Three epochs, without the library and with it.
pub(crate) fn records(places: &Places, options: &Options) {
    let (count, len) = (options.number("records"), options.number("record-mib") << 20);
    let source = places.folder("records");
    for file in 0..count {
        let word = |at: u64| (at ^ file << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let bytes: Vec<u8> = (0..len / 8).flat_map(word).collect();
        std::fs::write(source.join(format!("part-{file:05}.tfrecord")), bytes).expect("room");
    }
    let image = places.imported(&source, "records.dlfs");
    std::fs::remove_dir_all(&source).expect("it is ours");
    let device = qpair::open(&Address::Path(image), &ConnectOptions::default()).expect("the image");
    let slow = Throttled::new(device, options.number("link-mb") * 1_000_000);
    let nqn = "nqn.2026-11.io.dlfs:slow".parse().expect("a valid name");
    let listen = "127.0.0.1:0".parse().expect("a valid address");
    let target_options = TargetOptions { listen, ..TargetOptions::new(nqn) };
    let target = Target::bind(target_options, vec![Arc::new(slow)]).expect("a free port");
    let mount = Mount::dlfs(places, &target.address(Nsid(1)).to_string(), "records-mount");

    let (opens, reads) = (EPOCHS * count, EPOCHS * count * len.div_ceil(PIECE_BYTES));
    let report = places.path("records.report");
    let plain = epochs(&mount.folder, options, None);
    let tier = count * 55 / 100 * len.next_multiple_of(4096);
    let address = format!("{};tier=ram:{tier}", mount.folder.display());
    let tiered = epochs(&mount.folder, options, Some((&address, &report)));

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
    figure(&part, "the epochs took", &text);
}

/// Reads all files in each epoch; the seconds of each.
fn epochs(folder: &Path, options: &Options, library: Option<(&str, &Path)>) -> Vec<f64> {
    let mut command = Command::new(options.text("python"));
    command.args(["-c", include_str!("records.py")]).arg(folder).arg(PIECE_BYTES.to_string());
    if let Some((address, report)) = library {
        preloaded(&mut command, folder, address).env("DLFS_REPORT", report);
    }
    let mut side = Side::run(&mut command);
    let epoch = |epoch: u64| {
        drop_pages(folder);
        side.tell(&epoch.to_string());
        side.line().parse().expect("seconds")
    };
    (0..EPOCHS).map(epoch).collect()
}

const EPOCHS: u64 = 3;
const PIECE_BYTES: u64 = 256 << 10;
