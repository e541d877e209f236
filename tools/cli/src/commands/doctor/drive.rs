//! Checks of one drive for `pcie:`, each with a remedy: it must be bound to vfio-pci, in a viable IOMMU group that this
//! user may open, and the user must be allowed to lock memory.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::machine::{DEVICES, NVME_CLASS, entries, locked_memory, target_of};
use super::{Finding, finding};

/// One finding for each condition of the drive at this PCI address; only one if there is no such drive. Files are read
/// below `root`.
pub(super) fn findings(root: &Path, address: &str) -> Vec<Finding> {
    let folder = root.join(DEVICES).join(address);
    let class = fs::read_to_string(folder.join("class")).unwrap_or_default();
    if class.trim() != NVME_CLASS {
        let found = match class.trim() {
            "" => format!("this machine has no PCI device {address}"),
            class => format!("{address} is no NVMe controller but of class {class}"),
        };
        let remedy = "dlfs doctor without an address lists the drives";
        return vec![Finding::bad("drive", found, remedy)];
    }
    let driver = target_of(&folder, "driver");
    let mut found = vec![check_driver(address, driver.as_deref())];
    match target_of(&folder, "iommu_group") {
        Some(group) if !root.join(format!("dev/vfio/noiommu-{group}")).exists() => {
            found.push(Finding::good("IOMMU", format!("{address} is in group {group}")));
            found.push(viable(root, address, &group));
            found.push(permission(root, &group));
        }
        without => {
            let what = without.map_or("the drive is behind none", |_| {
                "VFIO works without one, so the drive could write to any memory: dlfs refuses that"
            });
            let remedy = "switch it on in the firmware (VT-d, AMD-Vi), and boot with intel_iommu=on, or amd_iommu=on";
            found.push(Finding::bad("IOMMU", what.to_owned(), remedy));
        }
    }
    let limits = fs::read_to_string(root.join("proc/self/limits")).unwrap_or_default();
    found.push(if rustix::process::geteuid().is_root() {
        Finding::good("locked memory", "root has no limit".to_owned())
    } else {
        locked_memory(&limits)
    });
    found
}

/// Checks the driver of the drive.
fn check_driver(address: &str, driver: Option<&str>) -> Finding {
    let device = format!("/{DEVICES}/{address}");
    let unbind =
        driver.map_or(String::new(), |_| format!("echo {address} > {device}/driver/unbind; "));
    let remedy = format!(
        "its data are then gone for the kernel, so unmount what is on it; as root: modprobe vfio-pci; \
         echo vfio-pci > {device}/driver_override; {unbind}echo {address} > /sys/bus/pci/drivers_probe"
    );
    let found = driver.map_or("no driver".to_owned(), |driver| format!("bound to {driver}"));
    finding("driver", driver == Some("vfio-pci"), found, &remedy)
}

/// Checks that every other device of the group has no driver, or one of [`DRIVERS_OF_A_VIABLE_GROUP`].
fn viable(root: &Path, address: &str, group: &str) -> Finding {
    let members = entries(root, &format!("{DEVICES}/{address}/iommu_group/devices"));
    let other = |member: &PathBuf| {
        let name = member.file_name().unwrap_or_default().to_string_lossy();
        let driver = target_of(member, "driver")
            .filter(|driver| !DRIVERS_OF_A_VIABLE_GROUP.contains(&&**driver))?;
        (name != *address).then(|| format!("{name} ({driver})"))
    };
    let mut others: Vec<String> = members.iter().filter_map(other).collect();
    others.sort();
    let found = if others.is_empty() {
        format!("all {} devices of group {group} are given away, or have no driver", members.len())
    } else {
        format!("not viable: group {group} also has {}", others.join(", "))
    };
    let remedy = "a group is given away as a whole: bind these to vfio-pci, too, or put the drive into another slot";
    finding("group", others.is_empty(), found, remedy)
}

/// Checks that this user may open the file of the group.
fn permission(root: &Path, group: &str) -> Finding {
    let name = format!("dev/vfio/{group}");
    let file = root.join(&name);
    if !file.exists() {
        let found = format!("there is no /{name} yet");
        return Finding::bad("permission", found, "bind the drive to vfio-pci first");
    }
    let usable = access(&file, Access::READ_OK | Access::WRITE_OK).is_ok();
    let found = format!("/{name} can{} be opened", if usable { "" } else { "not" });
    finding("permission", usable, found, &format!("as root: chown USER /{name}"))
}

/// Drivers that leave a group viable: the device belongs to VFIO, or does no DMA.
const DRIVERS_OF_A_VIABLE_GROUP: [&str; 3] = ["vfio-pci", "pci-stub", "pcieport"];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const DRIVE: &str = "0000:5e:00.0";

    /// A machine with a drive of this driver in group 7, beside other devices with their drivers.
    fn machine(driver: Option<&str>, others: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let members = root.join("sys/kernel/iommu_groups/7/devices");
        fs::create_dir_all(&members).unwrap();
        let with_drivers = others.iter().map(|(name, driver)| (*name, Some(*driver)));
        for (name, driver) in with_drivers.chain([(DRIVE, driver)]) {
            let place = root.join(DEVICES).join(name);
            fs::create_dir_all(&place).unwrap();
            let class = if name == DRIVE { NVME_CLASS } else { "0x040300" };
            fs::write(place.join("class"), format!("{class}\n")).unwrap();
            if let Some(driver) = driver {
                symlink(PathBuf::from("/sys/bus/pci/drivers").join(driver), place.join("driver"))
                    .unwrap();
            }
            symlink(members.parent().unwrap(), place.join("iommu_group")).unwrap();
            symlink(&place, members.join(name)).unwrap();
        }
        fs::create_dir_all(root.join("dev/vfio")).unwrap();
        fs::create_dir_all(root.join("proc/self")).unwrap();
        let limits = "Max locked memory         unlimited   unlimited   bytes\n";
        fs::write(root.join("proc/self/limits"), limits).unwrap();
        folder
    }

    /// The finding, and its remedy.
    fn of(root: &Path, check: &str) -> (bool, String, String) {
        let found = findings(root, DRIVE);
        let found = found.into_iter().find(|finding| finding.check == check).expect(check);
        (found.good, found.found, found.remedy.unwrap_or_default())
    }

    #[test]
    fn a_drive_that_vfio_has_misses_nothing() {
        let folder = machine(Some("vfio-pci"), &[("0000:5d:00.0", "pcieport")]);
        fs::write(folder.path().join("dev/vfio/7"), "").unwrap();
        let found = findings(folder.path(), DRIVE);
        let checks: Vec<&str> = found.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["driver", "IOMMU", "group", "permission", "locked memory"]);
        assert!(found.iter().all(|finding| finding.good), "{found:#?}");
    }

    #[test]
    fn the_commands_that_bind_a_drive_are_printed_and_unbind_only_what_is_bound() {
        let (good, found, remedy) = of(machine(Some("nvme"), &[]).path(), "driver");
        assert!(!good && found == "bound to nvme");
        let place = format!("/sys/bus/pci/devices/{DRIVE}");
        for command in [
            "modprobe vfio-pci; ",
            &format!("echo vfio-pci > {place}/driver_override; "),
            &format!("echo {DRIVE} > {place}/driver/unbind; "),
            &format!("echo {DRIVE} > /sys/bus/pci/drivers_probe"),
        ] {
            assert!(remedy.contains(command), "{command}: {remedy}");
        }
        let free = machine(None, &[]);
        let (good, found, remedy) = of(free.path(), "driver");
        assert!(!good && found == "no driver" && !remedy.contains("unbind"), "{found}: {remedy}");
        assert!(of(free.path(), "permission").2.contains("first"));
    }

    #[test]
    fn devices_that_make_a_group_unviable_are_named() {
        let others = [("0000:5e:00.1", "snd_hda_intel"), ("0000:5e:00.2", "vfio-pci")];
        let (good, found, _) = of(machine(Some("vfio-pci"), &others).path(), "group");
        assert!(!good && found.ends_with("also has 0000:5e:00.1 (snd_hda_intel)"), "{found}");
    }

    #[test]
    fn a_drive_without_an_iommu_is_refused_with_what_to_switch_on() {
        let folder = machine(Some("vfio-pci"), &[]);
        fs::write(folder.path().join("dev/vfio/noiommu-7"), "").unwrap();
        let (good, found, remedy) = of(folder.path(), "IOMMU");
        assert!(
            !good && found.contains("any memory") && remedy.contains("intel_iommu=on"),
            "{found}"
        );
        let link = folder.path().join(DEVICES).join(DRIVE).join("iommu_group");
        fs::remove_file(link).unwrap();
        assert_eq!(of(folder.path(), "IOMMU").1, "the drive is behind none");
    }

    #[test]
    fn what_is_no_drive_is_said_to_be_none() {
        let folder = machine(None, &[("0000:5e:00.1", "snd_hda_intel")]);
        for (address, words) in
            [("0000:5e:00.1", "class 0x040300"), ("0000:99:00.0", "no PCI device")]
        {
            let found = findings(folder.path(), address);
            assert!(found.len() == 1 && found[0].found.contains(words), "{found:?}");
        }
    }
}
