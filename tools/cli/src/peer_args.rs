//! The other nodes of a job, on the command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use dlfs::dataset::Image;
use dlfs::peers::rendezvous::{DEFAULT_TIMEOUT, Folder, end_of};
use dlfs::peers::{Launched, PeerOptions, PeerStats, address_towards};
use dlfs::prefetch::LoaderOptions;
use dlfs::qpair::ConnectOptions;

use crate::exit::Failure;
use crate::text;

/// How to find the job's other nodes, whose tiers are read, too.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Peers")]
pub(crate) struct PeerArgs {
    /// Share the tiers of all nodes of the job: each byte comes from the data set once, then from the
    /// node that holds it. Ranks find each other in DIR, which all nodes see
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// A name for this start of the job, the same on all ranks and not used before [default: the
    /// launcher's]
    #[arg(long, value_name = "NAME", requires = "peers")]
    round: Option<String>,
    /// Where peers reach this rank: IP, or IP:PORT [default: the address from which MASTER_ADDR is
    /// reached, any port]
    #[arg(long, value_name = "IP[:PORT]", requires = "peers", value_parser = parse_listen)]
    peer_address: Option<SocketAddr>,
    /// The name of this node; ranks of one node share their tiers [default: the machine's identity]
    #[arg(long, value_name = "NAME", requires = "peers")]
    node: Option<String>,
    /// How long to wait for all ranks, at the start and at the end [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "peers")]
    peer_timeout: Option<u64>,
}

/// The folder and the name of the round, to be used once more at its end.
pub(crate) struct Joined {
    folder: PathBuf,
    round: String,
    timeout: Duration,
}

impl PeerArgs {
    /// Whether the ranks read from each other's tiers.
    pub(crate) fn is_given(&self) -> bool {
        self.peers.is_some()
    }

    /// The image read through the peers of the round, if `--peers` is given.
    ///
    /// # Errors
    /// `Usage`: nothing names the round or the address. Those of [`Image::with_peers`].
    pub(crate) fn join(
        &self,
        image: Image,
        connect: ConnectOptions,
        run: &LoaderOptions,
        launched: Option<&Launched>,
    ) -> Result<(Image, Option<Joined>), Failure> {
        let Some(folder) = &self.peers else { return Ok((image, None)) };
        let launchers = launched.map(|launched| launched.round.clone());
        let round = self.round.clone().or(launchers.filter(|round| !round.is_empty()));
        let round = round.ok_or_else(|| {
            let text =
                "nothing names this start of the job: add --round NAME, a new one for each start";
            Failure::Usage(text.to_owned())
        })?;
        let timeout = self.peer_timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let options = PeerOptions {
            round: round.clone(),
            rank: run.rank,
            world_size: run.world_size,
            listen: self.listen(run, launched)?,
            node: self.node.clone(),
            keep_shares: false,
            timeout,
            connect,
        };
        let mut rendezvous = Folder::new(folder, &round)?;
        let image = image.with_peers(&options, run, &mut rendezvous)?;
        Ok((image, Some(Joined { folder: folder.clone(), round, timeout })))
    }

    fn listen(
        &self,
        run: &LoaderOptions,
        launched: Option<&Launched>,
    ) -> Result<SocketAddr, Failure> {
        if let Some(address) = self.peer_address {
            return Ok(address);
        }
        match launched.and_then(|launched| launched.master.as_ref()) {
            Some(master) => Ok(SocketAddr::new(address_towards(master)?, 0)),
            None if run.world_size == 1 => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            None => {
                let text = "nothing says where peers reach this rank: add --peer-address IP";
                Err(Failure::Usage(text.to_owned()))
            }
        }
    }
}

impl Joined {
    /// Goes on serving until all ranks have read what they wanted.
    pub(crate) fn wait_for_end(&self, image: &Image) {
        let Some(peers) = image.peers() else { return };
        let ended = Folder::new(&self.folder, &end_of(&self.round))
            .and_then(|mut folder| peers.wait_for_end(&mut folder, self.timeout));
        if let Err(error) = ended {
            // This rank has all that it wanted; the others go elsewhere.
            eprintln!("dlfs: {}", error.report());
        }
    }
}

/// What came from the other nodes, for the report.
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

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let of_ip = |ip: IpAddr| SocketAddr::new(ip, 0);
    text.parse().or_else(|_| text.parse().map(of_ip)).map_err(|_| {
        format!(
            "{text:?} is not an IP address, with or without a port, as 10.0.0.7 or \
             10.0.0.7:4421"
        )
    })
}
