// Types of fields.  field_type TYPED PLAIN: two images of the same samples with the fields "cls" and "txt", which are
// i64 and u8[5] in the first one, and bytes in the other.

#include <stdint.h>

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 3);
    dlfs_fs *fs;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    dlfs_field_type type = {.size = sizeof type};
    CHECK(dlfs_get_field_type(fs, 0, &type) == 0 && type.size == sizeof type);
    CHECK(type.element == DLFS_ELEMENT_I64 && type.element_len == 8 && type.num_dims == 0);
    CHECK(dlfs_get_field_type(fs, 1, &type) == 0);
    CHECK(type.element == DLFS_ELEMENT_U8 && type.element_len == 1 && type.num_dims == 1 && type.dims[0] == 5);
    FAILS(DLFS_E_NOT_FOUND, dlfs_get_field_type(fs, 2, &type), "there is no field 2, there are 2");
    type.size = 1;
    FAILS(DLFS_E_SIZE, dlfs_get_field_type(fs, 0, &type), "dlfs_field_type");
    FAILS(DLFS_E_INVALID, dlfs_get_field_type(fs, 0, NULL), "NULL");

    uint64_t ids[] = {2, 1, 0};
    dlfs_read_request request = {.size = sizeof request, .ids = ids, .count = 3};
    dlfs_batch batch = {.size = sizeof batch};
    CHECK(dlfs_read_batch(fs, &request, &batch) == 0);
    for (size_t i = 0; i < batch.count; i++) {
        const dlfs_field *cls = &batch.items[i].fields[0], *txt = &batch.items[i].fields[1];
        int64_t number;
        CHECK(cls->len == sizeof number);
        memcpy(&number, cls->data, sizeof number);
        CHECK(number == 4 + (int64_t)ids[i] && (ids[i] == 1 ? txt->data == NULL : txt->len == 5));
    }
    CHECK(dlfs_release(&batch) == 0 && dlfs_unmount(fs) == 0);

    CHECK(dlfs_mount(argv[2], NULL, &fs) == 0);
    type.size = sizeof type;
    CHECK(dlfs_get_field_type(fs, 0, &type) == 0 && type.element == DLFS_ELEMENT_BYTES);
    CHECK(type.num_dims == 1 && type.dims[0] == 0 && dlfs_unmount(fs) == 0);
    return 0;
}
