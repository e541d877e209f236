//! The path to a target and this machine's clock, as the operating system sees them.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use dlfs::address::{Address, TcpAddress};
use dlfs::qpair::Device;

use super::Finding;
use super::machine::finding;
use crate::args::host_and_port;
use crate::out::{self, percent};

/// A connection to the first host that accepted one, to examine the route.
pub(super) struct Route(TcpStream);

/// The outcome of connecting to the hosts of the addresses.
pub(super) struct Reached {
    /// A finding for each host and port that was tried, and one more if some were not.
    pub(super) findings: Vec<Finding>,
    pub(super) route: Option<Route>,
}

/// Connects to the hosts of the addresses, at most [`MOST_PLACES`].
pub(super) fn reach(addresses: &[Address]) -> Reached {
    let mut places: Vec<Place> = Vec::new();
    for place in addresses.iter().filter_map(Place::of) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let mut reached = Reached { findings: Vec::new(), route: None };
    for place in places.iter().take(MOST_PLACES) {
        match place.reach() {
            Ok((stream, found)) => {
                let found =
                    if places.len() > 1 { format!("{}: {found}", place.name()) } else { found };
                reached.findings.push(Finding::good("reachable", found));
                reached.route.get_or_insert(Route(stream));
            }
            Err(finding) => reached.findings.push(finding),
        }
    }
    if places.len() > MOST_PLACES {
        let found = format!("{} more were not tried", places.len() - MOST_PLACES);
        reached.findings.push(Finding::good("reachable", found));
    }
    reached
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
        let resolved: Vec<SocketAddr> = resolved.collect();
        let name_took = began.elapsed();
        let began = Instant::now();
        let stream = connect(&resolved).map_err(|error| {
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
        let Reached { findings, route } = reach(&[address.clone(), address.clone()]);
        assert!(findings.len() == 1 && findings[0].good, "{findings:?}");
        let route = route.expect("a network is on the way");
        let found = route.findings(Duration::from_micros(100), 1e9);
        assert!(found.iter().any(|finding| finding.check == "MTU" && finding.good), "{found:?}");
        drop((route, listener));
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = other.local_addr().unwrap().to_string();
        let up: Address = format!("nvme-tcp://{place}/nqn.2026-11.io.dlfs:x").parse().unwrap();
        let Reached { findings, route } = reach(&[up, address]);
        assert!(route.is_some() && findings[0].good && findings[0].found.contains(&place));
        let down = &findings[1];
        assert!(!down.good && down.mend.as_ref().unwrap().contains("dlfs serve"), "{findings:?}");
        let Reached { findings, route } = reach(&["train.dlfs".parse().unwrap()]);
        assert!(findings.is_empty() && route.is_none());
    }
}
