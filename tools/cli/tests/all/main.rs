//! Tests of `dlfs`, as one program: a module for each area.

mod common;
#[allow(dead_code, unreachable_pub)] // shared with the library's tests
#[path = "../../../../tests/support/disk.rs"]
mod disk;
mod service_support;
#[cfg(feature = "cloud")]
#[allow(dead_code, unreachable_pub)] // shared with the library's tests
#[path = "../../../../tests/support/web_server.rs"]
mod web_server;

mod absent;
mod access_log;
mod cached;
mod catalog;
mod catalog_redis;
mod control;
mod copies;
mod demo;
mod destroying;
mod doctor;
mod documents;
mod editing;
#[cfg(debug_assertions)]
mod ends;
mod exporting;
mod first_epoch;
mod importing;
mod indexing;
mod installed;
mod interop_identify;
mod interop_vfio;
mod leases;
mod listing;
mod logging;
mod metrics;
mod mixing;
mod mounting;
mod operators_day;
mod peers;
mod private_files;
mod reading;
mod reports;
mod selecting;
mod service;
mod serving;
mod shares;
#[cfg(feature = "spdk")]
mod spdk;
mod takeover;
mod terminal;
mod tiers;
mod tokens;
mod top;
mod version;
mod vfio_user;
mod weighing;
