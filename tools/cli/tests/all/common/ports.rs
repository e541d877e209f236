//! Ports of loopback for servers that begin later.

use std::fs;
use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port that is free, and that nobody else gets: no other test of this program, and neither listeners on port 0 nor
/// outgoing connections, whose ports the kernel takes from a range of its own.
pub(crate) fn free_port() -> u16 {
    free_ports(1)
}

/// The first of `count` ports in sequence that are free as [`free_port`] says.
pub(crate) fn free_ports(count: u16) -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let lowest = range.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
    let len = u32::from(lowest.unwrap_or(32_768_u16).saturating_sub(FIRST + count)).max(1);
    for _ in 0..len {
        // Programs that run beside this one begin elsewhere.
        let nth = process::id().wrapping_mul(97) + TAKEN.fetch_add(count.into(), Ordering::Relaxed);
        let first = FIRST + (nth % len) as u16;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (first..first + count).all(is_free) {
            return first;
        }
    }
    panic!("no port below the kernel's own is free");
}

/// Below are ports of services.
const FIRST: u16 = 10_000;
