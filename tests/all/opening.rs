//! Opening an image on several remote namespaces: all connect in parallel.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::import_support::{options, paths, tree};
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{self, Onto};
use dlfs::nvme::Nqn;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

const TARGETS: usize = 6;

/// Holds the n-th connection to each target until every target has an n-th one.
#[derive(Default)]
struct Gate {
    come: Mutex<BTreeMap<usize, usize>>,
    more: Condvar,
}

impl Gate {
    fn pass(&self, number: usize) {
        let mut come = self.come.lock().unwrap();
        *come.entry(number).or_default() += 1;
        self.more.notify_all();
        // A host that opened them in sequence would time out long before.
        let limit = Duration::from_secs(60);
        let _ = self.more.wait_timeout_while(come, limit, |come| come[&number] < TARGETS).unwrap();
    }
}

/// A relay to `target` that holds connections at the gate.
fn gated(target: SocketAddr, gate: &Arc<Gate>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let gate = Arc::clone(gate);
    std::thread::spawn(move || {
        // Only the connections for opening: the directory's own go to one target.
        for (number, host) in listener.incoming().map_while(Result::ok).enumerate() {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || {
                if number < 2 {
                    gate.pass(number);
                }
                let Ok(target) = TcpStream::connect(target) else { return };
                let from = host.try_clone().unwrap();
                let to = target.try_clone().unwrap();
                std::thread::spawn(move || splice(from, to));
                splice(target, host);
            });
        }
    });
    here
}

fn splice(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The other side may have closed it already.
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn namespaces_of_an_image_are_opened_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 60, 9_000, 1);
    let disk = |_| Arc::new(MemNamespace::new(4 << 20, 4096).unwrap()) as Arc<dyn Device>;
    let disks: Vec<Arc<dyn Device>> = (0..TARGETS).map(disk).collect();
    import::import_onto(&paths(dir.path()), &disks, &options(Onto::Empty), &mut ()).unwrap();
    let nqn = Nqn::new("nqn.2026-11.io.dlfs:opening").unwrap();
    let serve = |disk: &Arc<dyn Device>| {
        Target::bind(TargetOptions::new(nqn.clone()), vec![Arc::clone(disk)]).unwrap()
    };
    let targets: Vec<Target> = disks.iter().map(serve).collect();
    let gate = Arc::new(Gate::default());
    let address = |target: &Target| {
        let Address::Tcp(mut address) = target.address(Nsid(1)) else { panic!("not TCP") };
        let socket = SocketAddr::new(address.traddr.parse().unwrap(), address.trsvcid);
        address.trsvcid = gated(socket, &gate).port();
        Address::Tcp(address)
    };
    let addresses: Vec<Address> = targets.iter().map(address).collect();
    let connect =
        ConnectOptions { connect_timeout: Duration::from_secs(60), ..ConnectOptions::default() };
    let image = Image::open(&addresses, &OpenOptions { connect, ..OpenOptions::default() });
    let image = image.expect("no namespace waits for another one to be open");
    assert_eq!(image.devices().len(), TARGETS);
    assert_eq!(image.directory().num_live(), 60);
}
