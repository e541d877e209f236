//! The documentation of C and Python agrees with the library's table of shared options. (The command takes
//! its help from that table.)

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use dlfs::dataset::options::{LOADING, OPENING, SharedOption, Value};

/// A front end's documentation of each option: its sentences, and its default if the code has one.
type Told = BTreeMap<String, (String, Option<String>)>;

#[test]
fn the_c_structs_say_what_the_table_says() {
    let text = read("tools/capi/src/options.rs");
    for (options, name) in [(OPENING, "MountOptions"), (LOADING, "SequenceOptions")] {
        let told = c_struct(&text, name);
        for option in options.iter().filter(|option| !option.c.is_empty()) {
            let (sentence, _) = told.get(option.c).unwrap_or_else(|| panic!("no `{}`", option.c));
            check_begin(option, sentence.strip_prefix("1: ").unwrap_or(sentence));
            let default = match option.default {
                Value::Open | Value::Off => continue,
                Value::Number(value) => value.to_string(),
                Value::Fraction(value) => value.to_string(),
                Value::Seconds(value) => format!("{},000", value),
                Value::Bytes(value) => format!("{} MiB", value >> 20),
            };
            let expected = format!("default {default}");
            assert!(sentence.contains(&expected), "`{}`: no {expected:?}: {sentence}", option.c);
        }
    }
}

#[test]
fn python_s_documentation_and_defaults_are_those_of_the_table() {
    let text = read("tools/python/python/dlfs/__init__.py");
    for (options, begin) in [(OPENING, "def open("), (LOADING, "class Loader(")] {
        let told = python_function(&text[text.find(begin).expect(begin)..]);
        for option in options.iter().filter(|option| !option.python.is_empty()) {
            let (sentence, default) =
                told.get(option.python).unwrap_or_else(|| panic!("no `{}`", option.python));
            check_begin(option, sentence);
            let expected = match option.default {
                Value::Open => continue,
                Value::Off => "False".to_owned(),
                Value::Number(value) => value.to_string(),
                Value::Bytes(value) => format!("{} << 20", value >> 20),
                Value::Seconds(value) => format!("{value}.0"),
                Value::Fraction(value) => {
                    assert!(sentence.ends_with(&format!("({value})")), "{sentence}");
                    "None".to_owned()
                }
            };
            assert_eq!(default.as_ref(), Some(&expected), "the default of `{}`", option.python);
        }
    }
}

fn check_begin(option: &SharedOption, sentence: &str) {
    let begin = sentence.get(..option.help.len()).unwrap_or_default();
    let wanted = option.help;
    assert!(begin.eq_ignore_ascii_case(wanted), "{}: {sentence:?}, not {wanted:?}", option.name);
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// The fields of a struct, each with its doc comment in one line.
fn c_struct(text: &str, name: &str) -> Told {
    let begin = text.find(&format!("pub struct {name} {{")).expect(name);
    let body = text[begin..].split("\n}").next().unwrap_or_default();
    let mut told = Told::new();
    let mut sentences = Vec::new();
    for line in body.lines().skip(1).map(str::trim) {
        if let Some(sentence) = line.strip_prefix("/// ") {
            sentences.push(sentence);
        } else if let Some((field, _)) = line.trim_start_matches("pub ").split_once(':') {
            told.insert(field.to_owned(), (sentences.join(" "), None));
            sentences.clear();
        }
    }
    told
}

/// The options that a docstring explains in lines of `name  what it does`, and the defaults of keywords.
fn python_function(text: &str) -> Told {
    let docstring = text.split("\"\"\"").nth(1).expect("a docstring");
    let mut told = Told::new();
    let mut last = String::new();
    for line in docstring.lines().filter_map(|line| line.strip_prefix("    ")) {
        match line.split_once("  ") {
            Some((names, what)) if !names.is_empty() => {
                last = names.split(',').next().unwrap_or(names).to_owned();
                told.insert(last.clone(), (what.trim().to_owned(), None));
            }
            Some(("", more)) => {
                if let Some((what, _)) = told.get_mut(&last) {
                    *what = format!("{what} {}", more.trim());
                }
            }
            _ => last.clear(),
        }
    }
    for line in text.lines().take_while(|line| !line.trim_start().starts_with("return ")) {
        let keyword = line.trim().strip_suffix(',').and_then(|line| line.split_once(" = "));
        let Some((name, value)) = keyword else { continue };
        let name = name.split(':').next().unwrap_or(name);
        if let Some((_, default)) = told.get_mut(name) {
            default.get_or_insert_with(|| value.to_owned());
        }
    }
    told
}
