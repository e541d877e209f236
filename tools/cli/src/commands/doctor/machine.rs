//! Features of this machine for user-level NVMe, and how to enable the missing ones; and a drive as `pcie:` needs it:
//! bound to vfio-pci, behind an IOMMU, in a group of its own. They are read from `/proc`, `/sys` and `/dev`, most
//! below a root that tests can set; nothing is changed.
//!
//! Then the path to a target and this machine's clock, as the operating system sees them.

use std::fs;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use rustix::net::sockopt;

use dlfs::address::{Address, TcpAddress};
use dlfs::qpair::Device;

use super::Finding;
use crate::net::{connect, host_and_port};
use crate::out::{self, percent};

/// One finding for each feature that SPDK or its targets use.
pub(super) fn findings(root: &Path) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    vec![
        engine(),
        huge_pages(root),
        hugetlbfs(&read("proc/mounts")),
        locked_memory(&read("proc/self/limits")),
        iommu(root),
        vfio_or_uio(root),
        permissions(root),
        drives(root),
    ]
}

pub(super) fn finding(
    check: &'static str,
    good: bool,
    found: impl Into<String>,
    mend: &str,
) -> Finding {
    let found = found.into();
    if good { Finding::good(check, found) } else { Finding::bad(check, found, mend) }
}

fn engine() -> Finding {
    let has_spdk = cfg!(feature = "spdk");
    let found = if has_spdk { "SPDK is compiled in" } else { "built without SPDK" };
    let mend = "for spdk: addresses, build with --features spdk where SPDK is installed";
    finding("engine", has_spdk, found, mend)
}

fn huge_pages(root: &Path) -> Finding {
    let pool = root.join("sys/kernel/mm/hugepages/hugepages-2048kB");
    let number = |name: &str| {
        let text = fs::read_to_string(pool.join(name)).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    let free = number("free_hugepages");
    let found = format!("{free} of {} pages of 2 MiB are free", number("nr_hugepages"));
    let mend = "for drives through SPDK (not for TCP, vfio-user and pcie:), as root: sysctl vm.nr_hugepages=512";
    finding("huge pages", free >= MIN_HUGE_PAGES, found, mend)
}

fn hugetlbfs(mounts: &str) -> Finding {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut mounted = fields.filter(|fields| fields.get(2) == Some(&"hugetlbfs"));
    let place = mounted.next().map(|fields| fields[1].to_owned());
    let mend = "for SPDK's nvmf_tgt (dlfs does not use it): mkdir -p /dev/hugepages && mount -t hugetlbfs nodev \
                /dev/hugepages";
    finding("hugetlbfs", place.is_some(), place.unwrap_or("not mounted".to_owned()), mend)
}

fn locked_memory(limits: &str) -> Finding {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let found = soft.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    let mend = "for VFIO and RDMA, which pin memory: raise memlock for this user in /etc/security/limits.conf, or \
                ulimit -l";
    finding("locked memory", soft.is_none_or(|bytes| bytes >= MIN_MEMLOCK), found, mend)
}

fn iommu(root: &Path) -> Finding {
    let groups = entries(root, "sys/kernel/iommu_groups").len();
    let without = root.join("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    let without = fs::read_to_string(without).is_ok_and(|text| text.trim() == "Y");
    let mend = "for drives as a user who is not root: switch it on in the firmware and boot with intel_iommu=on or \
                amd_iommu=on; without one, as root: VFIO's enable_unsafe_noiommu_mode or uio_pci_generic";
    finding("IOMMU", groups > 0 || without, format!("{groups} groups"), mend)
}

fn vfio_or_uio(root: &Path) -> Finding {
    let has_vfio = root.join("dev/vfio/vfio").exists();
    let has_uio = root.join("sys/module/uio_pci_generic").exists();
    let found = match (has_vfio, has_uio) {
        (true, _) => format!("VFIO with {} groups", vfio_groups(root).len()),
        (false, true) => "uio_pci_generic".to_owned(),
        (false, false) => "neither module is loaded".to_owned(),
    };
    let mend = "for drives without the kernel, as root: modprobe vfio-pci";
    finding("VFIO or uio", has_vfio || has_uio, found, mend)
}

fn permissions(root: &Path) -> Finding {
    let opens = |path: &&PathBuf| fs::File::options().read(true).write(true).open(path).is_ok();
    let usable = vfio_groups(root).iter().filter(opens).count();
    let mend = "for drives as this user: as root, chown the group's file in /dev/vfio to them, or run as root";
    if rustix::process::geteuid().is_root() {
        return finding("permissions", true, "root", mend);
    }
    finding("permissions", usable > 0, format!("{usable} VFIO groups can be opened"), mend)
}

/// The NVMe drives on PCI, each with its bound driver.
fn drives(root: &Path) -> Finding {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut drives = Vec::new();
    for device in entries(root, "sys/bus/pci/devices") {
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
    let mend = "for a drive without the kernel: dlfs doctor pcie:ADDRESS prints the commands that bind it to vfio-pci, \
                and SPDK's scripts/setup.sh binds all";
    finding("drives", good, found, mend)
}

/// The name of what a link of a device leads to.
fn target_of(device: &Path, link: &str) -> Option<String> {
    let target = fs::read_link(device.join(link)).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

fn vfio_groups(root: &Path) -> Vec<PathBuf> {
    let all = entries(root, "dev/vfio").into_iter();
    all.filter(|path| path.file_name().is_some_and(|name| name != "vfio")).collect()
}

pub(super) fn entries(root: &Path, folder: &str) -> Vec<PathBuf> {
    let found = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

/// Class, subclass and interface of an NVMe controller.
const NVME_CLASS: &str = "0x010802";
/// SPDK's default here: 512 MiB.
const MIN_HUGE_PAGES: u64 = 256;
/// Memory that a few queues and buffers pin.
const MIN_MEMLOCK: u64 = 64 << 20;

/// One finding for each condition of the drive at this PCI address.
pub(super) fn drive_findings(root: &Path, address: &str) -> Vec<Finding> {
    let place = root.join(DEVICES).join(address);
    let class = fs::read_to_string(place.join("class")).unwrap_or_default();
    if class.trim() != NVME_CLASS {
        let found = match class.trim() {
            "" => format!("this machine has no PCI device {address}"),
            class => format!("{address} is no NVMe controller but of class {class}"),
        };
        let mend = "dlfs doctor without an address lists the drives";
        return vec![Finding::bad("drive", found, mend)];
    }
    let driver = target_of(&place, "driver");
    let mut found = vec![bound(address, driver.as_deref())];
    match target_of(&place, "iommu_group") {
        Some(group) if !root.join(format!("dev/vfio/noiommu-{group}")).exists() => {
            found.push(Finding::good("IOMMU", format!("{address} is in group {group}")));
            found.push(viable(root, address, &group));
            found.push(permission(root, &group));
        }
        without => {
            let what = without.map_or("the drive is behind none", |_| {
                "VFIO works without one, so the drive could write to any memory: dlfs refuses that"
            });
            let mend = "switch it on in the firmware (VT-d, AMD-Vi), and boot with intel_iommu=on, or amd_iommu=on";
            found.push(Finding::bad("IOMMU", what.to_owned(), mend));
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

/// Judges the driver that the drive has.
fn bound(address: &str, driver: Option<&str>) -> Finding {
    let device = format!("/{DEVICES}/{address}");
    let unbind =
        driver.map_or(String::new(), |_| format!("echo {address} > {device}/driver/unbind; "));
    let mend = format!(
        "its data are then gone for the kernel, so unmount what is on it; as root: modprobe vfio-pci; \
         echo vfio-pci > {device}/driver_override; {unbind}echo {address} > /sys/bus/pci/drivers_probe"
    );
    let found = driver.map_or("no driver".to_owned(), |driver| format!("bound to {driver}"));
    finding("driver", driver == Some("vfio-pci"), found, &mend)
}

/// Looks for devices of the same group that VFIO does not have.
fn viable(root: &Path, address: &str, group: &str) -> Finding {
    let members = entries(root, &format!("{DEVICES}/{address}/iommu_group/devices"));
    let other = |member: &PathBuf| {
        let name = member.file_name().unwrap_or_default().to_string_lossy();
        let driver = target_of(member, "driver").filter(|own| !GIVEN_AWAY.contains(&&**own))?;
        (name != *address).then(|| format!("{name} ({driver})"))
    };
    let mut others: Vec<String> = members.iter().filter_map(other).collect();
    others.sort();
    let found = if others.is_empty() {
        format!("all {} devices of group {group} are given away, or have no driver", members.len())
    } else {
        format!("not viable: group {group} also has {}", others.join(", "))
    };
    let mend = "a group is given away as a whole: bind these to vfio-pci, too, or put the drive into another slot";
    finding("group", others.is_empty(), found, mend)
}

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

const DEVICES: &str = "sys/bus/pci/devices";

/// Drivers that a group may have: the device belongs to VFIO, or does no DMA.
const GIVEN_AWAY: [&str; 3] = ["vfio-pci", "pci-stub", "pcieport"];

/// A connection to the first host that accepted one, to examine the route.
pub(super) struct Route(TcpStream);

/// Connects to the hosts of the addresses, at most [`MOST_PLACES`]. Adds a finding for each host and port that was
/// tried, and one more if some were not.
pub(super) fn reach(addresses: &[Address], findings: &mut Vec<Finding>) -> Option<Route> {
    let mut places: Vec<Place> = Vec::new();
    for place in addresses.iter().filter_map(Place::of) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let mut route = None;
    for place in places.iter().take(MOST_PLACES) {
        match place.reach() {
            Ok((stream, found)) => {
                let found =
                    if places.len() > 1 { format!("{}: {found}", place.name()) } else { found };
                findings.push(Finding::good("reachable", found));
                route.get_or_insert(Route(stream));
            }
            Err(finding) => findings.push(finding),
        }
    }
    if places.len() > MOST_PLACES {
        let found = format!("{} more were not tried", places.len() - MOST_PLACES);
        findings.push(Finding::good("reachable", found));
    }
    route
}

/// The reason why there is no route to examine.
pub(super) fn without_route(addresses: &[Address]) -> Finding {
    let why = match addresses.first() {
        Some(Address::Objects(_)) => {
            "the client of the store has the connections; the rates above hold its cost"
        }
        Some(Address::Spdk(_)) => "SPDK has the connections",
        Some(Address::Tcp(_) | Address::Named(_)) => "the first path is down",
        Some(Address::Path(_) | Address::Pcie(_) | Address::VfioUser(_)) | None => {
            return Finding::unneeded("network", "the data are on this machine, or mounted");
        }
    };
    Finding::good("network", format!("not looked at: {why}"))
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    host: String,
    port: u16,
    /// The remedy if the host does not answer.
    mend: &'static str,
}

impl Place {
    /// The host and port that the address leads to, if the address shows them.
    fn of(address: &Address) -> Option<Place> {
        match address {
            Address::Tcp(TcpAddress { traddr, trsvcid, .. }) => {
                let mend = "start the target there (dlfs serve), or open the port in the firewalls between";
                Some(Place { host: traddr.clone(), port: *trsvcid, mend })
            }
            Address::Objects(url) => Place::of_url(url),
            Address::Path(_)
            | Address::Pcie(_)
            | Address::VfioUser(_)
            | Address::Spdk(_)
            | Address::Named(_) => None,
        }
    }

    /// The host and port of a web server; for other stores, the client resolves them.
    fn of_url(url: &str) -> Option<Place> {
        let (scheme, rest) = url.split_once("://")?;
        let usual = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
        let (host, port) = host_and_port(authority, usual)?;
        let mend = "check the address, and that this machine may reach the server without a proxy";
        Some(Place { host, port, mend })
    }

    fn name(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Connects; returns the connection, and a description with its duration.
    fn reach(&self) -> Result<(TcpStream, String), Finding> {
        let began = Instant::now();
        let resolved = (&*self.host, self.port).to_socket_addrs().map_err(|error| {
            let mend = "name a host that resolves, or its IP address: getent hosts HOST shows what this machine knows";
            Finding::bad("reachable", format!("the name {} does not resolve: {error}", self.host), mend)
        })?;
        let name_took = began.elapsed();
        let began = Instant::now();
        let stream = connect(resolved.take(MOST_ADDRESSES), || Ok(CONNECT_LIMIT));
        let stream = stream.map_err(|error| {
            let found = format!("no TCP connection to {}: {error}", self.name());
            Finding::bad("reachable", found, self.mend)
        })?;
        let took = out::duration(began.elapsed());
        let name_took = out::duration(name_took);
        Ok((stream, format!("TCP connects in {took}, after {name_took} for the name")))
    }
}

impl Route {
    /// Judges the connection's properties for this round trip and rate.
    pub(super) fn findings(&self, round_trip: Duration, bytes_per_s: f64) -> Vec<Finding> {
        let buffers = buffers(Path::new("/"), round_trip, bytes_per_s);
        let mtu = mtu(&self.0, bytes_per_s);
        [mtu, congestion(&self.0), buffers].into_iter().flatten().collect()
    }
}

fn mtu(stream: &TcpStream, bytes_per_s: f64) -> Option<Finding> {
    let is_local = stream.peer_addr().ok()?.ip().is_loopback();
    let mtu = match stream.local_addr().ok()? {
        SocketAddr::V4(_) => sockopt::ip_mtu(stream),
        SocketAddr::V6(_) => sockopt::ipv6_mtu(stream),
    };
    Some(judge_mtu(mtu.ok()?, is_local, bytes_per_s))
}

fn judge_mtu(mtu: u32, is_local: bool, bytes_per_s: f64) -> Finding {
    let is_slow = bytes_per_s < FAST_BYTES_PER_S;
    let found = if is_local {
        format!("{mtu} bytes, of this machine's loopback")
    } else if mtu <= ETHERNET_MTU && is_slow {
        let rate = out::bytes(bytes_per_s as u64);
        format!("{mtu} bytes; larger frames are not needed at {rate}/s")
    } else {
        format!("{mtu} bytes")
    };
    let mend = "frames of 9000 bytes need a sixth of the packets: worth it at this rate, if every switch has them";
    finding("MTU", is_local || mtu > ETHERNET_MTU || is_slow, found, mend)
}

fn congestion(stream: &TcpStream) -> Option<Finding> {
    let name = sockopt::tcp_congestion(stream).ok()?;
    let is_good = !["reno", "vegas"].contains(&&*name);
    let mend = "cubic, dctcp (with ECN in the switches) or bbr recover faster: sysctl net.ipv4.tcp_congestion_control";
    Some(finding("congestion", is_good, name, mend))
}

/// Checks that the kernel's buffers allow a connection the bytes in flight that this rate and round trip
/// need.
fn buffers(root: &Path, round_trip: Duration, bytes_per_s: f64) -> Option<Finding> {
    let rmem = std::fs::read_to_string(root.join("proc/sys/net/ipv4/tcp_rmem")).ok()?;
    let most: u64 = rmem.split_ascii_whitespace().nth(2)?.parse().ok()?;
    let under_way = (bytes_per_s * round_trip.as_secs_f64()) as u64;
    let found = format!(
        "tcp_rmem allows {} a connection; rate and round trip need {}",
        out::bytes(most),
        out::bytes(under_way)
    );
    // By default the advertised window is at most half of the buffer (tcp_adv_win_scale).
    let mend = format!(
        "as root: sysctl net.ipv4.tcp_rmem=\"4096 131072 {}\" here, and tcp_wmem at the target",
        (under_way * 4).next_power_of_two()
    );
    Some(finding("buffers", under_way * 2 <= most, found, &mend))
}

/// Reports what protects the transfers: TLS or digests.
pub(super) fn digests(device: &Arc<dyn Device>) -> Finding {
    let engine = device.namespace().engine;
    let found = match (engine.contains("TLS"), engine.contains("digest")) {
        _ if !engine.starts_with("tcp") => {
            return Finding::unneeded("digests", "they belong to NVMe/TCP, and this is no target");
        }
        (true, _) => "TLS authenticates every record",
        (false, true) => "the digests of NVMe/TCP are on",
        (false, false) => {
            let why = "every sample of a data set has a checksum of its own, which dlfs verifies; they are off";
            return Finding::unneeded("digests", why);
        }
    };
    Finding::good("digests", found.to_owned())
}

/// The clock frequency of the processors and its governor.
pub(super) fn clock(root: &Path) -> Finding {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
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
    let is_good = !saves || share.is_none_or(|share| share >= 0.7);
    finding("clock", is_good, found, "as root: cpupower frequency-set -g performance")
}

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const MOST_ADDRESSES: usize = 4;
/// The most hosts to try.
const MOST_PLACES: usize = 16;
/// Below 5 Gb/s, packets of 1500 bytes are no bottleneck.
const FAST_BYTES_PER_S: f64 = 625e6;
const ETHERNET_MTU: u32 = 1500;

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
        std::os::unix::fs::symlink(&driver, link).unwrap();
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
            assert_eq!(finding.mend.is_some(), !finding.good, "{finding:?}");
        }
        let good = |check| found.iter().find(|finding| finding.check == check).unwrap().good;
        assert!(!good("huge pages") && !good("locked memory") && !good("IOMMU") && !good("drives"));
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
        (found.good, found.found, found.mend.unwrap_or_default())
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
        let (good, found, mend) = of(machine(Some("nvme"), &[]).path(), "driver");
        assert!(!good && found == "bound to nvme");
        let place = format!("/sys/bus/pci/devices/{DRIVE}");
        for command in [
            "modprobe vfio-pci; ",
            &format!("echo vfio-pci > {place}/driver_override; "),
            &format!("echo {DRIVE} > {place}/driver/unbind; "),
            &format!("echo {DRIVE} > /sys/bus/pci/drivers_probe"),
        ] {
            assert!(mend.contains(command), "{command}: {mend}");
        }
        let free = machine(None, &[]);
        let (good, found, mend) = of(free.path(), "driver");
        assert!(!good && found == "no driver" && !mend.contains("unbind"), "{found}: {mend}");
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
        let (good, found, mend) = of(folder.path(), "IOMMU");
        assert!(
            !good && found.contains("any memory") && mend.contains("intel_iommu=on"),
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

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn buffers_that_hold_less_than_is_on_its_way_are_told_with_what_would_do() {
        let folder = root(&[("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")]);
        let of = |ms, rate| buffers(folder.path(), Duration::from_millis(ms), rate).unwrap();
        assert!(of(1, 1e9).good);
        let far = of(50, 1.25e9); // 62.5 MB
        assert!(!far.good && far.mend.unwrap().contains("268435456"), "{}", far.found);
        assert!(buffers(Path::new("/nonexistent"), Duration::ZERO, 0.0).is_none());
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

    #[test]
    fn larger_frames_are_a_matter_of_fast_networks() {
        assert!(judge_mtu(1500, false, 100e6).good && judge_mtu(1500, true, 9e9).good);
        assert!(judge_mtu(9000, false, 9e9).good && !judge_mtu(1500, false, 2e9).good);
    }

    #[test]
    fn the_place_of_a_web_server_is_seen_from_its_address() {
        let place = |url: &str| Place::of_url(url).map(|place| place.name());
        assert_eq!(place("https://data.example/x/y").unwrap(), "data.example:443");
        assert_eq!(place("http://user@127.0.0.1:8080?x").unwrap(), "127.0.0.1:8080");
        assert_eq!(place("http://[::1]/x").unwrap(), "[::1]:80");
        assert_eq!(place("http://[::1]:81").unwrap(), "[::1]:81");
        assert_eq!((place("s3://bucket/x"), place("http://host:port/")), (None, None));
    }

    #[test]
    fn a_host_that_does_not_answer_is_named_with_what_to_do() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let address: Address =
            format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-11.io.dlfs:x").parse().unwrap();
        let mut findings = Vec::new();
        let route = reach(&[address.clone(), address.clone()], &mut findings);
        assert!(findings.len() == 1 && findings[0].good, "{findings:?}");
        let route = route.expect("a network is on the way");
        let found = route.findings(Duration::from_micros(100), 1e9);
        assert!(found.iter().any(|finding| finding.check == "MTU" && finding.good), "{found:?}");
        drop((route, listener));
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = other.local_addr().unwrap().to_string();
        let up: Address = format!("nvme-tcp://{place}/nqn.2026-11.io.dlfs:x").parse().unwrap();
        findings.clear();
        let route = reach(&[up, address], &mut findings);
        assert!(route.is_some() && findings[0].good && findings[0].found.contains(&place));
        let down = &findings[1];
        assert!(!down.good && down.mend.as_ref().unwrap().contains("dlfs serve"), "{findings:?}");
        findings.clear();
        let route = reach(&["train.dlfs".parse().unwrap()], &mut findings);
        assert!(findings.is_empty() && route.is_none());
    }
}
