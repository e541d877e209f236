//! Placement of a command's pollers on processors, and whether they sleep.

use clap::Args;

use dlfs::Error;
use dlfs::qpair::Cpus;

use crate::exit::Failure;

/// Processors of pollers. By default they run anywhere and sleep when idle.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Processors")]
pub(crate) struct PlacementArgs {
    /// Spin instead of sleeping: the lowest latency, for a whole core a poller
    #[arg(long)]
    pub(crate) busy_poll: bool,
    /// Bind pollers to these processors, one each in turn, as 0,2-5
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Bind pollers to the processors of this NUMA node, and allocate their memory there
    #[arg(long, value_name = "NODE")]
    numa: Option<u32>,
}

impl PlacementArgs {
    /// The processors to bind pollers to, if any were given.
    pub(crate) fn cpus(&self) -> Result<Option<Cpus>, Failure> {
        let wrong = |option: &'static str| {
            move |error: Error| Failure::Usage(format!("{option}: {}", error.report()))
        };
        let Some(list) = &self.cpus else {
            return self.numa.map(Cpus::of_node).transpose().map_err(wrong("--numa"));
        };
        let cpus = Cpus::parse(list).map_err(wrong("--cpus"))?;
        match self.numa {
            None => Ok(Some(cpus)),
            Some(node) => cpus.within_node(node).map(Some).map_err(wrong("--numa")),
        }
    }
}
