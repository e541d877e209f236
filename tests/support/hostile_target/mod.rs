//! A target that misbehaves on request, over a real socket.
//!
//! Without requests it is a plain, correct, slow controller: one thread per connection, one
//! namespace in memory, any digests. [`HostileTarget::behave`] requests a misbehaviour, and how
//! often; counters let a test prove that it happened.
//!
//! ```text
//! let target = HostileTarget::start(bytes);           // blocks of 512 bytes
//! target.behave(Misbehaviour::ShortSuccess(100), Some(1)); // the next read only
//! let device = dlfs::qpair::open(&target.address(), &options)?;
//! ...
//! target.die(); target.revive();
//! ```

mod connection;

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlfs::address::{Address, TcpAddress};
use dlfs::nvme::{IdentifyController, Nqn, Status, VERSION_1_4};
use dlfs::units::Nsid;
use parking_lot::{Condvar, Mutex};
use zerocopy::FromZeros as _;

use connection::Connection;

/// The steps of connecting, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    IcResp,
    AdminConnect,
    PropertyGet,
    PropertySet,
    IdentifyController,
    SetNumQueues,
    IoConnect,
    NamespaceList,
    IdentifyNamespace,
    NamespaceDescriptors,
    KeepAlive,
    /// Reading the header of the discovery log, which otherwise has no records.
    DiscoveryLog,
}

impl Step {
    /// Every step that connecting requires.
    pub const ALL: [Step; 9] = [
        Step::IcResp,
        Step::AdminConnect,
        Step::PropertyGet,
        Step::PropertySet,
        Step::IdentifyController,
        Step::SetNumQueues,
        Step::IoConnect,
        Step::NamespaceList,
        Step::IdentifyNamespace,
    ];
}

/// A way in which the target misbehaves.
#[derive(Debug, Clone, PartialEq)]
pub enum Misbehaviour {
    /// Never answers at this step.
    Hang(Step),
    /// Closes the connection at this step.
    Close(Step),
    /// Answers this step with this status.
    Fail(Step, Status),
    /// Sends this instead of ICResp.
    IcResp(Vec<u8>),
    /// Sends these 4,096 bytes instead of the page of this step.
    Page(Step, Vec<u8>),
    /// Sends these bytes instead of the answer to this step.
    Garbage(Step, Vec<u8>),
    /// The discovery log has this many records, and a new generation at every read.
    RestlessLog(u64),
    /// Answers each asynchronous event request at once, with this dword 0.
    Event(u32),
    /// Grants this many I/O queues instead of those asked for.
    Grant(u16),
    /// CSTS never reports ready.
    NeverReady,
    /// CSTS reports a fatal error.
    FatalStatus,
    /// Read: only this many bytes, then success by the flag of the data.
    ShortSuccess(u32),
    /// Read: only this many bytes, then a capsule with success.
    ShortCapsule(u32),
    /// Read: the data digest is wrong. No effect without data digests.
    WrongDataDigest,
    /// Read: the header digest is wrong. No effect without header digests.
    WrongHeaderDigest,
    /// Read: the data have another command identifier: the right one XOR this number.
    WrongCid(u16),
    /// Read or write: the completion has another command identifier.
    WrongCompletionCid(u16),
    /// Read: all correct, then a second completion.
    DoubleCompletion,
    /// Read: all correct, then the data again.
    DoubleData,
    /// Read: the data offset is wrong by this much; negative by wrapping.
    WrongOffset(u32),
    /// Read: more data than requested.
    TooMuchData(u32),
    /// Read: SUCCESS without LAST_PDU.
    SuccessWithoutLast,
    /// Read: an R2T, as for a write.
    R2tForRead,
    /// Write: an R2T for `len` bytes from `offset`, instead of the right one.
    R2t { offset: u32, len: u32 },
    /// Write: the R2T twice in one segment.
    TwoR2ts,
    /// Write: data, as for a read.
    DataForWrite,
    /// Read or write: this status.
    Status(Status),
    /// Read: this status if the read contains any of these blocks.
    BadBlocks(Range<u64>, Status),
    /// Read or write: no answer.
    HangIo,
    /// Read or write: closes all connections and stops listening until [`HostileTarget::revive`].
    Die,
    /// Read or write: closes this connection.
    CloseIo,
    /// Read: half of the data, then closes the connection.
    CloseInData,
    /// Read or write: a termination request with this status.
    TermReq(u16),
    /// Read or write: these bytes instead of an answer.
    GarbageIo(Vec<u8>),
    /// Read: the correct bytes, each in a segment of its own.
    OneByteAtATime,
}

/// A target that misbehaves on request. Dropping it ends it.
pub struct HostileTarget {
    shared: Arc<Shared>,
    address: SocketAddr,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    misbehaved: AtomicUsize,
    accepted: AtomicUsize,
    commands: AtomicUsize,
}

struct State {
    plan: Vec<(Misbehaviour, Option<u32>)>,
    bytes: Vec<u8>,
    block_len: u32,
    nguid: [u8; 16],
    streams: Vec<TcpStream>,
    is_alive: bool,
    is_listening: bool,
    is_over: bool,
}

impl HostileTarget {
    /// Serves `bytes` as a writable namespace of 512-byte blocks on a free port of loopback.
    pub fn start(bytes: Vec<u8>) -> HostileTarget {
        HostileTarget::with_block_len(bytes, 512)
    }

    pub fn with_block_len(bytes: Vec<u8>, block_len: u32) -> HostileTarget {
        assert!(bytes.len().is_multiple_of(block_len as usize), "whole blocks");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            plan: Vec::new(),
            bytes,
            block_len,
            nguid: [0xE7; 16],
            streams: Vec::new(),
            is_alive: true,
            is_listening: true,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            misbehaved: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            commands: AtomicUsize::new(0),
        });
        let target = HostileTarget { shared: shared.clone(), address };
        std::thread::spawn(move || accept(&shared, Some(listener), address));
        target
    }

    pub fn nqn() -> Nqn {
        Nqn::new("nqn.2026-11.io.dlfs:hostile").unwrap()
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Its address for a host of this library.
    pub fn address(&self) -> Address {
        Address::Tcp(TcpAddress {
            traddr: self.address.ip().to_string(),
            trsvcid: self.address.port(),
            subnqn: HostileTarget::nqn(),
            nsid: Some(Nsid(1)),
        })
    }

    /// Requests a misbehaviour at the next `times` occasions, or at all; several requests may be
    /// active.
    pub fn behave(&self, misbehaviour: Misbehaviour, times: Option<u32>) {
        self.shared.state.lock().plan.push((misbehaviour, times));
    }

    /// Cancels all requests; what hangs keeps hanging until its connection closes.
    pub fn be_good(&self) {
        self.shared.state.lock().plan.clear();
    }

    /// How often it has misbehaved.
    pub fn misbehaved(&self) -> usize {
        self.shared.misbehaved.load(Ordering::SeqCst)
    }

    /// TCP connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// I/O commands received so far.
    pub fn io_commands(&self) -> usize {
        self.shared.commands.load(Ordering::SeqCst)
    }

    /// The current contents of the namespace.
    pub fn bytes(&self) -> Vec<u8> {
        self.shared.state.lock().bytes.clone()
    }

    /// Replaces the contents, as if another image were served; `nguid` is the new identity.
    pub fn replace(&self, bytes: Vec<u8>, nguid: [u8; 16]) {
        let mut state = self.shared.state.lock();
        (state.bytes, state.nguid) = (bytes, nguid);
    }

    /// Closes all connections and stops listening: connecting is refused.
    pub fn die(&self) {
        self.shared.die();
        self.wait_until(|state| !state.is_listening);
    }

    /// Listens again on the same port.
    pub fn revive(&self) {
        self.shared.state.lock().is_alive = true;
        self.shared.changed.notify_all();
        self.wait_until(|state| state.is_listening);
    }

    fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
        let mut state = self.shared.state.lock();
        while !is_so(&state) {
            let timed_out =
                self.shared.changed.wait_for(&mut state, Duration::from_secs(60)).timed_out();
            assert!(!timed_out, "the accepting thread does not follow");
        }
    }

    /// Closes all connections; new ones are accepted.
    pub fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for HostileTarget {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.die();
    }
}

impl Shared {
    fn die(&self) {
        self.state.lock().is_alive = false;
        self.changed.notify_all();
        self.cut();
    }

    fn cut(&self) {
        for stream in self.state.lock().streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both); // may fail: it may be closed already
        }
    }

    /// Takes the first request that `applies`, once.
    fn take(&self, applies: impl Fn(&Misbehaviour) -> bool) -> Option<Misbehaviour> {
        let mut state = self.state.lock();
        let index = state.plan.iter().position(|(misbehaviour, _)| applies(misbehaviour))?;
        let (misbehaviour, times) = &mut state.plan[index];
        let misbehaviour = misbehaviour.clone();
        let is_spent = times.as_mut().is_some_and(|times| {
            *times -= 1;
            *times == 0
        });
        if is_spent {
            state.plan.remove(index);
        }
        self.misbehaved.fetch_add(1, Ordering::SeqCst);
        Some(misbehaviour)
    }
}

/// Accepts while the target is alive, and waits while it is dead.
fn accept(shared: &Arc<Shared>, mut listener: Option<TcpListener>, address: SocketAddr) {
    loop {
        {
            let mut state = shared.state.lock();
            while !state.is_alive && !state.is_over {
                listener = None;
                state.is_listening = false;
                // Hosts that reconnected before the listener was closed.
                for stream in state.streams.drain(..) {
                    let _ = stream.shutdown(Shutdown::Both); // may fail: it may be closed already
                }
                shared.changed.notify_all();
                shared.changed.wait(&mut state);
            }
            if state.is_over {
                return;
            }
        }
        if listener.is_none() {
            listener = TcpListener::bind(address).ok();
            shared.state.lock().is_listening = listener.is_some();
            shared.changed.notify_all();
        }
        let Some(open) = &listener else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        open.set_nonblocking(true).unwrap();
        match open.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                shared.state.lock().streams.push(stream.try_clone().unwrap());
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let _ended = Connection::new(stream, shared).run();
                });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A correct answer to Identify Controller, for tests to modify.
pub fn identify_controller() -> IdentifyController {
    let mut id = IdentifyController::new_zeroed();
    id.cntrltype = IdentifyController::TYPE_IO;
    id.cntlid.set(CNTLID);
    id.mdts = 5;
    id.ver.set(VERSION_1_4);
    id.kas.set(1);
    id.aerl = 3;
    (id.sqes, id.cqes) = (0x66, 0x44);
    id.nn.set(1);
    id.vwc = IdentifyController::VWC_PRESENT;
    id.sgls.set(1 | 1 << 20 | 1 << 21);
    id.ioccsz.set(4 + 4096 / 16);
    id.iorcsz.set(1);
    id.msdbd = 1;
    id.subnqn = HostileTarget::nqn().to_field();
    id
}

/// The identifier of every controller; requests are not checked for it.
const CNTLID: u16 = 1;
