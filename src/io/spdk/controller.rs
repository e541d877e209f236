//! A controller: connecting to it, its admin queue, Identify data, and detaching.

use std::ffi::{CString, c_char, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use spdk_sys as sys;

use super::keys::Key;
use super::log;
use super::queue::{IoQueue, Payload, Stop};
use dlfs_base::error::{Error, ErrorKind, Result, invalid};
use dlfs_base::units::Nsid;

/// The address of a controller as SPDK expects it: numeric addresses, no host names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportId {
    /// `PCIE`, `TCP`, `RDMA` or `VFIOUSER`.
    pub trtype: &'static str,
    /// True if `traddr` is an IPv6 address.
    pub is_ipv6: bool,
    /// Transport address.
    pub traddr: String,
    /// Port; empty if the transport has none.
    pub trsvcid: String,
    /// Subsystem NQN; empty if the address implies it.
    pub subnqn: String,
}

/// Options of connecting to a controller.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// Host NQN.
    pub hostnqn: String,
    /// Host identifier.
    pub hostid: [u8; 16],
    /// Request header digests (TCP).
    pub hdr_digest: bool,
    /// Request data digests (TCP).
    pub data_digest: bool,
    /// Number of I/O queues to request.
    pub num_io_queues: u32,
    /// Entries of an I/O queue.
    pub queue_entries: u32,
    /// Keep Alive Timeout; zero: none.
    pub keep_alive_tmo: Duration,
    /// The timeout of each step of connecting.
    pub step_timeout: Duration,
    /// Key of the host for DH-HMAC-CHAP.
    pub dhchap_key: Option<Arc<Key>>,
    /// Key of the controller for DH-HMAC-CHAP.
    pub dhchap_ctrl_key: Option<Arc<Key>>,
    /// TLS PSK.
    pub tls_key: Option<Arc<Key>>,
}

/// A connection attempt.
pub struct Connecting {
    /// `None` once SPDK has freed it.
    probe: Option<NonNull<sys::spdk_nvme_probe_ctx>>,
    request: NonNull<Request>,
    /// Kept until the controller holds them.
    _keys: Vec<Arc<Key>>,
}

/// The argument of SPDK's callback. The options are the first field, because their address is the callback's
/// context.
#[repr(C)]
struct Request {
    options: sys::spdk_nvme_ctrlr_opts,
    /// The controller, once it is connected; else null.
    attached: *mut sys::spdk_nvme_ctrlr,
}

// SAFETY: SPDK lets any thread continue a probe, one at a time; `&mut self` ensures that.
unsafe impl Send for Connecting {}

impl Connecting {
    /// Starts to connect; [`Connecting::poll`] continues. The environment must have been started.
    ///
    /// # Errors
    /// `Refused`, with SPDK's log message: nothing answers there, or the transport is not compiled
    /// in.
    pub fn start(target: &TransportId, options: &ControllerOptions) -> Result<Connecting> {
        let trid = transport_id(target)?;
        let request =
            Box::new(Request { options: controller_options(options), attached: null_mut() });
        let request = NonNull::from(Box::leak(request));
        log::forget();
        // SAFETY: `request` begins with the options, and `drop` frees it only after the probe's end; the callback
        // gets its address back. `trid` is copied.
        let probe =
            unsafe { sys::spdk_nvme_connect_async(&trid, request.as_ptr().cast(), Some(attached)) };
        let keys = [&options.dhchap_key, &options.dhchap_ctrl_key, &options.tls_key];
        let keys = keys.into_iter().flatten().cloned().collect();
        let connecting = Connecting { probe: NonNull::new(probe), request, _keys: keys };
        if connecting.probe.is_none() {
            return Err(connecting.failed());
        }
        Ok(connecting)
    }

    /// Continues to connect; `None`: not connected yet.
    ///
    /// # Errors
    /// As [`Connecting::start`].
    pub fn poll(&mut self) -> Result<Option<Arc<Controller>>> {
        let probe = self.probe.expect("not polled after its end");
        // SAFETY: the probe is live: SPDK frees it when it answers anything but EAGAIN, and then it is
        // forgotten here.
        let code = unsafe { sys::spdk_nvme_probe_poll_async(probe.as_ptr()) };
        if code == -libc::EAGAIN {
            return Ok(None);
        }
        self.probe = None;
        // SAFETY: the request is ours; the callback does not use it any more.
        let attached = unsafe { self.request.as_ref().attached };
        NonNull::new(attached).map(|raw| Some(Controller::new(raw))).ok_or_else(|| self.failed())
    }

    /// The error of an attempt that has failed.
    fn failed(&self) -> Error {
        Error::new(ErrorKind::Refused, format!("SPDK cannot connect{}", log::reason()))
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if self.probe.is_none() {
            // SAFETY: leaked from a box in `start`, freed once; SPDK is done with it.
            drop(unsafe { Box::from_raw(self.request.as_ptr()) });
        }
        // A probe that has not ended still writes to the request. Its owner should have polled it to its end;
        // otherwise the memory is leaked.
    }
}

/// SPDK's callback once a controller is attached.
unsafe extern "C" fn attached(
    context: *mut c_void,
    _trid: *const sys::spdk_nvme_transport_id,
    controller: *mut sys::spdk_nvme_ctrlr,
    _options: *const sys::spdk_nvme_ctrlr_opts,
) {
    // SAFETY: the context is the request's address, see `Connecting::start`, and nothing else accesses it
    // while the probe is polled.
    unsafe { (*context.cast::<Request>()).attached = controller };
}

/// Identify data of a controller and of one namespace.
#[derive(Debug, Clone)]
pub struct Identified {
    /// Identify Controller, 4,096 bytes.
    pub controller: Vec<u8>,
    /// Identify Namespace, 4,096 bytes.
    pub namespace: Vec<u8>,
    /// The namespace.
    pub nsid: Nsid,
    /// UUID of the namespace; zero if it has none.
    pub uuid: [u8; 16],
    /// The most data of one command, in bytes.
    pub max_transfer_bytes: u32,
    /// Number of I/O queues granted.
    pub num_io_queues: u32,
    /// Entries granted for an I/O queue.
    pub queue_entries: u32,
}

/// A connected controller, until [`Controller::shut`].
pub struct Controller {
    /// SPDK's controller; `None` once it was shut down. Locked while a call uses it.
    raw: Mutex<Option<NonNull<sys::spdk_nvme_ctrlr>>>,
    /// The I/O queues, which end before the controller is detached.
    queues: Mutex<Vec<Weak<dyn Stop>>>,
    /// In a box, since SPDK keeps the address for the callback.
    events: Box<Events>,
}

#[derive(Default)]
struct Events {
    /// The number of asynchronous events, which the callback counts.
    count: AtomicU64,
    /// Set once the controller was shut down or abandoned.
    is_over: AtomicBool,
}

// SAFETY: SPDK's controller has its own lock for the functions that several threads call here (admin queue,
// creating and freeing queues); our lock protects the pointer.
unsafe impl Send for Controller {}
// SAFETY: as for `Send`: everything that `&self` reaches is behind a lock, SPDK's or ours.
unsafe impl Sync for Controller {}

impl Controller {
    fn new(raw: NonNull<sys::spdk_nvme_ctrlr>) -> Arc<Controller> {
        let controller = Arc::new(Controller {
            raw: Mutex::new(Some(raw)),
            queues: Mutex::new(Vec::new()),
            events: Box::default(),
        });
        let context = std::ptr::from_ref(&*controller.events).cast_mut().cast();
        // SAFETY: the box lives as long as this struct, whose drop ends all queues and detaches the controller. A
        // controller that does not detach is not polled any more, so it calls back no more.
        unsafe { sys::spdk_nvme_ctrlr_register_aer_callback(raw.as_ptr(), Some(event), context) };
        controller
    }

    fn raw(&self) -> MutexGuard<'_, Option<NonNull<sys::spdk_nvme_ctrlr>>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the admin queue: keep-alive and events. Must be called a few times per second.
    ///
    /// # Errors
    /// `Disconnected`: the controller is lost.
    pub fn poll_admin(&self) -> Result<()> {
        let raw = self.raw();
        let lost = |why: String| Err(Error::new(ErrorKind::Disconnected, why));
        let Some(controller) = *raw else { return lost("the controller was abandoned".into()) };
        // SAFETY: attached until `shut` takes the pointer, under the lock that is held here.
        let code = unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(controller.as_ptr()) };
        if code < 0 {
            return lost("the controller is lost".into());
        }
        Ok(())
    }

    /// Number of asynchronous events so far.
    pub fn num_events(&self) -> u64 {
        self.events.count.load(Ordering::Relaxed)
    }

    /// Returns whether the controller was shut down or abandoned.
    pub fn is_over(&self) -> bool {
        self.events.is_over.load(Ordering::Acquire)
    }

    /// Abandons the controller: it creates no new queues, and its queues end without a command to the
    /// controller, which might never answer. [`Controller::shut`] must still be called.
    pub fn fail(&self) {
        self.events.is_over.store(true, Ordering::Release);
        if let Some(controller) = *self.raw() {
            // SAFETY: attached until `shut` takes the pointer, under the lock that is held here.
            unsafe { sys::spdk_nvme_ctrlr_fail(controller.as_ptr()) };
        }
    }

    /// Identify data of the controller and of namespace `nsid`, or of its first active one.
    ///
    /// # Errors
    /// `NotFound`: the namespace does not exist. `Disconnected`: the controller was shut down.
    pub fn identify(&self, nsid: Option<Nsid>) -> Result<Identified> {
        let raw = self.raw();
        let shut = || Error::new(ErrorKind::Disconnected, "the controller was abandoned");
        let controller = raw.ok_or_else(shut)?.as_ptr();
        // SAFETY: attached while the lock is held; the functions read data that SPDK keeps of the controller.
        unsafe {
            let first = sys::spdk_nvme_ctrlr_get_first_active_ns(controller);
            let nsid = nsid.map_or(first, |nsid| nsid.0);
            let ns = sys::spdk_nvme_ctrlr_get_ns(controller, nsid);
            if nsid == 0 || ns.is_null() || !sys::spdk_nvme_ctrlr_is_active_ns(controller, nsid) {
                let message = match nsid {
                    0 => "the subsystem has no namespace".to_owned(),
                    nsid => format!("there is no namespace {nsid}"),
                };
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            let bytes = |data: *const u8| std::slice::from_raw_parts(data, 4096).to_vec();
            let uuid = sys::spdk_nvme_ns_get_uuid(ns);
            let options = &*sys::spdk_nvme_ctrlr_get_opts(controller);
            Ok(Identified {
                controller: bytes(sys::spdk_nvme_ctrlr_get_data(controller).cast()),
                namespace: bytes(sys::spdk_nvme_ns_get_data(ns).cast()),
                nsid: Nsid(nsid),
                uuid: if uuid.is_null() { [0; 16] } else { *uuid.cast::<[u8; 16]>() },
                max_transfer_bytes: sys::spdk_nvme_ctrlr_get_max_xfer_size(controller),
                num_io_queues: options.num_io_queues,
                queue_entries: options.io_queue_size,
            })
        }
    }

    /// Creates an I/O queue on namespace `nsid` with at most `depth` commands; it is not connected
    /// yet.
    ///
    /// # Errors
    /// `Disconnected`: the controller was shut down or abandoned. `Refused`: it grants no more queues.
    pub fn io_queue<T: Payload + Send + 'static>(
        &self,
        nsid: Nsid,
        depth: u16,
        is_fabric: bool,
    ) -> Result<Arc<IoQueue<T>>> {
        let raw = self.raw();
        let given_up = || Error::new(ErrorKind::Disconnected, "the controller was abandoned");
        let controller = raw.filter(|_| !self.is_over()).ok_or_else(given_up)?;
        log::forget();
        // SAFETY: attached while the lock is held, and the queue enters the list that `shut` goes through
        // before the lock is released.
        let queue = unsafe { IoQueue::new(controller, nsid, depth, is_fabric) };
        let queue = queue.ok_or_else(|| {
            let message = format!("the controller grants no I/O queue{}", log::reason());
            Error::new(ErrorKind::Refused, message)
        })?;
        let queue = Arc::new(queue);
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        let weak: Weak<IoQueue<T>> = Arc::downgrade(&queue);
        queues.push(weak);
        Ok(queue)
    }

    /// Detaches the controller, after ending all its queues, including queues that others hold. `is_lost`: the
    /// controller does not answer, so no command is sent. A second call does nothing.
    ///
    /// Takes milliseconds, or up to some seconds if the controller does not answer.
    pub fn shut(&self, is_lost: bool) {
        self.events.is_over.store(true, Ordering::Release);
        let Some(controller) = self.raw().take() else { return };
        if is_lost {
            // SAFETY: attached until it is detached below, which only the thread that took the pointer does.
            unsafe { sys::spdk_nvme_ctrlr_fail(controller.as_ptr()) };
        }
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues.drain(..).filter_map(|queue| queue.upgrade()) {
            queue.stop();
        }
        drop(queues);
        detach(controller);
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if !super::env::has_forked() {
            self.shut(false);
        }
    }
}

/// Detaches a controller without queues; gives up after `DETACH_LIMIT`.
fn detach(controller: NonNull<sys::spdk_nvme_ctrlr>) {
    let mut context = null_mut();
    // SAFETY: attached, and it has no queue any more.
    let code = unsafe { sys::spdk_nvme_detach_async(controller.as_ptr(), &mut context) };
    if code != 0 || context.is_null() {
        return;
    }
    let deadline = Instant::now() + DETACH_LIMIT;
    // SAFETY: the context is live while the answer is EAGAIN.
    while unsafe { sys::spdk_nvme_detach_poll_async(context) } == -libc::EAGAIN {
        if Instant::now() > deadline {
            tracing::warn!("a controller does not detach; it stays until the process ends");
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

unsafe extern "C" fn event(context: *mut c_void, _completion: *const sys::spdk_nvme_cpl) {
    // SAFETY: the address of `Controller::events`, which is live as long as this is called: see `Controller::new`.
    unsafe { (*context.cast::<Events>()).count.fetch_add(1, Ordering::Relaxed) };
}

/// SPDK's form of an address.
fn transport_id(target: &TransportId) -> Result<sys::spdk_nvme_transport_id> {
    // SAFETY: integers and arrays of them, for which zero is a value.
    let mut trid: sys::spdk_nvme_transport_id = unsafe { std::mem::zeroed() };
    let name = CString::new(target.trtype).expect("a name without NUL");
    // SAFETY: a struct of ours and a NUL-terminated name.
    unsafe { sys::spdk_nvme_transport_id_populate_trstring(&mut trid, name.as_ptr()) };
    use sys::spdk_nvme_transport_type as trtype;
    trid.trtype = match target.trtype {
        "PCIE" => trtype::SPDK_NVME_TRANSPORT_PCIE,
        "TCP" => trtype::SPDK_NVME_TRANSPORT_TCP,
        "RDMA" => trtype::SPDK_NVME_TRANSPORT_RDMA,
        _ => trtype::SPDK_NVME_TRANSPORT_VFIOUSER,
    };
    trid.adrfam = if target.is_ipv6 {
        sys::spdk_nvmf_adrfam::SPDK_NVMF_ADRFAM_IPV6
    } else {
        sys::spdk_nvmf_adrfam::SPDK_NVMF_ADRFAM_IPV4
    };
    fill(&mut trid.traddr, &target.traddr)?;
    fill(&mut trid.trsvcid, &target.trsvcid)?;
    fill(&mut trid.subnqn, &target.subnqn)?;
    Ok(trid)
}

/// Copies `text` into a NUL-terminated field.
fn fill(field: &mut [c_char], text: &str) -> Result<()> {
    if text.len() >= field.len() || text.contains('\0') {
        return Err(invalid(format!("'{}' is longer than SPDK allows", text.escape_debug())));
    }
    field.fill(0);
    field.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    Ok(())
}

/// SPDK's form of the options; what they leave out keeps SPDK's defaults.
fn controller_options(wanted: &ControllerOptions) -> sys::spdk_nvme_ctrlr_opts {
    // SAFETY: integers, booleans and pointers, for which zero is a value.
    let mut options: sys::spdk_nvme_ctrlr_opts = unsafe { std::mem::zeroed() };
    let size = size_of::<sys::spdk_nvme_ctrlr_opts>();
    options.opts_size = size;
    // SAFETY: a struct of ours of the given size.
    unsafe { sys::spdk_nvme_ctrlr_get_default_ctrlr_opts(&mut options, size) };
    options.num_io_queues = wanted.num_io_queues;
    options.io_queue_size = wanted.queue_entries;
    // A read larger than one command takes one request per command, and one for the whole.
    options.io_queue_requests = wanted.queue_entries * 2;
    options.keep_alive_timeout_ms = wanted.keep_alive_tmo.as_millis().min(u32::MAX.into()) as u32;
    options.extended_host_id = wanted.hostid;
    options.header_digest = wanted.hdr_digest;
    options.data_digest = wanted.data_digest;
    options.disable_error_logging = true; // each I/O reports its error
    let step_ms = wanted.step_timeout.as_millis().clamp(1, 600_000) as u32;
    options.admin_timeout_ms = step_ms;
    options.fabrics_connect_timeout_us = u64::from(step_ms) * 1000;
    options.transport_ack_timeout = (32 - step_ms.leading_zeros()) as u8; // 2^n ms without an ACK
    let key = |key: &Option<Arc<Key>>| key.as_ref().map_or(null_mut(), |key| key.as_ptr());
    options.dhchap_key = key(&wanted.dhchap_key);
    options.dhchap_ctrlr_key = key(&wanted.dhchap_ctrl_key);
    options.tls_psk = key(&wanted.tls_key);
    let nqn = fill(&mut options.hostnqn, &wanted.hostnqn);
    debug_assert!(nqn.is_ok(), "an NQN has at most 223 bytes");
    options
}

/// The longest wait for a controller to detach. SPDK stops waiting for its shutdown after 10 s, or after a timeout that
/// the controller states.
const DETACH_LIMIT: Duration = Duration::from_secs(12);
