//! `--metrics`: serves the metrics of the command over HTTP while it runs.

use std::net::SocketAddr;

use clap::Args;

use dlfs::exporter::Exporter;

use crate::exit::Failure;
use crate::log;

#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Serve metrics in OpenMetrics at http://IP:PORT/metrics, to anybody who can connect; port 0 selects a free one
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
}

impl MetricsArgs {
    /// Starts to serve the metrics, until the returned value is dropped, and logs the address.
    pub(crate) fn serve(&self) -> Result<Option<Exporter>, Failure> {
        let exporter = self.metrics.map(Exporter::serve).transpose()?;
        if let Some(exporter) = &exporter {
            log::say(&format!("metrics at http://{}/metrics", exporter.local_addr()));
        }
        Ok(exporter)
    }
}
