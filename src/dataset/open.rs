//! Opens an image: connects, reads superblocks and snapshot, and makes the directory.
//!
//! Plain folders and shards are opened as images, too, without an import: their listing, or their indexes, become the
//! directory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::image::{REBUILD, SharedSnapshot, read_directory};
use super::{Image, ViewSource, is_abandoned};
use crate::address::Address;
use crate::buf::SealedLocation;
use crate::cache::TierOptions;
use crate::catalog::{self, Resolved};
use crate::directory::{Bytes, Directory, DirectoryBuilder};
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::format::snapshot::{SNAPSHOT_HEAD_BYTES, SnapshotHead};
use crate::format::superblock::SnapshotLocation;
use crate::format::superblock_set::{
    Candidate, IMPORT, Several, SuperblockCopies, SuperblockSet, choose,
    saved_at_another_generation, select_generation,
};
use crate::format::{FormatError, ImageLayout, Pack, Superblock, Uuid};
use crate::import::{Progress, Stage};
use crate::places::Place;
use crate::qpair::folder::{FOLDER_CELL_BYTES, FolderFile, FolderNamespace};
use crate::qpair::{self, ConnectOptions, Device};
use crate::reader::read_superblocks;
use crate::shards::{ShardImage, ShardOptions, ShardSet, assemble};

/// Options to open an image.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Options of the connections to its namespaces.
    pub connect: ConnectOptions,
    /// A saved snapshot of the directory, used instead of the one on the image.
    pub snapshot: Option<PathBuf>,
    /// Location of a snapshot that another process of this machine shares: [`Image::share_snapshot`]. Ignored
    /// if the snapshot is not there, or is not the one that the image has committed.
    pub shared_snapshot: Option<SealedLocation>,
    /// The tiers in front of the namespaces.
    pub tiers: TierOptions,
    /// The view to open, instead of all samples.
    pub view: Option<ViewSource>,
    /// Opens tar archives, tables and other shards as the samples in them, instead of files.
    pub shards: Option<ShardOptions>,
}

impl Image {
    /// Opens the image on `addresses`, which may be in any order, or a name in a catalogue: of a name with
    /// several sites, the first copy that can be opened. The address of a subsystem, without `?ns=`, stands for
    /// all of its namespaces that hold the image. A plain folder is an image too; its checksums are learned when
    /// its files are first read. With [`OpenOptions::shards`], so are shards.
    ///
    /// # Errors
    /// Errors of connecting. `NotFound`: there is no image. `InvalidArgument`: the namespaces are not one
    /// whole image. `Unsupported`: a later release wrote it. `Corrupt`: superblock or snapshot is damaged;
    /// the chunks may still be intact, and `rebuild` finds them. `Stale`: the saved snapshot or the view
    /// belongs to another generation, or the catalogue's name stands for another generation. Errors of
    /// [`ViewSource`].
    pub fn open(addresses: &[Address], options: &OpenOptions) -> Result<Image> {
        let Resolved { sites, named } = catalog::resolve(addresses)?;
        let mut failed = None;
        for site in &sites {
            match Image::open_at(site, options) {
                Ok(image) => {
                    if let Some(named) = &named {
                        let superblock = &image.superblocks[0];
                        named.check(superblock.layout.uuid, superblock.generation)?;
                    }
                    return Ok(image);
                }
                Err(error) if sites.len() > 1 => {
                    let site = Address::list_to_string(site);
                    tracing::warn!("the copy of the image at {site} cannot be opened: {error}");
                    failed.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed.expect("there is a site, and each has failed"))
    }

    /// Opens the image on resolved addresses.
    fn open_at(addresses: &[Address], options: &OpenOptions) -> Result<Image> {
        if let Some(shards) = &options.shards {
            let progress = &mut Logged { last: Instant::now(), samples: 0 };
            let set = Arc::new(shard_set(addresses, shards, &options.connect, progress)?);
            return image_of_set(&set)?.with_tiers_and_view(options);
        }
        if let [Address::Path(path)] = addresses
            && path.is_dir()
        {
            let folder = FolderNamespace::open(path, options.connect.folders)?;
            return image_of_folder(folder)?.with_tiers_and_view(options);
        }
        if let [Address::Objects(place)] = addresses {
            let place = Place::parse(place)?;
            let folder = FolderNamespace::open_objects(&place, &options.connect)?;
            return image_of_folder(folder)?.with_tiers_and_view(options);
        }
        let opened = qpair::open_all(addresses, &options.connect)?;
        let is_named = opened.iter().flat_map(|found| found.iter().map(|_| found.len() == 1));
        let is_named: Vec<bool> = is_named.collect();
        let devices: Vec<Arc<dyn Device>> = opened.into_iter().flatten().collect();
        let copies = read_superblocks(&devices)?;
        let chosen = chosen(&devices, &copies, &is_named)?;
        let devices = chosen.iter().map(|&at| Arc::clone(&devices[at])).collect();
        Image::of_copies(devices, chosen.iter().map(|&at| copies[at].clone()).collect(), options)
    }

    /// Opens the image on namespaces that are already open: see [`Image::open`].
    ///
    /// # Errors
    /// Errors of [`Image::open`], except those of connecting.
    pub fn from_devices(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Image> {
        let copies = read_superblocks(&devices)?;
        Image::of_copies(devices, copies, options)
    }

    /// Opens the image whose superblock copies are `copies`.
    fn of_copies(
        devices: Vec<Arc<dyn Device>>,
        copies: Vec<SuperblockCopies>,
        options: &OpenOptions,
    ) -> Result<Image> {
        let mut opened = select_superblocks(&devices, &copies)?;
        let devices: Vec<_> = opened.given.iter().map(|&i| Arc::clone(&devices[i])).collect();
        check_sizes(&opened, &devices)?;
        let shared = options.shared_snapshot.as_ref();
        let (directory, snapshot) = match shared.and_then(|at| SharedSnapshot::open(at, &opened)) {
            Some(found) => found,
            None => {
                let (directory, bytes) = match &options.snapshot {
                    None => read_directory(&opened, &devices)?,
                    Some(path) => read_saved(path, &opened).map_err(|error| error.path(path))?,
                };
                (directory, SharedSnapshot::new(bytes))
            }
        };
        let address = || devices[0].namespace().address;
        directory
            .check_opened(&mut opened)
            .map_err(|error| Error::from(error).target(address()).hint(REBUILD))?;
        check_sizes(&opened, &devices)?;
        let SuperblockSet { superblocks, bad_copies, .. } = opened;
        let snapshot = Some(Arc::new(snapshot));
        let image = Image::new(devices, superblocks, directory);
        let image = Image { bad_copies, snapshot, ..image };
        image.with_tiers_and_view(options)
    }

    /// The image behind the tiers of `options`, and their view of it. Tiers in remote namespaces use the data set's
    /// connection options.
    pub(super) fn with_tiers_and_view(self, options: &OpenOptions) -> Result<Image> {
        let tiers = TierOptions { connect: options.connect.clone(), ..options.tiers.clone() };
        let image = self.with_tiers(&tiers)?;
        options.view.as_ref().map_or_else(|| Ok(image.clone()), |source| source.open(&image))
    }
}

/// Indices in `devices` of the namespaces that hold the image: all, unless an address named a subsystem with several.
/// `is_named`: for each device, true if an address named that namespace alone.
fn chosen(
    devices: &[Arc<dyn Device>],
    copies: &[SuperblockCopies],
    is_named: &[bool],
) -> Result<Vec<usize>> {
    if is_named.iter().all(|is_named| *is_named) {
        return Ok((0..devices.len()).collect());
    }
    let candidates = copies.iter().zip(is_named);
    let candidates: Vec<Candidate> = candidates
        .map(|(copies, &is_named)| Candidate { copies: copies.clone(), is_named })
        .collect();
    let chosen = choose(&candidates).map_err(|Several(images)| {
        let name = |at: &usize| devices[*at].namespace().address;
        let list = images.iter().map(|(uuid, places)| {
            format!("{uuid} at {}", places.iter().map(name).collect::<Vec<_>>().join(","))
        });
        let message =
            format!("{} images lie there: {}", images.len(), list.collect::<Vec<_>>().join("; "));
        invalid(message).hint("name the namespaces of one with ?ns=")
    })?;
    if chosen.is_empty() {
        let subsystem = devices[0].namespace().address;
        let message = format!("none of {} namespaces holds a dlfs image", devices.len());
        return Err(Error::new(ErrorKind::NotFound, message).target(subsystem).hint(IMPORT));
    }
    Ok(chosen)
}

/// Selects the generation to open, and warns of an unfinished import and of bad superblock copies.
fn select_superblocks(
    devices: &[Arc<dyn Device>],
    copies: &[SuperblockCopies],
) -> Result<SuperblockSet> {
    let opened = select_generation(copies).map_err(|error| match devices {
        [only] => error.target(only.namespace().address),
        _ => error,
    })?;
    if opened.unfinished {
        tracing::warn!("an import of this image did not end; `dlfs import --resume` completes it");
    }
    for copy in &opened.bad_copies {
        tracing::warn!("{}", copy.advice(opened.superblock().generation));
    }
    Ok(opened)
}

/// Reports a truncated namespace now, before a read past its end fails.
fn check_sizes(opened: &SuperblockSet, devices: &[Arc<dyn Device>]) -> Result<()> {
    opened.check_lengths(devices.iter().map(|device| {
        let namespace = device.namespace();
        (namespace.len_bytes(), namespace.address)
    }))
}

/// The directory of a snapshot that was saved to a file. Reads at most the length of the image's own
/// snapshot.
fn read_saved(path: &Path, opened: &SuperblockSet) -> Result<(Directory, Bytes)> {
    let superblock = opened.superblock();
    let most = superblock.snapshot.len_bytes.max(SNAPSHOT_HEAD_BYTES as u64);
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    let head = SnapshotHead::parse(&bytes)?;
    if head.layout.uuid != superblock.layout.uuid {
        return Err(invalid(format!(
            "the snapshot belongs to image {}, and this is image {}",
            head.layout.uuid, superblock.layout.uuid
        )));
    }
    if head.generation != superblock.generation {
        return Err(saved_at_another_generation(head.generation, superblock.generation));
    }
    // The same generation with other bytes: saved before a rebuild, or of an aborted import.
    let another = |error: FormatError| {
        let text = "the snapshot is not the one that the image has committed";
        Error::new(ErrorKind::Stale, text).source(error).hint("save it again: dlfs snapshot save")
    };
    head.check_committed(superblock).map_err(another)?;
    let bytes = Bytes::from(bytes);
    let directory = Directory::from_snapshot(bytes.clone())?;
    directory.check_current(superblock).map_err(another)?;
    Ok((directory, bytes))
}

/// Makes an image of `folder`.
///
/// # Errors
/// The folder has more files than an image can have samples.
fn image_of_folder(folder: FolderNamespace) -> Result<Image> {
    let folder = Arc::new(folder);
    let namespace = folder.namespace();
    let uuid = Uuid::from_random_bytes(namespace.nguid);
    let address = namespace.address.clone();
    let directory =
        directory_of(&folder, uuid).map_err(|error| Error::from(error).target(address))?;
    let image = image_with(Arc::clone(&folder) as Arc<dyn Device>, directory);
    Ok(Image { folder: Some(folder), ..image })
}

/// The image of a directory whose samples are on `device`, which has no superblock.
fn image_with(device: Arc<dyn Device>, directory: Directory) -> Image {
    let superblock = Superblock {
        layout: *directory.layout(),
        namespace: 0,
        generation: directory.generation(),
        time_ns: directory.time_ns(),
        optional_features: 0,
        placement_seed: 0,
        used_len_bytes: device.namespace().len_bytes(),
        snapshot: SnapshotLocation::default(),
        num_samples: directory.num_samples(),
        num_live: directory.num_live(),
        features_to_write: 0,
    };
    Image::new(vec![device], vec![superblock], directory)
}

/// Makes the directory of a folder, with one chunk for the files of each cell of [`FOLDER_CELL_BYTES`].
fn directory_of(folder: &FolderNamespace, uuid: Uuid) -> Result<Directory, FormatError> {
    let layout = ImageLayout::new(uuid, FOLDER_CELL_BYTES as u32, Pack::Paged, 1)?;
    let mut builder = DirectoryBuilder::new(layout);
    let cell = |file: &FolderFile| file.offset_bytes / FOLDER_CELL_BYTES;
    for files in folder.files().chunk_by(|a, b| cell(a) == cell(b)) {
        let samples = files.iter().map(|file| {
            let len = u32::try_from(file.len_bytes).expect("the listing refuses longer files");
            (&file.name[..], len, file.class.map(i64::from))
        });
        let start = cell(&files[0]) * FOLDER_CELL_BYTES;
        builder.add_files(start / layout.cell_bytes(), samples)?;
    }
    builder.set_classes(folder.classes().to_vec());
    let newest = folder.files().iter().map(FolderFile::modified_ns).max();
    builder.finish_unread(newest.unwrap_or(0))
}

/// Makes an image of the shards of `set`. Makes the indexes that are not kept.
///
/// # Errors
/// Errors of [`ShardSet::index`] and [`assemble`].
pub(super) fn image_of_set(set: &Arc<ShardSet>) -> Result<Image> {
    let progress = &mut Logged { last: Instant::now(), samples: 0 };
    let indexes = set.index(progress)?.indexes;
    let ShardImage { directory, namespace } = assemble(set, indexes)?;
    Ok(image_with(namespace as Arc<dyn Device>, directory))
}

/// Progress of indexing, in the log: an opening may read all shards.
struct Logged {
    /// Time of the last line, or of the start.
    last: Instant,
    /// Samples indexed so far.
    samples: u64,
}

impl Progress for Logged {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {
        self.samples = 0;
    }

    fn advance(&mut self, samples: u64, _: u64) {
        self.samples += samples;
        if self.last.elapsed() >= LOG_INTERVAL {
            self.last = Instant::now();
            tracing::warn!(
                "indexing shards: {} samples so far; `dlfs index` does it beforehand",
                self.samples
            );
        }
    }

    /// Indexing may take hours, so it ends when nobody waits for the image any more.
    fn stop(&mut self) -> bool {
        is_abandoned()
    }
}

/// Lists the shards at `addresses`, which are reached as `connect` says.
///
/// # Errors
/// `InvalidArgument`: an address is neither a path nor a store. Errors of [`ShardSet::open`].
pub fn shard_set(
    addresses: &[Address],
    options: &ShardOptions,
    connect: &ConnectOptions,
    progress: &mut dyn Progress,
) -> Result<ShardSet> {
    let source = |address: &Address| match address {
        Address::Path(path) => Ok(path.clone()),
        Address::Objects(place) => Ok(PathBuf::from(place)),
        other => Err(invalid("shards are files, or objects of a store").target(other.to_string())),
    };
    let sources = addresses.iter().map(source).collect::<Result<Vec<_>>>()?;
    let mut options = options.clone();
    options.import.places = connect.places.clone();
    options.import.folders = connect.folders;
    ShardSet::open(&sources, &options, progress)
}

/// Shortest time between two lines of the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
