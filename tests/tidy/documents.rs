//! Checks of the documents: links have targets, figures are in results, tables match the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{assert_none, files, root};

#[path = "../../benches/support/results.rs"]
mod results;

/// Documents whose blocks run: shell in `tools/cli/tests/all/documents.rs`, Python in
/// `tools/python/tests/test_documents.py`, and Rust as documentation of `src/lib.rs`.
const RUN: &[&str] = &[
    "README.md",
    "docs/tutorial.md",
    "docs/training.md",
    "docs/operations.md",
    "docs/performance.md",
    "docs/install.md",
];

/// Documents in which every figure is in results that its paragraph links.
const WITH_FIGURES: &[&str] = &["README.md", "docs/performance.md"];

const README_LINES: usize = 150;

#[test]
fn every_link_and_anchor_leads_somewhere() {
    let mut wrong = Vec::new();
    let mut found = 0;
    for document in documents() {
        for (number, target) in links(&read(&document)) {
            found += 1;
            if let Some(why) = broken(&document, &target) {
                wrong.push(format!("{document}:{number}: ({target}) {why}"));
            }
        }
    }
    assert!(found > 50, "{found} links");
    assert_none(wrong);
}

#[test]
fn links_that_lead_nowhere_are_found() {
    let text = "[a](docs/design.md#dictionary) `[no](code)`\n```sh\n[no](code)\n```\n![b](x.svg) [c](#top)";
    let targets: Vec<String> = links(text).into_iter().map(|(_, target)| target).collect();
    assert_eq!(targets, ["docs/design.md#dictionary", "x.svg", "#top"]);
    assert!(broken("README.md", "docs/design.md#dictionary").is_none());
    assert!(broken("docs/design.md", "training.md").is_none());
    for target in ["docs/design.md#no-such-heading", "#no-such-heading", "docs/absent.md"] {
        assert!(broken("README.md", target).is_some(), "{target}");
    }
    assert_eq!(slug("What `dlfs read` is, and why"), "what-dlfs-read-is-and-why");
}

#[test]
fn the_documents_name_files_that_exist() {
    let mut wrong = Vec::new();
    for document in documents().into_iter().filter(|document| is_manual(document)) {
        for name in read(&document).split('`').skip(1).step_by(2) {
            let path = name.split("::").next().unwrap_or(name).trim_end_matches('/');
            let folders =
                ["src/", "tests/", "tools/", "benches/", "docs/", "examples/", "vendor/", ".ci/"];
            let is_path =
                folders.iter().any(|folder| path.starts_with(folder)) && !path.contains(' ');
            if is_path && !path.contains('*') && !root().join(path).exists() {
                wrong.push(format!("{document}: `{name}`"));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn the_readme_is_short_and_the_book_has_every_page() {
    let lines = read("README.md").lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines, more than {README_LINES}");
    let linked: BTreeSet<String> =
        links(&read("docs/SUMMARY.md")).into_iter().map(|(_, target)| target).collect();
    let pages =
        documents().into_iter().filter_map(|path| path.strip_prefix("docs/").map(str::to_owned));
    let wrong = pages.filter(|page| page != "SUMMARY.md" && !linked.contains(page));
    assert_none(wrong.map(|page| format!("docs/SUMMARY.md has no {page}")).collect());
}

/// A figure without its source is a claim: a reader must find its command, machine and commit.
#[test]
fn every_figure_stands_in_the_results_that_its_paragraph_links() {
    let mut wrong = Vec::new();
    let mut found = 0;
    for document in WITH_FIGURES {
        let folder = Path::new(document).parent().unwrap_or(Path::new(""));
        for paragraph in paragraphs(&read(document)) {
            let linked: Vec<String> = links(&paragraph)
                .into_iter()
                .filter(|(_, target)| {
                    target.contains("benches/results/") && target.ends_with(".md")
                })
                .map(|(_, target)| read(&normal(&folder.join(target))))
                .collect();
            let figures = figures(&paragraph, !linked.is_empty());
            found += figures.len();
            for figure in figures {
                if !linked.iter().any(|results| has_number(results, &figure)) {
                    let begin: String = paragraph.chars().take(60).collect();
                    wrong.push(format!("{document}: {figure} in \"{begin}...\""));
                }
            }
        }
    }
    assert!(found > 20, "{found} figures");
    assert_none(wrong);
}

#[test]
fn figures_are_told_from_other_numbers() {
    assert_eq!(figures("It reads 385 k/s of 4 KiB at depth 32.", false), ["385"]);
    assert_eq!(figures("A timeout of 5 s, and chunks of 4 MiB.", false), Vec::<String>::new());
    assert_eq!(figures("443,567 and 0.67 of 4 KiB in 8 lanes", true), ["443,567", "0.67"]);
    assert!(has_number("| a | 391,396 |", "391,396") && !has_number("1,391,396", "391,396"));
    assert!(!has_number("0.678", "0.67") && has_number("0.67.", "0.67"));
}

#[test]
fn the_pictures_are_what_their_scripts_draw() {
    check_made("benches/picture");
    check_made("docs/concepts.py");
}

/// A line that is gone or differs breaks programs of users: `docs/promises.md` says what that means for the version.
/// `tools/check` compares what the command promises, too.
#[test]
fn what_programs_may_rely_on_is_what_the_lists_of_promises_say() {
    check_made("tests/promised/lists.py");
}

/// Runs a script that compares what it makes with what is there.
fn check_made(script: &str) {
    match Command::new("python3").arg(root().join(script)).arg("--check").output() {
        Err(_) => println!("SKIPPED: python3 is not installed"),
        Ok(output) => {
            let stdout = String::from_utf8_lossy(&output.stdout);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{script}: {stdout}{stderr}");
        }
    }
}

/// Packages take the version of the workspace, and tell it by `CARGO_PKG_VERSION`: the command, the Python package,
/// libdlfs. What names it besides has the same one.
#[test]
fn the_version_is_the_same_everywhere() {
    let manifest = read("Cargo.toml");
    let (_, rest) = manifest.split_once("[workspace.package]\nversion = \"").expect("it has one");
    let (version, _) = rest.split_once('"').expect("its end");
    let (minor, _) = version.rsplit_once('.').expect("three numbers");
    let (major, _) = minor.split_once('.').expect("three numbers");
    let mut wrong = Vec::new();
    let own = ["tests/fuzz/", "tests/loom/", "vendor/"]; // never released
    for path in files().into_iter().filter(|path| path.ends_with("Cargo.toml")) {
        let is_released = !own.iter().any(|folder| path.starts_with(folder));
        if is_released && !read(&path).contains("\nversion.workspace = true\n") {
            wrong.push(format!("{path}: not the version of the workspace"));
        }
    }
    let dependencies = manifest.lines().filter(|line| line.contains("{ path = \"src/"));
    let others = dependencies.filter(|line| !line.contains(&format!("version = \"{version}\"")));
    wrong.extend(others.map(|line| format!("Cargo.toml: {line}")));
    for (path, text) in [
        ("CHANGELOG.md", format!("\n## {version}\n")),
        ("SECURITY.md", format!("\n| {minor} | yes")),
        ("docs/promises.md", format!("{minor}.")),
        ("tools/capi/dlfs.pc", format!("\nVersion: {version}\n")),
        ("tools/capi/dlfs.map", format!("\nDLFS_{minor} {{\n")),
        ("tools/capi/install", format!("\nSONAME = \"libdlfs.so.{major}\"\n")),
        ("tools/capi/build.rs", format!("-soname,libdlfs.so.{major}\"")),
        ("tools/capi/src/error.rs", "env!(\"CARGO_PKG_VERSION\")".to_owned()),
        ("tools/cli/src/commands/mod.rs", "env!(\"CARGO_PKG_VERSION\")".to_owned()),
        ("tools/python/src/lib.rs", "\"__version__\", env!(\"CARGO_PKG_VERSION\")".to_owned()),
        ("tools/python/pyproject.toml", "\ndynamic = [\"version\"]\n".to_owned()), // Cargo.toml's
    ] {
        if !read(path).contains(&text) {
            wrong.push(format!("{path} has no {text:?}"));
        }
    }
    assert_none(wrong);
}

/// Byte tables are beside the structs, and also in the page for those who decode an image by hand.
#[test]
fn the_page_of_the_format_has_the_byte_tables_of_the_code() {
    let page = read("docs/format.md");
    let mut sources: Vec<String> = files()
        .into_iter()
        .filter(|path| path.starts_with("src/format/format/") && path.ends_with(".rs"))
        .collect();
    sources.extend(
        [
            "src/format/directory/columns.rs",
            "src/import/import/block.rs",
            "src/import/import/lease.rs",
            "src/order/tier/index.rs",
        ]
        .map(str::to_owned),
    );
    let mut wrong = Vec::new();
    let mut rows = 0;
    for source in sources {
        let mut in_table = false;
        for line in read(&source).lines() {
            let row = line.trim().strip_prefix("/// ").filter(|row| row.starts_with('|'));
            in_table = row.is_some_and(|row| in_table || row.starts_with("| bytes"));
            if let Some(row) = row.filter(|_| in_table) {
                rows += 1;
                if !page.contains(row) {
                    wrong.push(format!("{source}: {row}"));
                }
            }
        }
    }
    assert!(rows > 100, "{rows} rows");
    assert_none(wrong);
}

/// Every command is run by a test, or says why it is not.
#[test]
fn every_block_of_code_runs_or_says_why_not() {
    let mut wrong = Vec::new();
    for document in documents().into_iter().filter(|document| is_manual(document)) {
        let text = read(&document);
        let mut before = "";
        let mut inside = false;
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(language) = line.strip_prefix("```") {
                let begins = !inside;
                inside = !inside;
                let known =
                    ["sh", "python", "rust", "c", "text", "toml", "svg"].contains(&language);
                let is_command = ["sh", "python"].contains(&language);
                let excused = before.starts_with("<!-- not run: ") && before.ends_with(" -->");
                if begins && !known {
                    wrong.push(format!("{document}:{number}: a block of '{language}'"));
                } else if begins && is_command && !excused && !RUN.contains(&&*document) {
                    wrong.push(format!("{document}:{number}: no test runs this block"));
                }
            }
            before = line;
        }
    }
    assert_none(wrong);
    for document in RUN {
        let has_python = read(document).contains("```python\n");
        for runner in ["tools/cli/tests/all/documents.rs", "tools/python/tests/test_documents.py"] {
            let runs = read(runner).contains(&format!("\"{document}\""));
            assert!(
                runs || runner.ends_with(".py") && !has_python,
                "{runner} does not run {document}"
            );
        }
    }
}

#[test]
fn a_new_result_comes_before_older_ones() {
    let printed = ["4 KiB", "| a | b |", "|---|---|", "done"].map(str::to_owned);
    let added = results::section(
        "2026-11-22, commit abc",
        "cargo bench --bench x",
        "A, 2 processors",
        &printed,
    );
    assert_eq!(
        added,
        "## 2026-11-22, commit abc\n\n    cargo bench --bench x\n\nMachine: A, 2 processors.\n\n\
         ```text\n4 KiB\n```\n\n| a | b |\n|---|---|\n\n```text\ndone\n```\n"
    );
    let old = "# x\n\nNewest first.\n\n## 2026-01-01, commit def\n\nold\n";
    let both = results::insert(old, &added);
    assert!(both.starts_with("# x\n\nNewest first.\n\n## 2026-11-22, commit abc\n"), "{both}");
    assert!(both.ends_with("done\n```\n\n## 2026-01-01, commit def\n\nold\n"), "{both}");
    assert_eq!(
        results::insert("# x\n\nNewest first.\n", "## a\n"),
        "# x\n\nNewest first.\n\n## a\n"
    );
}

fn documents() -> Vec<String> {
    files().into_iter().filter(|path| path.ends_with(".md")).collect()
}

/// Pages for users and contributors; READMEs of tools have tests of their own.
fn is_manual(document: &str) -> bool {
    !document.contains('/') && document != "CHANGELOG.md"
        || document.starts_with("docs/")
        || ["tests/rows.md", "tests/threads.md", "benches/README.md"].contains(&document)
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Targets of links outside of code, with the number of their line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        inside ^= line.trim_start().starts_with("```");
        if inside {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect();
        for (at, _) in prose.match_indices("](") {
            let target = prose[at + 2..].split(')').next().unwrap_or_default();
            found.push((number, target.to_owned()));
        }
    }
    found
}

/// Why `target` in `document` leads nowhere.
fn broken(document: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None; // external links are not checked
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let path = if path.is_empty() { document.to_owned() } else { normal(&folder.join(path)) };
    if !root().join(&path).exists() {
        return Some("does not exist".to_owned());
    }
    let anchor = anchor?;
    let mut inside = false;
    let has_it = read(&path).lines().any(|line| {
        inside ^= line.starts_with("```");
        !inside && line.starts_with('#') && slug(line.trim_start_matches('#').trim()) == anchor
    });
    (!has_it).then(|| format!("{path} has no such heading"))
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.to_str().expect("paths of the tree are text").split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Paragraphs, list items and tables, outside of code.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut inside = false;
    for line in text.lines() {
        inside ^= line.starts_with("```");
        if line.is_empty() || line.starts_with("- ") || line.starts_with("```") {
            found.push(String::new());
        }
        if !inside && !line.starts_with("```") {
            let last = found.last_mut().expect("it begins with one");
            last.push_str(line);
            last.push(' ');
        }
    }
    found.retain(|paragraph| {
        !paragraph.trim().is_empty()
            && !paragraph.contains("settings, not figures")
            && !paragraph.contains("<!-- made by ") // from results, as tools/check tests
    });
    found
}

/// Measured numbers: those with a unit of speed or time, and, in a paragraph that links results,
/// all that do not count something else (`4 KiB`, `depth 32`).
fn figures(paragraph: &str, has_results: bool) -> Vec<String> {
    const RATES: &[&str] = &[
        "samples/s",
        "k/s",
        "GB/s",
        "MB/s",
        "s/GB",
        "ns",
        "us",
        "µs",
        "ms",
        "bytes a sample",
        "times",
        "%",
    ];
    let prose: String = paragraph.split('`').step_by(2).collect();
    let is_digit = |c: char| c.is_ascii_digit();
    let mut found = Vec::new();
    let mut rest = &prose[..];
    let mut before = ' ';
    while let Some(at) = rest.find(is_digit) {
        let previous = rest[..at].chars().next_back().unwrap_or(before);
        let len =
            rest[at..].find(|c| !is_digit(c) && c != ',' && c != '.').unwrap_or(rest.len() - at);
        let number = rest[at..at + len].trim_end_matches([',', '.']);
        let after = rest[at + number.len()..].trim_start();
        let measured = RATES.iter().any(|unit| {
            after.strip_prefix(unit).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        });
        let precise = number.contains(['.', ',']);
        if !previous.is_alphanumeric() && (measured || has_results && precise) {
            found.push(number.to_owned());
        }
        before = '0';
        rest = &rest[at + number.len()..];
    }
    found
}

/// Returns whether `text` contains `number`, not as part of a longer one.
fn has_number(text: &str, number: &str) -> bool {
    let digit_at = |at: Option<char>| at.is_some_and(|c| c.is_ascii_digit());
    text.match_indices(number).any(|(at, _)| {
        let front = &text[..at];
        let back = &text[at + number.len()..];
        let joined = |text: &str, first: Option<char>, second: Option<char>| {
            !text.is_empty()
                && (digit_at(first) || [Some(','), Some('.')].contains(&first) && digit_at(second))
        };
        let mut left = front.chars().rev();
        let mut right = back.chars();
        !joined(front, left.next(), left.next()) && !joined(back, right.next(), right.next())
    })
}
