//! A device of this machine's PCI bus, through VFIO: Linux's way to hand a device to a program.
//!
//! The kernel's driver `vfio-pci` has the device, and an IOMMU keeps it to the memory that is mapped for it here;
//! without an IOMMU it could write anywhere, so such groups are refused. Registers are mapped, so neither they nor
//! doorbells cost a system call. There are no interrupts: queues are polled. When the last file of the device is
//! closed, also by a kill, the kernel resets it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};

use crate::fault::Fault;
use crate::memory::DmaRegion;
use crate::registers::{Bus, Registers};
use dlfs_base::buf::FileMemory;
use dlfs_base::process::mark_ours;

mod calls;

/// A PCI device that the kernel has handed to this process.
pub struct Vfio {
    // Dropped in this order: the device before what keeps it to its memory.
    registers: FileMemory,
    device: OwnedFd,
    /// Readable once the kernel wants the device back.
    request: OwnedFd,
    container: OwnedFd,
    _group: OwnedFd,
}

impl Vfio {
    /// Opens the NVMe controller at the PCI address, such as `0000:5e:00.0`, and lets it access memory.
    ///
    /// # Errors
    /// There is no such controller; it, or its group, has not been handed over to VFIO; this process may not use it, or
    /// another one does.
    pub fn open(address: &str) -> Result<Vfio, Fault> {
        let group_name = group_of(Path::new("/"), address)?;
        let container = open_vfio("opening /dev/vfio/vfio", "vfio")?;
        let group = open_vfio("opening the file of its IOMMU group in /dev/vfio", &group_name)?;
        let failed = |source| Fault::Io { step: "asking VFIO for the device", source };
        if !calls::is_known(&container).map_err(failed)? {
            return Err(Fault::Unsupported("this kernel's VFIO has no IOMMU of type 1, version 2"));
        }
        if !calls::is_viable(&group).map_err(failed)? {
            let text =
                format!("other devices of IOMMU group {group_name} have drivers of the kernel");
            return Err(Fault::Unready(text));
        }
        calls::attach(&group, &container).map_err(failed)?;
        let device = calls::device(&group, address).map_err(failed)?;
        mark_ours(&device);
        let request = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let request = request.map_err(|errno| failed(errno.into()))?;
        mark_ours(&request);
        calls::signal_request(&device, &request).map_err(failed)?;
        enable_bus_master(&device).map_err(failed)?;
        let registers = map_registers(&device)?;
        Ok(Vfio { registers, device, request, container, _group: group })
    }

    /// The index of the register's word.
    fn word_index(&self, offset: u32) -> Result<usize, Fault> {
        let end = offset as usize + 4;
        let fits = end <= self.registers.len();
        let too_few = Fault::Protocol("the device has fewer registers than it needs");
        fits.then_some(offset as usize / 4).ok_or(too_few)
    }
}

impl Registers for Vfio {
    fn read32(&self, offset: u32) -> Result<u32, Fault> {
        Ok(calls::load(&self.registers.as_ref()[self.word_index(offset)?]))
    }

    fn write32(&self, offset: u32, value: u32) -> Result<(), Fault> {
        calls::store(&self.registers.as_ref()[self.word_index(offset)?], value);
        Ok(())
    }
}

impl Bus for Vfio {
    fn map(&self, memory: &DmaRegion) -> Result<(), Fault> {
        let step = "pinning memory for the device";
        calls::map(&self.container, memory).map_err(|source| Fault::Io { step, source })
    }

    fn unmap(&self, memory: &DmaRegion) -> Result<(), Fault> {
        let step = "taking memory from the device";
        calls::unmap(&self.container, memory).map_err(|source| Fault::Io { step, source })
    }

    fn is_wanted_back(&self) -> bool {
        rustix::io::read(&self.request, &mut [0; 8]).is_ok()
    }

    fn reset(&self) -> Result<(), Fault> {
        let step = "resetting the device";
        calls::reset(&self.device).map_err(|source| Fault::Io { step, source })
    }
}

/// The name of the device's IOMMU group, if the device is an NVMe controller that VFIO has. `root` is that of the file
/// system.
fn group_of(root: &Path, address: &str) -> Result<String, Fault> {
    let folder = root.join("sys/bus/pci/devices").join(address);
    let class = std::fs::read_to_string(folder.join("class"));
    let class = class.map_err(|source| Fault::Io { step: "looking for the PCI device", source })?;
    if class.trim() != NVME_CLASS {
        return Err(Fault::Unsupported("the PCI device is no NVMe controller"));
    }
    let name_of = |link: &str| {
        let target = std::fs::read_link(folder.join(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    };
    match name_of("driver").as_deref() {
        Some("vfio-pci") => {}
        Some(driver) => {
            return Err(Fault::Unready(format!("its driver is {driver}, not vfio-pci")));
        }
        None => return Err(Fault::Unready("it has no driver; it needs vfio-pci".to_owned())),
    }
    let group = name_of("iommu_group");
    match group.filter(|name| !root.join(format!("dev/vfio/noiommu-{name}")).exists()) {
        Some(name) => Ok(name),
        None => {
            let text = "no IOMMU keeps it to the memory that it is given, so it could write to any";
            Err(Fault::Unready(text.to_owned()))
        }
    }
}

/// Opens a file of `/dev/vfio`.
fn open_vfio(step: &'static str, name: &str) -> Result<OwnedFd, Fault> {
    let file = File::options().read(true).write(true).open(Path::new("/dev/vfio").join(name));
    let file = file.map_err(|source| match source.kind() {
        ErrorKind::ResourceBusy => {
            Fault::Unready("it is in use, most likely by another process".to_owned())
        }
        _ => Fault::Io { step, source },
    })?;
    mark_ours(&file);
    Ok(file.into())
}

/// Lets the device access memory, and switches its interrupt line off, by its PCI command register.
fn enable_bus_master(device: &OwnedFd) -> io::Result<()> {
    let offset = calls::region(device, CONFIGURATION)?.offset + u64::from(PCI_COMMAND);
    let mut command = [0; 2];
    rustix::io::pread(device, &mut command, offset)?;
    let command = u16::from_le_bytes(command) | PCI_MASTER;
    rustix::io::pwrite(device, &command.to_le_bytes(), offset)?;
    Ok(())
}

/// Maps BAR 0.
fn map_registers(device: &OwnedFd) -> Result<FileMemory, Fault> {
    let failed = |source| Fault::Io { step: "mapping the registers", source };
    let info = calls::region(device, REGISTERS).map_err(failed)?;
    if info.flags & MAPPABLE == 0 {
        return Err(Fault::Unsupported("the registers (BAR 0) cannot be mapped"));
    }
    let file = device.try_clone().map_err(failed)?;
    let mapped = FileMemory::of_device(file, info.offset, info.size as usize);
    mapped.map_err(|error| failed(io::Error::other(error)))
}

// Region indices of BAR 0 and of the configuration space, and the flag of a region that can be mapped. They are the
// same in vfio-user.
pub(crate) const REGISTERS: u32 = 0;
pub(crate) const CONFIGURATION: u32 = 7;
pub(crate) const MAPPABLE: u32 = 1 << 2;

/// The command register in the configuration space.
pub(crate) const PCI_COMMAND: u32 = 4;

/// Bits of the command register: memory space, bus master, interrupt line off.
pub(crate) const PCI_MASTER: u16 = 1 << 1 | 1 << 2 | 1 << 10;

/// Class, subclass and interface of an NVMe controller.
const NVME_CLASS: &str = "0x010802";

#[cfg(test)]
mod tests {
    use super::*;
    use dlfs_base::error::ErrorKind as Kind;

    const ADDRESS: &str = "0000:5e:00.0";

    /// A tree as `/sys` and `/dev` are, with a device of this class, driver and group.
    fn tree(class: &str, driver: Option<&str>, group: Option<&str>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("sys/bus/pci/devices").join(ADDRESS);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::create_dir_all(root.path().join("dev/vfio")).unwrap();
        std::fs::write(place.join("class"), class).unwrap();
        for (link, name) in [("driver", driver), ("iommu_group", group)] {
            if let Some(name) = name {
                std::os::unix::fs::symlink(Path::new("../any").join(name), place.join(link))
                    .unwrap();
            }
        }
        root
    }

    #[test]
    fn a_controller_that_vfio_has_behind_an_iommu_is_found_with_its_group() {
        let root = tree("0x010802\n", Some("vfio-pci"), Some("17"));
        assert_eq!(group_of(root.path(), ADDRESS).unwrap(), "17");
    }

    #[test]
    fn devices_that_are_not_ready_are_refused_with_the_reason() {
        let refused = |class, driver, group| {
            let root = tree(class, driver, group);
            group_of(root.path(), ADDRESS).unwrap_err()
        };
        let nvme = "0x010802\n";
        let cases = [
            (refused("0x020000\n", Some("vfio-pci"), Some("1")), Kind::Unsupported, "no NVMe"),
            (refused(nvme, Some("nvme"), Some("1")), Kind::Refused, "its driver is nvme"),
            (refused(nvme, None, Some("1")), Kind::Refused, "no driver"),
            (refused(nvme, Some("vfio-pci"), None), Kind::Refused, "no IOMMU"),
        ];
        for (fault, kind, words) in cases {
            assert!(fault.kind() == kind && fault.to_string().contains(words), "{fault}");
        }
        let without_iommu = tree(nvme, Some("vfio-pci"), Some("0"));
        std::fs::write(without_iommu.path().join("dev/vfio/noiommu-0"), "").unwrap();
        let fault = group_of(without_iommu.path(), ADDRESS).unwrap_err();
        assert!(fault.to_string().contains("write to any"), "{fault}");
        let nothing = group_of(without_iommu.path(), "0000:5f:00.0").unwrap_err();
        assert_eq!(nothing.kind(), Kind::NotFound);
    }
}
