//! The user's request: options of the run and of jobs, each written once, as a field that clap parses.
//!
//! Sections of job files (`file`) become arguments `--KEY=VALUE`, so that files and command line share names,
//! limits and messages. `request` combines arguments and sections; `value` parses single values.

mod file;
pub(crate) mod job;
pub(crate) mod request;
pub(crate) mod value;

pub(crate) use job::Job;
