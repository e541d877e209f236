//! Limits and weights of hosts, groups of hosts and namespaces, in the configuration file and by `dlfs ctl limit`.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use dlfs::nvme::Nqn;
use dlfs::target::{HostPattern, HostRule, Limits};
use dlfs::units::{Nsid, parse_size};
use dlfs::{Error, ErrorKind, Result};

use super::config::SubsystemConfig;
use super::limits::parse_table;
use super::methods::invalid;
use super::running::Service;

/// The limits of a host, group or namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ShareArgs {
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
    pub(crate) fn limits(&self) -> std::result::Result<Option<Limits>, String> {
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
    fn of_namespace(&self) -> std::result::Result<Option<Limits>, String> {
        if self.weight.is_some() {
            return Err("namespaces have no weight: those of a host share alike".to_owned());
        }
        self.limits()
    }
}

/// The limits of a namespace in the configuration file.
pub(crate) fn of_namespace(table: &toml::Table) -> std::result::Result<Limits, String> {
    let limits = parse_table::<ShareArgs>("limit", table)?.of_namespace()?;
    limits.ok_or_else(|| "limit sets nothing: give read_bytes, for example".to_owned())
}

/// The rule of a table `[[host]]`, or with `is_group` of a table `[[group]]`.
pub(crate) fn rule_of(
    table: &toml::Table,
    is_group: bool,
) -> std::result::Result<HostRule, String> {
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
    let hosts = hosts.collect::<std::result::Result<Vec<_>, String>>()?;
    let name = if is_group { "group" } else { "host" };
    let limits = parse_table::<ShareArgs>(name, &table)?.limits()?;
    let limits = limits.ok_or_else(|| format!("{name} has no limit and no weight"))?;
    if hosts.is_empty() {
        return Err("the group has no hosts".to_owned());
    }
    Ok(HostRule { group, hosts, limits })
}

/// Refuses patterns that no host of the subsystems can match, if they name all hosts.
pub(crate) fn check_known<'a>(
    rule: &HostRule,
    subsystems: impl Iterator<Item = &'a SubsystemConfig> + Clone,
) -> std::result::Result<(), String> {
    let is_open = |of: &SubsystemConfig| {
        of.allow_any_host || of.allow_hosts.is_empty() && of.host_keys.is_empty()
    };
    if subsystems.clone().any(is_open) {
        return Ok(());
    }
    let known = |pattern: &HostPattern| {
        let of = |of: &SubsystemConfig| {
            of.allow_hosts.iter().chain(of.host_keys.keys()).any(|host| pattern.matches(host))
        };
        subsystems.clone().any(of)
    };
    match rule.hosts.iter().find(|pattern| !known(pattern)) {
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
                let config = &self.subsystems[self.the_one(asked.subsystem.as_ref())?].config;
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
    use super::*;

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
