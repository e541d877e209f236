//! What the operating system says of the path to a target, and of this machine's clock.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use dlfs::nvme::{Address, TcpAddress};
use dlfs::qpair::Device;

use super::Finding;
use super::load::percent;
use crate::text;

/// A connection to the first address, if that is on a network, to look at.
pub(super) struct Route {
    stream: TcpStream,
    pub(super) reachable: Finding,
}

/// Connects to the first address, if that is on a network.
///
/// # Errors
/// The finding that says why that is not possible.
pub(super) fn reach(addresses: &[Address]) -> Result<Option<Route>, Finding> {
    let Some(Address::Tcp(address)) = addresses.first() else { return Ok(None) };
    let (resolved, took) = resolve(address).map_err(|error| {
        let mend = "name a host that resolves, or its IP address: getent hosts HOST shows what this machine knows";
        Finding::bad("reachable", format!("the name {} does not resolve: {error}", address.traddr), mend)
    })?;
    let began = Instant::now();
    let stream = connect(&resolved).map_err(|error| {
        let found = format!("no TCP connection to {}:{}: {error}", address.traddr, address.trsvcid);
        let mend = "start the target there (dlfs serve), or open the port in the firewalls between";
        Finding::bad("reachable", found, mend)
    })?;
    let micros = |time: Duration| text::micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    let found =
        format!("TCP connects in {}, after {} for the name", micros(began.elapsed()), micros(took));
    Ok(Some(Route { stream, reachable: Finding::good("reachable", found) }))
}

impl Route {
    /// What the connection's properties are worth at this round trip and rate.
    pub(super) fn findings(&self, round_trip: Duration, bytes_per_s: f64) -> Vec<Finding> {
        let buffers = buffers(Path::new("/"), round_trip, bytes_per_s);
        [mtu(&self.stream), congestion(&self.stream), buffers].into_iter().flatten().collect()
    }
}

fn resolve(address: &TcpAddress) -> std::io::Result<(Vec<SocketAddr>, Duration)> {
    let began = Instant::now();
    let found = (&*address.traddr, address.trsvcid).to_socket_addrs()?.collect();
    Ok((found, began.elapsed()))
}

fn connect(addresses: &[SocketAddr]) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses.iter().take(MOST_ADDRESSES) {
        match TcpStream::connect_timeout(address, CONNECT_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn mtu(stream: &TcpStream) -> Option<Finding> {
    let is_local = stream.peer_addr().ok()?.ip().is_loopback();
    let mtu = match stream.local_addr().ok()? {
        SocketAddr::V4(_) => sockopt::ip_mtu(stream),
        SocketAddr::V6(_) => sockopt::ipv6_mtu(stream),
    };
    let mtu = mtu.ok()?;
    Some(match mtu {
        _ if is_local => Finding::good("MTU", format!("{mtu} bytes, of this machine's loopback")),
        ETHERNET_MTU.. if mtu > ETHERNET_MTU => Finding::good("MTU", format!("{mtu} bytes")),
        _ => Finding::bad(
            "MTU",
            format!("{mtu} bytes"),
            "frames of 9000 bytes need a sixth of the packets: worth it above 10 Gb/s, if every switch has them",
        ),
    })
}

fn congestion(stream: &TcpStream) -> Option<Finding> {
    let name = sockopt::tcp_congestion(stream).ok()?;
    Some(match &*name {
        "reno" | "vegas" => Finding::bad(
            "congestion",
            name.clone(),
            "cubic, dctcp (with ECN in the switches) or bbr recover faster: sysctl net.ipv4.tcp_congestion_control",
        ),
        _ => Finding::good("congestion", name),
    })
}

/// Whether the kernel lets a connection have what is on its way at this rate and round trip.
fn buffers(root: &Path, round_trip: Duration, bytes_per_s: f64) -> Option<Finding> {
    let rmem = std::fs::read_to_string(root.join("proc/sys/net/ipv4/tcp_rmem")).ok()?;
    let most: u64 = rmem.split_ascii_whitespace().nth(2)?.parse().ok()?;
    let under_way = (bytes_per_s * round_trip.as_secs_f64()) as u64;
    let found = format!(
        "tcp_rmem allows {} a connection; rate and round trip need {}",
        text::bytes(most),
        text::bytes(under_way)
    );
    // The window that is advertised is at most half of the buffer by default (tcp_adv_win_scale).
    Some(match under_way * 2 <= most {
        true => Finding::good("buffers", found),
        false => Finding::bad(
            "buffers",
            found,
            format!(
                "as root: sysctl net.ipv4.tcp_rmem=\"4096 131072 {}\"",
                (under_way * 4).next_power_of_two()
            ),
        ),
    })
}

/// Which digests protect the transfers.
pub(super) fn digests(device: &Arc<dyn Device>) -> Option<Finding> {
    let engine = device.namespace().engine;
    if !engine.starts_with("tcp") {
        return None;
    }
    let found = match (engine.contains("TLS"), engine.contains("digest")) {
        (true, _) => "TLS authenticates every record",
        (false, true) => "the digests of NVMe/TCP are on",
        (false, false) => {
            "off, and not needed for data sets: every sample has a checksum of its own, which dlfs verifies"
        }
    };
    Some(Finding::good("digests", found.to_owned()))
}

/// The clock of the processors and who sets it.
pub(super) fn clock(root: &Path) -> Finding {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let cpuinfo = read("proc/cpuinfo");
    let field = |name: &str| -> Vec<&str> {
        let lines = cpuinfo.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.split_once(':')).map(|(_, value)| value.trim()).collect()
    };
    let mhz: Vec<f64> = field("cpu MHz").iter().filter_map(|value| value.parse().ok()).collect();
    let model = field("model name").first().map_or("processors", |model| *model).to_owned();
    let mean = if mhz.is_empty() { 0.0 } else { mhz.iter().sum::<f64>() / mhz.len() as f64 };
    let governor = read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let khz = |name: &str| {
        read(&format!("sys/devices/system/cpu/cpu0/cpufreq/{name}")).trim().parse::<f64>().ok()
    };
    let share = khz("cpuinfo_max_freq").filter(|&most| most > 0.0).map(|most| mean * 1e3 / most);
    let mut found = format!("{} x {model} at {mean:.0} MHz", mhz.len().max(1));
    if let Some(share) = share {
        found = format!("{found}, {} of the most", percent(share.min(1.0)));
    }
    match governor.trim() {
        "" => Finding::good("clock", found),
        "powersave" | "conservative" if share.is_some_and(|share| share < 0.7) => Finding::bad(
            "clock",
            format!("{found}, governor {}", governor.trim()),
            "as root: cpupower frequency-set -g performance",
        ),
        governor => Finding::good("clock", format!("{found}, governor {governor}")),
    }
}

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const MOST_ADDRESSES: usize = 4;
const ETHERNET_MTU: u32 = 1500;

#[cfg(test)]
mod tests {
    use super::*;

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
        let (governor, most) =
            (format!("{cpufreq}/scaling_governor"), format!("{cpufreq}/cpuinfo_max_freq"));
        let cpu = "model name\t: Some CPU\ncpu MHz\t\t: 1200.000\n";
        let slow = root(&[("proc/cpuinfo", cpu), (&governor, "powersave\n"), (&most, "3600000\n")]);
        let found = clock(slow.path());
        assert!(!found.good && found.found.contains("33 % of the most"), "{}", found.found);
        let fast =
            root(&[("proc/cpuinfo", cpu), (&governor, "performance\n"), (&most, "1200000\n")]);
        assert!(clock(fast.path()).good);
        assert!(clock(root(&[]).path()).good, "unknown is no complaint");
    }

    #[test]
    fn a_host_that_does_not_answer_is_named_with_what_to_do() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let address: Address =
            format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-11.io.dlfs:x").parse().unwrap();
        let route =
            reach(std::slice::from_ref(&address)).unwrap().expect("a network is on the way");
        let found = route.findings(Duration::from_micros(100), 1e9);
        assert!(found.iter().any(|finding| finding.check == "MTU" && finding.good), "{found:?}");
        drop((route, listener));
        let finding = reach(&[address]).err().expect("nobody listens");
        assert!(!finding.good && finding.mend.unwrap().contains("dlfs serve"), "{}", finding.found);
        assert!(reach(&["train.dlfs".parse().unwrap()]).unwrap().is_none());
    }
}
