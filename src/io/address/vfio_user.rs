//! Addresses of controllers that another process of this machine plays over a socket (vfio-user).

use std::fmt;

use super::tcp::escape_word;
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::Nqn;

/// A namespace of a controller that another process plays.
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
