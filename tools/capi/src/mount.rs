//! Mounting a data set, and what is known of it without reading a sample.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use dlfs::dataset::Dataset;
use dlfs::nvme::Address;
use dlfs::units::SampleId;

use crate::batch::DLFS_NO_LABEL;
use crate::error::{DLFS_E_NOT_FOUND, DLFS_OK, Failure, guard};
use crate::fields::{Division, number_of};
use crate::handles;
use crate::options::{MountOptions, Stop};
use crate::structs::{Struct, check_out, give, give_text, optional_text, put, take_or, text};

/// A mounted data set. Never looked into: a handle.
pub struct Fs(());

/// What a mount handle stands for.
pub(crate) struct Mount {
    pub(crate) dataset: Dataset,
    pub(crate) stop: Stop,
    pub(crate) division: Division,
}

pub(crate) fn mount_of(fs: *const Fs) -> Result<std::sync::Arc<Mount>, Failure> {
    handles::get(fs.cast())
}

/// What a data set is. Set `size` to `sizeof(dlfs_info)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Info {
    /// sizeof(dlfs_info).
    pub size: usize,
    /// Samples there are.
    pub num_samples: u64,
    /// Ids are below this; more than there are samples where some were deleted.
    pub end_of_ids: u64,
    /// The generation that was mounted.
    pub generation: u64,
    /// The image's UUID.
    pub uuid: [u8; 16],
    /// Names of classes there are; 0 where labels are numbers.
    pub num_classes: u64,
    /// Fields of a sample; 1 where samples are not divided.
    pub num_fields: u64,
    /// 1 when samples have labels, else 0.
    pub has_labels: u32,
    /// Zero.
    pub reserved: u32,
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for Info {
    const NAME: &str = "dlfs_info";
}

/// What a sample is. Set `size` to `sizeof(dlfs_sample)` before it is filled.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SampleOut {
    /// sizeof(dlfs_sample).
    pub size: usize,
    /// Which sample it is.
    pub id: u64,
    /// Its length in bytes; of all its fields together.
    pub len: u64,
    /// Its label, or DLFS_NO_LABEL.
    pub label: i64,
}
// SAFETY: numbers alone, the size first.
unsafe impl Struct for SampleOut {
    const NAME: &str = "dlfs_sample";
}

/// Mounts the data set that lies on `addresses` and gives its handle in `*fs`, to be closed with
/// dlfs_unmount. An address is a path, or `nvme-tcp://host:port/nqn?ns=1`; several are separated by commas,
/// in any order. Without `?ns=` it means all namespaces of the subsystem that hold the data set.
///
/// Reads the directory, not the names: those come with the first call that needs one. `options` may be
/// NULL. Any thread; takes at most the connect timeout of the options, and the time to read.
///
/// DLFS_E_NOT_FOUND: there is no such file, host, image or field. DLFS_E_REFUSED: the target, or the system,
/// lets nobody in. DLFS_E_TIMED_OUT: nothing has answered. DLFS_E_BUSY: another process has a tier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_mount(
    addresses: *const c_char,
    options: *const MountOptions,
    fs: *mut *mut Fs,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `fs` is NULL or a place for a handle, `addresses` NULL or ends with NUL,
        // and `options` NULL or a struct of the size that it says with strings that end with NUL.
        unsafe {
            put(fs, std::ptr::null_mut(), "fs")?;
            let given = take_or(options, MountOptions::default())?;
            let list = OsStr::from_bytes(text(addresses, "addresses")?);
            let list = Address::parse_list_os(list).map_err(dlfs::Error::from)?;
            let mut stop = given.stop();
            let dataset = Dataset::open(&list, &given.options()?, &mut stop)?;
            let division = Division::of(dataset.fields(), optional_text(given.field))?;
            let handle = handles::insert(Mount { dataset, stop, division })?;
            put(fs, handle.cast::<Fs>(), "fs")?;
        }
        Ok(DLFS_OK)
    })
}

/// Closes the handle. Any thread.
///
/// Files, sequences and batches that were made from it stay good, and are closed each by itself; the
/// connections end with the last of them. A call that another thread is in ends as usual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_unmount(fs: *mut Fs) -> c_int {
    guard(|| handles::remove::<Mount>(fs.cast::<c_void>()).map(|_| DLFS_OK))
}

/// Says what the data set is. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_get_info(fs: *const Fs, info: *mut Info) -> c_int {
    guard(|| {
        // SAFETY: by the header `info` is NULL or points to a struct of the size that its first field says,
        // which nobody else looks at meanwhile.
        unsafe { check_out(info)? };
        let mount = mount_of(fs)?;
        let directory = mount.dataset.directory();
        let value = Info {
            size: 0,
            num_samples: directory.num_live(),
            end_of_ids: directory.num_samples(),
            generation: directory.generation().0,
            uuid: directory.uuid().0,
            num_classes: directory.classes().len() as u64,
            num_fields: directory.fields().len().max(1) as u64,
            has_labels: directory.labels().is_some().into(),
            reserved: 0,
        };
        // SAFETY: as `check_out` was asked above.
        unsafe { give(info, value)? };
        Ok(DLFS_OK)
    })
}

/// Says what the sample called `name` is: the newest one where several are. No I/O but for reading the
/// names once. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_stat(
    fs: *const Fs,
    name: *const c_char,
    sample: *mut SampleOut,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `sample` is NULL or points to a struct of the size that its first field
        // says, and `name` is NULL or ends with NUL and stays as it is during the call.
        let name = unsafe {
            check_out(sample)?;
            text(name, "name")?
        };
        let mount = mount_of(fs)?;
        let id = mount.dataset.lookup(name, &mut mount.stop.clone())?;
        // SAFETY: as `check_out` was asked above.
        unsafe { give(sample, mount.stat(id)?)? };
        Ok(DLFS_OK)
    })
}

/// Says what the sample `id` is. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_stat_id(fs: *const Fs, id: u64, sample: *mut SampleOut) -> c_int {
    guard(|| {
        // SAFETY: by the header `sample` is NULL or points to a struct of the size that its first field
        // says, which nobody else looks at meanwhile.
        unsafe { check_out(sample)? };
        let mount = mount_of(fs)?;
        // SAFETY: as `check_out` was asked above.
        unsafe { give(sample, mount.stat(SampleId(id))?)? };
        Ok(DLFS_OK)
    })
}

/// Gives the id of the sample with `index` others before it, in the order of ids: with `index` from 0
/// to one less than `num_samples` this goes through all. No I/O. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_id_at(fs: *const Fs, index: u64, id: *mut u64) -> c_int {
    guard(|| {
        let found = mount_of(fs)?.dataset.id_at(index)?;
        // SAFETY: by the header `id` is NULL or points to a `uint64_t`.
        unsafe { put(id, found.0, "id")? };
        Ok(DLFS_OK)
    })
}

/// Gives the name of class `index`, as dlfs_name gives a sample's. No I/O. Any thread.
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
        let found = entry(mount.dataset.classes(), index, "class")?;
        // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a
        // `size_t`.
        unsafe { give_text(found, name, len, needed)? };
        Ok(DLFS_OK)
    })
}

/// Gives the name of field `index`, as dlfs_name gives a sample's; a record that is not divided is
/// field 0, without a name. No I/O. Any thread.
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
        let fields = mount.dataset.fields();
        let found =
            if fields.is_empty() && index == 0 { b"" } else { entry(fields, index, "field")? };
        // SAFETY: by the header `name` is NULL or has `len` bytes, and `needed` is NULL or points to a
        // `size_t`.
        unsafe { give_text(found, name, len, needed)? };
        Ok(DLFS_OK)
    })
}

/// Gives the number of the field called `name`: where it stands in `fields` of a dlfs_item. No I/O. Any
/// thread.
///
/// DLFS_E_NOT_FOUND: samples have no such field; the text of the error says which they have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlfs_field_number(
    fs: *const Fs,
    name: *const c_char,
    number: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `name` is NULL or ends with NUL, and stays as it is during the call.
        let name = unsafe { text(name, "name")? };
        let found = number_of(mount_of(fs)?.dataset.fields(), name)? as u64;
        // SAFETY: by the header `number` is NULL or points to a `uint64_t`.
        unsafe { put(number, found, "number")? };
        Ok(DLFS_OK)
    })
}

fn entry<'a>(list: &'a [Vec<u8>], index: u64, what: &str) -> Result<&'a [u8], Failure> {
    let found = usize::try_from(index).ok().and_then(|index| list.get(index));
    found.map(Vec::as_slice).ok_or_else(|| {
        let text = format!("there is no {what} {index}, there are {}", list.len());
        Failure::new(DLFS_E_NOT_FOUND, text)
    })
}

impl Mount {
    fn stat(&self, id: SampleId) -> Result<SampleOut, Failure> {
        let len = self.division.len_of(self.dataset.len_bytes(id)?) as u64;
        let label = self.dataset.directory().label(id).unwrap_or(DLFS_NO_LABEL);
        Ok(SampleOut { size: 0, id: id.0, len, label })
    }
}
