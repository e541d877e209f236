//! An origin and its nodes, each in a network namespace, and the image that they read.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use dlfs::address::Address;
use dlfs::dataset::OpenOptions;
use dlfs::import::{ImportOptions, import};
use dlfs::peers::live_page_bytes;
use dlfs::qpair::ConnectOptions;
use dlfs::tier::PAGE_BYTES;

use crate::network::Network;
use crate::sides::Read;
use crate::support::{Options, Side, files};

/// An image, and what is in it.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    pub(crate) samples: u64,
    pub(crate) len: u64,
    pub(crate) chunks: u32,
    /// Bytes of pages with samples.
    pub(crate) live_bytes: u64,
}

impl Image {
    pub(crate) fn import(at: &Path, options: &Options) -> Image {
        let samples = options.number("samples");
        let len = options.number("len");
        Image::import_with(at, samples, len, options.number("chunk") as u32)
    }

    /// Samples of equal length in chunks of `chunk_size_bytes`.
    pub(crate) fn import_with(at: &Path, samples: u64, len: u64, chunk_size_bytes: u32) -> Image {
        let source = tempfile::tempdir_in(at).expect("a folder");
        files::make_files(source.path(), samples, len as usize);
        let path = at.join(format!("train-{len}-{chunk_size_bytes}.dlfs"));
        let addresses = [Address::from_path(&path)];
        let import_options = ImportOptions { chunk_size_bytes, ..ImportOptions::default() };
        let sources = [source.path().to_owned()];
        let connect = ConnectOptions::default();
        import(&sources, &addresses, &import_options, &connect, &mut ()).expect("an image");
        let image =
            dlfs::dataset::Image::open(&addresses, &OpenOptions::default()).expect("an image");
        let directory = image.directory();
        let live_bytes = live_page_bytes(directory).iter().sum();
        Image { path, samples, len, chunks: directory.num_chunks(), live_bytes }
    }
}

/// How nodes read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) num: usize,
    pub(crate) order: &'static str,
    /// Set if the nodes serve each other.
    pub(crate) peers: bool,
    /// The quotas of all nodes together, of the data.
    pub(crate) quotas: f64,
    /// Set if each sample's bytes are compared.
    pub(crate) verify: bool,
    /// The window of each rank; 0: the loader's default.
    pub(crate) window_bytes: u64,
}

/// The origin and the ranks. A rank that is `None` was killed.
pub(crate) struct Cluster {
    pub(crate) ranks: Vec<Option<Side>>,
    origin: Side,
    pub(crate) network: Network,
    /// From the start of the ranks until all had opened the image and joined.
    pub(crate) joined_s: f64,
    // Removed last.
    _tiers: Vec<tempfile::TempDir>,
}

impl Cluster {
    /// Starts the nodes and waits until all have joined.
    pub(crate) fn start(image: &Image, at: &Path, options: &Options, setting: &Setting) -> Cluster {
        let network = Network::new(setting.num + 1, options.number("origin-mb"));
        let network = network.unwrap_or_else(|error| {
            eprintln!("{error}\nThis bench makes network namespaces: it needs root, ip and tc.");
            std::process::exit(1);
        });
        let path = image.path.to_str().expect("a path of this program's making");
        let listen = Network::address(0);
        let arguments = ["--side", "origin", "--image", path, "--listen", &listen];
        let mut origin = Side::start_in(network.machine(0), &arguments);
        let address = origin.line();
        let meeting = tempfile::tempdir_in(at).expect("a folder");
        let quota = (image.live_bytes as f64 * setting.quotas) as u64 / setting.num as u64;
        let quota = quota.next_multiple_of(PAGE_BYTES);
        let window = setting.window_bytes.to_string();
        let mut tiers = vec![];
        let began = Instant::now();
        let mut ranks: Vec<Option<Side>> = (0..setting.num)
            .map(|rank| {
                let folder = tempfile::tempdir_in(at).expect("a folder");
                let tier = match options.text("tier") {
                    "ram" => format!("ram:{quota}"),
                    _ => format!("file:{}:{quota}", folder.path().display()),
                };
                tiers.push(folder);
                let meeting = if setting.peers { meeting.path() } else { Path::new("") };
                let listen = Network::address(rank + 1);
                let rank_text = rank.to_string();
                let world = setting.num.to_string();
                let mut arguments = vec!["--side", "rank", "--image", &address, "--tier", &tier];
                arguments.extend(["--rank", &rank_text, "--world", &world, "--listen", &listen]);
                arguments.extend(["--order", setting.order, "--batch-size", options.text("batch")]);
                arguments.extend(["--peers", meeting.to_str().expect("a path of our making")]);
                arguments.extend(["--window", &window]);
                arguments.extend(setting.verify.then_some("--verify"));
                Some(Side::start_in(network.machine(rank + 1), &arguments))
            })
            .collect();
        ranks.iter_mut().flatten().for_each(|rank| assert_eq!(rank.line(), "joined"));
        let joined_s = began.elapsed().as_secs_f64();
        tiers.push(meeting);
        Cluster { ranks, origin, network, joined_s, _tiers: tiers }
    }

    /// Bytes of data that the origin has sent since its start.
    pub(crate) fn origin_bytes(&mut self) -> u64 {
        self.origin.go_on();
        self.origin.line().parse().expect("a number")
    }

    /// Lets all ranks read `epochs` at the same time, and waits for them.
    pub(crate) fn read(&mut self, epochs: Range<u64>, pace_mb_s: u64) -> Vec<Read> {
        self.begin(epochs, pace_mb_s);
        self.end()
    }

    /// Lets each rank read everything, until its tier has all that fits.
    pub(crate) fn fill(&mut self) {
        self.tell("0 1 0 all");
        self.end();
    }

    /// Tells all ranks to read their shares of `epochs`.
    pub(crate) fn begin(&mut self, epochs: Range<u64>, pace_mb_s: u64) {
        self.tell(&format!("{} {} {pace_mb_s} share", epochs.start, epochs.end));
    }

    fn tell(&mut self, line: &str) {
        self.ranks.iter_mut().flatten().for_each(|rank| rank.tell(line));
    }

    /// Collects the results of the ranks that live.
    pub(crate) fn end(&mut self) -> Vec<Read> {
        self.ranks.iter_mut().flatten().map(|rank| Read::parse(&rank.line())).collect()
    }
}
