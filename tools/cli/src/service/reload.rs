//! Reloads of a service: the running targets match the configuration file again.
//!
//! A reload has two steps, so that a bad file, machine or remote target changes nothing. First, `changes.rs` opens
//! namespaces, and [`Service::prepare`] does everything else that can fail: it listens, starts the targets of
//! new subsystems without admitting hosts, allocates all that running targets need, and opens the access log. Then
//! [`Service::commit`] changes the service. It fails only if a target's thread hangs or has died; some changes are then
//! already in effect.

use std::collections::BTreeSet;

use serde_json::json;

use dlfs::nvme::Nqn;
use dlfs::target::{HostKeys, PreparedNamespace, ServedNamespace};
use dlfs::{Error, Result};

use super::access_log::{LogDestination, LogOutput};
use super::config::{NamespaceConfig, ServiceConfig, SubsystemConfig};
use super::running::{Running, Service};
use crate::out::counted;

/// An open namespace for a subsystem.
pub(crate) struct Opened {
    pub(crate) nqn: Nqn,
    pub(crate) config: NamespaceConfig,
    pub(crate) served: ServedNamespace,
}

/// Everything that a reload needs, prepared in advance.
pub(crate) struct Prepared {
    subsystems: Vec<PreparedSubsystem>,
    /// The next output of the access log, if there is a log.
    access_log: Option<LogOutput>,
}

/// A subsystem's part of a reload, prepared in advance.
#[allow(clippy::large_enum_variant)] // a few of them live as long as a reload
enum PreparedSubsystem {
    /// A new subsystem, which admits no host yet.
    New(Running),
    /// An existing subsystem, which gains these namespaces.
    Gains(SubsystemConfig, Vec<(NamespaceConfig, PreparedNamespace)>),
}

impl Service {
    /// The namespaces of `new` that are neither served nor in `opened`.
    ///
    /// # Errors
    /// `InvalidArgument`: `new` contains a change that needs a restart.
    pub(crate) fn missing(
        &self,
        new: &ServiceConfig,
        opened: &[Opened],
    ) -> Result<Vec<(Nqn, NamespaceConfig)>> {
        let mut missing = Vec::new();
        for config in &new.subsystems {
            if let Some(running) = self.find(&config.nqn) {
                running.config.check_change(config)?;
            }
            let added = self.not_served(config).filter(|namespace| {
                !opened.iter().any(|o| o.nqn == config.nqn && o.config == **namespace)
            });
            missing.extend(added.map(|namespace| (config.nqn.clone(), namespace.clone())));
        }
        Ok(missing)
    }

    /// The namespaces of `config` that are not served now.
    fn not_served<'a>(
        &'a self,
        config: &'a SubsystemConfig,
    ) -> impl Iterator<Item = &'a NamespaceConfig> {
        let present = self.find(&config.nqn).map_or(&[][..], |running| &running.config.namespaces);
        config.namespaces.iter().filter(|namespace| !present.contains(namespace))
    }

    /// Prepares everything to become `new`, without an effect on hosts. `opened` has the namespaces that were missing;
    /// `destination` is the new destination of the access log.
    ///
    /// # Errors
    /// Errors of listening, of starting a target, and of opening the access log. After an error nothing has
    /// changed.
    pub(crate) fn prepare(
        &mut self,
        new: &ServiceConfig,
        mut opened: Vec<Opened>,
        destination: Option<&LogDestination>,
    ) -> Result<Prepared> {
        let mut subsystems = Vec::new();
        for config in &new.subsystems {
            let added: BTreeSet<u32> = self.not_served(config).map(|added| added.nsid.0).collect();
            let gained = opened.extract_if(.., |opened| opened.nqn == config.nqn);
            let gained: Vec<Opened> =
                gained.filter(|opened| added.contains(&opened.config.nsid.0)).collect();
            subsystems.push(match self.find_mut(&config.nqn) {
                Some(running) => running.prepare(config.clone(), gained)?,
                None => {
                    let served = gained.into_iter().map(|opened| opened.served).collect();
                    PreparedSubsystem::New(
                        self.build(config.clone(), served, |options| options.hold = true)?,
                    )
                }
            });
        }
        // Last, since it may leave an empty file behind.
        let access_log = self.next_access_log(destination)?;
        Ok(Prepared { subsystems, access_log })
    }

    /// Applies what was prepared, and returns a description of the changes.
    ///
    /// # Errors
    /// `TimedOut`, `Internal`: a target's thread does not answer, or is dead. Some changes have then been
    /// applied.
    pub(crate) fn commit(&mut self, new: &ServiceConfig, prepared: Prepared) -> Result<String> {
        let Prepared { subsystems, access_log } = prepared;
        if let Some(output) = access_log {
            self.switch_access_log(output);
        }
        let mut changes = Vec::new();
        let is_gone =
            |running: &Running| !new.subsystems.iter().any(|c| c.nqn == running.config.nqn);
        while let Some(number) = self.subsystems.iter().position(is_gone) {
            let gone = self.subsystems.remove(number);
            changes.push(format!("subsystem {} ends", gone.config.nqn));
            self.begin_to_end(gone)?;
        }
        for ready in subsystems {
            match ready {
                PreparedSubsystem::New(running) => {
                    changes.push(format!("subsystem {} begins", running.config.nqn));
                    // Ends the hold: from now on hosts are admitted.
                    running.target.set_allowed_hosts(running.config.allow_hosts.clone());
                    self.add(running);
                }
                PreparedSubsystem::Gains(config, namespaces) => {
                    // Only this thread removes subsystems, so it is found.
                    let Some(running) = self.find_mut(&config.nqn) else { continue };
                    running.commit(config, namespaces, &mut changes)?;
                }
            }
        }
        if self.limiter.rules() != new.rules() {
            self.limiter.set(new.rules());
            changes.push("limits of hosts or namespaces change".to_owned());
        }
        if changes.is_empty() {
            let text = "no subsystem, namespace or host has changed; keys are as the files say";
            changes.push(text.to_owned());
        }
        Ok(changes.join("; "))
    }
}

impl Running {
    /// Prepares to become `new`, with the open namespaces that the subsystem gains.
    fn prepare(&mut self, new: SubsystemConfig, opened: Vec<Opened>) -> Result<PreparedSubsystem> {
        self.target.prepare_host_keys(&new.host_keys)?;
        let prepared = opened.into_iter().map(|Opened { config, served, .. }| {
            let prepared = self.target.prepare_namespace(served);
            Ok((config, prepared.map_err(|error| of_subsystem(&new.nqn, error))?))
        });
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        Ok(PreparedSubsystem::Gains(new, prepared))
    }

    /// Applies what was prepared, and adds descriptions of the changes.
    fn commit(
        &mut self,
        new: SubsystemConfig,
        namespaces: Vec<(NamespaceConfig, PreparedNamespace)>,
        changes: &mut Vec<String>,
    ) -> Result<()> {
        let nqn = new.nqn.clone();
        let is_gone = |namespace: &&NamespaceConfig| !new.namespaces.contains(namespace);
        let gone: Vec<_> = self.config.namespaces.iter().filter(is_gone).cloned().collect();
        for gone in gone {
            self.remove_namespace(gone.nsid)?;
            changes.push(format!("{nqn} loses namespace {}", gone.nsid.0));
        }
        let before = self.hosts();
        let rekeyed = self.rekeyed(&new);
        self.target.set_host_keys(new.host_keys.clone())?;
        self.target.set_allowed_hosts(new.allow_hosts.clone());
        if new.ana != self.config.ana {
            self.set_ana(new.ana)?;
            changes.push(format!("{nqn} is {}", new.ana));
        }
        let namespaces_of_file = new.namespaces.clone();
        let remaining = std::mem::take(&mut self.config.namespaces);
        self.config = SubsystemConfig { namespaces: remaining, ..new };
        let after = self.hosts();
        for host in before.difference(&after) {
            self.note("host-removed", json!({ "host": host }));
            changes.push(format!("{nqn} no longer lists {host}"));
        }
        for host in self.unlisted(&after) {
            let ended = self.target.disconnect(&host);
            changes.push(format!("{nqn} disconnects {host} ({ended} controllers)"));
        }
        for host in after.difference(&before) {
            self.note("host-added", json!({ "host": host }));
            changes.push(format!("{nqn} lists {host}"));
        }
        if rekeyed > 0 {
            changes.push(format!("{nqn} has new keys for {}", counted(rekeyed, "host")));
        }
        // Last, so that a host that is no longer allowed never sees them.
        for (config, prepared) in namespaces {
            changes.push(format!("{nqn} gains namespace {}", config.nsid.0));
            self.target.add_prepared(prepared)?;
            self.namespace_added(config);
        }
        self.config.namespaces = namespaces_of_file; // in the order of the file
        Ok(())
    }

    /// The number of hosts that stay listed and get other keys, or other access with them.
    fn rekeyed(&self, new: &SubsystemConfig) -> u64 {
        let is_same = |one: &HostKeys, other: &HostKeys| {
            one.secrets == other.secrets
                && one.ctrl_secret == other.ctrl_secret
                && one.must_concat == other.must_concat
                && one.tls_keys == other.tls_keys
                && one.access == other.access
        };
        let is_rekeyed = |(host, keys): &(&Nqn, &HostKeys)| {
            self.config.host_keys.get(host).is_some_and(|before| !is_same(before, keys))
        };
        new.host_keys.iter().filter(is_rekeyed).count() as u64
    }

    /// Connected hosts that the list no longer allows. An empty list allows either all hosts, or none: then
    /// no host can have connected.
    fn unlisted(&self, listed: &BTreeSet<Nqn>) -> BTreeSet<Nqn> {
        if self.config.allow_any_host || listed.is_empty() {
            return BTreeSet::new();
        }
        let connected = self.target.connected().into_iter().map(|controller| controller.host);
        connected.filter(|host| !listed.contains(host)).collect()
    }
}

/// An error of a namespace, with the name of its subsystem.
fn of_subsystem(nqn: &Nqn, error: Error) -> Error {
    let kind = error.kind();
    Error::new(kind, format!("{nqn} cannot serve a namespace")).source(error)
}
