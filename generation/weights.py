"""How many bytes of weights an engine loads, from the headers of a model's safetensors files.

Reads headers only: a 55 GB model is told in milliseconds, without torch. Floating-point tensors count in the dtype that
they are loaded as, quantised ones as they are stored; the vision tower and the multi-token head of a text engine are
left out, for the engine leaves them out. What is not there or cannot be read is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from generation.cache_shape import DTYPE_BYTES

FLOATS = ("F64", "F32", "F16", "BF16")
STORED_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
"""Of one number in a safetensors file; all other kinds take one byte."""
NOT_LOADED = ("visual", "vision_tower", "vision_model", "multi_modal_projector", "mtp")
"""Parts of a name, between dots, of tensors that a text engine passes over."""
MOST_HEADER_BYTES = 100 << 20


def loaded_bytes(tensors: Iterable[tuple[str, str, int]], dtype: str) -> int:
    """Bytes of (name, safetensors dtype, number of elements) once loaded with the manifest's target.dtype."""
    total = 0
    for name, kind, count in tensors:
        if not set(name.split(".")) & set(NOT_LOADED):
            total += count * (DTYPE_BYTES[dtype] if kind in FLOATS else STORED_BYTES.get(kind, 1))
    return total


def weights_bytes(folder: Path, dtype: str) -> int | None:
    """Bytes of the folder's weights; of a Hub model that is not fetched yet, those that its index promises."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return _promised(folder)
    total = 0
    for file in files:
        try:
            total += loaded_bytes(_tensors(file), dtype)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged: the engine will say so
            total += file.stat().st_size
    return total


def _tensors(file: Path) -> list[tuple[str, str, int]]:
    """Name, dtype and number of elements of each tensor, from the file's header."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= MOST_HEADER_BYTES:
            raise ValueError(f"{file.name}: no safetensors header")
        header = json.loads(opened.read(length))
    return [
        (name, str(entry["dtype"]), math.prod(entry["shape"]))
        for name, entry in header.items()
        if name != "__metadata__"
    ]


def _promised(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "model.safetensors.index.json").read_text())["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
