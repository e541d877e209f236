//! Reads epochs of a data set in Rust as a training job would: shuffled batches, read ahead.
//!
//! ```text
//! cargo run --release --example read -- train.dlfs 256 2 run.json
//! ```
//!
//! With a state file, a later run goes on behind the epochs that this one has read. In a package of your own, write
//! `dlfs = { path = ... }` into `Cargo.toml`; `dlfs::dataset` is where to read on.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Options, load_state, save_state};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::prefetch::LoaderOptions;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        eprintln!("usage: read ADDRESS [BATCH [EPOCHS [STATE]]]");
        return ExitCode::from(2);
    }
    match read(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}"); // says where it failed and what to do
            ExitCode::FAILURE
        }
    }
}

fn read(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    // A path, or nvme-tcp://HOST/NQN. The last argument of these calls could interrupt them: `()` never does.
    let address: Address = arguments[0].parse()?;
    let dataset = Dataset::open(&[address], &Options::default(), &mut ())?;
    let batch_size = arguments.get(1).map_or(Ok(256), |text| text.parse::<usize>())?;
    let epochs = arguments.get(2).map_or(Ok(1), |text| text.parse::<u64>())?;
    let state = arguments.get(3).map(Path::new);

    // The order of every epoch follows from its kind and the seed, on any number of ranks.
    let kind = OrderKind::Grouped { lanes: 0, group: 4 }; // 0: the usual number of lanes
    let order = OrderSpec { kind, seed: 7 };
    let resume = state.map(load_state).transpose()?.flatten();
    let loader = dataset
        .loader(LoaderOptions { resume, ..LoaderOptions::new(order, batch_size, epochs) })?;

    let mut samples = 0;
    let mut bytes = 0;
    while let Some(batch) = loader.next(&mut ())? {
        samples += batch.len();
        // Verified bytes in the memory that was read into; `sample.id` and `sample.label` are beside them.
        bytes += batch.iter().map(|sample| sample.bytes.len()).sum::<usize>();
        if batch.ends_epoch() {
            println!("epoch {}: {samples} samples, {bytes} bytes", batch.epoch().0);
            samples = 0;
            bytes = 0;
        }
    }
    if let Some(path) = state {
        save_state(path, &loader.state())?;
    }
    Ok(())
}
