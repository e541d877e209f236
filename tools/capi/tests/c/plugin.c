// The library as a plugin: opened, used and closed again, also with everything left open.
// plugin ADDRESS LIBRARY

#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "%s\n", dlerror()), exit(1);
    return found;
}

// ISO C has no conversion from an object pointer to a function pointer.
#define BIND(name) __typeof__(&dlfs_##name) name; *(void **)&name = symbol(library, "dlfs_" #name)
#define WELL(call) do { if ((call) != 0) { fprintf(stderr, "%s: %s\n", #call, last_error()); exit(1); } } while (0)

static const char *address;
static int leave_open;

// On a thread of its own, which has ended when the library is closed.
static void *use(void *library) {
    BIND(last_error);
    BIND(mount);
    BIND(sequence);
    BIND(bread);
    BIND(release);
    BIND(sequence_close);
    BIND(unmount);
    dlfs_fs *fs;
    dlfs_seq *seq;
    dlfs_sequence_options options = {.size = sizeof options, .batch_size = 7, .window_bytes = 1 << 20};
    dlfs_batch batch = {.size = sizeof batch};
    WELL(mount(address, NULL, &fs));
    WELL(sequence(fs, &options, &seq));
    for (int i = 0; i < 5; i++) {
        WELL(bread(seq, &batch));
        if (batch.count != 7 || !right(&batch.items[0])) exit(1);
        WELL(release(&batch));
    }
    if (!leave_open) {
        WELL(sequence_close(seq));
        WELL(unmount(fs));
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    address = argv[1];
    for (int round = 0; round < 6; round++) {
        leave_open = round % 2;
        void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        if (!library) fprintf(stderr, "%s\n", dlerror()), exit(1);
        pthread_t thread;
        if (pthread_create(&thread, NULL, use, library) || pthread_join(thread, NULL)) return 1;
        dlclose(library);
        usleep(20000); // its threads, if there are any yet, continue
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        int status;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) return 1;
    }
    return 0;
}
