"""Damaged workspaces: every kind of file is healed, or refused in one line whose next step works; nothing is wrong in
silence, and nothing that is well is moved aside."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from corpus.artefacts import remove_temporaries
from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger import rebuild as rebuilding
from corpus.ledger.query import LedgerReader, query
from corpus.ledger.rebuild import adopt, rebuild_workspace
from corpus.ledger.writer import open_ledger
from corpus.sources import FileDigests
from corpus.workspace import Workspace

World = Any
VIEWS = ("composition", "funnel", "provenance", "unfinished", "prompt_text", "response_text")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small world, built and answered by the fake engine; copied by every test."""
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("finished"))
    again(world)
    return world


@pytest.fixture
def broken(finished: World, tmp_path: Path) -> Any:
    """A copy that a test may damage."""
    from tests.conftest import World as Small

    shutil.copytree(finished.root, tmp_path / "copy")
    return Small(tmp_path / "copy")


def again(world: World, name: str = "small") -> None:
    """Build and generate, as the commands do."""
    manifest = world.manifest(**world.body(), name=name) if name != "small" else world.manifest()
    with open_ledger(world.workspace, "test") as ledger:
        adopt(ledger)
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        world.generate(manifest, plan, ledger)


def asked(world: World) -> dict[str, list[str]]:
    return {view: sorted(map(repr, query(world.workspace, f"FROM {view}").rows())) for view in VIEWS}


def empty(data: bytes) -> bytes:
    return data[:0]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    changed, draw = bytearray(data), random.Random(len(data))
    for _ in range(1 + len(data) // 2000):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def other(data: bytes) -> bytes:
    return b"[1]"


WAYS: list[Callable[[bytes], bytes] | None] = [empty, half, flipped, other, None]
MADE_AGAIN = (
    "pools/*/0.parquet", "pools/*/pool.json", "candidates/*/prompts.parquet", "candidates/*/drops.parquet",
    "candidates/*/candidates.json", "builds/*/build.json", "builds/*/manifest.lock.yaml", "builds/*/rounds/0.parquet",
    "builds/*/responses.parquet", "builds/*/recipes.json", "cache/digests.json",
)  # fmt: skip


def damage(path: Path, way: Callable[[bytes], bytes] | None) -> None:
    data = path.read_bytes()
    path.unlink()
    if way is not None:
        path.write_bytes(way(data))


def one(world: World, pattern: str) -> Path:
    found: Path = sorted(world.workspace.root.glob(pattern))[0]
    return found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__ if way else "gone")
@pytest.mark.parametrize("pattern", MADE_AGAIN)
def test_what_can_be_made_again_is_and_is_the_same(
    broken: World, pattern: str, way: Callable[[bytes], bytes] | None
) -> None:
    before, rows = asked(broken), {
        str(path.relative_to(broken.root)): pl.read_parquet(path)
        for path in broken.workspace.root.rglob("*.parquet")
        if "runs" not in path.parts
    }  # fmt: skip
    damage(one(broken, pattern), way)
    again(broken)
    assert asked(broken) == before
    for name, frame in rows.items():
        assert pl.read_parquet(broken.root / name).equals(frame), name
    rebuild_workspace(broken.workspace)
    assert asked(broken) == before
    assert not list(broken.workspace.root.rglob("*.damaged"))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__ if way else "gone")
def test_answers_that_are_gone_or_damaged_are_refused_and_made_again_after_a_rebuild(
    broken: World, way: Callable[[bytes], bytes] | None
) -> None:
    wanted = set(query(broken.workspace, "SELECT response_id FROM build_responses").rows())
    damage(one(broken, "responses/*.parquet"), way)
    with pytest.raises(UserError, match="1 of 1 shard that the ledger names is gone or damaged") as caught:
        again(broken)
    assert "draftmill ledger rebuild" in str(caught.value)
    assert "\n" not in str(caught.value)
    rebuild_workspace(broken.workspace)
    assert query(broken.workspace, "FROM responses").height == 0
    again(broken)
    assert set(query(broken.workspace, "SELECT DISTINCT response_id FROM responses").rows()) == wanted


def test_a_ledger_that_is_gone_is_not_begun_anew(broken: World) -> None:
    before = asked(broken)
    for way in (None, empty):
        damage(broken.workspace.ledger, way)
        with pytest.raises(UserError, match=r"is gone, and builds are there\. Run `draftmill ledger rebuild`"):
            again(broken)
        assert asked(broken) == before, "the snapshot stays"
        rebuild_workspace(broken.workspace)
        assert asked(broken) == before


@pytest.mark.parametrize("at", [0.3, 0.5, 0.7, 0.9])
def test_a_ledger_damaged_inside_is_one_line_and_no_file_is_moved_aside(broken: World, at: float) -> None:
    before = asked(broken)
    path = broken.workspace.ledger
    data = bytearray(path.read_bytes())
    blocks = range(int(len(data) * at), len(data), 4096)
    for start in blocks:
        data[start] ^= 255
    path.write_bytes(bytes(data))
    stray = one(broken, "responses/*.parquet")
    shutil.copy(stray, stray.with_name("20990101-stray.parquet"))
    try:
        again(broken)
    except UserError as error:
        assert "Run `draftmill ledger rebuild`" in str(error)
        assert "\n" not in str(error)
    assert not list(broken.workspace.root.rglob("*.damaged"))
    stray.with_name("20990101-stray.parquet").unlink()
    rebuild_workspace(broken.workspace)
    assert asked(broken) == before


def test_a_full_disk_moves_no_file_aside(broken: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stray = one(broken, "responses/*.parquet").with_name("20990101-stray.parquet")
    shutil.copy(one(broken, "responses/*.parquet"), stray)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with open_ledger(broken.workspace, "test") as ledger:

        def no_room(job: Any) -> None:
            raise UserError("the disk is full") from full

        monkeypatch.setattr(ledger, "call", no_room)
        with pytest.raises(UserError, match="the disk is full"):
            adopt(ledger)
    assert stray.exists()


def test_a_rebuild_that_fails_leaves_the_ledger_as_it_was(broken: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before, data = asked(broken), broken.workspace.ledger.read_bytes()

    def full(*_: Any) -> None:
        raise UserError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "rebuild", full)
        with pytest.raises(UserError):
            rebuild_workspace(broken.workspace)
    assert broken.workspace.ledger.read_bytes() == data
    assert not list(broken.workspace.root.glob(".*.tmp"))
    again(broken)
    assert asked(broken) == before


def test_an_open_ledger_is_refused_even_if_the_lock_file_was_removed(broken: World) -> None:
    hold = f"""
        import sys
        from pathlib import Path
        from corpus.ledger.writer import open_ledger
        from corpus.workspace import Workspace
        with open_ledger(Workspace(Path({str(broken.workspace.root)!r})), "hold"):
            print("held", flush=True)
            sys.stdin.read()
    """
    code = "\n".join(line.strip() if "print" not in line and "stdin" not in line else "    " + line.strip()
                     for line in hold.strip().splitlines())  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        broken.workspace.lock.unlink()
        for command in (lambda: again(broken), lambda: rebuild_workspace(broken.workspace)):
            with pytest.raises(UserError, match="another process has it open"):
                command()
        holder.stdin.close()
        assert holder.wait() == 0
    again(broken)


@pytest.mark.parametrize("way", [empty, half, flipped, other], ids=lambda way: way.__name__)
def test_a_damaged_snapshot_is_one_line_and_published_again(broken: World, way: Callable[[bytes], bytes]) -> None:
    before = asked(broken)
    damage(broken.workspace.snapshot, way)
    for command in (lambda: asked(broken), lambda: LedgerReader(broken.workspace).rows("FROM provenance")):
        with pytest.raises(UserError, match=r"ledger\.snapshot\.duckdb: cannot be read .* Remove it") as caught:
            command()
        assert "\n" not in str(caught.value)
    broken.workspace.snapshot.unlink()
    again(broken)
    assert asked(broken) == before


def test_a_damaged_text_file_closes_its_own_view_alone(broken: World) -> None:
    damage(one(broken, "responses/*.parquet"), half)
    assert query(broken.workspace, "FROM provenance").height > 0
    assert query(broken.workspace, "FROM prompt_text").height > 0
    with pytest.raises(UserError, match="response_text cannot be read"):
        query(broken.workspace, "FROM response_text")


def test_a_run_that_cannot_be_read_is_moved_aside_and_the_rest_is_entered(broken: World) -> None:
    before = asked(broken)
    path = one(broken, "runs/*/run.json")
    damage(path, half)
    rebuild_workspace(broken.workspace)
    assert asked(broken) == before
    assert path.with_name("run.json.damaged").exists()


def test_a_changed_digit_of_a_remembered_digest_is_not_believed(tmp_path: Path) -> None:
    file, memory = tmp_path / "x", tmp_path / "digests.json"
    file.write_text("x")
    digests = FileDigests(memory)
    value = digests.sha256(file)
    digests.save()
    memory.write_text(memory.read_text().replace(value[:8], "00000000"))
    assert FileDigests(memory).sha256(file) == value
    assert not FileDigests(memory).is_whole(tmp_path / "none", value)


def test_temporary_folders_go_and_those_of_a_draftmill_at_work_stay(tmp_path: Path) -> None:
    gone = 1 << 22  # the system gives no process so high a number
    stale = tmp_path / "checkpoints" / f".step-00000010.{gone}-0123abcd.tmp"
    old = tmp_path / "checkpoints" / f".old.step-00000010.{gone}-0123abcd.tmp"
    for folder in (stale, old):
        folder.mkdir(parents=True)
        (folder / "drafter.safetensors").write_text("half")
    code = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "draftmill"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        at_work = tmp_path / f".0.parquet.{writer.pid}-0123abcd.tmp"
        at_work.write_text("half")
        assert remove_temporaries(tmp_path) == 2
        assert at_work.exists()
        writer.kill()
    assert not stale.exists()
    assert not old.exists()
    assert remove_temporaries(tmp_path) == 1
    assert not at_work.exists()


@pytest.mark.parametrize("name", ["ws?x=1", "\udcff"])
def test_a_workspace_that_the_ledger_cannot_lie_in_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="a workspace's path may not hold") as caught:
        Workspace(tmp_path / name)
    assert str(caught.value).isascii()


@pytest.mark.parametrize("name", ["md:x", ":memory:", "s3:x", "new\nline", "q'uo\"te", "br[a]ck*"])
def test_a_workspace_may_have_any_other_name(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    workspace = Workspace(Path(name))
    with open_ledger(workspace, "test") as ledger:
        commit_build(world.plan(world.manifest(), workspace), workspace, ledger)
    assert query(workspace, "SELECT count(DISTINCT prompt_id) FROM prompt_text").item() == 80
    assert json.loads(workspace.lock.read_text())["command"] == "test"


# killed at every kind of instruction

KILLED = """
import os, signal, sys
from pathlib import Path
left = int(sys.argv[2])
def count(call):
    def counted(*values):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*values)
    return counted
os.fsync = count(os.fsync)
Path.replace = count(count(Path.replace))
from tests.conftest import World
from tests.corpus.test_damage import again
again(World(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("first", [2, 17, 29, 41, 53])
def test_killed_anywhere_and_resumed_every_answer_is_there_once(world: World, first: int) -> None:
    home = Path(__file__).resolve().parents[2]
    for crossings in (first, first // 2, 0):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(world.root), str(crossings)], cwd=home, check=False, capture_output=True
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-2000:]
    assert done.returncode == 0
    assert query(
        world.workspace,
        "SELECT b.response_id FROM build_responses b LEFT JOIN responses r USING (response_id) GROUP BY ALL "
        "HAVING count(*) FILTER (r.state = 'accepted') <> 1 AND count(*) FILTER (r.state = 'rejected') = 0",
    ).is_empty()
    shards = {
        path.name: pl.read_parquet(path, columns=["response_id"]).height
        for path in world.workspace.responses.glob("*.parquet")
    }
    assert dict(query(world.workspace, "SELECT shard, rows FROM response_shards").rows()) == shards
    assert not list(world.workspace.root.rglob(".*.tmp"))
    assert not list(world.workspace.root.rglob("*.damaged"))
