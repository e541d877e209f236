//! Verification of a whole image: reads all of it, and reports all damage.

use std::time::{Duration, Instant};

use crate::buf::IoBuf;
use crate::directory::{ChunkInfo, Directory};
use crate::error::Result;
use crate::format::pieces::whole;
use crate::format::superblock_set::select_generation;
use crate::format::{ChunkHeader, FormatError, SampleEntry};
use crate::reader::{Fetch, Fetched, Geometry, Pump, plan_chunk, read_superblocks, stale_error};
use crate::units::{SampleId, deadline};

use super::Image;

/// Options of a verification.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// Memory limit for chunks that are being read, in bytes; at least one chunk is read at a time.
    pub window_bytes: usize,
    /// Queue pairs for each namespace.
    pub queue_pairs: usize,
    /// The longest time without progress.
    pub progress_timeout: Duration,
}

impl Default for VerifyOptions {
    fn default() -> VerifyOptions {
        VerifyOptions {
            window_bytes: 64 << 20,
            queue_pairs: 1,
            progress_timeout: Duration::from_secs(60),
        }
    }
}

/// Result of a verification: counts of verified items, and all damage.
#[derive(Debug, Clone, Default)]
pub struct VerifyReport {
    /// Samples whose bytes match the directory's checksum. Of a plain folder, which has none, samples that could
    /// be read.
    pub samples: u64,
    /// Bytes of chunks read.
    pub bytes: u64,
    /// Chunks whose header agrees with the directory. Of a plain folder and of shards, which have no headers, all.
    pub chunks: u64,
    /// All damage, in the order of the media.
    pub damages: Vec<Damage>,
}

/// One damaged sample, header or superblock copy.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The sample, if a sample is damaged.
    pub sample: Option<SampleId>,
    /// The name of that sample, if it has one.
    pub name: Option<Vec<u8>>,
    /// Index of the namespace in the image.
    pub namespace: u16,
    /// Offset of the damage on the namespace.
    pub offset_bytes: u64,
    /// The damage, in words.
    pub what: String,
}

impl Damage {
    /// Damage outside samples.
    fn at(namespace: u16, offset_bytes: u64, what: String) -> Damage {
        Damage { sample: None, name: None, namespace, offset_bytes, what }
    }
}

impl Image {
    /// Reads and checks both superblock copies, every chunk header and every sample. The snapshot was checked
    /// when the image was opened. A plain folder and shards have neither superblocks nor headers.
    ///
    /// Calls `progress` with the length of each checked chunk in bytes.
    ///
    /// # Errors
    /// `Stale`: the image has a newer generation now. `TimedOut`, `Disconnected`: the image could not be
    /// read. `Corrupt`: the names are damaged. `OutOfMemory`: there is no memory for a chunk. All other damage is in
    /// the report.
    pub fn verify(
        &self,
        options: &VerifyOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<VerifyReport> {
        self.load_names()?;
        let mut report = VerifyReport::default();
        self.verify_superblocks(&mut report)?;
        let mut pump = Pump::new(&self.devices, options.queue_pairs, false)?;
        pump.learn(&self.directory);
        let geometry = pump.geometry();
        let mut chunks = 0..self.directory.num_chunks();
        let mut planned: Option<(u32, Fetch)> = None;
        let mut bytes_in_flight = 0;
        let mut last_progress = Instant::now();
        loop {
            let plan = |chunk| (chunk, self.plan_chunk(chunk, &geometry));
            while let Some((chunk, fetch)) = planned.take().or_else(|| chunks.next().map(plan)) {
                if bytes_in_flight > 0 && bytes_in_flight + fetch.len_bytes > options.window_bytes {
                    planned = Some((chunk, fetch));
                    break;
                }
                let buf = IoBuf::try_zeroed(fetch.len_bytes)?;
                bytes_in_flight += fetch.len_bytes;
                pump.start(u64::from(chunk), fetch, buf);
            }
            if pump.in_flight() == 0 {
                break;
            }
            pump.poll_or_wait(&mut last_progress, options.progress_timeout)?;
            while let Some(fetched) = pump.next_finished() {
                bytes_in_flight -= fetched.fetch.len_bytes;
                progress(fetched.fetch.len_bytes as u64);
                self.check_chunk(fetched, &mut report);
            }
        }
        report.bytes += pump.stats().bytes;
        if !report.damages.is_empty() {
            let until = deadline(Instant::now(), options.progress_timeout);
            if let Some(stale) = stale_error(&mut pump, &self.directory, until) {
                return Err(stale);
            }
        }
        report.damages.sort_by_key(|damage| (damage.namespace, damage.offset_bytes));
        Ok(report)
    }

    /// The reads of a whole chunk.
    fn plan_chunk(&self, chunk: u32, geometry: &[Geometry]) -> Fetch {
        let mut fetch = Fetch::default();
        let samples = self.directory.samples_in_chunk(chunk);
        plan_chunk(samples, Some(&self.directory.chunk(chunk)), geometry, &mut fetch);
        fetch
    }

    /// Reads both superblock copies of each namespace again, those of the previous generation too.
    fn verify_superblocks(&self, report: &mut VerifyReport) -> Result<()> {
        if self.snapshot.is_none() {
            return Ok(()); // a plain folder and shards have no superblock
        }
        let opened = match select_generation(&read_superblocks(&self.devices)?) {
            Ok(opened) => opened,
            Err(error) => {
                let what = format!("superblocks: {}", error.report());
                report.damages.push(Damage::at(0, 0, what));
                return Ok(());
            }
        };
        let next = opened.superblock().generation.0 + 1;
        for copy in opened.bad_copies {
            let lost = if copy.may_be_newer {
                format!("; generation {next} may be lost with it: dlfs rebuild looks for it")
            } else {
                String::new()
            };
            let what = format!("superblock copy: {}{lost}", copy.error);
            report.damages.push(Damage::at(copy.namespace, copy.offset_bytes, what));
        }
        Ok(())
    }

    /// Checks the header of a chunk that was read, and adds the failures of its samples to the report.
    fn check_chunk(&self, fetched: Fetched, report: &mut VerifyReport) {
        let number = fetched.token as u32;
        let chunk = self.directory.chunk(number);
        let reaches = |transfer: usize| {
            fetched.fetch.transfers[transfer].buf_offset < chunk.header_bytes as usize
        };
        let unread = fetched.unread.iter().any(|(transfer, _)| reaches(*transfer));
        let header = match unread {
            _ if chunk.header_bytes == 0 => Ok(()), // a plain folder and shards have no headers
            true => Err("the header could not be read".to_owned()),
            false => check_header(&fetched.buf, &chunk, &self.directory),
        };
        match header {
            Ok(()) => report.chunks += 1,
            Err(what) => {
                let what = format!("header of chunk {number}: {what}");
                report.damages.push(Damage::at(chunk.namespace, chunk.offset_bytes, what));
            }
        }
        report.samples += (fetched.fetch.samples.len() - fetched.failures.len()) as u64;
        for (index, error) in fetched.failures {
            let sample = &fetched.fetch.samples[index];
            let offset_bytes = chunk.offset_bytes + sample.buf_offset as u64;
            report.damages.push(Damage {
                sample: Some(sample.id),
                name: self.directory.name(sample.id).ok().flatten(),
                ..Damage::at(chunk.namespace, offset_bytes, error.report())
            });
        }
    }
}

/// Checks that the chunk's header agrees with the directory; the error names the difference.
fn check_header(bytes: &[u8], chunk: &ChunkInfo, directory: &Directory) -> Result<(), String> {
    let text = |error: FormatError| error.to_string();
    let header = ChunkHeader::parse(bytes).map_err(text)?;
    let head = header.head();
    let cell = chunk.offset_bytes / head.layout.cell_bytes();
    if head.layout.uuid != directory.uuid() {
        return Err(format!("it belongs to image {}", head.layout.uuid));
    }
    head.check_location(&head.layout, chunk.namespace, cell).map_err(text)?;
    if (head.first_slot, u32::from(head.num_samples)) != (chunk.first_slot, chunk.num_slots) {
        return Err(format!(
            "it has {} samples from slot {}, the directory {} from slot {}",
            head.num_samples, head.first_slot, chunk.num_slots, chunk.first_slot
        ));
    }
    let differs = |entry: &SampleEntry<'_>| {
        !entry.pieces.is_empty() && whole(entry.pieces, entry.len_bytes) != Some(entry.crc32c)
    };
    if let Some(entry) = header.samples().find(differs) {
        return Err(format!("its checksums of the pieces of sample {} are wrong", entry.id));
    }
    match header.samples().find(|entry| !agrees(entry, directory)) {
        Some(entry) => Err(format!("it contradicts the directory on sample {}", entry.id)),
        None => Ok(()),
    }
}

/// Returns whether an entry of a chunk's header agrees with the directory.
fn agrees(entry: &SampleEntry<'_>, directory: &Directory) -> bool {
    if directory.id_at(entry.slot) != Some(entry.id) {
        return false; // checked for deleted samples, too: a purge relies on it
    }
    let Some(extent) = directory.extent(entry.id) else { return true }; // deleted since
    let name = directory.name(entry.id).ok().flatten(); // unknown until the names are loaded
    extent.len_bytes == entry.len_bytes
        && extent.crc32c == entry.crc32c
        && name.is_none_or(|name| name == entry.name)
}
