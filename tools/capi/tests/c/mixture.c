// Mixtures: two images of the same 180 files as one sequence, and what makes no mixture.
// mixture ADDRESS OTHER FIELDS: FIELDS is an image whose samples have several fields.

#include <stddef.h>

#include "check.h"

#define OF_FIRST 140
#define OF_SECOND 60
#define EPOCH (OF_FIRST + OF_SECOND)

static uint64_t had[2][NUM];

static void see(const dlfs_batch *batch) {
    for (size_t i = 0; i < batch->count; i++) {
        CHECK(right(&batch->items[i]) && batch->items[i].source < 2);
        had[batch->items[i].source][batch->items[i].id]++;
    }
}

static uint64_t total(int source) {
    uint64_t sum = 0;
    for (int id = 0; id < NUM; id++) sum += had[source][id];
    return sum;
}

static dlfs_sequence_options options_of(uint32_t batch, uint64_t epochs) {
    dlfs_sequence_options options = {.size = sizeof options,
                                     .order = DLFS_ORDER_GROUPED,
                                     .seed = 7,
                                     .batch_size = batch,
                                     .epochs = epochs};
    return options;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    dlfs_fs *sources[2];
    CHECK(dlfs_mount(argv[1], NULL, &sources[0]) == 0 && dlfs_mount(argv[2], NULL, &sources[1]) == 0);
    const dlfs_fs *both[] = {sources[0], sources[1]};
    const char *parts[] = {"0.7", "0.3"};
    dlfs_mixture_options options = {.size = sizeof options, .epoch_size = EPOCH};
    dlfs_mixture *mixture, *none = (void *)7;
    CHECK(dlfs_mixture_open(both, parts, 2, &options, &mixture) == 0);
    uint64_t counts[2], size;
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        CHECK(dlfs_mixture_counts(mixture, epoch, counts, 2, &size) == 0);
        CHECK(counts[0] == OF_FIRST && counts[1] == OF_SECOND && size == EPOCH);
    }
    CHECK(dlfs_mixture_counts(mixture, 0, NULL, 0, NULL) == 0);
    FAILS(DLFS_E_INVALID, dlfs_mixture_counts(mixture, 0, counts, 1, NULL), "1 places for 2");

    // Three epochs: 420 and 180 samples, so that the second data set was read exactly once. Stopped
    // after seven batches, and resumed with others by a sequence that outlives what it was made of.
    dlfs_sequence_options run = options_of(20, 3);
    dlfs_seq *seq;
    CHECK(dlfs_mixture_sequence(mixture, &run, &seq) == 0);
    uint64_t batches;
    CHECK(dlfs_sequence_len(seq, &batches) == 0 && batches == EPOCH / 20);
    dlfs_batch batch = {.size = sizeof batch};
    for (int at = 0; at < 7; at++) {
        uint64_t before = total(0);
        CHECK(dlfs_bread(seq, &batch) == 0 && batch.count == 20);
        see(&batch);
        uint64_t first = total(0) - before;
        CHECK(12 <= first && first <= 16); // the share is 14
        CHECK(dlfs_release(&batch) == 0);
    }
    char state[4096];
    CHECK(dlfs_state_get(seq, state, sizeof state, NULL) == 0 && dlfs_sequence_close(seq) == 0);
    run = options_of(33, 3);
    CHECK(dlfs_mixture_sequence(mixture, &run, &seq) == 0);
    CHECK(dlfs_mixture_close(mixture) == 0);
    FAILS(DLFS_E_HANDLE, dlfs_mixture_close(mixture), "mixture");
    FAILS(DLFS_E_HANDLE, dlfs_mixture_counts(mixture, 0, NULL, 0, NULL), "mixture");
    FAILS(DLFS_E_HANDLE, dlfs_mixture_sequence(mixture, &run, (dlfs_seq **)&none), "mixture");
    CHECK(dlfs_state_set(seq, state) == 0);
    int result;
    uint64_t epoch = 0, ends = 0;
    while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
        see(&batch);
        epoch = batch.epoch, ends += batch.ends_epoch;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(result == DLFS_END && epoch == 2 && ends == 3 && dlfs_sequence_close(seq) == 0);
    CHECK(total(0) == 3 * OF_FIRST && total(1) == 3 * OF_SECOND);
    for (int id = 0; id < NUM; id++) CHECK(had[1][id] == 1 && 2 <= had[0][id] && had[0][id] <= 3);

    // repeat and choose, ways to batch, phases.
    const char *chosen[] = {"choose:40", "repeat:0.5"};
    dlfs_mixture_options given = {.size = sizeof given, .batching = "per-source:10"};
    CHECK(dlfs_mixture_open(both, chosen, 2, &given, &mixture) == 0);
    CHECK(dlfs_mixture_counts(mixture, 5, counts, 2, &size) == 0);
    CHECK(counts[0] == 40 && counts[1] == 90 && size == 130);
    run = options_of(10, 1);
    CHECK(dlfs_mixture_sequence(mixture, &run, &seq) == 0);
    FAILS(DLFS_E_INVALID, dlfs_state_set(seq, state), "part");
    while (dlfs_bread(seq, &batch) == DLFS_OK) {
        for (size_t i = 0; i < batch.count; i++) CHECK(batch.items[i].source == batch.items[0].source);
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_mixture_close(mixture) == 0);
    const char *phases[] = {"100:0,1"}, *first[] = {"1", "0"};
    dlfs_mixture_options later = {
        .size = sizeof later, .epoch_size = 100, .phases = phases, .num_phases = 1};
    CHECK(dlfs_mixture_open(both, first, 2, &later, &mixture) == 0);
    CHECK(dlfs_mixture_counts(mixture, 0, counts, 2, NULL) == 0 && counts[0] == 100 && counts[1] == 0);
    CHECK(dlfs_mixture_counts(mixture, 1, counts, 2, NULL) == 0 && counts[0] == 0 && counts[1] == 100);

    // What is for one data set alone.
    run = options_of(10, 1);
    run.peers = "auto";
    FAILS(DLFS_E_INVALID, dlfs_mixture_sequence(mixture, &run, &seq), "peers");
    run = options_of(10, 1);
    run.store = "ram:1M";
    FAILS(DLFS_E_INVALID, dlfs_mixture_sequence(mixture, &run, &seq), "store");
    run = options_of(10, 1);
    run.order = DLFS_ORDER_LOCAL;
    FAILS(DLFS_E_INVALID, dlfs_mixture_sequence(mixture, &run, &seq), "order");
    FAILS(DLFS_E_INVALID, dlfs_mixture_sequence(mixture, NULL, &seq), "");
    CHECK(dlfs_mixture_close(mixture) == 0);

    // What makes no mixture.
    const dlfs_fs *twice[] = {sources[0], sources[0]};
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(twice, parts, 2, NULL, &none), "the same data set");
    CHECK(none == NULL);
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, first, 2, NULL, &none), "part of 0");
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, parts, 0, NULL, &none), "at least one source");
    const char *wrong[] = {"0.7", "much"}, *missing[] = {"0.7", NULL};
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, wrong, 2, NULL, &none), "parts[1]: \"much\" is no weight");
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, missing, 2, NULL, &none), "parts[1]");
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(NULL, parts, 2, NULL, &none), "sources");
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, parts, 2, NULL, NULL), "mixture");
    const dlfs_fs *null[] = {sources[0], NULL};
    FAILS(DLFS_E_HANDLE, dlfs_mixture_open(null, parts, 2, NULL, &none), "NULL");
    given.batching = "chunk";
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, parts, 2, &given, &none), "per-source:N, not \"chunk\"");
    dlfs_mixture_options counted = {.size = sizeof counted, .count = "tokens"};
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, parts, 2, &counted, &none), "no field of the samples");
    counted.count = "words";
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, parts, 2, &counted, &none), "count: it is samples, tokens");
    phases[0] = "9:1,2,3";
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, parts, 2, &later, &none), "3 weights for 2 sources");
    later.phases = NULL;
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(both, parts, 2, &later, &none), "phases");
    later.size = 3;
    FAILS(DLFS_E_SIZE, dlfs_mixture_open(both, parts, 2, &later, &none), "dlfs_mixture_options");
    dlfs_fs *fields;
    CHECK(dlfs_mount(argv[3], NULL, &fields) == 0);
    const dlfs_fs *apart[] = {sources[0], fields};
    FAILS(DLFS_E_INVALID, dlfs_mixture_open(apart, parts, 2, NULL, &none), "sources[1] have other fields");
    CHECK(dlfs_unmount(fields) == 0);
    CHECK(dlfs_unmount(sources[0]) == 0 && dlfs_unmount(sources[1]) == 0);
    return 0;
}
