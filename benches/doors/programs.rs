//! torchvision's ImageFolder with a loader that returns bytes, undecoded, through each door.

use std::path::Path;
use std::process::Command;

use crate::places::{Mount, Places, preloaded};
use crate::reads::Sides;
use crate::report::{compared, figure};
use crate::support::files::make_files;
use crate::support::{Options, Side};

/// ImageFolder over files of 4 KiB and of 110 KiB.
pub(crate) fn folder(places: &Places, options: &Options) {
    for (name, count, len) in
        [("4k", options.number("files"), 4 << 10), ("110k", options.number("pictures"), 110 << 10)]
    {
        let plain = places.folder(&format!("folder-{name}"));
        make_files(&plain, count, len);
        let image = places.imported(&plain, &format!("folder-{name}.dlfs"));
        let address = image.to_string_lossy();
        let mount = Mount::dlfs(places, &address, &format!("folder-{name}-mount"));
        let shown = places.path(&format!("folder-{name}-shown"));
        let start = |folder: &Path, mode: &str, is_preloaded: bool| {
            let mut command = Command::new(options.text("python"));
            command.args(["-c", include_str!("image_folder.py")]).arg(folder).arg(mode);
            if is_preloaded {
                preloaded(&mut command, folder, &address);
            }
            let mut side = Side::run(&mut command);
            (side.line(), side)
        };
        let (kind, mut ext4) = start(&plain, "read", false);
        let mut all = vec![
            ("mount, dropped", start(&mount.folder, "drop", false).1),
            ("mount, kept", start(&mount.folder, "read", false).1),
            ("preload", start(&shown, "read", true).1),
            ("loop of memfds", start(&plain, "loop", false).1),
        ];
        let mut sides = Sides::default();
        for round in 0..=options.number("rounds") {
            let pass = |side: &mut Side| -> f64 {
                side.tell(&round.to_string());
                side.line().parse().expect("a rate")
            };
            sides.add(round, "ext4", pass(&mut ext4));
            for (name, side) in &mut all {
                sides.add(round, name, pass(side));
            }
        }
        let part = format!("folder, {} KiB", len >> 10);
        let beside = |own: &'static str, other: &'static str, bar| {
            let own = (own, sides.of(own));
            let other = (other, sides.of(other));
            compared(&part, own, other, ("files/s", bar));
        };
        let is_small = len <= 4 << 10;
        beside("preload", "mount, dropped", is_small.then_some(1.5));
        beside("preload", "loop of memfds", (!is_small).then_some(0.7));
        beside("preload", "ext4", None);
        beside("mount, kept", "ext4", None);
        figure(&part, "read by", &kind);
    }
}
