//! The other nodes of a job, on the command line.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;

use dlfs::ErrorKind;
use dlfs::dataset::Image;
use dlfs::peers::rendezvous::{DEFAULT_TIMEOUT, Rendezvous};
use dlfs::peers::{JobKey, JoinOptions, Means, Meeting, PeerKeys, PeerStats, Serving};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;
use dlfs::store::StoreOptions;

use crate::args::warn_of_key_text;
use crate::exit::Failure;
use crate::help::{loading, opening};
use crate::text;

/// How to find the job's other nodes, whose tiers are read, too.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Peers")]
pub(crate) struct PeerArgs {
    #[arg(long, value_name = "auto|DIR|LIST")]
    #[arg(help = loading(
        "peers",
        ": each byte comes from the data set once, then from the node that holds it. auto: ranks find each \
         other at rank 0, as the launcher's MASTER_ADDR and MASTER_PORT name it; DIR: in a folder that all \
         nodes see; LIST: HOST:PORT,HOST:PORT,... of each rank, or a file with one a line"
    ))]
    peers: Option<String>,
    #[arg(long, value_name = "NAME", requires = "peers")]
    #[arg(help = loading("round", ", the same on all ranks and not used before [default: the launcher's]"))]
    round: Option<String>,
    #[arg(long, value_name = "MODE", requires = "peers", value_parser = PossibleValuesParser::new(MODES))]
    #[arg(help = loading(
        "peer_mode",
        ": read-through: a hash names the holder, which reads them from the data set, keeps them and answers; \
         copies: the same holder answers that they are not there, and fetches what it holds by itself; plan: a \
         node holds what its ranks read most often, and answers as with copies (NoPFS; with --policy \
         clairvoyant) [default: read-through]"
    ))]
    peer_mode: Option<String>,
    #[arg(long, value_name = "IP[:PORT]", requires = "peers", value_parser = parse_listen)]
    #[arg(help = loading(
        "peer_address",
        ": IP, or IP:PORT [default: the address from which MASTER_ADDR is reached, any port]"
    ))]
    peer_address: Option<SocketAddr>,
    #[arg(long, value_name = "PORT", requires = "peers", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(help = loading("rendezvous_port", " [default: MASTER_PORT + 1, or the list's first port + 1]"))]
    rendezvous_port: Option<u16>,
    #[arg(long, value_name = "FILE|KEY|rendezvous", requires = "peers")]
    #[arg(help = loading(
        "job_key",
        ", the same for all: the path of a key file with mode 0600, the key itself, which `ps` shows to everybody, or \
         rendezvous: rank 0 draws one, and the others get it where they meet; `dlfs key gen` makes keys"
    ))]
    job_key: Option<String>,
    #[arg(long, requires = "job_key")]
    #[arg(help = loading(
        "peer_tls",
        ", which needs a build with TLS; otherwise they authenticate, and data are sent in clear"
    ))]
    peer_tls: bool,
    #[arg(long, value_name = "NAME", requires = "peers")]
    #[arg(help = opening("node", ": ranks of one node share their tiers [default: the machine's identity]"))]
    node: Option<String>,
    #[arg(long, value_name = "SECONDS", requires = "peers")]
    #[arg(help = loading("peer_timeout", ", at the start and at the end [default: 60]"))]
    peer_timeout: Option<u64>,
}

/// A round that this rank has joined, to be ended together.
pub(crate) struct Joined {
    meeting: Meeting,
    connect: ConnectOptions,
}

impl PeerArgs {
    /// Returns whether the ranks read from each other's tiers.
    pub(crate) fn is_given(&self) -> bool {
        self.peers.is_some()
    }

    /// The name of this node, if it has one.
    pub(crate) fn node(&self) -> Option<String> {
        self.node.clone()
    }

    /// The answer of nodes to reads of data that they lack.
    ///
    /// # Errors
    /// None: the command line has checked the name.
    fn serving(&self) -> Result<Serving, Failure> {
        Ok(self.peer_mode.as_deref().map_or(Ok(Serving::default()), str::parse)?)
    }

    /// How ranks prove themselves to each other.
    ///
    /// # Errors
    /// The key cannot be read.
    fn keys(&self) -> Result<Option<PeerKeys>, Failure> {
        let Some(text) = &self.job_key else { return Ok(None) };
        warn_of_key_text("--job-key", text);
        Ok(Some(PeerKeys { key: JobKey::of(text)?, tls: self.peer_tls }))
    }

    /// The meeting point of the ranks, and this rank's number there, if `--peers` is given. `place` is the rank and
    /// the world size of the command line.
    ///
    /// # Errors
    /// `Usage`: as [`JoinOptions::meeting`].
    pub(crate) fn meeting(&self, place: Option<(u32, u32)>) -> Result<Option<Meeting>, Failure> {
        let Some(means) = &self.peers else { return Ok(None) };
        let options = JoinOptions {
            place,
            round: self.round.clone(),
            address: self.peer_address,
            rendezvous_port: self.rendezvous_port,
            node: self.node.clone(),
            serving: self.serving()?,
            timeout: self.peer_timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
            keys: self.keys()?,
            ..JoinOptions::new(Means::of(means)?)
        };
        let meeting = options.meeting_here().map_err(|error| match error.kind() {
            ErrorKind::InvalidArgument => Failure::Usage(error.report()),
            _ => error.into(),
        })?;
        Ok(Some(meeting))
    }
}

impl Joined {
    /// Joins the round: the image read through its peers.
    ///
    /// # Errors
    /// Those of [`Image::with_peers`] and of the rendezvous.
    pub(crate) fn join(
        meeting: Meeting,
        image: Image,
        connect: ConnectOptions,
        run: &LoaderOptions,
    ) -> Result<(Image, Joined), Failure> {
        let mut rendezvous = meeting.rendezvous(&connect)?.expect("the command has no object");
        let image = image.with_peers(&meeting.peer_options(&connect), run, &mut *rendezvous)?;
        Ok((image, Joined { meeting, connect }))
    }

    /// Joins the round with a store of its own for this rank's share.
    ///
    /// # Errors
    /// Those of [`Image::with_store`] and of the rendezvous.
    pub(crate) fn with_store(
        meeting: Meeting,
        image: Image,
        connect: ConnectOptions,
        run: &LoaderOptions,
        store: StoreOptions,
    ) -> Result<(Image, Joined), Failure> {
        let mut rendezvous = meeting.rendezvous(&connect)?.expect("the command has no object");
        let options = meeting.peer_options(&connect);
        let rendezvous: &mut dyn Rendezvous = &mut *rendezvous;
        let image = image.with_store(store, run, Some((&options, rendezvous)))?;
        Ok((image, Joined { meeting, connect }))
    }

    /// Goes on serving until all ranks have read what they wanted.
    pub(crate) fn wait_for_end(&self, image: &Image) {
        let Some(peers) = image.peers() else { return };
        let Joined { meeting, connect } = self;
        let ended = meeting.rendezvous_of_end(connect).and_then(|rendezvous| {
            let mut rendezvous = rendezvous.expect("the command has no object");
            peers.wait_for_end(&mut *rendezvous, meeting.timeout())
        });
        if let Err(error) = ended {
            // This rank has all that it wanted; the others go elsewhere.
            eprintln!("dlfs: {}", error.report());
        }
    }
}

/// Report lines on the data that came from other nodes.
pub(crate) fn peer_lines(stats: &PeerStats) -> Vec<String> {
    let used: Vec<_> = stats.nodes.iter().filter(|node| node.reads > 0).collect();
    let (reads, bytes) =
        used.iter().fold((0, 0), |(reads, bytes), node| (reads + node.reads, bytes + node.bytes));
    let seconds: f64 = used.iter().map(|node| node.read_s).sum();
    let mut line = format!(
        "  peers      {} of {} other nodes: {} reads, {}, {:.0} us each",
        used.len(),
        stats.nodes.len().saturating_sub(1),
        text::count(reads),
        text::bytes(bytes),
        1e6 * seconds / reads.max(1) as f64
    );
    for (bytes, what) in [
        (stats.not_there_bytes, "not there"),
        (stats.rerouted_bytes, "read elsewhere"),
        (stats.mismatched_bytes, "differed and were read again"),
    ] {
        if bytes > 0 {
            line.push_str(&format!("; {} {what}", text::bytes(bytes)));
        }
    }
    vec![line]
}

/// The names of [`Serving`], in the order of its own table.
const MODES: [&str; Serving::NAMES.len()] = {
    let mut names = [""; Serving::NAMES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Serving::NAMES[at].0;
        at += 1;
    }
    names
};

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let of_ip = |ip: IpAddr| SocketAddr::new(ip, 0);
    text.parse().or_else(|_| text.parse().map(of_ip)).map_err(|_| {
        format!(
            "{text:?} is not an IP address, with or without a port, as 10.0.0.7 or \
             10.0.0.7:4421"
        )
    })
}
