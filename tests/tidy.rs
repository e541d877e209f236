//! Rules that no compiler checks: who may use whom, what must stay pure, where `unsafe` lives, and that
//! what the documents name exists. Each failure lists every place that breaks the rule.

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/uses.rs"]
mod uses;
#[path = "tidy/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use source::{Source, without_comments_and_strings};

/// Permitted uses inside a crate: the crate's folder, its module, then the modules of the crate that it may
/// name. Which crate may use which, their manifests say.
const LAYERS: &[(&str, &str, &str)] = &[
    ("base", "units", ""),
    ("base", "beneath", ""),
    ("base", "checksum", ""),
    ("base", "percent", ""),
    ("base", "permutation", ""),
    ("base", "nameless_file", ""),
    ("base", "messages", ""),
    ("base", "process", ""),
    ("base", "metrics", ""),
    ("base", "sync", ""),
    ("base", "replace_file", "error"),
    ("base", "error", "units"),
    ("base", "random", "error"),
    ("base", "threads", "error"),
    ("base", "folders", "error"),
    ("base", "registry", "metrics process"),
    ("base", "buf", "error process sync units"),
    ("nvme", "nvme", ""),
    ("nvme", "auth", "nvme"),
    ("nvme", "tcp", "nvme"),
    ("places", "places", ""),
    ("pcie", "pcie", ""),
    ("io", "address", ""),
    ("io", "tls", ""),
    ("io", "spdk", ""),
    ("io", "qpair", "address spdk tls"),
    ("serve", "target", ""),
    ("serve", "keys", ""),
    ("format", "format", ""),
    ("format", "directory", "format"),
    ("format", "posix", "directory format"),
    ("format", "view", "directory format"),
    ("order", "order", ""),
    ("order", "tier", ""),
    ("order", "plan", "order tier"),
    ("tokens", "tokens", ""),
    ("gpu", "gpu", ""),
    ("shards", "shards", ""),
    ("import", "catalog", ""),
    ("import", "import", "catalog"),
    ("cache", "cache", ""),
    ("cache", "peers", ""),
    ("cache", "store", "cache peers"),
    ("", "report", ""),
    ("", "exporter", ""),
    ("", "reader", ""),
    ("", "prefetch", "reader report"),
    ("", "dataset", "prefetch reader report"),
    ("", "options", "dataset prefetch reader"),
];

/// Crates whose root is a module itself: their folder, and the name that the library gives it.
const ROOTS: &[(&str, &str)] = &[
    ("places", "places"),
    ("pcie", "pcie"),
    ("serve", "target"),
    ("tokens", "tokens"),
    ("gpu", "gpu"),
    ("shards", "shards"),
];

/// Circles of modules that stay: folder, modules, reason.
const CIRCLES: &[(&str, &str, &str)] =
    &[("src/io/qpair/session", "backlog shared", "a backlog asks its session, which lets it in")];

/// Modules that only compute: bytes, time and seeds are arguments.
const PURE: &str = "units checksum percent permutation metrics nvme address auth tcp format directory view order \
     plan posix report tier tokens";

/// The same of folders and files in modules that do more.
const PURE_FOLDERS: &str = "src/io/qpair/session/ src/serve/shares.rs src/serve/shares/limits.rs \
     src/pcie/area.rs src/pcie/controller.rs src/pcie/fault.rs src/pcie/queue.rs src/pcie/registers.rs";

/// Modules and names that pure modules may name: memory, errors, and the counters of several threads.
const PURE_MAY_NAME: &str = "buf error sync Error ErrorKind Result";

/// Names that no pure module has.
const IMPURE: &str = "TcpStream TcpListener UdpSocket UnixStream ToSocketAddrs \
     std::fs std::thread std::env std::process std::os::fd \
     Instant::now SystemTime HashMap HashSet RandomState getrandom rustix socket2 libc parking_lot crossbeam";

/// Files and folders in which `unsafe` may be written.
const UNSAFE_HOMES: &str = "src/base/buf/ src/base/process/at_fork.rs \
     src/base/process/id.rs src/base/process/marks.rs \
     src/gpu/driver.rs src/gpu/buffer.rs src/io/spdk/ src/io/qpair/uring src/io/tls/keyring.rs src/io/tls/library.rs \
     src/io/tls/openssl.rs src/pcie/memory.rs src/pcie/vfio/calls.rs vendor/spdk-sys/ tools/capi/ tools/preload/ \
     tools/python/src/dlpack.rs tools/python/src/ffi.rs \
     tests/fake_cuda/ tests/support/counting_alloc.rs tests/support/fork.rs tests/support/keyring.rs";

const MAX_LINES: usize = 900;
const MAX_COLUMNS: usize = 120;

#[test]
fn a_module_uses_only_those_modules_of_its_crate_that_its_row_names() {
    let table: BTreeMap<(&str, &str), &str> =
        LAYERS.iter().map(|&(of, module, allowed)| ((of, module), allowed)).collect();
    let mut unused: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (_, module, allowed) in LAYERS {
        unused.extend(allowed.split_whitespace().map(|used| (*module, used)));
    }
    let mut wrong = Vec::new();
    for source in library() {
        let Some(module) = source.module() else { continue };
        let Some(allowed) = table.get(&(source.crate_folder(), module)) else {
            wrong.push(format!("{}: module `{module}` is not in the layer table", source.path));
            continue;
        };
        for used in source.crate_paths() {
            unused.retain(|edge| *edge != (module, &*used));
            let may = used == module || allowed.split(' ').any(|name| name == used);
            if table.contains_key(&(source.crate_folder(), &*used)) && !may {
                wrong.push(format!("{}: `{module}` uses `{used}`", source.path));
            }
        }
    }
    let unused = unused.into_iter();
    wrong.extend(unused.map(|(module, used)| format!("`{module}` may use `{used}` and does not")));
    assert_none(wrong);
}

/// A crate that is named in vain would be built before, and its change rebuild both.
#[test]
fn a_manifest_names_only_crates_of_ours_that_the_code_uses() {
    let sources = library();
    let mut wrong = Vec::new();
    let mut found = 0;
    for path in files().into_iter().filter(|path| path.starts_with("src/")) {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else { continue };
        let manifest = fs::read_to_string(root().join(&path)).expect("a manifest");
        let (_, named) = manifest.split_once("[dependencies]").expect("its dependencies");
        let named = named.split("[lints]").next().unwrap_or_default();
        for name in named.lines().filter_map(|line| line.strip_suffix(".workspace = true")) {
            found += 1;
            let name = name.replace('-', "_");
            let of_crate =
                sources.iter().filter(|source| source.path.starts_with(&format!("{folder}/")));
            if !of_crate.into_iter().any(|source| contains_path(&source.code, &name)) {
                wrong.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(found > 50, "{found} dependencies");
    assert_none(wrong);
}

#[test]
fn modules_of_one_folder_do_not_name_each_other_in_circles() {
    let sources: Vec<Source> = library().into_iter().filter(|source| !source.is_test).collect();
    let found = uses::circles(&sources);
    let stays: BTreeSet<(String, String)> =
        CIRCLES.iter().map(|(folder, modules, _)| ((*folder).into(), (*modules).into())).collect();
    let new = found.difference(&stays).map(|(folder, modules)| format!("{folder}: {modules}"));
    let gone = stays.difference(&found).map(|(folder, _)| format!("{folder}: no such circle"));
    assert_none(new.chain(gone).collect());
}

#[test]
fn pure_modules_have_no_socket_file_thread_clock_environment_or_random_number() {
    let mut wrong = Vec::new();
    for source in library().into_iter().filter(|source| !source.is_test) {
        let in_folder = PURE_FOLDERS.split(' ').any(|pure| source.path.starts_with(pure));
        let is_pure = |module: &str| PURE.split(' ').any(|pure| pure == module);
        if in_folder || source.module().is_some_and(is_pure) {
            let code = source.without_tests();
            let named = source.module().into_iter().filter(|module| is_pure(module));
            let others = named.flat_map(|_| source.library_paths());
            let others = others
                .filter(|name| !is_pure(name) && !PURE_MAY_NAME.split(' ').any(|may| may == name));
            wrong.extend(others.map(|name| format!("{}: `{name}`", source.path)));
            let found = IMPURE.split_whitespace().filter(|word| contains_path(&code, word));
            wrong.extend(found.map(|word| format!("{}: `{word}`", source.path)));
        }
    }
    assert_none(wrong);
}

/// Two machines that rounded differently would look for a copy at different addresses.
#[test]
fn plans_are_made_of_integers() {
    let mut wrong = Vec::new();
    let mut files = 0;
    for source in library() {
        if source.is_test || !source.path.starts_with("src/order/plan/") {
            continue;
        }
        files += 1;
        let code = source.without_tests();
        let found = ["f32", "f64"].into_iter().filter(|word| contains_path(&code, word));
        wrong.extend(found.map(|word| format!("{}: `{word}`", source.path)));
    }
    assert!(files > 4, "{files} files of plans");
    assert_none(wrong);
}

#[test]
fn unsafe_code_stays_in_its_homes() {
    let mut wrong = Vec::new();
    for source in rust_files() {
        let at_home = UNSAFE_HOMES.split_whitespace().any(|home| source.path.starts_with(home));
        if !at_home && contains_path(&source.code, "unsafe") {
            wrong.push(source.path);
        }
    }
    assert_none(wrong);
}

#[test]
fn every_file_is_reached_by_a_mod() {
    let files: BTreeSet<String> = rust_files().into_iter().map(|source| source.path).collect();
    let reached: BTreeSet<String> = reached_files().into_keys().collect();
    let mut wrong: Vec<String> =
        files.difference(&reached).map(|path| format!("{path}: no `mod`")).collect();
    wrong.extend(reached.difference(&files).map(|path| format!("{path}: a `mod` without a file")));
    assert_none(wrong);
}

#[test]
fn every_file_says_first_what_it_is_and_none_grows_too_long_or_too_wide() {
    let mut wrong = Vec::new();
    for source in rust_files() {
        let told = source.text.starts_with("//! ") || source.text.starts_with("#!");
        if !told && !source.path.ends_with("/tests.rs") {
            wrong.push(format!("{}: does not begin with a `//!` sentence", source.path));
        }
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{}: {lines} lines, more than {MAX_LINES}", source.path));
        }
        for (number, line) in (1..).zip(source.text.lines()) {
            if line.chars().count() > MAX_COLUMNS {
                wrong.push(format!("{}:{number}: wider than {MAX_COLUMNS} columns", source.path));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn comments_begin_with_what_the_thing_is_and_no_pair_is_made_to_be_taken_apart() {
    let mut wrong = Vec::new();
    for source in rust_files() {
        for line in words::vague_comments(&source.text) {
            wrong.push(format!("{}:{line}: begin with a noun phrase or a verb", source.path));
        }
        for line in words::needless_pairs(&source.code) {
            wrong.push(format!("{}:{line}: write two lets", source.path));
        }
    }
    assert_none(wrong);
}

#[test]
fn no_unfinished_marks_and_no_paths_of_one_machine_remain() {
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("allow(dead", "_code)"),
        concat!("../", "shared"),
        concat!("/", "work/"),
    ];
    let mut wrong = Vec::new();
    for path in text_files() {
        let text = fs::read_to_string(root().join(&path)).expect("a text file");
        for (number, line) in (1..).zip(text.lines()) {
            let found = words.iter().filter(|word| line.contains(*word));
            wrong.extend(found.map(|word| format!("{path}:{number}: {word}")));
        }
    }
    assert_none(wrong);
}

#[test]
fn production_code_unwraps_nothing_without_a_reason() {
    let mut wrong = Vec::new();
    for source in rust_files().into_iter().filter(|source| !source.is_test) {
        if source.text.contains(concat!("expect(", "\"\")")) {
            wrong.push(format!("{}: expects without a reason", source.path));
        }
        let ours = source.path.starts_with("src/") || source.path.starts_with("tools/");
        let code = source.without_tests();
        for (number, line) in (1..).zip(code.lines()).filter(|_| ours) {
            if line.contains(".unwrap()") {
                wrong.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    assert_none(wrong);
}

/// A device around another one that made its own would lose the scope.
#[test]
fn every_queue_pair_belongs_to_a_scope() {
    let own = |source: &Source| source.code.contains(concat!("fn queue_pair", "(&self) -> "));
    let found: Vec<String> = rust_files().into_iter().filter(own).map(|s| s.path).collect();
    assert_eq!(found, ["src/io/qpair/device.rs"]);
}

#[test]
fn every_package_has_the_lints_of_the_workspace() {
    let packages = files().into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let without = packages.filter(|path| {
        let text = fs::read_to_string(root().join(path)).expect("a manifest");
        !text.contains("[lints]\nworkspace = true")
    });
    assert_none(without.collect());
}

/// Verification can be switched off in a build with the feature `unverified`, to show what it costs.
#[test]
fn only_a_bench_can_be_built_without_verification() {
    let word = concat!("unveri", "fied");
    let mut wrong = Vec::new();
    for path in files() {
        let text = fs::read_to_string(root().join(&path)).unwrap_or_default();
        let may_name_it = path.starts_with("benches/") || path.starts_with("src/reader/");
        let builds = path.ends_with(".toml") || path.starts_with("tools/") || path == ".ci/run";
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.contains(word)) {
            let declares = path == "Cargo.toml" && line.starts_with(&format!("{word} = []"));
            if builds && !declares {
                wrong.push(format!("{path}:{number}: a build without verification"));
            }
            if path.starts_with("src/") && !may_name_it {
                wrong.push(format!("{path}:{number}: only the reader verifies"));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn the_path_of_a_batch_names_functions_that_exist() {
    let page = fs::read_to_string(root().join("src/reader/mod.rs")).expect("the page of `reader`");
    let steps: Vec<Vec<&str>> = (page.lines().filter_map(|line| line.strip_prefix("//! ")))
        .map(|line| line.split_whitespace().collect())
        .filter(|words: &Vec<&str>| words.first().is_some_and(|word| word.parse::<u32>().is_ok()))
        .collect();
    assert!((8..=12).contains(&steps.len()), "{} steps", steps.len());
    let mut wrong = Vec::new();
    for step in steps {
        let file = format!("src/{}", step[1]);
        let name = step[2];
        let text = fs::read_to_string(root().join(&file)).unwrap_or_default();
        let function = name.rsplit("::").next().unwrap_or(name);
        if ![format!("fn {function}("), format!("fn {function}<")].iter().any(|f| text.contains(f))
        {
            wrong.push(format!("step {}: no `{name}` in {file}", step[0]));
        }
    }
    assert_none(wrong);
}

/// A thread that is started and not in the table is one whose death nobody has thought of.
#[test]
fn every_thread_is_in_the_table_of_threads_and_the_tests_there_exist() {
    let table = fs::read_to_string(root().join("tests/threads.md")).expect("tests/threads.md");
    let names: Vec<&str> = table.split('`').skip(1).step_by(2).collect();
    let mut wrong = Vec::new();
    let mut found = 0;
    for source in library().into_iter().filter(|source| !source.is_test) {
        let code = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for quoted in code.split('"').skip(1).step_by(2) {
            let name = quoted.trim_start_matches("the thread ");
            let name = name.replace("{index}", "N").replace("{number}", "N");
            let is_letter = |c: char| c.is_ascii_lowercase() || c == '-' || c == 'N';
            let rest = name.strip_prefix("dlfs-").unwrap_or_default();
            if !rest.is_empty() && rest.chars().all(is_letter) {
                found += 1;
                let known = names.contains(&&*name);
                wrong.extend((!known).then(|| format!("{}: `{name}` is not there", source.path)));
            }
        }
    }
    assert!(found > 12, "{found} names of threads");
    for test in names.iter().filter(|name| name.contains("::") && name.contains('/')) {
        let (file, name) = test.rsplit_once("::").expect("it has one");
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        if ![format!("fn {name}("), format!("def {name}(")].iter().any(|test| text.contains(test)) {
            wrong.push(format!("`{test}` does not exist"));
        }
    }
    assert_none(wrong);
}

#[test]
fn every_feature_row_names_a_test_that_exists_or_says_why_not() {
    let rows = fs::read_to_string(root().join("tests/rows.md")).expect("tests/rows.md");
    let letters =
        [('D', 14), ('E', 12), ('N', 14), ('M', 11), ('P', 10), ('X', 8), ('V', 3), ('W', 4)];
    let of_letter =
        |(letter, last): (char, u32)| (1..=last).map(move |row| format!("{letter}{row}"));
    let wanted =
        letters.into_iter().flat_map(of_letter).chain(["E17", "M12", "P12"].map(str::to_owned));
    let mut wrong = Vec::new();
    for row in wanted {
        let Some(line) = rows.lines().find(|line| line.starts_with(&format!("| {row} |"))) else {
            wrong.push(format!("{row} has no row"));
            continue;
        };
        let tests: Vec<&str> =
            line.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect();
        if tests.is_empty() {
            wrong.push(format!("{row} names no test"));
        }
        for test in tests {
            let (file, name) = test.rsplit_once("::").expect("it has one");
            let text = fs::read_to_string(root().join(file)).unwrap_or_default();
            if !["fn", "def"].iter().any(|word| text.contains(&format!("{word} {name}("))) {
                wrong.push(format!("{row}: `{test}` does not exist"));
            }
        }
    }
    assert_none(wrong);
}

fn assert_none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{} places:\n  {}", wrong.len(), wrong.join("\n  "));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the project, relative to its root; nothing that is built, found by a fuzzer, or hidden, but
/// `.ci`.
fn files() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let hidden = name.starts_with('.') && name != ".ci";
            let places = ["target", "tests/fuzz/target", "tests/fuzz/corpus"];
            let built = places.contains(&&*relative(&path)) || name == "__pycache__";
            if hidden || built {
                continue;
            }
            match entry.file_type().expect("its type") {
                kind if kind.is_dir() => folders.push(path),
                kind if kind.is_file() => found.push(relative(&path)),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("inside the project").to_string_lossy().into_owned()
}

fn text_files() -> Vec<String> {
    let text = [".rs", ".md", ".toml", ".py", ".sh", ".txt", ".h", ".c", "run", "check", "init"];
    let mut files = files();
    files.retain(|path| text.iter().any(|end| path.ends_with(end)));
    files
}

fn rust_files() -> Vec<Source> {
    let reached = reached_files();
    let paths = files().into_iter().filter(|path| path.ends_with(".rs"));
    let read = paths.map(|path| {
        let in_tests = path.starts_with("tests/") || path.contains("/tests/");
        let is_test = in_tests || reached.get(&path).copied().unwrap_or(false);
        Source::read(&root(), path, is_test)
    });
    read.collect()
}

fn library() -> Vec<Source> {
    let mut sources = rust_files();
    sources.retain(|source| source.path.starts_with("src/"));
    sources
}

/// Files that are part of a crate, and whether only its tests have them.
fn reached_files() -> BTreeMap<String, bool> {
    let is_root = |path: &str| {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        name == "build.rs"
            || ["lib.rs", "main.rs"].contains(&name)
            || ["tests", "benches", "examples", "bin"]
                .contains(&folder.rsplit('/').next().unwrap_or(folder))
    };
    let all = files();
    let roots = all.iter().filter(|path| path.ends_with(".rs") && is_root(path));
    let mut queue: Vec<(String, bool)> = roots.map(|path| (path.clone(), false)).collect();
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    while let Some((path, is_test)) = queue.pop() {
        if reached.get(&path).is_some_and(|&known| !known || is_test) {
            continue;
        }
        let text = fs::read_to_string(root().join(&path)).unwrap_or_default();
        reached.insert(path.clone(), is_test);
        for (file, test_only) in source::modules(&path, &text, is_root(&path), &all) {
            queue.push((file, is_test || test_only));
        }
    }
    reached
}

#[test]
fn options_that_messages_of_the_library_name_are_those_of_the_command() {
    let promised = fs::read_to_string(root().join("tests/promised/command.txt")).expect("a list");
    let mut known = options_in(&promised);
    known.extend(OTHERS_OPTIONS.split_whitespace());
    let mut unknown = Vec::new();
    for source in library().iter().filter(|source| !source.is_test) {
        let lines = source.text.lines().enumerate().take_while(|(_, line)| *line != "mod tests {");
        for (at, line) in lines.filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let named = options_in(line).into_iter().filter(|option| !known.contains(option));
            unknown.extend(named.map(|option| format!("{}:{}: --{option}", source.path, at + 1)));
        }
    }
    assert!(unknown.is_empty(), "no command has:\n{}", unknown.join("\n"));
}

/// Options of other programs that the library names.
const OTHERS_OPTIONS: &str = "features format in-memory insert log-level sparse";

/// The long options in a text, without those whose name goes on in braces.
fn options_in(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    let found = text.match_indices("--").filter_map(|(at, _)| {
        let name = &text[at + 2..];
        let end = name.find(|letter| !is_part(letter)).unwrap_or(name.len());
        let before = |letter: char| letter.is_alphanumeric() || letter == '-';
        let is_whole = !text[..at].ends_with(before) && !name[..end].ends_with('-');
        Some(&name[..end]).filter(|name| is_whole && name.starts_with(|letter| letter != '-'))
    });
    found.collect()
}

/// Returns whether `code` has `word`, not as a part of a longer name.
fn contains_path(code: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].chars().next_back().is_some_and(is_name)
            && !code[at + word.len()..].chars().next().is_some_and(is_name)
    })
}

#[test]
fn the_scanner_takes_comments_and_strings_away_and_nothing_else() {
    let source =
        "a /* b /* c */ d */ e // f\n\"g \\\" h\" r#\"i \" j\"# 'k' '\\'' b'\\\\' fn l<'m>() {}";
    let code = without_comments_and_strings(source);
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "e", "\"\"", "r#\"\"#", "''", "''", "b''", "fn", "l<'m>()", "{}"]);
    assert_eq!(code.lines().count(), source.lines().count());
}
