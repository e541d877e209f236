//! Options of peers: the user's options, completed by the launcher's variables (`launched.rs`) and this machine's
//! addresses.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::job_key::{PeerKeys, without_keys};
use super::join::{PeerOptions, Serving};
use super::launched::Launched;
use super::rendezvous::{Blocks, DEFAULT_TIMEOUT, Folder, Rendezvous, end_of};
use dlfs_base::error::{Error, ErrorKind, Result};
use dlfs_io::qpair::ConnectOptions;

/// The means by which the ranks of a round find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Means {
    /// A port of rank 0, at the launcher's `MASTER_ADDR`.
    Auto,
    /// A folder that all nodes see.
    Folder(PathBuf),
    /// The host and port of each rank, in the order of ranks; the ranks meet at rank 0's host.
    List(Vec<(String, u16)>),
    /// An object of the program that implements [`Rendezvous`].
    Object,
}

/// The user's options of joining peers. The launcher's variables replace missing options.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The means by which the ranks find each other.
    pub means: Means,
    /// Rank and world size; `None`: from the launcher, or from this machine's position in the list. Without either,
    /// rank 0 of 1, except that [`Means::Auto`] needs a launcher.
    pub place: Option<(u32, u32)>,
    /// The name of the round; `None`: the launcher's name. If there is none, a folder is refused, since it may hold
    /// records of earlier starts.
    pub round: Option<String>,
    /// The address on which peers reach this rank; `None`: the local address on the route to `MASTER_ADDR`, or the
    /// address in the list; a single rank needs neither. Port 0 takes a free port.
    pub address: Option<SocketAddr>,
    /// The port on which rank 0 gathers the records; `None`: the port after `MASTER_PORT`, or after the port
    /// of the list's first entry.
    pub rendezvous_port: Option<u16>,
    /// The name of this node; `None`: the machine's identity.
    pub node: Option<String>,
    /// This node's answer to a peer that asks for data that its tiers lack.
    pub serving: Serving,
    /// Timeout for all ranks to join.
    pub timeout: Duration,
    /// The keys by which ranks authenticate each other; `None`: no authentication.
    pub keys: Option<PeerKeys>,
}

/// The complete parameters of joining a round.
#[derive(Debug, Clone)]
pub struct Meeting {
    /// The user's options.
    pub options: JoinOptions,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// The name of the round. If the user has not named it, an earlier start may have had the same name.
    pub round: String,
    /// The address at which this rank listens for its peers.
    listen: SocketAddr,
    point: MeetingPoint,
}

/// The meeting point of the ranks: where they find each other's records.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MeetingPoint {
    Folder(PathBuf),
    /// The host and the port of rank 0's namespace of records.
    RankZero(String, u16),
    /// An object of the program.
    Object,
}

impl Means {
    /// Parses `auto`, a folder, `HOST:PORT,HOST:PORT,...`, or a file with one `HOST:PORT` per line.
    ///
    /// # Errors
    /// The file cannot be read, has a line without an address, or has no address at all.
    pub fn of(text: &str) -> Result<Means> {
        let path = Path::new(text);
        if text == "auto" {
            return Ok(Means::Auto);
        }
        if path.is_file() {
            let lines = fs::read_to_string(path).map_err(|error| Error::from(error).path(path))?;
            let refused = |text: String| {
                Error::invalid(text, "one HOST:PORT a line, in the order of ranks").path(path)
            };
            let entries =
                lines.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
            let list = entries.filter(|entry| !entry.is_empty()).map(|entry| {
                entry_of(entry).ok_or_else(|| refused(format!("{entry:?} is no address of a rank")))
            });
            let list = list.collect::<Result<Vec<_>>>()?;
            if list.is_empty() {
                return Err(refused("the list of ranks is empty".to_owned()));
            }
            return Ok(Means::List(list));
        }
        match text.split(',').map(entry_of).collect::<Option<Vec<_>>>() {
            Some(list) if !path.is_dir() => Ok(Means::List(list)),
            _ => Ok(Means::Folder(path.to_owned())),
        }
    }
}

impl JoinOptions {
    /// Options with `means`; everything else comes from the launcher.
    pub fn new(means: Means) -> JoinOptions {
        JoinOptions {
            means,
            place: None,
            round: None,
            address: None,
            rendezvous_port: None,
            node: None,
            serving: Serving::default(),
            timeout: DEFAULT_TIMEOUT,
            keys: None,
        }
    }

    /// Determines the rank, the world size, the addresses and the meeting point.
    ///
    /// # Errors
    /// `InvalidArgument`: a value is neither given nor in the launcher's variables, the rank or the world size does not
    /// fit the other or the list, or the list does not say which entry is this machine; the message names the value.
    /// Errors of resolving a host.
    pub fn meeting(&self, launched: Option<&Launched>) -> Result<Meeting> {
        let given = self.place.or(launched.map(|launched| (launched.rank, launched.world_size)));
        let (rank, world_size) = match (&self.means, given) {
            (Means::List(list), given) => (rank_in(list, given)?, list.len() as u32),
            (Means::Auto, None) => return Err(no_launcher()),
            (_, Some(place)) => place,
            (_, None) => (0, 1),
        };
        if rank >= world_size {
            let text = format!("rank {rank} of world size {world_size}");
            return Err(Error::invalid(text, "ranks count from 0"));
        }
        let master = launched.and_then(|launched| launched.master.as_ref());
        let point = match &self.means {
            Means::Folder(folder) => MeetingPoint::Folder(folder.clone()),
            Means::Object => MeetingPoint::Object,
            Means::List(list) => self.rank_zero(&list[0])?,
            Means::Auto => self.rank_zero(master.ok_or_else(no_master)?)?,
        };
        let listen = self.listen_address(rank, world_size, launched)?;
        let round = self.round.clone().or_else(|| {
            let launchers = launched.map(|launched| launched.round.clone());
            launchers.filter(|round| !round.is_empty())
        });
        let round = match round {
            Some(round) => round,
            // A name is not needed if an earlier start leaves nothing behind: in rank 0's memory, and in the
            // program's own object.
            None if !matches!(point, MeetingPoint::Folder(_)) => "start".to_owned(),
            None => {
                let hint = "add --round NAME (round in Python and C), a new one for each start";
                return Err(Error::invalid("nothing names this start of the job", hint));
            }
        };
        Ok(Meeting { options: self.clone(), rank, world_size, round, listen, point })
    }

    /// The address at which `rank` listens for its peers; port 0: a free port.
    fn listen_address(
        &self,
        rank: u32,
        world_size: u32,
        launched: Option<&Launched>,
    ) -> Result<SocketAddr> {
        let master = launched.and_then(|launched| launched.master.as_ref());
        match (self.address, &self.means, master) {
            (Some(address), ..) => Ok(address),
            (None, Means::List(list), _) => resolved(&list[rank as usize]),
            (None, _, Some(master)) => {
                let ip = address_towards(master)?;
                let local = launched.and_then(|launched| launched.local_world_size);
                if ip.is_loopback() && are_elsewhere(&master.0, local, world_size) {
                    tracing::warn!(
                        master = master.0,
                        "MASTER_ADDR is a loopback address here, so peers on other machines cannot reach this rank: \
                         name the machine's address, or say where peers reach it with --peer-address IP \
                         (peer_address in Python and C)"
                    );
                }
                Ok(SocketAddr::new(ip, 0))
            }
            (None, ..) if world_size == 1 => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            (None, ..) => {
                let hint = "add --peer-address IP (peer_address in Python and C), or set MASTER_ADDR and MASTER_PORT";
                Err(Error::invalid("nothing says where peers reach this rank", hint))
            }
        }
    }

    /// As [`JoinOptions::meeting`], with the launcher's variables of this process.
    ///
    /// # Errors
    /// As [`JoinOptions::meeting`]; a variable is not a number.
    pub fn meeting_here(&self) -> Result<Meeting> {
        self.meeting(Launched::from_env()?.as_ref())
    }

    /// The rendezvous at rank 0, on the port that the user names or else on the port after `port`, which another
    /// service of rank 0 uses.
    fn rank_zero(&self, (host, port): &(String, u16)) -> Result<MeetingPoint> {
        let port = match self.rendezvous_port.or(port.checked_add(1)) {
            Some(port) if port > 0 => port,
            _ => {
                let hint = "add --rendezvous-port PORT (rendezvous_port in Python and C)";
                return Err(Error::invalid(format!("no port follows {port}"), hint));
            }
        };
        Ok(MeetingPoint::RankZero(host.clone(), port))
    }
}

impl Meeting {
    /// The options of [`Peers::join`](super::Peers::join). The keys for the data set's targets are not used
    /// between peers: connections between peers have keys of their own, derived from the job's key.
    pub fn peer_options(&self, connect: &ConnectOptions) -> PeerOptions {
        PeerOptions {
            round: self.round.clone(),
            rank: self.rank,
            world_size: self.world_size,
            listen: self.listen,
            node: self.options.node.clone(),
            serving: self.options.serving,
            keep_shares: false, // `Image::with_peers` sets it for local shares
            timeout: self.options.timeout,
            connect: without_keys(connect),
            keys: self.options.keys.clone(),
        }
    }

    /// The rendezvous of the ranks; `None` if the program provides an object for it.
    ///
    /// # Errors
    /// `Busy`: rank 0's port is in use. The folder does not exist.
    pub fn rendezvous(&self, connect: &ConnectOptions) -> Result<Option<Box<dyn Rendezvous>>> {
        let keys = self.options.keys.as_ref();
        Ok(Some(match &self.point {
            MeetingPoint::Object => return Ok(None),
            MeetingPoint::Folder(folder) => Box::new(Folder::new(folder, &self.round)?),
            MeetingPoint::RankZero(_, port) if self.rank == 0 => {
                let listen = SocketAddr::new(self.listen.ip(), *port);
                Box::new(Blocks::host(listen, self.world_size, keys)?)
            }
            MeetingPoint::RankZero(host, port) => {
                let connect = without_keys(connect);
                Box::new(Blocks::guest(host, *port, self.world_size, &connect, keys))
            }
        }))
    }

    /// The rendezvous at the end of the round, for [`Peers::wait_for_end`](super::Peers::wait_for_end).
    ///
    /// # Errors
    /// As [`Meeting::rendezvous`].
    pub fn rendezvous_of_end(
        &self,
        connect: &ConnectOptions,
    ) -> Result<Option<Box<dyn Rendezvous>>> {
        Meeting { round: end_of(&self.round), ..self.clone() }.rendezvous(connect)
    }
}

/// Returns whether some of `world_size` ranks are probably on other machines, though `host` is a loopback address on
/// this machine, which has `local` ranks. `None`: the launcher does not provide that number. An IP address or
/// `localhost` then means this machine on purpose; any other name may resolve to loopback only because it is this
/// machine's own name.
fn are_elsewhere(host: &str, local: Option<u32>, world_size: u32) -> bool {
    match local {
        Some(local) => local < world_size,
        None => world_size > 1 && host != "localhost" && host.parse::<IpAddr>().is_err(),
    }
}

/// This rank by the list of addresses: the given rank, or the only entry with an address of this machine.
fn rank_in(list: &[(String, u16)], given: Option<(u32, u32)>) -> Result<u32> {
    let name = |(host, port): &(String, u16)| format!("{host}:{port}");
    if let Some((rank, world_size)) = given {
        if world_size as usize != list.len() {
            let text = format!(
                "the list of peers has {} ranks, and the world size is {world_size}",
                list.len()
            );
            return Err(Error::invalid(text, "name each rank in it, in their order"));
        }
        let Some(entry) = list.get(rank as usize) else { return Ok(rank) }; // the caller refuses it
        if is_own(resolved(entry)?.ip()) {
            return Ok(rank);
        }
        let text = format!(
            "the list of peers says {} for rank {rank}, which is not an address of this machine",
            name(entry)
        );
        return Err(Error::invalid(text, "put the ranks' addresses in the order of ranks"));
    }
    let mut own = Vec::new();
    for (rank, entry) in (0..).zip(list) {
        if is_own(resolved(entry)?.ip()) {
            own.push(rank);
        }
    }
    match own[..] {
        [rank] => Ok(rank),
        [] => {
            let named: Vec<String> = list.iter().take(NAMED).map(name).collect();
            let text = format!(
                "none of the {} peers in the list is this machine: {}",
                list.len(),
                named.join(", ")
            );
            Err(Error::invalid(text, "add this machine's address, as its peers reach it"))
        }
        [first, second, ..] => {
            let text = format!("ranks {first} and {second} of the list are both on this machine");
            Err(Error::invalid(
                text,
                "say which one this is: --rank R --world-size W (rank, world_size)",
            ))
        }
    }
}

/// Returns whether this machine has the address: only then can a socket be bound to it.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// The address of this machine on the route to `master`: peers on the same network reach this machine by it.
fn address_towards(master: &(String, u16)) -> Result<IpAddr> {
    let address = resolved(master)?;
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing: the kernel only chooses the route.
    let own = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    Ok(own.map_err(|error| Error::from(error).target(format!("{}:{}", master.0, master.1)))?.ip())
}

/// The first address of a host and port.
fn resolved((host, port): &(String, u16)) -> Result<SocketAddr> {
    let shown = || format!("{host}:{port}");
    let mut found = (host.as_str(), *port)
        .to_socket_addrs()
        .map_err(|error| Error::from(error).target(shown()))?;
    found.next().ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("{host} has no address")).target(shown())
    })
}

/// Parses `HOST:PORT`; an IPv6 address is in brackets.
fn entry_of(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let port = port.parse().ok().filter(|&port| port > 0)?;
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = |host: &str| !host.is_empty() && !host.contains(['/', '[', ']', ' ']);
    match inner {
        Some(inner) if is_host(inner) => Some((inner.to_owned(), port)),
        None if is_host(host) && !host.contains(':') => Some((host.to_owned(), port)),
        _ => None,
    }
}

fn no_launcher() -> Error {
    let text = "peers \"auto\": no launcher has said which rank this is. Looked for RANK and WORLD_SIZE (torchrun), \
                OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI), PMI_RANK and PMI_SIZE, and SLURM_PROCID, \
                SLURM_NTASKS and SLURM_STEP_ID (srun)";
    Error::invalid(text, "start it by a launcher, or name a folder or the ranks' addresses instead")
}

fn no_master() -> Error {
    let text =
        "peers \"auto\": the launcher has set a rank, but MASTER_ADDR and MASTER_PORT are missing";
    let hint = "export rank 0's host and a free port in them, or name a folder or the ranks' addresses instead";
    Error::invalid(text, hint)
}

/// Limit of the list entries that a message names.
const NAMED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(master: Option<&str>) -> Launched {
        Launched {
            rank: 1,
            world_size: 2,
            local_world_size: None,
            local_rank: None,
            master: master.map(|host| (host.to_owned(), 29_500)),
            round: "job.0".to_owned(),
        }
    }

    fn list(text: &str) -> Means {
        let means = Means::of(text).unwrap();
        assert!(matches!(means, Means::List(_)), "{means:?}");
        means
    }

    fn refused(options: &JoinOptions, launched: Option<&Launched>) -> String {
        options.meeting(launched).unwrap_err().report()
    }

    #[test]
    fn a_text_is_auto_a_folder_a_list_or_a_file_with_one() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("ranks");
        fs::write(&file, "# two nodes\nnode0:4421\n\n[fe80::1]:4422  # the other\n").unwrap();
        let entries = vec![("node0".to_owned(), 4421), ("fe80::1".to_owned(), 4422)];
        assert_eq!(Means::of("auto").unwrap(), Means::Auto);
        assert_eq!(Means::of("node0:4421,[fe80::1]:4422").unwrap(), Means::List(entries.clone()));
        assert_eq!(Means::of(file.to_str().unwrap()).unwrap(), Means::List(entries));
        for folder in [
            "/shared/rendezvous",
            "rendezvous",
            "a,b",
            "node0:4421,b",
            "a/b:1",
            ":1",
            "a:0",
            "::1:80",
        ] {
            assert_eq!(Means::of(folder).unwrap(), Means::Folder(folder.into()), "{folder}");
        }
        for bad in ["node0", "# nothing\n", "node0:4421\nnode1 4421\n"] {
            fs::write(&file, bad).unwrap();
            let error = Means::of(file.to_str().unwrap()).unwrap_err().report();
            assert!(error.contains("ranks") && error.contains("HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn auto_meets_at_the_port_behind_the_launchers() {
        let mut options = JoinOptions::new(Means::Auto);
        let meeting = options.meeting(Some(&launched(Some("127.0.0.1")))).unwrap();
        assert_eq!((meeting.rank, meeting.world_size, &*meeting.round), (1, 2, "job.0"));
        assert_eq!(meeting.point, MeetingPoint::RankZero("127.0.0.1".to_owned(), 29_501));
        assert_eq!(meeting.listen, "127.0.0.1:0".parse().unwrap());
        options.rendezvous_port = Some(4_000);
        let meeting = options.meeting(Some(&launched(Some("127.0.0.1")))).unwrap();
        assert_eq!(meeting.point, MeetingPoint::RankZero("127.0.0.1".to_owned(), 4_000));
        let absent = refused(&options, None);
        assert!(absent.contains("WORLD_SIZE") && absent.contains("SLURM_PROCID"), "{absent}");
        assert!(refused(&options, Some(&launched(None))).contains("MASTER_ADDR and MASTER_PORT"));
        options.place = Some((2, 2));
        assert!(
            refused(&options, Some(&launched(Some("127.0.0.1"))))
                .contains("rank 2 of world size 2")
        );
    }

    #[test]
    fn a_loopback_address_is_meant_unless_ranks_are_elsewhere() {
        assert!(are_elsewhere("127.0.0.1", Some(1), 2), "the other rank is on another machine");
        assert!(!are_elsewhere("node0", Some(2), 2), "all ranks are here");
        assert!(are_elsewhere("node0", None, 2), "this machine's own name");
        assert!(!are_elsewhere("localhost", None, 2) && !are_elsewhere("::1", None, 2));
        assert!(!are_elsewhere("node0", None, 1));
    }

    #[test]
    fn a_machine_finds_its_place_in_a_list() {
        // 203.0.113.0/24 is reserved for documentation: no machine has it.
        let mut options =
            JoinOptions::new(list("203.0.113.1:4421,127.0.0.1:4422,203.0.113.3:4421"));
        let meeting = options.meeting(None).unwrap();
        assert_eq!((meeting.rank, meeting.world_size), (1, 3));
        assert_eq!(meeting.listen, "127.0.0.1:4422".parse().unwrap());
        assert_eq!(meeting.point, MeetingPoint::RankZero("203.0.113.1".to_owned(), 4_422));
        options.place = Some((2, 3));
        let error = refused(&options, None);
        assert!(error.contains("203.0.113.3:4421 for rank 2, which is not an address"), "{error}");
        options.place = Some((0, 2));
        assert!(refused(&options, None).contains("has 3 ranks, and the world size is 2"));
        let options = JoinOptions::new(list("203.0.113.1:1,203.0.113.2:1"));
        assert!(
            refused(&options, None).contains("none of the 2 peers in the list is this machine")
        );
        let options = JoinOptions::new(list("127.0.0.1:1,127.0.0.1:2"));
        assert!(refused(&options, None).contains("ranks 0 and 1 of the list"));
        let meeting = options.meeting(Some(&launched(None))).unwrap();
        assert_eq!((meeting.rank, meeting.listen.port()), (1, 2));
    }

    #[test]
    fn a_folder_needs_a_name_for_the_start_and_an_address() {
        let mut options = JoinOptions::new(Means::Folder("/shared".into()));
        assert!(refused(&options, None).contains("add --round NAME"));
        let meeting = options.meeting(Some(&launched(Some("127.0.0.1")))).unwrap();
        assert_eq!(
            (meeting.point, &*meeting.round),
            (MeetingPoint::Folder("/shared".into()), "job.0")
        );
        assert!(refused(&options, Some(&launched(None))).contains("add --peer-address IP"));
        options.address = Some("127.0.0.1:7".parse().unwrap());
        options.round = Some("mine".to_owned());
        let meeting = options.meeting(Some(&launched(None))).unwrap();
        assert_eq!((meeting.listen.port(), &*meeting.round), (7, "mine"));
    }
}
