//! Random dialogues with a controller, both legal and illegal.

use proptest::prelude::*;

use super::*;

/// A move of a random dialogue, such as a PDU that a controller might send.
#[derive(Debug, Clone)]
enum Move {
    Read { blocks: usize },
    Write { blocks: usize },
    Data { cid: u16, datao: u32, len: usize, flags: u8 },
    Resp { cid: u16, status: u16 },
    R2t { cid: u16, r2to: u32, r2tl: u32 },
    Noise(Vec<u8>),
    Flip { at: usize, mask: u8 },
}

fn a_move() -> impl Strategy<Value = Move> {
    let offset = || prop_oneof![8 => (0..8u32).prop_map(|n| n * 512), 1 => any::<u32>()];
    let cid = || prop_oneof![8 => 0..4u16, 1 => any::<u16>()];
    prop_oneof![
        4 => (1..80usize).prop_map(|blocks| Move::Read { blocks }),
        2 => (1..8usize).prop_map(|blocks| Move::Write { blocks }),
        6 => (cid(), offset(), 1..80usize, 0..16u8).prop_map(|(cid, datao, blocks, flags)| {
            Move::Data { cid, datao, len: blocks * 512, flags: flags & 12 }
        }),
        3 => (cid(), any::<u16>()).prop_map(|(cid, status)| Move::Resp { cid, status }),
        3 => (cid(), offset(), offset()).prop_map(|(cid, r2to, r2tl)| Move::R2t { cid, r2to, r2tl }),
        1 => proptest::collection::vec(any::<u8>(), 1..40).prop_map(Move::Noise),
        1 => (0..64usize, any::<u8>()).prop_map(|(at, mask)| Move::Flip { at, mask }),
    ]
}

proptest! {
    #[test]
    fn no_dialogue_causes_a_panic_or_loses_a_payload(
        moves in proptest::collection::vec(a_move(), 1..40),
        cuts in proptest::collection::vec(1..5000usize, 1..6),
        bits in 0..4u8,
    ) {
        let mut peer = Peer::new(Digests::from_bits(bits));
        peer.cuts = cuts;
        let mut taken = 0;
        let mut back = 0;
        let mut flip = None;
        for step in moves {
            let bytes = match step {
                Move::Read { blocks } | Move::Write { blocks } if !peer.host.has_room() => {
                    let _unused = blocks;
                    continue;
                }
                Move::Read { blocks } => { peer.read(blocks * 512); taken += 1; continue }
                Move::Write { blocks } => { peer.write(blocks * 512); taken += 1; continue }
                Move::Data { cid, datao, len, flags } => peer.c2h(cid, datao, &vec![1; len], flags),
                Move::Resp { cid, status } => peer.resp(cid, Status::from_wire(status)),
                Move::R2t { cid, r2to, r2tl } => peer.r2t(cid, 1, r2to, r2tl),
                Move::Noise(bytes) => bytes,
                Move::Flip { at, mask } => { flip = Some((at, mask)); continue }
            };
            let mut bytes = bytes;
            if let Some((at, mask)) = flip.take() && at < bytes.len() {
                bytes[at] ^= mask;
            }
            let result = peer.give(&bytes);
            peer.sent.clear();
            while let Some(event) = peer.host.poll_event() {
                prop_assert!(matches!(event, Event::Done { .. }), "initialised again");
                back += 1;
            }
            if result.is_err() {
                break;
            }
        }
        back += peer.host.abandon().len();
        back += std::iter::from_fn(|| peer.host.poll_event()).count();
        prop_assert_eq!(back, taken);
    }

    #[test]
    fn a_legal_dialogue_ends_the_same_in_every_order_and_however_it_is_cut(
        reads in proptest::collection::vec((1..100usize, any::<u32>(), any::<bool>()), 1..8),
        cuts in proptest::collection::vec(1..70_000usize, 1..8),
        bits in 0..4u8,
        mostly_in_order in any::<bool>(),
    ) {
        let mut peer = Peer::new(Digests::from_bits(bits));
        peer.cuts = cuts;
        let mut answers: Vec<(u32, u16, usize, bool)> = Vec::new();
        for (number, (blocks, key, in_parts)) in reads.into_iter().enumerate() {
            let key = if mostly_in_order && key % 4 > 0 { number as u32 } else { key };
            answers.push((key, peer.read(blocks * 512), blocks * 512, in_parts));
        }
        answers.sort();
        let mut stream = Vec::new();
        for (_, cid, len, in_parts) in &answers {
            let data = pattern(*len);
            let half = if *in_parts { len / 1024 * 512 } else { 0 };
            if half > 0 {
                stream.extend(peer.c2h(*cid, 0, &data[..half], 0));
            }
            stream.extend(peer.c2h(*cid, half as u32, &data[half..], FLAG_LAST_PDU | FLAG_SUCCESS));
        }
        peer.give(&stream).unwrap();
        for (_, _, len, _) in answers {
            prop_assert_eq!(peer.done(), (pattern(len), Ok(Status::SUCCESS)));
        }
    }
}
