"""Where a run is: which packs are trained, which step is saved, which is best. Read by coordinator and workers alike.

It is the state.json of a checkpoint, with its own digest; weights and optimiser are beside it (see checkpoint). Packs
that are done are kept as ranges, since a run that is fed live trains them in the order in which they come. What a
state.json says is believed only as far as it can be true of the run. No torch here.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corpus.artefacts import read_description
from corpus.errors import DamagedError, UserError, first_line

STATE = "state.json"
_NAME = re.compile(r"step-(\d{8,})")
CHECKPOINTS = "checkpoints"
"""Their folder, in a drafter's own."""
DESCRIBED = "drafter.json"
"""What a drafter's folder says of it once it is whole, or was measured."""


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


def checkpoint_name(step: int) -> str:
    """The folder of a checkpoint."""
    return f"step-{step:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints below a folder, oldest first. Nothing is touched: a run may be writing there.

    Raises:
        UserError: the folder is a file, or the drafter's own is.
    """
    for place in (folder.parent, folder):
        if os.path.lexists(place) and not place.is_dir():
            raise UserError(f"{place}: is no folder, and checkpoints go into it. Move it away and run again.")
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _is_checkpoint(path)]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    return int(path.name.removeprefix("step-"))


def _is_checkpoint(path: Path) -> bool:
    """A folder under a name that checkpoint_name gives: not a copy, not a link to one."""
    match = _NAME.fullmatch(path.name)
    named = match is not None and path.name == checkpoint_name(int(match[1]))
    return named and not path.is_symlink() and (path / STATE).is_file()


def newest_progress(
    folder: Path, fingerprint: str | None, packs: int | None = None, packs_per_step: int = 1
) -> Progress:
    """Where the newest checkpoint below a folder is, without its weights; the beginning, where there is none.

    Args:
        fingerprint: of data and settings; None: whoever wrote it.
        packs, packs_per_step: of the whole run, see read_state.

    Raises:
        UserError: it belongs to other data or settings, or is damaged.
    """
    found = checkpoints(folder)
    if not found:
        return Progress(0, fingerprint or "")
    return read_state(found[-1], fingerprint, packs, packs_per_step)[0]


def read_state(
    path: Path, fingerprint: str | None, packs: int | None = None, packs_per_step: int = 1
) -> tuple[Progress, dict[str, str], str]:
    """(progress, checksums of the files beside it, random state).

    Args:
        fingerprint: of data and settings; None: whoever wrote it.
        packs: of the whole run; None where that is not known yet.
        packs_per_step: where packs are known.

    Raises:
        UserError: it belongs to other data or settings, or is damaged.
    """
    try:
        state = read_description(path / STATE)
        if fingerprint is not None and state["fingerprint"] != fingerprint:
            raise UserError(
                f"{path}: a checkpoint of other data or training settings. Remove {path.parent} to start over."
            )
        marks, rng = state.pop("files"), state.pop("rng")
        if not isinstance(marks, dict) or not isinstance(rng, str):
            raise TypeError("files or rng are of another kind")
        progress = Progress(**state)
        if wrong := nonsense(progress, step_of(path), packs, packs_per_step):
            raise ValueError(wrong)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, STATE, error) from error
    return progress, marks, rng


def nonsense(progress: Progress, step: int, packs: int | None, packs_per_step: int) -> str:
    """What cannot be true of a run that says it is at `step`; empty: nothing."""
    if not _count(progress.step) or progress.step != step:
        return f"it says step {progress.step}"
    if not _count(progress.best_step) or progress.best_step > step:
        return f"best_step is {progress.best_step}"
    for name, tau in (("tau", progress.tau), ("best_tau", progress.best_tau)):
        if tau is not None and not (isinstance(tau, int | float) and math.isfinite(tau) and tau >= 1):
            return f"{name} is {tau}"
    at = -1
    for one in progress.done if isinstance(progress.done, list) else ["no list"]:
        if not (isinstance(one, list) and len(one) == 2 and all(map(_count, one)) and at < one[0] < one[1]):
            return "done holds no ascending ranges of packs"
        at = one[1]
    if packs is not None and at > packs:
        return f"done goes to pack {at} of {packs}"
    if packs is not None and math.ceil(progress.packs / packs_per_step) != step:
        return f"done has {progress.packs} packs, which are not {step} steps"
    if not isinstance(progress.agreement, dict) or not all(map(_of, progress.agreement.values())):
        return "agreement holds no counts"
    return ""


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _of(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_count, value)) and value[0] <= value[1]


def damaged(path: Path, name: str, error: Exception) -> DamagedError:
    """The one line about a checkpoint of which the file `name` is not what was written."""
    match error:
        case FileNotFoundError():
            why = "it is gone"
        case OSError():
            why = f"it cannot be read: {error.strerror}"
        case KeyError():
            why = f"{error} is missing"
        case TypeError():
            why = "it holds other things than a checkpoint"
        case _:
            why = first_line(error)
    others = [one.name for one in checkpoints(path.parent) if one != path]
    then = f"training goes on from {others[-1]}" if others else "no other checkpoint is there, so training begins anew"
    return DamagedError(f"{path / name}: a damaged checkpoint ({why[:160]}). Remove {path} and run again: {then}.")
