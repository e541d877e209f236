// dlfs: a user-level NVMe-oF file system for deep-learning training. The C interface.
//
// Made by cbindgen from tools/capi/src; do not edit.
//
// What there is, in the order of a program:
//
//   dlfs_mount, dlfs_unmount                     a data set, by its address
//   dlfs_get_info, dlfs_stat, dlfs_name, dlfs_list, ...   what is in it
//   dlfs_open, dlfs_read, dlfs_close             one sample, as one reads a file
//   dlfs_read_batch, dlfs_release                many samples in one call, by id or name
//   dlfs_sequence, dlfs_bread, dlfs_release      a trainer's loop: shuffled batches, epoch after epoch,
//                                                read ahead while the last one is worked on
//   dlfs_state_save, dlfs_state_load             stop such a loop, and go on: every sample once
//   dlfs_stats, dlfs_sequence_stats              what was read, in numbers
//   dlfs_last_error, dlfs_strerror               why a call has failed
//   dlfs_log                                     what the library warns of
//   dlfs_ns_open, _submit, _poll, _close         blocks without a data set, for tools that measure
//
// What the words mean: a data set (`dlfs import` makes one) is a number of *samples*, each a *record* of
// bytes with a checksum, an *id* that counts from 0 in the order of its source, a name, and perhaps a
// *label*; a label is the number of a *class* where classes have names. A record may be divided into
// *fields*. An *image* is a data set as it lies on its *namespaces* (files, disks, NVMe/TCP targets);
// adding and deleting samples makes its next *generation*. Of the *ranks* of a job, `world_size` many,
// each is given its share of an *epoch*, which goes through all samples in a new order. A *window* is the
// memory for what is read ahead, a *tier* a faster place that keeps what was read.
//
// A first program: examples/epoch.c. How to build one: cc program.c $(pkg-config --cflags --libs dlfs)
//
// Errors: a function returns DLFS_OK (0), a positive number where it says so, or the negative number of
// an error, whose text dlfs_last_error then has for the same thread. Any function may return
// DLFS_E_HANDLE, DLFS_E_SIZE, DLFS_E_INVALID and DLFS_E_NO_MEMORY; a function that reads, any number.
// What is to be filled is left alone, or emptied, when a call fails; `needed` is filled all the same.
//
// Handles are checked: NULL, a closed handle, one that is closed twice and one that never was are
// DLFS_E_HANDLE. A struct begins with its size, which is checked too; zero in any other field of an
// option struct means the default. What the library cannot check is for the caller: a pointer that is
// not NULL points to what its type says, strings end with NUL, and while a call runs nobody changes what
// it reads or looks at what it fills. Names of samples, classes and files are bytes, in whatever encoding;
// NQNs, tiers and further `paths` are UTF-8.
//
// Threads: every function may be called from any thread at any time, also with the same handle; where
// threads then share something, the function says what. A text of dlfs_last_error belongs to its thread.
//
// Functions of the caller's (should_stop, visit, arrived) run on the thread that made the call. They may
// call the library. They must return: no longjmp, and no exception of C++. For dlfs_log it is otherwise.
//
// Forks: a child may use every handle of its parent, but for blocks. It makes connections of its own when
// it first needs one, and the parent goes on undisturbed. Batches that were handed out before belong to
// both, and each releases its own. A child that was made in a function of the caller's ends in it.
//
// Signals: no function is safe in a signal handler. A call that waits asks `should_stop` at least every
// 100 ms, which may look at what a handler has set. Handlers may run on the library's threads, which
// have the signal mask of the thread that called.
//
// The library stays loaded when it is closed with dlclose.

#ifndef DLFS_H
#define DLFS_H

#include <stddef.h>
#include <stdint.h>

// All went well.
#define DLFS_OK 0

// There is nothing more: the last batch has been handed out before. No error.
#define DLFS_END 1

// An argument makes no sense, or arguments contradict each other; also a state of another data set.
#define DLFS_E_INVALID -1

// The sample, file, image or target does not exist.
#define DLFS_E_NOT_FOUND -2

// Bytes on media or wire are damaged, also after reading them again.
#define DLFS_E_CORRUPT -3

// A newer format, or a feature that this build does not know.
#define DLFS_E_UNSUPPORTED -4

// The connection is gone and did not come back within its time.
#define DLFS_E_DISCONNECTED -5

// The call's deadline passed.
#define DLFS_E_TIMED_OUT -6

// The target or the operating system said no.
#define DLFS_E_REFUSED -7

// Somebody else is at work here.
#define DLFS_E_BUSY -8

// The image has moved on to another generation: mount it again.
#define DLFS_E_STALE -9

// The medium is full.
#define DLFS_E_NO_SPACE -10

// Memory does not suffice.
#define DLFS_E_NO_MEMORY -11

// The call was ended by its `should_stop`, or because its handle was closed.
#define DLFS_E_INTERRUPTED -12

// An operating system error of no other kind.
#define DLFS_E_IO -13

// The handle is NULL, closed, or none at all.
#define DLFS_E_HANDLE -14

// The `size` of a struct is none that this version knows.
#define DLFS_E_SIZE -15

// The memory given is too small; nothing was done.
#define DLFS_E_TOO_SMALL -16

// A mistake of the library itself.
#define DLFS_E_INTERNAL -17

// A full shuffle of all samples: the default.
#define DLFS_ORDER_GLOBAL 0

// Whole chunks at a time, shuffled in groups: the fastest shuffle.
#define DLFS_ORDER_GROUPED 1

// No shuffle: by id.
#define DLFS_ORDER_SEQUENTIAL 2

// No shuffle: as samples lie on the media, the fastest of all.
#define DLFS_ORDER_BY_SLOT 3

// Each rank shuffles a fixed share of its own.
#define DLFS_ORDER_LOCAL 4

// As DLFS_ORDER_LOCAL, and the part `exchange` of every share moves to other ranks each epoch.
#define DLFS_ORDER_PARTIAL 5

// Of each global batch a rank takes every W-th sample, for W ranks. The default.
#define DLFS_SHARD_STRIDED 0

// Grouped order: whole chunks go to one rank, as far as equal shares allow. Each global batch has the same
// samples, and each rank as many, as with DLFS_SHARD_STRIDED; a run that goes on from a state with another
// world size reads fewer chunks twice.
#define DLFS_SHARD_ALIGNED 1

// Batches are brought in as fits: by chunks in grouped order and by slot, by samples in the others, and
// in grouped order too where samples are large and the page cache holds their chunks. The default.
#define DLFS_BATCHING_AUTO 0

// Whole chunks are read, and held until their samples are out; in grouped order and by slot only.
#define DLFS_BATCHING_CHUNK 1

// Each sample is read by itself, just before it is wanted, many at a time.
#define DLFS_BATCHING_SAMPLE 2

// One sample is read after the other.
#define DLFS_BATCHING_NONE 3

// Every sample of an epoch is read; some ranks have one more than others. The default.
#define DLFS_TAIL_KEEP 0

// The end of an epoch that does not give each rank equally many is left out.
#define DLFS_TAIL_DROP 1

// First samples of the epoch are repeated so that each rank has equally many.
#define DLFS_TAIL_PAD 2

// The call fails when one of its samples does. The default.
#define DLFS_ON_ERROR_RAISE 0

// Samples that fail are left out.
#define DLFS_ON_ERROR_SKIP 1

// Samples that fail keep their place, with their status and without bytes; dlfs_read_batch only.
#define DLFS_ON_ERROR_KEEP 2

// A file is read past the page cache when it is a block device or larger than half of the memory.
#define DLFS_DIRECT_AUTO 0

// Always.
#define DLFS_DIRECT_ON 1

// Never.
#define DLFS_DIRECT_OFF 2

// Tiers keep what is read first, while there is room. The default.
#define DLFS_POLICY_FIRST_TOUCH 0

// Tiers keep what each sequence will read most, by the plan of all its epochs.
#define DLFS_POLICY_CLAIRVOYANT 1

// Tiers keep nothing.
#define DLFS_POLICY_NONE 2

// Bytes that the longest name takes with its NUL.
#define DLFS_NAME_MAX 4097

// The id of a folder in dlfs_list.
#define DLFS_FOLDER UINT64_MAX

// The label of a sample that has none, in every function and struct. Python has None for it, and
// dlfs.NO_LABEL, the same number, in an array of labels.
#define DLFS_NO_LABEL INT64_MIN

// Nothing was read yet, so there is no memory.
#define DLFS_PAGES_NONE 0

// Pages of 4 KiB.
#define DLFS_PAGES_BASE 1

// Huge pages that the kernel makes when it can.
#define DLFS_PAGES_TRANSPARENT 2

// Huge pages that the administrator set aside (`vm.nr_hugepages`).
#define DLFS_PAGES_HUGE 3

// Memory of SPDK's.
#define DLFS_PAGES_DRIVER 4

// Something went wrong for good.
#define DLFS_LOG_ERROR 1

// Something went wrong and was mended, or costs more than it need.
#define DLFS_LOG_WARNING 2

// Worth knowing.
#define DLFS_LOG_INFO 3

// Fill the buffer from the namespace.
#define DLFS_NS_READ 0

// Write the buffer to the namespace.
#define DLFS_NS_WRITE 1

// Make all completed writes durable; `offset` and `len` are 0, `buffer` only names the I/O.
#define DLFS_NS_FLUSH 2

// An open sample. Never looked into: a handle.
typedef struct dlfs_file dlfs_file;

// A mounted data set. Never looked into: a handle.
typedef struct dlfs_fs dlfs_fs;

// An open namespace with its queue pair. Never looked into: a handle.
typedef struct dlfs_ns dlfs_ns;

// A sequence of batches. Never looked into: a handle.
typedef struct dlfs_seq dlfs_seq;

// Asked at least every 100 ms by a call that waits, on the thread that made the call; a value other
// than zero ends it with DLFS_E_INTERRUPTED. A call that need not wait may not ask.
typedef int (*dlfs_should_stop)(void *user);

// How a data set is mounted. Set `size` to `sizeof(dlfs_mount_options)`, and everything that is not
// wanted otherwise to zero. Copied by the call.
typedef struct {
    // sizeof(dlfs_mount_options).
    size_t size;
    // Further addresses of the same namespaces, used while the first is down; `num_paths` strings.
    const char *const *paths;
    // How many there are.
    size_t num_paths;
    // A directory saved by `dlfs snapshot save`, used instead of the image's own; or NULL.
    const char *snapshot;
    // The host NQN to present; NULL: that of /etc/nvme/hostnqn, else one of this machine's own.
    const char *hostnqn;
    // 1: protect PDU headers with CRC32C.
    uint32_t hdr_digest;
    // 1: protect PDU data with CRC32C.
    uint32_t data_digest;
    // Whether image files and block devices are read past the page cache: DLFS_DIRECT_AUTO, _ON or _OFF.
    uint32_t direct;
    // I/O queues to ask for; default 16.
    uint32_t nr_io_queues;
    // Entries of an I/O queue; default 128.
    uint32_t queue_size;
    // Keep-alive timeout in ms; default 15,000; UINT32_MAX switches it off.
    uint32_t keep_alive_tmo_ms;
    // How long reconnecting goes on, in ms; default 600,000. After that the target is given up for good:
    // DLFS_E_DISCONNECTED, until the data set is mounted again.
    uint32_t ctrl_loss_tmo_ms;
    // How long a queue may go without progress, in ms; default 5,000.
    uint32_t io_timeout_ms;
    // How long connecting may take in all, in ms; default 10,000.
    uint32_t connect_timeout_ms;
    // The longest that one read may take, in ms; default 60,000.
    uint32_t call_timeout_ms;
    // Queue pairs a namespace for each reading thread; default 1.
    uint32_t queue_pairs;
    // 1: spin instead of sleeping while a call waits.
    uint32_t busy_poll;
    // Memory for reads by id or name of one thread at a time, in bytes; default 64 MiB.
    uint64_t window_bytes;
    // Asked while a call on this mount waits; or NULL. Any thread that calls may ask it.
    dlfs_should_stop should_stop;
    // Passed to `should_stop`.
    void *user;
    // Where samples are kept after the first read, fastest first, `num_tiers` strings: "ram:4G", or
    // "file:/fast/cache:20G" for a folder, or an empty file or block device (":overwrite" behind it: any).
    const char *const *tiers;
    // How many there are.
    size_t num_tiers;
    // What tiers keep: DLFS_POLICY_...
    uint32_t tier_policy;
    // 1: stop keeping for good when a sample first fits nowhere.
    uint32_t tier_stop;
    // A file that names the tiers, as `dlfs probe` writes it, in place of `tiers`; or NULL. Its policy
    // counts where `tier_policy` is the default.
    const char *tiers_file;
    // The most that copying into tiers takes from the data set for itself, in bytes a second; 0: no limit,
    // or the one of `tiers_file`.
    uint64_t tier_bandwidth;
    // Name of the field that stands for the sample, where samples have several: what `data` of a dlfs_item
    // and a file opened by dlfs_open are; or NULL.
    const char *field;
    // The host's key for DH-HMAC-CHAP: the path of a key file with mode 0600, or the key itself; NULL: none.
    const char *dhchap_secret;
    // The subsystem's key, by which the target must prove itself, too; a file or the key; NULL: it need
    // not.
    const char *dhchap_ctrl_secret;
} dlfs_mount_options;

// What a data set is. Set `size` to `sizeof(dlfs_info)` before it is filled.
typedef struct {
    // sizeof(dlfs_info).
    size_t size;
    // Samples there are.
    uint64_t num_samples;
    // Ids are below this; more than there are samples where some were deleted.
    uint64_t end_of_ids;
    // The generation that was mounted.
    uint64_t generation;
    // The image's UUID.
    uint8_t uuid[16];
    // Names of classes there are; 0 where labels are numbers.
    uint64_t num_classes;
    // Fields of a sample; 1 where samples are not divided.
    uint64_t num_fields;
    // 1 when samples have labels, else 0.
    uint32_t has_labels;
    // Zero.
    uint32_t reserved;
} dlfs_info;

// What a sample is. Set `size` to `sizeof(dlfs_sample)` before it is filled.
typedef struct {
    // sizeof(dlfs_sample).
    size_t size;
    // Which sample it is.
    uint64_t id;
    // Its length in bytes; of all its fields together.
    uint64_t len;
    // Its label, or DLFS_NO_LABEL.
    int64_t label;
} dlfs_sample;

// Sees one entry of dlfs_list: its name, which is good until it returns, and its id, or DLFS_FOLDER.
// A value other than zero ends the listing with DLFS_E_INTERRUPTED.
typedef int (*dlfs_visit)(void *user, const char *name, uint64_t id);

// One field of a sample.
typedef struct {
    // Its bytes; NULL when this sample does not have the field.
    const uint8_t *data;
    // How many they are.
    size_t len;
} dlfs_field;

// One sample of a batch.
typedef struct {
    // Which sample of the data set it is; UINT64_MAX when there is none of the name asked for.
    uint64_t id;
    // Its bytes, verified; NULL when `status` is not DLFS_OK. Where samples have several fields: the one
    // that dlfs_mount_options named, NULL when none was named or this sample does not have it.
    const uint8_t *data;
    // Their number.
    size_t len;
    // Its label, or DLFS_NO_LABEL.
    int64_t label;
    // Its fields, `num_fields` of them, as dlfs_field_name names them; one, `data`, where samples are not
    // divided.
    const dlfs_field *fields;
    // How many fields there are.
    size_t num_fields;
    // Its position in what was asked for; in a sequence, in the batch.
    size_t index;
    // DLFS_OK, or why it could not be read. In a batch of a sequence always DLFS_OK, but for a record
    // that arrived as it was written and whose division into fields makes no sense: DLFS_E_CORRUPT.
    int status;
} dlfs_item;

// Sees one sample as it arrives. The item, its fields and, unless the caller's memory was given, its
// bytes are good until it returns.
typedef void (*dlfs_arrived)(void *user, const dlfs_item *item);

// Which samples, and where to. Set `size` to `sizeof(dlfs_read_request)`, either `ids` or `names`, and
// everything that is not wanted to zero.
typedef struct {
    // sizeof(dlfs_read_request).
    size_t size;
    // Ids of the samples, `count` of them; or NULL.
    const uint64_t *ids;
    // Names of the samples, `count` strings; or NULL.
    const char *const *names;
    // How many samples.
    size_t count;
    // Memory of the caller's for their bytes, one sample behind the other in the order of asking, each
    // with all its fields one behind the other; it must stay until dlfs_release. NULL: the library's
    // memory, without this copy.
    void *out;
    // Bytes of it.
    size_t out_len;
    // DLFS_ON_ERROR_...
    uint32_t on_error;
    // Zero.
    uint32_t reserved;
    // Shown each sample as it arrives, while others are still under way; failed ones at the end. NULL:
    // nobody is.
    dlfs_arrived arrived;
    // Passed to `arrived`.
    void *user;
} dlfs_read_request;

// A batch, in memory of the caller's: set `size` to `sizeof(dlfs_batch)` before it is filled.
//
// What it points to stays until dlfs_release, whatever else is closed before. A batch that is filled
// again without that is lost: its memory comes back to nobody. A copy of the struct is the same batch.
typedef struct {
    // sizeof(dlfs_batch).
    size_t size;
    // The samples, `count` of them.
    const dlfs_item *items;
    // How many there are.
    size_t count;
    // Bytes of all samples, with all their fields.
    uint64_t len_bytes;
    // The epoch it belongs to; 0 for dlfs_read_batch.
    uint64_t epoch;
    // 1 when it is the last of its epoch on this rank, else 0.
    uint32_t ends_epoch;
    // Zero.
    uint32_t reserved;
    // What dlfs_release closes.
    void *handle;
} dlfs_batch;

// How a sequence goes. Set `size` to `sizeof(dlfs_sequence_options)`, `batch_size`, and everything
// that is not wanted otherwise to zero. Copied by the call.
typedef struct {
    // sizeof(dlfs_sequence_options).
    size_t size;
    // How samples are mixed: DLFS_ORDER_...
    uint32_t order;
    // Grouped: lanes that take turns; default 8 for each rank, or those of the state that is gone on from.
    // A multiple of the world size reads no chunk twice.
    uint32_t lanes;
    // Grouped: chunks of one lane that are shuffled together; default 4.
    uint32_t group;
    // Samples a batch on this rank; at least 1.
    uint32_t batch_size;
    // Partial: part of each share that moves to other ranks in an epoch, 0 to 1; default 0.1.
    double exchange;
    // The same seed gives the same epochs.
    uint64_t seed;
    // The first epoch.
    uint64_t epoch;
    // How many epochs; 0: without end.
    uint64_t epochs;
    // Which of the ranks this is, from 0.
    uint32_t rank;
    // How many ranks share each epoch; default 1.
    uint32_t world_size;
    // DLFS_TAIL_...
    uint32_t tail;
    // 1: leave out the last batch of an epoch when it has fewer than `batch_size` samples.
    uint32_t drop_short;
    // What becomes of a sample that cannot be read: DLFS_ON_ERROR_RAISE or _SKIP.
    uint32_t on_error;
    // 1: gather each batch in one piece, its samples one behind the other, at the cost of a copy.
    uint32_t one_piece;
    // The longest that the next batch may take, in ms; default 60,000.
    uint32_t call_timeout_ms;
    // Queue pairs a namespace; default 1.
    uint32_t queue_pairs;
    // The most memory for what is read ahead and not yet released, in bytes; default 256 MiB, and up to 1 GiB
    // where a grouped order of large chunks has more open at a time.
    uint64_t window_bytes;
    // Asked while dlfs_bread waits; or NULL. Any thread that calls may ask it.
    dlfs_should_stop should_stop;
    // Passed to `should_stop`.
    void *user;
    // 1: spin instead of sleeping in the thread that reads ahead.
    uint32_t busy_poll;
    // How samples are fetched: DLFS_BATCHING_...
    uint32_t batching;
    // How the ranks share each global batch: DLFS_SHARD_...
    uint32_t shard;
    // Zero.
    uint32_t reserved;
} dlfs_sequence_options;

// What was done so far, in this process. Set `size` to `sizeof(dlfs_stats_t)` before it is filled.
typedef struct {
    // sizeof(dlfs_stats_t).
    size_t size;
    // Read commands completed, repeated ones included.
    uint64_t commands;
    // Bytes that those commands asked for.
    uint64_t read_bytes;
    // Reads done a second time, after an error or a wrong checksum.
    uint64_t repeated;
    // Samples whose checksum was computed and right.
    uint64_t verified;
    // Batches handed out by a sequence.
    uint64_t batches;
    // Samples of those batches.
    uint64_t samples;
    // Bytes of those samples.
    uint64_t sample_bytes;
    // Samples left out because they could not be read.
    uint64_t skipped;
    // Bytes copied to bring batches into one piece.
    uint64_t copied_bytes;
    // Reads that did not fit the window and were done outside it.
    uint64_t over_window;
    // How long dlfs_bread had to wait, in ns.
    uint64_t stall_ns;
    // Reads that tiers have served, of dlfs_stats alone, as those below.
    uint64_t tier_hits;
    // Bytes of those.
    uint64_t tier_hit_bytes;
    // Bytes copied into tiers.
    uint64_t tier_copied_bytes;
    // Copies of an earlier run that were checked and are used again.
    uint64_t tier_restored;
    // Bytes that came from behind the tiers, for whoever asked and for copies.
    uint64_t origin_bytes;
    // Samples of a sequence that are in memory now; 0 where it does not read whole chunks.
    uint64_t resident;
    // In what pages the sequence's memory lies: DLFS_PAGES_...
    uint64_t pages;
} dlfs_stats_t;

// Sees one message of the library: its level, DLFS_LOG_..., and its text, which is good until it returns.
// It is called by whichever thread has something to say, also by those of the library and by several
// at a time. It must not call the library, and should not wait.
typedef void (*dlfs_on_log)(void *user, int level, const char *text);

// What a namespace is. Set `size` to `sizeof(dlfs_ns_info_t)` before it is filled.
typedef struct {
    // sizeof(dlfs_ns_info_t).
    size_t size;
    // Its length in bytes.
    uint64_t len;
    // Bytes of a logical block: offsets and lengths of I/Os are multiples of it.
    uint32_t block_len;
    // The most bytes that one I/O may carry.
    uint32_t max_transfer;
    // The most I/Os that may be on their way at a time.
    uint32_t queue_depth;
    // 1: writes are refused.
    uint32_t read_only;
} dlfs_ns_info_t;

// One I/O of dlfs_ns_submit.
typedef struct {
    // DLFS_NS_READ, _WRITE or _FLUSH.
    uint32_t op;
    // The buffer, from 0; the namespace's own until the I/O is done.
    uint32_t buffer;
    // First byte in the namespace: a multiple of `block_len`.
    uint64_t offset;
    // Bytes from the start of the buffer: a multiple of `block_len`, at most `buffer_len`.
    uint64_t len;
} dlfs_ns_io;

// An I/O that is done.
typedef struct {
    // Its buffer.
    uint32_t buffer;
    // DLFS_OK: every byte was moved. Otherwise an error, and a buffer that was read into says nothing.
    int status;
} dlfs_ns_done;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What went wrong in the last call of this thread that failed: what, where, why, and what to try.
//
// Never NULL; empty when no call has failed, and in a thread that runs its destructors. Valid until the
// next call of this thread that fails, and for this thread only.
const char *dlfs_last_error(void);

// What the number `code` means in general. Never NULL; valid for ever. Any thread.
const char *dlfs_strerror(int code);

// The version of the library, such as "0.1.0". Never NULL; valid for ever. Any thread.
const char *dlfs_version(void);

// Mounts the data set that lies on `addresses` and gives its handle in `*fs`, to be closed with
// dlfs_unmount. An address is a path, or `nvme-tcp://host:port/nqn?ns=1`; several are separated by commas,
// in any order. Without `?ns=` it means all namespaces of the subsystem that hold the data set.
//
// Reads the directory, not the names: those come with the first call that needs one. `options` may be
// NULL. Any thread; takes at most the connect timeout of the options, and the time to read.
//
// DLFS_E_NOT_FOUND: there is no such file, host, image or field. DLFS_E_REFUSED: the target, or the system,
// lets nobody in. DLFS_E_TIMED_OUT: nothing has answered. DLFS_E_BUSY: another process has a tier.
int dlfs_mount(const char *addresses,
               const dlfs_mount_options *options,
               dlfs_fs **fs);

// Closes the handle. Any thread.
//
// Files, sequences and batches that were made from it stay good, and are closed each by itself; the
// connections end with the last of them. A call that another thread is in ends as usual.
int dlfs_unmount(dlfs_fs *fs);

// Says what the data set is. No I/O. Any thread.
int dlfs_get_info(const dlfs_fs *fs, dlfs_info *info);

// Says what the sample called `name` is: the newest one where several are. No I/O but for reading the
// names once. Any thread.
int dlfs_stat(const dlfs_fs *fs,
              const char *name,
              dlfs_sample *sample);

// Says what the sample `id` is. No I/O. Any thread.
int dlfs_stat_id(const dlfs_fs *fs, uint64_t id, dlfs_sample *sample);

// Gives the id of the sample with `index` others before it, in the order of ids: with `index` from 0
// to one less than `num_samples` this goes through all. No I/O. Any thread.
int dlfs_id_at(const dlfs_fs *fs,
               uint64_t index,
               uint64_t *id);

// Gives the name of class `index`, as dlfs_name gives a sample's. No I/O. Any thread.
int dlfs_class_name(const dlfs_fs *fs, uint64_t index, char *name, size_t len, size_t *needed);

// Gives the name of field `index`, as dlfs_name gives a sample's; a record that is not divided is
// field 0, without a name. No I/O. Any thread.
int dlfs_field_name(const dlfs_fs *fs, uint64_t index, char *name, size_t len, size_t *needed);

// Gives the number of the field called `name`: where it stands in `fields` of a dlfs_item. No I/O. Any
// thread.
//
// DLFS_E_NOT_FOUND: samples have no such field; the text of the error says which they have.
int dlfs_field_number(const dlfs_fs *fs,
                      const char *name,
                      uint64_t *number);

// Gives the name of sample `id` and a NUL in `name`, which has `len` bytes; DLFS_NAME_MAX suffice.
//
// `needed` may be NULL; otherwise it says how many bytes the name takes, also with
// DLFS_E_TOO_SMALL, with which nothing is written to `name`. Reads the names once. Any thread.
int dlfs_name(const dlfs_fs *fs, uint64_t id, char *name, size_t len, size_t *needed);

// Shows `visit` what lies in `folder`, in the order of names; NULL and "" are the folder of all.
//
// `recursive` 0: what lies directly in it, subfolders as DLFS_FOLDER, by their names within it;
// 1: all samples in it and below, by their whole names. Reads the names once. Any thread.
int dlfs_list(const dlfs_fs *fs, const char *folder, int recursive, dlfs_visit visit, void *user);

// Opens the sample called `name` and gives its handle in `*file`. Reads nothing but, once, the names.
// Any thread.
//
// Where samples have several fields, the file is the one that dlfs_mount_options named; DLFS_E_INVALID:
// none was named. A sample that does not have it fails with DLFS_E_NOT_FOUND when it is read.
int dlfs_open(const dlfs_fs *fs,
              const char *name,
              dlfs_file **file);

// Opens the sample `id`, as dlfs_open does. No I/O. Any thread.
int dlfs_open_id(const dlfs_fs *fs, uint64_t id, dlfs_file **file);

// Reads up to `len` bytes from where the last dlfs_read of this handle ended, as read(2) does: returns
// how many, 0 at the end, or an error's number.
//
// The first read brings the whole sample, verified, and later ones copy from it. A call that fails
// does not move where the next goes on. Any thread; threads that read from one handle get different
// parts.
int64_t dlfs_read(const dlfs_file *file,
                  void *buf,
                  size_t len);

// Reads up to `len` bytes from byte `offset` on, as pread(2) does: returns how many, 0 at and past the
// end, or an error's number. Does not move where dlfs_read goes on. Any thread.
int64_t dlfs_pread(const dlfs_file *file,
                   void *buf,
                   size_t len,
                   uint64_t offset);

// Closes the handle and gives its memory back. Any thread.
int dlfs_close(dlfs_file *file);

// Reads the samples of `request` and gives them in `batch`, in the order of asking, to be released with
// dlfs_release. Any thread; threads read side by side.
//
// DLFS_E_TOO_SMALL: `out` is, and nothing was read. With DLFS_ON_ERROR_RAISE any sample that fails is
// the error of the call, otherwise each item has its status and the call succeeds.
int dlfs_read_batch(const dlfs_fs *fs,
                    const dlfs_read_request *request,
                    dlfs_batch *batch);

// Makes a sequence of batches along an order and gives its handle in `*seq`, to be closed with
// dlfs_sequence_close. Reading ahead begins with the first dlfs_bread. No I/O. Any thread.
int dlfs_sequence(const dlfs_fs *fs, const dlfs_sequence_options *options, dlfs_seq **seq);

// Gives the next batch in `batch`, to be released with dlfs_release, and waits while none is ready;
// DLFS_END after the last one of the last epoch. Any thread; threads get different batches.
//
// After DLFS_E_TIMED_OUT and DLFS_E_INTERRUPTED nothing is lost: call again. Any other error comes
// again until dlfs_set_epoch or a state starts anew. After DLFS_E_DISCONNECTED the data set is mounted
// again: a new sequence goes on where dlfs_state_get says that the old one stands. In a child of a fork
// the sequence goes on behind the batch that the parent was given last.
int dlfs_bread(const dlfs_seq *seq,
               dlfs_batch *batch);

// Has the memory for what is read ahead (`window_bytes`) made in the background from now on, which the
// first dlfs_bread does otherwise: worth calling before a model is built, in the process that will
// read. Returns at once, and does nothing where there is such memory already. No I/O. Any thread.
//
// DLFS_E_NO_MEMORY: the system does not give it.
int dlfs_sequence_prepare(const dlfs_seq *seq);

// Says where the run stands: the epoch of the next batch in `*epoch`, and in `*batches_left` how many
// of its batches this rank has still to be given; 0 at the run's end. Either may be NULL. No I/O. Any
// thread.
int dlfs_sequence_at(const dlfs_seq *seq,
                     uint64_t *epoch,
                     uint64_t *batches_left);

// Gives the number of batches of a whole epoch on this rank. No I/O. Any thread.
int dlfs_sequence_len(const dlfs_seq *seq, uint64_t *batches);

// Goes to the begin of `epoch`. Any thread, between its batches.
int dlfs_set_epoch(const dlfs_seq *seq, uint64_t epoch);

// Closes the handle: reading ahead ends, and a dlfs_bread that another thread is in ends with
// DLFS_E_INTERRUPTED. Batches stay good. Any thread.
int dlfs_sequence_close(dlfs_seq *seq);

// Writes where the run stands, after the batches handed out so far, to the file `path`, durably: what
// a crash leaves is the old file or the new one. Any thread.
//
// A sequence of the same data set and order goes on from it, also with another world size and batch
// size; then save it at a moment when all ranks have been given equally many batches.
int dlfs_state_save(const dlfs_seq *seq,
                    const char *path);

// Goes on where the file `path` says. Any thread, between its batches.
//
// DLFS_E_NOT_FOUND: there is no such file. DLFS_E_INVALID, DLFS_E_STALE: it is no state, or one of
// another data set or order, and dlfs_last_error says which; the run then stays where it was.
int dlfs_state_load(const dlfs_seq *seq, const char *path);

// Gives where the run stands as a line of JSON and a NUL in `json`, which has `len` bytes; `needed` as
// for dlfs_name. Any thread.
int dlfs_state_get(const dlfs_seq *seq,
                   char *json,
                   size_t len,
                   size_t *needed);

// Goes on where `json`, of dlfs_state_get, says. Errors as for dlfs_state_load. Any thread, between its
// batches.
int dlfs_state_set(const dlfs_seq *seq,
                   const char *json);

// Gives the memory of `batch` back, and empties the struct. Any thread.
//
// Items and everything that they point to are gone with it. DLFS_E_HANDLE: it was released before, or
// never filled.
int dlfs_release(dlfs_batch *batch);

// Says what reads by id and name on this mount have moved. Any thread.
int dlfs_stats(const dlfs_fs *fs, dlfs_stats_t *stats);

// Says what a sequence has done. Any thread.
int dlfs_sequence_stats(const dlfs_seq *seq, dlfs_stats_t *stats);

// Has `on_log` told what the library warns of from now on, no more than a few messages a second: a
// connection that is made again, a sample that is left out, a window that is too small. NULL ends that.
// Without it nothing is written anywhere. Any thread; one function for the process. A thread may be in
// the function that was set before until it returns.
//
// DLFS_E_BUSY: the program has another place for messages, as one in Rust may have.
int dlfs_log(dlfs_on_log on_log,
             void *user);

// Opens the namespace at `address` (a path, an NVMe/TCP address, with `?ns=` where the subsystem has several
// namespaces, or what else the build knows), makes a
// queue pair with `num_buffers` buffers of `buffer_len` bytes, and gives the handle in `*ns`.
//
// With no buffers, only dlfs_ns_info can be asked. `writable` is 0 or 1. `options` may be NULL; what
// is said there of connections, `direct`, `busy_poll` and `should_stop` holds, the rest means nothing
// here. Any thread; takes at most the connect timeout.
int dlfs_ns_open(const char *address,
                 const dlfs_mount_options *options,
                 uint32_t writable,
                 uint32_t num_buffers,
                 uint32_t buffer_len,
                 dlfs_ns **ns);

// Says what the namespace is. No I/O. Any thread.
int dlfs_ns_info(const dlfs_ns *ns, dlfs_ns_info_t *info);

// The memory of buffer `index`, or NULL where there is no such buffer, or no such handle.
//
// Buffers lie one behind the other, the first at a multiple of 4,096; they stay where they are until
// dlfs_ns_close. While an I/O has one, it is not for the caller. Any thread.
void *dlfs_ns_buffer(const dlfs_ns *ns,
                     uint32_t index);

// Takes I/Os from the front of `ios` while there is room, and returns how many: from 0 to `num`.
//
// An I/O that was taken is done once and then told by dlfs_ns_poll, whatever becomes of the target.
// One that cannot be, say with a buffer that is on its way, ends the call: it fails with
// DLFS_E_INVALID when that is the first, else those before it are taken. One thread at a time:
// another gets DLFS_E_BUSY. A child of a fork may only close the handle.
int64_t dlfs_ns_submit(const dlfs_ns *ns, const dlfs_ns_io *ios, size_t num);

// Moves I/Os forward and tells of up to `max` that are done; returns how many. Where there are none,
// waits for one, but not when nothing is on its way, and not longer than `wait_ms`.
//
// Of an I/O that has failed dlfs_last_error has the text, of several that of the last. To be called
// again and again while I/Os are on their way. Threads and forks as for dlfs_ns_submit.
int64_t dlfs_ns_poll(const dlfs_ns *ns,
                     dlfs_ns_done *done,
                     size_t max,
                     uint32_t wait_ms);

// Closes the handle; its buffers are no more. What is on its way is waited for, at most as long as the
// connection may be lost. Any thread, while no other is in a call with it.
int dlfs_ns_close(dlfs_ns *ns);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DLFS_H */
