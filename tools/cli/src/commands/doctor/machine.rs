//! Checks of this machine, each with a remedy: what user-level NVMe needs in general ([`findings`]) and for one drive
//! ([`drive_findings`]), such as VFIO and an IOMMU; and the clock of the processors ([`clock`]).
//!
//! The checks read `/proc`, `/sys` and `/dev` below a root that tests can set, and change nothing.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{Finding, finding};
use crate::out::percent;

/// One finding for each feature that SPDK, or a drive read without the kernel, uses.
pub(super) fn findings(root: &Path) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    vec![
        engine(),
        huge_pages(root),
        hugetlbfs(&read("proc/mounts")),
        locked_memory(&read("proc/self/limits"), rustix::process::geteuid().is_root()),
        iommu(root),
        vfio_or_uio(root),
        permissions(root),
        drives(root),
    ]
}

fn engine() -> Finding {
    let has_spdk = cfg!(feature = "spdk");
    let found = if has_spdk { "SPDK is compiled in" } else { "built without SPDK" };
    let remedy = "for spdk: addresses, build with --features spdk where SPDK is installed";
    finding("engine", has_spdk, found, remedy)
}

fn huge_pages(root: &Path) -> Finding {
    let pool = root.join("sys/kernel/mm/hugepages/hugepages-2048kB");
    let number = |name: &str| {
        let text = fs::read_to_string(pool.join(name)).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    let free = number("free_hugepages");
    let found = format!("{free} of {} pages of 2 MiB are free", number("nr_hugepages"));
    let remedy = "for drives through SPDK (not for TCP, vfio-user and pcie:), as root: sysctl vm.nr_hugepages=512";
    finding("huge pages", free >= MIN_HUGE_PAGES, found, remedy)
}

fn hugetlbfs(mounts: &str) -> Finding {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut mounted = fields.filter(|fields| fields.get(2) == Some(&"hugetlbfs"));
    let place = mounted.next().map(|fields| fields[1].to_owned());
    let remedy = "for SPDK's nvmf_tgt (dlfs does not use it): mkdir -p /dev/hugepages && mount -t hugetlbfs nodev \
                  /dev/hugepages";
    finding("hugetlbfs", place.is_some(), place.unwrap_or("not mounted".to_owned()), remedy)
}

/// Checks the limit of locked memory, which does not hold for root.
fn locked_memory(limits: &str, is_root: bool) -> Finding {
    if is_root {
        return Finding::good("locked memory", "root has no limit".to_owned());
    }
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let found = soft.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    let remedy = "for VFIO and RDMA, which pin memory: raise memlock for this user in /etc/security/limits.conf, or \
                  ulimit -l";
    finding("locked memory", soft.is_none_or(|bytes| bytes >= MIN_MEMLOCK), found, remedy)
}

fn iommu(root: &Path) -> Finding {
    let groups = entries(root, "sys/kernel/iommu_groups").len();
    let unsafe_mode = root.join("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    let works_without = fs::read_to_string(unsafe_mode).is_ok_and(|text| text.trim() == "Y");
    let remedy = "for drives as a user who is not root: switch it on in the firmware and boot with intel_iommu=on or \
                  amd_iommu=on; without one, as root: VFIO's enable_unsafe_noiommu_mode or uio_pci_generic";
    finding("IOMMU", groups > 0 || works_without, format!("{groups} groups"), remedy)
}

fn vfio_or_uio(root: &Path) -> Finding {
    let has_vfio = root.join("dev/vfio/vfio").exists();
    let has_uio = root.join("sys/module/uio_pci_generic").exists();
    let found = match (has_vfio, has_uio) {
        (true, _) => format!("VFIO with {} groups", vfio_groups(root).len()),
        (false, true) => "uio_pci_generic".to_owned(),
        (false, false) => "neither module is loaded".to_owned(),
    };
    let remedy = "for drives without the kernel, as root: modprobe vfio-pci";
    finding("VFIO or uio", has_vfio || has_uio, found, remedy)
}

fn permissions(root: &Path) -> Finding {
    let opens = |path: &&PathBuf| fs::File::options().read(true).write(true).open(path).is_ok();
    let usable = vfio_groups(root).iter().filter(opens).count();
    let remedy = "for drives as this user: as root, chown the group's file in /dev/vfio to them, or run as root";
    if rustix::process::geteuid().is_root() {
        return finding("permissions", true, "root", remedy);
    }
    finding("permissions", usable > 0, format!("{usable} VFIO groups can be opened"), remedy)
}

/// The NVMe drives on PCI, each with its bound driver.
fn drives(root: &Path) -> Finding {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut drives = Vec::new();
    for device in entries(root, DEVICES) {
        let class = fs::read_to_string(device.join("class")).unwrap_or_default();
        if class.trim() == NVME_CLASS {
            let driver = target_of(&device, "driver").unwrap_or("no driver".to_owned());
            drives.extend(name(&device).map(|address| format!("{address} ({driver})")));
        }
    }
    drives.sort();
    let user_level =
        |drive: &String| ["(vfio-pci)", "(uio_pci_generic)"].iter().any(|d| drive.ends_with(d));
    let good = drives.iter().any(user_level);
    let found =
        if drives.is_empty() { "no NVMe drive on PCI".to_owned() } else { drives.join(", ") };
    let remedy = "for a drive without the kernel: dlfs doctor pcie:ADDRESS prints the commands that bind it to \
                  vfio-pci, and SPDK's scripts/setup.sh binds all";
    finding("drives", good, found, remedy)
}

/// The name of the file that a link in a device's folder leads to.
fn target_of(device: &Path, link: &str) -> Option<String> {
    let target = fs::read_link(device.join(link)).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

fn vfio_groups(root: &Path) -> Vec<PathBuf> {
    let all = entries(root, "dev/vfio").into_iter();
    all.filter(|path| path.file_name().is_some_and(|name| name != "vfio")).collect()
}

fn entries(root: &Path, folder: &str) -> Vec<PathBuf> {
    let found = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

/// One finding for each condition of the drive at this PCI address; only one if there is no such drive. Files are read
/// below `root`.
pub(super) fn drive_findings(root: &Path, address: &str) -> Vec<Finding> {
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
        unusable_group => {
            let what = unusable_group.map_or("the drive is behind none", |_| {
                "VFIO works without one, so the drive could write to any memory: dlfs refuses that"
            });
            let remedy = "switch it on in the firmware (VT-d, AMD-Vi), and boot with intel_iommu=on, or amd_iommu=on";
            found.push(Finding::bad("IOMMU", what.to_owned(), remedy));
        }
    }
    let limits = fs::read_to_string(root.join("proc/self/limits")).unwrap_or_default();
    found.push(locked_memory(&limits, rustix::process::geteuid().is_root()));
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
        format!("all other devices of group {group} are given away, or have no driver")
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

/// The clock frequency of the processors and its governor.
pub(super) fn clock(root: &Path) -> Finding {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let cpuinfo = read("proc/cpuinfo");
    let field = |name: &str| -> Vec<&str> {
        let lines = cpuinfo.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.split_once(':')).map(|(_, value)| value.trim()).collect()
    };
    let model = field("model name").first().map_or("processors", |model| *model).to_owned();
    let governor = read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let khz = |name: &str| {
        read(&format!("sys/devices/system/cpu/cpu0/cpufreq/{name}")).trim().parse::<f64>().ok()
    };
    let mhz: Vec<f64> = field("cpu MHz").iter().filter_map(|value| value.parse().ok()).collect();
    // Only x86 processors show their clock in `/proc/cpuinfo`.
    let mean = if mhz.is_empty() {
        khz("scaling_cur_freq").map(|khz| khz / 1e3)
    } else {
        Some(mhz.iter().sum::<f64>() / mhz.len() as f64)
    };
    let most = khz("cpuinfo_max_freq").filter(|&most| most > 0.0);
    let share = mean.zip(most).map(|(mean, most)| mean * 1e3 / most);
    let at = mean.map_or("at an unknown clock".to_owned(), |mean| format!("at {mean:.0} MHz"));
    let mut found = format!("{} x {model} {at}", field("processor").len().max(1));
    if let Some(share) = share {
        found = format!("{found}, {} of the most", percent(share.min(1.0)));
    }
    let governor = governor.trim();
    if !governor.is_empty() {
        found = format!("{found}, governor {governor}");
    }
    let saves = ["powersave", "conservative"].contains(&governor);
    let is_good = !saves || share.is_none_or(|share| share >= MIN_CLOCK_SHARE);
    finding("clock", is_good, found, "as root: cpupower frequency-set -g performance")
}

/// Class, subclass and interface of an NVMe controller.
const NVME_CLASS: &str = "0x010802";
/// The default of `SpdkOptions::memory_bytes`, 512 MiB, in pages of 2 MiB.
const MIN_HUGE_PAGES: u64 = 256;
/// The memory that a few queues and buffers pin, in bytes.
const MIN_MEMLOCK: u64 = 64 << 20;
/// The least share of its highest frequency at which a processor is not held down by a governor that saves power.
const MIN_CLOCK_SHARE: f64 = 0.7;
/// The folder of PCI devices, below the root.
const DEVICES: &str = "sys/bus/pci/devices";
/// Drivers that leave a group viable: the device belongs to VFIO, or does no DMA.
const DRIVERS_OF_A_VIABLE_GROUP: [&str; 3] = ["vfio-pci", "pci-stub", "pcieport"];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_machine_with_everything_misses_nothing_but_the_engine_it_was_built_without() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
        write(root, &format!("{pool}/nr_hugepages"), "512\n");
        write(root, &format!("{pool}/free_hugepages"), "500\n");
        write(root, "proc/mounts", "nodev /huge hugetlbfs rw 0 0\n");
        write(
            root,
            "proc/self/limits",
            "Max locked memory         unlimited   unlimited   bytes\n",
        );
        write(root, "dev/vfio/vfio", "");
        write(root, "dev/vfio/7", "");
        write(root, "sys/kernel/iommu_groups/7/type", "");
        write(root, "sys/bus/pci/devices/0000:5e:00.0/class", "0x010802\n");
        let driver = root.join("sys/bus/pci/drivers/vfio-pci");
        fs::create_dir_all(&driver).unwrap();
        let link = root.join("sys/bus/pci/devices/0000:5e:00.0/driver");
        symlink(&driver, link).unwrap();
        let found = findings(root);
        let lacking: Vec<_> = found.iter().filter(|finding| !finding.good).collect();
        assert!(lacking.iter().all(|finding| finding.check == "engine"), "{lacking:?}");
        assert!(
            found.iter().any(|finding| finding.found == "0000:5e:00.0 (vfio-pci)"),
            "{found:?}"
        );
    }

    #[test]
    fn every_missing_part_comes_with_what_to_do() {
        let empty = tempfile::tempdir().unwrap();
        write(
            empty.path(),
            "proc/self/limits",
            "Max locked memory         65536   65536   bytes\n",
        );
        let found = findings(empty.path());
        assert_eq!(found.len(), 8);
        for finding in &found {
            assert_eq!(finding.remedy.is_some(), !finding.good, "{finding:?}");
        }
        let good = |check| found.iter().find(|finding| finding.check == check).unwrap().good;
        assert!(!good("huge pages") && !good("IOMMU") && !good("drives"));
    }

    #[test]
    fn the_limit_of_locked_memory_does_not_hold_for_root() {
        let limits = "Max locked memory         65536   65536   bytes\n";
        let of_user = locked_memory(limits, false);
        assert!(!of_user.good && of_user.found == "64 KiB", "{of_user:?}");
        let of_root = locked_memory(limits, true);
        assert!(of_root.good && of_root.found == "root has no limit", "{of_root:?}");
    }

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_clock_that_is_held_down_is_told_from_one_that_is_not() {
        let cpufreq = "sys/devices/system/cpu/cpu0/cpufreq";
        let governor = format!("{cpufreq}/scaling_governor");
        let most = format!("{cpufreq}/cpuinfo_max_freq");
        let cpu = "processor\t: 0\nmodel name\t: Some CPU\ncpu MHz\t\t: 1200.000\n";
        let slow = root(&[("proc/cpuinfo", cpu), (&governor, "powersave\n"), (&most, "3600000\n")]);
        let found = clock(slow.path());
        assert!(!found.good && found.found.contains("33 % of the most"), "{}", found.found);
        let fast =
            root(&[("proc/cpuinfo", cpu), (&governor, "performance\n"), (&most, "1200000\n")]);
        assert!(clock(fast.path()).good);
        let unknown = clock(root(&[]).path());
        assert!(unknown.good && unknown.found.contains("unknown clock"), "{}", unknown.found);
        let now = format!("{cpufreq}/scaling_cur_freq");
        let arm =
            root(&[("proc/cpuinfo", "processor\t: 0\nprocessor\t: 1\n"), (&now, "2600000\n")]);
        assert_eq!(clock(arm.path()).found, "2 x processors at 2600 MHz");
    }

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
        let found = drive_findings(root, DRIVE);
        let found = found.into_iter().find(|finding| finding.check == check).expect(check);
        (found.good, found.found, found.remedy.unwrap_or_default())
    }

    #[test]
    fn a_drive_that_vfio_has_misses_nothing() {
        let folder = machine(Some("vfio-pci"), &[("0000:5d:00.0", "pcieport")]);
        fs::write(folder.path().join("dev/vfio/7"), "").unwrap();
        let found = drive_findings(folder.path(), DRIVE);
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
        let (good, found, _) = of(machine(Some("nvme"), &others[1..]).path(), "group");
        assert!(
            good && found.starts_with("all other devices of group 7 are given away"),
            "{found}"
        );
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
            let found = drive_findings(folder.path(), address);
            assert!(found.len() == 1 && found[0].found.contains(words), "{found:?}");
        }
    }
}
