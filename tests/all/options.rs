//! C's structs and Python's classes have the options of the library, by the same names and with the same words.
//! (The command flattens the library's structs.)

use std::fs;
use std::path::Path;

/// The files of the library's structs, and their names, which Python's classes have, too.
const STRUCTS: [(&str, &str); 9] = [
    ("mod", "Connect"),
    ("mod", "Open"),
    ("mod", "Tiers"),
    ("mod", "Peers"),
    ("mod", "Store"),
    ("load", "Read"),
    ("load", "Load"),
    ("order", "Order"),
    ("order", "Tokens"),
];

/// Options that C lacks.
const NOT_IN_C: [&str; 5] = ["hostid", "tls", "spdk_memory", "spdk_huge_pages", "copy_threads"];

/// Options that are parameters of Python's functions themselves, or are told from the kind of another.
const PARAMETERS: [&str; 5] = ["order", "batch_size", "rank", "world_size", "tiers_file"];

#[test]
fn the_c_structs_have_every_option_under_its_name_with_its_unit() {
    let text = read("tools/capi/src/options.rs");
    let structs = ["MountOptions", "SequenceOptions"].map(|name| fields(&text, name));
    for (name, doc) in library() {
        if NOT_IN_C.contains(&&*name) {
            continue;
        }
        let names = [name.clone(), format!("{name}_ms"), format!("{name}_bytes")];
        let told = structs.iter().flatten().filter(|(field, _)| names.contains(field));
        let told: Vec<&str> =
            told.map(|(_, told)| told.strip_prefix("1: ").unwrap_or(told)).collect();
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
        for (field, doc) in of_struct(file, name) {
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

/// The options of the library, with their documentation.
fn library() -> Vec<(String, String)> {
    STRUCTS.iter().flat_map(|(file, name)| of_struct(file, name)).collect()
}

fn of_struct(file: &str, name: &str) -> Vec<(String, String)> {
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

/// The fields of a struct, each with its doc comment in one line.
fn fields(text: &str, name: &str) -> Vec<(String, String)> {
    let begin = text.find(&format!("pub struct {name} {{")).expect(name);
    let body = text[begin..].split("\n}").next().unwrap_or_default();
    let mut told = Vec::new();
    let mut sentences = Vec::new();
    for line in body.lines().skip(1).map(str::trim) {
        if let Some(sentence) = line.strip_prefix("/// ") {
            sentences.push(sentence);
        } else if let Some((field, _)) =
            line.strip_prefix("pub ").and_then(|line| line.split_once(':'))
        {
            told.push((field.to_owned(), sentences.join(" ")));
            sentences.clear();
        }
    }
    told
}
