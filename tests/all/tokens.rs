//! Rows of tokens: each row has the tokens that a small model of the definition puts there, whatever the order, the
//! ranks, the batch size and the point of a resume; wrong fields, documents and states are refused by name.

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::images::{Image, Sample};
use crate::support::random::Random;
use dlfs::address::Address;
use dlfs::dataset::{
    Dataset, LongDocuments, Mixture, Options, Sampler, TokenBatch, TokenLoader, TokenOptions,
};
use dlfs::format::columns::{ColumnSpec, ColumnTable, ColumnType, Value};
use dlfs::format::fields::{put_table, record_len};
use dlfs::format::{FieldTypes, Pack as Packing};
use dlfs::order::budget::Pack;
use dlfs::order::mixture::{Batching, Part};
use dlfs::order::weighted::{Draws, Weights};
use dlfs::order::{OrderKind, OrderSpec, SequentialBy, State};
use dlfs::permutation::{Key, Permutation};
use dlfs::prefetch::LoaderOptions;
use dlfs::reader::OnError;
use dlfs::tokens::{Arrays, Columns, TokensMut};
use dlfs::units::SampleId;
use dlfs::{Error, ErrorKind, Result};

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
    loss: Vec<u8>,
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

/// One column of a row.
#[derive(Debug, Clone, PartialEq)]
struct Cell {
    token: i64,
    segment: i64,
    position: i64,
    loss: i64,
    sample: i64,
}

/// A source, an id and its document.
type Place<'a> = (u32, u64, &'a Doc);

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
    fn loader(&self, rows: &TokenOptions, run: LoaderOptions) -> Result<TokenLoader> {
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

/// A document, its first token in a row, and the end.
type Item = (usize, usize, usize);

/// The segments of each row of an epoch, as ranges of tokens of positions: position, first, end.
fn segments(rows: &TokenOptions, (seed, epoch): (u64, u64), lens: &[usize]) -> Vec<Vec<Item>> {
    let capacity = rows.seq_len as usize + 1;
    let len_of =
        |&len: &usize| if len > 0 { len + usize::from(rows.separator.is_some()) } else { 0 };
    let lens: Vec<usize> = lens.iter().map(len_of).collect();
    if rows.pack == Pack::Concat {
        let line: Vec<(usize, usize)> =
            (0..lens.len()).flat_map(|at| (0..lens[at]).map(move |nth| (at, nth))).collect();
        let starts = (0..line.len()).step_by(capacity - 1);
        let whole = starts.filter_map(|start| line.get(start..start + capacity));
        return whole
            .map(|row| {
                let of_one = row.chunk_by(|left, right| left.0 == right.0);
                of_one.map(|run| (run[0].0, run[0].1, run[0].1 + run.len())).collect()
            })
            .collect();
    }
    let pieces = |positions: Range<usize>| -> Vec<Item> {
        let cut = |at: usize| {
            let len = lens[at];
            (0..len).step_by(capacity).map(move |from| (at, from, len.min(from + capacity)))
        };
        positions.flat_map(cut).collect()
    };
    if rows.pack == Pack::None {
        return pieces(0..lens.len()).into_iter().map(|piece| vec![piece]).collect();
    }
    let size = rows.window as usize;
    let mut all = Vec::new();
    for window in 0..lens.len().div_ceil(size) {
        let mut items = pieces(window * size..lens.len().min((window + 1) * size));
        items.sort_by_key(|(_, from, end)| std::cmp::Reverse(end - from));
        // Each open row with its room, and the time since when it has this room.
        let mut open: Vec<(usize, usize, Vec<Item>)> = Vec::new();
        for (time, item) in items.into_iter().enumerate() {
            let len = item.2 - item.1;
            let fits = open.iter_mut().filter(|(room, ..)| *room >= len);
            match fits.min_by_key(|(room, since, _)| (*room, std::cmp::Reverse(*since))) {
                Some(row) => {
                    *row = (row.0 - len, time, std::mem::take(&mut row.2));
                    row.2.push(item);
                }
                None => open.push((capacity - len, time, vec![item])),
            }
        }
        let key = Key::derive(seed, &[0x726f_7773, epoch, window as u64]);
        let shuffle = Permutation::new(open.len() as u64, key);
        all.extend((0..shuffle.len()).map(|nth| open[shuffle.forward(nth) as usize].2.clone()));
    }
    all
}

/// The columns of a row.
fn cells(rows: &TokenOptions, segments: &[Item], documents: &[Place<'_>]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (number, &(at, from, end)) in segments.iter().enumerate() {
        let (_, id, Doc { tokens, loss }) = documents[at];
        for nth in from..end {
            let is_start = nth == from && rows.pack != Pack::Concat;
            let is_learned = rows.loss_field.is_none() || loss.get(nth).is_none_or(|&it| it > 0);
            cells.push(Cell {
                token: tokens.get(nth).copied().or(rows.separator.map(i64::from)).unwrap(),
                segment: number as i64 + 1,
                position: (nth - from) as i64,
                loss: i64::from(is_learned && !is_start),
                sample: id as i64,
            });
        }
    }
    let pad = Cell { token: rows.pad.into(), segment: 0, position: 0, loss: 0, sample: -1 };
    cells.resize(rows.seq_len as usize + 1, pad);
    cells
}

/// Fills the arrays of a batch, with tokens of a type by `dtype`; also compares cu_seqlens with segment ids.
fn filled(batch: &TokenBatch, columns: &Columns, dtype: u64) -> Result<Vec<Cell>> {
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
    batch.fill(columns, &mut arrays)?;
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
    epochs: Vec<Vec<Vec<Cell>>>,
    _corpora: Vec<Corpus>,
}

impl Case {
    fn new(random: &mut Random) -> Case {
        let has_loss = random.one_in(3);
        let field = (has_loss || random.one_in(2)).then_some("tok");
        let element = ["u8", "u16", "u16", "u32", "i32"][random.below(5) as usize];
        let stored = Stored { element, field, has_loss };
        let longest = [8, 60, 3000][random.below(3) as usize];
        let sources = [1, 1, 3][random.below(3) as usize];
        let most = if element == "u8" { 250 } else { 32_000 };
        let corpora: Vec<Corpus> = (0..sources)
            .map(|_| {
                let documents = (0..1 + random.below(60)).map(|_| document(random, longest, most));
                Corpus::new(&stored, documents.collect())
            })
            .collect();
        let mut rows = TokenOptions::new(1 + random.below(longest) as u32, 1);
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
            let parts = corpora.iter().zip(["0.2", "0.5", "0.3"]);
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
            let of_rows = segments(&rows, (run.order.seed, epoch), &lens);
            of_rows.iter().map(|segments| cells(&rows, segments, &documents)).collect()
        });
        let epochs = epochs.collect();
        Case { over, rows, run, epochs, _corpora: corpora }
    }

    /// Reads up to `most` global batches of `ranks` ranks with `batch_size` rows from `state` on, and compares them.
    fn read(
        &self,
        random: &mut Random,
        (ranks, batch_size): (u32, u32),
        state: Option<State>,
        most: u64,
    ) -> State {
        let seq_len = self.rows.seq_len;
        let global = u64::from(ranks) * u64::from(batch_size);
        let begun = state.as_ref().map_or((0, 0), |state| (state.epoch.0, state.consumed));
        let mut states = Vec::new();
        for rank in 0..ranks {
            let rows = TokenOptions { batch_size, ..self.rows.clone() };
            let run = LoaderOptions {
                rank,
                world_size: ranks,
                resume: state.clone(),
                ..self.run.clone()
            };
            let loader = self.over.loader(&rows, run).unwrap();
            let (columns, chunks) = columns(random, seq_len as usize);
            let mut batch = TokenBatch::new();
            let (mut epoch, mut consumed) = begun;
            for _ in 0..most {
                let rows_of = |epoch: u64| self.epochs[epoch as usize].len() as u64;
                while epoch < EPOCHS && rows_of(epoch) - consumed < global {
                    epoch += 1;
                    consumed = 0;
                }
                let has_next = loader.next(&mut batch, &mut ()).unwrap();
                assert_eq!(has_next, epoch < EPOCHS, "after {consumed} rows of epoch {epoch}");
                if !has_next {
                    break;
                }
                let first = (consumed + u64::from(rank * batch_size)) as usize;
                let right = &self.epochs[epoch as usize][first..first + batch_size as usize];
                let right: Vec<Cell> = right
                    .iter()
                    .flat_map(|row| chunks.iter().flat_map(|it| row[it.clone()].to_vec()))
                    .collect();
                let cells = filled(&batch, &columns, random.below(4)).unwrap();
                assert_eq!(cells, right, "rows from {first} on of epoch {epoch}");
                consumed += global;
                assert_eq!(batch.samples().epoch().0, epoch);
                let is_last = rows_of(epoch) - consumed < global;
                assert_eq!(batch.samples().ends_epoch(), is_last);
                if is_last {
                    epoch += 1;
                    consumed = 0;
                }
                let after = loader.loader().state();
                assert_eq!((after.epoch.0, after.consumed), (epoch, consumed));
            }
            states.push(loader.loader().state());
        }
        assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
        states.swap_remove(0)
    }
}

/// All columns of a row, or those of a context-parallel rank; and the same as ranges.
fn columns(random: &mut Random, seq_len: usize) -> (Columns, Vec<Range<usize>>) {
    let ranks = [1, 1, 2, 3, 4][random.below(5) as usize];
    let is_zigzag = random.one_in(2);
    let parts = if is_zigzag { 2 * ranks } else { ranks };
    if ranks == 1 || !seq_len.is_multiple_of(parts) {
        let all = Range { start: 0, end: seq_len + 1 };
        return (Columns::all(seq_len as u32), vec![all]);
    }
    let rank = random.below(ranks as u64) as usize;
    let len = seq_len / parts;
    let mut taken = vec![rank];
    taken.extend(is_zigzag.then_some(parts - 1 - rank));
    let chunks = taken.iter().map(|part| part * len..(part + 1) * len + 1).collect();
    let columns = Columns::slice(seq_len as u32, rank as u32, ranks as u32, is_zigzag);
    (columns.unwrap(), chunks)
}

fn document(random: &mut Random, longest: u64, most: u64) -> Doc {
    let len = if random.one_in(8) { 0 } else { random.below(longest + 1) };
    let tokens = (0..len).map(|_| random.below(most) as i64).collect();
    Doc { tokens, loss: (0..len).map(|_| random.below(2) as u8).collect() }
}

/// `DLFS_TOKEN_CASES` says how many cases are tried; `tools/check --long` tries ten thousand.
#[test]
fn rows_are_those_of_the_definition_wherever_a_run_stops_and_however_it_resumes() {
    let cases = std::env::var("DLFS_TOKEN_CASES").map_or(100, |text| text.parse().unwrap());
    let mut random = Random::new(2201);
    for number in 0..cases {
        let case = Case::new(&mut random);
        println!("case {number}: {:?}, {:?}", case.rows, case.run.order);
        let rows_of = |epoch: &Vec<Vec<Cell>>| epoch.len() as u64;
        let fewest = case.epochs.iter().map(rows_of).min().unwrap();
        if rows_of(&case.epochs[0]) == 0 {
            let refused = case.over.loader(&case.rows, case.run.clone()).unwrap_err();
            assert!(refused.to_string().starts_with("no row can be filled"), "{refused}");
        }
        if fewest == 0 {
            continue;
        }
        let counts = case.over.loader(&case.rows, case.run.clone()).unwrap();
        for (epoch, rows) in (0..).zip(&case.epochs) {
            let plan = counts.plan(epoch).unwrap();
            assert_eq!(plan.counts.rows, rows.len() as u64);
            let padding = rows.iter().flatten().filter(|cell| cell.segment == 0).count();
            assert_eq!(plan.counts.padding, padding as u64);
            let sums = plan.sources.iter().map(|source| (source.documents, source.tokens));
            let sum = sums.reduce(|left, right| (left.0 + right.0, left.1 + right.1));
            let all = (plan.counts.documents, plan.counts.tokens);
            assert_eq!(sum.unwrap_or(all), all);
        }
        assert_eq!(counts.loader().batches_per_epoch(), rows_of(&case.epochs[0]));
        let mut state = None;
        loop {
            let ranks = 1 + random.below(fewest.min(8)) as u32;
            let batch_size = 1 + random.below((fewest / u64::from(ranks)).min(5)) as u32;
            let most = if random.one_in(3) { u64::MAX } else { 1 + random.below(4) };
            let next = case.read(&mut random, (ranks, batch_size), state.clone(), most);
            let text = next.to_json();
            let next = State::from_json(&text).unwrap();
            if state.as_ref() == Some(&next) || most == u64::MAX {
                break;
            }
            state = Some(next);
        }
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
        let state = State { consumed, ..state.clone() };
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
