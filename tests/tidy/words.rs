//! How comments begin, and pairs that are made only to be taken apart.

/// Words that a reader must finish a sentence behind to learn what the thing is.
const VAGUE: [&str; 9] =
    ["What", "Who", "Whose", "Whom", "That", "Of", "Whether", "Where", "Which"];

/// Lines, counted from 1, where a comment begins with a vague word.
pub(crate) fn vague_comments(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut before = None;
    for (number, line) in (1..).zip(text.lines()) {
        let comment = comment_of(line);
        if let Some((kind, words)) = comment
            && before != Some(kind)
            && VAGUE.contains(&words.split([' ', ',']).next().unwrap_or_default())
        {
            found.push(number);
        }
        before = comment.map(|(kind, _)| kind);
    }
    found
}

/// The marker and the words of a comment that has its line to itself.
fn comment_of(line: &str) -> Option<(&'static str, &str)> {
    ["///", "//!", "//"]
        .into_iter()
        .find_map(|kind| line.trim_start().strip_prefix(kind).map(|words| (kind, words.trim())))
}

/// Lines, counted from 1, of `let (a, b) = (x, y);`: two lets would say the same in order.
pub(crate) fn needless_pairs(code: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("let (") {
        let after_pattern = after_brackets(&code[at + 4..]).trim_start();
        let Some(value) = after_pattern.strip_prefix("= (") else { continue };
        let ended = after_brackets(&after_pattern[2..]);
        if ended.starts_with(';') && value.contains(',') {
            found.push(code[..at].matches('\n').count() + 1);
        }
    }
    found
}

/// The text behind the brackets that it begins with.
fn after_brackets(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return &text[at + 1..];
        }
    }
    ""
}

#[test]
fn vague_beginnings_and_needless_pairs_are_found() {
    let text = "/// What it is.\n///\n/// Which goes on.\n\n// Whatever.\n\n// Whether, or not.\n";
    assert_eq!(vague_comments(text), [1, 7]);
    let code = "let (a, b) = (f(x), [y, z]);\nlet (c, d) = pair;\nlet (e, f) = (g, h)?;\nlet (i,\n j) = (1, 2);";
    assert_eq!(needless_pairs(code), [1, 4]);
}
