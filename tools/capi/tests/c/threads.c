// Threads that share handles, with forks meanwhile.  threads ADDRESS FORKS

#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static dlfs_fs *fs;
static dlfs_seq *endless, *shared;
static atomic_int stop;
static atomic_size_t samples;

// Takes batches of one sequence, alternating with other threads, until its end.
static void *take(void *user) {
    dlfs_batch batch = {.size = sizeof batch};
    int result;
    while ((result = dlfs_bread(shared, &batch)) == DLFS_OK) {
        right_batch(&batch);
        samples += batch.count;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(result == DLFS_END);
    // The text of an error belongs to its thread.
    char name[32];
    snprintf(name, sizeof name, "thread %d", (int)(intptr_t)user);
    dlfs_sample sample = {.size = sizeof sample};
    FAILS(DLFS_E_NOT_FOUND, dlfs_stat(fs, name, &sample), name);
    return NULL;
}

// Does a little of everything until it is stopped.
static void *work(void *user) {
    uint64_t ids[] = {1, 170, 60, (uint64_t)(intptr_t)user};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 4};
    dlfs_batch batch = {.size = sizeof batch};
    while (!stop) {
        CHECK(dlfs_read_batch(fs, &request, &batch) == 0);
        right_batch(&batch);
        CHECK(dlfs_release(&batch) == 0);
        CHECK(dlfs_bread(endless, &batch) == 0);
        right_batch(&batch);
        CHECK(dlfs_release(&batch) == 0);
        dlfs_file *file;
        char byte;
        CHECK(dlfs_open(fs, "class0/0001", &file) == 0 && dlfs_read(file, &byte, 1) == 1);
        CHECK(dlfs_close(file) == 0);
    }
    return NULL;
}

// What a forked child does: everything, independently.
static void child(int everything) {
    alarm(60);
    uint64_t ids[] = {3, 171};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 2};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0);
    right_batch(&batch);
    CHECK(dlfs_release(&batch) == 0);
    if (everything) {
        CHECK(dlfs_bread(endless, &batch) == 0);
        right_batch(&batch);
        CHECK(dlfs_release(&batch) == 0);
        CHECK(dlfs_sequence_close(endless) == 0);
        CHECK(dlfs_unmount(fs) == 0);
    }
    _exit(0);
}

static void fork_often(int forks) {
    for (int i = 0; i < forks; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) child(i % 4 == 0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status != 0) {
            fprintf(stderr, "child %d ended with status %x\n", i, status);
            exit(1);
        }
    }
}

static void *close_it(void *user) {
    usleep(50000);
    CHECK(dlfs_sequence_close(user) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int forks = atoi(argv[2]);
    pthread_t threads[4];
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 7, .epochs = 3};
    CHECK(dlfs_sequence(fs, &options, &shared) == 0);
    for (intptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, take, (void *)i) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(samples == 3 * NUM);

    options.epochs = 0;
    options.order = DLFS_ORDER_GROUPED;
    options.window_bytes = 1 << 20;
    CHECK(dlfs_sequence(fs, &options, &endless) == 0);
    fork_often(forks); // idle: nothing has been read yet, and no thread runs
    for (intptr_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    fork_often(forks); // while threads read
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);

    // Closing from another thread ends a loop of reads, with one of two errors.
    CHECK(pthread_create(&threads[0], NULL, close_it, endless) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    int result;
    while ((result = dlfs_bread(endless, &batch)) == DLFS_OK) CHECK(dlfs_release(&batch) == 0);
    CHECK(result == DLFS_E_INTERRUPTED || result == DLFS_E_HANDLE);
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(dlfs_sequence_close(shared) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
