//! An image that the first epoch over shards fills: what it holds, what a killed job fetches again, and refusals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::import_support::Random;
use crate::import_support::served::serve;
use crate::shards::{
    Seen, connect, end, groups, imported, labelled, records, rows, seen, tars, write,
};
use crate::support::alone::again;
use crate::support::archives::member;
use crate::support::disk::SmallDisk;
use crate::support::object_store::{Fault, ObjectStore, bytes_of};
use dlfs::address::Address;
use dlfs::dataset::{Image, OpenOptions, Options, RunState, ShardLoader, VerifyOptions};
use dlfs::import::{ImportOptions, OnError, Writer, WriterOptions};
use dlfs::order::{OrderKind, OrderSpec};
use dlfs::places::PlaceOptions;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::qpair::mem::MemNamespace;
use dlfs::reader::Batch;
use dlfs::shards::{ShardOptions, image_to_fill};
use dlfs::units::Nsid;
use dlfs::{ErrorKind, Result};

/// A job over shards: its source, the place of the indexes, and the image that it fills.
struct Job {
    source: String,
    index: PathBuf,
    image: Vec<Address>,
    import: ImportOptions,
}

impl Job {
    /// A job whose image has so many files, in `folder`.
    fn new(source: impl ToString, folder: &Path, files: u32, import: &ImportOptions) -> Job {
        let file = |number| format!("file:{}", folder.join(format!("{number}.dlfs")).display());
        let image = (0..files).map(|number| image_to_fill(&file(number)).unwrap());
        Job {
            source: source.to_string(),
            index: folder.join("index"),
            image: image.flatten().collect(),
            import: import.clone(),
        }
    }

    fn open(
        &self,
        ranks: (u32, u32),
        epochs: u64,
        resume: Option<&RunState>,
    ) -> Result<ShardLoader> {
        let mut options = Options::default();
        options.open.connect = connect(&self.import);
        options.open.shards = Some(ShardOptions {
            index: Some(self.index.clone()),
            import_to: self.image.clone(),
            import: self.import.clone(),
        });
        let order = OrderSpec { kind: OrderKind::Global, seed: 7 };
        let (rank, world_size) = ranks;
        let load = LoaderOptions {
            rank,
            world_size,
            window_bytes: 3 << 19,
            ..LoaderOptions::new(order, 16, epochs)
        };
        let source = [self.source.parse::<Address>().unwrap()];
        ShardLoader::open(&source, &options, load, resume, &mut ())
    }

    /// Runs `work` for all ranks at once.
    fn ranks<T: Send>(&self, count: u32, work: impl Fn(u32) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let ranks: Vec<_> = (0..count).map(|rank| scope.spawn(move || work(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    /// Reads epochs with so many ranks: the names that each epoch gave.
    fn read(&self, ranks: u32, epochs: u64) -> Vec<Vec<String>> {
        let all = self.ranks(ranks, |rank| {
            let mut loader = self.open((rank, ranks), epochs, None).unwrap();
            let epochs = (0..epochs).map(|_| take(&mut loader, usize::MAX).unwrap());
            epochs.collect::<Vec<_>>()
        });
        let epoch = |epoch: usize| {
            let mut names: Vec<_> = all.iter().flat_map(|rank| rank[epoch].clone()).collect();
            names.sort();
            names
        };
        (0..epochs as usize).map(epoch).collect()
    }

    fn image(&self) -> Result<Image> {
        Image::open(&self.image, &OpenOptions::default())
    }

    /// Checks that the image is whole, and has what an import has.
    fn check(&self, expected: &Seen) {
        let report = self.image().unwrap().verify(&VerifyOptions::default(), &mut |_| {}).unwrap();
        assert!(report.damages.is_empty(), "{report:?}");
        let found = seen(self.image().unwrap());
        let names = |seen: &Seen| seen.samples.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(expected), "{}", self.source);
        assert!(found == *expected, "{}", self.source);
    }
}

/// Takes up to `most` batches of the epoch: the names in their order.
fn take(loader: &mut ShardLoader, most: usize) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut batch = Batch::new();
    for _ in 0..most {
        if !loader.next_into(&mut batch, &mut ())? {
            break;
        }
        if let Some(dataset) = loader.dataset() {
            dataset.load_names(&mut ())?; // training needs none
        }
        for index in 0..batch.len() {
            let directory = batch.directory_of(index).unwrap();
            let name = directory.name(batch.id_in_directory(index)).unwrap().unwrap();
            names.push(String::from_utf8(name).unwrap());
        }
    }
    Ok(names)
}

/// WebDataset shards of so many samples of `len` bytes.
fn shard(number: u64, samples: u64, len: usize) -> Vec<u8> {
    let sample = |at: u64| {
        let name = format!("{number:04}-{at:03}");
        let mut bytes = member(&format!("{name}.bin"), b'0', "", &bytes_of(number << 20 | at, len));
        bytes.extend(member(&format!("{name}.cls"), b'0', "", (at % 9).to_string().as_bytes()));
        bytes
    };
    let mut bytes: Vec<u8> = (0..samples).flat_map(sample).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// The bytes of shards that a store was asked for, and those from which on it answers no more.
struct Asked {
    bytes: AtomicU64,
    most: AtomicU64,
}

impl Asked {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }
}

/// A store of shards that counts the bytes of them which are asked for; also their length.
fn counting(shards: u64, samples: u64, len: usize) -> (ObjectStore, Arc<Asked>, u64) {
    let asked = Arc::new(Asked { bytes: AtomicU64::new(0), most: AtomicU64::new(u64::MAX) });
    let counted = Arc::clone(&asked);
    let length = shard(0, samples, len).len() as u64;
    let store = ObjectStore::with_faults(move |request| {
        if request.method == "GET" && request.key.ends_with(".tar") {
            if counted.bytes() >= counted.most.load(Ordering::SeqCst) {
                return Fault::Stall;
            }
            let (first, last) = request.range.unwrap_or((0, length - 1));
            counted.bytes.fetch_add(last.min(length - 1) + 1 - first, Ordering::SeqCst);
        }
        Fault::None
    });
    (0..shards).for_each(|number| store.put(&key(number), shard(number, samples, len)));
    (store, asked, shards * length)
}

fn key(number: u64) -> String {
    format!("set/{number:04}.tar")
}

fn of_store(places: PlaceOptions) -> ImportOptions {
    ImportOptions { places, ..ImportOptions::default() }
}

#[test]
fn an_image_that_the_first_epoch_fills_is_what_an_import_of_the_shards_makes() {
    let given = ImportOptions {
        field_types: vec!["cls:i64".parse().unwrap()],
        field_columns: vec!["class=cls".parse().unwrap()],
        ..ImportOptions::default()
    };
    // Samples of more than a chunk, of many to a chunk, and of none; names that several shards have.
    let mut large = groups(3, 5 << 20);
    large.push(("9.tar".to_owned(), vec![0; 1024]));
    let same = (0..3).map(|number| (format!("{number}.tar"), shard(0, 50 + number, 700)));
    let cases = [
        (tars(), ImportOptions::default()),
        (groups(400, 900), given),
        (large, ImportOptions::default()),
        (same.collect(), ImportOptions::default()),
        (records(), ImportOptions::default()),
    ];
    for (files, import) in cases {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &files);
        let source = folder.path().to_str().unwrap();
        let expected = imported(source, &import);
        for (ranks, files) in [(1, 1), (3, 3), (3, 1)] {
            let place = tempfile::tempdir().unwrap();
            let job = Job::new(source, place.path(), files, &import);
            let epochs = job.read(ranks, 2);
            assert_eq!(epochs[0].len(), expected.samples.len());
            assert_eq!(epochs[1], expected.samples.keys().cloned().collect::<Vec<_>>());
            job.check(&expected);
        }
    }
    for name in ["lines.jsonl", "zstd.parquet", "mds"] {
        if name != "lines.jsonl" && !cfg!(feature = "formats") {
            continue;
        }
        let place = tempfile::tempdir().unwrap();
        let job = Job::new(rows(name), place.path(), 1, &labelled());
        job.read(1, 1); // a run of one epoch commits at its end
        job.check(&imported(&rows(name), &labelled()));
    }
}

#[test]
fn four_ranks_fetch_each_shard_once_in_three_epochs_and_later_runs_read_the_image() {
    // Each rank reads the beginning of the first shard twice, to find the kind and the fields: 0.6 % of so little. On a
    // busy machine one request in 50 may be sent twice.
    let (store, asked, length) = counting(2000, 4, 13 << 10);
    let import = of_store(store.options());
    let place = tempfile::tempdir().unwrap();
    let job = Job::new("s3://bucket/set/", place.path(), 4, &import);
    let epochs = job.read(4, 3);
    let fetched = asked.bytes();
    println!("{fetched} of {length} bytes: {}", fetched as f64 / length as f64);
    assert!(fetched as f64 <= 1.03 * length as f64);
    assert!(epochs.iter().all(|names| names.len() == 8000 && *names == epochs[0]));
    // Now as many ranks as there are.
    let mut loader = job.open((0, 6), 1, None).unwrap();
    assert!(loader.dataset().is_some(), "there is no first epoch");
    assert_eq!(take(&mut loader, usize::MAX).unwrap().len(), 8000 / 6 + 1);
    drop(loader);
    job.check(&imported(&job.source, &import));
}

/// Environment variable that tells a child process of this test which job to run.
const CHILD: &str = "DLFS_TEST_FILL";

/// Not a test of its own: the child's work, which is killed.
#[test]
fn child_fills_what_it_is_told() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = told.split('|').collect();
    let [folder, files, ranks, endpoint] = words[..] else { panic!("{told}") };
    let mut places = ObjectStore::good().options();
    places.settings[0].1 = endpoint.to_owned();
    let job =
        Job::new("s3://bucket/set/", Path::new(folder), files.parse().unwrap(), &of_store(places));
    job.read(ranks.parse().unwrap(), 1);
}

/// Runs ranks in a process until so many bytes were asked for, and kills it. It gets no more until then, so that it
/// does not end before.
fn kill_after(
    folder: &Path,
    files: u32,
    ranks: u32,
    store: &ObjectStore,
    (asked, most): (&Asked, u64),
) {
    asked.most.store(most, Ordering::SeqCst);
    let told = format!("{}|{files}|{ranks}|{}", folder.display(), store.endpoint());
    let mut child = again(child_fills_what_it_is_told);
    let mut child = child.env(CHILD, told).stdout(Stdio::null()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(120);
    while asked.bytes() < most {
        assert!(Instant::now() < limit && child.try_wait().unwrap().is_none(), "it is at work");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    asked.most.store(u64::MAX, Ordering::SeqCst);
}

#[test]
fn a_killed_job_that_begins_anew_fetches_hardly_anything_again() {
    let (store, asked, length) = counting(600, 10, 4 << 10);
    store.shape(4 << 20);
    let place = tempfile::tempdir().unwrap();
    kill_after(place.path(), 1, 1, &store, (&asked, length / 2));
    let killed = asked.bytes();
    store.shape(0);
    let import = of_store(store.options());
    let job = Job::new("s3://bucket/set/", place.path(), 1, &import);
    assert_eq!(job.image().unwrap_err().kind(), ErrorKind::NotFound, "it is not complete");
    assert_eq!(job.read(1, 2)[0].len(), 6000);
    let fetched = asked.bytes();
    println!("killed after {killed} of {length} bytes; {fetched} in all");
    // Half came before the kill. Of that, what ended in the last moments comes again: more on a busy machine.
    assert!(fetched as f64 <= 1.2 * length as f64);
    job.check(&imported(&job.source, &import));
}

#[test]
fn jobs_killed_at_any_moment_and_resumed_at_other_world_sizes_have_each_sample_once() {
    [3, 1].into_iter().for_each(kill_and_resume);
}

fn kill_and_resume(files: u32) {
    let mut random = Random::new(52);
    let (store, asked, length) = counting(60, 10, 6 << 10);
    store.shape(16 << 20);
    let import = of_store(store.options());
    let expected = imported("s3://bucket/set/", &import);
    let place = tempfile::tempdir().unwrap();
    let job = Job::new("s3://bucket/set/", place.path(), files, &import);
    for ranks in [3, 2, 1] {
        let more = random.below((length / 3) as usize) as u64;
        kill_after(place.path(), files, ranks, &store, (&asked, asked.bytes() + more));
    }
    // States that were saved: each sample comes once, and the image has it once.
    let mut given = Vec::new();
    let mut state = None;
    for (ranks, batches) in [(2, 6), (3, 4), (1, 5), (2, usize::MAX)] {
        let ended = job.ranks(ranks, |rank| {
            let mut loader = job.open((rank, ranks), 1, state.as_ref()).unwrap();
            (take(&mut loader, batches).unwrap(), loader.state().to_json())
        });
        let states: Vec<String> = ended.iter().map(|(_, state)| state.clone()).collect();
        given.extend(ended.into_iter().flat_map(|(names, _)| names));
        state = Some(RunState::from_json(&states.join("\n")).unwrap());
    }
    given.sort();
    assert_eq!(given, expected.samples.keys().cloned().collect::<Vec<_>>());
    job.check(&expected);
}

#[test]
fn ranks_that_begin_at_the_same_moment_fill_one_image() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(9, 700));
    let source = folder.path().to_str().unwrap();
    let expected = imported(source, &ImportOptions::default());
    for files in [4, 1, 2].into_iter().cycle().take(20) {
        let place = tempfile::tempdir().unwrap();
        let job = Job::new(source, place.path(), files, &ImportOptions::default());
        assert_eq!(job.read(4, 1)[0].len(), 27);
        job.check(&expected);
    }
}

#[test]
fn a_rank_that_comes_late_reads_its_share_of_the_shards_and_not_of_the_image() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(1, 700));
    let source = folder.path().to_str().unwrap();
    let expected = imported(source, &ImportOptions::default());
    for (late, files) in [(0, 2), (1, 2), (0, 1), (1, 1)] {
        let place = tempfile::tempdir().unwrap();
        let job = Job::new(source, place.path(), files, &ImportOptions::default());
        let given = |rank| take(&mut job.open((rank, 2), 1, None).unwrap(), usize::MAX).unwrap();
        let given = std::thread::scope(|scope| {
            let early = scope.spawn(|| given(1 - late));
            // The early one has all of its samples by then, most likely, and waits to commit.
            std::thread::sleep(Duration::from_millis(500));
            [given(late), early.join().unwrap()].concat()
        });
        assert_eq!(given.len(), expected.samples.len(), "rank {late} came late");
        job.check(&expected);
    }
}

#[test]
fn namespaces_of_a_target_are_filled_by_two_ranks_under_leases() {
    let disks = [0, 1].map(|_| MemNamespace::new(4 << 20, 512).unwrap());
    let target = serve(&disks, None);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(60, 3000));
    let place = tempfile::tempdir().unwrap();
    let source = folder.path().to_str().unwrap();
    let job = Job {
        image: vec![target.address(Nsid(1)), target.address(Nsid(2))],
        ..Job::new(source, place.path(), 0, &ImportOptions::default())
    };
    let error = job.open((1, 3), 1, None).err().unwrap().report();
    assert!(error.contains("3 ranks cannot write an image of 2 namespaces"), "{error}");
    job.ranks(2, |rank| take(&mut job.open((rank, 2), 2, None).unwrap(), 2).unwrap());
    let epochs = job.read(2, 2);
    assert_eq!(epochs[0], epochs[1]);
    job.check(&imported(source, &job.import));
    target.stop();
}

/// Its bytes are in the image, as those of a sample that was deleted: what reads chunks back must find them right.
#[test]
fn a_sample_whose_name_is_taken_is_left_out_of_an_image_without_damage() {
    let disk = [MemNamespace::new(4 << 20, 512).unwrap()];
    let target = serve(&disk, None);
    let folder = tempfile::tempdir().unwrap();
    let shard = |names: &[&str]| {
        let file = |name: &&str| member(name, b'0', "", name.repeat(100).as_bytes());
        end(names.iter().flat_map(file).collect())
    };
    let shards = [("0.tar", shard(&["x", "1/x", "1.tar/x"])), ("1.tar", shard(&["x", "y"]))];
    write(folder.path(), &shards.map(|(name, bytes)| (name.to_owned(), bytes)));
    let place = tempfile::tempdir().unwrap();
    let source = folder.path().to_str().unwrap();
    let import = ImportOptions { on_error: OnError::Skip, ..ImportOptions::default() };
    let job =
        Job { image: vec![target.address(Nsid(1))], ..Job::new(source, place.path(), 0, &import) };
    let names = ["1.tar/x", "1/x", "x", "y"];
    // The first epoch knows no names of later shards.
    assert_eq!(job.read(1, 2)[1], names);
    let report = job.image().unwrap().verify(&VerifyOptions::default(), &mut |_| {}).unwrap();
    assert!(report.damages.is_empty(), "{report:?}");
    target.stop();
}

#[test]
fn a_state_of_a_run_without_an_image_leaves_nothing_out_of_the_image() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(60, 3000));
    let source = folder.path().to_str().unwrap();
    let place = tempfile::tempdir().unwrap();
    let import = ImportOptions::default();
    let without = Job { image: Vec::new(), ..Job::new(source, place.path(), 1, &import) };
    let mut loader = without.open((0, 1), 1, None).unwrap();
    let before = take(&mut loader, 7).unwrap();
    let state = loader.state();
    drop(loader);
    let job = Job::new(source, place.path(), 1, &import);
    let mut loader = job.open((0, 1), 1, Some(&state)).unwrap();
    let after = take(&mut loader, usize::MAX).unwrap();
    let expected = imported(source, &import);
    assert_eq!(before.len() + after.len(), expected.samples.len());
    job.check(&expected);
}

#[test]
fn a_state_of_an_epoch_that_reads_the_image_is_refused_where_the_image_is_not_complete() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(60, 3000));
    let source = folder.path().to_str().unwrap();
    let import = ImportOptions::default();
    let place = tempfile::tempdir().unwrap();
    let job = Job::new(source, place.path(), 1, &import);
    let mut loader = job.open((0, 1), 2, None).unwrap();
    let all = take(&mut loader, usize::MAX).unwrap();
    let before = take(&mut loader, 3).unwrap();
    let state = loader.state();
    assert!(matches!(state, RunState::Samples(_)));
    drop(loader);
    let another = tempfile::tempdir().unwrap();
    let other = Job::new(source, another.path(), 1, &import);
    let error = other.open((0, 1), 2, Some(&state)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let report = error.report();
    let says = ["the image is not complete", "0.dlfs", "begin without the state"];
    assert!(says.iter().all(|text| report.contains(text)), "{report}");
    let mut loader = job.open((0, 1), 2, Some(&state)).unwrap();
    let after = take(&mut loader, usize::MAX).unwrap();
    assert_eq!(before.len() + after.len(), all.len());
}

#[test]
fn a_rank_that_ends_its_only_epoch_leaves_the_commit_to_one_that_still_reads() {
    [2, 1].into_iter().for_each(end_early);
}

fn end_early(files: u32) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(60, 3000));
    let source = folder.path().to_str().unwrap();
    let import = ImportOptions::default();
    let place = tempfile::tempdir().unwrap();
    let job = Job::new(source, place.path(), files, &import);
    let mut late = job.open((1, 2), 1, None).unwrap();
    let mut names = take(&mut late, 1).unwrap();
    let mut early = job.open((0, 2), 1, None).unwrap();
    names.extend(take(&mut early, usize::MAX).unwrap());
    drop(early);
    assert_eq!(job.image().unwrap_err().kind(), ErrorKind::NotFound, "the other rank reads");
    names.extend(take(&mut late, usize::MAX).unwrap());
    let expected = imported(source, &import);
    assert_eq!(names.len(), expected.samples.len());
    job.check(&expected);
}

#[test]
fn an_image_of_other_shards_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(30, 3000));
    let source = folder.path().to_str().unwrap();
    let place = tempfile::tempdir().unwrap();
    let import = ImportOptions::default();
    let job = Job::new(source, place.path(), 1, &import);
    let refused = |job: &Job, kind: ErrorKind, says: &str| {
        let error = job.open((0, 1), 1, None).err().unwrap();
        let report = error.report();
        assert!(error.kind() == kind && report.contains(says), "{report}");
        assert!(report.contains("0.dlfs"), "{report}");
    };
    // Begun and complete, by other shards.
    let other = tempfile::tempdir().unwrap();
    write(other.path(), &groups(31, 3000));
    let others = Job {
        source: other.path().display().to_string(),
        ..Job::new("", place.path(), 1, &import)
    };
    let mut begun = job.open((0, 1), 1, None).unwrap();
    take(&mut begun, 1).unwrap();
    refused(&job, ErrorKind::Busy, "open for writing");
    drop(begun);
    refused(&others, ErrorKind::Refused, "other shards");
    job.read(1, 1);
    refused(&others, ErrorKind::Refused, "other shards");
    // Another image, and a file of something else.
    fs::remove_file(place.path().join("0.dlfs")).unwrap();
    let connect = ConnectOptions::default();
    let mut writer = Writer::create(&job.image, WriterOptions::default(), &connect).unwrap();
    let sample = dlfs::import::NewSample { fields: &[Some(b"x")], ..Default::default() };
    writer.write(&sample).unwrap();
    writer.finish().unwrap();
    refused(&job, ErrorKind::Refused, "other shards");
    fs::write(place.path().join("0.dlfs"), vec![7; 40_960]).unwrap();
    refused(&job, ErrorKind::Refused, "other data");
}

#[test]
fn a_disk_that_is_full_ends_the_epoch_with_an_error_that_names_the_image_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &groups(300, 20_000));
    let source = folder.path().to_str().unwrap();
    let Some(disk) = SmallDisk::new(8 << 20) else { return };
    let place = tempfile::tempdir().unwrap();
    let job = Job {
        index: place.path().to_owned(),
        ..Job::new(source, disk.path(), 1, &ImportOptions::default())
    };
    let mut loader = job.open((0, 1), 1, None).unwrap();
    let error = take(&mut loader, usize::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{}", error.report());
    let report = error.report();
    assert!(report.contains("0.dlfs") && report.contains("begin again"), "{report}");
    drop(loader);
    let moved = place.path().join("0.dlfs");
    fs::copy(disk.path().join("0.dlfs"), &moved).unwrap();
    let job = Job { image: vec![Address::from_path(&moved)], ..job };
    assert_eq!(job.read(1, 1)[0].len(), 900);
    job.check(&imported(source, &job.import));
}
