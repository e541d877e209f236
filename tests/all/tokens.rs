//! Rows of tokens: each row has the tokens that a small model of the definition puts there, whatever the order, the
//! ranks, the batch size and the point of a resume; wrong fields, documents and states are refused by name.

pub mod model;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::images::{Image, Sample};
use crate::support::random::Random;
use dlfs::address::Address;
use dlfs::dataset::{
    Dataset, LongDocuments, Mixture, Options, Sampler, TokenBatch, TokenLoader, TokenOptions,
    TokenPhase,
};
use dlfs::format::columns::{ColumnSpec, ColumnTable, ColumnType, Value};
use dlfs::format::fields::{put_table, record_len};
use dlfs::format::{FieldTypes, Pack as Packing};
use dlfs::order::budget::Pack;
use dlfs::order::mixture::{Batching, Part};
use dlfs::order::weighted::{Draws, Weights};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, State};
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::OnError;
use dlfs::tokens::{Arrays, Columns, TokensMut};
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind, Result};
use model::{Cell, ContextParallel, Place, Rows, cells};

const GROUPED: OrderKind = OrderKind::Grouped { lanes: 2, group: 2 };
const BY_SLOT: OrderKind = OrderKind::Sequential { by: SequentialBy::Slot };

/// Documents of one source, and their image in a file.
pub struct Corpus {
    pub dataset: Dataset,
    pub documents: Vec<Doc>,
    pub _folder: tempfile::TempDir,
}

#[derive(Debug, Clone, Default)]
pub struct Doc {
    pub tokens: Vec<i64>,
    pub loss: Vec<u8>,
}

/// The way in which documents are stored.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The type of a token, such as `u16`.
    pub element: &'static str,
    /// The field of tokens has this name and its type; otherwise the image says neither.
    pub field: Option<&'static str>,
    pub has_loss: bool,
}

impl Corpus {
    pub fn new(stored: &Stored, documents: Vec<Doc>) -> Corpus {
        let samples = documents.iter().enumerate().map(|(id, document)| Sample {
            name: format!("{id:04}").into(),
            label: None,
            record: record(stored, document),
        });
        let mut image = Image::unique(1, Packing::Aligned);
        let kind = |text: String| Some(text.parse().unwrap());
        let mut fields = Vec::new();
        if let Some(name) = stored.field {
            fields.push(name);
            image.field_types = FieldTypes::new(vec![kind(format!("{}[*]", stored.element))]);
        }
        if stored.has_loss {
            fields.push("loss");
            let tokens = image.field_types.of(0).cloned();
            image.field_types = FieldTypes::new(vec![tokens, kind("u8[*]".into())]);
        }
        let spec = ColumnSpec { name: "count".into(), kind: ColumnType::Int };
        image.values = ColumnTable::new(&[spec]);
        for document in &documents {
            image.values.push(|_| Value::Int(document.tokens.len() as i64));
        }
        let samples: Vec<Sample> = samples.collect();
        image.add(&samples, 3, samples.len() as u64, &fields);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("corpus.dlfs");
        fs::write(&path, &image.namespaces[0]).unwrap();
        let address = [Address::from_path(path)];
        let dataset = Dataset::open(&address, &Options::default(), &mut ()).unwrap();
        Corpus { dataset, documents, _folder: folder }
    }

    /// A corpus of `u16` in a field `tok`, of documents with these tokens.
    pub fn of(documents: &[&[i64]]) -> Corpus {
        Corpus::new(&TYPED, documents.iter().map(|tokens| doc(tokens)).collect())
    }

    /// The error of a loader.
    fn refused(&self, rows: TokenOptions, run: LoaderOptions) -> Error {
        self.dataset.token_loader(rows, run).map(drop).unwrap_err()
    }
}

pub fn doc(tokens: &[i64]) -> Doc {
    Doc { tokens: tokens.to_vec(), loss: vec![1; tokens.len()] }
}

fn record(stored: &Stored, document: &Doc) -> Vec<u8> {
    let width = match stored.element {
        "u8" => 1,
        "u16" => 2,
        _ => 4,
    };
    let tokens = document.tokens.iter().flat_map(|token| token.to_le_bytes()[..width].to_vec());
    let tokens: Vec<u8> = tokens.collect();
    if !stored.has_loss {
        return tokens;
    }
    let lens = [Some(tokens.len() as u64), Some(document.loss.len() as u64)];
    let mut record = vec![0; record_len(&lens).unwrap() as usize];
    let ranges = put_table(&lens, &mut record);
    record[ranges[0].clone()].copy_from_slice(&tokens);
    record[ranges[1].clone()].copy_from_slice(&document.loss);
    record
}

/// A data set, a view of it or a mixture, and the documents of each source.
pub enum Over {
    One(Dataset),
    Mixed(Mixture),
}

impl Over {
    pub fn loader(&self, rows: &TokenOptions, run: LoaderOptions) -> Result<TokenLoader> {
        match self {
            Over::One(dataset) => dataset.token_loader(rows.clone(), run),
            Over::Mixed(mixture) => mixture.token_loader(rows.clone(), run),
        }
    }

    /// Source and id at each position of each epoch, by a sampler that knows no rows.
    pub fn positions(&self, run: &LoaderOptions) -> Vec<Vec<(u32, u64)>> {
        let run = LoaderOptions { batch_size: 1, ..run.clone() };
        let mut sampler = match self {
            Over::One(dataset) => Sampler::new(dataset, run.clone()).unwrap(),
            Over::Mixed(mixture) => mixture.sampler(run.clone()).unwrap(),
        };
        let mut epochs = vec![Vec::new(); run.epochs.end as usize];
        let mut ids = Vec::new();
        let mut epoch = 0;
        while let Some(ends) = sampler.next(&mut ids).unwrap() {
            let source = sampler.sources().first().copied().unwrap_or(0);
            epochs[epoch].push((source, ids[0].0));
            epoch += usize::from(ends);
        }
        epochs
    }
}

/// Fills the arrays of a batch, with tokens of a type by `dtype`; also compares cu_seqlens with segment ids.
pub fn filled(batch: &TokenBatch, of: &Columns, dtype: u64) -> Result<Vec<Cell>> {
    let columns = &batch.columns(of)?;
    let len = batch.num_rows() * columns.width();
    let is_all = columns.width() == columns.seq_len() as usize + 1;
    let mut narrow = vec![9; len];
    let mut unsigned = vec![9; len];
    let mut signed = vec![9; len];
    let mut wide = vec![9; len];
    let mut segment_ids = vec![9; len];
    let mut position_ids = vec![9; len];
    let mut loss_mask = vec![9; len];
    let mut sample_ids = vec![9; len];
    let mut starts = vec![9];
    let mut arrays = Arrays {
        tokens: match dtype {
            0 => TokensMut::U16(&mut narrow),
            1 => TokensMut::U32(&mut unsigned),
            2 => TokensMut::I32(&mut signed),
            _ => TokensMut::I64(&mut wide),
        },
        segment_ids: Some(&mut segment_ids),
        position_ids: Some(&mut position_ids),
        loss_mask: Some(&mut loss_mask),
        cu_seqlens: is_all.then_some(&mut starts),
        sample_ids: Some(&mut sample_ids),
    };
    batch.fill(of, &mut arrays)?;
    if is_all {
        let width = columns.width();
        let inputs: Vec<(usize, i32)> = (0..len)
            .filter(|at| at % width < width - 1)
            .map(|at| (at / width, segment_ids[at]))
            .collect();
        let changes = (1..inputs.len()).filter(|&at| inputs[at] != inputs[at - 1]);
        let right: Vec<i32> =
            [0].into_iter().chain(changes).chain([inputs.len()]).map(|at| at as i32).collect();
        assert_eq!(starts, right);
        let longest = right.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert_eq!(Some(batch.max_seqlen() as i32), longest);
    }
    let token = |at: usize| match dtype {
        0 => narrow[at].into(),
        1 => unsigned[at].into(),
        2 => signed[at].into(),
        _ => wide[at],
    };
    let cell = |at: usize| Cell {
        token: token(at),
        segment: segment_ids[at].into(),
        position: position_ids[at].into(),
        loss: loss_mask[at].into(),
        sample: sample_ids[at],
    };
    Ok((0..len).map(cell).collect())
}

/// A random case: the data, the options, and the rows of each epoch by the model.
struct Case {
    over: Over,
    rows: TokenOptions,
    run: LoaderOptions,
    epochs: Vec<(Rows, Vec<Vec<Cell>>)>,
    _corpora: Vec<Corpus>,
}

impl Case {
    /// `is_long`: rows of 8,192 tokens.
    fn new(random: &mut Random, is_long: bool) -> Case {
        let has_loss = random.one_in(3);
        let field = (has_loss || random.one_in(2)).then_some("tok");
        let element = ["u8", "u16", "u16", "u32", "i32"][random.below(5) as usize];
        let stored = Stored { element, field, has_loss };
        let longest = if is_long { 20_000 } else { [8, 60, 900][random.below(3) as usize] };
        let sources = if random.one_in(20) { 16 } else { [1, 1, 3][random.below(3) as usize] };
        let most = if element == "u8" { 250 } else { 32_000 };
        let number = if is_long { 12 } else { 60 };
        let corpora: Vec<Corpus> = (0..sources)
            .map(|_| {
                let documents =
                    (0..1 + random.below(number)).map(|_| document(random, longest, most));
                Corpus::new(&stored, documents.collect())
            })
            .collect();
        let any_len = |random: &mut Random| {
            if is_long { 8192 } else { 2 + random.below(longest.min(511)) as u32 }
        };
        let mut rows = TokenOptions::new(any_len(random), 1);
        rows.pack = [Pack::Concat, Pack::BestFit, Pack::None][random.below(3) as usize];
        rows.window = 1 + random.below(40) as u32;
        rows.separator = random.one_in(2).then_some(249);
        rows.field = match field {
            None => Some(element.into()),
            Some(name) => random.one_in(2).then(|| name.into()),
        };
        rows.lengths = random.one_in(4).then(|| "count".into());
        rows.loss_field = (has_loss && !random.one_in(4)).then(|| "loss".into());
        if has_loss && rows.loss_field.is_none() {
            rows.field = Some("tok".into()); // else either field could have tokens
        }
        rows.vocabulary = random.one_in(2).then_some(most as u32);
        rows.pad = random.below(5) as u32;
        let mut from = 0;
        for _ in 0..[0, 0, 1, 3][random.below(4) as usize] {
            from += 1 + random.below(8 * longest);
            let seq_len = any_len(random) / [1, 2][random.below(2) as usize];
            rows.phases.push(TokenPhase { from, seq_len, batch_size: None });
        }
        let kind = [OrderKind::Global, GROUPED, BY_SLOT][random.below(3) as usize];
        let order = OrderSpec { kind, seed: random.next_u64() };
        let mut run = LoaderOptions::new(order, 1, EPOCHS);
        let over = if sources == 1 {
            let dataset = &corpora[0].dataset;
            if random.one_in(3) {
                let each: Vec<f64> =
                    (0..dataset.len()).map(|_| 0.5 + random.below(9) as f64).collect();
                let weights = Weights::of_samples(dataset.len(), &each, Draws::default()).unwrap();
                run = run.weighted(Arc::new(weights));
                Over::One(dataset.clone())
            } else if random.one_in(3) {
                let text = format!("id >= {}", random.below(dataset.len()));
                Over::One(dataset.select(&text, &mut ()).unwrap())
            } else {
                Over::One(dataset.clone())
            }
        } else {
            let parts = corpora.iter().zip(["2", "5", "3"].iter().cycle());
            let parts = parts
                .map(|(it, weight)| (it.dataset.clone(), Part::Weight(weight.parse().unwrap())));
            let size = Some(1 + random.below(120));
            let batching = Batching::Stratified;
            match Mixture::new(parts.clone().collect(), size, batching, Vec::new()) {
                Ok(mixture) => Over::Mixed(mixture),
                Err(_) => Over::Mixed(
                    // an epoch so short has nothing of some source
                    Mixture::new(parts.collect(), None, batching, Vec::new()).unwrap(),
                ),
            }
        };
        let positions = over.positions(&run);
        let epochs = (0..).zip(&positions).map(|(epoch, positions)| {
            let documents: Vec<Place<'_>> = positions
                .iter()
                .map(|&(source, id)| (source, id, &corpora[source as usize].documents[id as usize]))
                .collect();
            let lens: Vec<usize> = documents.iter().map(|place| place.2.tokens.len()).collect();
            let of_epoch = Rows::new(&rows, (run.order.seed, epoch), &lens);
            let of_each = of_epoch.segments.iter();
            let cells = of_each.map(|segments| cells(&rows, segments, &documents)).collect();
            (of_epoch, cells)
        });
        let epochs = epochs.collect();
        Case { over, rows, run, epochs, _corpora: corpora }
    }

    /// The number of rows of the epoch that has the fewest.
    fn fewest(&self) -> usize {
        self.epochs.iter().map(|(rows, _)| rows.segments.len()).min().unwrap()
    }

    /// Some number of ranks, and of rows a batch in each phase, of which each epoch has a whole global batch.
    fn any_sizes(&self, random: &mut Random) -> (u32, Vec<u32>) {
        let fewest = self.fewest() as u64;
        loop {
            let most = if random.one_in(8) { 64 } else { 8 };
            let ranks = 1 + random.below(fewest.min(most)) as u32;
            let most = (fewest / u64::from(ranks)).min(5);
            let phases = self.rows.phases.len() + 1;
            let sizes: Vec<u32> = (0..phases).map(|_| 1 + random.below(most) as u32).collect();
            let has_batch =
                |(rows, _): &(Rows, _)| rows.batch_from(0, ranks as usize, &sizes).is_some();
            if self.epochs.iter().all(has_batch) {
                return (ranks, sizes);
            }
        }
    }

    /// Reads up to `most` global batches of `ranks` ranks, with `sizes` rows of each in each phase, from `state` on,
    /// and compares them.
    fn read(
        &self,
        random: &mut Random,
        (ranks, sizes): (u32, &[u32]),
        state: Option<State>,
        most: u64,
    ) -> State {
        let mut rows = TokenOptions { batch_size: sizes[0], ..self.rows.clone() };
        for (phase, size) in rows.phases.iter_mut().zip(&sizes[1..]) {
            phase.batch_size = Some(*size).filter(|size| *size != sizes[0]);
        }
        let next_from = |(epoch, from): (usize, usize)| {
            let of_epoch = |epoch: usize, from| {
                let (rows, _) = &self.epochs[epoch];
                Some((epoch, rows.batch_from(from, ranks as usize, sizes)?))
            };
            let mut later = (epoch..EPOCHS as usize).skip(1);
            let first = (epoch < EPOCHS as usize).then(|| of_epoch(epoch, from)).flatten();
            first.or_else(|| later.find_map(|epoch| of_epoch(epoch, 0)))
        };
        let begun = state
            .as_ref()
            .map_or((0, 0), |state| (state.epoch.0 as usize, state.consumed as usize));
        let mut states = Vec::new();
        for rank in 0..ranks {
            let run = LoaderOptions {
                rank,
                world_size: ranks,
                resume: state.clone(),
                ..self.run.clone()
            };
            let loader = self.over.loader(&rows, run).unwrap();
            let cp = ContextParallel::any(random, &rows);
            let columns = cp.columns(rows.seq_len as usize);
            let mut batch = TokenBatch::new();
            let mut next = next_from(begun);
            for _ in 0..most {
                let has_next = loader.next(&mut batch, &mut ()).unwrap();
                assert_eq!(has_next, next.is_some());
                let Some((epoch, (global, of_rank))) = next else { break };
                let (of_epoch, cells) = &self.epochs[epoch];
                let len = *of_epoch.lens[global.clone()].iter().max().unwrap();
                let chunks = cp.chunks(len);
                let first = global.start + rank as usize * of_rank;
                let pad =
                    Cell { token: rows.pad.into(), segment: 0, position: 0, loss: 0, sample: -1 };
                let mut right = Vec::new();
                for row in &cells[first..first + of_rank] {
                    let cell = |at: usize| row.get(at).unwrap_or(&pad).clone();
                    right.extend(chunks.iter().cloned().flatten().map(cell));
                }
                let filled = filled(&batch, &columns, random.below(4)).unwrap();
                assert!(filled == right, "rows from {first} on of epoch {epoch}");
                assert_eq!(batch.samples().epoch().0, epoch as u64);
                let following = next_from((epoch, global.end));
                let is_last = following.as_ref().is_none_or(|next| next.0 != epoch);
                assert_eq!(batch.samples().ends_epoch(), is_last);
                let after = loader.loader().state();
                let place = match &following {
                    Some((_, (global, _))) if !is_last => (epoch, global.start),
                    _ => (epoch + 1, 0),
                };
                assert_eq!((after.epoch.0 as usize, after.consumed as usize), place);
                assert_eq!(after.place.is_some(), !is_last);
                next = following;
            }
            states.push(loader.loader().state());
        }
        assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
        states.swap_remove(0)
    }
}

fn document(random: &mut Random, longest: u64, most: u64) -> Doc {
    let len = if random.one_in(8) { 0 } else { random.below(longest + 1) };
    let tokens = (0..len).map(|_| random.below(most) as i64).collect();
    Doc { tokens, loss: (0..len).map(|_| random.below(2) as u8).collect() }
}

/// `DLFS_TOKEN_CASES` says how many cases are tried; `tools/check --long` tries ten thousand. Rows have up to 512
/// tokens, and in one of a hundred cases 8,192.
#[test]
fn rows_are_those_of_the_definition_wherever_a_run_stops_and_however_it_resumes() {
    let cases = std::env::var("DLFS_TOKEN_CASES").map_or(100, |text| text.parse().unwrap());
    let mut random = Random::new(2201);
    let mut long = Duration::ZERO;
    let began = Instant::now();
    for number in 0..cases {
        let is_long = number % 100 == 99;
        let began = Instant::now();
        let case = Case::new(&mut random, is_long);
        println!("case {number}: {:?}, {:?}", case.rows, case.run.order);
        agrees(&case, &mut random);
        long += if is_long { began.elapsed() } else { Duration::ZERO };
    }
    println!("{cases} cases in {:?}, of which rows of 8,192 took {long:?}", began.elapsed());
}

fn agrees(case: &Case, random: &mut Random) {
    if case.epochs[0].1.is_empty() {
        let refused = case.over.loader(&case.rows, case.run.clone()).unwrap_err();
        assert!(refused.to_string().starts_with("no row can be filled"), "{refused}");
    }
    if case.fewest() == 0 {
        return;
    }
    let counts = case.over.loader(&case.rows, case.run.clone()).unwrap();
    for (epoch, (rows, cells)) in (0..).zip(&case.epochs) {
        let plan = counts.plan(epoch).unwrap();
        assert_eq!(plan.counts.rows, cells.len() as u64);
        let columns: usize = rows.lens.iter().map(|len| len + 1).sum();
        assert_eq!(plan.counts.columns, columns as u64);
        let filled: usize = cells.iter().map(Vec::len).sum();
        assert_eq!(plan.counts.padding, (columns - filled) as u64);
        let starts = [0].iter().chain(&rows.starts).map(|start| *start as u64);
        let phases = plan.counts.phases.iter().scan(0, |sum, rows| {
            let start = *sum;
            *sum += rows;
            Some(start)
        });
        assert!(phases.take(rows.starts.len() + 1).eq(starts), "{:?}", plan.counts);
        let sums = plan.sources.iter().map(|source| (source.documents, source.tokens));
        let sum = sums.reduce(|left, right| (left.0 + right.0, left.1 + right.1));
        let all = (plan.counts.documents, plan.counts.tokens);
        assert_eq!(sum.unwrap_or(all), all);
    }
    assert_eq!(counts.loader().batches_per_epoch(), case.epochs[0].1.len() as u64);
    let mut state: Option<State> = None;
    loop {
        let (ranks, sizes) = case.any_sizes(random);
        let most = if random.one_in(3) { u64::MAX } else { 1 + random.below(4) };
        let next = case.read(random, (ranks, &sizes), state.clone(), most);
        let mut next = State::from_json(&next.to_json()).unwrap();
        if state.as_ref() == Some(&next) || most == u64::MAX {
            break;
        }
        if random.one_in(4) {
            next.place = None; // the run then looks at all lengths before
        }
        state = Some(next);
    }
}

#[test]
fn threads_that_share_a_loader_get_the_rows_of_different_batches() {
    let documents: Vec<Doc> = (0..400_i64).map(|id| doc(&vec![id; 1 + id as usize % 7])).collect();
    let corpus = Corpus::new(&TYPED, documents);
    let rows = TokenOptions { pack: Pack::BestFit, ..TokenOptions::new(9, 3) };
    let loader = corpus.dataset.token_loader(rows, run(4)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut batch = TokenBatch::new();
                while loader.next(&mut batch, &mut ()).unwrap() {
                    for cell in filled(&batch, &Columns::all(9), 3).unwrap() {
                        assert!(cell.token == cell.sample.max(0), "{cell:?}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_run_that_moves_while_it_starts_takes_no_rows_of_the_start_that_nobody_waits_for() {
    let documents: Vec<Doc> = (0..400_i64).map(|id| doc(&vec![id; 1 + id as usize % 7])).collect();
    let corpus = Corpus::new(&TYPED, documents);
    let rows = TokenOptions { pack: Pack::BestFit, ..TokenOptions::new(9, 3) };
    // No call waits for the start: the next one goes on waiting.
    let run = LoaderOptions { deadline: Duration::ZERO, ..run(60) };
    let loader = corpus.dataset.token_loader(rows, run).unwrap();
    let mut batch = TokenBatch::new();
    for epoch in 0..50 {
        for other in 1..3 {
            loader.loader().set_epoch(epoch + other).unwrap();
            drop(loader.next(&mut batch, &mut ()));
        }
        loader.loader().set_epoch(epoch).unwrap();
        for _ in 0..5 {
            let mut taken = loader.next(&mut batch, &mut ());
            while let Err(error) = taken {
                assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                std::thread::sleep(Duration::from_micros(100));
                taken = loader.next(&mut batch, &mut ());
            }
            assert_eq!(batch.num_rows(), 3);
            for cell in filled(&batch, &Columns::all(9), 3).unwrap() {
                assert!(cell.token == cell.sample.max(0), "{cell:?}");
            }
        }
    }
}

#[test]
fn wrong_fields_and_types_are_refused_before_the_first_batch() {
    let rows = || TokenOptions::new(2, 1);
    let field = |text: &str| TokenOptions { field: Some(text.into()), ..rows() };
    let untyped = Stored { field: None, ..TYPED };
    let corpus = Corpus::new(&untyped, vec![doc(&[1, 2, 3])]);
    let why = |corpus: &Corpus, rows: TokenOptions| corpus.refused(rows, run(1)).report();
    assert!(why(&corpus, rows()).contains("no field of the samples has tokens by its type"));
    assert!(why(&corpus, field("f32")).contains("of f32, and these are no tokens"));
    assert!(why(&corpus, field("tok")).contains("there is no field tok: samples have one field"));
    corpus.dataset.token_loader(field("u16"), run(1)).unwrap();

    let corpus = Corpus::of(&[&[1, 2, 3]]);
    assert!(why(&corpus, field("text")).contains("there is no field text: samples have tok"));
    for other in ["u32", "f32"] {
        let told = why(&corpus, field(&format!("tok:{other}")));
        assert!(told.contains(&format!("field tok is of u16[*], and {other} was expected")));
    }
    corpus.dataset.token_loader(field("tok:u16"), run(1)).unwrap();
    let loss = TokenOptions { loss_field: Some("tok".into()), ..field("tok") };
    assert!(why(&corpus, loss).contains("no byte for each token"));

    let bytes =
        Corpus::new(&Stored { element: "u8", has_loss: true, ..TYPED }, vec![doc(&[1, 2, 3])]);
    assert!(why(&bytes, rows()).contains("could have tokens: tok, loss"));

    let odd =
        Corpus::new(&Stored { element: "u8", ..untyped }, vec![doc(&[1, 2]), doc(&[1, 2, 3])]);
    assert!(why(&odd, field("u16")).contains("document 1 has 3 bytes, which are no whole number"));

    let lengths = TokenOptions { lengths: Some("words".into()), ..rows() };
    assert!(why(&corpus, lengths).contains("there is no column \"words\""));
    let separator = TokenOptions { separator: Some(9), vocabulary: Some(9), ..rows() };
    assert!(why(&corpus, separator).contains("the separator is token 9"));
    assert!(why(&corpus, TokenOptions::default()).contains("1 to"));
    assert!(why(&corpus, TokenOptions::new(2, 0)).contains("at least one row"));
    assert!(why(&corpus, TokenOptions::new(u32::MAX, 1)).contains("1 to"));
}

#[test]
fn sources_of_a_mixture_are_named_in_errors() {
    let mix = |stored: &Stored, documents: &[&[i64]]| {
        let first = Corpus::of(&[&[1, 2, 3], &[4, 5, 6]]);
        let second =
            Corpus::new(stored, documents.iter().map(|tokens| doc(tokens)).collect::<Vec<Doc>>());
        let part = |corpus: &Corpus| (corpus.dataset.clone(), Part::Weight("0.5".parse().unwrap()));
        let parts = vec![part(&first), part(&second)];
        let mixture = Mixture::new(parts, None, Batching::Stratified, Vec::new()).unwrap();
        let name = second._folder.path().display().to_string();
        (mixture, name, (first, second))
    };
    let rows = TokenOptions { field: Some("tok".into()), ..TokenOptions::new(2, 1) };
    let other = Stored { field: Some("ids"), ..TYPED };
    let (mixture, name, _sets) = mix(&other, &[&[1, 2, 3]]);
    let error = mixture.token_loader(rows.clone(), run(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let text = error.to_string();
    assert!(text.contains("no field tok: samples have ids") && text.contains(&name), "{text}");

    let (mixture, name, _sets) = mix(&Stored { element: "u32", ..TYPED }, &[&[1, 2, 3]]);
    let text = mixture.token_loader(rows.clone(), run(1)).unwrap_err().to_string();
    assert!(text.contains("4 bytes here, and 2 in") && text.contains(&name), "{text}");
    let by_column = TokenOptions { lengths: Some("count".into()), ..rows.clone() };
    mixture.token_loader(by_column, run(1)).unwrap();

    let (mixture, name, _sets) = mix(&TYPED, &[&[1, 700, 3]]);
    let rows = TokenOptions { vocabulary: Some(700), ..rows };
    let loader = mixture.token_loader(rows, run(1)).unwrap();
    assert_eq!(loader.plan(u64::MAX).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut batch = TokenBatch::new();
    let mut refused = Vec::new();
    while loader.next(&mut batch, &mut ()).unwrap() {
        refused.extend(filled(&batch, &Columns::all(2), 3).err());
    }
    let text = refused.pop().expect("a row has the token").to_string();
    assert!(text.starts_with("token 1 of the document is 700, and the vocabulary has 700"));
    assert!(text.contains("sample 0") && text.contains(&name), "{text}");
}

#[test]
fn documents_that_make_no_rows_are_refused_with_their_numbers() {
    let corpus = Corpus::of(&[&[1, 2, 3], &[], &[4, 5, 6, 7]]);
    let why = |rows: TokenOptions, run: LoaderOptions| corpus.refused(rows, run).to_string();
    let text = why(TokenOptions::new(7, 1), run(1));
    assert_eq!(text, "no row can be filled: an epoch has 7 tokens, and a row takes 8 of them");
    let separated = TokenOptions { separator: Some(0), ..TokenOptions::new(7, 1) };
    corpus.dataset.token_loader(separated, run(1)).unwrap();
    let ranks = LoaderOptions { world_size: 2, ..run(1) };
    let text = why(TokenOptions::new(2, 2), ranks);
    assert_eq!(text, "no batch can be filled: an epoch has 3 rows, and 2 ranks take 2 each");
    let raise = TokenOptions {
        pack: Pack::BestFit,
        too_long: LongDocuments::Raise,
        ..TokenOptions::new(2, 1)
    };
    assert!(
        why(raise.clone(), run(1)).contains("document 2 has 4 tokens, more than the 3 of a row")
    );
    let one_more = TokenOptions { seq_len: 3, separator: Some(0), ..raise.clone() };
    assert!(why(one_more, run(1)).contains("more than the 3 of a row"));
    corpus.dataset.token_loader(TokenOptions { seq_len: 3, ..raise }, run(1)).unwrap();
    let skips = LoaderOptions { on_error: OnError::Skip, ..run(1) };
    assert!(why(TokenOptions::new(2, 1), skips).contains("none can be skipped"));

    let empty = Corpus::of(&[&[], &[]]);
    let text = empty.refused(TokenOptions::new(1, 1), run(1)).to_string();
    assert!(text.contains("an epoch has 0 tokens"), "{text}");
    let single = Corpus::of(&[&[1, 2]]);
    let loader = single.dataset.token_loader(TokenOptions::new(1, 1), run(1)).unwrap();
    let mut batch = TokenBatch::new();
    assert!(loader.next(&mut batch, &mut ()).unwrap());
    let cells = filled(&batch, &Columns::all(1), 0).unwrap();
    assert_eq!(cells.iter().map(|cell| cell.token).collect::<Vec<i64>>(), [1, 2]);
    assert!(!loader.next(&mut batch, &mut ()).unwrap());
    assert_eq!((batch.num_rows(), batch.documents()), (0, 0));
}

#[test]
fn documents_that_differ_from_their_lengths_are_refused_when_they_are_filled() {
    let stored = Stored { has_loss: true, ..TYPED };
    // 4 and 3 bytes: as many as 2 tokens and a loss byte each, and one byte more of loss.
    let uneven = Doc { tokens: vec![1, 2, 3], loss: vec![1; 6] };
    let corpus = Corpus::new(&stored, vec![uneven.clone()]);
    let rows = TokenOptions { loss_field: Some("loss".into()), ..TokenOptions::new(2, 1) };
    let text = fill_error(&corpus, rows.clone());
    assert!(text.starts_with("the document has 6 bytes of tokens, 2 each, and its length says 4"));
    let by_column = TokenOptions { lengths: Some("count".into()), ..rows };
    let text = fill_error(&corpus, by_column);
    assert!(text.starts_with("the loss field has 6 bytes, and the document 3 tokens"), "{text}");
    assert!(text.contains("sample 0"), "{text}");
}

fn fill_error(corpus: &Corpus, rows: TokenOptions) -> String {
    let columns = Columns::all(rows.seq_len);
    let loader = corpus.dataset.token_loader(rows, run(1)).unwrap();
    let mut batch = TokenBatch::new();
    let unread = filled(&batch, &columns, 3).unwrap_err().to_string();
    assert!(unread.contains("no batch was read"), "{unread}");
    assert!(loader.next(&mut batch, &mut ()).unwrap());
    let other = filled(&batch, &Columns::all(77), 3).unwrap_err().to_string();
    assert!(other.contains("rows of 77 tokens"), "{other}");
    filled(&batch, &columns, 3).unwrap_err().to_string()
}

#[test]
fn states_of_other_rows_are_refused_with_the_difference() {
    let documents: Vec<Doc> = (0..50).map(|id| doc(&[id; 6])).collect();
    let corpus = Corpus::new(&TYPED, documents);
    let rows = TokenOptions::new(4, 2);
    let loader = corpus.dataset.token_loader(rows.clone(), run(2)).unwrap();
    let mut batch = TokenBatch::new();
    assert!(loader.next(&mut batch, &mut ()).unwrap());
    let state = loader.loader().state();
    let resumed = |rows: TokenOptions| {
        let run = LoaderOptions { resume: Some(state.clone()), ..run(2) };
        let built = corpus.dataset.token_loader(rows.clone(), run);
        let moved = corpus.dataset.token_loader(rows, self::run(2)).unwrap();
        let set = moved.loader().set_state(&state);
        assert_eq!(built.is_ok(), set.is_ok());
        set.map_err(|error| error.to_string())
    };
    resumed(TokenOptions { batch_size: 5, ..rows.clone() }).unwrap();
    resumed(TokenOptions { window: 5, too_long: LongDocuments::Raise, ..rows.clone() }).unwrap();
    let longer = resumed(TokenOptions { seq_len: 5, ..rows.clone() }).unwrap_err();
    assert!(longer.contains("rows have a length of 4, and 5 was asked for"), "{longer}");
    let packed = resumed(TokenOptions { pack: Pack::BestFit, ..rows.clone() }).unwrap_err();
    assert!(packed.contains("`concat`, and `best_fit` was"), "{packed}");
    let separated = resumed(TokenOptions { separator: Some(1), ..rows.clone() }).unwrap_err();
    assert!(separated.contains("separator"), "{separated}");
    for (consumed, is_there) in [(74, true), (75, false), (u64::MAX - 1, false), (u64::MAX, false)]
    {
        let state = State { consumed, place: None, ..state.clone() };
        let resumed = LoaderOptions { resume: Some(state.clone()), ..run(2) };
        let resumed = corpus.dataset.token_loader(rows.clone(), resumed);
        assert_eq!(resumed.is_ok(), is_there, "{consumed}");
        match loader.loader().set_state(&state) {
            Ok(()) => assert!(is_there),
            Err(error) => {
                let text = format!("consumed {consumed} rows of epoch 0, which has 74");
                assert!(!is_there && error.to_string().contains(&text), "{error}");
            }
        }
    }

    let part = |corpus: &Corpus| (corpus.dataset.clone(), Part::Weight("1".parse().unwrap()));
    let other = Corpus::of(&[&[1, 2, 3, 4, 5, 6]]);
    let parts = vec![part(&corpus), part(&other)];
    let mixture = Mixture::new(parts, None, Batching::Stratified, Vec::new()).unwrap();
    let mixed = mixture.token_loader(rows, run(2)).unwrap();
    let text = mixed.loader().set_state(&state).unwrap_err().to_string();
    assert!(text.contains("mixture"), "{text}");
}

#[test]
fn a_place_beside_other_numbers_is_refused_and_without_it_the_same_rows_follow() {
    let documents = || (0..300).map(|id| doc(&vec![id; 1 + id as usize % 9])).collect();
    let corpora = [Corpus::new(&TYPED, documents()), Corpus::new(&TYPED, documents())];
    let part = |corpus: &Corpus| (corpus.dataset.clone(), Part::Weight("1".parse().unwrap()));
    let parts = corpora.iter().map(part).collect();
    let mixture = Mixture::new(parts, None, Batching::Stratified, Vec::new()).unwrap();
    for over in [Over::One(corpora[0].dataset.clone()), Over::Mixed(mixture)] {
        for pack in [Pack::Concat, Pack::BestFit, Pack::None] {
            let rows = TokenOptions { pack, window: 40, ..TokenOptions::new(12, 2) };
            let order = OrderSpec { kind: GROUPED, seed: 5 };
            let run = LoaderOptions::new(order, 1, 2);
            let resume = |state: &State| {
                let resume = Some(state.clone());
                over.loader(&rows, LoaderOptions { resume, ..run.clone() })
            };
            let tokens = |loader: &TokenLoader| {
                let mut batch = TokenBatch::new();
                assert!(loader.next(&mut batch, &mut ()).unwrap());
                filled(&batch, &Columns::all(12), 0).unwrap()
            };
            let loader = over.loader(&rows, run.clone()).unwrap();
            for _ in 0..20 {
                tokens(&loader);
            }
            let state = loader.loader().state();
            let next = tokens(&loader);
            let text = state.to_json();
            assert!(state.place.unwrap().position >= 40, "{text}");
            let bare = State { place: None, ..state.clone() };
            for state in [&state, &bare] {
                assert_eq!(tokens(&resume(state).unwrap()), next, "{pack}");
                loader.loader().set_state(state).unwrap();
                assert_eq!(tokens(&loader), next, "{pack}");
            }
            for name in ["position", "tokens", "rows", "check", "consumed", "epoch"] {
                let (before, behind) = text.split_once(&format!("\"{name}\":")).unwrap();
                let (before, behind) = if name == "tokens" || name == "rows" {
                    text.rsplit_once(&format!("\"{name}\":")).unwrap() // not those of the budget
                } else {
                    (before, behind)
                };
                let end = behind.find([',', '}']).unwrap();
                let number: u64 = behind[..end].parse().unwrap();
                let damaged = format!("{before}\"{name}\":{}{}", number ^ 1, &behind[end..]);
                let damaged = State::from_json(&damaged).unwrap();
                for error in [
                    resume(&damaged).unwrap_err(),
                    loader.loader().set_state(&damaged).unwrap_err(),
                ] {
                    assert!(error.to_string().contains("is not that of its"), "{name}: {error}");
                }
            }
        }
    }
}

#[test]
fn phases_of_rows_that_a_run_has_not_reached_may_change_when_it_resumes() {
    let documents = (0..300).map(|id| doc(&vec![id; 1 + id as usize % 9])).collect();
    let corpus = Corpus::new(&TYPED, documents);
    for pack in [Pack::Concat, Pack::BestFit, Pack::None] {
        let with = |phases: &[(u64, u32)]| {
            let phase =
                |&(from, seq_len): &(u64, u32)| TokenPhase { from, seq_len, batch_size: Some(3) };
            let phases = phases.iter().map(phase).collect();
            TokenOptions { pack, window: 10, phases, ..TokenOptions::new(12, 2) }
        };
        let loader = corpus.dataset.token_loader(with(&[(100, 7), (2000, 20)]), run(1)).unwrap();
        let mut batch = TokenBatch::new();
        let mut before = None;
        while batch.num_rows() != 3 {
            before = Some(loader.loader().state());
            assert!(loader.next(&mut batch, &mut ()).unwrap());
        }
        // The state behind the last batch before the phase is that of its first row.
        let first = before.unwrap();
        let state = loader.loader().state();
        assert_eq!(state.consumed, first.consumed + 3, "{pack}");
        let resume = |phases: &[(u64, u32)], state: &State| {
            let run = LoaderOptions { resume: Some(state.clone()), ..run(1) };
            corpus.dataset.token_loader(with(phases), run).map_err(|error| error.to_string())
        };
        for phases in [&[(100, 7)][..], &[(100, 7), (1500, 9)], &[(100, 7), (2000, 20), (2500, 3)]]
        {
            let resumed = resume(phases, &state).unwrap();
            assert!(resumed.next(&mut batch, &mut ()).unwrap());
            assert_eq!(batch.num_rows(), 3, "{pack}");
            assert!(pack == Pack::None || batch.layout().seq_len == 7, "{pack}");
            let text = resumed.loader().state().to_json();
            assert!(resume(phases, &State::from_json(&text).unwrap()).is_ok(), "{text}");
        }
        for phases in [&[(90, 7)][..], &[(100, 8)], &[(50, 7), (100, 7)], &[]] {
            let text = resume(phases, &state).unwrap_err();
            assert!(text.contains("phases of rows before row"), "{pack}: {text}");
        }
        let text = resume(&[(100, 7), (2000, 20)], &State { consumed: 1, ..state.clone() });
        assert!(text.unwrap_err().contains("is not that of its"), "{pack}");
    }
    let why = |phases: &[(u64, u32)]| {
        let phase =
            |&(from, seq_len): &(u64, u32)| TokenPhase { from, seq_len, batch_size: Some(1) };
        let phases = phases.iter().map(phase).collect();
        corpus.refused(TokenOptions { phases, ..TokenOptions::new(12, 2) }, run(1)).to_string()
    };
    assert!(why(&[(100, 7), (100, 8)]).contains("at 100 tokens, not after the one before"));
    assert!(why(&[(100, 0)]).contains("not 0"));
}

#[test]
fn a_damaged_document_is_named_and_no_row_of_its_batch_is_filled() {
    let documents: Vec<Doc> = (0..9).map(|id| doc(&[400 + id; 30])).collect();
    let corpus = Corpus::new(&TYPED, documents);
    let path = corpus._folder.path().join("corpus.dlfs");
    let mut bytes = fs::read(&path).unwrap();
    let token = 404_u16.to_le_bytes();
    let run_of = token.repeat(30);
    let at = bytes.windows(60).position(|window| window == run_of).expect("it lies there");
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let loader = corpus.dataset.token_loader(TokenOptions::new(40, 6), run(1)).unwrap();
    let mut batch = TokenBatch::new();
    let error = loader.next(&mut batch, &mut ()).unwrap_err();
    assert_eq!((error.kind(), error.sample_id()), (ErrorKind::Corrupt, Some(SampleId(4))));
    assert_eq!(batch.num_rows(), 0);
}

/// A run of whole epochs of one rank in the order of media.
pub fn run(epochs: u64) -> LoaderOptions {
    LoaderOptions::new(OrderSpec { kind: BY_SLOT, seed: 5 }, 1, epochs)
}

/// The epochs of each random case.
const EPOCHS: u64 = 2;

pub const TYPED: Stored = Stored { element: "u16", field: Some("tok"), has_loss: false };
