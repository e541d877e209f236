// Random calls from several threads, with handles that are open, closed, of another kind or
// invalid.
// chance ADDRESS SEED CALLS
//
// Successful calls have right results, failed ones have a text; the same seed gives each thread the
// same calls.

#include "check.h"
#include <pthread.h>

enum { THREADS = 3, HANDLES = 64, BATCHES = 16 };

static const char *address;
static uint64_t calls;

// What all threads open, use and close, whoever created it.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *handles[HANDLES];
static dlfs_batch batches[BATCHES];

static uint64_t chance(uint64_t *state, uint64_t below) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % below;
}

static void *some_handle(uint64_t *state) {
    if (chance(state, 40) == 0) return (void *)(uintptr_t)chance(state, UINT64_MAX);
    pthread_mutex_lock(&lock);
    void *handle = handles[chance(state, HANDLES)];
    pthread_mutex_unlock(&lock);
    return handle;
}

// Keeps a handle, and closes the one that it replaces, whatever that is.
static void keep(uint64_t *state, void *handle) {
    size_t place = chance(state, HANDLES);
    pthread_mutex_lock(&lock);
    void *old = handles[place];
    handles[place] = handle;
    pthread_mutex_unlock(&lock);
    int closed = (dlfs_close(old) == 0) + (dlfs_sequence_close(old) == 0) + (dlfs_ns_close(old) == 0);
    CHECK(closed + (dlfs_unmount(old) == 0) <= 1);
}

// Keeps a batch, or releases it at once.
static void keep_batch(uint64_t *state, dlfs_batch batch) {
    right_batch(&batch);
    if (chance(state, 4) == 0) {
        size_t place = chance(state, BATCHES);
        pthread_mutex_lock(&lock);
        dlfs_batch old = batches[place];
        batches[place] = batch;
        pthread_mutex_unlock(&lock);
        batch = old;
    }
    CHECK(dlfs_release(&batch) == 0 || batch.handle == NULL);
}

static void arrived(void *user, const dlfs_item *item) {
    (void)user;
    CHECK(item->status != DLFS_OK || right(item));
}

static int visit(void *user, const char *name, uint64_t id) {
    CHECK(*name && (id < NUM || id == DLFS_FOLDER));
    return chance(user, 50) == 0;
}

static void open_something(uint64_t *state, void *handle) {
    dlfs_fs *fs;
    dlfs_file *file;
    dlfs_seq *seq;
    dlfs_ns *ns;
    switch (chance(state, 4)) {
    case 0: {
        dlfs_mount_options it = {.size = sizeof it, .window_bytes = chance(state, 4 << 20)};
        if (dlfs_mount(address, chance(state, 2) ? &it : NULL, &fs) == 0) keep(state, fs);
        break;
    }
    case 1:
        if (dlfs_open_id(handle, chance(state, NUM + 9), &file) == 0) keep(state, file);
        break;
    case 2: {
        dlfs_sequence_options it = {
            .size = sizeof it, .order = (uint32_t)chance(state, 7), .batch_size = (uint32_t)chance(state, 40),
            .lanes = (uint32_t)chance(state, 20), .group = (uint32_t)chance(state, 9),
            .rank = (uint32_t)chance(state, 3), .world_size = (uint32_t)chance(state, 4),
            .epochs = chance(state, 4), .drop_last = (uint32_t)chance(state, 2),
            .on_error = (uint32_t)chance(state, 2), .contiguous = (uint32_t)chance(state, 2),
            .batching = (uint32_t)chance(state, 4), .window_bytes = 1 + chance(state, 1 << 20)};
        if (dlfs_sequence(handle, &it, &seq) == 0) keep(state, seq);
        break;
    }
    default:
        if (dlfs_ns_open(address, NULL, 0, (uint32_t)chance(state, 5), 8192, &ns) == 0) keep(state, ns);
    }
}

static void look(uint64_t *state, void *handle) {
    char text[1000];
    dlfs_info info = {.size = sizeof info};
    dlfs_sample sample = {.size = sizeof sample};
    dlfs_stats_t stats = {.size = sizeof stats};
    uint64_t id = chance(state, NUM + 9), epoch, left;
    if (dlfs_get_info(handle, &info) == 0) CHECK(info.num_samples == NUM);
    if (dlfs_stat_id(handle, id, &sample) == 0) CHECK(sample.len == len_of(id));
    if (dlfs_stat(handle, "class1/0005", &sample) == 0) CHECK(sample.id == 65);
    if (dlfs_stats(handle, &stats) == 0) CHECK(dlfs_sequence_stats(handle, &stats) == DLFS_E_HANDLE);
    if (dlfs_sequence_at(handle, &epoch, &left) == 0) CHECK(left <= NUM);
    int named = dlfs_name(handle, id, text, chance(state, 20), NULL);
    if (named == 0) CHECK(strlen(text) == 11);
    int listed = dlfs_list(handle, "", (int)chance(state, 2), visit, state);
    CHECK(listed == 0 || listed == DLFS_E_INTERRUPTED || listed == DLFS_E_HANDLE);
}

static void read_something(uint64_t *state, void *handle) {
    dlfs_batch batch = {.size = sizeof batch};
    uint8_t out[8000];
    uint64_t ids[4];
    for (int i = 0; i < 4; i++) ids[i] = chance(state, chance(state, 9) ? NUM : UINT64_MAX);
    switch (chance(state, 4)) {
    case 0: {
        dlfs_read_request it = {
            .size = sizeof it, .ids = ids, .count = chance(state, 5), .on_error = DLFS_ON_ERROR_SKIP,
            .arrived = chance(state, 2) ? arrived : NULL};
        if (chance(state, 3)) it.out = out, it.out_len = chance(state, sizeof out);
        if (dlfs_read_batch(handle, &it, &batch) != 0) break;
        right_batch(&batch); // `out` ends with this call, so the batch does, too
        CHECK(dlfs_release(&batch) == 0);
        break;
    }
    case 1: {
        int64_t got = dlfs_pread(handle, out, chance(state, sizeof out), chance(state, 6000));
        CHECK(got <= (int64_t)sizeof out);
        CHECK(dlfs_read(handle, out, chance(state, sizeof out)) <= (int64_t)sizeof out);
        break;
    }
    default:
        if (dlfs_bread(handle, &batch) == DLFS_OK) keep_batch(state, batch);
    }
}

static void move(uint64_t *state, void *handle) {
    char json[1000];
    CHECK(dlfs_set_epoch(handle, chance(state, 5)) <= 0 && dlfs_sequence_prepare(handle) <= 0);
    if (dlfs_state_get(handle, json, sizeof json, NULL) == 0) dlfs_state_set(some_handle(state), json);
}

static void do_blocks(uint64_t *state, void *handle) {
    dlfs_ns_io io = {.op = (uint32_t)chance(state, 4), .buffer = (uint32_t)chance(state, 5),
                     .offset = 512 * chance(state, 2000), .len = 512 * chance(state, 20)};
    dlfs_ns_done done[3];
    int64_t took = dlfs_ns_submit(handle, &io, 1), came = dlfs_ns_poll(handle, done, chance(state, 4), 1);
    CHECK(took <= 1 && came <= 3 && (took >= 0 || *dlfs_last_error()));
    for (int64_t i = 0; i < came; i++) CHECK(done[i].buffer < 5 && done[i].status <= 0);
}

static void *work(void *user) {
    uint64_t state = *(uint64_t *)user;
    for (uint64_t i = 0; i < calls; i++) {
        void *handle = some_handle(&state);
        switch (chance(&state, 10)) {
        case 0: open_something(&state, handle); break;
        case 1: look(&state, handle); break;
        case 2: move(&state, handle); break;
        case 3: do_blocks(&state, handle); break;
        default: read_something(&state, handle);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    address = argv[1], calls = strtoull(argv[3], NULL, 10);
    uint64_t seeds[THREADS];
    pthread_t threads[THREADS];
    for (size_t i = 0; i < BATCHES; i++) batches[i].size = sizeof batches[i];
    for (size_t i = 0; i < HANDLES / 2; i++) CHECK(dlfs_mount(address, NULL, (dlfs_fs **)&handles[i]) == 0);
    for (uint64_t i = 0; i < THREADS; i++) {
        seeds[i] = (strtoull(argv[2], NULL, 10) * THREADS + i) * 2654435761u + 1;
        CHECK(pthread_create(&threads[i], NULL, work, &seeds[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    return 0; // with many handles open
}
