"""One pack of training rows in shared memory: what lies where, for whoever writes it and whoever reads it.

A target worker fills a pack's bytes and a drafter reads them in place; what is in them travels beside, as a
PackMeta. Rows lie one after another without padding: the states, then the token ids, then the loss mask, each
beginning at a multiple of 64 bytes. A pack of no rows is one too: all of its rows were left out. Knows nothing of
queues or processes; torch is imported where tensors are made.

Shapes: T tokens of all rows, L states a token, H hidden.
"""

# ruff: noqa: N815  # shape suffixes in field names

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from corpus.errors import DamagedError, first_line
from corpus.shard_writer import BYTES

ALIGNMENT = 64
"""A cache line; what the queue lays its batches at too."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class PackMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack's bytes hold. Lists have an entry a row."""

    pack: Count
    """Its number in the order of training."""
    response_ids: list[str]
    categories: list[str]
    greedy: list[bool]
    """It was sampled at temperature 0."""
    lengths: list[Positive]
    """Tokens."""
    layers: Positive
    """L: captured layers in ascending order, then the final state where it is captured."""
    hidden: Positive
    """H."""
    dtype: str
    """Of the states: bfloat16, float16 or float32."""

    @property
    def tokens(self) -> int:
        """T."""
        return sum(self.lengths)

    @property
    def spans(self) -> list[slice]:
        """Where each row lies among the T tokens."""
        ends = itertools.accumulate(self.lengths, initial=0)
        return [slice(start, end) for start, end in itertools.pairwise(ends)]

    def encode(self) -> bytes:
        """As msgpack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> PackMeta:
        """The inverse of encode.

        Raises:
            DamagedError: these bytes describe no pack.
        """
        try:
            meta = msgspec.msgpack.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(first_line(error)) from error
        counts = {len(column) for column in (meta.response_ids, meta.categories, meta.greedy, meta.lengths)}
        if len(counts) > 1:
            raise _damaged(f"pack {meta.pack}: lists of {min(counts)} and of {max(counts)} rows")
        if meta.dtype not in BYTES:
            raise _damaged(f"pack {meta.pack}: states of {meta.dtype!r}; expected {', '.join(BYTES)}")
        return meta


@dataclass(frozen=True)
class PackTensors:
    """A pack's tensors, in its own memory: int32 ids, uint8 loss mask (1 on generated tokens), states."""

    input_ids_T: Any
    loss_mask_T: Any
    states_TLH: Any


@dataclass(frozen=True)
class PackLayout:
    """Where the tensors of a pack of T tokens lie."""

    tokens: int
    layers: int
    hidden: int
    dtype: str

    @property
    def size_bytes(self) -> int:
        """A multiple of 64, and 64 at least."""
        return max(self._mask_start + _aligned(self.tokens), ALIGNMENT)

    def views(self, buffer: Any) -> PackTensors:
        """The tensors over the first `size_bytes` of a buffer, without a copy: what is written to them is in it.

        They may only be read where the buffer is read-only, and only as long as it is the pack's.

        Raises:
            DamagedError: the buffer is too small.
        """
        import torch

        given = memoryview(buffer)
        if given.nbytes < self.size_bytes:
            raise _damaged(f"{given.nbytes} bytes for {self.tokens} tokens; expected {self.size_bytes}")

        def tensor(dtype: Any, start: int, *shape: int) -> Any:
            if not self.tokens:
                return torch.empty(shape, dtype=dtype)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given buffer is not writable")
                flat = torch.frombuffer(given, dtype=dtype, count=math.prod(shape), offset=start)
            return flat.view(shape)

        return PackTensors(
            tensor(torch.int32, self._ids_start, self.tokens),
            tensor(torch.uint8, self._mask_start, self.tokens),
            tensor(getattr(torch, self.dtype), 0, self.tokens, self.layers, self.hidden),
        )

    @property
    def _ids_start(self) -> int:
        return _aligned(self.tokens * self.layers * self.hidden * BYTES[self.dtype])

    @property
    def _mask_start(self) -> int:
        return self._ids_start + _aligned(4 * self.tokens)


def layout_of(meta: PackMeta) -> PackLayout:
    """Where the tensors of this pack lie."""
    return PackLayout(meta.tokens, meta.layers, meta.hidden, meta.dtype)


def pack_bytes(tokens: int, layers: int, hidden: int, dtype: str) -> int:
    """What a pack of so many tokens takes: to size a queue with."""
    return PackLayout(tokens, layers, hidden, dtype).size_bytes


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _damaged(why: str) -> DamagedError:
    return DamagedError(
        f"a pack that a target worker sent is damaged ({why}). Run the same command again: it goes on from the last "
        "checkpoint."
    )
