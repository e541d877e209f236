//! The data sets: imported once from archives generated here, and kept for the next run.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use dlfs::address::Address;
use dlfs::import::{ImportOptions, import};
use dlfs::qpair::ConnectOptions;

use crate::stats::Random;
use crate::support::files::make_files;

/// A data set of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Data {
    /// 262,144 samples of 4 KiB: 1 GiB.
    Small,
    /// 1,048,576 samples of 4 KiB: 4 GiB.
    Large,
    /// 10,000 samples with the lengths of ImageNet's pictures: log-normal, mean 110 KiB.
    Pictures,
    /// 128 samples of 8 MiB: 1 GiB.
    Long,
    /// 1,000,000 samples of 100 bytes.
    Tiny,
    /// 262,144 samples of 1 KiB.
    Short,
}

impl Data {
    fn name(self) -> &'static str {
        match self {
            Data::Small => "small",
            Data::Large => "large",
            Data::Pictures => "pictures",
            Data::Long => "long",
            Data::Tiny => "tiny",
            Data::Short => "short",
        }
    }

    fn count(self) -> u64 {
        match self {
            Data::Small | Data::Short => 1 << 18,
            Data::Large => 1 << 20,
            Data::Pictures => 10_000,
            Data::Long => 128,
            Data::Tiny => 1_000_000,
        }
    }

    fn next_len(self, random: &mut Random) -> usize {
        match self {
            Data::Small | Data::Large => 4096,
            Data::Tiny => 100,
            Data::Short => 1024,
            Data::Long => 8 << 20,
            Data::Pictures => {
                // A normal variate by Box and Muller; the mean is exp(sigma^2 / 2) times the median.
                let radius = (-2.0 * random.unit().ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
                let len = 97.0 * 1024.0 * (0.5 * normal).exp();
                (len as usize).clamp(1 << 10, 2 << 20)
            }
        }
    }
}

/// The image of `data` in `folder`, imported if it does not exist.
pub(crate) fn image(folder: &Path, data: Data) -> PathBuf {
    let image = folder.join(format!("{}.dlfs", data.name()));
    if image.exists() {
        return image;
    }
    eprintln!("importing the data set '{}', once", data.name());
    let archive = folder.join(format!("{}.tar", data.name()));
    write_archive(&archive, data).expect("room for an archive in --at");
    let half = folder.join(format!("{}.half", data.name()));
    let _ = std::fs::remove_file(&half); // left by a run that was stopped
    let how = ImportOptions::default();
    let connect = ConnectOptions::default();
    import(std::slice::from_ref(&archive), &[Address::from_path(&half)], &how, &connect, &mut ())
        .expect("an import of the archive just made");
    std::fs::remove_file(&archive).expect("the archive just made");
    std::fs::rename(&half, &image).expect("a name in the same folder");
    image
}

/// A folder of 65,536 files of 4 KiB in `folder`, created if it does not exist.
pub(crate) fn files(folder: &Path) -> PathBuf {
    let path = folder.join("files");
    if !path.exists() {
        eprintln!("making the files, once");
        let half = folder.join("files.half");
        let _ = std::fs::remove_dir_all(&half); // left by a run that was stopped
        std::fs::create_dir(&half).expect("room for files in --at");
        make_files(&half, 1 << 16, 4096);
        std::fs::rename(&half, &path).expect("a name in the same folder");
    }
    path
}

fn write_archive(path: &Path, data: Data) -> std::io::Result<()> {
    let mut tar = tar::Builder::new(BufWriter::with_capacity(1 << 20, File::create(path)?));
    let mut random = Random(7);
    let mut bytes = vec![0u8; 8 << 20];
    bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
    for number in 0..data.count() {
        let len = data.next_len(&mut random);
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let mut header = tar::Header::new_gnu();
        header.set_size(len as u64);
        header.set_mode(0o644);
        let name = format!("{:04}/{number:08}.bin", number / 1000);
        tar.append_data(&mut header, name, &bytes[..len])?;
    }
    tar.into_inner()?.flush()
}
