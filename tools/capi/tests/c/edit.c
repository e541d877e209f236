// Deletes samples by id and by name, and frees their space.  edit ADDRESS: an image that may be changed.

#include <unistd.h>

#include "check.h"

static dlfs_fs *mounted(const char *address, uint64_t num, uint64_t generation) {
    dlfs_fs *fs;
    CHECK(dlfs_mount(address, NULL, &fs) == 0);
    dlfs_info info = {.size = sizeof info};
    CHECK(dlfs_get_info(fs, &info) == 0);
    CHECK(info.num_samples == num && info.generation == generation && info.end_of_ids == NUM);
    return fs;
}

static int stop(void *user) {
    (void)user;
    return 1;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *address = argv[1];
    const uint64_t unknown[] = {1, NUM, NUM + 1};
    const char *strange[] = {"nobody", "nowhere"};
    uint64_t count = 77;

    // What cannot be changes nothing.
    FAILS(DLFS_E_NOT_FOUND, dlfs_delete(address, NULL, 0, unknown, NULL, 3, &count), "no samples with id 180, 181");
    FAILS(DLFS_E_NOT_FOUND, dlfs_delete(address, NULL, 0, NULL, strange, 2, &count), "called nobody, nowhere");
    FAILS(DLFS_E_INVALID, dlfs_delete(address, NULL, 0, unknown, strange, 1, &count), "and not both");
    FAILS(DLFS_E_INVALID, dlfs_delete(address, NULL, 0, NULL, NULL, 1, &count), "and not both");
    FAILS(DLFS_E_INVALID, dlfs_delete(address, NULL, 2, unknown, NULL, 1, &count), "accept_older_generation");
    FAILS(DLFS_E_INVALID, dlfs_delete(NULL, NULL, 0, unknown, NULL, 1, &count), "addresses");
    const char *hole[] = {NULL};
    FAILS(DLFS_E_INVALID, dlfs_delete(address, NULL, 0, NULL, hole, 1, &count), "a name");
    FAILS(DLFS_E_INVALID, dlfs_purge(address, NULL, 7, &count), "accept_older_generation");
    CHECK(count == 77);
    dlfs_fs *before = mounted(address, NUM, 1);

    // Names that are asked for, not guessed.
    char first[DLFS_NAME_MAX], second[DLFS_NAME_MAX];
    CHECK(dlfs_name(before, 10, first, sizeof first, NULL) == 0);
    CHECK(dlfs_name(before, 11, second, sizeof second, NULL) == 0);
    const char *names[] = {first, second};
    CHECK(dlfs_delete(address, NULL, 0, NULL, names, 2, &count) == 0 && count == 2);
    FAILS(DLFS_E_NOT_FOUND, dlfs_delete(address, NULL, 0, NULL, names, 2, &count), first);

    // 60 of the 180 ids, of which two are gone already, in one generation.
    uint64_t ids[60];
    for (uint64_t i = 0; i < 60; i++) ids[i] = i;
    CHECK(dlfs_delete(address, NULL, 0, ids, NULL, 60, &count) == 0 && count == 58);
    dlfs_fs *after = mounted(address, NUM - 60, 3);
    dlfs_sample sample = {.size = sizeof sample};
    FAILS(DLFS_E_NOT_FOUND, dlfs_stat(after, first, &sample), "");
    CHECK(dlfs_stat(before, first, &sample) == 0 && sample.id == 10);
    CHECK(dlfs_unmount(before) == 0 && dlfs_unmount(after) == 0);

    dlfs_mount_options stopped = {.size = sizeof stopped, .should_stop = stop};
    FAILS(DLFS_E_INTERRUPTED, dlfs_purge(address, &stopped, 0, &count), "");
    CHECK(dlfs_purge(address, NULL, 0, NULL) == 0);
    uint64_t rest[NUM - 60];
    for (uint64_t i = 60; i < NUM; i++) rest[i - 60] = i;
    CHECK(dlfs_mount(address, NULL, &after) == 0);
    dlfs_read_request request = {.size = sizeof request, .ids = rest, .count = NUM - 60};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_read_batch(after, &request, &batch) == 0 && batch.count == NUM - 60);
    right_batch(&batch);
    CHECK(dlfs_release(&batch) == 0 && dlfs_unmount(after) == 0);
    return 0;
}
