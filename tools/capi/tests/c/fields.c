// Samples of several fields.  fields ADDRESS: two fields, "cls" and "txt", the second sample
// without one. The table of lengths of a record is never visible.

#include <stddef.h>

#include "check.h"

// Which field represents the sample: -1 for none.
static int chosen;

static void check(const dlfs_item *item) {
    CHECK(item->status == DLFS_OK && item->num_fields == 2 && item->label == 4 + (int)item->id);
    const dlfs_field *cls = &item->fields[0], *txt = &item->fields[1];
    CHECK(cls->len == 1 && cls->data[0] == '4' + (int)item->id);
    if (item->id == 1) CHECK(txt->data == NULL && txt->len == 0);
    else CHECK(txt->len == 5 && !memcmp(txt->data, "hello", 5));
    if (chosen < 0) CHECK(item->data == NULL && item->len == 0);
    else CHECK(item->data == item->fields[chosen].data && item->len == item->fields[chosen].len);
}

static void arrived(void *user, const dlfs_item *item) {
    check(item);
    ++*(int *)user;
}

static void batches(dlfs_fs *fs) {
    uint64_t ids[] = {2, 1, 0};
    // Exactly the bytes of the fields: 1 + 5, 1, 1 + 5.
    char out[13];
    int seen = 0;
    for (int own = 0; own < 2; own++) {
        dlfs_read_request request = {
            .size = sizeof request, .ids = ids, .count = 3, .arrived = arrived, .user = &seen};
        if (own) request.out = out, request.out_len = sizeof out;
        dlfs_batch batch = {.size = sizeof batch};
        CHECK(dlfs_read_batch(fs, &request, &batch) == 0);
        CHECK(batch.count == 3 && batch.len_bytes == 13);
        for (size_t i = 0; i < batch.count; i++) check(&batch.items[i]);
        if (own) CHECK(!memcmp(out, "6hello54hello", 13));
        CHECK(dlfs_release(&batch) == 0);
        request.out_len = 12;
        if (own) FAILS(DLFS_E_TOO_SMALL, dlfs_read_batch(fs, &request, &batch), "13 bytes");
    }
    CHECK(seen == 6);
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 2, .epochs = 1};
    dlfs_seq *seq;
    CHECK(dlfs_sequence(fs, &options, &seq) == 0);
    dlfs_batch batch = {.size = sizeof batch};
    while (dlfs_bread(seq, &batch) == DLFS_OK) {
        for (size_t i = 0; i < batch.count; i++, seen++) check(&batch.items[i]);
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(seen == 9 && dlfs_sequence_close(seq) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_fs *fs;
    // A program built before `field` existed.
    dlfs_mount_options before = {.size = offsetof(dlfs_mount_options, field)};
    CHECK(dlfs_mount(argv[1], &before, &fs) == 0);
    char first[10], second[10];
    CHECK(dlfs_field_name(fs, 0, first, 10, NULL) == 0 && dlfs_field_name(fs, 1, second, 10, NULL) == 0);
    CHECK(!strcmp(first, "cls") && !strcmp(second, "txt"));
    uint64_t number;
    CHECK(dlfs_field_number(fs, "txt", &number) == 0 && number == 1);
    FAILS(DLFS_E_NOT_FOUND, dlfs_field_number(fs, "png", &number), "they have cls, txt");
    dlfs_sample sample = {.size = sizeof sample};
    CHECK(dlfs_stat_id(fs, 0, &sample) == 0 && sample.len == 6 && sample.label == 4);
    chosen = -1;
    batches(fs);
    dlfs_file *file;
    FAILS(DLFS_E_INVALID, dlfs_open_id(fs, 0, &file), "none is named: they have cls, txt");
    CHECK(dlfs_unmount(fs) == 0);

    const char *names[] = {"cls", "txt"};
    for (chosen = 0; chosen < 2; chosen++) {
        dlfs_mount_options options = {.size = sizeof options, .field = names[chosen]};
        CHECK(dlfs_mount(argv[1], &options, &fs) == 0);
        batches(fs);
        for (uint64_t id = 0; id < 3; id++) {
            char buf[10];
            CHECK(dlfs_open_id(fs, id, &file) == 0);
            if (chosen == 0) CHECK(dlfs_read(file, buf, 10) == 1 && buf[0] == '4' + (int)id);
            else if (id == 1) FAILS(DLFS_E_NOT_FOUND, dlfs_read(file, buf, 10), "does not have the field");
            else CHECK(dlfs_pread(file, buf, 10, 1) == 4 && !memcmp(buf, "ello", 4));
            CHECK(dlfs_close(file) == 0);
        }
        CHECK(dlfs_unmount(fs) == 0);
    }
    dlfs_mount_options wrong = {.size = sizeof wrong, .field = "png"};
    FAILS(DLFS_E_NOT_FOUND, dlfs_mount(argv[1], &wrong, &fs), "samples have no field png: they have cls, txt");
    return 0;
}
