//! Reasons for refusing a Connect.

use std::borrow::Cow;

use super::warnings::WarningKind;
use dlfs_nvme::nvme::Status;
use dlfs_nvme::nvme::fabrics::InvalidParameter;

/// Reason for refusing a Connect, with dword 0 of the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) dw0: u32,
    /// The kind of the warning. `None`: the refusal appears in the access log only.
    pub(super) kind: Option<WarningKind>,
    /// The reason, for the operator's log.
    pub(super) why: Cow<'static, str>,
}

impl Refusal {
    pub(super) fn command(offset: u16, why: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::invalid(InvalidParameter { offset, in_data: false }, why)
    }

    pub(super) fn data(offset: u16, why: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::invalid(InvalidParameter { offset, in_data: true }, why)
    }

    fn invalid(parameter: InvalidParameter, why: impl Into<Cow<'static, str>>) -> Refusal {
        let refusal = Refusal::of(Status::CONNECT_INVALID_PARAMETERS, why);
        Refusal { dw0: parameter.to_wire(), ..refusal }
    }

    /// A permanent refusal: a retry would fail again.
    pub(super) fn of(status: Status, why: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { status: status.do_not_retry(), dw0: 0, kind: None, why: why.into() }
    }
}

/// A refusal because of a limit or of draining: a retry may succeed later.
pub(super) fn busy(why: impl Into<Cow<'static, str>>) -> Refusal {
    let status = Status::CONNECT_CONTROLLER_BUSY;
    Refusal { status, dw0: 0, kind: Some(WarningKind::NoController), why: why.into() }
}
