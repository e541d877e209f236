//! The holders of chunks are frozen: members of one job compute them apart, perhaps with different builds.

use dlfs::order::HexId;
use dlfs::plan::{ChunkHolders, Member};

#[test]
fn holders_are_what_the_golden_file_says() {
    let mut lines = 0;
    let golden = include_str!("../golden/chunk_holders.txt");
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let [first, members, chunks, expected]: [&str; 4] =
            line.split(" | ").collect::<Vec<_>>().try_into().unwrap();
        let first: u8 = first.parse().unwrap();
        let image = HexId(std::array::from_fn(|i| first + i as u8));
        let members: Vec<Member> = members.split(' ').map(member).collect();
        let [base, step, modulus] = numbers(chunks)[..] else { panic!("{chunks}") };
        let expected = numbers(expected);
        let chunks: Vec<u64> =
            (0..expected.len() as u64).map(|c| base + c * step % modulus).collect();
        let holders = ChunkHolders::new(image, &members, &chunks).unwrap();
        let found = (0..holders.num_chunks()).map(|c| holders.holder(c).map_or(65_535, u64::from));
        assert_eq!(found.collect::<Vec<_>>(), expected, "image {first}");
        lines += 1;
    }
    assert_eq!(lines, 6);
}

fn member(text: &str) -> Member {
    let numbers: Vec<u64> = text.split(',').map(|number| number.parse().unwrap()).collect();
    Member { id: numbers[0], room_bytes: numbers[1], share_bytes: numbers[2] }
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}
