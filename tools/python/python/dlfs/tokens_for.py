"""dlfs.tokens_for: rows of tokens as the trainers of language models take them.

    config = Trainer.Config(dataloader=dlfs.tokens_for.torchtitan(ds, separator=0, seed=7), ...)
    trainer = Trainer(model, args, train_dataset=dlfs.tokens_for.transformers(ds, seq_len=4096, separator=0))

Each function takes the options of dlfs.tokens.Loader, and asks for the arrays that its trainer needs. The module needs
torch; torchtitan and Grain only in their functions.
"""

# Annotations are evaluated here: torchtitan reads those of a class that exists only together with it.

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy
import torch
import torch.utils.data

from . import Dataset, DeviceArray, IndexOutOfRange, InvalidArgument, Mixture
from .tokens import Loader, tensor

__all__ = ["grain", "lightning", "megatron", "megatron_dataset", "torchtitan", "transformers"]

IGNORED = -100
"""The label that no loss counts."""


def torchtitan(source: Dataset | Mixture, **options: Any) -> Any:
    """The `dataloader` of a torchtitan Trainer.Config, or Validator.Config, with its rank, lengths and batches.

    Batches are ({"input", "positions"}, labels), as int64[B, L], or int64[B * L] where torchtitan counts a batch in
    tokens; labels not to learn from are -100. It reads epoch after epoch, but one for validation without steps. A
    checkpoint loads with any data-parallel degree.
    """
    return _titan_loader().Config(source=source, options=options)


def transformers(source: Dataset | Mixture, seq_len: int, *, attention_mask: bool = False, **options: Any) -> Any:
    """The `train_dataset` of a Hugging Face Trainer: an iterable data set of rows, as dicts of int64[seq_len].

    "labels" are the inputs' own tokens, since the model shifts them; those not to learn from, and the first one, are
    -100. "position_ids" begin anew with each document, by which a model keeps documents apart as long as there is no
    attention mask; with position_ids=False there are none, and each token sees all before it. attention_mask=True
    gives one, 0 for padding.

    The Trainer shares out the rows itself, and on resuming reads again those that it has trained on. It needs
    dataloader_num_workers=0: native threads read ahead.
    """
    # The model predicts seq_len - 1 tokens of as many inputs. A row has one token more than its inputs.
    given = {"rank": 0, "world_size": 1, **_wanted(options, segment_ids=attention_mask)}
    return _Sequences(source, seq_len - 1, 1, **given)


def lightning(source: Dataset | Mixture, seq_len: int, batch_size: int, **options: Any) -> Any:
    """The `train_dataloaders` of Lightning's Trainer.fit: dlfs.tokens.Rows, with tensors on the model's device.

    An epoch of the Trainer is len() batches, or limit_train_batches, and goes on where the last one ended. Checkpoints
    of the Trainer have the state; only those between epochs of limit_train_batches resume at an epoch of the data.
    """
    return _Steps(source, seq_len, batch_size, **options)


def megatron(
    source: Dataset | Mixture, seq_len: int, batch_size: int, *, attention_mask: bool = False, **options: Any
) -> Any:
    """A data set for `--dataloader-type external` of Megatron-LM: an iterator of dicts, epoch after epoch.
    megatron_dataset is one for its own samplers.

    "tokens", "labels" and "position_ids" are int64[B, L], "loss_mask" float32[B, L]. attention_mask=True gives
    bool[B, 1, L, L], True for what a token does not see: later ones, and other documents. Without it, Megatron-LM needs
    --no-create-attention-mask-in-dataloader.

    batch_size is the micro-batch size, data_rank and data_world_size are those of parallel_state. Give whole rows:
    Megatron-LM cuts them for context parallelism. It calls save_state; load_state_dict resumes from what that returned,
    with any data-parallel size.
    """
    given = _wanted(options, segment_ids=attention_mask, position_ids=True)
    return _MicroBatches(source, seq_len, batch_size, **given)


def megatron_dataset(
    source: Dataset | Mixture,
    seq_len: int,
    num_samples: int | None = None,
    *,
    attention_mask: bool = False,
    **options: Any,
) -> Any:
    """A data set of rows by index for Megatron-LM, in place of a GPTDataset: in train_valid_test_datasets_provider

        return [dlfs.tokens_for.megatron_dataset(ds, args.seq_length, n, separator=0) for ds, n in zip(sets, numbers)]

    Item i of num_samples is row i of the epochs, end to end; None: one epoch. Keys, dtypes and shapes of an item are
    GPTDataset's: "tokens", "labels" and "position_ids" int64[L], "loss_mask" float32[L], and with attention_mask=True
    bool[1, L, L], True for what a token does not see. Positions and masks keep documents apart, and the loss mask is
    that of dlfs.tokens.Loader. Item None, the padding of a batch, is row 0 without a loss.

    Megatron's samplers share rows out, and resume by the number of samples. Its workers, forked or spawned, have
    connections of their own, and read the documents of a batch together. The first item that a process asks for costs a
    walk over the lengths of the documents before it, no read.
    """
    given = _wanted(options, segment_ids=attention_mask, position_ids=True)
    return _ByIndex(_MicroBatches(source, seq_len, 1, **{"rank": 0, "world_size": 1, **given}), num_samples)


def grain(source: Dataset | Mixture, seq_len: int, batch_size: int, **options: Any) -> Any:
    """A grain.IterDataset of batches, as dicts of the numpy arrays of dlfs.tokens.Rows, epoch after epoch.

    Its iterators have one position: iterate once. Native threads read ahead, so leave mp_prefetch out.
    """
    import grain

    loader = _Endless(source, seq_len, batch_size, **options)

    class Batches(grain.DatasetIterator):  # type: ignore[misc]
        def __next__(self) -> dict[str, Any]:
            rows = vars(next(loader))
            return {name: array for name, array in rows.items() if isinstance(array, (numpy.ndarray, DeviceArray))}

        def get_state(self) -> dict[str, Any]:
            return loader.state_dict()

        def set_state(self, state: dict[str, Any]) -> None:
            loader.load_state_dict(state)

    class Source(grain.IterDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return Batches()

    return Source()


def _wanted(options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The options of a loader whose rows have a loss mask and, unless the options say otherwise, position ids."""
    return {"position_ids": True, **options, **more, "loss_mask": options.get("loss_mask") or True}


def _learned(labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The labels, with IGNORED where the mask is False."""
    return labels.long().masked_fill(~mask, IGNORED)


class _Sequences(Loader, torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):  # type: ignore[misc]
    """Rows, one at a time, with the token that is only a label among the inputs."""

    def _batch(self, arrays: list[Any], starts: Any, epoch: int) -> dict[str, torch.Tensor]:
        # Arrays of one row, [1, 1, seq_len].
        row = [None if array is None else tensor(array).reshape(-1) for array in arrays]
        tokens, segment_ids, position_ids, loss_mask, _ = row
        assert tokens is not None and loss_mask is not None, "they were asked for"
        learned = loss_mask.bool()
        learned[0] = False
        given = {"input_ids": tokens.long(), "labels": _learned(tokens, learned)}
        if position_ids is not None:
            given["position_ids"] = position_ids.long()
        if segment_ids is not None:
            given["attention_mask"] = (segment_ids != 0).long()
        # The Trainer stacks rows of several batches, of which each may be narrower.
        _, rows, *_ = self._made_of
        behind = (0, max(0, rows["seq_len"] + 1 - len(tokens)))
        fills = {"input_ids": rows["pad"], "labels": IGNORED}
        pad = torch.nn.functional.pad
        return {name: pad(value, behind, value=fills.get(name, 0)) for name, value in given.items()}


class _Endless(Loader):
    """An iterator of batches, epoch after epoch."""

    _now: Iterator[Any] | None = None

    def __iter__(self) -> Any:
        return self

    def one_epoch(self) -> Iterator[Any]:
        return super().__iter__()

    def __next__(self) -> Any:
        if self._now is not None:
            for batch in self._now:
                return batch
        self._now = self.one_epoch()
        return next(self._now)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._now = None

    def load_state_dict(self, state: Mapping[str, Any] | str) -> None:
        super().load_state_dict(state)
        self._now = None


class _Steps(_Endless):
    """Lightning leaves out the state of a checkpoint between epochs, and tells the sampler which epoch comes."""

    _has_state = False

    @property
    def sampler(self) -> Any:
        return self

    def set_epoch(self, epoch: int) -> None:
        if self._now is None and not self._has_state:
            super().set_epoch(epoch)

    def load_state_dict(self, state: Mapping[str, Any] | str) -> None:
        super().load_state_dict(state)
        self._has_state = True


class _MicroBatches(_Endless):
    """Batches as Megatron-LM takes them."""

    def _batch(self, arrays: list[Any], starts: Any, epoch: int) -> dict[str, torch.Tensor]:
        rows = super()._batch(arrays, starts, epoch).torch()
        given = {
            "tokens": rows.tokens.long(),
            "labels": rows.labels.long(),
            "loss_mask": rows.loss_mask.float(),
            "position_ids": rows.position_ids.long(),
        }
        if rows.segment_ids is not None:
            same = rows.segment_ids[:, None, :, None] == rows.segment_ids[:, None, None, :]
            given["attention_mask"] = ~same.tril()
        return given

    def save_state(self) -> dict[str, Any]:
        return self.state_dict()


class _ByIndex(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows by index as Megatron-LM takes them."""

    def __init__(self, rows: _MicroBatches, num_samples: int | None) -> None:
        self._rows = rows
        self._length = int(rows.plan(0)["rows"]) if num_samples is None else num_samples

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | None) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    # The fetcher of a DataLoader calls it with a whole batch.
    def __getitems__(self, indices: Sequence[int | None]) -> list[dict[str, torch.Tensor]]:
        for index in indices:
            if index is not None and not 0 <= index < self._length:
                raise IndexOutOfRange(f"there is no row {index}: the data set has {self._length}")
        batch = self._rows._batch(self._rows._rows_at([int(index or 0) for index in indices]), None, 0)
        items = [{name: tensor[at] for name, tensor in batch.items()} for at in range(len(indices))]
        for item, index in zip(items, indices):
            if index is None:
                item["loss_mask"].zero_()
        return items


@functools.cache
def _titan_loader() -> Any:
    """The class of dataloaders, whose base and configuration are torchtitan's."""
    import tyro

    try:
        from torchtitan.components.dataloader import BaseDataLoader
    except ImportError:  # after 0.3
        from torchtitan.components.data.loader import BaseDataLoader

    class TokenDataLoader(BaseDataLoader):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):  # type: ignore[misc]
            source: Annotated[Any, tyro.conf.Suppress]
            options: Annotated[Any, tyro.conf.Suppress]
            # A validator sets `infinite` in 0.3, and `repeat` in later versions.
            infinite: bool = True
            repeat: bool = True

        def __init__(self, config: Any, *, dp_rank: int, dp_world_size: int, **sizes: Any) -> None:
            seq_len, batch_size, self._shape = _sizes(**sizes)
            given = _wanted(config.options, position_ids=True, data_rank=dp_rank, data_world_size=dp_world_size)
            self._rows = _Endless(config.source, seq_len, batch_size, **given)
            self._is_endless = config.infinite and config.repeat

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            return map(self._shaped, self._rows if self._is_endless else self._rows.one_epoch())

        def _shaped(self, given: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
            rows = given.torch()
            tensors = rows.tokens.long(), rows.position_ids.long(), _learned(rows.labels, rows.loss_mask)
            tokens, positions, labels = (tensor.reshape(self._shape) for tensor in tensors)
            return {"input": tokens, "positions": positions}, labels

        # One text that is the same on all ranks, so that any number of ranks can load the checkpoint.
        def state_dict(self) -> dict[str, Any]:
            return {"dlfs": json.dumps(self._rows.state_dict())}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            if state:
                self._rows.load_state_dict(state["dlfs"])

        def close(self) -> None:
            self._rows.close()

    return TokenDataLoader


def _sizes(
    seq_len: int = 0,
    local_batch_size: int = 0,
    max_context_length: int = 0,
    num_tokens_per_batch: int = 0,
    **others: Any,
) -> tuple[int, int, tuple[int, ...]]:
    """The length, the number and the shape of the rows that torchtitan asks for: up to 0.3 by the first two."""
    if seq_len:
        return seq_len, local_batch_size, (local_batch_size, -1)
    rows, rest = divmod(num_tokens_per_batch, max_context_length)
    if rest:
        raise InvalidArgument(
            f"a batch of {num_tokens_per_batch} tokens is no whole number of rows of {max_context_length}: "
            "change num_tokens_per_microbatch_per_dp_rank or max_context_length"
        )
    return max_context_length, rows, (-1,)
