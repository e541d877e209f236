//! fio's options that dlfs-bench does not have: they are refused by name, since fio itself can
//! drive dlfs.

/// Options that are accepted only with these values, which describe what dlfs-bench does anyway; a
/// bare key means 1.
const HOLDS: &[(&str, &str)] = &[
    ("thread", "1"),
    ("allow_file_create", "1"),
    ("atomic", "0"),
    ("bs_unaligned", "0"),
    ("buffer_compress_percentage", "0"),
    ("create_fsync", "1"),
    ("create_on_open", "0"),
    ("create_only", "0"),
    ("create_serialize", "1"),
    ("dedupe_percentage", "0"),
    ("disk_util", "0"),
    ("exitall_on_error", "0"),
    ("fallocate", "none"),
    ("file_append", "0"),
    ("file_service_type", "roundrobin"),
    ("fill_device", "0"),
    ("fixedbufs", "0"),
    ("hipri", "0"),
    ("io_submit_mode", "inline"),
    ("kb_base", "1024"),
    ("lockfile", "none"),
    ("log_unix_epoch", "0"),
    ("overwrite", "1"),
    ("percentage_random", "100"),
    ("random_distribution", "random"),
    ("rate_process", "linear"),
    ("registerfiles", "0"),
    ("serialize_overlap", "0"),
    ("softrandommap", "1"),
    ("sqthread_poll", "0"),
    ("stats", "1"),
    ("unified_rw_reporting", "none"),
    ("unlink_each_loop", "0"),
    ("verify_async", "0"),
    ("verify_backlog", "0"),
    ("verify_dump", "0"),
    ("verify_only", "0"),
    ("verify_state_save", "0"),
    ("zonemode", "none"),
];

/// fio's other options, of a job and of a run.
const REFUSED: &str = "
    alloc-size append-terse apptag apptag_mask aux-path ba bandwidth-log block_error_percentiles blockalign
    blocksize_unaligned bs_is_seq_rand buffer_compress_chunk cgroup cgroup_nodelete cgroup_weight client clocksource
    cmd_type cmdprio cmdprio_bssplit cmdprio_class cmdprio_percentage comm cpuclock-test cpumask crctest daemonize
    data_placement dataplacement debug dedupe_global dedupe_mode dedupe_working_set_percentage dp_scheme
    enable_interrupts end_syncfs error_dump exec_postrun exec_prerun exit_what experimental_verify fadvise_hint fdp
    fdp_pli fdp_pli_select filename_format fileoffset filetype fill_fs flow flow_id flow_sleep flow_watermark
    force_async gid gpu_dev_id gtod_cpu hipri_percentage hugepage-size idle-prof ignore_error ignore_zone_limits
    inflate-log iodepth_low iomem iomem_align ioscheduler job_max_open_zones job_start_clock_id latency-log
    latency_percentile latency_run latency_target latency_window lockmem log_alternate_epoch
    log_alternate_epoch_clock_id log_compression log_compression_cpus log_entries log_hist_coarseness log_hist_msec
    log_issue_time log_max_value log_prio log_store_compressed log_window_value max_latency max_open_zones
    md_per_io_size mem mem_align mem_size_mb memcpytest merge-blktrace-only merge_blktrace_file merge_blktrace_iters
    merge_blktrace_scalars nice nonvectored nowait num_range numa_cpu_nodes numa_mem_policy offset_align opendir
    openfiles percentage_sequential pi_act pi_chk plid_select plids print_qid_mappings prio prioclass priohint profile
    ramp_size random_generator random_sequence_stride rate_cycle rate_ignore_thinktime rate_iops_min rate_min
    ratecycle ratemin read_beyond_wp read_iolog read_iolog_chunked readfua recover_zbd_write_error remote-config
    replay_align replay_no_stall replay_redirect replay_scale replay_skip replay_time_scale rw_sequencer rwmixcycle
    server sg_write_mode shm_id significant_figures spr_cs spr_num_regions spr_op sprandom sqthread_poll_cpu ss ss_dur
    ss_interval ss_ramp steadystate steadystate_check_interval steadystate_duration steadystate_ramp_time
    sync_file_range thinkcycles thinktime_blocks_type thinktime_iotime thinktime_spin trigger trigger-file
    trigger-remote trigger-timeout trim_backlog trim_backlog_batch trim_percentage trim_verify_zero uid uncached
    unique_filename unit_base userspace_reap verify_async_cpus verify_backlog_batch verify_header_seed verify_interval
    verify_offset verify_pattern_interval verify_policy verify_state_load verify_write_sequence verifysort
    verifysort_nr wait_for warnings-fatal write_barrier write_hint write_hist_log write_iolog write_mode
    write_zone_remainder writefua zone_reset_frequency zone_reset_threshold zonecapacity zonerange zonesize zoneskip";

/// The hint that leads to all of fio's options.
pub(crate) const POINTER: &str = "fio itself drives dlfs by ioengine=external:dlfs-fio.so; \
                                  see 'fio on dlfs' in tools/bench/README.md";

/// Returns whether fio's option `name` with `text` describes what dlfs-bench does anyway.
pub(crate) fn holds(name: &str, text: &str) -> bool {
    let text = match text {
        "" | "yes" | "true" | "on" => "1",
        "no" | "false" | "off" => "0",
        text => text,
    };
    HOLDS.contains(&(name, text))
}

/// Why fio's option `name` is refused, or accepted only with another value; `None`: fio has no such
/// option.
pub(crate) fn refusal(name: &str) -> Option<String> {
    if let Some((_, value)) = HOLDS.iter().find(|(known, _)| *known == name) {
        return Some(format!(
            "'{name}' is only taken as {name}={value}, which holds here; {POINTER}"
        ));
    }
    let known = REFUSED.split_ascii_whitespace().any(|known| known == name);
    known.then(|| format!("'{name}' is an option of fio that dlfs-bench does not offer; {POINTER}"))
}

/// All names known to [`refusal`], for the help.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    HOLDS.iter().map(|(name, _)| *name).chain(REFUSED.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_hold_anyway_are_accepted_and_others_refused_with_a_pointer() {
        assert!(holds("thread", "") && holds("thread", "1") && holds("disk_util", "no"));
        assert!(!holds("thread", "0") && !holds("steadystate", "iops:5%") && !holds("bs", "1"));
        for name in names() {
            let refusal = refusal(name).unwrap();
            assert!(refusal.contains(name) && refusal.contains("dlfs-fio.so"), "{refusal}");
        }
        assert!(refusal("iodeph").is_none());
    }
}
