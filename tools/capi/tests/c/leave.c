// Ends with everything open and reads under way, as a program does that has an error.  leave ADDRESS

#include "check.h"
#include <pthread.h>

static dlfs_seq *seq;

static void *read_on(void *user) {
    dlfs_batch batch = {.size = sizeof batch};
    while (dlfs_bread(seq, &batch) == DLFS_OK) dlfs_release(&batch);
    return user;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_fs *fs;
    dlfs_file *file;
    char byte;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 5, .window_bytes = 1 << 20};
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    CHECK(dlfs_open_id(fs, 9, &file) == 0 && dlfs_read(file, &byte, 1) == 1);
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_bread(seq, &batch) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, read_on, NULL) == 0);
    return 0;
}
