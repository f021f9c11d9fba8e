"""A meeting folder goes with its owner, however that one ends; others' folders stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from training.meeting import LOCK, PREFIX, meeting_folder, remove_left

OWNER = """
import sys
from pathlib import Path
from training.meeting import meeting_folder

with meeting_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_it_goes_at_the_end_and_after_an_error(tmp_path: Path) -> None:
    with meeting_folder(tmp_path) as folder:
        (folder / "drafters").write_text("x")
        assert folder.parent == tmp_path
    with pytest.raises(KeyError), meeting_folder(tmp_path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_killed_owners_is_removed_by_the_next_and_a_living_ones_is_not(tmp_path: Path) -> None:
    owners = [
        subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdin=-1, stdout=-1, text=True) for _ in range(2)
    ]
    folders = [Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout]
    assert all((folder / LOCK).exists() for folder in folders)
    owners[0].kill()
    owners[0].communicate()
    with meeting_folder(tmp_path) as own:
        assert {path.name for path in tmp_path.iterdir()} == {own.name, folders[1].name}
    owners[1].communicate()
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_lock_of_ours_is_let_alone(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}older").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / LOCK).write_text("")
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{PREFIX}file").write_text("")
    assert remove_left(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 4
