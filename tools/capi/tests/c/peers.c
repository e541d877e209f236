// Ranks that read through each other's tiers.  peers ADDRESS RANK NODE FOLDER HOW: two ranks, which meet as
// HOW says: in the folder ("folder"), at rank 0's port ("auto"), or by functions of the program ("functions"),
// whose "network" is the folder, too.

#include <unistd.h>

#include "check.h"

static void name_of(char *path, size_t len, const char *folder, const char *round, uint32_t rank) {
    CHECK((size_t)snprintf(path, len, "%s/function-%s-%u", folder, round, rank) < len);
}

static int set(void *folder, const char *round, uint32_t rank, const void *record, size_t len) {
    char path[512], temporary[600];
    CHECK(len <= DLFS_PEER_RECORD && !memchr(record, 0, len));
    name_of(path, sizeof path, folder, round, rank);
    snprintf(temporary, sizeof temporary, "%s-", path);
    FILE *file = fopen(temporary, "wb");
    if (!file || fwrite(record, 1, len, file) != len || fclose(file)) return 1;
    return rename(temporary, path);
}

static int get(void *folder, const char *round, uint32_t world_size, void *records, uint32_t wait_ms) {
    CHECK(wait_ms <= 50);
    for (uint32_t rank = 0; rank < world_size; rank++) {
        char path[512];
        name_of(path, sizeof path, folder, round, rank);
        FILE *file = fopen(path, "rb");
        if (!file) continue;
        size_t got = fread((char *)records + rank * DLFS_PEER_RECORD, 1, DLFS_PEER_RECORD, file);
        if (fclose(file) || !got) return 2;
    }
    return 0;
}

static int broken(void *folder, const char *round, uint32_t world_size, void *records, uint32_t wait_ms) {
    (void)folder, (void)round, (void)world_size, (void)records, (void)wait_ms;
    return 77;
}

static int stop(void *user) {
    (void)user;
    return 1;
}

static const char *places(dlfs_fs *fs) {
    static char json[4096];
    size_t needed;
    CHECK(dlfs_places(fs, json, sizeof json, &needed) == 0 && needed == strlen(json) + 1);
    return json;
}

int main(int argc, char **argv) {
    CHECK(argc == 6);
    const char *address = argv[1], *folder = argv[4], *how = argv[5];
    const uint32_t rank = (uint32_t)atoi(argv[2]);
    const char *tiers[] = {"ram:8M"};
    dlfs_mount_options mount = {.size = sizeof mount, .tiers = tiers, .num_tiers = 1, .node = argv[3]};
    dlfs_fs *fs;
    CHECK(dlfs_mount(address, &mount, &fs) == 0);
    dlfs_sequence_options options = {
        .size = sizeof options, .order = DLFS_ORDER_GROUPED, .batch_size = 8, .seed = 5, .epochs = 3,
        .rank = rank, .world_size = 2, .peer_timeout_ms = 30000, .peer_address = "127.0.0.1"};
    dlfs_seq *seq;

    // What cannot be, before anybody waits.
    options.peer_set = set;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "peer_set and peer_get go together");
    options.peer_mode = 77;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "");
    options.peer_mode = DLFS_PEER_READ_THROUGH, options.peers = folder, options.peer_get = get;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "and so do peer_set and peer_get");
    options.peer_set = NULL, options.peer_get = NULL, options.peer_address = "here";
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "IP or IP:PORT");
    options.peer_address = "127.0.0.1";
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "nothing names this start");
    options.peers = "auto";
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "MASTER_ADDR");
    options.peer_tls = 1;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "peer_tls needs job_key");
    options.peer_tls = 0, options.job_key = "DHHC-1:00:short:";
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "not usable");
    options.job_key = strcmp(how, "folder") ? "rendezvous" : NULL;
    dlfs_fs *bare;
    CHECK(dlfs_mount(address, NULL, &bare) == 0);
    options.round = "bare", options.peers = folder;
    FAILS(DLFS_E_INVALID, dlfs_sequence(bare, &options, &seq), "there is no tier");
    char json[8];
    FAILS(DLFS_E_NOT_FOUND, dlfs_places(bare, json, sizeof json, NULL), "no tiers");
    CHECK(dlfs_leave_peers(bare, 0) == 0 && dlfs_unmount(bare) == 0);
    options.peers = NULL, options.peer_set = set, options.peer_get = broken, options.peer_user = argv[4];
    FAILS(DLFS_E_IO, dlfs_sequence(fs, &options, &seq), "peer_get returned 77");
    options.peers = folder, options.peer_set = NULL, options.peer_get = NULL;
    options.round = rank ? "alone-1" : "alone-0", options.should_stop = stop;
    FAILS(DLFS_E_INTERRUPTED, dlfs_sequence(fs, &options, &seq), "");
    options.should_stop = NULL, options.round = "alone", options.peer_timeout_ms = 1;
    if (rank) FAILS(DLFS_E_TIMED_OUT, dlfs_sequence(fs, &options, &seq), "in time: 0");

    options.round = "together", options.peer_timeout_ms = 60000, options.peers = NULL;
    if (!strcmp(how, "folder")) options.peers = folder;
    if (!strcmp(how, "functions")) options.peer_set = set, options.peer_get = get;
    if (!strcmp(how, "auto")) {
        // As a launcher would.
        options.peers = "auto", options.rank = 0, options.world_size = 0, options.peer_address = NULL;
        CHECK(!setenv("RANK", argv[2], 1) && !setenv("WORLD_SIZE", "2", 1));
        CHECK(!setenv("MASTER_ADDR", "127.0.0.1", 1));
    }
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    uint64_t batches, seen = 0;
    CHECK(dlfs_sequence_len(seq, &batches) == 0 && batches == (NUM / 2 + 7) / 8);
    dlfs_batch batch = {.size = sizeof batch};
    int got;
    while ((got = dlfs_bread(seq, &batch)) == DLFS_OK) {
        right_batch(&batch);
        seen += batch.count;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(got == DLFS_END && seen == 3 * NUM / 2);
    // A later sequence of this mount reads through the same peers.
    dlfs_seq *second;
    CHECK(dlfs_sequence(fs, &options, &second) == 0);
    CHECK(dlfs_bread(second, &batch) == 0 && dlfs_release(&batch) == 0 && dlfs_sequence_close(second) == 0);
    const char *text = places(fs);
    const char *peer = strstr(text, "\"place\":\"peer\"");
    CHECK(strstr(text, "\"place\":\"memory\",\"name\":\"ram:") && strstr(text, "\"place\":\"origin\""));
    CHECK(peer && strstr(text, "\"mismatched_bytes\":0"));
    printf("%s\n", text);
    fflush(stdout);
    // The other one may still read from here.
    CHECK(dlfs_leave_peers(fs, 0) == 0);
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
