//! Texts of rows: each document has the tokens that its tokenizer gives the text, whatever the threads, and wherever
//! the import was interrupted. What is no text, and what another tokenizer made, is refused by name.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::import_support::disk::Disks;
use crate::import_support::{Random, contents, options};
use crate::support::alone::again;
use dlfs::address::Address;
use dlfs::dataset::{Dataset, Image, OpenOptions, TokenOptions};
use dlfs::import::{
    ImportOptions, ImportReport, OnError, Onto, RowOptions, import as import_to, import_onto,
    tokenizer_in,
};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::{self, ConnectOptions, Device};
use dlfs::reader::ReaderOptions;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

type Samples = BTreeMap<String, Vec<u8>>;

/// A tokenizer of whole words, with these numbers. Alone it would cut, fill up and surround texts.
fn words(vocab: &Value) -> Value {
    let end = json!({"id": "<end>", "ids": [0], "tokens": ["<end>"]});
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<end>",
        },
        "added_tokens": [{
            "id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<end>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<end>": end},
        },
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    })
}

/// A tokenizer of bytes and a few merges, as GPT-2's.
fn bytes(dropout: Option<f64>) -> Value {
    let printed: Vec<u32> = (33..=126).chain(161..=172).chain(174..=255).collect();
    let others = (256..).take(256 - printed.len());
    let letters = printed.iter().copied().chain(others).map(|code| char::from_u32(code).unwrap());
    let mut vocab: Vec<String> = letters.map(String::from).collect();
    let merges = ["h e", "l l", "he ll", "hell o", "\u{120} w", "Ã ¤", "1 2"];
    vocab.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let vocab: serde_json::Map<String, Value> =
        vocab.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let end = json!({
        "id": vocab.len(), "content": "<end>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true,
    });
    let level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end],
        "normalizer": {"type": "NFC"}, "pre_tokenizer": level, "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": dropout, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "vocab": vocab, "merges": merges,
        },
    })
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn tokenizer(&self, name: &str, parts: &Value) -> PathBuf {
        self.put(name, parts.to_string())
    }

    fn lines(&self, name: &str, texts: &[String]) -> PathBuf {
        self.put(name, lines(texts))
    }
}

fn lines(texts: &[String]) -> String {
    texts.iter().map(|text| json!({"n": 7, "text": text}).to_string() + "\n").collect()
}

/// A few words, some of them unknown, with the numbers of a tokenizer of [`words`].
fn three_words() -> Value {
    json!({"<unk>": 1, "a": 2, "b": 3, "ä": 4})
}

fn encoding(tokenizer: &Path, onto: Onto) -> ImportOptions {
    let rows = RowOptions { tokenizer: Some(tokenizer.to_path_buf()), ..RowOptions::default() };
    ImportOptions { rows, ..options(onto) }
}

fn samples(devices: &[Arc<dyn Device>]) -> Samples {
    let all = contents(devices).unwrap().into_iter();
    all.map(|(name, bytes)| (String::from_utf8(name).unwrap(), bytes)).collect()
}

fn import(source: &Path, options: &ImportOptions) -> (Disks, ImportReport) {
    let disks = Disks::new(1, 32 << 20);
    let report = import_onto(&[source.to_path_buf()], &disks.devices(), options, &mut ());
    (disks, report.unwrap_or_else(|error| panic!("{}", error.report())))
}

/// Checks that an import fails with all these words.
fn refused(source: &Path, options: &ImportOptions, words: &[&str]) {
    let disks = Disks::new(1, 32 << 20);
    told(import_onto(&[source.to_path_buf()], &disks.devices(), options, &mut ()), words);
}

fn told<T>(result: dlfs::Result<T>, words: &[&str]) {
    let told = result.map(drop).unwrap_err().report();
    for word in words {
        assert!(told.contains(word), "{word:?} is not in {told}");
    }
}

fn u16s(tokens: impl IntoIterator<Item = u16>) -> Vec<u8> {
    tokens.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// Texts of all kinds: empty, of blanks, of several alphabets, and long.
fn texts(random: &mut Random, count: usize) -> Vec<String> {
    const PARTS: &[&str] = &[
        "hello",
        " world",
        "a",
        " ",
        "  \n",
        "ä",
        "a\u{308}",
        "𝄞",
        "日本",
        "<end>",
        "'ll",
        "12345",
        "\u{0}",
        "\"\\",
        "\t",
        "العربية",
        "\u{a0}",
    ];
    let mut texts = vec![String::new(), " ".into(), "\n\n \n".into(), "hello ".repeat(3000)];
    texts.resize_with(count, || {
        (0..random.below(40)).map(|_| PARTS[random.below(PARTS.len())]).collect()
    });
    texts
}

#[test]
fn texts_become_the_tokens_that_the_tokenizer_gives_them() {
    let folder = Folder::new();
    let mut random = Random::new(41);
    let texts = texts(&mut random, 300);
    let plain = folder.lines("a.jsonl", &texts);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&fs::read(&plain).unwrap()).unwrap();
    let packed = folder.put("a.jsonl.gz", packed.finish().unwrap());
    for (name, parts) in [("words", words(&three_words())), ("bytes", bytes(None))] {
        let path = folder.tokenizer(name, &parts);
        let mut tokenizer = Tokenizer::from_file(&path).unwrap();
        tokenizer.with_truncation(None).unwrap().with_padding(None);
        let tokens = |text: &String| {
            let ids = tokenizer.encode(text.as_str(), false).unwrap().get_ids().to_vec();
            u16s(ids.into_iter().map(|id| id as u16))
        };
        let expected: Vec<Vec<u8>> = texts.iter().map(tokens).collect();
        assert!(expected[0].is_empty() && expected[3].len() >= 2 * 3000, "{name}");
        for (source, threads) in [(&plain, 1), (&plain, 3), (&packed, 2)] {
            let options = ImportOptions { reader_threads: threads, ..encoding(&path, Onto::Empty) };
            let (disks, report) = import(source, &options);
            let found = samples(&disks.devices());
            assert_eq!(found.len(), texts.len());
            let stem = source.file_name().unwrap().to_str().unwrap();
            for (at, expected) in expected.iter().enumerate() {
                assert!(found[&format!("{stem}/{at}")] == *expected, "{name}: {:?}", texts[at]);
            }
            let made_by = tokenizer_in(&path).unwrap();
            let [(field, kind)] = &report.field_types[..] else { panic!("{report:?}") };
            assert_eq!((&field[..], kind.tokenizer()), (&b"tok"[..], Some(&made_by)));
            assert_eq!(kind.to_string(), format!("u16[*];{made_by}"));
        }
    }
}

#[test]
fn a_tokenizer_of_many_tokens_makes_u32() {
    let folder = Folder::new();
    let vocab = json!({"<unk>": 1, "a": 65_536, "b": 65_535});
    let path = folder.tokenizer("t.json", &words(&vocab));
    assert_eq!(tokenizer_in(&path).unwrap().vocabulary, 65_537);
    let source = folder.lines("a.jsonl", &["a b c".into()]);
    let (disks, report) = import(&source, &encoding(&path, Onto::Empty));
    assert!(report.field_types[0].1.to_string().starts_with("u32[*];vocabulary=65537;tokenizer="));
    let expected = [65_536u32, 65_535, 1].map(u32::to_le_bytes).concat();
    assert_eq!(samples(&disks.devices())["a.jsonl/0"], expected);
    // A token fewer, and they are u16; a type that is given counts.
    let path = folder.tokenizer("t.json", &words(&json!({"<unk>": 1, "b": 65_535})));
    let (_, report) = import(&source, &encoding(&path, Onto::Empty));
    assert!(report.field_types[0].1.to_string().starts_with("u16[*];vocabulary=65536;"));
    let field_types = vec!["tok:i32[*]".parse().unwrap()];
    let typed = ImportOptions { field_types, ..encoding(&path, Onto::Empty) };
    assert!(import(&source, &typed).1.field_types[0].1.to_string().starts_with("i32[*];"));
}

#[test]
fn other_columns_come_along_only_if_they_are_named() {
    let folder = Folder::new();
    let path = folder.tokenizer("t.json", &words(&three_words()));
    let line = |id: &str, lang: &str, body: &str| {
        json!({"tok": [9], "id": id, "lang": lang, "body": body, "text": 5, "url": "u"}).to_string()
    };
    let source = folder.put("a.jsonl", [line("x", "fr", "a b"), line("y", "de", "ä")].join("\n"));
    let mut options = encoding(&path, Onto::Empty);
    options.rows.text = Some("body".into());
    options.rows.name = Some("id".into());
    options.rows.label = Some("lang".into());
    let (disks, _) = import(&source, &options);
    let found = samples(&disks.devices());
    assert_eq!(found, [("x".to_owned(), u16s([2, 3])), ("y".to_owned(), u16s([4]))].into());
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    let directory = image.directory();
    assert_eq!(directory.classes(), [b"de".to_vec(), b"fr".to_vec()]);
    assert_eq!(directory.fields(), [b"tok".to_vec()]);
    options.rows.fields = vec!["url".into()];
    let (disks, _) = import(&source, &options);
    let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
    assert_eq!(image.directory().fields(), [b"tok".to_vec(), b"url".to_vec()]);
}

#[test]
fn rows_without_a_text_are_refused_and_may_be_left_out() {
    let folder = Folder::new();
    let path = folder.tokenizer("t.json", &words(&three_words()));
    let source = folder.put(
        "a.jsonl",
        "{\"text\": \"a\"}\n{\"text\": 5}\n{\"text\": null}\n{\"other\": 1}\n{\"text\": \"\\ud800\"}\n\
         {\"text\": \"b\"\n{\"text\": [\"a\"]}\n{\"text\": NaN}\n[1]\n{\"text\": \"b\"}\n",
    );
    let all = &[
        "8 entries",
        "a.jsonl/1: field text is no text, but 5",
        "a.jsonl/2: field text is not in this row",
        "a.jsonl/3: field text is not in this row",
        "a.jsonl/4: the line is no JSON object",
        "a.jsonl/5: the line is no JSON object",
        "a.jsonl/6: field text is no text, but another list",
        "a.jsonl/7: field text is no text, but NaN",
        "a.jsonl/8: the line is no JSON object",
    ];
    refused(&source, &encoding(&path, Onto::Empty), all);
    let skip = ImportOptions { on_error: OnError::Skip, ..encoding(&path, Onto::Empty) };
    let (disks, report) = import(&source, &skip);
    assert_eq!(report.bad.len(), 8);
    let expected = [("a.jsonl/0".to_owned(), u16s([2])), ("a.jsonl/9".to_owned(), u16s([3]))];
    assert_eq!(samples(&disks.devices()), expected.into());
    let blank = folder.lines("blank.jsonl", &[" ".repeat(500_001)]);
    refused(&blank, &encoding(&path, Onto::Empty), &["field text has more than 500000 blanks"]);
}

#[test]
fn what_does_not_encode_texts_is_refused_before_anything_is_written() {
    let folder = Folder::new();
    let source = folder.lines("a.jsonl", &["a".into()]);
    let good = folder.tokenizer("good.json", &words(&three_words()));
    let try_file = |bytes: &str, words: &[&str]| {
        let path = folder.put("bad.json", bytes);
        refused(&source, &encoding(&path, Onto::Empty), &[&["bad.json"], words].concat());
    };
    try_file("", &["no vocabulary", "tokenizer.json"]);
    try_file("{\"model\": {\"vocab\": {}}}", &["no tokens"]);
    try_file("{\"model\": {\"vocab\": {\"a\": 1}}}", &["cannot be read"]);
    try_file(&bytes(Some(0.1)).to_string(), &["dropout"]);
    refused(&source, &encoding(&folder.0.path().join("none"), Onto::Empty), &["none"]);
    let with = |rows: RowOptions| {
        let tokenizer = Some(good.clone());
        ImportOptions { rows: RowOptions { tokenizer, ..rows }, ..options(Onto::Empty) }
    };
    let text = |text: &str| RowOptions { text: Some(text.into()), ..RowOptions::default() };
    refused(&source, &with(text("body")), &["no column body", "text", "--text-field"]);
    refused(&source, &with(text("n")), &["column n has i64, not texts"]);
    let alone = ImportOptions { rows: text("text"), ..options(Onto::Empty) };
    refused(&source, &alone, &["--text-field needs --tokenizer"]);
    let files = RowOptions { files: Some("text".into()), ..RowOptions::default() };
    refused(&source, &with(files), &["name no files"]);
    let field_types = vec!["tok:f32[*]".parse().unwrap()];
    let typed = ImportOptions { field_types, ..encoding(&good, Onto::Empty) };
    refused(&source, &typed, &["f32[*] has no tokenizer"]);
    let class = folder.0.path().join("tree/class");
    fs::create_dir_all(&class).unwrap();
    fs::write(class.join("a.png"), b"\x89PNG").unwrap();
    refused(&folder.0.path().join("tree"), &encoding(&good, Onto::Empty), &["--tokenizer"]);
}

#[test]
fn an_image_takes_tokens_of_one_tokenizer_and_loaders_check_it() {
    let folder = Folder::new();
    let one = folder.tokenizer("one.json", &words(&three_words()));
    let other = folder.tokenizer("other.json", &words(&json!({"<unk>": 1, "a": 2, "b": 3})));
    let hashes = [&one, &other].map(|path| tokenizer_in(path).unwrap().hash());
    let both = [&*hashes[0], &*hashes[1]];
    let first = folder.lines("a.jsonl", &["a b".into(), "b".into()]);
    let second = folder.lines("b.jsonl", &["ä".into()]);
    let (disks, _) = import(&first, &encoding(&one, Onto::Empty));
    let append = |source: &PathBuf, tokenizer: &Path| {
        let options = encoding(tokenizer, Onto::Append);
        import_onto(std::slice::from_ref(source), &disks.devices(), &options, &mut ())
    };
    told(append(&second, &other), &[&both[..], &["another tokenizer", "other.json"]].concat());
    append(&second, &one).unwrap();
    assert_eq!(samples(&disks.devices())["b.jsonl/0"], u16s([4]));

    // Documents of tokens are checked against its vocabulary, also if only the image names it.
    let raw = |name: &str, tokens: &[u32]| {
        folder.put(name, tokens.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>())
    };
    let rows = |tokenizer: Option<&Path>| RowOptions {
        tokens: dlfs::format::field_type::Element::named("i32"),
        end_of_document: Some(0),
        tokenizer: tokenizer.map(Path::to_path_buf),
        ..RowOptions::default()
    };
    let raw_options =
        |tokenizer: Option<&Path>, onto| ImportOptions { rows: rows(tokenizer), ..options(onto) };
    let good = raw("good.bin", &[4, 2, 0, 3]);
    let bad = raw("bad.bin", &[4, 5]);
    let negative = raw("negative.bin", &[u32::MAX]);
    for (source, token) in
        [(&bad, "has token 5, and its tokenizer has 5 tokens"), (&negative, "does not hold -1")]
    {
        for (tokenizer, onto) in [(Some(&*one), Onto::Empty), (None, Onto::Append)] {
            let devices = if onto == Onto::Empty {
                Disks::new(1, 8 << 20)
            } else {
                Disks::holding(&disks.contents())
            };
            let options = raw_options(tokenizer, onto);
            let result =
                import_onto(std::slice::from_ref(source), &devices.devices(), &options, &mut ());
            told(result, &["/0: field tok", token]);
        }
    }
    let options = raw_options(None, Onto::Append);
    import_onto(std::slice::from_ref(&good), &disks.devices(), &options, &mut ()).unwrap();
    assert_eq!(samples(&disks.devices())["good.bin/0"], u16s([4, 2]));
    let (plain, report) = import(&good, &raw_options(Some(&one), Onto::Empty));
    assert!(report.field_types[0].1.to_string().ends_with(&hashes[0]), "{report:?}");
    let text = ImportOptions {
        rows: RowOptions { text: Some("t".into()), ..rows(Some(&one)) },
        ..options.clone()
    };
    refused(&good, &ImportOptions { onto: Onto::Empty, ..text }, &["no text is encoded", "tokens"]);
    let (unnamed, _) = import(&good, &raw_options(None, Onto::Empty));
    let result = import_onto(
        std::slice::from_ref(&bad),
        &unnamed.devices(),
        &raw_options(Some(&one), Onto::Append),
        &mut (),
    );
    told(result, &["does not say which tokenizer", &hashes[0]]);

    let dataset = |disks: &Disks| {
        let image = Image::from_devices(disks.devices(), &OpenOptions::default()).unwrap();
        Dataset::from_image(image, ReaderOptions::default())
    };
    let run = || {
        let kind = OrderKind::Sequential { by: SequentialBy::Slot };
        LoaderOptions::new(OrderSpec { kind, seed: 5 }, 1, 1)
    };
    let checked = |tokenizer: &Path| TokenOptions {
        tokenizer: Some(tokenizer.to_path_buf()),
        ..TokenOptions::new(1, 1)
    };
    for disks in [&disks, &plain] {
        let dataset = dataset(disks);
        dataset.token_loader(checked(&one), run()).unwrap();
        told(dataset.token_loader(checked(&other), run()), &[&both[..], &["other.json"]].concat());
        let smaller =
            |vocabulary| TokenOptions { vocabulary: Some(vocabulary), ..TokenOptions::new(1, 1) };
        told(dataset.token_loader(smaller(4), run()), &["has 4 tokens", "made them 5"]);
        dataset.token_loader(smaller(6), run()).unwrap();
    }
    told(dataset(&unnamed).token_loader(checked(&one), run()), &["does not say", &hashes[0]]);
    mixtures_have_one_tokenizer(
        &dataset(&disks),
        &dataset(&import(&first, &encoding(&other, Onto::Empty)).0),
        &both,
    );
}

fn mixtures_have_one_tokenizer(one: &Dataset, other: &Dataset, words: &[&str]) {
    use dlfs::dataset::Mixture;
    use dlfs::order::mixture::{Batching, Part};
    let part = |dataset: &Dataset| (dataset.clone(), Part::Weight("0.5".parse().unwrap()));
    let kind = OrderKind::Sequential { by: SequentialBy::Slot };
    let run = LoaderOptions::new(OrderSpec { kind, seed: 5 }, 1, 1);
    let parts = vec![part(one), part(other)];
    let mixture = Mixture::new(parts, None, Batching::Stratified, Vec::new()).unwrap();
    told(mixture.token_loader(TokenOptions::new(1, 1), run), words);
}

/// Environment variable that tells a child process of this test what to import.
const CHILD: &str = "DLFS_TEST_TEXTS";

fn run(folder: &Path, image: &Path, onto: Onto) -> dlfs::Result<ImportReport> {
    let options = ImportOptions { reader_threads: 2, ..encoding(&folder.join("t.json"), onto) };
    let sources = [folder.join("a.jsonl")];
    let image = [Address::from_path(image)];
    import_to(&sources, &image, &options, &ConnectOptions::default(), &mut ())
}

/// Not a test of its own: the child's work.
#[test]
fn child_encodes_what_it_is_told() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let folder = PathBuf::from(folder);
    run(&folder, &folder.join("killed.dlfs"), Onto::Empty).unwrap();
}

#[test]
fn an_import_of_texts_that_was_killed_resumes_to_the_same_bytes() {
    let folder = Folder::new();
    let dir = folder.0.path();
    let mut random = Random::new(43);
    folder.lines("a.jsonl", &texts(&mut random, 2000));
    folder.tokenizer("t.json", &bytes(None));
    let whole = dir.join("whole.dlfs");
    run(dir, &whole, Onto::Empty).unwrap();
    let expected = fs::read(&whole).unwrap();
    let image = dir.join("killed.dlfs");
    let mut child = again(child_encodes_what_it_is_told);
    child.env(CHILD, dir).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let began = Instant::now();
    assert!(child.spawn().unwrap().wait().unwrap().success());
    let whole = began.elapsed();
    let mut killed = 0;
    for round in 0..8 {
        let _ = fs::remove_file(&image); // the first rounds may be killed before there is one
        let mut running = child.spawn().unwrap();
        std::thread::sleep(whole * (round + 4) / 14 + Duration::from_millis(round.into()));
        killed += u32::from(running.try_wait().unwrap().is_none());
        running.kill().unwrap();
        running.wait().unwrap();
        let resumed = run(dir, &image, Onto::Resume);
        // It was complete before it was killed.
        let is_over =
            resumed.as_ref().is_err_and(|error| error.kind() == dlfs::ErrorKind::NotFound);
        assert!(is_over || resumed.is_ok(), "round {round}: {resumed:?}");
        assert!(fs::read(&image).unwrap() == expected, "round {round}: other bytes");
    }
    println!("{killed} of 8 were running when they were killed");
    let device = qpair::open(&Address::from_path(&image), &ConnectOptions::default()).unwrap();
    assert_eq!(samples(&[device]).len(), 2000);
}

#[cfg(feature = "cloud")]
mod in_a_store {
    use super::*;
    use crate::support::interrupted::{Case, all};
    use dlfs::import::PlacementOrder;
    use dlfs::import::sources::SourceKind;

    const DOCUMENTS: u64 = 250;

    /// A line with a short text and 80,000 other bytes.
    fn line(file: u64, at: u64) -> String {
        let text: String =
            (0..at % 40).map(|nth| if (nth + file) % 7 < 3 { "a " } else { "b " }).collect();
        json!({"text": text, "blob": at.to_string().repeat(80_000 / at.to_string().len())})
            .to_string()
    }

    #[test]
    fn an_import_of_texts_goes_on_where_it_was() {
        let folder = Folder::new();
        let tokenizer = folder.tokenizer("t.json", &words(&three_words()));
        let lines = |file| (0..DOCUMENTS).map(|at| line(file, at)).collect::<Vec<_>>().join("\n");
        let files: Vec<_> =
            (0..2).map(|file| (format!("{file}.jsonl"), lines(file).into_bytes())).collect();
        let mut case = Case::new(SourceKind::JsonLines, PlacementOrder::Source, &files);
        case.more = Box::new(move |options| {
            options.rows.tokenizer = Some(tokenizer.clone());
            options.rows.fields = vec!["blob".to_owned()];
            options.reader_threads = 2;
        });
        let (expected, image) = case.whole();
        assert_eq!(expected.samples, 2 * DOCUMENTS, "{:?}", expected.bad);
        for after in [330, 450] {
            let devices = case.interrupted(after);
            let report = case.import(&devices, Onto::Resume, u64::MAX).unwrap();
            assert!(all(&devices) == image, "after {after}: another image");
            let expected = (expected.samples, &expected.field_types);
            assert_eq!((report.samples, &report.field_types), expected);
            assert!(report.chunks_found > 0, "after {after}");
            // The survey reads up to 16 MiB of each file again. A point is noted every 16 MiB, and some chunks are not
            // written when the import stops.
            let asked: u64 = case.watched.asked().values().sum();
            let left = 80_000 * (2 * DOCUMENTS - (after - 240));
            assert!(asked < left + (36 << 20), "after {after}: {asked} of {left}");
        }
    }
}
