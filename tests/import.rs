//! What an import makes of a source: the image, generation by generation.

use std::fs;

use dlfs::import::{ImportOptions, import};
use dlfs::nvme::Address;
use dlfs::qpair::ConnectOptions;
use dlfs::units::SampleId;
use dlfs::volume::{Image, OpenOptions};

#[test]
fn a_folder_becomes_an_image_that_verifies_and_has_its_names_and_labels() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("src");
    for i in 0..1000 {
        let class = root.join(format!("c{}", i % 7));
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("f{i:03}")), vec![i as u8; i * 7]).unwrap();
    }
    let address = [Address::Path(dir.path().join("a.dlfs"))];
    let options = ImportOptions { chunk_size_bytes: 1 << 20, ..ImportOptions::default() };
    let report = import(&[root], &address, &options, &ConnectOptions::default(), &mut ()).unwrap();
    assert_eq!((report.samples, report.chunks), (1000, 4));
    let image = Image::open(&address, &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    let directory = image.directory();
    assert_eq!(directory.num_live(), 1000);
    assert_eq!(directory.name(SampleId(0)).unwrap().unwrap(), b"c0/f000");
    assert_eq!(directory.label(directory.lookup(b"c3/f010").unwrap().unwrap()), Some(3));
    let verified = image.verify(&Default::default(), &mut |_| ()).unwrap();
    assert!(verified.damages.is_empty(), "{:?}", verified.damages);
}
