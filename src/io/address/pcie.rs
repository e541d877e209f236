//! Addresses of drives of this machine that this library's own driver reads.

use std::fmt;

use super::tcp::{AddressError, parse_nsid};
use dlfs_base::units::Nsid;

/// A namespace of an NVMe controller of this machine, which VFIO hands over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PcieAddress {
    /// Domain, bus, device and function in lower case: `0000:5e:00.0`.
    pub traddr: String,
    /// Namespace; `None`: the first active one.
    pub nsid: Option<Nsid>,
}

impl PcieAddress {
    /// Parses `text`, whose part after the scheme is `rest`.
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

/// Returns whether `text` has domain, bus, device and function of a PCI device.
pub(super) fn is_pci_address(text: &str) -> bool {
    let digits = |text: &str, count: usize| {
        text.len() == count && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let parts: Vec<&str> = text.split([':', '.']).collect();
    match parts[..] {
        [domain, bus, device, function] => {
            digits(domain, 4) && digits(bus, 2) && digits(device, 2) && digits(function, 1)
        }
        _ => false,
    }
}

/// Prefix of the address of a drive.
pub(super) const PCIE_SCHEME: &str = "pcie:";

#[cfg(test)]
mod tests {
    use super::super::Address;
    use super::*;

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
