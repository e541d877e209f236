//! Addresses of namespaces that are reached without this library's NVMe/TCP host: through SPDK, on PCIe, and over
//! vfio-user, by which another process emulates a controller.
//!
//! ```text
//! pcie:0000:5e:00.0[?ns=N]                                       a drive, by this library's driver
//! trtype:VFIOUSER traddr:SOCKET [subnqn:NQN] [ns:N]              an emulated controller, by this library's driver
//! trtype:PCIE traddr:0000:5e:00.0 [ns:N]                         a drive, by SPDK's driver
//! trtype:RDMA adrfam:IPv4 traddr:A [trsvcid:4420] subnqn:NQN [ns:N]   NVMe over RDMA, by SPDK
//! spdk:ADDRESS                                                   any of these, or NVMe/TCP, by SPDK
//! ```

use std::fmt;

use super::parts::{AddressError, escape_word, parse_nqn, parse_nsid, unescape_all};
use super::tcp::TcpAddress;
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::Nqn;

/// A namespace that SPDK reaches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SpdkAddress {
    /// NVMe/TCP, with SPDK's host instead of this library's.
    Tcp(TcpAddress),
    /// NVMe over RDMA.
    Rdma(TcpAddress),
    /// A local drive.
    Pcie(PcieAddress),
    /// A controller that another process emulates over a socket and shared memory.
    VfioUser(VfioUserAddress),
}

/// The values of the keys of a `trtype:` address, as text; `None`: the key is missing.
pub(super) struct TransportId<'a> {
    pub(super) traddr: Option<&'a str>,
    pub(super) trsvcid: Option<&'a str>,
    pub(super) subnqn: Option<&'a str>,
    pub(super) ns: Option<&'a str>,
}

impl SpdkAddress {
    /// The transport, as SPDK names it.
    #[cfg(any(test, feature = "spdk"))]
    pub(crate) fn trtype(&self) -> &'static str {
        match self {
            SpdkAddress::Tcp(_) => "TCP",
            SpdkAddress::Rdma(_) => "RDMA",
            SpdkAddress::Pcie(_) => "PCIE",
            SpdkAddress::VfioUser(_) => "VFIOUSER",
        }
    }

    /// The namespace; `None`: the first active one.
    pub(crate) fn nsid(&self) -> Option<Nsid> {
        match self {
            SpdkAddress::Tcp(address) | SpdkAddress::Rdma(address) => address.nsid,
            SpdkAddress::Pcie(address) => address.nsid,
            SpdkAddress::VfioUser(address) => address.nsid,
        }
    }

    /// Returns whether a device transfers the data by DMA, so that buffers must lie in memory that
    /// it can access.
    pub fn needs_dma_memory(&self) -> bool {
        !matches!(self, SpdkAddress::Tcp(_))
    }
}

/// Parses the address of a drive for SPDK.
pub(super) fn parse_pcie(id: &TransportId<'_>) -> Result<SpdkAddress, AddressError> {
    let traddr = parse_traddr(id)?;
    if !is_pci_address(&traddr) {
        let expected = "PCI addresses such as 0000:5e:00.0";
        return Err(AddressError::Value { key: "traddr", value: traddr, expected });
    }
    let nsid = id.ns.map(parse_nsid).transpose()?;
    Ok(SpdkAddress::Pcie(PcieAddress { traddr, nsid }))
}

/// Parses the address of a subsystem over RDMA.
pub(super) fn parse_rdma(id: &TransportId<'_>) -> Result<SpdkAddress, AddressError> {
    let traddr = parse_traddr(id)?;
    let missing = || AddressError::Key { key: "subnqn".to_owned(), problem: "missing" };
    let subnqn = id.subnqn.ok_or_else(missing)?;
    TcpAddress::of(traddr, id.trsvcid, subnqn, id.ns).map(SpdkAddress::Rdma)
}

/// Parses the address of an emulated controller.
pub(super) fn parse_vfio_user(id: &TransportId<'_>) -> Result<VfioUserAddress, AddressError> {
    let subnqn = id.subnqn.map(|text| parse_nqn(&unescape_all(text)?)).transpose()?;
    let nsid = id.ns.map(parse_nsid).transpose()?;
    Ok(VfioUserAddress { traddr: parse_traddr(id)?, subnqn, nsid })
}

/// Unescapes and checks the transport address; SPDK allows at most 256 bytes.
fn parse_traddr(id: &TransportId<'_>) -> Result<String, AddressError> {
    let missing = || AddressError::Key { key: "traddr".to_owned(), problem: "missing" };
    let traddr = unescape_all(id.traddr.ok_or_else(missing)?)?;
    if traddr.is_empty() || traddr.len() > 256 || traddr.chars().any(char::is_control) {
        let expected = "addresses of 1 to 256 bytes";
        return Err(AddressError::Value { key: "traddr", value: traddr, expected });
    }
    Ok(traddr)
}

impl fmt::Display for SpdkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpdkAddress::Tcp(address) => return write!(f, "spdk:{address}"),
            SpdkAddress::VfioUser(address) => return write!(f, "spdk:{address}"),
            SpdkAddress::Pcie(PcieAddress { traddr, .. }) => {
                f.write_str("trtype:PCIE traddr:")?;
                escape_word(f, traddr)?;
            }
            SpdkAddress::Rdma(TcpAddress { traddr, trsvcid, subnqn, .. }) => {
                f.write_str("trtype:RDMA traddr:")?;
                escape_word(f, traddr)?;
                write!(f, " trsvcid:{trsvcid} subnqn:")?;
                escape_word(f, subnqn.as_str())?;
            }
        }
        self.nsid().map_or(Ok(()), |nsid| write!(f, " ns:{nsid}"))
    }
}

/// A namespace of a drive on this machine's PCI bus.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PcieAddress {
    /// Domain, bus, device and function: `0000:5e:00.0`. In lower case after `pcie:`, as given after `trtype:PCIE`.
    pub traddr: String,
    /// Namespace; `None`: the first active one.
    pub nsid: Option<Nsid>,
}

impl PcieAddress {
    /// Parses the address `text`; `rest` is the part after the scheme.
    pub(super) fn parse(text: &str, rest: &str) -> Result<PcieAddress, AddressError> {
        let malformed = || AddressError::Pcie(text.to_owned());
        let (traddr, query) = match rest.split_once('?') {
            Some((traddr, query)) => (traddr, Some(query)),
            None => (rest, None),
        };
        if !is_pci_address(traddr) {
            return Err(malformed());
        }
        let nsid =
            query.map(|query| query.strip_prefix("ns=").ok_or_else(malformed)).transpose()?;
        let nsid = nsid.map(parse_nsid).transpose()?;
        Ok(PcieAddress { traddr: traddr.to_ascii_lowercase(), nsid })
    }
}

impl fmt::Display for PcieAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PCIE_SCHEME}{}", self.traddr)?;
        self.nsid.map_or(Ok(()), |nsid| write!(f, "?ns={nsid}"))
    }
}

/// Returns whether `text` is a PCI address, `DOMAIN:BUS:DEVICE.FUNCTION` in hexadecimal digits.
fn is_pci_address(text: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b':',
        10 => byte == b'.',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 12 && text.bytes().enumerate().all(is_right)
}

/// A namespace of a controller that another process emulates over vfio-user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VfioUserAddress {
    /// The socket, or the folder in which SPDK's target keeps it.
    pub traddr: String,
    /// Subsystem NQN; optional, because the socket already identifies the subsystem.
    pub subnqn: Option<Nqn>,
    /// Namespace; `None`: the first active one.
    pub nsid: Option<Nsid>,
}

impl fmt::Display for VfioUserAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("trtype:VFIOUSER traddr:")?;
        escape_word(f, &self.traddr)?;
        if let Some(subnqn) = &self.subnqn {
            f.write_str(" subnqn:")?;
            escape_word(f, subnqn.as_str())?;
        }
        self.nsid.map_or(Ok(()), |nsid| write!(f, " ns:{nsid}"))
    }
}

/// The scheme of a drive that this library's driver uses.
pub(super) const PCIE_SCHEME: &str = "pcie:";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    fn parse(text: &str) -> Result<SpdkAddress, AddressError> {
        match text.parse::<Address>()? {
            Address::Spdk(address) => Ok(address),
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn every_transport_is_read_and_printed_so_that_it_reads_back() {
        let golden = [
            ("trtype:PCIE traddr:0000:5e:00.0 ns:2", "PCIE", Some(Nsid(2))),
            ("spdk:trtype:pcie traddr:0000:5e:00.0", "PCIE", None),
            ("trtype:RDMA adrfam:IPv4 traddr:10.0.0.1 subnqn:nqn.2026-11.io.dlfs:a", "RDMA", None),
            ("spdk:trtype:VFIOUSER traddr:/var/run/a%20b%2Cc ns:1", "VFIOUSER", Some(Nsid(1))),
            ("spdk:trtype:VFIOUSER traddr:/x subnqn:nqn.2026-11.io.dlfs:a", "VFIOUSER", None),
            ("spdk:nvme-tcp://h/nqn.2026-11.io.dlfs:a?ns=3", "TCP", Some(Nsid(3))),
            ("spdk:trtype:TCP traddr:::1 subnqn:nqn.2026-11.io.dlfs:a", "TCP", None),
        ];
        for (text, trtype, nsid) in golden {
            let address = parse(text).unwrap();
            assert_eq!((address.trtype(), address.nsid()), (trtype, nsid), "{text}");
            assert_eq!(parse(&address.to_string()), Ok(address), "{text}");
        }
    }

    #[test]
    fn fields_that_no_transport_has_are_refused_with_the_reason() {
        let wrong = ["5e:00.0", "0000:5e:00", "0000:5e:00.0.1", "0000:5g:00.0", "x"];
        for traddr in wrong.into_iter().chain(["0000.5e.00:0", "0000:5e:00:0", "0000:5e.00.0"]) {
            let error = parse(&format!("trtype:PCIE traddr:{traddr}")).unwrap_err();
            assert!(matches!(error, AddressError::Value { key: "traddr", .. }), "{error}");
        }
        let long = format!("trtype:VFIOUSER traddr:/{}", "x".repeat(256));
        assert!(matches!(parse(&long), Err(AddressError::Value { key: "traddr", .. })));
        for text in ["trtype:PCIE", "trtype:RDMA traddr:1.2.3.4", "trtype:VFIOUSER"] {
            assert!(matches!(parse(text), Err(AddressError::Key { problem: "missing", .. })));
        }
        let error = parse("spdk:train.dlfs").unwrap_err();
        assert!(matches!(error, AddressError::SpdkPath(_)), "{error}");
    }

    #[test]
    fn drives_are_read_and_printed_so_that_they_read_back() {
        for (text, nsid) in [("pcie:0000:5e:00.0", None), ("pcie:10a0:5E:1f.7?ns=3", Some(Nsid(3)))]
        {
            let address: Address = text.parse().unwrap();
            let traddr = text[5..17].to_ascii_lowercase();
            assert_eq!(address, Address::Pcie(PcieAddress { traddr, nsid }));
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        let file = Address::from_path("pcie:0000:5e:00.0");
        assert_eq!(file.to_string(), "./pcie:0000:5e:00.0", "a file of this name stays one");
    }

    #[test]
    fn what_names_no_drive_is_refused() {
        let texts = [
            "",
            "5e:00.0",
            "0000:5e:00",
            "0000:5e.00:0.1",
            "0000:5g:00.0",
            "0000:5e:00.0?noiommu=1",
        ];
        for text in texts {
            let error = format!("pcie:{text}").parse::<Address>().unwrap_err();
            assert!(matches!(error, AddressError::Pcie(_)), "{error}");
        }
        let error = "pcie:0000:5e:00.0?ns=0".parse::<Address>().unwrap_err();
        assert_eq!(error, AddressError::Nsid("0".into()));
    }
}
