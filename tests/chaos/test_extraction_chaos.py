"""Chaos: `draftmill extract` with two workers, killed with SIGKILL at random moments until a last run ends.

Each round has a workspace of its own with accepted answers, and sees several deaths: of a worker, of the coordinator,
of all processes at once, while they start or after so many shards. After every death what is published is proven
(`corpus.ledger.verify`); at the end every row is captured exactly once, nothing half-written is left, and the states
are those of a run that nothing disturbed.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from corpus.ledger.query import query
from corpus.ledger.verify import verify
from corpus.shards import CapturedRow, ShardReader
from corpus.workspace import Workspace
from tests.extraction.answered import answered_world, sections

ROUNDS, FEW = 20, 1
VICTIMS = ("worker", "coordinator", "all")
LIMIT_S = 300.0
PROMPTS = {"coding": 75, "general": 75}
MANIFEST, LOG = "mix.yaml", "extract.log"
TOLERANCE = 1e-5
"""Of a layer's root mean square: another batch adds up in another order."""


def write_world(root: Path) -> None:
    """Answers of 30 to 200 tokens with their prompts, and batches small enough that there are many."""
    draw = random.Random(2)

    def text() -> str:
        return " ".join(str(draw.randrange(100)) for _ in range(draw.randint(10, 180)))

    world = answered_world(root, {name: [text() for _ in range(count)] for name, count in PROMPTS.items()})
    world.write(MANIFEST, **sections(PROMPTS, layers=[1, 4], max_tokens_per_batch=256))


@dataclass
class Undisturbed:
    """The world as it is before any state is captured, and what a run without a death makes of it."""

    root: Path
    start_s: float
    """Until the first shard is there."""
    shards: int
    states: dict[str, CapturedRow]
    deaths: Counter[str] = field(default_factory=Counter)
    """In all rounds, by what was meant to die: did it?"""


def start(root: Path) -> subprocess.Popen[bytes]:
    """The command as a user has it."""
    command = [sys.executable, "-m", "draftmill", "extract", str(root / MANIFEST), "-w", str(root / "ws")]
    with (root / LOG).open("ab") as log:
        return subprocess.Popen([*command, "--devices", "2"], stdout=log, stderr=log)


def ended(process: subprocess.Popen[bytes], root: Path) -> int:
    """Its exit code, negative for a signal."""
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"the coordinator still ran after {LIMIT_S:g} s:\n{said(root)}") from None


def said(root: Path) -> str:
    """The end of what the coordinators of a world printed."""
    return (root / LOG).read_text()[-4000:]


def shards_of(root: Path) -> list[Path]:
    """Finished ones."""
    return sorted((root / "ws" / "hidden").glob("*/*.safetensors"))


def states_of(root: Path) -> dict[str, CapturedRow]:
    """Every row of every shard."""
    states: dict[str, CapturedRow] = {}
    for path in shards_of(root):
        with ShardReader(path) as reader:
            states |= {row.response_id: row for row in reader}
    return states


@dataclass
class Round:
    """One workspace on its way through its deaths."""

    root: Path
    draw: random.Random
    whole: Undisturbed
    deaths: list[str] = field(default_factory=list)

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.root / "ws")

    def suffer(self, victims: list[str]) -> None:
        """Run until all of these died, or until nothing is left to do, and then to the end."""
        process: subprocess.Popen[bytes] | None = None
        for victim in victims:
            process = process or start(self.root)
            self.wait_a_moment(process)
            if process.poll() is not None:
                break  # it was done before
            died = self.kill(process, victim)
            self.whole.deaths[f"{victim} {'died' if died else 'had ended'}"] += 1
            self.deaths.append(f"{victim} after {len(shards_of(self.root))} shards")
            if victim != "worker":
                code = ended(process, self.root)
                assert code in (-signal.SIGKILL, 0), f"{self.deaths}: exit {code}\n{said(self.root)}"
                process = None
                self.prove()
        code = ended(process or start(self.root), self.root)
        assert code == 0, f"{self.deaths}: exit {code}\n{said(self.root)}"

    def wait_a_moment(self, process: subprocess.Popen[bytes]) -> None:
        """A time of the start, or until so many more shards are there and a little longer; or until it ends."""
        if self.draw.random() < 0.25:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.draw.uniform(0.0, self.whole.start_s))
            return
        wanted = len(shards_of(self.root)) + self.draw.randint(0, self.whole.shards // 3)
        deadline = time.monotonic() + LIMIT_S
        while len(shards_of(self.root)) < wanted and process.poll() is None:
            assert time.monotonic() < deadline, f"{self.deaths}\n{said(self.root)}"
            time.sleep(0.002)
        time.sleep(self.draw.uniform(0.0, 0.1))

    def kill(self, process: subprocess.Popen[bytes], victim: str) -> bool:
        """Kill it now; False if it is not there."""
        coordinator = psutil.Process(process.pid)
        if victim == "worker":
            workers = workers_of(coordinator)
            return bool(workers) and kill(self.draw.choice(workers))
        family = [] if victim == "coordinator" else children_of(coordinator, recursive=True)
        died = kill(coordinator)
        for one in family:
            kill(one)
        return died

    def prove(self) -> None:
        """What is published holds."""
        if self.workspace.snapshot.exists():
            breached = [finding for finding in verify(self.workspace) if not finding.holds]
            assert not breached, (self.deaths, breached)

    def check_the_end(self) -> None:
        """Nothing lost, nothing doubled, nothing another, nothing left over."""
        findings = verify(self.workspace)
        assert [finding for finding in findings if not finding.holds] == [], self.deaths
        assert [note for finding in findings for note in finding.notes if " yet" in note] == [], self.deaths
        accepted = query(self.workspace, "SELECT response_id FROM accepted_responses ORDER BY 1")["response_id"]
        captured = query(self.workspace, "SELECT response_id FROM hidden_rows ORDER BY 1")["response_id"]
        assert captured.to_list() == accepted.to_list(), self.deaths
        assert query(self.workspace, "FROM hidden_failures").height == 0, self.deaths
        named = query(self.workspace, "SELECT shard FROM hidden_shards ORDER BY 1")["shard"]
        assert named.to_list() == [path.name for path in shards_of(self.root)], self.deaths
        left = [path for path in self.workspace.root.rglob(".*") if path.name.endswith((".tmp", ".part"))]
        assert not left, self.deaths
        assert not list(self.workspace.root.rglob("*.damaged")), self.deaths
        check_states(states_of(self.root), self.whole.states)


def check_states(got: dict[str, CapturedRow], want: dict[str, CapturedRow]) -> None:
    """Row by row: the same tokens and loss mask, and the same states but for rounding."""
    assert got.keys() == want.keys()
    for response_id, row in got.items():
        whole = want[response_id]
        assert row.input_ids_T.equal(whole.input_ids_T)
        assert row.loss_mask_T.equal(whole.loss_mask_T)
        scale_N1 = whole.states_TNH.pow(2).mean(dim=(0, 2)).sqrt()[:, None]
        assert ((row.states_TNH - whole.states_TNH).abs() <= TOLERANCE * scale_N1 + 1e-5 * whole.states_TNH.abs()).all()


def children_of(coordinator: psutil.Process, recursive: bool) -> list[psutil.Process]:
    try:
        return list(coordinator.children(recursive=recursive))
    except psutil.NoSuchProcess:
        return []


def workers_of(coordinator: psutil.Process) -> list[psutil.Process]:
    """Workers alone: no copy of a snapshot, no guard."""
    found = []
    for child in children_of(coordinator, recursive=False):
        with contextlib.suppress(psutil.Error):
            if "fleet.worker" in " ".join(child.cmdline()):
                found.append(child)
    return found


def kill(process: psutil.Process) -> bool:
    """False if it has ended."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A run that nothing disturbs."""
    root = tmp_path_factory.mktemp("chaos")
    world = root / "world"
    world.mkdir()
    write_world(world)
    undisturbed = Path(shutil.copytree(world, root / "undisturbed"))
    began = time.monotonic()
    process = start(undisturbed)
    while not shards_of(undisturbed):
        assert process.poll() is None, said(undisturbed)
        time.sleep(0.005)
    start_s = time.monotonic() - began
    assert ended(process, undisturbed) == 0, said(undisturbed)
    shards, states = len(shards_of(undisturbed)), states_of(undisturbed)
    assert (shards >= 14, len(states)) == (True, sum(PROMPTS.values()))
    return Undisturbed(world, start_s, shards, states)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.full] if n >= FEW else []) for n in range(ROUNDS)])
def test_whatever_is_killed_every_row_is_captured_once(seed: int, whole: Undisturbed, tmp_path: Path) -> None:
    draw = random.Random(seed)
    root = Path(shutil.copytree(whole.root, tmp_path / "world"))
    one = Round(root, draw, whole)
    # every victim comes first in some round
    one.suffer([VICTIMS[seed % len(VICTIMS)], *draw.choices(VICTIMS, k=draw.randint(1, 3))])
    one.check_the_end()


@pytest.mark.full
def test_the_deaths_that_were_drawn_did_happen(whole: Undisturbed) -> None:
    """A worker may not be up yet when it is to die; mostly it is."""
    died = sum(count for name, count in whole.deaths.items() if name.endswith(" died"))
    assert died >= 0.6 * whole.deaths.total(), whole.deaths
