//! `dlfs serve`: serves an image as the namespaces of an NVMe/TCP subsystem.
//!
//! This file turns the command line into a service, prints the addresses, and runs the loop that handles signals and
//! changes. `service/` has the rest, also for a configuration file with several subsystems. `ctl.rs` asks a running
//! service, and changes it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use dlfs::address::{Address, TcpAddress};
use dlfs::exporter::Exporter;
use dlfs::keys::read_hosts;
use dlfs::nvme::Nqn;
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::target::{AnaState, ServedNamespace, TargetStats};
use dlfs::units::{Nsid, total};

use crate::args::{ConnectionArgs, ImageAddress, MAX_SHOWN_ADDRESSES, MetricsArgs, PlacementArgs};
use crate::exit::{Failure, Outcome, Stop, service_signals};
use crate::log;
use crate::out::{self, Out};
use crate::service::access_log::LogDestination;
use crate::service::changes::{Changes, Source};
use crate::service::config::{self, NamespaceConfig, SubsystemConfig};
use crate::service::control::{Control, Event};
use crate::service::limits::LimitArgs;
use crate::service::manager::{self, Manager};
use crate::service::methods::counters;
use crate::service::running::{self, Running, Service};
use crate::service::takeover::{Takeover, beside};

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
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    image: Option<ImageAddress>,
    /// Serve what this file says: several subsystems, their namespaces and hosts; SIGHUP reloads it
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["listen", "nqn", "allow_host", "hosts", "allow_any_host", "require_tls", "writable"])]
    #[arg(conflicts_with_all = ["pollers", "LimitArgs", "PlacementArgs"])]
    config: Option<PathBuf>,
    /// Check the file of --config and that its local namespaces and its access log can be opened, and serve nothing;
    /// exit code 0: valid, 1: not
    #[arg(long, requires = "config")]
    check: bool,
    /// Answer `dlfs ctl` on this Unix socket, which only its owner can use
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Take the place of the service that answers on the socket of --control: its listening sockets are taken over, and
    /// it sends its hosts here and ends
    #[arg(long, requires = "control")]
    takeover: bool,
    /// Keep an access log at PATH, or on stdout (-): a line of JSON for each host that connects, is refused or
    /// leaves, and for each change; SIGHUP opens it anew
    #[arg(long, value_name = "PATH|-")]
    access_log: Option<String>,
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
    /// Refuse connections without TLS, even to learn of the subsystem; hosts in --hosts that have no TLS key must
    /// generate one (--concat)
    #[arg(long, requires = "hosts")]
    require_tls: bool,
    /// Allow hosts to write
    #[arg(long)]
    writable: bool,
    /// Report an ANA state, for hosts with several paths to the image: optimized, non-optimized, inaccessible,
    /// persistent-loss or change; `dlfs ctl ana` sets another one
    #[arg(long, value_name = "STATE", value_parser = str::parse::<AnaState>, conflicts_with = "config")]
    ana_state: Option<AnaState>,
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

pub(crate) fn run(args: ServeArgs) -> Result<Outcome, Failure> {
    if args.check {
        return check(&args, args.config.as_deref().unwrap_or(Path::new("")));
    }
    let stop = Stop::on_signals(GRACE_FOR_TARGETS, || Outcome::Done)?;
    let mut signals = service_signals()?;
    let manager = Manager::of_environment();
    // Before other threads create files: opening the control socket changes the umask of the process for a moment.
    let (mut takeover, sockets) = match &args.control {
        Some(path) if args.takeover => {
            Takeover::begin(path).map(|(takeover, sockets)| (Some(takeover), sockets))?
        }
        _ => (None, manager::inherited()?),
    };
    let (events, requests) = channel();
    let open = |path: &Path| match &takeover {
        Some(_) => Control::open(&beside(path, "new"), events.clone()),
        None => Control::open(path, events.clone()),
    };
    let mut control = args.control.as_deref().map(open).transpose()?;
    allow_many_files();
    let mut metrics = if takeover.is_some() { None } else { args.metrics.serve()? };
    let service = match &args.config {
        Some(path) => start_configured(&args, path, sockets, takeover.as_mut())?,
        None => start_image(&args, sockets, takeover.as_mut())?,
    };
    match (&mut takeover, &mut control, &args.control) {
        (Some(takeover), Some(control), Some(path)) => {
            takeover.finish()?;
            control.move_to(path)?;
            metrics = serve_metrics_next(&args.metrics);
        }
        _ => service.check_inherited()?,
    }
    let mut out = Out::new();
    for running in &service.subsystems {
        announce(&args, running, &mut out)?;
    }
    out.flush()?;
    manager.ready("serving");
    let mut changes = Changes::new(service, args.source(), manager, events);
    handle_events(&mut changes, &requests, &stop, &mut signals, &mut metrics)?;
    drop(requests); // closes the clients whose requests nobody answers any more
    changes.service.end();
    Ok(Outcome::Done)
}

/// Handles signals, requests and changes until the service is over: all hosts are gone, or their time is up.
///
/// # Errors
/// A thread of a target has died.
fn handle_events(
    changes: &mut Changes,
    requests: &Receiver<Event>,
    stop: &Stop,
    signals: &mut Signals,
    metrics: &mut Option<Exporter>,
) -> dlfs::Result<()> {
    loop {
        if stop.is_set() && !changes.is_ending() {
            changes.begin_to_end("a signal");
        }
        if changes.is_over() {
            return Ok(());
        }
        if changes.has_handed_over {
            drop(metrics.take()); // its address is for the service that has taken over
        }
        // While hosts are sent away, the last one's departure must be polled for.
        let limit = if changes.is_ending() { DRAIN_CHECK_INTERVAL } else { CHECK_INTERVAL };
        changes.service.check()?;
        for signal in signals.pending() {
            if signal == SIGHUP {
                changes.hung_up();
                continue;
            }
            let subsystems = changes.service.subsystems.iter();
            let lines = subsystems.map(|running| statistics(&running.target.stats()));
            lines.for_each(|line| log::say(&line));
        }
        changes.step();
        let first = requests.recv_timeout(limit).ok();
        for event in first.into_iter().chain(requests.try_iter().take(MAX_REQUESTS)) {
            if let Event::Asked(request, reply) = event {
                changes.answer(&request, reply);
            }
        }
    }
}

/// Serves metrics after a takeover, as soon as the old service has left the address. If that takes too long, this
/// service goes on without metrics, since it serves hosts already.
fn serve_metrics_next(args: &MetricsArgs) -> Option<Exporter> {
    let until = Instant::now() + METRICS_LIMIT;
    loop {
        match args.serve() {
            Ok(metrics) => return metrics,
            Err(_) if Instant::now() < until => std::thread::sleep(DRAIN_CHECK_INTERVAL),
            Err(_) => {
                log::say("no metrics: another process keeps their address");
                return None;
            }
        }
    }
}

impl ServeArgs {
    /// The files and options that a reload reads again.
    fn source(&self) -> Source {
        let access_log = self.access_log.as_ref();
        Source {
            config: self.config.clone(),
            hosts: self.hosts.clone(),
            access_log: access_log.map(|text| LogDestination::parse(text, Path::new(""))),
        }
    }
}

/// Checks a configuration file, and that its local namespaces and the access log can be opened; serves nothing.
fn check(args: &ServeArgs, path: &Path) -> Result<Outcome, Failure> {
    let config = config::read(path)?;
    let namespaces = || config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    for namespace in namespaces().filter(|namespace| matches!(namespace.address, Address::Path(_)))
    {
        check_that_it_opens(namespace, &ConnectOptions::default())?;
    }
    if let Some(destination) = args.source().access_log(Some(&config)) {
        destination.check()?;
    }
    let mut out = Out::new();
    let subsystems = config.subsystems.len();
    let namespaces = namespaces().count();
    out.line(format!(
        "{}: valid; subsystems {subsystems}, namespaces {namespaces}",
        path.display()
    ))?;
    out.end(Outcome::Done)
}

/// Opens a namespace for reading, since a running service may have it open for writing.
fn check_that_it_opens(namespace: &NamespaceConfig, connect: &ConnectOptions) -> dlfs::Result<()> {
    let namespace = NamespaceConfig { read_only: true, ..namespace.clone() };
    running::open(&namespace, connect).map(|_| ())
}

/// Serves according to the configuration file. A subsystem that hosts write to is taken over last: it waits for the
/// other service to end.
fn start_configured(
    args: &ServeArgs,
    path: &Path,
    sockets: Vec<TcpListener>,
    takeover: Option<&mut Takeover>,
) -> Result<Service, Failure> {
    let config = config::read(path)?;
    let place = args.source().access_log(Some(&config));
    let connect = args.connection.options(false)?;
    let mut service = Service::new(connect, sockets, place.as_ref())?;
    service.limiter.set(config.rules());
    let is_last = |subsystem: &SubsystemConfig| takeover.is_some() && subsystem.is_writable();
    let (last, first): (Vec<_>, Vec<_>) = config.subsystems.into_iter().partition(is_last);
    for subsystem in first {
        service.start(subsystem)?;
    }
    if let Some(takeover) = takeover.filter(|_| !last.is_empty()) {
        // Errors show while the other service still serves.
        for namespace in last.iter().flat_map(|subsystem| &subsystem.namespaces) {
            check_that_it_opens(namespace, &service.connect)?;
        }
        takeover.finish_before_writing()?;
    }
    for subsystem in last {
        service.start(subsystem)?;
    }
    Ok(service)
}

/// Serves the image of the command line.
fn start_image(
    args: &ServeArgs,
    sockets: Vec<TcpListener>,
    takeover: Option<&mut Takeover>,
) -> Result<Service, Failure> {
    let Some(image) = &args.image else {
        return Err(Failure::Usage("name an IMAGE, or --config FILE".to_owned()));
    };
    let listen = config::resolve(&args.listen);
    let listen = listen.map_err(|what| Failure::Usage(format!("--listen {what}")))?;
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
    let connect = args.connection.options(args.writable)?;
    let nqn = match &args.nqn {
        Some(nqn) => nqn.clone(),
        None => default_nqn(&image.0)?,
    };
    if let Some(takeover) = takeover.filter(|_| args.writable) {
        // Errors show while the other service still serves.
        open(&image.0, &ConnectOptions { writable: false, ..connect.clone() })?;
        takeover.finish_before_writing()?;
    }
    let served = ServedNamespace::numbered(open(&image.0, &connect)?);
    let namespaces = served.iter().map(|served| {
        let address = served.device.namespace().address;
        let address = address.parse().unwrap_or(Address::Path(address.into()));
        NamespaceConfig { nsid: served.nsid, address, read_only: !args.writable }
    });
    let config = SubsystemConfig {
        nqn,
        listen: vec![listen],
        namespaces: namespaces.collect(),
        namespace_limits: BTreeMap::new(),
        allow_hosts: args.allow_host.clone(),
        allow_any_host: args.allow_any_host,
        host_keys,
        require_tls: args.require_tls,
        ana: args.ana_state.unwrap_or(AnaState::Optimized),
        pollers: args.pollers,
        cpus,
        busy_poll: args.placement.busy_poll,
        limits: args.limits.clone(),
    };
    let place = args.source().access_log(None);
    let mut service = Service::new(connect, sockets, place.as_ref())?;
    let running = service.build(config, served, |options| {
        (options.writable, options.max_nsid, options.ana) = (args.writable, 0, args.ana_state);
    })?;
    service.add(running);
    Ok(service)
}

/// The namespaces at `addresses`. An address without `?ns=` stands for all namespaces of the subsystem; if
/// writable, it must have only one.
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

/// Raises the limit of open files to its maximum, since each connection is a file. The default is low for the
/// sake of programs that use select().
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, fewer hosts are served; the target detects the limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Prints where a subsystem is served and, for an image, the commands to read it and to connect to it. With --json,
/// prints one line for programs.
fn announce(args: &ServeArgs, running: &Running, out: &mut Out) -> Result<(), Failure> {
    let nqn = &running.config.nqn;
    let served = running.target.namespaces();
    let listen = running.listen[0];
    let reach = reachable(listen);
    // The only namespace of an image needs no NSID in its address.
    let is_numbered = args.image.is_none() || served.len() > 1;
    let address =
        |served: &ServedNamespace| address(reach, nqn, is_numbered.then_some(served.nsid));
    let addresses: Vec<Address> = served.iter().map(address).collect();
    let list = Address::list_to_string(&addresses);
    let lens: Vec<u64> = served.iter().map(|one| one.device.namespace().len_bytes()).collect();
    if args.json {
        let writable = if args.image.is_some() {
            args.writable
        } else {
            served.iter().any(|one| !one.read_only)
        };
        return out.json(&json!({
            "address": list, "listen": listen, "nqn": nqn, "namespaces": lens, "writable": writable,
        }));
    }
    let Some(image) = &args.image else {
        let all: Vec<String> = running.listen.iter().map(SocketAddr::to_string).collect();
        let name = out.bold(nqn.as_str());
        let all = all.join(", ");
        return out.line(format!("serving {name} ({} namespaces) on {all}", served.len()));
    };
    let engine = served.first().map_or_else(String::new, |one| one.device.namespace().engine);
    out.line(format!(
        "serving {} ({}, {}, {engine}) on {listen}",
        out.bold(&image.in_short()),
        out::bytes(total(lens)),
        if args.writable { "writable" } else { "read-only" },
    ))?;
    // For many namespaces, one address stands for all; a program gets each address with --json.
    let whole = self::address(reach, nqn, None);
    let list = if addresses.len() > MAX_SHOWN_ADDRESSES { whole.to_string() } else { list };
    out.line(format!("  address    {}", out.bold(&list)))?;
    out.line(format!("  dlfs       dlfs read {}", shell_word(&list)))?;
    out.line(format!(
        "  Linux      nvme connect -t tcp -a {} -s {} -n {}",
        reach.ip(),
        reach.port(),
        shell_word(nqn.as_str())
    ))?;
    out.line(out.dim("  Ctrl-C ends it"))
}

/// The address of a namespace, or without an NSID of the subsystem, at `reach`.
fn address(reach: SocketAddr, nqn: &Nqn, nsid: Option<Nsid>) -> Address {
    let traddr = TcpAddress::traddr_of(reach);
    let trsvcid = reach.port();
    Address::Tcp(TcpAddress { traddr, trsvcid, subnqn: nqn.clone(), nsid })
}

/// The address at which this machine reaches the target: loopback, if the target listens on all interfaces.
fn reachable(mut listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => listen.set_ip([127, 0, 0, 1].into()),
        IpAddr::V6(ip) if ip.is_unspecified() => listen.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    listen
}

/// `nqn.2026-11.io.dlfs:FILESTEM`, from the file of the first address. If that address is of NVMe/TCP, its NQN; if it
/// is of another kind, `image` instead of FILESTEM.
fn default_nqn(addresses: &[Address]) -> Result<Nqn, Failure> {
    let stem = match addresses.first() {
        Some(Address::Path(path)) => path.file_stem(),
        Some(Address::Tcp(address)) => return Ok(address.subnqn.clone()),
        _ => None,
    };
    let stem = stem.map(Path::new).map_or_else(|| "image".into(), |stem| stem.to_string_lossy());
    // Other characters, such as spaces, would need quotes in every shell and escapes in every URL.
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

/// A line of the target's counters.
fn statistics(stats: &TargetStats) -> String {
    let counts = counters(stats).map(|(name, count)| format!(" {name}={count}"));
    format!("statistics{}", counts.concat())
}

/// Interval of checks of the targets and of signals.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The same interval while hosts are sent away, and between attempts to serve metrics.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The most requests that are carried out between two checks of signals, beside the first.
const MAX_REQUESTS: usize = 16;
/// Time limit for the address of metrics to be free after a takeover.
const METRICS_LIMIT: Duration = Duration::from_secs(2);
/// The grace period of a service: hosts are sent away within 5 s, and a target stops within another 5 s.
const GRACE_FOR_TARGETS: Duration = Duration::from_secs(15);
const EXAMPLES: &str = "\
Examples:
  dlfs serve train.dlfs
  dlfs serve train.dlfs --listen 0.0.0.0:4420 --allow-host nqn.2014-08.org.nvmexpress:uuid:…
  truncate -s 10G blank.dlfs && dlfs serve blank.dlfs --writable    # to import onto from elsewhere

Log: warnings go to stderr with the time (UTC, RFC 3339), at most one of a kind in 10 seconds. With
-v it is an access log: each host that connects, is refused, is evicted or leaves, with its NQN
(host), its address (peer) and the reason; with -vv each connection. Lines that nobody reads in time
are dropped and counted.

Signals: SIGINT and SIGTERM send the hosts away in order and end it, SIGUSR1 writes a line of
statistics to the log, SIGHUP reads the file of --config or --hosts again. Under systemd it reports
its state (Type=notify-reload) and takes the sockets of a socket unit.";

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

    #[test]
    fn listening_everywhere_is_reached_through_loopback() {
        let reached = |listen: &str| reachable(listen.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:1"), "127.0.0.1:1");
        assert_eq!(reached("[::]:1"), "[::1]:1");
        assert_eq!(reached("10.1.2.3:1"), "10.1.2.3:1");
        assert_eq!(reached("[fe80::1%2]:1"), "[fe80::1%2]:1");
    }

    #[test]
    fn every_namespace_of_a_striped_image_has_its_own_address() {
        let nqn = Nqn::new("nqn.2026-11.io.dlfs:x").unwrap();
        let reach = "127.0.0.1:4420".parse().unwrap();
        let addresses = [1, 2].map(|nsid| address(reach, &nqn, Some(Nsid(nsid))));
        let text = Address::list_to_string(&addresses);
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
            assert!(config::resolve(wrong).is_err(), "{wrong}");
        }
        assert_eq!(config::resolve("127.0.0.1:0").unwrap().port(), 0);
        assert_eq!(config::resolve("[::1]:4420").unwrap().port(), 4420);
    }
}
