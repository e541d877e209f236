//! Addresses of NVMe/TCP namespaces, as URLs: `nvme-tcp://host[:4420]/NQN[?ns=N]`.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use super::parts::{AddressError, parse_nqn, parse_nsid, parse_port, unescape_all};
use dlfs_base::percent::escape;
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::Nqn;

/// A namespace of an NVMe/TCP target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TcpAddress {
    /// Transport address: host name, IPv4 or IPv6 address (without brackets).
    pub traddr: String,
    /// Transport service identifier: the port.
    pub trsvcid: u16,
    /// Subsystem NQN.
    pub subnqn: Nqn,
    /// Namespace; `None`: all namespaces of an image, or the only namespace; through SPDK, the first active one.
    pub nsid: Option<Nsid>,
}

impl TcpAddress {
    /// The default port of NVM subsystems.
    const DEFAULT_PORT: u16 = 4420;

    /// Builds an address from its parts: `traddr` is already unescaped, `subnqn` is not.
    pub(super) fn of(
        traddr: String,
        trsvcid: Option<&str>,
        subnqn: &str,
        nsid: Option<&str>,
    ) -> Result<TcpAddress, AddressError> {
        Ok(TcpAddress {
            traddr,
            trsvcid: trsvcid.map_or(Ok(TcpAddress::DEFAULT_PORT), parse_port)?,
            subnqn: parse_nqn(&unescape_all(subnqn)?)?,
            nsid: nsid.map(parse_nsid).transpose()?,
        })
    }

    /// The `traddr` of a socket address. An IPv6 address keeps its scope identifier, such as `%2`, if it has one.
    pub fn traddr_of(socket: SocketAddr) -> String {
        match socket {
            SocketAddr::V6(socket) if socket.scope_id() > 0 => {
                format!("{}%{}", socket.ip(), socket.scope_id())
            }
            socket => socket.ip().to_string(),
        }
    }
}

impl fmt::Display for TcpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(URL_SCHEME)?;
        if self.traddr.contains(':') {
            f.write_char('[')?;
            escape(f, self.traddr.as_bytes(), |c| "%,]/".contains(c))?;
            f.write_char(']')?;
        } else {
            escape(f, self.traddr.as_bytes(), |c| "%,/[".contains(c))?;
        }
        write!(f, ":{}/", self.trsvcid)?;
        escape(f, self.subnqn.as_str().as_bytes(), |c| "%,?".contains(c))?;
        match self.nsid {
            Some(nsid) => write!(f, "?ns={nsid}"),
            None => Ok(()),
        }
    }
}

/// Parses the NVMe/TCP URL `text`; `rest` is the part after the scheme.
pub(super) fn parse_url(text: &str, rest: &str) -> Result<TcpAddress, AddressError> {
    let malformed = || AddressError::Url(text.to_owned());
    let (authority, name) = rest.split_once('/').ok_or_else(malformed)?;
    let (nqn, query) = match name.split_once('?') {
        Some((nqn, query)) => (nqn, Some(query)),
        None => (name, None),
    };
    let (host, port) = split_port(authority).ok_or_else(malformed)?;
    let traddr = unescape_all(host)?;
    if traddr.is_empty() || traddr.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(malformed());
    }
    let nsid = query.map(|query| query.strip_prefix("ns=").ok_or_else(malformed)).transpose()?;
    TcpAddress::of(traddr, port, nqn, nsid)
}

/// Host and port of `host`, `host:port`, `[v6]` or `[v6]:port`; `None`: another form. An IPv6 address needs its
/// brackets.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        return match after {
            "" => Some((host, None)),
            _ => Some((host, Some(after.strip_prefix(':')?))),
        };
    }
    match authority.split_once(':') {
        Some((_, port)) if port.contains(':') => None,
        Some((host, port)) => Some((host, Some(port))),
        None => Some((authority, None)),
    }
}

/// Prefix of the URL of an NVMe/TCP address.
pub(super) const URL_SCHEME: &str = "nvme-tcp://";
