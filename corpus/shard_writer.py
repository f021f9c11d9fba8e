"""A hidden-state shard that is written as its rows come: nothing waits in memory for the last one.

Every row has its place from the start, so rows may come in any order, a batch at a time. The file has its name only
when `finish` has put it there, whole; rows that never came are left out of it. The bytes are what `corpus.shards`
reads: safetensors, laid out here because the library's own writer wants all tensors at once.

Shapes: S tokens of the rows that are put, N states a token, H hidden size.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from corpus.artefacts import Written, say_full_disk, sha256_file, sync_path, temporary_path
from corpus.layers import to_vllm_ids
from corpus.shards import SCHEMA_VERSION, CapturedRow, ShardMeta

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
SAFETENSORS_NAME = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
COPY_BYTES = 8 << 20


class ShardWriter:
    """One shard to be. Use it as a context manager: left without `finish`, nothing stays.

    Args:
        path: where it will lie.
        meta: what its rows share.
        response_ids: of the rows, in the order that the shard keeps.
        lengths: tokens of each row.
        hidden_size: H.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """

    def __init__(
        self, path: Path, meta: ShardMeta, response_ids: Sequence[str], lengths: Sequence[int], hidden_size: int
    ) -> None:
        self.path, self.meta = path, meta
        self._ids, self._lengths, self._hidden_size = list(response_ids), list(lengths), hidden_size
        self._layout = _Layout(meta, self._ids, self._lengths, hidden_size)
        self._came = [False] * len(self._ids)
        self._temporary = temporary_path(path)
        self._file = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            _write(self._file, self._layout.head, 0)
        except BaseException as error:
            self.abandon()
            say_full_disk(error, path)
            raise

    def put(self, rows: Sequence[int], states_SNH: Any, input_ids_S: Any, loss_mask_S: Any) -> None:
        """Write whole rows, one after another in the tensors, which lie on the CPU.

        Raises:
            UserError: the disk is full.
            ValueError: the shapes do not fit the rows, or a row has come before.
        """
        import torch

        tokens = sum(self._lengths[row] for row in rows)
        wanted = (tokens, self.meta.states_per_token, self._hidden_size)
        if tuple(states_SNH.shape) != wanted or not len(input_ids_S) == len(loss_mask_S) == tokens:
            raise ValueError(
                f"{self.path.name}: states {tuple(states_SNH.shape)} for {len(input_ids_S)} tokens; expected {wanted}"
            )
        if any(self._came[row] for row in rows):
            raise ValueError(f"{self.path.name}: a row came twice")
        parts = {
            "states": torch.as_tensor(states_SNH).to(getattr(torch, self.meta.dtype)),
            "input_ids": torch.as_tensor(input_ids_S).to(torch.int32),
            "loss_mask": torch.as_tensor(loss_mask_S).to(torch.uint8),
        }
        data = {name: memoryview(part.contiguous().view(torch.uint8).numpy()).cast("B") for name, part in parts.items()}
        try:
            done = 0
            for first, last in _runs(rows):
                start, end = self._layout.offsets[first], self._layout.offsets[last + 1]
                for name, view in data.items():
                    width = self._layout.width[name]
                    part = view[done * width : (done + end - start) * width]
                    _write(self._file, part, self._layout.start[name] + start * width)
                done += end - start
        except OSError as error:
            say_full_disk(error, self.path)
            raise
        for row in rows:
            self._came[row] = True

    def finish(self) -> Written | None:
        """Put the shard in its place, without the rows that never came; None, and no file, if none did.

        Raises:
            UserError: the disk is full.
        """
        kept = self.kept
        try:
            if kept and len(kept) < len(self._ids):
                self._leave_out(kept)
            if not kept:
                return None
            os.fsync(self._file)
            size_bytes, checksum = os.fstat(self._file).st_size, sha256_file(self._temporary)
            self._temporary.replace(self.path)
            sync_path(self.path.parent)
        except OSError as error:
            say_full_disk(error, self.path)
            raise
        finally:
            self.abandon()
        return Written(self.path, size_bytes, checksum)

    @property
    def kept(self) -> list[int]:
        """Rows that came, in the order of the shard."""
        return [row for row, came in enumerate(self._came) if came]

    def abandon(self) -> None:
        """Leave nothing behind; after `finish` this does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _leave_out(self, kept: Sequence[int]) -> None:
        """Lay the rows that came out anew, in a second temporary file."""
        old, temporary = self._layout, temporary_path(self.path)
        layout = _Layout(self.meta, [self._ids[i] for i in kept], [self._lengths[i] for i in kept], self._hidden_size)
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write(file, layout.head, 0)
            place = 0
            for first, last in _runs(kept):
                start, end = old.offsets[first], old.offsets[last + 1]
                for name, width in layout.width.items():
                    source, target = old.start[name] + start * width, layout.start[name] + place * width
                    _copy(self._file, source, file, target, (end - start) * width)
                place += end - start
        except BaseException:
            os.close(file)
            temporary.unlink(missing_ok=True)
            raise
        self.abandon()
        self._temporary, self._file, self._layout = temporary, file, layout


def write_shard(path: Path, rows: Sequence[CapturedRow], meta: ShardMeta) -> Written:
    """Write rows that are all there as one shard.

    Raises:
        UserError: the disk is full or the folder cannot be written.
        ValueError: no rows, or a row whose shapes do not fit the meta.
    """
    if not rows:
        raise ValueError("a shard needs at least one row")
    ids, lengths = [row.response_id for row in rows], [len(row.input_ids_T) for row in rows]
    with ShardWriter(path, meta, ids, lengths, rows[0].states_TNH.shape[-1]) as writer:
        for index, row in enumerate(rows):
            writer.put([index], row.states_TNH, row.input_ids_T, row.loss_mask_T)
        written = writer.finish()
    assert written is not None
    return written


class _Layout:
    """Where everything lies: the header's bytes with the offsets, and for each other tensor its start and width."""

    def __init__(self, meta: ShardMeta, response_ids: Sequence[str], lengths: Sequence[int], hidden_size: int) -> None:
        self.offsets = list(itertools.accumulate(lengths, initial=0))
        tokens, states = self.offsets[-1], meta.states_per_token
        self.width = {"input_ids": 4, "states": states * hidden_size * BYTES[meta.dtype], "loss_mask": 1}
        # widest first: every tensor begins at a multiple of its numbers' size
        shapes: dict[str, tuple[str, list[int], int]] = {
            "offsets": ("I64", [len(self.offsets)], 8 * len(self.offsets)),
            "input_ids": ("I32", [tokens], 4 * tokens),
            "states": (SAFETENSORS_NAME[meta.dtype], [tokens, states, hidden_size], self.width["states"] * tokens),
            "loss_mask": ("U8", [tokens], tokens),
        }
        entries: dict[str, Any] = {"__metadata__": header_texts(meta, response_ids)}
        end = 0
        for name, (dtype, shape, size_bytes) in shapes.items():
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size_bytes]}
            end += size_bytes
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        data = 8 + len(header)
        self.start = {name: data + entries[name]["data_offsets"][0] for name in self.width}
        self.head = struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(self.offsets)}q", *self.offsets)


def header_texts(meta: ShardMeta, response_ids: Sequence[str]) -> dict[str, str]:
    """What the header of a shard says in words: layer ids in both conventions, target, norm rule, whose rows."""
    return {
        "schema_version": str(SCHEMA_VERSION),
        "capture_id": meta.capture_id,
        "layer_ids": json.dumps(list(meta.layer_ids)),
        "vllm_layer_ids": json.dumps(list(to_vllm_ids(meta.layer_ids))),
        "final_state": "before_norm" if meta.final_state else "none",
        "target": meta.target,
        "revision": meta.revision,
        "dtype": meta.dtype,
        "response_ids": json.dumps(list(response_ids)),
    }


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of rows that follow one another."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], row)
        else:
            runs.append((row, row))
    return runs


def _write(file: int, data: Any, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, place)
        view, place = view[written:], place + written


def _copy(source: int, source_place: int, target: int, target_place: int, size_bytes: int) -> None:
    while size_bytes:
        data = os.pread(source, min(size_bytes, COPY_BYTES), source_place)
        _write(target, data, target_place)
        source_place, target_place, size_bytes = (
            source_place + len(data),
            target_place + len(data),
            size_bytes - len(data),
        )
