// Weights, and batches by tokens.  batches ADDRESS: 180 samples with a label each.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static dlfs_seq *begin(dlfs_fs *fs, dlfs_sequence_options options) {
    dlfs_seq *seq;
    options.size = sizeof options;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    return seq;
}

// Reads to the end; returns the number of samples, and counts how often each came.
static uint64_t read_all(dlfs_seq *seq, uint64_t *times, uint64_t budget) {
    uint64_t seen = 0, batches = 0, left;
    CHECK(dlfs_sequence_len(seq, &left) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    int result;
    while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
        uint64_t longest = 0;
        for (uint64_t i = 0; i < batch.count; i++) {
            times[batch.items[i].id]++;
            longest = batch.items[i].len > longest ? batch.items[i].len : longest;
        }
        CHECK(budget == 0 || longest * batch.count <= budget);
        seen += batch.count;
        batches++;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(result == DLFS_END && batches == left && dlfs_sequence_close(seq) == 0);
    return seen;
}

static void draw_by_weights(dlfs_fs *fs) {
    double weights[NUM] = {0};
    weights[3] = 1, weights[70] = 2, weights[71] = 1;
    uint64_t times[NUM] = {0};
    dlfs_sequence_options options = {.order = DLFS_ORDER_WEIGHTED, .batch_size = 7, .epochs = 1,
        .seed = 5, .weights = weights, .num_weights = NUM, .epoch_size = 4000};
    CHECK(read_all(begin(fs, options), times, 0) == 4000);
    CHECK(times[3] + times[70] + times[71] == 4000);
    CHECK(times[70] > 1800 && times[70] < 2200 && times[3] > 850 && times[3] < 1150);

    // Once each, in a weighted shuffle.
    memset(times, 0, sizeof times);
    options.epoch_size = 0, options.without_replacement = 1;
    CHECK(read_all(begin(fs, options), times, 0) == 3 && times[3] == 1 && times[70] == 1);

    // By labels: 60 samples have each of three.
    memset(times, 0, sizeof times);
    const int64_t labels[] = {0, 1, 2};
    const double each[] = {0, 1, 0};
    dlfs_sequence_options by_label = {.order = DLFS_ORDER_WEIGHTED, .batch_size = 9, .epochs = 1,
        .weights = each, .weight_labels = labels, .num_weights = 3};
    CHECK(read_all(begin(fs, by_label), times, 0) == NUM);
    for (uint64_t id = 0; id < NUM; id++) {
        dlfs_sample sample = {.size = sizeof sample};
        CHECK(dlfs_stat_id(fs, id, &sample) == 0);
        CHECK(sample.label == 1 || times[id] == 0);
    }
    memset(times, 0, sizeof times);
    dlfs_sequence_options balanced = {.order = DLFS_ORDER_WEIGHTED, .batch_size = 9, .epochs = 1,
        .balanced = 1, .epoch_size = 500};
    CHECK(read_all(begin(fs, balanced), times, 0) == 500);

    // A state holds the weights.
    dlfs_seq *seq = begin(fs, options), *other;
    char state[4096];
    CHECK(dlfs_state_get(seq, state, sizeof state, NULL) == 0);
    weights[3] = 2;
    other = begin(fs, options);
    FAILS(DLFS_E_INVALID, dlfs_state_set(other, state), "draws by weights");
    CHECK(dlfs_sequence_close(seq) == 0 && dlfs_sequence_close(other) == 0);
}

static void refuse(dlfs_fs *fs, dlfs_sequence_options options, const char *text) {
    dlfs_seq *seq = (void *)7;
    options.size = sizeof options;
    FAILS(DLFS_E_INVALID, dlfs_sequence(fs, &options, &seq), text);
    CHECK(seq == NULL);
}

static void cut_by_tokens(dlfs_fs *fs, uint64_t longest) {
    uint64_t times[NUM] = {0};
    dlfs_sequence_options options = {.order = DLFS_ORDER_GROUPED, .batch_tokens = 3 * longest,
        .bucket_window = 50, .epochs = 1, .seed = 3};
    CHECK(read_all(begin(fs, options), times, 3 * longest) == NUM);
    for (uint64_t id = 0; id < NUM; id++)
        CHECK(times[id] == 1);

    // Another rank goes on where one has stopped.
    dlfs_seq *seq = begin(fs, options);
    memset(times, 0, sizeof times);
    char state[4096];
    for (int i = 0; i < 4; i++) {
        dlfs_batch batch = {.size = sizeof batch};
        CHECK(dlfs_bread(seq, &batch) == 0);
        for (uint64_t k = 0; k < batch.count; k++)
            times[batch.items[k].id]++;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(dlfs_state_get(seq, state, sizeof state, NULL) == 0 && strstr(state, "\"budget\"") != NULL);
    CHECK(dlfs_sequence_close(seq) == 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        options.rank = rank, options.world_size = 2;
        seq = begin(fs, options);
        CHECK(dlfs_state_set(seq, state) == 0);
        dlfs_batch batch = {.size = sizeof batch};
        int result;
        while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
            for (uint64_t k = 0; k < batch.count; k++)
                times[batch.items[k].id]++;
            CHECK(dlfs_release(&batch) == 0);
        }
        CHECK(result == DLFS_END && dlfs_sequence_close(seq) == 0);
    }
    for (uint64_t id = 0; id < NUM; id++)
        CHECK(times[id] == 1);
    memset(times, 0, sizeof times);
    dlfs_sequence_options alone = {.batch_tokens = longest - 1, .epochs = 1,
        .too_long = DLFS_TOO_LONG_ALONE, .batch_cost = DLFS_COST_SUM, .max_batch = 5};
    CHECK(read_all(begin(fs, alone), times, 0) == NUM);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_fs *fs;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    uint64_t longest = 0;
    for (uint64_t id = 0; id < NUM; id++) {
        dlfs_sample sample = {.size = sizeof sample};
        CHECK(dlfs_stat_id(fs, id, &sample) == 0);
        longest = sample.len > longest ? sample.len : longest;
    }
    CHECK(longest > 1);
    draw_by_weights(fs);
    cut_by_tokens(fs, longest);

    const double weights[NUM] = {1};
    const uint32_t weighted = DLFS_ORDER_WEIGHTED;
    refuse(fs, (dlfs_sequence_options){.order = weighted, .batch_size = 1}, "set weights, or balanced");
    refuse(fs, (dlfs_sequence_options){.order = weighted, .batch_size = 1, .weights = weights,
        .num_weights = NUM - 1}, "179 weights for 180 samples");
    refuse(fs, (dlfs_sequence_options){.order = weighted, .batch_size = 1, .num_weights = 3}, "NULL");
    refuse(fs, (dlfs_sequence_options){.order = weighted, .batch_size = 1, .weights = weights,
        .num_weights = NUM, .balanced = 1}, "leave the weights out");
    refuse(fs, (dlfs_sequence_options){.order = weighted, .batch_size = 1, .balanced = 2}, "balanced is 2");
    refuse(fs, (dlfs_sequence_options){.batch_size = 1, .weights = weights, .num_weights = NUM},
        "weights is for DLFS_ORDER_WEIGHTED");
    refuse(fs, (dlfs_sequence_options){.batch_size = 1, .epoch_size = 5}, "epoch_size is for");
    refuse(fs, (dlfs_sequence_options){.batch_size = 1, .batch_tokens = 5000}, "not both");
    refuse(fs, (dlfs_sequence_options){.batch_size = 1, .max_batch = 5}, "batch_tokens, too");
    refuse(fs, (dlfs_sequence_options){.batch_tokens = longest - 1}, "more than the");
    refuse(fs, (dlfs_sequence_options){.batch_tokens = 5000, .lengths = "none"}, "no column \"none\"");
    refuse(fs, (dlfs_sequence_options){.batch_tokens = 5000, .lengths = "label", .token_bytes = 2},
        "names a column instead");
    refuse(fs, (dlfs_sequence_options){.batch_tokens = 5000, .batch_cost = 2}, "batch_cost is 2");
    refuse(fs, (dlfs_sequence_options){.batch_tokens = 5000, .too_long = 2}, "too_long is 2");
    CHECK(dlfs_unmount(fs) == 0);
    return 0;
}
