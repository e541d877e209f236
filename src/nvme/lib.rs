//! NVMe, NVMe/TCP and in-band authentication as pure code: bytes and times in, bytes and events out.
//!
//! - [`nvme`]: commands, completions, Identify structures, structures of Fabrics, properties and NQNs, with byte
//!   tables.
//! - [`tcp`]: a host's or controller's connection as a state machine: PDUs, digests, data transfer.
//! - [`auth`]: DH-HMAC-CHAP for both sides, and the derivation of TLS PSKs.
//!
//! It is not a driver: it has no socket, no thread and no clock, so it runs in any loop, in a simulation
//! and in a fuzzer. `dlfs-io` drives the host's side with sockets, and `dlfs-target` the controller's.
//!
//! Start with [`tcp::host::Connection`]. This example connects to a target's admin queue:
//!
//! ```no_run
//! use std::io::{IoSlice, Read as _, Write as _};
//! use std::net::TcpStream;
//! use std::time::{Duration, Instant};
//!
//! use dlfs_nvme::nvme::{ConnectData, Nqn, Sqe};
//! use dlfs_nvme::tcp::Digests;
//! use dlfs_nvme::tcp::host::{Connection, Event, HostOptions, Transfer};
//! use zerocopy::IntoBytes as _;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = HostOptions {
//!     digests: Digests::default(),
//!     may_decline: true,
//!     max_outstanding: 31,
//!     ic_timeout: Duration::from_secs(5),
//!     io_timeout: Duration::from_secs(5),
//!     least_progress_bytes: 0,
//! };
//! let subsystem = Nqn::new("nqn.2026-11.example:train")?;
//! let host = Nqn::new("nqn.2026-11.example:node7")?;
//! let data = ConnectData::new([7; 16], ConnectData::CNTLID_DYNAMIC, &subsystem, &host);
//!
//! let mut socket = TcpStream::connect("192.168.1.9:4420")?;
//! let mut connection = Connection::<Vec<u8>>::new(Instant::now(), &options);
//! loop {
//!     while connection.wants_transmit() {
//!         let mut slices = [IoSlice::new(&[]); 4];
//!         let used = connection.poll_transmit(&mut slices);
//!         let sent = socket.write_vectored(&slices[..used])?;
//!         connection.transmitted(Instant::now(), sent);
//!     }
//!     while let Some(event) = connection.poll_event() {
//!         match event {
//!             Event::Initialised => {
//!                 let connect = Sqe::connect(0, 0, 31, 0);
//!                 let payload = data.as_bytes().to_vec();
//!                 let now = Instant::now();
//!                 let taken = connection.submit(now, connect, Transfer::Out, false, payload);
//!                 taken.map_err(|_| "the queue has no room")?;
//!             }
//!             Event::Done { result, .. } => {
//!                 assert!(result?.status().is_success());
//!                 return Ok(());
//!             }
//!         }
//!     }
//!     if !connection.wants_transmit() {
//!         let mut received = [0; 4096];
//!         let len = socket.read(&mut received)?;
//!         connection.handle_received(Instant::now(), &received[..len])?;
//!     }
//! }
//! # }
//! ```

pub mod auth;
pub mod nvme;
pub mod tcp;
