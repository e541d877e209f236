//! `dlfs id-ctrl`, `id-ns`, `list-subsys`: the output of nvme-cli's commands, for targets that no kernel is
//! connected to.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use dlfs::address::{Address, PcieAddress, TcpAddress, VfioUserAddress};
use dlfs::nvme::fabrics::DiscoveryRecord;
use dlfs::qpair::tcp::{ana_state, discover, identify};
use dlfs::qpair::{ConnectOptions, host_identity, pcie};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind};

use crate::args::ConnectionArgs;
use crate::exit::{Failure, Outcome};
use crate::identify::{controller, namespace, uuid};
use crate::out::{Out, known};

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

/// Options of all three commands.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    /// The subsystem: nvme-tcp://HOST[:4420]/NQN[?ns=N]; but for list-subsys also pcie:0000:5e:00.0, trtype:VFIOUSER
    #[arg(value_name = "ADDRESS")]
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
    fn tcp(&self) -> Result<&TcpAddress, Failure> {
        match &self.address {
            Address::Tcp(address) => Ok(address),
            other => Err(Failure::Usage(format!("{other} is not nvme-tcp://HOST/NQN"))),
        }
    }

    /// Identify data by NSID; those of the controller have NSID 0.
    fn pages(&self) -> Result<Vec<(Nsid, Vec<u8>)>, Failure> {
        let options = self.connection.options(false)?;
        Ok(match &self.address {
            Address::Pcie(_) | Address::VfioUser(_) => pcie::identify(&self.address, &options)?,
            _ => identify(self.tcp()?, &options)?,
        })
    }

    fn print(&self, lines: Vec<String>, value: Value) -> Result<Outcome, Failure> {
        let mut out = Out::new();
        match self.output {
            Format::Json => out.json(&value)?,
            Format::Normal => lines.iter().try_for_each(|line| out.line(line))?,
        }
        out.end(Outcome::Done)
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

/// The paths that the discovery service lists for the subsystem, and those of --path.
fn paths(address: &TcpAddress, options: &ConnectOptions) -> Vec<TcpAddress> {
    // Without a discovery service on this port, or if it lists only other subsystems, the path is this
    // address.
    let records = discover(&address.traddr, address.trsvcid, options).unwrap_or_default();
    let its = |record: &&DiscoveryRecord| record.subnqn().is_ok_and(|nqn| nqn == address.subnqn);
    let at = |traddr: &str, trsvcid| {
        let traddr = traddr.to_owned();
        TcpAddress { traddr, trsvcid, nsid: None, ..address.clone() }
    };
    let listed = records.iter().filter(its);
    let listed = listed.filter_map(|record| Some(at(record.traddr()?, record.port()?)));
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
