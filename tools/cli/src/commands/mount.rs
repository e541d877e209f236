//! `dlfs mount` shows an image as a folder, through FUSE.
//!
//! The file system is in `tools/mount/`. This file starts the command again in the background, opens the image, and
//! follows the file of `--order`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Args;

use dlfs::Error;
use dlfs::address::Address;
use dlfs::cache::Cache;
use dlfs::dataset::{Dataset, Files, OrderFile};
use dlfs::options::Tiers;
use dlfs::units::parse_size;
use dlfs_mount::{Mounted, Options, mount};

use crate::args::{ConnectionArgs, ImageArgs, MetricsArgs, tiers};
use crate::exit::{Failure, GRACE, GRACE_FOR_TIERS, Outcome, Stop};
use crate::log;
use crate::out::Out;

/// Show an image as a folder, read-only
///
/// Through FUSE: each sample is a file with its name, or a file NAME.FIELD for each field. Without
/// root it takes fusermount3 (Debian: fuse3). Returns once the folder is mounted; `fusermount3 -u
/// DIR` or `umount DIR` ends it. It shows the generation that is current now: mount again to see a
/// later one.
#[derive(Debug, Args)]
#[command(after_help = MOUNT_EXAMPLES)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// The folder to mount it on
    #[arg(value_name = "DIR")]
    place: PathBuf,
    /// Stay in the foreground until Ctrl-C or an unmount
    #[arg(short, long)]
    foreground: bool,
    /// Let other users use it; without root, /etc/fuse.conf must have user_allow_other
    #[arg(long)]
    allow_other: bool,
    /// Threads that take the kernel's requests
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=64))]
    threads: u8,
    /// Read ahead along the order that this file says: a state that a loader saved, or
    /// {"order": {"kind": "global", "seed": 7}}; read again whenever it changes
    #[arg(long, value_name = "FILE")]
    order: Option<PathBuf>,
    /// Let the kernel read files above 1 MiB by itself: the file that a tier in a folder keeps of it, that of a plain
    /// folder without tiers, or memory that the file is read into when it is opened, at most SIZE in all. Each open
    /// then costs a request. Takes root and Linux 6.9; else nothing changes
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    passthrough: Option<u64>,
    #[command(flatten)]
    tiers: Tiers,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn mount_image(args: MountArgs) -> Result<Outcome, Failure> {
    let is_detached = std::env::var_os(DETACHED).is_some();
    if !args.foreground && !is_detached {
        return start_in_background();
    }
    if is_detached {
        // A new session, so that the end of the terminal does not end this process.
        rustix::process::setsid().map_err(|errno| Error::from(std::io::Error::from(errno)))?;
    }
    let _metrics = args.metrics.serve()?;
    let tiers = tiers(&args.tiers, None)?;
    let grace = if tiers.tiers.is_empty() { GRACE } else { GRACE_FOR_TIERS };
    let image = args.image.open_with_tiers(&args.connection, tiers)?;
    let dataset = Dataset::from_image(image, Default::default());
    let files = Arc::new(Files::new(dataset, &mut ())?);
    let options = Options {
        threads: args.threads.into(),
        allow_other: args.allow_other,
        passthrough_bytes: args.passthrough,
    };
    let stop = Stop::on_signals(grace, || Outcome::Stopped)?;
    let source = Address::list_to_string(&args.image.image.0);
    let mounted = mount(Arc::clone(&files), &source, &args.place, &options)?;
    let mut order = args.order.map(FollowedOrder::new).transpose()?;
    if let Some(order) = &mut order {
        order.follow(&mounted)?;
    }
    let mut out = Out::new();
    out.line(format!("mounted {source} on {}", args.place.display()))?;
    out.flush()?;
    if is_detached {
        // So that the file system of the working directory can be unmounted.
        std::env::set_current_dir("/").map_err(Error::from)?;
    }
    let ended = wait(mounted, &stop, order);
    // Open files may keep the session and its tiers alive beyond this function, so nobody else would flush the tiers.
    files.dataset().image().tiers().into_iter().for_each(Cache::flush);
    ended
}

/// Waits until the folder is unmounted, or unmounts it when a signal arrives. Follows the order file meanwhile.
fn wait(
    mounted: Mounted,
    stop: &Stop,
    mut order: Option<FollowedOrder>,
) -> Result<Outcome, Failure> {
    while !mounted.has_ended() {
        if let Some(order) = &mut order
            && order.has_changed()
            && let Err(error) = order.follow(&mounted)
        {
            // The previous order stays.
            log::say(&format!("the order is not followed: {}", error.report()));
        }
        if stop.is_set_within(CHECK_INTERVAL) {
            mounted.unmount()?;
            return Ok(Outcome::Done);
        }
    }
    mounted.wait()?;
    Ok(Outcome::Done)
}

/// The file of `--order`, along which the mount reads ahead.
struct FollowedOrder {
    path: PathBuf,
    /// The version of the file that the mount follows.
    followed: Option<FileVersion>,
}

/// Modification time and inode number of a file, to notice changes.
type FileVersion = (SystemTime, u64);

impl FollowedOrder {
    fn new(path: PathBuf) -> Result<FollowedOrder, Failure> {
        // The program will change its working directory.
        Ok(FollowedOrder { path: std::path::absolute(path).map_err(Error::from)?, followed: None })
    }

    /// Makes the mount follow the file as it is now.
    fn follow(&mut self, mounted: &Mounted) -> dlfs::Result<()> {
        self.followed = self.version(); // before reading it, so that a later change is noticed
        mounted.follow(&OrderFile::load(&self.path)?)
    }

    fn has_changed(&self) -> bool {
        let now = self.version();
        now.is_some() && now != self.followed
    }

    /// The current version of the file; `None` if there is no file.
    fn version(&self) -> Option<FileVersion> {
        let found = std::fs::metadata(&self.path).ok()?;
        Some((found.modified().ok()?, found.ino()))
    }
}

/// Starts this command again in the background, and returns once that process has mounted or has ended.
fn start_in_background() -> Result<Outcome, Failure> {
    let mut arguments = std::env::args_os();
    let _ = arguments.next(); // the program's own name
    let program = std::env::current_exe().map_err(Error::from)?;
    // A file instead of this process's stderr: a caller that reads stderr to its end must not wait for the
    // background process.
    let stderr = tempfile::tempfile().map_err(Error::from)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr.try_clone().map_err(Error::from)?)
        .spawn()
        .map_err(Error::from)?;
    let mut line = String::new();
    let stdout = child.stdout.take();
    let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line)).transpose();
    if read.map_err(Error::from)?.unwrap_or(0) > 0 {
        // Its messages so far, such as the address of its metrics. The reader of stderr may have gone.
        let _ = copy(&stderr, &mut io::stderr());
        let mut out = Out::new();
        out.line(line.trim_end())?;
        return out.end(Outcome::Done);
    }
    let code = child.wait().map_err(Error::from)?.code();
    copy(&stderr, &mut io::stderr()).map_err(Error::from)?;
    Ok(match code {
        Some(3) => Outcome::Damaged,
        Some(4) => Outcome::Stopped,
        _ => Outcome::Incomplete,
    })
}

/// Copies what is in `file` now, from its begin. Leaves its position, which is also that of a process that writes.
fn copy(file: &File, to: &mut impl io::Write) -> io::Result<()> {
    let mut bytes = [0; 4096];
    let mut at = 0;
    loop {
        let len = file.read_at(&mut bytes, at)?;
        if len == 0 {
            return Ok(());
        }
        to.write_all(&bytes[..len])?;
        at += len as u64;
    }
}

/// The environment variable that is set for the background process.
const DETACHED: &str = "DLFS_MOUNT_DETACHED";
/// Interval of checks for an unmount and a changed order.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

const MOUNT_EXAMPLES: &str = "\
Examples:
  dlfs mount train.dlfs /mnt/train
  dlfs mount nvme-tcp://storage/nqn.2026-11.io.dlfs:train /mnt/train --tier ram:8G
  fusermount3 -u /mnt/train";
