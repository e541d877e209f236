// A fork in every state that a program can be in.  forks ADDRESS
//
// Each child uses and closes its parent's handles; it may end in any way. The parent continues
// undisturbed.

#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static const char *address;
static dlfs_fs *fs;
static dlfs_file *fresh, *begun;
static dlfs_seq *idle, *prepared, *reading;
static dlfs_batch held, of_ids;
static dlfs_ns *ns;

static dlfs_seq *sequence(void) {
    dlfs_sequence_options options = {
        .size = sizeof options, .batch_size = 7, .seed = 2, .window_bytes = 1 << 20};
    dlfs_seq *seq;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    return seq;
}

// Reads by id, and the next batch of `seq`: returns the first id of that.
static uint64_t read_on(dlfs_seq *seq) {
    uint64_t ids[] = {170, 3};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 2};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0);
    right_batch(&batch);
    CHECK(dlfs_release(&batch) == 0 && dlfs_bread(seq, &batch) == 0);
    right_batch(&batch);
    uint64_t first = batch.items[0].id;
    CHECK(dlfs_release(&batch) == 0);
    return first;
}

// Everything delivered before the fork is valid in the child, and can be released.
static void use_and_close_all(int child) {
    uint8_t bytes[8000];
    char name[DLFS_NAME_MAX];
    right_batch(&held);
    right_batch(&of_ids);
    CHECK(dlfs_read(fresh, bytes, 8000) == (int64_t)len_of(9));
    CHECK(dlfs_read(begun, bytes, 8000) == (int64_t)len_of(11) - 5);
    CHECK(bytes[0] == (uint8_t)(11 * 31 + 35));
    CHECK(dlfs_name(fs, 61, name, sizeof name, NULL) == 0 && !strcmp(name, "class1/0001"));
    read_on(idle);
    read_on(prepared);
    read_on(reading);
    dlfs_ns_info_t info = {.size = sizeof info};
    CHECK(dlfs_ns_info(ns, &info) == 0 && info.block_len >= 512);
    ((volatile uint8_t *)dlfs_ns_buffer(ns, 0))[0] = 1; // the child's own copy
    dlfs_ns_done done;
    if (child) FAILS(DLFS_E_INVALID, dlfs_ns_poll(ns, &done, 1, 100), "before a fork");
    else CHECK(dlfs_ns_poll(ns, &done, 1, 10000) == 1 && done.status == DLFS_OK);
    CHECK(dlfs_release(&held) == 0 && dlfs_release(&of_ids) == 0);
    CHECK(dlfs_close(fresh) == 0 && dlfs_close(begun) == 0);
    CHECK(dlfs_sequence_close(idle) == 0 && dlfs_sequence_close(prepared) == 0);
    CHECK(dlfs_sequence_close(reading) == 0 && dlfs_ns_close(ns) == 0 && dlfs_unmount(fs) == 0);
    CHECK(dlfs_mount(address, NULL, &fs) == 0);
    reading = sequence();
    read_on(reading);
}

static void wait_for(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (status != 0) fprintf(stderr, "a child ended with status %x\n", status), exit(1);
}

enum end { LEAVE, END, AGAIN };

// A child that uses everything and exits at once, like a program, or after children of its own.
static void fork_once(enum end end) {
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        if (end == AGAIN) {
            read_on(reading);
            fork_once(END);
            fork_once(LEAVE);
            read_on(reading);
        }
        use_and_close_all(1);
        if (end == END) exit(0);
        _exit(0);
    }
    wait_for(pid);
}

static void fork_in_a_callback(void) {
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        read_on(reading);
        _exit(0);
    }
    wait_for(pid);
}

static void arrived(void *user, const dlfs_item *item) {
    CHECK(right(item));
    if (item->index == 1) fork_in_a_callback();
    ++*(int *)user;
}

static int visit(void *user, const char *name, uint64_t id) {
    (void)name;
    if (id == 60) fork_in_a_callback();
    ++*(int *)user;
    return 0;
}

static int should_stop(void *user) {
    if (++*(int *)user == 1) fork_in_a_callback();
    return 0;
}

static void fork_in_callbacks(void) {
    int seen = 0, asked = 0;
    uint64_t ids[] = {5, 6, 7};
    dlfs_read_request request = {
        .size = sizeof request, .ids = ids, .count = 3, .arrived = arrived, .user = &seen};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0 && seen == 3);
    right_batch(&batch);
    CHECK(dlfs_release(&batch) == 0);
    CHECK(dlfs_list(fs, "", 1, visit, &seen) == 0 && seen == 3 + NUM);
    dlfs_mount_options options = {.size = sizeof options, .should_stop = should_stop, .user = &asked};
    dlfs_fs *other;
    CHECK(dlfs_mount(address, &options, &other) == 0 && dlfs_unmount(other) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    address = argv[1];
    held.size = of_ids.size = sizeof held;
    // Before anything else: the child mounts by itself.
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(dlfs_mount(address, NULL, &fs) == 0);
        reading = sequence();
        read_on(reading);
        exit(0);
    }
    wait_for(pid);
    CHECK(dlfs_mount(address, NULL, &fs) == 0);
    CHECK(dlfs_open_id(fs, 9, &fresh) == 0 && dlfs_open_id(fs, 11, &begun) == 0);
    idle = sequence(), prepared = sequence(), reading = sequence();
    CHECK(dlfs_sequence_prepare(prepared) == 0);
    uint8_t bytes[5];
    uint64_t ids[] = {1, 2};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 2};
    CHECK(dlfs_read(begun, bytes, 5) == 5 && dlfs_bread(reading, &held) == 0);
    CHECK(dlfs_read_batch(fs, &request, &of_ids) == 0);
    CHECK(dlfs_ns_open(address, NULL, 0, 1, 4096, &ns) == 0);
    dlfs_ns_io io = {.op = DLFS_NS_READ, .len = 4096};
    CHECK(dlfs_ns_submit(ns, &io, 1) == 1); // outstanding across all forks
    fork_once(LEAVE);
    fork_once(END);
    fork_once(AGAIN);
    fork_in_callbacks();
    // The parent's sequence continues after its own last batch, undisturbed.
    dlfs_seq *other = sequence();
    read_on(other);
    for (int i = 0; i < 30; i++) CHECK(read_on(reading) == read_on(other));
    CHECK(dlfs_sequence_close(other) == 0);
    use_and_close_all(0);
    CHECK(dlfs_sequence_close(reading) == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
