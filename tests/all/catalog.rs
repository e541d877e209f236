//! Catalogues: names, versions and aliases in a folder.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dlfs::address::{Address, CatalogPlace, CatalogVersion};
use dlfs::catalog::{Catalog, Expect, FolderStore, Index, Log, Record, Store, resolve};
use dlfs::units::Generation;
use dlfs::{ErrorKind, Result};

fn record(image: u8, generation: u64) -> Record {
    Record {
        image: format!("{image:02x}000000-0000-4000-8000-000000000000"),
        generation,
        sites: vec![format!("/images/{image}.dlfs")],
        samples: 10 * generation,
        bytes: 1000 * generation,
        chunks: generation,
        snapshot: "crc32c:00000000,4096 bytes".to_owned(),
        fields: Vec::new(),
        parent: None,
        sources: Vec::new(),
        made_by: String::new(),
        dlfs: "0.1.0".to_owned(),
        committed_s: 1_795_000_000 + generation,
        labels: Default::default(),
    }
}

fn open(folder: &Path) -> Catalog {
    Catalog::open(&CatalogPlace::Folder(folder.to_owned())).unwrap()
}

/// Generations of one image, each with the number of its version.
fn add_all(catalog: &Catalog, generations: std::ops::RangeInclusive<u64>) {
    for number in generations {
        assert_eq!(catalog.add("train", &record(1, number)).unwrap(), number);
    }
}

fn generation(number: u64) -> CatalogVersion {
    CatalogVersion::Generation(Generation(number))
}

fn alias(name: &str) -> CatalogVersion {
    CatalogVersion::Alias(name.to_owned())
}

#[test]
fn a_name_stands_for_the_newest_version_a_generation_or_what_an_alias_points_to() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    assert_eq!(catalog.names().unwrap_err().kind(), ErrorKind::NotFound, "there is no catalogue");
    for number in 1..=3 {
        assert_eq!(catalog.add("train", &record(1, number)).unwrap(), number);
    }
    assert_eq!(catalog.add("train", &record(1, 3)).unwrap(), 3, "it is there already");
    assert_eq!(catalog.add("other", &record(2, 1)).unwrap(), 1);
    assert_eq!(catalog.names().unwrap(), ["other", "train"]);
    assert_eq!(catalog.find("train", None).unwrap(), (3, record(1, 3)));
    assert_eq!(catalog.find("train", Some(&generation(2))).unwrap(), (2, record(1, 2)));
    assert_eq!(catalog.tag("train", "stable", &generation(2), Expect::Nothing).unwrap(), 1);
    assert_eq!(catalog.find("train", Some(&alias("stable"))).unwrap(), (2, record(1, 2)));
    assert_eq!(catalog.tag("train", "stable", &generation(3), Expect::Anything).unwrap(), 2);
    let aliases = catalog.aliases("train").unwrap();
    assert_eq!((&*aliases[0].name, aliases[0].version, aliases[0].moves), ("stable", 3, 2));
    assert_eq!(
        catalog.history("train", "stable").unwrap(),
        [Some(Generation(2)), Some(Generation(3))]
    );
    for (version, word) in [(generation(9), "generation 9"), (alias("nobody"), "alias nobody")] {
        let error = catalog.find("train", Some(&version)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(catalog.find("nobody", None).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn what_is_removed_is_not_found_and_what_an_alias_points_to_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    add_all(&catalog, 1..=3);
    catalog.tag("train", "stable", &generation(3), Expect::Anything).unwrap();
    assert_eq!(catalog.remove("train", Some(Generation(3))).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(catalog.remove("train", Some(Generation(2))).unwrap(), 1);
    assert_eq!(
        catalog.find("train", Some(&generation(2))).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(catalog.find("train", None).unwrap().1, record(1, 3));
    catalog.remove_alias("train", "stable").unwrap();
    assert_eq!(catalog.remove_alias("train", "stable").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(catalog.aliases("train").unwrap(), []);
    assert_eq!(catalog.remove("train", None).unwrap(), 2);
    assert_eq!(catalog.names().unwrap(), Vec::<String>::new());
    // Numbers go on, so a reader that knows an old one never sees another record there.
    assert_eq!(catalog.add("train", &record(1, 4)).unwrap(), 6);
    assert_eq!(catalog.find("train", None).unwrap(), (6, record(1, 4)));
}

#[test]
fn two_images_of_one_name_are_told_apart_and_an_older_generation_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    catalog.add("train", &record(1, 1)).unwrap();
    catalog.add("train", &record(1, 2)).unwrap();
    assert_eq!(catalog.add("train", &record(1, 1)).unwrap_err().kind(), ErrorKind::Refused);
    catalog.add("train", &record(2, 1)).unwrap();
    let error = catalog.find("train", Some(&generation(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(catalog.find("train", Some(&generation(2))).unwrap().1, record(1, 2));
    let (newest, found) = catalog.find("train", None).unwrap();
    assert_eq!(found, record(2, 1));
    // An alias may point to either of them, by its number.
    for (number, image) in [(newest, 2), (1, 1)] {
        catalog.tag_version("train", "stable", number, Expect::Anything).unwrap();
        let found = catalog.find("train", Some(&alias("stable"))).unwrap();
        assert_eq!(found, (number, record(image, 1)));
    }
    let error = catalog.tag_version("train", "stable", 9, Expect::Anything).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn a_thousand_moves_at_once_leave_one_history_without_gap_or_loss() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    add_all(&catalog, 1..=8);
    const MOVES: u64 = 125;
    std::thread::scope(|scope| {
        for to in 1..=8 {
            let catalog = open(folder.path()).with_deadline(PATIENCE);
            scope.spawn(move || {
                for _ in 0..MOVES {
                    catalog.tag("train", "stable", &generation(to), Expect::Anything).unwrap();
                }
            });
        }
    });
    let history = catalog.history("train", "stable").unwrap();
    assert_eq!(history.len() as u64, 8 * MOVES);
    for to in 1..=8 {
        let moves = history.iter().filter(|at| **at == Some(Generation(to))).count() as u64;
        assert_eq!(moves, MOVES, "to generation {to}");
    }
    assert_eq!(catalog.aliases("train").unwrap()[0].moves, 8 * MOVES);
}

/// For calls of many at once, on a disk that others use, too.
const PATIENCE: Duration = Duration::from_secs(240);

#[test]
fn of_many_who_expect_an_alias_where_it_is_one_moves_it() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    add_all(&catalog, 1..=9);
    catalog.tag("train", "stable", &generation(1), Expect::Nothing).unwrap();
    let expect = Expect::Generation(Generation(1));
    let moved: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (2..=9)
            .map(|to| {
                let catalog = open(folder.path()).with_deadline(PATIENCE);
                scope.spawn(move || match catalog.tag("train", "stable", &generation(to), expect) {
                    Ok(_) => 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                        0
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(moved, 1);
    assert_eq!(catalog.history("train", "stable").unwrap().len(), 2);
}

#[test]
fn names_do_not_climb_out_of_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(&folder.path().join("catalog"));
    for name in ["..", ".", "", "a/b", "/etc", "a\0b", ".hidden", "x y", &"x".repeat(101)] {
        let error = catalog.add(name, &record(1, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name:?}");
        let error = catalog.tag("train", name, &generation(1), Expect::Anything).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name:?}");
    }
    let error = catalog.tag("train", "7", &generation(1), Expect::Anything).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "an alias of digits");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn a_folder_with_other_files_is_not_made_a_catalogue() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("letter"), "dear").unwrap();
    let error = open(folder.path()).add("train", &record(1, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
pub(crate) fn damaged_later_and_hostile_entries_are_named_and_half_written_ones_are_not_seen() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    catalog.add("train", &record(1, 1)).unwrap();
    let versions = folder.path().join("train/versions");
    // A draft left by a writer that was killed before it could link it.
    fs::write(versions.join(".0123456789abcdef"), "{\"image\"").unwrap();
    fs::write(versions.join("README"), "dear").unwrap();
    assert_eq!(catalog.find("train", None).unwrap().0, 1);
    let kind = |text: &str| {
        fs::write(versions.join("2.json"), text).unwrap();
        catalog.find("train", None).unwrap_err().kind()
    };
    assert_eq!(kind("{\"image\""), ErrorKind::Corrupt);
    assert_eq!(kind("[]"), ErrorKind::Corrupt);
    assert_eq!(kind("{\"format\": 7}"), ErrorKind::Unsupported);
    assert_eq!(kind(&" ".repeat((1 << 20) + 1)), ErrorKind::Corrupt);
    // A record that leads to a name would lead round and round.
    let hostile = Record { sites: vec!["dlfs://site/train".to_owned()], ..record(1, 2) };
    fs::write(versions.join("2.json"), serde_json::to_vec(&hostile).unwrap()).unwrap();
    let name: Address = format!("dlfs://{}/train", folder.path().display()).parse().unwrap();
    assert_eq!(resolve(std::slice::from_ref(&name)).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(catalog.add("train", &hostile).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let both = [name, Address::from_path("/images/1.dlfs")];
    assert_eq!(resolve(&both).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn files_with_numbers_that_no_entry_has_are_no_entries_and_a_log_with_gaps_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    add_all(&catalog, 1..=3);
    catalog.tag("train", "stable", &generation(2), Expect::Anything).unwrap();
    let logs = [folder.path().join("train/versions"), folder.path().join("train/aliases/stable")];
    for log in &logs {
        for name in ["007.json", "+5.json", "0.json", "-1.json", "99999999999999999999.json"] {
            fs::copy(log.join("1.json"), log.join(name)).unwrap();
        }
    }
    assert_eq!(catalog.add("train", &record(1, 4)).unwrap(), 4);
    assert_eq!(catalog.tag("train", "stable", &generation(3), Expect::Anything).unwrap(), 2);
    assert_eq!(catalog.find("train", Some(&alias("stable"))).unwrap(), (3, record(1, 3)));

    let adds = || catalog.add("train", &record(1, 5)).map(drop);
    let tags = || catalog.tag("train", "stable", &generation(1), Expect::Anything).map(drop);
    let finds = || catalog.find("train", Some(&alias("stable"))).map(drop);
    let damaged = |what: &str, did: Result<()>| {
        let error = did.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.report().contains("restore them"), "{what}: {}", error.report());
    };
    for number in [u64::MAX, u64::MAX - 1, 1 << 40, 2000, 7] {
        let [versions, moves] = &logs;
        let extra = |log: &Path| log.join(format!("{number}.json"));
        fs::copy(versions.join("1.json"), extra(versions)).unwrap();
        damaged("add", adds());
        damaged("find", catalog.find("train", None).map(drop));
        fs::remove_file(extra(versions)).unwrap();
        fs::copy(moves.join("1.json"), extra(moves)).unwrap();
        damaged("tag", tags());
        damaged("find", finds());
        fs::remove_file(extra(moves)).unwrap();
    }
    // A missing or empty version is damage, not a removal; as the hint says, restoring it is enough.
    let first = fs::read(logs[1].join("1.json")).unwrap();
    fs::remove_file(logs[1].join("1.json")).unwrap();
    damaged("tag", tags());
    damaged("find", finds());
    damaged("rm", catalog.remove_alias("train", "stable"));
    fs::write(logs[1].join("1.json"), first).unwrap();
    finds().unwrap();
    fs::write(logs[1].join("2.json"), "{}").unwrap();
    assert_eq!(finds().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(catalog.remove_alias("train", "stable").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn links_and_special_files_in_a_catalogue_are_refused_and_nothing_outside_is_read_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("catalog");
    let outside = folder.path().join("outside");
    let index = Index { image: record(1, 1).image, ..Index::default() };
    let victim = outside.join("victim");
    let fresh = || {
        let _ = fs::remove_dir_all(&place); // the first time, there is none
        let _ = fs::remove_dir_all(&outside); // as well
        fs::create_dir(&outside).unwrap();
        fs::write(&victim, "precious").unwrap();
        let catalog = open(&place);
        catalog.add("train", &record(1, 1)).unwrap();
        catalog.tag("train", "stable", &generation(1), Expect::Anything).unwrap();
        catalog
    };
    let refused = |what: &str, error: dlfs::Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.report().contains("catalog"), "{what}: {}", error.report());
    };
    let replace_by_link = |path: &str, to: &Path| {
        let at = place.join(path);
        let _ = fs::remove_file(&at).or_else(|_| fs::remove_dir_all(&at)); // there may be none
        std::os::unix::fs::symlink(to, at).unwrap();
    };
    let untouched = |what: &str| {
        assert_eq!(fs::read(&victim).unwrap(), b"precious", "{what}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{what}");
    };
    for path in ["train", "train/versions", "train/versions/1.json"] {
        let catalog = fresh();
        replace_by_link(path, if path.ends_with("json") { &victim } else { &outside });
        refused(path, catalog.find("train", None).unwrap_err());
        refused(path, catalog.add("train", &record(1, 2)).unwrap_err());
        refused(path, catalog.names().unwrap_err());
        untouched(path);
    }
    for path in ["train/aliases", "train/aliases/stable", "train/aliases/stable/1.json"] {
        let catalog = fresh();
        replace_by_link(path, &outside);
        let to = generation(1);
        refused(path, catalog.tag("train", "stable", &to, Expect::Anything).unwrap_err());
        refused(path, catalog.find("train", Some(&alias("stable"))).unwrap_err());
        untouched(path);
    }
    for to in [&victim, Path::new("/dev/zero"), &outside.join("none")] {
        let catalog = fresh();
        replace_by_link("train/index.json", to);
        refused("index", catalog.index("train").unwrap_err());
        catalog.set_index("train", &index).unwrap();
        assert_eq!(catalog.index("train").unwrap().as_ref(), Some(&index), "the link is replaced");
        assert!(!place.join("train/index.json").is_symlink());
        untouched("index");
    }
    // Opening a FIFO would wait for a writer.
    let catalog = fresh();
    let first = place.join("train/versions/1.json");
    fs::remove_file(&first).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &first,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    refused("FIFO", catalog.find("train", None).unwrap_err());
    fs::remove_file(&first).unwrap();
    fs::create_dir(&first).unwrap();
    refused("folder", catalog.find("train", None).unwrap_err());
}

#[test]
pub(crate) fn records_with_absurd_images_are_damaged_and_messages_stay_on_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    catalog.add("train", &record(1, 1)).unwrap();
    let first = folder.path().join("train/versions/1.json");
    let name: Address = format!("dlfs://{}/train", folder.path().display()).parse().unwrap();
    let site = |site: &str| Record { sites: vec![site.to_owned()], ..record(1, 1) };
    let records = [
        Record { image: "x\n\u{1b}[31m".to_owned(), ..record(1, 1) },
        Record { image: String::new(), ..record(1, 1) },
        Record { sites: Vec::new(), ..record(1, 1) },
        Record { sites: vec!["/images/1.dlfs".to_owned(); 65], ..record(1, 1) },
        site("s4://x\n\u{1b}[31m"),
        site("nvme-tcp://\r"),
        site("a\0b"),
    ];
    for record in records {
        fs::write(&first, serde_json::to_vec(&record).unwrap()).unwrap();
        let error = resolve(std::slice::from_ref(&name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }
}

/// A folder, and what happens before an entry is read (`false`) or appended (`true`).
struct Meanwhile(FolderStore, Happens);

type Happens = Box<dyn Fn(&Log, bool) + Send + Sync>;

impl Meanwhile {
    fn open(folder: &Path, happens: impl Fn(&Log, bool) + Send + Sync + 'static) -> Catalog {
        let store = Arc::new(Meanwhile(FolderStore::new(folder), Box::new(happens)));
        Catalog::of_store(CatalogPlace::Folder(folder.to_owned()), store)
    }
}

impl Store for Meanwhile {
    fn create(&self) -> Result<()> {
        self.0.create()
    }
    fn names(&self) -> Result<Vec<String>> {
        self.0.names()
    }
    fn aliases(&self, name: &str) -> Result<Vec<String>> {
        self.0.aliases(name)
    }
    fn numbers(&self, log: &Log) -> Result<Vec<u64>> {
        self.0.numbers(log)
    }
    fn read(&self, log: &Log, number: u64) -> Result<Option<Vec<u8>>> {
        (self.1)(log, false);
        self.0.read(log, number)
    }
    fn append(&self, log: &Log, number: u64, bytes: &[u8]) -> Result<bool> {
        (self.1)(log, true);
        self.0.append(log, number, bytes)
    }
    fn read_index(&self, name: &str) -> Result<Option<Index>> {
        self.0.read_index(name)
    }
    fn write_index(&self, name: &str, index: Option<&Index>) -> Result<()> {
        self.0.write_index(name, index)
    }
}

#[test]
fn a_version_is_added_without_reading_more_than_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    add_all(&open(folder.path()), 1..=20);
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let catalog = Meanwhile::open(folder.path(), move |_, is_append| {
        counted.fetch_add(usize::from(!is_append), Ordering::Relaxed);
    });
    assert_eq!(catalog.add("train", &record(1, 21)).unwrap(), 21);
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[test]
fn a_store_that_hangs_is_an_error_by_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).add("train", &record(1, 1)).unwrap();
    let hangs = |_: &Log, is_append: bool| {
        if !is_append {
            std::thread::sleep(Duration::from_secs(600));
        }
    };
    let catalog = Meanwhile::open(folder.path(), hangs);
    let error = catalog.with_deadline(Duration::from_millis(50)).find("train", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    // The thread that is left goes no further.
    let late = FolderStore::new(folder.path()).until(Instant::now()).unwrap();
    assert_eq!(late.names().unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn an_alias_that_is_moved_to_a_version_while_that_is_removed_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let other = open(folder.path());
    add_all(&other, 1..=3);
    let tagging = other.clone();
    let removes = Meanwhile::open(folder.path(), move |log, is_append| {
        if is_append && matches!(log, Log::Versions(_)) {
            tagging.tag("train", "late", &generation(2), Expect::Anything).unwrap();
        }
    });
    let error = removes.remove("train", Some(Generation(2))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.report().contains("removed nevertheless"), "{}", error.report());
    other.remove_alias("train", "late").unwrap();
    let removing = other.clone();
    let tags = Meanwhile::open(folder.path(), move |_, is_append| {
        if is_append {
            removing.remove("train", Some(Generation(1))).unwrap();
        }
    });
    let error = tags.tag("train", "late", &generation(1), Expect::Anything).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.report().contains("removed meanwhile"), "{}", error.report());
}
