//! Targets as a service: what `dlfs serve` runs, from a file or from its command line.
//!
//! Both the file and the command line become values of [`config::SubsystemConfig`]. [`running::Service`] has
//! the running targets, and [`reload`] makes them match the file again; [`leaving`] has the subsystems that are
//! ending. [`control`] answers `dlfs ctl`; [`changes`] carries out changes of the service, and waits for
//! them; [`shares`] limits hosts; [`systemd`] reports the state to the service manager; [`takeover`] replaces a
//! service by another process without closing its addresses; [`access_log`] keeps a record of hosts and changes. All of
//! it runs on the command's own thread, in the loop of `commands/serve.rs`, except for opening namespaces later, ending
//! targets and writing the access log.
//!
//! It is not a supervisor: if a target's thread dies, the service ends.

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
pub(crate) mod shares;
pub(crate) mod systemd;
pub(crate) mod takeover;
