// Batches by tokens of a mixture.  mixed_batches ADDRESS OTHER: two images of the same 180 files.

#include "check.h"

#define OF_FIRST 140
#define OF_SECOND 60
#define EPOCH (OF_FIRST + OF_SECOND)
#define LONGEST 4995 // of the samples
#define BUDGET (3 * LONGEST)

// What a run has had, in its order.
typedef struct {
    uint64_t samples, batches, of[2], mixed;
    uint64_t ids[3 * EPOCH];
    uint32_t sources[3 * EPOCH];
} seen;

static void see(const dlfs_batch *batch, uint64_t budget, seen *run) {
    uint64_t longest = 1, of[2] = {0, 0};
    for (size_t i = 0; i < batch->count; i++) {
        const dlfs_item *item = &batch->items[i];
        CHECK(right(item) && item->source < 2 && run->samples < 3 * EPOCH);
        run->ids[run->samples] = item->id, run->sources[run->samples] = item->source;
        run->samples++;
        of[item->source]++;
        longest = item->len > longest ? item->len : longest;
    }
    CHECK(longest * batch->count <= budget);
    run->of[0] += of[0], run->of[1] += of[1];
    run->mixed += of[0] > 0 && of[1] > 0;
    run->batches++;
}

// Reads so many batches, or to the end.
static int read_some(dlfs_seq *seq, uint64_t most, seen *run) {
    dlfs_batch batch = {.size = sizeof batch};
    int result = DLFS_OK;
    for (uint64_t at = 0; at < most && (result = dlfs_bread(seq, &batch)) == DLFS_OK; at++) {
        see(&batch, BUDGET, run);
        CHECK(dlfs_release(&batch) == 0);
    }
    return result;
}

static dlfs_seq *begin(dlfs_mixture *mixture, dlfs_sequence_options options) {
    dlfs_seq *seq;
    options.size = sizeof options;
    CHECK(dlfs_mixture_sequence(mixture, &options, &seq) == 0);
    return seq;
}

static void goes_on_anywhere(dlfs_mixture *mixture, dlfs_sequence_options options) {
    static seen whole, parts, rest[2];
    memset(&whole, 0, sizeof whole);
    uint64_t epoch = 0;
    dlfs_seq *seq = begin(mixture, options);
    CHECK(dlfs_sequence_len(seq, &epoch) == 0 && 0 < epoch && epoch < EPOCH);
    CHECK(read_some(seq, UINT64_MAX, &whole) == DLFS_END && dlfs_sequence_close(seq) == 0);
    CHECK(whole.of[0] == 2 * OF_FIRST && whole.of[1] == 2 * OF_SECOND && whole.mixed > 0);

    // One epoch has the batches that its length says.
    memset(&parts, 0, sizeof parts);
    dlfs_sequence_options once = options;
    once.epochs = 1;
    seq = begin(mixture, once);
    CHECK(read_some(seq, UINT64_MAX, &parts) == DLFS_END && dlfs_sequence_close(seq) == 0);
    CHECK(parts.batches == epoch && parts.of[0] == OF_FIRST && parts.of[1] == OF_SECOND);

    // Stopped within the first epoch, at its end and behind it: the rest is that of the whole run.
    const uint64_t stops[] = {1, epoch / 2, epoch - 1, epoch, epoch + 3};
    char state[4096];
    for (size_t at = 0; at < sizeof stops / sizeof *stops; at++) {
        memset(&parts, 0, sizeof parts);
        seq = begin(mixture, options);
        CHECK(read_some(seq, stops[at], &parts) == DLFS_OK);
        CHECK(dlfs_state_get(seq, state, sizeof state, NULL) == 0 && strstr(state, "\"budget\"") != NULL);
        CHECK(dlfs_sequence_close(seq) == 0);
        uint64_t before = parts.samples;
        // Two ranks divide what is left, each batch whole.
        memset(rest, 0, sizeof rest);
        for (uint32_t rank = 0; rank < 2; rank++) {
            dlfs_sequence_options of_rank = options;
            of_rank.rank = rank, of_rank.world_size = 2;
            seq = begin(mixture, of_rank);
            CHECK(dlfs_state_set(seq, state) == 0);
            CHECK(read_some(seq, UINT64_MAX, &rest[rank]) == DLFS_END && dlfs_sequence_close(seq) == 0);
        }
        for (int source = 0; source < 2; source++)
            CHECK(parts.of[source] + rest[0].of[source] + rest[1].of[source] == whole.of[source]);
        seq = begin(mixture, options);
        CHECK(dlfs_state_set(seq, state) == 0);
        CHECK(read_some(seq, UINT64_MAX, &parts) == DLFS_END && dlfs_sequence_close(seq) == 0);
        CHECK(parts.batches == whole.batches && parts.samples == whole.samples && before < parts.samples);
        CHECK(memcmp(parts.ids, whole.ids, sizeof whole.ids) == 0);
        CHECK(memcmp(parts.sources, whole.sources, sizeof whole.sources) == 0);
    }

    // Another budget cuts other batches, and a number of samples none.
    dlfs_sequence_options other = options;
    other.batch_tokens = BUDGET + 1;
    seq = begin(mixture, other);
    FAILS(DLFS_E_INVALID, dlfs_state_set(seq, state), "budget");
    CHECK(dlfs_sequence_close(seq) == 0);
    other.batch_tokens = 0, other.bucket_window = 0, other.batch_size = 7;
    seq = begin(mixture, other);
    FAILS(DLFS_E_INVALID, dlfs_state_set(seq, state), "budget");
    CHECK(dlfs_sequence_close(seq) == 0);
}

static void refuse(dlfs_mixture *mixture, dlfs_sequence_options options, const char *text) {
    dlfs_seq *seq = (void *)7;
    options.size = sizeof options;
    FAILS(DLFS_E_INVALID, dlfs_mixture_sequence(mixture, &options, &seq), text);
    CHECK(seq == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    dlfs_fs *sources[2];
    CHECK(dlfs_mount(argv[1], NULL, &sources[0]) == 0 && dlfs_mount(argv[2], NULL, &sources[1]) == 0);
    const dlfs_fs *both[] = {sources[0], sources[1]};
    const char *parts[] = {"0.7", "0.3"}, *batchings[] = {"stratified", "random"};
    const uint32_t orders[] = {DLFS_ORDER_GROUPED, DLFS_ORDER_GLOBAL};
    dlfs_mixture *mixture;
    for (int way = 0; way < 2; way++) {
        dlfs_mixture_options options = {
            .size = sizeof options, .epoch_size = EPOCH, .batching = batchings[way]};
        CHECK(dlfs_mixture_open(both, parts, 2, &options, &mixture) == 0);
        dlfs_sequence_options run = {.order = orders[way], .seed = 7, .epochs = 2,
            .batch_tokens = BUDGET, .bucket_window = 50};
        goes_on_anywhere(mixture, run);

        // What makes no budget, and of which data set.
        refuse(mixture, (dlfs_sequence_options){.batch_tokens = LONGEST - 1}, "more than the");
        refuse(mixture, (dlfs_sequence_options){.batch_tokens = BUDGET, .lengths = "none"},
            "no column \"none\"");
        refuse(mixture, (dlfs_sequence_options){.batch_size = 1, .batch_tokens = BUDGET}, "not both");
        CHECK(dlfs_mixture_close(mixture) == 0);
    }
    dlfs_mixture_options apart = {.size = sizeof apart, .batching = "per-source:10"};
    const char *chosen[] = {"choose:40", "choose:20"};
    CHECK(dlfs_mixture_open(both, chosen, 2, &apart, &mixture) == 0);
    refuse(mixture, (dlfs_sequence_options){.batch_tokens = BUDGET}, "samples of all sources");
    CHECK(dlfs_mixture_close(mixture) == 0);
    CHECK(dlfs_unmount(sources[0]) == 0 && dlfs_unmount(sources[1]) == 0);
    return 0;
}
