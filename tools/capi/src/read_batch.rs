//! Many samples in one call, by id or name, into the library's memory or the caller's.

use std::ffi::{c_char, c_int, c_void};

use dlfs::dataset::{OnError, Query, Watch};
use dlfs::reader::Batch;
use dlfs::units::SampleId;

use crate::batch::{BatchOut, Division, FieldTable, Item, hand_out, item_of, show_whole};
use crate::converted::{Stop, unknown};
use crate::error::{DLFS_E_TOO_SMALL, DLFS_OK, Failure, code_of, guard};
use crate::handles::get;
use crate::mount::{Fs, Mount};
use crate::options::{DLFS_ON_ERROR_KEEP, DLFS_ON_ERROR_RAISE, DLFS_ON_ERROR_SKIP};
use crate::structs::{Struct, array, check_out, give, take, text};

/// Receives one sample as it arrives. The item, its fields and, unless the caller's memory is used,
/// its bytes are valid until the function returns.
pub type Arrived = Option<unsafe extern "C" fn(user: *mut c_void, item: *const Item)>;

/// The samples to read, and the destination. Set `size` to `sizeof(dlfs_read_request)`, set either
/// `ids` or `names`, and set all fields without a value to zero.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ReadRequest {
    /// sizeof(dlfs_read_request).
    pub size: usize,
    /// Ids of the samples, `count` of them; or NULL.
    pub ids: *const u64,
    /// Names of the samples, `count` strings; or NULL.
    pub names: *const *const c_char,
    /// The number of samples.
    pub count: usize,
    /// Memory of the caller for their bytes: the samples contiguous in the requested order, each
    /// with all its fields contiguous; it must stay valid until dlfs_release. NULL: the library's
    /// memory, without this copy.
    pub out: *mut c_void,
    /// Its length in bytes.
    pub out_len: usize,
    /// DLFS_ON_ERROR_...
    pub on_error: u32,
    /// Zero.
    pub reserved: u32,
    /// Called for each sample as it arrives, while others are still being read, and at the end for
    /// samples that failed, unless the whole call fails. NULL: nothing is called.
    pub arrived: Arrived,
    /// Passed to `arrived`.
    pub user: *mut c_void,
}
// SAFETY: numbers, pointers and an optional function, for which zero is none; the size first.
unsafe impl Struct for ReadRequest {
    const NAME: &str = "dlfs_read_request";
}

/// Reads the samples of `request` into `batch`, in the requested order, to be released with
/// dlfs_release. Any thread; several threads may read at the same time.
///
/// DLFS_E_TOO_SMALL: `out` is too small, and nothing was read. With DLFS_ON_ERROR_RAISE the call
/// fails if any sample does; otherwise each item has its status and the call succeeds.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlfs_read_batch(
    fs: *const Fs,
    request: *const ReadRequest,
    batch: *mut BatchOut,
) -> c_int {
    guard(|| {
        // SAFETY: by the header `batch` and `request` are NULL or point to structs of the size in
        // their first fields, and everything that `request` points to satisfies the header.
        unsafe {
            check_out(batch)?;
            give(batch, BatchOut::zeroed())?;
            let request = take(request)?;
            read(&*get(fs)?, &request, batch)
        }
    })
}

/// Reads the samples of `request` from `mount` into `out`.
///
/// # Safety
/// `request` and `out` satisfy the header.
unsafe fn read(mount: &Mount, request: &ReadRequest, out: *mut BatchOut) -> Result<(), Failure> {
    if request.ids.is_null() == request.names.is_null() && request.count > 0 {
        return Err(Failure::invalid("either ids or names says which samples, and not both"));
    }
    if request.reserved != 0 {
        return Err(Failure::invalid("reserved is not zero"));
    }
    let raise = match request.on_error {
        DLFS_ON_ERROR_RAISE => true,
        DLFS_ON_ERROR_SKIP | DLFS_ON_ERROR_KEEP => false,
        other => return Err(unknown("on_error", other)),
    };
    let mut given = Vec::new();
    let mut names = Vec::new();
    // SAFETY: `request` satisfies the header: `count` ids, or as many names that end with NUL,
    // which do not change during the call.
    unsafe {
        if request.names.is_null() {
            let ids: &[u64] = array(request.ids, request.count, "ids")?;
            given.extend(ids.iter().map(|&id| SampleId(id)));
        } else {
            for &name in array(request.names, request.count, "names")? {
                names.push(text(name, "a name")?);
            }
        }
    }
    let wanted = if request.names.is_null() { Query::Ids(&given) } else { Query::Names(&names) };
    let ids = mount.dataset.ids_of(wanted, &mut mount.stop.clone())?;
    let division = mount.division;
    let mut sink = Sink {
        stop: mount.stop,
        destination: Destination::new(mount, &ids, request)?,
        arrived: request.arrived,
        user: request.user,
        division,
    };
    let on_error = if raise { OnError::Raise } else { OnError::Blank };
    let read = mount.dataset.read(wanted, on_error, &mut sink)?;
    let mut failures = read.failures.iter().peekable();
    let mut items = Vec::with_capacity(ids.len());
    let mut table = FieldTable::new(division, ids.len());
    for (index, &id) in ids.iter().enumerate() {
        let failure = failures.next_if(|(failed, _)| *failed == index);
        let item = match failure {
            None => sink.item(&read.batch, index, &mut table),
            Some((_, error)) => sink.failed(id, index, code_of(error), &mut table),
        };
        if item.status != DLFS_OK && request.on_error == DLFS_ON_ERROR_SKIP {
            continue;
        }
        items.push(item);
    }
    let batch = sink.destination.out.is_null().then_some(read.batch);
    // SAFETY: the items point into `batch` or into the memory that the caller lends until release.
    unsafe { hand_out(out, batch, items, table, (0, false)) }
}

/// The destination of each sample in the caller's memory.
struct Destination {
    /// NULL: the samples stay in the library's memory.
    out: *mut u8,
    /// The offset of each sample; empty without memory of the caller.
    offsets: Vec<usize>,
}

impl Destination {
    /// Lays the samples out one behind the other in the memory that `request` names.
    fn new(mount: &Mount, ids: &[SampleId], request: &ReadRequest) -> Result<Destination, Failure> {
        let out = request.out.cast::<u8>();
        if out.is_null() {
            return match request.out_len {
                0 => Ok(Destination { out, offsets: Vec::new() }),
                _ => Err(Failure::invalid("out is NULL and out_len is not 0")),
            };
        }
        let directory = mount.dataset.directory();
        let mut need = 0u64;
        let mut offsets = Vec::with_capacity(ids.len());
        for &id in ids {
            offsets.push(need as usize);
            need += mount.division.len_of(directory.len_bytes(id).unwrap_or(0)) as u64;
        }
        if need > request.out_len as u64 {
            let text = format!("the samples have {need} bytes, out has {}", request.out_len);
            return Err(Failure::new(DLFS_E_TOO_SMALL, text));
        }
        Ok(Destination { out, offsets })
    }
}

/// Receives samples as they arrive: copies them to their destination, and passes them to the
/// caller's function.
struct Sink {
    stop: Stop,
    destination: Destination,
    arrived: Arrived,
    user: *mut c_void,
    division: Division,
}

impl Watch for Sink {
    fn goes_on(&mut self) -> bool {
        self.stop.goes_on()
    }

    fn arrived(&mut self, batch: &Batch, index: usize) {
        if !self.destination.out.is_null() {
            // A record shorter than its table of lengths is damaged, and none of it is copied.
            let bytes = batch.bytes(index).get(self.division.table_len()..).unwrap_or_default();
            // SAFETY: `Destination::new` has laid out all samples within the caller's memory, by
            // their lengths in the directory, which verified samples have.
            unsafe {
                let to = self.destination.out.add(self.destination.offsets[index]);
                to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
        }
        if self.arrived.is_some() {
            let mut table = FieldTable::new(self.division, 1);
            let item = self.item(batch, index, &mut table);
            self.show(item);
        }
    }
}

impl Sink {
    /// The item of the sample at `index` of `batch`, with the address that the caller sees.
    fn item(&self, batch: &Batch, index: usize, table: &mut FieldTable) -> Item {
        let record = batch.bytes(index);
        let body = if self.destination.out.is_null() {
            record.as_ptr().wrapping_add(self.division.table_len())
        } else {
            // Laid out by `Destination::new`, and filled when the sample arrived.
            self.destination.out.wrapping_add(self.destination.offsets[index]).cast_const()
        };
        let mut item = item_of(batch, index);
        table.add(&mut item, record, body);
        item
    }

    /// The item of a failed sample, which is passed to the caller's function, too.
    fn failed(&self, id: SampleId, index: usize, status: c_int, table: &mut FieldTable) -> Item {
        let mut item = Item { status, ..Item::new(id, index) };
        table.add(&mut item, &[], std::ptr::null());
        self.show(item);
        item
    }

    /// Passes an item to the caller's function, if there is one.
    fn show(&self, mut item: Item) {
        if let Some(arrived) = self.arrived {
            show_whole(std::slice::from_mut(&mut item));
            // SAFETY: the caller's function with the caller's argument, and an item that lives.
            unsafe { arrived(self.user, &item) };
        }
    }
}
