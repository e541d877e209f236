//! Rows of tokens with all else that a run may have: forks, a target that dies, tiers, peers, objects of a store, and
//! one loader for the ranks of a node. The rows are those of an undisturbed run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::alone::ran_alone;
use crate::support::fork::in_child;
use crate::support::ports::bind_again;
use crate::support::random::Random;
use crate::tokens::model::Cell;
use crate::tokens::{Corpus, Over, TYPED, doc, filled};
use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{
    Dataset, Image, Mixture, OpenOptions, PlaceKind, TokenBatch, TokenLoader, TokenOptions,
};
use dlfs::order::budget::Pack;
use dlfs::order::mixture::Batching;
use dlfs::order::{OrderKind, OrderSpec, State};
use dlfs::peers::rendezvous::Folder;
use dlfs::peers::{PeerOptions, Serving};
use dlfs::prefetch::{LoaderOptions, NodePlace};
use dlfs::qpair::{self, ConnectOptions};
use dlfs::reader::ReaderOptions;
use dlfs::target::{Target, TargetOptions};
use dlfs::tokens::Columns;
use dlfs::units::Nsid;
use dlfs::{ErrorKind, Result};

const PACKS: [Pack; 3] = [Pack::Concat, Pack::BestFit, Pack::None];

const PADDING: Cell = Cell { token: 0, segment: 0, position: 0, loss: 0, sample: -1 };

/// Some 500 KiB of documents, of which a few are empty and many longer than a row.
fn corpus(seed: u64) -> Corpus {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let documents = (0..600).map(|_| {
        let len = random.below(800);
        doc(&(0..len).map(|_| random.below(32_000) as i64).collect::<Vec<i64>>())
    });
    Corpus::new(&TYPED, documents.collect())
}

fn rows() -> TokenOptions {
    let pack = Pack::BestFit;
    TokenOptions { pack, window: 100, separator: Some(1), ..TokenOptions::new(128, 4) }
}

fn global(epochs: u64) -> LoaderOptions {
    let order = OrderSpec { kind: OrderKind::Global, seed: 5 };
    LoaderOptions { window_bytes: 4 << 20, ..LoaderOptions::new(order, 1, epochs) }
}

/// The rows of up to `most` batches.
fn try_read(loader: &TokenLoader, most: usize) -> Result<Vec<Vec<Cell>>> {
    let columns = Columns::all(loader.options().seq_len);
    let mut batch = TokenBatch::new();
    let mut read = Vec::new();
    while read.len() < most && loader.next(&mut batch, &mut ())? {
        read.push(filled(&batch, &columns, 3)?);
    }
    Ok(read)
}

fn read(loader: &TokenLoader, most: usize) -> Vec<Vec<Cell>> {
    try_read(loader, most).unwrap()
}

/// The rows of whole epochs, from the file.
fn undisturbed(corpus: &Corpus, run: LoaderOptions) -> Vec<Vec<Cell>> {
    let read = read(&corpus.dataset.token_loader(rows(), run).unwrap(), usize::MAX);
    assert!(read.len() > 60, "{} batches", read.len());
    read
}

fn serve_at(corpus: &Corpus, listen: &str) -> Target {
    let path = Address::from_path(corpus._folder.path().join("corpus.dlfs"));
    let device = qpair::open(&path, &ConnectOptions::default()).unwrap();
    let nqn = "nqn.2026-11.io.dlfs:tokens".parse().unwrap();
    let options = TargetOptions { listen: listen.parse().unwrap(), ..TargetOptions::new(nqn) };
    bind_again(|| Target::bind(options.clone(), vec![Arc::clone(&device)]))
}

fn serve(corpus: &Corpus) -> Target {
    serve_at(corpus, "127.0.0.1:0")
}

/// The corpus over the network, with these tiers.
fn remote(target: &Target, connect: ConnectOptions, tiers: &[String], node: &str) -> Dataset {
    let tiers = TierOptions {
        tiers: tiers.iter().map(|tier| tier.parse().unwrap()).collect(),
        node: Some(node.to_owned()),
        ..TierOptions::default()
    };
    let options = OpenOptions { connect, tiers, ..OpenOptions::default() };
    let image = Image::open(&[target.address(Nsid(1))], &options).unwrap();
    Dataset::from_image(image, ReaderOptions::default())
}

fn plain(target: &Target) -> Dataset {
    remote(target, ConnectOptions::default(), &[], "here")
}

fn settle(dataset: &Dataset) {
    let tiers = dataset.image().tiers().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !tiers.is_settled() {
        assert!(Instant::now() < until, "still copying: {:#?}", tiers.stats());
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_forked_child_and_its_parent_both_go_on_with_the_rows_that_follow() {
    if ran_alone(a_forked_child_and_its_parent_both_go_on_with_the_rows_that_follow) {
        return;
    }
    let corpus = corpus(1);
    let target = serve(&corpus);
    let expected = undisturbed(&corpus, global(2));
    for dataset in [corpus.dataset.clone(), plain(&target)] {
        let loader = dataset.token_loader(rows(), global(2)).unwrap();
        let mut seen = read(&loader, 3);
        for _ in 0..3 {
            let done = seen.len();
            let is_right = in_child(|| {
                let some = read(&loader, 4);
                let grandchild_is_right =
                    in_child(|| read(&loader, 2) == expected[done + 4..][..2]);
                let rest = read(&loader, usize::MAX);
                grandchild_is_right && [some, rest].concat() == expected[done..]
            });
            assert!(is_right, "the child reads the rest, from batch {done} on");
            seen.extend(read(&loader, 5));
        }
        seen.extend(read(&loader, usize::MAX));
        assert!(seen == expected, "the parent is undisturbed");
    }
}

#[test]
fn a_child_that_is_forked_while_threads_take_rows_reads_on() {
    if ran_alone(a_child_that_is_forked_while_threads_take_rows_reads_on) {
        return;
    }
    let corpus = corpus(2);
    let loader = corpus.dataset.token_loader(rows(), global(1 << 20)).unwrap();
    read(&loader, 1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    read(&loader, 3);
                }
            });
        }
        for round in 0..20 {
            let is_right = in_child(|| {
                let state = loader.loader().state();
                let read_on = read(&loader, 2);
                let resumed = LoaderOptions { resume: Some(state), ..global(1 << 20) };
                let again = corpus.dataset.token_loader(rows(), resumed).unwrap();
                read_on == read(&again, 2)
            });
            assert!(is_right, "round {round}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_target_that_dies_and_returns_during_an_epoch_changes_no_row() {
    let corpus = corpus(3);
    let expected = undisturbed(&corpus, global(2));
    let mut target = Some(serve(&corpus));
    let address = target.as_ref().unwrap().local_addr().to_string();
    let connect = ConnectOptions {
        io_timeout: Duration::from_millis(500),
        ctrl_loss_tmo: Duration::from_secs(120),
        ..ConnectOptions::default()
    };
    let dataset = remote(target.as_ref().unwrap(), connect, &[], "here");
    // A small window, so that much of the epoch is still to be read.
    let run = LoaderOptions { window_bytes: 256 << 10, ..global(2) };
    let loader = dataset.token_loader(rows(), run).unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.extend(read(&loader, 7));
        drop(target.take());
        thread::scope(|scope| {
            let back = scope.spawn(|| {
                thread::sleep(Duration::from_millis(300));
                serve_at(&corpus, &address)
            });
            seen.extend(read(&loader, expected.len() / 3)); // more than the window has
            target = Some(back.join().unwrap());
        });
        assert!(target.as_ref().unwrap().stats().read_bytes > 0, "it was needed");
    }
    seen.extend(read(&loader, usize::MAX));
    assert!(seen == expected);
}

#[test]
fn a_target_that_stays_dead_ends_the_rows_with_disconnected() {
    let corpus = corpus(4);
    let target = serve(&corpus);
    let connect =
        ConnectOptions { ctrl_loss_tmo: Duration::from_millis(500), ..ConnectOptions::default() };
    let dataset = remote(&target, connect, &[], "here");
    let run = LoaderOptions { window_bytes: 256 << 10, ..global(2) };
    let loader = dataset.token_loader(rows(), run).unwrap();
    read(&loader, 3);
    drop(target);
    for _ in 0..2 {
        let error = try_read(&loader, usize::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
    }
}

#[test]
fn a_second_epoch_of_rows_comes_from_tiers_in_memory_and_in_a_file() {
    let corpus = corpus(5);
    let target = serve(&corpus);
    let folder = tempfile::tempdir().unwrap();
    let tiers = ["ram:256K".to_owned(), format!("file:{}:8M", folder.path().display())];
    let dataset = remote(&target, ConnectOptions::default(), &tiers, "here");
    let expected = undisturbed(&corpus, global(2));
    let epoch = |number: u64| {
        let run = LoaderOptions { epochs: number..number + 1, ..global(2) };
        let read = read(&dataset.token_loader(rows(), run).unwrap(), usize::MAX);
        settle(&dataset);
        let places = dataset.places().unwrap().places;
        let bytes =
            |kind| places.iter().filter(|it| it.place == kind).map(|it| it.bytes).sum::<u64>();
        (read, [PlaceKind::Memory, PlaceKind::Drive, PlaceKind::Origin].map(bytes))
    };
    let (first, before) = epoch(0);
    let served = target.stats().read_bytes;
    let (second, after) = epoch(1);
    assert!([first, second].concat() == expected);
    assert!(before[0] < after[0] && before[1] < after[1], "{before:?} {after:?}");
    assert_eq!((before[2], served), (after[2], target.stats().read_bytes), "not from the origin");
}

/// Rank `rank` of two nodes that meet in `folder`.
fn node(target: &Target, folder: &Path, rank: u32, rows: &TokenOptions) -> Result<Dataset> {
    let node = format!("tokens {rank}");
    let dataset = remote(target, ConnectOptions::default(), &["ram:4M".to_owned()], &node);
    let options = PeerOptions {
        round: "start".to_owned(),
        rank,
        world_size: 2,
        listen: "127.0.0.1:0".parse().unwrap(),
        node: Some(node),
        serving: Serving::ReadThrough,
        keep_shares: false,
        timeout: Duration::from_secs(60),
        connect: ConnectOptions::default(),
        keys: None,
    };
    let run = rows.run(dataset.directory(), LoaderOptions { rank, world_size: 2, ..global(2) })?;
    let mut folder = Folder::new(folder, "start")?;
    let image = dataset.image().clone().with_peers(&options, &run, &mut folder)?;
    Ok(Dataset::from_image(image, ReaderOptions::default()))
}

/// Two nodes with these rows, joined at the same time.
fn nodes(target: &Target, rows: [&TokenOptions; 2]) -> [Result<Dataset>; 2] {
    let folder = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        let joining = [0, 1].map(|rank: u32| {
            let folder = folder.path();
            scope.spawn(move || node(target, folder, rank, rows[rank as usize]))
        });
        joining.map(|joined| joined.join().unwrap())
    })
}

#[test]
fn peers_read_their_rows_from_each_other() {
    let corpus = corpus(6);
    let target = serve(&corpus);
    let nodes = nodes(&target, [&rows(), &rows()]).map(Result::unwrap);
    let of_rank = |dataset: &Dataset, rank: usize, epoch: u64| {
        let epochs = epoch..epoch + 1;
        let run = LoaderOptions { epochs, rank: rank as u32, world_size: 2, ..global(2) };
        read(&dataset.token_loader(rows(), run).unwrap(), usize::MAX)
    };
    for epoch in 0..2 {
        let served = target.stats().read_bytes;
        thread::scope(|scope| {
            let reading = [0, 1].map(|rank| {
                let dataset = &nodes[rank];
                scope.spawn(move || of_rank(dataset, rank, epoch))
            });
            for (rank, reading) in reading.into_iter().enumerate() {
                let read = reading.join().unwrap();
                assert!(read == of_rank(&corpus.dataset, rank, epoch), "rank {rank}, {epoch}");
            }
        });
        nodes.iter().for_each(settle);
        let served = target.stats().read_bytes - served;
        assert!(
            (served < 20_000) == (epoch == 1),
            "{served} bytes of epoch {epoch} from the origin"
        );
    }
    for dataset in &nodes {
        let bytes: u64 = dataset.peer_stats().unwrap().nodes.iter().map(|node| node.bytes).sum();
        assert!(bytes > 100_000, "{bytes} bytes from the other node");
    }
}

#[test]
fn ranks_that_differ_in_rows_are_told_so_when_they_meet() {
    let corpus = corpus(7);
    let target = serve(&corpus);
    for other in [
        TokenOptions { batch_size: 5, ..rows() },
        TokenOptions { seq_len: 127, ..rows() },
        TokenOptions { pack: Pack::Concat, ..rows() },
        TokenOptions { window: 99, ..rows() },
        TokenOptions { separator: None, ..rows() },
    ] {
        for joined in nodes(&target, [&rows(), &other]) {
            let error = joined.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{other:?}");
            let report = error.report();
            assert!(report.contains("has order") && report.contains("rows of tokens"), "{report}");
        }
    }
}

#[test]
#[cfg(feature = "cloud")]
fn objects_of_a_store_and_files_of_a_folder_are_documents_too() {
    let store = crate::support::object_store::ObjectStore::good();
    let folder = tempfile::tempdir().unwrap();
    let untyped = crate::tokens::Stored { field: None, ..TYPED };
    let corpus = Corpus::new(&untyped, corpus(8).documents);
    for (id, document) in corpus.documents.iter().enumerate() {
        let tokens = document.tokens.iter().flat_map(|token| (*token as u16).to_le_bytes());
        let bytes: Vec<u8> = tokens.collect();
        std::fs::write(folder.path().join(format!("{id:04}")), &bytes).unwrap();
        store.put(&format!("set/{id:04}"), bytes);
    }
    let connect = ConnectOptions { places: store.options(), ..ConnectOptions::default() };
    let options = OpenOptions { connect, ..OpenOptions::default() };
    for address in
        [Address::Objects("s3://bucket/set".to_owned()), Address::from_path(folder.path())]
    {
        let image = Image::open(&[address], &options).unwrap();
        let dataset = Dataset::from_image(image, ReaderOptions::default());
        for pack in PACKS {
            let rows = TokenOptions { pack, field: Some("u16".into()), ..rows() };
            let of = |dataset: &Dataset| {
                let loader = dataset.token_loader(rows.clone(), global(2)).unwrap();
                let some = read(&loader, 9);
                let resume = Some(loader.loader().state());
                let resumed = LoaderOptions { resume, ..global(2) };
                let rest = dataset.token_loader(rows.clone(), resumed).unwrap();
                [some, read(&rest, usize::MAX)].concat()
            };
            assert!(of(&dataset) == of(&corpus.dataset), "{pack}");
        }
    }
}

/// Options of rank `rank` of `nodes` nodes of `local` ranks in a job of its own.
fn on_node(run: &LoaderOptions, rank: u32, (nodes, local): (u32, u32), job: u64) -> LoaderOptions {
    let job = format!("tokens-{}-{job}", std::process::id());
    let node = Some(NodePlace { local_world_size: local, job });
    LoaderOptions { rank, world_size: nodes * local, node, ..run.clone() }
}

/// Reads up to `most` batches with a loader for each rank and with one for each node. Returns the state behind them.
fn compare(
    over: &Over,
    rows: &TokenOptions,
    run: &LoaderOptions,
    (places, job): ((u32, u32), u64),
    most: usize,
) -> State {
    let world_size = places.0 * places.1;
    let ranks = |of: &dyn Fn(u32) -> LoaderOptions| -> Vec<(Vec<Vec<Cell>>, State)> {
        let loaders: Vec<TokenLoader> =
            (0..world_size).map(|rank| over.loader(rows, of(rank)).unwrap()).collect();
        thread::scope(|scope| {
            let reading =
                loaders.iter().map(|it| scope.spawn(|| (read(it, most), it.loader().state())));
            let reading: Vec<_> = reading.collect();
            reading.into_iter().map(|it| it.join().unwrap()).collect()
        })
    };
    let alone = ranks(&|rank| LoaderOptions { rank, world_size, ..run.clone() });
    let together = ranks(&|rank| on_node(run, rank, places, job));
    for (rank, (one, other)) in together.iter().zip(&alone).enumerate() {
        assert!(one == other, "rank {rank} of {places:?}, {rows:?}");
    }
    assert!(!alone[0].0.is_empty());
    alone[0].1.clone()
}

#[test]
fn ranks_of_a_node_get_the_rows_of_their_own_loaders_and_go_on_with_others() {
    let corpus = corpus(9);
    let other = self::corpus(10);
    let weights = ["0.7", "0.3"].map(|weight| weight.parse().unwrap());
    let parts = [&corpus, &other].map(|corpus| corpus.dataset.clone()).into_iter().zip(weights);
    let mixture = Mixture::new(parts.collect(), Some(500), Batching::Stratified, Vec::new());
    let mut job = 0;
    for over in [Over::One(corpus.dataset.clone()), Over::Mixed(mixture.unwrap())] {
        for pack in PACKS {
            let mut run = global(2);
            for (places, batch_size, most) in
                [((1, 3), 4, 5), ((2, 2), 3, 4), ((1, 1), 7, 3), ((3, 1), 2, usize::MAX)]
            {
                job += 1;
                let rows = TokenOptions { pack, batch_size, ..rows() };
                let state = compare(&over, &rows, &run, (places, job), most);
                run.resume = Some(state);
            }
        }
    }
}

#[test]
fn when_the_rank_that_reads_ends_the_others_get_the_rows_that_follow() {
    let corpus = corpus(11);
    let loader = |rank: u32, job: Option<u64>| {
        let own = LoaderOptions { rank, world_size: 3, ..global(1) };
        let run = job.map_or(own, |job| on_node(&global(1), rank, (1, 3), job));
        corpus.dataset.token_loader(rows(), run).unwrap()
    };
    let ranks: Vec<TokenLoader> = (0..3).map(|rank| loader(rank, Some(1 << 32))).collect();
    thread::scope(|scope| {
        for (rank, it) in ranks.into_iter().enumerate() {
            let expected = read(&loader(rank as u32, None), usize::MAX);
            scope.spawn(move || {
                let mut seen = read(&it, 2 + rank);
                if rank > 0 {
                    seen.extend(read(&it, usize::MAX));
                }
                it.loader().close();
                assert!(seen == expected[..seen.len()], "rank {rank}");
                assert_eq!(seen.len() < expected.len(), rank == 0);
            });
            if rank == 0 {
                thread::sleep(Duration::from_millis(300)); // so it is the one that reads
            }
        }
    });
}

#[test]
fn rows_by_number_are_those_of_the_epochs_end_to_end() {
    let corpus = corpus(12);
    let other = self::corpus(13);
    let parts = [(corpus.dataset.clone(), "0.7"), (other.dataset.clone(), "0.3")];
    let parts = parts.map(|(dataset, weight)| (dataset, weight.parse().unwrap()));
    let mixture = Mixture::new(parts.into(), Some(500), Batching::Stratified, Vec::new());
    let mut random = Random::new(14);
    for over in [Over::One(corpus.dataset.clone()), Over::Mixed(mixture.unwrap())] {
        for pack in PACKS {
            let rows = TokenOptions { pack, ..rows() };
            let single = TokenOptions { batch_size: 1, ..rows.clone() };
            let all = read(&over.loader(&single, global(3)).unwrap(), usize::MAX);
            let of_rank = LoaderOptions { rank: 1, world_size: 3, ..global(3) };
            let loader = over.loader(&rows, of_rank).unwrap();
            let mut batch = TokenBatch::new();
            let mut check = |numbers: &[u64]| {
                loader.read_rows(numbers, &mut batch, &mut ()).unwrap();
                let whole = |&number: &u64| {
                    let mut row = all[number as usize].clone();
                    row.resize(129, PADDING); // an array of single documents is narrower
                    row
                };
                let expected: Vec<Cell> = numbers.iter().flat_map(whole).collect();
                let found = filled(&batch, &Columns::all(128), 3).unwrap();
                assert!(found == expected, "{pack}: {numbers:?}");
            };
            let len = all.len() as u64;
            assert!(len > 3000, "several states are kept: {len} rows");
            check(&[len - 1, 0, len - 1]);
            for _ in 0..40 {
                let first = random.below(len - 8);
                check(&(first..=first + random.below(7)).collect::<Vec<u64>>());
                check(&(0..=random.below(8)).map(|_| random.below(len)).collect::<Vec<u64>>());
            }
            let error = loader.read_rows(&[3, len], &mut batch, &mut ()).unwrap_err();
            assert_eq!((error.kind(), batch.num_rows()), (ErrorKind::NotFound, 0));
            assert!(error.to_string().contains(&format!("the epochs have {len} rows")), "{error}");
            assert_eq!(loader.loader().state().consumed, 0, "the loader itself does not move");
        }
    }
}

#[test]
fn rows_by_number_are_along_the_lanes_of_the_state_that_the_run_goes_on_from() {
    let corpus = corpus(15);
    let kind = OrderKind::Grouped { lanes: 0, group: 1 };
    let run = LoaderOptions { order: OrderSpec { kind, seed: 5 }, ..global(1) };
    let single = TokenOptions { batch_size: 1, ..rows() };
    let begin = |run| corpus.dataset.token_loader(single.clone(), run).unwrap();
    let of_three = begin(LoaderOptions { world_size: 3, ..run.clone() }).loader().state();
    let resumed = begin(LoaderOptions { resume: Some(of_three.clone()), ..run.clone() });
    let moved = begin(run);
    let mut batch = TokenBatch::new();
    moved.read_rows(&[0], &mut batch, &mut ()).unwrap(); // along the lanes of one rank
    moved.loader().set_state(&of_three).unwrap();
    let all = read(&resumed, usize::MAX);
    for loader in [resumed, moved] {
        let numbers = [0, 1, 77, all.len() as u64 - 1];
        loader.read_rows(&numbers, &mut batch, &mut ()).unwrap();
        let expected: Vec<Cell> =
            numbers.iter().flat_map(|&number| all[number as usize].clone()).collect();
        assert!(filled(&batch, &Columns::all(128), 3).unwrap() == expected);
    }
}
