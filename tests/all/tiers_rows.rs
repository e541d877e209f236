//! Which test covers which feature of NoPFS (N) and Monarch (M).
//!
//! The table is `ROWS`; a test checks that each listed test exists.

use std::fs;
use std::path::Path;

/// Row, file, test.
const ROWS: &[(&str, &str, &str)] = &[
    // One seed, one order for all; each node's access string is known to all.
    ("N1", "src/plan/access.rs", "the_strings_of_all_ranks_hold_each_sample_once_an_epoch"),
    // Frequencies over all epochs.
    ("N2", "src/plan/frequency.rs", "the_order_gives_ranks_the_frequencies_that_chance_has"),
    // Both published values.
    (
        "N3",
        "src/plan/frequency.rs",
        "sixteen_nodes_read_31_635_images_of_imagenet_more_than_ten_times_in_90_epochs",
    ),
    (
        "N3",
        "src/plan/frequency.rs",
        "four_nodes_read_323_of_10_000_samples_more_than_275_times_in_1_000_epochs",
    ),
    // Frequency-ranked greedy fill, first-access order inside.
    ("N4", "src/plan/planner.rs", "a_placement_is_the_one_that_the_definition_gives"),
    // The model's rates, interpolation and clamping, ties.
    ("N5", "src/plan/model.rs", "a_curve_is_linear_between_its_entries_and_flat_outside"),
    ("N5", "src/plan/model.rs", "the_fastest_source_is_chosen_and_of_equals_the_nearest"),
    (
        "N5",
        "tests/all/tiers_sources.rs",
        "the_number_of_processes_turns_the_choice_round_while_the_tier_is_open",
    ),
    // Staging: in order, nothing unread overwritten, dropped after use.
    (
        "N6",
        "tests/all/staging.rs",
        "staging_publishes_in_order_overwrites_nothing_unread_and_drops_after_use",
    ),
    // A planned sample without a copy is kept by the read that needs it.
    (
        "N9",
        "tests/all/staging.rs",
        "a_planned_sample_that_is_not_there_yet_is_kept_by_the_read_that_needs_it",
    ),
    // Configuration: capacity, threads, bandwidth tables, two backends.
    ("N10", "src/cache/config.rs", "hdmlps_settings_are_read_from_toml_and_written_back"),
    ("N10", "src/cache/hdmlp.rs", "hdmlps_own_configuration_describes_tiers_and_origin"),
    (
        "N10",
        "tests/all/tiers_sources.rs",
        "as_many_fetches_into_a_tier_are_in_flight_as_it_has_threads",
    ),
    // More data than all storage, and less than one tier.
    ("N11", "tests/all/tiers.rs", "more_data_than_all_tiers_hold_works_and_the_quota_is_kept"),
    ("N11", "tests/all/tiers.rs", "what_fits_is_read_from_the_origin_once"),
    // The same mini-batches with and without.
    ("N12", "tests/all/tiers.rs", "every_policy_gives_the_same_bytes_in_the_same_order"),
    // The simulator's acceptance values.
    (
        "N13",
        "tools/sim/tests/all/thesis.rs",
        "scenario_1_is_within_1_percent_where_it_is_reproduced",
    ),
    ("N13", "tools/sim/tests/all/thesis.rs", "scenario_2_is_within_the_stated_tolerances"),
    ("N13", "tools/sim/tests/all/thesis.rs", "scenario_3_is_within_the_stated_tolerances"),
    ("N13", "tools/sim/tests/all/thesis.rs", "scenario_4_is_within_the_stated_tolerances"),
    // Stall time, read time and source.
    ("N14", "tests/all/tiers.rs", "reads_are_counted_and_timed_by_place_and_stalls_are_known"),
    // Ordered levels over a read-only source, quota never exceeded.
    ("M1", "src/tier/ledger.rs", "the_quota_is_never_exceeded_and_no_two_copies_share_a_page"),
    ("M1", "tests/all/tiers.rs", "more_data_than_all_tiers_hold_works_and_the_quota_is_kept"),
    // Top-down first fit, no eviction, the stop rule.
    (
        "M2",
        "src/tier/ledger.rs",
        "first_touch_fills_top_down_and_by_default_goes_on_with_what_is_smaller",
    ),
    (
        "M2",
        "src/tier/ledger.rs",
        "monarchs_stop_rule_ends_placement_at_the_first_unit_that_fits_nowhere",
    ),
    // Served at once, copied in the background; a partial read fetches the whole file once.
    (
        "M4",
        "tests/all/tiers.rs",
        "the_first_partial_read_is_served_while_the_whole_unit_is_fetched_once",
    ),
    (
        "M5",
        "tests/all/tiers.rs",
        "the_first_partial_read_is_served_while_the_whole_unit_is_fetched_once",
    ),
    ("M5", "tests/all/tiers.rs", "pieces_read_in_sequence_come_from_the_origin_in_large_reads"),
    // The switch is atomic; bytes are equal before, during and after.
    (
        "M6",
        "src/tier/copies.rs",
        "a_page_is_claimed_once_published_once_and_claimed_again_when_it_is_corrupt",
    ),
    ("M6", "tests/all/tiers_runs.rs", "bytes_are_equal_while_copies_come_and_give_way"),
    // Names to addresses to locations; descriptors are shared, and closed with the file.
    (
        "M7",
        "tests/all/folder.rs",
        "files_lie_at_multiples_of_4096_in_the_order_of_names_with_zeroes_behind_them",
    ),
    (
        "M7",
        "tests/all/folder.rs",
        "a_file_read_piece_by_piece_is_opened_once_and_closed_at_its_end",
    ),
    // Storage drivers: memory, files, block devices.
    ("M9", "tests/all/tiers.rs", "a_device_with_tiers_keeps_the_contract_of_a_read_only_engine"),
    ("M9", "tests/all/tiers_runs.rs", "a_block_device_is_a_tier_and_its_copies_survive"),
    // Counters per tier: reads, bytes, opens; ends of epochs are known.
    ("M10", "tests/all/tiers.rs", "reads_are_counted_and_timed_by_place_and_stalls_are_known"),
    ("M10", "tests/all/tiers.rs", "a_folder_has_tiers_as_an_image_has"),
    // More data than the cache.
    ("M11", "tests/all/tiers.rs", "more_data_than_all_tiers_hold_works_and_the_quota_is_kept"),
];

#[test]
fn every_row_has_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (row, file, test) in ROWS {
        let text = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let code = text.find(&format!("fn {test}("));
        assert!(code.is_some(), "row {row}: {file} has no test {test}");
    }
    let rows = [
        "N1", "N2", "N3", "N4", "N5", "N6", "N9", "N10", "N11", "N12", "N13", "N14", "M1", "M2",
        "M4", "M5", "M6", "M7", "M9", "M10", "M11",
    ];
    for row in rows {
        assert!(ROWS.iter().any(|(of, _, _)| *of == row), "no test for row {row}");
    }
}
