// A sample whose bytes are damaged.  damage ADDRESS ID

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 3);
    uint64_t bad = strtoull(argv[2], NULL, 10), ids[] = {3, bad, 4};
    dlfs_fs *fs;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 3};
    FAILS(DLFS_E_CORRUPT, dlfs_read_batch(fs, &request, &batch), "checksum");
    CHECK(batch.items == NULL && batch.handle == NULL);
    request.on_error = DLFS_ON_ERROR_KEEP;
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0 && batch.count == 3);
    CHECK(right(&batch.items[0]) && right(&batch.items[2]));
    CHECK(batch.items[1].status == DLFS_E_CORRUPT && batch.items[1].id == bad);
    CHECK(batch.items[1].data == NULL && batch.items[1].len == 0);
    CHECK(dlfs_release(&batch) == 0);
    dlfs_file *file;
    char byte;
    CHECK(dlfs_open_id(fs, bad, &file) == 0);
    FAILS(DLFS_E_CORRUPT, dlfs_read(file, &byte, 1), "checksum");
    CHECK(dlfs_close(file) == 0);

    for (uint32_t order = DLFS_ORDER_GLOBAL; order <= DLFS_ORDER_GROUPED; order++) {
        dlfs_sequence_options options = {
            .size = sizeof options, .order = order, .batch_size = 10, .epochs = 1};
        dlfs_seq *seq;
        int result;
        CHECK(dlfs_sequence(fs, &options, &seq) == 0);
        while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
            right_batch(&batch);
            CHECK(dlfs_release(&batch) == 0);
        }
        FAILS(DLFS_E_CORRUPT, result, "checksum");
        FAILS(DLFS_E_CORRUPT, dlfs_bread(seq, &batch), "checksum"); // and the error persists
        CHECK(dlfs_sequence_close(seq) == 0);

        options.on_error = DLFS_ON_ERROR_SKIP;
        size_t samples = 0;
        CHECK(dlfs_sequence(fs, &options, &seq) == 0);
        while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
            right_batch(&batch);
            samples += batch.count;
            CHECK(dlfs_release(&batch) == 0);
        }
        dlfs_stats_t stats = {.size = sizeof stats};
        CHECK(dlfs_sequence_stats(seq, &stats) == 0 && stats.skipped == 1);
        CHECK(result == DLFS_END && samples == NUM - 1);
        CHECK(dlfs_sequence_close(seq) == 0);
    }
    CHECK(dlfs_unmount(fs) == 0);
    return 0;
}
