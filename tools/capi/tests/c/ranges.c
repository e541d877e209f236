// Parts of a large sample, and the bytes that they cost.  ranges ADDRESS
// Byte i of the only sample is (i >> 12) * 31 + i, and it has 6 MiB and 5 bytes.

#include "check.h"

#define LEN ((6u << 20) + 5)
#define PIECE (256u << 10)

static uint8_t bytes[1 << 20];

static void check(uint64_t at, int64_t got) {
    for (int64_t i = 0; i < got; i++) {
        uint64_t place = at + (uint64_t)i;
        CHECK(bytes[i] == (uint8_t)((place >> 12) * 31 + place));
    }
}

static uint64_t read_bytes(const dlfs_fs *fs) {
    dlfs_stats_t stats = {.size = sizeof stats};
    CHECK(dlfs_stats(fs, &stats) == 0);
    return stats.read_bytes;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_fs *fs;
    dlfs_file *file;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    CHECK(dlfs_open_id(fs, 0, &file) == 0 && read_bytes(fs) == 0);
    // A header and one piece, where the whole sample was read before.
    CHECK(dlfs_pread(file, bytes, PIECE, 4 * PIECE) == PIECE);
    check(4 * PIECE, PIECE);
    CHECK(read_bytes(fs) <= PIECE + 2 * 4096);
    uint64_t before = read_bytes(fs);
    CHECK(dlfs_pread(file, bytes, 3, 4 * PIECE + 5) == 3);
    check(4 * PIECE + 5, 3);
    CHECK(read_bytes(fs) == before); // the handle has the piece
    CHECK(dlfs_pread(file, bytes, 10, LEN - 4) == 4);
    check(LEN - 4, 4);
    CHECK(dlfs_pread(file, bytes, 10, LEN) == 0 && dlfs_pread(file, bytes, 10, UINT64_MAX) == 0);
    CHECK(dlfs_pread(file, NULL, 0, 0) == 0);
    FAILS(DLFS_E_INVALID, dlfs_pread(file, NULL, 10, 0), "buf is NULL");
    CHECK(dlfs_close(file) == 0);

    // In sequence: every byte once.
    CHECK(dlfs_open_id(fs, 0, &file) == 0);
    before = read_bytes(fs);
    uint64_t at = 0;
    int64_t got;
    while ((got = dlfs_read(file, bytes, 128 << 10)) > 0) {
        check(at, got);
        at += (uint64_t)got;
    }
    CHECK(got == 0 && at == LEN);
    CHECK(read_bytes(fs) - before <= LEN + 32 * 4096);
    CHECK(dlfs_close(file) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
