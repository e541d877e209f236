// An external engine of fio over libdlfs: fio itself drives a dlfs queue pair.
//
// fio's buffers are the queue pair's own, so that no byte is copied between the two; a buffer's
// number is its index among them. fio stages I/Os one by one (queue) and submits them together
// (commit). fio looks for the struct at the end; its version must be that of the fio that loads it.

#include "fio.h"
#include "optgroup.h"

#include <dlfs.h>

#if FIO_IOOPS_VERSION < 31
#error "fio 3.33 or newer is needed"
#endif

// Another version lets a test check that fio refuses it.
#ifndef DLFS_FIO_ABI
#define DLFS_FIO_ABI FIO_IOOPS_VERSION
#endif

struct ioengine_ops ioengine;

struct options {
    void *pad; // fio reserves offset 0 for options without a value
    char *hostnqn;
    unsigned int hdr_digest, data_digest, queue_size, ctrl_loss_tmo, io_timeout, busy_poll;
};

struct state {
    dlfs_ns *ns;
    char *memory;
    unsigned long long buffer_len;
    // The owner of each buffer while its I/O is outstanding.
    struct io_u **owners;
    dlfs_ns_io *staged;
    unsigned int num_staged;
    dlfs_ns_done *done;
    int told;
};

static int failed(struct thread_data *td, const char *doing) {
    log_err("dlfs: %s: %s: %s\n", td->files[0]->file_name, doing, dlfs_last_error());
    return 1;
}

// The address in dlfs's form; SPDK's plug-in has `=` where SPDK itself and dlfs have `:`.
static void address_of(struct thread_data *td, char *text, size_t len) {
    snprintf(text, len, "%s", td->files[0]->file_name);
    if (!strncmp(text, "trtype=", 7))
        for (char *at = text; (at = strchr(at, '='));) *at = ':';
}

static int open_ns(struct thread_data *td, unsigned int num_buffers, dlfs_ns **ns) {
    const struct options *given = td->eo;
    unsigned int queue_size = given->queue_size;
    // One entry more than outstanding I/Os, and at least dlfs's default.
    if (!queue_size && td->o.iodepth > 127) queue_size = td->o.iodepth + 1;
    dlfs_mount_options options = {
        .size = sizeof options,
        .hostnqn = given->hostnqn,
        .hdr_digest = given->hdr_digest,
        .data_digest = given->data_digest,
        .direct = td->o.odirect ? DLFS_DIRECT_ON : DLFS_DIRECT_AUTO,
        .queue_size = queue_size,
        .nr_io_queues = 1,
        .ctrl_loss_tmo_ms = given->ctrl_loss_tmo * 1000,
        .io_timeout_ms = given->io_timeout * 1000,
        .busy_poll = given->busy_poll,
    };
    char address[4096];
    address_of(td, address, sizeof address);
    return dlfs_ns_open(address, &options, td_write(td) ? 1 : 0, num_buffers, td_max_bs(td), ns);
}

// The length of the namespace, determined before the jobs are forked. Each job then opens its own
// handle.
static int setup(struct thread_data *td) {
    if (td->io_ops != &ioengine) {
        log_err("dlfs: this engine was built for a fio of another configuration\n");
        return 1;
    }
    if (td->files_index != 1) {
        log_err("dlfs: a job has one namespace in filename=, not %u (a colon is written \\:)\n",
                td->files_index);
        return 1;
    }
    if (td->o.mem_align) {
        log_err("dlfs: buffers are aligned to 4,096 bytes; iomem_align cannot be had\n");
        return 1;
    }
    dlfs_ns *ns;
    dlfs_ns_info_t info = {.size = sizeof info};
    if (open_ns(td, 0, &ns)) return failed(td, "cannot open it");
    int wrong = dlfs_ns_info(ns, &info);
    dlfs_ns_close(ns);
    if (wrong) return failed(td, "cannot look at it");
    struct fio_file *file = td->files[0];
    file->filetype = FIO_TYPE_BLOCK;
    file->real_file_size = info.len;
    fio_file_set_size_known(file);
    return 0;
}

static int init(struct thread_data *td) {
    struct state *state = calloc(1, sizeof *state);
    if (!state) return ENOMEM;
    td->io_ops_data = state;
    unsigned int depth = td->o.iodepth;
    state->owners = calloc(depth, sizeof *state->owners);
    state->staged = calloc(depth, sizeof *state->staged);
    state->done = calloc(depth, sizeof *state->done);
    if (!state->owners || !state->staged || !state->done) return ENOMEM;
    state->buffer_len = td_max_bs(td);
    if (open_ns(td, depth, &state->ns)) return failed(td, "cannot make a queue pair");
    state->memory = dlfs_ns_buffer(state->ns, 0);
    return state->memory ? 0 : failed(td, "cannot make buffers");
}

static void cleanup(struct thread_data *td) {
    struct state *state = td->io_ops_data;
    if (!state) return;
    if (state->ns) dlfs_ns_close(state->ns);
    free(state->owners);
    free(state->staged);
    free(state->done);
    free(state);
    td->io_ops_data = NULL;
}

// fio takes its buffers from here, in order: I/O unit n has the nth.
static int iomem_alloc(struct thread_data *td, size_t total) {
    struct state *state = td->io_ops_data;
    (void)total; // includes room for alignment, which these do not need
    td->orig_buffer = state->memory;
    return 0;
}

static void iomem_free(struct thread_data *td) { td->orig_buffer = NULL; }

static int nothing(struct thread_data *td, struct fio_file *file) { return 0; }

static enum fio_q_status refuse(struct io_u *io_u, int error) {
    io_u->error = error;
    return FIO_Q_COMPLETED;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u) {
    struct state *state = td->io_ops_data;
    fio_ro_check(td, io_u);
    dlfs_ns_io io = {.op = DLFS_NS_FLUSH};
    if (io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE) {
        if (io_u->xfer_buf != io_u->buf) return refuse(io_u, EINVAL); // an I/O is never partial
        io.op = io_u->ddir == DDIR_READ ? DLFS_NS_READ : DLFS_NS_WRITE;
        io.offset = io_u->offset;
        io.len = io_u->xfer_buflen;
    } else if (!ddir_sync(io_u->ddir)) {
        return refuse(io_u, EOPNOTSUPP);
    }
    if (state->num_staged == td->o.iodepth) return FIO_Q_BUSY;
    io.buffer = ((char *)io_u->buf - state->memory) / state->buffer_len;
    state->owners[io.buffer] = io_u;
    state->staged[state->num_staged++] = io;
    return FIO_Q_QUEUED;
}

// Submits as many of the staged I/Os as there is room for.
static int submit(struct thread_data *td) {
    struct state *state = td->io_ops_data;
    int64_t took = dlfs_ns_submit(state->ns, state->staged, state->num_staged);
    if (took < 0) return failed(td, "submit"), -EINVAL;
    if (fio_fill_issue_time(td)) {
        struct timespec now;
        fio_gettime(&now, NULL);
        for (int64_t i = 0; i < took; i++) {
            struct io_u *io_u = state->owners[state->staged[i].buffer];
            io_u->issue_time = now;
            io_u_queued(td, io_u);
        }
    }
    state->num_staged -= took;
    memmove(state->staged, state->staged + took, state->num_staged * sizeof *state->staged);
    return 0;
}

static int commit(struct thread_data *td) {
    struct state *state = td->io_ops_data;
    if (!state->num_staged) return 0;
    unsigned int before = state->num_staged;
    int error = submit(td);
    if (error) return error;
    io_u_mark_submit(td, before - state->num_staged);
    return 0;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max,
                     const struct timespec *timeout) {
    struct state *state = td->io_ops_data;
    unsigned int count = 0;
    uint32_t wait_ms = timeout ? timeout->tv_sec * 1000 + timeout->tv_nsec / 1000000 : 1000;
    do {
        if (state->num_staged && submit(td)) return -EINVAL; // I/Os without room
        int64_t came = dlfs_ns_poll(state->ns, state->done + count, max - count, min ? wait_ms : 0);
        if (came < 0) return failed(td, "poll"), -EIO;
        count += came;
    } while (count < min && !timeout); // every I/O completes eventually, if only with an error
    return count;
}

static int errno_of(int status) {
    switch (status) {
    case DLFS_E_CORRUPT: return EILSEQ;
    case DLFS_E_DISCONNECTED: return ENOTCONN;
    case DLFS_E_INVALID: return EINVAL;
    case DLFS_E_NO_SPACE: return ENOSPC;
    case DLFS_E_TIMED_OUT: return ETIMEDOUT;
    default: return EIO;
    }
}

static struct io_u *event(struct thread_data *td, int number) {
    struct state *state = td->io_ops_data;
    const dlfs_ns_done *done = &state->done[number];
    struct io_u *io_u = state->owners[done->buffer];
    io_u->resid = 0;
    io_u->error = 0;
    if (done->status) {
        io_u->error = errno_of(done->status);
        if (!state->told++) failed(td, "an I/O failed");
    }
    return io_u;
}

#define OPTION(NAME, TYPE, HELP)                                                                \
    {                                                                                           \
        .name = #NAME, .lname = #NAME, .type = TYPE, .off1 = offsetof(struct options, NAME),    \
        .help = HELP, .category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_INVALID                  \
    }

static struct fio_option options[] = {
    OPTION(hostnqn, FIO_OPT_STR_STORE, "The host NQN to present"),
    OPTION(hdr_digest, FIO_OPT_BOOL, "Protect PDU headers with CRC32C"),
    OPTION(data_digest, FIO_OPT_BOOL, "Protect PDU data with CRC32C"),
    OPTION(queue_size, FIO_OPT_INT, "Entries of the I/O queue; iodepth must be below it"),
    OPTION(ctrl_loss_tmo, FIO_OPT_INT, "Seconds that a lost target is waited for; 600"),
    OPTION(io_timeout, FIO_OPT_INT, "Seconds that an I/O may go without progress; 5"),
    OPTION(busy_poll, FIO_OPT_BOOL, "Burn a core rather than sleep while waiting"),
    {.name = NULL},
};

struct ioengine_ops ioengine = {
    .name = "dlfs",
    .version = DLFS_FIO_ABI,
    .flags = FIO_RAWIO | FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_ASYNCIO_SETS_ISSUE_TIME,
    .setup = setup,
    .init = init,
    .cleanup = cleanup,
    .queue = queue,
    .commit = commit,
    .getevents = getevents,
    .event = event,
    .open_file = nothing,
    .close_file = nothing,
    .invalidate = nothing,
    .iomem_alloc = iomem_alloc,
    .iomem_free = iomem_free,
    .options = options,
    .option_struct_size = sizeof(struct options),
};
