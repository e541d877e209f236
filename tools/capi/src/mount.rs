//! Mounted data sets: mounts and unmounts them, and describes them without reading samples (facts, names, folders).

use std::ffi::{CString, c_char, c_int, c_void};

use dlfs::dataset::Dataset;
use dlfs::directory::EntryKind;
use dlfs::qpair::ConnectOptions;
use dlfs::units::SampleId;
use parking_lot::Mutex;

use crate::batch::{DLFS_NO_LABEL, Division, number_of};
use crate::converted::Stop;
use crate::error::{DLFS_E_INTERRUPTED, DLFS_E_NOT_FOUND, Failure, guard};
use crate::handles::{self, Handle, get};
use crate::options::MountOptions;
use crate::peers::Joined;
use crate::structs::{self, Struct, fill, fill_text, optional_text, put, take_or_zeroed, text};

/// A mounted data set: an opaque handle.
pub struct Fs(());

/// The object behind a mount handle.
pub(crate) struct Mount {
    pub(crate) dataset: Dataset,
    /// The data set, read through the tiers of the job's other nodes; `None`: no sequence has joined them.
    pub(crate) through_peers: Mutex<Option<Joined>>,
    /// The options for connections, also to peers.
    pub(crate) connect: ConnectOptions,
    /// The caller's `should_stop` for calls on this mount.
    pub(crate) stop: Stop,
    /// The division of the samples into fields.
    pub(crate) division: Division,
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
unsafe extern "C" fn dlfs_leave_peers(fs: *const Fs, timeout_ms: u32) -> c_int {
    guard(|| get(fs)?.leave_peers(timeout_ms))
}

/// Closes the handle. Any thread.
///
/// Files, sequences and batches created from it stay valid, and are closed separately; the
/// connections end with the last of them. Calls in other threads end as usual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_unmount(fs: *mut Fs) -> c_int {
    guard(|| handles::remove(fs).map(drop))
}

/// Describes the data set. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_get_info(fs: *const Fs, info: *mut Info) -> c_int {
    // SAFETY: by the header `info` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe {
        fill(info, || {
            let mount = get(fs)?;
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
unsafe extern "C" fn dlfs_stat(
    fs: *const Fs,
    name: *const c_char,
    sample: *mut SampleOut,
) -> c_int {
    // SAFETY: by the header `sample` is NULL or points to a struct of the size in its first
    // field, and `name` is NULL or ends with NUL and does not change during the call.
    unsafe {
        fill(sample, || {
            let name = text(name, "name")?;
            let mount = get(fs)?;
            mount.stat(mount.dataset.lookup(name, &mut mount.stop.clone())?)
        })
    }
}

/// Describes the sample with this `id`. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_stat_id(fs: *const Fs, id: u64, sample: *mut SampleOut) -> c_int {
    // SAFETY: by the header `sample` is NULL or points to a struct of the size in its first
    // field, which nobody else accesses meanwhile.
    unsafe { fill(sample, || get(fs)?.stat(SampleId(id))) }
}

/// Stores the id of the sample at `index`, in ascending order of ids, in `*id`. An `index` from 0
/// to `num_samples` - 1 enumerates all samples. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_id_at(fs: *const Fs, index: u64, id: *mut u64) -> c_int {
    guard(|| {
        let found = get(fs)?.dataset.id_at(index)?;
        // SAFETY: by the header `id` is NULL or points to a `uint64_t`.
        unsafe { put(id, found.0, "id") }
    })
}

/// Copies the name of class `index`, like dlfs_name. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_class_name(
    fs: *const Fs,
    index: u64,
    name: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe {
        fill_text(name, len, needed, || {
            entry(get(fs)?.dataset.directory().classes(), index, "class").cloned()
        })
    }
}

/// Copies the name of field `index`, like dlfs_name; a record that is not divided is field 0,
/// without a name. No I/O. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_field_name(
    fs: *const Fs,
    index: u64,
    name: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe {
        fill_text(name, len, needed, || {
            let mount = get(fs)?;
            let fields = mount.dataset.directory().fields();
            if fields.is_empty() && index == 0 {
                return Ok(Vec::new());
            }
            entry(fields, index, "field").cloned()
        })
    }
}

/// Stores the number of the field called `name`: its index in `fields` of a dlfs_item. No I/O. Any
/// thread.
///
/// DLFS_E_NOT_FOUND: samples have no such field; the error text lists the fields.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_field_number(
    fs: *const Fs,
    name: *const c_char,
    number: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `name` is NULL or ends with NUL, and does not change during the
        // call.
        let name = unsafe { text(name, "name")? };
        let found = number_of(get(fs)?.dataset.directory().fields(), name)? as u64;
        // SAFETY: by the header `number` is NULL or points to a `uint64_t`.
        unsafe { put(number, found, "number") }
    })
}

/// The entry of `list` at `index`, called `what` in errors.
pub(crate) fn entry<'a, T>(list: &'a [T], index: u64, what: &str) -> Result<&'a T, Failure> {
    let found = usize::try_from(index).ok().and_then(|index| list.get(index));
    found.ok_or_else(|| {
        let text = format!("there is no {what} {index}, there are {}", list.len());
        Failure::new(DLFS_E_NOT_FOUND, text)
    })
}

impl Handle for Fs {
    type Object = Mount;
    const NAME: &str = "mounted data set";
}

impl Mount {
    fn stat(&self, id: SampleId) -> Result<SampleOut, Failure> {
        let len = self.division.len_of(self.dataset.len_bytes(id)?) as u64;
        let label = self.dataset.directory().label(id).unwrap_or(DLFS_NO_LABEL);
        Ok(SampleOut { size: 0, id: id.0, len, label })
    }
}

/// The length of the longest name with its NUL, in bytes.
pub const DLFS_NAME_MAX: usize = 4097;

/// The id of a folder in dlfs_list.
pub const DLFS_FOLDER: u64 = u64::MAX;

/// Receives one entry of dlfs_list: its name, which is valid until the function returns, and its
/// id, or DLFS_FOLDER. A value other than zero ends the listing with DLFS_E_INTERRUPTED.
pub type Visit =
    Option<unsafe extern "C" fn(user: *mut c_void, name: *const c_char, id: u64) -> c_int>;

/// Copies the name of sample `id` and a NUL to `name`, which has `len` bytes; DLFS_NAME_MAX is
/// always enough.
///
/// `needed` may be NULL; otherwise it receives the length of the name with its NUL, also with
/// DLFS_E_TOO_SMALL, which leaves `name` unchanged. Reads the names at first use. Any thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_name(
    fs: *const Fs,
    id: u64,
    name: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a `size_t`.
    unsafe {
        fill_text(name, len, needed, || {
            let mount = get(fs)?;
            Ok(mount.dataset.name(SampleId(id), &mut mount.stop.clone())?)
        })
    }
}

/// Calls `visit` for each entry of `folder`, in the order of names; NULL and "" are the top folder.
///
/// `recursive` 0: the direct entries, with subfolders as DLFS_FOLDER, by their names within the
/// folder; 1: all samples below the folder, by their full names. Reads the names at first use. Any
/// thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_list(
    fs: *const Fs,
    folder: *const c_char,
    recursive: c_int,
    visit: Visit,
    user: *mut c_void,
) -> c_int {
    guard(|| {
        let mount = get(fs)?;
        let visit = visit.ok_or_else(|| Failure::invalid("visit is NULL"))?;
        // SAFETY: by the header `folder` is NULL or ends with NUL, and does not change during the
        // call.
        let folder = unsafe { optional_text(folder) }.unwrap_or_default();
        mount.dataset.load_names(&mut mount.stop.clone())?;
        let directory = mount.dataset.directory();
        let mut stopped = false;
        let mut show = |name: &[u8], id: u64| {
            let name = CString::new(name).unwrap_or_default(); // names have no zero byte
            // SAFETY: the caller's function with the caller's argument.
            stopped = unsafe { visit(user, name.as_ptr(), id) } != 0;
            !stopped
        };
        let listed = match recursive {
            0 => directory.for_each_in(folder, &mut |entry| match entry.kind {
                EntryKind::Folder => show(&entry.name, DLFS_FOLDER),
                EntryKind::Sample(id) => show(&entry.name, id.0),
            }),
            1 => directory.for_each_below(folder, &mut |id, name| show(name, id.0)),
            other => return Err(Failure::invalid(format!("recursive is {other}, not 0 or 1"))),
        };
        listed.map_err(dlfs::Error::from)?;
        if stopped {
            Err(Failure::new(DLFS_E_INTERRUPTED, "the listing was ended by its caller"))
        } else {
            Ok(())
        }
    })
}
