"""Small files in a run's folder that other shells look at while it goes on, each written over as a whole.

No artefacts: they are not synced, no ledger reads them, and a disk that is full stops nothing here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def publish(folder: Path, name: str, body: msgspec.Struct) -> None:
    """Let other shells see it."""
    temporary = folder / f".{name}.part"
    with contextlib.suppress(OSError):
        temporary.write_bytes(msgspec.json.encode(body))
        temporary.replace(folder / name)


def read(folder: Path, name: str, kind: type[T]) -> T | None:
    """What a run published last; None before that, or where it is of another draftmill."""
    try:
        return msgspec.json.decode((folder / name).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
