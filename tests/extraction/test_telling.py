"""What `draftmill extract` says before it starts, while it runs, and when it is stopped; its plan is what it does."""

from __future__ import annotations

import asyncio
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.rebuild import adopt
from corpus.ledger.writer import open_ledger
from corpus.manifest import Manifest
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from draftmill import agreement, capturing
from draftmill.app import run_app
from draftmill.terminal import INDENT, WIDTH, ExtractionScreen, laid_out, say_below
from extraction import run as extraction_run
from extraction.run import ExtractionRun, Watcher
from extraction.stage import ExtractionPlan, plan_extraction
from fleet.devices import Device
from fleet.interrupt import Interrupt
from tests.conftest import World
from tests.extraction.answered import answered_world, sections

COUNTS = {"coding": 28, "general": 14}
MIX = {"total": 20, "holdout": 0.4}


@dataclass(frozen=True)
class Answered:
    """A world whose prompts are all answered."""

    world: World
    build_id: str
    held_out: int
    rows: int

    def write(self, *layers: int, **more: Any) -> Path:
        """A manifest that captures these layers in batches of few rows."""
        own = sections(COUNTS, MIX, layers=list(layers), max_tokens_per_batch=64)
        return self.world.write(f"layers-{'-'.join(map(str, layers))}.yaml", **(own | more))

    def command(self, manifest: Path, *options: str, name: str = "extract") -> list[str]:
        return [name, str(manifest), "-w", str(self.world.workspace.root), "--devices", "2", *options]

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.world.workspace, sql).rows()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Answered:
    texts = {name: [f"{name} {i} " + "word " * (3 * (i % 16)) for i in range(count)] for name, count in COUNTS.items()}
    world = answered_world(tmp_path_factory.mktemp("telling"), texts, MIX)
    ((build_id, held_out, rows),) = query(
        world.workspace,
        "SELECT build_id, count(*) FILTER (holdout), count(*) FROM build_responses "
        "JOIN accepted_responses USING (response_id) GROUP BY ALL",
    ).rows()
    assert 1 < held_out < rows
    return Answered(world, build_id, held_out, rows)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands have workers that start at once."""
    made = functools.partial(ExtractionRun, factory="tests.extraction.faulty:create_quick")
    monkeypatch.setattr(capturing, "ExtractionRun", made)


def plan_of(told: Answered, *layers: int, **options: Any) -> ExtractionPlan:
    with open_ledger(told.world.workspace, "plan") as ledger:
        manifest, target = made(told, *layers)
        return plan_extraction(manifest, target, told.build_id, ledger, **options)


def made(told: Answered, *layers: int) -> tuple[Manifest, ResolvedTarget]:
    manifest = told.world.manifest(**sections(COUNTS, MIX, layers=list(layers), max_tokens_per_batch=64))
    return manifest, ResolvedTarget(manifest.target, "rev1", told.world.root / "model", "template", "tokenizer")


def extract(
    told: Answered, *layers: int, watcher: Watcher, interrupt: Interrupt, limit: int | None = None,
    factory: str = "tests.extraction.faulty:create_quick",
) -> tuple[ExtractionRun, bool]:  # fmt: skip
    manifest, target = made(told, *layers)
    with open_ledger(told.world.workspace, "extract") as ledger:
        adopt(ledger)
        plan = plan_extraction(manifest, target, told.build_id, ledger, limit)
        log = RunLog(ledger, "extract", told.build_id)
        run = ExtractionRun(plan, manifest, target, ledger, log, watcher=watcher, factory=factory)
        whole = asyncio.run(run.run([Device("cpu", 0)], interrupt))
        log.finish("done")
    return run, whole


# the plan


@pytest.mark.usefixtures("quick")
def test_a_dry_run_counts_no_rows_of_shards_that_are_gone_or_cut(
    told: Answered, capsys: pytest.CaptureFixture[str]
) -> None:
    command = told.command(told.write(0))
    assert run_app(command) == 0
    assert "0 captured" in capsys.readouterr().err
    assert run_app([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"nothing to do: {told.rows} rows captured"]
    ((capture_id,),) = told.ask("SELECT DISTINCT capture_id FROM hidden_shards")
    shards = sorted(told.world.workspace.hidden(capture_id).glob("*.safetensors"))
    assert len(shards) > 2
    lost = told.ask(
        f"SELECT sum(rows) FROM hidden_shards WHERE shard IN ('{shards[0].name}', '{shards[1].name}') "
        f"AND capture_id = '{capture_id}'"
    )[0][0]
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    expected = f"{told.rows} rows: {told.rows - lost} captured, {lost} to capture"
    assert run_app([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == expected
    assert run_app(command) == 0
    said = capsys.readouterr().err
    assert f"extract    {expected}\n" in said
    assert f"capturing: 0 of {lost} rows" in said or "captured in" in said


def test_a_dry_run_says_what_the_run_takes_and_asks(
    told: Answered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = told.command(told.write(1, 2, 3, 5), "--dry-run")
    assert run_app(command) == 0
    first, layers, size, room, workers = capsys.readouterr().out.splitlines()
    assert first == f"{told.rows} rows: 0 captured, {told.rows} to capture"
    assert layers == "  layers 1 to 3, 5 and the final state, in float32"
    assert re.fullmatch(r"  [\d,]+ tokens of 645 bytes: \S+ [kM]B", size)
    assert re.fullmatch(r"  writes \S+ [kM]B; \S+ [GT]B are free", room)
    assert re.match(r"  2 workers on cpu:0, cpu:1 \(", workers)
    monkeypatch.setattr(agreement, "ASK_BYTES", 1000)
    assert run_app(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "  more than 10 GB: without --yes, extract only measures and tells the time"
    assert run_app([*command, "--yes"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert max(map(len, lines)) <= WIDTH + 2


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_dry_run_refuses_what_the_run_refuses(
    told: Answered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    monkeypatch.setattr(extraction_run.shutil, "disk_usage", lambda path: Full())
    assert run_app(told.command(told.write(1, 2, 3, 5), *options)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"the hidden states need \S+ [kM]B and 9 bytes are free\. Feed the training live", error)


class Full:
    free = 9


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_where_nothing_is_answered_both_say_the_same_line(
    world: World, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    world.tiny_model()
    path = world.write()
    assert run_app(["extract", str(path), "-w", str(world.workspace.root), *options]) == 2
    assert re.fullmatch(
        r"draftmill: small: build \w+ has no answers\. Run `draftmill generate` first\.",
        capsys.readouterr().err.splitlines()[-1],
    )


def test_fed_live_the_plan_says_that_it_is_held_out_rows(told: Answered, capsys: pytest.CaptureFixture[str]) -> None:
    path = told.write(1, 4, training={"feed": "live"})
    assert run_app(told.command(path, "--dry-run")) == 0
    first = capsys.readouterr().out.splitlines()[0]
    held = told.held_out
    assert first == f"{held} held-out rows (training is fed live): 0 captured, {held} to capture"


def test_a_dry_run_of_the_chain_shows_all_stages(
    told: Answered, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(told.command(told.write(1, 4, engine={}), "--dry-run", name="run")) == 0
    out = capsys.readouterr().out
    assert f"\nextract    {told.rows} rows: 0 captured, {told.rows} to capture\n" in out
    assert out.endswith("\ntrain      follows, on the states that are captured then\n")
    world.tiny_model()
    assert run_app(["run", str(world.write()), "-w", str(world.workspace.root), "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("\nextract and train follow, on what is answered then\n")


def test_a_disk_below_what_is_there_is_said_and_the_least_size_works(told: Answered) -> None:
    with pytest.raises(UserError, match=r"--max-disk: 5 bytes hold not one row; .* Allow --max-disk \d+kB") as caught:
        plan_of(told, 2, 3, max_disk_bytes=5)
    found = re.search(r"--max-disk (\d+)kB", str(caught.value))
    assert found
    least = 1000 * int(found[1])
    assert plan_of(told, 2, 3, max_disk_bytes=least).rows
    with pytest.raises(UserError, match="not one row"):
        plan_of(told, 2, 3, max_disk_bytes=least - 1000)
    run, _ = extract(told, 2, 3, watcher=Watcher(), interrupt=Interrupt(), limit=8)
    there = run.plan.size_bytes
    below = plan_of(told, 2, 3, max_disk_bytes=there - 1)
    assert (below.rows, below.captured, below.left_out) == ((), 8, told.rows - 8)
    assert re.fullmatch(
        r"--max-disk \S+ kB is less than the \S+ kB captured already: nothing more is captured", below.lines()[-1]
    )
    same = plan_of(told, 2, 3, max_disk_bytes=there)
    assert same.rows == ()
    assert "no room for a row beside" in same.disk_note
    more = plan_of(told, 2, 3, max_disk_bytes=2 * there)
    assert 0 < more.size_bytes <= there
    assert more.disk_note == ""


def test_a_run_that_was_only_told_its_size_has_stopped(
    told: Answered, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agreement, "ASK_BYTES", 1000)
    assert run_app(told.command(told.write(3, 5))) == 2
    assert "Add --yes to begin" in capsys.readouterr().err
    assert told.ask("SELECT outcome FROM runs WHERE command = 'extract' ORDER BY run_id DESC LIMIT 1") == [("stopped",)]


# while it runs


def test_the_run_tells_what_its_workers_begin_with_then_its_rows(told: Answered) -> None:
    heard: list[str] = []
    watcher = Watcher(heard.append, lambda rows, tokens, seconds: heard.append(f"{rows} rows"))
    run, whole = extract(told, 0, 5, watcher=watcher, interrupt=Interrupt(), factory="extraction.start:create")
    assert whole
    steps = ["loading the target", "self-test of the states", "measuring what a batch takes", "0 rows"]
    assert heard[: len(steps)] == steps
    assert heard[-1] == f"{told.rows} rows"
    assert run.seconds > 0


def test_an_interrupt_waits_for_the_shards_at_work_and_says_so(told: Answered) -> None:
    interrupt, waits = Interrupt(), []

    def report(rows: int, tokens: int, seconds: float) -> None:
        if rows:
            interrupt.asked.set()

    run, whole = extract(told, 0, 6, watcher=Watcher(report=report, stopping=waits.append), interrupt=interrupt)
    assert not whole
    assert len(waits) == 1
    assert waits[0] <= 2
    assert 0 < run.cut.rows < told.rows
    assert plan_of(told, 0, 6).captured == run.cut.rows


def test_what_does_not_end_in_time_is_ended_and_no_row_is_to_blame(
    told: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction_run, "DRAIN_S", 0.2)
    interrupt = Interrupt()

    def report(rows: int, tokens: int, seconds: float) -> None:
        asyncio.get_running_loop().call_later(1.0, interrupt.asked.set)

    run, whole = extract(
        told, 1, 6, watcher=Watcher(report=report), interrupt=interrupt, factory="tests.extraction.faulty:create_stuck"
    )
    assert not whole
    assert (run.failed, run.cut.rows) == (0, 0)


def test_a_stopped_command_says_how_many_rows_are_captured_and_left(
    told: Answered, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show = ExtractionScreen.show

    def stopped(make: Any) -> bool:
        async def main() -> bool:
            interrupt = Interrupt()

            def heard(screen: ExtractionScreen, rows: int, tokens: int, seconds: float) -> None:
                show(screen, rows, tokens, seconds)
                if rows:
                    interrupt.asked.set()

            monkeypatch.setattr(ExtractionScreen, "show", heard)
            return bool(await make(interrupt))

        return asyncio.run(main())

    monkeypatch.setattr(capturing, "run_interruptible", stopped)
    assert run_app(told.command(told.write(4, 6))) == 1
    said = capsys.readouterr().err
    assert re.search(r"^ {11}stopping after \d shards? at work; Ctrl-C again stops at once$", said, re.MULTILINE)
    found = re.search(
        r"draftmill: extraction stopped: (\d+) rows are captured, (\d+) are left\.\nRun the same command to resume\.\n",
        said,
    )
    assert found
    assert int(found[1]) + int(found[2]) == told.rows
    assert 0 < int(found[1]) < told.rows


@pytest.mark.usefixtures("quick")
def test_the_last_lines_fit_a_terminal_and_say_the_rate(told: Answered, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(told.command(told.write(2, 6))) == 0
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= WIDTH
    (captured,) = [line for line in lines if re.match(r" {11}captured in \d", line)]
    assert re.fullmatch(r" {11}captured in \d:\d\d \([\d,]+ tokens/s once started\)", captured)
    batches = [line for line in lines if re.fullmatch(r" {11}\d+ batch.*, padding \d+\.\d%", line)]
    assert batches
    assert len(batches) == len(set(batches)), "what was announced is not said again where it came so"


def test_the_screen_keeps_saying_that_it_stops(capsys: pytest.CaptureFixture[str]) -> None:
    screen = ExtractionScreen(40)
    screen.show(0, 0, 0.0)
    assert screen.lines(80, 24)[0].endswith("capturing: 0 of 40 rows")
    screen.show(10, 1000, 5.0)
    assert screen.lines(80, 24)[0].endswith("capturing: 10 of 40 rows, 200 tok/s, 0:15 left")
    screen.stopping(2)
    assert capsys.readouterr().err == f"{'':<{INDENT}}stopping after 2 shards at work; Ctrl-C again stops at once\n"
    screen.show(20, 2000, 9.0)
    (line,) = screen.lines(80, 24)
    assert line.endswith("  stopping after 2 shards at work; Ctrl-C again stops at once")
    assert len(line) <= WIDTH


def test_lines_are_wrapped_between_words_and_no_name_is_broken() -> None:
    long = "x" * 90
    lines = list(laid_out([f"{'word ' * 30}--max-disk", f"see {long} there"], "name       ", " " * INDENT))
    assert lines[0].startswith("name       word")
    assert all(len(line) <= WIDTH or long in line for line in lines)
    assert f"{'':<{INDENT}}{long}" in lines
    assert "--max-disk" in " ".join(lines)


def test_a_path_below_a_stage_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/data/{'a-run-' * 15}/export"
    say_below(f"{'word ' * 12}--max-disk", f"exported to {path}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"{'':<{INDENT}}{path}"
    assert any(line.split()[-1] == "--max-disk" for line in lines)
    assert all(line.startswith(" " * INDENT) and (len(line) <= WIDTH or path in line) for line in lines)
