"""Hidden-state shards and how they are read: ragged rows laid end to end in one safetensors file, no padding.

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

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

    def description(self, hidden_size: int, computed_dtype: str | None) -> dict[str, Any]:
        """What capture.json says. `computed_dtype`: numbers that the target computed with; None is unknown."""
        return {
            "schema_version": 1,
            "capture_id": self.capture_id,
            "model": self.target,
            "revision": self.revision,
            "layer_ids": list(self.layer_ids),
            "vllm_layer_ids": list(to_vllm_ids(self.layer_ids)),
            "final_state": "before_norm" if self.final_state else "none",
            "computed_dtype": computed_dtype,
            "dtype": self.dtype,
            "hidden_size": hidden_size,
        }


def shard_index(path: Path | str) -> tuple[ShardMeta, tuple[str, ...], tuple[int, ...]]:
    """(meta, response ids, tokens of each row), read from the header and the offsets alone, without torch.

    Raises:
        UserError: the file cannot be read, or is no whole shard of a schema that this version reads.
    """
    meta, response_ids, offsets = _read_index(Path(path))
    return meta, response_ids, tuple(end - start for start, end in itertools.pairwise(offsets))


def shard_tokens(path: Path | str) -> list[tuple[bytes, bytes]]:
    """(input ids as int32, loss mask as uint8) of each row, read without any state and without torch.

    Raises:
        UserError: as shard_index, or these two are not a number a token.
    """
    path = Path(path)
    _, _, offsets = _read_index(path)
    with _damage_said(path):
        entries, data = _header(path)
        for name, dtype in (("input_ids", "I32"), ("loss_mask", "U8")):
            if entries[name]["dtype"] != dtype or entries[name]["shape"] != [offsets[-1]]:
                raise ValueError(f"{name} is not {dtype} of {offsets[-1]} tokens")
        input_ids, loss_mask = (_bytes_of(path, data, entries[name]) for name in ("input_ids", "loss_mask"))
    return [(input_ids[4 * start : 4 * end], loss_mask[start:end]) for start, end in itertools.pairwise(offsets)]


def capture_body(path: Path | str) -> dict[str, Any]:
    """What capture.json says of a capture, as far as one of its shards can tell; without torch.

    Raises:
        UserError: as shard_index.
    """
    path = Path(path)
    meta, _, _ = _read_index(path)
    return meta.description(_header(path)[0]["states"]["shape"][2], None)


class ShardReader:
    """Random access to the rows of one shard; close it, or use it as a context manager.

    Raises:
        UserError: the file cannot be read, or is no whole shard of a schema that this version reads.
    """

    def __init__(self, path: Path | str) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path = Path(path)
        self.meta, self.response_ids, self._offsets = _read_index(path)
        self._stack = ExitStack()
        try:
            self._open: Any = self._stack.enter_context(safe_open(str(path), framework="pt"))
        except SafetensorError as error:
            raise DamagedError(_damaged(path, first_line(error))) from error

    def __len__(self) -> int:
        return len(self.response_ids)

    def row(self, index: int) -> CapturedRow:
        """Row `index`: int32 input ids [T], uint8 loss mask [T], states [T, N, H] in the stored dtype."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path}: row {index} of {len(self)}")
        start, end = self._offsets[index : index + 2]
        from safetensors import SafetensorError

        try:
            part = {name: self._open.get_slice(name)[start:end] for name in ("input_ids", "loss_mask", "states")}
        except SafetensorError as error:
            raise DamagedError(_damaged(self.path, first_line(error))) from error
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
    with _damage_said(path):
        return _parse_index(path)


@contextmanager
def _damage_said(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such shard. Run the extraction again.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: is a folder. Name one of the .safetensors files in it.") from error
    except OSError as error:  # of the disk or of permissions: the shard itself may be well
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        struct.error,
    ) as error:
        raise DamagedError(_damaged(path, str(error) or type(error).__name__)) from error


def _parse_index(path: Path) -> tuple[ShardMeta, tuple[str, ...], list[int]]:
    entries, data = _header(path)
    texts = entries.pop("__metadata__")
    version = int(texts["schema_version"])
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema {version}; this version of draftmill reads up to {SCHEMA_VERSION}. Install a newer one."
        )
    size_bytes, expected = path.stat().st_size, data + max(entry["data_offsets"][1] for entry in entries.values())
    if size_bytes != expected:
        raise ValueError(f"{size_bytes} bytes, expected {expected}")
    packed = _bytes_of(path, data, entries["offsets"])
    offsets = list(struct.unpack(f"<{len(packed) // 8}q", packed))
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
    if offsets[0] != 0 or any(start > end for start, end in itertools.pairwise(offsets)):
        raise ValueError("its rows overlap")
    if len(set(response_ids)) < len(response_ids) or not all(isinstance(one, str) for one in response_ids):
        raise ValueError("its response ids are not one a row")
    if missing := {"states", "input_ids", "loss_mask"} - entries.keys():
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    return meta, response_ids, offsets


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """(what the header says of each tensor, where their bytes begin)."""
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, path.stat().st_size - 8):
            raise ValueError("its header is cut off")
        entries: dict[str, Any] = json.loads(file.read(header_bytes))
        return entries, 8 + header_bytes


def _bytes_of(path: Path, data: int, entry: dict[str, Any]) -> bytes:
    """Of one tensor."""
    start, end = entry["data_offsets"]
    with path.open("rb") as file:
        file.seek(data + start)
        return file.read(end - start)


def _damaged(path: Path, why: str) -> str:
    return f"{path}: not a whole hidden-state shard ({why}). Remove it and run the extraction again."
