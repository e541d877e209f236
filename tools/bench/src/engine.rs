//! The targets of `filename=`: namespaces behind the library's queue pairs, or `null`, which measures this tool.
//!
//! Jobs share an opened target if they name it with the same `ioengine=` and their `ConnectOptions` are equal; of the
//! options of a path, only `direct` and `writable` count. Without the user's consent, a job overwrites neither a data
//! set nor a block device in use.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, Metadata, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

use dlfs::address::Address;
use dlfs::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs::format::superblock_set::SuperblockCopies;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{self, Completion, ConnectOptions, Device, Direct, Io, Namespace, QueuePair};

use crate::job::{Engine, Job, value_name};
use crate::random::Random;

/// An opened target, from which each job's thread makes its own queue pair.
#[derive(Clone)]
pub(crate) struct Target {
    /// The target's name from `directory=` and `filename=`, without escapes; `null` for the null engine.
    pub(crate) name: String,
    /// The size, block length and limits.
    pub(crate) namespace: Namespace,
    /// `None`: the null engine.
    device: Option<Arc<dyn Device>>,
}

impl Target {
    /// A queue pair for one thread.
    pub(crate) fn open_pair(&self) -> Result<Box<dyn QueuePair>, String> {
        match &self.device {
            None => Ok(Box::new(NullPair {
                namespace: self.namespace.clone(),
                taken: VecDeque::with_capacity(usize::from(u16::MAX)),
            })),
            Some(device) => device.queue_pair().map_err(|error| error.report()),
        }
    }
}

/// All opened targets of a run, except those of the null engine.
#[derive(Default)]
pub(crate) struct Targets {
    opened: Vec<(Engine, ConnectOptions, Target)>,
    /// Names of the targets that the first clone of some job writes. Every job opens them for writing, so that readers
    /// and writers can share a target.
    written: Vec<String>,
    /// The bytes that the jobs with a `filename=` need of it, the most of all: a file is made before the first of them.
    needed: HashMap<String, u64>,
    /// The threads of all jobs. Those of one stage may share a connection.
    threads: u64,
}

impl Targets {
    /// No targets yet; `jobs` are all jobs of the run.
    pub(crate) fn for_jobs(jobs: &[Job]) -> Targets {
        let writers = jobs.iter().filter(|job| job.rw.writes());
        let written = writers.filter_map(|j| name_of(j, 0)).collect();
        let mut needed = HashMap::new();
        let has_file = |job: &&Job| job.filename.is_some() && job.ioengine != Engine::Null;
        for job in jobs.iter().filter(has_file) {
            let len: &mut u64 = needed.entry(name_of(job, 0).unwrap_or_default()).or_default();
            *len = wanted_len(job).max(*len);
        }
        let threads = jobs.iter().map(|job| job.numjobs).sum();
        Targets { opened: Vec::new(), written, needed, threads }
    }

    /// The target of the `number`th clone of `job`, created and opened if necessary.
    ///
    /// # Errors
    /// A sentence that names the target.
    pub(crate) fn open(&mut self, job: &Job, number: u64) -> Result<Target, String> {
        if job.ioengine == Engine::Null {
            return null_target(job);
        }
        let name = name_of(job, number).ok_or("no target: filename= is missing")?;
        let address = address_of(job, &name)?;
        let mut options = connect_options(job, self.written.contains(&name) || job.rw.writes())?;
        let threads = u16::try_from(self.threads).unwrap_or(u16::MAX);
        options.nr_io_queues = options.nr_io_queues.max(threads);
        if let Address::Path(_) = address {
            let ConnectOptions { direct, writable, .. } = options;
            options = ConnectOptions { direct, writable, ..ConnectOptions::default() };
        }
        let mut known = self.opened.iter();
        if let Some((.., target)) = known.find(|(engine, with, target)| {
            target.name == name && *engine == job.ioengine && *with == options
        }) {
            return Ok(target.clone());
        }
        let len = self.needed.get(&name).copied().unwrap_or_else(|| wanted_len(job));
        let device = device(job, (&name, len), &address, &options)?;
        let target = Target { name, namespace: device.namespace(), device: Some(device) };
        self.opened.push((job.ioengine, options, target.clone()));
        Ok(target)
    }
}

/// The name of the target of the `number`th clone of a job.
pub(crate) fn name_of(job: &Job, number: u64) -> Option<String> {
    let folder = job.directory.as_deref().map(|folder| unescaped(folder.trim_end_matches('/')));
    match (&job.filename, folder) {
        (Some(name), Some(folder)) if !name.starts_with('/') && !is_address(name) => {
            Some(format!("{folder}/{}", unescaped(name)))
        }
        (Some(name), _) => Some(unescaped(name)),
        (None, Some(folder)) => Some(format!("{folder}/{}.{number}.0", job.name)),
        (None, None) => None,
    }
}

/// Removes fio's escapes: as colons separate files, a colon in a name follows a backslash.
fn unescaped(text: &str) -> String {
    text.replace("\\:", ":")
}

/// Returns whether a name is an address of a namespace, in which a colon needs no escape.
fn is_address(name: &str) -> bool {
    let prefixes = ["nvme-tcp:", "nvme-tcp\\:", "pcie:", "trtype:", "trtype=", "spdk:", "spdk\\:"];
    prefixes.iter().any(|prefix| name.trim_start().starts_with(prefix))
}

/// Refuses several files in one `filename=`.
pub(crate) fn check_name(job: &Job) -> Result<(), String> {
    let several = |name: &String| name.replace("\\:", "").contains(':') && !is_address(name);
    match job.filename.as_ref().filter(|name| several(name)) {
        None => Ok(()),
        Some(name) => Err(format!(
            "filename={name} names several files: a job has one target, and a colon in a name is written as \\:"
        )),
    }
}

/// Parses an address in dlfs's form, or in that of SPDK's fio plug-in: `trtype=TCP traddr=... ns=1`. With
/// `ioengine=spdk`, addresses of NVMe/TCP, PCIe and vfio-user go through SPDK.
pub(crate) fn address_of(job: &Job, name: &str) -> Result<Address, String> {
    let text = if name.trim_start().starts_with("trtype=") {
        name.split_whitespace().map(|word| word.replacen('=', ":", 1)).collect::<Vec<_>>().join(" ")
    } else {
        name.to_owned()
    };
    let parse = |text: &str| text.parse().map_err(|error| format!("{name}: {error}"));
    match (job.ioengine, parse(&text)?) {
        (Engine::Spdk, Address::Tcp(_) | Address::VfioUser(_) | Address::Pcie(_)) => {
            parse(&format!("spdk:{text}"))
        }
        (_, address) => Ok(address),
    }
}

/// The library's connection options for `job`.
pub(crate) fn connect_options(job: &Job, writable: bool) -> Result<ConnectOptions, String> {
    let connection = &job.connection;
    let defaults = ConnectOptions::default();
    let needed = (job.iodepth + 1).next_power_of_two().clamp(128, 32_768) as u16;
    let hostnqn = connection.hostnqn.as_ref().map(|text| text.parse());
    Ok(ConnectOptions {
        hdr_digest: connection.hdr_digest,
        data_digest: connection.data_digest,
        hostnqn: hostnqn.transpose().map_err(|error| format!("hostnqn: {error}"))?,
        queue_size: connection.queue_size.unwrap_or(needed),
        nr_io_queues: u16::try_from(job.numjobs).unwrap_or(u16::MAX).max(defaults.nr_io_queues),
        ctrl_loss_tmo: connection.ctrl_loss_tmo,
        io_timeout: connection.io_timeout.unwrap_or(defaults.io_timeout),
        direct: job.direct.map_or(Direct::Auto, |on| if on { Direct::On } else { Direct::Off }),
        writable,
        ..defaults
    })
}

/// The bytes that a target must have. Options in percent count as 0.
fn wanted_len(job: &Job) -> u64 {
    let size = job.size.map_or(0, |size| size.of(0));
    let parts = job.offset_increment.of(0).saturating_mul(job.numjobs - 1);
    job.offset.of(0).saturating_add(size).saturating_add(parts)
}

/// The target of `ioengine=null`, of the length that the job needs.
fn null_target(job: &Job) -> Result<Target, String> {
    let len = wanted_len(job);
    if len == 0 {
        return Err("ioengine=null needs size=, since it has no target".to_owned());
    }
    let namespace = Namespace {
        address: "null".to_owned(),
        block_len_bytes: 1,
        num_blocks: len,
        max_transfer_bytes: u32::MAX,
        queue_depth: u16::MAX,
        nguid: [0; 16],
        read_only: false,
        engine: "null".to_owned(),
    };
    Ok(Target { name: "null".to_owned(), namespace, device: None })
}

/// Opens the target `name`: makes a file of `len` bytes if necessary, and checks that the job may write.
fn device(
    job: &Job,
    (name, len): (&str, u64),
    address: &Address,
    options: &ConnectOptions,
) -> Result<Arc<dyn Device>, String> {
    let writable = options.writable;
    let open = |writable| {
        let device = qpair::open(address, &ConnectOptions { writable, ..options.clone() });
        device.map_err(|error| error.report())
    };
    let is_there = match (address, job.ioengine) {
        (Address::Objects(_) | Address::Named(_), _) | (Address::Path(_), Engine::Spdk) => {
            return Err(format!(
                "{name} is no namespace for ioengine={}",
                value_name(job.ioengine)
            ));
        }
        (Address::Path(path), _) => {
            let found = path.metadata().ok();
            // Other kinds are refused before they are opened: opening a pipe would block until it has a writer.
            let is_target = |file: &Metadata| file.is_file() || file.file_type().is_block_device();
            if !found.as_ref().is_none_or(is_target) {
                return Err(format!("{name} is neither a regular file nor a block device"));
            }
            if writable {
                check_unmounted(job, name, path)?;
            }
            // Drops the cached pages, as fio's `invalidate=1`. The kernel may ignore the request.
            let _ = File::open(path).map(|file| fadvise(&file, 0, None, Advice::DontNeed));
            found.is_some_and(|file| !file.is_file() || file.len() > 0)
        }
        _ => true,
    };
    if writable && is_there {
        check_blank(job, name, &open(false)?)?;
    }
    // A file with data that the job only reads may be an image, so its length stays.
    if let Address::Path(path) = address
        && (writable || !is_there)
    {
        extend_file(name, path, len)?;
    }
    let device = open(writable)?;
    if writable && device.namespace().read_only {
        return Err(format!("{name} is read-only, and rw={} writes", value_name(job.rw)));
    }
    Ok(device)
}

/// Creates the file, or extends it to `wanted` bytes, as fio does. Leaves devices and files of that length or more as
/// they are.
fn extend_file(name: &str, path: &Path, wanted: u64) -> Result<(), String> {
    let metadata = std::fs::metadata(path).ok();
    if metadata.as_ref().is_some_and(|found| !found.is_file() || found.len() >= wanted) {
        return Ok(());
    }
    if wanted == 0 {
        return Err(format!("{name} does not exist, and without size= it cannot be made"));
    }
    let laid = append_random(path, metadata.map_or(0, |found| found.len()), wanted);
    laid.map_err(|error| format!("cannot make {name}: {error}"))
}

/// Extends a file with random bytes: reads of a hole would do no I/O.
fn append_random(path: &Path, has: u64, wanted: u64) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let room = rustix::fs::fstatvfs(&file)?;
    if wanted - has > room.f_bavail.saturating_mul(room.f_frsize) {
        return Err(std::io::ErrorKind::StorageFull.into()); // refuse before the disk is full
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

/// The length of the writes that extend a file.
const LAYOUT_CHUNK_BYTES: usize = 1 << 20;

/// Checks that a block device is not in use, unless the job consents.
///
/// # Errors
/// A sentence that names the option for consent.
fn check_unmounted(job: &Job, name: &str, path: &Path) -> Result<(), String> {
    // The kernel refuses O_EXCL while a device is mounted or part of a volume: open(2). For a regular file,
    // O_EXCL without O_CREAT has no effect.
    let claim = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    let is_busy = claim.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
    if !is_busy || job.allow_mounted_write {
        return Ok(());
    }
    Err(format!(
        "{name} is mounted, or part of a volume; allow_mounted_write=1 writes all the same"
    ))
}

/// Checks that a namespace, open for reading, holds no data set, unless the job consents.
///
/// # Errors
/// A sentence that names the option for consent; errors of reading, since unreadable blocks may hold a data
/// set.
fn check_blank(job: &Job, name: &str, device: &Arc<dyn Device>) -> Result<(), String> {
    if job.overwrite_data_set.as_deref().map(unescaped).is_some_and(|consent| consent == name) {
        return Ok(());
    }
    let len = device.namespace().len_bytes();
    let pair = device.queue_pair().map_err(|error| error.report())?;
    let mut blocking = Blocking::new(pair).map_err(|error| error.report())?;
    let mut copies = [const { [0; SUPERBLOCK_BYTES] }; 2];
    for (copy, offset) in copies.iter_mut().zip(COPY_OFFSETS) {
        if offset + copy.len() as u64 <= len {
            blocking.read_at(offset, copy).map_err(|error| error.report())?;
        }
    }
    if SuperblockCopies::parse(&copies[0], &copies[1]).is_blank() {
        return Ok(());
    }
    Err(format!(
        "{name} holds a dlfs data set, and the job overwrites it; overwrite_data_set={name} consents"
    ))
}

/// The queue pair of the null engine: completes everything at once, and moves nothing.
struct NullPair {
    namespace: Namespace,
    /// I/Os that were submitted and not completed.
    taken: VecDeque<Io>,
}

impl QueuePair for NullPair {
    fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn submit(&mut self, pending: &mut VecDeque<Io>) -> usize {
        let count = pending.len();
        if self.taken.is_empty() {
            std::mem::swap(&mut self.taken, pending);
        } else {
            self.taken.append(pending);
        }
        count
    }

    fn poll(&mut self, _: Instant, max: usize, done: &mut Vec<Completion>) -> usize {
        let count = max.min(self.taken.len());
        let ended = self.taken.drain(..count);
        done.extend(ended.map(|io| Completion { tag: io.tag, buf: io.buf, result: Ok(()) }));
        count
    }

    fn outstanding(&self) -> usize {
        self.taken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::job_of_options;

    #[test]
    fn a_job_has_one_target_and_colons_in_its_name_are_escaped() {
        let url = "nvme-tcp://h:4420/nqn.2026-11.io.dlfs:x?ns=1";
        let escaped = url.replace(':', "\\:");
        let spdk = format!("spdk:{url}");
        for name in [r"a\:b", url, &escaped, &spdk, "trtype:TCP", "pcie:0000:5e:00.0?ns=1"] {
            let job = job_of_options(&[("filename", name)]);
            assert_eq!(check_name(&job), Ok(()), "{name}");
            assert_eq!(name_of(&job, 0).unwrap(), name.replace('\\', ""));
        }
        let several = job_of_options(&[("filename", "a:b")]);
        assert!(check_name(&several).unwrap_err().contains("one target"));
    }

    #[test]
    fn spdk_s_form_of_an_address_is_read() {
        let name =
            "trtype=TCP adrfam=IPv4 traddr=1.2.3.4 trsvcid=4420 subnqn=nqn.2026-11.io.dlfs:x ns=1";
        match address_of(&job_of_options(&[]), name).unwrap() {
            Address::Tcp(address) => assert_eq!(address.traddr, "1.2.3.4"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_without_a_name_are_called_after_job_and_number() {
        let name = |more: &[(&str, &str)]| {
            name_of(&job_of_options(&[&[("name", "j"), ("directory", "/d")], more].concat()), 3)
        };
        assert_eq!(name(&[]).unwrap(), "/d/j.3.0");
        assert_eq!(name(&[("filename", "x")]).unwrap(), "/d/x");
        assert_eq!(name(&[("filename", "/y")]).unwrap(), "/y");
    }
}
