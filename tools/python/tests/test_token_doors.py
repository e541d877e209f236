"""dlfs.tokens_for: batches for each trainer, against rows of dlfs.tokens.Loader; and the trainers themselves, each of
which is skipped if it is not installed. test_tokens.py holds the rows."""

import dataclasses
import importlib.util
import itertools
import multiprocessing
import os
import pickle
import sys
import types

import numpy
import pytest

import dlfs
import dlfs.tokens
from conftest import SEED, free_port

torch = pytest.importorskip("torch", reason="torch is not installed")

import dlfs.tokens_for  # noqa: E402

LENGTH = 16
VOCABULARY = 60
OPTIONS = {"field": "tok", "separator": 0, "order": "grouped", "lanes": 8, "seed": 3}
PACKS = pytest.mark.parametrize("pack", ["concat", "best_fit", "none"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    print("seed", SEED)
    draw = numpy.random.default_rng(SEED)
    path = tmp_path_factory.mktemp("doors") / "corpus.dlfs"
    with dlfs.Writer(str(path), {"tok": "u16[*]", "loss": "u8[*]"}) as out:
        for count in draw.integers(0, 50, 300):
            tokens, loss = draw.integers(1, VOCABULARY, count), draw.integers(0, 2, count)
            out.write({"tok": tokens.astype("uint16"), "loss": loss.astype("uint8")})
    with dlfs.open(str(path)) as dataset:
        yield dataset


def rows_of(corpus, seq_len=LENGTH, batch_size=1, **options):
    """The rows of an epoch."""
    given = {**OPTIONS, "loss_mask": True, "position_ids": True, "segment_ids": True, **options}
    with dlfs.tokens.Loader(corpus, seq_len, batch_size, **given) as loader:
        return list(loader)


class Around(torch.utils.data.IterableDataset):
    """A data set of torch around a loader, or around one that each worker makes."""

    def __init__(self, loader, address=None):
        self.loader, self.address = loader, address

    def __iter__(self):
        if self.address is None:
            yield from (rows.tokens.tolist() for rows in self.loader)
            return
        info = torch.utils.data.get_worker_info()
        with dlfs.open(self.address) as corpus:
            options = {"rank": info.id, "world_size": info.num_workers, **OPTIONS}
            yield from (rows.tokens.tolist() for rows in dlfs.tokens.Loader(corpus, LENGTH, 4, **options))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_of_torch_are_refused_with_what_to_do(corpus):
    def around(*arguments, workers=0, start=None):
        data = Around(*arguments)
        return torch.utils.data.DataLoader(data, None, num_workers=workers, multiprocessing_context=start)

    expected = [row.tokens.tolist() for row in rows_of(corpus, batch_size=4)]
    with dlfs.tokens.Loader(corpus, LENGTH, 4, **OPTIONS) as loader:
        with pytest.raises(dlfs.InvalidArgument, match="for rows in loader.*megatron_dataset"):
            next(iter(torch.utils.data.DataLoader(loader, batch_size=None)))
        assert list(around(loader)) == expected
        for start in ("fork", "spawn"):
            with pytest.raises(Exception, match="set num_workers=0.*megatron_dataset"):
                next(iter(around(loader, workers=2, start=start)))
    # Loaders that the workers make themselves have shares of their own.
    assert list(around(None, corpus.address, workers=2, start="fork")) == expected[: len(expected) // 2 * 2]


def is_number(tensor, *shape, dtype=torch.int64):
    return tensor.dtype == dtype and tuple(tensor.shape) == shape


# Hugging Face.


@PACKS
@pytest.mark.parametrize("loss_mask", [True, "loss"])
def test_rows_for_transformers_are_labelled_with_their_own_tokens(corpus, pack, loss_mask):
    options = {**OPTIONS, "pack": pack, "loss_mask": loss_mask}
    data = dlfs.tokens_for.transformers(corpus, LENGTH, attention_mask=True, **options)
    assert isinstance(data, torch.utils.data.IterableDataset)
    rows = rows_of(corpus, LENGTH - 1, pack=pack, loss_mask=loss_mask)
    assert len(data) == len(rows)
    for given, row in zip(data, rows, strict=True):
        assert all(is_number(tensor, LENGTH) for tensor in given.values())
        inputs, labels = given["input_ids"].tolist(), given["labels"].tolist()
        # A narrow row is padded, since the Trainer stacks it with others.
        width = row.tokens.shape[1]
        behind = [0] * (LENGTH - 1 - width)
        assert inputs == [*row.tokens[0], row.labels[0, -1], *behind] and (pack == "none" or not behind)
        mask = [*row.loss_mask[0], *behind]
        assert labels == [-100] + [inputs[i + 1] if mask[i] else -100 for i in range(LENGTH - 1)]
        assert given["position_ids"].tolist()[:width] == row.position_ids[0].tolist()
        assert given["attention_mask"].tolist()[:width] == (row.segment_ids[0] != 0).tolist()
        # Padding is at the end of a row, and never learned.
        mask = given["attention_mask"].tolist()
        assert mask == sorted(mask, reverse=True) and set(labels[sum(mask) :]) <= {-100}
    plain = next(iter(dlfs.tokens_for.transformers(corpus, LENGTH, position_ids=False, **options)))
    assert set(plain) == {"input_ids", "labels"}


def test_rows_end_to_end_lose_no_token_to_the_shift_of_labels(corpus):
    data = dlfs.tokens_for.transformers(corpus, LENGTH, **OPTIONS)
    learned = [int((row["labels"][1:] != -100).sum()) for row in data]
    assert learned == [LENGTH - 1] * len(data)
    last = None
    for row in dlfs.tokens_for.transformers(corpus, LENGTH, **OPTIONS):
        assert last is None or int(row["input_ids"][0]) == last
        last = int(row["input_ids"][-1])


def test_rows_for_transformers_resume_pickle_and_refuse_workers(corpus):
    data = dlfs.tokens_for.transformers(corpus, LENGTH, **OPTIONS)
    whole = [row["input_ids"].tolist() for row in data]
    data.set_epoch(0)
    rows = iter(data)
    first = [next(rows)["input_ids"].tolist() for _ in range(5)]
    for again in (pickle.loads(pickle.dumps(data)), dlfs.tokens_for.transformers(corpus, LENGTH, **OPTIONS)):
        again.load_state_dict(data.state_dict())
        assert first + [row["input_ids"].tolist() for row in again] == whole
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
    with pytest.raises(Exception, match="set num_workers=0"):
        next(iter(loader))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    assert next(iter(loader))["labels"].shape == (4, LENGTH)


def tiny_llama():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64,
    ))


def test_a_model_of_transformers_keeps_documents_apart_and_learns_what_the_mask_says(corpus):
    model = tiny_llama()
    data = dlfs.tokens_for.transformers(corpus, LENGTH, **{**OPTIONS, "pack": "best_fit", "loss_mask": "loss"})
    seen = 0
    for row, plain in zip(data, rows_of(corpus, LENGTH - 1, pack="best_fit", loss_mask="loss")):
        segments = plain.segment_ids[0]
        if segments.max() < 2 or not plain.loss_mask.any():
            continue
        seen += 1
        with torch.no_grad():
            packed = model(**{name: tensor[None] for name, tensor in row.items()}, use_cache=False)
            for segment in range(1, segments.max() + 1):
                (columns,) = numpy.nonzero(segments == segment)
                alone = model(torch.from_numpy(plain.tokens[:, columns]).long(), use_cache=False)
                torch.testing.assert_close(packed.logits[:, columns], alone.logits, rtol=1e-4, atol=1e-5)
        logits = packed.logits[0, :-1][torch.from_numpy(plain.loss_mask[0])]
        labels = torch.from_numpy(plain.labels[0][plain.loss_mask[0]]).long()
        torch.testing.assert_close(packed.loss, torch.nn.functional.cross_entropy(logits, labels))
    assert seen > 5


def hugging_face(corpus, folder, seen, steps, **more):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    def collate(rows):
        seen.append([row["input_ids"].tolist() for row in rows])
        return transformers.default_data_collator(rows)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, per_device_train_batch_size=4, max_steps=steps, save_steps=70,
        learning_rate=0.01, lr_scheduler_type="constant", report_to=[], disable_tqdm=True, logging_steps=1000,
    )
    data = dlfs.tokens_for.transformers(corpus, LENGTH, **OPTIONS)
    trainer = transformers.Trainer(tiny_llama(), arguments, train_dataset=data, data_collator=collate)
    trainer.train(**more)
    return trainer


def test_the_trainer_of_transformers_reads_epochs_and_resumes(corpus, tmp_path):
    seen = []
    whole = hugging_face(corpus, tmp_path / "whole", seen, 150)
    rows = [row.tokens.tolist()[0] for row in rows_of(corpus, LENGTH - 1)]
    assert 70 < len(rows) // 4 < 140  # so the checkpoints are of two epochs
    assert [row[:-1] for batch in seen for row in batch][: len(rows)] == rows
    for saved in (70, 140):
        resumed, checkpoint = [], tmp_path / "whole" / f"checkpoint-{saved}"
        again = hugging_face(corpus, tmp_path / "again", resumed, 150, resume_from_checkpoint=str(checkpoint))
        assert resumed[saved - 150 :] == seen[saved - 150 :] and len(seen[-1]) == 4
        for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
            torch.testing.assert_close(one, other)


def accelerated(rank, address, port, queue):
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in place.items()}, MASTER_ADDR="127.0.0.1")
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
    with dlfs.open(address) as corpus:
        data = dlfs.tokens_for.transformers(corpus, LENGTH, **OPTIONS)
        loader = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=4))
        queue.put((rank, [batch["input_ids"].tolist() for batch in loader]))
    accelerator.end_training()


def test_accelerate_shares_out_the_rows_for_transformers(corpus):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    port = free_port()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=accelerated, args=(rank, corpus.address, port, queue)) for rank in range(2)]
    [rank.start() for rank in ranks]
    found = dict(queue.get(timeout=120) for _ in ranks)
    [rank.join(120) for rank in ranks]
    rows = [row for pair in zip(found[0], found[1], strict=True) for batch in pair for row in batch]
    data = dlfs.tokens_for.transformers(corpus, LENGTH, **OPTIONS)
    whole = len(data) // 8 * 8  # then it repeats rows for the second rank
    assert rows[:whole] == [row["input_ids"].tolist() for row in data][:whole]


# Lightning.


def test_rows_move_to_a_device_as_one(corpus):
    rows = rows_of(corpus, cu_seqlens=True)[0]
    moved = rows.to("cpu", non_blocking=True)
    assert moved.tokens.tolist() == rows.tokens.tolist() and torch.is_tensor(moved.cu_seqlens)
    assert (moved.epoch, moved.max_seqlen, moved.sample_ids) == (rows.epoch, rows.max_seqlen, None)
    assert moved.to("meta").loss_mask.is_meta


@pytest.mark.parametrize("by_steps", [False, True])
def test_lightning_trains_and_resumes_from_each_checkpoint(corpus, tmp_path, by_steps):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.seen = []
            self.layer = torch.nn.Embedding(VOCABULARY, VOCABULARY)

        def training_step(self, rows, index):
            assert isinstance(rows, dlfs.tokens.Rows)
            self.seen.append(rows.tokens.tolist())
            logits = self.layer(rows.tokens)[rows.loss_mask]
            return torch.nn.functional.cross_entropy(logits, rows.labels[rows.loss_mask])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(length, callbacks=(), **resume):
        model = Model()
        trainer = lightning.Trainer(
            **length, accelerator="cpu", logger=False, callbacks=list(callbacks), enable_progress_bar=False,
            enable_checkpointing=bool(callbacks), enable_model_summary=False,
        )
        loader = dlfs.tokens_for.lightning(corpus, LENGTH, 40, loss_mask=True, **OPTIONS)
        trainer.fit(model, loader, weights_only=False, **resume)
        return model.seen

    epoch = [row.tokens.tolist() for row in rows_of(corpus, batch_size=40)]
    save = lightning.pytorch.callbacks.ModelCheckpoint
    steps = save(tmp_path / "steps", filename="{step}", every_n_train_steps=1, save_top_k=-1)
    epochs = save(tmp_path / "epochs", filename="{step}", save_top_k=-1)
    length = {"max_steps": 3 * len(epoch) - 2} if by_steps else {"max_epochs": 3}
    whole = fit(length, [steps, epochs])
    assert whole[: len(epoch)] == epoch and whole[len(epoch) :][: len(epoch)] != epoch
    saved = list(tmp_path.glob("*/*.ckpt"))
    assert len(saved) >= len(whole) + 2
    for path in saved:
        at = int(path.stem.partition("=")[2])
        if at in (1, len(epoch) - 1, len(epoch), len(epoch) + 1, 2 * len(epoch)):
            assert fit(length, ckpt_path=path) == whole[at:], path
    limited = {"max_epochs": 4, "limit_train_batches": len(epoch) // 2}
    assert fit(limited) == whole[: 4 * (len(epoch) // 2)]


# Megatron-LM.


@PACKS
def test_micro_batches_for_megatron_have_its_keys_and_types(corpus, pack):
    options = {**OPTIONS, "pack": pack, "loss_mask": "loss"}
    data = dlfs.tokens_for.megatron(corpus, LENGTH, 3, attention_mask=True, **options)
    for row in rows_of(corpus, batch_size=3, pack=pack, loss_mask="loss"):
        batch, width = next(data), row.tokens.shape[1]
        attention = batch.pop("attention_mask")
        for name, tensor in batch.items():
            assert is_number(tensor, 3, width, dtype=torch.float32 if name == "loss_mask" else torch.int64), name
            assert tensor.tolist() == getattr(row, name).tolist(), name
        assert set(batch) == {"tokens", "labels", "loss_mask", "position_ids"}
        assert is_number(attention, 3, 1, width, width, dtype=torch.bool)
        for r, i, j in itertools.product(range(3), range(width), range(width)):
            hidden = j > i or row.segment_ids[r, i] != row.segment_ids[r, j]
            assert attention[r, 0, i, j].item() == hidden
    assert "attention_mask" not in next(dlfs.tokens_for.megatron(corpus, LENGTH, 3, **options))


def test_micro_batches_for_megatron_go_on_after_each_epoch_and_from_a_saved_state(corpus):
    whole = dlfs.tokens_for.megatron(corpus, LENGTH, 4, **OPTIONS)
    tokens = [next(whole)["tokens"] for _ in range(2 * len(whole) + 3)]
    assert tokens[0].tolist() != tokens[len(whole)].tolist()  # of the next epoch
    ranks = [
        dlfs.tokens_for.megatron(corpus, LENGTH, 2, data_rank=rank, data_world_size=2, **OPTIONS) for rank in range(2)
    ]
    for at in range(len(whole) + 5):
        parts = [next(rank)["tokens"] for rank in ranks]
        if at < len(whole):
            assert torch.cat(parts).tolist() == tokens[at].tolist()
    assert ranks[0].save_state() == ranks[1].save_state()
    one = dlfs.tokens_for.megatron(corpus, LENGTH, 4, **OPTIONS)
    assert len(next(one)) == 4
    one.load_state_dict(ranks[0].save_state())
    assert next(one)["tokens"].tolist() == tokens[len(whole) + 5].tolist()
    last = dlfs.tokens_for.megatron(corpus, LENGTH, 4, epochs=2, **OPTIONS)
    assert sum(1 for _ in last) == 2 * len(whole)


def test_megatron_wraps_the_iterator_and_saves_its_state(corpus):
    machine = pytest.importorskip("megatron.core.rerun_state_machine", reason="megatron-core is not installed")
    plain = dlfs.tokens_for.megatron(corpus, LENGTH, 4, **OPTIONS)
    wrapped = machine.RerunDataIterator(dlfs.tokens_for.megatron(corpus, LENGTH, 4, **OPTIONS))
    for _ in range(3):
        assert next(wrapped)["tokens"].tolist() == next(plain)["tokens"].tolist()
    assert wrapped.iterable.save_state() == plain.save_state()


# Megatron-LM's own samplers.


def gpt_dataset(folder):
    """A GPTDataset of Megatron's, and the keys, types and shapes of its items."""
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset", reason="megatron-core is not installed")
    indexed = importlib.import_module("megatron.core.datasets.indexed_dataset")
    prefix = str(folder / "documents")
    builder = indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    for count in range(1, 40):
        builder.add_document(numpy.arange(1, count + 1), [count])
    builder.finalize(f"{prefix}.idx")
    tokenizer = types.SimpleNamespace(vocab_size=VOCABULARY, eod=0, pad=0, unique_identifiers={"name": "none"})
    config = gpt.GPTDatasetConfig(
        random_seed=1, sequence_length=LENGTH, blend=([prefix], None), split="1,0,0", tokenizer=tokenizer,
        reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=False,
    )
    data = gpt.GPTDataset.build_low_level_dataset(prefix, config)
    split = importlib.import_module("megatron.core.datasets.utils").Split.train
    return gpt, gpt.GPTDataset(data, prefix, numpy.arange(39, dtype=numpy.int32), 50, split, config)


def described(item):
    return {name: (tensor.dtype, tuple(tensor.shape), tensor.is_contiguous()) for name, tensor in item.items()}


ITEM = {
    "tokens": (torch.int64, (LENGTH,), True),
    "labels": (torch.int64, (LENGTH,), True),
    "attention_mask": (torch.bool, (1, LENGTH, LENGTH), True),
    "loss_mask": (torch.float32, (LENGTH,), True),
    "position_ids": (torch.int64, (LENGTH,), True),
}


@PACKS
def test_rows_by_index_are_those_of_the_epochs_end_to_end(corpus, pack):
    options = {**OPTIONS, "pack": pack, "loss_mask": "loss"}
    rows = list(dlfs.tokens_for.megatron(corpus, LENGTH, 1, attention_mask=True, epochs=3, **options))
    data = dlfs.tokens_for.megatron_dataset(corpus, LENGTH, len(rows), attention_mask=True, **options)
    assert isinstance(data, torch.utils.data.Dataset) and len(data) == len(rows) > 3 * 100
    draw = numpy.random.default_rng(SEED)
    for indices in ([len(rows) - 1], [0, None, 5, 5], range(7, 19), *(draw.integers(0, len(rows), 9) for _ in range(9))):
        for index, item in zip(indices, data.__getitems__(indices), strict=True):
            assert described(item) == ITEM
            width = rows[index or 0]["tokens"].shape[1]  # of single documents less than LENGTH
            for name, tensor in rows[index or 0].items():
                expected = torch.zeros(width) if index is None and name == "loss_mask" else tensor[0]
                found = item[name][:width] if tensor.ndim == 2 else item[name][:, :width, :width]
                assert torch.equal(found, expected), (index, name)
                assert tensor.ndim > 2 or not item[name][width + 1 :].any()  # the last label is an input, too
    assert data[numpy.int64(3)]["tokens"].tolist() == data[3]["tokens"].tolist() and data[None]["loss_mask"].sum() == 0
    for index in (-1, len(rows)):
        with pytest.raises(IndexError, match=f"there is no row {index}"):
            data[index]
    epoch = dlfs.tokens_for.megatron_dataset(corpus, LENGTH, **options)
    assert len(epoch) == len(rows_of(corpus, pack=pack)) and "attention_mask" not in epoch[0]


@pytest.mark.parametrize("start", [None, "fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_read_rows_by_index_for_megatrons_sampler(corpus, start):
    data = dlfs.tokens_for.megatron_dataset(corpus, LENGTH, 400, **OPTIONS)
    rows = [data[index]["tokens"].tolist() for index in range(400)]
    # Micro-batches of 3 on each of 2 ranks, behind 60 samples.
    for rank in range(2):
        batches = [list(range(at + 3 * rank, at + 3 * rank + 3)) for at in range(60, 395, 6)]
        loader = torch.utils.data.DataLoader(
            data, batch_sampler=batches, num_workers=2 if start else 0, multiprocessing_context=start,
            persistent_workers=bool(start),
        )
        for _ in range(2):
            read = [batch["tokens"].tolist() for batch in loader]
            assert read == [[rows[index] for index in indices] for indices in batches]


def test_items_are_described_as_those_of_a_gpt_dataset(corpus, tmp_path):
    gpt, theirs = gpt_dataset(tmp_path)
    ours = dlfs.tokens_for.megatron_dataset(corpus, LENGTH, 300, attention_mask=True, **OPTIONS)
    for index in (0, 7, None):
        assert described(ours[index]) == described(theirs[index]) == ITEM
    for index in range(0, 300, 7):
        item = ours[index]
        attention, loss, positions = gpt._get_ltor_masks_and_position_ids(item["tokens"], 0, True, True, False, True)
        assert torch.equal(item["attention_mask"], attention) and torch.equal(item["position_ids"], positions)
        assert torch.equal(item["loss_mask"], loss)


# Grain.


@pytest.mark.parametrize("ahead", [0, 3])
def test_grain_reads_rows_and_resumes(corpus, ahead):
    grain = pytest.importorskip("grain", reason="grain is not installed")

    def batches():
        data = dlfs.tokens_for.grain(corpus, LENGTH, 4, segment_ids=True, **OPTIONS)
        data = data.map(lambda batch: {**batch, "mask": batch["segment_ids"] != 0})
        if ahead:
            prefetch = importlib.import_module("grain.experimental").ThreadPrefetchIterDataset
            data = prefetch(data, prefetch_buffer_size=ahead)
        return iter(data)

    def read(source, count):
        return [batch["tokens"].tolist() for batch in itertools.islice(source, count)]

    epoch = [row.tokens.tolist() for row in rows_of(corpus, batch_size=4)]
    source = batches()
    assert isinstance(source, grain.DatasetIterator)
    first = next(source)
    assert set(first) == {"tokens", "labels", "segment_ids", "mask"} and first["labels"].shape == (4, LENGTH)
    assert [first["tokens"].tolist(), *read(source, len(epoch) - 1)] == epoch
    read(source, 3)
    state, rest = source.get_state(), read(source, 5)
    again = batches()
    again.set_state(state)
    assert read(again, 5) == rest


# torchtitan.


def stand_in(after_0_3):
    """The part of torchtitan and tyro that the contract is made of, as modules."""

    class BaseDataLoader:
        def __init_subclass__(cls):
            cls.Config.owner = cls

        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config:
            def build(self, **given):
                return self.owner(config=dataclasses.replace(self), **given)

    name = "torchtitan.components." + ("data.loader" if after_0_3 else "dataloader")
    modules = {
        "tyro": types.SimpleNamespace(conf=types.SimpleNamespace(Suppress=object())),
        "torchtitan.components.dataloader": None,
        name: types.SimpleNamespace(BaseDataLoader=BaseDataLoader),
    }
    while "." in name:
        name = name.rpartition(".")[0]
        modules[name] = types.ModuleType(name)
    return modules


@pytest.fixture(params=["0.3", "later", "installed"])
def titan(request, monkeypatch):
    """Makes a loader; with torchtitan's own classes, or with those that stand in."""
    is_later = request.param == "later"
    if request.param == "installed":
        pytest.importorskip("torchtitan", reason="torchtitan is not installed")
        is_later = importlib.util.find_spec("torchtitan.components.dataloader") is None
    else:
        for name, module in stand_in(is_later).items():
            monkeypatch.setitem(sys.modules, name, module)
    dlfs.tokens_for._titan_loader.cache_clear()

    def make(corpus, rank=0, ranks=1, batch_size=4, validation=None, **options):
        config = dlfs.tokens_for.torchtitan(corpus, **{**OPTIONS, **options})
        if is_later:
            sizes = {"max_context_length": LENGTH, "num_tokens_per_batch": batch_size * LENGTH}
            endless = {"repeat": validation is None}
        else:
            sizes = {"seq_len": LENGTH, "local_batch_size": batch_size, "snapshot_every_n_steps": None}
            endless = {"infinite": validation is None}
        config = dataclasses.replace(config, **endless)
        return config.build(dp_world_size=ranks, dp_rank=rank, tokenizer=None, **sizes)

    make.is_flat = is_later
    yield make
    dlfs.tokens_for._titan_loader.cache_clear()


@PACKS
def test_torchtitan_is_given_inputs_positions_and_masked_labels(corpus, titan, pack):
    loader = titan(corpus, pack=pack, loss_mask="loss")
    rows = rows_of(corpus, batch_size=4, pack=pack, loss_mask="loss")
    for row, (inputs, labels) in zip(rows, loader):
        width = row.tokens.shape[1]
        assert width == LENGTH or pack == "none" and width < LENGTH
        shape = (4 * width,) if titan.is_flat else (4, width)
        assert all(is_number(tensor, *shape) for tensor in (*inputs.values(), labels))
        assert set(inputs) == {"input", "positions"}
        assert inputs["input"].reshape(4, width).tolist() == row.tokens.tolist()
        assert inputs["positions"].reshape(4, width).tolist() == row.position_ids.tolist()
        assert labels.reshape(4, width).tolist() == numpy.where(row.loss_mask, row.labels, -100).tolist()
    assert sum(1 for _ in titan(corpus, pack=pack, validation=True)) == len(rows)
    whole = itertools.islice(titan(corpus, pack=pack), 2 * len(rows) + 1)
    assert sum(1 for _ in whole) == 2 * len(rows) + 1  # epoch after epoch
    loader.close()


def test_torchtitan_resumes_with_another_data_parallel_degree(corpus, titan, tmp_path):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    epoch = [row for batch in rows_of(corpus, batch_size=12) for row in batch.tokens.tolist()]
    ranks = [titan(corpus, rank, 3, 4) for rank in range(3)]
    for loader in ranks:
        assert len(list(itertools.islice(loader, 3))) == 3
    assert ranks[0].state_dict() == ranks[2].state_dict()
    checkpoint.save({"dataloader": ranks[1]}, checkpoint_id=tmp_path / "saved", no_dist=True)
    for world, size in [(2, 6), (1, 12), (4, 3)]:
        parts = []
        for rank in range(world):
            loader = titan(corpus, rank, world, size)
            checkpoint.load({"dataloader": loader}, checkpoint_id=tmp_path / "saved", no_dist=True)
            parts.append(next(iter(loader))[0]["input"].reshape(size, LENGTH).tolist())
        assert sum(parts, []) == epoch[36:48], world
    loader = titan(corpus)
    loader.load_state_dict({})  # a checkpoint without it
    assert next(iter(loader))[0]["input"].reshape(4, LENGTH).tolist() == epoch[:4]


def test_torchtitan_asks_for_whole_rows():
    with pytest.raises(dlfs.InvalidArgument, match="a batch of 40 tokens is no whole number of rows of 16"):
        dlfs.tokens_for._sizes(max_context_length=16, num_tokens_per_batch=40)


def titan_rank(rank, path, folder):
    import torch.distributed.checkpoint as checkpoint

    sys.modules.update(stand_in(after_0_3=True))
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    with dlfs.open(path) as corpus:
        config = dlfs.tokens_for.torchtitan(corpus, **OPTIONS)
        loader = config.build(dp_world_size=2, dp_rank=rank, max_context_length=LENGTH, num_tokens_per_batch=2 * LENGTH)
        assert len(list(itertools.islice(loader, 5))) == 5
        checkpoint.save({"dataloader": loader}, checkpoint_id=f"{folder}/saved")
    torch.distributed.destroy_process_group()


def test_ranks_save_one_checkpoint_that_one_process_loads(corpus, tmp_path, monkeypatch):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=titan_rank, args=(rank, corpus.address, str(tmp_path))) for rank in range(2)]
    [rank.start() for rank in ranks]
    [rank.join(300) for rank in ranks]
    assert [rank.exitcode for rank in ranks] == [0, 0]
    loader = dlfs.tokens_for.megatron(corpus, LENGTH, 4, **OPTIONS)
    rows = [next(loader)["tokens"].tolist() for _ in range(6)]
    for name, module in stand_in(after_0_3=False).items():
        monkeypatch.setitem(sys.modules, name, module)
    dlfs.tokens_for._titan_loader.cache_clear()
    config = dlfs.tokens_for.torchtitan(corpus, **OPTIONS)
    one = config.build(dp_world_size=1, dp_rank=0, seq_len=LENGTH, local_batch_size=4)
    dlfs.tokens_for._titan_loader.cache_clear()
    checkpoint.load({"dataloader": one}, checkpoint_id=tmp_path / "saved", no_dist=True)
    assert next(iter(one))[0]["input"].tolist() == rows[5]
