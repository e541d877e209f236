// Rows of tokens.  tokens ADDRESS OTHER: two images of the same 60 documents; document i has len_of_text(i) tokens.

#include <stddef.h>

#include "check.h"

#define DOCUMENTS 60
#define SEPARATOR 500
#define L 16
#define C (L + 1)
#define B 2
#define MOST_ROWS 512

static size_t len_of_text(uint64_t id) { return id * 37 % 120; }
static int64_t token_of(uint64_t id, size_t at) {
    return at == len_of_text(id) ? SEPARATOR : (int64_t)((id * 31 + at) % SEPARATOR);
}

static dlfs_sequence_options sequence_of(uint32_t order, uint32_t rows, uint64_t epochs) {
    dlfs_sequence_options options = {
        .size = sizeof options, .order = order, .seed = 7, .batch_size = rows, .epochs = epochs};
    return options;
}

static dlfs_tokens_options rows_of(uint32_t seq_len, uint32_t pack) {
    dlfs_tokens_options options = {.size = sizeof options,
                                   .seq_len = seq_len,
                                   .pack = pack,
                                   .separated = 1,
                                   .separator = SEPARATOR};
    return options;
}

// Reads to the end; returns the batches.
static uint64_t read_all(dlfs_tokens *tokens, int64_t *to) {
    dlfs_rows rows = {.size = sizeof rows};
    uint64_t batches = 0;
    int result;
    for (rows.tokens = to; (result = dlfs_tokens_next(tokens, &rows)) == DLFS_OK; batches++)
        rows.tokens = to += B * C;
    CHECK(result == DLFS_END);
    return batches;
}

// All documents end to end, in the order of ids: what each row has, and where it is from.
static uint64_t lie_end_to_end(const dlfs_fs *fs, int64_t *all) {
    static int64_t stream[DOCUMENTS * 120];
    size_t len = 0;
    for (uint64_t id = 0; id < DOCUMENTS; id++)
        for (size_t at = 0; len_of_text(id) > 0 && at <= len_of_text(id); at++)
            stream[len++] = token_of(id, at);
    uint64_t batches = (len - 1) / L / B, found;
    dlfs_sequence_options sequence = sequence_of(DLFS_ORDER_SEQUENTIAL, B, 1);
    dlfs_tokens_options options = rows_of(L, DLFS_PACK_CONCAT);
    dlfs_tokens *tokens;
    CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
    CHECK(dlfs_tokens_len(tokens, &found) == 0 && found == batches);
    int32_t segments[B * C], positions[B * C], starts[B * L + 1];
    int64_t ids[B * C], *next = all;
    uint8_t mask[B * C];
    dlfs_rows rows = {.size = sizeof rows, .segment_ids = segments, .position_ids = positions,
        .loss_mask = mask, .sample_ids = ids, .cu_seqlens = starts};
    for (uint64_t batch = 0; batch < batches; batch++, next += B * C) {
        rows.tokens = next;
        CHECK(dlfs_tokens_next(tokens, &rows) == 0 && rows.epoch == 0);
        CHECK(rows.ends_epoch == (batch + 1 == batches));
        for (size_t row = 0; row < B; row++) {
            CHECK(memcmp(next + row * C, stream + (batch * B + row) * L, C * sizeof *stream) == 0);
            for (size_t at = row * C; at < (row + 1) * C; at++) {
                CHECK(mask[at] == 1 && 0 < ids[at] && ids[at] < DOCUMENTS && segments[at] >= 1);
                if (at == row * C) continue;
                int is_new = ids[at] != ids[at - 1];
                CHECK(positions[at] == (is_new ? 0 : positions[at - 1] + 1));
                CHECK(segments[at] == segments[at - 1] + is_new);
            }
        }
        CHECK(rows.num_cu_seqlens >= B + 1 && starts[0] == 0);
        CHECK(starts[rows.num_cu_seqlens - 1] == B * L);
    }
    CHECK(dlfs_tokens_next(tokens, &rows) == DLFS_END && dlfs_tokens_close(tokens) == 0);
    return batches;
}

static void goes_on_and_comes_in_parts(const dlfs_fs *fs, const int64_t *all, uint64_t batches) {
    static int64_t rest[MOST_ROWS * C];
    char state[4096];
    dlfs_sequence_options sequence = sequence_of(DLFS_ORDER_SEQUENTIAL, B, 1);
    dlfs_tokens_options options = rows_of(L, DLFS_PACK_CONCAT);
    dlfs_tokens *tokens;
    CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
    dlfs_rows rows = {.size = sizeof rows, .tokens = rest};
    for (int batch = 0; batch < 3; batch++) CHECK(dlfs_tokens_next(tokens, &rows) == 0);
    CHECK(dlfs_tokens_state_get(tokens, state, sizeof state, NULL) == 0);
    CHECK(dlfs_tokens_close(tokens) == 0);
    CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
    CHECK(dlfs_tokens_state_set(tokens, state) == 0);
    CHECK(read_all(tokens, rest) == batches - 3);
    CHECK(memcmp(rest, all + 3 * B * C, (batches - 3) * B * C * sizeof *rest) == 0);
    CHECK(dlfs_tokens_set_epoch(tokens, 0) == 0 && read_all(tokens, rest) == batches);
    CHECK(memcmp(rest, all, batches * B * C * sizeof *rest) == 0 && dlfs_tokens_close(tokens) == 0);
    options.seq_len = L + 1;
    CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
    FAILS(DLFS_E_INVALID, dlfs_tokens_state_set(tokens, state), "state");
    CHECK(dlfs_tokens_close(tokens) == 0);

    // Two context-parallel ranks, as narrow arrays: parts 0 and 3 of 4, and 1 and 2.
    options.seq_len = L, options.cp_size = 2, options.cp_zigzag = 1;
    for (uint32_t rank = 0; rank < 2; rank++) {
        enum { PART = L / 4, WIDTH = 2 * (PART + 1) };
        uint16_t part[B * WIDTH];
        options.cp_rank = rank;
        CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
        rows.tokens = part, rows.element = DLFS_ELEMENT_U16;
        CHECK(dlfs_tokens_next(tokens, &rows) == 0);
        for (size_t row = 0; row < B; row++)
            for (size_t at = 0; at < WIDTH; at++) {
                size_t from = at <= PART ? rank * PART + at : (3 - rank) * PART + at - PART - 1;
                CHECK(part[row * WIDTH + at] == all[row * C + from]);
            }
        int32_t starts[B * L + 1];
        rows.cu_seqlens = starts;
        FAILS(DLFS_E_INVALID, dlfs_tokens_next(tokens, &rows), "cu_seqlens");
        rows.cu_seqlens = NULL;
        CHECK(dlfs_tokens_close(tokens) == 0);
    }
}

// Whole documents: each once in an epoch of the data set, and as often as the mixture says.
static void lie_whole(dlfs_tokens *tokens, uint64_t times) {
    enum { WIDE = 128 + 1 };
    static int64_t out[WIDE], ids[WIDE];
    static int32_t positions[WIDE];
    static uint8_t mask[WIDE];
    uint64_t seen[DOCUMENTS] = {0};
    dlfs_rows rows = {.size = sizeof rows, .tokens = out, .sample_ids = ids,
        .position_ids = positions, .loss_mask = mask};
    int result;
    while ((result = dlfs_tokens_next(tokens, &rows)) == DLFS_OK) {
        for (size_t at = 0; at < WIDE; at++) {
            if (ids[at] < 0) {
                CHECK(out[at] == 9 && mask[at] == 0);
                continue;
            }
            CHECK(out[at] == token_of(ids[at], positions[at]) && mask[at] == (positions[at] > 0));
            seen[ids[at]] += out[at] == SEPARATOR;
        }
    }
    CHECK(result == DLFS_END && seen[0] == 0);
    for (uint64_t id = 1; id < DOCUMENTS; id++) CHECK(seen[id] == (len_of_text(id) ? times : 0));
    CHECK(dlfs_tokens_close(tokens) == 0);
}

// Rows of one document are as wide as the longest of a batch needs, and those of a phase have its length.
static void widths_follow_documents_and_phases(const dlfs_fs *fs, const int64_t *all) {
    enum { WIDE = 2 * (128 + 1) };
    static int64_t out[WIDE], ids[WIDE];
    dlfs_rows rows = {.size = sizeof rows, .tokens = out, .sample_ids = ids};
    dlfs_sequence_options sequence = sequence_of(DLFS_ORDER_GLOBAL, B, 1);
    dlfs_tokens_options options = rows_of(128, DLFS_PACK_NONE);
    dlfs_tokens *tokens;
    CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
    size_t widest = 0, narrowest = WIDE, width;
    int result;
    while ((result = dlfs_tokens_next(tokens, &rows)) == DLFS_OK) {
        CHECK(rows.num_rows == B);
        size_t longest = 2;
        for (size_t row = 0; row < B; row++) {
            const int64_t *id = ids + row * rows.num_columns;
            size_t len = len_of_text(*id) + 1;
            for (size_t at = 0; at < rows.num_columns; at++) CHECK(id[at] == (at < len ? *id : -1));
            CHECK(out[row * rows.num_columns + len - 1] == SEPARATOR);
            if (len > longest) longest = len;
        }
        for (width = 1; width + 1 < longest; width *= 2)
            if (width > 1 && width / 2 * 3 + 1 >= longest) break;
        if (width + 1 < longest) width = width / 2 * 3;
        CHECK(rows.num_columns == width + 1);
        if (width > widest) widest = width;
        if (width < narrowest) narrowest = width;
    }
    CHECK(result == DLFS_END && narrowest < 64 && widest == 128 && dlfs_tokens_close(tokens) == 0);

    const dlfs_row_phase phases[] = {{.tokens = 10 * L, .seq_len = 2 * L, .batch_size = 1},
                                     {.tokens = 14 * L, .seq_len = L / 2}};
    sequence.order = DLFS_ORDER_SEQUENTIAL;
    options = rows_of(L, DLFS_PACK_CONCAT), options.phases = phases, options.num_phases = 2;
    CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
    size_t from = 0; // the first token of the next row, among all of the epoch
    for (int batch = 0; batch < 9; batch++) {
        size_t len = batch < 5 ? L : batch < 7 ? 2 * L : L / 2;
        CHECK(dlfs_tokens_next(tokens, &rows) == 0);
        CHECK(rows.num_rows == (batch == 5 || batch == 6 ? 1 : B) && rows.num_columns == len + 1);
        for (size_t row = 0; row < rows.num_rows; row++, from += len)
            for (size_t at = 0; at <= len; at++)
                CHECK(out[row * (len + 1) + at] == all[(from + at) / L * C + (from + at) % L]);
    }
    CHECK(dlfs_tokens_close(tokens) == 0);
}

static void refuse(const dlfs_fs *fs, uint32_t batch, dlfs_tokens_options options, const char *text) {
    dlfs_tokens *tokens = (void *)7;
    dlfs_sequence_options sequence = sequence_of(DLFS_ORDER_GLOBAL, batch, 1);
    options.size = sizeof options;
    FAILS(DLFS_E_INVALID, dlfs_tokens_open(fs, &sequence, &options, &tokens), text);
    CHECK(tokens == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    static int64_t all[MOST_ROWS * C];
    dlfs_fs *fs, *other;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0 && dlfs_mount(argv[2], NULL, &other) == 0);
    uint64_t batches = lie_end_to_end(fs, all);
    goes_on_and_comes_in_parts(fs, all, batches);
    widths_follow_documents_and_phases(fs, all);

    dlfs_sequence_options sequence = sequence_of(DLFS_ORDER_GLOBAL, 1, 1);
    dlfs_tokens_options options = rows_of(128, DLFS_PACK_BEST_FIT);
    options.pad = 9;
    dlfs_tokens *tokens;
    CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
    lie_whole(tokens, 1);
    const dlfs_fs *both[] = {fs, other};
    const char *parts[] = {"repeat:1", "repeat:2"};
    dlfs_mixture *mixture;
    CHECK(dlfs_mixture_open(both, parts, 2, NULL, &mixture) == 0);
    CHECK(dlfs_mixture_tokens(mixture, &sequence, &options, &tokens) == 0);
    CHECK(dlfs_mixture_close(mixture) == 0);
    lie_whole(tokens, 3);

    // What makes no rows.
    refuse(fs, 1, (dlfs_tokens_options){0}, "a row has a length of");
    refuse(fs, 0, (dlfs_tokens_options){.seq_len = L}, "batch_size");
    refuse(fs, 1, (dlfs_tokens_options){.seq_len = L, .pack = 3}, "pack is 3");
    refuse(fs, 1, (dlfs_tokens_options){.seq_len = L, .field = "tok:f32"}, "field tok");
    refuse(fs, 1, (dlfs_tokens_options){.seq_len = 1 << 20}, "row");
    dlfs_row_phase none = {.tokens = 0, .seq_len = L};
    refuse(fs, 1, (dlfs_tokens_options){.seq_len = L, .phases = &none, .num_phases = 1}, "phase");
    refuse(fs, 1, (dlfs_tokens_options){.seq_len = L, .num_phases = 1}, "phases is NULL");
    refuse(fs, 1, (dlfs_tokens_options){.seq_len = L, .cp_size = 3}, "context-parallel");
    refuse(fs, 1, (dlfs_tokens_options){.seq_len = L, .vocabulary = 9, .separated = 1, .separator = 9},
        "separator");
    FAILS(DLFS_E_INVALID, dlfs_tokens_open(fs, &sequence, NULL, &tokens), "dlfs_tokens_options");
    options.vocabulary = SEPARATOR + 1;
    CHECK(dlfs_tokens_open(fs, &sequence, &options, &tokens) == 0);
    dlfs_rows rows = {.size = sizeof rows};
    FAILS(DLFS_E_INVALID, dlfs_tokens_next(tokens, &rows), "tokens is NULL");
    FAILS(DLFS_E_INVALID, dlfs_tokens_next(tokens, NULL), "dlfs_rows");
    rows.tokens = all, rows.element = DLFS_ELEMENT_F32;
    FAILS(DLFS_E_INVALID, dlfs_tokens_next(tokens, &rows), "element is");
    rows.element = 0;
    CHECK(dlfs_tokens_next(tokens, &rows) == 0 && dlfs_tokens_close(tokens) == 0);
    FAILS(DLFS_E_HANDLE, dlfs_tokens_next(tokens, &rows), "rows of tokens");
    FAILS(DLFS_E_HANDLE, dlfs_tokens_close(tokens), "rows of tokens");
    CHECK(dlfs_unmount(fs) == 0 && dlfs_unmount(other) == 0);
    return 0;
}
