//! The place of a mount: mounts there, and later unmounts only that mount.
//!
//! `fuser` is not used for this: its handle would unmount whatever is mounted at the path by then, even after
//! its own session has ended.

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

/// A mounted folder.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// The device of the mounted file system: unique while the connection lives.
    device: Device,
    /// The connection to the kernel. It ends before another file system can get the device number.
    connection: OwnedFd,
}

type Device = (u32, u32);

impl Place {
    /// Mounts on `path`; if the kernel answers EPERM, through `fusermount3`. Also returns the connection to the kernel.
    pub(crate) fn mount(path: &Path, source: &str, all: bool) -> io::Result<(OwnedFd, Place)> {
        let path = path.canonicalize()?; // the program may change its working directory
        let opened = match mount_directly(&path, source, all) {
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                mount_by_helper(&path, source, all)?
            }
            opened => opened?,
        };
        let device = device_at(&path)?;
        let connection = opened.try_clone()?;
        Ok((opened, Place { path, device, connection }))
    }

    /// Unmounts, even while files are open, unless somebody else did.
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
            return Err(self.covered());
        }
        match rustix::mount::unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(Errno::PERM) => self.unmount_by_helper(),
            Err(errno) => Err(Error::from(io::Error::from(errno)).path(self.path.clone())),
        }
    }

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

    fn covered(&self) -> Error {
        let error =
            Error::new(ErrorKind::Busy, "another file system is mounted on top of this mount");
        error.path(self.path.clone()).hint("unmount both: `umount DIR` takes the upper one first")
    }

    fn unmount_by_helper(&self) -> Result<()> {
        let mut helper = Command::new(HELPER);
        let output = helper.args(["-u", "-z", "--"]).arg(&self.path).output()?;
        if output.status.success() {
            Ok(())
        } else {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::new(ErrorKind::Refused, said).path(self.path.clone()))
        }
    }
}

/// The program that mounts for users who are not root.
const HELPER: &str = "fusermount3";
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

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
    let mut helper = Command::new(HELPER);
    // The helper finds the socket at descriptor 0, its standard input.
    helper.args(["-o", &options, "--"]).arg(path).env("_FUSE_COMMFD", "0");
    helper.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = helper.spawn()?;
    drop(helper); // and our copy of its end of the socket
    let received = receive(&ours);
    drop(ours);
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_string(&mut said)?;
    }
    child.wait()?;
    received?.ok_or_else(|| io::Error::other(said.trim().to_owned()))
}

/// The file descriptor that is sent over `socket`; `None` if the socket is closed instead.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut files = Vec::new();
    receive_files(socket, &mut [0], &mut files)?;
    Ok(files.into_iter().next())
}
