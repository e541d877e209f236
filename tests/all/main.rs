//! Behaviour of the library by capability: one program, so that the library is linked and the support is compiled
//! once.
//!
//! Its tests run beside each other in one process. A test that forks, or that looks at what belongs to the whole
//! process, runs itself again [`alone`](support::alone) in a process of its own.
#![allow(unreachable_pub)] // modules of one program

#[path = "../images/mod.rs"]
mod images;
#[path = "../import_support/mod.rs"]
mod import_support;
mod store_support;
#[path = "../support/mod.rs"]
mod support;

mod catalog;
mod chunk_holders;
mod columns;
mod controllers;
mod dataset;
mod directory;
mod ends;
mod engines;
mod failed_reads;
mod faulty_network;
#[cfg(feature = "cloud")]
mod filling;
#[cfg(feature = "cloud")]
mod first_epoch;
mod folder;
mod format_damage;
mod format_golden;
mod golden_images;
mod golden_states;
mod huge;
mod import;
mod import_classes;
mod import_damage;
mod import_decisions;
mod import_expansion;
mod import_faults;
#[cfg(feature = "cloud")]
mod import_hub;
mod import_kill;
mod import_many;
mod import_names;
mod import_network;
#[cfg(feature = "cloud")]
mod import_origins;
#[cfg(feature = "cloud")]
mod import_places;
mod import_remote;
#[cfg(feature = "cloud")]
mod import_restart;
#[cfg(all(feature = "cloud", feature = "formats"))]
mod import_restart_rows;
mod import_rows;
mod import_shards;
mod import_sources;
#[cfg(feature = "tokens")]
mod import_texts;
mod import_tokens;
mod import_values;
mod interop_linux_host;
mod interop_linux_target;
mod interop_spdk;
mod interop_tls;
mod lengths;
mod local_shares;
mod lying_images;
mod metrics;
mod metrics_fork;
mod metrics_system_calls;
mod mixture_read;
mod mixtures;
mod multipath;
mod netsim;
mod node_loader;
mod opening;
mod options;
mod orders;
mod partial;
mod pcie;
mod peers;
mod peers_rates;
mod permutation;
mod pinned;
#[cfg(feature = "cloud")]
mod places;
#[cfg(feature = "cloud")]
mod places_origin;
#[cfg(feature = "cloud")]
mod places_plain;
#[cfg(feature = "cloud")]
mod places_redirects;
#[cfg(feature = "cloud")]
mod places_web;
mod plan;
mod posix;
mod power;
mod power_files;
mod read;
mod readiness;
mod rebuild;
mod sample_ranges;
mod scattered;
mod shards;
mod shared_device;
mod shares;
mod staging;
mod store;
mod store_processes;
mod superblocks;
mod target;
mod target_access_log;
mod target_authentication;
mod target_changes;
mod target_hostile;
mod target_limits;
mod target_tls;
mod tcp_failures;
mod tcp_host;
mod tcp_hostile;
mod tiers;
mod tiers_lent;
mod tiers_pages;
mod tiers_plan;
mod tiers_remote;
mod tiers_runs;
mod tiers_shared;
mod tiers_sources;
mod tiny_samples;
mod token_mixtures;
mod token_runs;
mod tokens;
mod training;
mod views;
mod waiting;
mod weighted;
mod writer;
