//! A device that another process of this machine emulates, over a Unix socket: vfio-user, version 0.1.
//!
//! The client sends one message at a time and waits for its reply. Memory is passed by its file descriptor, so no byte
//! of data takes the socket. Registers are read and written by messages, except where the device gives its registers'
//! file, as for doorbells: those are mapped, and cost no system call. Interrupts are not asked for: queues are polled.
//!
//! The device's process can truncate the registers' file after it was mapped, and the next doorbell then ends this
//! process with SIGBUS. A seal would rule that out, but servers such as SPDK's target pass files that cannot be sealed,
//! and doorbells by `pwrite` would cost a system call each. So that process is trusted with this, as with our memory;
//! our own files are sealed.
//!
//! | bytes  | field      | meaning                                             |
//! |--------|------------|-----------------------------------------------------|
//! | 0..2   | `id`       | chosen by the sender, repeated in the reply         |
//! | 2..4   | `command`  | one of the constants below                          |
//! | 4..8   | `size`     | bytes of the message with this header               |
//! | 8..12  | `flags`    | 3:0 type (0 command, 1 reply), bit 5 error          |
//! | 12..16 | `error`    | error number of a reply with the error flag         |

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::fault::Fault;
use crate::memory::DmaRegion;
use crate::registers::{Bus, Registers};
use crate::vfio::{CONFIGURATION, MAPPABLE, PCI_COMMAND, PCI_MASTER, REGISTERS};
use dlfs_base::buf::FileMemory;
use dlfs_base::process::{mark_ours, receive_files, send_files};

/// The connection to a device.
pub struct VfioUser {
    link: Mutex<Link>,
    /// The length of the registers in bytes.
    registers_len: u64,
    /// The registers that are mapped.
    mapped: Vec<MappedRegisters>,
}

/// The socket. After a failure nothing else is sent: a late reply would be taken for another message's.
struct Link {
    stream: UnixStream,
    /// The number of the last message.
    id: u16,
    is_broken: bool,
    /// The timeout of each read and write of the socket.
    limit: Duration,
}

/// Mapped registers, from the offset `start` on.
struct MappedRegisters {
    start: u64,
    memory: FileMemory,
}

/// The reply to a message: its bytes behind the header, and its file descriptors.
struct Reply {
    body: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl VfioUser {
    /// Connects to the device at `path`: its socket, or the folder where SPDK keeps the socket. `limit` is the timeout
    /// of the connect, and of each read and write of the socket.
    ///
    /// # Errors
    /// Nobody listens there, speaks another protocol, has no registers, or does not answer in time.
    pub fn connect(path: &Path, limit: Duration) -> Result<VfioUser, Fault> {
        let step = "connecting to the device's socket";
        let failed = |source| Fault::Io { step, source };
        let socket = if path.is_dir() { path.join("cntrl") } else { path.to_owned() };
        let stream = connect_within(&socket, limit).map_err(|source| match source.kind() {
            ErrorKind::WouldBlock => Fault::TimedOut { step, limit },
            _ => failed(source),
        })?;
        mark_ours(&stream);
        stream.set_read_timeout(Some(limit)).map_err(failed)?;
        stream.set_write_timeout(Some(limit)).map_err(failed)?;
        let mut link = Link { stream, id: 0, is_broken: false, limit };
        link.negotiate_version()?;
        let (registers_len, mapped) = link.registers()?;
        link.enable_bus_master()?;
        Ok(VfioUser { link: Mutex::new(link), registers_len, mapped })
    }

    /// The mapped memory that has the register at `offset`, and the index of the register's word there. `None`: it is
    /// accessed by messages.
    fn mapped_word(&self, offset: u32) -> Option<(&FileMemory, usize)> {
        self.mapped.iter().find_map(|MappedRegisters { start, memory }| {
            let at = u64::from(offset).checked_sub(*start)? as usize;
            (at + 4 <= memory.len()).then_some((memory, at / 4))
        })
    }

    /// Refuses a register beyond the device's.
    fn check_offset(&self, offset: u32) -> Result<(), Fault> {
        if u64::from(offset) + 4 > self.registers_len {
            return Err(Fault::Protocol("the device has fewer registers than it needs"));
        }
        Ok(())
    }
}

impl Registers for VfioUser {
    fn read32(&self, offset: u32) -> Result<u32, Fault> {
        self.check_offset(offset)?;
        if let Some((memory, word)) = self.mapped_word(offset) {
            return Ok(u32::from_le(memory.as_ref()[word].load(Ordering::Acquire)));
        }
        self.link.lock().read32(REGISTERS, offset)
    }

    fn write32(&self, offset: u32, value: u32) -> Result<(), Fault> {
        self.check_offset(offset)?;
        if let Some((memory, word)) = self.mapped_word(offset) {
            memory.as_ref()[word].store(value.to_le(), Ordering::Release);
            return Ok(());
        }
        self.link.lock().write(REGISTERS, offset, &value.to_le_bytes())
    }
}

impl Bus for VfioUser {
    fn map(&self, memory: &DmaRegion) -> Result<(), Fault> {
        let access = READ | WRITE;
        let body = message(&[MAP_LEN, access], &[0, memory.address(), memory.len() as u64]);
        let mut link = self.link.lock();
        link.ask("sharing memory with the device", DMA_MAP, &body, &[memory.file()]).map(drop)
    }

    fn unmap(&self, memory: &DmaRegion) -> Result<(), Fault> {
        let body = message(&[UNMAP_LEN, 0], &[memory.address(), memory.len() as u64]);
        let mut link = self.link.lock();
        link.ask("taking memory from the device", DMA_UNMAP, &body, &[]).map(drop)
    }
}

/// Connects to the socket at `path`. A server that has a client may accept no other, and its queue holds few: the
/// connect then waits for at most `limit`, and fails with `WouldBlock`.
fn connect_within(path: &Path, limit: Duration) -> std::io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket.into())
}

impl Link {
    /// Negotiates the version. The other side's capabilities do not matter: no message of ours is large.
    fn negotiate_version(&mut self) -> Result<(), Fault> {
        let mut body = vec![0, 0, 1, 0]; // major 0, minor 1
        body.extend(CAPABILITIES);
        let reply = self.ask("agreeing on a version of vfio-user", VERSION, &body, &[])?;
        match reply.body[..] {
            [0, 0, _, _, ..] => Ok(()),
            _ => Err(Fault::Protocol("the device's process speaks another version of vfio-user")),
        }
    }

    /// The length of the registers, and those that the device lets others map.
    fn registers(&mut self) -> Result<(u64, Vec<MappedRegisters>), Fault> {
        let step = "asking for the registers' place";
        let body = message(&[REGION_INFO_MOST, 0, REGISTERS, 0], &[0, 0]);
        let Reply { body, mut files } = self.ask(step, DEVICE_GET_REGION_INFO, &body, &[])?;
        let info = Fields(&body);
        let flags = info.u32(4)?;
        let len = info.u64(16)?;
        let file_offset = info.u64(24)?;
        if len == 0 || flags & (READ | WRITE) != READ | WRITE {
            return Err(Fault::Protocol("the device has no registers (BAR 0)"));
        }
        let mut areas = Vec::new();
        if flags & MAPPABLE != 0 && files.len() == 1 {
            areas =
                if flags & HAS_CAPABILITIES != 0 { sparse_areas(&info)? } else { vec![(0, len)] };
        }
        let file = files.pop();
        let mut mapped = Vec::new();
        for (start, len) in areas {
            let Some(Ok(file)) = file.as_ref().map(OwnedFd::try_clone) else { break };
            let offset = file_offset.saturating_add(start);
            // Registers that cannot be mapped are accessed by messages.
            if let Ok(memory) = FileMemory::open(file, offset, len as usize) {
                mapped.push(MappedRegisters { start, memory });
            }
        }
        Ok((len, mapped))
    }

    /// Lets the device access memory, and switches its interrupt line off, by its PCI command register.
    fn enable_bus_master(&mut self) -> Result<(), Fault> {
        let command = self.read32(CONFIGURATION, PCI_COMMAND)? as u16 | PCI_MASTER;
        self.write(CONFIGURATION, PCI_COMMAND, &command.to_le_bytes())
    }

    /// Reads 4 bytes of a region.
    fn read32(&mut self, region: u32, offset: u32) -> Result<u32, Fault> {
        let body = access(region, offset, 4);
        let reply = self.ask("reading a register", REGION_READ, &body, &[])?;
        Fields(&reply.body).u32(16)
    }

    /// Writes bytes of a region.
    fn write(&mut self, region: u32, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        let mut body = access(region, offset, bytes.len() as u32);
        body.extend(bytes);
        self.ask("writing a register", REGION_WRITE, &body, &[]).map(drop)
    }

    /// Sends a message with file descriptors, and waits for its reply.
    fn ask(
        &mut self,
        step: &'static str,
        command: u16,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<Reply, Fault> {
        if self.is_broken {
            let source = ErrorKind::NotConnected.into();
            return Err(Fault::Io { step, source });
        }
        let exchanged = self.send(command, body, files).and_then(|()| self.receive());
        let limit = self.limit;
        let answered = exchanged.map_err(|source| match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::TimedOut { step, limit },
            _ => Fault::Io { step, source },
        });
        let answered = answered.and_then(|(head, reply)| {
            let head = Fields(&head);
            let flags = head.u32(8)?;
            if head.u32(0)? as u16 != self.id || flags & 0xF != 1 {
                return Err(Fault::Protocol("the device's process answers something else"));
            }
            let errno = head.u32(12)?;
            if flags & ERROR != 0 { Err(Fault::Refused { step, errno }) } else { Ok(reply) }
        });
        self.is_broken =
            answered.as_ref().is_err_and(|fault| !matches!(fault, Fault::Refused { .. }));
        answered
    }

    /// Sends a message with a new number.
    fn send(&mut self, command: u16, body: &[u8], files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        self.id = self.id.wrapping_add(1);
        let size = HEADER_LEN + body.len();
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(command.to_le_bytes());
        bytes.extend((size as u32).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        let sent = send_files(&self.stream, &bytes, files)?;
        self.stream.write_all(&bytes[sent..])
    }

    /// Receives a header with its file descriptors, and what follows it.
    fn receive(&mut self) -> std::io::Result<([u8; HEADER_LEN], Reply)> {
        let mut head = [0; HEADER_LEN];
        let mut files = Vec::new();
        let count = receive_files(&self.stream, &mut head, &mut files)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.stream.read_exact(&mut head[count..])?;
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let len = size.checked_sub(HEADER_LEN).filter(|len| *len <= MOST_BODY);
        let Some(len) = len else { return Err(ErrorKind::InvalidData.into()) };
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body)?;
        Ok((head, Reply { body, files }))
    }
}

/// Parts of a region that may be mapped, each with its start and length: those of the capability for sparse mappings.
fn sparse_areas(info: &Fields<'_>) -> Result<Vec<(u64, u64)>, Fault> {
    // Capabilities are a list: each has an identifier, and the offset of the next one.
    let mut at = info.u32(12)? as usize;
    for _ in 0..MOST_CAPABILITIES {
        if at == 0 {
            break;
        }
        if info.u32(at)? & 0xFFFF != SPARSE_MAP {
            at = info.u32(at + 4)? as usize;
            continue;
        }
        let count = info.u32(at + 8)?.min(MOST_AREAS) as usize;
        let area = |nth: usize| -> Result<(u64, u64), Fault> {
            let area_at = at + 16 + nth * 16;
            Ok((info.u64(area_at)?, info.u64(area_at + 8)?))
        };
        return (0..count).map(area).collect();
    }
    Ok(Vec::new())
}

/// Little-endian fields of a reply.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// The 4 bytes at the offset `at`.
    fn u32(&self, at: usize) -> Result<u32, Fault> {
        let bytes = at.checked_add(4).and_then(|end| self.0.get(at..end));
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or(Fault::Protocol("a reply of the device's process is too short"))?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// The 8 bytes at the offset `at`.
    fn u64(&self, at: usize) -> Result<u64, Fault> {
        Ok(u64::from(self.u32(at.saturating_add(4))?) << 32 | u64::from(self.u32(at)?))
    }
}

/// A body of words, then of double words.
fn message(words: &[u32], doubles: &[u64]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    words.chain(doubles.iter().flat_map(|double| double.to_le_bytes())).collect()
}

/// The body that names `count` bytes of a region.
fn access(region: u32, offset: u32, count: u32) -> Vec<u8> {
    message(&[offset, 0, region, count], &[])
}

// Commands.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const DEVICE_GET_REGION_INFO: u16 = 5;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;

/// Length of a message's header.
const HEADER_LEN: usize = 16;

// Lengths of the bodies of DMA_MAP and DMA_UNMAP, which state them.
const MAP_LEN: u32 = 32;
const UNMAP_LEN: u32 = 24;

// Flags of regions and of memory.
const READ: u32 = 1;
const WRITE: u32 = 1 << 1;
const HAS_CAPABILITIES: u32 = 1 << 3;

/// The flag of a reply that refuses.
const ERROR: u32 = 1 << 5;

/// The capability that names the parts of a region to map.
const SPARSE_MAP: u32 = 1;

/// Our capabilities: file descriptors of a message, and bytes of a register access.
const CAPABILITIES: &[u8] =
    b"{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576}}\0";
/// The most bytes of a region's description that are asked for.
const REGION_INFO_MOST: u32 = 1024;

/// The longest body that is received.
const MOST_BODY: usize = 64 << 10;

// Capabilities of a region, and areas of one, that are read; the device might list them without end.
const MOST_CAPABILITIES: usize = 16;
const MOST_AREAS: u32 = 16;
