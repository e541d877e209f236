//! The calls of VFIO's container interface, and registers of devices.
//!
//! Numbers, structures and their names are those of Linux's `include/uapi/linux/vfio.h`. A structure says its length in
//! `argsz`, so a newer kernel takes those of an older header.
#![allow(unsafe_code)] // calls `ioctl`, and accesses memory that is a device's registers

use std::ffi::{CString, c_void};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{from_mut, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use crate::memory::DmaRegion;

/// `struct vfio_group_status`.
#[repr(C)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

/// `struct vfio_region_info`: a part of the device's file.
#[repr(C)]
pub(super) struct RegionInfo {
    argsz: u32,
    pub(super) flags: u32,
    index: u32,
    cap_offset: u32,
    pub(super) size: u64,
    pub(super) offset: u64,
}

/// `struct vfio_irq_set`, with the data for one eventfd.
#[repr(C)]
struct IrqSet {
    argsz: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    eventfd: i32,
}

/// `struct vfio_iommu_type1_dma_map`.
#[repr(C)]
struct DmaMap {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

/// `struct vfio_iommu_type1_dma_unmap`.
#[repr(C)]
struct DmaUnmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

/// A request with its argument: a number, or the address of what the kernel reads and writes.
struct Call {
    request: u8,
    argument: *mut c_void,
}

// SAFETY: all requests of VFIO are `_IO`, so the number alone names one; `send` leaves to its callers to give each the
// argument of the header. The result is the call's.
unsafe impl Ioctl for Call {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::none(VFIO_TYPE, self.request)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<IoctlOutput> {
        Ok(out)
    }
}

/// Sends a request.
///
/// # Safety
/// `argument` is what the header gives the request: a number, or the address of a valid value.
unsafe fn send(file: &OwnedFd, request: u8, argument: *mut c_void) -> Result<i32> {
    // SAFETY: the caller promises the argument.
    Ok(unsafe { ioctl(file, Call { request, argument }) }?)
}

/// Returns whether the container speaks this version of VFIO, with an IOMMU of type 1.
pub(super) fn is_known(container: &OwnedFd) -> Result<bool> {
    let kind = without_provenance_mut(TYPE1V2_IOMMU);
    // SAFETY: the first takes no argument, the second a number.
    let found = unsafe {
        (send(container, GET_API_VERSION, null_mut())?, send(container, CHECK_EXTENSION, kind)?)
    };
    Ok(found.0 == API_VERSION && found.1 > 0)
}

/// Returns whether no device of the group has a driver of the kernel.
pub(super) fn is_viable(group: &OwnedFd) -> Result<bool> {
    let mut status = GroupStatus { argsz: len_of::<GroupStatus>(), flags: 0 };
    // SAFETY: the request takes this structure.
    unsafe { send(group, GROUP_GET_STATUS, from_mut(&mut status).cast())? };
    Ok(status.flags & GROUP_FLAGS_VIABLE != 0)
}

/// Gives the container the group, and address spaces of an IOMMU of type 1.
pub(super) fn attach(group: &OwnedFd, container: &OwnedFd) -> Result<()> {
    let mut number = container.as_raw_fd();
    let kind = without_provenance_mut(TYPE1V2_IOMMU);
    // SAFETY: the first takes the address of a descriptor's number, the second a number.
    unsafe {
        send(group, GROUP_SET_CONTAINER, from_mut(&mut number).cast())?;
        send(container, SET_IOMMU, kind)?;
    }
    Ok(())
}

/// Opens a device of the group, by its PCI address.
pub(super) fn device(group: &OwnedFd, address: &str) -> Result<OwnedFd> {
    let name = CString::new(address).map_err(Error::other)?;
    // SAFETY: the request reads a string up to its NUL.
    let file = unsafe { send(group, GROUP_GET_DEVICE_FD, name.as_ptr().cast_mut().cast())? };
    // SAFETY: the kernel has just opened it for this caller.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Offset, length and flags of a region.
pub(super) fn region(device: &OwnedFd, index: u32) -> Result<RegionInfo> {
    let argsz = len_of::<RegionInfo>();
    let mut info = RegionInfo { argsz, flags: 0, index, cap_offset: 0, size: 0, offset: 0 };
    // SAFETY: the request takes this structure, and writes at most `argsz` bytes.
    unsafe { send(device, DEVICE_GET_REGION_INFO, from_mut(&mut info).cast())? };
    Ok(info)
}

/// Has the kernel add to the eventfd when it wants the device back.
pub(super) fn signal_request(device: &OwnedFd, event: &OwnedFd) -> Result<()> {
    let flags = IRQ_SET_DATA_EVENTFD | IRQ_SET_ACTION_TRIGGER;
    let mut set = IrqSet {
        argsz: len_of::<IrqSet>(),
        flags,
        index: PCI_REQ_IRQ_INDEX,
        start: 0,
        count: 1,
        eventfd: event.as_raw_fd(),
    };
    // SAFETY: the request takes this structure, with as many numbers as `count` says.
    unsafe { send(device, DEVICE_SET_IRQS, from_mut(&mut set).cast())? };
    Ok(())
}

/// Resets the device; its configuration stays.
pub(super) fn reset(device: &OwnedFd) -> Result<()> {
    // SAFETY: the request takes no argument.
    unsafe { send(device, DEVICE_RESET, null_mut())? };
    Ok(())
}

/// Pins the memory, and lets the devices of the container access it.
pub(super) fn map(container: &OwnedFd, memory: &DmaRegion) -> Result<()> {
    let mut map = DmaMap {
        argsz: len_of::<DmaMap>(),
        flags: DMA_MAP_FLAG_READ | DMA_MAP_FLAG_WRITE,
        vaddr: memory.start().addr().get() as u64,
        iova: memory.address(),
        size: memory.len() as u64,
    };
    // SAFETY: the request takes this structure. Devices access the pages, which are the region's until they are
    // unmapped, also if the process were to map others in their place; its owners know of the device.
    unsafe { send(container, IOMMU_MAP_DMA, from_mut(&mut map).cast())? };
    Ok(())
}

/// Undoes [`map`].
pub(super) fn unmap(container: &OwnedFd, memory: &DmaRegion) -> Result<()> {
    let mut unmap = DmaUnmap {
        argsz: len_of::<DmaUnmap>(),
        flags: 0,
        iova: memory.address(),
        size: memory.len() as u64,
    };
    // SAFETY: the request takes this structure.
    unsafe { send(container, IOMMU_UNMAP_DMA, from_mut(&mut unmap).cast())? };
    Ok(())
}

/// Reads a register, before all later reads of memory.
pub(super) fn load(register: &AtomicU32) -> u32 {
    // SAFETY: valid and aligned, as the reference says; volatile, since each access has an effect.
    let value = unsafe { register.as_ptr().read_volatile() };
    fence(Ordering::Acquire);
    u32::from_le(value)
}

/// Writes a register, after all earlier writes to memory.
pub(super) fn store(register: &AtomicU32, value: u32) {
    fence(Ordering::Release);
    // SAFETY: as in `load`.
    unsafe { register.as_ptr().write_volatile(value.to_le()) };
}

/// The `argsz` of a structure.
fn len_of<T>() -> u32 {
    size_of::<T>() as u32
}

// All numbers have the names of the header, without `VFIO_`.
/// The type of all requests, whose numbers begin at `VFIO_BASE`, 100.
const VFIO_TYPE: u8 = b';';
const GET_API_VERSION: u8 = 100;
const CHECK_EXTENSION: u8 = 101;
const SET_IOMMU: u8 = 102;
const GROUP_GET_STATUS: u8 = 103;
const GROUP_SET_CONTAINER: u8 = 104;
const GROUP_GET_DEVICE_FD: u8 = 106;
const DEVICE_GET_REGION_INFO: u8 = 108;
const DEVICE_SET_IRQS: u8 = 110;
const DEVICE_RESET: u8 = 111;
const IOMMU_MAP_DMA: u8 = 113;
const IOMMU_UNMAP_DMA: u8 = 114;

const API_VERSION: i32 = 0;
const TYPE1V2_IOMMU: usize = 3;
const GROUP_FLAGS_VIABLE: u32 = 1;
const DMA_MAP_FLAG_READ: u32 = 1;
const DMA_MAP_FLAG_WRITE: u32 = 1 << 1;
const IRQ_SET_DATA_EVENTFD: u32 = 1 << 2;
const IRQ_SET_ACTION_TRIGGER: u32 = 1 << 5;
const PCI_REQ_IRQ_INDEX: u32 = 4;

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Lengths and offsets that a C compiler gives the structures of `linux/vfio.h` of Linux 6.1 on x86-64.
    #[test]
    fn structures_lie_in_memory_as_the_header_of_the_kernel_lays_them_out() {
        assert_eq!(size_of::<GroupStatus>(), 8);
        assert_eq!(offset_of!(GroupStatus, flags), 4);
        assert_eq!(size_of::<RegionInfo>(), 32);
        let places = [offset_of!(RegionInfo, flags), offset_of!(RegionInfo, index)];
        assert_eq!(places, [4, 8]);
        let places = [offset_of!(RegionInfo, size), offset_of!(RegionInfo, offset)];
        assert_eq!(places, [16, 24]);
        // 20 bytes, and the first number of `data`.
        assert_eq!((size_of::<IrqSet>(), offset_of!(IrqSet, eventfd)), (24, 20));
        let places =
            [offset_of!(IrqSet, index), offset_of!(IrqSet, start), offset_of!(IrqSet, count)];
        assert_eq!(places, [8, 12, 16]);
        assert_eq!(size_of::<DmaMap>(), 32);
        let places =
            [offset_of!(DmaMap, vaddr), offset_of!(DmaMap, iova), offset_of!(DmaMap, size)];
        assert_eq!(places, [8, 16, 24]);
        assert_eq!(size_of::<DmaUnmap>(), 24);
        assert_eq!([offset_of!(DmaUnmap, iova), offset_of!(DmaUnmap, size)], [8, 16]);
    }

    #[test]
    fn requests_have_the_numbers_of_the_header() {
        let opcode = |request| Call { request, argument: null_mut() }.opcode();
        let found = [GET_API_VERSION, GROUP_GET_DEVICE_FD, DEVICE_RESET, IOMMU_MAP_DMA].map(opcode);
        assert_eq!(found, [0x3B64, 0x3B6A, 0x3B6F, 0x3B71]);
    }

    #[test]
    fn files_that_are_not_vfio_s_are_refused_and_nothing_is_written() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let memory = DmaRegion::new(4096).unwrap();
        assert!(is_known(&file).is_err() && is_viable(&file).is_err());
        assert!(attach(&file, &file).is_err() && device(&file, "0000:00:04.0").is_err());
        assert!(region(&file, 0).is_err() && signal_request(&file, &file).is_err());
        assert!(map(&file, &memory).is_err() && unmap(&file, &memory).is_err());
        assert!(reset(&file).is_err());
    }
}
