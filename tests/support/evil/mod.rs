//! A target that misbehaves on request, over a real socket.
//!
//! Left alone it is a plain, correct, slow controller: one thread a connection, one namespace in
//! memory, no digest refused. [`EvilTarget::behave`] says what it does wrong, and how often; counts
//! and kills let a test prove that it did.
//!
//! ```text
//! let target = EvilTarget::start(bytes);           // blocks of 512 bytes
//! target.behave(Evil::ShortSuccess(100), Some(1)); // the next read only
//! let device = dlfs::qpair::open(&target.address(), &options)?;
//! ...
//! target.die(); target.revive();
//! ```

mod connection;

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlfs::nvme::{Address, IdentifyController, Nqn, Status, TcpAddress, Vs};
use dlfs::units::Nsid;
use parking_lot::{Condvar, Mutex};
use zerocopy::FromZeros as _;

use connection::Connection;

/// Where in connecting something goes wrong. In the order in which they come.
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
    /// Reading the header of the discovery log, which is otherwise one of no records.
    DiscoveryLog,
}

impl Step {
    /// Every step that connecting cannot do without.
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

/// What the target does wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum Evil {
    /// Never answers at this step.
    Hang(Step),
    /// Closes the connection at this step.
    Close(Step),
    /// Answers this step with this status.
    Fail(Step, Status),
    /// Sends this in place of ICResp.
    IcResp(Vec<u8>),
    /// Sends these 4,096 bytes in place of the page of this step.
    Page(Step, Vec<u8>),
    /// Sends these bytes in place of the answer to this step.
    Garbage(Step, Vec<u8>),
    /// The discovery log has this many records, and another generation whenever it is read.
    RestlessLog(u64),
    /// Each asynchronous event request is answered at once, with this dword 0.
    Event(u32),
    /// CSTS never says that the controller is ready.
    NeverReady,
    /// CSTS says that the controller has failed.
    FatalStatus,
    /// Read: only so many bytes, and then success by the flag of the data.
    ShortSuccess(u32),
    /// Read: only so many bytes, and then a capsule that says success.
    ShortCapsule(u32),
    /// Read: the data digest is wrong. Nothing happens where none is in force.
    WrongDataDigest,
    /// Read: the header digest is wrong. Nothing happens where none is in force.
    WrongHeaderDigest,
    /// Read: the data come for another command identifier: this one's exclusive-or with the number.
    WrongCid(u16),
    /// Read or write: the completion comes for another command identifier.
    WrongCompletionCid(u16),
    /// Read: everything right, and then a second completion.
    DoubleCompletion,
    /// Read: everything right, and then the data once more.
    DoubleData,
    /// Read: the data begin so far from where they should; negative is u32 arithmetic.
    WrongOffset(u32),
    /// Read: more data than were asked for.
    TooMuchData(u32),
    /// Read: SUCCESS without LAST_PDU.
    SuccessWithoutLast,
    /// Read: an R2T, as if it were a write.
    R2tForRead,
    /// Write: an R2T for the bytes from `offset`, `len` of them, in place of the right one.
    R2t { offset: u32, len: u32 },
    /// Write: the R2T twice in one segment.
    TwoR2ts,
    /// Write: data, as if it were a read.
    DataForWrite,
    /// Read: data of the block so many further.
    WrongLba(u64),
    /// Read: one bit is flipped, and the digest fits to that.
    FlippedBit(usize),
    /// Read or write: this status.
    Status(Status),
    /// Read: this status, where any of these blocks is asked for.
    BadBlocks(Range<u64>, Status),
    /// Read or write: no answer.
    HangIo,
    /// Read or write: all connections are closed, and nobody listens, until [`EvilTarget::revive`].
    Die,
    /// Read or write: this connection is closed.
    CloseIo,
    /// Read: half of the data, then the connection is closed.
    CloseInData,
    /// Read or write: a termination request with this status.
    TermReq(u16),
    /// Read or write: these bytes in place of an answer.
    GarbageIo(Vec<u8>),
    /// Read: the right bytes, one at a time, each in a segment of its own.
    OneByteAtATime,
}

/// A target that misbehaves on request. It ends when it is dropped.
pub struct EvilTarget {
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
    plan: Vec<(Evil, Option<u32>)>,
    bytes: Vec<u8>,
    block_len: u32,
    nguid: [u8; 16],
    streams: Vec<TcpStream>,
    is_alive: bool,
    is_listening: bool,
    is_over: bool,
    /// Reads answered since the start, by starting block, for tests of re-issue.
    reads: HashMap<u64, u32>,
}

impl EvilTarget {
    /// Serves `bytes` as a writable namespace of 512-byte blocks on a free port of loopback.
    pub fn start(bytes: Vec<u8>) -> EvilTarget {
        EvilTarget::with_block_len(bytes, 512)
    }

    pub fn with_block_len(bytes: Vec<u8>, block_len: u32) -> EvilTarget {
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
            reads: HashMap::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            misbehaved: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            commands: AtomicUsize::new(0),
        });
        let target = EvilTarget { shared: shared.clone(), address };
        std::thread::spawn(move || accept(&shared, Some(listener), address));
        target
    }

    pub fn nqn() -> Nqn {
        Nqn::new("nqn.2026-11.io.dlfs:evil").unwrap()
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How a host of this library reaches it.
    pub fn address(&self) -> Address {
        Address::Tcp(TcpAddress {
            traddr: self.address.ip().to_string(),
            trsvcid: self.address.port(),
            subnqn: EvilTarget::nqn(),
            nsid: Some(Nsid(1)),
        })
    }

    /// Does this whenever there is occasion, `times` times or for ever; several plans may run.
    pub fn behave(&self, evil: Evil, times: Option<u32>) {
        self.shared.state.lock().plan.push((evil, times));
    }

    /// Forgets all plans; what hangs goes on hanging until its connection is closed.
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

    /// How often the block was the first of a read.
    pub fn reads_of(&self, slba: u64) -> u32 {
        self.shared.state.lock().reads.get(&slba).copied().unwrap_or(0)
    }

    /// The bytes of the namespace now.
    pub fn bytes(&self) -> Vec<u8> {
        self.shared.state.lock().bytes.clone()
    }

    /// Puts other bytes under it, as if another image were served; `nguid` is the new identity.
    pub fn replace(&self, bytes: Vec<u8>, nguid: [u8; 16]) {
        let mut state = self.shared.state.lock();
        (state.bytes, state.nguid) = (bytes, nguid);
    }

    /// Closes every connection and stops listening: connecting is refused.
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
                self.shared.changed.wait_for(&mut state, Duration::from_secs(20)).timed_out();
            assert!(!timed_out, "the accepting thread does not follow");
        }
    }

    /// Closes every connection; new ones are accepted.
    pub fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for EvilTarget {
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
            let _ = stream.shutdown(Shutdown::Both); // it may be closed already
        }
    }

    /// The first plan that `applies`, taken once.
    fn take(&self, applies: impl Fn(&Evil) -> bool) -> Option<Evil> {
        let mut state = self.state.lock();
        let index = state.plan.iter().position(|(evil, _)| applies(evil))?;
        let (evil, times) = &mut state.plan[index];
        let evil = evil.clone();
        let is_spent = times.as_mut().is_some_and(|times| {
            *times -= 1;
            *times == 0
        });
        if is_spent {
            state.plan.remove(index);
        }
        self.misbehaved.fetch_add(1, Ordering::SeqCst);
        Some(evil)
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
                // Whoever came back before nobody listened any more.
                for stream in state.streams.drain(..) {
                    let _ = stream.shutdown(Shutdown::Both); // it may be closed already
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

/// A right answer to Identify Controller, which tests may spoil.
pub fn identify_controller() -> IdentifyController {
    let mut id = IdentifyController::new_zeroed();
    id.cntrltype = IdentifyController::TYPE_IO;
    id.cntlid.set(CNTLID);
    id.mdts = 5;
    id.ver.set(Vs::V1_4.0);
    id.kas.set(1);
    id.aerl = 3;
    (id.sqes, id.cqes) = (0x66, 0x44);
    id.nn.set(1);
    id.vwc = IdentifyController::VWC_PRESENT;
    id.sgls.set(1 | 1 << 20 | 1 << 21);
    id.ioccsz.set(4 + 4096 / 16);
    id.iorcsz.set(1);
    id.msdbd = 1;
    id.subnqn = EvilTarget::nqn().to_field();
    id
}

/// Every controller has this identifier: it looks at none.
const CNTLID: u16 = 1;
