//! Shares that lie with their ranks, and the exchange between them: real targets, sockets and files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::store_support::{
    CHUNK_BYTES, Job, Origin, Read, check_whole, expected, read, read_all, stats, wait_until,
};
use crate::support::random::Random;
use dlfs::ErrorKind;
use dlfs::dataset::{Dataset, Loader, OnError, Query, Watch};
use dlfs::metrics::Place;
use dlfs::order::{OrderKind, Shares, State};
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::ReaderOptions;
use dlfs::report::Report;
use dlfs::store::{Staged, StoreOptions};
use dlfs::target::Commands;
use dlfs::tier::PAGE_BYTES;
use dlfs::units::{Epoch, SampleId};

/// The most bytes of pages that the share of any rank takes in any of `epochs`.
fn largest_share(ranks: &[Dataset], job: &Job) -> u64 {
    let directory = ranks[0].directory();
    let shares = Shares::new(&job.order(), &**directory).unwrap();
    let pages_of = |rank, epoch| -> u64 {
        let ids = shares.ids(&**directory, rank, Epoch(epoch));
        let extents = ids.iter().map(|&id| directory.extent(id).unwrap());
        extents
            .map(|e| {
                let end = (e.offset_bytes + u64::from(e.len_bytes)).div_ceil(PAGE_BYTES);
                end - e.offset_bytes / PAGE_BYTES
            })
            .sum()
    };
    let all = (0..job.world_size).flat_map(|r| job.epochs.clone().map(move |e| (r, e)));
    all.map(|(rank, epoch)| pages_of(rank, epoch)).max().unwrap() * PAGE_BYTES
}

#[test]
fn eight_ranks_exchange_for_twenty_epochs_without_the_origin_within_their_room() {
    for (seed, num, len) in [(1, 1_600, 4 << 10), (2, 96, 110 << 10)] {
        let mut origin = Origin::new(seed, num, |_| len);
        let job = Job::new(&origin, 0.3, 8, 20);
        let expected = expected(&origin, &job);
        let ranks = job.start(&origin);
        let shares: u64 = ranks.iter().map(|rank| stats(rank).held_bytes).sum();
        origin.target = None;
        let reads = read_all(&origin, &job, &ranks);
        check_whole(&origin, job.epochs.clone(), &reads);
        assert!(reads == expected, "as the order says");
        let share = largest_share(&ranks, &job);
        // (1 + Q) of the samples of a share, a chunk, and 5 % for the pages at samples' ends.
        let room = (num.div_ceil(8) * len) as f64 * 1.3 * 1.05 + f64::from(CHUNK_BYTES);
        for (rank, stats) in ranks.iter().map(stats).enumerate() {
            println!("rank {rank}: {stats:?}");
            assert!(stats.peak_bytes as f64 <= room, "{} of {room}", stats.peak_bytes);
            assert_eq!((stats.from_origin, stats.mismatched), (0, 0));
            assert_eq!(
                stats.steps,
                19 * (0.3 * num as f64 / 8.).floor() as u64,
                "the last prepares none"
            );
            assert!(stats.received > 0);
        }
        wait_until("all has left", || ranks.iter().all(|rank| stats(rank).held_bytes <= share));
        let now: u64 = ranks.iter().map(|rank| stats(rank).held_bytes).sum();
        assert_eq!(now, shares, "every sample lies in one store, and no other byte");
        assert!(ranks.iter().all(|rank| stats(rank).deleted == stats(rank).received));
    }
}

#[test]
fn after_staging_an_epoch_reads_the_store_and_nothing_else() {
    let origin = Origin::new(3, 400, |random| random.below(9_000) as usize);
    for spec in [origin.folder_spec(), "ram:64M".to_owned()] {
        let round = spec.chars().filter(char::is_ascii_alphanumeric).take(9).collect();
        let job = Job { spec, round, ..Job::new(&origin, 0.25, 3, 4) };
        let expected = expected(&origin, &job);
        let ranks = job.start(&origin);
        let staged = origin.read_bytes();
        let reads = read_all(&origin, &job, &ranks);
        assert!(reads == expected);
        let all: u64 = ranks.iter().map(|rank| stats(rank).staged + stats(rank).found).sum();
        assert_eq!(all, 400, "each sample was brought once");
        assert!(ranks.iter().all(|rank| stats(rank).from_origin == 0));
        assert_eq!(origin.read_bytes(), staged, "no byte of the origin after staging");
        // Reads by id are not of the run.
        let by_id = ranks[0].read(Query::Ids(&[SampleId(7)]), OnError::Raise, &mut ()).unwrap();
        assert_eq!(by_id.batch.bytes(0), origin.samples[7]);
    }
}

#[test]
fn nothing_moves_without_a_part_and_all_but_fixed_points_with_all_of_it() {
    let origin = Origin::new(4, 300, |_| 3_000);
    for (q, round) in [(0.0, "none"), (1.0, "all")] {
        let job = Job {
            round: round.to_owned(),
            spec: "ram:64M".to_owned(),
            ..Job::new(&origin, q, 4, 3)
        };
        let expected = expected(&origin, &job);
        let ranks = job.start(&origin);
        let reads = read_all(&origin, &job, &ranks);
        assert!(reads == expected);
        let directory = ranks[0].directory();
        let shares = Shares::new(&job.order(), &**directory).unwrap();
        for (rank, stats) in (0..).zip(ranks.iter().map(stats)) {
            let moving = |epoch| {
                let all = shares.exchanges(&**directory, rank, Epoch(epoch));
                all.iter().filter(|one| one.to != rank).count() as u64
            };
            assert_eq!(stats.received, moving(0) + moving(1), "rank {rank}");
            assert!(q == 1.0 || stats.received == 0);
        }
    }
}

#[test]
fn an_exchange_at_the_end_of_each_epoch_changes_no_sequence() {
    let origin = Origin::new(5, 300, |random| random.below(30_000) as usize + 1);
    let job = Job { blocking: true, spec: "ram:64M".to_owned(), ..Job::new(&origin, 0.4, 3, 4) };
    let expected = expected(&origin, &job);
    let ranks = job.start(&origin);
    assert!(read_all(&origin, &job, &ranks) == expected);
}

/// Reads at most `batches` batches on each rank in step; returns what was read and the state.
fn read_some(origin: &Origin, job: &Job, ranks: &[Dataset], batches: u64) -> (Vec<Read>, State) {
    let barrier = Barrier::new(ranks.len());
    let samples = &origin.samples;
    let barrier = &barrier;
    let read = |loader: Loader| {
        let mut read = Read::new();
        for _ in 0..batches {
            barrier.wait();
            let Some(batch) = loader.next(&mut ()).unwrap() else { break };
            for sample in batch.iter() {
                assert!(sample.bytes == samples[sample.id.0 as usize], "sample {}", sample.id);
            }
            read.entry(batch.epoch().0).or_default().extend(batch.ids().map(|id| id.0));
        }
        (read, loader.state())
    };
    thread::scope(|scope| {
        let reading = (0..).zip(ranks).map(|(rank, dataset)| {
            let loader = dataset.loader(job.run(rank)).unwrap();
            scope.spawn(move || read(loader))
        });
        let reading: Vec<_> = reading.collect();
        let ended: Vec<_> = reading.into_iter().map(|read| read.join().unwrap()).collect();
        let state = ended[0].1.clone();
        assert!(ended.iter().all(|(_, other)| *other == state), "the ranks went in step");
        (ended.into_iter().map(|(read, _)| read).collect(), state)
    })
}

#[test]
fn a_job_that_ends_at_any_moment_goes_on_with_the_same_sequence() {
    let origin = Origin::new(6, 240, |random| random.below(6_000) as usize + 1);
    let mut job = Job::new(&origin, 0.3, 3, 10);
    let expected = expected(&origin, &job);
    let mut random = Random::new(66);
    let mut reads: Vec<Read> = vec![Read::new(); 3];
    let mut starts = 0;
    let mut found = 0;
    loop {
        job.round = format!("start {starts}");
        let ranks = job.start(&origin);
        if starts > 0 {
            found += ranks.iter().map(|rank| stats(rank).found).sum::<u64>();
        }
        starts += 1;
        let (some, state) = read_some(&origin, &job, &ranks, random.below(4) + 1);
        for (read, some) in reads.iter_mut().zip(some) {
            some.into_iter().for_each(|(epoch, ids)| read.entry(epoch).or_default().extend(ids));
        }
        let is_end = state.epoch.0 == 10;
        job.resume = Some(state);
        if is_end {
            break;
        }
    }
    println!("{starts} starts, {found} samples found in the stores");
    assert!(reads == expected && starts >= 30, "{starts} starts");
    assert!(found as f64 > 0.95 * 240. * f64::from(starts - 1), "{found} of {starts} shares");
}

#[test]
fn samples_are_exchanged_while_the_epoch_runs_as_they_become_due_or_at_its_end() {
    let origin = Origin::new(13, 480, |_| 4_096);
    for blocking in [false, true] {
        let round = format!("blocking {blocking}");
        let job =
            Job { blocking, round, spec: "ram:64M".to_owned(), ..Job::new(&origin, 0.5, 3, 2) };
        let ranks = job.start(&origin);
        let samples = &origin.samples;
        let directory = ranks[0].directory();
        let shares = Shares::new(&job.order(), &**directory).unwrap();
        let due = |rank: u32, taken| {
            let all = shares.exchanges(&**directory, rank, Epoch(0));
            let due = all[..shares.steps_due(taken) as usize].iter();
            due.filter(|one| one.to != rank).count() as u64
        };
        let loaders: Vec<Loader> = (0..)
            .zip(&ranks)
            .map(|(rank, dataset)| dataset.loader(job.run(rank)).unwrap())
            .collect();
        for batch in 1..=20 {
            for loader in &loaders {
                let batch = loader.next(&mut ()).unwrap().unwrap();
                assert!(batch.iter().all(|one| one.bytes == samples[one.id.0 as usize]));
            }
            let expected = |rank| match (blocking, batch < 20) {
                (true, true) => 0,
                (true, false) => due(rank, 160),
                (false, _) => due(rank, batch * 8),
            };
            let received =
                || (0..).zip(&ranks).map(|(rank, of)| (stats(of).received, expected(rank)));
            wait_until("what is due", || received().all(|(received, due)| received == due));
        }
    }
}

#[test]
fn after_their_connect_sequences_stores_are_sent_reads_and_keep_alives_alone() {
    let origin = Origin::new(14, 240, |random| random.below(9_000) as usize);
    let job = Job { spec: "ram:64M".to_owned(), ..Job::new(&origin, 0.5, 4, 8) };
    let ranks = job.start(&origin);
    let commands = |rank: &Dataset| rank.image().peers().unwrap().served().unwrap().commands;
    let (_, state) = read_some(&origin, &job, &ranks, 16);
    assert_eq!(state.epoch, Epoch(2));
    // Each has read from each other one: an admin queue and an I/O queue at least.
    wait_until("the ranks have met", || ranks.iter().all(|rank| commands(rank).of("connect") >= 6));
    wait_until("two epochs' samples have left", || {
        ranks.iter().all(|rank| stats(rank).deleted == stats(rank).received)
    });
    let before: Vec<Commands> = ranks.iter().map(commands).collect();
    let rest = Job { resume: Some(state), ..job };
    check_whole(&origin, 2..8, &read_all(&origin, &rest, &ranks));
    for (rank, before) in ranks.iter().zip(before) {
        let now = commands(rank);
        println!("{now:?}");
        assert!(now.of("read") > before.of("read"), "the exchange went on");
        for (kind, count) in now.by_kind() {
            let may_rise = ["read", "keep_alive"].contains(&kind);
            assert!(may_rise || count == before.of(kind), "{kind}: {count}");
        }
    }
}

#[test]
fn an_epoch_that_is_read_again_has_the_samples_that_have_left() {
    let origin = Origin::new(15, 240, |_| 4_096);
    let job = Job { spec: "ram:64M".to_owned(), ..Job::new(&origin, 0.5, 2, 3) };
    let ranks = job.start(&origin);
    let loaders: Vec<Loader> =
        (0..).zip(&ranks).map(|(rank, of)| of.loader(job.run(rank)).unwrap()).collect();
    // Rank 1 is not at the end of the epoch, so only some of rank 0's samples leave.
    for (loader, batches) in loaders.iter().zip([15, 14]) {
        (0..batches).for_each(|_| drop(loader.next(&mut ()).unwrap().unwrap()));
    }
    wait_until("some have left", || stats(&ranks[0]).deleted > 0);
    loaders.iter().for_each(|loader| loader.set_epoch(0).unwrap());
    let reads: Vec<Read> = thread::scope(|scope| {
        let samples = &origin.samples;
        let reading = loaders.iter().map(|loader| scope.spawn(|| read(samples, loader)));
        let reading: Vec<_> = reading.collect();
        reading.into_iter().map(|read| read.join().unwrap()).collect()
    });
    assert!(reads == expected(&origin, &job));
}

#[test]
fn a_jump_to_an_epoch_far_away_needs_no_more_room_than_the_next_one() {
    let origin = Origin::new(31, 400, |_| 4 << 10);
    let dataset = Dataset::from_image(origin.open(), ReaderOptions::default());
    let pages = |id| {
        let extent = dataset.directory().extent(SampleId(id)).unwrap();
        let end = extent.offset_bytes + u64::from(extent.len_bytes);
        end.div_ceil(PAGE_BYTES) - extent.offset_bytes / PAGE_BYTES
    };
    // The shares, what an epoch exchanges, and a little more.
    let room = (0..400).map(pages).sum::<u64>() * PAGE_BYTES * 13 / 10;
    let job = Job { spec: format!("ram:{room}"), ..Job::new(&origin, 0.2, 4, 20) };
    let ranks = job.start(&origin);
    // By then, a rank has a quarter of its first samples.
    let later = Job { epochs: 12..13, ..job };
    assert!(read_all(&origin, &later, &ranks) == expected(&origin, &later));
    assert!(ranks.iter().all(|rank| stats(rank).held_bytes <= room / 4));
}

#[test]
fn a_dead_rank_s_samples_come_from_the_origin() {
    let origin = Origin::new(7, 320, |_| 4_096);
    let job = Job { patience: Duration::from_millis(100), ..Job::new(&origin, 0.5, 4, 4) };
    let expected = expected(&origin, &job);
    let mut ranks = job.start(&origin);
    drop(ranks.pop());
    let reads = read_all(&origin, &job, &ranks);
    assert!(reads[..] == expected[..3]);
    let from_origin: u64 = ranks.iter().map(|rank| stats(rank).from_origin).sum();
    assert!(from_origin > 0, "the fourth rank's samples");
    let bytes: u64 = ranks.iter().map(|rank| stats(rank).from_origin_bytes).sum();
    assert!(bytes >= from_origin * 4_096, "{bytes} bytes of {from_origin} samples");
}

/// Ranks read their stores alone; what was brought into these from elsewhere is told beside it.
#[test]
fn a_report_tells_what_came_out_of_the_store_and_what_was_brought_into_it() {
    let origin = Origin::new(21, 300, |random| random.below(9_000) as usize);
    for (spec, place) in
        [("ram:64M".to_owned(), Place::Memory), (origin.folder_spec(), Place::Drive)]
    {
        let round = place.name().to_owned();
        let job = Job { spec, round, ..Job::new(&origin, 0.5, 2, 4) };
        let ranks = job.start(&origin);
        let reports: Vec<Report> = thread::scope(|scope| {
            let reading = (0..).zip(&ranks).map(|(rank, dataset)| {
                let loader = dataset.loader(job.run(rank)).unwrap();
                let samples = &origin.samples;
                scope.spawn(move || {
                    read(samples, &loader);
                    loader.report()
                })
            });
            let reading: Vec<_> = reading.collect();
            reading.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let mut received = 0;
        for (report, rank) in reports.iter().zip(&ranks) {
            let places = report.timeline.total().places;
            assert_eq!(
                (places.of(place), places.total()),
                (report.reads.bytes, report.reads.bytes)
            );
            let store = report.store.unwrap();
            let stats = stats(rank);
            assert_eq!(store.staged_bytes, stats.staged_bytes);
            assert_eq!(store.near_bytes, store.received_bytes, "both are on this node");
            assert_eq!((store.from_origin_bytes, stats.from_origin), (0, 0));
            assert!(store.held_bytes > 0, "{store:?}");
            // Pages of the samples, of which neighbours may share one.
            let bytes = store.staged_bytes;
            let num = stats.staged;
            assert!(num > 0 && bytes > 0 && bytes <= num * 4 * PAGE_BYTES, "{stats:?}");
            received += store.received_bytes;
            let html = report.to_html();
            assert!(html.contains("The store of this rank was brought"), "{html}");
        }
        assert!(received > 0, "half of each share moves");
    }
}

#[test]
fn without_the_origin_a_dead_rank_is_named_at_the_end_of_the_epoch() {
    let mut origin = Origin::new(8, 320, |_| 4_096);
    let job = Job {
        patience: Duration::from_millis(50),
        deadline: Duration::from_secs(6),
        ..Job::new(&origin, 0.5, 4, 4)
    };
    let mut ranks = job.start(&origin);
    drop(ranks.pop());
    origin.target = None;
    let loader = ranks[0].loader(job.run(0)).unwrap();
    let mut epochs = BTreeSet::new();
    let error = loop {
        match loader.next(&mut ()) {
            Ok(batch) => epochs.insert(batch.unwrap().epoch().0),
            Err(error) => break error,
        };
    };
    println!("{}", error.report());
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("rank 3"), "{error}");
    assert!(epochs.contains(&0), "the epoch itself needs nobody");
}

#[test]
fn a_rank_that_takes_nothing_is_named_when_another_is_two_epochs_ahead() {
    let origin = Origin::new(11, 320, |_| 4_096);
    let job = Job {
        patience: Duration::from_millis(50),
        deadline: Duration::from_secs(6),
        ..Job::new(&origin, 0.5, 2, 6)
    };
    let ranks = job.start(&origin); // rank 1 answers, and never reads
    let loader = ranks[0].loader(job.run(0)).unwrap();
    let error = loop {
        match loader.next(&mut ()) {
            Ok(batch) => assert!(batch.is_some(), "the run ended without rank 1"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("rank 1 has not taken"), "{}", error.report());
}

#[test]
fn a_rank_that_takes_its_samples_slowly_is_waited_for() {
    let origin = Origin::new(12, 320, |_| 4_096);
    let job = Job { deadline: Duration::from_secs(4), ..Job::new(&origin, 0.5, 2, 4) };
    let ranks = job.start(&origin);
    let slow = ranks[1].loader(job.run(1)).unwrap();
    let fast = thread::scope(|scope| {
        let fast = scope.spawn(|| read(&origin.samples, &ranks[0].loader(job.run(0)).unwrap()));
        // For longer than the deadline, but with every batch it takes some samples.
        for _ in 0..18 {
            slow.next(&mut ()).unwrap().unwrap();
            thread::sleep(Duration::from_millis(400));
        }
        read(&origin.samples, &slow);
        fast.join().unwrap()
    });
    assert!(fast == expected(&origin, &job)[0]);
}

#[test]
fn a_damaged_store_is_mended_from_the_origin() {
    let origin = Origin::new(9, 200, |_| 5_000);
    let mut job = Job::new(&origin, 0.0, 2, 2);
    let expected = expected(&origin, &job);
    let damage = |byte: u8| {
        for file in fs::read_dir(origin.store_folder()).unwrap() {
            let path = file.unwrap().path();
            let file = fs::OpenOptions::new().write(true).read(true).open(&path).unwrap();
            let len = file.metadata().unwrap().len();
            for at in (0..len).step_by(40_000) {
                file.write_all_at(&[byte; 16], at).unwrap();
            }
        }
    };
    let ranks = job.start(&origin);
    let mended = || origin.read_bytes();
    let before = mended();
    damage(1);
    assert!(read_all(&origin, &job, &ranks) == expected, "damaged while it is open");
    assert!(mended() > before);
    drop(ranks);
    damage(2);
    job.round = "again".to_owned();
    let ranks = job.start(&origin);
    let found: u64 = ranks.iter().map(|rank| stats(rank).found).sum();
    assert!(found > 50 && found < 200, "{found} of 200 are right");
    assert!(read_all(&origin, &job, &ranks) == expected, "damaged before it was opened");
}

#[test]
fn another_number_of_ranks_begins_anew_between_epochs_and_uses_what_lies_there() {
    let origin = Origin::new(10, 360, |_| 2_000);
    let job = Job::new(&origin, 0.3, 4, 6);
    let ranks = job.start(&origin);
    let (_, within) = read_some(&origin, &job, &ranks, 5);
    drop(ranks);
    let few =
        Job { world_size: 3, round: "few".to_owned(), resume: Some(within.clone()), ..job.clone() };
    let dataset = Dataset::from_image(origin.open(), ReaderOptions::default());
    let error = dataset.loader(few.run(0)).unwrap_err();
    assert!(error.report().contains("--restart-shares"), "{}", error.report());
    assert!(within.begun_anew(&few.order(), 360).is_err(), "within an epoch");

    let job = Job { resume: Some(within), round: "rest".to_owned(), ..job };
    let ranks = job.start(&origin);
    let (_, border) = read_some(&origin, &job, &ranks, 7);
    assert_eq!((border.epoch, border.consumed), (Epoch(1), 0));
    drop(ranks);
    let anew = border.begun_anew(&few.order(), 360).unwrap();
    let few = Job { resume: Some(anew), ..few };
    let ranks = few.start(&origin);
    let found: u64 = ranks.iter().map(|rank| stats(rank).found).sum();
    println!("{found} of 360 samples lay there");
    assert!(found > 60, "{found}");
    let reads = read_all(&origin, &few, &ranks);
    check_whole(&origin, 1..6, &reads);
    assert!(reads == expected(&origin, &few));
}

#[test]
fn a_store_that_cannot_be_is_refused_with_the_reason() {
    let origin = Origin::new(12, 60, |_| 2_000);
    let job = Job::new(&origin, 0.5, 1, 1);
    let refuse = |spec: &str, change: &dyn Fn(&mut LoaderOptions)| {
        let mut run = job.run(0);
        change(&mut run);
        let options = StoreOptions::new(spec.parse().unwrap());
        let made = origin.open().with_store(options, &run, None);
        made.map(drop).unwrap_err().report()
    };
    let global = |run: &mut LoaderOptions| run.order.kind = OrderKind::Global;
    assert!(refuse("ram:1G", &global).contains("partial or local"));
    assert!(refuse("ram:8K", &|_| ()).contains("too small"));
    assert!(refuse("file:/nowhere:1G", &|_| ()).contains("make the folder"));
    let alone = |run: &mut LoaderOptions| {
        run.world_size = 2;
        run.order.kind = OrderKind::Partial { q: 0.5, world_size: 2 };
    };
    assert!(refuse("ram:1G", &alone).contains("--peers"));
    let dataset = job.join_unstaged(&origin, 0).unwrap();
    let loader = dataset.loader(job.run(0)).unwrap();
    let mut seen = Vec::new();
    let stopped = loader.stage(&mut Stopped, |staged| {
        seen.push(staged);
        true
    });
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(seen, [Staged { samples: 60, ..Staged::default() }]);
    let staged = loader.stage(&mut (), |staged| {
        seen.push(staged);
        true
    });
    staged.unwrap();
    assert_eq!(seen.last().unwrap().done, 60);
}

/// Somebody who does not want to wait.
struct Stopped;

impl Watch for Stopped {
    fn goes_on(&mut self) -> bool {
        false
    }
}

#[test]
fn ranks_of_a_node_share_a_quota_and_what_moves_between_them_crosses_no_network() {
    let origin = Origin::new(16, 400, |_| 4_096);
    for (nodes, near) in [(0, 3. / 3.), (1, 3. / 3.), (2, 1. / 3.), (4, 0.)] {
        let round = format!("{nodes} nodes");
        let job = Job { nodes, round, spec: "ram:16M".to_owned(), ..Job::new(&origin, 0.5, 4, 4) };
        let ranks = job.start(&origin);
        check_whole(&origin, 0..4, &read_all(&origin, &job, &ranks));
        let (received, found) = ranks.iter().map(stats).fold((0, 0), |(all, near), stats| {
            (all + stats.received_bytes, near + stats.near_bytes)
        });
        let found = found as f64 / received as f64;
        println!("{nodes} nodes: {found:.2} of {received} bytes");
        assert!(received > 0 && (found - near).abs() < 0.1, "{found} instead of {near}");
    }
    // 150 samples of at most two pages each, for each rank: 1.2 MB and 4.9 MB.
    for (nodes, size, fits) in [(4, "2M", true), (1, "2M", false), (1, "8M", true)] {
        let job = Job {
            nodes,
            round: format!("{size} on {nodes}"),
            spec: format!("file:{}:{size}", origin.store_folder().display()),
            ..Job::new(&origin, 0.5, 4, 1)
        };
        let errors: Vec<_> = thread::scope(|scope| {
            let job = &job;
            let origin = &origin;
            let joining: Vec<_> = (0..4)
                .map(|rank| scope.spawn(move || job.join_unstaged(origin, rank).err()))
                .collect();
            joining.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for error in errors {
            let text = error.map(|error| error.report()).unwrap_or_default();
            assert_eq!(text.is_empty(), fits, "{size} on {nodes}: {text}");
            assert!(fits || text.contains("4 ranks of this node"), "{text}");
        }
    }
}

#[test]
fn a_share_that_exceeds_its_store_is_an_error_and_no_larger_store() {
    let mut nth = 0;
    let origin = Origin::new(13, 20, |_| {
        nth += 1;
        if nth == 7 { 100 << 10 } else { 3_000 }
    });
    let job = Job { spec: "ram:112K".to_owned(), ..Job::new(&origin, 0.0, 2, 1) };
    let stored = |rank| {
        let options = StoreOptions::new(job.spec.parse().unwrap());
        let image = origin.open().with_store(options, &job.run(rank), None)?;
        let dataset = Dataset::from_image(image, ReaderOptions::default());
        dataset.loader(job.run(rank))?.stage(&mut (), |_| true)
    };
    // Shares of average samples take 108 KiB, the one with the long sample at least 128 KiB.
    let mut fits = 0;
    let mut full = 0;
    for error in [stored(0), stored(1)].map(Result::err) {
        match error {
            None => fits += 1,
            Some(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{}", error.report());
                full += 1;
            }
        }
    }
    assert_eq!((fits, full), (1, 1));
}
