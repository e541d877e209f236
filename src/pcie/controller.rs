//! A controller from its reset to its shutdown: registers, the admin queue, Identify, and the list of I/O queues.
//!
//! Each call but [`Controller::abort`] blocks until it is done: each step of a reset at most for the time that the
//! controller states, an admin command at most for [`Settings::limit`]. Waits use a [`Clock`], so tests decide how time
//! passes and when the device acts. After an admin command has timed out, no other is sent until
//! [`Controller::restart`]: its completion and its data may still arrive.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use zerocopy::FromZeros as _;

use crate::area::Area;
use crate::fault::Fault;
use crate::queue::{Ended, MAX_SPAN_BYTES, PAGE_LEN, Queue, Span, area_bytes};
use crate::registers::{Clock, Registers};
use dlfs_base::units::Nsid;
use dlfs_nvme::nvme::identify::{IDENTIFY_LEN_BYTES, decode_namespace_list};
use dlfs_nvme::nvme::sqe::{admin, cns};
use dlfs_nvme::nvme::{
    Cap, Cc, Csts, IdentifyController, IdentifyError, IdentifyNamespace, Property, Sqe, Status,
};

/// Settings that the user of a controller chooses.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// I/O queues to ask for; the controller may grant fewer.
    pub queues: u16,
    /// Entries of an I/O queue, 2 to 256; the controller may allow fewer.
    pub entries: u16,
    /// The time limit of an admin command.
    pub limit: Duration,
}

/// A controller that is enabled, unless a call has failed or has shut it down.
pub struct Controller {
    registers: Arc<dyn Registers>,
    clock: Arc<dyn Clock>,
    /// The settings, with no more entries than the controller allows.
    settings: Settings,
    /// The controller's capabilities.
    cap: Cap,
    admin: Queue<()>,
    /// The memory of Identify data.
    page: Area,
    /// The memory of all I/O queues, one behind the other.
    io_areas: Area,
    /// Identify data of the controller.
    pub identity: IdentifyController,
    /// For each I/O queue, whether it is in use.
    used: Vec<bool>,
    /// Set once an admin command has timed out: its completion and its data may still arrive.
    is_broken: bool,
}

impl Controller {
    /// The bytes of memory for the queues and Identify data of a controller with these settings.
    pub fn area_bytes(settings: &Settings) -> usize {
        let io = usize::from(settings.queues) * area_bytes(settings.entries);
        area_bytes(ADMIN_ENTRIES) + PAGE_LEN as usize + io
    }

    /// Resets the controller, enables it, identifies it and asks for queues. `area` has [`Controller::area_bytes`]
    /// that the device may access.
    ///
    /// # Errors
    /// The controller is gone, does not answer in time, answers with an error, or is of a kind that this driver does
    /// not know.
    pub fn start(
        registers: Arc<dyn Registers>,
        clock: Arc<dyn Clock>,
        area: &Area,
        settings: Settings,
    ) -> Result<Controller, Fault> {
        let cap = Cap(registers.read64(Property::Cap.offset())?);
        check_capabilities(cap)?;
        let entries = cap.max_queue_entries().min(u32::from(settings.entries)).max(2) as u16;
        let admin_len = area_bytes(ADMIN_ENTRIES);
        let io_start = admin_len + PAGE_LEN as usize;
        let admin_area = area.part(0, admin_len);
        let mut controller = Controller {
            registers,
            clock,
            settings: Settings { entries, ..settings },
            cap,
            admin: Queue::new(0, ADMIN_ENTRIES, &admin_area, cap.doorbell_stride_bytes(), false),
            page: area.part(admin_len, PAGE_LEN as usize),
            io_areas: area.part(io_start, area.len_bytes() - io_start),
            identity: IdentifyController::new_zeroed(),
            used: Vec::new(),
            is_broken: false,
        };
        let granted = controller.bring_up()?;
        controller.used = vec![false; usize::from(granted)];
        Ok(controller)
    }

    /// Resets a controller that has failed and enables it again. No I/O queue exists afterwards: see
    /// [`Controller::attach`]. From the moment that this succeeds, the device accesses no memory of earlier commands.
    ///
    /// # Errors
    /// As [`Controller::start`].
    pub fn restart(&mut self) -> Result<(), Fault> {
        let granted = self.bring_up()?;
        if usize::from(granted) < self.used.len() {
            return Err(Fault::Unsupported("after a reset the controller grants fewer I/O queues"));
        }
        Ok(())
    }

    /// Resets the controller, enables and identifies it; returns the number of I/O queues that it grants.
    fn bring_up(&mut self) -> Result<u16, Fault> {
        self.disable()?;
        self.is_broken = false;
        drop(self.admin.drain());
        self.admin.rewind();
        let (commands, completions) = self.admin.addresses();
        let last = u32::from(ADMIN_ENTRIES - 1);
        self.registers.write32(AQA, last << 16 | last)?;
        self.registers.write64(ASQ, commands)?;
        self.registers.write64(ACQ, completions)?;
        self.registers.write32(Property::Cc.offset(), Cc::ENABLE.0)?;
        self.await_status("becoming ready", Csts::is_ready)?;
        let page = self.identify("Identify of the controller", cns::CONTROLLER, Nsid(0))?;
        self.identity = IdentifyController::decode_of_memory(&page)?;
        self.ask_for_queues()
    }

    /// Resets the controller; afterwards it accesses no memory.
    fn disable(&mut self) -> Result<(), Fault> {
        let cc = self.registers.read32(Property::Cc.offset())?;
        if Cc(cc).is_enabled() {
            self.registers.write32(Property::Cc.offset(), cc & !1)?; // clears CC.EN
        }
        self.await_status("becoming disabled", |csts| !csts.is_ready())
    }

    /// Waits until the status register fits, at most for the time that the controller states for a reset.
    fn await_status(&self, step: &'static str, fits: impl Fn(Csts) -> bool) -> Result<(), Fault> {
        let limit =
            Duration::from_millis(u64::from(self.cap.timeout_ms().max(LEAST_READY_LIMIT_MS)));
        let began = self.clock.now();
        loop {
            let csts = self.registers.read32(Property::Csts.offset())?;
            if csts == u32::MAX {
                return Err(Fault::Gone);
            }
            if fits(Csts(csts)) {
                return Ok(());
            }
            if self.clock.now().saturating_duration_since(began) >= limit {
                return Err(Fault::TimedOut { step, limit });
            }
            self.clock.nap();
        }
    }

    /// Asks for I/O queues; returns the number of those granted that this driver uses.
    fn ask_for_queues(&mut self) -> Result<u16, Fault> {
        let wanted = self.settings.queues.max(1);
        let sqe = Sqe::set_num_queues(0, wanted);
        let granted = self.run("asking for I/O queues", sqe, None)?;
        // Both halves, of submission and of completion queues, count from 0.
        let least = (granted & 0xFFFF).min(granted >> 16) + 1;
        Ok(least.min(u32::from(wanted)) as u16)
    }

    /// The number of I/O queues that may exist at a time.
    pub fn num_queues(&self) -> usize {
        self.used.len()
    }

    /// The most data of a command, a multiple of 4,096.
    pub fn max_transfer_bytes(&self) -> u32 {
        let stated = self.identity.max_transfer_bytes(self.cap.mpsmin());
        stated.map_or(MAX_SPAN_BYTES, |most| most.min(MAX_SPAN_BYTES))
    }

    /// The entries of an I/O queue.
    pub fn entries(&self) -> u16 {
        self.settings.entries
    }

    /// Identifies the namespace; `None`: the first active one.
    ///
    /// # Errors
    /// There is no such namespace, or it has properties that are not supported; the controller has failed.
    pub fn namespace(&mut self, nsid: Option<Nsid>) -> Result<(Nsid, IdentifyNamespace), Fault> {
        let nsid = match nsid {
            Some(nsid) => nsid,
            None => {
                let step = "Identify of active namespaces";
                let list = self.identify(step, cns::ACTIVE_NAMESPACES, Nsid(0))?;
                *decode_namespace_list(&list)?.first().ok_or(Fault::NoNamespace)?
            }
        };
        let page = self.identify("Identify of the namespace", cns::NAMESPACE, nsid);
        let page = page.map_err(|fault| match fault {
            Fault::Status { status, .. } if status.is(Status::INVALID_NAMESPACE) => {
                Fault::NoNamespace
            }
            fault => fault,
        })?;
        match IdentifyNamespace::decode(&page) {
            Err(IdentifyError::Inactive) => Err(Fault::NoNamespace),
            decoded => Ok((nsid, decoded?)),
        }
    }

    /// Identify data of the controller, with NSID 0, and of each of its first 1,024 active namespaces.
    ///
    /// # Errors
    /// The controller refuses or has failed.
    pub fn identify_all(&mut self) -> Result<Vec<(Nsid, [u8; IDENTIFY_LEN_BYTES])>, Fault> {
        let page = self.identify("Identify of the controller", cns::CONTROLLER, Nsid(0))?;
        let mut pages = vec![(Nsid(0), page)];
        let list =
            self.identify("Identify of active namespaces", cns::ACTIVE_NAMESPACES, Nsid(0))?;
        for nsid in decode_namespace_list(&list)? {
            let page = self.identify("Identify of the namespace", cns::NAMESPACE, nsid)?;
            pages.push((nsid, page));
        }
        Ok(pages)
    }

    /// Runs an Identify command; returns its data.
    fn identify(
        &mut self,
        step: &'static str,
        cns: u8,
        nsid: Nsid,
    ) -> Result<[u8; IDENTIFY_LEN_BYTES], Fault> {
        let span = Span { address: self.page.address(), len: IDENTIFY_LEN_BYTES as u32 };
        self.run(step, Sqe::identify(0, cns, nsid), Some(span))?;
        let mut page = [0; IDENTIFY_LEN_BYTES];
        self.page.read(&mut page);
        Ok(page)
    }

    /// Creates an I/O queue.
    ///
    /// # Errors
    /// All are in use; the controller refuses or has failed.
    pub fn create_queue<T>(&mut self) -> Result<Queue<T>, Fault> {
        let free = self.used.iter().position(|used| !used);
        let index = free.ok_or(Fault::NoQueue(self.used.len() as u16))?;
        let entries = self.settings.entries;
        let len = area_bytes(entries);
        let area = self.io_areas.part(index * len, len);
        let stride = self.cap.doorbell_stride_bytes();
        let has_sgls = self.identity.has_sgls();
        let mut queue = Queue::new(index as u16 + 1, entries, &area, stride, has_sgls);
        self.attach(&mut queue)?;
        self.used[index] = true;
        Ok(queue)
    }

    /// Creates a queue in the controller, again after each [`Controller::restart`]. It must have no commands.
    ///
    /// # Errors
    /// The controller refuses or has failed.
    pub fn attach<T>(&mut self, queue: &mut Queue<T>) -> Result<(), Fault> {
        queue.rewind();
        let (commands, completions) = queue.addresses();
        let qid = u32::from(queue.qid());
        let size_and_qid = u32::from(queue.entries() - 1) << 16 | qid;
        let mut create = |step, opcode, address, attributes: u32| {
            let mut sqe = Sqe::new(opcode, 0, Nsid(0));
            sqe.cdw10 = size_and_qid.into();
            sqe.cdw11 = attributes.into();
            self.run(step, sqe, Some(Span { address, len: 0 }))
        };
        create("creating a completion queue", admin::CREATE_CQ, completions, CONTIGUOUS)?;
        create("creating a submission queue", admin::CREATE_SQ, commands, qid << 16 | CONTIGUOUS)?;
        Ok(())
    }

    /// Frees a queue, and deletes it in the controller if it still `exists` there; a restart removes it. When this
    /// succeeds, the device accesses no memory of the queue's commands any more.
    ///
    /// # Errors
    /// The controller refuses or has failed; the queue stays in use.
    pub fn delete_queue<T>(&mut self, queue: &Queue<T>, exists: bool) -> Result<(), Fault> {
        let steps = [
            ("deleting a submission queue", admin::DELETE_SQ),
            ("deleting a completion queue", admin::DELETE_CQ),
        ];
        for (step, opcode) in steps.into_iter().filter(|_| exists) {
            let mut sqe = Sqe::new(opcode, 0, Nsid(0));
            sqe.cdw10 = u32::from(queue.qid()).into();
            self.run(step, sqe, None)?;
        }
        self.used[usize::from(queue.qid()) - 1] = false;
        Ok(())
    }

    /// Asks the controller to abort a command; the answer, if any, is the command's completion. Does nothing while
    /// another abort is outstanding, since a controller may take no more.
    ///
    /// # Errors
    /// Those of the bus.
    pub fn abort(&mut self, qid: u16, cid: u16) -> Result<(), Fault> {
        self.admin.poll(&*self.registers, usize::MAX, |(), _| {})?;
        if self.is_broken || self.admin.outstanding() > 0 {
            return Ok(());
        }
        let mut sqe = Sqe::new(admin::ABORT, 0, Nsid(0));
        sqe.cdw10 = (u32::from(cid) << 16 | u32::from(qid)).into();
        self.admin.push(self.clock.now(), sqe, None, ());
        self.admin.ring(&*self.registers)
    }

    /// Checks that the controller is still there and ready.
    ///
    /// # Errors
    /// It is gone, has failed, or is not ready.
    pub fn check(&self) -> Result<(), Fault> {
        match self.registers.read32(Property::Csts.offset())? {
            u32::MAX => Err(Fault::Gone),
            csts if Csts(csts).is_fatal() || !Csts(csts).is_ready() => Err(Fault::Failed(csts)),
            _ => Ok(()),
        }
    }

    /// Shuts the controller down, so that it writes its caches to the medium.
    ///
    /// # Errors
    /// It is gone, has failed, or does not shut down in time.
    pub fn shut_down(&mut self) -> Result<(), Fault> {
        self.check()?;
        self.registers.write32(Property::Cc.offset(), Cc::SHUTDOWN.0)?;
        self.await_status("shutting down", Csts::is_shut_down)
    }

    /// Runs an admin command to its end; returns dword 0 of the completion. Fails at once if an earlier command has
    /// timed out.
    fn run(&mut self, step: &'static str, sqe: Sqe, data: Option<Span>) -> Result<u32, Fault> {
        let limit = self.settings.limit;
        let late = Fault::TimedOut { step, limit };
        if self.is_broken || !self.admin.has_room() {
            return Err(late);
        }
        let began = self.clock.now();
        let cid = self.admin.push(began, sqe, data, ());
        self.admin.ring(&*self.registers)?;
        loop {
            let mut answer: Option<Ended> = None;
            self.admin.poll(&*self.registers, usize::MAX, |(), ended| {
                if ended.cid == cid {
                    answer = Some(ended);
                }
            })?;
            match answer {
                Some(Ended { status, result, .. }) if status.is_success() => return Ok(result),
                Some(Ended { status, .. }) => return Err(Fault::Status { step, status }),
                None => {}
            }
            if self.clock.now().saturating_duration_since(began) >= limit {
                self.is_broken = true;
                return Err(late);
            }
            self.clock.nap();
        }
    }
}

/// Refuses a controller that is gone, or of a kind that this driver does not know.
fn check_capabilities(cap: Cap) -> Result<(), Fault> {
    if cap.0 == u64::MAX {
        return Err(Fault::Gone);
    }
    if !cap.has_nvm_command_set() {
        return Err(Fault::Unsupported("the controller lacks the NVM command set (CAP.CSS)"));
    }
    if cap.mpsmin() != 0 {
        return Err(Fault::Unsupported("the controller has no memory pages of 4 KiB (CAP.MPSMIN)"));
    }
    Ok(())
}

// Registers of PCIe controllers: the lengths of both admin queues, 0-based, and their addresses.
const AQA: u32 = 0x24;
const ASQ: u32 = 0x28;
const ACQ: u32 = 0x30;

/// The least time, in ms, that a controller has for a reset: the unit of CAP.TO.
const LEAST_READY_LIMIT_MS: u32 = 500;

/// The entries of each admin queue.
const ADMIN_ENTRIES: u16 = 32;

/// PC: the queue is contiguous. For a completion queue, no interrupts.
const CONTIGUOUS: u32 = 1;
