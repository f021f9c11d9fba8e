"""Workers with a fault, for tests of the run around them. Each `create_…` is a factory, as a pool imports it.

`HOLDS` and `POISON` are what tests and workers must agree on: they are processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from corpus.artefacts import sha256_file, temporary_path
from corpus.shard_writer import header_texts
from corpus.shards import ShardMeta
from corpus.token_ids import unpack_ids
from extraction.messages import (
    CapturedEntry,
    ExtractConfig,
    ExtractItem,
    ExtractReady,
    ExtractReceipt,
    encode,
    shard_name,
)

Emit = Callable[[bytes], None]

HOLDS = 140
"""Padded tokens that the small device holds."""
POISON = 95
"""A row with this token ends the process."""


def create_small(config: bytes, emit: Emit) -> Any:
    """The real worker on a device that is full above HOLDS padded tokens, as CUDA would say it."""
    from extraction.worker import create

    handler = create(config, emit)
    hold_few(handler.capture)
    return handler


def hold_few(capture: Any) -> list[int]:
    """Make a target's device full above HOLDS padded tokens; the batches that it then refuses, in padded tokens."""
    import torch

    refused: list[int] = []

    def full(_module: Any, _inputs: Any, named: dict[str, Any]) -> None:
        if (tokens := named["input_ids"].numel()) > HOLDS:
            refused.append(tokens)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    capture.decoder.register_forward_pre_hook(full, with_kwargs=True)
    return refused


def create_wrong(config: bytes, emit: Emit) -> Any:
    """The real worker over hooks that take every state of the layer before."""
    from extraction.capture import Capture
    from extraction.worker import create

    packed = Capture.packed
    Capture.packed = lambda self, rows, length=0: packed(self, rows, length).roll(1, dims=1)  # type: ignore[method-assign]
    return create(config, emit)


def create_quick(config: bytes, emit: Emit) -> Ones:
    """A worker that starts at once, for it has no model."""
    return Ones(msgspec.msgpack.decode(config, type=ExtractConfig), emit)


def create_mortal(config: bytes, emit: Emit) -> Ones:
    """The same, and it dies of a row that holds POISON, in the middle of a shard."""
    return Ones(msgspec.msgpack.decode(config, type=ExtractConfig), emit, POISON)


def create_late(config: bytes, emit: Emit) -> Ones:
    """The same, and it dies of such a row when the shard is whole, before it has said so."""
    return Ones(msgspec.msgpack.decode(config, type=ExtractConfig), emit, POISON, late=True)


class Ones:
    """Writes shards whose states are all 1."""

    capacity = 2

    def __init__(self, config: ExtractConfig, emit: Emit, deadly: int | None = None, late: bool = False) -> None:
        self.config, self._deadly, self._late = config, deadly, late
        self._hidden_size = json.loads((Path(config.target_dir) / "config.json").read_text())["hidden_size"]
        ready = ExtractReady(
            loaded_bytes=0, announced_bytes=0, limit_bytes=0, otherwise=config.most_tokens, budgets={},
            tokens_per_s=1000.0, difference=0.0,
        )  # fmt: skip
        emit(encode(ready))

    async def handle(self, item: bytes) -> bytes:
        """A shard in float32, whatever the configuration says."""
        import numpy as np
        from safetensors.numpy import save_file

        decoded, config = msgspec.msgpack.decode(item, type=ExtractItem), self.config
        rows = [unpack_ids(row.token_ids) for row in decoded.rows]
        ids, lengths = [row.response_id for row in decoded.rows], [len(row) for row in rows]
        path = Path(config.out_dir) / shard_name(config.capture_id, ids)
        dies = any(self._deadly in row for row in rows)
        if dies and not self._late:
            temporary_path(path).write_bytes(b"half a shard")
            os.kill(os.getpid(), signal.SIGKILL)
        meta = ShardMeta(
            config.capture_id, config.layer_ids, config.final_state, config.target, config.revision, "float32"
        )
        mask = [[0] * row.prompt_tokens + [1] * (row.tokens - row.prompt_tokens) for row in decoded.rows]
        tensors = {
            "offsets": np.cumsum([0, *lengths], dtype=np.int64),
            "input_ids": np.concatenate(rows).astype(np.int32),
            "loss_mask": np.concatenate(mask).astype(np.uint8),
            "states": np.ones((sum(lengths), meta.states_per_token, self._hidden_size), dtype=np.float32),
        }
        save_file(tensors, path, metadata=header_texts(meta, ids))
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return msgspec.msgpack.encode(
            ExtractReceipt(
                item_id=decoded.item_id, shard=path.name, size_bytes=path.stat().st_size, sha256=sha256_file(path),
                rows=[CapturedEntry(one, n, length) for n, (one, length) in enumerate(zip(ids, lengths, strict=True))],
                failed=[], seconds=0.1, tokens=sum(lengths),
                cut=(1, len(ids), len(ids), len(ids), sum(lengths), sum(lengths)),
            )
        )  # fmt: skip

    def close(self) -> None:
        """Nothing to let go of."""


def create_stuck(config: bytes, emit: Emit) -> Ones:
    """A worker that starts at once and never ends a shard."""
    return Stuck(msgspec.msgpack.decode(config, type=ExtractConfig), emit)


class Stuck(Ones):
    """It waits for ever."""

    async def handle(self, item: bytes) -> bytes:
        """Never answers."""
        await asyncio.Event().wait()
        return item
