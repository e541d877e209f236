// Shards that were not imported.  shards ADDRESS INDEX COUNT: so many samples, and a folder for their indexes.

#include <stdlib.h>

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const uint64_t count = strtoull(argv[3], NULL, 10);
    // The first opening makes the indexes, and the second one finds them.
    for (int round = 0; round < 2; round++) {
        dlfs_mount_options options = {.size = sizeof options, .index = argv[2]};
        dlfs_fs *fs;
        CHECK(dlfs_mount(argv[1], &options, &fs) == 0);
        dlfs_info info = {.size = sizeof info};
        CHECK(dlfs_get_info(fs, &info) == 0 && info.num_samples == count);
        dlfs_sequence_options order = {
            .size = sizeof order, .order = DLFS_ORDER_GLOBAL, .batch_size = 7, .epochs = 1};
        dlfs_seq *seq;
        CHECK(dlfs_sequence(fs, &order, &seq) == 0);
        dlfs_batch batch = {.size = sizeof batch};
        uint64_t seen = 0;
        int result;
        while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
            seen += batch.count;
            CHECK(dlfs_release(&batch) == 0);
        }
        CHECK(result == DLFS_END && seen == count);
        CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    }
    return 0;
}
