//! Arguments of commands that read as a job: the images of a mixture, the other nodes, this rank's own storage, and the
//! page and events about the run.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;

use dlfs::dataset::{Dataset, Image, Loader, Mixture, OpenOptions, check_page, save_page};
use dlfs::options::{Peers, Store};
use dlfs::order::mixture::{Batching, Count, Part, Phase};
use dlfs::peers::rendezvous::Rendezvous;
use dlfs::peers::{Means, Meeting, PeerStats};
use dlfs::prefetch::{LoaderOptions, Trace};
use dlfs::qpair::ConnectOptions;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::store::{Staged, StoreOptions, StoreStats};
use dlfs::{Error, Result};

use crate::args::{ConnectionArgs, ImageAddress, warn_of_key_text};
use crate::exit::{Failure, complain, usage};
use crate::out::{self, Meter};

/// Options of the images that IMAGE is mixed with.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Mixture")]
pub(crate) struct MixArgs {
    /// Read this image, too, as one sequence with IMAGE; may be repeated. PART, for each: a weight beside
    /// the others, such as 0.3; or for all repeat:T, T times its samples, or choose:N, N samples
    #[arg(long, value_name = "IMAGE=PART", value_parser = MixedImage::parser(), requires = "part")]
    mix: Vec<MixedImage>,
    /// The part of IMAGE
    #[arg(long, value_name = "PART", requires = "mix")]
    part: Option<Part>,
    /// Samples of an epoch of a mixture, or drawn by weights [default: what repeat and choose say, or as many as all
    /// images have]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epoch_size: Option<u64>,
    /// stratified: each global batch has its share of each image; random: what chance gives;
    /// per-source: each is of one image, and per-source:N, N the batch of all ranks, keeps its samples in a
    /// run that resumes with another one
    #[arg(long, value_name = "HOW", requires = "mix", default_value = "stratified")]
    mix_batching: Batching,
    /// Count weights and the starts of phases in samples; or in tokens of documents: tokens, tokens:FIELD if the field
    /// is to be named, as by --field, or lengths:COLUMN for those that a column of ints has
    #[arg(long, value_name = "UNIT", requires = "mix", default_value = "samples")]
    mix_count: Count,
    /// The weights of all images, IMAGE first, from this sample of the run on, or from this token with
    /// --mix-count tokens; may be repeated. With them a weight may be 0
    #[arg(long, value_name = "SAMPLE:WEIGHT,WEIGHT...", requires = "mix")]
    phase: Vec<Phase>,
}

impl MixArgs {
    /// Opens the other images, and mixes them with `first`; `None` without `--mix`.
    ///
    /// # Errors
    /// Errors of [`Image::open`] and [`Mixture::counting`].
    pub(crate) fn mixture(
        &self,
        first: &Dataset,
        connection: &ConnectionArgs,
    ) -> Result<Option<Mixture>> {
        let Some(part) = self.part else { return Ok(None) };
        let mut parts = vec![(first.clone(), part)];
        for MixedImage { image, part } in &self.mix {
            let connect = connection.options(false)?;
            let image = Image::open(&image.0, &OpenOptions { connect, ..OpenOptions::default() })?;
            parts.push((Dataset::from_image(image, ReaderOptions::default()), *part));
        }
        let phases = self.phase.clone();
        Mixture::counting(&self.mix_count, parts, self.epoch_size, self.mix_batching, phases)
            .map(Some)
    }

    /// Returns whether other images were given.
    pub(crate) fn is_given(&self) -> bool {
        self.part.is_some()
    }

    /// All images, with `first` (IMAGE) in front.
    pub(crate) fn images<'a>(
        &'a self,
        first: &'a ImageAddress,
    ) -> impl Iterator<Item = &'a ImageAddress> {
        std::iter::once(first).chain(self.mix.iter().map(|mixed| &mixed.image))
    }

    /// Counters of delivered samples by image; `first` is IMAGE.
    pub(crate) fn sources(&self, first: &ImageAddress) -> Sources {
        Sources(self.images(first).map(Source::new).collect())
    }
}

/// Counters of the samples that a run has delivered, by image.
pub(crate) struct Sources(pub(crate) Vec<Source>);

/// The counters of one image; the names are an interface.
#[derive(Serialize)]
pub(crate) struct Source {
    image: String,
    pub(crate) samples: u64,
    bytes: u64,
    #[serde(skip)]
    shown: String,
}

impl Source {
    fn new(image: &ImageAddress) -> Source {
        Source { image: image.to_string(), samples: 0, bytes: 0, shown: image.in_short() }
    }
}

impl Sources {
    /// Counts the samples of a batch.
    pub(crate) fn count(&mut self, batch: &Batch) {
        let of = batch.sources();
        for index in 0..batch.len() {
            let source = &mut self.0[of.map_or(0, |of| of[index] as usize)];
            source.samples += 1;
            source.bytes += batch.bytes(index).len() as u64;
        }
    }

    /// A report line for each image.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let samples: u64 = self.0.iter().map(|source| source.samples).sum();
        self.0.iter().map(move |source| {
            format!(
                "  source     {}: {}, {}: {:.2} % of the samples",
                out::safe_text(&source.shown),
                out::counted(source.samples, "sample"),
                out::bytes(source.bytes),
                100.0 * source.samples as f64 / samples.max(1) as f64
            )
        })
    }
}

/// `IMAGE=PART`. PART contains no `=`, so the address may contain it.
#[derive(Debug, Clone)]
struct MixedImage {
    image: ImageAddress,
    part: Part,
}

impl MixedImage {
    fn parser() -> impl TypedValueParser<Value = MixedImage> {
        OsStringValueParser::new().try_map(|text: OsString| {
            let bytes = text.as_bytes();
            let Some(at) = bytes.iter().rposition(|&byte| byte == b'=') else {
                let text = "there is no part: IMAGE=PART, such as more.dlfs=0.3, more.dlfs=repeat:2 or \
                            more.dlfs=choose:1000";
                return Err(text.to_owned());
            };
            let image = dlfs::address::Address::parse_list_os(&OsString::from_vec(bytes[..at].to_vec()));
            let image = image.map_err(|error| error.to_string())?;
            let part = String::from_utf8_lossy(&bytes[at + 1..]).parse();
            let part = part.map_err(|error: dlfs::Error| error.to_string())?;
            Ok(MixedImage { image: ImageAddress(image), part })
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Write a page (HTML, one file) to FILE that says what the run waited for, and what to try next
    ///
    /// It is written at the end, also after Ctrl-C or an error, and replaces an older page in one step. Each rank
    /// needs a file of its own.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the newest events of the run to FILE in Chrome's trace format, for https://ui.perfetto.dev
    ///
    /// Up to 65,536 events of each of two threads; the file says how many are missing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// The files of a run. Clones share the events.
#[derive(Debug, Clone)]
pub(crate) struct RunFiles {
    report: Option<PathBuf>,
    trace: Option<(PathBuf, Arc<Trace>)>,
}

impl ReportArgs {
    /// The files that the run will write. A file that cannot be written is reported before the work starts.
    pub(crate) fn files(&self) -> Result<RunFiles, Error> {
        self.report.iter().chain(&self.trace).try_for_each(|path| check_page(path))?;
        let trace = self.trace.clone().map(|path| (path, Arc::new(Trace::new())));
        Ok(RunFiles { report: self.report.clone(), trace })
    }
}

impl RunFiles {
    /// The trace in which the loader keeps its events.
    pub(crate) fn trace(&self) -> Option<Arc<Trace>> {
        self.trace.as_ref().map(|(_, trace)| Arc::clone(trace))
    }

    /// Writes the report and the trace of `loader` up to now.
    ///
    /// # Errors
    /// The error of the first file that cannot be written; the other file is written nevertheless.
    pub(crate) fn write(&self, loader: &Loader) -> Result<(), Error> {
        let page = self.report.as_ref().map(|path| save_page(path, &loader.report().to_html()));
        let events = self.trace.as_ref().zip(loader.trace_json());
        let events = events.map(|((path, _), events)| save_page(path, &events));
        match (page.unwrap_or(Ok(())), events.unwrap_or(Ok(()))) {
            (Err(page), Err(events)) => {
                complain(&events.report());
                Err(page)
            }
            (page, events) => page.and(events),
        }
    }

    /// Writes only the events, for a process that ends while its loader waits.
    pub(crate) fn write_events(&self) {
        if let Some((path, trace)) = &self.trace
            && let Err(error) = save_page(path, &trace.to_json(None))
        {
            complain(&error.report());
        }
    }
}

/// A round that this rank has joined, which all ranks leave together.
pub(crate) struct Joined {
    meeting: Meeting,
    connect: ConnectOptions,
}

/// The meeting of the ranks and this rank's number in it, if `--peers` is given. `place` is the rank and the
/// world size from the command line or the launcher.
///
/// # Errors
/// `Usage`: as [`JoinOptions::meeting`](dlfs::peers::JoinOptions::meeting).
pub(crate) fn meeting(
    peers: &Peers,
    place: Option<(u32, u32)>,
) -> Result<Option<Meeting>, Failure> {
    let Some(means) = &peers.peers else { return Ok(None) };
    peers.job_key.iter().for_each(|key| warn_of_key_text("--job-key", key));
    let options = peers.join(Means::of(means)?, place)?;
    options.meeting_here().map(Some).map_err(usage)
}

impl Joined {
    /// Joins the round; returns the image read through its peers, or through this rank's store.
    ///
    /// # Errors
    /// Errors of [`Image::with_peers`], of [`Image::with_store`] and of the rendezvous.
    pub(crate) fn join(
        meeting: Meeting,
        image: Image,
        connect: ConnectOptions,
        run: &LoaderOptions,
        store: Option<StoreOptions>,
    ) -> Result<(Image, Joined), Failure> {
        let mut rendezvous = meeting.rendezvous(&connect)?.expect("the command has no object");
        let rendezvous: &mut dyn Rendezvous = &mut *rendezvous;
        let options = meeting.peer_options(&connect);
        let image = match store {
            None => image.with_peers(&options, run, rendezvous)?,
            Some(store) => image.with_store(store, run, Some((&options, rendezvous)))?,
        };
        Ok((image, Joined { meeting, connect }))
    }

    /// Serves until all ranks have finished reading, at most for the timeout of the meeting.
    pub(crate) fn wait_for_end(&self, image: &Image) {
        let Some(peers) = image.peers() else { return };
        let Joined { meeting, connect } = self;
        let ended = meeting.rendezvous_of_end(connect).and_then(|rendezvous| {
            let mut rendezvous = rendezvous.expect("the command has no object");
            peers.wait_for_end(&mut *rendezvous, meeting.options.timeout)
        });
        if let Err(error) = ended {
            // Only a message: this rank reads no more, and the others read elsewhere.
            complain(&error.report());
        }
    }
}

/// Report line about the data from other nodes.
pub(crate) fn peer_line(stats: &PeerStats) -> String {
    let used: Vec<_> = stats.nodes.iter().filter(|node| node.reads > 0).collect();
    let (reads, bytes) =
        used.iter().fold((0, 0), |(reads, bytes), node| (reads + node.reads, bytes + node.bytes));
    let seconds: f64 = used.iter().map(|node| node.read_s).sum();
    let mut line = format!(
        "  peers      {} of {} other nodes: {} reads, {}, {:.0} us each",
        used.len(),
        stats.nodes.len().saturating_sub(1),
        out::count(reads),
        out::bytes(bytes),
        1e6 * seconds / reads.max(1) as f64
    );
    for (bytes, what) in [
        (stats.not_there_bytes, "not there"),
        (stats.rerouted_bytes, "read elsewhere"),
        (stats.mismatched_bytes, "differed and were read again"),
    ] {
        if bytes > 0 {
            line.push_str(&format!("; {} {what}", out::bytes(bytes)));
        }
    }
    line
}

/// Resumes with new shares, if requested.
///
/// # Errors
/// `InvalidArgument`: the state is in the middle of an epoch.
pub(crate) fn restart(store: &Store, image: &Image, options: &mut LoaderOptions) -> Result<()> {
    if let (true, Some(state)) = (store.restart_shares, &options.resume) {
        let len = image.directory().num_live();
        options.resume = Some(state.begun_anew(&options.order, len)?);
    }
    Ok(())
}

/// Returns a closure that shows the progress of staging the share, and never stops it.
pub(crate) fn staging(quiet: bool) -> impl FnMut(Staged) -> bool {
    let mut meter = None;
    move |Staged { samples, done, bytes, .. }| {
        let shown = meter.get_or_insert_with(|| Meter::new("storing", samples, quiet));
        shown.update(done, bytes);
        if done == samples {
            meter = None;
        }
        true
    }
}

/// The report line about the store's content and exchange.
pub(crate) fn store_line(stats: &StoreStats) -> String {
    let mut line = format!(
        "  store      {} now, {} at most; {} staged",
        out::bytes(stats.held_bytes),
        out::bytes(stats.peak_bytes),
        out::counted(stats.staged, "sample"),
    );
    for (count, what) in [
        (stats.found, "found there"),
        (stats.received, "received"),
        (stats.from_origin, "from the data set in place of a rank"),
        (stats.deleted, "deleted"),
        (stats.mismatched, "damaged and fetched elsewhere"),
    ] {
        if count > 0 {
            line.push_str(&format!(", {} {what}", out::count(count)));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use dlfs::order::mixture::Weight;

    use super::*;

    fn mixed(text: &str) -> std::result::Result<(String, Part), String> {
        let command = clap::Command::new("dlfs")
            .arg(clap::Arg::new("mix").value_parser(MixedImage::parser()));
        let found =
            command.try_get_matches_from(["dlfs", text]).map_err(|error| error.to_string())?;
        let mixed = found.get_one::<MixedImage>("mix").unwrap();
        Ok((mixed.image.to_string(), mixed.part))
    }

    #[test]
    fn a_part_stands_behind_the_last_equals_sign() {
        let weight = |text: &str| text.parse::<Weight>().unwrap();
        assert_eq!(mixed("a.dlfs=0.3"), Ok(("a.dlfs".into(), Part::Weight(weight("0.3")))));
        let found = mixed("lr=1/a.dlfs,b.dlfs=repeat:2");
        assert_eq!(found, Ok(("lr=1/a.dlfs,b.dlfs".into(), Part::Repeat(weight("2")))));
        assert_eq!(mixed("a=choose:7"), Ok(("a".into(), Part::Choose(7))));
        for wrong in
            ["a.dlfs", "a.dlfs=", "=1", "a=-1", "a=x", "a=repeat:", "a=choose:1.5", "a=choose:-1"]
        {
            assert!(mixed(wrong).is_err(), "{wrong}");
        }
    }
}
