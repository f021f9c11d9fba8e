"""Streams that are closed, full or of another encoding, and signals before an engine runs: no traceback, ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corpus.building import commit_build
from corpus.ledger.writer import open_ledger

World = Any


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("streams"))
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(world.plan(world.manifest()), world.workspace, ledger)
    world.write()
    return world


def shell(world: World, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = line.replace("draftmill", f"{sys.executable} -m draftmill")
    variables = os.environ | environment
    return subprocess.run(
        ["bash", "-c", line], cwd=world.root, capture_output=True, text=True, check=False, env=variables
    )


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_a_reader_that_leaves_is_no_bug(built: World, form: str) -> None:
    done = shell(built, f"draftmill sql 'FROM range(300000)' -w ws -f {form} | head -c 5")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("draftmill build mix.yaml -w ws 2>&-", 0),
        ("draftmill sql 'SELECT 1' -w ws >&-", 0),
        ("draftmill sql - -w ws <&-", 2),
        ("draftmill sql 'FROM range(20000)' -w ws >/dev/full", 2),
        ("draftmill status -w ws >/dev/full", 2),
        ("DRAFTMILL_LOG=nonsense draftmill build mix.yaml -w ws", 0),
        ("env -u HOME draftmill build mix.yaml -w ws", 0),
        ("HOME=/nowhere TERM=dumb COLUMNS=40 draftmill sql 'FROM provenance' -w ws", 0),
    ],
)
def test_closed_and_full_streams_and_a_bare_environment(built: World, line: str, code: int) -> None:
    done = shell(built, line)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("draftmill: ") == (code == 2)


def test_data_is_utf8_whatever_the_locale(built: World) -> None:
    for variables in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        done = shell(built, 'draftmill sql "SELECT chr(233) || chr(10003) AS a" -w ws -f csv', **variables)
        assert (done.returncode, done.stdout) == (0, "a\n\u00e9\u2713\n"), done.stderr
    done = shell(built, "draftmill sql $'SELECT \\'\\xff\\'' -w ws")
    assert done.returncode == 2
    assert "text that is not UTF-8" in done.stderr


def test_an_interrupt_inside_an_exec_leaves_the_exit_code(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
from draftmill import __main__, app
def interrupted(arguments):
    try:
        exec("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)")
    except KeyboardInterrupt:
        return 1
app.run_app = interrupted
__main__.main()
"""
    (tmp_path / "interrupted_run.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted_run"], capture_output=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr


STANDING_STILL = """
import sys, time
from {module} import {name}
from draftmill.__main__ import main
def stand_still(*_):
    print(flush=True)
    while True:  # a signal that comes just before a wait without end would not end it
        time.sleep(0.05)
sys.modules["{module}"].{name} = stand_still
main()
"""


@pytest.mark.parametrize("where", [("corpus.pools", "read_pieces"), ("corpus.artefacts", "sync_path")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_build_is_one_line_and_leaves_nothing_half_made(
    tmp_path: Path, number: int, where: tuple[str, str]
) -> None:
    from tests.conftest import World as Small

    world = Small(tmp_path)
    code = STANDING_STILL.format(module=where[0], name=where[1])
    with subprocess.Popen(
        [sys.executable, "-c", code, "build", str(world.write()), "-w", str(world.workspace.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        half_made = list(world.workspace.root.rglob(".*.tmp"))
        process.send_signal(number)
        said = process.communicate()[1]
    assert process.returncode == 1, said
    assert said == "draftmill: stopped. What was committed is kept; run the same command to go on.\n"
    assert half_made or where[1] != "sync_path"
    assert not list(world.workspace.root.rglob(".*.tmp"))
