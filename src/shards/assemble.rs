//! Assembles the indexes of all shards into an image: a directory, and the namespace that it describes.

use std::collections::HashSet;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use crate::index::{LONGEST_RUN_BYTES, RUN_BYTES, ShardIndex};
use crate::namespace::{RunAt, ShardNamespace};
use crate::set::ShardSet;
use dlfs_base::units::Generation;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::directory::{Directory, DirectoryBuilder, RunSample};
use dlfs_format::format::geometry::{CELL_BYTES, MAX_NAME_BYTES};
use dlfs_format::format::{ImageLayout, Pack, Uuid};
use dlfs_import::import::OnError;
use dlfs_import::import::shards::Shard;

/// Shards as an image: its only namespace, and its directory.
pub struct ShardImage {
    /// The directory, with the checksums of all samples.
    pub directory: Directory,
    /// The runs of all shards.
    pub namespace: Arc<ShardNamespace>,
}

/// Makes the image of all shards of `set`. `indexes`: the index of each shard, in the order of the shards. Treats names
/// and bad entries as an import does: a name that an earlier shard has gets the name of its shard in front.
///
/// # Errors
/// `BadSource`: there are entries that cannot be read, and the options do not leave them out; or there is no sample.
/// `Stale`: an index has other fields than the set.
pub fn assemble(set: &Arc<ShardSet>, indexes: Vec<ShardIndex>) -> Result<ShardImage> {
    let all_names =
        || indexes.iter().flat_map(|index| (0..index.len()).map(|at| index.name(at))).collect();
    indexes.iter().for_each(|index| set.shards.add_folders(&index.folders));
    let folders = set.shards.folder_classes(all_names);
    let runs = indexes.iter().flat_map(|index| index.runs()).filter(|run| run.samples > 1);
    let longest = runs.map(|run| run.len_bytes).max().unwrap_or(0);
    let longest = longest.clamp(RUN_BYTES, LONGEST_RUN_BYTES) as u32;
    let layout = ImageLayout::new(
        Uuid::from_random_bytes(set.identity().to_le_bytes()),
        longest.next_power_of_two(),
        Pack::Tight,
        1,
    )?;
    let mut assembly = Assembly {
        set,
        builder: DirectoryBuilder::new(layout),
        labels: folders.as_ref().map(|(_, labels)| &labels[..]),
        runs: Vec::new(),
        end_bytes: FIRST_RUN_BYTES,
        names: HashSet::new(),
        bad: set.shards.bad().iter().map(ToString::to_string).collect(),
        is_refused: false,
    };
    let layout = set.shards.layout()?;
    assembly.builder.set_fields(layout.0.clone(), layout.1.clone());
    for (shard, index) in indexes.iter().enumerate() {
        assembly.add(shard, index)?;
    }
    let Assembly { mut builder, runs, end_bytes, bad, is_refused, .. } = assembly;
    if is_refused || set.options.on_error == OnError::Stop && !bad.is_empty() {
        return Err(refused(&bad).target(set.address()));
    }
    bad.iter().for_each(|bad| tracing::warn!("left out: {bad}"));
    if runs.is_empty() {
        let error = Error::new(ErrorKind::BadSource, "the shards have no sample");
        return Err(error.target(set.address()));
    }
    let of_rows = || indexes.iter().map(|index| &index.classes).max_by_key(|all| all.len());
    let classes = folders.map(|(classes, _)| classes).or_else(|| of_rows().cloned());
    builder.set_classes(classes.unwrap_or_default());
    let directory = builder.finish(Generation(1), 0)?;
    let namespace = ShardNamespace::new(Arc::clone(set), indexes, runs, end_bytes);
    Ok(ShardImage { directory, namespace: Arc::new(namespace) })
}

impl ShardSet {
    /// Checks the bad entries of one shard, as [`assemble`] checks those of all shards.
    ///
    /// # Errors
    /// `BadSource`: there are bad entries, and the options do not leave them out.
    pub fn check_entries(&self, shard: usize, index: &ShardIndex) -> Result<()> {
        let stops = self.options.on_error == OnError::Stop;
        if !index.bad.iter().any(|bad| bad.is_newer || stops) {
            return Ok(());
        }
        let bad: Vec<String> = index.bad.iter().map(|bad| bad.text.clone()).collect();
        Err(refused(&bad).path(&self.shards()[shard].path))
    }
}

/// An image that is being assembled, shard by shard.
struct Assembly<'a> {
    set: &'a ShardSet,
    builder: DirectoryBuilder,
    /// The label of each sample, by slot, if labels follow from the names of all shards; `None`: the indexes have them.
    labels: Option<&'a [Option<i64>]>,
    /// The runs so far, by ascending offset.
    runs: Vec<RunAt>,
    /// Offset of the next run in the namespace.
    end_bytes: u64,
    /// Hashes of all names so far.
    names: HashSet<u128>,
    /// The bad entries so far.
    bad: Vec<String>,
    /// Set if there is a bad entry that stops an import even if bad entries are left out.
    is_refused: bool,
}

impl Assembly<'_> {
    /// Adds the samples and runs of the shard with this number.
    fn add(&mut self, shard: usize, index: &ShardIndex) -> Result<()> {
        let (fields, types) = self.set.shards.layout()?;
        let Shard { path, name: prefix, .. } = &self.set.shards()[shard];
        if !index.is_empty() && (&index.fields, &index.types) != (fields, types) {
            let text = "the index of the shard has other fields than those of the first shard";
            return Err(Error::new(ErrorKind::Stale, text).path(path));
        }
        self.set.shards.add_pages(shard, index.pages());
        self.is_refused |= index.bad.iter().any(|bad| bad.is_newer);
        self.bad.extend(index.bad.iter().map(|bad| bad.text.clone()));
        self.builder.grow_columns(&index.columns())?;
        // `None`: the sample is left out. Names in one shard are distinct, so only names of earlier shards matter.
        let names: Vec<Option<Vec<u8>>> =
            (0..index.len()).map(|at| self.name(index.name(at), prefix)).collect();
        for (number, run) in index.runs().iter().enumerate() {
            let first = self.builder.next_slot().0 as usize;
            let labels = self.labels;
            let samples = (0..run.samples as usize).map(|at| {
                let sample = run.first + at;
                let in_index = || index.label(sample);
                RunSample {
                    name: names[sample].as_deref().unwrap_or_default(),
                    len_bytes: index.len_bytes(sample),
                    crc32c: index.crc32c(sample),
                    label: labels.map_or_else(in_index, |labels| labels[first + at]),
                    values: index.values(sample),
                    deleted: names[sample].is_none(),
                }
            });
            self.builder.add_run(self.end_bytes / CELL_BYTES, samples)?;
            self.runs.push(RunAt { offset_bytes: self.end_bytes, shard, in_shard: number });
            self.end_bytes += run.len_bytes.next_multiple_of(CELL_BYTES).max(CELL_BYTES);
        }
        Ok(())
    }

    /// The name in the data set of a sample that its shard calls `name`: with `prefix` and a slash in front if an
    /// earlier shard has the name. `None`: that is taken, too, or too long; the sample becomes a bad entry.
    fn name(&mut self, name: Vec<u8>, prefix: &[u8]) -> Option<Vec<u8>> {
        if self.set.shards.is_numbered() || self.names.insert(xxh3_128(&name)) {
            return Some(name);
        }
        let name = [prefix, b"/", &name].concat();
        if name.len() <= MAX_NAME_BYTES && self.names.insert(xxh3_128(&name)) {
            return Some(name);
        }
        self.bad.push(format!("{}: name appears twice, or is too long", name.escape_ascii()));
        None
    }
}

/// The error that lists bad entries.
fn refused(bad: &[String]) -> Error {
    let shown = bad.iter().take(MOST_SHOWN).map(|bad| format!("\n    {bad}"));
    let more = bad.len().saturating_sub(MOST_SHOWN);
    let more = if more == 0 { String::new() } else { format!("\n    and {more} more") };
    let text = format!(
        "{} entries of the shards cannot be read:{}{more}",
        bad.len(),
        shown.collect::<String>()
    );
    Error::new(ErrorKind::BadSource, text).hint("leave them out, or repair the shards")
}

/// Offset of the first run: behind the cells that an image reserves.
const FIRST_RUN_BYTES: u64 = 1 << 20;
/// Maximum bad entries that an error lists.
const MOST_SHOWN: usize = 20;
