// Uses a data set like files: lists a folder, opens, reads and closes one sample, and then reads
// many by name in one call, which passes on each as it arrives.
//
//   cc files.c $(pkg-config --cflags --libs dlfs) -o files
//   ./files train.dlfs class0

#include <dlfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64

struct names {
    char *list[MOST];
    size_t count;
};

static int keep(void *user, const char *name, uint64_t id) {
    struct names *names = user;
    (void)id;
    names->list[names->count++] = strdup(name);
    return names->count == MOST;
}

static void arrived(void *user, const dlfs_item *item) {
    if (item->status == DLFS_OK) *(size_t *)user += item->len;
}

static int fail(const char *doing) {
    fprintf(stderr, "%s: %s\n", doing, dlfs_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s ADDRESS FOLDER\n", argv[0]);
        return 2;
    }
    dlfs_fs *fs;
    if (dlfs_mount(argv[1], NULL, &fs)) return fail("mount");

    struct names names = {{0}, 0};
    int listed = dlfs_list(fs, argv[2], 1, keep, &names);
    if (listed && listed != DLFS_E_INTERRUPTED) return fail("list");
    if (names.count == 0) {
        fprintf(stderr, "there is nothing in %s\n", argv[2]);
        return 1;
    }

    dlfs_file *file;
    char part[1000];
    int64_t got, len = 0;
    if (dlfs_open(fs, names.list[0], &file)) return fail("open");
    while ((got = dlfs_read(file, part, sizeof part)) > 0) len += got;
    if (got < 0) return fail("read");
    dlfs_close(file);
    printf("%s has %lld bytes\n", names.list[0], (long long)len);

    size_t seen = 0;
    dlfs_read_request request = {
        .size = sizeof request,
        .names = (const char *const *)names.list,
        .count = names.count,
        .arrived = arrived,
        .user = &seen,
    };
    dlfs_batch batch = {.size = sizeof batch};
    if (dlfs_read_batch(fs, &request, &batch)) return fail("read_batch");
    printf("%zu samples, %llu bytes, %zu of them seen as they arrived\n", batch.count,
           (unsigned long long)batch.len_bytes, seen);
    dlfs_release(&batch);

    for (size_t i = 0; i < names.count; i++) free(names.list[i]);
    dlfs_unmount(fs);
    return 0;
}
