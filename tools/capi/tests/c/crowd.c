// Every function from several threads at the same time, with the same handles.  crowd ADDRESS
// FOLDER
//
// Each thread does everything with shared handles, opens and closes some of its own, and also
// closes copies of handles that others close: one of them succeeds.

#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 30 };

static const char *address, *folder;
static dlfs_fs *fs;
static dlfs_seq *seq;
static dlfs_file *file;
static dlfs_ns *ns;
static pthread_barrier_t barrier;

// What all threads close at the same time.
static dlfs_batch shared_batch;
static dlfs_file *shared_file;
static dlfs_seq *shared_seq;
static dlfs_fs *shared_fs;
static dlfs_ns *shared_ns;
static atomic_int closed;

static int count(void *user, const char *name, uint64_t id) {
    char found[DLFS_NAME_MAX];
    CHECK(id == DLFS_FOLDER || dlfs_name(fs, id, found, sizeof found, NULL) == 0);
    CHECK(id == DLFS_FOLDER || !strcmp(found, name));
    ++*(size_t *)user;
    return 0;
}

static void arrived(void *user, const dlfs_item *item) {
    dlfs_sample sample = {.size = sizeof sample};
    CHECK(right(item) && dlfs_stat_id(fs, item->id, &sample) == 0 && sample.len == item->len);
    ++*(size_t *)user;
}

static void look(void) {
    dlfs_info info = {.size = sizeof info};
    dlfs_sample sample = {.size = sizeof sample};
    dlfs_stats_t stats = {.size = sizeof stats};
    char text[DLFS_NAME_MAX];
    uint64_t id, batches, epoch, left;
    size_t names = 0;
    CHECK(dlfs_get_info(fs, &info) == 0 && info.num_samples == NUM);
    CHECK(dlfs_stat(fs, "class1/0005", &sample) == 0 && sample.id == 65);
    CHECK(dlfs_id_at(fs, 9, &id) == 0 && id == 9);
    CHECK(dlfs_class_name(fs, 1, text, sizeof text, NULL) == 0 && !strcmp(text, "class1"));
    CHECK(dlfs_field_name(fs, 0, text, sizeof text, NULL) == 0);
    CHECK(dlfs_list(fs, "", 1, count, &names) == 0 && names == NUM);
    CHECK(dlfs_list(fs, "", 0, count, &names) == 0 && names == NUM + 3);
    CHECK(dlfs_stats(fs, &stats) == 0 && dlfs_sequence_stats(seq, &stats) == 0);
    CHECK(dlfs_sequence_len(seq, &batches) == 0 && batches == 26);
    CHECK(dlfs_sequence_at(seq, &epoch, &left) == 0 && left <= batches);
    CHECK(dlfs_sequence_prepare(seq) == 0);
    CHECK(*dlfs_version() && *dlfs_strerror(DLFS_E_IO));
}

static void read_some(int thread, int round) {
    uint64_t ids[] = {170, 3, (uint64_t)(thread * ROUNDS + round) % NUM};
    size_t seen = 0;
    dlfs_read_request request = {
        .size = sizeof request, .ids = ids, .count = 3, .arrived = arrived, .user = &seen};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0 && seen == 3);
    right_batch(&batch);
    CHECK(dlfs_release(&batch) == 0);
    CHECK(dlfs_bread(seq, &batch) == 0);
    right_batch(&batch);
    CHECK(dlfs_release(&batch) == 0);
    uint8_t bytes[8000];
    int64_t got = dlfs_read(file, bytes, 11);
    CHECK(got >= 0 && got <= 11 && dlfs_pread(file, bytes, 8000, 0) == (int64_t)len_of(127));
    CHECK(bytes[5] == (uint8_t)(127 * 31 + 35));
    dlfs_file *own;
    CHECK(dlfs_open(fs, "class0/0001", &own) == 0 && dlfs_read(own, bytes, 100) == 37);
    CHECK(dlfs_close(own) == 0);
}

static void keep_state(int thread, int round) {
    char json[1000], path[5000];
    snprintf(path, sizeof path, "%s/crowd.json", folder); // the same for all
    CHECK(dlfs_state_get(seq, json, sizeof json, NULL) == 0);
    CHECK(dlfs_state_save(seq, path) == 0);
    if (thread == 0 && round % 5 == 0) CHECK(dlfs_state_set(seq, json) == 0);
    if (thread == 1 && round % 5 == 0) CHECK(dlfs_state_load(seq, path) == 0);
    if (thread == 2 && round % 5 == 0) CHECK(dlfs_set_epoch(seq, (uint64_t)round) == 0);
}

// Blocks are for one thread at a time: the others get an error.
static void read_blocks(void) {
    dlfs_ns_info_t info = {.size = sizeof info};
    dlfs_ns_io io = {.op = DLFS_NS_READ, .len = 4096};
    dlfs_ns_done done;
    CHECK(dlfs_ns_info(ns, &info) == 0 && dlfs_ns_buffer(ns, 0) != NULL);
    int64_t took = dlfs_ns_submit(ns, &io, 1);
    CHECK(took == 0 || took == 1 || took == DLFS_E_BUSY || took == DLFS_E_INVALID); // the I/O is outstanding
    int64_t came = dlfs_ns_poll(ns, &done, 1, 100);
    CHECK(came == 0 || came == DLFS_E_BUSY || (came == 1 && done.status == DLFS_OK));
}

// One of all threads closes each handle; the others get an error.
static void close_shared(void) {
    dlfs_batch copy = shared_batch;
    int results[] = {dlfs_release(&copy), dlfs_close(shared_file), dlfs_sequence_close(shared_seq),
                     dlfs_unmount(shared_fs), dlfs_ns_close(shared_ns)};
    for (int i = 0; i < 5; i++) {
        CHECK(results[i] == DLFS_OK || results[i] == DLFS_E_HANDLE);
        if (results[i] == DLFS_OK) closed++;
    }
}

static void open_shared(void) {
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 7, .window_bytes = 1 << 20};
    uint64_t id = 9;
    dlfs_read_request request = {.size = sizeof request, .ids = &id, .count = 1};
    shared_batch.size = sizeof shared_batch;
    CHECK(dlfs_mount(address, NULL, &shared_fs) == 0 && dlfs_open_id(shared_fs, 3, &shared_file) == 0);
    CHECK(dlfs_sequence(shared_fs, &options, &shared_seq) == 0);
    CHECK(dlfs_read_batch(shared_fs, &request, &shared_batch) == 0);
    CHECK(dlfs_ns_open(address, NULL, 0, 1, 4096, &shared_ns) == 0);
    closed = 0;
}

static void *work(void *user) {
    int thread = (int)(intptr_t)user;
    for (int round = 0; round < ROUNDS; round++) {
        if (thread == 0) open_shared();
        pthread_barrier_wait(&barrier);
        look();
        read_some(thread, round);
        keep_state(thread, round);
        read_blocks();
        close_shared();
        pthread_barrier_wait(&barrier);
        if (thread == 0) CHECK(closed == 5);
        // The text of an error belongs to its thread, whatever the others do.
        char name[32];
        snprintf(name, sizeof name, "thread %d round %d", thread, round);
        dlfs_sample sample = {.size = sizeof sample};
        CHECK(dlfs_stat(fs, name, &sample) == DLFS_E_NOT_FOUND);
        look();
        CHECK(strstr(dlfs_last_error(), name));
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    address = argv[1], folder = argv[2];
    pthread_t threads[THREADS];
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    CHECK(dlfs_mount(address, NULL, &fs) == 0 && dlfs_open(fs, "class2/0007", &file) == 0);
    dlfs_sequence_options options = {
        .size = sizeof options, .batch_size = 7, .seed = 1, .window_bytes = 1 << 20};
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    CHECK(dlfs_ns_open(address, NULL, 0, 1, 4096, &ns) == 0);
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(!strcmp(dlfs_last_error(), "")); // nothing has failed in this thread
    dlfs_ns_done done;
    while (dlfs_ns_poll(ns, &done, 1, 100) == 1) CHECK(done.status == DLFS_OK);
    CHECK(dlfs_ns_close(ns) == 0 && dlfs_close(file) == 0);
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
