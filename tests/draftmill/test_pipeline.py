"""A stage as the command runs it, over the fake engine in real workers: interrupts, outcomes, last words."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from corpus.ledger.query import query

World = Any  # tests/conftest.py makes it

COMMAND = """
import functools, sys
from draftmill import generating
from draftmill.app import run_app
generating.GenerationRun = functools.partial(generating.GenerationRun, factory="generation.fake:create")
sys.exit(run_app(sys.argv[1:]))
"""


def command(world: World, manifest: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "generate", str(manifest), "-w", str(world.workspace.root), *options],
        stderr=subprocess.PIPE,
        text=True,
    )


def manifest(world: World, **extra: object) -> Path:
    world.tiny_model()
    return world.write(engine={"max_num_seqs": 1, "extra": extra})


def outcomes(world: World) -> list[str | None]:
    return query(world.workspace, "SELECT outcome FROM runs WHERE command = 'generate' ORDER BY run_id")[
        "outcome"
    ].to_list()


def test_an_interrupt_drains_is_recorded_as_stopped_and_the_next_run_goes_on(world: World) -> None:
    until = world.root / "it drains"
    path = manifest(world, until=str(until), at_once=1)
    with command(world, path, "--devices", "1") as first:
        while not any(world.workspace.responses.glob("*.parquet")):
            assert first.poll() is None
            time.sleep(0.1)
        first.send_signal(signal.SIGINT)
        assert first.stderr is not None
        said = ""
        for line in first.stderr:
            said += line
            if "Ctrl-C again stops at once" in line:
                until.touch()
    assert first.returncode == 1, said
    assert "Run the same command to resume." in said
    assert "Traceback" not in said
    assert outcomes(world) == ["stopped"]
    kept = query(world.workspace, "SELECT response_id FROM accepted_responses")["response_id"].to_list()
    assert 0 < len(kept) < 22

    with command(world, path) as second:
        said = second.communicate()[1]
    assert second.returncode == 0, said
    assert outcomes(world) == ["stopped", "done"]
    after = query(world.workspace, "SELECT response_id FROM accepted_responses")["response_id"].to_list()
    assert len(after) == len(set(after))
    assert set(kept) <= set(after)
    assert query(world.workspace, "FROM unfinished WHERE why = 'not answered yet'").height == 0


def test_an_interrupt_while_engines_start_ends_at_once(world: World) -> None:
    path = manifest(world, start_s=60.0)
    with command(world, path) as process:
        while not any(world.workspace.root.glob("runs/*/workers/*.log")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 1
    assert "run the same command to go on" in said
    assert outcomes(world) == ["stopped"]


def test_when_no_answer_is_accepted_the_reasons_are_said_and_the_command_fails(world: World) -> None:
    world.tiny_model()
    path = world.write(target={"model": "model", "max_model_len": 16, "dtype": "float32"}, generation={"max_tokens": 8},
                       sources=[{"name": "long", "path": world.jsonl("long.jsonl", (
                           {"prompt": f"question {i} " + "1 " * 40} for i in range(30))), "category": "coding"}],
                       mix={"total": 10, "shares": {"coding": 1}, "holdout": 0.1})  # fmt: skip
    with command(world, path) as process:
        said = process.communicate()[1]
    assert process.returncode == 2
    assert re.search(r"no answer was accepted \(\d+ prompt_too_long\)", said), said
    assert outcomes(world) == ["failed"]
    shrunk = world.root / "shrunk.yaml"
    shrunk.write_text(path.read_text().replace('"total": 10,', '"total": 10, "shortage": "rescale",'))
    for _ in range(2):  # the second has nothing left to ask, and is no better for it
        with command(world, shrunk) as process:
            said = process.communicate()[1]
        assert process.returncode == 2, said
        assert "no answer was accepted" in said


def test_no_line_is_wider_than_a_terminal(world: World) -> None:
    with command(world, manifest(world)) as process:
        said = process.communicate()[1]
    assert process.returncode == 0
    assert [line for line in said.splitlines() if len(line) > 80] == []
