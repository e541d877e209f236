//! Images that a program writes sample by sample, and what is left when it does not finish.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::import_support::disk::{Disks, Failure};
use crate::import_support::{Random, contents, options, paths, tree};
use crate::support::alone::again;
use crate::support::disk::SmallDisk;
use crate::support::faults::{Fault, Faulty, Rule};
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions};
use dlfs::directory::Directory;
use dlfs::format::FieldTypes;
use dlfs::format::columns::{ColumnSpec, ColumnType, Value};
use dlfs::format::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES};
use dlfs::import::{self, Label, NewSample, Onto, WriteOrder, WriteReport, Writer, WriterOptions};
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::{self, ConnectOptions, Device, IoError, IoOp};
use dlfs::units::SampleId;

const ORDERS: [WriteOrder; 3] =
    [WriteOrder::Windows, WriteOrder::Written, WriteOrder::Whole { count: SAMPLES }];
const SAMPLES: u64 = 700;

fn of(onto: Onto, order: WriteOrder) -> WriterOptions {
    let image = options(onto);
    WriterOptions { image, order, window_bytes: 100_000, ..WriterOptions::default() }
}

/// Name and content of the sample with this id; one in a hundred is larger than a chunk.
fn sample(id: u64) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random::quiet(id + 1);
    let len = if id % 100 == 99 { 150_000 } else { random.below(3000) };
    (format!("folder-{}/{id}", id % 7).into_bytes(), random.bytes(len))
}

fn samples(ids: std::ops::Range<u64>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    ids.map(sample).collect()
}

/// Writes the samples with the writer's next ids.
fn write(mut writer: Writer, count: u64) -> dlfs::Result<WriteReport> {
    for _ in 0..count {
        let (name, content) = sample(writer.next_id().unwrap().0);
        let fields = [Some(&content[..])];
        writer.write(&NewSample { name: Some(&name), fields: &fields, ..Default::default() })?;
    }
    writer.finish()
}

fn opened(devices: Vec<Arc<dyn Device>>) -> Arc<Directory> {
    let image = Image::from_devices(devices, &OpenOptions::default()).unwrap();
    image.load_names().unwrap();
    Arc::clone(image.directory())
}

fn file(path: &Path) -> Vec<Arc<dyn Device>> {
    vec![qpair::open(&Address::from_path(path), &ConnectOptions::default()).unwrap()]
}

#[test]
fn samples_come_back_by_name_and_id_in_every_order_on_media() {
    for order in ORDERS {
        let disks = Disks::new(3, 24 << 20);
        let writer = Writer::create_on(&disks.devices(), of(Onto::Empty, order)).unwrap();
        let report = write(writer, SAMPLES).unwrap();
        assert_eq!((report.samples, report.live_samples), (SAMPLES, SAMPLES));
        let all = samples(0..SAMPLES);
        let bytes: usize = all.values().map(Vec::len).sum();
        assert_eq!(report.sample_bytes, bytes as u64);
        assert!(contents(&disks.devices()).unwrap() == all, "{order:?}");
        let directory = opened(disks.devices());
        for id in 0..SAMPLES {
            let name = directory.name(SampleId(id)).unwrap().unwrap();
            assert_eq!(name, sample(id).0, "{order:?}");
        }
        let shuffled =
            (0..SAMPLES).filter(|&id| directory.slot_of(SampleId(id)).unwrap().0 != id).count();
        match order {
            WriteOrder::Written => assert_eq!(shuffled, 0),
            _ => assert!(shuffled as u64 > SAMPLES / 2, "{order:?}: {shuffled} are elsewhere"),
        }
        let windows = directory.parts().count();
        assert_eq!(windows > 10, order == WriteOrder::Windows, "{order:?}: {windows} parts");
    }
}

#[test]
fn a_whole_shuffle_writes_what_an_import_of_the_same_samples_writes() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path(), 300, 5000, 4);
    let imported = Disks::new(2, 8 << 20);
    import::import_onto(&paths(dir.path()), &imported.devices(), &options(Onto::Empty), &mut ())
        .unwrap();
    let by_id = opened(imported.devices());
    let written = Disks::new(2, 8 << 20);
    let order = WriteOrder::Whole { count: files.len() as u64 };
    let mut writer = Writer::create_on(&written.devices(), of(Onto::Empty, order)).unwrap();
    while let Some(id) = writer.next_id() {
        let name = by_id.name(id).unwrap().unwrap();
        let class = by_id.label(id).map(|label| &by_id.classes()[label as usize][..]);
        let label = class.map_or(Label::None, Label::Class);
        let fields = [Some(&files[&name][..])];
        let sample = NewSample { name: Some(&name), label, fields: &fields, values: &[] };
        assert_eq!(writer.write(&sample).unwrap(), id);
    }
    writer.finish().unwrap();
    assert!(contents(&written.devices()).unwrap() == files);
    let directory = opened(written.devices());
    for id in (0..files.len() as u64).map(SampleId) {
        assert_eq!(directory.extent(id), by_id.extent(id));
    }
}

#[test]
fn fields_labels_and_columns_are_stored_and_an_append_goes_on_with_them() {
    let disks = Disks::new(1, 8 << 20);
    let column = |name: &str, kind| ColumnSpec { name: name.into(), kind };
    let first = WriterOptions {
        fields: vec![b"jpg".to_vec(), b"txt".to_vec()],
        columns: vec![column("width", ColumnType::Int), column("lang", ColumnType::Text)],
        ..of(Onto::Empty, WriteOrder::Windows)
    };
    let mut writer = Writer::create_on(&disks.devices(), first.clone()).unwrap();
    for (number, class) in [(0, "cat"), (1, "dog"), (2, "cat")] {
        let values = [("lang", Value::Text("de")), ("width", Value::Int(number))];
        let fields = [Some(&b"pixels"[..]), (number != 1).then_some(&b"words"[..])];
        let label = Label::Class(class.as_bytes());
        let sample = NewSample { name: None, label, fields: &fields, values: &values };
        assert_eq!(writer.write(&sample).unwrap(), SampleId(number as u64));
    }
    writer.finish().unwrap();

    // Other order of fields, another column, a new class.
    let second = WriterOptions {
        fields: vec![b"txt".to_vec(), b"jpg".to_vec()],
        columns: vec![column("score", ColumnType::Float)],
        ..of(Onto::Append, WriteOrder::Windows)
    };
    let mut writer = Writer::create_on(&disks.devices(), second).unwrap();
    let names: Vec<&[u8]> = writer.fields().collect();
    assert_eq!(names, [&b"txt"[..], b"jpg"]);
    let fields = [Some(&b"new words"[..]), Some(&b"new pixels"[..])];
    let values = [("score", Value::Float(0.5)), ("width", Value::Int(9))];
    let label = Label::Class(b"emu");
    writer.write(&NewSample { name: Some(b"n"), label, fields: &fields, values: &values }).unwrap();
    writer.finish().unwrap();

    let directory = opened(disks.devices());
    assert_eq!(directory.classes(), [b"cat".to_vec(), b"dog".to_vec(), b"emu".to_vec()]);
    let labels: Vec<Option<i64>> = (0..4).map(|id| directory.label(SampleId(id))).collect();
    assert_eq!(labels, [Some(0), Some(1), Some(0), Some(2)]);
    assert_eq!(directory.name(SampleId(1)).unwrap().unwrap(), b"000000001");
    let value = |column: &str, id| directory.column(column).unwrap().get(id);
    assert_eq!((value("width", 1), value("lang", 1)), (Value::Int(1), Value::Text("de")));
    assert_eq!((value("width", 3), value("lang", 3)), (Value::Int(9), Value::None));
    assert_eq!((value("score", 0), value("score", 3)), (Value::None, Value::Float(0.5)));
    let record = |id| {
        let extent = directory.extent(SampleId(id)).unwrap();
        let mut io = Blocking::new(disks.devices()[0].queue_pair().unwrap()).unwrap();
        io.read(extent.offset_bytes, extent.len_bytes as usize).unwrap().to_vec()
    };
    let split = |id, field| {
        let record = record(id);
        let found = dlfs::format::fields::find(&record, 2, field).unwrap();
        found.map(|range| String::from_utf8(record[range].to_vec()).unwrap())
    };
    assert_eq!((split(0, 0), split(0, 1)), (Some("pixels".into()), Some("words".into())));
    assert_eq!((split(1, 0), split(1, 1)), (Some("pixels".into()), None));
    assert_eq!((split(3, 0), split(3, 1)), (Some("new pixels".into()), Some("new words".into())));
}

#[test]
fn fields_with_types_have_the_lengths_that_their_types_say() {
    let disks = Disks::new(1, 8 << 20);
    let kind = |text: &str| Some(text.parse().unwrap());
    let with = |onto, first| WriterOptions {
        fields: vec![b"raw".to_vec(), b"emb".to_vec(), b"tokens".to_vec()],
        field_types: FieldTypes::new(vec![None, kind(first), kind("u16[*]")]),
        ..of(onto, ORDERS[0])
    };
    let mut writer = Writer::create_on(&disks.devices(), with(Onto::Empty, "f32[3]")).unwrap();
    let twelve = [0_u8; 12];
    let fields = [None, Some(&twelve[..]), Some(&twelve[..2])];
    writer.write(&NewSample { fields: &fields, ..Default::default() }).unwrap();
    for (fields, why) in [
        ([None, Some(&twelve[..8]), None], "field emb is f32[3], which has 12 bytes"),
        ([None, None, Some(&twelve[..3])], "field tokens is u16[*], which has a multiple of 2"),
    ] {
        let error = writer.write(&NewSample { fields: &fields, ..Default::default() }).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    writer.finish().unwrap();
    let error = Writer::create_on(&disks.devices(), with(Onto::Append, "f32[4]")).unwrap_err();
    let why = "field emb is f32[4], and in the image it is f32[3]";
    assert!(error.to_string().contains(why), "{error}");
    let mut writer = Writer::create_on(&disks.devices(), of(Onto::Append, ORDERS[0])).unwrap();
    writer.write(&NewSample { fields: &[None, None, None], ..Default::default() }).unwrap();
    writer.finish().unwrap();
    let types = opened(disks.devices()).field_types().clone();
    assert_eq!(types, FieldTypes::new(vec![None, kind("f32[3]"), kind("u16[*]")]));
}

#[test]
fn a_bad_sample_is_refused_and_the_writer_goes_on() {
    let disks = Disks::new(1, 8 << 20);
    let column = ColumnSpec { name: "text".into(), kind: ColumnType::Text };
    let with = |onto| WriterOptions { columns: vec![column.clone()], ..of(onto, ORDERS[0]) };
    let mut writer = Writer::create_on(&disks.devices(), with(Onto::Empty)).unwrap();
    let content = [Some(&b"x"[..])];
    let good = NewSample { name: Some(b"good"), fields: &content, ..Default::default() };
    writer.write(&good).unwrap();
    let long = "t".repeat(3000);
    let long_name = vec![b'n'; 4097];
    let nameless = NewSample { name: None, ..good };
    assert_eq!(writer.write(&nameless).unwrap(), SampleId(1));
    let bad: [(NewSample<'_>, &str); 11] = [
        (NewSample { name: Some(b"000000001"), ..good }, "another sample has its name"),
        (NewSample { name: Some(b"a\0b"), label: Label::Class(b"x"), ..good }, "cannot be stored"),
        (good, "another sample has its name"),
        (NewSample { name: Some(b""), ..good }, "its name is empty"),
        (NewSample { name: Some(b"a\0b"), ..good }, "cannot be stored"),
        (NewSample { name: Some(&long_name), ..good }, "cannot be stored"),
        (NewSample { name: Some(b"b"), fields: &[], ..good }, "it has 0 fields"),
        (NewSample { name: Some(b"b"), fields: &[None], ..good }, "its only field is absent"),
        (NewSample { name: Some(b"b"), label: Label::Number(i64::MIN), ..good }, "is not a label"),
        (NewSample { name: Some(b"b"), fields: &[None, None], ..good }, "it has 2 fields"),
        (
            NewSample { name: Some(b"b"), values: &[("text", Value::Text(&long))], ..good },
            "cannot be stored",
        ),
    ];
    for (sample, why) in bad {
        let error = writer.write(&sample).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
        assert!(error.to_string().contains(why), "{error} does not say: {why}");
    }
    let second = NewSample { name: Some(b"second"), label: Label::Number(3), ..good };
    // The class of the sample that was refused is no class of the image.
    assert_eq!(writer.write(&second).unwrap(), SampleId(2));
    let other = NewSample { name: Some(b"third"), label: Label::Class(b"c"), ..good };
    let error = writer.write(&other).unwrap_err();
    assert!(error.to_string().contains("labels are numbers, or names"), "{error}");
    assert_eq!(writer.finish().unwrap().samples, 3);
    assert!(opened(disks.devices()).classes().is_empty());

    let mut writer = Writer::create_on(&disks.devices(), with(Onto::Append)).unwrap();
    let error = writer.write(&good).unwrap_err();
    assert!(error.to_string().contains("another sample has its name"), "{error}");
    drop(writer);
    assert_eq!(contents(&disks.devices()).unwrap().len(), 3);
}

#[test]
fn options_that_do_not_fit_the_image_are_refused_before_the_first_sample() {
    let disks = Disks::new(1, 8 << 20);
    let create = |options| Writer::create_on(&disks.devices(), options).map(drop).unwrap_err();
    let error = create(of(Onto::Append, ORDERS[0]));
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    let error = create(of(Onto::Resume, ORDERS[0]));
    assert!(error.to_string().contains("cannot be resumed"), "{error}");
    let column = |kind| vec![ColumnSpec { name: "a".into(), kind }];
    let int = WriterOptions { columns: column(ColumnType::Int), ..of(Onto::Empty, ORDERS[0]) };
    write(Writer::create_on(&disks.devices(), int).unwrap(), 3).unwrap();
    let error = create(of(Onto::Empty, ORDERS[0]));
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    let other = WriterOptions { fields: vec![b"jpg".to_vec()], ..of(Onto::Append, ORDERS[0]) };
    let devices = disks.devices();
    let error = Writer::create_on(&devices, other).map(drop).unwrap_err();
    assert_eq!(Arc::strong_count(&devices[0]), 1, "the writer's thread has not ended");
    assert!(error.to_string().contains("have the fields [jpg], those of the image []"), "{error}");
    let fields = vec![b"a".to_vec(), b"b".to_vec(), b"a".to_vec()];
    let error = create(WriterOptions { fields, ..of(Onto::Force, ORDERS[0]) });
    assert!(error.to_string().contains("field a is there twice"), "{error}");
    let twice = [column(ColumnType::Int), column(ColumnType::Int)].concat();
    create(WriterOptions { columns: twice, ..of(Onto::Force, ORDERS[0]) });
    assert_eq!(contents(&disks.devices()).unwrap(), samples(0..3), "nothing was discarded");
    let error =
        create(WriterOptions { columns: column(ColumnType::Text), ..of(Onto::Append, ORDERS[0]) });
    assert!(error.to_string().contains("is of type int, the writer's of str"), "{error}");
    let empty = Writer::create_on(&disks.devices(), of(Onto::Append, ORDERS[0])).unwrap();
    let error = empty.finish().unwrap_err();
    assert!(error.to_string().contains("no sample was written"), "{error}");
    let few = of(Onto::Append, WriteOrder::Whole { count: 10 });
    let error = write(Writer::create_on(&disks.devices(), few).unwrap(), 9).unwrap_err();
    assert!(error.to_string().contains("10 samples were announced, and 9 written"), "{error}");
    assert_eq!(contents(&disks.devices()).unwrap(), samples(0..3));
}

#[test]
fn nothing_is_visible_before_the_end_and_nothing_is_left_of_a_discarded_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let create = |onto| {
        let options = of(onto, WriteOrder::Windows);
        let connect = ConnectOptions::default();
        Writer::create(&[Address::from_path(&path)], options, &connect)
    };
    let begin = |mut writer: Writer| {
        for id in 0..300 {
            let content = vec![7; 5000];
            let name = format!("new-{id}");
            let fields = [Some(&content[..])];
            let name = Some(name.as_bytes());
            writer.write(&NewSample { name, fields: &fields, ..Default::default() }).unwrap();
        }
        writer
    };
    drop(begin(create(Onto::Empty).unwrap()));
    assert!(!path.exists(), "a file that was created goes again");
    write(create(Onto::Empty).unwrap(), 50).unwrap();
    let before = fs::read(&path).unwrap();
    let writer = begin(create(Onto::Append).unwrap());
    assert_eq!(contents(&file(&path)).unwrap(), samples(0..50));
    let error = create(Onto::Append).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    drop(writer);
    assert_eq!(fs::metadata(&path).unwrap().len(), before.len() as u64);
    assert_eq!(contents(&file(&path)).unwrap(), samples(0..50));
    write(create(Onto::Append).unwrap(), 50).unwrap();
    assert_eq!(contents(&file(&path)).unwrap(), samples(0..100));
}

#[test]
fn whichever_write_or_flush_fails_the_previous_generation_stays_and_can_be_appended_to() {
    let whole = Disks::new(2, 16 << 20);
    write(Writer::create_on(&whole.devices(), of(Onto::Empty, ORDERS[0])).unwrap(), 150).unwrap();
    let start = whole.contents();
    whole.fail(None);
    write(Writer::create_on(&whole.devices(), of(Onto::Append, ORDERS[0])).unwrap(), 150).unwrap();
    let operations = whole.operations();
    let before = samples(0..150);
    let mut random = Random::new(9);
    for _ in 0..40 {
        let disks = Disks::holding(&start);
        let first = random.below(operations as usize) as u64;
        let count = u64::MAX - first;
        let error = IoError::Os(28);
        disks.fail(Some(Failure { first, count, error, loses_unflushed: false }));
        let append = || Writer::create_on(&disks.devices(), of(Onto::Append, ORDERS[0]));
        let result = append().and_then(|writer| write(writer, 150));
        assert!(result.is_err(), "write or flush {first} of {operations} failed unseen");
        disks.fail(None);
        let left = contents(&disks.devices()).unwrap();
        // The last ones complete a commit that is there already.
        let is_committed = left == samples(0..300);
        let text = format!("write or flush {first} of {operations}");
        assert!(left == before || is_committed && first + 3 > operations, "{text}");
        if !is_committed {
            write(append().unwrap(), 150).unwrap();
            assert!(contents(&disks.devices()).unwrap() == samples(0..300), "{text}");
        }
    }
}

#[test]
fn a_generation_keeps_its_bytes_if_the_last_flush_of_its_commit_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let address = Address::from_path(&path);
    let connect = ConnectOptions { writable: true, ..ConnectOptions::default() };
    let first =
        Writer::create(std::slice::from_ref(&address), of(Onto::Empty, ORDERS[0]), &connect);
    write(first.unwrap(), 50).unwrap();
    let start = fs::read(&path).unwrap();
    let mut visible = 0;
    for flushes in 0.. {
        fs::write(&path, &start).unwrap();
        let device = Faulty::new(qpair::open(&address, &connect).unwrap());
        for (times, fault) in [(flushes, Fault::Delay { polls: 0 }), (u32::MAX, Fault::Os(28))] {
            device.add(Rule { op: IoOp::Flush, blocks: 0..u64::MAX, times, fault });
        }
        let device: Arc<dyn Device> = Arc::new(device);
        let writer = Writer::create_on(std::slice::from_ref(&device), of(Onto::Append, ORDERS[0]));
        let result = writer.and_then(|writer| write(writer, 50));
        drop(device);
        let found = contents(&file(&path)).unwrap();
        if result.is_ok() {
            assert_eq!(found, samples(0..100));
            break;
        }
        visible += u32::from(found.len() == 100);
        assert_eq!(found, samples(0..if found.len() == 100 { 100 } else { 50 }));
    }
    assert!(visible > 0, "no flush failed behind the superblock");
}

#[test]
fn a_disk_that_fills_up_is_as_it_was_before() {
    let Some(disk) = SmallDisk::new(8 << 20) else { return };
    let image = [Address::from_path(disk.path().join("image"))];
    let create = |onto| Writer::create(&image, of(onto, ORDERS[0]), &ConnectOptions::default());
    write(create(Onto::Empty).unwrap(), 90).unwrap();
    let path = disk.path().join("image");
    let len = fs::metadata(&path).unwrap().len();
    let mut writer = create(Onto::Append).unwrap();
    let content = vec![1; 100_000];
    let fields = [Some(&content[..])];
    let sample = NewSample { fields: &fields, ..Default::default() };
    let error = (0..1000).find_map(|_| writer.write(&sample).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
    assert!(writer.write(&sample).is_err(), "it is of no more use");
    drop(writer);
    assert_eq!(fs::metadata(&path).unwrap().len(), len, "the room is free again");
    assert_eq!(contents(&file(&path)).unwrap(), samples(0..90));
}

#[test]
fn a_rebuild_finds_all_windows_again() {
    for order in ORDERS {
        let disks = Disks::new(2, 16 << 20);
        write(Writer::create_on(&disks.devices(), of(Onto::Empty, order)).unwrap(), SAMPLES)
            .unwrap();
        let all = contents(&disks.devices()).unwrap();
        let before = disks.contents();
        let extents = |directory: &Directory| -> Vec<_> {
            (0..SAMPLES).map(|id| directory.extent(SampleId(id)).unwrap()).collect()
        };
        let directory = opened(disks.devices());
        // The superblocks are gone.
        for device in disks.devices() {
            let mut io = Blocking::new(device.queue_pair().unwrap()).unwrap();
            for offset in COPY_OFFSETS {
                io.write_at(offset, &[0; SUPERBLOCK_BYTES]).unwrap();
            }
        }
        assert!(before != disks.contents());
        import::rebuild_on(&disks.devices(), None, &mut ()).unwrap();
        assert!(contents(&disks.devices()).unwrap() == all, "{order:?}");
        assert_eq!(extents(&opened(disks.devices())), extents(&directory), "{order:?}");
    }
}

/// Environment variable that tells a child process of this test which image to write.
const CHILD: &str = "DLFS_TEST_WRITER";

/// Not a test of its own: the child's work.
#[test]
fn child_appends_to_the_image() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let image = [Address::from_path(path)];
    let connect = ConnectOptions::default();
    let writer = Writer::create(&image, of(Onto::Append, ORDERS[0]), &connect).unwrap();
    write(writer, 400).unwrap();
}

fn spawn(image: &Path) -> Child {
    again(child_appends_to_the_image)
        .env(CHILD, image)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_writer_killed_at_any_moment_leaves_the_previous_generation_or_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let first = dir.path().join("first");
    let create = |path: &Path, onto| {
        Writer::create(&[Address::from_path(path)], of(onto, ORDERS[0]), &Default::default())
    };
    write(create(&first, Onto::Empty).unwrap(), 100).unwrap();
    fs::copy(&first, &path).unwrap();
    let began = std::time::Instant::now();
    assert!(spawn(&path).wait().unwrap().success());
    let mut most = began.elapsed().as_micros() as usize;
    assert!(contents(&file(&path)).unwrap() == samples(0..500));
    let rounds: u32 =
        std::env::var("DLFS_TEST_KILLS").map_or(20, |kills| kills.parse().expect("a number"));
    let mut hit = 0;
    let mut random = Random::new(31);
    for round in 0..rounds {
        fs::copy(&first, &path).unwrap();
        let mut child = spawn(&path);
        let moment = random.below(most);
        std::thread::sleep(Duration::from_micros(moment as u64));
        if child.try_wait().unwrap().is_none() {
            hit += 1;
        } else {
            most = moment.max(1); // the machine is less busy than before
        }
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        let found = contents(&file(&path)).unwrap();
        let is_old = found == samples(0..100);
        assert!(is_old || found == samples(0..500), "round {round}: torn");
        if is_old {
            write(create(&path, Onto::Append).unwrap(), 400).unwrap();
            assert!(contents(&file(&path)).unwrap() == samples(0..500), "round {round}");
        }
    }
    println!("{hit} of {rounds} writers were at work when they were killed");
    assert!(hit > rounds / 4, "only {hit} of {rounds} were at work");
}

#[test]
fn what_a_writer_left_is_not_resumed_by_an_import() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path(), 10, 1000, 3);
    let disks = Disks::new(1, 8 << 20);
    let failure =
        Failure { first: 20, count: u64::MAX - 20, error: IoError::Os(28), loses_unflushed: false };
    disks.fail(Some(failure));
    let writer = Writer::create_on(&disks.devices(), of(Onto::Empty, ORDERS[0])).unwrap();
    assert!(write(writer, 600).is_err());
    disks.fail(None);
    let import =
        |onto| import::import_onto(&paths(dir.path()), &disks.devices(), &options(onto), &mut ());
    let error = import(Onto::Resume).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSource, "{error:?}");
    let again = |onto| Writer::create_on(&disks.devices(), of(onto, ORDERS[0]));
    let error = again(Onto::Empty).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    write(again(Onto::Force).unwrap(), 30).unwrap();
    assert!(contents(&disks.devices()).unwrap() == samples(0..30));
}
