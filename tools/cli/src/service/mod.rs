//! Targets as a service: what `dlfs serve` runs, from a file or from its command line.
//!
//! Both the file and the command line become values of [`config::SubsystemConfig`]. [`running::Service`] has
//! the running targets, and [`reload`] makes them match the file again. [`control`] answers `dlfs ctl`; [`openings`]
//! carries out changes of the service, and waits for them; [`limits`] limits hosts; [`takeover`] replaces a service by
//! another process without closing its addresses; [`access_log`] has a line for each event. All of it runs on the
//! command's main thread, in the loop of `commands/serve.rs`, except for reading requests, opening namespaces, ending
//! targets and writing the access log.
//!
//! It is not a supervisor: if a target's thread dies, the service ends.

pub(crate) mod access_log;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod limits;
pub(crate) mod methods;
pub(crate) mod openings;
pub(crate) mod reload;
pub(crate) mod running;
pub(crate) mod takeover;
#[cfg(test)]
mod tests;
