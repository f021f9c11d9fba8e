"""SQL of the explorer's page: what its process may take, and that it ends with whoever asked, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corpus.building import commit_build
from corpus.ledger.spill import GB, MOST_MEMORY_BYTES, MOST_SPILL_BYTES, memory_bytes, modest_limits
from corpus.ledger.writer import open_ledger
from draftmill.looking import explorer_sql
from draftmill.looking.explorer_app import Explorer
from draftmill.looking.explorer_sql import answer

World = Any
SLOW = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
ASKING = """
import sys
from pathlib import Path
from corpus.workspace import Workspace
from draftmill.looking.explorer_sql import answer

def is_over():
    print(flush=True)  # its process is there
    return False

if __name__ == "__main__":
    answer(Workspace(Path(sys.argv[1])), sys.argv[2], is_over=is_over)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("built"))
    with open_ledger(world.workspace, "build") as ledger:
        commit_build(world.plan(world.manifest()), world.workspace, ledger)
    return world


@pytest.fixture
def spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def after(calls: int) -> Callable[[], bool]:
    """Over at the so-many-th time that it is asked."""
    left: Iterator[bool] = iter([False] * calls)
    return lambda: next(left, True)


def test_a_question_has_its_own_folder_and_a_bounded_part_of_the_machine(built: World, spills: Path) -> None:
    made = answer(
        built.workspace,
        "SELECT current_setting('temp_directory') AS a, current_setting('memory_limit') AS b, "
        "current_setting('max_temp_directory_size') AS c",
    )
    folder, memory, spill = made.rows[0]
    assert Path(folder).parent == spills
    assert (_gib(memory) <= 4, _gib(spill) <= 10) == (True, True)
    assert list(spills.iterdir()) == []


def _gib(text: str) -> float:
    number, unit = text.split()
    return float(number) / {"GiB": 1, "MiB": 1024, "KiB": 1024**2}[unit]


def test_a_small_machine_gives_less(spills: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = modest_limits(spills)
    assert whole.memory_bytes == min(MOST_MEMORY_BYTES, memory_bytes() // 4)
    assert whole.spill_bytes <= MOST_SPILL_BYTES
    (spills / "memory.max").write_text(f"{2 * GB}\n")
    monkeypatch.setattr("corpus.ledger.spill.CGROUP_MEMORY", spills / "memory.max")
    assert modest_limits(spills / "not" / "there").memory_bytes == GB // 2
    (spills / "memory.max").write_text("max\n")
    assert modest_limits(spills).memory_bytes == whole.memory_bytes


def test_no_more_than_a_few_at_once(built: World) -> None:
    for _ in range(explorer_sql.MOST_AT_ONCE):
        assert explorer_sql._places.acquire(blocking=False)
    try:
        assert "2 questions are being answered" in (answer(built.workspace, "SELECT 1", wait_s=0.01).error or "")
        assert answer(built.workspace, "SELECT 1", is_over=after(3)).error == "stopped."
    finally:
        for _ in range(explorer_sql.MOST_AT_ONCE):
            explorer_sql._places.release()
    for _ in range(explorer_sql.MOST_AT_ONCE + 1):
        assert answer(built.workspace, "SELECT 1").rows == [["1"]]


def test_a_question_that_nobody_waits_for_is_ended(built: World, spills: Path) -> None:
    assert answer(built.workspace, SLOW, is_over=after(12)).error == "stopped."
    assert list(spills.iterdir()) == []


def test_a_browser_that_leaves_ends_its_question(built: World, monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}])
    run = explorer_sql._asked

    def begin(*arguments: Any) -> explorer_sql.Answer:
        began.set()
        return run(*arguments)

    monkeypatch.setattr(explorer_sql, "_asked", begin)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        message = next(messages)
        if message["type"] == "http.disconnect":
            await asyncio.to_thread(began.wait, 600)
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/sql", "raw_path": b"/sql", "root_path": "", "headers": [],
        "query_string": b"q=" + SLOW.replace(" ", "+").replace("%", "%25").encode(),
    }  # fmt: skip
    asyncio.run(Explorer(built.workspace).application()(scope, receive, send))
    assert b"stopped." in sent[1]["body"]


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM])
def test_its_process_ends_with_the_server_however_that_ends(built: World, tmp_path: Path, signal_: int) -> None:
    script = tmp_path / "asking.py"
    script.write_text(ASKING)
    (tmp_path / "spills").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "spills"), "PYTHONPATH": str(Path.cwd())}
    server = subprocess.Popen(
        [sys.executable, script, built.workspace.root, SLOW], stdout=subprocess.PIPE, env=environment
    )
    assert server.stdout is not None
    for _ in range(15):
        server.stdout.readline()
    (child,) = [
        int(one) for task in Path(f"/proc/{server.pid}/task").iterdir()
        for one in (task / "children").read_text().split() if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()
    ]  # fmt: skip
    ended = os.pidfd_open(child)
    server.send_signal(signal_)
    server.wait()
    server.stdout.close()
    assert select.select([ended], [], [], 600)[0], "the process outlives its server"
    os.close(ended)
    assert list((tmp_path / "spills").iterdir()) == []


def test_its_process_ends_by_itself_at_its_limit() -> None:
    code = (
        "import os; from draftmill.looking import explorer_sql as one; one.GRACE_S = 0; "
        "kept, line = os.pipe(); one._end_with_the_server(line, '/nowhere', 0.05); "
        "import ctypes; ctypes.PyDLL(None).pause()"  # holds the interpreter, as a native call may
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGALRM
