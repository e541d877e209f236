"""Reads a folder with the input pipelines of TensorFlow or DALI, and prints what they delivered.

pipelines.py FOLDER --make           writes TFRecord shards to FOLDER/records and files of classes to FOLDER/classes
pipelines.py FOLDER tf|dali          reads them in two epochs, and prints a line for each
"""

import hashlib
import os
import random
import struct
import sys

LONG = 18 << 20  # longer than what the preload library always copies


def crc32c(data, table=[]):
    if not table:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
            table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def make(folder):
    draw = random.Random(20261128)
    os.makedirs(f"{folder}/records")
    for shard in range(4):
        with open(f"{folder}/records/part-{shard:05}.tfrecord", "wb") as file:
            for _ in range(50):
                data = draw.randbytes(draw.randrange(2000))
                length = struct.pack("<Q", len(data))
                file.write(length + masked(length) + data + masked(data))
    for name in ("ant", "bee"):
        os.makedirs(f"{folder}/classes/{name}")
        for number in range(20):
            with open(f"{folder}/classes/{name}/{number:02}.bin", "wb") as file:
                file.write(draw.randbytes(LONG if number == 7 else 1 + draw.randrange(5000)))


def digest(records):
    """Of records in any order."""
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(record).digest() for record in records))).hexdigest()


def tf(folder):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow

    files = tensorflow.data.Dataset.list_files(f"{folder}/records/*.tfrecord", shuffle=True, seed=7)
    records = files.interleave(tensorflow.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4)
    for epoch in range(2):
        found = [record.numpy() for record in records.shuffle(64, seed=epoch)]
        print("tf.data", len(found), digest(found))
    whole = tensorflow.io.gfile.glob(f"{folder}/classes/*/*.bin")
    print("tf.io", len(whole), digest(tensorflow.io.read_file(path).numpy() for path in whole))


def dali(folder):
    from nvidia.dali import fn, pipeline_def

    for is_mapped in (True, False):

        @pipeline_def(batch_size=8, num_threads=2, device_id=None)
        def reads():
            data, labels = fn.readers.file(
                file_root=f"{folder}/classes", file_filters=["*.bin"], random_shuffle=True, seed=7,
                dont_use_mmap=not is_mapped,
            )
            return data, labels

        pipe = reads()
        pipe.build()
        for _ in range(2):
            found = []
            for _ in range(40 // 8):
                data, labels = pipe.run()
                found += [bytes(data.at(i)) + bytes(labels.at(i)) for i in range(8)]
            print("dali", "mapped" if is_mapped else "read", len(found), digest(found))


def main():
    folder, what = sys.argv[1:]
    if what == "--make":
        return make(folder)
    {"tf": tf, "dali": dali}[what](folder)


main()
