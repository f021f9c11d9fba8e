"""What breaks while answers are made, over the fake engine in real workers: killed, hung, out of memory, a full disk.

After each failure every wanted answer is accepted once or has its reason, now or after the same command is run
again; what a person is told names what is wrong and what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from corpus import artefacts, runlog
from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger import ingest, writer
from corpus.ledger.query import query
from corpus.ledger.rebuild import adopt
from corpus.ledger.verify import verify
from corpus.ledger.writer import open_ledger
from corpus.rounds import write_round
from corpus.runlog import RunLog
from fleet.devices import Device
from fleet.interrupt import Interrupt
from generation import attempts as writing
from generation.progress import PROGRESS_FILE, Progress
from generation.run import DRAIN_S, RunSummary
from generation.stage import load_feed, load_prompts
from tests.corpus.test_artefacts import needs_mount, small_disk

World = Any  # tests/conftest.py makes it
Report = Callable[[Progress], None]
GREEDY = {"temperature": 0.0}


def story(world: World, prompts: list[str], **extra: Any) -> Any:
    """A manifest that takes all prompts, two answers at once."""
    world.jsonl("all.jsonl", [{"prompt": prompt} for prompt in prompts])
    return world.manifest(
        sources=[{"name": "all", "path": "all.jsonl", "category": "coding"}],
        mix={"total": len(prompts), "shares": {"coding": 1}, "holdout": 0.0},
        generation={"max_tokens": 64, "thinking": {"share": 0.0, "off": GREEDY}},
        engine={"max_num_seqs": extra.pop("max_num_seqs", 2), "extra": {"mean_tokens": 20, **extra}},
    )


def questions(count: int) -> list[str]:
    return [f"question {i}" for i in range(count)]


def tell(world: World, manifest: Any, report: Report = lambda progress: None, **options: Any) -> RunSummary | None:
    """Build and generate on two devices; None if nothing is left."""
    with open_ledger(world.workspace, "run") as ledger:
        adopt(ledger)
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        made = world.generation(manifest, plan, ledger)
        feed = load_feed(made, load_prompts(plan, ledger), plan, ledger)
        if not len(feed):
            return None
        run_log = RunLog(ledger, "generate", plan.build_id)
        run = world.run(made, manifest, ledger, run_log)
        for name, value in options.items():
            assert hasattr(run, name)
            setattr(run, name, value)
        devices = [Device("cpu", 0), Device("cpu", 1)]
        summary: RunSummary = asyncio.run(run.run(feed, devices, Interrupt(), report))
        run_log.finish("done")
        return summary


def states(world: World) -> dict[str | None, int]:
    """How many answers have which reason (None: accepted); the accounts are proven."""
    assert [finding for finding in verify(world.workspace) if not finding.holds] == []
    assert query(world.workspace, "FROM unfinished WHERE why = 'not answered yet'").height == 0
    return dict(query(world.workspace, "SELECT reason, count(*) FROM responses GROUP BY ALL").rows())


def events(world: World, kind: str) -> list[str]:
    found: list[str] = query(world.workspace, f"SELECT message FROM events WHERE kind = '{kind}'")["message"].to_list()
    return found


def workers(of: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in of.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that copies the ledger ends soon
            found += [child] if "fleet.worker" in " ".join(child.cmdline()) else []
    return found


# engines and workers


def test_a_worker_that_is_killed_in_mid_run_costs_no_answer(world: World) -> None:
    killed: list[int] = []
    until = world.root / "all three have answered"

    def report(progress: Progress) -> None:
        if progress.finished == 2 and progress.in_flight >= 4 and not killed:
            killed.append(workers(psutil.Process())[0].pid)
            os.kill(killed[0], signal.SIGKILL)
        if progress.finished == 3:
            until.touch()

    manifest = story(world, questions(60), until=str(until), at_once=1, mean_tokens=50)
    summary = tell(world, manifest, report)
    assert killed
    assert summary is not None
    counts = states(world)
    assert sum(counts.values()) == 60 == summary.accepted + summary.rejected
    assert "engine_crashed" not in counts
    seeds = query(world.workspace, "SELECT DISTINCT seed FROM responses").height
    assert seeds == 3  # two engines, and the one that took the place of the killed one
    (event,) = events(world, "worker_died")
    assert "its process ended; its work goes back" in event
    assert any("died once and was started again; no answer is lost" in warning for warning in summary.warnings)


@pytest.mark.parametrize(
    ("marker", "said", "options"),
    [
        ("crash_token_id", "killed by signal 9", {}),
        ("broken_token_id", "exit code 70", {}),
        ("hang_token_id", "it sent no beat in 2 s", {"heartbeat_timeout_s": 2.0}),
    ],
)
def test_a_prompt_that_ends_engines_twice_is_set_aside_with_what_was_said(
    world: World, marker: str, said: str, options: dict[str, Any]
) -> None:
    prompts = [*questions(9), "poison"]
    manifest = story(world, prompts, latency_s=0.02, **{marker: world.words.token("poison")})
    tell(world, manifest, **options)
    assert states(world)["engine_crashed"] == 1
    assert sum(states(world).values()) == 10
    (event,) = events(world, "item_failed")
    (response_id,) = query(world.workspace, "SELECT response_id FROM responses WHERE reason = 'engine_crashed'").row(0)
    assert response_id in event
    assert "workers died with it" in event
    assert said in event
    assert tell(world, manifest) is None  # not without being told to


def test_an_answer_in_the_name_of_another_is_the_engine_s_error(world: World) -> None:
    manifest = story(world, [*questions(9), "poison"], garbled_token_id=world.words.token("poison"))
    tell(world, manifest)
    assert states(world)["engine_error"] == 1
    (event,) = events(world, "item_failed")
    assert "the answer is of another, attempt 0" in event
    assert query(world.workspace, "SELECT count(*) FROM responses").item() == 10


def test_an_engine_that_runs_out_of_memory_runs_fewer_at_once(world: World) -> None:
    def report(progress: Progress) -> None:
        sizes = [one.max_num_seqs for one in progress.engines]
        if all(sizes):
            (world.root / f"both run {max(sizes)}").touch()

    until = str(world.root / "both run {max_num_seqs}")
    manifest = story(world, questions(40), until=until, max_num_seqs=8, out_of_memory_above=2)
    summary = tell(world, manifest, report)
    assert summary is not None
    counts = states(world)
    assert "engine_crashed" not in counts
    assert sum(counts.values()) == 40
    fewer = events(world, "engine_out_of_memory")
    for device in ("cpu:0", "cpu:1"):
        assert [line for line in fewer if line.startswith(device)] == [
            f"{device}: starts again with {n} sequences" for n in (4, 2)
        ]
        assert any(device in warning and "ran out of memory" in warning for warning in summary.warnings)
    assert sorted(events(world, "warning")) == sorted(summary.warnings)


def test_a_prompt_that_is_too_long_reaches_no_engine(world: World) -> None:
    long = " ".join(["poison", *(f"w{i}" for i in range(600))])
    tell(world, story(world, [*questions(5), long], crash_token_id=world.words.token("poison")))
    sql = "SELECT reason, engine, device, queued_at, prompt_tokens > 600 FROM responses WHERE reason LIKE 'prompt%'"
    assert query(world.workspace, sql).rows() == [("prompt_too_long", None, None, None, True)]
    assert states(world)["prompt_too_long"] == 1
    assert events(world, "item_failed") == []


# a full disk

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_shard(patched: pytest.MonkeyPatch) -> None:
    """The third shard finds no room at its fsync."""
    sync, asked = artefacts.sync_path, []

    def no_room(path: Path) -> None:
        asked.extend([path] if path.parent.name == "responses" and path.suffix == ".tmp" else [])
        if len(asked) >= 3:
            raise FULL
        sync(path)

    patched.setattr(artefacts, "sync_path", no_room)


def full_ledger(patched: pytest.MonkeyPatch) -> None:
    """The third shard finds no room in the ledger, after some of its rows."""
    enter, asked = ingest.ingest_response_shard, []

    def no_room(connection: Any, path: Path) -> int:
        asked.append(path)
        rows = enter(connection, path)
        if len(asked) >= 3:
            raise FULL
        return rows

    patched.setattr(ingest, "ingest_response_shard", no_room)


def full_run_log(patched: pytest.MonkeyPatch) -> None:
    """A part of the run's samples finds no room."""
    write = runlog.write_atomically

    def no_room(path: Path, fill: Callable[[Path], None]) -> Any:
        def half(temporary: Path) -> None:
            temporary.write_bytes(b"PAR1 half of it")
            raise FULL

        return write(path, half if path.name.startswith("engine_samples") else fill)

    patched.setattr(runlog, "FLUSH_EVERY_S", 0.1)
    patched.setattr(runlog, "write_atomically", no_room)


def full_snapshot(patched: pytest.MonkeyPatch) -> None:
    """The copy of the ledger finds no room."""
    run = subprocess.run
    copies: list[Any] = []

    def no_room(command: list[str], **options: Any) -> Any:
        copies.append(command)
        if len(copies) < 2:
            return run(command, **options)
        Path(command[-1]).write_bytes(b"half of it")
        raise subprocess.CalledProcessError(1, command, stderr=f"cp: {os.strerror(errno.ENOSPC)}".encode())

    patched.setattr(subprocess, "run", no_room)
    patched.setattr(writer, "PUBLISH_EVERY_S", 0.0)
    patched.setattr(writer, "PUBLISH_SHARE", 1e9)


@pytest.mark.parametrize("fill", [full_shard, full_ledger, full_run_log, full_snapshot])
def test_a_disk_that_is_full_stops_the_run_and_says_what_to_free(
    world: World, monkeypatch: pytest.MonkeyPatch, fill: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.setattr(writing, "FLUSH_ROWS", 4)
    manifest = story(world, questions(40), latency_s=0.05, sample_every_s=0.1)
    (world.workspace.cache / "hub").mkdir(parents=True)
    (world.workspace.cache / "hub" / "model.bin").write_bytes(bytes(3_000_000))
    with monkeypatch.context() as patched:
        fill(patched)
        with pytest.raises(UserError) as caught:
            tell(world, manifest)
    line = str(caught.value)
    assert "the disk is full; nothing half-written was kept" in line
    assert f"{world.workspace.root} can do without cache/: 3 MB" in line
    assert "run again" in line
    assert "\n" not in line
    assert not workers(psutil.Process())
    assert not list(world.workspace.root.rglob(".*.tmp"))
    kept = set(query(world.workspace, "SELECT response_id FROM accepted_responses")["response_id"])
    assert len(kept) < 40
    tell(world, manifest)
    assert sum(states(world).values()) == 40
    assert kept <= set(query(world.workspace, "SELECT response_id FROM accepted_responses")["response_id"])


def test_a_disk_without_room_for_progress_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refused = Path.write_bytes, []

    def no_room(path: Path, data: Any) -> int:
        if PROGRESS_FILE in path.name:
            refused.append(path)
            raise FULL
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", no_room)
    assert tell(world, story(world, questions(12))) is not None
    assert refused
    assert sum(states(world).values()) == 12


@needs_mount
@pytest.mark.parametrize("room_kb", [100, pytest.param(1200, marks=pytest.mark.full)])
def test_a_generation_on_a_disk_of_its_own_that_is_full_goes_on_when_there_is_room(world: World, room_kb: int) -> None:
    with small_disk(world.workspace.root, 60_000) as resize:
        with open_ledger(world.workspace, "run") as ledger:
            world.tiny_model()
            commit_build(world.plan(world.manifest()), world.workspace, ledger)
        used_kb = sum(p.stat().st_blocks * 512 for p in world.workspace.root.rglob("*") if p.is_file()) // 1024
        resize(used_kb + room_kb)
        full = Command(world)
        assert full.end() == 2, full.said
        assert "the disk is full; nothing half-written was kept. Free space there" in full.said
        assert "Traceback" not in full.said
        assert not list(world.workspace.root.rglob(".*.tmp"))
        resize(60_000)
        again = Command(world)
        assert again.end() == 0, again.said
        assert states(world)[None] >= 18


# killed between a file and the ledger


@pytest.mark.parametrize("outcome", [None, "done"])
def test_a_run_that_was_killed_before_the_ledger_knew_of_it_is_entered(world: World, outcome: str | None) -> None:
    with open_ledger(world.workspace, "run") as ledger:
        run_log = RunLog(ledger, "generate", None)
        run_log.event("noted", "before the kill")
        run_log._flush()
        if outcome:
            run_log.finish(outcome)
        ledger.call(lambda c: c.execute("DELETE FROM runs; DELETE FROM events"))
    with open_ledger(world.workspace, "run") as ledger:
        adopt(ledger)
        assert ledger.rows("SELECT run_id, outcome FROM runs") == [(run_log.run_id, outcome or "killed")]
        assert ledger.rows("SELECT message FROM events") == [("before the kill",)]


def test_how_a_run_ended_is_what_it_wrote_last(world: World) -> None:
    with open_ledger(world.workspace, "run") as ledger:
        RunLog(ledger, "generate", None).finish("done")
        ledger.call(lambda c: c.execute("UPDATE runs SET outcome = NULL"))  # it was killed before this was entered
    with open_ledger(world.workspace, "run") as ledger:
        adopt(ledger)
        assert ledger.rows("SELECT outcome FROM runs") == [("done",)]


def test_what_a_run_wrote_and_nobody_can_read_is_set_aside_once(world: World) -> None:
    path = world.workspace.run("20260101T000000000Z-abc") / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with open_ledger(world.workspace, "run") as ledger:
        adopt(ledger)
        assert ledger.rows("SELECT run_id FROM runs") == []
    assert [one.name for one in path.parent.iterdir()] == ["run.json.damaged"]


@pytest.mark.parametrize("change", [3, -2])
def test_a_round_that_was_written_and_not_entered_is_entered_by_the_next_start(world: World, change: int) -> None:
    manifest = world.manifest()
    with open_ledger(world.workspace, "run") as ledger:
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        taken = plan.taken()
        more = taken.with_columns(prefix=taken["prefix"] + change * (~taken["holdout"]).cast(int))
        write_round(world.workspace.build(plan.build_id), more)
        assert not commit_build(plan, world.workspace, ledger)
        held = ledger.rows("SELECT selected, held_out FROM builds")
        assert held == [(plan.selected + 2 * change, plan.held_out)]
        assert ledger.rows("SELECT count(*) FROM selections WHERE NOT holdout") == [(plan.selected + 2 * change,)]
        ledger.publish()
    assert [finding for finding in verify(world.workspace) if not finding.holds] == []


# signals, and what comes after them

COMMAND = """
import functools, sys
sys.path[:0] = [{root!r}]
from draftmill import generating
from draftmill.app import run_app
from generation import run
run.DRAIN_S = {drain_s}
generating.GenerationRun = functools.partial(generating.GenerationRun, factory="generation.fake:create")
sys.exit(run_app(sys.argv[1:]))
"""
ROOT = Path(__file__).parents[2]


class Command:
    """`draftmill generate` over the fake engine, in a process of its own."""

    def __init__(self, world: World, drain_s: float = DRAIN_S, **extra: Any) -> None:
        if not (world.root / "model").exists():
            world.tiny_model()
        path = world.write(engine={"max_num_seqs": 2, "extra": {"mean_tokens": 20, **extra}})
        code = COMMAND.format(root=str(ROOT), drain_s=drain_s)
        arguments = ["generate", str(path), "-w", str(world.workspace.root), "--devices", "2"]
        self.process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
        self._workspace = world.workspace
        self.said = ""

    def until_said(self, text: str) -> None:
        """Wait until it prints so."""
        assert self.process.stderr is not None
        while text not in self.said:
            line = self.process.stderr.readline()
            self.said += line
            assert line, f"it ended before it said {text!r}:\n{self.said}"

    def until_progress(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until what it publishes of itself is so."""
        while True:
            assert self.process.poll() is None, self.end()
            for path in self._workspace.root.glob(f"runs/*/{PROGRESS_FILE}"):
                if holds(json.loads(path.read_text())):
                    return
            self.process.poll()
            _pause()

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self.said += self.process.communicate()[1]
        return self.process.returncode


def _pause() -> None:
    """Between two looks at what another process writes."""
    import time

    time.sleep(0.05)


def busy(progress: dict[str, Any]) -> bool:
    return bool(progress["in_flight"] >= 2)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.full), signal.SIGTERM])
def test_a_signal_drains_within_the_time_that_is_said(world: World, number: signal.Signals) -> None:
    until = world.root / "it drains"
    run = Command(world, until=str(until))
    run.until_progress(busy)
    run.process.send_signal(number)
    run.until_said("Ctrl-C again stops at once")
    until.touch()
    assert f"waits {DRAIN_S / 60:g} min at most" in run.said
    assert run.end() == 1, run.said
    assert "Run the same command to resume." in run.said
    assert "Traceback" not in run.said
    done = query(world.workspace, "SELECT count(*) FROM responses").item()
    assert 0 < done < 22
    again = Command(world)
    assert again.end() == 0, again.said
    assert states(world)[None] >= 18


@pytest.mark.full
def test_answers_that_do_not_end_in_time_are_asked_again_by_the_next_run(world: World) -> None:
    run = Command(world, drain_s=1.0, latency_s=600.0)
    run.until_progress(busy)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 1, run.said
    assert "waits 1 s at most" in run.said
    assert query(world.workspace, "SELECT count(*) FROM responses").item() == 0
    again = Command(world)
    assert again.end() == 0, again.said
    assert states(world)[None] >= 18


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_second_signal_ends_the_run_at_once(world: World, number: signal.Signals) -> None:
    run = Command(world, drain_s=1e9, latency_s=1e9)
    run.until_progress(busy)
    family = psutil.Process(run.process.pid).children(recursive=True)
    run.process.send_signal(number)
    run.until_said("Ctrl-C again stops at once")
    run.process.send_signal(number)
    assert run.end() == 1, run.said
    assert "stopped. What was committed is kept" in run.said
    assert "Traceback" not in run.said
    psutil.wait_procs(family)
    outcomes = query(world.workspace, "SELECT outcome FROM runs WHERE command = 'generate'")["outcome"].to_list()
    assert outcomes == ["stopped"]


def test_after_a_reboot_the_same_command_goes_on(world: World) -> None:
    """All processes are gone at once; what they held (lock, ledger's log, temporaries) is left behind."""
    run = Command(world, until=str(world.root / "never"), at_once=2)
    run.until_progress(lambda progress: progress["accepted"] + progress["rejected"] >= 4)
    coordinator = psutil.Process(run.process.pid)
    for process in [coordinator, *coordinator.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # its guard was quicker
            process.kill()
    assert run.end() == -signal.SIGKILL
    left = json.loads(world.workspace.lock.read_text())
    assert left["pid"] == run.process.pid
    torn = artefacts.temporary_path(world.workspace.responses / "x.parquet")
    torn.parent.mkdir(exist_ok=True)
    torn.with_name(torn.name.replace(str(os.getpid()), str(run.process.pid))).write_bytes(b"PAR1 half of it")
    assert world.workspace.coordinator() is None
    again = Command(world)
    assert again.end() == 0, again.said
    assert states(world)[None] >= 18
    outcomes = query(world.workspace, "SELECT outcome FROM runs WHERE command = 'generate' ORDER BY run_id")
    assert outcomes["outcome"].to_list() == ["killed", "done"]
    assert not list(world.workspace.root.rglob(".*.tmp"))
