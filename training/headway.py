"""How far a training run is, for other shells: one small file in the run's folder, written over while it goes on.

No artefact: it is not synced, no ledger reads it, and a disk that is full stops nothing here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

HEADWAY = "training.json"


class Headway(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is."""

    drafter_id: str
    step: int
    steps: int
    """In all."""
    first_step: int
    """Where this run began."""
    updated_at: float
    """UTC seconds since 1970."""
    loss: float | None = None
    """None before the first report."""
    tokens_per_s: float = 0.0
    """Context tokens, of all drafters together."""
    left_s: float | None = None
    best_step: int = 0
    best_tau: float | None = None
    """The highest mean held-out walk until now; None: not measured."""
    stopping: bool = False


def publish_headway(folder: Path, headway: Headway) -> None:
    """Let other shells see it."""
    temporary = folder / f".{HEADWAY}.part"
    with contextlib.suppress(OSError):
        temporary.write_bytes(msgspec.json.encode(headway))
        temporary.replace(folder / HEADWAY)


def read_headway(folder: Path) -> Headway | None:
    """What a run says of itself; None before it says so, and of other commands."""
    try:
        return msgspec.json.decode((folder / HEADWAY).read_bytes(), type=Headway)
    except (OSError, msgspec.DecodeError):
        return None
