//! NQN and NGUIDs that a node serves to its peers: all nodes compute the same values, without a message.

use xxhash_rust::xxh3::xxh3_128;

use dlfs_base::units::Generation;
use dlfs_nvme::nvme::Nqn;
use dlfs_order::order::HexId;

/// The NQN of the subsystem in which each node serves its cache of one generation of an image.
pub(super) fn nqn_of(image: HexId, generation: Generation) -> Nqn {
    let text = format!("nqn.2026-11.io.dlfs:cache:{image}:{}", generation.0);
    Nqn::new(text).expect("it is short and has no control characters")
}

/// The NGUID of the cache of origin namespace `number`, which has NSID `number` + 1. Other generations have
/// other NGUIDs, so that a host can check the namespace that it has connected to.
pub(super) fn nguid_of(image: HexId, generation: Generation, number: u16) -> [u8; 16] {
    let mut bytes = Vec::with_capacity(32);
    bytes.extend_from_slice(&image.0);
    bytes.extend_from_slice(&generation.0.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(b"cache");
    // An NGUID of zeroes means that there is none.
    xxh3_128(&bytes).max(1).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_has_another_name() {
        let image = HexId([3; 16]);
        let generation = Generation(7);
        assert_eq!(
            nqn_of(image, generation).as_str(),
            "nqn.2026-11.io.dlfs:cache:03030303030303030303030303030303:7"
        );
        let all = [
            nguid_of(image, generation, 0),
            nguid_of(image, generation, 1),
            nguid_of(image, Generation(8), 0),
            nguid_of(HexId([4; 16]), generation, 0),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one));
        }
    }
}
