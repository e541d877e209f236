// Shared by the C tests. Sample i of the test's data set has (i * 37) % 5000 bytes; see right().

#include <dlfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUM 180

#define CHECK(what)                                                                         \
    do {                                                                                    \
        if (!(what)) {                                                                      \
            fprintf(stderr, "%s:%d: %s\n  last error: %s\n", __FILE__, __LINE__, #what,     \
                    dlfs_last_error());                                                     \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

// The call fails with this number, and its text contains this.
#define FAILS(code, call, text)                                                             \
    do {                                                                                    \
        int64_t found = (call);                                                             \
        if (found != (code) || !strstr(dlfs_last_error(), text)) {                          \
            fprintf(stderr, "%s:%d: %s\n  gave %lld: %s\n", __FILE__, __LINE__, #call,      \
                    (long long)found, dlfs_last_error());                                   \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static inline size_t len_of(uint64_t id) { return id * 37 % 5000; }

static inline int right(const dlfs_item *item) {
    if (item->status != DLFS_OK || item->len != len_of(item->id)) return 0;
    if (item->label != (int64_t)(item->id / 60) || item->num_fields != 1) return 0;
    if (item->fields[0].data != item->data || item->fields[0].len != item->len) return 0;
    for (size_t i = 0; i < item->len; i++)
        if (item->data[i] != (uint8_t)(item->id * 31 + i * 7)) return 0;
    return 1;
}

static inline void right_batch(const dlfs_batch *batch) {
    for (size_t i = 0; i < batch->count; i++) CHECK(right(&batch->items[i]));
}
