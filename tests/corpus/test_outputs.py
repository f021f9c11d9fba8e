"""Where --out may lead: what stands there stays what it is, and nothing of a workspace's own is written over."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from corpus.artefacts import write_text
from corpus.errors import UserError
from corpus.outputs import refuse_own, write_output_text
from corpus.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path / "ws")
    made.root.mkdir()
    made.snapshot.write_bytes(b"the ledger")
    return made


def read_in_the_background(fifo: Path) -> tuple[threading.Thread, list[bytes]]:
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    thread.start()
    return thread, got


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    thread, got = read_in_the_background(fifo)
    write_output_text(fifo, "rows\n")
    thread.join()
    assert got == [b"rows\n"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["fifo"]


def test_a_link_to_a_pipe_stays_a_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    thread, got = read_in_the_background(tmp_path / "fifo")
    write_output_text(tmp_path / "link", "rows\n")
    thread.join()
    assert got == [b"rows\n"]
    assert (tmp_path / "link").is_symlink()


def test_an_open_file_by_its_number_is_written_onwards(tmp_path: Path) -> None:
    with (tmp_path / "redirected").open("wb") as opened:
        write_output_text(Path(f"/proc/self/fd/{opened.fileno()}"), "rows\n")
        assert os.fstat(opened.fileno()).st_size == 5
    assert (tmp_path / "redirected").read_bytes() == b"rows\n"


def test_a_folder_and_a_socket_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name in ("folder", "socket"):
            with pytest.raises(UserError, match=f"is a {name}; nothing was written") as caught:
                write_output_text(tmp_path / name, "rows\n")
            assert "\n" not in str(caught.value)
            assert (tmp_path / name).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "socket"]


def test_no_writer_of_ours_puts_a_file_in_the_place_of_a_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(UserError, match="no plain file"):
        write_text(fifo, "rows\n")
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize(
    "name",
    [
        "ledger.duckdb", "ledger.duckdb.old", "ledger.snapshot.duckdb", "workspace.lock", "responses/a.parquet",
        "pools/x/0.parquet", "builds/x/build.json", "runs/../cache/x", "drafters/new.csv",
    ],
)  # fmt: skip
def test_what_a_workspace_keeps_is_refused_before_it_is_made(workspace: Workspace, name: str) -> None:
    with pytest.raises(UserError, match="draftmill's own"):
        write_output_text(workspace.root / name, "rows\n")
    assert [path.name for path in workspace.root.iterdir()] == [workspace.snapshot.name]
    assert workspace.snapshot.read_bytes() == b"the ledger"


def test_a_link_into_a_workspace_is_refused_too(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(workspace.snapshot)
    (tmp_path / "other").symlink_to(workspace.root)
    for path in (tmp_path / "link.csv", tmp_path / "other" / "ledger.duckdb"):
        with pytest.raises(UserError, match="draftmill's own"):
            write_output_text(path, "rows\n")
    assert workspace.snapshot.read_bytes() == b"the ledger"


@pytest.mark.parametrize("name", ["reports/a.html", "mine.csv", "ledger.csv", "notes/a.txt"])
def test_the_rest_of_a_workspace_is_free(workspace: Workspace, name: str) -> None:
    write_output_text(workspace.root / name, "rows\n")
    assert (workspace.root / name).read_bytes() == b"rows\n"


def test_a_loop_of_links_is_for_the_writer_to_say(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuse_own(tmp_path / "loop")
