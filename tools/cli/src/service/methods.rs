//! The methods of the control socket, by name.
//!
//! The parameters of a method are a type, which `dlfs ctl` fills from its arguments if it offers the method. Methods
//! that are answered later or end the service are in `changes.rs`, and `limit` is in `limits.rs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use dlfs::nvme::Nqn;
use dlfs::target::{AnaState, ServedNamespace, TargetStats};
use dlfs::units::Nsid;
use dlfs::{Error, ErrorKind, Result};

use super::config::{MAX_NSID, NamespaceConfig, parse_address};
use super::control::Request;
use super::running::{Running, Service};
use super::takeover;
use crate::log;

/// The subsystem that a list or the counters are about.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubsystemFilter {
    /// The subsystem [default: all]
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
}

/// The namespace to add, and its subsystem.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddNamespace {
    /// The address of the namespace; a relative path begins at this command's folder
    #[arg(value_name = "ADDRESS", value_parser = absolute)]
    address: String,
    /// Its NSID [default: the lowest that is free]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    nsid: Option<u32>,
    /// Let hosts write to it
    #[arg(long = "writable", action = ArgAction::SetFalse)]
    #[serde(default = "super::config::default_true")]
    read_only: bool,
    /// The subsystem [default: the only one]
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
}

/// The address with an absolute path: the service has another working directory.
fn absolute(address: &str) -> Result<String, String> {
    let folder = std::env::current_dir().map_err(|error| error.to_string())?;
    Ok(parse_address(address, &folder)?.to_string())
}

/// The namespace to remove, and its subsystem.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemoveNamespace {
    /// Its NSID
    #[arg(value_name = "NSID")]
    nsid: u32,
    /// The subsystem [default: the only one]
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
}

/// The host to add or to drop, and the subsystem.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneHost {
    /// The host
    #[arg(value_name = "NQN")]
    host: Nqn,
    /// The subsystem [default: the only one]
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
}

/// The ANA state to report, and the subsystem.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetAna {
    /// The state of the namespaces through this service
    #[arg(value_name = "STATE", value_parser = AnaState::ALL.map(AnaState::name))]
    state: String,
    /// The subsystem [default: the only one]
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
}

/// The Unix socket to which listening sockets are sent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SocketPlace {
    socket: PathBuf,
}

/// The level of the log to set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    level: String,
}

impl Service {
    /// Carries out a request, except those of [`super::changes`]: `add-ns`, `reload`, `drain` and `hand-over`.
    pub(crate) fn answer(&mut self, request: &Request) -> Result<Value> {
        match request.method.as_str() {
            "list-subsys" => self.list_subsystems(&params(request)?),
            "list-hosts" => self.list_hosts(&params(request)?),
            "remove-ns" => self.remove_ns(&params(request)?),
            "add-host" => self.add_host(params(request)?),
            "drop-host" => self.drop_host(&params(request)?),
            "ana" => self.set_ana(&params(request)?),
            "limit" => self.limit(&params(request)?),
            "stats" => self.stats(&params(request)?),
            "log-level" => {
                let Level { level } = params(request)?;
                log::set_level(&level).map_err(invalid)?;
                Ok(json!({ "level": level }))
            }
            "takeover" => {
                let SocketPlace { socket } = params(request)?;
                let successor = takeover::send(&self.sockets(), &socket)?;
                self.successors.retain(|known| !takeover::is_closed(known));
                self.successors.push(successor);
                Ok(json!({}))
            }
            other => Err(invalid(format!("there is no method {other:?}: {METHODS}"))),
        }
    }

    fn list_subsystems(&self, SubsystemFilter { subsystem }: &SubsystemFilter) -> Result<Value> {
        let limits = self.limiter.rules().namespaces;
        let describe = |running: &Running| {
            let namespaces = running.target.namespaces().into_iter().map(|served| {
                let namespace = served.device.namespace();
                let known = |config: &&NamespaceConfig| config.nsid == served.nsid;
                let config = running.config.namespaces.iter().find(known);
                let mut described = json!({
                    "nsid": served.nsid.0,
                    "address": config.map(|config| config.address.to_string()),
                    "bytes": namespace.len_bytes(),
                    "block_bytes": namespace.block_len_bytes,
                    "read_only": served.read_only || namespace.read_only,
                });
                if let Some(limits) = limits.get(&(running.config.nqn.clone(), served.nsid)) {
                    described["limits"] = json!(limits);
                }
                described
            });
            json!({
                "nqn": running.config.nqn,
                "draining": self.is_leaving(&running.config.nqn),
                "ana": running.target.ana().map(AnaState::name),
                "listen": running.listen,
                "allow_any_host": running.config.allow_any_host,
                "hosts": running.hosts(),
                "controllers": running.target.connected().len(),
                "namespaces": namespaces.collect::<Vec<_>>(),
            })
        };
        Ok(self.selected(subsystem.as_ref())?.into_iter().map(describe).collect())
    }

    fn list_hosts(&self, SubsystemFilter { subsystem }: &SubsystemFilter) -> Result<Value> {
        let connected = |running: &Running| -> Vec<Value> {
            let nqn = running.config.nqn.clone();
            let usage = self.limiter.usage(&nqn).into_iter();
            let usage: BTreeMap<_, _> = usage.map(|one| (one.host.clone(), one)).collect();
            let controllers = running.target.connected().into_iter();
            let describe = controllers.map(|controller| {
                let host = usage.get(&controller.host);
                json!({
                    "subsystem": nqn,
                    "host": controller.host,
                    "peer": controller.peer,
                    "cntlid": controller.cntlid,
                    "io_queues": controller.num_io_queues,
                    "tls": controller.is_secured,
                    "connected_s": controller.connected_s,
                    "reads": host.map(|host| host.reads),
                    "read_bytes": host.map(|host| host.read_bytes),
                    "writes": host.map(|host| host.writes),
                    "written_bytes": host.map(|host| host.written_bytes),
                    "throttled_s": host.map(|host| host.throttled.as_secs_f64()),
                    "weight": host.map(|host| host.weight),
                    "limits": host.map(|host| &host.limits),
                })
            });
            describe.collect()
        };
        Ok(self.selected(subsystem.as_ref())?.into_iter().flat_map(connected).collect())
    }

    /// The namespace of the request `add-ns`, and its subsystem. Without an NSID in the request, the
    /// namespace gets the lowest NSID that is free and not `promised` to another.
    pub(crate) fn to_add<'a>(
        &self,
        request: &Request,
        promised: impl Iterator<Item = &'a (Nqn, NamespaceConfig)>,
    ) -> Result<(Nqn, NamespaceConfig)> {
        let asked: AddNamespace = params(request)?;
        let config = &self.subsystems[self.subsystem_index(asked.subsystem.as_ref())?].config;
        let promised = promised.filter(|(nqn, _)| *nqn == config.nqn).map(|(_, config)| config);
        let taken: Vec<u32> = config.namespaces.iter().chain(promised).map(|c| c.nsid.0).collect();
        let lowest = || (1..=MAX_NSID).find(|nsid| !taken.contains(nsid));
        let nsid = asked.nsid.or_else(lowest).ok_or_else(|| {
            invalid(format!(
                "{} has {MAX_NSID} namespaces already, the most that it can",
                config.nqn
            ))
        })?;
        if !(1..=MAX_NSID).contains(&nsid) {
            return Err(invalid(format!("nsid {nsid} is not 1 to {MAX_NSID}")));
        }
        let address = parse_address(&asked.address, Path::new("")).map_err(invalid)?;
        let added = NamespaceConfig { nsid: Nsid(nsid), address, read_only: asked.read_only };
        Ok((config.nqn.clone(), added))
    }

    /// Adds an open namespace.
    pub(crate) fn add_opened(
        &mut self,
        nqn: &Nqn,
        config: NamespaceConfig,
        served: ServedNamespace,
    ) -> Result<Value> {
        let number = self.subsystem_index(Some(nqn))?;
        let nsid = config.nsid.0;
        let running = &mut self.subsystems[number];
        running.target.add_namespace(served)?;
        running.namespace_added(config);
        Ok(json!({ "nsid": nsid }))
    }

    fn remove_ns(&mut self, asked: &RemoveNamespace) -> Result<Value> {
        let number = self.subsystem_index(asked.subsystem.as_ref())?;
        self.subsystems[number].remove_namespace(Nsid(asked.nsid))?;
        Ok(json!({ "nsid": asked.nsid }))
    }

    fn add_host(&mut self, OneHost { subsystem, host }: OneHost) -> Result<Value> {
        let number = self.subsystem_index(subsystem.as_ref())?;
        let running = &mut self.subsystems[number];
        if running.hosts().contains(&host) {
            return Err(invalid(format!("{} lists {host} already", running.config.nqn)));
        }
        running.note("host-added", json!({ "host": host }));
        running.config.allow_hosts.push(host);
        running.target.set_allowed_hosts(running.config.allow_hosts.clone());
        Ok(json!({}))
    }

    fn drop_host(&mut self, OneHost { subsystem, host }: &OneHost) -> Result<Value> {
        let number = self.subsystem_index(subsystem.as_ref())?;
        let running = &mut self.subsystems[number];
        let hosts = running.hosts();
        if hosts.contains(host) {
            let is_local = running.listen.iter().all(|address| address.ip().is_loopback());
            if hosts.len() == 1 && is_local {
                let message = format!(
                    "{host} is the only host of {}: without one, every host of this machine may connect",
                    running.config.nqn
                );
                let hint =
                    "to shut it out, replace its key in the hosts file and start the service again";
                return Err(invalid(message).hint(hint));
            }
            running.config.allow_hosts.retain(|known| known != host);
            running.target.set_allowed_hosts(running.config.allow_hosts.clone());
            running.config.host_keys.remove(host);
            running.target.set_host_keys(running.config.host_keys.clone())?;
            running.note("host-removed", json!({ "host": host }));
        }
        let ended = running.target.disconnect(host);
        if ended == 0 && !hosts.contains(host) {
            let message =
                format!("{} neither lists {host} nor is it connected", running.config.nqn);
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        Ok(json!({ "controllers": ended }))
    }

    fn set_ana(&mut self, SetAna { state, subsystem }: &SetAna) -> Result<Value> {
        let state: AnaState = state.parse().map_err(invalid)?;
        let number = self.subsystem_index(subsystem.as_ref())?;
        self.subsystems[number].set_ana(state)?;
        Ok(json!({ "ana": state.name() }))
    }

    fn stats(&self, SubsystemFilter { subsystem }: &SubsystemFilter) -> Result<Value> {
        let count = |running: &Running| -> Value {
            let counters =
                counters(&running.target.stats()).map(|(name, count)| (name, json!(count)));
            let named = [("subsystem", json!(running.config.nqn))].into_iter().chain(counters);
            named.map(|(name, value)| (name.to_owned(), value)).collect()
        };
        Ok(self.selected(subsystem.as_ref())?.into_iter().map(count).collect())
    }

    /// The subsystem of this name; without a name, all subsystems. Draining subsystems count.
    fn selected(&self, nqn: Option<&Nqn>) -> Result<Vec<&Running>> {
        let draining = self.draining.iter().map(|(running, _)| running);
        let mut selected = self.subsystems.iter().chain(draining);
        match nqn {
            None => Ok(selected.collect()),
            Some(nqn) => {
                let one = selected.find(|running| running.config.nqn == *nqn);
                one.map(|running| vec![running]).ok_or_else(|| self.no_subsystem(nqn))
            }
        }
    }

    /// The index of the subsystem of this name; without a name, of the only one.
    pub(super) fn subsystem_index(&self, nqn: Option<&Nqn>) -> Result<usize> {
        match nqn {
            Some(nqn) => {
                let position =
                    self.subsystems.iter().position(|running| running.config.nqn == *nqn);
                position.ok_or_else(|| self.no_subsystem(nqn))
            }
            None if self.subsystems.len() == 1 => Ok(0),
            None => {
                Err(invalid("there are several subsystems: name one with --subsystem".to_owned()))
            }
        }
    }

    /// The error for a name that no running subsystem has.
    fn no_subsystem(&self, nqn: &Nqn) -> Error {
        if self.is_leaving(nqn) {
            let message = format!("draining {nqn}: the configuration file has it no more");
            Error::new(ErrorKind::Busy, message)
        } else {
            Error::new(ErrorKind::NotFound, format!("there is no subsystem {nqn}"))
        }
    }
}

/// A target's counters by name.
pub(crate) fn counters(stats: &TargetStats) -> [(&'static str, u64); 12] {
    [
        ("controllers", stats.controllers),
        ("connections", stats.connections),
        ("accepted", stats.accepted),
        ("dropped", stats.dropped),
        ("refused", stats.refused),
        ("evicted", stats.evicted),
        ("reads", stats.reads),
        ("read_bytes", stats.read_bytes),
        ("writes", stats.writes),
        ("written_bytes", stats.written_bytes),
        ("errors", stats.errors),
        ("wakeups", stats.wakeups),
    ]
}

/// The parameters of a request; an absent value stands for an empty object.
fn params<T: DeserializeOwned>(request: &Request) -> Result<T> {
    let params = match &request.params {
        Value::Null => json!({}),
        params => params.clone(),
    };
    let wrong = |error| invalid(format!("the parameters of {} are wrong: {error}", request.method));
    serde_json::from_value(params).map_err(wrong)
}

/// The error of invalid parameters.
pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// The end of the error for an unknown method.
const METHODS: &str = "there are list-subsys, list-hosts, add-ns, remove-ns, add-host, drop-host, ana, limit, \
                        stats, log-level, reload and drain";
