// A rank that keeps its share in a store.  store ADDRESS RANK FOLDER STORE: two ranks, which meet in the folder.
// It stops within the second epoch, and resumes. Prints "EPOCH ID" for each sample.

#include <unistd.h>

#include "check.h"

enum { EPOCHS = 3, SHARE = NUM / 2, MOVED = 27 };

static void at(char *path, size_t len, const char *folder, const char *what, uint32_t rank) {
    CHECK((size_t)snprintf(path, len, "%s/%s-%u", folder, what, rank) < len);
}

// Until both ranks are here: the other one may still fetch samples from this one.
static void together(const char *folder, const char *what, uint32_t rank) {
    char path[512];
    at(path, sizeof path, folder, what, rank);
    FILE *file = fopen(path, "wb");
    CHECK(file && fclose(file) == 0);
    at(path, sizeof path, folder, what, 1 - rank);
    for (int tries = 0; access(path, F_OK); tries++) {
        CHECK(tries < 12000);
        usleep(10000);
    }
}

struct told {
    uint64_t calls, done, samples;
};

static int tell(void *user, uint64_t done, uint64_t samples) {
    struct told *told = user;
    CHECK(done >= told->done && done <= samples);
    told->calls++, told->done = done, told->samples = samples;
    return 0;
}

static int no(void *user, uint64_t done, uint64_t samples) {
    (void)done;
    CHECK(samples == SHARE);
    ++*(int *)user;
    return 1;
}

static uint64_t read_batches(dlfs_seq *seq, uint64_t most) {
    dlfs_batch batch = {.size = sizeof batch};
    uint64_t seen = 0;
    for (; most; most--) {
        int got = dlfs_bread(seq, &batch);
        if (got == DLFS_END) break;
        CHECK(got == DLFS_OK);
        right_batch(&batch);
        for (size_t i = 0; i < batch.count; i++)
            printf("%llu %llu\n", (unsigned long long)batch.epoch, (unsigned long long)batch.items[i].id);
        seen += batch.count;
        CHECK(dlfs_release(&batch) == 0);
    }
    return seen;
}

static dlfs_store_stats_t stats_of(dlfs_seq *seq) {
    dlfs_store_stats_t stats = {.size = sizeof stats};
    CHECK(dlfs_store_stats(seq, &stats) == 0);
    CHECK(stats.mismatched == 0 && stats.held_bytes <= stats.peak_bytes && stats.peak_bytes > 0);
    return stats;
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    const char *folder = argv[3];
    const uint32_t rank = (uint32_t)atoi(argv[2]);
    const int is_file = !strncmp(argv[4], "file:", 5);
    dlfs_fs *fs;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    dlfs_sequence_options options = {
        .size = sizeof options, .order = DLFS_ORDER_PARTIAL, .exchange = 0.3, .batch_size = 9, .seed = 5,
        .epochs = EPOCHS, .rank = rank, .world_size = 2, .peer_timeout_ms = 60000, .peer_address = "127.0.0.1",
        .store = argv[4]};
    dlfs_seq *seq;
    dlfs_store_stats_t stats = {.size = sizeof stats};

    // What cannot be, before anybody waits.
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "nothing says where they meet");
    options.peers = folder, options.round = "wrong", options.store = "tape:9G";
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "tape");
    options.store = "ram:8K";
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "too small");
    options.store = argv[4], options.blocking_exchange = 2;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "blocking_exchange is 2");
    options.blocking_exchange = 0, options.restart_shares = 2;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "restart_shares is 2");
    options.restart_shares = 0, options.order = DLFS_ORDER_GLOBAL;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "partial or local");
    options.order = DLFS_ORDER_PARTIAL, options.store = NULL, options.peers = NULL;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    FAILS(DLFS_E_NOT_FOUND, dlfs_store_stats(seq, &stats), "there is no store");
    CHECK(dlfs_sequence_stage(seq, no, NULL) == 0 && dlfs_sequence_close(seq) == 0);
    FAILS(DLFS_E_HANDLE, dlfs_sequence_stage(seq, no, NULL), "");
    FAILS(DLFS_E_HANDLE, dlfs_store_stats(seq, &stats), "");

    options.store = argv[4], options.peers = folder, options.round = "first";
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    stats.size = 12;
    FAILS(DLFS_E_SIZE, dlfs_store_stats(seq, &stats), "dlfs_store_stats_t");
    int refused = 0;
    FAILS(DLFS_E_INTERRUPTED, dlfs_sequence_stage(seq, no, &refused), "");
    CHECK(refused == 1);
    struct told told = {0};
    CHECK(dlfs_sequence_stage(seq, tell, &told) == 0);
    CHECK(told.calls && told.done == SHARE && told.samples == SHARE);
    CHECK(stats_of(seq).staged == SHARE && stats_of(seq).found == 0);
    CHECK(dlfs_sequence_stage(seq, NULL, NULL) == 0 && stats_of(seq).staged == SHARE);
    CHECK(read_batches(seq, 14) == 14 * 9);
    char state[1024];
    CHECK(dlfs_state_get(seq, state, sizeof state, NULL) == 0);
    CHECK(stats_of(seq).steps > 0);
    together(folder, "stopped", rank);
    CHECK(dlfs_sequence_close(seq) == 0);

    options.round = "second";
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    CHECK(dlfs_state_set(seq, state) == 0);
    CHECK(dlfs_sequence_stage(seq, NULL, NULL) == 0);
    stats = stats_of(seq);
    // What is in this rank's share in both epochs has never left a file; memory ends with its sequence.
    CHECK(is_file ? stats.found >= SHARE - MOVED : stats.found == 0);
    CHECK(stats.found + stats.staged + stats.received >= SHARE);
    CHECK(read_batches(seq, UINT64_MAX) == EPOCHS * SHARE - 14 * 9);
    together(folder, "read", rank);
    stats = stats_of(seq);
    CHECK(stats.received + stats.from_origin > 0);
    CHECK(dlfs_sequence_close(seq) == 0);

    // Another world size: shares anew, at an epoch's border alone.
    options.world_size = 1, options.rank = 0, options.peers = NULL, options.order = DLFS_ORDER_PARTIAL;
    options.store = "ram:64M", options.restart_shares = 1;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    FAILS(DLFS_E_INVALID, dlfs_state_set(seq, state), "");
    char *consumed = strstr(state, "\"consumed\":");
    CHECK(consumed);
    char rest[1024];
    const char *after = consumed + strlen("\"consumed\":");
    snprintf(rest, sizeof rest, "%s", after + strspn(after, " 0123456789"));
    snprintf(consumed, sizeof state - (size_t)(consumed - state), "\"consumed\":0%s", rest);
    CHECK(dlfs_state_set(seq, state) == 0);
    uint64_t epoch = 77;
    CHECK(dlfs_sequence_at(seq, &epoch, NULL) == 0 && epoch == 1);
    CHECK(dlfs_sequence_stage(seq, NULL, NULL) == 0 && stats_of(seq).staged == NUM);
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
