//! Mounts a data set, and describes it without reading samples.

use std::ffi::{c_char, c_int};
use std::sync::Mutex;

use dlfs::dataset::Dataset;
use dlfs::qpair::ConnectOptions;
use dlfs::units::SampleId;

use crate::batch::DLFS_NO_LABEL;
use crate::error::{DLFS_E_NOT_FOUND, Failure, guard};
use crate::fields::{Division, number_of};
use crate::handles::{self, Kind};
use crate::options::{MountOptions, Stop};
use crate::peers::Joined;
use crate::structs::{self, Struct, fill, give_text, optional_text, put, take_or_zeroed, text};

/// A mounted data set: an opaque handle.
pub struct Fs(());

/// The object behind a mount handle.
pub(crate) struct Mount {
    pub(crate) dataset: Dataset,
    /// The same, read through the tiers of the job's other nodes, once a sequence has joined them.
    pub(crate) through_peers: Mutex<Option<Joined>>,
    /// How to connect, also to peers.
    pub(crate) connect: ConnectOptions,
    pub(crate) stop: Stop,
    pub(crate) division: Division,
}

pub(crate) fn mount_of(fs: *const Fs) -> Result<std::sync::Arc<Mount>, Failure> {
    handles::get(fs.cast())
}

/// Facts about a data set. Set `size` to `sizeof(dlfs_info)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Info {
    /// sizeof(dlfs_info).
    pub size: usize,
    /// The number of samples.
    pub num_samples: u64,
    /// All ids are less than this; greater than the number of samples if some were deleted.
    pub end_of_ids: u64,
    /// The generation that was mounted.
    pub generation: u64,
    /// The image's UUID.
    pub uuid: [u8; 16],
    /// The number of class names; 0 if labels are plain numbers.
    pub num_classes: u64,
    /// Fields per sample; 1 if samples are not divided.
    pub num_fields: u64,
    /// 1 if samples have labels, else 0.
    pub has_labels: u32,
    /// Zero.
    pub reserved: u32,
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for Info {
    const NAME: &str = "dlfs_info";
}

/// Facts about a sample. Set `size` to `sizeof(dlfs_sample)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SampleOut {
    /// sizeof(dlfs_sample).
    pub size: usize,
    /// Its id.
    pub id: u64,
    /// Its length in bytes; the total of all its fields.
    pub len: u64,
    /// Its label, or DLFS_NO_LABEL.
    pub label: i64,
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for SampleOut {
    const NAME: &str = "dlfs_sample";
}

/// Mounts the data set at `addresses`, and stores its handle in `*fs`, to be closed with
/// dlfs_unmount. An address is a path, or `nvme-tcp://host:port/nqn?ns=1`; several are separated by
/// commas, in any order. Without `?ns=` it names all namespaces of the subsystem that belong to the
/// data set.
///
/// Reads the directory, but not the names: the first call that needs a name reads them. `options`
/// may be NULL. Any thread; takes at most the connect timeout of the options, and the time to read.
///
/// DLFS_E_NOT_FOUND: there is no such file, host, image or field. DLFS_E_REFUSED: the target or the
/// system denies access. DLFS_E_TIMED_OUT: nothing answered. DLFS_E_BUSY: another process is using
/// a tier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_mount(
    addresses: *const c_char,
    options: *const MountOptions,
    fs: *mut *mut Fs,
) -> c_int {
    // SAFETY: by the header `fs` is NULL or a place for a handle, `addresses` NULL or ends with
    // NUL, and `options` NULL or a struct of the size that it states, with strings that end
    // with NUL.
    unsafe {
        handles::open(fs, "fs", || {
            let given = take_or_zeroed(options)?;
            let list = structs::addresses(addresses, "addresses")?;
            let mut stop = given.stop();
            let options = given.options()?;
            let dataset = Dataset::open(&list, &options, &mut stop)?;
            let division = Division::of(dataset.directory().fields(), optional_text(given.field))?;
            let connect = options.open.connect;
            Ok(Mount { dataset, through_peers: Mutex::default(), connect, stop, division })
        })
    }
}

/// Goes on serving the tiers to peers until all ranks call this, for at most `timeout_ms` (0: the
/// `peer_timeout_ms` of the sequence that has joined); then close the sequences and unmount. The copies of a
/// rank that ends earlier are lost to the others, which then read the data set. With `peer_set` and
/// `peer_get` it calls them, as dlfs_sequence does, and `should_stop` of that sequence. DLFS_OK at once
/// without peers, and in a forked child. Any thread.
///
/// DLFS_E_TIMED_OUT: ranks are missing, and dlfs_last_error names them. DLFS_E_BUSY: another thread is joining
/// or leaving.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_leave_peers(fs: *const Fs, timeout_ms: u32) -> c_int {
    guard(|| mount_of(fs)?.leave_peers(timeout_ms))
}

/// Closes the handle. Any thread.
///
/// Files, sequences and batches created from it stay valid, and are closed separately; the
/// connections end with the last of them. Calls in other threads end as usual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_unmount(fs: *mut Fs) -> c_int {
    guard(|| handles::remove::<Mount>(fs.cast()).map(drop))
}

/// Describes the data set. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_get_info(fs: *const Fs, info: *mut Info) -> c_int {
    // SAFETY: by the header `info` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe {
        fill(info, || {
            let mount = mount_of(fs)?;
            let directory = mount.dataset.directory();
            Ok(Info {
                size: 0,
                num_samples: directory.num_live(),
                end_of_ids: directory.num_samples(),
                generation: directory.generation().0,
                uuid: directory.uuid().0,
                num_classes: directory.classes().len() as u64,
                num_fields: directory.fields().len().max(1) as u64,
                has_labels: directory.labels().is_some().into(),
                reserved: 0,
            })
        })
    }
}

/// Describes the sample called `name`, the newest one if there are several. No I/O, except reading
/// the names at first use. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_stat(
    fs: *const Fs,
    name: *const c_char,
    sample: *mut SampleOut,
) -> c_int {
    // SAFETY: by the header `sample` is NULL or points to a struct of the size in its first
    // field, and `name` is NULL or ends with NUL and does not change during the call.
    unsafe {
        fill(sample, || {
            let name = text(name, "name")?;
            let mount = mount_of(fs)?;
            mount.stat(mount.dataset.lookup(name, &mut mount.stop.clone())?)
        })
    }
}

/// Describes the sample with this `id`. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_stat_id(fs: *const Fs, id: u64, sample: *mut SampleOut) -> c_int {
    // SAFETY: by the header `sample` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe { fill(sample, || mount_of(fs)?.stat(SampleId(id))) }
}

/// Stores the id of the sample at `index`, in ascending order of ids, in `*id`. An `index` from 0
/// to `num_samples` - 1 enumerates all samples. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_id_at(fs: *const Fs, index: u64, id: *mut u64) -> c_int {
    guard(|| {
        let found = mount_of(fs)?.dataset.id_at(index)?;
        // SAFETY: by the header `id` is NULL or points to a `uint64_t`.
        unsafe { put(id, found.0, "id") }
    })
}

/// Copies the name of class `index`, like dlfs_name. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_class_name(
    fs: *const Fs,
    index: u64,
    name: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    guard(|| {
        let mount = mount_of(fs)?;
        let found = entry(mount.dataset.directory().classes(), index, "class")?;
        // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a
        // `size_t`.
        unsafe { give_text(found, name, len, needed) }
    })
}

/// Copies the name of field `index`, like dlfs_name; a record that is not divided is field 0,
/// without a name. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_field_name(
    fs: *const Fs,
    index: u64,
    name: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    guard(|| {
        let mount = mount_of(fs)?;
        let fields = mount.dataset.directory().fields();
        let found =
            if fields.is_empty() && index == 0 { b"" } else { entry(fields, index, "field")? };
        // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a
        // `size_t`.
        unsafe { give_text(found, name, len, needed) }
    })
}

/// Stores the number of the field called `name`: its index in `fields` of a dlfs_item. No I/O. Any
/// thread.
///
/// DLFS_E_NOT_FOUND: samples have no such field; the error text lists the fields.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_field_number(
    fs: *const Fs,
    name: *const c_char,
    number: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `name` is NULL or ends with NUL, and does not change during the
        // call.
        let name = unsafe { text(name, "name")? };
        let found = number_of(mount_of(fs)?.dataset.directory().fields(), name)? as u64;
        // SAFETY: by the header `number` is NULL or points to a `uint64_t`.
        unsafe { put(number, found, "number") }
    })
}

fn entry<'a>(list: &'a [Vec<u8>], index: u64, what: &str) -> Result<&'a [u8], Failure> {
    let found = usize::try_from(index).ok().and_then(|index| list.get(index));
    found.map(Vec::as_slice).ok_or_else(|| {
        let text = format!("there is no {what} {index}, there are {}", list.len());
        Failure::new(DLFS_E_NOT_FOUND, text)
    })
}

impl Kind for Mount {
    const NAME: &str = "mounted data set";
}

impl Mount {
    fn stat(&self, id: SampleId) -> Result<SampleOut, Failure> {
        let len = self.division.len_of(self.dataset.len_bytes(id)?) as u64;
        let label = self.dataset.directory().label(id).unwrap_or(DLFS_NO_LABEL);
        Ok(SampleOut { size: 0, id: id.0, len, label })
    }
}
