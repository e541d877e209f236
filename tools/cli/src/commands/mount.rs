//! `dlfs mount` shows an image as a folder, through FUSE; `cached` keeps copies of it for the jobs of this machine.
//!
//! The file system is in `tools/mount/`. This file opens the image, goes to the background, and follows an order file.

use std::io::{BufRead, BufReader, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use serde_json::json;
use signal_hook::consts::SIGUSR1;

use dlfs::address::Address;
use dlfs::cache::{Cache, CacheStats, TierStats};
use dlfs::dataset::{Dataset, Files, Image, OrderFile};
use dlfs::options::Tiers;
use dlfs::units::parse_size;
use dlfs::{Error, ErrorKind};
use dlfs_mount::{Mounted, Options, mount};

use crate::args::{ConnectionArgs, ImageArgs, MetricsArgs, tiers};
use crate::exit::{Failure, GRACE, GRACE_FOR_TIERS, Outcome, Stop, asked_by_signals};
use crate::log;
use crate::out::{self, Out};

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
    let mut order = args.order.map(Order::new).transpose()?;
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

/// Waits until somebody unmounts it, or a signal asks for it.
fn wait(mounted: Mounted, stop: &Stop, mut order: Option<Order>) -> Result<Outcome, Failure> {
    while !mounted.has_ended() {
        if let Some(order) = &mut order
            && order.has_changed()
            && let Err(error) = order.follow(&mounted)
        {
            // The previous order stays.
            crate::log::say(&format!("the order is not followed: {}", error.report()));
        }
        if stop.is_set_within(LOOK) {
            mounted.unmount()?;
            return Ok(Outcome::Done);
        }
    }
    mounted.wait()?;
    Ok(Outcome::Done)
}

/// The file with the order in which samples are read.
struct Order {
    path: PathBuf,
    /// The file's modification time and inode number, to notice changes.
    seen: Option<(SystemTime, u64)>,
}

impl Order {
    fn new(path: PathBuf) -> Result<Order, Failure> {
        // The program will change its working directory.
        Ok(Order { path: std::path::absolute(path).map_err(Error::from)?, seen: None })
    }

    fn follow(&mut self, mounted: &Mounted) -> dlfs::Result<()> {
        self.seen = self.look(); // before reading it, so that a later change is noticed
        mounted.follow(&OrderFile::load(&self.path)?)
    }

    fn has_changed(&self) -> bool {
        let now = self.look();
        now.is_some() && now != self.seen
    }

    fn look(&self) -> Option<(SystemTime, u64)> {
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
    let mut said = tempfile::tempfile().map_err(Error::from)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(said.try_clone().map_err(Error::from)?)
        .spawn()
        .map_err(Error::from)?;
    let mut line = String::new();
    let stdout = child.stdout.take();
    let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line)).transpose();
    if read.map_err(Error::from)?.unwrap_or(0) > 0 {
        let mut out = Out::new();
        out.line(line.trim_end())?;
        return out.end(Outcome::Done);
    }
    let code = child.wait().map_err(Error::from)?.code();
    said.rewind().map_err(Error::from)?;
    std::io::copy(&mut said, &mut std::io::stderr()).map_err(Error::from)?;
    Ok(match code {
        Some(3) => Outcome::Damaged,
        Some(4) => Outcome::Stopped,
        _ => Outcome::Incomplete,
    })
}

/// The environment variable that is set for the background process.
const DETACHED: &str = "DLFS_MOUNT_DETACHED";
/// Interval of checks for an unmount and a changed order.
const LOOK: Duration = Duration::from_millis(200);

const MOUNT_EXAMPLES: &str = "\
Examples:
  dlfs mount train.dlfs /mnt/train
  dlfs mount nvme-tcp://storage/nqn.2026-11.io.dlfs:train /mnt/train --tier ram:8G
  fusermount3 -u /mnt/train";

/// Keep the tiers of an image between jobs
///
/// Owns the tiers, as the first job on this node does without it. Jobs of the same user that name the same
/// tiers attach: they read its copies and add to them, and what is kept in memory is there for the next job.
/// Keeps what is read first and reads nothing by itself, except what this node holds for the others of a job
/// with --peers; or with --policy clairvoyant keeps and reads what the plans of the jobs name.
#[derive(Debug, Args)]
#[command(after_help = CACHED_EXAMPLES)]
pub(crate) struct CachedArgs {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    tiers: Tiers,
    /// Wait for the end of a job that owns the tiers already, and take over
    #[arg(long)]
    wait: bool,
    /// Write a line of statistics to the log at this interval
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    stats: Option<u32>,
    /// Print what it holds as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn cached(args: CachedArgs) -> Result<Outcome, Failure> {
    let options = tiers(&args.tiers, None)?;
    if !options.is_active() {
        return Err(Failure::Usage("name what to keep: --tier ram:20G, for example".to_owned()));
    }
    let stop = Stop::on_signals(GRACE_FOR_TIERS, || Outcome::Done)?;
    let mut asked = asked_by_signals()?;
    let _metrics = args.metrics.serve()?;
    let image = args.image.open_with_tiers(&args.connection, options)?;
    image.check_copies();
    let cache = image.tiers().expect("opened with active tiers");
    if !own(cache, args.wait, &stop)? {
        return Ok(Outcome::Done);
    }
    announce(&args, &image, &cache.stats())?;
    let interval = args.stats.map(|seconds| Duration::from_secs(seconds.into()));
    let mut told = Instant::now();
    while !stop.is_set_within(WATCH) {
        let stats = cache.stats();
        if let Some(died) = &stats.died {
            return Err(Error::new(ErrorKind::Internal, died.clone()).into());
        }
        let is_due = interval.is_some_and(|interval| told.elapsed() >= interval);
        if is_due {
            told = Instant::now();
        }
        let is_asked = asked.pending().filter(|&signal| signal == SIGUSR1).count() > 0;
        if is_asked || is_due {
            log::say(&statistics(&stats));
        }
    }
    let stats = statistics(&cache.stats());
    drop(image);
    log::say(&stats);
    Ok(Outcome::Done)
}

/// Waits, if `waits` allows it, until this process owns the tiers; `false`: it was told to stop first.
fn own(cache: &Cache, waits: bool, stop: &Stop) -> Result<bool, Failure> {
    let mut told = None;
    while let Some(owner) = cache.owner() {
        if !waits {
            let text = format!("{} owns these tiers", describe(owner));
            let hint = "jobs share them as they are; --wait takes over when it ends";
            return Err(Error::new(ErrorKind::Busy, text).hint(hint).into());
        }
        if told != Some(owner) {
            log::say(&format!("{} owns these tiers: waiting for its end", describe(owner)));
            told = Some(owner);
        }
        if stop.is_set_within(WATCH) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `process 4711 (python train.py --epochs 9)`.
fn describe(pid: u32) -> String {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = command.split(|&byte| byte == 0).map(out::safe_name).collect();
    let command = words.join(" ");
    match command.trim_end() {
        "" => format!("process {pid}"), // in another PID namespace, or already gone
        command => {
            let short: String = command.chars().take(MAX_COMMAND).collect();
            let more = if short.len() < command.len() { "…" } else { "" };
            format!("process {pid} ({short}{more})")
        }
    }
}

fn announce(args: &CachedArgs, image: &Image, stats: &CacheStats) -> Result<Outcome, Failure> {
    let directory = image.directory();
    let generation = directory.generation().0;
    let name = args.image.image.to_string();
    let facts = json!({
        "pid": std::process::id(), "image": name, "uuid": directory.uuid().to_string(),
        "generation": generation, "tiers": stats.tiers,
    });
    Out::answer(args.json, &facts, |out| {
        out.line(format!("caching {} (generation {generation})", out.bold(&name)))?;
        for tier in &stats.tiers {
            let used = out::bytes(tier.used_bytes);
            let capacity = out::bytes(tier.capacity_bytes);
            out.line(format!("  tier       {}: {used} of {capacity} used", tier.name))?;
        }
        out.line(out.dim("  Ctrl-C ends it"))
    })
}

/// One line with the content and counters of the tiers. Hits are left out, since jobs count their own.
fn statistics(stats: &CacheStats) -> String {
    let mut line = format!("statistics attached={}", stats.attached.unwrap_or_default());
    for (number, tier) in stats.tiers.iter().enumerate() {
        let TierStats { used_bytes, capacity_bytes, fills, fill_bytes, .. } = tier;
        let TierStats { restored, damaged, is_off, .. } = tier;
        line.push_str(&format!(
            " tier={number} used_bytes={used_bytes} capacity_bytes={capacity_bytes} fills={fills} \
             fill_bytes={fill_bytes} restored={restored} damaged={damaged} off={is_off}"
        ));
    }
    let origin = stats.origin;
    line.push_str(&format!(" origin_bytes={}", origin.bytes + origin.copier_bytes));
    line
}

/// Interval of checks for the owner's end, for signals and for the copier.
const WATCH: Duration = Duration::from_millis(200);
/// The most characters of a command line in a message.
const MAX_COMMAND: usize = 120;
const CACHED_EXAMPLES: &str = "\
Examples:
  dlfs cached nvme-tcp://node1/nqn.2026-11.io.dlfs:train --tier ram:20G --tier file:/nvme/cache:200G
  dlfs cached train.dlfs --tier ram:20G --wait       # takes over from a job that runs

A job that names the same tiers attaches: dlfs read, dlfs.open(..., tiers=[...]) in Python. When the
image gets a new generation, end it and start it again: it keeps the generation that it has opened.

Signals: SIGINT and SIGTERM end it, SIGUSR1 writes a line of statistics to the log, SIGHUP changes
nothing.
Exit code 1 when a job owns the tiers already; the message names it.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_with_its_command_where_it_is_known() {
        let own = describe(std::process::id());
        assert!(own.starts_with(&format!("process {} (", std::process::id())), "{own}");
        assert_eq!(describe(0), "process 0");
    }

    #[test]
    fn the_command_line_of_a_process_does_not_reach_the_terminal_as_it_is() {
        use std::io::Read as _;
        use std::process::{Command, Stdio};
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; read x", "red\x1b[31m\nline"]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap(); // its command line is there
        let id = child.id();
        let described = describe(id);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(described, format!("process {id} (sh -c echo; read x red\\u{{1b}}[31m\\nline)"));
    }
}
