// Views.  view ADDRESS FOLDER: 180 samples with a label each, and a folder for a file of views.

#include <stdio.h>

#include "check.h"

static uint64_t count(dlfs_fs *fs) {
    dlfs_info info = {.size = sizeof info};
    CHECK(dlfs_get_info(fs, &info) == 0 && info.end_of_ids == NUM);
    return info.num_samples;
}

// Reads an epoch; every sample has a label below `most`, unless that is 0.
static uint64_t read_all(dlfs_fs *fs) {
    dlfs_sequence_options options = {
        .size = sizeof options, .order = DLFS_ORDER_GROUPED, .batch_size = 7, .epochs = 1};
    dlfs_seq *seq;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    uint64_t seen = 0;
    int result;
    while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
        seen += batch.count;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(result == DLFS_END && dlfs_sequence_close(seq) == 0);
    return seen;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    dlfs_fs *fs, *view, *part, *none = (void *)7;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);

    // By expression, and then by ids.
    CHECK(dlfs_select(fs, "id in (3, 5) or 100 <= id < 150", &view) == 0);
    CHECK(count(view) == 52 && read_all(view) == 52);
    const uint64_t ids[] = {149, 5, 5};
    CHECK(dlfs_select_ids(view, ids, 3, &part) == 0 && count(part) == 2 && read_all(part) == 2);
    dlfs_sample sample = {.size = sizeof sample};
    CHECK(dlfs_stat_id(part, 149, &sample) == 0 && sample.id == 149);
    FAILS(DLFS_E_NOT_FOUND, dlfs_stat_id(part, 100, &sample), "");
    CHECK(dlfs_unmount(part) == 0);

    // What cannot be selected.
    FAILS(DLFS_E_INVALID, dlfs_select(fs, "idd == 3", &none), "no column `idd`");
    CHECK(none == NULL);
    FAILS(DLFS_E_INVALID, dlfs_select(fs, "id < 0", &none), "none of 180 samples is selected");
    FAILS(DLFS_E_INVALID, dlfs_select(fs, NULL, &none), "expression");
    FAILS(DLFS_E_INVALID, dlfs_select(fs, "id < 3", NULL), "view");
    FAILS(DLFS_E_HANDLE, dlfs_select(NULL, "id < 3", &none), "");
    const uint64_t unknown[] = {3, NUM};
    FAILS(DLFS_E_NOT_FOUND, dlfs_select_ids(fs, unknown, 2, &none), "no sample 180");
    FAILS(DLFS_E_INVALID, dlfs_select_ids(fs, NULL, 2, &none), "ids");
    FAILS(DLFS_E_INVALID, dlfs_split(fs, "a=0.9,b=0.2", 1, DLFS_SPLIT_BY_ID, "a", &none), "sum to 1");
    FAILS(DLFS_E_INVALID, dlfs_split(fs, "a=0.9", 1, 9, "a", &none), "by is 9");
    FAILS(DLFS_E_INVALID, dlfs_split(fs, "a=0.9", 1, DLFS_SPLIT_BY_NAME, "c", &none), "no part called c");

    // Parts, and a file of one.
    dlfs_fs *train, *rest;
    CHECK(dlfs_split(view, "train=0.8", 1, DLFS_SPLIT_BY_NAME, "train", &train) == 0);
    CHECK(dlfs_split(view, "train=0.8", 1, DLFS_SPLIT_BY_NAME, "rest", &rest) == 0);
    CHECK(count(train) + count(rest) == 52 && count(rest) > 0);
    char path[4096];
    CHECK(snprintf(path, sizeof path, "%s/rest.view", argv[2]) < (int)sizeof path);
    CHECK(dlfs_save_view(rest, path, "rest") == 0);
    FAILS(DLFS_E_INVALID, dlfs_save_view(rest, path, "a:b"), "is none");
    FAILS(DLFS_E_INVALID, dlfs_save_view(rest, NULL, "a"), "path");
    CHECK(dlfs_unmount(fs) == 0 && dlfs_unmount(view) == 0 && dlfs_unmount(train) == 0);
    const uint64_t left = read_all(rest);
    dlfs_mount_options options = {.size = sizeof options, .view = path};
    CHECK(dlfs_mount(argv[1], &options, &fs) == 0 && count(fs) == left && read_all(fs) == left);
    CHECK(dlfs_unmount(fs) == 0 && dlfs_unmount(rest) == 0);
    CHECK(snprintf(path, sizeof path, "%s/rest.view:train", argv[2]) < (int)sizeof path);
    FAILS(DLFS_E_INVALID, dlfs_mount(argv[1], &options, &none), "there are rest");
    return 0;
}
