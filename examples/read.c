// Reads epochs of a data set from C as a training job would: shuffled batches, read ahead.
//
//   tools/capi/install ~/.local && export PKG_CONFIG_PATH=~/.local/lib/pkgconfig
//   cc examples/read.c $(pkg-config --cflags --libs dlfs) -Wl,-rpath,$HOME/.local/lib -o read
//   ./read train.dlfs 256 2 run.json
//
// With a state file, a stopped run resumes where it was: stop it with Ctrl-C and start it again. EPOCHS 0 is endless.

#include <dlfs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static volatile sig_atomic_t stopped;

static void on_signal(int number) { stopped = number; }

static int should_stop(void *user) {
    (void)user;
    return stopped != 0;
}

static int fail(const char *doing) {
    fprintf(stderr, "%s: %s\n", doing, dlfs_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 2) return fprintf(stderr, "usage: %s ADDRESS [BATCH [EPOCHS [STATE]]]\n", argv[0]), 2;
    const char *state = argc > 4 ? argv[4] : NULL;
    signal(SIGINT, on_signal);
    setvbuf(stdout, NULL, _IOLBF, 0); // print each line at once

    dlfs_mount_options mount = {.size = sizeof mount, .should_stop = should_stop};
    dlfs_fs *fs;
    if (dlfs_mount(argv[1], &mount, &fs)) return fail("mount");

    // Zero in any other field is its default.
    dlfs_sequence_options options = {
        .size = sizeof options,
        .order = DLFS_ORDER_GROUPED,
        .seed = 7,
        .batch_size = argc > 2 ? (uint32_t)atoi(argv[2]) : 256,
        .epochs = argc > 3 ? (uint64_t)atoi(argv[3]) : 1,
        .should_stop = should_stop,
    };
    dlfs_seq *seq;
    if (dlfs_sequence(fs, &options, &seq)) return fail("sequence");
    // A new run has no state yet; any other error, such as a state of another data set, is one.
    int loaded = state ? dlfs_state_load(seq, state) : DLFS_OK;
    if (loaded != DLFS_OK && loaded != DLFS_E_NOT_FOUND) return fail("state");
    // Allocates the readahead memory in the background while a trainer builds its model.
    if (dlfs_sequence_prepare(seq)) return fail("prepare");

    unsigned long long samples = 0, bytes = 0;
    int result = DLFS_OK;
    dlfs_batch batch = {.size = sizeof batch};
    // A waiting call calls should_stop; a call that does not wait is followed by this check.
    while (!stopped && (result = dlfs_bread(seq, &batch)) == DLFS_OK) {
        for (size_t i = 0; i < batch.count; i++)
            bytes += batch.items[i].len; // item.data has item.len bytes, all verified; item.label its class
        samples += batch.count;
        if (batch.ends_epoch) {
            printf("epoch %llu: %llu samples, %llu bytes\n", (unsigned long long)batch.epoch, samples, bytes);
            samples = bytes = 0;
        }
        dlfs_release(&batch);
    }
    if (result < 0 && result != DLFS_E_INTERRUPTED) return fail("bread");

    uint64_t epoch, left;
    if (dlfs_sequence_at(seq, &epoch, &left)) return fail("at");
    if (stopped)
        printf("stopped: %llu batches of epoch %llu are left\n", (unsigned long long)left, (unsigned long long)epoch);
    if (state && dlfs_state_save(seq, state)) return fail("save");
    dlfs_sequence_close(seq);
    dlfs_unmount(fs);
    return 0;
}
