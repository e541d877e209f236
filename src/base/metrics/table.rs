//! The table of all metrics, which `docs/metrics.md` repeats. Names and meanings never change.

use super::{Kind, Metric};

macro_rules! metrics {
    ($($ident:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $ident: Metric =
                Metric { family: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*

        /// All metrics, in the order of the OpenMetrics text.
        pub static ALL: &[&Metric] = &[$(&$ident),*];
    };
}

metrics! {
    BUILD Info "dlfs_build" ["version", "commit"] "Version and commit of dlfs.";

    TARGET_CONTROLLERS Gauge "dlfs_target_controllers" ["subsystem"] "Controllers now.";
    TARGET_CONNECTIONS Gauge "dlfs_target_connections" ["subsystem"] "TCP connections now.";
    TARGET_CONNECTIONS_ACCEPTED Counter "dlfs_target_connections_accepted" ["subsystem"]
        "TCP connections ever accepted.";
    TARGET_CONNECTIONS_DROPPED Counter "dlfs_target_connections_dropped" ["subsystem"]
        "Connections closed for the host's behaviour or a limit.";
    TARGET_CONNECTIONS_REFUSED Counter "dlfs_target_connections_refused" ["subsystem"]
        "Connections and Connect commands refused: a limit, or a host that is not allowed.";
    TARGET_EVICTIONS Counter "dlfs_target_evictions" ["subsystem"]
        "Controllers and connections closed at a limit, or for lack of descriptors or memory.";
    TARGET_COMMANDS Counter "dlfs_target_commands" ["subsystem", "command"]
        "Commands that arrived, also those that failed.";
    TARGET_ERRORS Counter "dlfs_target_errors" ["subsystem"] "I/O commands with an error response.";
    TARGET_WAKEUPS Counter "dlfs_target_wakeups" ["subsystem"] "Wake-ups of pollers that slept.";
    TARGET_READS Counter "dlfs_target_reads" ["subsystem"] "Successful reads.";
    TARGET_READ_BYTES Counter "dlfs_target_read_bytes" ["subsystem"] "Bytes of successful reads.";
    TARGET_WRITES Counter "dlfs_target_writes" ["subsystem"] "Successful writes.";
    TARGET_WRITTEN_BYTES Counter "dlfs_target_written_bytes" ["subsystem"] "Bytes of successful writes.";

    TARGET_HOST_READS Counter "dlfs_target_host_reads" ["subsystem", "host"]
        "Successful reads of a host.";
    TARGET_HOST_READ_BYTES Counter "dlfs_target_host_read_bytes" ["subsystem", "host"]
        "Bytes of successful reads of a host.";
    TARGET_HOST_WRITES Counter "dlfs_target_host_writes" ["subsystem", "host"]
        "Successful writes of a host.";
    TARGET_HOST_WRITTEN_BYTES Counter "dlfs_target_host_written_bytes" ["subsystem", "host"]
        "Bytes of successful writes of a host.";
    TARGET_HOST_THROTTLED_SECONDS Counter "dlfs_target_host_throttled_seconds" ["subsystem", "host"]
        "Time for which limits kept commands of a host waiting, on all pollers together.";

    TARGET_COMMAND_SECONDS Histogram "dlfs_target_command_seconds" ["subsystem", "command"]
        "Time from the arrival of a read, write or flush to its response.";

    HOST_CONTROLLERS Gauge "dlfs_host_controllers" ["subsystem"] "Connected controllers.";
    HOST_PATHS Gauge "dlfs_host_paths" ["subsystem"] "Socket addresses of connected controllers.";
    HOST_FAILED_PATHS Gauge "dlfs_host_failed_paths" ["subsystem"]
        "Paths that failed since the controller was last connected.";
    HOST_RECONNECTS Counter "dlfs_host_reconnects" ["subsystem"]
        "Reconnections of lost controllers.";
    HOST_FAILOVERS Counter "dlfs_host_failovers" ["subsystem"]
        "Lost controllers whose work went on at once, on a path that was connected already.";
    HOST_RETRIES Counter "dlfs_host_retries" ["subsystem"]
        "Commands sent again, after a lost connection or at the controller's request.";
    HOST_DIGEST_ERRORS Counter "dlfs_host_digest_errors" ["subsystem"]
        "Transfers with a wrong data digest.";
    HOST_RECEIVES Counter "dlfs_host_receives" ["subsystem"]
        "Receiving system calls on sockets of I/O queues.";
    HOST_EMPTY_RECEIVES Counter "dlfs_host_empty_receives" ["subsystem"]
        "Receiving system calls that returned no bytes.";
    HOST_PATH_SESSIONS Gauge "dlfs_host_path_sessions" ["subsystem", "path"] "Connected controllers of a path.";
    HOST_PATH_OPTIMIZED Gauge "dlfs_host_path_optimized" ["subsystem", "path"]
        "Connected controllers of a path whose ANA state is optimized, or that report none.";
    HOST_PATH_COMMANDS Counter "dlfs_host_path_commands" ["subsystem", "path"]
        "I/O commands that ended on a path.";
    HOST_PATH_SECONDS Counter "dlfs_host_path_seconds" ["subsystem", "path"]
        "Latencies of these commands, summed.";
    HOST_PATH_LOSSES Counter "dlfs_host_path_losses" ["subsystem", "path"] "Controllers lost on a path.";

    READ_COMMANDS Counter "dlfs_read_commands" ["by"] "Read commands completed, including repeated ones.";
    READ_BYTES Counter "dlfs_read_bytes" ["by"] "Bytes that read commands requested.";
    READ_PLACE_BYTES Counter "dlfs_read_place_bytes" ["by", "place"] "Bytes read, by the place that served them.";
    READ_REPEATS Counter "dlfs_read_repeats" ["by"]
        "Reads repeated after an error or a wrong checksum.";
    READ_CHECKSUM_ERRORS Counter "dlfs_read_checksum_errors" ["by"]
        "Reads repeated after a wrong checksum.";
    READ_VERIFIED Counter "dlfs_read_verified" ["by"]
        "Samples, and pieces of large samples, with a correct checksum.";

    READ_COMMAND_SECONDS Histogram "dlfs_read_command_seconds" ["by"]
        "Time from submission to completion of a read command.";

    FOLDER_OPENS Counter "dlfs_folder_opens" [] "Files opened of data sets that are folders.";
    FOLDER_READS Counter "dlfs_folder_reads" [] "System calls that read such files.";
    FOLDER_READ_BYTES Counter "dlfs_folder_read_bytes" [] "Bytes that these calls returned.";

    OBJECT_REQUESTS Counter "dlfs_object_requests" ["scheme"] "Requests to object stores and web servers.";
    OBJECT_RETRIES Counter "dlfs_object_retries" ["scheme"] "Failed requests that were sent again.";
    OBJECT_THROTTLED Counter "dlfs_object_throttled" ["scheme"]
        "Answers that refuse for too many requests.";
    OBJECT_HEDGES Counter "dlfs_object_hedges" ["scheme"]
        "Second requests for late bytes.";
    OBJECT_BYTES Counter "dlfs_object_bytes" ["scheme"] "Bytes read of objects.";

    LOADER_BATCHES Counter "dlfs_loader_batches" [] "Batches delivered.";
    LOADER_SAMPLES Counter "dlfs_loader_samples" [] "Samples delivered.";
    LOADER_SAMPLE_BYTES Counter "dlfs_loader_sample_bytes" [] "Bytes of the samples delivered.";
    LOADER_SKIPPED Counter "dlfs_loader_skipped" [] "Samples skipped as unreadable.";
    LOADER_STALL_SECONDS Counter "dlfs_loader_stall_seconds" []
        "Time that consumers waited for batches.";
    LOADER_STALLS_SECONDS Counter "dlfs_loader_stalls_seconds" ["cause"]
        "Time that consumers waited for batches, by cause.";
    LOADER_BLOCKED_SECONDS Counter "dlfs_loader_blocked_seconds" []
        "Time that loaders slept: ready batches waited for their consumer, or the window was full.";
    LOADER_COPIED_BYTES Counter "dlfs_loader_copied_bytes" []
        "Bytes copied to gather batches into one buffer.";
    LOADER_OVER_WINDOW Counter "dlfs_loader_over_window" []
        "Buffers allocated outside the full window.";
    LOADER_REWRITTEN Counter "dlfs_loader_rewritten" []
        "Kept samples that were overwritten, and read again.";
    LOADER_WINDOW_BYTES Gauge "dlfs_loader_window_bytes" [] "Memory of the windows of loaders.";
    LOADER_WINDOW_USED_BYTES Gauge "dlfs_loader_window_used_bytes" []
        "Window memory of reads, ready batches and delivered batches.";
    LOADER_RESIDENT Gauge "dlfs_loader_resident" [] "Verified samples in the window.";

    TIER_CAPACITY_BYTES Gauge "dlfs_tier_capacity_bytes" ["tier"] "The tier's quota, without its index.";
    TIER_USED_BYTES Gauge "dlfs_tier_used_bytes" ["tier"] "Bytes of reserved pages.";
    TIER_HELD_BYTES Gauge "dlfs_tier_held_bytes" ["tier"] "Bytes of pages with copies.";
    TIER_OFF Gauge "dlfs_tier_off" ["tier"] "1 if a write failed, and the tier accepts no more copies.";
    TIER_HITS Counter "dlfs_tier_hits" ["tier"] "Reads, or pieces of reads, that the tier served.";
    TIER_HIT_BYTES Counter "dlfs_tier_hit_bytes" ["tier"] "Bytes of those reads.";
    TIER_HIT_SECONDS Counter "dlfs_tier_hit_seconds" ["tier"]
        "Total time of those reads from submission to completion.";
    TIER_OPENS Counter "dlfs_tier_opens" ["tier"] "Copies that were opened as files.";
    TIER_FILLS Counter "dlfs_tier_fills" ["tier"] "Units of at most 64 pages that were completed.";
    TIER_FILL_BYTES Counter "dlfs_tier_fill_bytes" ["tier"] "Bytes written to the tier.";
    TIER_FILL_SECONDS Counter "dlfs_tier_fill_seconds" ["tier"] "Total time of writing them.";
    TIER_RESTORED Counter "dlfs_tier_restored" ["tier"]
        "Units of an earlier run that were verified and reused.";
    TIER_EVICTIONS Counter "dlfs_tier_evictions" ["tier"] "Units evicted for others.";
    TIER_DAMAGED Counter "dlfs_tier_damaged" ["tier"]
        "Units with corrupt, truncated or unreadable copies.";
    TIERS_ATTACHED Gauge "dlfs_tiers_attached" [] "Processes attached to the tiers of this one.";

    ORIGIN_READS Counter "dlfs_origin_reads" []
        "Reads of the data set past all tiers, with a waiting reader.";
    ORIGIN_READ_BYTES Counter "dlfs_origin_read_bytes" [] "Bytes of those reads.";
    ORIGIN_READ_SECONDS Counter "dlfs_origin_read_seconds" []
        "Total time of those reads from submission to completion.";
    ORIGIN_AHEAD_READS Counter "dlfs_origin_ahead_reads" []
        "Reads, or pieces of reads, served from read-ahead.";
    ORIGIN_AHEAD_BYTES Counter "dlfs_origin_ahead_bytes" [] "Bytes of those reads.";
    ORIGIN_JOINED_READS Counter "dlfs_origin_joined_reads" []
        "Reads, or pieces of reads, served by another read of the same pages.";
    ORIGIN_JOINED_BYTES Counter "dlfs_origin_joined_bytes" [] "Bytes of those reads.";
    ORIGIN_COPIER_READS Counter "dlfs_origin_copier_reads" [] "Reads of the data set for copies only.";
    ORIGIN_COPIER_BYTES Counter "dlfs_origin_copier_bytes" [] "Bytes of those reads.";

    PEER_READS Counter "dlfs_peer_reads" ["node"] "Reads from the tiers of another node.";
    PEER_READ_BYTES Counter "dlfs_peer_read_bytes" ["node"] "Bytes of those reads.";
    PEER_READ_SECONDS Counter "dlfs_peer_read_seconds" ["node"] "Total time of those reads.";
    PEER_NOT_THERE_READS Counter "dlfs_peer_not_there_reads" [] "Reads of data that the peer did not have.";
    PEER_NOT_THERE_BYTES Counter "dlfs_peer_not_there_bytes" []
        "Bytes requested of a peer and not delivered.";
    PEER_REROUTED_BYTES Counter "dlfs_peer_rerouted_bytes" []
        "Bytes read elsewhere after a peer had failed, lacked them, or sent wrong ones.";
    PEER_MISMATCHED_BYTES Counter "dlfs_peer_mismatched_bytes" []
        "Bytes from peers with a wrong checksum; none reached the caller.";

    STORE_HELD_BYTES Gauge "dlfs_store_held_bytes" [] "Bytes of pages in the rank's store.";
    STORE_PEAK_BYTES Gauge "dlfs_store_peak_bytes" [] "The most bytes of pages in the rank's store.";
    STORE_FOUND Counter "dlfs_store_found" [] "Valid samples in the store when it was opened.";
    STORE_STAGED Counter "dlfs_store_staged" []
        "Samples staged from the data set before an epoch.";
    STORE_STAGED_BYTES Counter "dlfs_store_staged_bytes" [] "Bytes of the pages of those samples.";
    STORE_RECEIVED Counter "dlfs_store_received" [] "Samples received from other ranks.";
    STORE_RECEIVED_BYTES Counter "dlfs_store_received_bytes" [] "Bytes of the pages of those samples.";
    STORE_NEAR_BYTES Counter "dlfs_store_near_bytes" []
        "Bytes of received pages from ranks on the same node.";
    STORE_FROM_ORIGIN Counter "dlfs_store_from_origin" []
        "Samples read from the data set for a late or dead rank, or for a damaged copy.";
    STORE_FROM_ORIGIN_BYTES Counter "dlfs_store_from_origin_bytes" [] "Bytes of the pages of those samples.";
    STORE_DELETED Counter "dlfs_store_deleted" [] "Samples deleted once their new ranks had them.";
    STORE_MISMATCHED Counter "dlfs_store_mismatched" []
        "Samples from peers with a wrong checksum; none was stored.";
    STORE_STEPS Counter "dlfs_store_steps" [] "Exchange steps that have become due on this rank.";
    STORE_WAITS Counter "dlfs_store_waits" [] "Reads that waited for a sample.";

    AHEAD_SAMPLES Counter "dlfs_ahead_samples" [] "Samples read ahead for files, along an order.";
    AHEAD_BYTES Counter "dlfs_ahead_bytes" [] "Bytes of those samples.";
    AHEAD_HITS Counter "dlfs_ahead_hits" [] "Files that were ready when requested, or soon after.";
    AHEAD_MISSES Counter "dlfs_ahead_misses" [] "Files that were not ready.";
    AHEAD_UNUSED Counter "dlfs_ahead_unused" [] "Samples dropped before they were requested.";

    IMPORT_SAMPLES Counter "dlfs_import_samples" ["stage"] "Samples that a stage of an import has processed.";
    IMPORT_BYTES Counter "dlfs_import_bytes" ["stage"] "Bytes of those samples.";
    IMPORT_SECONDS Counter "dlfs_import_seconds" ["stage"] "Time of the stages of imports.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_valid_and_do_not_end_as_other_samples_of_a_family_do() {
        let mut names = BTreeSet::new();
        for metric in ALL {
            let name = metric.family;
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.starts_with("dlfs_"), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            for end in ["_total", "_created", "_count", "_sum", "_bucket", "_info"] {
                assert!(!name.ends_with(end), "{name}");
            }
            assert!(metric.help.ends_with('.') && !metric.help.contains('\n'), "{name}");
            assert!(metric.labels.iter().all(|label| *label != "le"), "{name}");
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
