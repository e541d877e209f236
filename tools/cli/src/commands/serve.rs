//! `dlfs serve`: an image as the namespaces of an NVMe/TCP subsystem.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use dlfs::nvme::{Address, Nqn, TcpAddress};
use dlfs::qpair::{self, Cpus, Device};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind};

use crate::args::{ConnectionArgs, ImageAddress};
use crate::exit::{Failure, Outcome};
use crate::out::Out;
use crate::placement_args::PlacementArgs;
use crate::signals::Stop;
use crate::text;

/// Serve an image over NVMe/TCP, for dlfs and any other host
///
/// Each address of IMAGE becomes a namespace of one subsystem, read-only unless --writable says
/// otherwise. On loopback any host may connect; elsewhere hosts are named by --allow-host, or let in
/// by --allow-any-host. A host's NQN is a name and no proof: this keeps out mistakes, not attackers.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// The image: ADDRESS[,ADDRESS...], each of which becomes a namespace
    #[arg(value_name = "IMAGE", value_parser = ImageAddress::parser())]
    image: ImageAddress,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4420")]
    listen: String,
    /// Name of the subsystem [default: nqn.2026-11.io.dlfs:FILESTEM]
    #[arg(long, value_name = "NQN")]
    nqn: Option<Nqn>,
    /// Let this host connect; may be repeated
    #[arg(long, value_name = "NQN")]
    allow_host: Vec<Nqn>,
    /// Let any host connect
    #[arg(long, conflicts_with = "allow_host")]
    allow_any_host: bool,
    /// Let hosts write
    #[arg(long)]
    writable: bool,
    /// Threads that move data [default: one a processor of --cpus, else 1]
    #[arg(long, value_name = "N", alias = "threads", value_parser = clap::value_parser!(u16).range(1..=256))]
    pollers: Option<u16>,
    /// Print where it listens as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// How much hosts may take. The defaults do for a thousand nodes of 8 ranks, wherever they are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// The most controllers: one for each image that a process has open [default: 16384]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    max_controllers: Option<u16>,
    /// Of those, the most of one address; hosts behind a router that translates addresses are one
    /// [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_controllers_per_address: Option<u16>,
    /// The most connections of each poller; fewer where a process may not have the files
    /// [default: 32768]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: Option<u16>,
    /// Of those, the most of one address [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections_per_address: Option<u16>,
    /// Seconds: a controller that is silent for twice this gives way when its place is wanted
    /// [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_keep_alive: Option<u32>,
}

impl LimitArgs {
    fn apply(&self, options: &mut TargetOptions) {
        let set = |option: &mut usize, value: Option<u16>| {
            *option = value.map_or(*option, usize::from);
        };
        set(&mut options.max_connections, self.max_connections);
        set(&mut options.max_connections_per_address, self.max_connections_per_address);
        let per_address = &mut options.max_controllers_per_address;
        *per_address = self.max_controllers_per_address.unwrap_or(*per_address);
        options.max_controllers = self.max_controllers.unwrap_or(options.max_controllers);
        if let Some(seconds) = self.max_keep_alive {
            options.max_keep_alive = Duration::from_secs(seconds.into());
        }
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
    let closed = args.allow_host.is_empty() && !args.allow_any_host;
    if closed && !listen.ip().is_loopback() {
        return Err(Failure::Usage(format!(
            "{} can be reached from elsewhere: say who may connect with --allow-host NQN, or \
             --allow-any-host",
            listen.ip()
        )));
    }
    let cpus = args.placement.cpus()?;
    let stop = Stop::on_signals(GRACE_FOR_TARGETS, || Outcome::Done)?;
    let connect = args.connection.options(args.writable);
    let open = |address: &Address| qpair::open(address, &connect);
    let devices = args.image.0.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let nqn = match &args.nqn {
        Some(nqn) => nqn.clone(),
        None => default_nqn(&args.image.0)?,
    };
    allow_many_files();
    let mut options = TargetOptions {
        listen,
        allow_hosts: args.allow_host.clone(),
        allow_any_host: args.allow_any_host,
        writable: args.writable,
        num_pollers: args.pollers.map_or_else(|| cpus.as_ref().map_or(1, Cpus::len), usize::from),
        busy_poll: args.placement.busy_poll(),
        cpus,
        ..TargetOptions::new(nqn.clone())
    };
    args.limits.apply(&mut options);
    let target = Target::bind(options, devices.clone())?;
    announce(&args, target.local_addr(), &nqn, &devices)?;
    while !stop.is_set_within(WATCH) {
        target.check()?;
    }
    drop(target);
    Ok(Outcome::Done)
}

/// Each connection is a file. The limit that a process begins with is low for the sake of programs that
/// would not survive more.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // Without the permission fewer hosts are served; the target finds out how many.
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
        out.bold(&args.image.to_string()),
        text::bytes(len),
        if args.writable { "writable" } else { "read-only" },
    ))?;
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

/// The addresses of the namespaces, to be handed to other commands.
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

/// An address that others can use for one that listens everywhere: this machine's own loopback.
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
        return Err(Failure::Usage(format!("--listen {listen:?}: {port:?} is no port")));
    }
    let mut found = listen.to_socket_addrs().map_err(refuse)?;
    found
        .next()
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{listen:?} has no address")).into())
}

/// `nqn.2026-11.io.dlfs:FILESTEM`, after the first address's file, or its own NQN for a remote one.
fn default_nqn(addresses: &[Address]) -> Result<Nqn, Failure> {
    let stem = match addresses.first() {
        Some(Address::Path(path)) => path.file_stem(),
        Some(Address::Tcp(address)) => return Ok(address.subnqn.clone()),
        _ => None,
    };
    let stem = stem.map(Path::new).map_or_else(|| "image".into(), |stem| stem.to_string_lossy());
    // Blanks and the like would have to be quoted in every shell and escaped in every URL.
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let text = format!("nqn.2026-11.io.dlfs:{}", stem.chars().map(plain).collect::<String>());
    Nqn::new(text).map_err(|error| {
        Failure::Usage(format!("the file's name makes no NQN ({error}): name one with --nqn"))
    })
}

/// Quotes what a shell would take apart.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/,@%+=[]".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// How often to look whether the target still serves.
const WATCH: Duration = Duration::from_secs(1);
/// A target stops within 5 s.
const GRACE_FOR_TARGETS: Duration = Duration::from_secs(10);
const EXAMPLES: &str = "\
Examples:
  dlfs serve train.dlfs
  dlfs serve train.dlfs --listen 0.0.0.0:4420 --allow-host nqn.2014-08.org.nvmexpress:uuid:…
  truncate -s 10G blank.dlfs && dlfs serve blank.dlfs --writable    # to import onto from elsewhere";

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
