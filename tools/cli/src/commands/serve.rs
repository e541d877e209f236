//! `dlfs serve`: serves an image as the namespaces of an NVMe/TCP subsystem.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use dlfs::keys::read_hosts;
use dlfs::nvme::{Address, Nqn, TcpAddress};
use dlfs::qpair::{self, ConnectOptions, Cpus, Device};
use dlfs::target::{Target, TargetOptions, TargetStats};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind};

use crate::args::{ConnectionArgs, ImageAddress, MOST_SHOWN};
use crate::exit::{Failure, Outcome};
use crate::metrics_args::MetricsArgs;
use crate::out::Out;
use crate::placement_args::PlacementArgs;
use crate::signals::{Asked, Stop};
use crate::size::parse_size;
use crate::{log, text};

/// Serve an image over NVMe/TCP, for dlfs and any other host
///
/// Each address of IMAGE becomes a namespace of one subsystem, read-only unless --writable is
/// given. On loopback any host may connect; elsewhere, --hosts or --allow-host lists the hosts, or
/// --allow-any-host admits all. Hosts in --hosts authenticate with a key. The NQN of any other host
/// is a name without proof: it prevents mistakes, not attacks.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// The image: ADDRESS[,ADDRESS...], each of which becomes a namespace
    #[arg(value_name = "IMAGE", value_parser = ImageAddress::parser())]
    image: ImageAddress,
    /// The address to listen on; port 0 selects a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4420")]
    listen: String,
    /// NQN of the subsystem [default: nqn.2026-11.io.dlfs:FILESTEM]
    #[arg(long, value_name = "NQN")]
    nqn: Option<Nqn>,
    /// Allow this host to connect; may be repeated
    #[arg(long, value_name = "NQN")]
    allow_host: Vec<Nqn>,
    /// Hosts that must authenticate with DH-HMAC-CHAP, connect inside TLS, or both, with their keys;
    /// SIGHUP reloads the file
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Allow any host to connect; those in --hosts must still authenticate
    #[arg(long, conflicts_with = "allow_host")]
    allow_any_host: bool,
    /// Allow hosts to write
    #[arg(long)]
    writable: bool,
    /// Threads that move data [default: one per processor of --cpus, else 1]
    #[arg(long, value_name = "N", alias = "threads", value_parser = clap::value_parser!(u16).range(1..=256))]
    pollers: Option<u16>,
    /// Print the listening address as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Limits on what hosts may use. The defaults suffice for a thousand nodes of 8 ranks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// The most controllers; a process needs one for each image that it has open [default: 16384]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    max_controllers: Option<u16>,
    /// The most controllers per address; hosts behind a NAT router count as one address [default:
    /// 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_controllers_per_address: Option<u16>,
    /// The most controllers of the discovery service [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_discovery_controllers: Option<u16>,
    /// The most of those per address [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_discovery_controllers_per_address: Option<u16>,
    /// The most connections per poller; fewer if the limit of open files is lower [default: 32768]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: Option<u16>,
    /// The most of those per address [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections_per_address: Option<u16>,
    /// The most I/O queues per controller [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_io_queues: Option<u16>,
    /// The most entries per queue; hosts read this limit and stay within it [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(32..))]
    max_queue_entries: Option<u16>,
    /// Memory per poller for data in flight; one connection gets at most a quarter [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    buffer_memory: Option<u64>,
    /// In seconds: a controller that is silent for twice this time is replaced if its place is
    /// needed [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_keep_alive: Option<u32>,
    /// Seconds that a connection may take to become a queue [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connect_timeout: Option<u32>,
    /// Seconds that a host may take to receive 64 KiB of responses, or to send requested data; 1
    /// while others wait for memory [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    send_timeout: Option<u32>,
}

impl LimitArgs {
    fn apply(&self, options: &mut TargetOptions) {
        fn set<T>(option: &mut T, value: Option<impl Into<T>>) {
            if let Some(value) = value {
                *option = value.into();
            }
        }
        let seconds = |value: Option<u32>| value.map(|value| Duration::from_secs(value.into()));
        let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        set(&mut options.max_controllers, self.max_controllers);
        set(&mut options.max_controllers_per_address, self.max_controllers_per_address);
        set(&mut options.max_discovery_controllers, self.max_discovery_controllers);
        let per_address = &mut options.max_discovery_controllers_per_address;
        set(per_address, self.max_discovery_controllers_per_address);
        set(&mut options.max_connections, self.max_connections);
        set(&mut options.max_connections_per_address, self.max_connections_per_address);
        set(&mut options.max_io_queues, self.max_io_queues);
        set(&mut options.max_queue_entries, self.max_queue_entries);
        set(&mut options.buffer_bytes, self.buffer_memory.map(bytes));
        set(&mut options.max_keep_alive, seconds(self.max_keep_alive));
        set(&mut options.connect_timeout, seconds(self.connect_timeout));
        set(&mut options.send_timeout, seconds(self.send_timeout));
    }
}

#[derive(Serialize)]
struct Listening<'a> {
    address: &'a str,
    listen: SocketAddr,
    nqn: &'a str,
    namespaces: Vec<u64>,
    writable: bool,
}

pub(crate) fn run(args: ServeArgs) -> Result<Outcome, Failure> {
    let listen = resolve(&args.listen)?;
    let host_keys = args.hosts.as_deref().map(read_hosts).transpose()?.unwrap_or_default();
    let closed = args.allow_host.is_empty() && !args.allow_any_host && host_keys.is_empty();
    if closed && !listen.ip().is_loopback() {
        return Err(Failure::Usage(format!(
            "{} can be reached from elsewhere: say who may connect with --hosts FILE, \
             --allow-host NQN or --allow-any-host",
            listen.ip()
        )));
    }
    let cpus = args.placement.cpus()?;
    let stop = Stop::on_signals(GRACE_FOR_TARGETS, || Outcome::Done)?;
    let asked = Asked::on_signals()?;
    let connect = args.connection.options(args.writable)?;
    let _metrics = args.metrics.serve()?;
    let devices = open(&args.image.0, &connect)?;
    let nqn = match &args.nqn {
        Some(nqn) => nqn.clone(),
        None => default_nqn(&args.image.0)?,
    };
    allow_many_files();
    let mut options = TargetOptions {
        listen,
        allow_hosts: args.allow_host.clone(),
        allow_any_host: args.allow_any_host,
        host_keys,
        tls_derivation: connect.tls_derivation,
        writable: args.writable,
        num_pollers: args.pollers.map_or_else(|| cpus.as_ref().map_or(1, Cpus::len), usize::from),
        busy_poll: args.placement.busy_poll(),
        cpus,
        ..TargetOptions::new(nqn.clone())
    };
    args.limits.apply(&mut options);
    let mut target = Target::bind(options, devices.clone())?;
    announce(&args, target.local_addr(), &nqn, &devices)?;
    while !stop.is_set_within(WATCH) {
        target.check()?;
        if asked.hung_up() {
            log::say(&read_again(&mut target, args.hosts.as_deref()));
        }
        if asked.wants_statistics() {
            log::say(&statistics(&target.stats()));
        }
    }
    drop(target);
    Ok(Outcome::Done)
}

/// Reloads the hosts file, and returns a message about it. If the file cannot be read, nothing
/// changes.
fn read_again(target: &mut Target, hosts: Option<&Path>) -> String {
    let Some(path) = hosts else {
        return "SIGHUP: there is no hosts file to read again; serving goes on".to_owned();
    };
    let read = read_hosts(path).and_then(|keys| {
        let count = keys.len();
        target.set_host_keys(keys).map(|()| count)
    });
    match read {
        Ok(1) => "SIGHUP: the hosts file names 1 host".to_owned(),
        Ok(count) => format!("SIGHUP: the hosts file names {count} hosts"),
        Err(error) => format!("SIGHUP: the keys stay as they were: {error}"),
    }
}

/// The namespaces at `addresses`. An address without `?ns=` names all namespaces of the subsystem;
/// if writable, its only one.
fn open(addresses: &[Address], connect: &ConnectOptions) -> dlfs::Result<Vec<Arc<dyn Device>>> {
    let opened = qpair::open_all(addresses, connect)?;
    for (address, found) in addresses.iter().zip(&opened) {
        if connect.writable && found.len() > 1 {
            let names = found.iter().map(|device| device.namespace().address);
            return Err(qpair::ambiguous(address, names));
        }
    }
    Ok(opened.into_iter().flatten().collect())
}

/// Raises the limit of open files to its maximum, since each connection is a file. The default is
/// low for programs that use select().
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, fewer hosts are served; the target detects the limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn announce(
    args: &ServeArgs,
    listen: SocketAddr,
    nqn: &Nqn,
    devices: &[Arc<dyn Device>],
) -> Result<(), Failure> {
    let reach = SocketAddr::new(reachable(listen.ip()), listen.port());
    let addresses = addresses(reach, nqn, devices.len());
    let address = Address::list_to_string(&addresses);
    let mut out = Out::new();
    if args.json {
        let namespaces = devices.iter().map(|device| device.namespace().len_bytes()).collect();
        let writable = args.writable;
        let nqn = nqn.as_str();
        out.json(&Listening { address: &address, listen, nqn, namespaces, writable })?;
        return out.flush();
    }
    let len = devices.iter().map(|device| device.namespace().len_bytes()).sum();
    let engine = devices.first().map_or_else(String::new, |device| device.namespace().engine);
    out.line(format!(
        "serving {} ({}, {}, {engine}) on {listen}",
        out.bold(&args.image.in_short()),
        text::bytes(len),
        if args.writable { "writable" } else { "read-only" },
    ))?;
    // One address means all namespaces behind it; a program reads all of them with --json.
    let address = match addresses.len() > MOST_SHOWN {
        true => Address::list_to_string(&self::addresses(reach, nqn, 1)),
        false => address,
    };
    out.line(format!("  address    {}", out.bold(&address)))?;
    out.line(format!("  dlfs       dlfs read {}", shell_word(&address)))?;
    out.line(format!(
        "  Linux      nvme connect -t tcp -a {} -s {} -n {}",
        reach.ip(),
        reach.port(),
        shell_word(nqn.as_str())
    ))?;
    out.line(out.dim("  Ctrl-C ends it"))?;
    out.flush()
}

/// The addresses of the namespaces, to pass to other commands.
fn addresses(reach: SocketAddr, nqn: &Nqn, namespaces: usize) -> Vec<Address> {
    let address = |nsid| {
        Address::Tcp(TcpAddress {
            traddr: reach.ip().to_string(),
            trsvcid: reach.port(),
            subnqn: nqn.clone(),
            nsid,
        })
    };
    match namespaces {
        1 => vec![address(None)],
        many => (1..=many as u32).map(|nsid| address(Some(Nsid(nsid)))).collect(),
    }
}

/// An address on which a target that listens on all interfaces can be reached: loopback.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

fn resolve(listen: &str) -> Result<SocketAddr, Failure> {
    let refuse = |error: io::Error| {
        let kind = Error::from(io::Error::from(error.kind())).kind();
        Failure::Error(Error::new(kind, format!("cannot listen on {listen:?}")).source(error))
    };
    let Some((_, port)) = listen.rsplit_once(':') else {
        return Err(Failure::Usage(format!("--listen {listen:?} is not HOST:PORT")));
    };
    if port.parse::<u16>().is_err() {
        return Err(Failure::Usage(format!("--listen {listen:?}: {port:?} is not a port")));
    }
    let mut found = listen.to_socket_addrs().map_err(refuse)?;
    found
        .next()
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{listen:?} has no address")).into())
}

/// `nqn.2026-11.io.dlfs:FILESTEM`, from the first address's file, or the NQN of a remote address.
fn default_nqn(addresses: &[Address]) -> Result<Nqn, Failure> {
    let stem = match addresses.first() {
        Some(Address::Path(path)) => path.file_stem(),
        Some(Address::Tcp(address)) => return Ok(address.subnqn.clone()),
        _ => None,
    };
    let stem = stem.map(Path::new).map_or_else(|| "image".into(), |stem| stem.to_string_lossy());
    // Spaces and the like would need quotes in every shell and escapes in every URL.
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let text = format!("nqn.2026-11.io.dlfs:{}", stem.chars().map(plain).collect::<String>());
    Nqn::new(text).map_err(|error| {
        Failure::Usage(format!("the file's name makes no NQN ({error}): name one with --nqn"))
    })
}

/// Quotes a word for a shell if necessary.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/,@%+=[]".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Parses a size of memory.
fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let is_memory = (1 << 20..=1 << 40).contains(&bytes);
    if is_memory { Ok(bytes) } else { Err("1M to 1T".to_owned()) }
}

/// One line of the target's counters.
fn statistics(stats: &TargetStats) -> String {
    let TargetStats { controllers, connections, accepted, dropped, refused, evicted, .. } = stats;
    let TargetStats { reads, read_bytes, writes, written_bytes, errors, .. } = stats;
    format!(
        "statistics controllers={controllers} connections={connections} accepted={accepted} \
         dropped={dropped} refused={refused} evicted={evicted} reads={reads} \
         read_bytes={read_bytes} writes={writes} written_bytes={written_bytes} errors={errors}"
    )
}

/// How often to check the target and signals.
const WATCH: Duration = Duration::from_millis(200);
/// A target stops within 5 s.
const GRACE_FOR_TARGETS: Duration = Duration::from_secs(10);
const EXAMPLES: &str = "\
Examples:
  dlfs serve train.dlfs
  dlfs serve train.dlfs --listen 0.0.0.0:4420 --allow-host nqn.2014-08.org.nvmexpress:uuid:…
  truncate -s 10G blank.dlfs && dlfs serve blank.dlfs --writable    # to import onto from elsewhere

Log: warnings go to stderr with the time (UTC, RFC 3339), at most one of a kind in 10 seconds. With
-v it is an access log: each host that connects, is refused, is evicted or leaves, with its NQN
(host), its address (peer) and the reason; with -vv each connection. Lines that nobody reads in time
are dropped and counted.

Signals: SIGINT and SIGTERM end it, SIGUSR1 writes a line of statistics to the log, SIGHUP reads the
file of --hosts again.";

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn_of(address: &str) -> String {
        default_nqn(&[address.parse().unwrap()]).unwrap().as_str().to_owned()
    }

    #[test]
    fn the_default_nqn_is_that_of_the_file_s_stem() {
        assert_eq!(nqn_of("/data/train.dlfs"), "nqn.2026-11.io.dlfs:train");
        assert_eq!(nqn_of("/dev/nvme0n1"), "nqn.2026-11.io.dlfs:nvme0n1");
        assert_eq!(nqn_of("my data (1).img"), "nqn.2026-11.io.dlfs:my-data--1-");
        assert_eq!(nqn_of("nvme-tcp://h/nqn.2026-11.io.dlfs:x"), "nqn.2026-11.io.dlfs:x");
    }

    #[derive(Debug, clap::Parser)]
    struct Limits {
        #[command(flatten)]
        limits: LimitArgs,
    }

    #[test]
    fn every_limit_reaches_the_target_and_what_is_not_given_stays() {
        let apply = |arguments: &str| {
            let arguments = ["serve"].into_iter().chain(arguments.split_whitespace());
            let mut options = TargetOptions::new(Nqn::new("nqn.x").unwrap());
            <Limits as clap::Parser>::parse_from(arguments).limits.apply(&mut options);
            options
        };
        let before = TargetOptions::new(Nqn::new("nqn.x").unwrap());
        assert_eq!(format!("{:?}", apply("")), format!("{before:?}"));
        let seconds = Duration::from_secs;
        let expected = TargetOptions {
            max_controllers: 1,
            max_controllers_per_address: 2,
            max_discovery_controllers: 3,
            max_discovery_controllers_per_address: 4,
            max_connections: 5,
            max_connections_per_address: 6,
            max_io_queues: 7,
            max_queue_entries: 80,
            buffer_bytes: 9 << 20,
            max_keep_alive: seconds(10),
            connect_timeout: seconds(11),
            send_timeout: seconds(12),
            ..before
        };
        let found = apply(
            "--max-controllers 1 --max-controllers-per-address 2 --max-discovery-controllers 3 \
             --max-discovery-controllers-per-address 4 --max-connections 5 \
             --max-connections-per-address 6 --max-io-queues 7 --max-queue-entries 80 \
             --buffer-memory 9M --max-keep-alive 10 --connect-timeout 11 --send-timeout 12",
        );
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn listening_everywhere_is_reached_through_loopback() {
        assert_eq!(reachable("0.0.0.0".parse().unwrap()).to_string(), "127.0.0.1");
        assert_eq!(reachable("::".parse().unwrap()).to_string(), "::1");
        assert_eq!(reachable("10.1.2.3".parse().unwrap()).to_string(), "10.1.2.3");
    }

    #[test]
    fn every_namespace_of_a_striped_image_has_its_own_address() {
        let nqn = Nqn::new("nqn.2026-11.io.dlfs:x").unwrap();
        let reach = "127.0.0.1:4420".parse().unwrap();
        let text = Address::list_to_string(&addresses(reach, &nqn, 2));
        assert_eq!(
            text,
            "nvme-tcp://127.0.0.1:4420/nqn.2026-11.io.dlfs:x?ns=1,\
             nvme-tcp://127.0.0.1:4420/nqn.2026-11.io.dlfs:x?ns=2"
        );
        assert_eq!(shell_word(&text), format!("'{text}'"));
        assert_eq!(shell_word("nvme-tcp://h:1/nqn.x"), "nvme-tcp://h:1/nqn.x");
    }

    #[test]
    fn a_listening_address_needs_a_port() {
        for wrong in ["127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "::1"] {
            assert!(resolve(wrong).is_err(), "{wrong}");
        }
        assert_eq!(resolve("127.0.0.1:0").unwrap().port(), 0);
        assert_eq!(resolve("[::1]:4420").unwrap().port(), 4420);
    }
}
