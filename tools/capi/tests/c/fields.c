// Samples of several fields.  fields ADDRESS: two fields, "cls" and "txt", the second sample without one.

#include "check.h"

static void check(const dlfs_item *item) {
    CHECK(item->status == DLFS_OK && item->num_fields == 2);
    const dlfs_field *cls = &item->fields[0], *txt = &item->fields[1];
    CHECK(cls->len == 1 && cls->data[0] == '4' + (int)item->id);
    if (item->id == 1) CHECK(txt->data == NULL && txt->len == 0);
    else CHECK(txt->len == 5 && !memcmp(txt->data, "hello", 5));
}

static void arrived(void *user, const dlfs_item *item) {
    check(item);
    ++*(int *)user;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_fs *fs;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    char first[10], second[10];
    CHECK(dlfs_field_name(fs, 0, first, 10, NULL) == 0 && dlfs_field_name(fs, 1, second, 10, NULL) == 0);
    CHECK(!strcmp(first, "cls") && !strcmp(second, "txt"));
    uint64_t ids[] = {2, 1, 0};
    char out[1000];
    int seen = 0;
    for (int own = 0; own < 2; own++) {
        dlfs_read_request request = {
            .size = sizeof request, .ids = ids, .count = 3, .arrived = arrived, .user = &seen};
        if (own) request.out = out, request.out_len = sizeof out;
        dlfs_batch batch = {.size = sizeof batch};
        CHECK(dlfs_read_batch(fs, &request, &batch) == 0);
        for (size_t i = 0; i < batch.count; i++) check(&batch.items[i]);
        CHECK(dlfs_release(&batch) == 0);
    }
    CHECK(seen == 6 && dlfs_unmount(fs) == 0);
    return 0;
}
