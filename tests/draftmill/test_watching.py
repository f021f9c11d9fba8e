"""Watching a run from another shell: what is going on, how it ended, and that looking disturbs nothing.

Most runs here are files and a lock of this process, changed between two looks by the watch's own pause; one is real, in
a terminal of its own, over the fake engine.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.runlog import make_run_id
from corpus.workspace import Workspace
from draftmill import terminal
from draftmill.app import run_app
from draftmill.scene import LATE_S, ended_line, going_line, look, read_run
from draftmill.status import status_lines
from draftmill.terminal import GenerationScreen
from draftmill.watching import WatchScreen, watch
from generation.progress import CategoryProgress, EngineProgress, Progress, publish_progress
from training.headway import Headway, publish_headway

World = Any

COMMAND = """
import functools, sys
from draftmill import generating
from draftmill.app import run_app
generating.GenerationRun = functools.partial(generating.GenerationRun, factory="generation.fake:create")
sys.exit(run_app(sys.argv[1:]))
"""


def progress(accepted: int = 5, *, updated_at: float | None = None, stopping: bool = False) -> Progress:
    return Progress(
        run_id="r", build_id="b", updated_at=updated_at or time.time(), seconds=9.0, total=22, accepted=accepted,
        rejected=1, failed=0, truncated=0, tokens=340, tokens_per_s=34.0, left_s=20.0, left_error_s=3.0, in_flight=4,
        queued=12, stopping=stopping, categories={"coding": CategoryProgress(wanted=22, accepted=accepted, rejected=1)},
        engines=[EngineProgress(device="cpu:0", running=2, max_num_seqs=2)],
    )  # fmt: skip


class Stage:
    """A run as its files tell it."""

    def __init__(self, workspace: Workspace, command: str = "generate", ago_s: float = 0.0) -> None:
        began = datetime.now(UTC) - timedelta(seconds=ago_s)
        self.folder = workspace.run(make_run_id(began))
        self.folder.mkdir(parents=True)
        self._body = {"command": command, "build_id": "b", "started_at": began.isoformat()}
        self.write()

    def write(self, **more: Any) -> None:
        (self.folder / "run.json").write_text(json.dumps({"ended_at": None, "outcome": None} | self._body | more))

    def end(self, outcome: str) -> None:
        self.write(outcome=outcome, ended_at=datetime.now(UTC).isoformat())


@pytest.fixture
def built(world: World) -> World:
    """A workspace with one build and a published snapshot."""
    with open_ledger(world.workspace, "build") as ledger:
        commit_build(world.plan(world.manifest()), world.workspace, ledger)
    return world


@pytest.fixture
def running(built: World) -> Iterator[tuple[Workspace, Callable[[], None]]]:
    """A workspace that somebody coordinates, and how that one ends."""
    with ExitStack() as stack:
        held: AbstractContextManager[None] = built.workspace.coordinate("run")
        stack.enter_context(held)
        yield built.workspace, stack.close


def follow(workspace: Workspace, steps: list[Callable[[], object]], capsys: Any) -> list[str]:
    """What `--watch` prints while each step happens between two looks; the last one must end it."""
    left = iter(steps)
    watch(workspace, 1e-9, pause=lambda seconds: next(left)())
    assert not list(left), "it ended early"
    return [timeless(line) for line in capsys.readouterr().out.splitlines()]


def timeless(line: str) -> str:
    """The line, with 0:00 for the seconds that a run of this test's took: a busy machine takes one or two."""
    return re.sub(r"(?:(?<=done in )|(?<=ed after ))0:0\d", "0:00", re.sub(r"0:0\d(?= so far)", "0:00", line))


def everything(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


Running = tuple[Workspace, Callable[[], None]]


def test_a_run_is_followed_through_its_stages_to_its_end(running: Running, capsys: Any) -> None:
    workspace, leave = running
    first = Stage(workspace)
    second: list[Stage] = []

    def goes_on() -> None:
        publish_progress(first.folder, progress(accepted=20))

    def next_stage() -> None:
        first.end("done")
        second.append(Stage(workspace, "extract"))

    def end() -> None:
        second[0].end("done")
        leave()

    lines = follow(workspace, [lambda: publish_progress(first.folder, progress()), goes_on, next_stage, end], capsys)
    assert lines == [
        "generate: 0:00 so far, engines start",
        "generate: 6 of 22 answers (27.3%), 34 tok/s, 1 rejected, 0:20 ± 0:03 min left",
        "generate: 21 of 22 answers (95.5%), 34 tok/s, 1 rejected, 0:20 ± 0:03 min left",
        "generate done in 0:00: 20 of 22 answers accepted, 1 rejected, 340 tokens",
        "extract: 0:00 so far",
        "extract done in 0:00",
    ]


@pytest.mark.parametrize("outcome", ["stopped", "failed"])
def test_a_run_that_did_not_finish_says_so(running: Running, outcome: str, capsys: Any) -> None:
    workspace, leave = running
    stage = Stage(workspace)
    publish_progress(stage.folder, progress(stopping=True))

    def end() -> None:
        stage.end(outcome)
        leave()

    lines = follow(workspace, [end], capsys)
    assert lines[0] == "generate: stopping: 4 in flight"
    assert lines[1] == f"generate {outcome} after 0:00: 5 of 22 answers accepted, 1 rejected, 340 tokens"
    assert (f"run_id = '{stage.folder.name}'" in lines[-1]) == (outcome == "failed")


def test_a_killed_run_is_not_called_a_running_one(
    running: Running, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    workspace, leave = running
    stage, now = Stage(workspace), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    publish_progress(stage.folder, progress(updated_at=now - 40))
    lines = follow(workspace, [leave], capsys)
    assert "34 tok/s, 1 rejected, 0:20 ± 0:03 min left, last heard 40 s ago" in lines[0]
    killed = r"generate was killed, last seen 40 s ago: 5 of 22 answers accepted, .* The same command resumes\."
    assert re.fullmatch(killed, lines[1])
    watch(workspace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"nothing runs in {workspace.root}"
    assert re.fullmatch(f"last: {killed}", " ".join(line.strip() for line in lines[-2:]))
    assert max(map(len, lines[1:])) <= 80


def test_another_coordinator_is_another_run(running: Running, capsys: Any) -> None:
    workspace, _ = running
    stage = Stage(workspace)
    lock = json.loads(workspace.lock.read_text())

    def taken_over() -> None:
        later = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
        workspace.lock.write_text(json.dumps(lock | {"since": later, "pid": 1}))

    lines = follow(workspace, [taken_over], capsys)
    assert lines[-1].startswith("generate was killed")
    assert stage.folder.exists()


def test_a_lock_that_is_just_being_written_ends_no_watch(running: Running, capsys: Any) -> None:
    workspace, leave = running
    stage = Stage(workspace)
    lock = workspace.lock.read_text()

    def end() -> None:
        workspace.lock.write_text(lock)
        stage.end("done")
        leave()

    assert follow(workspace, [lambda: workspace.lock.write_text(""), end], capsys)[-1] == "generate done in 0:00"


def test_a_command_that_runs_no_stage(running: Running, capsys: Any) -> None:
    workspace, leave = running
    lines = follow(workspace, [lambda: None, leave], capsys)
    assert lines == ["no stage has begun yet", "no stage has begun yet", "`draftmill run` ended; no stage of it ran"]


def test_a_run_of_an_earlier_coordinator_is_not_the_present_ones(running: Running) -> None:
    workspace, _ = running
    Stage(workspace, ago_s=3600.0)
    scene = look(workspace)
    assert scene.owner is not None
    assert scene.run is None
    *lines, last = status_lines(workspace)
    assert " ".join(line.strip() for line in lines).endswith(f"running now: {scene.owner}")
    assert last == "no stage has begun yet"
    assert max(map(len, lines[1:])) <= 80


def test_what_a_run_warns_of_is_said_once_where_it_runs_and_stays_where_it_is_watched(
    running: Running, capsys: Any
) -> None:
    warned = msgspec.structs.replace(progress(), warnings=["coding: 24 of 24 answers rejected so far"])
    with GenerationScreen() as screen:
        for shown in (progress(), warned, warned):
            screen.show(shown)
    said = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert said.count("warning: coding: 24 of 24 answers rejected so far") == 1
    workspace, _ = running
    publish_progress(Stage(workspace).folder, warned)
    seen = WatchScreen(workspace, 1.0)
    seen.see(look(workspace))
    assert "warning: coding: 24 of 24 answers rejected so far" in seen.lines(80, 24)


def test_a_run_on_another_machine_runs_for_as_long_as_it_is_heard_of(built: World) -> None:
    workspace = built.workspace
    stage = Stage(workspace)
    lock = {"pid": 7, "host": "elsewhere", "command": "generate", "since": "2026-01-01T00:00:00+00:00"}
    workspace.lock.write_text(json.dumps(lock))
    publish_progress(stage.folder, progress())
    owner = look(workspace).owner
    assert owner is not None
    assert owner.startswith("`draftmill generate`, process 7 on elsewhere")
    publish_progress(stage.folder, progress(updated_at=time.time() - LATE_S - 1))
    assert look(workspace).owner is None


def test_nothing_runs(built: World, capsys: Any) -> None:
    watch(built.workspace)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"nothing runs in {built.workspace.root}"
    assert [line for line in lines if "small" in line]
    stage = Stage(built.workspace, "train")
    stage.end("done")
    assert timeless(status_lines(built.workspace)[-1]) == "last: train done in 0:00"


def test_where_nothing_is_published_watching_is_refused(world: World) -> None:
    with pytest.raises(UserError):
        watch(world.workspace)
    assert not world.workspace.root.exists()


def test_status_shows_the_line_of_a_run_that_goes_on(running: Running) -> None:
    workspace, _ = running
    stage = Stage(workspace)
    publish_progress(stage.folder, progress())
    before = everything(workspace.root)
    lines = status_lines(workspace)
    assert lines[-1] == "generate: 6 of 22 answers (27.3%), 34 tok/s, 1 rejected, 0:20 ± 0:03 min left"
    assert everything(workspace.root) == before


def test_training_is_followed_and_an_unfinished_drafter_is_listed(running: Running) -> None:
    workspace, _ = running
    stage = Stage(workspace, "train")
    own = Headway(step=90, steps=360, updated_at=time.time())
    publish_headway(stage.folder, own)
    assert re.fullmatch(r"train: 0:0\d so far", status_lines(workspace)[-1])
    told = msgspec.structs.replace(own, loss=0.5, tokens_per_s=16_000.0, left_s=125.9, best_step=60, best_tau=2.125)
    publish_headway(stage.folder, told)
    line = status_lines(workspace)[-1]
    assert re.fullmatch(r"train: step 90 of 360, loss 0\.500, 16,000 tok/s, 2:0\d left, best τ 2\.12 at 60", line)
    folder = workspace.drafter("d" * 24)
    folder.mkdir(parents=True)
    body = {"build_id": "b" * 24, "capture_id": "c", "training": {}, "rows": 9, "steps": 360}
    (folder / "begun.json").write_text(json.dumps(body))
    listed = f"unfinished drafter {'d' * 24} of bbbbbbbb: step 0 of 360"
    assert listed in status_lines(workspace)
    assert len(listed) <= 80
    stage.end("stopped")
    run = read_run(stage.folder)
    assert run is not None
    said = ended_line(run, time.time())
    assert timeless(said) == "train stopped after 0:00: step 90 of 360, best τ 2.12 at 60. The same command resumes."
    (folder / "drafter.json").write_text(json.dumps(body))
    assert listed not in status_lines(workspace)
    shutil.rmtree(folder)


def test_files_that_are_not_ours_are_passed_over(built: World) -> None:
    stage = Stage(built.workspace)
    (built.workspace.run("zzz")).mkdir()
    (built.workspace.run("zzz") / "run.json").write_text("{half")
    (stage.folder / "progress.json").write_text("{half")
    run = look(built.workspace).run
    assert run is not None
    assert run.run_id == stage.folder.name
    assert run.progress is None
    assert ended_line(run, run.heard_at + 7).startswith("generate was killed, last seen 7 s ago.")


def test_between_two_stages_it_says_so(running: Running) -> None:
    workspace, _ = running
    stage = Stage(workspace)
    stage.end("done")
    run = read_run(stage.folder)
    assert run is not None
    assert going_line(look(workspace), time.time()) == "generate done; the next stage has not begun yet"


def test_every_without_watch_is_refused(built: World, capsys: Any) -> None:
    assert run_app(["status", "-w", str(built.workspace.root), "--every", "5"]) == 2
    assert "add --watch" in capsys.readouterr().err


def test_an_interrupt_ends_a_watch_quietly(running: Running, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    workspace, _ = running
    monkeypatch.setattr("draftmill.watching.look", interrupted)
    assert run_app(["status", "-w", str(workspace.root), "--watch"]) == 0
    assert capsys.readouterr() == ("", "")


# the screen of the run itself


def test_without_a_terminal_a_run_prints_a_line_a_minute_and_at_once_that_it_stops(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    now = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    with GenerationScreen() as screen:
        for _ in range(300):
            now[0] += 0.5
            screen.show(progress())
        screen.show(progress(stopping=True))
        now[0] += 10
        screen.show(progress(stopping=True))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        *["6 of 22 answers (27.3%), 34 tok/s, 1 rejected, 0:20 ± 0:03 min left"] * 2,
        "stopping: 4 in flight, waits 2 min at most; Ctrl-C again stops at once",
    ]


class Terminal:
    """A pseudo-terminal of 24 lines of 80, and what was written to it, without what steers it."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (24, 80))
        self._bytes = b""
        self._is_over = False
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        data = b"more"
        while data:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # its last writer is gone
                data = b""
            with self._more:
                self._bytes += data
                self._is_over = not data
                self._more.notify_all()
        os.close(self._ours)

    def wait_for(self, pattern: str) -> None:
        """Until a line of it is that."""
        with self._more:
            self._more.wait_for(lambda: self._is_over or self.shows(pattern))
        assert self.shows(pattern), self.lines()

    def shows(self, pattern: str) -> bool:
        return any(re.fullmatch(pattern, line.strip()) for line in self.lines())

    def lines(self) -> list[str]:
        return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._bytes.decode(errors="replace")))

    def end(self) -> None:
        """Until all of it is there: its writers are gone."""
        self._reader.join()


def test_a_real_run_in_a_terminal_watched_from_another_shell(world: World) -> None:
    world.tiny_model()
    names = ("coding", "general")
    until = world.root / "it drains"
    extra = {"until": str(until), "at_once": 5, "latency_s": 0.2, "sample_every_s": 0.2}
    manifest = world.write(
        sources=[{"name": name, "path": world.prompts(name, 400), "category": name} for name in names],
        mix={"total": 600, "shares": dict.fromkeys(names, 1)},
        engine={"max_num_seqs": 1, "extra": extra},
    )
    environment = os.environ | {"TERM": "xterm"}
    shown, watched = Terminal(), Terminal()
    workspace = ("-w", str(world.workspace.root))
    run = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "generate", str(manifest), *workspace], stderr=shown.theirs, env=environment
    )
    os.close(shown.theirs)
    while not list(world.workspace.root.glob("runs/*/workers")):
        assert run.poll() is None
        time.sleep(0.02)
    watching = subprocess.Popen(
        [sys.executable, "-m", "draftmill", "status", "--watch", "--every", "0.1", *workspace],
        stdout=watched.theirs, env=environment,
    )  # fmt: skip
    os.close(watched.theirs)
    for screen in (shown, watched):
        screen.wait_for(r"coding +\S+ +50\.0% +\d+ +\d+ +\d+ +\d+")
        screen.wait_for(r"cpu:0 +\d[\d.]* +1/1 +\d+ +- +-")
    run.send_signal(signal.SIGINT)
    shown.wait_for("stopping: .*")
    until.touch()
    assert run.wait() == 1
    assert watching.wait() == 0
    for screen in (shown, watched):
        screen.end()
        assert max(map(len, screen.lines())) <= 80
    accepted = query(world.workspace, "SELECT count(*) FROM accepted_responses").item()
    assert watched.shows(rf"generate stopped after \d+:\d\d: {accepted} of 6\d\d answers accepted, .*")


def test_a_log_line_stands_above_the_block(world: World) -> None:
    script = (
        "import logging, sys\n"
        "from draftmill.terminal import GenerationScreen\n"
        "from tests.draftmill.test_watching import progress\n"
        "logging.basicConfig(format='%(message)s', stream=sys.stderr)\n"
        "with GenerationScreen() as screen:\n"
        "    screen.show(progress())\n"
        "    screen._live.refresh()\n"
        "    logging.warning('an engine starts again')\n"
        "logging.warning('afterwards')\n"
    )
    shown = Terminal()
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-c", script], stderr=shown.theirs, env=environment)
    os.close(shown.theirs)
    assert process.wait() == 0
    shown.end()
    assert shown.shows("an engine starts again")  # not at the end of a line of the block
    assert shown.shows("afterwards")
