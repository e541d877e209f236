//! Local shares by arithmetic: what crosses between nodes, and what stays as with strided shares.

use std::sync::Arc;

use dlfs::order::{
    ByNode, EpochOrder, HexId, Locality, OrderKind, OrderSpec, Population, Shard, Tail,
};
use dlfs::plan::{ChunkHolders, Member};
use dlfs::units::{Epoch, SampleId};

/// Chunks of 27 to 49 samples of 110 KB, ids in slot order.
struct Chunks {
    starts: Vec<u64>,
}

impl Chunks {
    fn new(num: u64) -> Chunks {
        let mut end = 0;
        let ends = (0..num).map(|chunk| {
            end += 27 + chunk * 7919 % 23;
            end
        });
        Chunks { starts: std::iter::once(0).chain(ends).collect() }
    }

    fn bytes(&self) -> Vec<u64> {
        self.starts.windows(2).map(|ends| (ends[1] - ends[0]) * 110_000).collect()
    }
}

impl Population for Chunks {
    fn num_live(&self) -> u64 {
        self.starts[self.num_chunks() as usize]
    }

    fn num_chunks(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    fn live_in_chunk(&self, chunk: u32) -> u32 {
        (self.starts[chunk as usize + 1] - self.starts[chunk as usize]) as u32
    }

    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(rank)
    }

    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        SampleId(self.starts[chunk as usize] + u64::from(nth))
    }

    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        Some(self.starts.partition_point(|&start| start <= id.0) as u32 - 1)
    }
}

/// A round of `nodes` nodes of `ranks` ranks each, with room for 1.3 times the data, that hold equal shares.
fn round(chunks: &Chunks, nodes: u16, ranks: u16) -> Arc<Locality> {
    let bytes = chunks.bytes();
    let share = bytes.iter().sum::<u64>() / u64::from(nodes);
    let member = |node: u64| Member {
        id: node.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        room_bytes: share / 10 * 13,
        share_bytes: share / 100 * 102,
    };
    let members: Vec<Member> = (1..=nodes.into()).map(member).collect();
    let holders = ChunkHolders::new(HexId([7; 16]), &members, &bytes).unwrap();
    let node_of_rank = (0..nodes * ranks).map(|rank| rank / ranks).collect();
    let holder_of = (0..holders.num_chunks()).map(|chunk| holders.holder(chunk));
    Arc::new(Locality::new(node_of_rank, holder_of))
}

/// Reads an epoch by local shares, compares each global batch with that of strided shares, and returns the
/// part of the samples that their rank's node does not hold.
fn crossing(chunks: &Chunks, locality: &Arc<Locality>, order: OrderSpec, batch_size: u64) -> f64 {
    let world_size = locality.num_ranks();
    let mut order = EpochOrder::new(&order, Epoch(1), chunks).unwrap();
    let mut by_node = ByNode::new(Arc::clone(locality));
    let len = order.len();
    let mut taken = 0;
    let mut crossed = 0;
    loop {
        let shard = |rank| Shard::new(rank, world_size, Tail::Keep).unwrap();
        let batch = shard(0).global_batch(len, taken, batch_size);
        if batch.count == 0 {
            return crossed as f64 / len as f64;
        }
        let mut all = Vec::new();
        let mut strided = Vec::new();
        for rank in 0..world_size {
            let mut ids = Vec::new();
            order.local_ids(chunks, &mut by_node, &shard(rank), (batch, batch_size), &mut ids);
            let expected = batch.count.saturating_sub(rank.into()).div_ceil(world_size.into());
            assert_eq!(ids.len() as u64, expected, "rank {rank} at {}", batch.first);
            let own = Some(locality.node_of(rank));
            let away = |id: &&SampleId| locality.holder(chunks.chunk_of(**id).unwrap()) != own;
            crossed += ids.iter().filter(away).count();
            all.append(&mut ids);
        }
        order.ids(chunks, batch.first..batch.first + batch.count, &mut strided);
        all.sort_unstable();
        strided.sort_unstable();
        assert!(all == strided, "the global batch at {}", batch.first);
        taken += batch_size;
    }
}

#[test]
fn a_few_percent_of_the_bytes_cross_between_nodes() {
    let chunks = Chunks::new(1_334);
    let grouped = OrderKind::Grouped { lanes: 32, group: 4 };
    for (kind, nodes, ranks) in [
        (OrderKind::Global, 4, 1),
        (OrderKind::Global, 4, 8),
        (OrderKind::Global, 8, 1),
        (OrderKind::Global, 64, 1),
        (grouped, 4, 1),
    ] {
        let locality = round(&chunks, nodes, ranks);
        for batch_size in [32, 64, 256] {
            let seeds = if (nodes, ranks) == (4, 1) { 1..4 } else { 1..2 };
            let parts = seeds
                .map(|seed| crossing(&chunks, &locality, OrderSpec { kind, seed }, batch_size));
            let worst = parts.fold(0., f64::max);
            println!(
                "{kind:?}, {nodes} nodes of {ranks}, b = {batch_size}: {:.2} % cross, strided {:.1} %",
                100. * worst,
                100. * f64::from(nodes - 1) / f64::from(nodes)
            );
            let has_bar = (kind, nodes, ranks, batch_size) == (OrderKind::Global, 4, 1, 256);
            assert!(!has_bar || worst <= 0.035, "{worst}");
            assert!(worst < 0.5);
        }
    }
}
