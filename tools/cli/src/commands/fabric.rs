//! Admin commands to targets and drives, without the kernel's host. `dlfs discover` lists the subsystems of a target;
//! `id-ctrl`, `id-ns` and `list-subsys` print what nvme-cli's commands of these names print.

use std::net::Ipv6Addr;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use dlfs::address::{Address, PcieAddress, TcpAddress, VfioUserAddress};
use dlfs::nvme::fabrics::DiscoveryRecord;
use dlfs::qpair::tcp::{self, ana_state, identify};
use dlfs::qpair::{ConnectOptions, host_identity, pcie};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind};

use crate::args::ConnectionArgs;
use crate::exit::{Failure, Outcome, complain};
use crate::identify::{controller, namespace, uuid};
use crate::net::host_and_port;
use crate::out::{Out, known, safe_name};

/// List the subsystems that a discovery service offers
///
/// Every target of `dlfs serve` answers on its own port; other targets usually have a discovery
/// service on port 8009.
#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    /// The discovery service
    #[arg(value_name = "HOST[:PORT]", value_parser = parse_service)]
    place: (String, u16),
    /// Print one line of JSON for each record
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn discover(args: DiscoverArgs) -> Result<Outcome, Failure> {
    let (host, port) = &args.place;
    let options = args.connection.options(false)?;
    let records = tcp::discover(host, *port, &options)?;
    if records.iter().all(|record| record.subtype == DiscoveryRecord::SUBTYPE_DISCOVERY) {
        let (host, _) = host_identity(&options);
        complain(&format!(
            "nothing is offered to {host}: give the name that the target knows with --hostnqn"
        ));
    }
    let mut out = Out::new();
    for record in &records {
        // The strings come from the target, so they are escaped before they reach a terminal.
        let address = address(record, host).map(|it| safe_name(it.to_string().as_bytes()));
        let subnqn = record.subnqn().map_or_else(|_| String::new(), |nqn| nqn.as_str().to_owned());
        let subnqn = safe_name(subnqn.as_bytes());
        let traddr = safe_name(record.traddr().unwrap_or_default().as_bytes());
        if args.json {
            out.json(&known(json!({
                "address": address, "subnqn": subnqn, "traddr": traddr,
                "trsvcid": record.port(), "subtype": record.subtype,
            })))?;
        } else {
            // A record that our host cannot connect to is printed as the target wrote it.
            out.line(address.unwrap_or_else(|| format!("{subnqn} at {traddr}")))?;
        }
    }
    out.end(Outcome::Done)
}

/// The transport type of a record of NVMe/TCP.
const TRTYPE_TCP: u8 = 3;

/// The address of a subsystem that our host can connect to.
fn address(record: &DiscoveryRecord, asked: &str) -> Option<Address> {
    let subnqn = record.subnqn().ok()?;
    let traddr = on_link(record.traddr()?, asked);
    let trsvcid = record.port()?;
    let is_nvm = record.subtype == DiscoveryRecord::SUBTYPE_NVM;
    (is_nvm && record.trtype == TRTYPE_TCP).then_some(Address::Tcp(TcpAddress {
        traddr,
        trsvcid,
        subnqn,
        nsid: None,
    }))
}

/// The address in a record. A link-local address (fe80::/10) gets the scope of `asked`, the address of the
/// discovery service.
fn on_link(traddr: &str, asked: &str) -> String {
    let is_of_link = traddr.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_unicast_link_local());
    match asked.split_once('%').filter(|_| is_of_link) {
        Some((_, link)) => format!("{traddr}%{link}"),
        None => traddr.to_owned(),
    }
}

fn parse_service(text: &str) -> Result<(String, u16), String> {
    host_and_port(text, DISCOVERY_PORT).ok_or_else(|| "not HOST or HOST:PORT".to_owned())
}

/// The port that IANA assigned to NVMe discovery over TCP.
const DISCOVERY_PORT: u16 = 8009;

/// Print Identify Namespace, as nvme id-ns does
///
/// The namespace is that of the address, ?ns=N or --namespace-id; without one, the first.
#[derive(Debug, Args)]
pub(crate) struct IdNsArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// The NSID
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    namespace_id: Option<u32>,
}

/// Options of `id-ctrl`, `id-ns` and `list-subsys`.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    /// The subsystem: nvme-tcp://HOST[:4420]/NQN[?ns=N]; but for list-subsys also pcie:0000:5e:00.0, trtype:VFIOUSER
    address: Address,
    /// The form of the output
    #[arg(short, long, value_enum, default_value_t = Format::Normal)]
    output: Format,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Normal,
    Json,
}

impl CommonArgs {
    /// The address, if it is one of NVMe/TCP.
    fn tcp(&self) -> Result<&TcpAddress, Failure> {
        match &self.address {
            Address::Tcp(address) => Ok(address),
            other => Err(Failure::Usage(format!("{other} is not nvme-tcp://HOST/NQN"))),
        }
    }

    /// Identify data structures by NSID; that of the controller has NSID 0.
    fn pages(&self) -> Result<Vec<(Nsid, Vec<u8>)>, Failure> {
        let options = self.connection.options(false)?;
        Ok(match &self.address {
            Address::Pcie(_) | Address::VfioUser(_) => pcie::identify(&self.address, &options)?,
            _ => identify(self.tcp()?, &options)?,
        })
    }

    fn print(&self, lines: Vec<String>, value: Value) -> Result<Outcome, Failure> {
        Out::answer(self.output == Format::Json, &value, |out| {
            lines.iter().try_for_each(|line| out.line(line))
        })
    }
}

pub(crate) fn id_ctrl(args: &CommonArgs) -> Result<Outcome, Failure> {
    let pages = args.pages()?;
    let (lines, object) = controller(&page(&pages, Nsid(0))?);
    args.print(lines, object)
}

pub(crate) fn id_ns(args: &IdNsArgs) -> Result<Outcome, Failure> {
    let pages = args.common.pages()?;
    let named = match &args.common.address {
        Address::Pcie(PcieAddress { nsid, .. }) => *nsid,
        Address::VfioUser(VfioUserAddress { nsid, .. }) => *nsid,
        _ => args.common.tcp()?.nsid,
    };
    let asked = args.namespace_id.map(Nsid).or(named);
    let first = pages.iter().map(|(nsid, _)| *nsid).find(|nsid| nsid.0 != 0);
    let nsid = asked.or(first).unwrap_or(Nsid(1));
    let (lines, object) = namespace(nsid, &page(&pages, nsid)?);
    args.common.print(lines, object)
}

/// The Identify data structure of a namespace, or with NSID 0 of the controller.
fn page(pages: &[(Nsid, Vec<u8>)], nsid: Nsid) -> Result<Vec<u8>, Error> {
    let found = pages.iter().find(|(known, _)| *known == nsid).map(|(_, page)| page.clone());
    found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("the subsystem has no namespace {}", nsid.0))
    })
}

pub(crate) fn list_subsys(args: &CommonArgs) -> Result<Outcome, Failure> {
    let address = args.tcp()?;
    let options = args.connection.options(false)?;
    // Fails unless the subsystem exists and admits this host: otherwise there is nothing to list.
    identify(address, &options)?;
    let paths = paths(address, &options);
    let (host, hostid) = host_identity(&options);
    let mut lines = vec![
        format!("nvme-subsys0 - NQN={}", address.subnqn),
        format!("               hostnqn={host}"), // no kernel, so no iopolicy
        "\\".to_owned(),
    ];
    let mut objects = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        // The words of nvme-cli; there is an ANA state if the controller reports one.
        let (state, ana) = match ana_state(path, &options) {
            Ok(ana) => ("live", ana),
            Err(_) => ("connecting", None),
        };
        let name = format!("nvme{number}");
        let at = format!("traddr={},trsvcid={}", path.traddr, path.trsvcid);
        let shown = ana.map_or(String::new(), |ana| format!(" {ana}"));
        lines.push(format!(" +- {name} tcp {at} {state}{shown}"));
        objects.push(known(json!({
            "Name": name, "Transport": "tcp", "Address": at, "State": state, "ANAState": ana,
        })));
    }
    let subsystem = json!({ "Name": "nvme-subsys0", "NQN": address.subnqn, "Paths": objects });
    let host = json!([{ "HostNQN": host, "HostID": uuid(&hostid), "Subsystems": [subsystem] }]);
    args.print(lines, host)
}

/// The paths that the discovery service at the address lists for the subsystem, and those of `--path`.
fn paths(address: &TcpAddress, options: &ConnectOptions) -> Vec<TcpAddress> {
    // Without a discovery service on this port, or if it lists only other subsystems, the path is this
    // address.
    let records = tcp::discover(&address.traddr, address.trsvcid, options).unwrap_or_default();
    let is_ours = |record: &&DiscoveryRecord| {
        record.trtype == TRTYPE_TCP && record.subnqn().is_ok_and(|nqn| nqn == address.subnqn)
    };
    let at = |traddr: &str, trsvcid| {
        let traddr = traddr.to_owned();
        TcpAddress { traddr, trsvcid, nsid: None, ..address.clone() }
    };
    let listed = records.iter().filter(is_ours);
    let listed = listed
        .filter_map(|record| Some(at(&on_link(record.traddr()?, &address.traddr), record.port()?)));
    let mut paths: Vec<TcpAddress> = listed.collect();
    if paths.is_empty() {
        paths.push(at(&address.traddr, address.trsvcid));
    }
    let named = options.paths.iter().filter_map(|path| match path {
        Address::Tcp(path) => Some(at(&path.traddr, path.trsvcid)),
        _ => None,
    });
    for path in named {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_an_optional_port() {
        let service = |text| parse_service(text).unwrap();
        assert_eq!(service("node1"), ("node1".to_owned(), 8009));
        assert_eq!(service("127.0.0.1:4420"), ("127.0.0.1".to_owned(), 4420));
        assert_eq!(service("[::1]:4420"), ("::1".to_owned(), 4420));
        assert_eq!(service("::1"), ("::1".to_owned(), 8009));
        for wrong in ["", ":4420", "host:", "host:0", "host:70000", "host:x"] {
            assert!(parse_service(wrong).is_err(), "{wrong}");
        }
    }
}
