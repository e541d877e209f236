//! Stores and processes: forked children read the store of their parent, and ranks that are killed go on.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::store_support::{Job, Origin, Read, check_whole, expected, read, stats, wait_until};
use crate::support::alone::{again, ran_alone};
use crate::support::fork::spawn_child;
use crate::support::random::Random;
use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, OpenOptions};
use dlfs::nvme::Nqn;
use dlfs::order::{OrderKind, OrderSpec, State};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{PeerOptions, Serving};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::reader::ReaderOptions;
use dlfs::store::StoreOptions;
use dlfs::units::{Epoch, Nsid};
use rustix::process::{Pid, WaitOptions, waitpid};

/// How worker `worker` of `workers` reads the batches of `rank`.
fn worker_run(job: &Job, rank: u32, worker: u32, workers: u32) -> LoaderOptions {
    LoaderOptions {
        rank: worker * job.world_size + rank,
        world_size: workers * job.world_size,
        ..job.run(rank)
    }
}

/// Forks workers of each rank, which read their batches of `job`; returns what each has read, rank by rank.
fn read_in_children(origin: &Origin, job: &Job, ranks: &[Dataset], workers: u32) -> Vec<Read> {
    let file = |rank, worker| origin.temp.path().join(format!("read-{rank}-{worker}"));
    let all: Vec<(u32, u32)> =
        (0..job.world_size).flat_map(|rank| (0..workers).map(move |w| (rank, w))).collect();
    let children: Vec<Pid> = all
        .iter()
        .map(|&(rank, worker)| {
            let run = worker_run(job, rank, worker, workers);
            let loader = ranks[rank as usize].loader(run).unwrap();
            spawn_child(|| {
                let read = read(&origin.samples, &loader);
                fs::write(file(rank, worker), serde_json::to_vec(&read).unwrap()).is_ok()
            })
        })
        .collect();
    for (child, place) in children.into_iter().zip(&all) {
        let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0), "rank and worker {place:?}");
    }
    let read = |&(rank, worker): &(u32, u32)| {
        serde_json::from_slice(&fs::read(file(rank, worker)).unwrap()).unwrap()
    };
    all.iter().map(read).collect()
}

/// The ids that the same workers read from the data set.
fn expected_of_workers(origin: &Origin, job: &Job, workers: u32) -> Vec<Read> {
    let dataset = Dataset::from_image(origin.open(), ReaderOptions::default());
    let all = (0..job.world_size).flat_map(|rank| (0..workers).map(move |w| (rank, w)));
    let of = |(rank, worker)| {
        let run = worker_run(job, rank, worker, workers);
        read(&origin.samples, &dataset.loader(run).unwrap())
    };
    all.map(of).collect()
}

#[test]
fn forked_workers_share_the_batches_of_their_rank_and_its_store() {
    if ran_alone(forked_workers_share_the_batches_of_their_rank_and_its_store) {
        return;
    }
    let mut origin = Origin::new(21, 260, |random| random.below(7_000) as usize + 1);
    for spec in ["ram:64M".to_owned(), origin.folder_spec()] {
        let round = spec.chars().take(3).collect();
        let job = Job { spec, round, ..Job::new(&origin, 0.4, 2, 5) };
        let ranks: Vec<Dataset> = thread::scope(|scope| {
            let joining: Vec<_> = (0..2)
                .map(|rank| {
                    let job = &job;
                    let origin = &origin;
                    scope.spawn(move || job.join_unstaged(origin, rank).unwrap())
                })
                .collect();
            joining.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let expected = expected_of_workers(&origin, &job, 3);
        // The first child to begin makes the parent bring the share.
        let begin = Job { epochs: 0..1, ..job.clone() };
        let first = read_in_children(&origin, &begin, &ranks, 3);
        check_whole(&origin, 0..1, &first);
        assert_eq!(ranks.iter().map(|rank| stats(rank).staged).sum::<u64>(), 260);
        // Workers that begin again where others have begun, as those of a DataLoader do; now without the origin.
        origin.target = None;
        let reads = read_in_children(&origin, &job, &ranks, 3);
        assert!(reads == expected, "as from the data set");
        check_whole(&origin, 0..5, &reads);
        for stats in ranks.iter().map(stats) {
            println!("{stats:?}");
            assert!(stats.received > 0 && stats.from_origin == 0 && stats.mismatched == 0);
        }
        origin.serve();
    }
}

#[test]
fn two_runs_at_one_place_of_a_store_are_told_apart_and_lose_nothing() {
    if ran_alone(two_runs_at_one_place_of_a_store_are_told_apart_and_lose_nothing) {
        return;
    }
    let origin = Origin::new(24, 200, |_| 3_000);
    let job = Job::new(&origin, 0.3, 1, 2);
    let ranks = job.start(&origin);
    let first = ranks[0].loader(job.run(0)).unwrap();
    let begun = first.next(&mut ()).unwrap().unwrap();
    let at = first.state();
    let expected = expected_of_workers(&origin, &job, 1);
    assert!(read_in_children(&origin, &job, &ranks, 1) == expected, "a child at the same place");
    for _ in 0..2 {
        let error = first.next(&mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("reader 0 of 1"), "{error}");
        assert_eq!(first.state(), at);
    }
    drop(begun);
    first.set_state(&at).unwrap();
    first.next(&mut ()).unwrap().unwrap();
    first.set_epoch(0).unwrap();
    assert!(read(&origin.samples, &first) == expected[0], "again from its begin");
}

#[test]
fn what_a_forked_child_finds_damaged_is_mended() {
    if ran_alone(what_a_forked_child_finds_damaged_is_mended) {
        return;
    }
    let origin = Origin::new(22, 200, |_| 5_000);
    let job = Job::new(&origin, 0.0, 1, 1);
    let ranks = job.start(&origin);
    let before = origin.read_bytes();
    for file in fs::read_dir(origin.store_folder()).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes.iter_mut().step_by(40_000).for_each(|byte| *byte ^= 1);
        fs::write(&path, bytes).unwrap();
    }
    check_whole(&origin, 0..1, &read_in_children(&origin, &job, &ranks, 2));
    assert!(origin.read_bytes() > before);
}

#[test]
fn a_forked_child_learns_which_rank_has_not_delivered() {
    if ran_alone(a_forked_child_learns_which_rank_has_not_delivered) {
        return;
    }
    let mut origin = Origin::new(23, 120, |_| 4_096);
    let job = Job {
        spec: "ram:64M".to_owned(),
        patience: Duration::from_millis(50),
        deadline: Duration::from_secs(6),
        ..Job::new(&origin, 0.5, 2, 4)
    };
    let mut ranks = job.start(&origin);
    drop(ranks.pop());
    origin.target = None;
    let loader = ranks[0].loader(job.run(0)).unwrap();
    let said = origin.temp.path().join("said");
    let child = spawn_child(|| {
        let error = loop {
            match loader.next(&mut ()) {
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(error) => break error,
            }
        };
        fs::write(&said, error.report()).is_ok()
    });
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));
    let said = fs::read_to_string(&said).unwrap();
    assert!(said.contains("rank 1"), "{said}");
}

#[test]
fn a_run_that_resumes_reads_nothing_that_lies_in_its_store() {
    let origin = Origin::new(24, 240, |_| 6_000);
    let mut job = Job::new(&origin, 0.5, 2, 6);
    let ranks = job.start(&origin);
    let halves: Vec<(Read, State)> = thread::scope(|scope| {
        let reading = (0..).zip(&ranks).map(|(rank, dataset)| {
            let loader = dataset.loader(job.run(rank)).unwrap();
            scope.spawn(move || {
                let mut read = Read::new();
                // Two epochs and a half.
                for batch in std::iter::from_fn(|| loader.next(&mut ()).unwrap()).take(37) {
                    let ids = batch.ids().map(|id| id.0);
                    read.entry(batch.epoch().0).or_default().extend(ids);
                }
                (read, loader.state())
            })
        });
        let reading: Vec<_> = reading.collect();
        reading.into_iter().map(|read| read.join().unwrap()).collect()
    });
    let state = halves[0].1.clone();
    assert!(state.epoch == Epoch(2) && halves[1].1 == state);
    drop(ranks);
    job.round = "again".to_owned();
    // As Python and C do it: the state is loaded when the store is open already.
    thread::scope(|scope| {
        let resuming = halves.into_iter().zip(0..).map(|((first, state), rank)| {
            let job = &job;
            let origin = &origin;
            scope.spawn(move || {
                let dataset = job.join_unstaged(origin, rank).unwrap();
                let loader = dataset.loader(job.run(rank)).unwrap();
                loader.set_state(&state).unwrap();
                let mut staged = Vec::new();
                let brought = loader.stage(&mut (), |now| {
                    staged.push(now);
                    true
                });
                brought.unwrap();
                assert_eq!((staged.len(), staged[0].found, stats(&dataset).staged), (1, 120, 0));
                let mut all = first;
                for (epoch, ids) in read(&origin.samples, &loader) {
                    all.entry(epoch).or_default().extend(ids);
                }
                // The other rank fetches the last samples from here.
                (all, dataset)
            })
        });
        let resuming: Vec<_> = resuming.collect();
        let all: Vec<_> = resuming.into_iter().map(|rank| rank.join().unwrap()).collect();
        let reads: Vec<Read> = all.iter().map(|(read, _)| read.clone()).collect();
        assert!(reads == expected(&origin, &job));
    });
}

/// Environment variable that tells a child process of this test its job: address, folder, rank, start, state file.
const CHILD: &str = "DLFS_TEST_STORE";

const KILLED_RANKS: u32 = 3;
const KILLED_EPOCHS: u64 = 40;
const KILLED_ORDER: OrderSpec =
    OrderSpec { kind: OrderKind::Partial { q: 0.3, world_size: KILLED_RANKS }, seed: 11 };

fn killed_run(rank: u32) -> LoaderOptions {
    LoaderOptions {
        rank,
        world_size: KILLED_RANKS,
        window_bytes: 2 << 20,
        ..LoaderOptions::new(KILLED_ORDER, 8, KILLED_EPOCHS)
    }
}

/// Not a test of its own: one rank. It prints a line for each batch: epoch, the state, and each sample's id and
/// checksum.
#[test]
fn child_reads_as_a_rank() {
    let Some(job) = std::env::var_os(CHILD) else { return };
    let job = job.into_string().unwrap();
    let [address, folder, rank, start, state] = job.split('|').collect::<Vec<_>>()[..] else {
        panic!("five words, not {job}")
    };
    let address: Address = address.parse().unwrap();
    let folder: &Path = Path::new(folder);
    let rank: u32 = rank.parse().unwrap();
    let hostnqn = Some(Nqn::new("nqn.2026-11.io.dlfs:node").unwrap());
    let peers = PeerOptions {
        round: start.to_owned(),
        rank,
        world_size: KILLED_RANKS,
        listen: "127.0.0.1:0".parse().unwrap(),
        node: None,
        serving: Serving::CopiesOnly,
        keep_shares: false,
        timeout: Duration::from_secs(60),
        connect: ConnectOptions { hostnqn, ..ConnectOptions::default() },
        keys: None,
    };
    let mut rendezvous = Folder::new(folder, start).unwrap();
    let spec = format!("file:{}:1G", folder.display()).parse().unwrap();
    let resume = dlfs::dataset::load_state(Path::new(state)).unwrap();
    let run = LoaderOptions { resume, ..killed_run(rank) };
    let image = Image::open(&[address], &OpenOptions::default()).unwrap();
    let image =
        image.with_store(StoreOptions::new(spec), &run, Some((&peers, &mut rendezvous))).unwrap();
    let dataset = Dataset::from_image(image, ReaderOptions::default());
    let loader = dataset.loader(run).unwrap();
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        let mut line = format!("batch {}|{}|", batch.epoch().0, loader.state().to_json());
        for sample in batch.iter() {
            line.push_str(&format!("{}:{} ", sample.id.0, crc32c::crc32c(sample.bytes)));
        }
        println!("{line}");
        thread::sleep(Duration::from_millis(20)); // a step
    }
    println!("all");
    // The others may still fetch from here.
    let _ = std::io::stdin().read(&mut [0]); // ends when the parent closes it
}

/// The lines that a rank has printed of its batches, and whether it has printed all.
type Printed = Arc<Mutex<(Vec<String>, bool)>>;

/// One start of all ranks.
struct Start {
    ranks: Vec<(Child, Printed, JoinHandle<()>)>,
}

impl Start {
    fn new(origin: &Origin, folder: &Path, number: u32, state: &Path) -> Start {
        let address = origin.target.as_ref().unwrap().address(Nsid(1));
        let rank = |rank| {
            let job =
                format!("{address}|{}|{rank}|start-{number}|{}", folder.display(), state.display());
            let mut child = again(child_reads_as_a_rank)
                .env(CHILD, job)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .unwrap();
            let printed = Printed::default();
            let lines = Arc::clone(&printed);
            let out = child.stdout.take().unwrap();
            let reading = thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    let mut lines = lines.lock().unwrap();
                    match line.strip_prefix("batch ") {
                        Some(batch) => lines.0.push(batch.to_owned()),
                        None => lines.1 |= line == "all",
                    }
                }
            });
            (child, printed, reading)
        };
        Start { ranks: (0..KILLED_RANKS).map(rank).collect() }
    }

    fn has_ended(&self) -> bool {
        self.ranks.iter().all(|(_, printed, _)| printed.lock().unwrap().1)
    }

    fn kill(&mut self, rank: usize) {
        self.ranks[rank].0.kill().unwrap(); // SIGKILL
    }

    /// Kills those that are left; returns the whole lines of each rank.
    fn end(mut self) -> Vec<Vec<String>> {
        (0..self.ranks.len()).for_each(|rank| self.kill(rank));
        let ended = self.ranks.into_iter().map(|(mut child, printed, reading)| {
            child.wait().unwrap();
            reading.join().unwrap();
            let mut lines = std::mem::take(&mut printed.lock().unwrap().0);
            // The last one may lack its end, which is a space.
            lines.retain(|line| line.ends_with(' '));
            lines
        });
        ended.collect()
    }
}

#[test]
fn a_rank_that_is_killed_at_any_moment_goes_on_with_the_same_sequence() {
    let kills: u32 =
        std::env::var("DLFS_TEST_KILLS").map_or(3, |kills| kills.parse().expect("a number"));
    // More would tell nothing else.
    let kills = kills.min(50);
    let seed = std::process::id();
    println!("seed {seed}");
    let mut random = Random::new(seed.into());
    let origin = Origin::new(25, 240, |random| random.below(6_000) as usize + 1);
    let dataset = Dataset::from_image(origin.open(), ReaderOptions::default());
    let expected: Vec<Vec<(u64, Vec<u64>)>> = (0..KILLED_RANKS)
        .map(|rank| {
            let loader = dataset.loader(killed_run(rank)).unwrap();
            std::iter::from_fn(|| loader.next(&mut ()).unwrap())
                .map(|batch| (batch.epoch().0, batch.ids().map(|id| id.0).collect()))
                .collect()
        })
        .collect();
    let folder = origin.store_folder();
    let state: PathBuf = folder.join("state");
    let mut killed = 0;
    let mut starts = 0;
    let mut done = 0;
    let mut found = BTreeMap::<usize, u32>::new();
    while killed < kills {
        let mut start = Start::new(&origin, &folder, starts, &state);
        starts += 1;
        // From the first moment of joining on, and now and then long after it.
        thread::sleep(Duration::from_millis(random.below(if starts % 3 == 0 {
            4_000
        } else {
            1_200
        })));
        let has_ended = start.has_ended();
        if !has_ended {
            start.kill(random.below(KILLED_RANKS.into()) as usize);
            killed += 1;
            // Until whoever started them notices.
            thread::sleep(Duration::from_millis(random.below(200)));
        }
        let lines = start.end();
        let parsed: Vec<Vec<(u64, State, Vec<u64>)>> = lines
            .iter()
            .map(|lines| lines.iter().map(|line| parse(&origin, line)).collect())
            .collect();
        for (rank, batches) in parsed.iter().enumerate() {
            for (nth, (epoch, _, ids)) in batches.iter().enumerate() {
                let (expected_epoch, expected_ids) = &expected[rank][done + nth];
                assert!(
                    epoch == expected_epoch && ids == expected_ids,
                    "start {starts}, rank {rank}, batch {}",
                    done + nth
                );
            }
        }
        // All ranks have taken these: the checkpoint of the last of them.
        let together = parsed.iter().map(Vec::len).min().unwrap();
        *found.entry(together).or_default() += 1;
        if let Some(last) = together.checked_sub(1) {
            let states: Vec<&State> = parsed.iter().map(|batches| &batches[last].1).collect();
            assert!(states.iter().all(|state| *state == states[0]));
            dlfs::dataset::save_state(&state, states[0]).unwrap();
            done += together;
        }
        if done == expected[0].len() {
            fs::remove_file(&state).unwrap(); // from the beginning
            done = 0;
        }
    }
    println!("{killed} killed in {starts} starts; batches until then, and how often: {found:?}");
    if done > 0 {
        let start = Start::new(&origin, &folder, starts, &state);
        let left = expected[0].len() - done;
        wait_until_more("they have read what is left", left, || start.has_ended());
        let rest: Vec<Vec<Vec<u64>>> = start
            .end()
            .iter()
            .map(|lines| lines.iter().map(|line| parse(&origin, line).2).collect())
            .collect();
        for (rest, expected) in rest.iter().zip(&expected) {
            assert!(rest.iter().eq(expected[done..].iter().map(|(_, ids)| ids)));
        }
    }
}

/// Waits as [`wait_until`], a minute for each 100 batches at most.
fn wait_until_more(what: &str, batches: usize, mut is_so: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(60 * (1 + batches as u64 / 100));
    while std::time::Instant::now() < until && !is_so() {
        thread::sleep(Duration::from_millis(20));
    }
    wait_until(what, is_so);
}

/// Epoch, state and ids of a line, whose checksums are compared.
fn parse(origin: &Origin, line: &str) -> (u64, State, Vec<u64>) {
    let [epoch, state, samples] = line.split('|').collect::<Vec<_>>()[..] else {
        panic!("three words, not {line}")
    };
    let id_of = |sample: &str| {
        let (id, crc) = sample.split_once(':').unwrap();
        let id: u64 = id.parse().unwrap();
        assert_eq!(crc, crc32c::crc32c(&origin.samples[id as usize]).to_string(), "sample {id}");
        id
    };
    let ids = samples.split_whitespace().map(id_of).collect();
    (epoch.parse().unwrap(), State::from_json(state).unwrap(), ids)
}
