//! Starts all processes: targets that live as long as the bench, measured processes, external
//! programs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::cases::{Case, How, To};
use crate::data::{self, Data, image};
use crate::external;
use crate::opening;
use crate::slice::Slice;
use crate::spdk::Spdk;
use crate::support::{Options, Side};

/// The processes of the bench, and their parameters.
pub(crate) struct Stage<'a> {
    options: &'a Options,
    folder: PathBuf,
    targets: BTreeMap<To, (Side, String)>,
    /// Measured processes that live from round to round, by case.
    kept: BTreeMap<String, Side>,
    spdk: Option<Spdk>,
    /// Another one, inside TLS.
    spdk_secured: Option<Spdk>,
    /// fio's best depth, by length.
    fio_depths: BTreeMap<usize, u32>,
}

impl Stage<'_> {
    pub(crate) fn new(options: &Options) -> Stage<'_> {
        let folder = match options.text("at") {
            "" => std::env::temp_dir().join("dlfs-side-by-side"),
            at => PathBuf::from(at),
        };
        std::fs::create_dir_all(&folder).expect("a folder to work in");
        Stage {
            options,
            folder,
            targets: BTreeMap::new(),
            kept: BTreeMap::new(),
            spdk: None,
            spdk_secured: None,
            fio_depths: BTreeMap::new(),
        }
    }

    /// Starts the slow parts of `case`, so that the rounds do not wait for them.
    ///
    /// # Errors
    /// Why the case cannot be run here.
    pub(crate) fn prepare(&mut self, case: &Case) -> Result<(), String> {
        match &case.how {
            How::Host { arguments, to, keep } => {
                if arguments.iter().any(|word| word == "--without-checksums") && !UNVERIFIED {
                    return Err("this build has no --features unverified".into());
                }
                if *to == To::Secured {
                    dlfs::tls::load().map_err(|error| error.to_string())?;
                }
                self.address(*to)?;
                if *keep {
                    self.keep(case, arguments, *to)?;
                }
            }
            How::Fio { len } => {
                let file = image(&self.folder, Data::Large);
                let depth = external::best_fio_depth(&file, *len)?;
                println!("fio's best depth at {len} bytes: {depth}");
                self.fio_depths.insert(*len, depth);
            }
            How::SpdkPerf { to, .. } => {
                self.spdk()?;
                self.address(*to)?;
            }
            How::Bdevperf { .. } => {
                self.spdk_secured()?;
            }
            How::Iperf3 { .. } => external::find("iperf3").map(drop)?,
            How::OpensslSpeed => external::find("openssl").map(drop)?,
        }
        Ok(())
    }

    /// Measures one slice of `case`.
    ///
    /// # Errors
    /// Why it failed.
    pub(crate) fn run(&mut self, case: &Case) -> Result<Slice, String> {
        let slice_ms = self.options.number("slice-ms");
        match &case.how {
            How::Host { arguments, to, keep } => self.run_host(case, arguments, *to, *keep),
            How::Fio { len } => {
                let file = image(&self.folder, Data::Large);
                external::fio(&file, *len, self.fio_depths[len], slice_ms)
            }
            How::SpdkPerf { len, depth, to } => {
                let address = self.address(*to)?;
                let other = match to {
                    To::Spdk => self.spdk()?.pid(),
                    to => self.targets[to].0.pid(),
                };
                let spdk = self.spdk()?;
                let _awake = (*to == To::Spdk).then(|| spdk.awake());
                spdk.perf(&address, *len, *depth, other)
            }
            How::Bdevperf { len, depth } => {
                let spdk = self.spdk_secured()?;
                let _awake = spdk.awake();
                spdk.bdevperf(*len, *depth)
            }
            How::Iperf3 { len } => external::iperf3(*len, slice_ms),
            How::OpensslSpeed => external::openssl_speed(),
        }
    }

    fn run_host(
        &mut self,
        case: &Case,
        arguments: &[String],
        to: To,
        keep: bool,
    ) -> Result<Slice, String> {
        let address = self.address(to)?;
        let _awake = match to {
            To::Spdk => Some(self.spdk()?.awake()),
            _ => None,
        };
        let mut started = None;
        let host = if keep {
            self.keep(case, arguments, to)?
        } else {
            started.insert(self.start(arguments, &address)?)
        };
        let died = |_| format!("its process ended early: {}", case.id);
        host.go_on();
        let go = host.try_line().map_err(died)?;
        assert_eq!(go, "go", "what a side says first");
        let host_pid = host.pid();
        let other = match to {
            To::File(_) | To::Folder | To::Snapshot => None,
            To::Spdk => self.spdk.as_ref().map(Spdk::pid),
            to => self.targets.get(&to).map(|(side, _)| side.pid()),
        };
        let before = other.map(crate::support::cpu_seconds_of);
        let host = started.as_mut().or_else(|| self.kept.get_mut(&case.id)).expect("started above");
        debug_assert_eq!(host.pid(), host_pid);
        let line = host.try_line().map_err(died)?;
        let mut slice = Slice::from_line(&line).ok_or_else(|| format!("it said '{line}'"))?;
        slice.target_cpu_s =
            other.zip(before).map(|(pid, before)| crate::support::cpu_seconds_of(pid) - before);
        Ok(slice)
    }

    fn keep(&mut self, case: &Case, arguments: &[String], to: To) -> Result<&mut Side, String> {
        if !self.kept.contains_key(&case.id) {
            let address = self.address(to)?;
            let side = self.start(arguments, &address)?;
            self.kept.insert(case.id.clone(), side);
        }
        Ok(self.kept.get_mut(&case.id).expect("put there if it was not"))
    }

    /// Starts a measured process and waits until it is set up.
    fn start(&self, arguments: &[String], address: &str) -> Result<Side, String> {
        let mut all = arguments.to_vec();
        all.extend(["--address".into(), address.to_owned()]);
        for name in ["slice-ms", "region", "lanes", "group"] {
            all.extend([format!("--{name}"), self.options.text(name).to_owned()]);
        }
        for name in ["window", "pool"] {
            if !arguments.contains(&format!("--{name}")) {
                all.extend([format!("--{name}"), self.options.text(name).to_owned()]);
            }
        }
        let mut side = Side::start(&all);
        match side.try_line() {
            Ok(line) if line == "ready" => Ok(side),
            other => {
                side.abandon();
                Err(format!("its process did not start: {other:?}"))
            }
        }
    }

    /// The address of `to`, which is started or created first if necessary.
    pub(crate) fn address(&mut self, to: To) -> Result<String, String> {
        let path = |data| image(&self.folder, data).to_string_lossy().into_owned();
        let region = self.options.number("region");
        let arguments: Vec<String> = match to {
            To::File(data) => return Ok(path(data)),
            To::Folder => return Ok(data::files(&self.folder).to_string_lossy().into_owned()),
            To::Snapshot => {
                return Ok(opening::snapshot(&self.folder).to_string_lossy().into_owned());
            }
            To::Spdk => return Ok(self.spdk()?.address()),
            To::Region { pollers } => {
                let region = region.to_string();
                let pollers = pollers.to_string();
                ["--side", "target", "--region", &region, "--pollers", &pollers]
                    .map(str::to_owned)
                    .to_vec()
            }
            To::Secured => ["--side", "target", "--region", &region.to_string(), "--tls"]
                .map(str::to_owned)
                .to_vec(),
            To::Served(data) => {
                ["--side", "target", "--image", &path(data)].map(str::to_owned).into()
            }
            To::Raw { len, depth, ping_pong } => {
                let mut words = vec!["--side".to_owned(), "sender".into()];
                let pairs =
                    [("--len", len as u64), ("--depth", depth as u64), ("--region", region)];
                words.extend(pairs.iter().flat_map(|(n, v)| [(*n).to_owned(), v.to_string()]));
                words.extend(ping_pong.then(|| "--ping-pong".to_owned()));
                words
            }
        };
        if let Some((_, address)) = self.targets.get(&to) {
            return Ok(address.clone());
        }
        let mut side = Side::start(&arguments);
        let address = side.try_line().map_err(|error| error.to_string())?;
        self.targets.insert(to, (side, address.clone()));
        Ok(address)
    }

    fn spdk(&mut self) -> Result<&Spdk, String> {
        if self.spdk.is_none() {
            self.spdk = Some(Spdk::start(self.options.number("region"), false)?);
        }
        Ok(self.spdk.as_ref().expect("started above"))
    }

    fn spdk_secured(&mut self) -> Result<&Spdk, String> {
        if self.spdk_secured.is_none() {
            self.spdk_secured = Some(Spdk::start(self.options.number("region"), true)?);
        }
        Ok(self.spdk_secured.as_ref().expect("started above"))
    }
}

const UNVERIFIED: bool = cfg!(feature = "unverified");
