//! One data set on 64 namespaces of 8 subsystems, and on one namespace: what a poller asks of its sockets,
//! and what many connections cost.
//!
//! `cargo bench --bench many_namespaces`. The targets are another process of this program; the data are in
//! its memory. Both are read in turn, and the ratio is that of neighbours in time.

#[path = "support/results.rs"]
mod results;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::dataset::{Image, OpenOptions};
use dlfs::import::{self, ImportOptions, Onto};
use dlfs::nvme::{Address, Nqn};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::tcp::TcpNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::reader::Batch;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;

fn main() -> dlfs::Result<()> {
    results::record("many_namespaces");
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--serve") {
        let number = |index: usize| arguments[at + index].parse().expect("a number");
        return serve(number(1), number(2), number(3) as u64, number(4));
    }
    for (count, len) in [(40_000, 4_096), (2_000, 110_592)] {
        compare(count, len)?;
    }
    Ok(())
}

/// Reads epochs of both in turn, and prints what came of it.
fn compare(count: u64, len: usize) -> dlfs::Result<()> {
    let (many, one) = (Side::start(8, 8, count, len)?, Side::start(1, 1, count, len)?);
    println!("\n{count} samples of {len} bytes");
    for kind in [OrderKind::Global, OrderKind::Grouped { lanes: 4, group: 2 }] {
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        let before = many.receives();
        for round in 0..ROUNDS {
            // Each goes first every other time.
            let first_many = if round % 2 == 0 { Some(many.epochs(kind, round)?) } else { None };
            let of_one = one.epochs(kind, round)?;
            let of_many = first_many.map_or_else(|| many.epochs(kind, round), Ok)?;
            ratios.push(of_many / of_one);
            rates.push(of_many);
        }
        let after = many.receives();
        let (calls, empty) = (after.0 - before.0, after.1 - before.1);
        ratios.sort_by(f64::total_cmp);
        rates.sort_by(f64::total_cmp);
        println!(
            "{kind:?}: {:.0} samples/s on 64 namespaces, {:.3} of one ({:.3} to {:.3}); {calls} receives, \
             {empty} of them for nothing: {:.3} for each that brings bytes",
            rates[rates.len() / 2],
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1],
            calls as f64 / (calls - empty).max(1) as f64,
        );
    }
    Ok(())
}

/// Targets in a process of their own, and the image on them.
struct Side {
    devices: Vec<Arc<TcpNamespace>>,
    image: Image,
    child: Child,
    _end: Option<ChildStdin>,
}

impl Side {
    fn start(targets: usize, each: usize, count: u64, len: usize) -> dlfs::Result<Side> {
        let numbers = [targets, each, count as usize, len].map(|number| number.to_string());
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .args(numbers)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut devices = Vec::new();
        for line in lines.take(targets * each) {
            let line = line?;
            let Ok(Address::Tcp(address)) = line.parse() else { panic!("not an address: {line}") };
            let options = ConnectOptions::default();
            devices.push(Arc::new(TcpNamespace::connect(&address, &options)?));
        }
        let as_devices = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>);
        let image = Image::from_devices(as_devices.collect(), &OpenOptions::default())?;
        let end = child.stdin.take();
        Ok(Side { devices, image, child, _end: end })
    }

    /// Samples a second of some epochs, without the time until the first batch.
    fn epochs(&self, kind: OrderKind, seed: u64) -> dlfs::Result<f64> {
        let options = LoaderOptions::new(OrderSpec { kind, seed }, 128, EPOCHS);
        let mut loader = self.image.prefetcher(options)?;
        let (mut batch, mut count, mut began) = (Batch::new(), 0, None);
        while loader.next_into(&mut batch)? {
            match began {
                None => began = Some(Instant::now()),
                Some(_) => count += batch.len(),
            }
        }
        let lasted = began.map_or(Duration::MAX, |began: Instant| began.elapsed());
        Ok(count as f64 / lasted.as_secs_f64())
    }

    /// Calls that asked a socket for bytes, and those of them that brought none.
    fn receives(&self) -> (u64, u64) {
        let stats = self.devices.iter().map(|device| device.stats());
        stats.fold((0, 0), |(calls, empty), stats| {
            (calls + stats.receives, empty + stats.empty_receives)
        })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves a data set in memory from `targets` targets of `each` namespaces until standard input ends.
fn serve(targets: usize, each: usize, count: u64, len: usize) -> dlfs::Result<()> {
    let folder = tempfile::tempdir()?;
    for number in 0..count {
        let bytes: Vec<u8> = (number..).take(len).map(|at| (at ^ (at >> 7)) as u8).collect();
        std::fs::write(folder.path().join(format!("{number:06}")), bytes)?;
    }
    let num_namespaces = targets * each;
    let room = (2 * count * len as u64) / num_namespaces as u64 + (16 << 20);
    let disks = (0..num_namespaces).map(|_| {
        let disk = MemNamespace::new(room.next_multiple_of(4096), 4096)?;
        Ok(Arc::new(disk) as Arc<dyn Device>)
    });
    let disks = disks.collect::<dlfs::Result<Vec<_>>>()?;
    let chunk_size_bytes = 1 << 20;
    let options = ImportOptions { onto: Onto::Empty, chunk_size_bytes, ..Default::default() };
    import::import_onto(&[folder.path().to_owned()], &disks, &options, &mut ())?;
    drop(folder);
    let mut serving = Vec::new();
    for (number, disks) in disks.chunks(each).enumerate() {
        let nqn = format!("nqn.2026-11.io.dlfs:many-{number}");
        let nqn = Nqn::new(nqn).expect("a valid name");
        let target = Target::bind(TargetOptions::new(nqn), disks.to_vec())?;
        for nsid in 1..=each as u32 {
            println!("{}", target.address(Nsid(nsid)));
        }
        serving.push(target);
    }
    std::io::stdout().flush()?;
    // An error is an end as well.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

const ROUNDS: u64 = 11;
const EPOCHS: u64 = 6;
