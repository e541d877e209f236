//! Files on an ext4 of their own, and programs that read it at a fixed rate and with so much memory at most: by control
//! groups, of either version.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::places::{Mount, Places};

/// A control group for each controller, removed at the end.
pub(crate) struct Shape {
    groups: Vec<PathBuf>,
}

impl Shape {
    /// Reads of the block device `device` (`MAJOR:MINOR`) at this rate, and this much memory, which the page cache is
    /// part of.
    pub(crate) fn new(device: &str, read_bytes_per_s: u64, memory_bytes: u64) -> Shape {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("dlfs-doors-{}", std::process::id());
        let rate = format!("{device} {read_bytes_per_s}");
        let memory = memory_bytes.to_string();
        let settings = if root.join("blkio").is_dir() {
            [
                ("blkio", "blkio.throttle.read_bps_device", rate),
                ("memory", "memory.limit_in_bytes", memory),
            ]
        } else {
            [
                ("", "io.max", format!("{device} rbps={read_bytes_per_s}")),
                ("", "memory.max", memory),
            ]
        };
        let mut shape = Shape { groups: Vec::new() };
        for (controller, setting, value) in settings {
            let group = root.join(controller).join(&name);
            if !shape.groups.contains(&group) {
                std::fs::create_dir(&group).expect("root, and control groups");
                shape.groups.push(group.clone());
            }
            std::fs::write(group.join(setting), value).expect("a controller of the groups");
        }
        shape
    }

    /// `program` within the groups.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "sh"]).args(&self.groups).args(["--", program]);
        command
    }
}

/// Enters the groups before `--`, and becomes the program behind it.
const ENTER: &str = r#"while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@""#;

impl Drop for Shape {
    fn drop(&mut self) {
        self.groups.iter().for_each(|group| _ = std::fs::remove_dir(group));
    }
}

/// An ext4 with the files of `source`, mounted; and its block device, as `MAJOR:MINOR`.
pub(crate) fn ext4(places: &Places, source: &Path, len_bytes: u64) -> (Mount, String) {
    let image = places.path("shaped.ext4");
    let blocks = (len_bytes + len_bytes / 16) / 4096 + 16384;
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]).arg(source).arg(&image);
    let status = command.arg(blocks.to_string()).status().expect("mke2fs is installed");
    assert!(status.success(), "mke2fs made no file system");
    let mut command = Command::new("mount");
    command.args(["-t", "ext4", "-o", "loop,ro"]).arg(&image);
    let mount = Mount::by(command, places.folder("shaped"));
    let device = Command::new("findmnt").args(["-no", "MAJ:MIN"]).arg(&mount.folder).output();
    let device = String::from_utf8(device.expect("findmnt is installed").stdout).expect("numbers");
    (mount, device.trim().to_owned())
}
