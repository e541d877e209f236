//! Mounting on a folder, and unmounting this mount and no other: [`MountPoint`].
//!
//! `fuser` could mount, too, but its handle unmounts any file system that is mounted at the path at that time, even if
//! the session of the handle has ended.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dlfs::process::receive_files;
use dlfs::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

/// A folder on which we have mounted a file system.
pub(crate) struct MountPoint {
    /// The folder, as an absolute path without symbolic links.
    pub(crate) path: PathBuf,
    /// The device of the mounted file system: unique while the connection lives.
    device: Device,
    /// The connection to the kernel. It ends before another file system can get the device number.
    connection: OwnedFd,
}

/// Major and minor number of a device.
type Device = (u32, u32);

impl MountPoint {
    /// Mounts on `path`; if the kernel answers EPERM, through `fusermount3`. `source` is shown as the device; `all`
    /// lets other users use the mount. Also returns the connection to the kernel.
    pub(crate) fn mount(path: &Path, source: &str, all: bool) -> io::Result<(OwnedFd, MountPoint)> {
        let path = path.canonicalize()?; // the program may change its working directory
        let opened = match mount_directly(&path, source, all) {
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                mount_by_helper(&path, source, all)?
            }
            opened => opened?,
        };
        let parts = device_at(&path).and_then(|device| Ok((device, opened.try_clone()?)));
        match parts {
            Ok((device, connection)) => Ok((opened, MountPoint { path, device, connection })),
            Err(error) => {
                // Without its connection the mount would be dead.
                if unmount_at(&path) == Err(Errno::PERM) {
                    let _ = helper_unmounts(&path).output(); // the first error says why
                }
                Err(error)
            }
        }
    }

    /// Unmounts, even while files are open. Does nothing if the mount has ended.
    ///
    /// # Errors
    /// `Busy`: another file system is mounted on top. `Refused`, `Io`: the kernel or `fusermount3` refuses.
    pub(crate) fn unmount(&self) -> Result<()> {
        let is_on_top = device_at(&self.path).ok() == Some(self.device);
        let is_mounted = self.is_mounted();
        // Checked last: if the connection had ended before, the device number could have passed to another
        // mount.
        if !is_mounted || !self.is_connected() {
            return Ok(());
        }
        if !is_on_top {
            return Err(self.covered_error());
        }
        match unmount_at(&self.path) {
            Ok(()) => Ok(()),
            Err(Errno::PERM) => self.unmount_by_helper(),
            Err(errno) => Err(Error::from(io::Error::from(errno)).path(self.path.clone())),
        }
    }

    /// Returns whether the connection to the kernel still lives: it has no error to report.
    fn is_connected(&self) -> bool {
        let mut polled = [PollFd::new(&self.connection, PollFlags::empty())];
        let found = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&NOW)));
        found.is_ok() && !polled[0].revents().contains(PollFlags::ERR)
    }

    /// Returns whether the mount is at the path, even below another mount.
    fn is_mounted(&self) -> bool {
        let (major, minor) = self.device;
        let device = format!("{major}:{minor}");
        let path = escaped(&self.path);
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        table.split(|&byte| byte == b'\n').any(|line| {
            let mut words = line.split(|&byte| byte == b' ').skip(2);
            words.next() == Some(device.as_bytes()) && words.nth(1) == Some(&path)
        })
    }

    fn covered_error(&self) -> Error {
        let error =
            Error::new(ErrorKind::Busy, "another file system is mounted on top of this mount");
        error.path(self.path.clone()).hint("unmount both: `umount DIR` takes the upper one first")
    }

    fn unmount_by_helper(&self) -> Result<()> {
        let output = helper_unmounts(&self.path).output()?;
        if output.status.success() {
            Ok(())
        } else {
            let stderr_text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::new(ErrorKind::Refused, stderr_text).path(self.path.clone()))
        }
    }
}

/// The program that mounts for users who are not root.
const FUSERMOUNT: &str = "fusermount3";
/// The timeout of a poll that does not wait.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Unmounts the upper file system at `path`.
fn unmount_at(path: &Path) -> rustix::io::Result<()> {
    rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

/// The helper's command that unmounts the upper file system at `path`.
fn helper_unmounts(path: &Path) -> Command {
    let mut helper = Command::new(FUSERMOUNT);
    helper.args(["-u", "-z", "--"]).arg(path);
    helper
}

/// The device of the file system at `path`. Asks only the kernel, since the file system may not answer.
fn device_at(path: &Path) -> io::Result<Device> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// A path as `/proc/self/mountinfo` writes it.
fn escaped(path: &Path) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![byte],
    };
    path.as_os_str().as_encoded_bytes().iter().flat_map(escape).collect()
}

fn mount_directly(path: &Path, source: &str, all: bool) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let folder = File::open(path)?.metadata()?;
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let fd = device.as_raw_fd();
    let mode = folder.mode();
    let allow = if all { ",allow_other" } else { "" };
    let data = format!(
        "fd={fd},rootmode={mode:o},user_id={user},group_id={group},default_permissions{allow}\0"
    );
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).map_err(io::Error::other)?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    rustix::mount::mount(source, path, "fuse.dlfs", flags, data)?;
    Ok(device.into())
}

/// Mounts through the setuid helper for ordinary users, which sends the connection over a socket.
fn mount_by_helper(path: &Path, source: &str, all: bool) -> io::Result<OwnedFd> {
    // Commas separate options; the source is only displayed, so a changed character does not matter.
    let source = source.replace(',', ";");
    let allow = if all { ",allow_other" } else { "" };
    let options =
        format!("ro,nodev,nosuid,noatime,default_permissions,subtype=dlfs,fsname={source}{allow}");
    let (ours, theirs) = UnixStream::pair()?;
    let mut helper = Command::new(FUSERMOUNT);
    // The helper finds the socket at descriptor 0, its standard input.
    helper.args(["-o", &options, "--"]).arg(path).env("_FUSE_COMMFD", "0");
    helper.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = helper.spawn()?;
    drop(helper); // closes our copy of the helper's end of the socket: `receive` then sees the helper close it
    let received = receive(&ours);
    drop(ours);
    let mut stderr_text = String::new();
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_string(&mut stderr_text)?;
    }
    child.wait()?;
    received?.ok_or_else(|| io::Error::other(stderr_text.trim().to_owned()))
}

/// The file descriptor that is sent over `socket`; `None`: the socket was closed without one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut files = Vec::new();
    receive_files(socket, &mut [0], &mut files)?;
    Ok(files.into_iter().next())
}
