//! Serves any queue pair's namespace over NVMe/TCP.
