//! Decodes one shard, front to back.

use dlfs_base::Result;
use dlfs_base::checksum::crc32c;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_import::import::shards::ShardStream;
use dlfs_import::import::sources::sample_stream::{SampleStream, StreamPlace};

use crate::index::{LONGEST_RUN_BYTES, MAX_RUN_SAMPLES, RUN_BYTES, ShardIndex};
use crate::sample::ShardSample;
use crate::set::ShardSet;

/// Decodes a shard. It stays in the thread that opened it; any number of readers may be open.
pub struct ShardReader<'a> {
    set: &'a ShardSet,
    shard: usize,
    stream: ShardStream<'a>,
    /// The index so far.
    index: ShardIndex,
    /// The place where the last run begins, if it is one to read on from.
    run_at: Option<StreamPlace>,
}

impl ShardSet {
    /// Decodes a shard from its beginning.
    ///
    /// # Errors
    /// Errors of opening it. `BadSource`: it has changed since it was listed.
    pub fn reader(&self, shard: usize) -> Result<ShardReader<'_>> {
        let stream = self.shards.stream(shard, StreamPlace::default(), None)?;
        let index = ShardIndex::default();
        Ok(ShardReader { set: self, shard, stream, index, run_at: None })
    }
}

impl ShardReader<'_> {
    /// The next sample; appends its record to `record`. `None` after the last.
    ///
    /// # Errors
    /// Errors of reading the shard. Entries that cannot be read are no errors: they are in the index.
    pub fn next(&mut self, record: &mut Vec<u8>) -> Result<Option<ShardSample>> {
        let mut place = self.stream.place();
        let next = self.stream.next_sample();
        self.index.note_bad(self.stream.take_bad());
        let Some(mut sample) = next? else { return Ok(None) };
        let start = record.len();
        let len_bytes = sample.put_record(record)?;
        let found = ShardSample {
            name: std::mem::take(&mut sample.name),
            label: sample.label,
            len_bytes,
            crc32c: crc32c(&record[start..]),
            values: std::mem::take(&mut sample.values),
        };
        self.stream.give_back(sample);
        // In a compressed shard, a place is reached only through all that comes before it.
        place = place.filter(|_| !self.stream.is_packed());
        if self.index.runs().is_empty() {
            self.run_at = Some(StreamPlace::default());
            self.index.begin_run(self.run_at);
        } else if self.is_full(place, len_bytes) {
            self.run_at = place;
            self.index.begin_run(self.run_at);
        }
        self.index.push(&found, place, || self.stream.columns());
        Ok(Some(found))
    }

    /// Returns whether the sample just read, from `place`, begins a run, so that the run before is read by one range.
    fn is_full(&self, place: Option<StreamPlace>, len_bytes: u32) -> bool {
        let Some(run) = self.index.runs().last() else { return true };
        let read = self.stream.place().zip(self.run_at).map(|(place, begin)| {
            if self.stream.is_packed() { 0 } else { place.offset.saturating_sub(begin.offset) }
        });
        let len_bytes = run.len_bytes + u64::from(len_bytes);
        // A row within a row group shares pages with those before it, so a run has whole groups.
        let is_within = place.is_some_and(is_within_group);
        let is_long = len_bytes > RUN_BYTES || read.unwrap_or(0) > RUN_BYTES;
        run.samples == MAX_RUN_SAMPLES || is_long && !is_within || len_bytes > LONGEST_RUN_BYTES
    }

    /// The typed columns, known with the first sample.
    pub fn columns(&self) -> Vec<ColumnSpec> {
        self.stream.columns()
    }

    /// Reads on to the end of the shard, and returns its index.
    ///
    /// # Errors
    /// As [`next`](Self::next). `BadSource`: the shard changed while it was read.
    pub fn finish(mut self) -> Result<ShardIndex> {
        let mut record = Vec::new();
        while self.next(&mut record)?.is_some() {
            record.clear();
        }
        self.set.shards.check(self.shard)?;
        let (fields, types) = self.set.shards.layout()?;
        self.index.describe(fields, types, self.stream.classes());
        if self.index.runs().iter().any(|run| run.place.is_some_and(is_within_group)) {
            self.index.pages = self.set.shards.pages(self.shard);
        }
        Ok(self.index)
    }
}

/// Returns whether rows of the same row group lie before a place in a Parquet file.
fn is_within_group(place: StreamPlace) -> bool {
    place.offset > 0 && place.left_out > 0
}
