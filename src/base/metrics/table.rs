//! The names of all metrics. `docs/metrics.md` has the same table; names and meanings do not change.

use super::{Kind, Metric};

macro_rules! metrics {
    ($($ident:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $ident: Metric =
                Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*

        /// All metrics, in the order of the text.
        pub static ALL: &[&Metric] = &[$(&$ident),*];
    };
}

metrics! {
    BUILD Info "dlfs_build" ["version", "commit"] "The version of dlfs and the commit that it is built from.";

    TARGET_CONTROLLERS Gauge "dlfs_target_controllers" ["subsystem"] "Controllers now.";
    TARGET_CONNECTIONS Gauge "dlfs_target_connections" ["subsystem"] "TCP connections now.";
    TARGET_CONNECTIONS_ACCEPTED Counter "dlfs_target_connections_accepted" ["subsystem"]
        "TCP connections ever accepted.";
    TARGET_CONNECTIONS_DROPPED Counter "dlfs_target_connections_dropped" ["subsystem"]
        "Connections closed because of the host's behaviour or a limit.";
    TARGET_CONNECTIONS_REFUSED Counter "dlfs_target_connections_refused" ["subsystem"]
        "Connections and Connect commands that were refused: a limit, or a host that is not allowed.";
    TARGET_EVICTIONS Counter "dlfs_target_evictions" ["subsystem"]
        "Controllers and connections closed because a limit was reached or descriptors or memory ran out.";
    TARGET_COMMANDS Counter "dlfs_target_commands" ["subsystem", "command"]
        "Commands that have arrived, also those that failed.";
    TARGET_ERRORS Counter "dlfs_target_errors" ["subsystem"] "I/O commands with an error response.";
    TARGET_READS Counter "dlfs_target_reads" ["subsystem"] "Successful reads.";
    TARGET_READ_BYTES Counter "dlfs_target_read_bytes" ["subsystem"] "Bytes of successful reads.";
    TARGET_WRITES Counter "dlfs_target_writes" ["subsystem"] "Successful writes.";
    TARGET_WRITTEN_BYTES Counter "dlfs_target_written_bytes" ["subsystem"] "Bytes of successful writes.";

    TARGET_COMMAND_SECONDS Histogram "dlfs_target_command_seconds" ["subsystem", "command"]
        "Time from the arrival of a read, write or flush to its response, as the target sees it.";

    HOST_CONTROLLERS Gauge "dlfs_host_controllers" ["subsystem"] "Controllers that are connected now.";
    HOST_PATHS Gauge "dlfs_host_paths" ["subsystem"] "Socket addresses at which they can be reached.";
    HOST_FAILED_PATHS Gauge "dlfs_host_failed_paths" ["subsystem"]
        "Those of them that have failed since the controller was last connected.";
    HOST_RECONNECTS Counter "dlfs_host_reconnects" ["subsystem"]
        "Times that a lost controller was connected again.";
    HOST_RETRIES Counter "dlfs_host_retries" ["subsystem"]
        "Commands that were sent again: after a lost connection, or because the controller asked for it.";
    HOST_DIGEST_ERRORS Counter "dlfs_host_digest_errors" ["subsystem"]
        "Transfers whose data digest was wrong.";
    HOST_RECEIVES Counter "dlfs_host_receives" ["subsystem"]
        "System calls that received on the sockets of I/O queues.";
    HOST_EMPTY_RECEIVES Counter "dlfs_host_empty_receives" ["subsystem"]
        "Those of them that returned no bytes.";

    READ_COMMANDS Counter "dlfs_read_commands" ["by"] "Read commands completed, including repeated ones.";
    READ_BYTES Counter "dlfs_read_bytes" ["by"] "Bytes that those commands requested.";
    READ_PLACE_BYTES Counter "dlfs_read_place_bytes" ["by", "place"] "Those bytes, by the place that served them.";
    READ_REPEATS Counter "dlfs_read_repeats" ["by"]
        "Commands that repeated a read after an error or a wrong checksum.";
    READ_CHECKSUM_ERRORS Counter "dlfs_read_checksum_errors" ["by"]
        "Those of them that repeated a read because a checksum was wrong.";
    READ_VERIFIED Counter "dlfs_read_verified" ["by"]
        "Samples, and pieces of large samples, whose checksum was computed and correct.";

    READ_COMMAND_SECONDS Histogram "dlfs_read_command_seconds" ["by"]
        "Time from the submission of a read command to its completion.";

    FOLDER_OPENS Counter "dlfs_folder_opens" [] "Files of folders opened: the data set is a folder, not an image.";
    FOLDER_READS Counter "dlfs_folder_reads" [] "System calls that read them.";
    FOLDER_READ_BYTES Counter "dlfs_folder_read_bytes" [] "Bytes that those returned.";

    OBJECT_REQUESTS Counter "dlfs_object_requests" ["scheme"] "Requests sent to object stores and web servers.";
    OBJECT_RETRIES Counter "dlfs_object_retries" ["scheme"] "Requests that failed and were tried again.";
    OBJECT_THROTTLED Counter "dlfs_object_throttled" ["scheme"]
        "Answers that said that there are too many requests.";
    OBJECT_HEDGES Counter "dlfs_object_hedges" ["scheme"]
        "Second requests for bytes that were slow to come.";
    OBJECT_BYTES Counter "dlfs_object_bytes" ["scheme"] "Bytes of objects that were read.";

    LOADER_BATCHES Counter "dlfs_loader_batches" [] "Batches delivered.";
    LOADER_SAMPLES Counter "dlfs_loader_samples" [] "Samples delivered.";
    LOADER_SAMPLE_BYTES Counter "dlfs_loader_sample_bytes" [] "Bytes of the samples delivered.";
    LOADER_SKIPPED Counter "dlfs_loader_skipped" [] "Samples skipped because they could not be read.";
    LOADER_STALL_SECONDS Counter "dlfs_loader_stall_seconds" []
        "Time that consumers have waited for batches.";
    LOADER_STALLS_SECONDS Counter "dlfs_loader_stalls_seconds" ["cause"]
        "Time that consumers have waited for batches, by cause.";
    LOADER_BLOCKED_SECONDS Counter "dlfs_loader_blocked_seconds" []
        "Time that loaders have slept because ready batches waited for their consumer, or the window was full.";
    LOADER_COPIED_BYTES Counter "dlfs_loader_copied_bytes" []
        "Bytes copied to gather batches into one buffer.";
    LOADER_OVER_WINDOW Counter "dlfs_loader_over_window" []
        "Buffers that did not fit the window and were allocated outside it.";
    LOADER_REWRITTEN Counter "dlfs_loader_rewritten" []
        "Samples in kept memory that were overwritten and had to be read again.";
    LOADER_WINDOW_BYTES Gauge "dlfs_loader_window_bytes" [] "Memory of the windows of loaders.";
    LOADER_WINDOW_USED_BYTES Gauge "dlfs_loader_window_used_bytes" []
        "Memory of the windows that holds reads, ready batches and batches that their consumers have.";
    LOADER_RESIDENT Gauge "dlfs_loader_resident" [] "Samples whose verified bytes are in the window now.";

    TIER_CAPACITY_BYTES Gauge "dlfs_tier_capacity_bytes" ["tier"] "The tier's quota, without its index.";
    TIER_USED_BYTES Gauge "dlfs_tier_used_bytes" ["tier"] "Bytes of the pages that are reserved.";
    TIER_HELD_BYTES Gauge "dlfs_tier_held_bytes" ["tier"] "Bytes of the pages that have copies.";
    TIER_OFF Gauge "dlfs_tier_off" ["tier"] "1 if the tier accepts no more copies, because a write failed.";
    TIER_HITS Counter "dlfs_tier_hits" ["tier"] "Reads, or pieces of reads, that the tier served.";
    TIER_HIT_BYTES Counter "dlfs_tier_hit_bytes" ["tier"] "Bytes of those reads.";
    TIER_HIT_SECONDS Counter "dlfs_tier_hit_seconds" ["tier"]
        "Total time of those reads from submission to completion.";
    TIER_OPENS Counter "dlfs_tier_opens" ["tier"] "Copies that were opened as files.";
    TIER_FILLS Counter "dlfs_tier_fills" ["tier"] "Units of at most 64 pages that were completed.";
    TIER_FILL_BYTES Counter "dlfs_tier_fill_bytes" ["tier"] "Bytes written to the tier.";
    TIER_FILL_SECONDS Counter "dlfs_tier_fill_seconds" ["tier"] "Total time of writing them.";
    TIER_RESTORED Counter "dlfs_tier_restored" ["tier"]
        "Units of an earlier run whose copies were verified and reused.";
    TIER_EVICTIONS Counter "dlfs_tier_evictions" ["tier"] "Units that were evicted for others.";
    TIER_DAMAGED Counter "dlfs_tier_damaged" ["tier"]
        "Units with copies that were corrupt, truncated or unreadable.";
    TIERS_ATTACHED Gauge "dlfs_tiers_attached" [] "Processes that have attached to the tiers of this one.";

    ORIGIN_READS Counter "dlfs_origin_reads" []
        "Reads of the data set past all tiers that somebody waited for.";
    ORIGIN_READ_BYTES Counter "dlfs_origin_read_bytes" [] "Bytes of those reads.";
    ORIGIN_READ_SECONDS Counter "dlfs_origin_read_seconds" []
        "Total time of those reads from submission to completion.";
    ORIGIN_AHEAD_READS Counter "dlfs_origin_ahead_reads" []
        "Reads, or pieces of reads, served from what was read ahead.";
    ORIGIN_AHEAD_BYTES Counter "dlfs_origin_ahead_bytes" [] "Bytes of those.";
    ORIGIN_JOINED_READS Counter "dlfs_origin_joined_reads" []
        "Reads, or pieces of reads, of pages that another read was fetching, and served by it.";
    ORIGIN_JOINED_BYTES Counter "dlfs_origin_joined_bytes" [] "Bytes of those.";
    ORIGIN_COPIER_READS Counter "dlfs_origin_copier_reads" [] "Reads of the data set only to make copies.";
    ORIGIN_COPIER_BYTES Counter "dlfs_origin_copier_bytes" [] "Bytes of those reads.";

    PEER_READS Counter "dlfs_peer_reads" ["node"] "Reads from the tiers of another node.";
    PEER_READ_BYTES Counter "dlfs_peer_read_bytes" ["node"] "Bytes of those reads.";
    PEER_READ_SECONDS Counter "dlfs_peer_read_seconds" ["node"] "Total time of those reads.";
    PEER_NOT_THERE_READS Counter "dlfs_peer_not_there_reads" [] "Reads of data that the peer did not have.";
    PEER_NOT_THERE_BYTES Counter "dlfs_peer_not_there_bytes" []
        "Bytes that a peer was asked for and did not deliver.";
    PEER_REROUTED_BYTES Counter "dlfs_peer_rerouted_bytes" []
        "Bytes that were read elsewhere after a peer had failed.";
    PEER_MISMATCHED_BYTES Counter "dlfs_peer_mismatched_bytes" []
        "Bytes that a peer delivered with a wrong checksum; none reached the caller.";

    STORE_HELD_BYTES Gauge "dlfs_store_held_bytes" [] "Bytes of the pages that the rank's store has now.";
    STORE_PEAK_BYTES Gauge "dlfs_store_peak_bytes" [] "The most bytes of pages that it ever had.";
    STORE_FOUND Counter "dlfs_store_found" [] "Samples that lay there when it was opened, and were right.";
    STORE_STAGED Counter "dlfs_store_staged" []
        "Samples that were brought from the data set before an epoch began.";
    STORE_STAGED_BYTES Counter "dlfs_store_staged_bytes" [] "Bytes of the pages of those samples.";
    STORE_RECEIVED Counter "dlfs_store_received" [] "Samples that came from the ranks that had them.";
    STORE_RECEIVED_BYTES Counter "dlfs_store_received_bytes" [] "Bytes of the pages of those samples.";
    STORE_NEAR_BYTES Counter "dlfs_store_near_bytes" []
        "Those of them that came from ranks on the same node.";
    STORE_FROM_ORIGIN Counter "dlfs_store_from_origin" []
        "Samples that came from the data set, because the rank that had them was late or dead.";
    STORE_FROM_ORIGIN_BYTES Counter "dlfs_store_from_origin_bytes" [] "Bytes of the pages of those samples.";
    STORE_DELETED Counter "dlfs_store_deleted" [] "Samples that were deleted after their new ranks had them.";
    STORE_MISMATCHED Counter "dlfs_store_mismatched" []
        "Samples that a peer delivered with a wrong checksum; none was stored.";
    STORE_STEPS Counter "dlfs_store_steps" [] "Steps of exchanges that this rank has ended.";
    STORE_WAITS Counter "dlfs_store_waits" [] "Reads that waited for a sample that had not arrived.";

    AHEAD_SAMPLES Counter "dlfs_ahead_samples" [] "Samples read ahead for files, along an order.";
    AHEAD_BYTES Counter "dlfs_ahead_bytes" [] "Bytes of those samples.";
    AHEAD_HITS Counter "dlfs_ahead_hits" [] "Files that were there when they were asked for, or soon after.";
    AHEAD_MISSES Counter "dlfs_ahead_misses" [] "Files that were not.";
    AHEAD_UNUSED Counter "dlfs_ahead_unused" [] "Samples that were dropped before anybody asked for them.";

    IMPORT_SAMPLES Counter "dlfs_import_samples" ["stage"] "Samples that a stage of an import has dealt with.";
    IMPORT_BYTES Counter "dlfs_import_bytes" ["stage"] "Bytes of those samples.";
    IMPORT_SECONDS Counter "dlfs_import_seconds" ["stage"] "Time that the stages of imports have taken.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_valid_and_do_not_end_as_other_samples_of_a_family_do() {
        let mut names = BTreeSet::new();
        for metric in ALL {
            let name = metric.family();
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.starts_with("dlfs_"), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            for end in ["_total", "_created", "_count", "_sum", "_bucket", "_info"] {
                assert!(!name.ends_with(end), "{name}");
            }
            assert!(metric.help().ends_with('.') && !metric.help().contains('\n'), "{name}");
            assert!(metric.labels().iter().all(|label| *label != "le"), "{name}");
        }
        assert!(names.len() > 60);
    }

    #[test]
    fn the_unit_is_the_end_of_the_name() {
        assert_eq!(TARGET_READ_BYTES.unit(), Some("bytes"));
        assert_eq!(LOADER_STALL_SECONDS.unit(), Some("seconds"));
        assert_eq!(TARGET_READS.unit(), None);
        assert_eq!(TARGET_READ_BYTES.name(), "dlfs_target_read_bytes_total");
        assert_eq!(
            (BUILD.name(), TIER_OFF.name()),
            ("dlfs_build_info".into(), "dlfs_tier_off".into())
        );
    }
}
