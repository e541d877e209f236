// Writes images sample by sample.  writer ADDRESS: a file that does not exist.

#include <math.h>
#include <unistd.h>

#include "check.h"

static uint8_t bytes[5000];

static dlfs_new_sample sample_of(uint64_t id, dlfs_new_field *field) {
    for (size_t i = 0; i < len_of(id); i++) bytes[i] = (uint8_t)(id * 31 + i * 7);
    *field = (dlfs_new_field){.data = bytes, .len = len_of(id)};
    dlfs_new_sample sample = {.size = sizeof sample, .fields = field, .num_fields = 1, .label = (int64_t)(id / 60)};
    return sample;
}

static void read_back(const char *address, uint64_t generation) {
    dlfs_fs *fs;
    CHECK(dlfs_mount(address, NULL, &fs) == 0);
    dlfs_info info = {.size = sizeof info};
    CHECK(dlfs_get_info(fs, &info) == 0 && info.num_samples == NUM && info.generation == generation);
    dlfs_sequence_options options = {
        .size = sizeof options, .order = DLFS_ORDER_GROUPED, .seed = 1, .batch_size = 30, .epochs = 1};
    dlfs_seq *seq;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    size_t count = 0;
    int result;
    while ((result = dlfs_bread(seq, &batch)) == DLFS_OK) {
        right_batch(&batch);
        count += batch.count;
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(count == NUM && dlfs_sequence_close(seq) == 0 && dlfs_unmount(fs) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *address = argv[1];
    dlfs_writer *writer;
    dlfs_new_field field;

    // What is not finished leaves nothing.
    CHECK(dlfs_writer_open(address, NULL, NULL, &writer) == 0);
    dlfs_new_sample sample = sample_of(7, &field);
    CHECK(dlfs_write(writer, &sample, NULL) == 0 && dlfs_writer_discard(writer) == 0);
    CHECK(access(address, F_OK) != 0);
    FAILS(DLFS_E_HANDLE, dlfs_write(writer, &sample, NULL), "writer");
    FAILS(DLFS_E_HANDLE, dlfs_writer_finish(writer, NULL), "writer");

    // All samples shuffled together: the writer says which comes next.
    dlfs_writer_options whole = {.size = sizeof whole, .count = NUM, .seed = 3, .chunk_size = 64 << 10};
    CHECK(dlfs_writer_open(address, &whole, NULL, &writer) == 0);
    uint64_t next, id, generation, moved = 0;
    for (uint64_t i = 0; i < NUM; i++) {
        CHECK(dlfs_writer_next_id(writer, &next) == 0);
        moved += next != i;
        sample = sample_of(next, &field);
        CHECK(dlfs_write(writer, &sample, &id) == 0 && id == next);
    }
    CHECK(moved > NUM / 2);
    FAILS(DLFS_E_INVALID, dlfs_writer_next_id(writer, &next), "announced");
    FAILS(DLFS_E_INVALID, dlfs_write(writer, &sample, NULL), "announced");
    CHECK(dlfs_writer_finish(writer, &generation) == 0 && generation == 1);
    read_back(address, 1);

    // In windows, over what is there; a bad sample costs nothing.
    FAILS(DLFS_E_REFUSED, dlfs_writer_open(address, NULL, NULL, &writer), "an image");
    dlfs_writer_options over = {.size = sizeof over, .onto = DLFS_WRITE_OVERWRITE, .shuffle_bytes = 30000};
    CHECK(dlfs_writer_open(address, &over, NULL, &writer) == 0);
    sample = sample_of(0, &field);
    sample.num_fields = 0;
    FAILS(DLFS_E_INVALID, dlfs_write(writer, &sample, NULL), "it has 0 fields");
    sample = sample_of(0, &field);
    sample.class_name = "cat";
    FAILS(DLFS_E_INVALID, dlfs_write(writer, &sample, NULL), "the other is DLFS_NO_LABEL or NULL");
    for (uint64_t i = 0; i < NUM; i++) {
        sample = sample_of(i, &field);
        CHECK(dlfs_write(writer, &sample, &id) == 0 && id == i);
    }
    CHECK(dlfs_writer_finish(writer, NULL) == 0);
    read_back(address, 1);

    // Fields, a class, columns; then more of them.
    const char *names[] = {"jpg", "txt"}, *columns[] = {"width:int", "lang:str", "score:float"};
    over.fields = names;
    over.num_fields = 2;
    over.columns = columns;
    over.num_columns = 3;
    const char *wrong[] = {"width"};
    dlfs_writer_options bad = over;
    bad.columns = wrong;
    bad.num_columns = 1;
    FAILS(DLFS_E_INVALID, dlfs_writer_open(address, &bad, NULL, &writer), "NAME:TYPE");
    const char *strange[] = {NULL, "f31"}, *types[] = {NULL, "u16[*]"};
    bad = over;
    bad.field_types = strange;
    FAILS(DLFS_E_INVALID, dlfs_writer_open(address, &bad, NULL, &writer), "no element type");
    over.field_types = types;
    CHECK(dlfs_writer_open(address, &over, NULL, &writer) == 0);
    dlfs_new_field odd[] = {{(const uint8_t *)"pixels", 6}, {(const uint8_t *)"odd", 3}};
    dlfs_new_sample misfit = {.size = sizeof misfit, .fields = odd, .num_fields = 2, .label = DLFS_NO_LABEL};
    FAILS(DLFS_E_INVALID, dlfs_write(writer, &misfit, NULL), "a multiple of 2 bytes");
    dlfs_new_field both[] = {{(const uint8_t *)"pixels", 6}, {NULL, 0}};
    dlfs_new_value values[] = {{.column = "width", .type = DLFS_COLUMN_INT, .number = 512},
                               {.column = "lang", .type = DLFS_COLUMN_STR, .text = "de"},
                               {.column = "score", .type = DLFS_COLUMN_FLOAT, .real = NAN}};
    dlfs_new_sample named = {.size = sizeof named,
                             .name = "a/1",
                             .fields = both,
                             .num_fields = 2,
                             .label = DLFS_NO_LABEL,
                             .class_name = "cat",
                             .values = values,
                             .num_values = 3};
    CHECK(dlfs_write(writer, &named, &id) == 0 && id == 0);
    FAILS(DLFS_E_INVALID, dlfs_write(writer, &named, &id), "another sample has its name");
    CHECK(dlfs_writer_finish(writer, NULL) == 0);
    dlfs_writer_options more = {.size = sizeof more, .onto = DLFS_WRITE_APPEND};
    CHECK(dlfs_writer_open(address, &more, NULL, &writer) == 0);
    named.name = NULL;
    named.class_name = "dog";
    CHECK(dlfs_write(writer, &named, &id) == 0 && id == 1);
    CHECK(dlfs_writer_finish(writer, &generation) == 0 && generation == 2);

    dlfs_fs *fs;
    CHECK(dlfs_mount(address, NULL, &fs) == 0);
    dlfs_sample found = {.size = sizeof found};
    CHECK(dlfs_stat(fs, "000000001", &found) == 0 && found.id == 1 && found.label == 1);
    CHECK(dlfs_stat(fs, "a/1", &found) == 0 && found.id == 0 && found.label == 0);
    uint64_t width;
    uint32_t type;
    CHECK(dlfs_column_number(fs, "width", &width, &type) == 0 && type == DLFS_COLUMN_INT);
    CHECK(dlfs_unmount(fs) == 0);
    return 0;
}
