"""A coordinator that dies where it is told to: the stages of `generate` over a fake engine, in a process of its own.

A death is a point in the code and a number: the process kills itself with SIGKILL when it comes there so many times.
Points are between a temporary file and its rename, behind a rename, before a statement of the ledger, around the copy
of a snapshot. `coordinate` runs in a child of a fork server, so what is patched here is patched nowhere else; it
writes how often it passed each point, so that a test can draw one that will be reached, and which workers have joined.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from corpus import artefacts, runlog
from corpus.building import commit_build
from corpus.ledger import writer
from corpus.ledger.rebuild import adopt
from corpus.ledger.writer import LedgerWriter, open_ledger
from corpus.manifest_file import load_manifest
from corpus.runlog import RunLog
from fleet.devices import Device
from fleet.interrupt import Interrupt
from fleet.pool import Pool
from generation import attempts
from generation.shares import Shares
from generation.stage import load_feed, load_prompts
from tests.conftest import World

DEVICES = [Device("cpu", 0), Device("cpu", 1)]
PASSED = "passed.json"
JOINED = "joined"
LOG = "coordinator.log"


class Death(NamedTuple):
    """Where to die, and at which time there."""

    point: str
    number: int


class Points:
    """Counts how often each point is passed, and kills this process at one of them."""

    def __init__(self, death: Death | None) -> None:
        self.passed: Counter[str] = Counter()
        self._death = death

    def at(self, point: str) -> None:
        """The process is at this point."""
        self.passed[point] += 1
        if self._death == (point, self.passed[point]):
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self) -> None:
        """Patch the code with them."""
        temporary_path, replace, run, migrate = (
            artefacts.temporary_path, Path.replace, subprocess.run, writer.migrate
        )  # fmt: skip
        opened = LedgerWriter._open_connection

        def half_written(path: Path) -> Path:
            made = temporary_path(path)
            if self._death == ("torn", self.passed["torn"] + 1):
                made.parent.mkdir(parents=True, exist_ok=True)
                made.write_bytes(b"PAR1 half a file")
            self.at("torn")
            return made

        def renamed(path: Path, target: Any) -> Path:
            kind = kind_of(Path(target))
            self.at(f"before {kind}")
            made = replace(path, target)
            self.at(f"after {kind}")
            return made

        def copied(*arguments: Any, **options: Any) -> Any:
            self.at("uncopied")
            done = run(*arguments, **options)
            self.at("copied")
            return done

        # subprocess.run is everybody's, but only the copy of a snapshot calls it in a run
        for owner, name, patch in (
            (artefacts, "temporary_path", half_written),
            (Path, "replace", renamed),
            (subprocess, "run", copied),
            (writer, "migrate", lambda connection, path: migrate(Statements(connection, self.at), path)),
            (LedgerWriter, "_open_connection", lambda ledger: Statements(opened(ledger), self.at)),
        ):
            setattr(owner, name, patch)


class Statements:
    """A connection whose statements are a point each."""

    def __init__(self, connection: Any, at: Callable[[str], None]) -> None:
        self._connection, self._at = connection, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, *arguments: Any) -> Any:
        self._at("statement")
        return self._connection.execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        self._at("statement")
        return self._connection.executemany(*arguments)


def kind_of(path: Path) -> str:
    """What an artefact is, in a word."""
    if path.name == "progress.json":
        return "progress"
    if path.name.startswith("ledger.snapshot"):
        return "snapshot"
    if path.parent.name == "rounds":
        return "round"
    if path.name == "responses.parquet":
        return "plan"
    if path.parent.name == "responses":
        return "shard"
    return "run" if path.parent.parent.name == "runs" else "other"


def tell_who_joined(path: Path) -> None:
    """Have a pool append the process id of each worker that is ready."""
    joined = Pool.joined

    def told(pool: Pool, number: int, capacity: int) -> None:
        joined(pool, number, capacity)
        pids = [slot.worker.pid for slot in pool._crew._slots if slot.worker and slot.worker.number == number]
        with path.open("a") as file:
            file.write(f"{pids[0]}\n")

    Pool.joined = told  # type: ignore[method-assign]


def coordinate(root: Path, death: Death | None) -> None:
    """Build and generate what mix.yaml in `root` says, or die on the way."""
    log = os.open(root / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    points = Points(death)
    points.arm()
    tell_who_joined(root / JOINED)
    attempts.FLUSH_ROWS, runlog.FLUSH_EVERY_S = 6, 0.2
    writer.PUBLISH_EVERY_S, writer.PUBLISH_SHARE = 0.3, 1.0
    world = World(root)
    manifest = load_manifest(root / "mix.yaml")
    with open_ledger(world.workspace, "generate") as ledger:
        adopt(ledger)
        build = world.plan(manifest)
        commit_build(build, world.workspace, ledger)
        plan = world.generation(manifest, build, ledger)
        shares = Shares(manifest, world.target(), build, plan, ledger)
        feed = load_feed(plan, load_prompts(build, ledger), build, ledger)
        if not len(feed) and (more := shares.top_up()) is not None:
            feed.add(more)
        if len(feed):
            run_log = RunLog(ledger, "generate", build.build_id)
            run = world.run(plan, manifest, ledger, run_log)
            asyncio.run(run.run(feed, DEVICES, Interrupt(), lambda progress: None, shares.top_up))
            run_log.finish("done")
        shares.settle()
    (root / PASSED).write_text(json.dumps(points.passed))
