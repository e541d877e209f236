//! Views: what an expression selects, what splits keep, and that runs over a view are those over its samples.

#[allow(unreachable_pub)] // it is a module of benches, too
#[path = "../../benches/support/snapshot.rs"]
mod snapshot;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::ErrorKind;
use dlfs::address::Address;
use dlfs::cache::TierOptions;
use dlfs::dataset::{
    Dataset, Image, OpenOptions, Options, Sampler, ViewSource, load_state, save_state, save_views,
};
use dlfs::directory::Directory;
use dlfs::format::Pack;
use dlfs::order::{EpochOrder, OrderKind, OrderSpec, Population, SequentialBy, State, Tail};
use dlfs::prefetch::{Batching, LoaderOptions};
use dlfs::qpair::Device;
use dlfs::qpair::blocking::Blocking;
use dlfs::qpair::mem::MemNamespace;
use dlfs::reader::ReaderOptions;
use dlfs::units::{Epoch, SampleId};
use dlfs::view::{Filter, IdSet, NamedView, Split, SplitBy, Splitter, View, ViewFile};

use crate::images::{self, Sample, folder};
use crate::support::random::Random;

/// Samples, some of them deleted, and their image.
struct Fixture {
    source: Vec<Sample>,
    live: Vec<u64>,
    media: images::Image,
    dataset: Dataset,
}

fn fixture(source: Vec<Sample>, deleted: &[u64]) -> Fixture {
    fixture_in(images::Image::new(2, Pack::Tight), source, deleted)
}

fn fixture_in(mut media: images::Image, source: Vec<Sample>, deleted: &[u64]) -> Fixture {
    media.add(&source, 7, source.len() as u64, &[]);
    if !deleted.is_empty() {
        media.delete(deleted);
    }
    let dataset = opened(&media);
    let live = (0..source.len() as u64).filter(|id| !deleted.contains(id)).collect();
    Fixture { source, live, media, dataset }
}

pub fn opened(media: &images::Image) -> Dataset {
    let devices = media.namespaces.iter().map(|bytes| {
        let len = bytes.len().next_multiple_of(64 << 10);
        let device = MemNamespace::new(len as u64, 512).unwrap();
        let mut padded = bytes.clone();
        padded.resize(len, 0);
        Blocking::new(device.queue_pair().unwrap()).unwrap().write_at(0, &padded).unwrap();
        Arc::new(device) as Arc<dyn Device>
    });
    let image = Image::from_devices(devices.collect(), &OpenOptions::default()).unwrap();
    Dataset::from_image(image, ReaderOptions::default())
}

fn small() -> Fixture {
    small_in(images::Image::new(2, Pack::Tight))
}

fn small_in(media: images::Image) -> Fixture {
    let deleted: Vec<u64> = (0..240).filter(|id| id % 11 == 3).collect();
    fixture_in(media, folder(6, 40), &deleted)
}

fn ids_of(dataset: &Dataset) -> Vec<u64> {
    (0..dataset.len()).map(|rank| dataset.directory().id_of_live(rank).0).collect()
}

/// The number of random cases: `tools/check --all` sets many.
fn cases(usual: u64) -> u64 {
    std::env::var("DLFS_VIEW_CASES").map_or(usual, |text| text.parse().expect("a number"))
}

/// A random expression, and what it means.
fn expression(random: &mut Random, source: &[Sample], depth: u32) -> (String, Vec<bool>) {
    let each = |fits: &dyn Fn(u64, &Sample) -> bool| -> Vec<bool> {
        source.iter().enumerate().map(|(id, sample)| fits(id as u64, sample)).collect()
    };
    if depth > 0 && !random.one_in(3) {
        let (left, a) = expression(random, source, depth - 1);
        if random.one_in(4) {
            return (format!("not ({left})"), a.into_iter().map(|fits| !fits).collect());
        }
        let (right, b) = expression(random, source, depth - 1);
        let both = a.into_iter().zip(b);
        return if random.one_in(2) {
            (format!("({left}) and {right}"), both.map(|(a, b)| a && b).collect())
        } else {
            (format!("({left} or {right})"), both.map(|(a, b)| a || b).collect())
        };
    }
    let number = random.below(9) as i64 - 1;
    let other = random.below(9) as i64 - 1;
    match random.below(9) {
        0 => (format!("label == {number}"), each(&|_, s| s.label == Some(number))),
        1 => (format!("label != {number}"), each(&|_, s| s.label != Some(number))),
        2 => (
            format!("label in ({number}, {other}, none)"),
            each(&|_, s| s.label.is_none_or(|label| label == number || label == other)),
        ),
        3 => (
            format!("{number} <= label < {other}"),
            each(&|_, s| s.label.is_some_and(|label| (number..other).contains(&label))),
        ),
        4 => {
            let bound = [0, 1, 100, 4095, 4096, 9000][random.below(6) as usize];
            (format!("len >= {bound}"), each(&|_, s| s.record.len() >= bound))
        }
        5 => {
            let first = random.below(source.len() as u64);
            (format!("id > {first} and id not in (200)"), each(&|id, _| id > first && id != 200))
        }
        6 => {
            let name = random.below(source.len() as u64) as usize;
            let name = source[name].name.clone();
            let text = format!("name <= '{}'", String::from_utf8(name.clone()).unwrap());
            (text, each(&|_, s| s.name <= name))
        }
        7 => {
            let class = format!("class{:02}/", random.below(6));
            (format!("name glob '{class}*'"), each(&|_, s| s.name.starts_with(class.as_bytes())))
        }
        _ => (
            "name glob '*[13579].bin'".to_owned(),
            each(&|_, s| {
                let digit = s.name[s.name.len() - 5];
                (digit - b'0') % 2 == 1
            }),
        ),
    }
}

#[test]
fn an_expression_selects_exactly_the_samples_for_which_it_holds() {
    let mut source = folder(6, 40);
    source.iter_mut().step_by(7).for_each(|sample| sample.label = None);
    let fixture = fixture(source, &[3, 100, 101, 239]);
    let mut random = Random::new(21);
    let mut nothing = 0;
    for case in 0..cases(400) {
        let (text, fits) = expression(&mut random, &fixture.source, 3);
        let expected: Vec<u64> =
            fixture.live.iter().copied().filter(|id| fits[*id as usize]).collect();
        match fixture.dataset.select(&text, &mut ()) {
            Ok(view) => assert_eq!(ids_of(&view), expected, "case {case}: {text}"),
            Err(error) => {
                assert!(expected.is_empty(), "case {case}: {text}: {}", error.report());
                assert!(error.report().contains("none of 236 samples is selected"));
                nothing += 1;
            }
        }
    }
    assert!(nothing > 0, "nothing was ever selected");
}

#[test]
fn what_no_column_class_or_sample_fits_is_refused_by_name_before_anything_is_read() {
    let fixture = small();
    let refused = |text: &str| {
        let error = fixture.dataset.select(text, &mut ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.report()
    };
    assert!(refused("labl == 3").contains("no column `labl`: there are id, label, len and name"));
    assert!(refused("label == 99").contains("none of 218 samples is selected"));
    assert!(refused("label == 99").contains("no sample fits the expression `label == 99`"));
    assert!(refused("label == 'cat'").contains("classes have no names"));
    assert!(
        refused("len == 'x'").contains("len is a number, and this is a string, at character 8")
    );
    assert!(refused("name == 3").contains("a name is a string in quotes, at character 9"));
    assert!(refused("len glob 'x'").contains("`glob` compares names"));
    assert!(refused("len == none").contains("take `none`"));
    assert!(refused("name glob '[a'").contains("has no `]`"));
    let absent = fixture.dataset.select_ids([SampleId(0), SampleId(3)]).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    assert!(absent.report().contains("no sample 3: it is deleted"), "{}", absent.report());
    let beyond = fixture.dataset.select_ids([SampleId(240)]).unwrap_err().report();
    assert!(beyond.contains("no sample 240: ids are below 240"), "{beyond}");
    let empty = fixture.dataset.select_ids([]).unwrap_err().report();
    assert!(empty.contains("none of 218 samples"), "{empty}");
}

#[test]
fn a_class_is_named_by_its_label_or_its_name() {
    let temp = tempfile::tempdir().unwrap();
    for class in ["cat", "dog", "otter"] {
        std::fs::create_dir(temp.path().join(class)).unwrap();
        (0..5)
            .for_each(|i| std::fs::write(temp.path().join(format!("{class}/{i}")), class).unwrap());
    }
    let dataset =
        Dataset::open(&[Address::from_path(temp.path())], &Options::default(), &mut ()).unwrap();
    let selected = |text: &str| ids_of(&dataset.select(text, &mut ()).unwrap());
    assert_eq!(selected("label == 'dog'"), [5, 6, 7, 8, 9]);
    assert_eq!(selected("label in ('cat', 2)"), [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
    assert_eq!(selected("label glob '*t*' and id >= 4"), [4, 10, 11, 12, 13, 14]);
    let unknown = dataset.select("label == 'cow'", &mut ()).unwrap_err().report();
    assert!(unknown.contains("no class `cow` among 3: cat, dog, otter"), "{unknown}");
    // A plain folder is read as an image is.
    let view = dataset.select("label == 'otter'", &mut ()).unwrap();
    let loader = view.loader(options(OrderKind::Global, 2)).unwrap();
    let mut bytes = Vec::new();
    while let Some(batch) = loader.next(&mut ()).unwrap() {
        bytes.extend(batch.iter().map(|sample| sample.bytes.to_vec()));
    }
    assert_eq!(bytes, vec![b"otter".to_vec(); 5]);
}

fn options(kind: OrderKind, batch_size: usize) -> LoaderOptions {
    let mut options = LoaderOptions::new(OrderSpec { kind, seed: 3 }, batch_size, 1);
    options.deadline = Duration::from_secs(60);
    options
}

const ORDERS: [OrderKind; 7] = [
    OrderKind::Sequential { by: SequentialBy::Id },
    OrderKind::Sequential { by: SequentialBy::Slot },
    OrderKind::Global,
    OrderKind::Grouped { lanes: 3, group: 2 },
    OrderKind::Grouped { lanes: 1, group: 1 },
    OrderKind::Local { world_size: 2 },
    OrderKind::Partial { q: 0.5, world_size: 2 },
];

#[test]
fn every_order_delivers_the_samples_of_a_view_once_and_right() {
    let fixture = small();
    for text in ["len > 0", "label in (1, 4)", "id in (0, 5, 200)", "name glob '*9.bin'"] {
        let view = fixture.dataset.select(text, &mut ()).unwrap();
        for kind in ORDERS {
            let world_size = kind.world_size().unwrap_or(1);
            for batching in [None, Some(Batching::Chunk), Some(Batching::Sample)] {
                let chunked = kind.lanes_and_group().is_some();
                if batching == Some(Batching::Chunk) && !chunked {
                    continue;
                }
                let mut ids = Vec::new();
                for rank in 0..world_size {
                    let options = LoaderOptions { rank, world_size, batching, ..options(kind, 7) };
                    let loader = view.loader(options).unwrap();
                    while let Some(batch) = loader.next(&mut ()).unwrap() {
                        for sample in batch.iter() {
                            let expected = &fixture.source[sample.id.0 as usize];
                            assert_eq!(sample.bytes, expected.record, "{text}, {kind:?}");
                            assert_eq!(sample.label, expected.label, "{text}, {kind:?}");
                            ids.push(sample.id.0);
                        }
                    }
                }
                ids.sort_unstable();
                assert_eq!(ids, ids_of(&view), "{text}, {kind:?}, {batching:?}");
            }
        }
    }
}

#[test]
fn a_grouped_order_over_a_sparse_view_reads_its_samples_and_not_whole_chunks() {
    let samples = (0..600).map(|i| images::sample(&format!("{i:04}"), Some(i % 20), 2000));
    let fixture = fixture(samples.collect(), &[]);
    let read_amplification = |text: &str| {
        let view = fixture.dataset.select(text, &mut ()).unwrap();
        let loader = view.loader(options(OrderKind::Grouped { lanes: 2, group: 2 }, 10)).unwrap();
        while loader.next(&mut ()).unwrap().is_some() {}
        let stats = loader.stats();
        assert_eq!(stats.samples, view.len());
        stats.read.bytes as f64 / stats.sample_bytes as f64
    };
    let sparse = read_amplification("label == 7");
    let dense = read_amplification("label != 7");
    println!("bytes read for each byte: {sparse:.2} of a twentieth, {dense:.2} of the others");
    // Blocks of 512 bytes around samples of 2,000; whole chunks would be 20 times the bytes.
    assert!(sparse < 1.6, "{sparse}");
    assert!(dense < 1.2, "{dense}");
}

/// A population as its definition says, without ranks and bitmaps.
struct Model {
    ids: Vec<u64>,
    chunks: Vec<Vec<u64>>,
}

impl Model {
    fn new(whole: &Directory, ids: &[u64]) -> Model {
        let members: BTreeSet<u64> = ids.iter().copied().collect();
        let of_chunk = |chunk| {
            let samples = whole.samples_in_chunk(chunk).map(|(id, _)| id.0);
            samples.filter(|id| members.contains(id)).collect()
        };
        Model { ids: ids.to_vec(), chunks: (0..whole.num_chunks()).map(of_chunk).collect() }
    }
}

impl Population for Model {
    fn num_live(&self) -> u64 {
        self.ids.len() as u64
    }
    fn num_chunks(&self) -> u32 {
        self.chunks.len() as u32
    }
    fn live_in_chunk(&self, chunk: u32) -> u32 {
        self.chunks[chunk as usize].len() as u32
    }
    fn id_of_live(&self, rank: u64) -> SampleId {
        SampleId(self.ids[rank as usize])
    }
    fn id_in_chunk(&self, chunk: u32, nth: u32) -> SampleId {
        SampleId(self.chunks[chunk as usize][nth as usize])
    }
    fn chunk_of(&self, id: SampleId) -> Option<u32> {
        self.chunks.iter().position(|ids| ids.contains(&id.0)).map(|chunk| chunk as u32)
    }
}

/// The batches of a rank in the rest of an epoch, `sequence`: every W-th sample.
fn dealt(sequence: &[u64], (rank, ranks): (u64, u64), batch: u64) -> Vec<Vec<u64>> {
    let own = sequence.iter().skip(rank as usize).step_by(ranks as usize);
    let own: Vec<u64> = own.copied().collect();
    own.chunks(batch as usize).map(<[u64]>::to_vec).collect()
}

#[test]
fn a_run_over_a_view_resumes_at_any_point_with_other_ranks_and_batches_as_a_model_says() {
    let whole = [small(), fixture(folder(3, 200), &[]), fixture(folder(1, 30), &[7])];
    let mut random = Random::new(22);
    for case in 0..cases(300) {
        let fixture = &whole[random.below(3) as usize];
        // From a few samples to all of them.
        let share = [2, 3, 20][random.below(3) as usize];
        let mut ids = fixture.live.clone();
        ids.retain(|_| random.below(20) < share || share == 20);
        ids.truncate(1 + random.below(ids.len().max(1) as u64) as usize);
        if ids.is_empty() {
            ids.push(fixture.live[0]);
        }
        let view = fixture.dataset.select_ids(ids.iter().map(|&id| SampleId(id))).unwrap();
        let model = Model::new(fixture.dataset.directory(), &ids);
        let kind = ORDERS[random.below(5) as usize];
        let spec = OrderSpec { kind, seed: random.below(1000) };
        let mut state: Option<State> = None;
        let mut epoch: u64 = 0;
        let mut sequence = Vec::new();
        // Runs end after some batches, and others go on from their state.
        for _ in 0..4 {
            let world_size = 1 + random.below(4);
            let batch_size = 1 + random.below(9);
            let mut samplers: Vec<Sampler> = (0..world_size)
                .map(|rank| {
                    let mut options = LoaderOptions::new(spec, batch_size as usize, 1 << 20);
                    (options.rank, options.world_size) = (rank as u32, world_size as u32);
                    options.tail = Tail::Keep;
                    options.resume.clone_from(&state);
                    Sampler::new(&view, options).unwrap()
                })
                .collect();
            let consumed = state.as_ref().map_or(0, |state| state.consumed);
            if consumed == 0 {
                sequence.clear();
                let mut order = EpochOrder::new(&spec, Epoch(epoch), &model).unwrap();
                let mut all = Vec::new();
                order.ids(&model, 0..model.num_live(), &mut all);
                sequence.extend(all.into_iter().map(|id| id.0));
            }
            let rounds = (sequence.len() as u64 - consumed).div_ceil(world_size * batch_size);
            let stop = random.below(rounds + 1);
            let mut found = vec![Vec::new(); world_size as usize];
            let mut batch = Vec::new();
            for _ in 0..stop {
                for (sampler, found) in samplers.iter_mut().zip(&mut found) {
                    if sampler.state().epoch.0 == epoch && sampler.batches_left() > 0 {
                        sampler.next(&mut batch).unwrap().unwrap();
                        found.push(batch.iter().map(|id| id.0).collect::<Vec<u64>>());
                    }
                }
            }
            let expected: Vec<Vec<Vec<u64>>> = (0..world_size)
                .map(|rank| {
                    let rest = &sequence[consumed as usize..];
                    let mut batches = dealt(rest, (rank, world_size), batch_size);
                    batches.truncate(stop as usize);
                    batches
                })
                .collect();
            assert_eq!(found, expected, "case {case}: {kind:?}, {} samples", ids.len());
            let after = samplers[0].state();
            assert_eq!(after.view.map(|view| view.0), view.directory().view().map(|m| m.hash));
            epoch = after.epoch.0;
            state = Some(State::from_json(&after.to_json()).unwrap());
        }
    }
}

#[test]
fn a_state_goes_on_over_its_own_view_only() {
    let fixture = small();
    let select = |text: &str| fixture.dataset.select(text, &mut ()).unwrap();
    let view = select("label in (1, 2)");
    let loader = view.loader(options(OrderKind::Global, 8)).unwrap();
    loader.next(&mut ()).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("state");
    save_state(&file, &loader.state()).unwrap();
    let state = load_state(&file).unwrap().unwrap();
    let resumed = |dataset: &Dataset| {
        let options =
            LoaderOptions { resume: Some(state.clone()), ..options(OrderKind::Global, 3) };
        dataset.loader(options).map(|loader| loader.state()).map_err(|error| error.report())
    };
    // The same samples, however they were selected, are the same view.
    assert_eq!(resumed(&select("1 <= label <= 2")).unwrap(), state);
    let other = resumed(&select("label == 1")).unwrap_err();
    assert!(other.contains("the state counts samples of view ") && other.contains("is view "));
    let whole = resumed(&fixture.dataset).unwrap_err();
    assert!(whole.contains("and this is the whole data set"), "{whole}");
    let of_whole = fixture.dataset.loader(options(OrderKind::Global, 8)).unwrap().state();
    let refused = view.loader(options(OrderKind::Global, 8)).unwrap().set_state(&of_whole);
    assert!(refused.unwrap_err().report().contains("of the whole data set"));
}

#[test]
fn parts_of_a_split_are_disjoint_whole_and_stay_when_samples_come_and_go() {
    for by in [SplitBy::Id, SplitBy::Name, SplitBy::Folder] {
        let mut fixture = small();
        let split = Split::parse("train=0.7,val=0.2,test=0.1", 5, by).unwrap();
        let parts = |dataset: &Dataset| -> Vec<Vec<u64>> {
            let views = dataset.split(&split, &mut ()).map_err(|error| error.report());
            views.unwrap().iter().map(|named| named.view.ids().iter().collect()).collect()
        };
        if by == SplitBy::Folder {
            // Six folders may leave a part empty, which is an error that names it.
            let few = Split::parse("a=0.999,b=0.001", 5, by).unwrap();
            let error = fixture.dataset.split(&few, &mut ()).unwrap_err().report();
            assert!(error.contains("part b, a share of 0.001, has none of 218"), "{error}");
            continue;
        }
        let before = parts(&fixture.dataset);
        let mut all: Vec<u64> = before.iter().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, fixture.live, "each sample is in one part");
        let more: Vec<Sample> =
            (0..200).map(|i| images::sample(&format!("later/{i}"), Some(9), 10)).collect();
        fixture.media.add(&more, 8, 200, &[]);
        fixture.media.delete(&[0, 1, 2]);
        let after = parts(&opened(&fixture.media));
        for (before, after) in before.iter().zip(&after) {
            let left = before.iter().filter(|id| **id > 2);
            assert!(after.iter().filter(|id| **id < 240).eq(left), "{by:?}");
            assert!(after.iter().any(|id| *id >= 240), "new samples are in every part");
        }
    }
}

#[test]
fn a_split_of_a_split_is_independent_of_the_first_with_the_same_seed() {
    let samples: Vec<_> = (0..4000).map(|i| images::sample(&i.to_string(), None, 0)).collect();
    let fixture = fixture(samples, &[]);
    let split = Split::parse("a=0.5,b=0.5", 0, SplitBy::Id).unwrap();
    let part = |dataset: &Dataset| {
        dataset.viewed(&dataset.split(&split, &mut ()).unwrap()[0].view).unwrap()
    };
    let quarter = part(&part(&fixture.dataset));
    assert!((900..1100).contains(&quarter.len()), "{} of 4000", quarter.len());
    // A selection between the two changes no part.
    let half = part(&fixture.dataset);
    let even = half.select("id < 2000", &mut ()).unwrap();
    let one = part(&even);
    let other = part(&half).select("id < 2000", &mut ()).unwrap();
    assert_eq!(ids_of(&one), ids_of(&other));
}

/// The image of `media` in a file, and how to open it with a view.
fn file_of(media: &images::Image) -> (tempfile::TempDir, Vec<Address>) {
    let temp = tempfile::tempdir().unwrap();
    let write = |(number, bytes): (usize, &Vec<u8>)| {
        let path = temp.path().join(format!("{number}.dlfs"));
        let mut padded = bytes.clone();
        padded.resize(bytes.len().next_multiple_of(64 << 10), 0);
        std::fs::write(&path, padded).unwrap();
        Address::from_path(path)
    };
    let addresses = media.namespaces.iter().enumerate().map(write).collect();
    (temp, addresses)
}

#[test]
fn views_in_a_file_are_opened_by_name_and_refused_at_another_generation() {
    let mut fixture = small_in(images::Image::unique(2, Pack::Tight));
    let (temp, addresses) = file_of(&fixture.media);
    let open = |addresses: &[Address], view: &str, tiers: TierOptions| {
        let view = Some(ViewSource::of_text(&temp.path().join(view)));
        let open = OpenOptions { view, tiers, ..OpenOptions::default() };
        let options = Options { open, ..Options::default() };
        Dataset::open(addresses, &options, &mut ())
    };
    let none = TierOptions::default;
    let split = Split::parse("train=0.8", 1, SplitBy::Id).unwrap();
    let views = fixture.dataset.split(&split, &mut ()).unwrap();
    let expected: Vec<Vec<u64>> = views.iter().map(|v| v.view.ids().iter().collect()).collect();
    save_views(&temp.path().join("parts"), views).unwrap();
    // Through a tier, too, which the views share.
    let tiers = TierOptions { tiers: vec!["ram:4M".parse().unwrap()], ..none() };
    for (part, expected) in ["parts:train", "parts:rest"].into_iter().zip(&expected) {
        let view = open(&addresses, part, tiers.clone()).unwrap();
        assert_eq!(&ids_of(&view), expected);
        let loader = view.loader(options(OrderKind::Global, 10)).unwrap();
        let mut bytes = 0;
        while let Some(batch) = loader.next(&mut ()).unwrap() {
            for sample in batch.iter() {
                assert_eq!(sample.bytes, fixture.source[sample.id.0 as usize].record);
                bytes += sample.bytes.len();
            }
        }
        assert!(bytes > 0);
    }
    let refused = |view: &str| open(&addresses, view, none()).unwrap_err();
    assert!(
        refused("parts").report().contains("name one of the views, behind a colon: train, rest")
    );
    assert!(refused("parts:val").report().contains("no view called val; there are train, rest"));
    assert_eq!(refused("nothing").kind(), ErrorKind::NotFound);
    std::fs::write(temp.path().join("text"), "0123456789".repeat(20)).unwrap();
    assert!(refused("text").report().contains("magic is missing"));
    let mut bytes = std::fs::read(temp.path().join("parts")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(temp.path().join("damaged"), &bytes).unwrap();
    assert_eq!(refused("damaged:train").kind(), ErrorKind::Corrupt);
    assert!(refused("damaged:train").report().contains("damaged"));
    std::fs::write(temp.path().join("short"), &bytes[..70]).unwrap();
    assert_eq!(refused("short:train").kind(), ErrorKind::Corrupt);
    std::fs::write(temp.path().join("a:b"), std::fs::read(temp.path().join("parts")).unwrap())
        .unwrap();
    assert!(open(&addresses, "a:b:train", none()).is_ok(), "a colon in the path");

    fixture.media.delete(&[20]);
    let (_newer, newer) = file_of(&fixture.media);
    let stale = open(&newer, "parts:train", none()).unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Stale);
    let report = stale.report();
    assert!(report.contains("the view is of generation 2, and the image is at generation 3"));
    assert!(report.contains("select or split again") && report.contains("parts"), "{report}");
    let mut other = images::Image::unique(1, Pack::Tight);
    other.add(&folder(1, 10), 1, 10, &[]);
    let (_other, other) = file_of(&other);
    let report = open(&other, "parts:train", none()).unwrap_err().report();
    assert!(report.contains("the view is of image"), "{report}");
}

/// Pins the bytes of a file of views, and the parts of splits.
#[test]
fn files_and_splits_are_those_of_the_golden_file() {
    let mut made = String::new();
    let fixture = small();
    let split = Split::parse("train=0.7,val=0.2,test=0.1", 5, SplitBy::Id).unwrap();
    for by in [SplitBy::Id, SplitBy::Name, SplitBy::Folder] {
        let split = Split::parse("train=0.7,val=0.2,test=0.1", 5, by).unwrap();
        for splits in [0, 1] {
            let splitter = Splitter::new(&split, splits);
            let mut name = Vec::new();
            fixture.dataset.load_names(&mut ()).unwrap();
            let part = |id| splitter.part_of(fixture.dataset.directory(), SampleId(id), &mut name);
            let parts: String = (0..80).map(part).map(|at| at.unwrap().to_string()).collect();
            made += &format!("parts {by:?} {splits} {parts}\n");
        }
    }
    let few = fixture.dataset.select("id < 20 and label == 0", &mut ()).unwrap();
    let mut views = few.split(&split, &mut ()).unwrap();
    views.truncate(2);
    let name = "few".to_owned();
    let made_by = "id < 20".to_owned();
    views.push(NamedView { name, made: made_by, view: few.as_view().unwrap() });
    let file = ViewFile::new(views).unwrap();
    for named in file.views() {
        made += &format!("hash {} {:032x}\n", named.name, u128::from_be_bytes(named.view.hash()));
    }
    for row in file.to_bytes().chunks(32) {
        made += &format!(
            "bytes {}\n",
            row.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        );
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/views.txt");
    if std::env::var_os("DLFS_BLESS").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), made, "what is written is frozen");
    assert_eq!(ViewFile::from_bytes(&file.to_bytes(), few.directory()).unwrap(), file);
}

/// Selecting, splitting and opening a view of many samples; `DLFS_VIEW_SAMPLES` sets how many, and the output
/// says how long it took.
#[test]
fn large_data_sets_are_selected_from_without_reading_them() {
    let samples: u64 = std::env::var("DLFS_VIEW_SAMPLES").map_or(50_000, |n| n.parse().unwrap());
    let directory = snapshot::directory_of(samples);
    assert_eq!(directory.num_live(), samples);
    let timed = |what: &str, work: &dyn Fn() -> View| {
        let begin = Instant::now();
        let view = work();
        println!("{what}: {} of {samples} in {:?}", view.len(), begin.elapsed());
        view
    };
    let select =
        |text: &str| View::select(&directory, &Filter::parse(text, &directory).unwrap()).unwrap();
    let by_label = timed("label in (3, 7)", &|| select("label in (3, 7)"));
    let by_len = timed("len < 500", &|| select("len < 500"));
    let both = timed("both", &|| select("label in (3, 7) and len < 500"));
    let in_both = by_label.ids().iter().filter(|id| by_len.ids().contains(*id)).count() as u64;
    assert_eq!(both.len(), in_both);
    timed("name glob", &|| select("name glob '*99.JPEG'"));
    let split = Split::parse("train=0.9,val=0.1", 1, SplitBy::Id).unwrap();
    let train = timed("split", &|| View::split(&directory, &split).unwrap().remove(0));
    let begin = Instant::now();
    let viewed = train.directory(&directory).unwrap();
    println!("its directory in {:?}", begin.elapsed());
    assert_eq!(viewed.num_live(), train.len());
    let begin = Instant::now();
    let few = both.directory(&directory).unwrap();
    println!("that of both in {:?}", begin.elapsed());
    let ids: IdSet = both.ids().clone();
    assert!((0..few.num_live()).map(|rank| few.id_of_live(rank).0).eq(ids.iter()));
    let by_chunk: u64 =
        (0..few.num_chunks()).map(|chunk| u64::from(few.live_in_chunk(chunk))).sum();
    assert_eq!(few.num_live(), by_chunk, "slots agree with ids");
}
