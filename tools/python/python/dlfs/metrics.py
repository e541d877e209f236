"""The metrics of this process: counters of its data sets, loaders, tiers and targets.

    server = dlfs.metrics.serve("127.0.0.1:9410")    # for Prometheus, until server.close()
    dlfs.metrics.values()["dlfs_loader_samples_total"]

docs/metrics.md lists the names. Counts of a closed data set or loader stay. A forked child, such as a worker of torch's
DataLoader, counts for itself, and only for data sets and loaders that it has opened.
"""

from __future__ import annotations

from ._dlfs import MetricsServer, metrics_text, metrics_values

__all__ = ["MetricsServer", "serve", "text", "values"]


def serve(address: str = "127.0.0.1:9410") -> MetricsServer:
    """Serves the metrics as OpenMetrics at http://ADDRESS/metrics, in a thread of the library, until it is closed.

    address: "IP:PORT"; port 0 selects a free one, which the server's `address` says. Nothing protects the page: choose
    a loopback address, or a network whose hosts may see it. Raises Busy if another process listens there.
    """
    return MetricsServer(address)


def text() -> str:
    """The metrics as OpenMetrics text."""
    return metrics_text()


def values() -> dict[str, int | float]:
    """The metrics by series, such as 'dlfs_read_bytes_total{by="loader"}'."""
    return metrics_values()
