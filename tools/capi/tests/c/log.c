// Warnings of the library.  log ADDRESS BAD COPY: a data set, one with a damaged sample, and one
// with a damaged superblock copy

#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char all[1 << 16];
static int count;

static void on_log(void *user, int level, const char *text) {
    pthread_mutex_lock(&lock); // called by any thread
    CHECK(user == &count && level == DLFS_LOG_WARNING);
    size_t len = strlen(all);
    snprintf(all + len, sizeof all - len, "%s\n", text);
    count++;
    pthread_mutex_unlock(&lock);
}

static int said(const char *text) {
    pthread_mutex_lock(&lock);
    int found = strstr(all, text) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

// Reads an epoch, skipping what cannot be read.
static void read_epoch(const char *address, uint64_t window, uint32_t batching) {
    count = 0, all[0] = 0;
    dlfs_fs *fs;
    dlfs_seq *seq;
    dlfs_sequence_options options = {
        .size = sizeof options, .order = DLFS_ORDER_GROUPED, .batch_size = 10, .epochs = 1,
        .on_error = DLFS_ON_ERROR_SKIP, .window_bytes = window, .batching = batching};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_mount(address, NULL, &fs) == 0 && dlfs_sequence(fs, &options, &seq) == 0);
    int result;
    while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) CHECK(dlfs_release(&batch) == 0);
    CHECK(result == DLFS_END && dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
}

static void read_all(const char *address) { read_epoch(address, 0, DLFS_BATCHING_AUTO); }

// By whole chunks, in a window that is too small for those of its order.
static void read_in_small_window(const char *address) {
    read_epoch(address, 128 << 10, DLFS_BATCHING_CHUNK);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    read_in_small_window(argv[1]); // without a listener
    CHECK(dlfs_log(NULL, NULL) == 0);
    CHECK(dlfs_log(on_log, &count) == 0);
    read_all(argv[1]);
    CHECK(count == 0);
    read_in_small_window(argv[1]);
    CHECK(count > 0 && said("enough_bytes"));
    read_all(argv[2]);
    CHECK(count == 1 && said("a sample is left out") && said("checksum"));
    read_all(argv[3]);
    CHECK(count == 1 && said("superblock copy at byte 0") && said("dlfs rebuild"));
    pid_t pid = fork(); // a child logs by itself
    if (pid == 0) {
        read_in_small_window(argv[1]);
        _exit(count > 0 && said("enough_bytes") ? 0 : 1);
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(dlfs_log(on_log, &count) == 0); // setting it again does not duplicate messages
    read_all(argv[2]);
    CHECK(count == 1);
    CHECK(dlfs_log(NULL, NULL) == 0);
    read_all(argv[2]);
    CHECK(count == 0);
    return 0;
}
