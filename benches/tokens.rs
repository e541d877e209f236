//! Rows of tokens: bytes a second of a loader beside those of a mapped file, and what packing and planning cost.

#[path = "../tests/support/huge_image.rs"]
#[allow(dead_code, unreachable_pub)] // a test uses other parts of it
mod huge_image;
mod support;

use std::hint::black_box;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlfs::address::Address;
use dlfs::buf::SealedBytes;
use dlfs::dataset::{Dataset, Mixture, Options as OpenOptions, TokenBatch, TokenOptions};
use dlfs::format::FieldTypes;
use dlfs::import::{NewSample, Writer, WriterOptions};
use dlfs::order::budget::{Budget, Cost, LengthsOf, Pack, RowSpec};
use dlfs::order::mixture::{Batching, Part};
use dlfs::order::{OrderKind, OrderSpec, Shard, State, Tail};
use dlfs::permutation::Key;
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::target::{Target, TargetOptions};
use dlfs::tokens::{Arrays, Columns, Layout, RowCounts, RowDeal, TokensMut, count_rows};
use dlfs::units::{Epoch, Nsid};
use support::{Options, Side, Stopwatch};
use zerocopy::FromBytes as _;

const USAGE: &str = "cargo bench --bench tokens -- [--parts PART,PART] [--rounds N] [--slice-ms MS]

PART: loader, fit, mixture, directory.

loader: --corpus bytes of u16 tokens in documents with log-normal lengths, grouped order, verified, in batches of
65,536 tokens, written into two arrays in turn. The loader, its poller and its consumer share one processor. A plain
loop there copies rows of the same tokens from a mapped file, one after the other. Over TCP, the target has the other
processor, and the image in its memory. Medians of the rounds, each of one slice a row.
directory: an image of that many documents of 150 tokens, a number that does not fit in 12 GB is left out; so many
plans of it.";

fn main() {
    support::results::record("tokens");
    let options = Options::parse(
        USAGE,
        &[
            ("parts", "loader,fit,mixture,directory"),
            ("rounds", "5"),
            ("slice-ms", "600"),
            ("corpus", "400000000"),
            ("group", "4"),
            ("window", "0"),
            ("documents", "100000000,1000000000"),
            ("plans", "3"),
            ("at", "target"),
            // The following options give a process of the bench its role.
            ("side", ""),
            ("image", ""),
        ],
    );
    match options.text("side") {
        "serve" => return serve(Path::new(options.text("image"))),
        "plan" => return plan(&options),
        _ => println!("{}; {}", support::machine(), load()),
    }
    let work = tempfile::tempdir_in(options.text("at")).expect("a folder in --at");
    for part in options.text("parts").split(',') {
        match part {
            "loader" => loader(&options, work.path()),
            "fit" => fit(options.number("rounds")),
            "mixture" => mixture(&options, work.path()),
            "directory" => directory(&options, work.path()),
            other => panic!("there is no part {other}; see --help"),
        }
    }
    println!("\nAfterwards: {}", load());
}

/// The load averages: others may use the same processors.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let averages: Vec<&str> = text.split(' ').take(3).collect();
    format!("load averages {}", averages.join(", "))
}

// Reading.

/// The type of the arrays that rows are written into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Array {
    U16,
    I64,
}

impl Array {
    fn name(self) -> &'static str {
        match self {
            Array::U16 => "u16",
            Array::I64 => "i64",
        }
    }
}

/// The rows of a measurement, and the arrays that they go to.
#[derive(Debug, Clone, Copy)]
struct Case {
    pack: Pack,
    seq_len: u32,
    array: Array,
}

/// The result of one slice.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Rates of u16 tokens: a second, and a second of this process's processor time: others may use the processor, too.
    gb_s: f64,
    gb_cpu_s: f64,
    /// Bytes read a byte of tokens.
    read_share: f64,
}

fn loader(options: &Options, work: &Path) {
    let path = work.join("corpus.dlfs");
    let (mapped, documents) = write_corpus(&path, options.number("corpus"), 1);
    let local = open(&Address::from_path(&path));
    let mut target = Side::start(&["--side", "serve", "--image", path.to_str().expect("ASCII")]);
    let remote = open(&target.line().parse().expect("an address"));
    let rounds = options.number("rounds");
    println!("\n{} MB of tokens, {documents} documents\n\n{READ_HEAD}", mapped.len() / 1_000_000);
    let mut over_tcp = Vec::new();
    for pack in [Pack::Concat, Pack::BestFit] {
        for seq_len in [2048, 8192] {
            for array in [Array::U16, Array::I64] {
                let case = Case { pack, seq_len, array };
                let mut runs = [const { Vec::<Run>::new() }; 3];
                for _ in 0..rounds {
                    runs[0].push(pinned(|| read(&local, case, options)));
                    runs[1].push(pinned(|| copy(&mapped, case, options)));
                    runs[2].push(pinned(|| read(&remote, case, options)));
                }
                println!("{}", read_row(case, &runs));
                over_tcp.push(tcp_row(case, &runs));
            }
        }
    }
    println!("\nOver NVMe/TCP\n\n{TCP_HEAD}\n{}", over_tcp.join("\n"));
}

fn read_row(case: Case, [local, copied, _]: &[Vec<Run>; 3]) -> String {
    let Case { pack, seq_len, array } = case;
    let name = array.name();
    let bar = if array == Array::U16 { 2.0 } else { 1.2 };
    let (least, rate, most) = spread(local.iter().map(|run| run.gb_s));
    let shares = local.iter().zip(copied).map(|(run, copied)| run.gb_cpu_s / copied.gb_cpu_s);
    let share = spread(shares).1;
    let busy = spread(local.iter().map(|run| run.gb_cpu_s)).1;
    let ceiling = spread(copied.iter().map(|run| run.gb_cpu_s)).1;
    let read = spread(local.iter().map(|run| run.read_share)).1;
    let verdict = verdict(rate >= bar);
    format!(
        "| {pack} | {seq_len} | {name} | {rate:.2} ({least:.2} to {most:.2}) | {busy:.2} | {ceiling:.2} | \
         {share:.2} | {read:.2} | >= {bar} GB/s | {verdict} |"
    )
}

fn tcp_row(case: Case, [local, _, remote]: &[Vec<Run>; 3]) -> String {
    let Case { pack, seq_len, array } = case;
    let name = array.name();
    let rate = spread(remote.iter().map(|run| run.gb_s)).1;
    let busy = spread(remote.iter().map(|run| run.gb_cpu_s)).1;
    let ratios = remote.iter().zip(local).map(|(remote, local)| remote.gb_s / local.gb_s);
    let (least, ratio, most) = spread(ratios);
    let verdict = verdict(ratio >= TCP_BAR);
    format!(
        "| {pack} | {seq_len} | {name} | {rate:.2} | {busy:.2} | {ratio:.2} ({least:.2} to {most:.2}) | \
         >= {TCP_BAR} | {verdict} |"
    )
}

/// Runs `work`, and the threads that it starts, on the second processor.
fn pinned<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let bound = || {
        support::pin(HOST_CPU);
        work()
    };
    std::thread::scope(|scope| scope.spawn(bound).join().expect("no panic"))
}

/// Reads rows for a slice; the time before the first batches does not count.
fn read(dataset: &Dataset, case: Case, options: &Options) -> Run {
    let rows = BATCH_TOKENS / case.seq_len;
    let wanted = TokenOptions { pack: case.pack, ..TokenOptions::new(case.seq_len, rows) };
    let kind = OrderKind::Grouped { lanes: 0, group: options.number("group") as u32 };
    let run = LoaderOptions {
        window_bytes: options.number("window") as usize,
        ..LoaderOptions::new(OrderSpec { kind, seed: 7 }, 1, 1000)
    };
    let loader = dataset.token_loader(wanted, run).expect("rows of this corpus");
    let mut batch = TokenBatch::new();
    let columns = Columns::all(case.seq_len);
    let mut slice = Slice::new(case, options);
    let mut tokens = 0;
    slice.fill(|array| {
        assert!(loader.next(&mut batch, &mut ()).expect("verified documents"), "epochs enough");
        batch.fill(&columns, array).expect("tokens of u16");
        let filled = batch.layout().segments.iter().map(|segment| u64::from(segment.len)).sum();
        tokens += filled;
        filled
    });
    let read_share = loader.loader().stats().read.bytes as f64 / (2 * tokens) as f64;
    slice.run(read_share)
}

/// Copies rows from `mapped` for a slice, one after the other.
fn copy(mapped: &[u8], case: Case, options: &Options) -> Run {
    let tokens = <[u16]>::ref_from_bytes(mapped).expect("a mapping is aligned");
    let len = case.seq_len as usize;
    let mut at = 0;
    let mut slice = Slice::new(case, options);
    slice.fill(|array| {
        let mut row = |to: &mut dyn FnMut(&[u16])| {
            at = if at + len + 1 > tokens.len() { 0 } else { at };
            to(&tokens[at..at + len + 1]);
            at += len;
        };
        let rows = (BATCH_TOKENS / case.seq_len) as usize;
        match &mut array.tokens {
            TokensMut::U16(out) => {
                out.chunks_exact_mut(len + 1)
                    .for_each(|out| row(&mut |from| out.copy_from_slice(from)));
            }
            TokensMut::I64(out) => out.chunks_exact_mut(len + 1).for_each(|out| {
                row(&mut |from| {
                    out.iter_mut().zip(from).for_each(|(to, token)| *to = i64::from(*token));
                });
            }),
            TokensMut::U32(_) | TokensMut::I32(_) => unreachable!("no case has these"),
        }
        (rows * (len + 1)) as u64
    });
    slice.run(0.0)
}

/// A time in which arrays are filled, two in turn: a consumer has one of them.
struct Slice {
    limit: Duration,
    u16s: [Vec<u16>; 2],
    i64s: [Vec<i64>; 2],
    array: Array,
    tokens: u64,
    /// Seconds of wall and of processor time.
    lasted: (f64, f64),
}

impl Slice {
    fn new(case: Case, options: &Options) -> Slice {
        let len = (BATCH_TOKENS / case.seq_len * (case.seq_len + 1)) as usize;
        let of = |array| if case.array == array { len } else { 0 };
        Slice {
            limit: Duration::from_millis(options.number("slice-ms")),
            u16s: std::array::from_fn(|_| vec![0; of(Array::U16)]),
            i64s: std::array::from_fn(|_| vec![0; of(Array::I64)]),
            array: case.array,
            tokens: 0,
            lasted: (0.0, 0.0),
        }
    }

    /// Calls `fill`, which returns the tokens that it wrote, until the time is over.
    fn fill(&mut self, mut fill: impl FnMut(&mut Arrays<'_>) -> u64) {
        let warm = Instant::now() + self.limit / 4;
        let mut turn = 0;
        while Instant::now() < warm {
            self.fill_once(turn, &mut fill);
            turn += 1;
        }
        let watch = Stopwatch::start();
        while watch.elapsed() < self.limit {
            self.tokens += self.fill_once(turn, &mut fill);
            turn += 1;
        }
        self.lasted = watch.seconds();
    }

    fn fill_once(&mut self, turn: usize, fill: &mut impl FnMut(&mut Arrays<'_>) -> u64) -> u64 {
        let tokens = match self.array {
            Array::U16 => TokensMut::U16(&mut self.u16s[turn % 2]),
            Array::I64 => TokensMut::I64(&mut self.i64s[turn % 2]),
        };
        let filled = fill(&mut Arrays {
            tokens,
            segment_ids: None,
            position_ids: None,
            loss_mask: None,
            cu_seqlens: None,
            sample_ids: None,
        });
        black_box((&self.u16s, &self.i64s));
        filled
    }

    fn run(&self, read_share: f64) -> Run {
        let gb = self.tokens as f64 * 2.0 / 1e9;
        Run { gb_s: gb / self.lasted.0, gb_cpu_s: gb / self.lasted.1, read_share }
    }
}

/// Serves the image from memory until standard input closes.
fn serve(path: &Path) {
    support::pin(TARGET_CPU);
    let device = support::loaded::loaded(path);
    let nqn = "nqn.2026-11.io.dlfs:tokens".parse().expect("a valid name");
    let target = Target::bind(TargetOptions::new(nqn), vec![Arc::new(device.read_only())]);
    let target = target.expect("a free port");
    println!("{}", target.address(Nsid(1)));
    support::wait_for_end_of_input();
}

// Packing and planning.

/// Best fit of documents whose lengths are in memory.
fn fit(rounds: u64) {
    println!("\nBest fit alone\n\n{FIT_HEAD}");
    let lengths: Vec<u32> = (0..FIT_DOCUMENTS).map(|number| length(number, MEAN_TOKENS)).collect();
    for seq_len in [2048, 8192] {
        let budget = budget(seq_len, Pack::BestFit);
        let number = |range: Range<u64>| range.start as usize..range.end as usize;
        let counts = count_rows(&budget, 7, Epoch(0), FIT_DOCUMENTS, |range, tokens| {
            tokens.extend_from_slice(&lengths[number(range)]);
            Ok(())
        });
        let RowCounts { rows, tokens, cuts, .. } = counts.expect("lengths that may be cut");
        let share = 100.0 * tokens as f64 / (rows * budget.tokens) as f64;
        let once = |_| {
            let mut draw = |range: Range<u64>, documents: &mut Vec<u64>, tokens: &mut Vec<u32>| {
                documents.extend(range.clone());
                tokens.extend_from_slice(&lengths[number(range)]);
                Ok(())
            };
            let shard = Shard::new(0, 1, Tail::Keep).expect("one rank");
            let rows = BATCH_TOKENS / seq_len;
            let mut deal =
                RowDeal::new(&budget, &[rows], (7, Epoch(0)), FIT_DOCUMENTS, shard, None);
            let mut documents = Vec::new();
            let mut layout = Layout::default();
            let watch = Stopwatch::start();
            while deal.next(&mut draw, &mut documents, &mut layout).expect("lengths").is_some() {
                black_box((&documents, &layout));
                documents.clear();
            }
            watch.seconds().1 * 1e9
        };
        let nanos = (0..rounds).map(once).fold(f64::INFINITY, f64::min);
        let a_token = nanos / tokens as f64;
        let a_document = nanos / FIT_DOCUMENTS as f64;
        println!(
            "| {seq_len} | {rows} | {cuts} | {share:.3} % | >= {FIT_BAR} % | {} | {a_token:.3} | {a_document:.1} | \
             <= 1 ns | {} |",
            verdict(share >= FIT_BAR),
            verdict(a_token <= 1.0)
        );
    }
}

/// Rows of a mixture of 16 sources, as ids, without reading samples.
fn mixture(options: &Options, work: &Path) {
    println!("\nPlanning a mixture\n\n{MIXTURE_HEAD}");
    let parts = (0..SOURCES).map(|number| {
        let path = work.join(format!("source-{number}.dlfs"));
        write_corpus(&path, options.number("corpus") / 2 / SOURCES, number + 2);
        let weight = (1 + number * number).to_string();
        (open(&Address::from_path(&path)), Part::Weight(weight.parse().expect("a weight")))
    });
    let mixed =
        Mixture::new(parts.collect(), Some(MIXTURE_POSITIONS), Batching::Stratified, vec![])
            .expect("16 sources");
    for kind in [OrderKind::Grouped { lanes: 0, group: 4 }, OrderKind::Global] {
        for pack in [Pack::Concat, Pack::BestFit] {
            let run = LoaderOptions {
                rows: vec![BATCH_TOKENS / 8192],
                ..LoaderOptions::new(OrderSpec { kind, seed: 7 }, 1, 1)
            };
            let run = run.by_budget(budget(8192, pack));
            let mut sampler = mixed.sampler(run).expect("rows of these sources");
            let mut ids = Vec::new();
            let mut documents = 0;
            let mut batches = 0;
            let watch = Stopwatch::start();
            while sampler.next(&mut ids).expect("lengths").is_some() {
                documents += black_box(&ids).len();
                batches += 1;
            }
            let nanos = watch.seconds().1 * 1e9;
            let rows = batches * u64::from(BATCH_TOKENS / 8192);
            let a_document = nanos / documents as f64;
            let order = name_of(kind);
            println!(
                "| {order} | {pack} | {rows} | {:.1} | {:.0} | {a_document:.0} | <= 1000 ns | {} |",
                documents as f64 / rows as f64,
                nanos / rows as f64,
                verdict(a_document <= 1000.0)
            );
        }
    }
}

/// The first batch over images of very many documents.
fn directory(options: &Options, work: &Path) {
    println!("\nThe first batch over very many documents\n\n{DIRECTORY_HEAD}");
    for documents in options.text("documents").split(',') {
        let count: u64 = documents.parse().expect("a number of documents");
        let need = count * 9 + (2 << 30);
        let free = status_bytes("/proc/meminfo", "MemAvailable:");
        if need > free.min(12_000_000_000) {
            println!(
                "| {documents} | left out: {need} bytes of memory of {free} | | | | | | | | |"
            );
            continue;
        }
        let path = work.join("huge.dlfs");
        huge_image::write_image(&path, count);
        let path = path.to_str().expect("ASCII");
        let plans = options.text("plans");
        let role = ["--side", "plan", "--image", path, "--documents", documents, "--plans", plans];
        let mut side = Side::start(&role);
        for _ in 0..options.number("plans") * 3 {
            println!("{}", side.line());
        }
        drop(side);
        std::fs::remove_file(path).expect("the image just written");
    }
}

/// Prints, for each plan, a row from an epoch's start, one from its middle, and one from the place found there.
fn plan(options: &Options) {
    let documents = options.number("documents");
    let opening = Instant::now();
    let dataset = open(&Address::from_path(options.text("image")));
    let opened = opening.elapsed().as_secs_f64();
    let beside = dataset.directory().memory_bytes().total() as f64 / documents as f64;
    for (pack, kind) in PLANS.into_iter().take(options.number("plans") as usize) {
        let mut resume: Option<State> = None;
        for from in ["the start", "the middle", "a place there"] {
            // The peak counts from here on.
            std::fs::write("/proc/self/clear_refs", "5").expect("Linux");
            let before = status_bytes("/proc/self/status", "VmRSS:");
            let began = Instant::now();
            let field = Some("u16".to_owned());
            let wanted = TokenOptions { pack, field, ..TokenOptions::new(8192, 8) };
            let run = LoaderOptions {
                window_bytes: 16 << 20,
                deadline: Duration::from_secs(3600), // a walk to the middle takes long
                resume: resume.take(),
                ..LoaderOptions::new(OrderSpec { kind, seed: 7 }, 1, 1)
            };
            let loader = dataset.token_loader(wanted, run).expect("rows of these documents");
            let made = began.elapsed().as_secs_f64();
            let mut batch = TokenBatch::new();
            assert!(loader.next(&mut batch, &mut ()).expect("documents of zeroes"), "a batch");
            let first = began.elapsed().as_secs_f64();
            let grown = status_bytes("/proc/self/status", "VmHWM:").saturating_sub(before);
            let grown = grown as f64 / documents as f64;
            let order = name_of(kind);
            let bar = if from != "the middle" {
                format!("<= {PLAN_BAR} s | {}", verdict(first <= PLAN_BAR))
            } else {
                " | ".to_owned()
            };
            println!(
                "| {documents} | {opened:.1} | {beside:.2} | {order} | {pack} | {from} | {made:.2} | {first:.2} | \
                 {bar} | {grown:.2} | <= 4 B | {} |",
                verdict(grown <= 4.0)
            );
            let rows = documents * huge_image::SAMPLE_BYTES / 2 / 8192;
            let state = loader.loader().state();
            resume = Some(match from {
                "the start" => State { consumed: rows / 2, place: None, ..state },
                _ => state,
            });
        }
    }
    support::wait_for_end_of_input();
}

fn status_bytes(path: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(path).expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a known field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

// Documents.

fn open(address: &Address) -> Dataset {
    let addresses = std::slice::from_ref(address);
    Dataset::open(addresses, &OpenOptions::default(), &mut ()).expect("what this bench has made")
}

fn budget(seq_len: u32, pack: Pack) -> Budget {
    Budget {
        tokens: u64::from(seq_len) + 1,
        window: 16_384,
        max_samples: None,
        cost: Cost::Sum,
        lengths: LengthsOf::Bytes(2),
        rows: Some(RowSpec { pack, separated: false, cuts: true }),
        phases: Vec::new(),
    }
}

/// The tokens of a document: log-normal, by Box and Muller. The mean is exp(sigma^2 / 2) times the median.
fn length(number: u64, mean: f64) -> u32 {
    let unit = |word| {
        let key = Key::derive(number, &[word]).word() >> 11;
        (key as f64 + 0.5) / (1_u64 << 53) as f64
    };
    let normal = (-2.0 * unit(0).ln()).sqrt() * (std::f64::consts::TAU * unit(1)).cos();
    (mean * (SIGMA * normal - SIGMA * SIGMA / 2.0).exp()).max(1.0) as u32
}

/// Writes an image of documents with `bytes` of tokens in all; returns the tokens, mapped, and the number of documents.
fn write_corpus(path: &Path, bytes: u64, seed: u64) -> (SealedBytes, u64) {
    let options = WriterOptions {
        fields: vec![b"tokens".to_vec()],
        field_types: FieldTypes::new(vec![Some("u16[*]".parse().expect("a type"))]),
        ..WriterOptions::default()
    };
    let address = [Address::from_path(path)];
    let mut writer =
        Writer::create(&address, options, &ConnectOptions::default()).expect("a new image");
    let words =
        (0..bytes.div_ceil(8)).flat_map(|at| Key::new(seed << 40 | at).word().to_le_bytes());
    let tokens: Vec<u8> = words.take(bytes as usize).collect();
    let mut rest = &tokens[..];
    let mut documents = 0;
    while !rest.is_empty() {
        let len = 2 * length(seed << 40 | documents, MEAN_TOKENS) as usize;
        let (document, behind) = rest.split_at(len.min(rest.len()));
        let fields = [Some(document)];
        writer.write(&NewSample { fields: &fields, ..Default::default() }).expect("room");
        rest = behind;
        documents += 1;
    }
    writer.finish().expect("a whole image");
    (SealedBytes::of(&tokens).expect("memory"), documents)
}

/// The minimum, the median and the maximum.
fn spread(figures: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    (figures[0], figures[figures.len() / 2], figures[figures.len() - 1])
}

fn name_of(order: OrderKind) -> &'static str {
    if order == OrderKind::Global { "global" } else { "grouped" }
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

const READ_HEAD: &str = "| rows | L | arrays | a loader, GB/s of u16 | GB a CPU second | a mapped file, GB a CPU \
                         second | of the mapped file | bytes read a byte | bar | |\n\
                         |---|---|---|---|---|---|---|---|---|---|";
const TCP_HEAD: &str = "| rows | L | arrays | over NVMe/TCP, GB/s of u16 | GB a CPU second of the host | \
                        beside local | bar | |\n|---|---|---|---|---|---|---|---|";
const FIT_HEAD: &str = "| best fit: L | rows | documents cut | full | bar | | ns a token | ns a document | \
                        bar | |\n|---|---|---|---|---|---|---|---|---|---|";
const MIXTURE_HEAD: &str = "| 16 sources: order | rows | number | documents a row | ns a row | ns a document | \
                            bar | |\n|---|---|---|---|---|---|---|---|";
const DIRECTORY_HEAD: &str = "| documents | opened, s | directory, B a document | order | rows | from | \
                              loader, s | first batch, s | bar | | more memory, B a document | bar | |\n\
                              |---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// The processors of the target and of loaders, as indices into those that the bench may use.
const TARGET_CPU: usize = 0;
const HOST_CPU: usize = 1;

/// The inputs of a batch.
const BATCH_TOKENS: u32 = 65_536;
const MEAN_TOKENS: f64 = 1000.0;
const SIGMA: f64 = 1.1;
/// The least share of a local loader that one over TCP may have.
const TCP_BAR: f64 = 0.7;
/// The least percentage of columns that have tokens.
const FIT_BAR: f64 = 99.0;
const FIT_DOCUMENTS: u64 = 2_000_000;
const SOURCES: u64 = 16;
const MIXTURE_POSITIONS: u64 = 1_000_000;
/// The most seconds from an open directory to the first batch.
const PLAN_BAR: f64 = 2.0;
const PLANS: [(Pack, OrderKind); 3] = [
    (Pack::Concat, OrderKind::Grouped { lanes: 1, group: 2 }),
    (Pack::BestFit, OrderKind::Grouped { lanes: 1, group: 2 }),
    (Pack::BestFit, OrderKind::Global),
];
