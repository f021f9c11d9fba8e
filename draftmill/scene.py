"""What a workspace looks like from outside: who writes there now, and how its newest run goes or ended.

Read from small files (workspace.lock; run.json, progress.json and training.json of runs/*): no lock is taken, no ledger
is opened. A lock is seen on its own machine only; a run of another one counts as running while it is heard of.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from corpus.workspace import Workspace
from draftmill.progress_block import progress_line, result_line, span
from draftmill.terminal import clock
from draftmill.training_block import headway_line
from generation.progress import Progress, read_progress
from training.headway import Headway, read_headway

T = TypeVar("T")
LATE_S = 15.0
"""Progress is published every two seconds; older than this, its age is said."""


class Owner(msgspec.Struct, frozen=True):
    """Who wrote its name into workspace.lock last."""

    pid: int
    host: str
    command: str
    since: datetime


class RunBody(msgspec.Struct, frozen=True):
    """runs/<run_id>/run.json."""

    command: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    """done, stopped or failed; None while it goes on, and for ever where it was killed."""


@dataclass(frozen=True)
class SeenRun:
    """One run."""

    run_id: str
    body: RunBody
    progress: Progress | None
    heard_at: float
    """Its last sign of life: UTC seconds since 1970."""
    headway: Headway | None = None
    """Of training."""


@dataclass(frozen=True)
class Scene:
    """A workspace at one moment."""

    owner: str | None
    """Who writes now, in words; None if nobody does."""
    who: Owner | None
    """The same, or who wrote last; None where the lock does not say."""
    run: SeenRun | None
    """The newest run of who writes now; of all, where nobody does."""


def look(workspace: Workspace) -> Scene:
    """The workspace now."""
    owner = workspace.coordinator()  # before its run: once the lock is free, the outcome is written
    who = _read(workspace.lock, Owner)
    run = newest_run(workspace)
    if owner is not None:
        return Scene(owner, who, run if run and (who is None or began_under(run, who)) else None)
    if who and run and who.host != socket.gethostname() and run.body.outcome is None and not _late(run, time.time()):
        return Scene(f"`draftmill {who.command}`, process {who.pid} on {who.host}, since {who.since}", who, run)
    return Scene(None, who, run)


def began_under(run: SeenRun, who: Owner) -> bool:
    """Whether this owner may have begun it: runs of earlier ones are older."""
    return run.body.started_at >= who.since


def newest_run(workspace: Workspace, before: datetime | None = None) -> SeenRun | None:
    """The run that began last. `before`: of those that began before then."""
    folders = sorted((workspace.root / "runs").glob("*"), key=lambda path: path.name, reverse=True)
    for folder in folders:  # a run's name begins with its time
        run = read_run(folder)
        if run is not None and (before is None or run.body.started_at < before):
            return run
    return None


def read_run(folder: Path) -> SeenRun | None:
    """One run; None where there is none, or its file is not one of ours."""
    body = _read(folder / "run.json", RunBody)
    if body is None:
        return None
    progress = read_progress(folder)
    heard_at = progress.updated_at if progress else _touched_at(folder)
    return SeenRun(folder.name, body, progress, heard_at, read_headway(folder))


def _touched_at(folder: Path) -> float:
    touched = 0.0
    for path in (folder, *folder.glob("*"), *folder.glob("workers/*")):
        try:
            touched = max(touched, path.stat().st_mtime)
        except OSError:  # replaced meanwhile
            continue
    return touched


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def _late(run: SeenRun, now: float) -> bool:
    return now - run.heard_at > LATE_S


def late_words(run: SeenRun, now: float) -> str | None:
    """How old its progress is, where that is too old; None before it has any."""
    return f"last heard {span(now - run.heard_at)} ago" if run.progress and _late(run, now) else None


def going_line(scene: Scene, now: float) -> str:
    """What is done now, in one line. `now`: UTC seconds since 1970."""
    run = scene.run
    if run is None:
        return "no stage has begun yet"
    if run.body.outcome is not None:
        return f"{run.body.command} {run.body.outcome}; the next stage has not begun yet"
    elapsed = clock(now - run.body.started_at.timestamp())
    if run.progress is not None:
        late = late_words(run, now)
        return f"{run.body.command}: {progress_line(run.progress)}{f', {late}' if late else ''}"
    if run.headway is not None and run.headway.loss is not None:
        return f"{run.body.command}: {headway_line(run.headway, now)}"
    starting = ", engines start" if run.body.command == "generate" else ""
    return f"{run.body.command}: {elapsed} so far{starting}"


def ended_line(run: SeenRun, now: float) -> str:
    """How a run ended, in one line. `now`: UTC seconds since 1970."""
    body = run.body
    result = f": {result_line(run.progress)}" if run.progress else _trained(run)
    if body.outcome is None:
        seen = f"last seen {span(now - run.heard_at)} ago"
        return f"{body.command} was killed, {seen}{result}. The same command resumes."
    took = clock(((body.ended_at or body.started_at) - body.started_at).total_seconds())
    if body.outcome == "done":
        return f"{body.command} done in {took}{result}"
    again = ". The same command resumes." if run.headway else ""
    return f"{body.command} {body.outcome} after {took}{result}{again}"


def _trained(run: SeenRun) -> str:
    """How far a training run came."""
    own = run.headway
    if own is None or not own.steps:
        return ""
    best = f", best τ {own.best_tau:.2f} at {own.best_step:,}" if own.best_tau is not None else ""
    return f": step {own.step:,} of {own.steps:,}{best}"
