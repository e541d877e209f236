"""Rows of tokens from one corpus by dlfs and by the loaders that others train language models with.

    python benches/tokens_peers.py [--peers dlfs,Mega] [--seq-lens 2048,8192] [--workers 0,2] [--rounds 3]

Documents of u16 tokens, log-normal with a mean of 1,000, each with a separator at its end, in the page cache. Batches
of 65,536 inputs. Each measurement is a process of its own, one after the other; it takes 20 batches first, and then
copies tokens and labels of each batch into two reused int64 arrays, as a job copies them to pinned memory. Rates are
medians of the rounds. Only dlfs verifies what it reads. `pip install megatron-core litdata mosaicml-streaming datasets`
has the others; one that cannot be imported is left out, with the reason. MosaicML's wants a transformers of its own, in
the folder DLBENCH_MOSAIC_OVERLAY (see peers/install.sh), which its process alone sees.
"""

import argparse
import functools
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy

import results

BATCH_TOKENS = 65_536
SEPARATOR = 50_256
PEERS = {}


def peer(name, workers=(0, 2)):
    """Registers a loader: a function of (folder, seq_len, batch_size, workers) that yields (tokens, labels)."""

    def register(function):
        PEERS[name] = (function, workers)
        return function

    return register


def corpus(folder):
    """The tokens, mapped, and the first token of each document, and the end."""
    return numpy.memmap(folder / "corpus.bin", "u2", "r"), numpy.load(folder / "starts.npy")


def documents(folder):
    tokens, starts = corpus(folder)
    return (tokens[start:end] for start, end in itertools.pairwise(starts))


def shifted(rows):
    """Inputs and labels of rows of L + 1 tokens."""
    return rows[:, :-1], rows[:, 1:]


def torch_loader(dataset, batch_size, workers, **options):
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size, num_workers=workers, persistent_workers=workers > 0, **options)


def endless(loader):
    while True:
        yield from loader


@functools.cache
def concat_dataset():
    """torchtitan's way to pack: a buffer of tokens, of which rows are cut. Its class, as torch is imported late."""
    from torch.utils.data import IterableDataset

    class Concat(IterableDataset):
        def __init__(self, rows, seq_len, as_list):
            self.rows, self.len, self.as_list = rows, seq_len + 1, as_list

        def __iter__(self):
            import torch

            buffer = [] if self.as_list else numpy.empty(0, "i8")
            for row in endless(self.rows):
                more = row["tokens"]
                if self.as_list:
                    buffer.extend(more)
                else:
                    buffer = numpy.concatenate((buffer, more))
                while len(buffer) >= self.len:
                    x = torch.LongTensor(buffer[: self.len]) if self.as_list else torch.from_numpy(buffer[: self.len])
                    buffer = buffer[self.len :]
                    yield x

    return Concat


# Loaders.


@peer("dlfs", workers=(0,))
def dlfs_rows(folder, seq_len, batch_size, workers):
    import dlfs
    import dlfs.tokens

    image = folder / "corpus.dlfs"
    if not image.exists():
        with dlfs.Writer(str(image), fields={"tokens": "u16[*]"}) as out:
            for document in documents(folder):
                out.write({"tokens": document})
    loader = dlfs.tokens.Loader(dlfs.open(str(image)), seq_len, batch_size, seed=7, epochs=1000)
    for rows in endless(loader):
        rows = rows.torch()
        yield rows.tokens, rows.labels


@peer("Megatron-core GPTDataset")
def megatron(folder, seq_len, batch_size, workers):
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split

    prefix = folder / "megatron"
    if not prefix.with_suffix(".idx").exists():
        import torch

        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
        for document in documents(folder):
            builder.add_item(torch.from_numpy(document.astype("i4")))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")

    class Tokenizer:
        vocab_size, eod, pad, unique_identifiers = SEPARATOR + 1, SEPARATOR, -1, {}

    config = GPTDatasetConfig(
        random_seed=7,
        sequence_length=seq_len,
        split="1",
        path_to_cache=f"{folder}/megatron-cache",
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low = IndexedDataset(str(prefix), multimodal=False, mmap=True)
    dataset = GPTDataset(low, str(prefix), numpy.arange(len(low), dtype="i4"), None, Split.train, config)
    for batch in endless(torch_loader(dataset, batch_size, workers, drop_last=True)):
        yield batch["tokens"], batch["labels"]


@peer("LitData TokensLoader")
def litdata(folder, seq_len, batch_size, workers):
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    chunks = folder / f"litdata-{seq_len}"
    if not chunks.exists():
        import torch
        from litdata.streaming.writer import BinaryWriter

        tokens = (seq_len + 1) * (33_554_432 // (seq_len + 1))  # chunks of whole rows, 64 MiB, as litgpt makes them
        writer = BinaryWriter(str(chunks), chunk_size=tokens, item_loader=TokensLoader())
        for number, document in enumerate(documents(folder)):
            writer[number] = torch.from_numpy(document.copy())
        writer.done()
        writer.merge()
    dataset = StreamingDataset(str(chunks), item_loader=TokensLoader(seq_len + 1), shuffle=True, drop_last=True, seed=7)
    loader = StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers, drop_last=True)
    yield from map(shifted, endless(loader))


@peer("MosaicML Streaming")
def mosaic(folder, seq_len, batch_size, workers):
    overlay = os.path.expanduser("~/.cache/dlfs-peers/overlay-mosaic")
    sys.path.insert(0, os.environ.get("DLBENCH_MOSAIC_OVERLAY", overlay))
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    shards = folder / f"mds-{seq_len}"
    if not shards.exists():
        with MDSWriter(out=str(shards), columns={"tokens": f"ndarray:uint16:{seq_len + 1}"}, progress_bar=False) as out:
            tokens, _ = corpus(folder)
            for start in range(0, len(tokens) - seq_len - 1, seq_len + 1):
                out.write({"tokens": numpy.array(tokens[start : start + seq_len + 1])})
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(shards), shuffle=True, batch_size=batch_size)
    loader = torch_loader(dataset, batch_size, workers, drop_last=True)
    yield from (shifted(batch["tokens"]) for batch in endless(loader))


def hugging_face(folder, seq_len, batch_size, workers, as_list):
    import datasets
    import pyarrow

    saved = folder / "arrow"
    if not saved.exists():
        tokens, starts = corpus(folder)
        lists = pyarrow.LargeListArray.from_arrays(pyarrow.array(starts), pyarrow.array(numpy.array(tokens)))
        datasets.Dataset(pyarrow.table({"tokens": lists})).save_to_disk(saved, num_shards=64)
    rows = datasets.load_from_disk(saved).with_format(None if as_list else "numpy")
    rows = rows.to_iterable_dataset(num_shards=64).shuffle(seed=7, buffer_size=1000)
    loader = torch_loader(concat_dataset()(rows, seq_len, as_list), batch_size, workers, drop_last=True)
    yield from map(shifted, loader)


PEERS["Hugging Face, lists end to end, as torchtitan"] = (functools.partial(hugging_face, as_list=True), (0, 2))
PEERS["Hugging Face, arrays end to end"] = (functools.partial(hugging_face, as_list=False), (0, 2))


@peer("random rows of a mapped file, as nanoGPT", workers=(0,))
def mapped(folder, seq_len, batch_size, workers):
    import torch

    tokens, _ = corpus(folder)
    draw = numpy.random.default_rng(7)
    while True:
        starts = draw.integers(0, len(tokens) - seq_len - 1, batch_size)
        yield shifted(torch.stack([torch.from_numpy(tokens[at : at + seq_len + 1].astype("i8")) for at in starts]))


# Measuring.


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="beginnings of names; all by default")
    parser.add_argument("--seq-lens", default="2048,8192")
    parser.add_argument("--workers", default="0,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--corpus", type=int, default=400_000_000, help="bytes")
    parser.add_argument("--at", default=None, help="where the corpus goes, in all its forms: 5 times its bytes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(options, *json.loads(options.one))
    folder = Path(tempfile.mkdtemp(dir=options.at))
    try:
        make(folder, options.corpus)
        measure(options, folder)
    finally:
        shutil.rmtree(folder)


def make(folder, length):
    draw = numpy.random.default_rng(7)
    sigma, mean = 1.1, 1000
    lens = draw.lognormal(numpy.log(mean) - sigma**2 / 2, sigma, length // 2 // 500).astype("i8") + 2
    starts = numpy.concatenate(([0], numpy.cumsum(lens)))
    starts = starts[: numpy.searchsorted(starts, length // 2)]
    tokens = draw.integers(0, SEPARATOR, starts[-1], "u2")
    tokens[starts[1:] - 1] = SEPARATOR
    tokens.tofile(folder / "corpus.bin")
    numpy.save(folder / "starts.npy", starts)


def measure(options, folder):
    print(f"{results.machine()}; load averages {' '.join(map('{:.2f}'.format, os.getloadavg()))}", flush=True)
    wanted = tuple(options.peers.split(","))
    names = [name for name in PEERS if name.startswith(wanted)]
    workers = {int(count) for count in options.workers.split(",")}
    lines = ["| loader | L | workers | million tokens/s | GB/s of u16 | least to most | of dlfs |", "|---" * 7 + "|"]
    missing = {}
    for seq_len in map(int, options.seq_lens.split(",")):
        runs = {(name, count): [] for name in names for count in PEERS[name][1] if count in workers}
        for _ in range(options.rounds):
            for (name, count), rates in runs.items():
                rate = missing.get(name) or run(options, folder, name, seq_len, count)
                if isinstance(rate, str):
                    missing[name] = rate
                else:
                    rates.append(rate)
        rates = {case: statistics.median(found) for case, found in runs.items() if found}
        beside = rates.get(("dlfs", 0))
        for (name, count), rate in rates.items():
            spread = " to ".join(f"{of(runs[name, count]) / 1e6:.1f}" for of in (min, max))
            of_dlfs = f"{rate / beside:.2f}" if beside else ""
            rate = f"{rate / 1e6:.1f} | {rate * 2 / 1e9:.3f}"
            lines.append(f"| {name} | {seq_len} | {count} | {rate} | {spread} | {of_dlfs} |")
            print(lines[-1], file=sys.stderr, flush=True)
    lines += [""] * bool(missing) + [f"Left out: {name}: {why}" for name, why in missing.items()]
    print("\n".join(lines))
    results.record("tokens_peers", "python benches/tokens_peers.py " + " ".join(sys.argv[1:]), "\n".join(lines))


def run(options, folder, name, seq_len, workers):
    """Tokens a second, or the reason why there are none."""
    case = json.dumps([str(folder), name, seq_len, workers])
    command = [sys.executable, __file__, "--one", case, "--seconds", str(options.seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "no result within 10 minutes"
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return (done.stderr.strip().splitlines() or ["it ended"])[-1]
    return float(done.stdout.split()[-1])


def one(options, folder, name, seq_len, workers):
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    batch_size = BATCH_TOKENS // seq_len
    kept = torch.empty(2, batch_size, seq_len, dtype=torch.int64)
    batches = PEERS[name][0](Path(folder), seq_len, batch_size, workers)
    count = 0
    for number, (tokens, labels) in enumerate(batches):
        assert tuple(tokens.shape) == tuple(labels.shape) == (batch_size, seq_len), tokens.shape
        kept[0].copy_(tokens)
        kept[1].copy_(labels)
        if number == 20:
            began = time.perf_counter()
            count = -1
        count += 1
        if number > 20 and time.perf_counter() - began > options.seconds:
            break
    rate = count * BATCH_TOKENS / (time.perf_counter() - began)
    print(rate, flush=True)
    os._exit(0)  # workers of some loaders take long to end


if __name__ == "__main__":
    main()
