//! Small disks, to be filled up.

use std::path::Path;
use std::process::Command;

/// A tmpfs of a given size, unmounted on drop.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with a message, if this process may not mount.
    pub fn new(len_bytes: u64) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={len_bytes},mode=700");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "dlfs-test"])
            .arg(folder.path())
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(SmallDisk(folder)),
            why => {
                println!("skipped: no small disk to fill up, mounting one failed: {why:?}");
                None
            }
        }
    }

    /// Makes it read-only.
    pub fn make_read_only(&self) {
        let mount = Command::new("mount").args(["-o", "remount,ro"]).arg(self.0.path()).status();
        assert!(mount.is_ok_and(|status| status.success()), "it was mounted by this process");
    }

    /// Its mount point.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let umount = Command::new("umount").arg("-l").arg(self.0.path()).status();
        if !umount.is_ok_and(|status| status.success()) {
            println!("{} stays mounted", self.0.path().display());
        }
    }
}

/// A block device over a file, detached on drop.
pub struct LoopDevice(std::path::PathBuf);

impl LoopDevice {
    /// `None`, with a message, if this process may not create one.
    pub fn new(file: &Path) -> Option<LoopDevice> {
        match Command::new("losetup").args(["--find", "--show"]).arg(file).output() {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).unwrap();
                Some(LoopDevice(path.trim_end().into()))
            }
            why => {
                println!("skipped: no block device, losetup failed: {why:?}");
                None
            }
        }
    }

    /// Path of the device.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detach = Command::new("losetup").arg("--detach").arg(&self.0).status();
        if !detach.is_ok_and(|status| status.success()) {
            println!("{} stays attached", self.0.display());
        }
    }
}
