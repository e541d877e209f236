// The header is C++ too.  plus ADDRESS

#include <dlfs.h>
#include <cstring>
#include <string>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dlfs_fs *fs = nullptr;
    if (dlfs_mount(argv[1], nullptr, &fs) != DLFS_OK) return 1;
    dlfs_sequence_options options;
    std::memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.batch_size = 50;
    options.epochs = 1;
    dlfs_seq *seq = nullptr;
    if (dlfs_sequence(fs, &options, &seq) != DLFS_OK) return 1;
    dlfs_batch batch = dlfs_batch();
    batch.size = sizeof batch;
    std::size_t samples = 0;
    std::string bytes;
    while (dlfs_bread(seq, &batch) == DLFS_OK) {
        samples += batch.count;
        for (std::size_t i = 0; i < batch.count; i++)
            bytes.append(reinterpret_cast<const char *>(batch.items[i].data), batch.items[i].len);
        dlfs_release(&batch);
    }
    dlfs_sequence_close(seq);
    dlfs_unmount(fs);
    return samples == 180 && !bytes.empty() ? 0 : 1;
}
