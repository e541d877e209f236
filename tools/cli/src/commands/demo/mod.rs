//! `dlfs demo`: imports a folder, serves the image, reads two epochs, and compares every sample with its file.
//!
//! `files.rs` generates files and compares samples with them; `comparison.rs` measures three ways of reading.

mod comparison;
mod files;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, OpenOptions};
use dlfs::import::sources::SourceKind;
use dlfs::import::{ImportOptions, ImportReport, OnError};
use dlfs::nvme::Nqn;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::ReaderOptions;
use dlfs::target::{Target, TargetOptions};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind};

use self::comparison::{Compared, Comparison, Figures};
use self::files::{Generator, SourceFiles};
use crate::args::unweighted;
use crate::exit::{Failure, GRACE, Outcome, Stop, about_file, complain};
use crate::out::{self, Meter, Out, StageProgress};
use crate::reading::{End, Samples, read_batches};
use crate::run_stats::{Percentiles, RunReport, RunStats};

/// Try everything in a few seconds: import, serve, read, check
///
/// Imports a folder, serves it over NVMe/TCP, reads two shuffled epochs and compares every sample.
/// Without DIR it generates a small data set: 4,000 files, about 140 MB. The data set and the image
/// are stored in a temporary folder (TMPDIR). An embedded target serves the image on a loopback
/// socket, and the user-level host reads it. Every sample is compared with its source file, byte for
/// byte. At the end the demo compares three ways of reading the same shuffled epochs: the files one
/// by one, the image in place, and the image over NVMe/TCP; each from the page cache and, for DIR,
/// also from disk. All generated files are removed at the end, also after Ctrl-C.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// A folder of files to use instead; it is only read
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    order: dlfs::options::Order,
    /// Samples per batch
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Print the results as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: DemoArgs, quiet: bool) -> Result<Outcome, Failure> {
    let failed = |error| about_file("cannot make a temporary folder", std::env::temp_dir(), error);
    let scratch = tempfile::Builder::new().prefix("dlfs-demo-").tempdir().map_err(failed)?;
    let path = scratch.path().to_path_buf();
    let stop = Stop::on_signals(GRACE, move || {
        let _ = std::fs::remove_dir_all(path); // nobody is left to report an error to
        Outcome::Incomplete
    })?;
    let mut demo =
        Demo { args: &args, scratch: scratch.path(), stop: stop.clone(), quiet, out: Out::new() };
    let result = demo.run();
    drop(demo);
    let path = scratch.path().to_path_buf();
    let removed = scratch.close();
    if stop.is_set() {
        complain("stopped; what the demo had made is removed");
        return Ok(Outcome::Incomplete);
    }
    result.map_err(hint_at_tmpdir)?;
    removed.map_err(|error| about_file("cannot remove the temporary folder", path, error))?;
    Ok(Outcome::Done)
}

/// Adds a hint to an error of a full disk.
fn hint_at_tmpdir(failure: Failure) -> Failure {
    match failure {
        Failure::Error(error) if error.kind() == ErrorKind::NoSpace => error
            .hint("it takes about twice the files' size: TMPDIR=FOLDER dlfs demo works elsewhere")
            .into(),
        failure => failure,
    }
}

/// A running demo. Its steps end early with an error when the user stops it.
struct Demo<'a> {
    args: &'a DemoArgs,
    /// The temporary folder of all generated files.
    scratch: &'a Path,
    stop: Stop,
    quiet: bool,
    out: Out,
}

impl Demo<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let title = self.out.bold("dlfs demo");
        self.text(&format!(
            "{title}: a folder of files through a real NVMe/TCP socket and back\n"
        ))?;
        let folder = match &self.args.folder {
            Some(folder) => folder.clone(),
            None => self.generate_files()?,
        };
        let path = self.scratch.join("demo.dlfs");
        self.import(&folder, &path)?;
        let target = self.serve(&path)?;
        let image = Image::open(&[target.address(Nsid(1))], &OpenOptions::default())?;
        image.load_names()?;
        let source = SourceFiles::new(&folder, image.directory());
        let epochs = self.read(&image, &source)?;
        let verified = self.out.green("verified");
        let samples = out::count(image.directory().num_live());
        self.text(&format!(
            "\n{verified}: each of {samples} samples came once in each of {EPOCHS} epochs,\n\
             and equals its source file, byte for byte\n",
        ))?;
        self.figures(&epochs)?;
        let ways = self.out.bold("read in three ways");
        self.text(&format!("\nThe same shuffled epochs, {ways}:"))?;
        self.line("", "verified  warm samples/s    MB/s  CPU s/GB  cold samples/s")?;
        let compared = self.compare(&path, &image, &source)?;
        self.compared(&compared)?;
        if self.args.json {
            let found = json!({"epochs": epochs, "verified": true, "compared": compared});
            self.out.json(&found)?;
        }
        let head = self.out.bold("What next");
        self.text(&format!("\n{head}{WHAT_NEXT}"))?;
        self.out.flush()
    }

    fn generate_files(&mut self) -> Result<PathBuf, Failure> {
        let folder = self.scratch.join("pictures");
        let data = Generator::DEFAULT;
        let mut meter =
            Meter::new("making", data.pictures + data.tiny, self.quiet).counting("file");
        let began = Instant::now();
        let generated = data.generate(&folder, |files, bytes| {
            meter.update(files, bytes);
            !self.stop.is_set()
        })?;
        drop(meter);
        if self.stop.is_set() {
            return Err(stopped());
        }
        let what = format!(
            "{} in {}, {}",
            out::counted(generated.files, "file"),
            out::counted(generated.classes, "class folder"),
            out::bytes(generated.bytes)
        );
        self.step("made", &what, began.elapsed())?;
        Ok(folder)
    }

    fn import(&mut self, folder: &Path, path: &Path) -> Result<(), Failure> {
        let began = Instant::now();
        let mut progress = StageProgress::new(self.quiet, self.stop.clone());
        let image = [Address::from_path(path)];
        let from = SourceKind::Folder;
        let options = ImportOptions { from, on_error: OnError::Skip, ..ImportOptions::default() };
        let sources = [folder.to_path_buf()];
        let connect = ConnectOptions::default();
        let report = dlfs::import::import(&sources, &image, &options, &connect, &mut progress)?;
        drop(progress);
        self.imported(&report, began.elapsed())
    }

    fn serve(&mut self, path: &Path) -> Result<Target, Failure> {
        let device = qpair::open(&Address::from_path(path), &ConnectOptions::default())?;
        let nqn = Nqn::new("nqn.2026-11.io.dlfs:demo").expect("a name of the right form");
        let target = Target::bind(TargetOptions::new(nqn), vec![device])?;
        self.line("serving", &target.address(Nsid(1)).to_string())?;
        Ok(target)
    }

    /// Reads the epochs twice: to measure, and to compare every sample, so that the time of reading the source files is
    /// not measured.
    fn read(&mut self, image: &Image, source: &SourceFiles<'_>) -> Result<Vec<Epoch>, Failure> {
        let epochs = self.read_epochs(image, "reading", None)?;
        for (number, epoch) in epochs.iter().enumerate() {
            self.epoch(number + 1, epoch)?;
        }
        self.read_epochs(image, "comparing", Some(source))?;
        Ok(epochs)
    }

    fn read_epochs(
        &self,
        image: &Image,
        label: &'static str,
        source: Option<&SourceFiles<'_>>,
    ) -> Result<Vec<Epoch>, Failure> {
        let num_samples = image.directory().num_samples();
        let options = self.loader_options(EPOCHS)?;
        let mut meter = Meter::new(label, EPOCHS * num_samples, self.quiet);
        let mut epochs = Vec::new();
        let mut commands_before = 0;
        let mut seen = vec![false; num_samples as usize];
        let mut stats = RunStats::start();
        let dataset = Dataset::from_image(image.clone(), ReaderOptions::default());
        let mut batches = Samples::of(dataset.loader(options)?);
        let end = read_batches(&mut batches, &mut stats, &mut meter, |stats, batch, loader| {
            if let Some(source) = source {
                source.compare(batch)?;
            }
            for id in batch.ids() {
                seen[id.0 as usize] = true;
            }
            if batch.ends_epoch() {
                check_all_seen(&mut seen)?;
                let commands = loader.stats().read.commands;
                epochs.push(Epoch { report: stats.finish(), commands: commands - commands_before });
                commands_before = commands;
                *stats = RunStats::start();
            }
            Ok(!self.stop.is_set())
        })?;
        match end {
            End::Complete => Ok(epochs),
            End::Stopped => Err(stopped()),
        }
    }

    fn compare(
        &self,
        path: &Path,
        served: &Image,
        source: &SourceFiles<'_>,
    ) -> Result<Compared, Failure> {
        let in_place = Image::open(&[Address::from_path(path)], &OpenOptions::default())?;
        let images = [in_place, served.clone()];
        let options = self.loader_options(1)?;
        let comparison = Comparison::new(source, path, images, options, self.stop.clone())?;
        // A generated data set may not be on the disk yet, so a cold read cannot be measured.
        comparison.run(self.args.folder.is_some())
    }

    fn loader_options(&self, epochs: u64) -> Result<LoaderOptions, Failure> {
        let order = unweighted(&self.args.order, 1)?;
        Ok(LoaderOptions::new(order, self.args.batch_size as usize, epochs))
    }

    fn step(&mut self, label: &str, what: &str, time: Duration) -> Result<(), Failure> {
        let time = self.out.dim(&format!("({})", out::duration(time)));
        self.line(label, &format!("{what}  {time}"))
    }

    fn imported(&mut self, report: &ImportReport, time: Duration) -> Result<(), Failure> {
        let what = format!(
            "{}, {} in {}, {}",
            out::counted(report.samples, "sample"),
            out::bytes(report.image_bytes),
            out::counted(report.chunks, "chunk"),
            out::rate(report.sample_bytes, time)
        );
        self.step("imported", &what, time)?;
        for entry in report.bad.iter().take(SHOWN_BAD) {
            self.line("left out", &format!("{}: {}", out::safe_name(&entry.name), entry.reason))?;
        }
        if let Some(more @ 1..) = report.bad.len().checked_sub(SHOWN_BAD) {
            self.line("left out", &format!("and {more} more; dlfs import names them all"))?;
        }
        Ok(())
    }

    fn epoch(&mut self, number: usize, epoch: &Epoch) -> Result<(), Failure> {
        let report = &epoch.report;
        let speed = format!("{} samples/s", out::count(report.samples_per_s as u64));
        let what = format!(
            "{} in {}: {}, {}  {}",
            out::counted(report.samples, "sample"),
            out::duration(report.time()),
            self.out.bold(&speed),
            self.out.bold(&out::rate(report.bytes, report.time())),
            self.out.dim(&format!("({})", out::counted(epoch.commands, "read"))),
        );
        self.line(&format!("epoch {number}"), &what)
    }

    fn figures(&mut self, epochs: &[Epoch]) -> Result<(), Failure> {
        for (number, Epoch { report, .. }) in epochs.iter().enumerate() {
            let Percentiles { p50, p99, max } = report.batch_us;
            let what = format!(
                "batch of {}: p50 {}, p99 {}, max {}; CPU {:.2} s a GB",
                self.args.batch_size,
                out::micros(p50),
                out::micros(p99),
                out::micros(max),
                report.cpu_s_per_gb()
            );
            self.line(&format!("epoch {}", number + 1), &what)?;
        }
        Ok(())
    }

    fn compared(&mut self, compared: &Compared) -> Result<(), Failure> {
        let Compared { files, image, nvme_tcp, .. } = compared;
        for (label, figures) in [("files", files), ("image", image), ("NVMe/TCP", nvme_tcp)] {
            let Figures { verified, samples_per_s, bytes_per_s, cpu_s_per_gb, .. } = figures;
            let count = |rate: f64| out::count(rate as u64);
            let what = format!(
                "{:>8}  {:>14}  {:>6}  {cpu_s_per_gb:>8.2}  {:>14}",
                if *verified { "yes" } else { "no" },
                count(*samples_per_s),
                count(bytes_per_s / 1e6),
                figures.cold_samples_per_s.map_or_else(|| "-".to_owned(), count),
            );
            self.line(label, &what)?;
        }
        let times = |figures: &Figures| {
            let times = figures.samples_per_s / files.samples_per_s;
            self.out.bold(&format!("{times:.1} times the files"))
        };
        let image = times(image);
        let nvme_tcp = times(nvme_tcp);
        self.line("files", "one thread opens, reads and closes each file")?;
        self.line("image", &format!("a loader reads the image in place: {image}"))?;
        let both = "loader and target through a loopback socket";
        self.line("NVMe/TCP", &format!("{both}: {nvme_tcp}"))?;
        match compared.files.cold_samples_per_s {
            Some(_) => {
                self.line("cold", "with the files and the image dropped from the page cache")
            }
            None => self.line("cold", "dlfs demo DIR also reads files of yours from their disk"),
        }
    }

    fn line(&mut self, label: &str, what: &str) -> Result<(), Failure> {
        let label = self.out.dim(&format!("{label:>9}"));
        self.text(&format!("{label}  {what}"))
    }

    fn text(&mut self, text: &str) -> Result<(), Failure> {
        if self.args.json {
            return Ok(());
        }
        self.out.line(text)?;
        self.out.flush()
    }
}

/// The error of a demo that the user stopped.
fn stopped() -> Failure {
    Error::new(ErrorKind::Interrupted, "the demo was stopped").into()
}

/// Checks that the epoch delivered every sample; clears the list for the next epoch.
fn check_all_seen(seen: &mut [bool]) -> Result<(), Error> {
    let missing = seen.iter().filter(|seen| !**seen).count();
    if missing > 0 {
        let text = format!("an epoch left out {missing} samples");
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    seen.fill(false);
    Ok(())
}

/// Measurements of one epoch.
#[derive(Serialize)]
struct Epoch {
    #[serde(flatten)]
    report: RunReport,
    /// Read commands that were sent while the epoch was delivered. The loader reads ahead: some of them are for the
    /// next epoch, and some for this epoch were sent before it.
    commands: u64,
}

const EPOCHS: u64 = 2;
/// The number of skipped entries to name.
const SHOWN_BAD: usize = 3;
const WHAT_NEXT: &str = "
  dlfs demo ~/pictures                  the same with files of yours
  dlfs import ~/pictures train.dlfs     make an image to keep
  dlfs serve train.dlfs                 prints its address, for dlfs and Linux
  dlfs read ADDRESS --batch-size 256 --epochs 2 --order global
  dlfs help                             everything else";
