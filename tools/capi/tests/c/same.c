// Reads a portion of a run, and leaves a state for the next one.  same ADDRESS STATE MOST RANK
// WORLD_SIZE
//
// Prints for each sample: epoch, id, label, length and the sum of its bytes.

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 6);
    dlfs_fs *fs;
    dlfs_seq *seq;
    dlfs_sequence_options options = {
        .size = sizeof options, .order = DLFS_ORDER_GROUPED, .seed = 11, .batch_size = 8, .epochs = 2,
        .rank = (uint32_t)atoi(argv[4]), .world_size = (uint32_t)atoi(argv[5])};
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0 && dlfs_sequence(fs, &options, &seq) == 0);
    CHECK(dlfs_sequence_prepare(seq) == 0);
    int loaded = dlfs_state_load(seq, argv[2]), result = DLFS_OK;
    CHECK(loaded == DLFS_OK || loaded == DLFS_E_NOT_FOUND);
    dlfs_batch batch = {.size = sizeof batch};
    for (int left = atoi(argv[3]); left > 0 && (result = dlfs_bread(seq, &batch)) == DLFS_OK; left--) {
        for (size_t i = 0; i < batch.count; i++) {
            const dlfs_item *item = &batch.items[i];
            uint64_t sum = 0;
            for (size_t k = 0; k < item->len; k++) sum += item->data[k];
            printf("%llu %llu %lld %zu %llu\n", (unsigned long long)batch.epoch,
                   (unsigned long long)item->id, (long long)item->label, item->len,
                   (unsigned long long)sum);
        }
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(result == DLFS_OK || result == DLFS_END);
    CHECK(atoi(argv[4]) > 0 || dlfs_state_save(seq, argv[2]) == 0);
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
