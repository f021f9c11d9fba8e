"""`draftmill tune` over the fake engine in real workers; once with the real one."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import draftmill.tuning
from corpus.ledger.writer import open_ledger
from corpus.manifest import Engine
from corpus.token_ids import pack_ids
from draftmill.app import run_app
from draftmill.tuning import advice_line, result_table
from fleet.devices import Device
from fleet.interrupt import Interrupt
from generation.fit import Fit
from generation.tune_run import Rounds, TuneRun
from generation.tune_sample import Ask, Sample
from generation.tuning import Outcome, Search, advise, search_for

World = Any  # tests/conftest.py makes it

FAKE = "generation.fake:create"
QUICK = ("--devices", "1", "--prompts", "8", "--rounds", "2")
TENTH = {"latency_s": 0.1, "only_told": True}
DEMO = Path(__file__).resolve().parents[2] / "manifests" / "demo.yaml"


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draftmill.tuning, "TuneRun", partial(TuneRun, factory=FAKE))


def manifest(world: World, engine: dict[str, Any] | None = None, **extra: object) -> Path:
    """Present: two sequences, each answer 0.1 s as it is told. The next setting is the automatic one, 16."""
    world.tiny_model()
    section = {"max_num_seqs": 2, "seed": 5, "extra": {**TENTH, **extra}, **(engine or {})}
    path: Path = world.write(engine=section)
    return path


def tune(world: World, path: Path, *options: str) -> int:
    return run_app(["tune", str(path), "-w", str(world.workspace.root), *QUICK, *options])


def section(text: str) -> dict[str, Any]:
    loaded = YAML(typ="safe", pure=True).load(text)
    assert list(loaded) == ["engine"]
    engine: dict[str, Any] = loaded["engine"]
    return engine


def test_more_sequences_are_found_to_be_faster_told_and_written(world: World, capsys: Any) -> None:
    path = manifest(world)
    before = path.read_text()
    assert tune(world, path, "--settings", "2") == 0
    said = capsys.readouterr()
    assert section(said.out) == {"max_num_seqs": 16, "seed": 5, "extra": TENTH}
    assert path.read_text() == before
    rows = re.findall(r"^(\d(?: present)?) +(\d+) +auto +auto +([\d,]+) +([\d,]+) +([\d,]+) ", said.err, re.MULTILINE)
    assert [(name, seqs) for name, seqs, *_ in rows] == [("1 present", "2"), ("2", "16"), ("3 present", "2")]
    for _, _, *figures in rows:
        middle, least, most = (int(figure.replace(",", "")) for figure in figures)
        assert 0 < least <= middle <= most
    assert re.search(r"recommended: 16 sequences, .* times the present section", " ".join(said.err.split()))

    assert tune(world, path, "--settings", "2", "--write") == 0
    body = json.loads(before)
    assert json.loads(path.read_text()) == body | {"engine": {**body["engine"], "max_num_seqs": 16}}


def test_nothing_is_entered_and_no_lock_is_taken(world: World, capsys: Any) -> None:
    path = manifest(world)
    assert tune(world, path, "--settings", "1") == 0
    assert not world.workspace.ledger.exists()
    assert not list(world.workspace.responses.glob("*"))
    with open_ledger(world.workspace, "generate"):
        assert tune(world, path, "--settings", "1", "--write") == 0
    said = capsys.readouterr().err
    assert "the present engine section is as good as any that was tried" in said
    assert "stays as it is" in said
    assert "gain: tokens/s over those of the present engine section" in " ".join(said.split())


def test_kv_dtypes_for_which_there_is_no_room_are_refused(world: World, capsys: Any) -> None:
    path = manifest(world, fail_start=True)
    for options in (("--dry-run",), ()):
        assert tune(world, path, "--settings", "1", "--kv-cache-dtype", "fp8", *options) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "--settings 1 leaves no room" in said.err
        assert "Give at least --settings 2." in said.err
    # the present one is no other one
    assert tune(world, path, "--settings", "1", "--kv-cache-dtype", "auto", "--dry-run") == 0


@pytest.mark.parametrize(
    ("max_tokens", "said"),
    [(64, "answers of at most 64 tokens, as in the manifest"), (400, "answers cut at 256 tokens")],
)
def test_a_plan_says_how_long_answers_will_be(world: World, capsys: Any, max_tokens: int, said: str) -> None:
    world.tiny_model()
    path = world.write(engine={"max_num_seqs": 2}, generation={"max_tokens": max_tokens})
    assert tune(world, path, "--dry-run") == 0
    out = capsys.readouterr().out
    assert said in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def outcomes(search: Search, *rates: tuple[float, ...]) -> list[Outcome]:
    """The present setting, then others."""
    settings = [search.present, *(replace(search.present, max_num_seqs=9_000 + i) for i in range(1, len(rates)))]
    return [Outcome(setting, of, 59.0) for setting, of in zip(settings, rates, strict=True)]


def test_a_table_of_large_figures_fits_80_columns() -> None:
    made = search_for(
        Engine(max_num_seqs=8_192, max_num_batched_tokens=131_072, kv_cache_dtype="fp8_e5m2"),
        Fit(None, None, None, None, None, 1024, None, True), "cuda", 0, 512,
    )  # fmt: skip
    lines = result_table(made, outcomes(made, (123_456.0,), *[(234_567.0, 98_765.0)] * 9))
    assert max(map(len, lines)) <= 80


def test_a_faster_setting_that_is_not_beyond_the_spread_is_told() -> None:
    made = search()
    close = outcomes(made, (42.0, 46.0, 40.0), (49.0, 38.0, 50.0))
    advice = advise(made, close)
    assert advice is not None
    line = advice_line(made, advice, close)
    assert line.startswith("the present engine section stays: 2 had 49 tokens/s to its 42, but")
    assert "slowest round 38, the present one's fastest 46" in line
    assert "More --rounds" in line
    slower = outcomes(made, (42.0, 46.0, 40.0), (39.0, 38.0, 50.0))
    advice = advise(made, slower)
    assert advice is not None
    assert advice_line(made, advice, slower) == "the present engine section is as good as any that was tried"


def test_a_setting_that_runs_out_of_memory_is_a_row_and_not_the_end(world: World, capsys: Any) -> None:
    assert tune(world, manifest(world, out_of_memory_above=8), "--settings", "2") == 0
    said = capsys.readouterr()
    assert re.search(r"^2 +16 +auto +auto +- +- +-", said.err, re.MULTILINE)
    assert "2 failed: ran out of memory" in said.err
    assert section(said.out)["max_num_seqs"] == 2


def test_engines_that_do_not_start_are_told_and_exit_2(world: World, capsys: Any) -> None:
    assert tune(world, manifest(world, fail_start=True), "--settings", "2") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.search(r"2 did not start: .*the fake engine does not start", " ".join(said.err.split()))
    assert "draftmill: small: no engine setting ran that may be recommended; the first: " in said.err


@pytest.mark.parametrize(("inexact", "verdict"), [("fp8", "not exact enough: 0.0%"), (None, "exact enough: 100.0%")])
def test_a_kv_dtype_is_held_against_the_present_one(
    world: World, capsys: Any, inexact: str | None, verdict: str
) -> None:
    path = manifest(world, inexact_kv_cache_dtype=inexact)
    assert tune(world, path, "--settings", "2", "--kv-cache-dtype", "fp8") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"2 is {verdict} of greedy tokens as auto, auto itself 100.0%" in said


def test_a_small_build_is_asked_again_without_a_prefix_cache(world: World, capsys: Any) -> None:
    assert tune(world, manifest(world), "--settings", "1", "--prompts", "30") == 0
    assert "prefix caching off" in " ".join(capsys.readouterr().err.split())


def test_a_dry_run_names_the_settings_and_starts_nothing(world: World, capsys: Any) -> None:
    assert tune(world, manifest(world, fail_start=True), "--kv-cache-dtype", "fp8", "--dry-run") == 0
    said = capsys.readouterr()
    assert re.search(r"^1 present +2 +auto +auto$", said.out, re.MULTILINE)
    assert re.search(r"^\d +2 +auto +fp8$", said.out, re.MULTILINE)
    assert "2 rounds of 8 prompts each" in said.out
    assert "what is tried if none of it beats the present section" in " ".join(said.out.split())
    assert not (world.workspace.cache / "tune").exists()


COMMAND = """
import functools, sys
import draftmill.tuning
from draftmill.app import run_app
draftmill.tuning.TuneRun = functools.partial(draftmill.tuning.TuneRun, factory="generation.fake:create")
sys.exit(run_app(sys.argv[1:]))
"""


def test_an_interrupt_ends_the_engines_and_tells_what_was_measured(world: World) -> None:
    path = manifest(world, only_told=False)
    before = path.read_bytes()
    arguments = ["tune", str(path), "-w", str(world.workspace.root), *QUICK, "--settings", "12", "--write"]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any("tokens/s (" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGINT)
        out, said = process.communicate()
    assert process.returncode == 1, said
    assert out == ""
    assert re.search(r"^1 present +2 +auto +auto +[\d,]+ ", said, re.MULTILINE)
    assert "draftmill: tuning stopped" in said
    assert "Traceback" not in said
    assert path.read_bytes() == before


def test_the_first_engine_is_up_before_others_start_and_all_devices_measure(world: World) -> None:
    heard: list[str] = []
    made = search()
    run = run_of(world, made, {**TENTH, "start_s": 0.3})
    outcomes: list[Outcome] = []
    devices = [Device("cpu", 0), Device("cpu", 1)]
    assert asyncio.run(run.run(devices, Interrupt(), heard.append, outcomes.append))
    assert outcomes == run.outcomes
    assert {one.setting.max_num_seqs for one in outcomes} == {2, 16, 32, 8}
    starts = [text for text in heard if text.endswith(("starting the engine", "is up"))]
    assert starts[:2] == [f"cpu:0: {made.present}: starting the engine", f"cpu:0: {made.present}: the engine is up"]
    assert any(text.startswith("cpu:1: ") for text in starts)


def test_a_first_engine_that_does_not_start_holds_no_other_back(world: World) -> None:
    run = run_of(world, search(), {"fail_start": True})
    assert asyncio.run(run.run([Device("cpu", 0), Device("cpu", 1)], Interrupt(), lambda text: None))
    assert {one.setting.max_num_seqs for one in run.outcomes} == {2, 16, 32, 8}
    assert all(one.start_s is None and one.error is not None for one in run.outcomes)


def search() -> Search:
    fit = Fit(None, None, None, None, None, 1024, None, True)
    return search_for(Engine(max_num_seqs=2), fit, "cpu", 0, 512)


def run_of(world: World, made: Search, extra: dict[str, object]) -> TuneRun:
    asks = tuple(Ask(pack_ids([number]), {"temperature": 1.0}, 64) for number in range(200))
    manifest = world.manifest(engine={"max_num_seqs": 2, "extra": extra})
    return TuneRun(made, Rounds(1, 4), Sample(asks, 0), manifest, world.target(), world.root / "logs", FAKE)


@pytest.mark.full
@pytest.mark.e2e
def test_the_real_engine_is_measured_at_two_settings(tmp_path: Path) -> None:
    arguments = ["--settings", "2", "--prompts", "16", "--rounds", "2", "--max-tokens", "16"]
    done = subprocess.run(
        [Path(sys.executable).with_name("draftmill"), "tune", DEMO, "-w", tmp_path / "ws", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(?:1 present|2) +(\d+) +auto +auto +([\d,]+) ", done.stderr, re.MULTILINE)
    assert [int(seqs) for seqs, _ in rows[:2]] == [16, 32]
    assert all(int(rate.replace(",", "")) > 0 for _, rate in rows)
    assert section(done.stdout)["max_num_seqs"] in (16, 32)
