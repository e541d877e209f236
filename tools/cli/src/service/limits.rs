//! Limits on what hosts may use.
//!
//! [`LimitArgs`] bounds the resources of a subsystem's target: options of `dlfs serve`, and the table `limits` of a
//! configuration file. Limits of rates, and weights, are given for hosts, groups of hosts and namespaces: by tables of
//! the file, and by `dlfs ctl limit` ([`Limit`]).

use std::time::Duration;

use clap::{Args, Parser};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use dlfs::nvme::Nqn;
use dlfs::target::{HostPattern, HostRule, Limits, TargetOptions};
use dlfs::units::{Nsid, parse_size};
use dlfs::{Error, ErrorKind, Result};

use super::config::SubsystemConfig;
use super::methods::invalid;
use super::running::Service;

/// Limits on what hosts may use. The defaults suffice for a thousand nodes of 8 ranks.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// The most controllers; a process needs one for each image that it has open [default: 16384]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=65_000))]
    max_controllers: Option<u16>,
    /// The most controllers per address; hosts behind a NAT router count as one address [default:
    /// 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_controllers_per_address: Option<u16>,
    /// The most controllers of the discovery service [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_discovery_controllers: Option<u16>,
    /// The most of those per address [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_discovery_controllers_per_address: Option<u16>,
    /// The most connections per poller; fewer if the limit of open files is lower [default: 32768]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections: Option<u16>,
    /// The most of those per address [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_connections_per_address: Option<u16>,
    /// The most I/O queues per controller [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    max_io_queues: Option<u16>,
    /// The most entries per queue; hosts read this limit and stay within it [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(32..))]
    max_queue_entries: Option<u16>,
    /// Memory per poller for data in flight; one connection gets at most a quarter [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    buffer_memory: Option<u64>,
    /// In seconds: a controller that is silent for twice this time is replaced if its place is
    /// needed [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_keep_alive: Option<u32>,
    /// Seconds that a connection may take to become a queue [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connect_timeout: Option<u32>,
    /// Seconds that a host may take to receive 64 KiB of responses, or to send requested data; 1
    /// while others wait for memory [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    send_timeout: Option<u32>,
}

impl LimitArgs {
    /// Applies the given limits to `options`.
    pub(crate) fn apply(&self, options: &mut TargetOptions) {
        fn set<T>(option: &mut T, value: Option<impl Into<T>>) {
            if let Some(value) = value {
                *option = value.into();
            }
        }
        let seconds = |value: Option<u32>| value.map(|value| Duration::from_secs(value.into()));
        let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        set(&mut options.max_controllers, self.max_controllers);
        set(&mut options.max_controllers_per_address, self.max_controllers_per_address);
        set(&mut options.max_discovery_controllers, self.max_discovery_controllers);
        let per_address = &mut options.max_discovery_controllers_per_address;
        set(per_address, self.max_discovery_controllers_per_address);
        set(&mut options.max_connections, self.max_connections);
        set(&mut options.max_connections_per_address, self.max_connections_per_address);
        set(&mut options.max_io_queues, self.max_io_queues);
        set(&mut options.max_queue_entries, self.max_queue_entries);
        set(&mut options.buffer_bytes, self.buffer_memory.map(bytes));
        set(&mut options.max_keep_alive, seconds(self.max_keep_alive));
        set(&mut options.connect_timeout, seconds(self.connect_timeout));
        set(&mut options.send_timeout, seconds(self.send_timeout));
    }
}

/// A table of a configuration file, which clap parses like options of the command line.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Table<T: Args> {
    #[command(flatten)]
    args: T,
}

/// The options in the table `name`, whose keys are the options' names with underscores.
pub(crate) fn parse_table<T: Args>(name: &str, table: &toml::Table) -> Result<T, String> {
    let mut arguments = Vec::new();
    for (key, value) in table {
        let value = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            other => return Err(format!("{name}.{key} is a {}", other.type_str())),
        };
        arguments.push(format!("--{}={value}", key.replace('_', "-")));
    }
    let table = Table::try_parse_from(arguments).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        format!("in the table {name}: {}", first.trim_start_matches("error: "))
    })?;
    Ok(table.args)
}

/// Parses an amount of memory, from 1 MiB to 1 TiB.
fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let is_memory = (1 << 20..=1 << 40).contains(&bytes);
    if is_memory { Ok(bytes) } else { Err("1M to 1T".to_owned()) }
}

/// Rates and the weight of a host, group or namespace, as the user gives them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ShareArgs {
    /// Bytes a second that are read
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    read_bytes: Option<u64>,
    /// Bytes a second that are written
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    write_bytes: Option<u64>,
    /// Reads a second
    #[arg(long, value_name = "N")]
    read_iops: Option<u64>,
    /// Writes a second
    #[arg(long, value_name = "N")]
    write_iops: Option<u64>,
    /// After a pause, as much passes at once as in this many milliseconds [default: 10]
    #[arg(long, value_name = "MILLISECONDS")]
    burst: Option<u32>,
    /// The share of a host beside others, 1 to 10000 [default: 100]
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
}

impl ShareArgs {
    /// The limits; `None`: there are none.
    pub(crate) fn limits(&self) -> Result<Option<Limits>, String> {
        let ShareArgs { read_bytes, write_bytes, read_iops, write_iops, burst, weight } = *self;
        let rates = [
            ("read_bytes", read_bytes),
            ("write_bytes", write_bytes),
            ("read_iops", read_iops),
            ("write_iops", write_iops),
        ];
        if let Some((name, _)) = rates.iter().find(|(_, rate)| *rate == Some(0)) {
            return Err(format!("{name} 0 would let nothing pass: leave it out for no limit"));
        }
        if burst.is_some_and(|burst| !(1..=60_000).contains(&burst)) {
            return Err("burst is 1 to 60000, in milliseconds".to_owned());
        }
        if weight.is_some_and(|weight| !(1..=10_000).contains(&weight)) {
            return Err("weight is 1 to 10000; a host without one has 100".to_owned());
        }
        let burst_ms = burst.unwrap_or(Limits::default().burst_ms);
        let limits = Limits { read_bytes, write_bytes, read_iops, write_iops, burst_ms, weight };
        Ok((*self != ShareArgs::default()).then_some(limits))
    }

    /// The limits of a namespace.
    fn of_namespace(&self) -> Result<Option<Limits>, String> {
        if self.weight.is_some() {
            return Err("namespaces have no weight: those of a host share alike".to_owned());
        }
        self.limits()
    }
}

/// The limits of a namespace in the configuration file.
pub(crate) fn of_namespace(table: &toml::Table) -> Result<Limits, String> {
    let limits = parse_table::<ShareArgs>("limit", table)?.of_namespace()?;
    limits.ok_or_else(|| "limit sets nothing: give read_bytes, for example".to_owned())
}

/// The rule of a table `[[host]]`, or with `is_group` of a table `[[group]]`.
pub(crate) fn rule_of(table: &toml::Table, is_group: bool) -> Result<HostRule, String> {
    let mut table = table.clone();
    let mut take = |key: &str| table.remove(key).ok_or_else(|| format!("{key} is missing"));
    let texts = if is_group { take("hosts")? } else { toml::Value::Array(vec![take("nqn")?]) };
    let group = is_group.then(|| take("name")).transpose()?;
    let text = |value: &toml::Value| {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is no text"))
    };
    let group = group.as_ref().map(text).transpose()?;
    let hosts = texts.as_array().ok_or_else(|| "hosts is no list of NQNs".to_owned())?;
    let hosts = hosts.iter().map(|host| text(host)?.parse::<HostPattern>());
    let hosts = hosts.collect::<Result<Vec<_>, String>>()?;
    let name = if is_group { "group" } else { "host" };
    let limits = parse_table::<ShareArgs>(name, &table)?.limits()?;
    let limits = limits.ok_or_else(|| format!("{name} has no limit and no weight"))?;
    if hosts.is_empty() {
        return Err("the group has no hosts".to_owned());
    }
    Ok(HostRule { group, hosts, limits })
}

/// Refuses patterns that match no listed host, if every subsystem lists the hosts that may connect.
pub(crate) fn check_known<'a>(
    rule: &HostRule,
    subsystems: impl Iterator<Item = &'a SubsystemConfig> + Clone,
) -> Result<(), String> {
    let is_open = |config: &SubsystemConfig| {
        config.allow_any_host || config.allow_hosts.is_empty() && config.host_keys.is_empty()
    };
    if subsystems.clone().any(is_open) {
        return Ok(());
    }
    let listed =
        |config: &'a SubsystemConfig| config.allow_hosts.iter().chain(config.host_keys.keys());
    let is_known = |pattern: &HostPattern| {
        subsystems.clone().flat_map(listed).any(|host| pattern.matches(host))
    };
    match rule.hosts.iter().find(|pattern| !is_known(pattern)) {
        None => Ok(()),
        Some(pattern) => Err(format!(
            "no subsystem lists a host {pattern}: correct it, or list the host in allow_hosts or hosts"
        )),
    }
}

/// A host, group or namespace, and its new limits.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limit {
    /// The host, the beginning of hosts' names and a *, or a group of the configuration file
    #[arg(value_name = "NQN|GROUP", required_unless_present = "namespace")]
    #[serde(default)]
    host: Option<String>,
    /// Limit a namespace instead
    #[arg(long, value_name = "NSID", conflicts_with = "host")]
    #[serde(default)]
    namespace: Option<u32>,
    /// The subsystem of the namespace [default: the only one]
    #[arg(long, value_name = "NQN", requires = "namespace")]
    #[serde(default)]
    subsystem: Option<Nqn>,
    #[command(flatten)]
    #[serde(default)]
    limits: ShareArgs,
}

impl Service {
    /// Replaces the limits of a host, group or namespace; without limits, ends them.
    pub(crate) fn limit(&mut self, asked: &Limit) -> Result<Value> {
        let mut rules = self.limiter.rules();
        let name = match (&asked.host, asked.namespace) {
            (Some(host), None) => {
                let limits = asked.limits.limits().map_err(invalid)?;
                let of_group = |rule: &&mut HostRule| rule.group.as_ref() == Some(host);
                if let Some(rule) = rules.hosts.iter_mut().find(of_group) {
                    rule.limits = limits.unwrap_or_default();
                } else {
                    let hosts = vec![host.parse::<HostPattern>().map_err(invalid)?];
                    if !host.starts_with("nqn.") {
                        let message =
                            format!("there is no group {host}, and hosts' names begin with nqn.");
                        return Err(Error::new(ErrorKind::NotFound, message));
                    }
                    let before = rules.hosts.len();
                    rules.hosts.retain(|rule| rule.group.is_some() || rule.hosts != hosts);
                    if limits.is_none() && rules.hosts.len() == before {
                        let message = format!("{host} has no limits of its own");
                        let hint = "list-hosts shows those of connected hosts";
                        return Err(Error::new(ErrorKind::NotFound, message).hint(hint));
                    }
                    if let Some(limits) = limits {
                        let rule = HostRule { group: None, hosts, limits };
                        let configs = self.subsystems.iter().map(|running| &running.config);
                        check_known(&rule, configs).map_err(invalid)?;
                        // First, since the first rule that means a host counts.
                        rules.hosts.insert(0, rule);
                    }
                }
                host.clone()
            }
            (None, Some(nsid)) => {
                let limits = asked.limits.of_namespace().map_err(invalid)?;
                let config =
                    &self.subsystems[self.subsystem_index(asked.subsystem.as_ref())?].config;
                let key = (config.nqn.clone(), Nsid(nsid));
                if !config.namespaces.iter().any(|namespace| namespace.nsid == key.1) {
                    let message = format!("{} has no namespace {nsid}", config.nqn);
                    return Err(Error::new(ErrorKind::NotFound, message));
                }
                match limits {
                    Some(limits) => rules.namespaces.insert(key, limits),
                    None => rules.namespaces.remove(&key),
                };
                format!("namespace {nsid}")
            }
            _ => return Err(invalid("limit either a host or a namespace".to_owned())),
        };
        self.limiter.set(rules);
        self.note("limits-changed", json!({ "what": name }));
        Ok(json!({}))
    }
}

#[cfg(test)]
mod tests {
    use dlfs::nvme::Nqn;

    use super::*;

    #[test]
    fn every_limit_reaches_the_target_and_what_is_not_given_stays() {
        let apply = |arguments: &str| {
            let mut options = TargetOptions::new(Nqn::new("nqn.x").unwrap());
            let table = Table::<LimitArgs>::parse_from(arguments.split_whitespace());
            table.args.apply(&mut options);
            options
        };
        let before = TargetOptions::new(Nqn::new("nqn.x").unwrap());
        assert_eq!(format!("{:?}", apply("")), format!("{before:?}"));
        let seconds = Duration::from_secs;
        let expected = TargetOptions {
            max_controllers: 1,
            max_controllers_per_address: 2,
            max_discovery_controllers: 3,
            max_discovery_controllers_per_address: 4,
            max_connections: 5,
            max_connections_per_address: 6,
            max_io_queues: 7,
            max_queue_entries: 80,
            buffer_bytes: 9 << 20,
            max_keep_alive: seconds(10),
            connect_timeout: seconds(11),
            send_timeout: seconds(12),
            ..before
        };
        let found = apply(
            "--max-controllers 1 --max-controllers-per-address 2 --max-discovery-controllers 3 \
         --max-discovery-controllers-per-address 4 --max-connections 5 \
         --max-connections-per-address 6 --max-io-queues 7 --max-queue-entries 80 \
         --buffer-memory 9M --max-keep-alive 10 --connect-timeout 11 --send-timeout 12",
        );
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn a_table_has_the_names_and_ranges_of_the_options() {
        let limits = |text: &str| parse_table::<LimitArgs>("limits", &text.parse().unwrap());
        let found = limits("max_io_queues = 7\nbuffer_memory = \"9M\"").unwrap();
        assert_eq!((found.max_io_queues, found.buffer_memory), (Some(7), Some(9 << 20)));
        for (wrong, named) in [
            ("max_io_quees = 7", "max-io-quees"),
            ("max_io_queues = 0", "0"),
            ("buffer_memory = \"x\"", "x"),
            ("max_io_queues = true", "limits.max_io_queues is a boolean"),
        ] {
            let error = limits(wrong).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    fn table(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    #[test]
    fn tables_become_rules() {
        let rule = rule_of(&table("nqn = 'nqn.a*'\nread_bytes = '1G'\nweight = 5"), false).unwrap();
        let limits = Limits { read_bytes: Some(1 << 30), weight: Some(5), ..Limits::default() };
        let hosts = vec!["nqn.a*".parse().unwrap()];
        assert_eq!(rule, HostRule { group: None, hosts, limits });
        let text = "name = 'g'\nhosts = ['nqn.a', 'nqn.b']\nwrite_iops = 9\nburst = 50";
        let rule = rule_of(&table(text), true).unwrap();
        let limits = Limits { write_iops: Some(9), burst_ms: 50, ..Limits::default() };
        assert_eq!((rule.hosts.len(), rule.group.as_deref()), (2, Some("g")));
        assert_eq!(rule.limits, limits);
        assert_eq!(of_namespace(&table("read_iops = 7")).unwrap().read_iops, Some(7));
    }

    #[test]
    fn what_is_wrong_says_what_to_do() {
        for (text, named) in [
            ("nqn = 'nqn.*a'\nread_iops = 1", "its beginning and a *"),
            ("nqn = 'nqn.a'\nread_iops = 0", "leave it out for no limit"),
            ("nqn = 'nqn.a'\nweight = 0", "1 to 10000"),
            ("nqn = 'nqn.a'\nburst = 0\nread_iops = 1", "1 to 60000"),
            ("nqn = 'nqn.a'", "no limit and no weight"),
            ("read_iops = 1", "nqn is missing"),
            ("nqn = 7\nread_iops = 1", "7 is no text"),
            ("nqn = 'nqn.a'\nread_iop = 1", "read-iop"),
        ] {
            let error = rule_of(&table(text), false).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(of_namespace(&table("weight = 1")).unwrap_err().contains("no weight"));
        assert!(of_namespace(&table("")).unwrap_err().contains("sets nothing"));
    }
}
