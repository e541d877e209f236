// Imports folders, and writes an image, by parts.  parts FOLDER: with the folders first and later.

#include <string.h>
#include <sys/stat.h>

#include "check.h"

static char paths[8][4096];

// FOLDER/name, in one of some buffers.
static const char *at(const char *folder, const char *name) {
    static int next = 0;
    char *path = paths[next++ % 8];
    CHECK(snprintf(path, sizeof paths[0], "%s/%s", folder, name) < (int)sizeof paths[0]);
    return path;
}

static void holds(const char *address, uint64_t samples, uint64_t generation) {
    dlfs_fs *fs;
    CHECK(dlfs_mount(address, NULL, &fs) == 0);
    dlfs_info info = {.size = sizeof info};
    CHECK(dlfs_get_info(fs, &info) == 0 && info.num_samples == samples && info.generation == generation);
    CHECK(dlfs_unmount(fs) == 0);
}

static int stop_at_once(void *context) {
    (void)context;
    return 1;
}

static void import_by_parts(const char *folder, const char *image) {
    const char *first[] = {at(folder, "first")}, *later[] = {at(folder, "later")};
    const char *plan = at(folder, "import.plan"), *append = at(folder, "append.plan");
    dlfs_import_options options = {.size = sizeof options, .seed = 3, .chunk_size = 64 << 10};
    uint64_t samples, generation, all = 0;

    dlfs_mount_options stopped = {.size = sizeof stopped, .should_stop = stop_at_once};
    FAILS(DLFS_E_INTERRUPTED, dlfs_import_plan(first, 1, image, &options, &stopped, plan, NULL), "stopped");
    CHECK(dlfs_import_plan(first, 1, image, &options, NULL, plan, &samples) == 0 && samples == 120);
    FAILS(DLFS_E_REFUSED, dlfs_import_plan(first, 1, image, &options, NULL, plan, NULL), "a file here already");
    CHECK(dlfs_import_part(plan, 1, NULL, &samples) == 0 && samples > 0);
    all += samples;
    FAILS(DLFS_E_NOT_FOUND, dlfs_import_commit(plan, 0, NULL, NULL), "part 0 is not complete");
    FAILS(DLFS_E_INVALID, dlfs_import_part(plan, 2, NULL, NULL), "no part 2");
    FAILS(DLFS_E_INVALID, dlfs_import_part(plan, 1u << 20, NULL, NULL), "no part 1048576");
    CHECK(dlfs_import_part(plan, 0, NULL, &samples) == 0 && all + samples == 120);
    CHECK(dlfs_import_part(plan, 0, NULL, NULL) == 0);
    CHECK(dlfs_import_commit(plan, 0, NULL, &generation) == 0 && generation == 1);
    CHECK(dlfs_import_commit(plan, 0, NULL, NULL) == 0);
    holds(image, 120, 1);

    options.onto = DLFS_WRITE_APPEND;
    CHECK(dlfs_import_plan(later, 1, image, &options, NULL, append, &samples) == 0 && samples == 40);
    holds(image, 120, 1);
    for (uint32_t part = 0; part < 2; part++) CHECK(dlfs_import_part(append, part, NULL, NULL) == 0);
    CHECK(dlfs_import_commit(append, 0, NULL, &generation) == 0 && generation == 2);
    holds(image, 160, 2);
    FAILS(DLFS_E_STALE, dlfs_import_commit(plan, 0, NULL, NULL), "has changed since");

    const char *wrong = at(folder, "wrong.plan");
    FAILS(DLFS_E_INVALID, dlfs_import_plan(NULL, 1, image, &options, NULL, wrong, NULL), "sources");
    options.onto = 9;
    FAILS(DLFS_E_INVALID, dlfs_import_plan(first, 1, image, &options, NULL, wrong, NULL), "onto");
    options.onto = DLFS_WRITE_NEW;
    options.from = "something";
    FAILS(DLFS_E_INVALID, dlfs_import_plan(first, 1, image, &options, NULL, wrong, NULL), "something");
    FAILS(DLFS_E_NOT_FOUND, dlfs_import_part(wrong, 0, NULL, NULL), "wrong.plan");
}

static void write_part(const char *plan, uint64_t part, uint64_t count) {
    const char *classes[] = {"cat", "dog"};
    dlfs_writer *writer;
    CHECK(dlfs_writer_open_part(plan, part, 0, NULL, &writer) == 0);
    dlfs_writer *second;
    FAILS(DLFS_E_BUSY, dlfs_writer_open_part(plan, part, 0, NULL, &second), "");
    for (uint64_t i = 0; i < count; i++) {
        dlfs_new_field field = {.data = (const uint8_t *)&i, .len = sizeof i};
        dlfs_new_sample sample = {.size = sizeof sample, .fields = &field, .num_fields = 1,
                                  .label = DLFS_NO_LABEL, .class_name = classes[i % 2]};
        uint64_t next, id;
        CHECK(dlfs_writer_next_id(writer, &next) == 0 && next == i);
        CHECK(dlfs_write(writer, &sample, &id) == 0 && id == i);
    }
    uint64_t generation = 7;
    CHECK(dlfs_writer_finish(writer, &generation) == 0 && generation == 0);
}

static void write_by_parts(const char *folder, const char *image) {
    const char *plan = at(folder, "write.plan"), *classes[] = {"cat", "dog"};
    dlfs_writer_options append = {.size = sizeof append, .onto = DLFS_WRITE_APPEND};
    FAILS(DLFS_E_INVALID, dlfs_write_plan(image, &append, classes, 2, NULL, plan), "a plan is for a new image");
    CHECK(dlfs_write_plan(image, NULL, classes, 2, NULL, plan) == 0);
    for (uint64_t part = 0; part < 3; part++) write_part(plan, part, 50 + part);
    dlfs_writer *writer;
    CHECK(dlfs_writer_open_part(plan, 3, 1, NULL, &writer) == 0 && dlfs_writer_discard(writer) == 0);
    FAILS(DLFS_E_INVALID, dlfs_writer_open_part(plan, 3, 2, NULL, &writer), "anywhere");
    FAILS(DLFS_E_NOT_FOUND, dlfs_import_commit(plan, 4, NULL, NULL), "part 3 is not complete");
    FAILS(DLFS_E_INVALID, dlfs_import_commit(plan, 0, NULL, NULL), "not the plan of an import");
    uint64_t generation;
    CHECK(dlfs_import_commit(plan, 3, NULL, &generation) == 0 && generation == 1);
    holds(image, 153, 1);
    FAILS(DLFS_E_INVALID, dlfs_writer_open_part(plan, 0, 0, NULL, &writer), "committed already");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char image[2 * 4096];
    snprintf(image, sizeof image, "%s,%s", at(argv[1], "i0"), at(argv[1], "i1"));
    import_by_parts(argv[1], image);
    snprintf(image, sizeof image, "%s,%s", at(argv[1], "w0"), at(argv[1], "w1"));
    write_by_parts(argv[1], image);
    return 0;
}
