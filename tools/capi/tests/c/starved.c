// A system without free file descriptors, or without free memory.  starved ADDRESS

#include "check.h"
#include <sys/resource.h>
#include <unistd.h>

static void limit(int what, rlim_t most) {
    struct rlimit both;
    CHECK(getrlimit(what, &both) == 0);
    both.rlim_cur = most < both.rlim_max ? most : both.rlim_max;
    CHECK(setrlimit(what, &both) == 0);
}

// Everything that needs resources of the system; a refusal is an error with a reason.
static int try_all(const char *address, uint64_t window, uint32_t connect_timeout_ms) {
    int failed = 0;
    dlfs_fs *fs;
    dlfs_mount_options mount = {
        .size = sizeof mount, .window_bytes = window, .connect_timeout_ms = connect_timeout_ms};
    int result = dlfs_mount(address, &mount, &fs);
    if (result != 0) {
        CHECK(result != DLFS_E_INTERNAL && *dlfs_last_error() && fs == NULL);
        return 1;
    }
    uint64_t ids[] = {170, 3};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 2};
    dlfs_batch batch = {.size = sizeof batch};
    result = dlfs_read_batch(fs, &request, &batch);
    CHECK(result != DLFS_E_INTERNAL && (result == 0 || *dlfs_last_error()));
    if (result == 0) CHECK(dlfs_release(&batch) == 0);
    failed += result != 0;
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 7, .window_bytes = window};
    dlfs_seq *seq;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    result = dlfs_sequence_prepare(seq);
    CHECK(result == 0 || result == DLFS_E_NO_MEMORY);
    failed += result != 0;
    result = dlfs_bread(seq, &batch);
    CHECK(result != DLFS_E_INTERNAL && (result == 0 || *dlfs_last_error()));
    if (result == 0) right_batch(&batch);
    if (result == 0) CHECK(dlfs_release(&batch) == 0);
    failed += result != 0;
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
    return failed;
}

// Enough for a busy machine, if nothing lacks.
#define PATIENT_MS 60000

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(try_all(argv[1], 1 << 20, PATIENT_MS) == 0);
    // More memory than there are addresses.
    CHECK(try_all(argv[1], (uint64_t)1 << 47, PATIENT_MS) > 0);
    CHECK(try_all(argv[1], 1 << 20, PATIENT_MS) == 0);
    // From no descriptor at all to as many as are needed.
    struct rlimit files;
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    int used = dup(0);
    close(used);
    int worked = 0, failed = 0;
    for (int more = 0; more < 30; more++) {
        limit(RLIMIT_NOFILE, (rlim_t)(used + more));
        if (try_all(argv[1], 1 << 20, 1000)) failed++;
        else worked++;
    }
    CHECK(worked > 0 && failed > 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    CHECK(try_all(argv[1], 1 << 20, PATIENT_MS) == 0);
    return 0;
}
