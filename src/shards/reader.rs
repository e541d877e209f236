//! Decodes one shard front to back: returns its samples, and indexes them on the way.

use crate::index::{
    LONGEST_RUN_BYTES, MAX_RUN_SAMPLES, RUN_BYTES, ShardIndex, ShardSample, is_within_group,
};
use crate::set::ShardSet;
use dlfs_base::Result;
use dlfs_base::checksum::crc32c;
use dlfs_format::format::columns::ColumnSpec;
use dlfs_import::import::shards::ShardStream;
use dlfs_import::import::sources::sample_stream::{SampleStream, StreamPlace};

/// Decodes a shard. It stays in the thread that opened it; any number of readers may be open.
pub struct ShardReader<'a> {
    set: &'a ShardSet,
    /// Number of the shard in the set.
    shard: usize,
    stream: ShardStream<'a>,
    /// The index of the samples so far.
    index: ShardIndex,
}

impl ShardSet {
    /// A reader at the beginning of a shard.
    ///
    /// # Errors
    /// Errors of opening the shard. `BadSource`: it has changed since it was listed.
    pub fn reader(&self, shard: usize) -> Result<ShardReader<'_>> {
        let stream = self.shards.stream(shard, StreamPlace::default(), None)?;
        Ok(ShardReader { set: self, shard, stream, index: ShardIndex::default() })
    }
}

impl ShardReader<'_> {
    /// The next sample; appends its record to `record`. `None` after the last.
    ///
    /// # Errors
    /// Errors of reading the shard. Entries that cannot be read are no errors: the index lists them.
    pub fn next(&mut self, record: &mut Vec<u8>) -> Result<Option<ShardSample>> {
        let place = self.stream.place();
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
        // Decoding cannot begin in the middle of a compressed shard.
        let place = place.filter(|_| !self.stream.is_packed());
        if self.begins_run(place, len_bytes) {
            let is_first = self.index.is_empty();
            self.index.begin_run(if is_first { Some(StreamPlace::default()) } else { place });
        }
        self.index.push(&found, place, || self.stream.columns());
        Ok(Some(found))
    }

    /// Begins to decode, if shards of this kind are decoded ahead of [`next`](Self::next).
    pub(crate) fn begin_ahead(&mut self) -> Result<()> {
        self.stream.begin_ahead()
    }

    /// Returns whether the whole shard was decoded ahead.
    pub(crate) fn is_decoded(&self) -> bool {
        self.stream.is_decoded()
    }

    /// Returns whether the sample just decoded begins a run: the first sample does, and one behind a full run. `place`:
    /// where decoding the sample can begin; `len_bytes`: length of its record.
    fn begins_run(&self, place: Option<StreamPlace>, len_bytes: u32) -> bool {
        let Some(run) = self.index.runs().last() else { return true };
        // A run is read as one range of its shard, which may have more bytes than the records.
        let range_bytes = match self.stream.place().zip(run.place) {
            Some((end, begin)) if !self.stream.is_packed() => {
                end.offset.saturating_sub(begin.offset)
            }
            _ => 0,
        };
        let records_bytes = run.len_bytes + u64::from(len_bytes);
        // The rows of a row group share pages, so a run has whole groups unless they are too long.
        let is_within = place.is_some_and(is_within_group);
        let is_long = records_bytes > RUN_BYTES || range_bytes > RUN_BYTES;
        run.samples == MAX_RUN_SAMPLES || is_long && !is_within || records_bytes > LONGEST_RUN_BYTES
    }

    /// The typed columns, known with the first sample.
    pub fn columns(&self) -> Vec<ColumnSpec> {
        self.stream.columns()
    }

    /// Decodes the rest of the shard, and returns the index of the whole shard.
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
        self.index.folders = self.stream.folders().to_vec();
        self.index.set_pages(self.set.shards.pages(self.shard));
        Ok(self.index)
    }
}
