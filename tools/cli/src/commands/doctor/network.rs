//! The path to a target as the operating system sees it: connections to its hosts; MTU and congestion control of the
//! first connection; the kernel's buffers; and the protection of transfers.

use std::fs;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use dlfs::address::{Address, TcpAddress};
use dlfs::qpair::Device;

use super::{Finding, finding};
use crate::net::{connect, host_and_port};
use crate::out;

/// The route to the first host that accepted a connection, as that connection had it.
pub(super) struct Route {
    /// True if the connection goes over the loopback interface.
    is_local: bool,
    /// In bytes; `None` if the socket does not tell it.
    mtu: Option<u32>,
    /// The name of the congestion control; `None` if the socket does not tell it.
    congestion: Option<String>,
}

/// Connects to the hosts of the addresses, at most [`MAX_HOSTS`]. Adds a finding for each host and port that was
/// tried, and one more if some were not.
pub(super) fn reach(addresses: &[Address], findings: &mut Vec<Finding>) -> Option<Route> {
    let mut hosts: Vec<HostPort> = Vec::new();
    for host in addresses.iter().filter_map(HostPort::of) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    let mut route = None;
    for host in hosts.iter().take(MAX_HOSTS) {
        match host.reach() {
            Ok((stream, found)) => {
                let found =
                    if hosts.len() > 1 { format!("{}: {found}", host.name()) } else { found };
                findings.push(Finding::good("reachable", found));
                route.get_or_insert_with(|| Route::of(&stream));
            }
            Err(finding) => findings.push(finding),
        }
    }
    if hosts.len() > MAX_HOSTS {
        let found = format!("{} more were not tried", hosts.len() - MAX_HOSTS);
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
struct HostPort {
    host: String,
    port: u16,
    /// The remedy if the host does not answer.
    remedy: &'static str,
}

impl HostPort {
    /// The host and port that the address leads to, if the address shows them.
    fn of(address: &Address) -> Option<HostPort> {
        match address {
            Address::Tcp(TcpAddress { traddr, trsvcid, .. }) => {
                let remedy = "start the target there (dlfs serve), or open the port in the firewalls between";
                Some(HostPort { host: traddr.clone(), port: *trsvcid, remedy })
            }
            Address::Objects(url) => HostPort::of_url(url),
            Address::Path(_)
            | Address::Pcie(_)
            | Address::VfioUser(_)
            | Address::Spdk(_)
            | Address::Named(_) => None,
        }
    }

    /// The host and port of a web server; for other stores, the client resolves them.
    fn of_url(url: &str) -> Option<HostPort> {
        let (scheme, rest) = url.split_once("://")?;
        let usual = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
        let (host, port) = host_and_port(authority, usual)?;
        let remedy =
            "check the address, and that this machine may reach the server without a proxy";
        Some(HostPort { host, port, remedy })
    }

    /// `HOST:PORT`.
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
            let found = format!("the name {} does not resolve: {error}", self.host);
            let remedy = "name a host that resolves, or its IP address: getent hosts HOST shows what this machine \
                          knows";
            Finding::bad("reachable", found, remedy)
        })?;
        let name_took = began.elapsed();
        let began = Instant::now();
        let stream = connect(resolved.take(MAX_ADDRESSES), || Ok(CONNECT_LIMIT));
        let stream = stream.map_err(|error| {
            let found = format!("no TCP connection to {}: {error}", self.name());
            Finding::bad("reachable", found, self.remedy)
        })?;
        let took = out::duration(began.elapsed());
        let name_took = out::duration(name_took);
        Ok((stream, format!("TCP connects in {took}, after {name_took} for the name")))
    }
}

impl Route {
    /// Reads the options of a connected socket. The caller then closes it: a target warns of hosts that connect and
    /// send nothing.
    fn of(stream: &TcpStream) -> Route {
        let mtu = match stream.local_addr() {
            Ok(SocketAddr::V4(_)) => sockopt::ip_mtu(stream).ok(),
            Ok(SocketAddr::V6(_)) => sockopt::ipv6_mtu(stream).ok(),
            Err(_) => None,
        };
        Route {
            is_local: stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback()),
            mtu,
            congestion: sockopt::tcp_congestion(stream).ok(),
        }
    }

    /// Checks the route for this round trip and rate.
    pub(super) fn findings(&self, round_trip: Duration, bytes_per_s: f64) -> Vec<Finding> {
        let mtu = self.mtu.map(|mtu| mtu_finding(mtu, self.is_local, bytes_per_s));
        let congestion = self.congestion.as_deref().map(congestion);
        let buffers = buffers(Path::new("/"), round_trip, bytes_per_s);
        [mtu, congestion, buffers].into_iter().flatten().collect()
    }
}

/// Checks the MTU.
fn mtu_finding(mtu: u32, is_local: bool, bytes_per_s: f64) -> Finding {
    let is_slow = bytes_per_s < FAST_BYTES_PER_S;
    let found = if is_local {
        format!("{mtu} bytes, of this machine's loopback")
    } else if mtu <= ETHERNET_MTU && is_slow {
        let rate = out::bytes(bytes_per_s as u64);
        format!("{mtu} bytes; larger frames are not needed at {rate}/s")
    } else {
        format!("{mtu} bytes")
    };
    let remedy = "frames of 9000 bytes need a sixth of the packets: worth it at this rate, if every switch has them";
    finding("MTU", is_local || mtu > ETHERNET_MTU || is_slow, found, remedy)
}

/// Checks the congestion control.
fn congestion(name: &str) -> Finding {
    let is_good = !["reno", "vegas"].contains(&name);
    let remedy = "cubic, dctcp (with ECN in the switches) or bbr recover faster: sysctl \
                  net.ipv4.tcp_congestion_control";
    finding("congestion", is_good, name.to_owned(), remedy)
}

/// Checks that the kernel's buffers hold a connection's bandwidth-delay product: the bytes in flight at this rate and
/// round trip.
fn buffers(root: &Path, round_trip: Duration, bytes_per_s: f64) -> Option<Finding> {
    let rmem = fs::read_to_string(root.join("proc/sys/net/ipv4/tcp_rmem")).ok()?;
    let most: u64 = rmem.split_ascii_whitespace().nth(2)?.parse().ok()?;
    let bdp_bytes = (bytes_per_s * round_trip.as_secs_f64()) as u64;
    let found = format!(
        "tcp_rmem allows {} a connection; rate and round trip need {}",
        out::bytes(most),
        out::bytes(bdp_bytes)
    );
    // By default the advertised window is at most half of the buffer (tcp_adv_win_scale), so the buffer must have at
    // least twice the product. The remedy doubles that once more.
    let remedy = format!(
        "as root: sysctl net.ipv4.tcp_rmem=\"4096 131072 {}\" here, and tcp_wmem at the target",
        (bdp_bytes * 4).next_power_of_two()
    );
    Some(finding("buffers", bdp_bytes * 2 <= most, found, &remedy))
}

/// Reports the protection of transfers: TLS or digests.
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

/// The time limit of a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The most addresses of a host name to try.
const MAX_ADDRESSES: usize = 4;
/// The most hosts to try.
const MAX_HOSTS: usize = 16;
/// Below 5 Gb/s, packets of 1500 bytes are no bottleneck.
const FAST_BYTES_PER_S: f64 = 625e6;
/// The MTU of Ethernet without jumbo frames.
const ETHERNET_MTU: u32 = 1500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_hold_less_than_is_on_its_way_are_told_with_what_would_do() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("proc/sys/net/ipv4");
        fs::create_dir_all(&settings).unwrap();
        fs::write(settings.join("tcp_rmem"), "4096\t131072\t6291456\n").unwrap();
        let of = |ms, rate| buffers(folder.path(), Duration::from_millis(ms), rate).unwrap();
        assert!(of(1, 1e9).good);
        let far = of(50, 1.25e9); // 62.5 MB
        assert!(!far.good && far.remedy.unwrap().contains("268435456"), "{}", far.found);
        assert!(buffers(Path::new("/nonexistent"), Duration::ZERO, 0.0).is_none());
    }

    #[test]
    fn larger_frames_are_a_matter_of_fast_networks() {
        assert!(mtu_finding(1500, false, 100e6).good && mtu_finding(1500, true, 9e9).good);
        assert!(mtu_finding(9000, false, 9e9).good && !mtu_finding(1500, false, 2e9).good);
    }

    #[test]
    fn the_host_of_a_web_server_is_seen_from_its_address() {
        let name = |url: &str| HostPort::of_url(url).map(|host| host.name());
        assert_eq!(name("https://data.example/x/y").unwrap(), "data.example:443");
        assert_eq!(name("http://user@127.0.0.1:8080?x").unwrap(), "127.0.0.1:8080");
        assert_eq!(name("http://[::1]/x").unwrap(), "[::1]:80");
        assert_eq!(name("http://[::1]:81").unwrap(), "[::1]:81");
        assert_eq!((name("s3://bucket/x"), name("http://host:port/")), (None, None));
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
        let up_host = other.local_addr().unwrap().to_string();
        let up: Address = format!("nvme-tcp://{up_host}/nqn.2026-11.io.dlfs:x").parse().unwrap();
        findings.clear();
        let route = reach(&[up, address], &mut findings);
        assert!(route.is_some() && findings[0].good && findings[0].found.contains(&up_host));
        let down = &findings[1];
        assert!(!down.good && down.remedy.as_ref().unwrap().contains("dlfs serve"), "{findings:?}");
        findings.clear();
        let route = reach(&["train.dlfs".parse().unwrap()], &mut findings);
        assert!(findings.is_empty() && route.is_none());
    }
}
