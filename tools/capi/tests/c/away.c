// A target that disappears in the middle of an epoch, and returns.  away ADDRESS: prints "reading"
// when the target may disappear and "gone" when it may return; a line of input says that it has.

#include "check.h"

static int armed, asked;

static int should_stop(void *user) {
    (void)user;
    return armed && ++asked == 3;
}

static unsigned char seen[NUM];

// Every sample once per epoch, whatever happens in the middle.
static void note(const dlfs_batch *batch) {
    right_batch(batch);
    for (size_t i = 0; i < batch->count; i++) CHECK(seen[batch->items[i].id]++ == 0);
    if (!batch->ends_epoch) return;
    for (size_t i = 0; i < NUM; i++) CHECK(seen[i] == 1);
    memset(seen, 0, sizeof seen);
}

static void say(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_mount_options mount = {
        .size = sizeof mount,
        .ctrl_loss_tmo_ms = 1500,
        .should_stop = should_stop,
    };
    dlfs_fs *fs;
    dlfs_seq *seq;
    CHECK(dlfs_mount(argv[1], &mount, &fs) == 0);
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 10, .window_bytes = 1 << 20};
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_bread(seq, &batch) == 0);
    say("reading");
    int result;
    do {
        note(&batch);
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
    armed = 0;

    // The state of the run is available nevertheless, and a new run resumes from it.
    char json[1000], line[10];
    CHECK(dlfs_state_get(seq, json, sizeof json, NULL) == 0);
    say("gone");
    CHECK(fgets(line, sizeof line, stdin));
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    CHECK(dlfs_mount(argv[1], &mount, &fs) == 0 && dlfs_sequence(fs, &options, &seq) == 0);
    CHECK(dlfs_state_set(seq, json) == 0);
    for (int i = 0; i < 40; i++) { // an epoch has 18
        CHECK(dlfs_bread(seq, &batch) == 0);
        note(&batch);
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
