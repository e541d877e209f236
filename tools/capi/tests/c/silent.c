// A target that accepts connections and never replies.  silent ADDRESS

#include "check.h"

static int asked;

static int after_three(void *user) {
    ++*(int *)user;
    // It may call the library, also about the object being created.
    dlfs_fs *fs;
    CHECK(dlfs_mount("/nonexistent", NULL, &fs) == DLFS_E_NOT_FOUND && *dlfs_last_error());
    return *(int *)user == 3;
}

static int goes_on(void *user) {
    ++*(int *)user;
    return 0;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_fs *fs;
    dlfs_ns *ns;
    dlfs_mount_options options = {.size = sizeof options, .should_stop = after_three, .user = &asked};
    FAILS(DLFS_E_INTERRUPTED, dlfs_mount(argv[1], &options, &fs), "");
    CHECK(fs == NULL && asked == 3);
    options = (dlfs_mount_options){.size = sizeof options, .connect_timeout_ms = 6000,
                                   .should_stop = goes_on, .user = &asked};
    asked = 0;
    FAILS(DLFS_E_TIMED_OUT, dlfs_mount(argv[1], &options, &fs), "127.0.0.1");
    CHECK(fs == NULL && asked >= 3);
    options.connect_timeout_ms = 700;
    FAILS(DLFS_E_TIMED_OUT, dlfs_ns_open(argv[1], &options, 0, 1, 4096, &ns), "127.0.0.1");
    CHECK(ns == NULL);
    return 0;
}
