//! Targets: what `filename=` names, opened once and shared by all jobs that name it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dlfs::address::{Address, SpdkAddress};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::plain::Plain;
use dlfs::qpair::{self, ConnectOptions, Device, Direct, Namespace, QueuePair};

use super::consent::{check_device, check_file};
use super::null::NullPair;
use super::plain_namespace;
use super::psync::PsyncPair;
use super::uring::UringPair;
use crate::options::Job;
use crate::options::job::Engine;
use crate::workload::random::Random;

/// An opened target, from which each job's thread makes a queue pair of its own.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// Its size, block length and limits.
    pub(crate) namespace: Namespace,
    /// The regular file that `unlink=` removes; a device's node is not the job's to remove.
    pub(crate) path: Option<PathBuf>,
    opened: Opened,
}

#[derive(Clone)]
enum Opened {
    Null,
    Device(Arc<dyn Device>),
    Psync(Arc<File>),
    IoUring(Arc<File>),
}

impl Target {
    /// A queue pair for one thread with up to `depth` outstanding I/Os.
    pub(crate) fn queue_pair(&self, depth: u64) -> Result<Box<dyn QueuePair>, String> {
        let namespace = self.namespace.clone();
        Ok(match &self.opened {
            Opened::Null => Box::new(Plain(NullPair::new(namespace))),
            Opened::Device(device) => device.queue_pair().map_err(|error| error.report())?,
            Opened::Psync(file) => Box::new(Plain(PsyncPair::new(Arc::clone(file), namespace))),
            Opened::IoUring(file) => {
                let pair = UringPair::new(Arc::clone(file), namespace, depth.clamp(1, 32_768));
                Box::new(pair.map_err(|error| format!("cannot create an io_uring: {error}"))?)
            }
        })
    }

    fn of_device(name: String, device: Arc<dyn Device>) -> Target {
        Target { name, namespace: device.namespace(), path: None, opened: Opened::Device(device) }
    }
}

/// All targets of a run, by engine, name and how they are opened.
#[derive(Default)]
pub(crate) struct Targets {
    opened: HashMap<(&'static str, String, Option<bool>), Target>,
    /// Targets that some job writes; they are opened for writing from the start.
    written: Vec<String>,
}

impl Targets {
    /// For a run with these jobs.
    pub(crate) fn for_jobs(jobs: &[Job]) -> Targets {
        let writers = jobs.iter().filter(|job| job.pattern.writes);
        let written = writers.flat_map(|job| names(job, 0)).collect();
        Targets { opened: HashMap::new(), written }
    }

    /// The targets of the `number`th clone of `job`, created and opened if necessary.
    ///
    /// # Errors
    /// A sentence that names the target.
    pub(crate) fn open(&mut self, job: &Job, number: u64) -> Result<Vec<Target>, String> {
        let mut names = names(job, number);
        if names.is_empty() {
            names.push(job.engine.name().to_owned()); // an engine without targets
        }
        let count = names.len() as u64;
        names.into_iter().map(|name| self.open_one(job, name, count)).collect()
    }

    fn open_one(&mut self, job: &Job, name: String, count: u64) -> Result<Target, String> {
        let engine = engine_of(job, &name)?;
        let key = (engine.name(), name.clone(), job.direct);
        if let Some(target) = self.opened.get(&key).filter(|t| {
            !engine.is_plain_file() || t.namespace.len_bytes() >= wanted_len(job, count)
        }) {
            return Ok(target.clone());
        }
        let written = self.written.contains(&name) || job.pattern.writes;
        let target = match engine {
            Engine::Null => null_target(job, name, count)?,
            Engine::Mem => mem_target(job, name, count)?,
            Engine::Psync | Engine::IoUring => plain_file(job, engine, name, count, written)?,
            Engine::Auto | Engine::Tcp | Engine::File | Engine::Spdk => {
                device(job, name, count, written)?
            }
        };
        self.opened.insert(key, target.clone());
        Ok(target)
    }
}

/// The names of a job's targets.
pub(crate) fn names(job: &Job, number: u64) -> Vec<String> {
    if let Some(text) = &job.filename {
        let folder = job.directory.as_ref().map(|folder| folder.trim_end_matches('/'));
        return split_names(text)
            .into_iter()
            .map(|name| match folder {
                Some(folder) if !name.starts_with('/') && !is_address(&name) => {
                    format!("{folder}/{name}")
                }
                _ => name,
            })
            .collect();
    }
    let Some(folder) = &job.directory else { return Vec::new() };
    (0..job.nrfiles).map(|file| format!("{folder}/{}.{number}.{file}", job.name)).collect()
}

/// Splits names at unescaped colons; colons in addresses need no backslash.
pub(crate) fn split_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut name = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match c {
            '\\' if after.starts_with([':', '\\']) => {
                name.push_str(&after[..1]);
                rest = &after[1..];
                continue;
            }
            // `spdk:` is a prefix of another address, not an address by itself.
            ':' if !is_address(&format!("{name}:"))
                || (name.trim() != "spdk" && is_address(&unescaped(after))) =>
            {
                names.push(std::mem::take(&mut name));
            }
            c => name.push(c),
        }
        rest = after;
    }
    names.push(name);
    names.retain(|name| !name.is_empty());
    names
}

fn unescaped(text: &str) -> String {
    text.replace("\\:", ":")
}

fn is_address(name: &str) -> bool {
    let name = name.trim_start();
    ["nvme-tcp:", "trtype:", "trtype=", "spdk:"].iter().any(|prefix| name.starts_with(prefix))
}

/// The engine for a target; `auto` chooses by its name.
fn engine_of(job: &Job, name: &str) -> Result<Engine, String> {
    let address = match job.engine {
        Engine::Null | Engine::Mem | Engine::Psync | Engine::IoUring => return Ok(job.engine),
        _ => address_of(job, name)?,
    };
    let found = match address {
        Address::Path(_) => Engine::File,
        Address::Tcp(_) => Engine::Tcp,
        Address::Spdk(_) => Engine::Spdk,
        Address::Objects(_) => {
            return Err(format!("{name} is in an object store, which is no engine of this bench"));
        }
        Address::Named(_) => {
            return Err(format!(
                "{name} is an image: give the address of a namespace of it (dlfs catalog show)"
            ));
        }
    };
    match job.engine {
        Engine::Auto => Ok(found),
        wanted if wanted == found => Ok(found),
        wanted => {
            Err(format!("{name} is a target for ioengine={}, not {}", found.name(), wanted.name()))
        }
    }
}

/// Parses an address in dlfs's form or in that of SPDK's fio plug-in: `trtype=TCP traddr=... ns=1`.
/// With `ioengine=spdk`, an NVMe/TCP address goes through SPDK.
pub(crate) fn address_of(job: &Job, name: &str) -> Result<Address, String> {
    let text = if name.trim_start().starts_with("trtype=") {
        name.split_whitespace().map(|word| word.replacen('=', ":", 1)).collect::<Vec<_>>().join(" ")
    } else {
        name.to_owned()
    };
    let address = text.parse().map_err(|error| format!("{name}: {error}"))?;
    Ok(match (job.engine, address) {
        (Engine::Spdk, Address::Tcp(address)) => Address::Spdk(SpdkAddress::Tcp(address)),
        (_, address) => address,
    })
}

/// How the library connects for `job`.
pub(crate) fn connect_options(job: &Job, writable: bool) -> Result<ConnectOptions, String> {
    let connection = &job.connection;
    let defaults = ConnectOptions::default();
    let seconds =
        |value: Option<u64>, default: Duration| value.map_or(default, Duration::from_secs);
    let needed = (job.depth() + 1).next_power_of_two().clamp(128, 32_768) as u16;
    let hostnqn = connection.hostnqn.as_ref().map(|text| text.parse());
    Ok(ConnectOptions {
        hdr_digest: connection.hdr_digest,
        data_digest: connection.data_digest,
        hostnqn: hostnqn.transpose().map_err(|error| format!("hostnqn: {error}"))?,
        queue_size: connection.queue_size.unwrap_or(needed),
        nr_io_queues: u16::try_from(job.numjobs).unwrap_or(u16::MAX).max(defaults.nr_io_queues),
        ctrl_loss_tmo: seconds(connection.ctrl_loss_tmo_s, CTRL_LOSS_TMO),
        io_timeout: seconds(connection.io_timeout_s, defaults.io_timeout),
        direct: match job.direct {
            Some(true) => Direct::On,
            Some(false) => Direct::Off,
            None => Direct::Auto,
        },
        writable,
        ..defaults
    })
}

fn wanted_len(job: &Job, count: u64) -> u64 {
    let size = job.size.map_or(0, |size| size.of(0)) / count;
    let parts = job.offset_increment.of(0).saturating_mul(job.numjobs - 1);
    job.offset.of(0).saturating_add(size).saturating_add(parts)
}

fn null_target(job: &Job, name: String, count: u64) -> Result<Target, String> {
    let len = wanted_len(job, count);
    if len == 0 {
        return Err("ioengine=null needs size=, since it has no target".to_owned());
    }
    let namespace = plain_namespace("null", len, 1, u16::MAX, "null");
    Ok(Target { name, namespace, path: None, opened: Opened::Null })
}

fn mem_target(job: &Job, name: String, count: u64) -> Result<Target, String> {
    let block = block_len(job);
    let len = wanted_len(job, count) / block * block;
    if len == 0 {
        return Err("ioengine=mem needs size=, since it has no target".to_owned());
    }
    let memory = MemNamespace::new(len, block as u32).map_err(|error| error.report())?;
    let most = job.block_range().1.next_multiple_of(4096).max(1 << 20);
    let most = u32::try_from(most).map_err(|_| "bs is too large".to_owned())?;
    let depth = u16::try_from(job.depth().max(256)).unwrap_or(u16::MAX);
    Ok(Target::of_device(name, Arc::new(memory.with_limits(most, depth))))
}

/// Block length of the namespace: 4,096 bytes if all blocks of the job are multiples of it, else 512.
fn block_len(job: &Job) -> u64 {
    if job.block_sizes().iter().all(|size| size.is_multiple_of(4096)) { 4096 } else { 512 }
}

fn device(job: &Job, name: String, count: u64, writable: bool) -> Result<Target, String> {
    let address = address_of(job, &name)?;
    if let Address::Path(path) = &address {
        check_kind(&name, path)?;
        if writable || removes(job, path) {
            check_file(job, &name, path)?;
        }
        // A file that is there and only read may be an image: it stays as long as it is.
        if writable || !path.exists() {
            make_long(&name, path, wanted_len(job, count))?;
        }
    }
    let device = qpair::open(&address, &connect_options(job, writable)?);
    let device = device.map_err(|error| error.report())?;
    if writable && device.namespace().read_only {
        return Err(format!("{name} is read-only, and rw={} writes", job.rw));
    }
    if writable && !matches!(address, Address::Path(_)) {
        check_device(job, &name, &device)?;
    }
    let mut target = Target::of_device(name, device);
    if let Address::Path(path) = address {
        prepare_cache(job, &path);
        target.path = path.is_file().then_some(path);
    }
    Ok(target)
}

fn plain_file(
    job: &Job,
    engine: Engine,
    name: String,
    count: u64,
    written: bool,
) -> Result<Target, String> {
    if is_address(&name) {
        return Err(format!("ioengine={} works on plain files, not on {name}", engine.name()));
    }
    let path = PathBuf::from(&name);
    check_kind(&name, &path)?;
    let failed = |what: &str, error: std::io::Error| format!("cannot {what} {name}: {error}");
    let metadata = std::fs::metadata(&path).ok();
    let is_device = metadata.as_ref().is_some_and(|m| m.file_type().is_block_device());
    let wanted = wanted_len(job, count);
    let has = metadata.as_ref().map_or(0, |m| m.len());
    if written || removes(job, &path) || has < wanted {
        check_file(job, &name, &path)?;
    }
    make_long(&name, &path, wanted)?;
    prepare_cache(job, &path);
    let direct = if job.direct == Some(true) { libc::O_DIRECT } else { 0 };
    let file = OpenOptions::new()
        .read(true)
        .write(written)
        .custom_flags(direct | job.sync_flags)
        .open(&path)
        .map_err(|error| failed("open", error))?;
    let len = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
        .map_err(|errno| failed("find the size of", errno.into()))?;
    let file = Arc::new(file);
    let (opened, depth) = match engine {
        Engine::IoUring => (Opened::IoUring(file), 32_768),
        _ => (Opened::Psync(file), 1),
    };
    let block = if direct != 0 { 512 } else { 1 };
    let namespace = plain_namespace(&name, len, block, depth, engine.name());
    Ok(Target { name, namespace, path: (!is_device).then_some(path), opened })
}

/// Makes a file that does not exist, or is shorter than `wanted`, as fio does.
fn make_long(name: &str, path: &Path, wanted: u64) -> Result<(), String> {
    let metadata = std::fs::metadata(path).ok();
    if metadata.as_ref().is_some_and(|found| !found.is_file() || found.len() >= wanted) {
        return Ok(());
    }
    if wanted == 0 {
        return Err(format!("{name} does not exist, and without size= it cannot be made"));
    }
    let laid = lay_out(path, metadata.map_or(0, |found| found.len()), wanted);
    laid.map_err(|error| format!("cannot make {name}: {error}"))
}

/// Returns whether `unlink=1` removes `path` when the job ends: not the node of a block device.
pub(super) fn removes(job: &Job, path: &Path) -> bool {
    job.unlink && path.is_file()
}

/// Refuses other kinds of files before they are opened: opening a pipe would block until it has a writer.
fn check_kind(name: &str, path: &Path) -> Result<(), String> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) }; // opening it says what is wrong
    if metadata.is_file() || metadata.file_type().is_block_device() {
        Ok(())
    } else {
        Err(format!("{name} is neither a regular file nor a block device"))
    }
}

/// Extends a file with random bytes: reads of a hole would do no I/O.
fn lay_out(path: &Path, has: u64, wanted: u64) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let room = rustix::fs::fstatvfs(&file)?;
    if wanted - has > room.f_bavail.saturating_mul(room.f_frsize) {
        return Err(std::io::ErrorKind::StorageFull.into()); // known before the disk is full
    }
    let mut chunk = vec![0; LAYOUT_CHUNK_BYTES];
    let mut random = Random::new(has);
    let mut at = has;
    while at < wanted {
        random.fill(&mut chunk);
        let len = (wanted - at).min(chunk.len() as u64);
        file.write_all(&chunk[..len as usize])?;
        at += len;
    }
    file.sync_all()
}

/// Prepares the page cache for `invalidate=1` or `pre_read=1`, as far as possible: errors are ignored.
fn prepare_cache(job: &Job, path: &Path) {
    let Ok(mut file) = File::open(path) else { return };
    if job.pre_read {
        let mut chunk = vec![0; LAYOUT_CHUNK_BYTES];
        while file.read(&mut chunk).is_ok_and(|count| count > 0) {}
    } else if job.invalidate {
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed); // advice only
    }
}

/// Shorter than in training: a benchmark of a lost target should end soon.
const CTRL_LOSS_TMO: Duration = Duration::from_secs(10);
const LAYOUT_CHUNK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_separated_by_colons_that_are_not_escaped() {
        assert_eq!(split_names("a:b"), ["a", "b"]);
        assert_eq!(split_names(r"a\:b:c"), ["a:b", "c"]);
        let url = "nvme-tcp://h:4420/nqn.2026-11.io.dlfs:x?ns=1";
        assert_eq!(split_names(url), [url]);
        assert_eq!(split_names(&url.replace(':', "\\:")), [url]);
        assert_eq!(split_names(&format!("{url}:{url}")), [url, url]);
        assert_eq!(split_names(&format!("spdk:{url}:{url}")), [&format!("spdk:{url}"), url]);
        assert_eq!(split_names("trtype:TCP traddr:1.2.3.4 subnqn:nqn.2026-11.io.dlfs:x").len(), 1);
    }

    #[test]
    fn spdk_s_form_of_an_address_is_read() {
        let name =
            "trtype=TCP adrfam=IPv4 traddr=1.2.3.4 trsvcid=4420 subnqn=nqn.2026-11.io.dlfs:x ns=1";
        match address_of(&Job::default(), name).unwrap() {
            Address::Tcp(address) => assert_eq!(address.traddr, "1.2.3.4"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_without_a_name_are_called_after_job_and_number() {
        let job =
            Job { name: "j".into(), directory: Some("/d".into()), nrfiles: 2, ..Job::default() };
        assert_eq!(names(&job, 3), ["/d/j.3.0", "/d/j.3.1"]);
        let job = Job { filename: Some("x:/y".into()), ..job };
        assert_eq!(names(&job, 0), ["/d/x", "/y"]);
    }
}
