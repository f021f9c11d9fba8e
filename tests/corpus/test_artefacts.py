"""Files are whole or absent: killed writers, full disks, and what the next start makes of what they left.

The full disk is a real one: a tmpfs of a few hundred kilobytes with a workspace on it. Where it cannot be mounted,
the kernel's limit on the size of a file stands in for it.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import artefacts
from corpus.artefacts import full_disk, remove_temporaries, sha256_file, write_atomically, write_text
from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.rebuild import adopt
from corpus.ledger.writer import open_ledger
from corpus.responses import Attempt, read_rows_at, write_responses
from corpus.token_ids import pack_ids
from corpus.workspace import Workspace

World = Any


def fail_with(number: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    return write


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_write_then_read_is_the_identity(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "artefact"
        written = write_text(path, text)
        assert path.read_bytes() == text.encode()
        assert written.size_bytes == len(text.encode())
        assert written.sha256 == sha256_file(path)


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.txt"
    write_text(path, "old")

    def write(temporary: Path) -> None:
        temporary.write_text("half")
        raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        write_atomically(path, write)
    assert [p.name for p in path.parent.iterdir()] == ["x.txt"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
def test_what_the_system_refuses_is_one_line(tmp_path: Path, number: int) -> None:
    with pytest.raises(UserError) as caught:
        write_atomically(tmp_path / "x", fail_with(number))
    assert str(caught.value).startswith(f"{tmp_path / 'x'}: ")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_the_clean_up_too_names_the_file_and_not_its_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(UserError) as caught:
        write_atomically(tmp_path / "x", fail_with(errno.EROFS))
    assert str(caught.value).startswith(f"{tmp_path / 'x'}: cannot be written")


def test_other_errors_of_the_system_are_bugs(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file") as caught:
        write_atomically(tmp_path / "x", fail_with(errno.EBADF))
    assert not isinstance(caught.value, UserError)


def test_a_full_disk_is_found_in_the_words_and_causes_of_libraries(tmp_path: Path) -> None:
    wrapped = RuntimeError("library")
    wrapped.__cause__ = OSError(errno.ENOSPC, "x")
    assert "the disk is full" in str(full_disk(wrapped, tmp_path))
    assert "the disk is full" in str(full_disk(RuntimeError(f"IO Error: {os.strerror(errno.ENOSPC)}"), tmp_path))
    assert full_disk(RuntimeError("something else"), tmp_path) is None


def test_only_temporaries_of_our_own_are_removed(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in ("x.parquet", ".hidden", "notes.tmp", ".other.tmp", ".vim.swp.tmp")]
    for path in kept:
        path.write_text("x")
    (tmp_path / "deep").mkdir()
    stale = [artefacts.temporary_path(tmp_path / "deep" / "a.parquet"), artefacts.temporary_path(tmp_path / "b.json")]
    for path in stale:
        path.write_text("half")
    assert remove_temporaries(tmp_path) == 2
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in stale)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from corpus.artefacts import write_atomically

    def write(path):
        path.write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    write_atomically(Path(sys.argv[1]), write)
"""


def test_a_killed_writer_leaves_a_temporary_that_the_next_start_removes(world: World) -> None:
    path = world.workspace.responses / "a.parquet"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(path)], check=False, cwd=world.root)
    assert done.returncode == -signal.SIGKILL
    (left,) = path.parent.iterdir()
    assert left.name.startswith(".a.parquet.")
    with open_ledger(world.workspace, "test") as ledger:
        assert adopt(ledger) == 0
    assert not list(path.parent.iterdir())


# full disks


@contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[Callable[[int], None]]:
    """`folder` as a disk of its own; gives what resizes it."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder)], check=True)

    def resize(new_kb: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={new_kb}k", str(folder)], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def can_mount() -> bool:
    if os.geteuid() != 0:
        return False
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True)
    return probe.returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="the tests with fakes below stand in")


def draftmill(world: World, *arguments: str, limit_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; `limit_bytes` is the size beyond which no file may grow."""

    def limited() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "draftmill", *arguments], capture_output=True, text=True, cwd=world.root, check=False,
        preexec_fn=limited if limit_bytes is not None else None,
    )  # fmt: skip


def nothing_half_named(workspace: Workspace) -> None:
    """Every file that is named can be read; no temporary is left."""
    import polars as pl

    assert not list(workspace.root.rglob(".*.tmp"))
    for path in workspace.root.rglob("*.parquet"):
        pl.read_parquet(path)


def long_prompts(world: World, count: int = 400) -> dict[str, Any]:
    """A manifest whose pool does not compress: some 300 kB."""
    world.jsonl("long.jsonl", ({"prompt": os.urandom(400).hex()} for _ in range(count)))
    return {
        "sources": [{"name": "long", "path": "long.jsonl", "category": "coding"}],
        "mix": {"total": 10, "shares": {"coding": 1}, "holdout": 0.0},
    }


@needs_mount
@pytest.mark.parametrize("room_kb", [150, 1000, 2000, 3500], ids=["pool", "candidates", "ledger", "snapshot"])
def test_a_build_on_a_full_disk_is_one_line_and_goes_on_when_there_is_room(world: World, room_kb: int) -> None:
    path = world.write(**long_prompts(world))
    command = ("build", str(path), "--workspace", str(world.workspace.root))
    with small_disk(world.workspace.root, room_kb) as resize:
        check_refused(draftmill(world, *command), world, "the disk is full")
        resize(60_000)
        done = draftmill(world, *command)
        assert done.returncode == 0, done.stderr
        nothing_half_named(world.workspace)


@pytest.mark.parametrize("limit_kb", [100, 500], ids=["pool", "ledger"])
def test_a_build_with_a_limit_on_files_is_one_line_and_goes_on_without(world: World, limit_kb: int) -> None:
    path = world.write(**long_prompts(world))
    command = ("build", str(path), "--workspace", str(world.workspace.root))
    check_refused(draftmill(world, *command, limit_bytes=limit_kb * 1024), world, "may not grow further")
    done = draftmill(world, *command)
    assert done.returncode == 0, done.stderr
    nothing_half_named(world.workspace)


def check_refused(failed: subprocess.CompletedProcess[str], world: World, said: str) -> None:
    assert failed.returncode == 2, failed.stderr
    assert said in failed.stderr
    assert "Traceback" not in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("draftmill: ")
    assert failed.stderr.count("draftmill: ") == 1
    nothing_half_named(world.workspace)


def attempts(count: int) -> list[Attempt]:
    return [
        Attempt(
            response_id=f"r{i}", prompt_id="p", recipe_id="r", replica=0, turn=0, attempt=0, state="accepted",
            reason=None,
            prompt_token_ids=pack_ids(os.urandom(200)), token_ids=pack_ids(os.urandom(200)),
            text=os.urandom(400).hex(),
            finish_reason="stop", stop_reason=None, seed=1, engine="e", device="d", queued_at=None, started_at=None,
            first_token_at=None, ended_at=None, run_id="run",
        )
        for i in range(count)
    ]  # fmt: skip


@needs_mount
def test_a_response_shard_on_a_full_disk(world: World) -> None:
    with small_disk(world.workspace.root, 300) as resize:
        path = world.workspace.responses / "a.parquet"
        with pytest.raises(UserError, match="the disk is full"):
            write_responses(path, attempts(2000))
        assert not list(path.parent.iterdir())
        resize(20_000)
        write_responses(path, attempts(2000))
        assert read_rows_at(path.parent, [("a.parquet", 1999)], ["response_id"])["response_id"].to_list() == ["r1999"]


def test_a_response_shard_beyond_the_limit_of_a_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """polars writes through its own code: the failure here is the system's, at the fsync."""
    path = world.workspace.responses / "a.parquet"

    def no_space(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(artefacts, "sync_path", no_space)
        with pytest.raises(UserError, match="the disk is full"):
            write_responses(path, attempts(3))
    assert not list(path.parent.iterdir())
    write_responses(path, attempts(3))


@needs_mount
def test_a_ledger_commit_on_a_full_disk_is_one_line_and_loses_only_itself(world: World) -> None:
    with small_disk(world.workspace.root, 30_000) as resize:
        with open_ledger(world.workspace, "test") as ledger:
            commit_build(world.plan(world.manifest()), world.workspace, ledger)
        used_kb = sum(p.stat().st_blocks * 512 for p in world.workspace.root.rglob("*") if p.is_file()) // 1024
        write_responses(world.workspace.responses / "a.parquet", attempts(20))
        resize(used_kb + 200)

        def job(connection: Any) -> None:
            connection.execute(
                "INSERT INTO runs SELECT md5(i::VARCHAR) || md5((i + 1)::VARCHAR), md5((i + 2)::VARCHAR), "
                "md5((i + 3)::VARCHAR), NULL, NULL, md5((i + 4)::VARCHAR) FROM range(200000) t(i)"
            )

        with pytest.raises(UserError, match="the disk is full") as caught, open_ledger(world.workspace, "x") as ledger:
            ledger.call(job)
        assert "\n" not in str(caught.value)
        resize(60_000)
        with open_ledger(world.workspace, "test") as ledger:
            assert ledger.rows("SELECT count(*) FROM builds") == [(1,)]
            assert ledger.rows("SELECT count(*) FROM runs") == [(0,)]
            assert adopt(ledger) == 1
        nothing_half_named(world.workspace)


@needs_mount
def test_a_snapshot_on_a_full_disk_keeps_the_old_one(world: World) -> None:
    with small_disk(world.workspace.root, 30_000) as resize:
        with open_ledger(world.workspace, "test") as ledger:
            ledger.call(lambda c: c.execute("INSERT INTO runs (run_id) VALUES ('kept')"))
        old = world.workspace.snapshot.read_bytes()
        used_kb = sum(p.stat().st_blocks * 512 for p in world.workspace.root.rglob("*") if p.is_file()) // 1024
        resize(used_kb + 600)
        with pytest.raises(UserError, match="the disk is full"), open_ledger(world.workspace, "test") as ledger:
            ledger.publish()
        assert world.workspace.snapshot.read_bytes() == old
        assert not list(world.workspace.root.glob(".*.tmp"))
        resize(60_000)
        with open_ledger(world.workspace, "test") as ledger:
            ledger.publish()
            assert ledger.rows("SELECT run_id FROM runs") == [("kept",)]


def test_a_commit_that_the_system_refuses_is_rolled_back(world: World) -> None:
    def job(connection: Any) -> None:
        connection.execute("INSERT INTO runs (run_id) VALUES ('half')")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_ledger(world.workspace, "test") as ledger:
        with pytest.raises(UserError, match="the disk is full"):
            ledger.call(job)
        assert ledger.rows("SELECT count(*) FROM runs") == [(0,)]


def test_a_snapshot_that_cannot_be_copied_keeps_the_old_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_ledger(world.workspace, "test") as ledger:
        ledger.call(lambda c: c.execute("INSERT INTO runs (run_id) VALUES ('kept')"))
    old = world.workspace.snapshot.read_bytes()
    copy = world.root / "bin" / "cp"
    copy.parent.mkdir()
    copy.write_text("#!/bin/sh\necho 'cp: error writing: No space left on device' >&2\nexit 1\n")
    copy.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{copy.parent}:{os.environ['PATH']}")
        with pytest.raises(UserError, match="the disk is full"), open_ledger(world.workspace, "test") as ledger:
            ledger.publish()
    assert world.workspace.snapshot.read_bytes() == old


def test_a_workspace_that_cannot_be_written_is_one_line(world: World) -> None:
    (world.root / "file").write_text("x")
    with pytest.raises(UserError) as caught, Workspace(world.root / "file" / "ws").coordinate("test"):
        pass
    assert "cannot be a workspace" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_lock_is_let_go_of_whatever_happens(world: World) -> None:
    with pytest.raises(ValueError, match="bug"), world.workspace.coordinate("test"):
        raise ValueError("bug")
    with world.workspace.coordinate("test"):
        pass
