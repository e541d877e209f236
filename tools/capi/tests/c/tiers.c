// Tiers of a mount.  tiers ADDRESS TIER TIERS_FILE: bytes and order are the same, whatever is kept
// where.

#include <unistd.h>

#include "check.h"

// Reads all samples by id, and then two epochs of a sequence; returns a number computed from their
// order.
static uint64_t read_all(dlfs_fs *fs) {
    uint64_t ids[NUM];
    for (uint64_t id = 0; id < NUM; id++) ids[id] = id;
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = NUM};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0);
    right_batch(&batch);
    CHECK(dlfs_release(&batch) == 0);
    dlfs_sequence_options options = {
        .size = sizeof options, .order = DLFS_ORDER_GLOBAL, .batch_size = 16, .seed = 5, .epochs = 2};
    dlfs_seq *seq;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    uint64_t order = 0;
    int got;
    while ((got = dlfs_bread(seq, &batch)) == DLFS_OK) {
        right_batch(&batch);
        for (size_t i = 0; i < batch.count; i++) order = order * 31 + batch.items[i].id;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(got == DLFS_END && dlfs_sequence_close(seq) == 0);
    return order;
}

static dlfs_stats_t stats_of(dlfs_fs *fs) {
    dlfs_stats_t stats = {.size = sizeof stats};
    CHECK(dlfs_stats(fs, &stats) == 0);
    return stats;
}

// Copying and verifying continue after the reads: waits until so much was copied or restored.
static void wait_for(dlfs_fs *fs, uint64_t copied, uint64_t restored) {
    for (int i = 0; i < 6000; i++) {
        dlfs_stats_t stats = stats_of(fs);
        if (stats.tier_copied_bytes >= copied && stats.tier_restored >= restored) return;
        usleep(10000);
    }
    CHECK(!"nothing was copied, or found again, in a minute");
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    dlfs_fs *fs;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    uint64_t order = read_all(fs);
    CHECK(stats_of(fs).tier_hits == 0 && stats_of(fs).origin_bytes == 0);
    CHECK(dlfs_unmount(fs) == 0);
    const char *tiers[] = {"ram:64K", argv[2]};
    const uint32_t policies[] = {DLFS_POLICY_FIRST_TOUCH, DLFS_POLICY_CLAIRVOYANT, DLFS_POLICY_NONE};
    for (int i = 0; i < 3; i++) {
        dlfs_mount_options options = {
            .size = sizeof options, .tiers = tiers, .num_tiers = 2, .policy = policies[i],
            .stop_at_first_failure = i == 0, .copy_bandwidth_bytes = 100 << 20};
        CHECK(dlfs_mount(argv[1], &options, &fs) == 0);
        CHECK(read_all(fs) == order);
        dlfs_stats_t stats = stats_of(fs);
        CHECK((stats.origin_bytes > 0) == (i < 2));
        if (i == 0) wait_for(fs, 128 << 10, 0); // more than the memory holds
        if (i == 1) wait_for(fs, 0, 1); // of the previous mount
        dlfs_fs *second;
        CHECK(dlfs_mount(argv[1], &options, &second) == 0); // shares them
        CHECK(read_all(second) == order && dlfs_unmount(second) == 0);
        CHECK(dlfs_unmount(fs) == 0);
    }
    dlfs_mount_options options = {.size = sizeof options, .tiers_file = argv[3]};
    CHECK(dlfs_mount(argv[1], &options, &fs) == 0);
    CHECK(read_all(fs) == order && stats_of(fs).origin_bytes > 0);
    CHECK(dlfs_unmount(fs) == 0);
    options.tiers_file = "/nonexistent/tiers.toml";
    FAILS(DLFS_E_NOT_FOUND, dlfs_mount(argv[1], &options, &fs), "/nonexistent/tiers.toml");
    options.tiers_file = NULL, options.policy = 99;
    FAILS(DLFS_E_INVALID, dlfs_mount(argv[1], &options, &fs), "policy is 99");
    const char *wrong[] = {"ram:4X"};
    options.policy = 0, options.tiers = wrong, options.num_tiers = 1;
    FAILS(DLFS_E_INVALID, dlfs_mount(argv[1], &options, &fs), "ram:4X");
    return 0;
}
