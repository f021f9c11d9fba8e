"""How far a training run is, for other shells: one small file in the run's folder, written over while it goes on."""

from __future__ import annotations

from pathlib import Path

import msgspec

from corpus import run_files

HEADWAY = "training.json"


class Headway(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is."""

    step: int
    steps: int
    """In all."""
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
    run_files.publish(folder, HEADWAY, headway)


def read_headway(folder: Path) -> Headway | None:
    """What a run says of itself; None before it says so, and of other commands."""
    return run_files.read(folder, HEADWAY, Headway)
