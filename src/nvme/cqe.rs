//! Completion queue entry (CQE), 16 bytes, and its status.

/// Status of a completion: status code type, status code, and whether retrying is pointless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status {
    /// Status Code Type (SCT), 3 bits.
    pub sct: u8,
    /// Status Code (SC).
    pub sc: u8,
    /// Do Not Retry (DNR).
    pub dnr: bool,
    /// Command Retry Delay (CRD), 2 bits: 0, or an index into CRDT1..3.
    pub crd: u8,
    /// More (M): the error log has more about it.
    pub more: bool,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "status {}/{:02X}h", self.sct, self.sc)
    }
}
