//! Images in catalogues: adds an image as a version of a name, with a record of it and an index of its chunks.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::address::{Address, CatalogName};
use crate::catalog::{Catalog, Index, Parent, Record};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ChunkHead;
use crate::qpair::ConnectOptions;
use crate::reader::RangeReader;
use crate::units::{ALIGN_BYTES, Generation};

use super::{Image, OpenOptions};

/// The origin of a generation, for the record in a catalogue.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// The operation that made it: `import`, `append`, `delete`, `purge`; empty if an existing image was
    /// added.
    pub made_by: String,
    /// The sources of an import, as the user named them.
    pub sources: Vec<String>,
    /// The labels that users gave the generation.
    pub labels: BTreeMap<String, String>,
}

impl Image {
    /// A catalogue's record of this image at `sites`.
    ///
    /// # Errors
    /// `InvalidArgument`: the image is a plain folder, which has no generations. Errors of making a path absolute.
    pub fn record(&self, sites: &[Vec<Address>], origin: Origin) -> Result<Record> {
        let superblock =
            self.superblocks().first().filter(|_| self.directory().learned().is_none());
        let Some(superblock) = superblock else {
            let message = "a plain folder cannot be in a catalogue: it has no generations";
            return Err(Error::new(ErrorKind::InvalidArgument, message).hint("import it"));
        };
        let directory = self.directory();
        let live = (0..directory.num_live()).map(|rank| directory.id_of_live(rank));
        let bytes = live.map(|id| u64::from(directory.len_bytes(id).unwrap_or(0))).sum();
        let text = |field: &Vec<u8>| String::from_utf8_lossy(field).into_owned();
        let image = superblock.layout.uuid.to_string();
        let generation = superblock.generation.0;
        let parent =
            (generation > 1).then(|| Parent { image: image.clone(), generation: generation - 1 });
        Ok(Record {
            image,
            generation,
            sites: sites.iter().map(|site| absolute(site)).collect::<Result<_>>()?,
            samples: directory.num_live(),
            bytes,
            chunks: directory.num_chunks().into(),
            snapshot: format!(
                "crc32c:{:08x},{} bytes",
                superblock.snapshot.head_crc32c, superblock.snapshot.len_bytes
            ),
            fields: directory.fields().iter().map(text).collect(),
            parent,
            sources: origin.sources,
            made_by: origin.made_by,
            dlfs: format!("{} ({})", env!("CARGO_PKG_VERSION"), crate::COMMIT),
            committed_s: superblock.time_ns / 1_000_000_000,
            labels: origin.labels,
        })
    }

    /// The index of this image's chunks, for a catalogue. Reads 4 KiB, the head, of each chunk that `known`
    /// lacks.
    ///
    /// # Errors
    /// Errors of reading. `Corrupt`: a chunk does not begin with a head.
    pub(crate) fn chunk_index(&self, known: Option<&Index>) -> Result<Index> {
        let directory = self.directory();
        let known = known.filter(|known| known.image == directory.uuid().to_string());
        let mut readers: BTreeMap<u16, RangeReader> = BTreeMap::new();
        Index::of(directory, |c| {
            let id = directory.chunk_id(c);
            if let Some(entry) = known.and_then(|known| known.chunk(id)) {
                return Ok(entry.time_ns);
            }
            let chunk = directory.chunk(c);
            let reader = match readers.entry(chunk.namespace) {
                Entry::Occupied(reader) => reader.into_mut(),
                Entry::Vacant(vacant) => {
                    let device = &self.devices()[usize::from(chunk.namespace)];
                    vacant.insert(RangeReader::new(device)?)
                }
            };
            let block = reader.read(chunk.offset_bytes, ALIGN_BYTES as u64)?;
            let head = ChunkHead::parse(&block)?;
            Ok::<u64, Error>(head.time_ns)
        })
    }
}

/// Adds the image at `image` (addresses, or a name in a catalogue) to a catalogue as the newest version of `name`: its
/// record, and the index of its chunks. Returns the version's number.
///
/// # Errors
/// `InvalidArgument`: `name` has a version. Errors of opening the catalogue, of [`Image::open`], [`Image::record`] and
/// [`Catalog::add`]. Errors of reading chunks for the index, and of writing it: the version has then been added.
pub fn add(
    name: &CatalogName,
    image: &[Address],
    connect: &ConnectOptions,
    origin: Origin,
) -> Result<u64> {
    if let Some(version) = &name.version {
        let message =
            format!("a new version cannot be called {version}: it is the newest of {}", name.name);
        return Err(Error::new(ErrorKind::InvalidArgument, message)
            .target(name.to_string())
            .hint("leave out what stands behind the @, and give it an alias: dlfs catalog tag"));
    }
    let catalog = Catalog::open(&name.catalog)?;
    let sites = crate::catalog::resolve(image)?.sites;
    let options = OpenOptions { connect: connect.clone(), ..OpenOptions::default() };
    let opened = Image::open(&sites[0], &options)?;
    let number = catalog.add(&name.name, &opened.record(&sites, origin)?)?;
    // A lost or damaged index is built again.
    let known = catalog.index(&name.name).unwrap_or_default();
    catalog.set_index(&name.name, &opened.chunk_index(known.as_ref())?)?;
    Ok(number)
}

/// Adds the generation that was just committed to the catalogue, if `image` is a name in one. The new version keeps the
/// labels of the one that was named. The commit stands in any case: a failure here is only a warning, with a remedy. It
/// also warns if the version was added and only its index failed.
pub fn committed(
    image: &[Address],
    generation: Generation,
    connect: &ConnectOptions,
    made_by: &str,
) {
    let [Address::Named(name)] = image else { return };
    let newest = name.with_version(None);
    let tell = || -> Result<()> {
        let catalog = Catalog::open(&name.catalog)?;
        // The version that was named: the newest may be of another image.
        let (_, before) = catalog.find(&name.name, name.version.as_ref())?;
        if before.generation == generation.0 {
            return Ok(()); // a purge that found nothing to do
        }
        let sites = before.addresses()?;
        // Only the first site has the new generation: the copies on other sites are now of an older one.
        let origin =
            Origin { made_by: made_by.to_owned(), labels: before.labels, ..Origin::default() };
        add(&newest, &sites[0], connect, origin).map(drop)
    };
    if let Err(error) = tell() {
        tracing::warn!(
            "generation {generation} is committed, but {newest} in the catalogue does not know it ({error}): run dlfs \
             catalog add"
        );
    }
}

/// The addresses as one string, with absolute paths.
fn absolute(site: &[Address]) -> Result<String> {
    let absolute = |address: &Address| match address {
        Address::Path(path) => {
            let found = std::path::absolute(path);
            found.map(Address::Path).map_err(|error| Error::from(error).path(path))
        }
        other => Ok(other.clone()),
    };
    let addresses: Vec<Address> = site.iter().map(absolute).collect::<Result<_>>()?;
    Ok(Address::list_to_string(&addresses))
}
