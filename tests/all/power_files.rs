//! Power losses while files are written: states, snapshots of the directory, image files and tiers.
//!
//! A child does the work under strace. Its calls are replayed one by one (`power_files/strace.rs`), and after
//! each call the test creates and checks the folders that a power loss might leave (see `power_files/folder.rs`).
//! `power.rs` does the same with namespaces. The seed is printed; `DLFS_POWER_SEED` sets it, and
//! `DLFS_POWER_DRAWS` sets how many losses are drawn after each call.

mod folder;
mod strace;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::support::alone::again;
use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{Image, OpenOptions, load_state, save_state};
use dlfs::format::Superblock;
use dlfs::format::superblock::{COPY_OFFSETS, OTHER_COPY_VOID, copy_offset};
use dlfs::import::{
    EditOptions, Onto, Progress, Stage, delete, import, purge, snapshot_check, snapshot_save,
};
use dlfs::order::{OrderKind, OrderSpec, State};
use dlfs::qpair::ConnectOptions;
use dlfs::reader::{Batch, ReaderOptions};
use dlfs::tier::Policy;
use dlfs::units::{Epoch, Generation};
use dlfs::{ErrorKind, Result};

use crate::import_support::{contents, options, paths, tree};
use crate::support::random::Random;
use folder::{Files, Folder};

/// The work of a child process of this test: a word, and a folder with all it needs.
const CHILD: &str = "DLFS_TEST_POWER_CHILD";

/// Not a test of its own: the child's work.
#[test]
fn child_does_what_it_is_told() {
    let Some(job) = std::env::var_os(CHILD) else { return };
    let job = job.into_string().unwrap();
    let (what, root) = job.split_once('|').unwrap();
    let work = Work { root: root.into() };
    match what {
        "state" => save_state(&work.file("state"), &state(2)).unwrap(),
        "snapshot" => work.save_snapshot().unwrap(),
        "import" => work.import("first", Onto::Empty).unwrap(),
        "append" => work.import("second", Onto::Append).unwrap(),
        "purge" => work.purge().unwrap(),
        "tier" => drop(work.read_with_tier("second")),
        other => panic!("nobody knows how to {other}"),
    }
}

/// A folder with two sources, beside the folder whose files are watched.
struct Work {
    root: PathBuf,
}

impl Work {
    fn file(&self, name: &str) -> PathBuf {
        self.root.join("watched").join(name)
    }

    fn import(&self, source: &str, onto: Onto) -> Result<()> {
        let time_ns = Some(if source == "first" { 1_000 } else { 2_000 });
        let options = dlfs::import::ImportOptions { time_ns, ..options(onto) };
        let image = [Address::from_path(self.file("image"))];
        let connect = ConnectOptions::default();
        import(&paths(&self.root.join(source)), &image, &options, &connect, &mut ()).map(drop)
    }

    fn purge(&self) -> Result<()> {
        let image = [Address::from_path(self.file("image"))];
        purge(&image, &EditOptions::default(), &ConnectOptions::default(), &mut ()).map(drop)
    }

    /// Everything that the image has.
    fn contents(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let address = Address::from_path(self.file("image"));
        contents(&[dlfs::qpair::open(&address, &ConnectOptions::default())?])
    }

    fn save_snapshot(&self) -> Result<()> {
        let image = [Address::from_path(self.root.join("image"))];
        snapshot_save(&image, &self.file("snapshot"), &ConnectOptions::default()).map(drop)
    }

    /// Reads a plain folder twice through a tier, and returns the result.
    fn read_with_tier(&self, source: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let tier = format!("file:{}:{TIER_BYTES}", self.file("").display());
        let tiers = TierOptions {
            tiers: vec![tier.parse().unwrap()],
            policy: Policy::FirstTouch,
            ..TierOptions::default()
        };
        let options = OpenOptions { tiers, ..OpenOptions::default() };
        let image = Image::open(&[Address::from_path(self.root.join(source))], &options).unwrap();
        image.load_names().unwrap();
        let directory = image.directory();
        let ids: Vec<_> =
            (0..directory.num_live()).map(|rank| directory.id_of_live(rank)).collect();
        let mut found = BTreeMap::new();
        settle(&image); // first checks what an earlier run left
        for _ in 0..2 {
            let mut reader = image.reader(ReaderOptions::default()).unwrap();
            let mut batch = Batch::new();
            reader.read_batch(&ids, &mut batch).unwrap();
            for (at, id) in ids.iter().enumerate() {
                let name = directory.name(*id).unwrap().unwrap();
                let before = found.insert(name, batch.bytes(at).to_vec());
                assert!(before.is_none_or(|before| before == batch.bytes(at)), "sample {id}");
            }
            settle(&image);
        }
        found
    }
}

fn settle(image: &Image) {
    let until = Instant::now() + Duration::from_secs(120);
    while !image.tiers().expect("it has one").is_settled() {
        assert!(Instant::now() < until, "still copying");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const TIER_BYTES: u64 = 1 << 20;

fn state(consumed: u64) -> State {
    let order = OrderSpec { kind: OrderKind::Global, seed: 1 };
    State { consumed, epoch: Epoch(consumed), ..State::start([7; 16], Generation(1), order) }
}

/// The losses after the first calls are always checked.
const ALWAYS: usize = 12;

/// A child's work, and the invariant of each folder that a power loss may leave.
struct Trial {
    folder: tempfile::TempDir,
    work: Work,
    before: Files,
}

impl Trial {
    fn new() -> Trial {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(root.join("watched")).unwrap();
        Trial { folder, work: Work { root }, before: Files::new() }
    }

    /// The present contents of the watched folder are the durable initial state.
    fn begin_here(&mut self) {
        self.before = files_of(&self.work.root.join("watched"));
    }

    /// Lets a child do `what`, and checks each loss, at most this many, with `check`, which is told whether
    /// the child had reported success.
    fn run(
        &self,
        what: &str,
        most: usize,
        check: impl Fn(&Work, bool) -> std::result::Result<(), String>,
    ) {
        let seed = std::env::var("DLFS_POWER_SEED").map_or(1, |text| text.parse().unwrap());
        let draws = std::env::var("DLFS_POWER_DRAWS").map_or(1, |text| text.parse().unwrap());
        let mut random = Random::new(seed);
        let watched = self.work.root.join("watched");
        let mut child = again(child_does_what_it_is_told);
        child.env(CHILD, format!("{what}|{}", self.work.root.display()));
        let Some(calls) = strace::run(child, &watched) else { return };
        assert!(calls.len() > 2, "only {calls:?}");
        let mut history = Folder::holding(&self.before);
        let mut seen = HashSet::new();
        let mut losses = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            history.follow(call);
            let is_last = at + 1 == calls.len();
            for left in history.losses(draws, &mut random) {
                if seen.insert((left.clone(), is_last)) {
                    losses.push((at, left, is_last));
                }
            }
        }
        let all = losses.len();
        // The first ones are all possibilities after the first calls.
        while losses.len() > most * draws {
            losses.swap_remove(ALWAYS + random.below((losses.len() - ALWAYS) as u64) as usize);
        }
        for (number, (at, left, is_last)) in losses.iter().enumerate() {
            put_files(&watched, left);
            let checked = check(&self.work, *is_last);
            checked.unwrap_or_else(|why| panic!("{what}, call {at}, loss {number}: {why}"));
        }
        println!("{what}: {} calls, {} of {all} different losses", calls.len(), losses.len());
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }
}

fn files_of(folder: &Path) -> Files {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let file = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    entries.map(file).collect()
}

fn put_files(folder: &Path, files: &Files) {
    for name in files_of(folder).into_keys() {
        fs::remove_file(folder.join(name)).unwrap();
    }
    for (name, bytes) in files {
        // Bytes never written are a hole.
        let file = fs::File::create(folder.join(name)).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (at, page) in (0..).zip(bytes.chunks(4096)).filter(|(_, page)| *page != [0; 4096]) {
            file.write_all_at(page, at * 4096).unwrap();
        }
    }
}

fn must(right: bool, why: &str) -> std::result::Result<(), String> {
    right.then_some(()).ok_or_else(|| why.to_owned())
}

#[test]
fn a_state_is_the_old_one_or_the_new_one_and_never_absent_where_there_was_one() {
    for old in [None, Some(state(1))] {
        let mut trial = Trial::new();
        if let Some(old) = &old {
            save_state(&trial.work.file("state"), old).unwrap();
        }
        trial.begin_here();
        trial.run("state", 100, |work, is_done| {
            let file = work.file("state");
            let found = load_state(&file).map_err(|error| error.report())?;
            must(found == Some(state(2)) || !is_done && found == old, &format!("{found:?}"))?;
            save_state(&file, &state(3)).map_err(|error| error.report())?;
            must(load_state(&file).unwrap() == Some(state(3)), "the next state is not there")
        });
    }
}

#[test]
fn a_saved_snapshot_is_the_old_one_or_the_new_one() {
    let mut trial = Trial::new();
    tree(&trial.root().join("first"), 9, 5_000, 1);
    tree(&trial.root().join("second"), 5, 5_000, 2);
    let image = trial.work.root.join("image");
    let connect = ConnectOptions::default();
    let addresses = [Address::from_path(&image)];
    let source = |name: &str| paths(&trial.work.root.join(name));
    import(&source("first"), &addresses, &options(Onto::Empty), &connect, &mut ()).unwrap();
    trial.work.save_snapshot().unwrap();
    import(&source("second"), &addresses, &options(Onto::Append), &connect, &mut ()).unwrap();
    trial.begin_here();
    let old = trial.before["snapshot"].clone();
    trial.run("snapshot", 100, |work, is_done| {
        let file = work.file("snapshot");
        let addresses = [Address::from_path(&image)];
        let is_old = fs::read(&file).map_err(|error| error.to_string())? == old;
        match snapshot_check(&addresses, &file, &connect) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Stale && is_old => {
                must(!is_done, "the old one is back")
            }
            Err(error) => Err(error.report()),
        }
    });
}

#[test]
fn an_image_file_holds_the_generation_before_or_the_new_one_and_keeps_its_name() {
    let mut trial = Trial::new();
    let first = tree(&trial.root().join("first"), 12, 15_000, 1);
    let mut all = first.clone();
    all.extend(tree(&trial.root().join("second"), 8, 15_000, 2));
    trial.begin_here();
    trial.work.import("first", Onto::Empty).unwrap();
    let after_first = fs::read(trial.work.file("image")).unwrap();
    put_files(&trial.work.file(""), &Files::new());
    trial.run("import", 100, |work, is_done| {
        match work.contents() {
            Ok(found) => must(found == first, "other samples")?,
            Err(error) => {
                let is_no_image = matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::InvalidArgument
                );
                must(is_no_image && !is_done, &error.report())?;
            }
        }
        work.import("first", Onto::Resume).map_err(|error| error.report())?;
        must(fs::read(work.file("image")).unwrap() == after_first, "other bytes")
    });
    put_files(&trial.work.file(""), &Files::from([("image".to_owned(), after_first)]));
    trial.begin_here();
    trial.work.import("second", Onto::Append).unwrap();
    let after_second = fs::read(trial.work.file("image")).unwrap();
    put_files(&trial.work.file(""), &trial.before);
    trial.run("append", 100, |work, is_done| {
        let found = work.contents().map_err(|error| error.report())?;
        must(found == all || !is_done && found == first, "other samples")?;
        match work.import("second", Onto::Resume) {
            Err(error) if matches!(error.kind(), ErrorKind::BadSource | ErrorKind::NotFound) => {
                work.import("second", Onto::Append).map_err(|error| error.report())?;
            }
            result => result.map_err(|error| error.report())?,
        }
        must(fs::read(work.file("image")).unwrap() == after_second, "other bytes")
    });
}

#[test]
fn a_file_that_is_purged_and_cut_holds_its_samples_all_the_time() {
    let mut trial = Trial::new();
    let mut files = tree(&trial.root().join("first"), 60, 15_000, 1);
    trial.work.import("first", Onto::Empty).unwrap();
    let names: Vec<Vec<u8>> = files.keys().step_by(3).cloned().collect();
    names.iter().for_each(|name| drop(files.remove(name)));
    let image = [Address::from_path(trial.work.file("image"))];
    delete(&image, &names, &EditOptions::default(), &ConnectOptions::default()).unwrap();
    trial.begin_here();
    trial.run("purge", 100, |work, _| {
        let found = work.contents().map_err(|error| error.report())?;
        must(found == files, "other samples")?;
        work.purge().map_err(|error| error.report())?;
        let found = work.contents().map_err(|error| error.report())?;
        must(found == files, "other samples after another purge")
    });
}

/// An image of two files that a purge was killed at, whose bytes are written where they would be now.
struct Killed {
    folder: tempfile::TempDir,
    files: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Its bytes after the last commit of the purge, and after the whole purge.
    committed: [Vec<u8>; 2],
    purged: [Vec<u8>; 2],
}

impl Killed {
    fn new() -> Killed {
        let folder = tempfile::tempdir().unwrap();
        let mut files = tree(&folder.path().join("first"), 400, 9_000, 1);
        let image = addresses(folder.path());
        let connect = ConnectOptions::default();
        let source = paths(&folder.path().join("first"));
        import(&source, &image, &options(Onto::Empty), &connect, &mut ()).unwrap();
        let mut taken = TakenAtCommit { folder: folder.path(), files: None };
        // The second purge writes into the holes that the first one made, and frees the end.
        for every in [3, 2] {
            let names: Vec<Vec<u8>> = files.keys().step_by(every).cloned().collect();
            names.iter().for_each(|name| drop(files.remove(name)));
            delete(&image, &names, &EditOptions::default(), &connect).unwrap();
            purge(&image, &EditOptions::default(), &connect, &mut taken).unwrap();
        }
        let committed = taken.files.expect("the purge reported its end");
        let purged = files_at(folder.path());
        let lengths = |files: &[Vec<u8>; 2]| [files[0].len(), files[1].len()];
        let before = lengths(&committed);
        let after = lengths(&purged);
        println!("{before:?} bytes before space is given back, {after:?} after");
        assert!(before[0] > after[0] && before[1] > after[1], "{before:?} became {after:?}");
        Killed { folder, files, committed, purged }
    }

    fn put(&self, states: &[Vec<u8>; 2]) {
        let put = |(name, bytes): (&str, &Vec<u8>)| (name.to_owned(), bytes.clone());
        let files: Files = NAMES.into_iter().zip(states).map(put).collect();
        put_files(&self.folder.path().join("image"), &files);
    }

    fn purge(&self) {
        let image = addresses(self.folder.path());
        purge(&image, &EditOptions::default(), &ConnectOptions::default(), &mut ()).unwrap();
        let device = |address| dlfs::qpair::open(address, &ConnectOptions::default()).unwrap();
        let devices: Vec<_> = image.iter().map(device).collect();
        assert!(contents(&devices).unwrap() == self.files, "other samples");
    }

    /// Purges again, and says whether that wrote anything.
    fn purge_writes(&self) -> bool {
        let path = |name: &str| self.folder.path().join("image").join(name);
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for name in NAMES {
            let file = fs::File::options().write(true).open(path(name)).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        self.purge();
        let modified = |name| fs::metadata(path(name)).unwrap().modified().unwrap();
        NAMES.into_iter().any(|name| modified(name) != long_ago)
    }
}

const NAMES: [&str; 2] = ["zero", "one"];

fn addresses(folder: &Path) -> [Address; 2] {
    fs::create_dir_all(folder.join("image")).unwrap();
    NAMES.map(|name| Address::from_path(folder.join("image").join(name)))
}

fn files_at(folder: &Path) -> [Vec<u8>; 2] {
    NAMES.map(|name| fs::read(folder.join("image").join(name)).unwrap())
}

/// Takes the files when the purge has committed everything.
struct TakenAtCommit<'a> {
    folder: &'a Path,
    files: Option<[Vec<u8>; 2]>,
}

impl Progress for TakenAtCommit<'_> {
    fn stage(&mut self, stage: Stage, _: u64, _: u64) {
        if stage == Stage::Committing {
            self.files = Some(files_at(self.folder));
        }
    }

    fn advance(&mut self, _: u64, _: u64) {}
}

/// Stops an import after it has told of a few samples written.
struct StopAmongChunks(Option<u32>);

impl Progress for StopAmongChunks {
    fn stage(&mut self, stage: Stage, _: u64, _: u64) {
        self.0 = (stage == Stage::Writing).then_some(5);
    }

    fn advance(&mut self, _: u64, _: u64) {
        self.0 = self.0.map(|left| left.saturating_sub(1));
    }

    fn stop(&mut self) -> bool {
        self.0 == Some(0)
    }
}

/// The current copy of the superblock in the bytes of a file.
fn superblock(bytes: &[u8]) -> Superblock {
    let copies = COPY_OFFSETS.map(|at| Superblock::parse(&bytes[at as usize..][..4096]));
    copies.into_iter().flatten().max_by_key(|copy| copy.generation).unwrap()
}

/// A step of giving space back, on the file of one namespace.
type Step = fn(&mut [u8]);

fn declare_void(bytes: &mut [u8]) {
    let mut superblock = superblock(bytes);
    superblock.optional_features |= OTHER_COPY_VOID;
    let at = copy_offset(superblock.generation) as usize;
    bytes[at..at + 4096].copy_from_slice(&superblock.encode());
}

fn erase_other(bytes: &mut [u8]) {
    let at = copy_offset(Generation(superblock(bytes).generation.0 - 1)) as usize;
    assert!(bytes[at..at + 4096].iter().any(|&byte| byte != 0));
    bytes[at..at + 4096].fill(0);
}

#[test]
fn a_purge_that_was_killed_before_it_gave_its_space_back_is_finished_by_the_next_one() {
    let killed = Killed::new();
    assert!(!killed.purge_writes(), "a whole purge left something");
    let mut states = vec![killed.committed.clone()];
    // The steps of giving back until the first file is cut: the last namespace is declared void first.
    let steps: [(usize, Step); 4] =
        [(1, declare_void), (0, declare_void), (0, erase_other), (1, erase_other)];
    for (namespace, step) in steps {
        let mut state = states.last().unwrap().clone();
        step(&mut state[namespace]);
        states.push(state);
    }
    let mut cut = states.last().unwrap().clone();
    cut[0] = killed.purged[0].clone();
    states.push(cut);
    for (number, state) in states.iter().enumerate() {
        killed.put(state);
        assert!(killed.purge_writes(), "state {number} was taken for a whole one");
        let found = files_at(killed.folder.path());
        let lengths = [found[0].len(), found[1].len()];
        assert!(found == killed.purged, "state {number}: other bytes, {lengths:?} of them");
        assert!(!killed.purge_writes(), "state {number}: the second purge wrote something");
    }
}

/// The file is as long as it has to be, but cells in it are not given back.
#[test]
fn a_hole_that_a_killed_purge_did_not_make_is_made_by_the_next_one() {
    let killed = Killed::new();
    let mut state = killed.committed.clone();
    for (state, purged) in state.iter_mut().zip(&killed.purged) {
        state.truncate(purged.len());
        declare_void(state);
        erase_other(state);
    }
    assert!(state != killed.purged, "the purge made no holes");
    killed.put(&state);
    assert!(killed.purge_writes());
    assert!(files_at(killed.folder.path()) == killed.purged);
    assert!(!killed.purge_writes());
}

#[test]
fn a_purge_without_work_leaves_the_generation_before_and_an_unfinished_import_alone() {
    let mut killed = Killed::new();
    let image = addresses(killed.folder.path());
    let connect = ConnectOptions::default();
    let append = |source: &str, stop: &mut dyn Progress, onto| {
        let options = dlfs::import::ImportOptions { time_ns: Some(1 << 62), ..options(onto) };
        import(&paths(&killed.folder.path().join(source)), &image, &options, &connect, stop)
    };
    let second = tree(&killed.folder.path().join("second"), 20, 9_000, 2);
    append("second", &mut (), Onto::Append).unwrap();
    tree(&killed.folder.path().join("third"), 400, 9_000, 3);
    let whole = files_at(killed.folder.path());
    append("third", &mut StopAmongChunks(None), Onto::Append).unwrap_err();
    let begun = files_at(killed.folder.path());
    assert!(begun[0].len() > whole[0].len(), "it wrote no chunk behind the end");
    killed.files.extend(second);
    assert!(!killed.purge_writes(), "the import could not be resumed");
    assert!(files_at(killed.folder.path()) == begun);
    killed.put(&whole);
    assert!(!killed.purge_writes(), "the generation before was to stay");
    assert!(files_at(killed.folder.path()) == whole);
}

/// Two folders with the same names and lengths: a tier that mixes them up returns wrong bytes, since a
/// folder has no checksums of its own.
#[test]
fn a_tier_is_reused_silently_and_never_returns_copies_of_another_data_set() {
    let mut trial = Trial::new();
    let first = tree(&trial.root().join("first"), 16, 12_000, 1);
    let mut second = BTreeMap::new();
    for (name, bytes) in &first {
        let path = trial.root().join("second").join(std::str::from_utf8(name).unwrap());
        let bytes: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &bytes).unwrap();
        second.insert(name.clone(), bytes);
    }
    for before in [false, true] {
        if before {
            put_files(&trial.work.file(""), &Files::new());
            assert!(trial.work.read_with_tier("first") == first);
        }
        trial.begin_here();
        trial.run("tier", 24, |work, _| {
            must(work.read_with_tier("second") == second, "bytes of another data set")
        });
    }
}
