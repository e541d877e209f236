//! Opens a plain folder as an image without an import: its listing becomes the directory.

use std::sync::Arc;

use crate::directory::{Directory, DirectoryBuilder};
use crate::error::{Error, Result};
use crate::format::superblock::SnapshotLocation;
use crate::format::{FormatError, ImageLayout, Pack, Superblock, Uuid};
use crate::qpair::Device;
use crate::qpair::folder::{FOLDER_CELL_BYTES, FolderFile, FolderNamespace};

use super::Image;

/// Makes an image of `folder`.
///
/// # Errors
/// The folder has more files than an image can have samples.
pub(super) fn image_of(folder: Arc<FolderNamespace>) -> Result<Image> {
    let namespace = folder.namespace();
    let uuid = Uuid::from_random_bytes(namespace.nguid);
    let address = namespace.address.clone();
    let directory =
        directory_of(&folder, uuid).map_err(|error| Error::from(error).target(address))?;
    let image = image_with(Arc::clone(&folder) as Arc<dyn Device>, directory);
    Ok(Image { folder: Some(folder), ..image })
}

/// The image of a directory whose samples are on `device`, which has no superblock.
pub(super) fn image_with(device: Arc<dyn Device>, directory: Directory) -> Image {
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

/// Makes the directory, with one chunk for the files of each cell.
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
