"""Where a run is: which packs are trained, which step is saved, which is best. Read by coordinator and workers alike.

It is the state.json of a checkpoint; weights and optimiser are beside it (see checkpoint). Packs that are done are
kept as ranges, since a run that is fed live trains them in the order in which they come. No torch here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from corpus.artefacts import TEMPORARY_SUFFIX
from corpus.errors import DamagedError, UserError

STATE = "state.json"
CHECKPOINTS = "checkpoints"
"""Their folder, in a drafter's own."""


@dataclass(frozen=True)
class Progress:
    """Where a run is. `tau` is the held-out walk at this step, `best_*` the best so far; None: not measured."""

    step: int
    fingerprint: str
    tau: float | None = None
    best_step: int = 0
    best_tau: float | None = None
    done: list[list[int]] = field(default_factory=list)
    """Packs that were trained, as [first, behind the last], ascending and apart."""
    agreement: dict[str, list[int]] = field(default_factory=dict)
    """By category: sampled tokens that are the target's arg max, of how many."""

    @property
    def packs(self) -> int:
        """How many packs were trained."""
        return sum(end - start for start, end in self.done)

    def after(self, done: Sequence[int], agreement: Mapping[str, tuple[int, int]]) -> Progress:
        """With further packs trained, and what they said of the labels."""
        sums = {name: list(own) for name, own in self.agreement.items()}
        for name, (agreed, of) in agreement.items():
            before = sums.get(name, [0, 0])
            sums[name] = [before[0] + agreed, before[1] + of]
        return replace(self, done=with_done(self.done, done), agreement=sums)


def with_done(done: Sequence[Sequence[int]], more: Sequence[int]) -> list[list[int]]:
    """Ranges and further numbers as ranges: ascending, disjoint, none touching the next.

    Raises:
        ValueError: a number is there twice.
    """
    pieces = sorted([*(list(one) for one in done), *([n, n + 1] for n in more)])
    ranges: list[list[int]] = []
    for start, end in pieces:
        if ranges and start < ranges[-1][1]:
            raise ValueError(f"pack {start} was trained twice")
        if ranges and start == ranges[-1][1]:
            ranges[-1][1] = end
        else:
            ranges.append([start, end])
    return ranges


def left_to_do(done: Sequence[Sequence[int]], packs: int) -> Iterator[int]:
    """The numbers below `packs` that are in no range, ascending."""
    at = 0
    for start, end in [*done, [packs, packs]]:
        yield from range(at, start)
        at = end


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints below a folder, oldest first; what a killed writer left is removed."""
    if not folder.is_dir():
        return []
    for stale in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(stale, ignore_errors=True)
    return sorted(path for path in folder.glob("step-*") if (path / STATE).is_file())


def step_of(path: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    return int(path.name.removeprefix("step-"))


def newest_progress(folder: Path, fingerprint: str) -> Progress:
    """Where the newest checkpoint below a folder is, without its weights; the beginning, where there is none.

    Raises:
        UserError: it belongs to other data or settings, or is damaged.
    """
    found = checkpoints(folder)
    if not found:
        return Progress(0, fingerprint)
    return read_state(found[-1], fingerprint)[0]


def read_state(path: Path, fingerprint: str) -> tuple[Progress, dict[str, str], str]:
    """(progress, checksums of the files beside it, random state).

    Raises:
        UserError: it belongs to other data or settings, or is damaged.
    """
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        if state["fingerprint"] != fingerprint:
            raise UserError(
                f"{path}: a checkpoint of other data or training settings. Remove {path.parent} to start over."
            )
        marks, rng = state.pop("files"), state.pop("rng")
        return Progress(**state), marks, rng
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> DamagedError:
    """The one line about a checkpoint that cannot be read."""
    return DamagedError(f"{path}: a damaged checkpoint ({type(error).__name__}). Remove it and run again.")
