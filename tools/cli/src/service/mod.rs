//! Targets as a service, as `dlfs serve` runs them.
//!
//! The configuration file or the command line becomes [`config::SubsystemConfig`] values, with [`limits`].
//! [`running::Service`] has the running targets. [`control`] receives the requests of `dlfs ctl`, [`methods`] carries
//! them out, and [`reload`] makes the targets match the file again; [`changes`] opens the namespaces that a request or
//! a reload waits for. [`takeover`] replaces the service by another process without closing its addresses. [`manager`]
//! reports to systemd and takes its sockets, and [`access_log`] has a line for each event.
//!
//! All of it runs on the command's main thread, in the loop of `commands/serve.rs`, except for receiving requests,
//! sending answers, opening namespaces, ending targets and writing the access log.
//!
//! The service is not a supervisor: if a target's thread dies, the service ends. Read `running.rs` first.

pub(crate) mod access_log;
pub(crate) mod changes;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod limits;
pub(crate) mod manager;
pub(crate) mod methods;
pub(crate) mod reload;
pub(crate) mod running;
pub(crate) mod takeover;
#[cfg(test)]
mod tests;
