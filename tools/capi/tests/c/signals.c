// Signals that interrupt every system call, and a program that has not blocked them.  signals ADDRESS

#include "check.h"
#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t caught;

static void on_alarm(int number) {
    (void)number;
    caught++;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    struct sigaction action = {.sa_handler = on_alarm}; // without SA_RESTART
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval timer = {.it_interval = {.tv_usec = 300}, .it_value = {.tv_usec = 300}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    for (int round = 0; round < 20 || caught < 200; round++) {
        dlfs_fs *fs;
        dlfs_seq *seq;
        uint64_t ids[] = {170, 3};
        dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 2};
        dlfs_batch batch = {.size = sizeof batch};
        dlfs_sequence_options options = {
            .size = sizeof options, .batch_size = 30, .epochs = 1, .window_bytes = 1 << 20};
        CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
        CHECK(dlfs_read_batch(fs, &request, &batch) == 0);
        right_batch(&batch);
        CHECK(dlfs_release(&batch) == 0 && dlfs_sequence(fs, &options, &seq) == 0);
        size_t samples = 0;
        int result;
        while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
            right_batch(&batch);
            samples += batch.count;
            CHECK(dlfs_release(&batch) == 0);
        }
        CHECK(result == DLFS_END && samples == NUM);
        CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    }
    return 0;
}
