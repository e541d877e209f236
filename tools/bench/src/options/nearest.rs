//! The known word that somebody may have meant.

/// The word of `known` that takes the fewest changes to become `word`, when they are few.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.len() / 3).max(2);
    let measured = known.map(|candidate| (distance(word, candidate), candidate));
    measured
        .filter(|(changes, _)| *changes <= limit)
        .min_by_key(|(changes, _)| *changes)
        .map(|m| m.1)
}

/// Levenshtein's distance, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_nonsense_finds_none() {
        let known = ["bs", "iodepth", "runtime", "rw"];
        assert_eq!(nearest("iodpeth", known.into_iter()), Some("iodepth"));
        assert_eq!(nearest("bsx", known.into_iter()), Some("bs"));
        assert_eq!(nearest("completely", known.into_iter()), None);
    }
}
