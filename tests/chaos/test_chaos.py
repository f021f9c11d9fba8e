"""Chaos: a generation run whose processes are killed at seeded points, until nothing is left to do.

Each round has a workspace of its own, and dies one to three times: a worker, the coordinator at some moment or at
a chosen point of its code, or all processes at once. After every death the published ledger is proven
(`corpus.ledger.verify`); at the end nothing that was in a finished shard is lost, nothing is accepted twice, every
answer is the one of an undisturbed run, the shares hold, and a ledger made from the files is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

from corpus.ledger.query import query
from corpus.ledger.rebuild import rebuild_workspace
from corpus.ledger.verify import verify
from corpus.workspace import Workspace
from tests.chaos.coordinator import JOINED, LOG, PASSED, Death, coordinate
from tests.conftest import World
from tests.processes import LIMIT_S, alive

ROUNDS, FEW = 36, 6
CONTEXT = multiprocessing.get_context("forkserver")
POINTS = (
    "torn", "before shard", "after shard", "before round", "after round", "before plan", "after plan", "before run",
    "after run", "statement", "uncopied", "copied", "after snapshot",
)  # fmt: skip
PROCESSES = ("worker", "coordinator", "all")
TABLES = (
    "pools", "source_rows", "prompts", "drops", "builds", "build_targets", "sources", "selections", "recipes",
    "build_responses", "responses", "response_shards", "runs", "events", "engine_samples",
)  # fmt: skip
TOLERANCE = 1.0
ATTEMPTS = ["response_id", "attempt", "state", "token_ids"]


def write_world(root: Path) -> Workspace:
    """Three categories: conversations, single prompts, recorded histories; a third of all answers is cut at first."""
    root.mkdir()
    world = World(root)
    draw = random.Random(1)

    def text() -> str:
        return " ".join("".join(draw.choices("abcdefghij", k=6)) for _ in range(8))

    def turns(*roles: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text()} for role in roles]

    sizes = (("user",), ("user",) * 2, ("user",) * 3)
    world.jsonl("talks.jsonl", [{"messages": turns(*draw.choice(sizes))} for _ in range(70)])
    world.jsonl("single.jsonl", [{"messages": turns("user")} for _ in range(90)])
    recorded = ("user", "assistant", "user", "assistant", "user")
    world.jsonl("traces.jsonl", [{"messages": turns(*recorded[: draw.choice((1, 3, 5))])} for _ in range(50)])
    greedy = {"temperature": 0.0}
    world.write(
        sources=[
            {"name": "talks", "path": "talks.jsonl", "category": "general"},
            {"name": "single", "path": "single.jsonl", "category": "coding"},
            {"name": "traces", "path": "traces.jsonl", "category": "agent", "history": "recorded"},
        ],
        mix={
            "total": 80, "shares": {"coding": 4, "general": 3, "agent": 2}, "holdout": 0.05, "tolerance": TOLERANCE,
            "reserve": 1.0,
        },
        generation={"max_tokens": 8, "truncated": "retry", "thinking": {"share": 0.5, "on": greedy, "off": greedy}},
        engine={
            "max_num_seqs": 4,
            "extra": {"mean_tokens": 6, "vocabulary": 500, "latency_s": 0.02, "sample_every_s": 0.1},
        },
    )  # fmt: skip
    return world.workspace


def start(root: Path, death: Death | None = None) -> BaseProcess:
    """A coordinator at work."""
    process = CONTEXT.Process(target=coordinate, args=(root, death))
    process.start()
    return process


def ended(process: BaseProcess, root: Path) -> int:
    """Its exit code, negative for a signal."""
    process.join(LIMIT_S)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"the coordinator still ran after {LIMIT_S:g} s:\n{said(root)}")
    return process.exitcode


def said(root: Path) -> str:
    """The end of what the coordinators of a world printed."""
    return (root / LOG).read_text()[-4000:]


@dataclass
class Undisturbed:
    """What a run without a death does."""

    passed: dict[str, int]
    seconds: float
    answers: dict[str, list[int]]
    """Tokens of accepted answers by response_id."""
    rejected: dict[str, str]


@dataclass
class Round:
    """One workspace and what was seen of it."""

    root: Path
    workspace: Workspace
    draw: random.Random
    whole: Undisturbed
    shards: dict[str, str] = field(default_factory=dict)
    """Finished shards and their checksums."""
    attempts: set[tuple[str, str, int]] = field(default_factory=set)
    deaths: list[str] = field(default_factory=list)

    def disturb(self, kind: str, first: bool) -> bool:
        """Run until a death, or to the end; True if it ended well."""
        if kind in PROCESSES:
            code = self._kill_processes(kind)
        else:
            there = self.whole.passed[kind]
            number = self.draw.randint(1, there if first else max(1, there // 2))
            code = ended(start(self.root, Death(kind, number)), self.root)
            if code == 0:  # much goes by the clock: it may come there less often than the undisturbed run did
                assert json.loads((self.root / PASSED).read_text()).get(kind, 0) < number
            kind = f"{kind} {number}"
        self.deaths.append(f"{kind}: exit {code}")
        assert code in (0, -signal.SIGKILL), f"{self.deaths}\n{said(self.root)}"
        return code == 0

    def _kill_processes(self, kind: str) -> int:
        process = start(self.root)
        assert process.pid is not None
        coordinator = psutil.Process(process.pid)
        if kind == "worker":
            for _ in range(2):
                self._kill_worker(coordinator)
            return ended(process, self.root)
        time.sleep(self.draw.uniform(0.0, 0.9 * self.whole.seconds))
        family = [coordinator, *_family(coordinator)] if kind == "all" else [coordinator]
        for one in family:
            _kill(one)
        return ended(process, self.root)

    def _kill_worker(self, coordinator: psutil.Process) -> None:
        """Kill one of the workers a moment after it has joined: where none ever does, the run is given up."""
        delay_s = self.draw.uniform(0.0, 0.5 * self.whole.seconds)
        place = self.draw.random()
        while alive([coordinator]):  # else there was nothing left to ask
            if workers := self._joined_workers(coordinator):
                time.sleep(delay_s)
                workers = self._joined_workers(coordinator) or workers
                _kill(workers[int(place * len(workers))])
                return
            time.sleep(0.01)

    def _joined_workers(self, coordinator: psutil.Process) -> list[psutil.Process]:
        joined = self.root / JOINED
        pids = joined.read_text().split() if joined.exists() else []
        return [worker for worker in _workers(coordinator) if str(worker.pid) in pids]

    def look(self) -> None:
        """What holds at any time, dead or alive: what is published is proven, what was finished is still there."""
        if self.workspace.snapshot.exists():
            prove(self.workspace, self.deaths)
        for path in self.workspace.responses.glob("*.parquet"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert self.shards.setdefault(path.name, digest) == digest
            rows = pl.read_parquet(path, columns=["response_id", "attempt"])
            self.attempts |= {(path.name, *row) for row in rows.iter_rows()}

    def check_the_end(self) -> None:
        """Nothing lost, nothing doubled, nothing another."""
        workspace, whole = self.workspace, self.whole
        prove(workspace, self.deaths, over=True)
        held = query(workspace, "SELECT shard, response_id, attempt FROM responses").rows()
        assert self.attempts <= set(held), self.deaths
        assert set(self.shards.items()) <= set(query(workspace, "SELECT shard, sha256 FROM response_shards").rows())
        assert {path.name for path in workspace.responses.iterdir()} == {shard for shard, _, _ in held}
        wanted = query(
            workspace,
            "SELECT response_id, count(*) FILTER (state = 'accepted'), "
            "count(*) FILTER (state = 'rejected' AND reason IS NOT NULL) "
            "FROM build_responses LEFT JOIN responses USING (response_id) GROUP BY ALL",
        ).rows()
        for response_id, accepted, rejected in wanted:
            assert accepted == 1 or (accepted == 0 and rejected >= 1), (response_id, self.deaths)
        answers, refused = outcome_of(workspace)
        ids = {row[0] for row in wanted}
        assert len(ids & set(whole.answers)) > 0.8 * len(whole.answers)
        for response_id in ids:  # how many are asked beside depends on when it was asked; what they say does not
            if response_id in whole.answers:
                assert answers[response_id] == whole.answers[response_id], self.deaths
            elif response_id in whole.rejected:
                assert refused[response_id] == whole.rejected[response_id], self.deaths
        check_shares(workspace)
        left = [path for path in workspace.root.rglob(".*") if path.name.endswith((".tmp", ".part"))]
        assert not left, self.deaths
        assert not list(workspace.root.rglob("*.damaged")), self.deaths
        before = tables(workspace)
        rebuild_workspace(workspace)
        after = tables(workspace)
        for name in TABLES:
            assert after[name] == before[name], (name, self.deaths)
        prove(workspace, self.deaths)


def _family(coordinator: psutil.Process) -> list[psutil.Process]:
    try:
        return coordinator.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _workers(coordinator: psutil.Process) -> list[psutil.Process]:
    """Workers alone: no copy of a snapshot, no guard."""
    found = []
    try:
        for child in coordinator.children():
            if "fleet.worker" in " ".join(child.cmdline()):
                found.append(child)
    except psutil.Error:
        return []
    return found


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def prove(workspace: Workspace, deaths: list[str], *, over: bool = False) -> None:
    """The accounts hold; where all is `over`, nothing is written and not entered."""
    findings = verify(workspace)
    breached = [finding for finding in findings if not finding.holds]
    assert not breached, (deaths, breached)
    waiting = [note for finding in findings for note in finding.notes if over and " yet" in note]
    assert not waiting, (deaths, waiting)


def outcome_of(workspace: Workspace) -> tuple[dict[str, list[int]], dict[str, str]]:
    """(tokens of accepted answers, reasons of rejected ones) by response_id."""
    frames = [pl.read_parquet(path, columns=ATTEMPTS) for path in workspace.responses.glob("*.parquet")]
    accepted = pl.concat(frames).filter(state="accepted")
    assert accepted["response_id"].n_unique() == accepted.height
    rejected = query(
        workspace,
        "SELECT DISTINCT response_id, reason FROM responses WHERE state = 'rejected' AND response_id NOT IN "
        "(SELECT response_id FROM accepted_responses)",
    ).rows()
    assert len({response_id for response_id, _ in rejected}) == len(rejected)
    return dict(accepted.select("response_id", "token_ids").iter_rows()), dict(rejected)


def check_shares(workspace: Workspace) -> None:
    """Accepted prompts are as declared, within the tolerance or one prompt."""
    rows = query(
        workspace,
        "SELECT category, stage, sum(prompts)::INT FROM composition WHERE stage IN ('target', 'accepted') GROUP BY ALL",
    ).rows()
    target = {category: count for category, stage, count in rows if stage == "target"}
    accepted = {category: count for category, stage, count in rows if stage == "accepted"}
    allowed = max(1.0, TOLERANCE / 100 * sum(target.values()))
    assert target.keys() == accepted.keys()
    for category, count in target.items():
        assert abs(accepted[category] - count) <= allowed, rows


def tables(workspace: Workspace) -> dict[str, list[Any]]:
    """Every table's rows, in no order of the files."""
    return {name: query(workspace, f"SELECT * FROM {name} ORDER BY ALL").rows() for name in TABLES}


@pytest.fixture(scope="module", autouse=True)
def _preloaded() -> None:
    CONTEXT.set_forkserver_preload(["tests.chaos.coordinator", "corpus.candidates", "generation.run"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """A run that nothing disturbs."""
    root = tmp_path_factory.mktemp("chaos") / "whole"
    workspace = write_world(root)
    assert ended(start(root), root) == 0, said(root)  # the first of a fork server pays for its imports
    began = time.monotonic()
    root = root.with_name("again")
    workspace = write_world(root)
    assert ended(start(root), root) == 0, said(root)
    seconds = time.monotonic() - began
    passed = json.loads((root / PASSED).read_text())
    assert passed.keys() >= set(POINTS)
    answers, rejected = outcome_of(workspace)
    retried = query(workspace, "SELECT count(*) FROM responses WHERE state = 'retried'").item()
    assert min(len(answers) - 100, len(rejected) - 5, retried - 20, passed["after round"] - 2) >= 0
    yield Undisturbed(passed, seconds, answers, rejected)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.full] if n >= FEW else []) for n in range(ROUNDS)])
def test_whatever_is_killed_nothing_is_lost_and_nothing_is_doubled(
    seed: int, whole: Undisturbed, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    kinds = [*PROCESSES, *POINTS]
    # every kind comes first in some round; what comes after it is drawn
    deaths = [kinds[(7 * seed) % len(kinds)], *draw.choices([*kinds, "statement", "after shard"], k=draw.randint(0, 2))]
    root = tmp_path / "world"
    one = Round(root, write_world(root), draw, whole)
    over = False
    for number, kind in enumerate(deaths):
        over = one.disturb(kind, first=number == 0)
        one.look()
        if over:
            break
    if not over:
        assert ended(start(root), root) == 0, f"{one.deaths}\n{said(root)}"
    one.check_the_end()


@pytest.mark.parametrize("point", [POINTS[0], *(pytest.param(point, marks=pytest.mark.full) for point in POINTS[1:])])
def test_a_process_dies_where_it_is_told_to(point: str, tmp_path: Path) -> None:
    root = tmp_path / "world"
    write_world(root)
    assert ended(start(root, Death(point, 1)), root) == -signal.SIGKILL, said(root)
    assert not (root / PASSED).exists()
