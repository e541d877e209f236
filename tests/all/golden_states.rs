//! Golden states: what runs of each kind save, as the first release wrote it, and what they read next.
//!
//! Three lines of `golden/states.txt` are a run: its name, its state, and its next two batches. The runs read golden
//! images, so that later releases can go on with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::golden_images::{golden, image, settle};
use crate::views::opened;
use dlfs::dataset::{Dataset, Loader, Mixture, RunState, TokenBatch, TokenLoader, TokenOptions};
use dlfs::order::budget::{Budget, Pack};
use dlfs::order::lanes::{LanePlace, LaneSpec, LaneState};
use dlfs::order::mixture::{Batching, Part, Phase};
use dlfs::order::weighted::{Draws, Weights};
use dlfs::order::{HexId, OrderKind, OrderSpec, SequentialBy, State};
use dlfs::prefetch::LoaderOptions;
use dlfs::tokens::{Arrays, Columns, TokensMut};
use dlfs::units::Epoch;

#[test]
fn states_of_the_first_release_go_on_at_the_sample_where_they_were() {
    let runs: BTreeMap<&str, Begin> = runs().into_iter().collect();
    let text = std::fs::read_to_string(golden("states.txt")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for lines in lines.chunks(3) {
        let [name, state, next] = lines else { panic!("no three lines: {lines:?}") };
        assert_eq!(RunState::from_json(state).unwrap().to_json(), *state, "{name}");
        if let Some(begin) = runs.get(name) {
            let run = begin(Some(State::from_json(state).unwrap()));
            assert_eq!(run.next_two(), *next, "{name}");
        }
    }
    assert!(lines.len() > 3 * runs.len(), "each run, and a first epoch: {} lines", lines.len());
}

#[test]
fn todays_code_writes_the_golden_states() {
    let mut made = String::new();
    for (name, begin) in runs() {
        let run = begin(None);
        (0..STEPS).for_each(|_| drop(run.step()));
        let state = run.loader().state().to_json();
        made += &format!("{name}\n{state}\n{}\n", run.next_two());
    }
    let lanes = LaneSpec { seed: 7, epoch: Epoch(1), lanes: 4, window_bytes: 1 << 20 };
    let mut first = LaneState::start(HexId([7; 16]), lanes, 1, 2).unwrap();
    first.places.insert(3, LanePlace { shard: 1, sample: 20, given: 3 });
    made += &format!("first epoch of shards\n{}\n-\n", first.to_json());
    settle("states.txt", &made);
}

/// Batches before the state: some runs are in their second epoch then.
const STEPS: usize = 4;

/// Begins a run, or continues it from a state.
type Begin = Box<dyn Fn(Option<State>) -> Run>;

enum Run {
    Samples(Box<Loader>),
    Rows(Box<TokenLoader>),
}

impl Run {
    fn loader(&self) -> &Loader {
        match self {
            Run::Samples(loader) => loader,
            Run::Rows(rows) => rows.loader(),
        }
    }

    fn next_two(&self) -> String {
        format!("{} | {}", self.step(), self.step())
    }

    /// The next batch: ids, with their sources in a mixture, or tokens.
    fn step(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        match self {
            Run::Samples(loader) => {
                let batch = loader.next(&mut ()).unwrap().unwrap();
                let source = |index| batch.sources().map(|sources: &[u32]| sources[index]);
                words.extend(batch.ids().enumerate().map(|(index, id)| match source(index) {
                    Some(source) => format!("{source}:{id}"),
                    None => id.to_string(),
                }));
            }
            Run::Rows(rows) => {
                let mut batch = TokenBatch::new();
                assert!(rows.next(&mut batch, &mut ()).unwrap());
                let columns = batch.columns(&Columns::all(SEQ_LEN)).unwrap();
                let mut tokens = vec![0; batch.num_rows() * columns.width()];
                let mut arrays = Arrays {
                    tokens: TokensMut::U16(&mut tokens),
                    segment_ids: None,
                    position_ids: None,
                    loss_mask: None,
                    cu_seqlens: None,
                    sample_ids: None,
                };
                batch.fill(&Columns::all(SEQ_LEN), &mut arrays).unwrap();
                words.extend(tokens.iter().map(ToString::to_string));
            }
        }
        words.join(" ")
    }
}

const SEQ_LEN: u32 = 8;

fn options(kind: OrderKind, resume: Option<State>) -> LoaderOptions {
    let window_bytes = 1 << 20;
    LoaderOptions { window_bytes, resume, ..LoaderOptions::new(OrderSpec { kind, seed: 11 }, 5, 4) }
}

/// Every kind of run over golden images.
fn runs() -> Vec<(&'static str, Begin)> {
    let tight = opened(&image("image-2-tight"));
    let mut runs = Vec::new();
    for (name, kind) in [
        ("sequential", OrderKind::Sequential { by: SequentialBy::Id }),
        ("sequential by slot", OrderKind::Sequential { by: SequentialBy::Slot }),
        ("global", OrderKind::Global),
        ("grouped", OrderKind::Grouped { lanes: 0, group: 1 }),
    ] {
        runs.push((name, samples(&tight, move |resume| options(kind, resume))));
    }
    for (name, kind) in [
        ("local", OrderKind::Local { world_size: 2 }),
        ("partial", OrderKind::Partial { q: 0.25, world_size: 2 }),
    ] {
        let of_rank =
            move |resume| LoaderOptions { rank: 1, world_size: 2, ..options(kind, resume) };
        runs.push((name, samples(&tight, of_rank)));
    }
    let each: Vec<f64> = (0..tight.len()).map(|rank| 1.0 + (rank % 3) as f64).collect();
    for (name, replacement) in [("weighted", true), ("weighted, each once", false)] {
        let draws = Draws { replacement, ..Draws::default() };
        let weights = Arc::new(Weights::of_samples(tight.len(), &each, draws).unwrap());
        let weighted =
            move |resume| options(OrderKind::Global, resume).weighted(Arc::clone(&weights));
        runs.push((name, samples(&tight, weighted)));
    }
    let view = tight.select("label == 1", &mut ()).unwrap();
    runs.push(("view", samples(&view, |resume| options(OrderKind::Global, resume))));
    let budget = |resume| {
        let budget = Budget { window: 8, ..Budget::new(40_000) };
        options(OrderKind::Global, resume).by_budget(budget)
    };
    runs.push(("budget of tokens", samples(&tight, budget)));
    runs.push(("mixture", mixture(&tight, Vec::new())));
    let weights = ["1", "1"].map(|weight| weight.parse().unwrap()).to_vec();
    runs.push(("mixture with a phase", mixture(&tight, vec![Phase { from: 22, weights }])));
    for (name, pack) in [
        ("rows end to end", Pack::Concat),
        ("rows by best fit", Pack::BestFit),
        ("rows of one document", Pack::None),
    ] {
        runs.push((name, rows(pack)));
    }
    runs
}

fn samples(of: &Dataset, options: impl Fn(Option<State>) -> LoaderOptions + 'static) -> Begin {
    let dataset = of.clone();
    Box::new(move |resume| Run::Samples(Box::new(dataset.loader(options(resume)).unwrap())))
}

fn mixture(first: &Dataset, phases: Vec<Phase>) -> Begin {
    let second = opened(&image("image-2"));
    let part = |weight: &str| Part::Weight(weight.parse().unwrap());
    let parts = vec![(first.clone(), part("3")), (second, part("1"))];
    let mixture = Mixture::new(parts, Some(32), Batching::Stratified, phases).unwrap();
    Box::new(move |resume| {
        let loader = mixture.loader(options(OrderKind::Global, resume));
        Run::Samples(Box::new(loader.unwrap()))
    })
}

fn rows(pack: Pack) -> Begin {
    let documents = opened(&image("image-2-tokens"));
    Box::new(move |resume| {
        let rows = TokenOptions { pack, window: 4, ..TokenOptions::new(SEQ_LEN, 3) };
        let rows = documents.token_loader(rows, options(OrderKind::Global, resume));
        Run::Rows(Box::new(rows.unwrap()))
    })
}
