//! Glob patterns, as in a shell, over bytes.

/// A pattern: `*` matches any bytes, slashes too; `?` matches one byte; `[a-z]` matches one byte in the set, `[!a-z]`
/// or `[^a-z]` one byte not in it; a backslash escapes the next byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    /// In the order of the pattern.
    parts: Vec<GlobPart>,
}

/// A part of a pattern. All but `Star` match one byte.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GlobPart {
    Byte(u8),
    Any,
    /// The bytes in one of the inclusive `ranges`; with `is_negated`, all others.
    Set {
        ranges: Vec<(u8, u8)>,
        is_negated: bool,
    },
    Star,
}

impl Glob {
    /// Parses `text` as a pattern.
    ///
    /// # Errors
    /// `text` is not a valid pattern; the message says why.
    pub(super) fn parse(text: &[u8]) -> Result<Glob, &'static str> {
        let mut parts = Vec::new();
        let mut rest = text.iter().copied();
        while let Some(byte) = rest.next() {
            parts.push(match byte {
                b'*' if parts.last() == Some(&GlobPart::Star) => continue,
                b'*' => GlobPart::Star,
                b'?' => GlobPart::Any,
                b'\\' => {
                    GlobPart::Byte(rest.next().ok_or("a pattern cannot end with a backslash")?)
                }
                b'[' => set(&mut rest).ok_or("a `[` in a pattern has no `]`")?,
                byte => GlobPart::Byte(byte),
            });
        }
        Ok(Glob { parts })
    }

    /// Returns whether the pattern matches the whole of `text`. Takes at most as many steps as the product of both
    /// lengths.
    pub(super) fn fits(&self, text: &[u8]) -> bool {
        let mut part = 0;
        let mut at = 0;
        // The part after the last star, and the offset of the first byte that the star does not match.
        let mut star: Option<(usize, usize)> = None;
        loop {
            match self.parts.get(part) {
                Some(GlobPart::Star) => {
                    part += 1;
                    star = Some((part, at));
                    continue;
                }
                Some(one) if text.get(at).is_some_and(|byte| one.takes(*byte)) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                None if at == text.len() => return true,
                _ => {}
            }
            // Backtrack: the last star matches one byte more. Earlier stars need not.
            let Some((behind, from)) = star.filter(|(_, from)| *from < text.len()) else {
                return false;
            };
            (part, at) = (behind, from + 1);
            star = Some((behind, from + 1));
        }
    }
}

impl GlobPart {
    /// Returns whether the part matches this one byte.
    fn takes(&self, byte: u8) -> bool {
        match self {
            GlobPart::Byte(one) => *one == byte,
            GlobPart::Any => true,
            GlobPart::Set { ranges, is_negated } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&byte)) != *is_negated
            }
            GlobPart::Star => false,
        }
    }
}

/// Parses the set after a `[`. A `]` that comes first belongs to the set.
fn set(rest: &mut impl Iterator<Item = u8>) -> Option<GlobPart> {
    let mut rest = rest.by_ref().peekable();
    let is_negated = rest.next_if(|byte| matches!(byte, b'!' | b'^')).is_some();
    let mut ranges: Vec<(u8, u8)> = Vec::new();
    loop {
        let first = match rest.next()? {
            b']' if !ranges.is_empty() => return Some(GlobPart::Set { ranges, is_negated }),
            b'\\' => rest.next()?,
            byte => byte,
        };
        if rest.next_if_eq(&b'-').is_none() {
            ranges.push((first, first));
            continue;
        }
        match rest.next()? {
            // A `-` that comes last belongs to the set.
            b']' => {
                ranges.extend([(first, first), (b'-', b'-')]);
                return Some(GlobPart::Set { ranges, is_negated });
            }
            b'\\' => ranges.push((first, rest.next()?)),
            last => ranges.push((first, last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        Glob::parse(pattern.as_bytes()).unwrap().fits(text.as_bytes())
    }

    #[test]
    fn patterns_fit_what_a_shell_fits() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "a/b"),
            ("a*c", "abcbc"),
            ("*.jpg", "x/1.jpg"),
            ("?.jpg", "1.jpg"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]x]", "]"),
            ("[a-]", "-"),
            (r"\*", "*"),
            ("**a**", "bab"),
            ("n[01]*_?", "n01440764/n01440764_1"),
        ] {
            assert!(fits(pattern, text), "{pattern} should fit {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("a", ""),
            ("a", "ab"),
            ("*.jpg", "x.jpeg"),
            ("?", ""),
            ("[a-c]x", "dx"),
            ("[!a-c]x", "ax"),
            (r"\*", "a"),
        ] {
            assert!(!fits(pattern, text), "{pattern} should not fit {text}");
        }
        assert!(Glob::parse(b"a[b").is_err() && Glob::parse(b"a\\").is_err());
    }

    /// Matches by the definition of patterns, in time exponential in the number of stars.
    fn model(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| model(rest, &text[skip..])),
            Some((byte, rest)) => text
                .split_first()
                .is_some_and(|(first, text)| (*byte == b'?' || byte == first) && model(rest, text)),
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_its_definition(pattern in "[ab?*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(fits(&pattern, &text), model(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn any_bytes_are_a_pattern_or_are_refused(
            pattern in prop::collection::vec(any::<u8>(), 0..40), text in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            if let Ok(glob) = Glob::parse(&pattern) {
                let _ = glob.fits(&text); // must end without a panic
            }
        }
    }
}
