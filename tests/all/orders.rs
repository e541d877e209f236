//! Orders as a whole: frozen, complete for every sharding and resumption, and shuffled within
//! bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use dlfs::order::budget::{Budget, Cost, Deal, Pack, RowPhase, RowSpec};
use dlfs::order::report::{Observed, Observer, ShuffleReport};
use dlfs::order::{
    Aligner, EpochOrder, OrderKind, OrderSpec, Pick, Population, Positions, SequentialBy, Shard,
    Sharding, Tail,
};
use dlfs::permutation::{Key, Permutation};
use dlfs::tokens::{Layout, RowDeal};
use dlfs::units::{Epoch, SampleId};
use proptest::prelude::*;

/// Chunks with given numbers of live samples, and spans; a stride scatters ids over the slots.
#[derive(Debug, Clone)]
struct Chunks {
    sizes: Vec<u32>,
    spans: Vec<u32>,
    ids: Vec<u64>,
    starts: Vec<usize>,
    /// Byte offsets of the samples, one after the other, and the end of the last one.
    offsets: Vec<u64>,
}

impl Chunks {
    fn new(sizes: Vec<u32>, spans: Vec<u32>) -> Chunks {
        let n: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
        let gcd = |mut a: u64, mut b: u64| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let stride = (7..).find(|&stride| n == 0 || gcd(stride, n) == 1).unwrap();
        let ids = (0..n).map(|i| (i * stride + 3) % n).collect();
        let starts = sizes.iter().scan(0, |end, &size| {
            let start = *end;
            *end += size as usize;
            Some(start)
        });
        let offsets = (0..=n).map(|slot| slot * 27_000).collect();
        Chunks { starts: starts.collect(), ids, sizes, spans, offsets }
    }

    /// Chunks of some 32 samples of 1,300 to 2,700 bytes, as `seed` draws them.
    fn of_short_samples(num_chunks: u32, seed: u64) -> Chunks {
        let sizes: Vec<u32> = (0..num_chunks).map(|chunk| 27 + chunk * 7919 % 11).collect();
        let mut chunks = Chunks::new(sizes, vec![1; num_chunks as usize]);
        let mut end = 0;
        for (slot, offset) in (0..).zip(&mut chunks.offsets) {
            *offset = end;
            end += 1_300 + Key::derive(seed, &[slot]).word() % 1_400;
        }
        chunks
    }

    /// The blocks of 4 KiB that these samples of `chunk` touch, which begins with a block.
    fn blocks(&self, chunk: u32, samples: Range<u32>) -> u64 {
        let start = self.starts[chunk as usize];
        let offset = |nth: u32| self.offsets[start + nth as usize] - self.offsets[start];
        offset(samples.end).div_ceil(4096) - offset(samples.start) / 4096
    }

    fn even(chunks: u32, size: u32) -> Chunks {
        Chunks::new(vec![size; chunks as usize], vec![1; chunks as usize])
    }
}

impl Population for Chunks {
    fn num_live(&self) -> u64 {
        self.ids.len() as u64
    }

    fn num_chunks(&self) -> u32 {
        self.sizes.len() as u32
    }

    fn live_in_chunk(&self, chunk: u32) -> u32 {
        self.sizes[chunk as usize]
    }

    fn span_of_chunk(&self, chunk: u32) -> u32 {
        self.spans[chunk as usize]
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        assert!(rank < self.num_live());
        SampleId(rank)
    }

    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        assert!(nth < self.sizes[chunk as usize]);
        SampleId(self.ids[self.starts[chunk as usize] + nth as usize])
    }

    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        let slot = self.ids.iter().position(|&other| other == id.0)?;
        Some(self.starts.partition_point(|&start| start <= slot) as u32 - 1)
    }

    fn blocks_of(&self, chunk: u32, nth: u32) -> u32 {
        self.blocks(chunk, nth..nth + 1) as u32
    }
}

#[test]
fn an_epoch_without_samples_yields_none() {
    let nobody = Chunks::new(vec![0, 0], vec![1, 1]);
    for kind in [
        OrderKind::Global,
        OrderKind::Sequential { by: SequentialBy::Id },
        OrderKind::Sequential { by: SequentialBy::Slot },
        OrderKind::Grouped { lanes: 2, group: 1 },
        OrderKind::Local { world_size: 2 },
        OrderKind::Partial { q: 0.5, world_size: 2 },
    ] {
        let mut order = order(kind, 1, 3, &nobody);
        for positions in [Positions::new(0, 1, 5), Positions::new(u64::MAX, 2, 5)] {
            let mut ids = Vec::new();
            order.ids(&nobody, positions, &mut ids);
            assert!(ids.is_empty(), "{kind:?}: {ids:?}");
            if order.is_chunked() {
                let mut picks = Vec::new();
                order.picks(positions, &mut picks);
                assert!(picks.is_empty(), "{kind:?}");
            }
        }
    }
}

fn order(kind: OrderKind, seed: u64, epoch: u64, chunks: &Chunks) -> EpochOrder {
    EpochOrder::new(&OrderSpec { kind, seed }, Epoch(epoch), chunks).unwrap()
}

fn ids_at(
    order: &mut EpochOrder,
    chunks: &Chunks,
    positions: impl Iterator<Item = u64>,
) -> Vec<u64> {
    let mut ids = Vec::new();
    order.ids(chunks, positions, &mut ids);
    ids.into_iter().map(|id| id.0).collect()
}

fn all_picks(order: &mut EpochOrder) -> Vec<Pick> {
    let mut picks = Vec::new();
    order.picks(0..order.len(), &mut picks);
    picks
}

fn chunks_of(picks: &[Pick], group: u32) -> BTreeSet<u32> {
    picks.iter().filter(|pick| pick.group == group).map(|pick| pick.chunk).collect()
}

fn all_ids(kind: OrderKind, seed: u64, epoch: u64, chunks: &Chunks) -> Vec<u64> {
    ids_at(&mut order(kind, seed, epoch, chunks), chunks, 0..chunks.num_live())
}

#[test]
fn every_order_is_the_one_in_the_golden_file() {
    let mut lines = 0;
    for line in include_str!("../golden/orders.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [chunks, kind, seed, epoch, ids] = fields[..] else { panic!("line: {line}") };
        let (sizes, spans) = chunks
            .split_whitespace()
            .map(|chunk| {
                let (size, span) = chunk.split_once('/').unwrap_or((chunk, "1"));
                (size.parse::<u32>().unwrap(), span.parse::<u32>().unwrap())
            })
            .unzip();
        let ids: Vec<u64> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let seed = seed.parse().unwrap();
        let epoch = epoch.parse().unwrap();
        let got = all_ids(parse_kind(kind), seed, epoch, &Chunks::new(sizes, spans));
        assert_eq!(got, ids, "line: {line}");
        lines += 1;
    }
    assert_eq!(lines, 180);
}

#[test]
fn every_budget_cuts_as_the_golden_file_says() {
    let mut lines = 0;
    for line in include_str!("../golden/budgets.txt").lines().filter(|line| !line.starts_with('#'))
    {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [tokens, window, most, cost, seed, epoch, lengths, batches] = fields[..] else {
            panic!("line: {line}")
        };
        let most: u32 = most.parse().unwrap();
        let budget = Budget {
            window: window.parse().unwrap(),
            max_samples: (most > 0).then_some(most),
            cost: if cost == "sum" { Cost::Sum } else { Cost::Padded },
            ..Budget::new(tokens.parse().unwrap())
        };
        let lengths: Vec<u32> = lengths.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let mut draw = |range: Range<u64>, at: &mut Vec<u64>, tokens: &mut Vec<u32>| {
            at.extend(range.clone());
            tokens.extend(&lengths[range.start as usize..range.end as usize]);
            Ok(())
        };
        let shard = Shard::new(0, 1, Tail::Keep).unwrap();
        let seed = seed.parse().unwrap();
        let epoch = Epoch(epoch.parse().unwrap());
        let mut deal = Deal::new(&Arc::new(budget), seed, epoch, lengths.len() as u64, shard);
        let mut cut = Vec::new();
        let mut batch = Vec::<u64>::new();
        while deal.next(&mut draw, &mut batch).unwrap().is_some() {
            let positions: Vec<String> = batch.drain(..).map(|at| at.to_string()).collect();
            cut.push(positions.join(" "));
        }
        assert_eq!(cut.join(" / "), batches, "line: {line}");
        lines += 1;
    }
    assert_eq!(lines, 9);
}

#[test]
fn every_row_is_the_one_in_the_golden_file() {
    let mut lines = 0;
    for line in include_str!("../golden/rows.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [pack, separated, capacity, window, seed, epoch, phases, lengths, rows] = fields[..]
        else {
            panic!("line: {line}")
        };
        let pack = match pack {
            "concat" => Pack::Concat,
            "best_fit" => Pack::BestFit,
            _ => Pack::None,
        };
        let spec = RowSpec { pack, separated: separated == "separated", cuts: true };
        let phase = |text: &str| {
            let (from, seq_len) = text.split_once(':').unwrap();
            RowPhase { from: from.parse().unwrap(), seq_len: seq_len.parse().unwrap() }
        };
        let budget = Budget {
            window: window.parse().unwrap(),
            cost: Cost::Sum,
            rows: Some(spec),
            phases: phases.split_whitespace().map(phase).collect(),
            ..Budget::new(capacity.parse().unwrap())
        };
        let lengths: Vec<u32> = lengths.split_whitespace().map(|n| n.parse().unwrap()).collect();
        let mut draw = |range: Range<u64>, at: &mut Vec<u64>, tokens: &mut Vec<u32>| {
            at.extend(range.clone());
            tokens.extend(&lengths[range.start as usize..range.end as usize]);
            Ok(())
        };
        let shard = Shard::new(0, 1, Tail::Keep).unwrap();
        let seed = seed.parse().unwrap();
        let epoch = Epoch(epoch.parse().unwrap());
        let len = lengths.len() as u64;
        let mut deal = RowDeal::new(&budget, &[1], (seed, epoch), len, shard, None);
        let mut found = Vec::new();
        let mut documents = Vec::<u64>::new();
        let mut layout = Layout::default();
        while deal.next(&mut draw, &mut documents, &mut layout).unwrap().is_some() {
            let parts = layout.segments.iter().map(|segment| {
                let position = documents[segment.document as usize];
                format!("{position}:{}+{}", segment.from, segment.len)
            });
            found.push(parts.collect::<Vec<_>>().join(" "));
            documents.clear();
        }
        assert_eq!(found.join(" / "), rows, "line: {line}");
        lines += 1;
    }
    assert_eq!(lines, 24);
}

fn parse_kind(text: &str) -> OrderKind {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |i: usize| words[i].parse().unwrap();
    match words[0] {
        "sequential" if words[1] == "id" => OrderKind::Sequential { by: SequentialBy::Id },
        "sequential" => OrderKind::Sequential { by: SequentialBy::Slot },
        "global" => OrderKind::Global,
        "grouped2" => OrderKind::Grouped { lanes: number(1), group: number(2) },
        "local" => OrderKind::Local { world_size: number(1) },
        "partial" => OrderKind::Partial { world_size: number(1), q: words[2].parse().unwrap() },
        _ => panic!("order {text}"),
    }
}

fn any_kind() -> impl Strategy<Value = OrderKind> {
    prop_oneof![
        Just(OrderKind::Sequential { by: SequentialBy::Id }),
        Just(OrderKind::Sequential { by: SequentialBy::Slot }),
        Just(OrderKind::Global),
        (1..20_u32, 1..9_u32).prop_map(|(lanes, group)| OrderKind::Grouped { lanes, group }),
        (1..9_u32).prop_map(|world_size| OrderKind::Local { world_size }),
        (0.0..=1.0, 1..9_u32).prop_map(|(q, world_size)| OrderKind::Partial { q, world_size }),
    ]
}

fn any_chunks() -> impl Strategy<Value = Chunks> {
    proptest::collection::vec((0..40_u32, 1..4_u32), 0..30)
        .prop_map(|chunks| chunks.into_iter().unzip())
        .prop_map(|(sizes, spans)| Chunks::new(sizes, spans))
}

proptest! {
    #[test]
    fn an_epoch_has_every_live_sample_once(
        kind in any_kind(), chunks in any_chunks(), seed: u64, epoch in 0..6_u64,
    ) {
        let mut ids = all_ids(kind, seed, epoch, &chunks);
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..chunks.num_live()).collect::<Vec<_>>());
    }

    #[test]
    fn a_position_has_the_same_sample_however_it_is_reached(
        kind in any_kind(), chunks in any_chunks(), seed: u64, epoch in 0..4_u64,
        jumps in proptest::collection::vec(any::<proptest::sample::Index>(), 50),
    ) {
        let walked = all_ids(kind, seed, epoch, &chunks);
        let mut order = order(kind, seed, epoch, &chunks);
        for jump in jumps.iter().filter(|_| !walked.is_empty()) {
            let position = jump.index(walked.len());
            let id = ids_at(&mut order, &chunks, position as u64..position as u64 + 1);
            prop_assert_eq!(&id[..], &walked[position..=position]);
        }
    }

    #[test]
    fn ranks_share_an_epoch_without_gap_or_overlap_also_after_resuming_with_others(
        len in 0..2000_u64,
        runs in proptest::collection::vec((1..17_u32, 1..70_u64, 0..9_u64), 1..5),
    ) {
        // For each run: world size, batch size of a rank, and the number of global batches before
        // it stops.
        let mut consumed = 0;
        let mut read = Vec::new();
        for (i, &(world_size, batch, batches)) in runs.iter().enumerate() {
            let batches = if i + 1 == runs.len() { u64::MAX } else { batches };
            let shards = (0..world_size).map(|rank| Shard::new(rank, world_size, Tail::Keep).unwrap());
            let shards: Vec<Shard> = shards.map(|shard| shard.after(consumed)).collect();
            for shard in &shards {
                let mut own = shard.positions(len);
                (0..batches).map_while(|_| Some(own.split_front(batch)).filter(|b| b.remaining() > 0))
                    .for_each(|batch| read.extend(batch));
            }
            consumed = shards[0].consumed_after(len, batch.saturating_mul(batches));
            read.sort_unstable();
            prop_assert_eq!(&read, &(0..consumed).collect::<Vec<_>>());
        }
        prop_assert_eq!(consumed, len);
    }

    #[test]
    fn drop_last_and_pad_give_every_rank_the_same_number(
        len in 0..500_u64, consumed in 0..500_u64, world_size in 1..17_u32,
    ) {
        let consumed = consumed.min(len);
        let world = u64::from(world_size);
        for (tail, total) in [
            (Tail::DropLast, (len - consumed) / world * world),
            (Tail::Pad, (len - consumed).next_multiple_of(world)),
        ] {
            let of_rank = |rank| Shard::new(rank, world_size, tail).unwrap().after(consumed).positions(len);
            let counts: BTreeSet<usize> = (0..world_size).map(|rank| of_rank(rank).count()).collect();
            prop_assert_eq!(counts.len(), 1);
            let mut all: Vec<u64> = (0..world_size).flat_map(of_rank).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (consumed..consumed + total).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_global_batch_is_the_same_set_for_every_world_size(
        chunks in any_chunks(), seed: u64, per_rank in 1..5_u64,
    ) {
        let kind = OrderKind::Grouped { lanes: 4, group: 2 };
        let global_batch = |world_size: u32| -> Vec<u64> {
            let mut set: Vec<u64> = (0..world_size)
                .flat_map(|rank| {
                    let mut own = Shard::new(rank, world_size, Tail::Keep).unwrap().positions(chunks.num_live());
                    let front = own.split_front(per_rank * 12 / u64::from(world_size));
                    ids_at(&mut order(kind, seed, 0, &chunks), &chunks, front)
                })
                .collect();
            set.sort_unstable();
            set
        };
        for world_size in [2, 3, 4, 6, 12] {
            prop_assert_eq!(global_batch(world_size), global_batch(1));
        }
    }

    #[test]
    fn a_lane_ends_one_group_before_it_begins_the_next_and_no_chunk_is_in_two_groups(
        chunks in any_chunks(), lanes in 1..6_u32, group in 1..5_u32, seed: u64,
    ) {
        let mut order = order(OrderKind::Grouped { lanes, group }, seed, 1, &chunks);
        let mut parts = BTreeMap::<_, Vec<u32>>::new();
        let mut current = BTreeMap::new();
        for pick in all_picks(&mut order) {
            parts.entry((pick.group, pick.chunk)).or_default().push(pick.nth);
            let lane = order.lane_of(pick.group);
            prop_assert!(lane < lanes);
            let entered = current.insert(lane, pick.group);
            // Groups are numbered lane by lane.
            prop_assert!(entered.is_none_or(|last| last == pick.group || last + 1 == pick.group));
        }
        for ((group, chunk), mut nth) in parts {
            nth.sort_unstable();
            prop_assert_eq!(order.samples_in_group(group, chunk).collect::<Vec<_>>(), nth, "in slot order");
            prop_assert!(order.samples_in_group(group, u32::MAX).is_empty());
        }
    }

    #[test]
    fn lanes_of_one_order_are_equally_long_and_take_turns_to_the_end(
        chunks in any_chunks(), lanes in 1..40_u32, group in 1..5_u32, seed: u64,
    ) {
        let mut order = order(OrderKind::Grouped { lanes, group }, seed, 0, &chunks);
        for (position, pick) in (0..).zip(all_picks(&mut order)) {
            prop_assert_eq!(order.lane_of(pick.group), position % lanes);
        }
    }

    #[test]
    fn aligned_shares_are_the_strided_set_with_as_many_for_each_rank(
        chunks in any_chunks(), lanes in 1..20_u32, group in 1..5_u32, seed: u64,
        world_size in 1..20_u32, batch_size in 1..40_u64, begun in 0..50_u64,
        tail in prop_oneof![Just(Tail::Keep), Just(Tail::DropLast), Just(Tail::Pad)],
    ) {
        let len = chunks.num_live();
        let mut order = order(OrderKind::Grouped { lanes, group }, seed, 0, &chunks);
        let mut aligner = Aligner::default();
        let shards = (0..world_size).map(|rank| Shard::new(rank, world_size, tail).unwrap());
        let shards: Vec<Shard> = shards.map(|shard| shard.after(begun.min(len))).collect();
        let mut strided: Vec<Positions> = shards.iter().map(|shard| shard.positions(len)).collect();
        let key = |pick: &Pick| (pick.chunk, pick.nth, pick.group);
        let mut taken = 0;
        while strided[0].remaining() > 0 {
            let mut all = Vec::new();
            let mut expected = Vec::new();
            for (shard, rest) in shards.iter().zip(&mut strided) {
                let mut share = Vec::new();
                let mut picks = Vec::new();
                let batch = shard.global_batch(len, taken, batch_size);
                order.aligned_picks(&chunks, &mut aligner, shard, batch, &mut share);
                order.picks(rest.split_front(batch_size), &mut picks);
                prop_assert_eq!(share.len(), picks.len(), "rank {}", shard.rank);
                all.extend(share.iter().map(key));
                expected.extend(picks.iter().map(key));
            }
            all.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(all, expected, "behind {} samples a rank", taken);
            taken += batch_size;
        }
        let mut none = Vec::new();
        let past = shards[0].global_batch(len, taken, batch_size);
        order.aligned_picks(&chunks, &mut aligner, &shards[0], past, &mut none);
        prop_assert!(none.is_empty());
    }
}

#[test]
fn one_lane_is_the_chunk_based_shuffle_group_after_group() {
    let chunks = Chunks::even(20, 10);
    let mut order = order(OrderKind::Grouped { lanes: 1, group: 4 }, 5, 0, &chunks);
    let mut picks = Vec::new();
    order.picks(0..200, &mut picks);
    let mut seen = BTreeSet::new();
    for group in picks.chunks(40) {
        let of_group: BTreeSet<u32> = group.iter().map(|pick| pick.chunk).collect();
        assert_eq!(of_group.len(), 4, "a group holds the samples of four chunks");
        assert!(of_group.iter().all(|&chunk| seen.insert(chunk)), "and of no others");
        let changes = group.windows(2).filter(|pair| pair[0].chunk != pair[1].chunk).count();
        assert!(changes > 20, "they are mixed, not one chunk after another: {changes} changes");
    }
}

#[test]
fn a_group_of_all_chunks_is_a_full_shuffle_and_a_group_of_one_keeps_chunks_together() {
    let chunks = Chunks::even(10, 100);
    let chunk_changes = |group| {
        let mut picks = Vec::new();
        let mut order = order(OrderKind::Grouped { lanes: 1, group }, 5, 0, &chunks);
        order.picks(0..1000, &mut picks);
        picks.windows(2).filter(|pair| pair[0].chunk != pair[1].chunk).count()
    };
    assert_eq!(chunk_changes(1), 9);
    let full = chunk_changes(10);
    assert!((840..960).contains(&full), "{full} of 999 steps change the chunk, chance says 900");
    assert_eq!(chunk_changes(u32::MAX), full, "a group larger than the data set is the data set");
}

#[test]
fn more_lanes_than_chunks_leave_some_empty() {
    let chunks = Chunks::even(3, 5);
    let mut order = order(OrderKind::Grouped { lanes: 1000, group: 2 }, 1, 0, &chunks);
    let groups =
        |picks: &[Pick]| picks.iter().map(|pick| pick.group).collect::<BTreeSet<_>>().len();
    let picks = all_picks(&mut order);
    assert_eq!((picks.len(), groups(&picks)), (15, 15), "a lane has one sample at most");
}

#[test]
fn a_rank_whose_world_size_divides_the_lanes_reads_chunks_that_nobody_else_reads() {
    let chunks = Chunks::even(64, 32);
    for world_size in [1, 2, 4, 8] {
        let mut readers = vec![BTreeSet::new(); 64];
        for rank in 0..world_size {
            let mut picks = Vec::new();
            let own =
                Shard::new(rank, world_size, Tail::Keep).unwrap().positions(chunks.num_live());
            order(OrderKind::Grouped { lanes: 8, group: 2 }, 3, 2, &chunks).picks(own, &mut picks);
            picks.iter().for_each(|pick| _ = readers[pick.chunk as usize].insert(rank));
        }
        assert!(
            readers.iter().all(|ranks| ranks.len() == 1),
            "world size {world_size}: {readers:?}"
        );
    }
}

#[test]
fn a_host_holds_no_more_than_its_lanes_times_the_group() {
    let chunks = Chunks::even(120, 16);
    for (world_size, lanes, group) in [(1, 1, 4), (1, 6, 3), (2, 6, 3), (3, 6, 5)] {
        let mut order = order(OrderKind::Grouped { lanes, group }, 9, 0, &chunks);
        let own = Shard::new(1 % world_size, world_size, Tail::Keep).unwrap();
        let mut picks = Vec::new();
        order.picks(own.positions(order.len()), &mut picks);
        // Chunks are read with the first sample of their group, and released after its last.
        let mut last = BTreeMap::new();
        (0..).zip(&picks).for_each(|(at, pick)| _ = last.insert(pick.group, at));
        let mut held: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut most = 0;
        for (at, pick) in (0..).zip(&picks) {
            held.retain(|group, _| last[group] >= at);
            held.entry(pick.group).or_insert_with(|| chunks_of(&picks, pick.group));
            most = most.max(held.values().map(BTreeSet::len).sum());
        }
        assert_eq!(most, (lanes / world_size * group) as usize);
    }
}

#[test]
fn an_oversize_sample_counts_as_the_chunks_that_it_spans() {
    let chunks = Chunks::new(vec![8, 1, 8, 8, 1, 8], vec![1, 3, 1, 1, 5, 1]);
    let picks = all_picks(&mut order(OrderKind::Grouped { lanes: 1, group: 4 }, 2, 0, &chunks));
    for group in picks.iter().map(|pick| pick.group).collect::<BTreeSet<u32>>() {
        let of_group = chunks_of(&picks, group);
        let span: u32 = of_group.iter().map(|&chunk| chunks.spans[chunk as usize]).sum();
        assert!(span <= 4 || of_group == [4].into(), "group {of_group:?} spans {span} chunks");
    }
}

#[test]
fn epochs_seeds_and_kinds_have_nothing_in_common() {
    let chunks = Chunks::even(40, 25);
    let kinds = [
        OrderKind::Global,
        OrderKind::Grouped { lanes: 1, group: 40 },
        OrderKind::Local { world_size: 1 },
    ];
    let mut orders = Vec::new();
    for kind in kinds {
        for (seed, epoch) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            orders.push(all_ids(kind, seed, epoch, &chunks));
        }
    }
    for (i, a) in orders.iter().enumerate() {
        for b in &orders[..i] {
            let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
            assert!(same < 12, "two orders agree at {same} of 1000 places, chance says 1");
        }
    }
}

#[test]
fn partial_shuffling_moves_the_asked_part_of_every_share_and_nothing_when_asked_for_none() {
    let chunks = Chunks::even(40, 25);
    let world_size = 8;
    let shares = |q, epoch| -> Vec<BTreeSet<u64>> {
        let ids = all_ids(OrderKind::Partial { q, world_size }, 3, epoch, &chunks);
        (0..8).map(|rank| ids.iter().copied().skip(rank).step_by(8).collect()).collect()
    };
    let moved = |q| -> usize {
        let before = shares(q, 1);
        let after = shares(q, 2);
        before.iter().zip(&after).map(|(before, after)| after.difference(before).count()).sum()
    };
    assert_eq!(moved(0.0), 0);
    let local = all_ids(OrderKind::Local { world_size }, 3, 2, &chunks);
    assert_eq!(all_ids(OrderKind::Partial { q: 0.0, world_size }, 3, 2, &chunks), local);
    // Each of the floor(q * 125) steps moves 8 samples, except those of ranks that draw themselves:
    // on average one of 8, so 1/8 of them stay.
    for (q, steps) in [(0.3, 37), (1.0, 125)] {
        let found = moved(q);
        let chance = steps * 7;
        assert!(
            found.abs_diff(chance) < chance / 8,
            "{found} samples moved at q = {q}, chance says {chance}"
        );
    }
}

#[test]
fn grouped_orders_mix_classes_as_chance_does_where_placement_was_shuffled_and_not_where_it_was_not()
{
    // 40,000 samples in 100 classes, sorted by class as in a folder; 40 samples per chunk.
    let n = 40_000;
    let report = |kind, slot_to_id: &dyn Fn(u64) -> u64| -> ShuffleReport {
        let mut chunks = Chunks::even(1000, 40);
        chunks.ids = (0..n).map(slot_to_id).collect();
        let mut chunk_of = vec![0; n as usize];
        (0..).zip(&chunks.ids).for_each(|(slot, &id)| chunk_of[id as usize] = slot / 40);
        let mut observer = Observer::new(256);
        for rank in all_ids(kind, 1, 0, &chunks) {
            let chunk = chunk_of[rank as usize];
            let label = Some((rank / 400) as i64);
            observer.see(Observed { rank, chunk, label });
        }
        observer.finish()
    };
    let placement = Permutation::new(n, Key::new(5));
    let shuffled = |slot| placement.inverse(slot);
    let source = |slot| slot;
    let classes = |report: &ShuffleReport| {
        let classes = report.classes.clone().unwrap();
        [classes.classes_per_batch.unwrap(), classes.chi_square.unwrap(), classes.class_runs]
            .map(|row| row.deviations.abs())
    };
    let grouped = OrderKind::Grouped { lanes: 8, group: 4 };
    let fair = [report(OrderKind::Global, &source), report(grouped, &shuffled)];
    for report in fair {
        assert!(report.displacement.deviations.abs() < 4.0, "{report}");
        assert!(classes(&report).iter().all(|&deviations| deviations < 4.0), "{report}");
    }
    let unfair = report(grouped, &source);
    let [in_a_batch, chi_square, _] = classes(&unfair);
    assert!(in_a_batch > 100.0 && chi_square > 100.0, "{unfair}");
}

#[test]
fn a_padded_epoch_repeats_its_first_samples() {
    let chunks = Chunks::even(2, 5);
    for kind in [OrderKind::Global, OrderKind::Grouped { lanes: 2, group: 1 }] {
        let mut order = order(kind, 4, 0, &chunks);
        let all = ids_at(&mut order, &chunks, 0..10);
        let own = Shard::new(3, 4, Tail::Pad).unwrap().positions(10);
        assert_eq!(ids_at(&mut order, &chunks, own), [all[3], all[7], all[1]]);
    }
}

/// The reads of all ranks in an epoch relative to the data, in blocks of 4 KiB: each range of a
/// chunk that a rank reads once, and the samples that it reads [alone](Pick::alone).
fn bytes_read(
    kind: OrderKind,
    chunks: &Chunks,
    sharding: Sharding,
    (world_size, batch_size, begun): (u32, u64, u64),
) -> f64 {
    let len = chunks.num_live();
    let mut order = order(kind, 7, 0, chunks);
    let mut aligner = Aligner::default();
    let mut read = 0;
    for rank in 0..world_size {
        let shard = Shard::new(rank, world_size, Tail::Keep).unwrap().after(begun);
        let mut rest = shard.positions(len);
        let mut taken = 0;
        let mut picks = Vec::new();
        let mut open = BTreeSet::new();
        while rest.remaining() > 0 {
            picks.clear();
            let strided = rest.split_front(batch_size);
            match sharding {
                Sharding::Strided => order.picks(strided, &mut picks),
                Sharding::Aligned => {
                    let batch = shard.global_batch(len, taken, batch_size);
                    order.aligned_picks(chunks, &mut aligner, &shard, batch, &mut picks);
                }
                Sharding::Local => unreachable!("no node holds anything here"),
            }
            taken += strided.remaining();
            for pick in &picks {
                let group = pick.group;
                let chunk = pick.chunk;
                if pick.alone {
                    read += chunks.blocks(chunk, pick.nth..pick.nth + 1);
                } else if open.insert((group, chunk)) {
                    let samples = match sharding {
                        Sharding::Aligned => order.aligned_samples_in_group(&shard, group, chunk),
                        _ => order.samples_in_group(group, chunk),
                    };
                    read += chunks.blocks(chunk, samples);
                }
            }
        }
    }
    let data = chunks.offsets[len as usize] * (len - begun) / len;
    read as f64 * 4096.0 / data as f64
}

/// 27 to 49 samples per chunk.
fn uneven(num_chunks: u32) -> Chunks {
    let sizes = (0..num_chunks).map(|chunk| 27 + chunk * 7919 % 23).collect();
    Chunks::new(sizes, vec![1; num_chunks as usize])
}

#[test]
fn ranks_read_the_data_once_where_lanes_are_a_multiple_of_them() {
    let chunks = uneven(1334);
    for world_size in [2, 3, 8, 64, 256] {
        for lanes in [world_size, 8 * world_size] {
            let kind = OrderKind::Grouped { lanes, group: 4 };
            let ratio = bytes_read(kind, &chunks, Sharding::Strided, (world_size, 16, 0));
            println!("{world_size} ranks, {lanes} lanes: {ratio:.4}");
            assert!(ratio <= 1.02, "{world_size} ranks, {lanes} lanes: {ratio}");
        }
    }
}

#[test]
fn ranks_that_go_on_with_the_lanes_of_fewer_read_little_more_where_shares_are_aligned() {
    for (num_chunks, begun) in [(1334, 4096), (80, 0), (20, 0)] {
        let chunks = uneven(num_chunks);
        for world_size in [2, 3, 5, 8, 12, 64, 256] {
            let kind = OrderKind::Grouped { lanes: 8, group: 4 };
            let run = (world_size, 16, begun);
            let aligned = bytes_read(kind, &chunks, Sharding::Aligned, run);
            let strided = bytes_read(kind, &chunks, Sharding::Strided, run);
            println!("{num_chunks} chunks, {world_size} ranks: {aligned:.3}, strided {strided:.3}");
            assert!(aligned <= strided, "{num_chunks} chunks, {world_size} ranks");
            assert!(aligned <= 1.1, "{num_chunks} chunks, {world_size} ranks: {aligned}");
        }
    }
}

#[test]
fn small_batches_of_samples_shorter_than_a_block_read_little_more_where_shares_are_aligned() {
    let seed = 7;
    println!("seed {seed}");
    let chunks = Chunks::of_short_samples(625, seed);
    let kind = OrderKind::Grouped { lanes: 8, group: 4 };
    for world_size in [3, 5, 6, 7] {
        for batch_size in [16, 64] {
            let once = bytes_read(kind, &chunks, Sharding::Aligned, (1, batch_size, 0));
            let ratio =
                bytes_read(kind, &chunks, Sharding::Aligned, (world_size, batch_size, 0)) / once;
            println!("{world_size} ranks, batches of {batch_size}: {ratio:.3}");
            assert!(ratio <= 1.1, "{world_size} ranks, batches of {batch_size}: {ratio}");
        }
    }
}

#[test]
fn an_aligned_share_reads_each_sample_alone_or_in_the_ranks_own_range_which_divide_the_chunks() {
    for (world_size, lanes, tail) in
        [(3, 8, Tail::Keep), (7, 8, Tail::Pad), (12, 8, Tail::DropLast), (5, 3, Tail::Pad)]
    {
        let chunks = uneven(150);
        let kind = OrderKind::Grouped { lanes, group: 4 };
        let mut order = order(kind, 3, 1, &chunks);
        let mut aligner = Aligner::default();
        let mut by_rank = BTreeMap::new();
        let mut alone = 0;
        for rank in 0..world_size {
            let shard = Shard::new(rank, world_size, tail).unwrap();
            let mut taken = 0;
            let mut picks = Vec::new();
            let all = shard.positions(order.len()).remaining();
            while taken < all {
                let batch = shard.global_batch(order.len(), taken, 16);
                order.aligned_picks(&chunks, &mut aligner, &shard, batch, &mut picks);
                taken += 16;
            }
            alone += picks.iter().filter(|pick| pick.alone).count();
            for pick in picks.iter().filter(|pick| !pick.alone) {
                let own = order.aligned_samples_in_group(&shard, pick.group, pick.chunk);
                assert!(
                    own.contains(&pick.nth),
                    "rank {rank} of {world_size}: {pick:?} of {own:?}"
                );
                by_rank.insert((pick.group, pick.chunk, own.start), (own, rank));
            }
        }
        let mut before: Option<(u32, u32, Range<u32>)> = None;
        for ((group, chunk, _), (own, _)) in by_rank {
            if let Some((of_group, of_chunk, earlier)) = before
                && (of_group, of_chunk) == (group, chunk)
            {
                assert!(
                    earlier.end <= own.start,
                    "two ranks read the same samples of chunk {chunk}"
                );
            }
            before = Some((group, chunk, own));
        }
        assert!(
            alone < chunks.num_live() as usize / 8,
            "{alone} samples alone, {world_size} ranks"
        );
    }
}
