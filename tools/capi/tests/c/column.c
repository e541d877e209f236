// Typed columns.  column ADDRESS: 180 samples of which the first 90 have values: n = id * 3 - 100, x = id / 4,
// lang = "de" or "en", good = 1 if the id is even.

#include <math.h>

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    dlfs_fs *fs;
    CHECK(dlfs_mount(argv[1], NULL, &fs) == 0);
    uint64_t n, x, lang, good;
    uint32_t type;
    CHECK(dlfs_column_number(fs, "n", &n, &type) == 0 && n == 0 && type == DLFS_COLUMN_INT);
    CHECK(dlfs_column_number(fs, "x", &x, &type) == 0 && type == DLFS_COLUMN_FLOAT);
    CHECK(dlfs_column_number(fs, "lang", &lang, &type) == 0 && type == DLFS_COLUMN_STR);
    CHECK(dlfs_column_number(fs, "good", &good, &type) == 0 && type == DLFS_COLUMN_BOOL);

    uint64_t ids[NUM];
    int64_t ints[NUM], codes[NUM], bits[NUM];
    double floats[NUM], wide[NUM];
    for (int i = 0; i < NUM; i++) ids[i] = (uint64_t)(NUM - 1 - i);
    CHECK(dlfs_column_ints(fs, n, ids, NUM, ints) == 0 && dlfs_column_ints(fs, lang, ids, NUM, codes) == 0);
    CHECK(dlfs_column_floats(fs, x, ids, NUM, floats) == 0 && dlfs_column_floats(fs, n, ids, NUM, wide) == 0);
    CHECK(dlfs_column_ints(fs, good, ids, NUM, bits) == 0);
    for (int i = 0; i < NUM; i++) {
        int64_t id = (int64_t)ids[i];
        if (id >= 90) {
            CHECK(ints[i] == DLFS_NO_LABEL && codes[i] == DLFS_NO_LABEL && bits[i] == DLFS_NO_LABEL);
            CHECK(isnan(floats[i]) && isnan(wide[i]));
            continue;
        }
        CHECK(ints[i] == id * 3 - 100 && wide[i] == (double)ints[i] && floats[i] == (double)id / 4);
        char text[8];
        size_t needed;
        CHECK(dlfs_column_text(fs, lang, (uint64_t)codes[i], text, sizeof text, &needed) == 0 && needed == 3);
        CHECK(!strcmp(text, id % 2 ? "en" : "de") && bits[i] == (id % 2 == 0));
    }
    char name[8];
    CHECK(dlfs_column_name(fs, x, name, sizeof name, NULL) == 0 && !strcmp(name, "x"));

    dlfs_fs *view;
    CHECK(dlfs_select(fs, "lang == 'en' and x >= 10.25", &view) == 0);
    dlfs_info info = {.size = sizeof info};
    CHECK(dlfs_get_info(view, &info) == 0 && info.num_samples == 25);
    CHECK(dlfs_column_ints(view, n, &(uint64_t){41}, 1, ints) == 0 && ints[0] == 23);
    FAILS(DLFS_E_NOT_FOUND, dlfs_column_ints(view, n, &(uint64_t){40}, 1, ints), "no sample 40");
    CHECK(dlfs_unmount(view) == 0);

    FAILS(DLFS_E_NOT_FOUND, dlfs_column_number(fs, "m", &n, &type), "there are n, x, lang, good");
    FAILS(DLFS_E_NOT_FOUND, dlfs_column_name(fs, 4, name, sizeof name, NULL), "there are 4");
    FAILS(DLFS_E_NOT_FOUND, dlfs_column_text(fs, lang, 2, name, sizeof name, NULL), "there are 2");
    FAILS(DLFS_E_NOT_FOUND, dlfs_column_ints(fs, n, &(uint64_t){NUM}, 1, ints), "no sample 180");
    FAILS(DLFS_E_INVALID, dlfs_column_ints(fs, x, ids, 1, ints), "dlfs_column_floats");
    FAILS(DLFS_E_INVALID, dlfs_column_floats(fs, lang, ids, 1, floats), "dlfs_column_ints");
    FAILS(DLFS_E_INVALID, dlfs_column_ints(fs, n, NULL, 1, ints), "ids");
    FAILS(DLFS_E_INVALID, dlfs_column_ints(fs, n, ids, 1, NULL), "values");
    FAILS(DLFS_E_INVALID, dlfs_column_number(fs, NULL, &n, &type), "name");
    FAILS(DLFS_E_HANDLE, dlfs_column_number(NULL, "n", &n, &type), "");
    CHECK(dlfs_column_ints(fs, n, NULL, 0, NULL) == 0);
    CHECK(dlfs_unmount(fs) == 0);
    return 0;
}
