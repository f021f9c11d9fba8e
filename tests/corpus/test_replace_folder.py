"""A folder takes another's place whole or not at all, whatever comes between; places that are none are one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corpus import artefacts
from corpus.artefacts import remove_temporaries, replace_folder, write_text
from corpus.errors import UserError


def fill(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "what").write_text(text) and None


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["fill", "fsync", "away", "into place", "last fsync"])
def test_whatever_fails_one_whole_folder_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, error: BaseException
) -> None:
    final = tmp_path / "final"
    replace_folder(final, fill("old"))
    rename, sync = Path.rename, artefacts.sync_path

    def renamed(self: Path, target: Path) -> Path:
        if (at == "away" and self == final) or (at == "into place" and target == final and ".old." not in self.name):
            raise error
        return rename(self, target)

    def synced(path: Path) -> None:
        if (at == "fsync" and path.name == "what") or (at == "last fsync" and path == tmp_path):
            raise error
        sync(path)

    def fails(folder: Path) -> None:
        fill("new")(folder)
        if at == "fill":
            raise error

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(artefacts, "sync_path", synced)
    with pytest.raises(type(error)):
        replace_folder(final, fails)
    assert names(tmp_path) == ["final"]
    assert (final / "what").read_text() == ("new" if at == "last fsync" else "old")


@pytest.mark.parametrize("after", [1, 2])
def test_killed_between_the_renames_the_next_start_puts_the_old_one_back(tmp_path: Path, after: int) -> None:
    final = tmp_path / "final"
    replace_folder(final, fill("old"))
    kill = f"""
import os, signal
from pathlib import Path
from corpus.artefacts import replace_folder
rename, count = Path.rename, 0
def renamed(self, target):
    global count
    rename(self, target)
    count += 1
    if count == {after}:
        os.kill(os.getpid(), signal.SIGKILL)
Path.rename = renamed
replace_folder(Path({str(final)!r}), lambda folder: (folder / "what").write_text("new"))
"""
    assert subprocess.run([sys.executable, "-c", kill], check=False).returncode == -9
    assert final.exists() == (after == 2)
    assert remove_temporaries(tmp_path) == (2 if after == 1 else 1)
    assert names(tmp_path) == ["final"]
    assert (final / "what").read_text() == ("old" if after == 1 else "new")


@pytest.mark.parametrize("write", [lambda path: replace_folder(path, fill("x")), lambda path: write_text(path, "x")])
@pytest.mark.parametrize("place", ["file/below", "file/two/below", "x" * 250, "/proc/x", "loop/x"])
def test_a_place_where_nothing_can_be_is_one_line_that_names_it(
    tmp_path: Path, write: Callable[[Path], None], place: str
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    path = tmp_path / place
    with pytest.raises(UserError, match=r": cannot be written \([^()]+\)\. ") as caught:
        write(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["file", "loop"]


def test_an_error_that_is_not_of_the_place_is_a_bug(tmp_path: Path) -> None:
    def reads(folder: Path) -> None:
        (tmp_path / "gone").read_text()

    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "final", reads)
    assert list(tmp_path.iterdir()) == []
