//! A vfio-user server in a thread, with a model controller behind it: real messages, real shared memory.

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use dlfs::address::Address;
use dlfs::buf::FileMemory;

use super::nvme_model::{HostMemory, Model};

/// The server; it ends, with its connection, when it is dropped.
pub struct VfioUserServer {
    folder: tempfile::TempDir,
    pub model: Arc<Mutex<Model>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Abilities in which servers differ.
#[derive(Debug, Clone, Copy)]
pub struct Abilities {
    /// Doorbells may be mapped; else they are messages.
    pub maps_doorbells: bool,
    /// Pieces of memory that it takes.
    pub max_regions: usize,
}

impl VfioUserServer {
    pub fn start(model: Model, abilities: Abilities) -> VfioUserServer {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("cntrl")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let model = Arc::new(Mutex::new(model));
        let stop = Arc::new(AtomicBool::new(false));
        let run = {
            let model = Arc::clone(&model);
            let stop = Arc::clone(&stop);
            move || serve(&listener, &model, abilities, &stop)
        };
        let thread = Some(std::thread::Builder::new().name("model".into()).spawn(run).unwrap());
        VfioUserServer { folder, model, stop, thread }
    }

    pub fn address(&self) -> Address {
        format!("trtype:VFIOUSER traddr:{}", self.folder.path().display()).parse().unwrap()
    }

    /// Ends it, as when its process is killed.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for VfioUserServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server has panicked");
        }
    }
}

fn serve(listener: &UnixListener, model: &Mutex<Model>, abilities: Abilities, stop: &AtomicBool) {
    let mut client: Option<Client> = None;
    while !stop.load(Ordering::Relaxed) {
        let mut model = model.lock().unwrap();
        let turned = match &mut client {
            Some(client) => client.turn(&mut model),
            None => match listener.accept() {
                Ok((stream, _)) => {
                    client = Some(Client::new(stream, abilities));
                    Ok(true)
                }
                Err(_) => Ok(false),
            },
        };
        drop(model);
        match turned {
            Ok(true) => {}
            Ok(false) => std::thread::sleep(Duration::from_micros(20)),
            Err(_) => client = None,
        }
    }
}

/// A connection.
struct Client {
    stream: UnixStream,
    abilities: Abilities,
    /// The registers' file: only its doorbells are used.
    registers: FileMemory,
    regions: Regions,
    pci_command: u16,
    is_new: bool,
}

struct Regions(Vec<(u64, FileMemory)>);

impl Regions {
    fn words(&self, address: u64, len: usize) -> &[AtomicU32] {
        let found = self.0.iter().find_map(|(start, memory)| {
            let at = address.checked_sub(*start)? as usize;
            (at + len <= memory.len()).then(|| &memory.as_ref()[at / 4..][..len / 4])
        });
        found.unwrap_or_else(|| panic!("the device has no memory at {address:X}h"))
    }
}

impl HostMemory for Regions {
    fn read(&self, address: u64, bytes: &mut [u8]) {
        for (word, bytes) in self.words(address, bytes.len()).iter().zip(bytes.chunks_mut(4)) {
            let word = u32::from_le(word.load(Ordering::Acquire));
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        for (word, bytes) in self.words(address, bytes.len()).iter().zip(bytes.chunks(4)) {
            let value = u32::from_le_bytes(bytes.try_into().unwrap());
            word.store(value.to_le(), Ordering::Release);
        }
    }
}

impl Client {
    fn new(stream: UnixStream, abilities: Abilities) -> Client {
        stream.set_nonblocking(false).unwrap();
        let registers = FileMemory::new(REGISTERS_LEN as usize).unwrap();
        let regions = Regions(Vec::new());
        Client { stream, abilities, registers, regions, pci_command: 0, is_new: true }
    }

    /// Answers a message if there is one, and lets the controller work; returns whether there was anything to do.
    fn turn(&mut self, model: &mut Model) -> std::io::Result<bool> {
        if std::mem::take(&mut self.is_new) {
            model.reset();
        }
        let answered = self.message(model)?;
        let before = model.qids();
        for qid in before.iter().filter(|_| self.abilities.maps_doorbells) {
            let tail = self.doorbell(*qid).load(Ordering::Acquire);
            model.ring_doorbell(*qid, tail);
        }
        assert!(before.is_empty() || self.pci_command & 4 != 0, "it may not access memory");
        let count = model.work(&self.regions);
        // Doorbells of a queue begin at 0 when it is created again.
        let after = model.qids();
        for gone in (0..64).filter(|qid| !after.contains(qid)) {
            self.doorbell(gone).store(0, Ordering::Release);
        }
        Ok(answered || count > 0)
    }

    fn doorbell(&self, qid: u16) -> &AtomicU32 {
        &self.registers.as_ref()[DOORBELLS as usize / 4 + 2 * usize::from(qid)]
    }

    fn message(&mut self, model: &mut Model) -> std::io::Result<bool> {
        let Some((head, mut files)) = self.head()? else { return Ok(false) };
        let size = u32_at(&head, 4) as usize;
        let mut body = vec![0; size - 16];
        self.stream.read_exact(&mut body)?;
        let command = u32_at(&head, 0) >> 16;
        let mut passed = None;
        let answer = match command {
            1 => Ok([&[0, 0, 1, 0][..], b"{}\0"].concat()),
            2 if self.regions.0.len() >= self.abilities.max_regions => Err(28),
            2 => {
                let len = u64_at(&body, 24) as usize;
                let memory = FileMemory::open(files.remove(0), u64_at(&body, 8), len).unwrap();
                self.regions.0.push((u64_at(&body, 16), memory));
                Ok(Vec::new())
            }
            3 => {
                let before = self.regions.0.len();
                self.regions.0.retain(|(address, _)| *address != u64_at(&body, 8));
                assert_eq!(self.regions.0.len(), before - 1, "memory that was not there");
                Ok(body.clone())
            }
            5 => {
                passed = self.abilities.maps_doorbells.then(|| self.registers.file());
                Ok(self.region_info(u32_at(&body, 8)))
            }
            9 => {
                let mut answer = body.clone();
                let value = match (u32_at(&body, 8), u32_at(&body, 0)) {
                    (0, offset) => model.read_register(offset),
                    (7, 4) => u32::from(self.pci_command),
                    _ => 0,
                };
                answer.extend(&value.to_le_bytes()[..u32_at(&body, 12) as usize]);
                Ok(answer)
            }
            10 => {
                match (u32_at(&body, 8), u32_at(&body, 0)) {
                    (0, offset) => model.write_register(offset, u32_at(&body, 16)),
                    (7, 4) => self.pci_command = u16::from_le_bytes([body[16], body[17]]),
                    other => panic!("a write to {other:?}"),
                }
                body.truncate(16);
                Ok(body)
            }
            _ => Err(22),
        };
        self.reply(&head, answer, passed.map(|file| file.try_clone_to_owned().unwrap()))?;
        Ok(true)
    }

    fn region_info(&self, index: u32) -> Vec<u8> {
        let (len, flags) = match (index, self.abilities.maps_doorbells) {
            (0, true) => (REGISTERS_LEN, 15),
            (0, false) => (REGISTERS_LEN, 3),
            _ => (256, 3),
        };
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut info: Vec<u8> = words(&[64, flags, index, 32, len, 0, 0, 0]);
        // The capability of sparse mappings, with one area: the doorbells.
        let more: Vec<u8> = words(&[1 << 16 | 1, 0, 1, 0, DOORBELLS, 0, 4096, 0]);
        if flags & 8 != 0 {
            info.extend(more);
        }
        info
    }

    /// The next header, with its files, if one has come.
    fn head(&mut self) -> std::io::Result<Option<([u8; 16], Vec<OwnedFd>)>> {
        let mut head = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let count = match rustix::net::recvmsg(&self.stream, &mut parts, &mut control, flags) {
            Ok(found) => found.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(found) = message {
                files.extend(found);
            }
        }
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.stream.read_exact(&mut head[count..])?;
        Ok(Some((head, files)))
    }

    fn reply(
        &mut self,
        head: &[u8; 16],
        answer: Result<Vec<u8>, u32>,
        file: Option<OwnedFd>,
    ) -> std::io::Result<()> {
        let mut reply = head.to_vec();
        let flags: u32 = if answer.is_ok() { 1 } else { 1 | 1 << 5 };
        reply[8..12].copy_from_slice(&flags.to_le_bytes());
        reply[12..16].copy_from_slice(&answer.as_ref().err().unwrap_or(&0).to_le_bytes());
        reply.extend(answer.unwrap_or_default());
        let size = reply.len() as u32;
        reply[4..8].copy_from_slice(&size.to_le_bytes());
        let Some(file) = file else { return self.stream.write_all(&reply) };
        let files = [std::os::fd::AsFd::as_fd(&file)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let parts = [IoSlice::new(&reply)];
        let sent = rustix::net::sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL)?;
        assert_eq!(sent, reply.len());
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

const REGISTERS_LEN: u32 = 8192;
const DOORBELLS: u32 = 4096;
