//! C's structs and Python's classes have the options of the library, by the same names and with the same words.
//! (The command flattens the library's structs.)

use std::fs;
use std::path::Path;

use dlfs::options::{Connect, DEFAULT_EXCHANGE, DEFAULT_GROUP, Peers, Read, Rows, Tokens};

/// The files of the library's structs, and their names, which Python's classes have, too.
const STRUCTS: [(&str, &str); 9] = [
    ("mod", "Connect"),
    ("mod", "Open"),
    ("mod", "Tiers"),
    ("mod", "Peers"),
    ("mod", "Store"),
    ("load", "Read"),
    ("load", "Load"),
    ("load", "Order"),
    ("tokens", "Tokens"),
];

/// The struct of rows of tokens: Python's functions have its options as parameters.
const ROWS: (&str, &str) = ("tokens", "Rows");

/// C's structs.
const C_STRUCTS: [&str; 3] = ["MountOptions", "SequenceOptions", "TokensOptions"];

/// Options that C lacks.
const NOT_IN_C: [&str; 9] = [
    "hostid",
    "tls",
    "spdk_memory",
    "spdk_huge_pages",
    "copy_threads",
    "pin",
    "tokenizer",
    "shards",
    "index",
];

/// Options that are parameters of Python's functions themselves, or are told from the kind of another.
const PARAMETERS: [&str; 6] = ["order", "batch_size", "rank", "world_size", "tiers_file", "node"];

#[test]
fn the_c_structs_have_every_option_under_its_name_with_its_unit() {
    let text = read("tools/capi/src/options.rs");
    let structs = C_STRUCTS.map(|name| fields(&text, name));
    for (name, doc, unit) in library() {
        if NOT_IN_C.contains(&&*name) {
            continue;
        }
        let names = match &*unit {
            "Seconds" => [format!("{name}_ms")],
            "Size" => [format!("{name}_bytes")],
            _ => [name.clone()],
        };
        let told = structs.iter().flatten().filter(|(field, _, _)| names.contains(field));
        let told: Vec<&str> =
            told.map(|(_, told, _)| told.strip_prefix("1: ").unwrap_or(told)).collect();
        let begin = first_clause(&doc);
        let same = |told: &&str| {
            told.get(..begin.len()).is_some_and(|told| told.eq_ignore_ascii_case(begin))
        };
        assert!(told.iter().any(same), "`{name}`: {told:?}, not {begin:?}");
    }
}

#[test]
fn python_s_classes_have_the_names_and_the_words_of_the_library_s_structs() {
    let text = read("tools/python/python/dlfs/_options.py");
    for (file, name) in STRUCTS {
        let begin = text.find(&format!("class {name}(")).expect(name);
        let body = text[begin..].split("\n\n\n").next().unwrap_or_default();
        for (field, doc, _) in of_struct(file, name) {
            if PARAMETERS.contains(&&*field) {
                continue;
            }
            let at =
                body.find(&format!("\n    {field}: ")).unwrap_or_else(|| panic!("no `{field}`"));
            let told = body[at..].split("\"\"\"").nth(1).expect("a docstring");
            assert_eq!(words(told), words(&doc), "`{name}.{field}`");
        }
    }
}

#[test]
fn the_defaults_that_are_told_are_those_of_the_library() {
    let text = read("tools/capi/src/options.rs");
    let structs = C_STRUCTS.map(|name| fields(&text, name));
    let mut told = 0;
    for (name, value) in [
        serde_json::to_value(Connect::default()),
        serde_json::to_value(Read::default()),
        serde_json::to_value(Peers::default()),
        serde_json::to_value(Tokens::default()),
        serde_json::to_value(Rows::default()),
    ]
    .into_iter()
    .flat_map(|value| value.unwrap().as_object().unwrap().clone())
    {
        let Some(value) = value.as_f64() else { continue };
        for (field, doc, _) in structs.iter().flatten() {
            let factor = if *field == format!("{name}_ms") { 1000.0 } else { 1.0 };
            let Some((_, default)) = doc.split_once("default ") else { continue };
            if *field == name || factor != 1.0 {
                let digits = default.chars().filter(|&c| c != ',');
                let digits: String = digits.take_while(char::is_ascii_digit).collect();
                assert_eq!(digits.parse(), Ok(value * factor), "`{field}`: {doc}");
                told += 1;
            }
        }
    }
    assert!(told >= 10, "C tells {told} defaults");
    let library = read("src/options/load.rs");
    assert!(library.contains(&format!("[default: {DEFAULT_GROUP}]")));
    assert!(library.contains(&format!("[default: {DEFAULT_EXCHANGE}]")));
}

/// The options of the library, with their documentation and types.
fn library() -> Vec<(String, String, String)> {
    STRUCTS.iter().chain([&ROWS]).flat_map(|(file, name)| of_struct(file, name)).collect()
}

fn of_struct(file: &str, name: &str) -> Vec<(String, String, String)> {
    fields(&read(&format!("src/options/{file}.rs")), name)
}

/// Up to the first punctuation that ends a thought.
fn first_clause(doc: &str) -> &str {
    let ends = [". ", ": ", "; ", " [", ", "];
    let end = ends.iter().filter_map(|end| doc.find(end)).min().unwrap_or(doc.len());
    doc[..end].trim_end_matches('.')
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// The fields of a struct, each with its doc comment in one line, and its type without `Option`.
fn fields(text: &str, name: &str) -> Vec<(String, String, String)> {
    let begin = text.find(&format!("pub struct {name} {{")).expect(name);
    let body = text[begin..].split("\n}").next().unwrap_or_default();
    let mut told = Vec::new();
    let mut sentences = Vec::new();
    for line in body.lines().skip(1).map(str::trim) {
        if let Some(sentence) = line.strip_prefix("/// ") {
            sentences.push(sentence);
        } else if let Some((field, kind)) =
            line.strip_prefix("pub ").and_then(|line| line.split_once(':'))
        {
            let kind = kind.trim().trim_end_matches(',');
            let kind = kind.strip_prefix("Option<").map_or(kind, |kind| kind.trim_end_matches('>'));
            told.push((field.to_owned(), sentences.join(" "), kind.to_owned()));
            sentences.clear();
        }
    }
    told
}
