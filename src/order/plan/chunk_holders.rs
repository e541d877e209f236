//! The holder of each chunk among a job's members: weighted rendezvous hashing. All members compute the same
//! result.
//!
//! Each chunk has its own order of members, drawn by hash in proportion to the members' rooms. The chunk goes to
//! the first member in this order that still has room; chunks are placed in hash order. So no messages are needed,
//! nothing is evicted, and when a member joins or leaves, about one chunk in N moves. If a chunk fits nowhere, no
//! member holds it, and all members know this: readers get the chunk from the origin.
//!
//! **Frozen.** Members of one job may run different builds, so the results of these functions are part of the
//! protocol. `tests/golden/chunk_holders.txt` pins them. The full definition, with arithmetic modulo 2^64 and
//! [`Key`] as defined by [`permutation`](dlfs_base::permutation):
//!
//! 1. *Draw* of member n for chunk c: u = word of `key.with(c).with(id of n)`, where key is
//!    `Key::derive(0x686f6c6465727331, the image's UUID as two big-endian words)`.
//! 2. *Cost*: 64 - log2(u), in units of 2^-40; see [`negative_log2`]. The weight of a member is its
//!    room in 64 MiB, at least 1. The member with the least cost / weight comes first, then the next;
//!    among equals the lower id. As costs are exponentially distributed, a member comes first with a
//!    probability in proportion to its weight.
//! 3. Chunks are placed in the order of the word of `key.with(c)`. Each goes to the first member in its order that
//!    then holds at most its share and at most its room; if there is none, only the room limits.
//!
//! The rule that a node's share grows with its room is from Schindelhauer and Schomaker, "Weighted distributed hash
//! tables" (SPAA 2005); one hash per pair is from Thaler and Ravishankar, "Using name-based mappings to increase
//! hit rates" (1998).

use crate::order::HexId;
use dlfs_base::error::{Result, ensure, invalid};
use dlfs_base::permutation::Key;

/// A node of the job that holds chunks for all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Identifies the node in this and in later rounds: a hash of the host's name or id.
    pub id: u64,
    /// Bytes of pages that its tiers can hold: their quotas without their indexes.
    pub room_bytes: u64,
    /// The most bytes that the node takes while other nodes have room; `u64::MAX` for no limit.
    pub share_bytes: u64,
}

/// The holder of each chunk: 2 bytes per chunk, for any number of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkHolders {
    key: Key,
    members: Vec<Member>,
    /// By chunk: the index of the member that holds it, or `NONE`.
    holders: Vec<u16>,
    /// By member: the bytes that it holds.
    held_bytes: Vec<u64>,
}

impl ChunkHolders {
    /// Places the chunks of `image`. `chunk_bytes` has, for each chunk, the total length of its pages that contain live
    /// samples.
    ///
    /// Takes about 5 ns for each pair of chunk and member.
    ///
    /// # Errors
    /// There are no members or more than 65,535, or two members have the same id.
    pub fn new(image: HexId, members: &[Member], chunk_bytes: &[u64]) -> Result<ChunkHolders> {
        ensure((1..=MAX_MEMBERS).contains(&members.len()), || {
            format!("chunks are held by 1 to {MAX_MEMBERS} members, not {}", members.len())
        })?;
        let mut ids: Vec<u64> = members.iter().map(|member| member.id).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|ids| ids[0] == ids[1]) {
            return Err(invalid(format!(
                "two members have the id {:#018x}; each node of a job needs one of its own",
                twice[0]
            )));
        }
        let key = key_of(image);
        let mut holders = ChunkHolders {
            key,
            members: members.to_vec(),
            holders: vec![NONE; chunk_bytes.len()],
            held_bytes: vec![0; members.len()],
        };
        let mut chunks: Vec<(u64, u32)> = (0..chunk_bytes.len() as u32)
            .map(|chunk| (key.with(chunk.into()).word(), chunk))
            .collect();
        chunks.sort_unstable();
        for (_, chunk) in chunks {
            holders.place(chunk, chunk_bytes[chunk as usize]);
        }
        Ok(holders)
    }

    /// The index of the member that holds `chunk`; `None` if no member has room for it.
    ///
    /// # Panics
    /// If the chunk does not exist.
    pub fn holder(&self, chunk: u32) -> Option<u16> {
        let holder = self.holders[chunk as usize];
        (holder != NONE).then_some(holder)
    }

    /// The indices of all members in the order of `chunk`: if its holder fails, the next member serves the chunk.
    pub fn order_of(&self, chunk: u32) -> Vec<u16> {
        let draws = self.key.with(chunk.into());
        let mut order: Vec<(Cost, u16)> = (0..)
            .zip(&self.members)
            .map(|(index, member)| (Cost::of(member, draws), index))
            .collect();
        order.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        order.into_iter().map(|(_, index)| index).collect()
    }

    /// Bytes that member `index` holds.
    ///
    /// # Panics
    /// If the member does not exist.
    pub fn held_bytes(&self, index: u16) -> u64 {
        self.held_bytes[usize::from(index)]
    }

    /// Number of chunks.
    pub fn num_chunks(&self) -> u32 {
        self.holders.len() as u32
    }

    /// The members, in the order of their indices.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Memory of the table in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.holders.capacity() * size_of::<u16>()
    }

    /// Places `chunk`, whose pages have `bytes`, on a member: see step 3 of the definition.
    fn place(&mut self, chunk: u32, bytes: u64) {
        let draws = self.key.with(chunk.into());
        let limits: [fn(&Member) -> u64; 2] =
            [|member| member.room_bytes.min(member.share_bytes), |member| member.room_bytes];
        for limit in limits {
            let with_room =
                (0..).zip(&self.members).zip(&self.held_bytes).filter(|((_, member), held)| {
                    held.checked_add(bytes).is_some_and(|all| all <= limit(member))
                });
            let costs = with_room.map(|((index, member), _)| (Cost::of(member, draws), index));
            if let Some((_, index)) = costs.min_by(|(a, _), (b, _)| a.cmp(b)) {
                let index: u16 = index;
                self.holders[chunk as usize] = index;
                self.held_bytes[usize::from(index)] += bytes;
                return;
            }
        }
    }
}

/// The position of a member in the order of a chunk: by cost / weight, then by id.
struct Cost {
    /// The negative logarithm of the member's draw.
    cost: u64,
    /// The member's room, in units of [`WEIGHT_BYTES`], at least 1.
    weight: u64,
    /// The id of the member.
    id: u64,
}

impl Cost {
    #[inline]
    fn of(member: &Member, draws: Key) -> Cost {
        let weight = (member.room_bytes / WEIGHT_BYTES).max(1);
        Cost { cost: negative_log2(draws.with(member.id).word()), weight, id: member.id }
    }

    #[inline]
    fn cmp(&self, other: &Cost) -> std::cmp::Ordering {
        let this = u128::from(self.cost) * u128::from(other.weight);
        let that = u128::from(other.cost) * u128::from(self.weight);
        this.cmp(&that).then(self.id.cmp(&other.id))
    }
}

/// 64 - log2(`word`) in units of 2^-40; a word of 0 counts as 1.
///
/// For word = 2^k (1 + f): the logarithm of 1 + f is interpolated between [`LOG2`]\[i\] and \[i + 1\] with
/// i = the 11 highest bits of f, by the 32 bits below them, rounded down.
#[inline]
fn negative_log2(word: u64) -> u64 {
    let word = word.max(1);
    let whole = u64::from(63 - word.leading_zeros());
    // The leading one shifted out: f as a fraction of 2^64.
    let fraction = (word << word.leading_zeros()) << 1;
    let index = (fraction >> 53) as usize;
    let below = fraction >> 21 & 0xffff_ffff;
    let low = LOG2[index];
    let high = LOG2[index + 1];
    let log2 = low + (((high - low) * below) >> 32);
    (64 << FRACTION_BITS) - (whole << FRACTION_BITS) - log2
}

/// log2(1 + i / 2048) in units of 2^-40, rounded down.
static LOG2: [u64; 2049] = {
    let mut table = [0; 2049];
    let mut i = 0;
    while i < 2048 {
        table[i] = log2_of_mantissa((2048 + i as u64) << 52);
        i += 1;
    }
    table[2048] = 1 << FRACTION_BITS;
    table
};

/// log2 of `mantissa` / 2^63, which is at least 1 and below 2, in units of 2^-40: one bit per squaring.
const fn log2_of_mantissa(mut mantissa: u64) -> u64 {
    let mut log2 = 0;
    let mut bit = 0;
    while bit < FRACTION_BITS {
        let square = (mantissa as u128 * mantissa as u128) >> 63;
        log2 <<= 1;
        mantissa = square as u64;
        if square >> 64 != 0 {
            log2 |= 1;
            mantissa = (square >> 1) as u64;
        }
        bit += 1;
    }
    log2
}

/// The key of an image's draws. It ignores the generation: chunks that a later generation keeps stay with their
/// holders.
fn key_of(image: HexId) -> Key {
    let image = u128::from_be_bytes(image.0);
    Key::derive(u64::from_be_bytes(*b"holders1"), &[(image >> 64) as u64, image as u64])
}

/// The entry of a chunk without a holder.
const NONE: u16 = u16::MAX;
/// The most members.
const MAX_MEMBERS: usize = NONE as usize;

/// The room that gives a weight of 1.
const WEIGHT_BYTES: u64 = 64 << 20;

/// Fraction bits of a cost.
const FRACTION_BITS: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: HexId = HexId([7; 16]);
    const MIB: u64 = 1 << 20;

    /// `num` members with room for `room_bytes` in total.
    fn members(num: u64, room_bytes: u64) -> Vec<Member> {
        (0..num)
            .map(|n| Member {
                id: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                room_bytes: room_bytes / num,
                share_bytes: u64::MAX,
            })
            .collect()
    }

    /// Chunks of 3 to 5 MiB.
    fn chunks(num: u64) -> Vec<u64> {
        (0..num).map(|chunk| 3 * MIB + chunk * 7_919 % 512 * 4096).collect()
    }

    fn moved(before: &ChunkHolders, after: &ChunkHolders) -> f64 {
        let id = |holders: &ChunkHolders, chunk| {
            holders.holder(chunk).map(|index| holders.members()[usize::from(index)].id)
        };
        let differing = (0..before.num_chunks()).filter(|&c| id(before, c) != id(after, c)).count();
        differing as f64 / f64::from(before.num_chunks())
    }

    #[test]
    fn everything_is_held_once_where_there_is_room_for_it() {
        let chunks = chunks(1_334);
        let all: u64 = chunks.iter().sum();
        for nodes in [1, 4, 8, 64] {
            let members = members(nodes, all + all / 50);
            let holders = ChunkHolders::new(IMAGE, &members, &chunks).unwrap();
            let mut held = vec![0; members.len()];
            for (chunk, bytes) in (0..).zip(&chunks) {
                if let Some(holder) = holders.holder(chunk) {
                    held[usize::from(holder)] += bytes;
                }
            }
            for (index, member) in (0..).zip(&members) {
                assert_eq!(holders.held_bytes(index), held[usize::from(index)]);
                assert!(held[usize::from(index)] <= member.room_bytes);
            }
            // A chunk may fit into no member's remaining room: at most one chunk per member.
            let missing = all - held.iter().sum::<u64>();
            let unheld = (0..1_334).filter(|&chunk| holders.holder(chunk).is_none()).count();
            println!("{nodes} nodes: {unheld} of 1,334 chunks fit nowhere");
            assert!(missing <= nodes * 5 * MIB, "{missing} bytes at {nodes} nodes");
            assert!(nodes > 8 || unheld == 0);
        }
    }

    #[test]
    fn what_fits_nowhere_is_not_held_and_the_rest_fills_the_room() {
        let chunks = chunks(1_000);
        let all: u64 = chunks.iter().sum();
        let holders = ChunkHolders::new(IMAGE, &members(4, all / 2), &chunks).unwrap();
        let held: u64 = (0..4).map(|index| holders.held_bytes(index)).sum();
        assert!(held <= all / 2 && held > all / 2 - 4 * 5 * MIB);
        let nothing = ChunkHolders::new(IMAGE, &members(4, 0), &chunks).unwrap();
        assert!((0..1_000).all(|chunk| nothing.holder(chunk).is_none()));
    }

    #[test]
    fn a_member_holds_in_proportion_to_its_room() {
        let mut members = members(16, 16 << 40);
        for member in &mut members[..8] {
            member.room_bytes = 2 << 40;
        }
        let holders = ChunkHolders::new(IMAGE, &members, &vec![4 * MIB; 60_000]).unwrap();
        let of_large: u64 = (0..8).map(|index| holders.held_bytes(index)).sum();
        let of_all: u64 = (0..16).map(|index| holders.held_bytes(index)).sum();
        let share = of_large as f64 / of_all as f64;
        // Six standard deviations: sqrt(60,000 * 2 / 9) chunks.
        assert!((share - 2. / 3.).abs() < 6. * (2. / 9. / 60_000_f64).sqrt(), "{share}");
    }

    #[test]
    fn when_a_member_joins_or_leaves_about_one_chunk_in_n_moves() {
        let chunks = chunks(1_334);
        let all: u64 = chunks.iter().sum();
        for (nodes, percent) in [(4, 130), (8, 130), (4, 102), (8, 102)] {
            let with = |nodes| members(nodes, all / 100 * percent);
            let of = |members: &[Member]| ChunkHolders::new(IMAGE, members, &chunks).unwrap();
            let before = of(&with(nodes));
            for (what, after, n) in [
                ("joins", of(&with(nodes + 1)), nodes + 1),
                ("leaves", of(&with(nodes - 1)), nodes),
            ] {
                let moved = moved(&before, &after);
                let least = 1. / n as f64;
                println!(
                    "{nodes} nodes with room for {percent} %, one {what}: {moved:.3} of the chunks move, {:.2} \
                     times the least",
                    moved / least
                );
                // With little more room than data, chunks that do not fit go to other members.
                let most = if percent == 130 { 1.25 } else { 2. };
                assert!(moved <= most * least, "{moved} at {nodes} nodes");
            }
        }
    }

    #[test]
    fn a_share_limits_a_member_while_others_have_room() {
        let chunks = chunks(1_334);
        let all: u64 = chunks.iter().sum();
        let mut members = members(4, 4 * all);
        for member in &mut members {
            member.share_bytes = all / 4 * 102 / 100;
        }
        let holders = ChunkHolders::new(IMAGE, &members, &chunks).unwrap();
        assert!((0..4).all(|index| holders.held_bytes(index) <= all / 4 * 102 / 100));
        members[0].share_bytes = 0;
        members[1].share_bytes = 0;
        let holders = ChunkHolders::new(IMAGE, &members, &chunks).unwrap();
        let held: u64 = (0..4).map(|index| holders.held_bytes(index)).sum();
        assert_eq!(held, all, "what exceeds the shares goes where there is room");
    }

    #[test]
    fn the_order_of_a_chunk_begins_with_its_holder_and_has_every_member() {
        let chunks = chunks(200);
        let holders = ChunkHolders::new(IMAGE, &members(9, 1 << 40), &chunks).unwrap();
        for chunk in 0..200 {
            let mut order = holders.order_of(chunk);
            assert_eq!(Some(order[0]), holders.holder(chunk));
            order.sort_unstable();
            assert_eq!(order, (0..9).collect::<Vec<_>>());
        }
        assert_eq!(holders.memory_bytes(), 400);
    }

    #[test]
    fn the_order_of_the_list_of_members_does_not_matter() {
        let chunks = chunks(500);
        let all: u64 = chunks.iter().sum();
        let forward = members(7, all);
        let backward: Vec<Member> = forward.iter().rev().copied().collect();
        let forward = ChunkHolders::new(IMAGE, &forward, &chunks).unwrap();
        let backward = ChunkHolders::new(IMAGE, &backward, &chunks).unwrap();
        assert_eq!(moved(&forward, &backward), 0.);
    }

    #[test]
    fn members_must_be_distinct_and_there_must_be_some() {
        let twice = [members(1, 1)[0]; 2];
        let refused = |members| ChunkHolders::new(IMAGE, members, &[]).unwrap_err().to_string();
        assert!(refused(&twice).contains("two members have the id 0x0000000000000000;"));
        assert!(refused(&[]).contains("1 to 65535 members, not 0"));
    }

    #[test]
    fn costs_are_close_to_logarithms() {
        assert_eq!(negative_log2(0), 64 << FRACTION_BITS);
        assert_eq!(negative_log2(1), 64 << FRACTION_BITS);
        assert_eq!(negative_log2(1 << 63), 1 << FRACTION_BITS);
        assert!(negative_log2(u64::MAX) >= 1);
        let mut word = Key::new(5);
        for _ in 0..100_000 {
            word = word.with(1);
            let exact = 64. - (word.word() as f64).log2();
            let ours = negative_log2(word.word()) as f64 / (1_u64 << FRACTION_BITS) as f64;
            assert!((ours - exact).abs() < 1e-7, "{ours} for {exact}");
        }
    }
}
