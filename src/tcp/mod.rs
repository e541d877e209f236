//! The NVMe/TCP transport binding: PDUs, digests, deframer, host and controller connections; pure.
