// Every function, misused in every way that C permits.  wrong ADDRESS FOLDER
//
// Every call fails with an error, or works: nothing crashes, hangs, or writes where it must not.

#include "check.h"

// One open handle of each kind, and a closed one of each.
struct handles {
    dlfs_fs *fs;
    dlfs_file *file;
    dlfs_seq *seq;
    dlfs_batch batch;
    dlfs_ns *ns;
};

static struct handles open_all(const char *address) {
    struct handles all = {.batch = {.size = sizeof all.batch}};
    CHECK(dlfs_mount(address, NULL, &all.fs) == 0 && dlfs_open_id(all.fs, 7, &all.file) == 0);
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 4};
    CHECK(dlfs_sequence(all.fs, &options, &all.seq) == 0 && dlfs_bread(all.seq, &all.batch) == 0);
    CHECK(dlfs_ns_open(address, NULL, 0, 1, 4096, &all.ns) == 0);
    return all;
}

static void close_all(struct handles *all) {
    dlfs_batch copy = all->batch; // dlfs_release clears the other one
    CHECK(dlfs_release(&all->batch) == 0);
    all->batch = copy;
    CHECK(dlfs_sequence_close(all->seq) == 0 && dlfs_close(all->file) == 0);
    CHECK(dlfs_ns_close(all->ns) == 0 && dlfs_unmount(all->fs) == 0);
}

static int never(void *user, const char *name, uint64_t id) {
    (void)user, (void)name, (void)id;
    CHECK(!"shown what is in no data set");
    return 0;
}

enum { FS = 1, FILE_ = 2, SEQ = 4, BATCH = 8, NS = 16 };

// Every function that takes a handle, with a handle of a wrong kind.
static void with(void *handle, int kinds, const char *folder) {
    char text[DLFS_NAME_MAX];
    uint64_t number, id = 3;
    dlfs_file *file = NULL;
    dlfs_seq *seq = NULL;
    dlfs_info info = {.size = sizeof info};
    dlfs_sample sample = {.size = sizeof sample};
    dlfs_stats_t stats = {.size = sizeof stats};
    dlfs_batch batch = {.size = sizeof batch};
    dlfs_read_request request = {.size = sizeof request, .ids = &id, .count = 1};
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 4};
    dlfs_ns_info_t ns_info = {.size = sizeof ns_info};
    dlfs_ns_io io = {.op = DLFS_NS_READ, .len = 4096};
    dlfs_ns_done done;
#define NONE(call) FAILS(DLFS_E_HANDLE, call, "handle")
    if (kinds & FS) {
        NONE(dlfs_get_info(handle, &info));
        NONE(dlfs_stat(handle, "class0/0000", &sample));
        NONE(dlfs_stat_id(handle, 0, &sample));
        NONE(dlfs_id_at(handle, 0, &number));
        NONE(dlfs_class_name(handle, 0, text, sizeof text, NULL));
        NONE(dlfs_field_name(handle, 0, text, sizeof text, NULL));
        NONE(dlfs_name(handle, 0, text, sizeof text, NULL));
        NONE(dlfs_list(handle, "", 1, never, NULL));
        NONE(dlfs_open(handle, "class0/0000", &file));
        NONE(dlfs_open_id(handle, 0, &file));
        NONE(dlfs_read_batch(handle, &request, &batch));
        NONE(dlfs_sequence(handle, &options, &seq));
        NONE(dlfs_stats(handle, &stats));
        NONE(dlfs_unmount(handle));
    }
    if (kinds & FILE_) {
        NONE(dlfs_read(handle, text, 1));
        NONE(dlfs_pread(handle, text, 1, 0));
        NONE(dlfs_close(handle));
    }
    if (kinds & SEQ) {
        char path[5000];
        snprintf(path, sizeof path, "%s/never.json", folder);
        NONE(dlfs_bread(handle, &batch));
        NONE(dlfs_sequence_prepare(handle));
        NONE(dlfs_sequence_len(handle, &number));
        NONE(dlfs_sequence_at(handle, &number, &number));
        NONE(dlfs_set_epoch(handle, 0));
        NONE(dlfs_state_save(handle, path));
        NONE(dlfs_state_load(handle, path));
        NONE(dlfs_state_get(handle, text, sizeof text, NULL));
        NONE(dlfs_state_set(handle, "{}"));
        NONE(dlfs_sequence_stats(handle, &stats));
        NONE(dlfs_is_resident(handle, 0));
        NONE(dlfs_sequence_report(handle, NULL, 0, NULL));
        NONE(dlfs_sequence_trace(handle, NULL, 0, NULL));
        NONE(dlfs_sequence_close(handle));
    }
    if (kinds & BATCH) {
        batch.handle = handle;
        NONE(dlfs_release(&batch));
        batch.handle = NULL;
    }
    if (kinds & NS) {
        NONE(dlfs_ns_info(handle, &ns_info));
        NONE(dlfs_ns_submit(handle, &io, 1));
        NONE(dlfs_ns_poll(handle, &done, 1, 0));
        NONE(dlfs_ns_close(handle));
        CHECK(dlfs_ns_buffer(handle, 0) == NULL);
    }
    CHECK(file == NULL && seq == NULL && batch.items == NULL && batch.handle == NULL);
}

static void handles(const char *address, const char *folder) {
    struct handles closed = open_all(address);
    close_all(&closed);
    struct handles all = open_all(address);
    int all_kinds = FS | FILE_ | SEQ | BATCH | NS, local = 7;
    void *made_up[] = {NULL, &local, (void *)1, (void *)7, (void *)-1, (char *)all.fs + 1,
                       (char *)all.fs + ((uintptr_t)1 << 32), (char *)all.seq - ((uintptr_t)1 << 32),
                       (char *)all.fs + ((uintptr_t)1 << 20), (void *)0x7fffffffffff};
    for (size_t i = 0; i < sizeof made_up / sizeof *made_up; i++) with(made_up[i], all_kinds, folder);
    void *old[] = {closed.fs, closed.file, closed.seq, closed.batch.handle, closed.ns};
    void *open[] = {all.fs, all.file, all.seq, all.batch.handle, all.ns};
    for (int i = 0; i < 5; i++) {
        with(old[i], all_kinds, folder);
        with(open[i], all_kinds & ~(1 << i), folder); // open, but of another kind
    }
    right_batch(&all.batch);
    char path[5000];
    snprintf(path, sizeof path, "%s/never.json", folder);
    CHECK(fopen(path, "r") == NULL);
    close_all(&all);
}

// Every pointer of every function, NULL in turn.
static void nulls(const char *address) {
    struct handles all = open_all(address);
    dlfs_fs *fs = all.fs;
    dlfs_seq *seq = all.seq;
    char text[DLFS_NAME_MAX];
    dlfs_file *file;
    dlfs_batch batch = {.size = sizeof batch};
    dlfs_sample sample = {.size = sizeof sample};
#define REFUSED(call) FAILS(DLFS_E_INVALID, call, "NULL")
    REFUSED(dlfs_mount(NULL, NULL, &fs));
    REFUSED(dlfs_mount(address, NULL, NULL));
    fs = all.fs;
    REFUSED(dlfs_get_info(fs, NULL));
    REFUSED(dlfs_stat(fs, NULL, &sample));
    REFUSED(dlfs_stat(fs, "class0/0000", NULL));
    REFUSED(dlfs_stat_id(fs, 0, NULL));
    REFUSED(dlfs_id_at(fs, 0, NULL));
    REFUSED(dlfs_list(fs, "", 0, NULL, NULL));
    REFUSED(dlfs_open(fs, NULL, &file));
    REFUSED(dlfs_open(fs, "class0/0000", NULL));
    REFUSED(dlfs_open_id(fs, 0, NULL));
    REFUSED(dlfs_read(all.file, NULL, 1));
    REFUSED(dlfs_pread(all.file, NULL, 1, 0));
    REFUSED(dlfs_read_batch(fs, NULL, &batch));
    dlfs_read_request request = {.size = sizeof request, .count = 1};
    REFUSED(dlfs_read_batch(fs, &request, NULL));
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, &request, &batch), "either ids or names");
    const char *names[] = {"class0/0000", NULL};
    request.names = names, request.count = 2;
    REFUSED(dlfs_read_batch(fs, &request, &batch));
    REFUSED(dlfs_sequence(fs, NULL, &seq));
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 4};
    REFUSED(dlfs_sequence(fs, &options, NULL));
    seq = all.seq;
    REFUSED(dlfs_bread(seq, NULL));
    REFUSED(dlfs_sequence_len(seq, NULL));
    REFUSED(dlfs_state_save(seq, NULL));
    REFUSED(dlfs_state_load(seq, NULL));
    REFUSED(dlfs_state_set(seq, NULL));
    REFUSED(dlfs_sequence_stats(seq, NULL));
    REFUSED(dlfs_stats(fs, NULL));
    FAILS(DLFS_E_TOO_SMALL, dlfs_metrics(NULL, 1 << 20, NULL), "there is room for");
    REFUSED(dlfs_release(NULL));
    REFUSED(dlfs_ns_open(NULL, NULL, 0, 0, 0, &all.ns));
    REFUSED(dlfs_ns_open(address, NULL, 0, 0, 0, NULL));
    CHECK(all.ns == NULL); // dlfs_ns_open clears its output first
    // Where NULL is valid.
    CHECK(dlfs_sequence_at(seq, NULL, NULL) == 0);
    size_t needed = 0;
    FAILS(DLFS_E_TOO_SMALL, dlfs_name(fs, 0, NULL, 0, NULL), "12 bytes");
    FAILS(DLFS_E_TOO_SMALL, dlfs_class_name(fs, 0, NULL, 0, &needed), "7 bytes");
    CHECK(needed == 7);
    FAILS(DLFS_E_TOO_SMALL, dlfs_field_name(fs, 0, NULL, 0, &needed), "1 bytes");
    FAILS(DLFS_E_TOO_SMALL, dlfs_state_get(seq, NULL, 0, &needed), "bytes");
    CHECK(needed > 20 && dlfs_state_get(seq, text, needed, NULL) == 0);
    FAILS(DLFS_E_TOO_SMALL, dlfs_state_get(seq, text, needed - 1, NULL), "bytes");
    // A failed read does not move the position.
    uint8_t byte = 0;
    CHECK(dlfs_read(all.file, &byte, 1) == 1 && byte == (uint8_t)(7 * 31));
    CHECK(dlfs_read(all.file, NULL, 0) == 0);
    CHECK(dlfs_release(&all.batch) == 0 && dlfs_sequence_close(seq) == 0);
    CHECK(dlfs_close(all.file) == 0 && dlfs_unmount(fs) == 0);
}

// Every struct with every invalid size, and with one that a later version may have.
static void sizes(const char *address) {
    struct handles all = open_all(address);
    size_t none[] = {0, 1, 7, 8, 4097, SIZE_MAX, (size_t)1 << 63};
    uint64_t id = 3;
    dlfs_fs *fs;
    dlfs_seq *seq;
    dlfs_ns *ns;
    dlfs_batch good = {.size = sizeof good};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        size_t size = none[i];
#define SIZED(type, call)                                                                   \
    do {                                                                                    \
        type it = {.size = size};                                                           \
        FAILS(DLFS_E_SIZE, call, #type);                                                    \
        CHECK(it.size == size);                                                             \
        it.size = sizeof it - 1;                                                            \
        FAILS(DLFS_E_SIZE, call, #type);                                                    \
    } while (0)
        SIZED(dlfs_mount_options, dlfs_mount(address, &it, &fs));
        SIZED(dlfs_mount_options, dlfs_ns_open(address, &it, 0, 0, 0, &ns));
        SIZED(dlfs_info, dlfs_get_info(all.fs, &it));
        SIZED(dlfs_sample, dlfs_stat(all.fs, "class0/0000", &it));
        SIZED(dlfs_sample, dlfs_stat_id(all.fs, 0, &it));
        SIZED(dlfs_read_request, (it.ids = &id, it.count = 1, dlfs_read_batch(all.fs, &it, &good)));
        SIZED(dlfs_sequence_options, (it.batch_size = 4, dlfs_sequence(all.fs, &it, &seq)));
        SIZED(dlfs_batch, dlfs_bread(all.seq, &it));
        SIZED(dlfs_batch, dlfs_release(&it));
        SIZED(dlfs_stats_t, dlfs_stats(all.fs, &it));
        SIZED(dlfs_stats_t, dlfs_sequence_stats(all.seq, &it));
        SIZED(dlfs_ns_info_t, dlfs_ns_info(all.ns, &it));
    }
    // A program built against a later header: zero in fields that this library does not know.
    struct {
        dlfs_batch batch;
        uint64_t more[2];
    } later = {.batch = {.size = sizeof later}, .more = {5, 6}};
    CHECK(dlfs_bread(all.seq, &later.batch) == 0 && later.batch.size == sizeof later);
    CHECK(later.more[0] == 0 && later.more[1] == 0 && later.batch.count == 4);
    CHECK(dlfs_release(&later.batch) == 0 && later.batch.size == sizeof later);
    close_all(&all);
}

// Numbers at and past their limits: the call works or fails, and never takes long.
static void numbers(const char *address) {
    struct handles all = open_all(address);
    uint32_t shorts[] = {0, 1, 2, 3, 7, 255, 65535, 65536, INT32_MAX, UINT32_MAX - 1, UINT32_MAX};
    uint64_t longs[] = {0, 1, 4095, 1 << 20, INT64_MAX, UINT64_MAX - 1, UINT64_MAX};
    double parts[] = {-1, -0.0, 1e-300, 0.5, 1, 1.0000001, 1e300, 0.0 / 0.0, 1 / 0.0, -1 / 0.0};
    size_t made = 0, refused = 0;
    for (int field = 0; field < 19; field++) {
        for (size_t k = 0; k < 11; k++) {
            dlfs_sequence_options it = {.size = sizeof it, .batch_size = 4, .epochs = 1};
            uint32_t value = shorts[k];
            uint64_t wide = longs[k % 7];
            switch (field) {
            case 0: it.order = value; break;
            case 1: it.order = DLFS_ORDER_GROUPED, it.lanes = value; break;
            case 2: it.order = DLFS_ORDER_GROUPED, it.group = value; break;
            case 3: it.batch_size = value; break;
            case 4: it.order = DLFS_ORDER_PARTIAL, it.exchange = parts[k % 10]; break;
            case 5: it.seed = wide; break;
            case 6: it.epoch = wide; break;
            case 7: it.epochs = wide; break;
            case 8: it.rank = value; break;
            case 9: it.world_size = value; break;
            case 10: it.pad = value; break;
            case 11: it.drop_last = value; break;
            case 12: it.on_error = value; break;
            case 13: it.contiguous = value; break;
            case 14: it.queue_pairs = value == 65535 ? 16 : value; break; // each is a ring of the kernel
            case 15: it.window_bytes = wide; break;
            case 16: it.busy_poll = value; break;
            case 17: it.batching = value; break;
            default: it.order = DLFS_ORDER_LOCAL, it.world_size = value; break;
            }
            dlfs_seq *seq;
            int result = dlfs_sequence(all.fs, &it, &seq);
            CHECK((result == 0) == (seq != NULL));
            if (result != 0) {
                CHECK(result == DLFS_E_INVALID && *dlfs_last_error());
                refused++;
                continue;
            }
            made++;
            uint64_t batches, epoch, left;
            CHECK(dlfs_sequence_len(seq, &batches) == 0);
            CHECK(dlfs_sequence_at(seq, &epoch, &left) == 0 && left <= batches);
            if (field != 9 && field != 15 && field != 18) CHECK(left > 0 || it.drop_last || it.pad);
            dlfs_batch batch = {.size = sizeof batch};
            result = dlfs_bread(seq, &batch);
            if (result == DLFS_OK) {
                right_batch(&batch);
                CHECK(dlfs_release(&batch) == 0);
            } else {
                CHECK(result == DLFS_END || *dlfs_last_error());
                CHECK(result == DLFS_END || result == DLFS_E_INVALID || result == DLFS_E_NO_MEMORY ||
                      result == DLFS_E_REFUSED);
            }
            for (size_t i = 0; i < 7; i++) {
                result = dlfs_set_epoch(seq, longs[i]);
                CHECK(result == 0 || result == DLFS_E_INVALID);
            }
            CHECK(dlfs_sequence_close(seq) == 0);
        }
    }
    CHECK(made > 60 && refused > 60);
    close_all(&all);
}

// The same for mounts: each number in turn, and invalid strings.
static void mounts(const char *address) {
    uint32_t shorts[] = {1, 2, 3, 65535, 65536, UINT32_MAX};
    for (int field = 0; field < 13; field++) {
        for (size_t k = 0; k < 6; k++) {
            dlfs_mount_options it = {.size = sizeof it};
            uint32_t value = shorts[k];
            switch (field) {
            case 0: it.hdr_digest = value; break;
            case 1: it.data_digest = value; break;
            case 2: it.direct = value; break;
            case 3: it.nr_io_queues = value; break;
            case 4: it.queue_size = value; break;
            case 5: it.keep_alive_tmo_ms = value; break;
            case 6: it.ctrl_loss_tmo_ms = value; break;
            case 7: it.queue_pairs = value > 3 ? value + 2 : value; break;
            case 8: it.busy_poll = value; break;
            case 9: it.window_bytes = k < 3 ? value : UINT64_MAX - value; break;
            case 10: it.policy = value; break;
            case 11: it.stop_at_first_failure = value; break;
            default: it.copy_bandwidth_bytes = value; break;
            }
            dlfs_fs *fs;
            int result = dlfs_mount(address, &it, &fs);
            CHECK((result == 0) == (fs != NULL));
            if (result != 0) {
                CHECK(result > DLFS_E_INTERNAL && *dlfs_last_error());
                continue;
            }
            uint64_t id = 100;
            dlfs_read_request request = {.size = sizeof request, .ids = &id, .count = 1};
            dlfs_batch batch = {.size = sizeof batch};
            result = dlfs_read_batch(fs, &request, &batch);
            CHECK(result == 0 || (result > DLFS_E_INTERNAL && *dlfs_last_error()));
            if (result == 0) right_batch(&batch);
            if (result == 0) CHECK(dlfs_release(&batch) == 0);
            CHECK(dlfs_unmount(fs) == 0);
        }
    }
    dlfs_fs *fs;
    const char *bad[] = {"\xff\xfe", "nvme-tcp://127.0.0.1:1/\xff"};
    dlfs_mount_options it = {.size = sizeof it, .paths = bad, .num_paths = 1};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &it, &fs), "paths is not UTF-8");
    it = (dlfs_mount_options){.size = sizeof it, .hostnqn = bad[0]};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &it, &fs), "hostnqn is not UTF-8");
    it = (dlfs_mount_options){.size = sizeof it, .tiers = bad, .num_tiers = 1};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &it, &fs), "tiers is not UTF-8");
    it = (dlfs_mount_options){.size = sizeof it, .tiers = bad, .num_tiers = SIZE_MAX};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &it, &fs), "at most");
    it = (dlfs_mount_options){.size = sizeof it, .num_tiers = 1};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &it, &fs), "NULL");
    const char *null[] = {NULL};
    it = (dlfs_mount_options){.size = sizeof it, .paths = null, .num_paths = 1};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &it, &fs), "NULL");
    for (int i = 0; i < 2; i++) CHECK(dlfs_mount(bad[i], NULL, &fs) < 0 && fs == NULL);
    char *huge = malloc(1 << 20);
    memset(huge, 'a', (1 << 20) - 1);
    huge[(1 << 20) - 1] = 0;
    CHECK(dlfs_mount(huge, NULL, &fs) < 0 && strlen(dlfs_last_error()) > 0);
    memset(huge, ',', (1 << 20) - 1);
    FAILS(DLFS_E_INVALID, dlfs_mount(huge, NULL, &fs), "");
    free(huge);
}

// Invalid names, in every function that takes one; and names that are not UTF-8.
static void names(const char *address) {
    struct handles all = open_all(address);
    char *huge = malloc(1 << 20);
    memset(huge, 'a', (1 << 20) - 1);
    huge[(1 << 20) - 1] = 0;
    const char *bad[] = {"", "/", "class0", "class0/", "class0//0000", "\xff\xfe", "class0/\x80", huge};
    dlfs_sample sample = {.size = sizeof sample};
    dlfs_batch batch = {.size = sizeof batch};
    for (int i = 0; i < 8; i++) {
        dlfs_file *file;
        FAILS(DLFS_E_NOT_FOUND, dlfs_stat(all.fs, bad[i], &sample), "no sample called");
        FAILS(DLFS_E_NOT_FOUND, dlfs_open(all.fs, bad[i], &file), "no sample called");
        dlfs_read_request request = {.size = sizeof request, .names = &bad[i], .count = 1};
        FAILS(DLFS_E_NOT_FOUND, dlfs_read_batch(all.fs, &request, &batch), "no sample called");
        int listed = dlfs_list(all.fs, i < 4 ? "class0/0000" : bad[i], 0, never, NULL);
        CHECK(listed == 0 || listed == DLFS_E_NOT_FOUND || listed == DLFS_E_INVALID);
    }
    FAILS(DLFS_E_INVALID, dlfs_list(all.fs, "", -1, never, NULL), "recursive is -1");
    uint64_t ids[] = {NUM, NUM + 1, (uint64_t)1 << 40, UINT64_MAX - 1, UINT64_MAX}, id;
    char name[DLFS_NAME_MAX];
    for (int i = 0; i < 5; i++) {
        dlfs_file *file;
        FAILS(DLFS_E_NOT_FOUND, dlfs_stat_id(all.fs, ids[i], &sample), "no such sample");
        FAILS(DLFS_E_NOT_FOUND, dlfs_open_id(all.fs, ids[i], &file), "no such sample");
        FAILS(DLFS_E_NOT_FOUND, dlfs_name(all.fs, ids[i], name, sizeof name, NULL), "no such sample");
        FAILS(DLFS_E_NOT_FOUND, dlfs_id_at(all.fs, ids[i], &id), "there are 180");
        FAILS(DLFS_E_NOT_FOUND, dlfs_class_name(all.fs, ids[i], name, 9, NULL), "there are 3");
        FAILS(DLFS_E_NOT_FOUND, dlfs_field_name(all.fs, ids[i], name, 9, NULL), "there are 0");
        dlfs_read_request request = {.size = sizeof request, .ids = &ids[i], .count = 1};
        FAILS(DLFS_E_NOT_FOUND, dlfs_read_batch(all.fs, &request, &batch), "no such sample");
    }
    free(huge);
    close_all(&all);
}

// Files that are not states.
static void states(const char *address, const char *folder) {
    struct handles all = open_all(address);
    char path[5000], json[1000], worse[1000];
    uint64_t epoch, left, epoch_before, left_before;
    CHECK(dlfs_sequence_at(all.seq, &epoch_before, &left_before) == 0 && left_before == 44);
    CHECK(dlfs_state_get(all.seq, json, sizeof json, NULL) == 0);
    FAILS(DLFS_E_INVALID, dlfs_state_load(all.seq, folder), "regular file");
    for (size_t cut = 0; cut < strlen(json); cut++) { // every prefix, and each byte wrong
        snprintf(worse, sizeof worse, "%.*s", (int)cut, json);
        CHECK(dlfs_state_set(all.seq, worse) == DLFS_E_INVALID);
        strcpy(worse, json);
        worse[cut] = (char)(worse[cut] ^ 0x55);
        int result = dlfs_state_set(all.seq, worse);
        CHECK(result == DLFS_OK || result == DLFS_E_INVALID || result == DLFS_E_STALE ||
              result == DLFS_E_UNSUPPORTED);
    }
    CHECK(dlfs_state_set(all.seq, json) == 0);
    snprintf(path, sizeof path, "%s/no-state", folder);
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 100000; i++) fputs("[[[[[[[[[[\xff", file);
    fclose(file);
    FAILS(DLFS_E_INVALID, dlfs_state_load(all.seq, path), "no-state");
    CHECK(dlfs_sequence_at(all.seq, &epoch, &left) == 0 && epoch == epoch_before && left == left_before);
    CHECK(remove(path) == 0);
    close_all(&all);
}

// Invalid I/Os of blocks.
static void blocks(const char *address) {
    dlfs_ns *ns, *other;
    dlfs_ns_info_t info = {.size = sizeof info};
    CHECK(dlfs_ns_open(address, NULL, 0, 2, 8192, &ns) == 0 && dlfs_ns_info(ns, &info) == 0);
    dlfs_ns_done done;
    uint64_t lens[] = {0, 1, 100, 511, 4095, 8191, 8193, UINT64_MAX};
    for (uint32_t op = 0; op < 4; op++) {
        for (int i = 0; i < 8; i++) {
            for (uint64_t offset = 0; offset < 3; offset++) {
                dlfs_ns_io io = {.op = op, .len = lens[i], .offset = offset == 2 ? UINT64_MAX - 511 : offset};
                int64_t took = dlfs_ns_submit(ns, &io, 1);
                if (took < 0) {
                    CHECK(took == DLFS_E_INVALID);
                    continue;
                }
                CHECK(took == 1 && dlfs_ns_poll(ns, &done, 1, 10000) == 1 && done.buffer == 0);
                CHECK(done.status < 0 || op == DLFS_NS_FLUSH);
            }
        }
    }
    CHECK(dlfs_ns_submit(ns, NULL, 0) == 0 && dlfs_ns_poll(ns, NULL, 0, 0) == 0);
    FAILS(DLFS_E_INVALID, dlfs_ns_poll(ns, NULL, 1, 0), "done is NULL");
    CHECK(dlfs_ns_buffer(ns, 2) == NULL && dlfs_ns_buffer(ns, UINT32_MAX) == NULL);
    uint32_t counts[] = {1, 2, 100, 65536, UINT32_MAX}, lengths[] = {0, 1, 513, 1 << 30, 0xfffff000};
    for (int i = 0; i < 25; i++) {
        int result = dlfs_ns_open(address, NULL, 0, counts[i / 5], lengths[i % 5], &other);
        CHECK(result == 0 || result == DLFS_E_INVALID || result == DLFS_E_NO_MEMORY);
        if (result == 0) CHECK(dlfs_ns_close(other) == 0);
    }
    CHECK(dlfs_ns_close(ns) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int codes[] = {INT32_MIN, -18, 2, INT32_MAX};
    for (int i = 0; i < 4; i++) CHECK(!strcmp(dlfs_strerror(codes[i]), "unknown error"));
    handles(argv[1], argv[2]);
    nulls(argv[1]);
    sizes(argv[1]);
    numbers(argv[1]);
    mounts(argv[1]);
    names(argv[1]);
    states(argv[1], argv[2]);
    blocks(argv[1]);
    return 0;
}
