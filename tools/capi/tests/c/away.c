// A target that goes away in the middle of a run.  away ADDRESS: prints "reading" when it may go.

#include "check.h"
#include <time.h>

static int armed, asked;

static int should_stop(void *user) {
    (void)user;
    return armed && ++asked == 3;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_mount_options mount = {
        .size = sizeof mount,
        .ctrl_loss_tmo_ms = 1500,
        .io_timeout_ms = 500,
        .should_stop = should_stop,
    };
    dlfs_fs *fs;
    dlfs_seq *seq;
    CHECK(dlfs_mount(argv[1], &mount, &fs) == 0);
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 10, .window_bytes = 1 << 20};
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_bread(seq, &batch) == 0);
    printf("reading\n");
    fflush(stdout);
    int result;
    do {
        right_batch(&batch);
        CHECK(dlfs_release(&batch) == 0);
    } while ((result = dlfs_bread(seq, &batch)) == DLFS_OK);
    FAILS(DLFS_E_DISCONNECTED, result, "127.0.0.1");
    // The same again, and by id: the caller's function ends the wait, or the loss is known already.
    FAILS(DLFS_E_DISCONNECTED, dlfs_bread(seq, &batch), "127.0.0.1");
    uint64_t id = 3;
    dlfs_read_request request = {.size = sizeof request, .ids = &id, .count = 1};
    armed = 1;
    result = dlfs_read_batch(fs, &request, &batch);
    CHECK(result == DLFS_E_INTERRUPTED || result == DLFS_E_DISCONNECTED);
    CHECK(result != DLFS_E_INTERRUPTED || asked == 3);
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
