//! A server whose messages are damaged: connecting ends with an error or a device, in time and without a panic.

#[path = "../../../tests/support/random.rs"]
#[allow(dead_code, unreachable_pub)] // other tests use the rest
mod random;

use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use dlfs_base::buf::FileMemory;
use dlfs_pcie::vfio_user::VfioUser;
use dlfs_pcie::{Fault, Registers as _};
use random::Random;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

#[test]
fn a_server_that_accepts_nobody_is_waited_for_no_longer_than_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cntrl");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap(); // as libvfio-user does
    let _waits = UnixStream::connect(&path).unwrap();
    let limit = Duration::from_millis(50);
    let fault = VfioUser::connect(&path, limit).err().expect("its queue is full"); // would hang
    assert!(matches!(fault, Fault::TimedOut { .. }), "{fault}");
}

#[test]
fn damaged_messages_of_a_server_are_refused_and_right_ones_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cntrl");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let mut random = Random::new(5);
        for (stream, nth) in listener.incoming().zip(0u32..) {
            // The connection ends when the client leaves it, or at a message that cannot be answered.
            answer(stream.unwrap(), &mut random, !nth.is_multiple_of(4)).unwrap_or(());
        }
    });
    let mut connected = 0;
    let mut refused = 0;
    for nth in 0..CASES {
        let is_damaged = !nth.is_multiple_of(4);
        let limit = Duration::from_millis(if is_damaged { 30 } else { 60_000 });
        match VfioUser::connect(folder.path(), limit) {
            Ok(device) => {
                connected += 1;
                assert!(is_damaged || device.read32(0).unwrap() == 0x0102_0304);
                assert!(is_damaged || matches!(device.read32(1 << 30), Err(Fault::Protocol(_))));
                // An offset that a damaged message has let through is the server's matter.
                device.write32(0x1000, 7).unwrap_or(());
            }
            Err(fault) => {
                refused += 1;
                assert!(is_damaged, "{fault}");
                assert!(!fault.to_string().is_empty());
            }
        }
    }
    println!("{connected} connected, {refused} refused");
    assert!(connected >= CASES / 4 && refused > CASES / 10);
}

/// Answers as a device does, with damage.
fn answer(mut stream: UnixStream, random: &mut Random, damages: bool) -> std::io::Result<()> {
    let registers = FileMemory::new(8192).unwrap();
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let size = u32::from_le_bytes(head[4..8].try_into().unwrap()) as usize;
        let mut body = vec![0; size - 16];
        stream.read_exact(&mut body)?;
        let words =
            |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
        let more = match head[2] {
            1 => words(&[1 << 16, 0x7D7B]),
            5 => words(&[64, 15, 0, 32, 8192, 0, 0, 0, 1 << 16 | 1, 0, 1, 0, 4096, 0, 4096, 0]),
            9 => [body, words(&[0x0102_0304])].concat(),
            _ => body,
        };
        let mut reply = [&head[..], &more].concat();
        let len = reply.len() as u32;
        reply[4..8].copy_from_slice(&len.to_le_bytes());
        reply[8] = 1;
        if damages && random.one_in(2) {
            for _ in 0..=random.below(3) {
                let at = random.below(u64::from(len)) as usize;
                reply[at] = [0, 1, 0x7F, 0xFF][random.below(4) as usize];
            }
            if random.one_in(3) {
                reply.truncate(random.below(u64::from(len)) as usize);
            }
        }
        if head[2] != 5 || reply.is_empty() {
            stream.write_all(&reply)?;
            continue;
        }
        let files = [registers.file()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        rustix::net::sendmsg(&stream, &[IoSlice::new(&reply)], &mut control, SendFlags::NOSIGNAL)?;
    }
}

const CASES: u32 = 400;
