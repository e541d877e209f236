//! The keyed permutation is frozen: placement on media and every order depend on it.

use dlfs::permutation::{Key, Permutation};

#[test]
fn the_permutation_returns_what_the_golden_file_says() {
    let mut lines = 0;
    for line in
        include_str!("../golden/permutation.txt").lines().filter(|line| !line.starts_with('#'))
    {
        let [seed, words, len, values] =
            line.split('|').map(numbers).collect::<Vec<_>>().try_into().unwrap();
        let permutation = Permutation::new(len[0], Key::derive(seed[0], &words));
        let mut indices = vec![0, 1, 2, len[0] / 2, len[0] - 1];
        indices.retain(|&index| index < len[0]);
        indices.sort_unstable();
        indices.dedup();
        let got: Vec<u64> = indices.iter().map(|&index| permutation.forward(index)).collect();
        assert_eq!(got, values, "line: {line}");
        lines += 1;
    }
    assert_eq!(lines, 117);
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}
