//! Whole hostile images: opened, read, verified, changed, rebuilt and resumed.
//!
//! An input is a byte that selects an image, and a script that damages it. Afterwards every
//! checksum on it is corrected, including those with which one structure identifies another.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlfs::dataset::{Image as Opened, OpenOptions, VerifyOptions, VerifyReport};
use dlfs::format::names::crc32c;
use dlfs::format::superblock::COPY_OFFSETS;
use dlfs::format::{Pack, Uuid};
use dlfs::import::journal::{JOURNAL_OFFSET, Journal};
use dlfs::import::{
    ImportOptions, Onto, Progress, Stage, delete_on, import_onto, purge_on, rebuild_on,
};
use dlfs::qpair::Device;
use dlfs::reader::{Batch, Reader, ReaderOptions};
use dlfs::units::{Generation, SampleId};

use super::Target;
use super::device::Plate;
use super::images::{Image, folder, sample};
use super::media::{ask, number, refit_block, refit_chunk, refit_snapshot, refit_state};
use super::script::{self, Script};

/// Opens an image, looks up, reads and verifies.
pub const IMAGE: Target = Target {
    name: "image",
    seeds: scripts,
    refit: None,
    run: image,
    heap_bytes: 64 << 20,
    rounds: 100,
};

/// Deletes and purges.
pub const EDIT: Target = Target {
    name: "edit",
    seeds: scripts,
    refit: None,
    run: edit,
    heap_bytes: 64 << 20,
    rounds: 100,
};

/// Rebuilds from chunks.
pub const REBUILD: Target = Target {
    name: "rebuild",
    seeds: scripts,
    refit: None,
    run: rebuild,
    heap_bytes: 64 << 20,
    rounds: 100,
};

/// Imports onto a namespace with an image, a journal or a lease: the second byte selects how.
pub const RESUME: Target = Target {
    name: "resume",
    seeds: resume_scripts,
    refit: None,
    run: resume,
    heap_bytes: 64 << 20,
    rounds: 40,
};

/// The namespaces of an image.
type Namespaces = Vec<Vec<u8>>;

/// One generation; several with deletions; striped; one with a sample of several cells.
fn images() -> &'static [Namespaces] {
    static IMAGES: OnceLock<Vec<Namespaces>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let mut plain = Image::new(1, Pack::Aligned);
        plain.add(&folder(1, 6), 7, 6, &[]);
        let mut grown = Image::new(1, Pack::Tight);
        grown.add(&folder(2, 5), 1, 10, &[]);
        grown.add(&folder(3, 2)[4..], 2, 0, &[]);
        grown.delete(&[3, 4]);
        let mut striped = Image::new(2, Pack::Aligned);
        striped.add(&folder(2, 8), 7, 60, &[]);
        let mut long = Image::new(1, Pack::Tight);
        long.add(&[sample("a", None, 100), sample("long", None, 100_000)], 0, 0, &[]);
        [plain, grown, striped, long].into_iter().map(equal_lengths).collect()
    })
}

/// Namespaces of whole cells, all of one length.
fn equal_lengths(image: Image) -> Namespaces {
    let mut namespaces = image.namespaces;
    let longest = namespaces.iter().map(Vec::len).max().expect("one at least");
    namespaces.iter_mut().for_each(|bytes| bytes.resize(longest.next_multiple_of(CELL_BYTES), 0));
    namespaces
}

/// Each image unchanged, and with each field of its superblocks and heads slightly too large.
fn scripts() -> Vec<Vec<u8>> {
    let heads = |which: usize| {
        let cells = images()[which][0].len() / CELL_BYTES;
        let of_superblock = [14, 32, 72, 80, 84, 88, 96, 112, 120]
            .into_iter()
            .flat_map(|field| COPY_OFFSETS.map(|copy| copy as usize + field));
        let of_heads = (1..cells).flat_map(|cell| {
            [12, 32, 40, 56, 64, 72, 80, 96, 112].map(|field| cell * CELL_BYTES + field)
        });
        of_superblock
            .chain(of_heads)
            .map(move |offset| [vec![which as u8], script::number(offset, 1, 4, 1)].concat())
    };
    let whole = (0..images().len()).map(|which| vec![which as u8]);
    whole.chain((0..2).flat_map(heads)).collect()
}

/// The damaged image of an input, on devices: first as it is, then with corrected checksums.
fn damaged(images: &[Namespaces], which: u8, changes: &[u8]) -> [Vec<Plate>; 2] {
    let image = &images[usize::from(which) % images.len()];
    let mut bytes = image.concat();
    script::apply(changes, &mut bytes);
    let len = image[0].len();
    bytes.resize(bytes.len().next_multiple_of(len).max(len), 0);
    let mut namespaces: Namespaces = bytes.chunks(len).map(<[u8]>::to_vec).collect();
    namespaces.resize(image.len(), vec![0; len]);
    let as_it_is = plates(&namespaces, true);
    refit(&mut namespaces);
    [as_it_is, plates(&namespaces, true)]
}

fn plates(namespaces: &[Vec<u8>], is_exclusive: bool) -> Vec<Plate> {
    let plate = |bytes: &Vec<u8>| Plate::new(bytes.clone(), MOST_BYTES, is_exclusive);
    namespaces.iter().map(plate).collect()
}

fn devices(plates: &[Plate]) -> Vec<Arc<dyn Device>> {
    plates.iter().map(|plate| Arc::new(plate.clone()) as Arc<dyn Device>).collect()
}

/// The location of every checksum on the namespaces.
fn refit(namespaces: &mut [Vec<u8>]) {
    for bytes in namespaces.iter_mut() {
        for cell in bytes.chunks_mut(CELL_BYTES) {
            match cell.get(..8) {
                Some(b"DLFSCHNK") => refit_chunk(cell),
                Some(b"DLFSSNAP") => refit_snapshot(cell),
                _ => {}
            }
        }
        for (at, refit) in [
            (COPY_OFFSETS[0] as usize, refit_block as fn(&mut [u8])),
            (COPY_OFFSETS[1] as usize, refit_block),
            (JOURNAL_OFFSET as usize, refit_state),
            (LEASE_OFFSET, refit_state),
        ] {
            refit(bytes.get_mut(at..at + 4096).unwrap_or_default());
        }
    }
    // A superblock identifies its snapshot by the checksum of the snapshot's head.
    let heads = namespaces.to_vec();
    for bytes in namespaces.iter_mut() {
        for copy in COPY_OFFSETS.map(|at| at as usize) {
            let Some(block) = bytes.get_mut(copy..copy + 4096) else { continue };
            let namespace = number(block, 84, 2) as usize;
            let offset = number(block, 88, 8);
            let head = heads.get(namespace).and_then(|bytes| {
                let at = usize::try_from(offset).ok()?;
                bytes.get(at..at.checked_add(4096)?)
            });
            if let Some(head) = head {
                block[104..108].copy_from_slice(&head[4092..]);
                refit_block(block);
            }
        }
    }
}

fn image(input: &[u8]) {
    let Some((&which, changes)) = input.split_first() else { return };
    for plates in damaged(images(), which, changes) {
        let before: Namespaces = plates.iter().map(|plate| plate.bytes().clone()).collect();
        if let Ok(opened) = Opened::from_devices(devices(&plates), &OpenOptions::default()) {
            look_at(&opened);
        }
        let unchanged = plates.iter().zip(&before).all(|(plate, before)| *plate.bytes() == *before);
        assert!(unchanged, "who reads writes nothing");
    }
}

/// Looks up in the directory, reads samples and verifies; compares the results.
fn look_at(opened: &Opened) -> Option<VerifyReport> {
    let _ = opened.load_names();
    let directory = opened.directory();
    ask(directory);
    let live = directory.num_live().min(64);
    let ids: Vec<SampleId> = (0..live).map(|rank| directory.id_of_live(rank)).collect();
    let window = ReaderOptions { window_bytes: 1 << 20, ..ReaderOptions::default() };
    let failed = opened.reader(window).ok().and_then(|reader| read(reader, opened, &ids));
    let report = opened.verify(&VerifyOptions::default(), &mut |_| {}).ok()?;
    // Data that `verify` finds intact can be read; other damage need not affect samples.
    if report.damages.is_empty() {
        assert_eq!(report.samples, directory.num_live(), "verified every live sample");
        assert_eq!(failed, Some(0), "what was verified can be read");
    }
    Some(report)
}

/// How many of `ids` failed; all others must have the bytes in the directory.
fn read(mut reader: Reader, opened: &Opened, ids: &[SampleId]) -> Option<usize> {
    let mut batch = Batch::new();
    let failures = reader.read_batch_each(ids, &mut batch).ok()?;
    for (index, &id) in ids.iter().enumerate() {
        if failures.iter().any(|(failed, _)| *failed == index) {
            continue;
        }
        let extent = opened.directory().extent(id).expect("a sample that was read");
        let bytes = batch.bytes(index);
        assert_eq!(bytes.len(), extent.len_bytes as usize, "{id:?}");
        assert_eq!(crc32c(bytes), extent.crc32c, "{id:?}");
    }
    Some(failures.len())
}

fn edit(input: &[u8]) {
    let Some((&which, changes)) = input.split_first() else { return };
    for plates in damaged(images(), which, changes) {
        let devices = devices(&plates);
        let open = || Opened::from_devices(devices.clone(), &OpenOptions::default());
        let Ok(before) = open() else {
            // An image that cannot be opened is not changed.
            assert!(delete_on(&devices, &[b"a".to_vec()]).is_err());
            assert!(purge_on(&devices, &mut ()).is_err());
            continue;
        };
        let live = before.directory().num_live();
        let name = before.load_names().ok().and_then(|()| {
            let id = (live > 0).then(|| before.directory().id_of_live(live / 2))?;
            before.directory().name(id).ok()?
        });
        let mut now = live;
        if let Some(name) = name
            && let Ok(report) = delete_on(&devices, &[name])
        {
            now -= 1;
            let after = open().expect("what was committed opens");
            assert_eq!((report.live_samples, after.directory().num_live()), (now, now));
        }
        if purge_on(&devices, &mut ()).is_ok() {
            let after = open().expect("what was committed opens");
            assert_eq!(after.directory().num_live(), now, "a purge loses nothing");
        }
    }
}

fn rebuild(input: &[u8]) {
    let Some((&which, changes)) = input.split_first() else { return };
    for plates in damaged(images(), which, changes) {
        let devices = devices(&plates);
        let since = (which & 0x80 != 0).then_some(Generation(1));
        let Ok(report) = rebuild_on(&devices, since, &mut ()) else { continue };
        let opened = Opened::from_devices(devices, &OpenOptions::default());
        let opened = opened.expect("what was committed opens");
        assert_eq!(
            opened.directory().generation(),
            report.generation,
            "what was rebuilt is opened"
        );
        assert_eq!(opened.directory().num_live(), report.live_samples);
        opened.load_names().expect("its names are there");
        look_at(&opened);
    }
}

/// Images of unfinished imports: stopped after a few chunks, at first and when appending.
fn unfinished() -> &'static [Namespaces] {
    static UNFINISHED: OnceLock<Vec<Namespaces>> = OnceLock::new();
    UNFINISHED.get_or_init(|| {
        let stopped = |namespaces: &[Vec<u8>], onto| {
            let plates = plates(namespaces, true);
            let result = import_onto(&[source()], &devices(&plates), &options(onto), &mut Stop(20));
            assert!(result.is_err(), "it was stopped");
            let bytes = |plate: &Plate| {
                let mut bytes = plate.bytes().clone();
                bytes.resize(bytes.len().next_multiple_of(CELL_BYTES), 0);
                bytes
            };
            plates.iter().map(bytes).collect()
        };
        let empty = vec![vec![0; CELL_BYTES]];
        let mut all: Vec<Namespaces> =
            vec![stopped(&empty, Onto::Empty), stopped(&images()[0], Onto::Append)];
        let mut leased = all[0].clone();
        leased[0][LEASE_OFFSET..LEASE_OFFSET + 8].copy_from_slice(b"DLFSLEAS");
        all.extend([leased, empty, images()[1].clone()]);
        all
    })
}

fn resume_scripts() -> Vec<Vec<u8>> {
    let whole = (0..5).flat_map(|which| [vec![which, 0], vec![which, 1], vec![which, 2]]);
    // The version, the length of the JSON, and some of its bytes.
    let fields = [8, 10].into_iter().chain((16..216).step_by(20)).flat_map(|field| {
        let change = script::number(JOURNAL_OFFSET as usize + field, 1, 4, 1);
        [[vec![0, 0], change.clone()].concat(), [vec![1, 0], change].concat()]
    });
    whole.chain(fields).collect()
}

fn resume(input: &[u8]) {
    let mut head = Script(input);
    let which = head.byte();
    let how = head.byte();
    for plates in damaged(unfinished(), which, head.0) {
        let namespaces: Namespaces = plates.iter().map(|plate| plate.bytes().clone()).collect();
        let journal = namespaces[0].get(JOURNAL_OFFSET as usize..).map(Journal::parse);
        if let Some(Ok(Some(mut journal))) = journal {
            journal.part.count = 0; // nothing has it on media
            assert_eq!(Journal::parse(&journal.encode()), Ok(Some(journal)), "it reads back");
        }
        // If the device has no locks, the import takes a lease, which takes a tenth of a second; so
        // few inputs do.
        let plates = super::image::plates(&namespaces, how >> 2 != 1);
        let onto = [Onto::Resume, Onto::Append, Onto::Empty, Onto::Force][usize::from(how % 4)];
        let devices = devices(&plates);
        let result = import_onto(&[source()], &devices, &options(onto), &mut ());
        let Ok(report) = result else { continue };
        let opened = Opened::from_devices(devices, &OpenOptions::default());
        let opened = opened.expect("what was committed opens");
        assert_eq!(opened.directory().num_live(), report.live_samples);
        if let Some(verified) = look_at(&opened) {
            let live_before = report.live_samples - report.samples;
            let new = verified.damages.iter().filter(|damage| {
                damage.sample.is_some_and(|id| opened.directory().rank_of(id) >= live_before)
            });
            assert_eq!(new.count(), 0, "what was imported now is whole");
        }
    }
}

/// A shard of a few records: the same file for all inputs, so that its stamp is the same.
fn source() -> std::path::PathBuf {
    static FILE: OnceLock<tempfile::NamedTempFile> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let file = tempfile::Builder::new().suffix(".tfrecord").tempfile().unwrap();
        std::fs::write(file.path(), super::archives::shard(60, 2000)).unwrap();
        file
    });
    file.path().to_owned()
}

fn options(onto: Onto) -> ImportOptions {
    ImportOptions {
        onto,
        chunk_size_bytes: CELL_BYTES as u32,
        reader_threads: 1,
        uuid: Some(Uuid::from_random_bytes([9; 16])),
        time_ns: Some(2_000_000),
        // Half of it must outlast a pause on a busy machine; otherwise nothing is written.
        lease: Duration::from_millis(400),
        ..ImportOptions::default()
    }
}

/// Stops an import after so many samples.
struct Stop(u64);

impl Progress for Stop {
    fn stage(&mut self, _: Stage, _: u64, _: u64) {}

    fn advance(&mut self, samples: u64, _: u64) {
        self.0 = self.0.saturating_sub(samples);
    }

    fn stop(&mut self) -> bool {
        self.0 == 0
    }
}

/// The length of all cells here.
const CELL_BYTES: usize = 64 << 10;
const LEASE_OFFSET: usize = 24 << 10;
/// The greatest length of a namespace.
const MOST_BYTES: u64 = 4 << 20;
