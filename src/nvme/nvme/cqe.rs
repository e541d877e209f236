//! Completion queue entry (CQE), 16 bytes, and its status.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Completion queue entry: the end of one command.
///
/// | bytes  | field    | meaning                                                            |
/// |--------|----------|--------------------------------------------------------------------|
/// | 0..4   | `dw0`    | command specific                                                   |
/// | 4..8   | `dw1`    | command specific                                                   |
/// | 8..10  | `sqhd`   | SQ head; FFFFh in Connect's answer: SQ flow control is disabled    |
/// | 10..12 | `sqid`   | reserved on fabrics                                                |
/// | 12..14 | `cid`    | the command's identifier                                           |
/// | 14..16 | `status` | 0 phase (0 here), 8:1 SC, 11:9 SCT, 13:12 CRD, 14 More, 15 DNR     |
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Cqe {
    /// Command specific dword 0.
    pub dw0: U32,
    /// Command specific dword 1.
    pub dw1: U32,
    /// SQ head.
    pub sqhd: U16,
    /// SQ identifier, reserved on fabrics.
    pub sqid: U16,
    /// Command identifier.
    pub cid: U16,
    /// Phase and status; see [`Cqe::status`].
    pub status: U16,
}
const _: () = assert!(size_of::<Cqe>() == 16);

impl Cqe {
    /// `sqhd` of the response to Connect when SQ flow control is disabled.
    pub const SQHD_NO_FLOW_CONTROL: u16 = 0xFFFF;

    /// The completion of `cid` with `status`; all other fields are zero.
    pub fn new(cid: u16, status: Status) -> Cqe {
        Cqe { cid: U16::new(cid), status: U16::new(status.to_wire()), ..Cqe::new_zeroed() }
    }

    /// The status of the command.
    pub fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }

    /// Both command specific dwords as one number, dword 0 lowest.
    pub fn result(&self) -> u64 {
        u64::from(self.dw1.get()) << 32 | u64::from(self.dw0.get())
    }

    /// The same completion with `result` in its command-specific dwords.
    pub fn with_result(mut self, result: u64) -> Cqe {
        self.dw0 = U32::new((result & 0xFFFF_FFFF) as u32);
        self.dw1 = U32::new((result >> 32) as u32);
        self
    }
}

/// Status of a completion: status code type, status code, and retry hints.
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
    /// More (M): the error log has more information.
    pub more: bool,
}

/// Class of a failed command: the host's possible reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryClass {
    /// Another path may succeed: this one failed, or the medium behind this controller did. Only SCT 3 and
    /// [`Status::ABORTED_SQ_DELETED`] mean that the command was not executed, so that a write may be sent again.
    Path,
    /// Retry on the same path after a delay.
    Retry,
    /// The host must act first: authenticate, read the discovery log again, send fewer AERs.
    Local,
    /// The blocks hold no data here: a host with access to other copies reads one of them, even if DNR is
    /// set.
    Elsewhere,
    /// The host has nothing to try; a caller that aborted the command itself may send it again.
    Final,
}

macro_rules! statuses {
    ($($sct:literal / $sc:literal $const:ident $class:ident $name:literal;)*) => {
        impl Status {
            $(#[doc = concat!("Status ", $sct, "/", stringify!($sc), ": ", $name, ".")]
            pub const $const: Status = Status::new($sct, $sc);)*

            /// All statuses defined here.
            #[cfg(test)]
            const NAMED: &[Status] = &[$(Status::$const),*];

            fn facts(self) -> Option<(&'static str, RetryClass)> {
                match (self.sct, self.sc) {
                    $(($sct, $sc) => Some(($name, RetryClass::$class)),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    0 / 0x00 SUCCESS Final "success";
    0 / 0x01 INVALID_OPCODE Final "invalid opcode";
    0 / 0x02 INVALID_FIELD Final "invalid field in command";
    0 / 0x03 COMMAND_ID_CONFLICT Final "command id conflict";
    0 / 0x04 DATA_TRANSFER_ERROR Retry "data transfer error";
    0 / 0x05 ABORTED_POWER_LOSS Retry "aborted, power loss notice";
    0 / 0x06 INTERNAL_ERROR Retry "internal error";
    0 / 0x07 ABORT_REQUESTED Final "abort requested";
    0 / 0x08 ABORTED_SQ_DELETED Path "aborted, queue deleted";
    0 / 0x09 FUSED_FAILED Final "fused partner failed";
    0 / 0x0A FUSED_MISSING Final "fused partner missing";
    0 / 0x0B INVALID_NAMESPACE Final "invalid namespace or format";
    0 / 0x0C COMMAND_SEQUENCE_ERROR Final "command sequence error";
    0 / 0x0D INVALID_SGL_SEGMENT Final "invalid SGL segment descriptor";
    0 / 0x0E INVALID_SGL_COUNT Final "invalid number of SGL descriptors";
    0 / 0x0F INVALID_SGL_LENGTH Final "data SGL length invalid";
    0 / 0x11 INVALID_SGL_TYPE Final "SGL descriptor type invalid";
    0 / 0x15 OPERATION_DENIED Final "operation denied";
    0 / 0x16 INVALID_SGL_OFFSET Final "SGL offset invalid";
    0 / 0x18 HOST_ID_INCONSISTENT Path "host identifier inconsistent";
    0 / 0x19 KEEP_ALIVE_EXPIRED Path "keep alive timer expired";
    0 / 0x1A KEEP_ALIVE_INVALID Local "keep alive time-out invalid";
    0 / 0x1B ABORTED_PREEMPT Final "aborted by preempt";
    0 / 0x1C SANITIZE_FAILED Final "sanitize failed";
    0 / 0x1D SANITIZE_IN_PROGRESS Retry "sanitize in progress";
    0 / 0x20 NAMESPACE_WRITE_PROTECTED Final "namespace is write protected";
    0 / 0x21 COMMAND_INTERRUPTED Retry "command interrupted";
    0 / 0x22 TRANSIENT_TRANSPORT_ERROR Retry "transient transport error";
    0 / 0x23 PROHIBITED_BY_LOCKDOWN Final "prohibited by lockdown";
    0 / 0x24 ADMIN_MEDIA_NOT_READY Retry "admin command media not ready";
    0 / 0x80 LBA_OUT_OF_RANGE Final "LBA out of range";
    0 / 0x81 CAPACITY_EXCEEDED Final "capacity exceeded";
    0 / 0x82 NAMESPACE_NOT_READY Retry "namespace not ready";
    0 / 0x83 RESERVATION_CONFLICT Final "reservation conflict";
    0 / 0x84 FORMAT_IN_PROGRESS Retry "format in progress";
    1 / 0x05 AER_LIMIT_EXCEEDED Local "asynchronous event request limit exceeded";
    1 / 0x09 INVALID_LOG_PAGE Final "invalid log page";
    1 / 0x0D FEATURE_NOT_SAVEABLE Final "feature identifier not saveable";
    1 / 0x0E FEATURE_NOT_CHANGEABLE Final "feature not changeable";
    1 / 0x80 CONNECT_INCOMPATIBLE_FORMAT Final "connect: incompatible format";
    1 / 0x81 CONNECT_CONTROLLER_BUSY Retry "connect: controller busy";
    1 / 0x82 CONNECT_INVALID_PARAMETERS Final "connect: invalid parameters";
    1 / 0x83 CONNECT_RESTART_DISCOVERY Local "connect: restart discovery";
    1 / 0x84 CONNECT_INVALID_HOST Final "connect: host not allowed";
    1 / 0x85 DISCONNECT_INVALID_QUEUE_TYPE Final "disconnect: invalid queue type";
    1 / 0x90 DISCOVER_RESTART Local "discovery log changed";
    1 / 0x91 AUTHENTICATION_REQUIRED Local "authentication required";
    2 / 0x80 WRITE_FAULT Path "write fault";
    2 / 0x81 UNRECOVERED_READ_ERROR Path "unrecovered read error";
    2 / 0x82 GUARD_CHECK_ERROR Path "guard check error";
    2 / 0x83 APPLICATION_TAG_ERROR Path "application tag check error";
    2 / 0x84 REFERENCE_TAG_ERROR Path "reference tag check error";
    2 / 0x85 COMPARE_FAILURE Final "compare failure";
    2 / 0x86 ACCESS_DENIED Final "access denied";
    2 / 0x87 UNWRITTEN_BLOCK Elsewhere "deallocated or unwritten logical block";
    2 / 0x88 STORAGE_TAG_ERROR Final "storage tag check error";
    3 / 0x00 INTERNAL_PATH_ERROR Path "internal path error";
    3 / 0x01 ANA_PERSISTENT_LOSS Path "asymmetric access persistent loss";
    3 / 0x02 ANA_INACCESSIBLE Path "asymmetric access inaccessible";
    3 / 0x03 ANA_TRANSITION Path "asymmetric access transition";
    3 / 0x60 CONTROLLER_PATH_ERROR Path "controller pathing error";
    3 / 0x70 HOST_PATH_ERROR Path "host pathing error";
    3 / 0x71 ABORTED_BY_HOST Path "command aborted by host";
}

impl Status {
    /// The status with this code; DNR, CRD and More are zero.
    pub const fn new(sct: u8, sc: u8) -> Status {
        Status { sct, sc, dnr: false, crd: 0, more: false }
    }

    /// The same status with DNR set.
    pub const fn do_not_retry(mut self) -> Status {
        self.dnr = true;
        self
    }

    /// Returns whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.sct == 0 && self.sc == 0
    }

    /// Returns whether the code equals that of `other`, ignoring DNR, CRD and More.
    pub const fn is(self, other: Status) -> bool {
        self.sct == other.sct && self.sc == other.sc
    }

    /// Returns whether the path failed, not the medium, so that the command was not executed.
    #[doc(hidden)]
    pub const fn is_path_related(self) -> bool {
        self.sct == SCT_PATH || self.is(Status::ABORTED_SQ_DELETED)
    }

    /// The name of the code, if it is defined here.
    pub fn name(self) -> Option<&'static str> {
        self.facts().map(|(name, _)| name)
    }

    /// The class of the failure; for a success it means nothing. With DNR, every class but `Elsewhere` becomes
    /// `Final`. An unknown path-related code (SCT 3) is `Path`, any other unknown code `Final`.
    pub fn retry_class(self) -> RetryClass {
        match self.facts() {
            Some((_, RetryClass::Elsewhere)) => RetryClass::Elsewhere,
            _ if self.dnr => RetryClass::Final,
            Some((_, class)) => class,
            None if self.sct == SCT_PATH => RetryClass::Path,
            None => RetryClass::Final,
        }
    }

    /// Decodes bytes 14..16 of a completion; drops the phase bit.
    pub const fn from_wire(word: u16) -> Status {
        Status {
            sct: ((word >> 9) & 0x7) as u8,
            sc: ((word >> 1) & 0xFF) as u8,
            dnr: word & (1 << 15) != 0,
            crd: ((word >> 12) & 0x3) as u8,
            more: word & (1 << 14) != 0,
        }
    }

    /// Encodes bytes 14..16 of a completion, with phase 0.
    pub const fn to_wire(self) -> u16 {
        (self.sc as u16) << 1
            | ((self.sct & 0x7) as u16) << 9
            | ((self.crd & 0x3) as u16) << 12
            | (self.more as u16) << 14
            | (self.dnr as u16) << 15
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "status {}/{:02X}h", self.sct, self.sc)?;
        if let Some(name) = self.name() {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}

/// Status code type 3: path related.
const SCT_PATH: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_words_are_those_of_the_specification() {
        let ns_not_ready_crd1 = Status { crd: 1, ..Status::NAMESPACE_NOT_READY };
        let golden = [
            (Status::SUCCESS, 0x0000),
            (Status::INVALID_FIELD.do_not_retry(), 0x8004),
            (Status::TRANSIENT_TRANSPORT_ERROR, 0x0044),
            (Status::ANA_INACCESSIBLE, 0x0604),
            (ns_not_ready_crd1, 0x1104),
            (Status::CONNECT_INVALID_PARAMETERS.do_not_retry(), 0x8304),
            (Status::AUTHENTICATION_REQUIRED.do_not_retry(), 0x8322),
        ];
        for (status, word) in golden {
            assert_eq!(status.to_wire(), word, "{status}");
            assert_eq!(Status::from_wire(word), status);
        }
    }

    #[test]
    fn every_status_word_survives_a_round_trip_but_for_the_phase_bit() {
        for word in 0..=u16::MAX {
            assert_eq!(Status::from_wire(word).to_wire(), word & !1);
        }
    }

    #[test]
    fn no_status_is_named_twice_and_do_not_retry_means_here_never() {
        let mut seen = std::collections::HashSet::new();
        for status in Status::NAMED {
            assert!(seen.insert(*status), "{status}");
            let is_elsewhere = status.is(Status::UNWRITTEN_BLOCK);
            let class = if is_elsewhere { RetryClass::Elsewhere } else { RetryClass::Final };
            assert_eq!(status.do_not_retry().retry_class(), class);
        }
    }

    #[test]
    fn retry_classes_follow_the_code() {
        assert_eq!(Status::ANA_TRANSITION.retry_class(), RetryClass::Path);
        assert_eq!(Status::new(3, 0x99).retry_class(), RetryClass::Path);
        assert_eq!(Status::NAMESPACE_NOT_READY.retry_class(), RetryClass::Retry);
        assert_eq!(Status::AUTHENTICATION_REQUIRED.retry_class(), RetryClass::Local);
        assert_eq!(Status::LBA_OUT_OF_RANGE.retry_class(), RetryClass::Final);
        assert_eq!(Status::UNWRITTEN_BLOCK.retry_class(), RetryClass::Elsewhere);
        assert_eq!(Status::new(7, 0x12).retry_class(), RetryClass::Final);
    }

    #[test]
    fn a_completion_carries_its_result_in_two_dwords() {
        let cqe = Cqe::new(7, Status::SUCCESS).with_result(0x1_0000_0002);
        assert_eq!(cqe.as_bytes(), [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(cqe.result(), 0x1_0000_0002);
    }

    #[test]
    fn the_text_names_code_and_meaning() {
        assert_eq!(Status::LBA_OUT_OF_RANGE.to_string(), "status 0/80h LBA out of range");
        assert_eq!(Status::new(7, 1).to_string(), "status 7/01h");
    }
}
