//! Opens the namespaces of an image, to read, change or create it. An address may name a subsystem with several
//! namespaces: [`Meaning`] says for which of them the address stands.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalog::{self, Named, Resolved};
use crate::import::media::Media;
use crate::import::options::Onto;
use dlfs_base::units::ALIGN_BYTES;
use dlfs_base::{Error, ErrorKind, Result};
use dlfs_format::format::superblock_set::{Candidate, choose};
use dlfs_io::address::Address;
use dlfs_io::qpair::file::{FileCalls, FileNamespace, FileOptions};
use dlfs_io::qpair::{self, ConnectOptions, Device};

/// The namespaces that an address without `?ns=` may stand for, if a subsystem has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The namespaces of the only image there.
    OfImage,
    /// All namespaces, if they are those of a single image: a change of the image writes to each.
    AllOfImage,
    /// No namespace: an import that overwrites data must not guess.
    Nothing,
}

/// Opens the namespaces of an existing image: for writing if `connect` says so, or for [`Meaning::AllOfImage`].
///
/// # Errors
/// Errors of opening. `InvalidArgument`: an address does not say which of several namespaces is meant.
pub(super) fn open_image(
    image: &[Address],
    connect: &ConnectOptions,
    meaning: Meaning,
) -> Result<Vec<Arc<dyn Device>>> {
    // With digests, data need not be read back after a transfer over a network.
    let writable = connect.writable || meaning == Meaning::AllOfImage;
    let prefer_digests = connect.prefer_digests || writable;
    let connect = ConnectOptions { writable, prefer_digests, ..connect.clone() };
    let Resolved { sites, named } = catalog::resolve(image)?;
    // Only one site's copy is written. The other copies are outdated afterwards.
    let image = &sites[0];
    let devices = one_each(image, qpair::open_all(image, &connect)?, meaning)?;
    named.iter().try_for_each(|named| check_named(named, &devices))?;
    Ok(devices)
}

/// Refuses an image or generation other than the one that a name stands for: compares the first superblock that can be
/// read. Damaged superblocks are ignored here.
fn check_named(named: &Named, devices: &[Arc<dyn Device>]) -> Result<()> {
    let media = Media::for_reading(devices.to_vec())?;
    let mut channel = media.channel();
    for namespace in 0..media.len() {
        if let Some(newest) = channel.superblocks(namespace)?.newest() {
            return named.check(newest.layout.uuid, newest.generation);
        }
    }
    Ok(())
}

/// Runs `work`, which lists the files that it creates. If `work` fails, these files are removed.
pub(super) fn or_remove<T>(work: impl FnOnce(&mut Vec<PathBuf>) -> Result<T>) -> Result<T> {
    let mut created = Vec::new();
    work(&mut created).inspect_err(|_| remove(&created))
}

/// Removes created files.
pub(super) fn remove(created: &[PathBuf]) {
    for path in created {
        // If this fails, the user sees the file and can delete it.
        let _ = std::fs::remove_file(path);
    }
}

/// Opens the namespaces of an image to import onto it. Unless the import appends, creates missing files, and adds them
/// to `created`.
///
/// # Errors
/// As [`open_image`]; errors of creating files.
pub(super) fn open_for_import(
    image: &[Address],
    onto: Onto,
    connect: &ConnectOptions,
    calls: FileCalls,
    created: &mut Vec<PathBuf>,
) -> Result<Vec<Arc<dyn Device>>> {
    let Resolved { sites, named } = catalog::resolve(image)?;
    let image = &sites[0][..];
    if let Some(named) = named.as_ref().filter(|_| onto != Onto::Append) {
        let message = "a name in a catalogue stands for an image that exists";
        return Err(Error::new(ErrorKind::InvalidArgument, message)
            .target(named.name.to_string())
            .hint(
                "append to it with --append, or give the new image's addresses and --catalog NAME",
            ));
    }
    let remote: Vec<Address> =
        image.iter().filter(|address| !matches!(address, Address::Path(_))).cloned().collect();
    let mut connect = ConnectOptions { writable: true, prefer_digests: true, ..connect.clone() };
    // `open_all` would give a single address all paths, also those of files beside it.
    if let [only] = &remote[..]
        && image.len() > 1
    {
        connect.paths.retain(|path| path.is_same_namespace(only));
    }
    let meaning = if onto == Onto::Append { Meaning::AllOfImage } else { Meaning::Nothing };
    if onto == Onto::Empty {
        image.iter().try_for_each(refuse_half_block)?;
    }
    let mut opened = qpair::open_all(&remote, &connect)?.into_iter();
    let mut devices = Vec::with_capacity(image.len());
    for address in image {
        devices.push(match address {
            Address::Path(path) => {
                let (device, is_new) = open_file(path, &connect, onto != Onto::Append, calls)?;
                created.extend(is_new.then(|| path.clone()));
                vec![device]
            }
            _ => opened.next().expect("opened above"),
        });
    }
    let devices = one_each(image, devices, meaning)?;
    named.iter().try_for_each(|named| check_named(named, &devices))?;
    Ok(devices)
}

/// Opens a file, or a block device. Returns whether the file is new, too.
fn open_file(
    path: &Path,
    connect: &ConnectOptions,
    may_create: bool,
    calls: FileCalls,
) -> Result<(Arc<dyn Device>, bool)> {
    let found = std::fs::metadata(path);
    let is_block_device = found.is_ok_and(|found| found.file_type().is_block_device());
    let calls = if is_block_device { FileCalls::Auto } else { calls };
    let options = FileOptions {
        direct: connect.direct,
        writable: true,
        or_lease: true,
        create_len: may_create.then_some(0),
        private: false, // others may read an image, too
        calls,
    };
    let is_new = !path.exists();
    Ok((Arc::new(FileNamespace::open(path, options)?), is_new))
}

/// Refuses a file that ends within a block. A namespace consists of whole blocks, so the last bytes would be
/// overwritten without notice. No image ends that way, so the file holds other data.
fn refuse_half_block(address: &Address) -> Result<()> {
    let Address::Path(path) = address else { return Ok(()) };
    let is_half = |len: u64| !len.is_multiple_of(ALIGN_BYTES as u64);
    if std::fs::metadata(path).is_ok_and(|found| found.is_file() && is_half(found.len())) {
        return Err(Error::new(ErrorKind::Refused, "there is other data here already")
            .path(path)
            .hint("overwrite it with --force"));
    }
    Ok(())
}

/// The namespaces that the addresses `image` stand for, of the `devices` of each.
///
/// # Errors
/// `InvalidArgument`: an address stands for several namespaces, and `meaning` does not choose. Errors of reading.
fn one_each(
    image: &[Address],
    devices: Vec<Vec<Arc<dyn Device>>>,
    meaning: Meaning,
) -> Result<Vec<Arc<dyn Device>>> {
    let is_ambiguous = |devices: &Vec<Arc<dyn Device>>| devices.len() > 1;
    let Some(at) = devices.iter().position(is_ambiguous) else {
        return Ok(devices.into_iter().flatten().collect());
    };
    let names = || devices[at].iter().map(|device| device.namespace().address);
    let several = || qpair::ambiguous(&image[at], names());
    if meaning == Meaning::Nothing {
        return Err(several());
    }
    let is_named = devices.iter().flat_map(|found| found.iter().map(|_| found.len() == 1));
    let all: Vec<Arc<dyn Device>> = devices.iter().flatten().cloned().collect();
    let copies = Media::for_reading(all.clone())?.superblocks()?.into_iter();
    let candidate = |(copies, is_named)| Candidate { copies, is_named };
    let candidates: Vec<Candidate> = copies.zip(is_named).map(candidate).collect();
    let chosen = choose(&candidates).map_err(|_| several())?;
    let has_image = chosen.iter().all(|&at| candidates[at].copies.newest().is_some());
    if chosen.is_empty()
        || meaning == Meaning::AllOfImage && (chosen.len() < all.len() || !has_image)
    {
        return Err(several());
    }
    Ok(chosen.into_iter().map(|at| Arc::clone(&all[at])).collect())
}
