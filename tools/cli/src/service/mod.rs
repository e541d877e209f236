//! Targets as a service: what `dlfs serve` runs, from a file or from its command line.
//!
//! [`config::ServiceConfig`] is the one value that both become. [`running::Service`] makes the running targets
//! equal to it, at the start and at each reload. [`control`] answers `dlfs ctl`; [`systemd`] tells the service
//! manager what is going on; [`access_log`] keeps a record of hosts and changes. All of it runs on the command's
//! own thread: `commands/serve.rs` has its loop.
//!
//! It is not a supervisor: a target whose thread dies ends the service.

pub(crate) mod access_log;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod limits;
mod methods;
pub(crate) mod running;
pub(crate) mod systemd;
