// Blocks of a namespace, with valid and invalid arguments.  blocks ADDRESS: 1 MiB that may be
// written.

#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BUFFERS = 8, LEN = 8192, TOTAL = 1 << 20 };

static dlfs_ns_io make(uint32_t op, uint32_t buffer, uint64_t offset, uint64_t len) {
    return (dlfs_ns_io){.op = op, .buffer = buffer, .offset = offset, .len = len};
}

// Submits all of `ios` and waits for all; each must succeed.
static void do_all(dlfs_ns *ns, const dlfs_ns_io *ios, size_t num) {
    dlfs_ns_done done[BUFFERS];
    size_t sent = 0, ended = 0;
    while (ended < num) {
        int64_t took = dlfs_ns_submit(ns, ios + sent, num - sent);
        CHECK(took >= 0);
        sent += (size_t)took;
        int64_t came = dlfs_ns_poll(ns, done, BUFFERS, 10000);
        CHECK(came > 0);
        for (int64_t i = 0; i < came; i++) CHECK(done[i].status == DLFS_OK && done[i].buffer < BUFFERS);
        ended += (size_t)came;
    }
    CHECK(dlfs_ns_poll(ns, done, BUFFERS, 10000) == 0); // nothing is outstanding: no wait
}

static void write_and_read(dlfs_ns *ns) {
    dlfs_ns_io ios[BUFFERS];
    for (int pass = 0; pass < 2; pass++) { // 0 writes, 1 reads
        for (uint64_t at = 0; at < TOTAL; at += BUFFERS * LEN) {
            for (uint32_t i = 0; i < BUFFERS; i++) {
                memset(dlfs_ns_buffer(ns, i), pass ? 0 : (int)(at / LEN + i), LEN);
                ios[i] = make(pass ? DLFS_NS_READ : DLFS_NS_WRITE, i, at + i * LEN, LEN);
            }
            do_all(ns, ios, BUFFERS);
            for (uint32_t i = 0; i < BUFFERS; i++) {
                const uint8_t *bytes = dlfs_ns_buffer(ns, i);
                CHECK(bytes[0] == (uint8_t)(at / LEN + i) && bytes[LEN - 1] == bytes[0]);
            }
        }
        ios[0] = make(DLFS_NS_FLUSH, 3, 0, 0);
        do_all(ns, ios, 1);
    }
    uint8_t *buffer = dlfs_ns_buffer(ns, 5);
    ios[0] = make(DLFS_NS_READ, 5, 4096, 4096); // less than the buffer: the rest is unchanged
    memset(buffer, 0xEE, LEN);
    do_all(ns, ios, 1);
    CHECK(buffer[0] == 0 && buffer[4095] == 0 && buffer[4096] == 0xEE);
    CHECK((uint8_t *)dlfs_ns_buffer(ns, 6) == buffer + LEN);
}

static void used_wrong(dlfs_ns *ns, const char *address) {
    dlfs_ns_io io = make(DLFS_NS_READ, 0, 0, LEN), two[2] = {io, io};
    dlfs_ns_done done;
    FAILS(DLFS_E_INVALID, (two[0].op = 9, dlfs_ns_submit(ns, two, 1)), "op is 9");
    FAILS(DLFS_E_INVALID, (io.buffer = BUFFERS, dlfs_ns_submit(ns, &io, 1)), "there are 8");
    io = make(DLFS_NS_READ, 0, 100, LEN);
    FAILS(DLFS_E_INVALID, dlfs_ns_submit(ns, &io, 1), "offset 100");
    io = make(DLFS_NS_READ, 0, 0, LEN + 4096);
    FAILS(DLFS_E_INVALID, dlfs_ns_submit(ns, &io, 1), "buffers 8192");
    FAILS(DLFS_E_INVALID, dlfs_ns_submit(ns, NULL, 1), "ios is NULL");
    FAILS(DLFS_E_INVALID, dlfs_ns_poll(ns, NULL, 1, 0), "done is NULL");
    two[0] = two[1];
    CHECK(dlfs_ns_submit(ns, two, 2) == 1); // the same buffer twice: the first is submitted
    FAILS(DLFS_E_INVALID, dlfs_ns_submit(ns, two, 1), "outstanding already");
    CHECK(dlfs_ns_poll(ns, &done, 1, 10000) == 1 && done.status == DLFS_OK && done.buffer == 0);
    uint64_t past[] = {TOTAL, UINT64_MAX - 4095};
    for (int i = 0; i < 2; i++) { // only the queue pair knows the end of the namespace
        io = make(DLFS_NS_READ, 0, past[i], 4096);
        CHECK(dlfs_ns_submit(ns, &io, 1) == 1 && dlfs_ns_poll(ns, &done, 1, 10000) == 1);
        FAILS(DLFS_E_INVALID, done.status, "past the end");
    }
    CHECK(dlfs_ns_buffer(ns, BUFFERS) == NULL && dlfs_ns_buffer(NULL, 0) == NULL);
    FAILS(DLFS_E_INVALID, dlfs_ns_info(ns, NULL), "dlfs_ns_info_t is NULL");
    dlfs_ns *other;
    FAILS(DLFS_E_INVALID, dlfs_ns_open(address, NULL, 2, 0, 0, &other), "writable is 2");
    FAILS(DLFS_E_INVALID, dlfs_ns_open(address, NULL, 0, 1, 100, &other), "buffer_len is 100");
    FAILS(DLFS_E_INVALID, dlfs_ns_open(address, NULL, 0, 65535, LEN, &other), "at a time");
    FAILS(DLFS_E_INVALID, dlfs_ns_open("a,b", NULL, 0, 1, LEN, &other), "not one");
    FAILS(DLFS_E_NOT_FOUND, dlfs_ns_open("/no/such", NULL, 0, 1, 512, &other), "/no/such");
    CHECK(other == NULL);
}

static void read_only(const char *address) {
    dlfs_ns *ns;
    dlfs_ns_info_t info = {.size = sizeof info};
    CHECK(dlfs_ns_open(address, NULL, 0, 0, 0, &ns) == 0);
    CHECK(dlfs_ns_info(ns, &info) == 0 && info.len == TOTAL && dlfs_ns_buffer(ns, 0) == NULL);
    CHECK(dlfs_ns_close(ns) == 0);
    CHECK(dlfs_ns_open(address, NULL, 0, 1, 4096, &ns) == 0);
    dlfs_ns_io io = make(DLFS_NS_WRITE, 0, 0, 4096);
    dlfs_ns_done done;
    CHECK(dlfs_ns_submit(ns, &io, 1) == 1 && dlfs_ns_poll(ns, &done, 1, 10000) == 1);
    CHECK(done.status != DLFS_OK);
    CHECK(dlfs_ns_close(ns) == 0);
    FAILS(DLFS_E_HANDLE, dlfs_ns_close(ns), "closed before");
    FAILS(DLFS_E_HANDLE, dlfs_ns_submit(ns, &io, 1), "not the handle of an open namespace");
}

static void in_a_child(dlfs_ns *ns, const char *address) {
    pid_t child = fork();
    if (child == 0) {
        dlfs_ns_io io = make(DLFS_NS_READ, 0, 0, 4096);
        FAILS(DLFS_E_INVALID, dlfs_ns_submit(ns, &io, 1), "before a fork");
        CHECK(dlfs_ns_close(ns) == 0);
        CHECK(dlfs_ns_open(address, NULL, 0, BUFFERS, LEN, &ns) == 0);
        do_all(ns, &io, 1);
        CHECK(dlfs_ns_close(ns) == 0);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dlfs_ns *ns;
    dlfs_ns_info_t info = {.size = sizeof info};
    CHECK(dlfs_ns_open(argv[1], NULL, 1, BUFFERS, LEN, &ns) == 0);
    CHECK(dlfs_ns_info(ns, &info) == 0 && info.len == TOTAL && !info.read_only);
    CHECK(info.block_len >= 512 && info.max_transfer >= LEN && info.queue_depth >= BUFFERS);
    write_and_read(ns);
    used_wrong(ns, argv[1]);
    in_a_child(ns, argv[1]);
    write_and_read(ns); // the parent continues undisturbed
    CHECK(dlfs_ns_close(ns) == 0);
    read_only(argv[1]);
    return 0;
}
