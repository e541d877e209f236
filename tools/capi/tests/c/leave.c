// Exits with everything open and reads outstanding, like a program that has an error.  leave
// ADDRESS

#include "check.h"
#include <pthread.h>

static dlfs_seq *seq;

static void *read_on(void *user) {
    dlfs_batch batch = {.size = sizeof batch};
    while (dlfs_bread(seq, &batch) == DLFS_OK) dlfs_release(&batch);
    return user;
}

static dlfs_fs *fs;
static int ended;

// Code that runs when a thread or the program has nearly ended may still use everything.
static void at_end(void *user) {
    dlfs_sample sample = {.size = sizeof sample};
    CHECK(dlfs_stat_id(fs, 999, &sample) == DLFS_E_NOT_FOUND && dlfs_last_error() != NULL);
    uint64_t ids[] = {5, 60};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 2};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0 && right(&batch.items[1]));
    CHECK(dlfs_release(&batch) == 0 && dlfs_bread(user, &batch) == 0);
    right_batch(&batch);
    CHECK(dlfs_release(&batch) == 0);
    ended++;
}

static void at_exit(void) {
    CHECK(ended == 1);
    at_end(seq);
}

static void *end_late(void *user) {
    pthread_setspecific(*(pthread_key_t *)user, seq);
    dlfs_sample sample = {.size = sizeof sample};
    FAILS(DLFS_E_NOT_FOUND, dlfs_stat_id(fs, 999, &sample), "no such sample");
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_file *file;
    char byte;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 5, .window_bytes = 1 << 20};
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    CHECK(dlfs_open_id(fs, 9, &file) == 0 && dlfs_read(file, &byte, 1) == 1);
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_bread(seq, &batch) == 0);
    pthread_t thread;
    pthread_key_t key;
    CHECK(pthread_key_create(&key, at_end) == 0);
    CHECK(pthread_create(&thread, NULL, end_late, &key) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(atexit(at_exit) == 0);
    CHECK(pthread_create(&thread, NULL, read_on, NULL) == 0);
    return 0;
}
