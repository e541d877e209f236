//! `dlfs discover`: lists the subsystems of a target.

use std::net::Ipv6Addr;

use clap::Args;
use serde_json::json;

use dlfs::address::{Address, TcpAddress};
use dlfs::nvme::fabrics::DiscoveryRecord;
use dlfs::qpair::tcp::discover;

use crate::args::{ConnectionArgs, host_and_port};
use crate::exit::{Failure, Outcome};
use crate::out::{Out, known};
use crate::text::safe_name;

/// List the subsystems that a discovery service offers
///
/// Every target of `dlfs serve` answers on its own port; other targets usually have a discovery
/// service on port 8009.
#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    /// The discovery service
    #[arg(value_name = "HOST[:PORT]", value_parser = parse_place)]
    place: (String, u16),
    /// Print one line of JSON for each record
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) fn run(args: DiscoverArgs) -> Result<Outcome, Failure> {
    let (host, port) = &args.place;
    let records = discover(host, *port, &args.connection.options(false)?)?;
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

/// The address of a subsystem that our host can connect to.
fn address(record: &DiscoveryRecord, asked: &str) -> Option<Address> {
    let subnqn = record.subnqn().ok()?;
    let traddr = on_link(record.traddr()?, asked);
    let trsvcid = record.port()?;
    let is_nvm = record.subtype == DiscoveryRecord::SUBTYPE_NVM;
    is_nvm.then_some(Address::Tcp(TcpAddress { traddr, trsvcid, subnqn, nsid: None }))
}

/// The address in a record. A link-local address (fe80::/10) belongs to the link that the record came over.
fn on_link(traddr: &str, asked: &str) -> String {
    let is_of_link = traddr.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_unicast_link_local());
    match asked.split_once('%').filter(|_| is_of_link) {
        Some((_, link)) => format!("{traddr}%{link}"),
        None => traddr.to_owned(),
    }
}

fn parse_place(text: &str) -> Result<(String, u16), String> {
    host_and_port(text, DISCOVERY_PORT).ok_or_else(|| "not HOST or HOST:PORT".to_owned())
}

/// The port that IANA assigned to NVMe discovery over TCP.
const DISCOVERY_PORT: u16 = 8009;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_an_optional_port() {
        let place = |text| parse_place(text).unwrap();
        assert_eq!(place("node1"), ("node1".to_owned(), 8009));
        assert_eq!(place("127.0.0.1:4420"), ("127.0.0.1".to_owned(), 4420));
        assert_eq!(place("[::1]:4420"), ("::1".to_owned(), 4420));
        assert_eq!(place("::1"), ("::1".to_owned(), 8009));
        for wrong in ["", ":4420", "host:", "host:0", "host:70000", "host:x"] {
            assert!(parse_place(wrong).is_err(), "{wrong}");
        }
    }
}
