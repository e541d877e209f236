//! Every place where bytes from outside choose a length, in a process that may take 256 MiB more than it has: a length
//! that lies is an error, and never ends the process.
//!
//! The first tables have files and structures. The last one has tests of hostile hosts, targets, stores, images and
//! archives, which run again within the same limit. What decoders take of the heap for short inputs is measured by
//! `tests/heap/fuzz.rs`.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use crate::images::{Image as Bytes, folder};
use crate::import_support::options;
use crate::support::alone::again;
use crate::support::archives::{fix_checksum, masked, member};
use crate::{
    catalog, format_damage, import_damage, import_rows, import_sources, lying_images, metrics,
    sample_ranges, target_authentication, target_hostile, tcp_hostile,
};
#[cfg(feature = "cloud")]
use crate::{import_origins, places_plain, places_redirects};
use dlfs::address::{Address, CatalogPlace};
use dlfs::cache::Environment;
use dlfs::catalog::Catalog;
use dlfs::dataset::{Image, OpenOptions, ViewSource, class_names, load_state};
use dlfs::format::Pack;
use dlfs::format::snapshot::{SectionKind, SnapshotHead, head_crc32c};
use dlfs::format::superblock::copy_offset;
use dlfs::import::many::{WritePlan, import_part};
use dlfs::import::sources::SourceKind;
use dlfs::import::{ColumnsFrom, ImportOptions, Onto, import_onto, snapshot_check};
use dlfs::qpair::mem::MemNamespace;
use dlfs::qpair::{ConnectOptions, Device};
use dlfs::{ErrorKind, Result, keys};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

type Place<T> = (&'static str, T);
type Opens = fn(&Path) -> Result<()>;
type Makes = fn() -> Vec<u8>;

/// Openers of files that begin with these bytes, and go on with zeroes for a tebibyte.
const FILES: &[(&str, &[u8], Opens)] = &[
    ("state of a run", b"{", |path| load_state(path).map(drop)),
    ("plan of parts", b"DLFSPLAN", |path| {
        // The length of its head stands at its end.
        let file = File::options().write(true).open(path)?;
        file.write_all_at(&(TIB - 100).to_le_bytes(), TIB - 8)?;
        import_part(path, 0, &ConnectOptions::default(), &mut ()).map(drop)
    }),
    ("plan of written parts", b"", |path| WritePlan::load(path).map(drop)),
    ("environment of tiers", b"", |path| Environment::read(path).map(drop)),
    ("names of classes", b"a", |path| {
        class_names(path.as_os_str(), &ConnectOptions::default()).map(drop)
    }),
    ("keys of hosts", b"a", |path| keys::read_hosts(path).map(drop)),
    ("secret", b"D", |path| keys::read_secret(path).map(drop)),
    ("record of a catalogue", b"{", |path| {
        let root = path.parent().unwrap();
        fs::create_dir_all(root.join("train/versions"))?;
        fs::write(root.join("dlfs-catalog.json"), "{}")?;
        fs::rename(path, root.join("train/versions/1.json"))?;
        let place = CatalogPlace::Folder(root.to_owned());
        Catalog::open(&place)?.versions("train").map(drop)
    }),
    ("views", b"dlfsview\x01\0\x01\0", |path| {
        File::options().write(true).open(path)?.write_all_at(&TIB.to_le_bytes(), 48)?;
        let image = path.with_extension("image");
        fs::write(&image, &honest().namespaces[0])?;
        let view = Some(ViewSource::of_text(path));
        Image::open(&[Address::from_path(&image)], &OpenOptions { view, ..Default::default() })
            .map(drop)
    }),
    ("snapshot of a directory", b"", |path| {
        let image = path.with_extension("image");
        fs::write(&image, &honest().namespaces[0])?;
        snapshot_check(&[Address::from_path(&image)], path, &ConnectOptions::default()).map(drop)
    }),
    ("values of columns", b"file,a", |path| {
        let columns = Some(ColumnsFrom { path: path.to_owned(), key: None, only: Vec::new() });
        let source = path.with_extension("source");
        fs::create_dir(&source)?;
        fs::write(source.join("a"), "a sample")?;
        import(&source, ImportOptions { columns, ..options(Onto::Empty) })
    }),
    ("list", b"a.txt", |path| {
        import(path, ImportOptions { from: SourceKind::List, ..options(Onto::Empty) })
    }),
    ("line of JSON", b"{\"a\": \"", |path| {
        import(path, ImportOptions { from: SourceKind::JsonLines, ..options(Onto::Empty) })
    }),
    ("shard of MDS", &[0xff; 4], |path| import_shard(path, "mds")),
    ("shard of LitData", &[0xff; 4], |path| import_shard(path, "litdata")),
    ("index of rows", b"{\"shards\": [", |path| {
        import(path, ImportOptions { from: SourceKind::Mds, ..options(Onto::Empty) })
    }),
];

/// Sections of a directory that state more bytes than the image has.
const SECTIONS: &[Place<SectionKind>] = &[
    ("chunks", SectionKind::Chunks),
    ("checkpoints", SectionKind::Checkpoints),
    ("lengths", SectionKind::Lengths),
    ("checksums", SectionKind::Checksums),
    ("facts", SectionKind::Facts),
    ("lookup tree", SectionKind::TreeKeys),
    ("ids of the lookup tree", SectionKind::TreeIds),
    ("blocks of names", SectionKind::NameBlocks),
    ("names", SectionKind::Names),
];

/// Members of archives, and records.
const RECORDS: &[Place<Makes>] = &[
    ("a.tar", || sized(member("a", b'0', "", b"a"), b"77777777777\0")),
    ("extended.tar", || sized(member("a", b'x', "", b"a"), b"77777777777\0")),
    ("name.tar", || sized(member("a", b'L', "", b"a"), b"77777777777\0")),
    ("binary.tar", || {
        sized(member("a", b'0', "", b"a"), b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff")
    }),
    ("map.tar", || {
        let map = format!("{}\n0\n0\n", 1_u64 << 40);
        let head = "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n28 GNU.sparse.realsize=1000\n";
        [member("a", b'x', "", head.as_bytes()), member("a", b'0', "", map.as_bytes())].concat()
    }),
    ("a.tfrecord", || {
        let len = (1_u64 << 39).to_le_bytes();
        [&len[..], &masked(&len)].concat()
    }),
    ("footer.arrow", || [&b"ARROW1\0\0"[..], &i32::MAX.to_le_bytes(), b"ARROW1"].concat()),
    #[cfg(feature = "formats")]
    ("stream.arrow", || lz4(false)),
    #[cfg(feature = "formats")]
    ("file.arrow", || lz4(true)),
    #[cfg(feature = "formats")]
    ("block.arrow", block),
    #[cfg(feature = "formats")]
    ("page.parquet", page),
];

/// Tests of hostile peers that run again.
const TESTS: &[Place<fn()>] = &[
    ("target: lengths in PDUs and commands", target_hostile::false_lengths_are_refused_without_allocating_for_them),
    ("target: PDUs in the wrong state", target_hostile::every_pdu_type_in_the_wrong_state_ends_only_its_own_connection),
    ("target: data", target_hostile::data_that_nobody_asked_for_end_only_their_own_connection),
    ("target: commands", target_hostile::every_opcode_on_either_queue_is_answered_and_changes_nothing),
    (
        "target: messages of authentication",
        target_authentication::messages_out_of_turn_and_of_wrong_form_are_refused_and_nothing_is_served,
    ),
    ("host: the first answer", tcp_hostile::every_invalid_ic_resp_is_refused_with_the_reason),
    ("host: Identify", tcp_hostile::every_impossible_identify_page_is_refused_and_odd_ones_are_not),
    ("host: discovery log", tcp_hostile::an_impossible_discovery_log_is_refused_in_bounded_time),
    ("host: R2T", tcp_hostile::false_r2ts_get_no_data_and_the_write_is_not_issued_again),
    ("image: snapshot", lying_images::what_a_snapshot_says_of_the_whole_image_must_be_what_the_superblock_says),
    ("image: extents", lying_images::what_the_directory_reads_must_lie_within_what_the_superblock_says_is_used),
    ("image: superblocks", format_damage::forged_superblocks_are_refused_or_harmless),
    ("image: chunk headers", format_damage::forged_chunk_headers_are_refused_or_harmless),
    ("image: records of generations", format_damage::forged_generation_records_are_refused_or_harmless),
    ("journal", import_damage::a_journal_that_names_ids_which_the_image_does_not_have_is_refused),
    ("archive: sparse members", import_sources::sparse_members_are_refused_by_name_and_what_follows_them_is_read),
    ("shards of rows", import_rows::damaged_shards_are_refused_with_their_names),
    (
        "catalogue: entries",
        catalog::damaged_later_and_hostile_entries_are_named_and_half_written_ones_are_not_seen,
    ),
    (
        "catalogue: records",
        catalog::records_with_absurd_images_are_damaged_and_messages_stay_on_their_lines,
    ),
    #[cfg(feature = "cloud")]
    ("image: origins", import_origins::damaged_origins_stop_their_listing_and_nothing_else),
    (
        "image: headers of ranges",
        sample_ranges::a_header_that_is_damaged_or_of_another_sample_is_not_believed,
    ),
    ("port of metrics", metrics::requests_that_are_wrong_slow_or_never_end_delay_nobody),
    #[cfg(feature = "cloud")]
    ("store: answers without an end", places_redirects::answers_and_listings_without_an_end_are_errors),
    #[cfg(feature = "cloud")]
    ("store: heads of answers", places_plain::answers_that_are_no_http_are_errors_that_say_so),
];

#[test]
fn no_length_from_outside_is_believed_at_any_place() {
    if std::env::var_os(LIMITED).is_none() {
        let mut limited = again(no_length_from_outside_is_believed_at_any_place);
        // An arena of its own for each thread would reserve 64 MiB.
        let output = limited.env(LIMITED, "1").env("MALLOC_ARENA_MAX", "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        println!("{}{}", printed.replace("\ntest ", "\n"), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && printed.contains("1 passed"), "{}", output.status);
        return;
    }
    for (place, begin, open) in FILES {
        refused(place, |dir| {
            let path = dir.join("hostile");
            sparse(&path, begin, TIB);
            open(&path)
        });
    }
    for (place, section) in SECTIONS {
        refused(place, |dir| open(&dir.join("image"), *section));
    }
    for (name, bytes) in RECORDS {
        refused(name, |dir| {
            fs::write(dir.join(name), bytes())?;
            import(&dir.join(name), options(Onto::Empty))
        });
    }
    TESTS.iter().for_each(|(place, test)| limited(place, test));
}

/// Asserts that `open` fails within the limit, but for no fault of ours.
fn refused(place: &str, open: impl FnOnce(&Path) -> Result<()>) {
    let dir = tempfile::tempdir().unwrap();
    let error = limited(place, || open(dir.path())).expect_err(place);
    println!("  {}", error.report());
    assert_ne!(error.kind(), ErrorKind::Internal, "{place}: {error:?}");
}

/// Runs `work` where the process may take [`ROOM_BYTES`] more.
fn limited<T>(place: &str, work: impl FnOnce() -> T) -> T {
    println!("{place}");
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(pages * 4096 + ROOM_BYTES), ..before }).unwrap();
    let done = work();
    setrlimit(Resource::As, before).unwrap();
    done
}

/// A file that begins with `bytes`, and has holes up to `len`.
fn sparse(path: &Path, bytes: &[u8], len: u64) {
    let mut file = File::options();
    let file = file.create(true).truncate(true).write(true).mode(0o600).open(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.set_len(len).unwrap();
}

fn honest() -> Bytes {
    let mut image = Bytes::new(1, Pack::Aligned);
    image.add(&folder(2, 30), 7, 60, &[]);
    image
}

/// Opens an image of a tebibyte of which `section` has the half, and reads what is read of it.
fn open(path: &Path, section: SectionKind) -> Result<()> {
    let image = honest();
    let (_, mut superblock) = image.open();
    let mut bytes = image.namespaces[0].clone();
    let at = superblock.snapshot.offset_bytes as usize;
    let mut head = SnapshotHead::parse(&bytes[at..]).unwrap();
    let at_section = head.sections.iter().position(|found| found.kind == section).unwrap();
    head.sections[at_section].len += TIB / 2;
    head.sections[at_section + 1..].iter_mut().for_each(|behind| behind.offset += TIB / 2);
    head.len_bytes = TIB;
    (superblock.snapshot.len_bytes, superblock.used_len_bytes) = (TIB, at as u64 + TIB);
    let encoded = head.encode();
    bytes[at..at + encoded.len()].copy_from_slice(&encoded);
    superblock.snapshot.head_crc32c = head_crc32c(&encoded);
    bytes[copy_offset(superblock.generation) as usize..][..4096]
        .copy_from_slice(&superblock.encode());
    sparse(path, &bytes, 2 * TIB);
    let image = Image::open(&[Address::from_path(path)], &OpenOptions::default())?;
    image.load_names()?;
    image.lookup(b"class00/sample0005.bin").map(drop)
}

fn import(path: &Path, options: ImportOptions) -> Result<()> {
    let device: Arc<dyn Device> = Arc::new(MemNamespace::new(16 << 20, 4096)?);
    import_onto(&[path.to_owned()], &[device], &options, &mut ()).map(drop)
}

/// Imports the rows of `kind` in `tests/rows`, with `path` in place of each shard.
fn import_shard(path: &Path, kind: &str) -> Result<()> {
    let folder = path.with_extension("rows");
    fs::create_dir(&folder)?;
    let rows = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows").join(kind);
    for entry in fs::read_dir(rows)? {
        let entry = entry?;
        let to = folder.join(entry.file_name());
        if entry.file_name() == "index.json" {
            fs::copy(entry.path(), to).map(drop)?
        } else {
            fs::hard_link(path, to)?
        }
    }
    import(&folder, options(Onto::Empty))
}

#[cfg(feature = "formats")]
fn batch() -> arrow_array::RecordBatch {
    let column: arrow_array::ArrayRef =
        Arc::new(arrow_array::Int64Array::from_iter_values(0..1000));
    arrow_array::RecordBatch::try_from_iter([("a", column)]).unwrap()
}

/// An Arrow file whose footer lists a block of a tebibyte.
#[cfg(feature = "formats")]
fn block() -> Vec<u8> {
    let batch = batch();
    let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    let mut bytes = writer.into_inner().unwrap();
    let end = bytes.len() - 10;
    let len = i32::from_le_bytes(bytes[end..end + 4].try_into().unwrap()) as usize;
    let footer = end - len;
    let body = {
        let found = arrow_ipc::root_as_footer(&bytes[footer..end]).unwrap();
        found.recordBatches().unwrap().get(0).bodyLength().to_le_bytes()
    };
    let at = bytes[footer..].windows(8).position(|found| found == body).unwrap() + footer;
    bytes[at..at + 8].copy_from_slice(&TIB.to_le_bytes());
    bytes
}

/// A Parquet file whose first page is to become 2 GiB.
#[cfg(feature = "formats")]
fn page() -> Vec<u8> {
    use parquet::basic::Compression;
    use parquet::file::properties::WriterProperties;

    let mut bytes = Vec::new();
    let batch = batch();
    let plain = WriterProperties::builder().set_dictionary_enabled(false);
    let set = plain.set_compression(Compression::LZ4_RAW).build();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(set)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    // Its header begins behind the 4 magic bytes: the type, and the length when it is decompressed.
    assert_eq!((bytes[4], bytes[6]), (0x15, 0x15));
    let len = 1 + bytes[7..].iter().position(|byte| *byte < 0x80).unwrap();
    bytes.splice(7..7 + len, [0xfe, 0xff, 0xff, 0xff, 0x0f]);
    bytes
}

/// An Arrow file or stream in LZ4 whose buffer is to become a tebibyte.
#[cfg(feature = "formats")]
fn lz4(is_file: bool) -> Vec<u8> {
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

    let batch = batch();
    let schema = batch.schema();
    let options = IpcWriteOptions::default();
    let options = options.try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
    let mut bytes = if is_file {
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    } else {
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    };
    let len = 8000_u64.to_le_bytes();
    let at = bytes.windows(8).position(|found| found == len).unwrap();
    bytes[at..at + 8].copy_from_slice(&TIB.to_le_bytes());
    bytes
}

/// The member with another size in its header.
fn sized(mut member: Vec<u8>, size: &[u8]) -> Vec<u8> {
    member[124..124 + size.len()].copy_from_slice(size);
    fix_checksum(&mut member[..512]);
    member
}

const TIB: u64 = 1 << 40;
const ROOM_BYTES: u64 = 256 << 20;
const LIMITED: &str = "DLFS_TEST_LIMITED";
