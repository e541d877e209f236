//! Features of this machine for user-level NVMe, and how to enable the missing ones.
//!
//! The findings are computed from a [`Machine`], which is read from `/proc` and `/sys` under a root
//! that tests can set.

use std::fs;
use std::path::{Path, PathBuf};

use super::Finding;

/// The facts that the checks use.
#[derive(Debug, Default)]
pub(super) struct Machine {
    /// Huge pages of 2 MiB: total and free.
    huge_pages: (u64, u64),
    hugetlbfs: Option<String>,
    /// Soft limit of locked memory in bytes; `None`: unlimited.
    memlock_bytes: Option<u64>,
    has_vfio: bool,
    vfio_groups: usize,
    /// The number of VFIO groups that this user can open.
    vfio_usable: usize,
    has_uio: bool,
    has_noiommu: bool,
    iommu_groups: usize,
    /// NVMe drives by PCI address, with the driver bound to each.
    drives: Vec<(String, Option<String>)>,
    is_root: bool,
}

impl Machine {
    /// Reads the facts below `root`.
    pub(super) fn at(root: &Path) -> Machine {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let number = |path: &str| read(path).trim().parse().unwrap_or(0);
        let entries = |path: &str| -> Vec<PathBuf> {
            let found = fs::read_dir(root.join(path)).into_iter().flatten().flatten();
            found.map(|entry| entry.path()).collect()
        };
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let groups: Vec<PathBuf> = entries("dev/vfio")
            .into_iter()
            .filter(|path| path.file_name().is_some_and(|name| name != "vfio"))
            .collect();
        let opens = |path: &PathBuf| fs::File::options().read(true).write(true).open(path).is_ok();
        Machine {
            huge_pages: (
                number(&format!("{pool}/nr_hugepages")),
                number(&format!("{pool}/free_hugepages")),
            ),
            hugetlbfs: hugetlbfs(&read("proc/mounts")),
            memlock_bytes: memlock(&read("proc/self/limits")),
            has_vfio: root.join("dev/vfio/vfio").exists(),
            vfio_groups: groups.len(),
            vfio_usable: groups.iter().filter(|group| opens(group)).count(),
            has_uio: root.join("sys/module/uio_pci_generic").exists(),
            has_noiommu: read("sys/module/vfio/parameters/enable_unsafe_noiommu_mode").trim()
                == "Y",
            iommu_groups: entries("sys/kernel/iommu_groups").len(),
            drives: drives(&entries("sys/bus/pci/devices")),
            is_root: rustix::process::geteuid().is_root(),
        }
    }
}

/// The mount point of a hugetlbfs.
fn hugetlbfs(mounts: &str) -> Option<String> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut found = fields.filter(|fields| fields.get(2) == Some(&"hugetlbfs"));
    found.next().and_then(|fields| fields.get(1).map(|path| (*path).to_owned()))
}

/// The soft limit of `Max locked memory`.
fn memlock(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// PCI devices of class 01 08 02, NVMe.
fn drives(devices: &[PathBuf]) -> Vec<(String, Option<String>)> {
    let is_nvme = |device: &&PathBuf| {
        fs::read_to_string(device.join("class")).is_ok_and(|class| class.trim() == "0x010802")
    };
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut found: Vec<_> = devices
        .iter()
        .filter(is_nvme)
        .filter_map(|device| {
            let driver = fs::read_link(device.join("driver")).ok().and_then(|path| name(&path));
            Some((name(device)?, driver))
        })
        .collect();
    found.sort();
    found
}

pub(super) fn findings(machine: &Machine) -> Vec<Finding> {
    let finding = |check, good, found: String, mend: &str| {
        if good { Finding::good(check, found) } else { Finding::bad(check, found, mend) }
    };
    let (all, free) = machine.huge_pages;
    let memlock = match machine.memlock_bytes {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes >> 10),
    };
    let usable = machine.is_root || machine.vfio_usable > 0;
    let drives: Vec<String> = machine
        .drives
        .iter()
        .map(|(address, driver)| {
            format!("{address} ({})", driver.as_deref().unwrap_or("no driver"))
        })
        .collect();
    let user_level = |driver: &Option<String>| {
        driver.as_deref().is_some_and(|name| ["vfio-pci", "uio_pci_generic"].contains(&name))
    };
    vec![
        finding(
            "engine",
            cfg!(feature = "spdk"),
            if cfg!(feature = "spdk") { "SPDK is compiled in" } else { "built without SPDK" }
                .to_owned(),
            "for spdk: addresses, build with --features spdk where SPDK is installed",
        ),
        finding(
            "huge pages",
            free >= MIN_HUGE_PAGES,
            format!("{free} of {all} pages of 2 MiB are free"),
            "for drives through SPDK (not for TCP and vfio-user), as root: sysctl \
             vm.nr_hugepages=512",
        ),
        finding(
            "hugetlbfs",
            machine.hugetlbfs.is_some(),
            machine.hugetlbfs.clone().unwrap_or_else(|| "not mounted".to_owned()),
            "for SPDK's nvmf_tgt (dlfs does not use it): mkdir -p /dev/hugepages && mount -t \
             hugetlbfs nodev /dev/hugepages",
        ),
        finding(
            "locked memory",
            machine.memlock_bytes.is_none_or(|bytes| bytes >= MIN_MEMLOCK),
            memlock,
            "for VFIO and RDMA, which pin memory: raise memlock for this user in \
             /etc/security/limits.conf, or ulimit -l",
        ),
        finding(
            "IOMMU",
            machine.iommu_groups > 0 || machine.has_noiommu,
            format!("{} groups", machine.iommu_groups),
            "for drives as a user who is not root: switch it on in the firmware and boot with \
             intel_iommu=on or amd_iommu=on; without one, as root: VFIO's \
             enable_unsafe_noiommu_mode or uio_pci_generic",
        ),
        finding(
            "VFIO or uio",
            machine.has_vfio || machine.has_uio,
            match (machine.has_vfio, machine.has_uio) {
                (true, _) => format!("VFIO with {} groups", machine.vfio_groups),
                (false, true) => "uio_pci_generic".to_owned(),
                (false, false) => "neither module is loaded".to_owned(),
            },
            "for drives through SPDK, as root: modprobe vfio-pci",
        ),
        finding(
            "permissions",
            usable,
            if machine.is_root {
                "root".to_owned()
            } else {
                format!("{} VFIO groups can be opened", machine.vfio_usable)
            },
            "for drives as this user: as root, chown the group's file in /dev/vfio to them, or run \
             as root",
        ),
        finding(
            "drives",
            machine.drives.iter().any(|(_, driver)| user_level(driver)),
            if drives.is_empty() { "no NVMe drive on PCI".to_owned() } else { drives.join(", ") },
            "for a drive without the kernel: bind one that holds no data to vfio-pci with \
             driverctl set-override ADDRESS vfio-pci, or with SPDK's scripts/setup.sh",
        ),
    ]
}

/// SPDK's default here: 512 MiB.
const MIN_HUGE_PAGES: u64 = 256;
/// Memory that a few queues and buffers pin.
const MIN_MEMLOCK: u64 = 64 << 20;

#[cfg(test)]
mod tests {
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
        std::os::unix::fs::symlink(&driver, link).unwrap();
        let found = findings(&Machine::at(root));
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
        let found = findings(&Machine::at(empty.path()));
        assert_eq!(found.len(), 8);
        for finding in &found {
            assert_eq!(finding.mend.is_some(), !finding.good, "{finding:?}");
        }
        let good = |check| found.iter().find(|finding| finding.check == check).unwrap().good;
        assert!(!good("huge pages") && !good("locked memory") && !good("IOMMU") && !good("drives"));
    }
}
