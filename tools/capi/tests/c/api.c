// Every function, with valid and invalid arguments.  api ADDRESS OTHER FOLDER: OTHER is another
// data set.

#include "check.h"

#include <unistd.h>

static void of_names(dlfs_fs *fs) {
    char name[DLFS_NAME_MAX];
    size_t needed = 0;
    uint64_t id;
    for (uint64_t i = 0; i < NUM; i++) {
        char wanted[32];
        snprintf(wanted, sizeof wanted, "class%d/%04d", (int)(i / 60), (int)(i % 60));
        CHECK(dlfs_id_at(fs, i, &id) == 0 && id == i);
        CHECK(dlfs_name(fs, id, name, sizeof name, NULL) == 0 && !strcmp(name, wanted));
        dlfs_sample sample = {.size = sizeof sample};
        CHECK(dlfs_stat(fs, wanted, &sample) == 0);
        CHECK(sample.id == i && sample.len == len_of(i) && sample.label == (int64_t)(i / 60));
    }
    strcpy(name, "unchanged");
    FAILS(DLFS_E_TOO_SMALL, dlfs_name(fs, 3, name, 11, &needed), "12 bytes");
    CHECK(needed == 12 && !strcmp(name, "unchanged"));
    FAILS(DLFS_E_TOO_SMALL, dlfs_name(fs, 3, NULL, 100, &needed), "12 bytes");
    FAILS(DLFS_E_NOT_FOUND, dlfs_name(fs, NUM, name, sizeof name, NULL), "sample 180");
    FAILS(DLFS_E_NOT_FOUND, dlfs_id_at(fs, NUM, &id), "index 180");
    FAILS(DLFS_E_INVALID, dlfs_id_at(fs, 0, NULL), "NULL");
    dlfs_sample sample = {.size = sizeof sample};
    FAILS(DLFS_E_NOT_FOUND, dlfs_stat(fs, "class0/none", &sample), "class0/none");
    FAILS(DLFS_E_NOT_FOUND, dlfs_stat(fs, "", &sample), "no sample");
    FAILS(DLFS_E_NOT_FOUND, dlfs_stat_id(fs, UINT64_MAX, &sample), "no such sample");
    FAILS(DLFS_E_INVALID, dlfs_stat(fs, NULL, &sample), "name is NULL");
    FAILS(DLFS_E_INVALID, dlfs_stat(fs, "class0/0000", NULL), "dlfs_sample is NULL");
    CHECK(dlfs_class_name(fs, 2, name, sizeof name, &needed) == 0 && !strcmp(name, "class2"));
    FAILS(DLFS_E_NOT_FOUND, dlfs_class_name(fs, 3, name, sizeof name, NULL), "there are 3");
    CHECK(dlfs_field_name(fs, 0, name, sizeof name, NULL) == 0 && !strcmp(name, ""));
    FAILS(DLFS_E_NOT_FOUND, dlfs_field_name(fs, 1, name, sizeof name, NULL), "no field 1");
}

struct listing {
    size_t files, folders, stop_after;
};

static int list(void *user, const char *name, uint64_t id) {
    struct listing *seen = user;
    CHECK(strlen(name) > 0);
    if (id == DLFS_FOLDER) seen->folders++;
    else seen->files++;
    return seen->files + seen->folders == seen->stop_after;
}

static void of_folders(dlfs_fs *fs) {
    struct listing all = {0, 0, 0}, top = all, one = all, some = {0, 0, 7};
    CHECK(dlfs_list(fs, NULL, 1, list, &all) == 0 && all.files == NUM && all.folders == 0);
    CHECK(dlfs_list(fs, "", 0, list, &top) == 0 && top.files == 0 && top.folders == 3);
    CHECK(dlfs_list(fs, "class1/", 0, list, &one) == 0 && one.files == 60 && one.folders == 0);
    FAILS(DLFS_E_INTERRUPTED, dlfs_list(fs, "class1", 1, list, &some), "ended by its caller");
    CHECK(some.files == 7);
    FAILS(DLFS_E_INVALID, dlfs_list(fs, "", 0, NULL, NULL), "visit is NULL");
    FAILS(DLFS_E_INVALID, dlfs_list(fs, "", 2, list, &all), "recursive is 2");
}

static void of_files(dlfs_fs *fs) {
    dlfs_file *file;
    uint8_t bytes[8000];
    CHECK(dlfs_open(fs, "class2/0007", &file) == 0);
    size_t at = 0;
    int64_t got;
    while ((got = dlfs_read(file, bytes + at, 1000)) > 0) at += (size_t)got;
    CHECK(got == 0 && at == len_of(127));
    for (size_t i = 0; i < at; i++) CHECK(bytes[i] == (uint8_t)(127 * 31 + i * 7));
    CHECK(dlfs_pread(file, bytes, 10, 5) == 10 && bytes[0] == (uint8_t)(127 * 31 + 35));
    CHECK(dlfs_pread(file, bytes, 10, UINT64_MAX) == 0);
    CHECK(dlfs_pread(file, bytes, SIZE_MAX, at - 3) == 3);
    CHECK(dlfs_pread(file, NULL, 0, 0) == 0);
    FAILS(DLFS_E_INVALID, dlfs_pread(file, NULL, 10, 0), "buf is NULL");
    CHECK(dlfs_close(file) == 0);
    FAILS(DLFS_E_HANDLE, dlfs_close(file), "closed before");
    FAILS(DLFS_E_HANDLE, dlfs_read(file, bytes, 1), "not the handle of an open file");
    CHECK(dlfs_open_id(fs, 0, &file) == 0 && dlfs_read(file, bytes, 10) == 0); // it is empty
    CHECK(dlfs_close(file) == 0);
    FAILS(DLFS_E_NOT_FOUND, dlfs_open(fs, "no", &file), "called no");
    CHECK(file == NULL);
    FAILS(DLFS_E_NOT_FOUND, dlfs_open_id(fs, NUM, &file), "sample 180");
    FAILS(DLFS_E_INVALID, dlfs_open(fs, "class2/0007", NULL), "file is NULL");
}

static size_t seen;

static void arrived(void *user, const dlfs_item *item) {
    seen++;
    CHECK(item->status != DLFS_OK || right(item));
    CHECK(((const uint64_t *)user)[item->index] == item->id);
}

static void of_batches(dlfs_fs *fs) {
    uint64_t ids[] = {170, 3, 3, 999, 60};
    dlfs_batch batch = {.size = sizeof batch};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 3};
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0 && batch.count == 3);
    right_batch(&batch);
    CHECK(batch.items[0].id == 170 && batch.items[2].index == 2);
    dlfs_batch copy = batch;
    CHECK(dlfs_release(&batch) == 0 && batch.items == NULL && batch.count == 0);
    FAILS(DLFS_E_HANDLE, dlfs_release(&batch), "NULL");
    FAILS(DLFS_E_HANDLE, dlfs_release(&copy), "closed before");

    request.count = 5;
    FAILS(DLFS_E_NOT_FOUND, dlfs_read_batch(fs, &request, &batch), "sample 999");
    request.on_error = DLFS_ON_ERROR_SKIP;
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0 && batch.count == 4);
    right_batch(&batch);
    CHECK(batch.items[3].index == 4);
    CHECK(dlfs_release(&batch) == 0);

    // Into the caller's memory, passed on as they arrive, with the status of each.
    size_t need = len_of(170) + 2 * len_of(3) + len_of(60);
    uint8_t *out = malloc(need);
    request.on_error = DLFS_ON_ERROR_KEEP;
    request.arrived = arrived;
    request.user = ids;
    request.out = out;
    request.out_len = need - 1;
    FAILS(DLFS_E_TOO_SMALL, dlfs_read_batch(fs, &request, &batch), "out has");
    CHECK(seen == 0 && batch.count == 0);
    request.out_len = need;
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0 && batch.count == 5 && seen == 5);
    for (size_t i = 0, at = 0; i < 5; i++) {
        const dlfs_item *item = &batch.items[i];
        if (i == 3) {
            CHECK(item->status == DLFS_E_NOT_FOUND && item->data == NULL && item->id == 999);
            CHECK(item->num_fields == 1 && item->fields[0].data == NULL);
            continue;
        }
        CHECK(right(item) && item->data == out + at);
        at += item->len;
    }
    CHECK(batch.len_bytes == need);
    CHECK(dlfs_release(&batch) == 0);
    free(out);

    const char *names[] = {"class2/0000", "class0/none", "class0/0001"};
    dlfs_read_request named = {.size = sizeof named, .names = names, .count = 3};
    FAILS(DLFS_E_NOT_FOUND, dlfs_read_batch(fs, &named, &batch), "class0/none");
    named.on_error = DLFS_ON_ERROR_KEEP;
    CHECK(dlfs_read_batch(fs, &named, &batch) == 0 && batch.count == 3);
    CHECK(right(&batch.items[0]) && batch.items[0].id == 120 && right(&batch.items[2]));
    CHECK(batch.items[1].status == DLFS_E_NOT_FOUND && batch.items[1].id == UINT64_MAX);
    CHECK(dlfs_release(&batch) == 0);

    dlfs_read_request none = {.size = sizeof none};
    CHECK(dlfs_read_batch(fs, &none, &batch) == 0 && batch.count == 0);
    CHECK(dlfs_release(&batch) == 0);
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, NULL, &batch), "dlfs_read_request is NULL");
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, &none, NULL), "dlfs_batch is NULL");
    none.count = 1;
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, &none, &batch), "either ids or names");
    none.ids = ids;
    none.names = names;
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, &none, &batch), "either ids or names");
    none.names = NULL;
    none.ids = (const uint64_t *)((const char *)ids + 1);
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, &none, &batch), "not aligned");
    none.ids = ids;
    none.count = SIZE_MAX;
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, &none, &batch), "at most");
    none.count = 1;
    none.on_error = 3;
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, &none, &batch), "on_error is 3");
    none.on_error = 0;
    none.out_len = 7;
    FAILS(DLFS_E_INVALID, dlfs_read_batch(fs, &none, &batch), "out is NULL");
    dlfs_stats_t stats = {.size = sizeof stats};
    CHECK(dlfs_stats(fs, &stats) == 0 && stats.verified > 10 && stats.commands > 0);
}

static dlfs_sequence_options sequence_options(void) {
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 7, .epochs = 2, .seed = 3};
    return options;
}

static size_t drain(dlfs_seq *seq, unsigned char *seen_ids) {
    dlfs_batch batch = {.size = sizeof batch};
    size_t count = 0;
    int result;
    while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
        right_batch(&batch);
        for (size_t i = 0; i < batch.count; i++) seen_ids[batch.items[i].id]++;
        count += batch.count;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(result == DLFS_END && batch.count == 0);
    return count;
}

static void of_node_loaders(dlfs_fs *fs) {
    char job[40];
    snprintf(job, sizeof job, "c-%ld", (long)getpid());
    unsigned char ids[NUM] = {0};
    dlfs_sequence_options options = sequence_options();
    options.local_world_size = 1;
    dlfs_seq *seq;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "node_loader");
    options.node_loader = 1;
    options.job = job;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0 && drain(seq, ids) == 2 * NUM);
    for (size_t i = 0; i < NUM; i++) CHECK(ids[i] == 2);
    CHECK(dlfs_sequence_close(seq) == 0);
    options.local_rank = 1;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "local rank 1 of 1");
}

static void of_sequences(dlfs_fs *fs) {
    for (uint32_t order = DLFS_ORDER_GLOBAL; order <= DLFS_ORDER_PARTIAL; order++) {
        for (uint32_t contiguous = 0; contiguous < 2; contiguous++) {
            // Whole chunks are valid in grouped order only, the other ways in all.
            uint32_t chunked = order == DLFS_ORDER_GROUPED;
            unsigned char ids[NUM] = {0};
            dlfs_sequence_options options = sequence_options();
            options.order = order;
            options.contiguous = contiguous;
            options.trace = contiguous;
            dlfs_seq *seq;
            options.batching = DLFS_BATCHING_CHUNK;
            if (!chunked) FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "whole chunks");
            options.batching = DLFS_BATCHING_SAMPLE - (contiguous && chunked); // by chunks once
            CHECK(dlfs_sequence(fs, &options, &seq) == 0);
            uint64_t batches;
            uint64_t epoch, left;
            CHECK(dlfs_sequence_len(seq, &batches) == 0 && batches == 26);
            CHECK(dlfs_sequence_prepare(seq) == 0 && dlfs_sequence_prepare(seq) == 0); // the second call does nothing
            CHECK(dlfs_sequence_at(seq, &epoch, &left) == 0 && epoch == 0 && left == 26);
            for (uint64_t i = 1; i <= 27; i++) { // into the second epoch, and back
                dlfs_batch batch = {.size = sizeof batch};
                CHECK(dlfs_bread(seq, &batch) == 0 && batch.ends_epoch == (i == 26));
                CHECK(dlfs_release(&batch) == 0 && dlfs_sequence_at(seq, &epoch, &left) == 0);
                CHECK(epoch == i / 26 && left == 26 - i % 26);
            }
            CHECK(dlfs_set_epoch(seq, 0) == 0 && drain(seq, ids) == 2 * NUM);
            CHECK(dlfs_sequence_at(seq, &epoch, &left) == 0 && epoch == 2 && left == 0);
            CHECK(dlfs_sequence_prepare(seq) == 0); // the memory exists already
            for (size_t i = 0; i < NUM; i++) CHECK(ids[i] == 2);
            dlfs_stats_t stats = {.size = sizeof stats};
            CHECK(dlfs_sequence_stats(seq, &stats) == 0);
            CHECK(stats.pages >= DLFS_PAGES_BASE && stats.pages <= DLFS_PAGES_HUGE && stats.resident <= NUM);
            uint64_t resident = 0; // the run is over: nothing comes or goes
            for (uint64_t id = 0; id < NUM; id++) resident += dlfs_is_resident(seq, id) == 1;
            CHECK(resident == stats.resident && dlfs_is_resident(seq, NUM) == 0);
            CHECK(stats.samples > 2 * NUM && stats.batches == 52 + 27 && stats.sample_bytes > 0);
            static char metrics[1 << 16];
            size_t needed = 0;
            FAILS(DLFS_E_TOO_SMALL, dlfs_metrics(NULL, 0, &needed), "there is room for 0");
            CHECK(dlfs_metrics(metrics, sizeof metrics, &needed) == 0 && needed == strlen(metrics) + 1);
            CHECK(strstr(metrics, "# TYPE dlfs_loader_samples counter\n") && strstr(metrics, "\n# EOF\n"));
            const char *counted = strstr(metrics, "\ndlfs_loader_samples_total ");
            CHECK(counted && strtoull(strchr(counted, ' '), NULL, 10) >= stats.samples);
            static char page[1 << 20];
            FAILS(DLFS_E_TOO_SMALL, dlfs_sequence_report(seq, NULL, 0, &needed), "there is room for 0");
            CHECK(dlfs_sequence_report(seq, page, sizeof page, &needed) == 0 && needed == strlen(page) + 1);
            CHECK(strstr(page, "<!doctype html>") == page && strstr(page, "What to try next"));
            if (!options.trace) {
                FAILS(DLFS_E_NOT_FOUND, dlfs_sequence_trace(seq, page, sizeof page, &needed), "set trace");
            } else {
                FAILS(DLFS_E_TOO_SMALL, dlfs_sequence_trace(seq, NULL, 0, &needed), "there is room for 0");
                CHECK(dlfs_sequence_trace(seq, page, sizeof page, &needed) == 0 && needed == strlen(page) + 1);
                CHECK(strstr(page, "\"traceEvents\"") && strstr(page, "\"name\":\"next batch\""));
            }
            CHECK(dlfs_set_epoch(seq, 1) == 0 && drain(seq, ids) == NUM);
            CHECK(dlfs_sequence_close(seq) == 0);
            FAILS(DLFS_E_HANDLE, dlfs_sequence_close(seq), "closed before");
        }
    }
    dlfs_seq *seq = (dlfs_seq *)fs;
    dlfs_sequence_options options = sequence_options();
    options.batch_size = 0;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "batch_size or batch_tokens");
    CHECK(seq == NULL);
    options = sequence_options();
    options.rank = 4;
    options.world_size = 4;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "rank 4 of a world of 4");
    options = sequence_options();
    options.order = 7;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "order is 7");
    options = sequence_options();
    options.order = DLFS_ORDER_PARTIAL;
    options.exchange = -1;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "0 to 1");
    options = sequence_options();
    options.drop_last = options.pad = 1;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "either left out or filled up");
    options = sequence_options();
    options.batching = 4;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "batching is 4");
    options = sequence_options();
    options.drop_last = 2;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "drop_last is 2");
    options = sequence_options();
    options.window_bytes = UINT64_MAX;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), "a window of 18446744073709551615");
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, NULL, &seq), "dlfs_sequence_options is NULL");
    options = sequence_options();
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, NULL), "seq is NULL");
}

static void of_states(dlfs_fs *fs, const char *other, const char *folder) {
    unsigned char ids[NUM] = {0};
    dlfs_sequence_options options = sequence_options();
    options.epochs = 1;
    dlfs_seq *seq, *rest, *foreign;
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    for (int i = 0; i < 6; i++) {
        CHECK(dlfs_bread(seq, &batch) == 0);
        for (size_t k = 0; k < batch.count; k++) ids[batch.items[k].id]++;
        CHECK(dlfs_release(&batch) == 0);
    }
    char path[4096], json[1000];
    size_t needed;
    snprintf(path, sizeof path, "%s/run.json", folder);
    CHECK(dlfs_state_save(seq, path) == 0);
    CHECK(dlfs_state_get(seq, json, sizeof json, &needed) == 0 && strlen(json) + 1 == needed);
    // Every sample exactly once, with another world size and batch size.
    for (uint32_t rank = 0; rank < 3; rank++) {
        options.rank = rank;
        options.world_size = 3;
        options.batch_size = 5;
        CHECK(dlfs_sequence(fs, &options, &rest) == 0);
        CHECK((rank ? dlfs_state_load(rest, path) : dlfs_state_set(rest, json)) == 0);
        drain(rest, ids);
        CHECK(dlfs_sequence_close(rest) == 0);
    }
    for (size_t i = 0; i < NUM; i++) CHECK(ids[i] == 1);

    dlfs_fs *second;
    CHECK(dlfs_mount(other, NULL, &second) == 0);
    CHECK(dlfs_sequence(second, &options, &foreign) == 0);
    FAILS(DLFS_E_INVALID, dlfs_state_load(foreign, path), "belongs to image");
    options.seed = 4;
    CHECK(dlfs_sequence(fs, &options, &rest) == 0);
    FAILS(DLFS_E_INVALID, dlfs_state_load(rest, path), "seed is 3");
    FAILS(DLFS_E_INVALID, dlfs_state_set(rest, "{}"), "not a reading state");
    FAILS(DLFS_E_INVALID, dlfs_state_set(rest, "\xff"), "not UTF-8");
    FAILS(DLFS_E_INVALID, dlfs_state_set(rest, NULL), "json is NULL");
    FAILS(DLFS_E_INVALID, dlfs_set_epoch(rest, 2), "no epoch 2");
    snprintf(path, sizeof path, "%s/absent.json", folder);
    FAILS(DLFS_E_NOT_FOUND, dlfs_state_load(rest, path), "absent.json");
    snprintf(path, sizeof path, "%s/no/run.json", folder);
    FAILS(DLFS_E_NOT_FOUND, dlfs_state_save(rest, path), "cannot write the file");
    CHECK(dlfs_sequence_close(rest) == 0 && dlfs_sequence_close(foreign) == 0);
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(second) == 0);
}

static void of_sizes(dlfs_fs *fs) {
    struct {
        dlfs_info info;
        uint64_t more[4];
    } later = {.info = {.size = sizeof later}, .more = {9, 9, 9, 9}};
    CHECK(dlfs_get_info(fs, &later.info) == 0 && later.info.num_samples == NUM);
    CHECK(later.info.size == sizeof later && later.more[0] == 0 && later.more[3] == 0);
    CHECK(later.info.num_classes == 3 && later.info.num_fields == 1 && later.info.has_labels == 1);
    size_t wrong[] = {0, 1, sizeof(dlfs_info) - 1, 4097, SIZE_MAX};
    for (size_t i = 0; i < 5; i++) {
        later.info.size = wrong[i];
        FAILS(DLFS_E_SIZE, dlfs_get_info(fs, &later.info), "dlfs_info says");
    }
    FAILS(DLFS_E_INVALID, dlfs_get_info(fs, NULL), "dlfs_info is NULL");
    FAILS(DLFS_E_INVALID, dlfs_get_info(fs, (dlfs_info *)((char *)&later + 1)), "not aligned");
    struct {
        dlfs_sequence_options options;
        uint64_t more;
    } options = {.options = sequence_options(), .more = 0};
    options.options.size = sizeof options;
    dlfs_seq *seq;
    CHECK(dlfs_sequence(fs, &options.options, &seq) == 0 && dlfs_sequence_close(seq) == 0);
    options.more = 1;
    FAILS(DLFS_E_UNSUPPORTED, dlfs_sequence(fs, &options.options, &seq), "does not know");
    dlfs_batch batch = {.size = 8};
    FAILS(DLFS_E_SIZE, dlfs_release(&batch), "dlfs_batch says");
}

static void of_handles(dlfs_fs *fs) {
    int local;
    void *made_up[] = {NULL, &local, (void *)7, (void *)-1, (char *)fs + 1, (char *)fs + 16, (char *)fs - 16};
    dlfs_info info = {.size = sizeof info};
    dlfs_batch batch = {.size = sizeof batch};
    for (size_t i = 0; i < sizeof made_up / sizeof *made_up; i++) {
        FAILS(DLFS_E_HANDLE, dlfs_get_info(made_up[i], &info), "data set");
        FAILS(DLFS_E_HANDLE, dlfs_unmount(made_up[i]), "data set");
        FAILS(DLFS_E_HANDLE, dlfs_close(made_up[i]), "file");
        FAILS(DLFS_E_HANDLE, dlfs_bread(made_up[i], &batch), "sequence");
        FAILS(DLFS_E_HANDLE, dlfs_sequence_close(made_up[i]), "sequence");
        batch.handle = made_up[i];
        FAILS(DLFS_E_HANDLE, dlfs_release(&batch), "batch");
    }
    // A handle of another kind is invalid.
    FAILS(DLFS_E_HANDLE, dlfs_close((dlfs_file *)fs), "file");
    FAILS(DLFS_E_HANDLE, dlfs_sequence_close((dlfs_seq *)fs), "sequence");
    CHECK(dlfs_get_info(fs, &info) == 0);
}

static void of_mounts(const char *address) {
    dlfs_fs *fs;
    FAILS(DLFS_E_INVALID, dlfs_mount(NULL, NULL, &fs), "addresses is NULL");
    CHECK(fs == NULL);
    FAILS(DLFS_E_INVALID, dlfs_mount(address, NULL, NULL), "fs is NULL");
    FAILS(DLFS_E_INVALID, dlfs_mount("", NULL, &fs), "");
    FAILS(DLFS_E_INVALID, dlfs_mount("nvme-tcp://host", NULL, &fs), "");
    FAILS(DLFS_E_NOT_FOUND, dlfs_mount("/nonexistent/train.dlfs", NULL, &fs), "nonexistent");
    FAILS(DLFS_E_REFUSED, dlfs_mount("nvme-tcp://127.0.0.1:1/nqn.2026-11.io.dlfs:x", NULL, &fs),
          "127.0.0.1:1");
    dlfs_mount_options options = {.size = sizeof options, .direct = 3};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &options, &fs), "direct is 3");
    options = (dlfs_mount_options){.size = sizeof options, .hdr_digest = 2};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &options, &fs), "hdr_digest is 2");
    options = (dlfs_mount_options){.size = sizeof options, .queue_size = 1};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &options, &fs), "queue_size");
    options = (dlfs_mount_options){.size = sizeof options, .num_paths = 1};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &options, &fs), "paths is NULL");
    options = (dlfs_mount_options){.size = sizeof options, .hostnqn = ""};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &options, &fs), "hostnqn: an NQN must not be empty");
    options = (dlfs_mount_options){.size = sizeof options, .dhchap_secret = "DHHC-1:00:AAAA:"};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &options, &fs), "the key is not usable");
    options = (dlfs_mount_options){.size = sizeof options, .dhchap_secret = "/nonexistent/key"};
    FAILS(DLFS_E_NOT_FOUND, dlfs_mount(address, &options, &fs), "/nonexistent/key");
    options = (dlfs_mount_options){.size = sizeof options, .snapshot = "/nonexistent/snapshot"};
    FAILS(DLFS_E_NOT_FOUND, dlfs_mount(address, &options, &fs), "snapshot");
    const char *tiers[] = {"ram:1M"};
    options = (dlfs_mount_options){
        .size = sizeof options, .tiers = tiers, .num_tiers = 1, .tiers_file = "tiers.toml"};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &options, &fs), "tiers_file names the tiers, and so do tiers");
    options = (dlfs_mount_options){.size = sizeof options, .queue_pairs = 1025};
    FAILS(DLFS_E_INVALID, dlfs_mount(address, &options, &fs), "queue_pairs is at most 1024");
    options = (dlfs_mount_options){.size = sizeof options, .queue_pairs = 2, .window_bytes = 1 << 20};
    CHECK(dlfs_mount(address, &options, &fs) == 0);
    CHECK(dlfs_unmount(fs) == 0);
    FAILS(DLFS_E_HANDLE, dlfs_unmount(fs), "closed before");
}

// Delivered batches and files stay valid when everything else is closed.
static void of_lifetimes(const char *address) {
    dlfs_fs *fs;
    dlfs_seq *seq;
    dlfs_file *file;
    dlfs_batch batch = {.size = sizeof batch}, read = batch;
    uint64_t ids[] = {5, 6};
    dlfs_sequence_options options = sequence_options();
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 2};
    uint8_t bytes[8000];
    CHECK(dlfs_mount(address, NULL, &fs) == 0);
    CHECK(dlfs_sequence(fs, &options, &seq) == 0 && dlfs_open_id(fs, 9, &file) == 0);
    CHECK(dlfs_read_batch(fs, &request, &read) == 0);
    CHECK(dlfs_unmount(fs) == 0);
    FAILS(DLFS_E_HANDLE, dlfs_read_batch(fs, &request, &batch), "data set");
    CHECK(dlfs_bread(seq, &batch) == 0 && batch.count == 7);
    CHECK(dlfs_sequence_close(seq) == 0);
    CHECK(dlfs_read(file, bytes, sizeof bytes) == (int64_t)len_of(9));
    CHECK(dlfs_close(file) == 0);
    right_batch(&batch);
    right_batch(&read);
    CHECK(dlfs_release(&batch) == 0 && dlfs_release(&read) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    CHECK(!strcmp(dlfs_last_error(), "") && !strcmp(dlfs_strerror(DLFS_E_STALE), "the image has moved on"));
    CHECK(strlen(dlfs_version()) >= 5);
    of_mounts(argv[1]);
    dlfs_fs *fs;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    of_handles(fs);
    of_sizes(fs);
    of_names(fs);
    of_folders(fs);
    of_files(fs);
    of_batches(fs);
    of_sequences(fs);
    of_node_loaders(fs);
    of_states(fs, argv[2], argv[3]);
    CHECK(dlfs_unmount(fs) == 0);
    of_lifetimes(argv[1]);
    return 0;
}
