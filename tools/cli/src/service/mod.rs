//! Targets as a service: what `dlfs serve` runs, from a file or from its command line.
//!
//! [`config::ServiceConfig`] is the one value that both become. [`running::Service`] has the running targets, which
//! [`reload`] makes equal to it; [`leaving`] are those that end. [`control`] answers `dlfs ctl`; [`changes`] carries
//! out what changes the service, and waits for it; [`systemd`] tells the service manager what is going on;
//! [`access_log`] keeps a record of hosts and changes. All of it runs on the command's own thread, but for the opening
//! of namespaces, the end of targets and the writing of the access log: `commands/serve.rs` has its loop.
//!
//! It is not a supervisor: a target whose thread dies ends the service.

pub(crate) mod access_log;
pub(crate) mod changes;
pub(crate) mod config;
pub(crate) mod control;
mod leaving;
pub(crate) mod limits;
pub(crate) mod methods;
mod openings;
mod reload;
pub(crate) mod running;
pub(crate) mod systemd;
