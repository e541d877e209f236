// An engine that breaks: no epoch ends as if it were complete.  ends ADDRESS HOW CODE TEXT: HOW is "mount",
// "sequence" or "id", which is then refused with CODE, and with a text that has TEXT in it.

#include "check.h"

static int asked, most = 1000000;

static int should_stop(void *user) {
    (void)user;
    return ++asked > most;
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    const char *how = argv[2], *text = argv[4];
    int code = atoi(argv[3]), result = 0;
    if (code == DLFS_E_INTERRUPTED) most = 3;
    dlfs_mount_options mount = {
        .size = sizeof mount, .deadline_ms = 1000, .should_stop = should_stop};
    dlfs_fs *fs;
    if (!strcmp(how, "mount")) {
        FAILS(code, dlfs_mount(argv[1], &mount, &fs), text);
        return 0;
    }
    CHECK(dlfs_mount(argv[1], &mount, &fs) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    if (!strcmp(how, "sequence")) {
        dlfs_seq *seq;
        dlfs_sequence_options options = {
            .size = sizeof options, .batch_size = 10, .epochs = 1000, .deadline_ms = 1000};
        CHECK(dlfs_sequence(fs, &options, &seq) == 0);
        while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
            right_batch(&batch);
            CHECK(dlfs_release(&batch) == 0);
        }
        FAILS(code, result, text);
        for (int again = 0; again < 3; again++) FAILS(code, dlfs_bread(seq, &batch), text);
        CHECK(dlfs_sequence_close(seq) == 0);
    } else {
        for (uint64_t id = 0; result == DLFS_OK; id = (id + 1) % NUM) {
            dlfs_read_request request = {.size = sizeof request, .ids = &id, .count = 1};
            result = dlfs_read_batch(fs, &request, &batch);
            if (result == DLFS_OK) {
                right_batch(&batch);
                CHECK(dlfs_release(&batch) == 0);
            }
        }
        FAILS(code, result, text);
    }
    CHECK(dlfs_unmount(fs) == 0);
    return 0;
}
