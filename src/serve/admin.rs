//! Execution of the commands on a connected admin queue: Identify, features, log pages, and the Fabrics commands for
//! properties.
//!
//! Each command becomes an [`Answer`]; the connection sends it.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::ana::AnaState;
use super::subsystem::{Controller, Subsystem};
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::fabrics::{DiscoveryLogHeader, DiscoveryRecord, Property};
use dlfs_nvme::nvme::identify::{
    IDENTIFY_LEN_BYTES, IdentifyController, IdentifyNamespace, NamespaceDescriptors, ascii_field,
    encode_namespace_list,
};
use dlfs_nvme::nvme::sqe::{admin, cns, fctype, feature, log_page, nvm};
use dlfs_nvme::nvme::{Nqn, Sqe, Status, VERSION_1_4};

/// The response to an admin command.
pub(super) enum Answer {
    /// Success, with these command-specific dwords.
    Done(u64),
    /// Success, with these data; the host receives zeros for the rest of its buffer.
    Data(Vec<u8>),
    /// No response yet: an Asynchronous Event Request, which completes with an event.
    Pending,
    /// An error.
    Fail(Status),
}

/// Executes a command of an admin queue, except those of an authentication. `room` is the length of the host's buffer
/// in bytes, 0 if the command transfers no data to the host; `local` is the address that the host connected to.
pub(super) fn execute(
    subsystem: &Subsystem,
    controller: &Controller,
    sqe: &Sqe,
    room: u32,
    local: SocketAddr,
) -> Answer {
    if let Some(fctype) = sqe.fctype() {
        return fabrics(subsystem, controller, sqe, fctype);
    }
    if !controller.is_enabled() {
        return Answer::Fail(Status::COMMAND_SEQUENCE_ERROR);
    }
    match sqe.opcode {
        admin::IDENTIFY if room as usize != IDENTIFY_LEN_BYTES => {
            Answer::Fail(Status::INVALID_SGL_LENGTH)
        }
        admin::IDENTIFY => match identify(subsystem, controller, sqe) {
            Ok(page) => Answer::Data(page.to_vec()),
            Err(status) => Answer::Fail(status),
        },
        admin::GET_LOG_PAGE => get_log_page(subsystem, controller, sqe, room, local),
        admin::SET_FEATURES => set_features(subsystem, controller, sqe),
        admin::GET_FEATURES => get_features(subsystem, controller, sqe),
        admin::ASYNC_EVENT_REQUEST => Answer::Pending,
        admin::KEEP_ALIVE => Answer::Done(0),
        // Abort is best effort; bit 0 of the result says that no command was aborted.
        admin::ABORT => Answer::Done(1),
        _ => Answer::Fail(Status::INVALID_OPCODE),
    }
}

/// Executes Property Get, Property Set, and a second Connect, which fails.
fn fabrics(subsystem: &Subsystem, controller: &Controller, sqe: &Sqe, fctype: u8) -> Answer {
    match (fctype, sqe.property()) {
        (fctype::PROPERTY_GET, Some(Property::Cap)) => Answer::Done(subsystem.cap().0),
        (fctype::PROPERTY_GET, Some(Property::Vs)) => Answer::Done(VERSION_1_4.into()),
        (fctype::PROPERTY_GET, Some(Property::Cc)) => Answer::Done(u64::from(controller.cc())),
        (fctype::PROPERTY_GET, Some(Property::Csts)) => Answer::Done(u64::from(controller.csts())),
        (fctype::PROPERTY_SET, Some(Property::Cc)) => {
            controller.set_cc((sqe.property_value() & 0xFFFF_FFFF) as u32);
            Answer::Done(0)
        }
        (fctype::PROPERTY_GET | fctype::PROPERTY_SET, _) => Answer::Fail(Status::INVALID_FIELD),
        (fctype::CONNECT, _) => Answer::Fail(Status::COMMAND_SEQUENCE_ERROR),
        _ => Answer::Fail(Status::INVALID_OPCODE),
    }
}

type Page = [u8; IDENTIFY_LEN_BYTES];

fn identify(subsystem: &Subsystem, controller: &Controller, sqe: &Sqe) -> Result<Page, Status> {
    let cns = sqe.low_byte_of_cdw10();
    let csi = sqe.cdw11.get().to_le_bytes()[3];
    if cns == cns::CONTROLLER {
        return Ok(zerocopy::transmute!(identify_controller(subsystem, controller)));
    }
    if controller.is_discovery || csi != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let nsid = sqe.nsid.get();
    let access = &controller.access;
    let namespace = subsystem.namespace(nsid).filter(|_| access.has(Nsid(nsid)));
    match cns {
        cns::CSI_CONTROLLER => Ok([0; IDENTIFY_LEN_BYTES]), // no limits except MDTS
        cns::ACTIVE_NAMESPACES | cns::CSI_ACTIVE_NAMESPACES => {
            if nsid >= 0xFFFF_FFFE {
                return Err(Status::INVALID_NAMESPACE);
            }
            let nsids = subsystem.nsids().into_iter();
            Ok(encode_namespace_list(nsids.filter(|id| id.0 > nsid && access.has(*id))))
        }
        cns::NAMESPACE
        | cns::NAMESPACE_DESCRIPTORS
        | cns::CSI_NAMESPACE
        | cns::INDEPENDENT_NAMESPACE => {
            let namespace = namespace.ok_or(Status::INVALID_NAMESPACE)?;
            let num_blocks = namespace.num_blocks;
            let block_len = namespace.block_len_bytes;
            let nguid = namespace.nguid;
            let read_only = namespace.read_only || access.read_only;
            let descriptors = NamespaceDescriptors {
                nguid: Some(nguid),
                csi: Some(0),
                ..NamespaceDescriptors::default()
            };
            Ok(match cns {
                cns::NAMESPACE => {
                    let mut id = IdentifyNamespace::new(num_blocks, block_len, nguid, read_only);
                    id.anagrpid = U32::new(subsystem.options.ana.map_or(0, |_| ANA_GROUP));
                    match subsystem.allocated_bytes(nsid) {
                        None => zerocopy::transmute!(id),
                        Some(bytes) => zerocopy::transmute!(id.thin(bytes / u64::from(block_len))),
                    }
                }
                cns::NAMESPACE_DESCRIPTORS => descriptors.encode(),
                cns::CSI_NAMESPACE => [0; IDENTIFY_LEN_BYTES], // no protection, no limits
                _ => independent_namespace(read_only, subsystem.options.ana.is_some()),
            })
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Identify Namespace, independent of the I/O command set. Offsets: NMIC 1, ANAGRPID 4, NSATTR 8, NSTAT 14.
fn independent_namespace(read_only: bool, ana: bool) -> Page {
    let mut page = [0; IDENTIFY_LEN_BYTES];
    page[1] = IdentifyNamespace::NMIC_SHARED;
    page[4] = if ana { ANA_GROUP as u8 } else { 0 };
    page[8] = u8::from(read_only) * IdentifyNamespace::NSATTR_WRITE_PROTECTED;
    page[14] = 1; // NRDY: ready
    page
}

fn identify_controller(subsystem: &Subsystem, controller: &Controller) -> IdentifyController {
    let mut id = IdentifyController::new_zeroed();
    id.sn = ascii_field(&serial_number(&subsystem.options.nqn));
    id.mn = ascii_field("dlfs target");
    id.fr = ascii_field(env!("CARGO_PKG_VERSION"));
    id.cntlid = U16::new(controller.cntlid);
    id.ver = U32::new(VERSION_1_4);
    id.ctratt = U32::new(1); // 128-bit host identifiers
    id.mdts = (subsystem.max_transfer_bytes.ilog2() - 12) as u8;
    id.aerl = MAX_ASYNC_EVENTS - 1;
    id.lpa = 1 << 2; // offsets and long lengths
    id.kas = U16::new(1); // 100 ms
    id.maxcmd = U16::new(subsystem.options.max_queue_entries);
    id.sgls = U32::new(1 | 1 << 20 | 1 << 21); // SGLs, offsets in the capsule, transport SGLs
    id.ioccsz = U32::new((64 + IO_CAPSULE_DATA_BYTES) / 16);
    id.iorcsz = U32::new(1);
    id.msdbd = 1;
    if controller.is_discovery {
        id.cntrltype = IdentifyController::TYPE_DISCOVERY;
        id.subnqn = Nqn::discovery().to_field();
        return id;
    }
    id.cntrltype = IdentifyController::TYPE_IO;
    id.subnqn = subsystem.options.nqn.to_field();
    id.cmic = IdentifyController::CMIC_SEVERAL_CONTROLLERS;
    id.lpa |= 1 << 1; // commands supported and effects
    id.frmw = 1 << 1 | 1; // one slot, read only
    (id.sqes, id.cqes) = (0x66, 0x44);
    id.oaes = U32::new(subsystem.optional_events());
    if subsystem.options.ana.is_some() {
        id.cmic |= IdentifyController::CMIC_ANA;
        (id.anatt, id.anacap) = (ANA_TRANSITION_S, ANACAP_ALL);
        (id.anagrpmax, id.nanagrpid) = (U32::new(ANA_GROUP), U32::new(1));
    }
    id.nn = U32::new(subsystem.max_nsid());
    id.mnan = id.nn;
    id.vwc = IdentifyController::VWC_PRESENT | 0b10 << 1; // Flush, but not of all namespaces at once
    id
}

/// A serial number of 20 digits, derived from the subsystem NQN.
fn serial_number(nqn: &Nqn) -> String {
    format!("{:020}", xxhash_rust::xxh3::xxh3_64(nqn.as_str().as_bytes()))
}

fn set_features(subsystem: &Subsystem, controller: &Controller, sqe: &Sqe) -> Answer {
    let value = sqe.cdw11.get();
    if sqe.cdw10.get() & (1 << 31) != 0 {
        return Answer::Fail(Status::FEATURE_NOT_SAVEABLE);
    }
    match sqe.low_byte_of_cdw10() {
        feature::NUMBER_OF_QUEUES => {
            let submission = (value & 0xFFFF) as u16;
            let completion = (value >> 16) as u16;
            let Some(asked) = submission.min(completion).checked_add(1) else {
                return Answer::Fail(Status::INVALID_FIELD);
            };
            if submission == u16::MAX || completion == u16::MAX || controller.is_discovery {
                return Answer::Fail(Status::INVALID_FIELD);
            }
            match controller.grant_queues(asked, subsystem.options.max_io_queues) {
                Ok(granted) => Answer::Done(queues_to_wire(granted)),
                Err(status) => Answer::Fail(status),
            }
        }
        feature::ASYNC_EVENT_CONFIG => {
            controller.events.configure(value);
            Answer::Done(0)
        }
        feature::ERROR_RECOVERY => {
            let is_possible = value & feature::DULBE == 0 || subsystem.is_thin();
            if !is_possible || controller.is_discovery {
                return Answer::Fail(Status::INVALID_FIELD);
            }
            let hides = subsystem.is_thin() && value & feature::DULBE == 0;
            controller.hides_unwritten.store(hides, Ordering::Relaxed);
            Answer::Done(0)
        }
        feature::KEEP_ALIVE_TIMER => {
            let kato_ms = subsystem.keep_alive_ms(value, controller.is_discovery);
            controller.kato_ms.store(kato_ms, Ordering::Relaxed);
            Answer::Done(0)
        }
        feature::HOST_BEHAVIOR => Answer::Done(0), // none of the settings applies to this target
        feature::VOLATILE_WRITE_CACHE => Answer::Fail(Status::FEATURE_NOT_CHANGEABLE),
        _ => Answer::Fail(Status::INVALID_FIELD),
    }
}

fn get_features(subsystem: &Subsystem, controller: &Controller, sqe: &Sqe) -> Answer {
    match sqe.low_byte_of_cdw10() {
        feature::NUMBER_OF_QUEUES => {
            Answer::Done(queues_to_wire(controller.granted_queues().max(1)))
        }
        feature::ASYNC_EVENT_CONFIG => Answer::Done(u64::from(controller.events.config())),
        feature::ERROR_RECOVERY if !controller.is_discovery => {
            let is_on = subsystem.is_thin() && !controller.hides_unwritten();
            Answer::Done(if is_on { feature::DULBE.into() } else { 0 })
        }
        feature::KEEP_ALIVE_TIMER => {
            Answer::Done(u64::from(controller.kato_ms.load(Ordering::Relaxed)))
        }
        feature::VOLATILE_WRITE_CACHE => Answer::Done(1),
        _ => Answer::Fail(Status::INVALID_FIELD),
    }
}

/// Dword 0 of Number of Queues: as many submission as completion queues, 0-based.
fn queues_to_wire(num_queues: u16) -> u64 {
    let wire = u64::from(num_queues - 1);
    wire << 16 | wire
}

fn get_log_page(
    subsystem: &Subsystem,
    controller: &Controller,
    sqe: &Sqe,
    room: u32,
    local: SocketAddr,
) -> Answer {
    let len = sqe.log_len_bytes();
    if len != u64::from(room) || len > u64::from(subsystem.max_transfer_bytes) {
        return Answer::Fail(Status::INVALID_SGL_LENGTH);
    }
    let log = match (sqe.low_byte_of_cdw10(), controller.is_discovery) {
        (log_page::DISCOVERY, true) => discovery_log(subsystem, &controller.hostnqn, local),
        (log_page::ERROR, _) => vec![0; 64],
        (log_page::HEALTH, false) => health_log(),
        (log_page::FIRMWARE_SLOT, false) => firmware_log(),
        (log_page::CHANGED_NAMESPACES, false) => {
            controller.events.changed_namespaces(sqe.retains_event()).to_vec()
        }
        (log_page::ANA, false) if subsystem.options.ana.is_some() => {
            ana_log(subsystem, controller, sqe)
        }
        (log_page::COMMAND_EFFECTS, false) => effects_log(subsystem.options.writable),
        _ => return Answer::Fail(Status::INVALID_LOG_PAGE),
    };
    let offset = sqe.log_offset_bytes();
    if !offset.is_multiple_of(4) || offset > log.len() as u64 {
        return Answer::Fail(Status::INVALID_FIELD);
    }
    let rest = &log[offset as usize..];
    Answer::Data(rest[..rest.len().min(len as usize)].to_vec())
}

/// The discovery log page: this service and, for a host that may connect, the subsystem.
fn discovery_log(subsystem: &Subsystem, host: &Nqn, local: SocketAddr) -> Vec<u8> {
    let record = |subtype, nqn| {
        let mut record = DiscoveryRecord::tcp(subtype, nqn, local, ADMIN_QUEUE_ENTRIES);
        if subsystem.options.require_tls {
            record.require_tls();
        }
        record
    };
    let itself = Nqn::discovery();
    // Loaded first: entries that are newer than their counter are read again, older ones would not be.
    let replacements = subsystem.replacements.load(Ordering::Acquire);
    let mut records = vec![record(DiscoveryRecord::SUBTYPE_DISCOVERY, &itself)];
    if subsystem.allows(host) {
        records.push(record(DiscoveryRecord::SUBTYPE_NVM, &subsystem.options.nqn));
    }
    let mut header = DiscoveryLogHeader::new_zeroed();
    header.genctr = U64::new(1 + replacements);
    header.numrec = U64::new(records.len() as u64);
    let mut log = header.as_bytes().to_vec();
    for record in &records {
        log.extend_from_slice(record.as_bytes());
    }
    log
}

/// The ANA log page: one group with all namespaces that the host may see.
fn ana_log(subsystem: &Subsystem, controller: &Controller, sqe: &Sqe) -> Vec<u8> {
    let is_draining = subsystem.draining_since().is_some();
    controller.events.ana_was_read(sqe.retains_event(), is_draining);
    let state = if is_draining { AnaState::Inaccessible } else { subsystem.ana.state() };
    let groups_only = sqe.cdw10.get() & 1 << 8 != 0; // RGO
    let nsids = subsystem.nsids().into_iter().filter(|id| controller.access.has(*id));
    let nsids: Vec<Nsid> = nsids.filter(|_| !groups_only).collect();
    let changes = subsystem.ana.changes() + u64::from(is_draining);
    let mut log = vec![0; 48];
    log[..8].copy_from_slice(&changes.to_le_bytes());
    log[8] = 1; // number of ANA group descriptors
    log[16..20].copy_from_slice(&ANA_GROUP.to_le_bytes());
    log[20..24].copy_from_slice(&(nsids.len() as u32).to_le_bytes());
    log[24..32].copy_from_slice(&changes.to_le_bytes());
    log[32] = state as u8;
    nsids.iter().for_each(|nsid| log.extend_from_slice(&nsid.0.to_le_bytes()));
    log
}

/// SMART / Health Information: reports a healthy device; nothing is measured.
fn health_log() -> Vec<u8> {
    let mut log = vec![0; 512];
    log[1..3].copy_from_slice(&300u16.to_le_bytes()); // composite temperature in kelvin
    (log[3], log[4]) = (100, 10); // available spare and its threshold in percent
    log
}

fn firmware_log() -> Vec<u8> {
    let mut log = vec![0; 512];
    log[0] = 1; // active slot
    log[8..16].copy_from_slice(&ascii_field::<8>(env!("CARGO_PKG_VERSION")));
    log
}

/// Commands supported and effects: 256 dwords for admin commands, 256 for I/O commands.
fn effects_log(writable: bool) -> Vec<u8> {
    const SUPPORTED: u8 = 1;
    const CHANGES_CONTENT: u8 = 1 << 1;
    let mut log = vec![0; 4096];
    let admin = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
    ];
    for opcode in admin {
        log[usize::from(opcode) * 4] = SUPPORTED;
    }
    for opcode in [nvm::FLUSH, nvm::READ] {
        log[1024 + usize::from(opcode) * 4] = SUPPORTED;
    }
    if writable {
        log[1024 + usize::from(nvm::WRITE) * 4] = SUPPORTED | CHANGES_CONTENT;
    }
    log
}

/// The ANA group that holds all namespaces.
const ANA_GROUP: u32 = 1;
/// ANACAP: all five states may be reported.
const ANACAP_ALL: u8 = 0x1F;
/// ANATT: maximum seconds of an ANA state transition; transitions here take no time.
const ANA_TRANSITION_S: u8 = 10;

/// Maximum outstanding Asynchronous Event Requests of a controller.
pub(super) const MAX_ASYNC_EVENTS: u8 = 4;

/// Maximum in-capsule data of an I/O command.
pub(super) const IO_CAPSULE_DATA_BYTES: u32 = 16 << 10;

/// Entries of an admin queue that the discovery log recommends.
const ADMIN_QUEUE_ENTRIES: u16 = 32;
