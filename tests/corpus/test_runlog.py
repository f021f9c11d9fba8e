"""The log of a run: parts are entered once each while it goes on; a killed run ends as killed, with what it noted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from corpus import runlog
from corpus.ledger.query import query
from corpus.ledger.rebuild import adopt, rebuild_workspace
from corpus.ledger.writer import LedgerWriter, open_ledger
from corpus.runlog import RunLog, make_run_id

World = Any
VALUES = {"running": 2, "waiting": 1, "tokens_per_s": 3.5, "kv_use": None, "prefix_hits": 0.25}


def note(log: RunLog, number: int) -> None:
    log.sample("e 1", "cpu:0", {"sampled_at": 1000.0 + number, **VALUES})


def samples(ledger: LedgerWriter) -> list[tuple[Any, ...]]:
    return ledger.rows(
        "SELECT run_id, epoch(sampled_at), running, waiting, tokens_per_s, kv_use, prefix_hits FROM engine_samples "
        "ORDER BY ALL"
    )


def test_run_ids_sort_by_time() -> None:
    start = datetime(2026, 1, 31, 23, 59, 59, 500_000, tzinfo=UTC)
    ids = [make_run_id(start + timedelta(milliseconds=300 * i)) for i in range(9)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 9


def test_each_part_is_entered_once_while_the_run_goes_on_and_nothing_twice_at_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ledger(world.workspace, "test") as ledger:
        log = RunLog(ledger, "generate", None)
        assert ledger.rows("SELECT run_id, outcome FROM runs") == [(log.run_id, None)]
        log.event("first", "x")
        note(log, 0)
        assert samples(ledger) == []  # not due yet
        monkeypatch.setattr(runlog, "FLUSH_EVERY_S", -1.0)
        for number in (1, 2, 3):
            note(log, number)
        assert [row[1] for row in samples(ledger)] == [1000.0, 1001.0, 1002.0, 1003.0]
        assert samples(ledger)[0] == (log.run_id, 1000.0, 2, 1, 3.5, None, 0.25)
        assert ledger.rows("SELECT kind FROM events") == [("first",)]
        monkeypatch.setattr(runlog, "FLUSH_EVERY_S", 1e9)
        note(log, 4)
        log.event("last", "y" * 600)
        log.finish("done")
        assert [row[1] for row in samples(ledger)] == [1000.0 + number for number in range(5)]
        assert ledger.rows("SELECT kind, len(message) FROM events ORDER BY happened_at") == [
            ("first", 1),
            ("last", 500),
        ]
        assert ledger.rows("SELECT command, outcome, ended_at >= started_at FROM runs") == [("generate", "done", True)]
    parts = sorted(path.name for path in log.folder.glob("engine_samples-*.parquet"))
    assert len(parts) == 4
    tables = ("runs", "events", "engine_samples", "throughput")
    before = {name: query(world.workspace, f"SELECT * FROM {name} ORDER BY ALL") for name in tables}
    rebuild_workspace(world.workspace)
    for name, frame in before.items():
        assert query(world.workspace, f"SELECT * FROM {name} ORDER BY ALL").equals(frame), name


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
import signal
from pathlib import Path
from corpus import runlog
from corpus.ledger.writer import open_ledger
from corpus.runlog import RunLog
from corpus.workspace import Workspace
from tests.corpus.test_runlog import note

with open_ledger(Workspace(Path(sys.argv[2])), "generate") as ledger:
    log = RunLog(ledger, "generate", None)
    runlog.FLUSH_EVERY_S = -1.0
    log.event("engine_ready", "x")
    note(log, 0)
    note(log, 1)
    ledger.call(lambda connection: None)
    if sys.argv[3] == "unnamed":  # a part is whole, and the ledger does not name it yet
        log._rows["engine_samples"].append({"engine": "e", "device": "d", "sampled_at": 1002.0, "running": 1,
            "waiting": 0, "tokens_per_s": 1.0, "kv_use": None, "prefix_hits": None})
        log._flush()
    print(log.run_id, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(("kind", "expected"), [("named", 2), ("unnamed", 3)])
def test_a_killed_run_is_entered_as_killed_at_the_next_start_with_its_samples(
    world: World, kind: str, expected: int
) -> None:
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parents[2]), str(world.workspace.root), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    body = json.loads((world.workspace.run(run_id) / "run.json").read_text())
    assert body["outcome"] is None
    with open_ledger(world.workspace, "next") as ledger:
        mine = RunLog(ledger, "generate", None)
        mine.finish("done")
        adopt(ledger)
        outcomes = ledger.rows("SELECT run_id, outcome, ended_at IS NULL FROM runs ORDER BY run_id")
        assert outcomes == [(run_id, "killed", True), (mine.run_id, "done", False)]
        assert [row[1] for row in samples(ledger)] == [1000.0 + number for number in range(expected)]
        assert ledger.rows("SELECT run_id, kind FROM events") == [(run_id, "engine_ready")]
        adopt(ledger)
        assert len(samples(ledger)) == expected
    assert json.loads((world.workspace.run(run_id) / "run.json").read_text()) == body | {"outcome": "killed"}
    before = query(world.workspace, "SELECT * FROM runs ORDER BY ALL")
    rebuild_workspace(world.workspace)
    assert query(world.workspace, "SELECT * FROM runs ORDER BY ALL").equals(before)
    assert query(world.workspace, "SELECT count(*) FROM engine_samples").item() == expected


def test_a_killed_run_of_which_nothing_can_be_read_is_killed_all_the_same(world: World, caplog: Any) -> None:
    with open_ledger(world.workspace, "test") as ledger:
        log = RunLog(ledger, "generate", None)
        (log.folder / "run.json").write_text("no json")
        adopt(ledger)
        assert ledger.rows("SELECT run_id, outcome FROM runs") == [(log.run_id, "killed")]
    assert "what that run noted is lost" in caplog.text
