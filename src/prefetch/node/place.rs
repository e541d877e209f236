//! The seat of a rank in the loader of its node, the options with which the node reads, and the name by which its
//! ranks find each other.

use xxhash_rust::xxh3::xxh3_64;

use crate::order::State;
use crate::prefetch::{LoaderOptions, NodePlace};

fn num_nodes(place: &NodePlace, options: &LoaderOptions) -> u32 {
    (options.world_size / place.local_world_size.max(1)).max(1)
}

/// The number of a rank on its node.
pub(super) fn seat(place: &NodePlace, options: &LoaderOptions) -> u32 {
    options.rank / num_nodes(place, options)
}

/// The options with which the node of a rank with `options` reads, from `state` on.
pub(crate) fn reading(place: &NodePlace, options: &LoaderOptions, state: State) -> LoaderOptions {
    let nodes = num_nodes(place, options);
    let seats = if options.budget.is_some() { 1 } else { place.local_world_size as usize };
    LoaderOptions {
        order: state.order,
        rank: options.rank % nodes,
        world_size: nodes,
        batch_size: options.batch_size.saturating_mul(seats),
        node: None,
        seats: Some(place.local_world_size),
        resume: Some(state),
        // Each client gathers its own part.
        copy_threads: None,
        // Clients map the memory for reading only.
        verify_kept: false,
        // Each rank registers its own mapping.
        pin: None,
        ..options.clone()
    }
}

/// The name of the socket: the same exactly for ranks of this node in one run, wherever it is.
pub(super) fn socket_name(place: &NodePlace, options: &LoaderOptions, state: &State) -> String {
    let LoaderOptions { epochs, world_size, batch_size, rows, tail, drop_short, .. } = options;
    let mut run = state.clone();
    run.move_to((Default::default(), 0), None);
    let run = run.to_json();
    let node = options.rank % num_nodes(place, options);
    let local = place.local_world_size;
    let text = format!(
        "{} {run} {epochs:?} {world_size} {batch_size} {rows:?} {tail:?} {drop_short} {node} {local}",
        place.job
    );
    format!("node-{:016x}", xxh3_64(text.as_bytes())) // a socket's path is limited to 107 bytes
}
