"""The codec of hidden-state shards: ragged rows laid end to end in one safetensors file, no padding.

`states` [tokens, N, H] in the stored dtype, `input_ids` int32 [tokens], `loss_mask` uint8 [tokens], `offsets`
int64 [rows + 1]; N is the captured layers in ascending order, then, where the capture keeps it, the final
state *before* the target's final norm. The header says which layers, in both conventions, of which target.
A reader fetches one row without touching the others. Torch is imported where tensors are made.

Shapes: T tokens of one row, N states a token, H hidden size.
"""

# ruff: noqa: N815  # shape suffixes in field names

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from corpus.artefacts import Written, write_atomically
from corpus.errors import DamagedError, UserError, first_line
from corpus.layers import to_vllm_ids

SCHEMA_VERSION = 1
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class CapturedRow:
    """One training row with its states. loss_mask is 1 on generated tokens."""

    response_id: str
    input_ids_T: Any
    loss_mask_T: Any
    states_TNH: Any


@dataclass(frozen=True)
class ShardMeta:
    """What every row of a shard shares. `layer_ids` are 0-based layer outputs; `dtype` is the stored one."""

    capture_id: str
    layer_ids: tuple[int, ...]
    final_state: bool
    target: str
    revision: str
    dtype: str

    @property
    def states_per_token(self) -> int:
        """N: captured layers, and one more for the final state."""
        return len(self.layer_ids) + int(self.final_state)


def write_shard(path: Path, rows: Sequence[CapturedRow], meta: ShardMeta) -> Written:
    """Write rows as one shard, whole or not at all.

    Raises:
        UserError: the disk is full or the folder cannot be written.
        ValueError: no rows, or a row whose shapes do not fit the meta.
    """
    import torch
    from safetensors.torch import save_file

    if not rows:
        raise ValueError("a shard needs at least one row")
    dtype = getattr(torch, meta.dtype)
    offsets = [0]
    for row in rows:
        tokens, states, _ = row.states_TNH.shape
        if states != meta.states_per_token or not tokens == len(row.input_ids_T) == len(row.loss_mask_T):
            raise ValueError(
                f"{row.response_id}: states {tuple(row.states_TNH.shape)} for {len(row.input_ids_T)} tokens "
                f"and {meta.states_per_token} states a token"
            )
        offsets.append(offsets[-1] + tokens)
    tensors = {
        "states": torch.cat([torch.as_tensor(row.states_TNH).to(dtype) for row in rows]),
        "input_ids": torch.cat([torch.as_tensor(row.input_ids_T).to(torch.int32) for row in rows]),
        "loss_mask": torch.cat([torch.as_tensor(row.loss_mask_T).to(torch.uint8) for row in rows]),
        "offsets": torch.tensor(offsets, dtype=torch.int64),
    }
    header = {
        "schema_version": str(SCHEMA_VERSION),
        "capture_id": meta.capture_id,
        "layer_ids": json.dumps(list(meta.layer_ids)),
        "vllm_layer_ids": json.dumps(list(to_vllm_ids(meta.layer_ids))),
        "final_state": "before_norm" if meta.final_state else "none",
        "target": meta.target,
        "revision": meta.revision,
        "dtype": meta.dtype,
        "response_ids": json.dumps([row.response_id for row in rows]),
    }
    return write_atomically(path, lambda temporary: save_file(tensors, str(temporary), metadata=header))


def shard_index(path: Path) -> tuple[ShardMeta, tuple[str, ...], tuple[int, ...]]:
    """(meta, response ids, tokens of each row), read from the header and the offsets alone, without torch.

    Raises:
        UserError: the file is no whole shard of a schema that this version reads.
    """
    meta, response_ids, offsets = _read_index(path)
    return meta, response_ids, tuple(end - start for start, end in itertools.pairwise(offsets))


def capture_body(path: Path) -> dict[str, Any]:
    """What capture.json says of a capture, as far as one of its shards can tell; without torch.

    Raises:
        UserError: as shard_index.
    """
    meta, _, _ = _read_index(path)
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        hidden_size = json.loads(file.read(header_bytes))["states"]["shape"][2]
    return {
        "schema_version": 1,
        "capture_id": meta.capture_id,
        "model": meta.target,
        "revision": meta.revision,
        "layer_ids": list(meta.layer_ids),
        "vllm_layer_ids": list(to_vllm_ids(meta.layer_ids)),
        "final_state": "before_norm" if meta.final_state else "none",
        "computed_dtype": None,
        "dtype": meta.dtype,
        "hidden_size": hidden_size,
    }


class ShardReader:
    """Random access to the rows of one shard; close it, or use it as a context manager.

    Raises:
        UserError: the file is no whole shard of a schema that this version reads.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        self.meta, self.response_ids, self._offsets = _read_index(path)
        self._stack = ExitStack()
        try:
            self._open: Any = self._stack.enter_context(safe_open(str(path), framework="pt"))
        except (SafetensorError, OSError) as error:
            raise DamagedError(_damaged(path, first_line(error))) from error

    def __len__(self) -> int:
        return len(self.response_ids)

    def row(self, index: int) -> CapturedRow:
        """Row `index`: int32 input ids [T], uint8 loss mask [T], states [T, N, H] in the stored dtype."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path}: row {index} of {len(self)}")
        start, end = self._offsets[index : index + 2]
        part = {name: self._open.get_slice(name)[start:end] for name in ("input_ids", "loss_mask", "states")}
        return CapturedRow(self.response_ids[index], part["input_ids"], part["loss_mask"], part["states"])

    def token_ids(self) -> Any:
        """All input ids of the shard [tokens], int32, without reading any state."""
        return self._open.get_tensor("input_ids")

    def __iter__(self) -> Iterator[CapturedRow]:
        return (self.row(index) for index in range(len(self)))

    def close(self) -> None:
        """Let go of the file."""
        self._stack.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_index(path: Path) -> tuple[ShardMeta, tuple[str, ...], list[int]]:
    """Meta, response ids and offsets; every check that the file is whole is here."""
    try:
        return _parse_index(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such shard. Run the extraction again.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DamagedError(_damaged(path, str(error) or type(error).__name__)) from error


def _parse_index(path: Path) -> tuple[ShardMeta, tuple[str, ...], list[int]]:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, size_bytes - 8):
            raise ValueError("its header is cut off")
        entries = json.loads(file.read(header_bytes))
        texts = entries.pop("__metadata__")
        version = int(texts["schema_version"])
        if version > SCHEMA_VERSION:
            raise UserError(
                f"{path}: schema {version}; this version of draftmill reads up to {SCHEMA_VERSION}. "
                "Install a newer one."
            )
        data_bytes = max(entry["data_offsets"][1] for entry in entries.values())
        if 8 + header_bytes + data_bytes != size_bytes:
            raise ValueError(f"{size_bytes} bytes, expected {8 + header_bytes + data_bytes}")
        start, end = entries["offsets"]["data_offsets"]
        file.seek(8 + header_bytes + start)
        offsets = list(struct.unpack(f"<{(end - start) // 8}q", file.read(end - start)))
    meta = ShardMeta(
        capture_id=texts["capture_id"],
        layer_ids=tuple(json.loads(texts["layer_ids"])),
        final_state={"before_norm": True, "none": False}[texts["final_state"]],
        target=texts["target"],
        revision=texts["revision"],
        dtype=texts["dtype"],
    )
    response_ids = tuple(json.loads(texts["response_ids"]))
    tokens, states, _ = entries["states"]["shape"]
    if len(offsets) != len(response_ids) + 1 or offsets[-1] != tokens or states != meta.states_per_token:
        raise ValueError("its rows do not add up")
    return meta, response_ids, offsets


def _damaged(path: Path, why: str) -> str:
    return f"{path}: not a whole hidden-state shard ({why}). Remove it and run the extraction again."
