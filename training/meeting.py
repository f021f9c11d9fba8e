"""A folder where processes of this machine meet, gone when its owner is: also when the owner was killed.

It lies where temporary files do, on a disk of this machine, since those who meet lock files in it. The owner holds a
lock in it as long as it lives; whoever makes the next one removes those whose lock nobody holds. Folders of others,
and those without a lock, are let alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "draftmill-live-"
LOCK = "owner.lock"


@contextmanager
def meeting_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder below `parent`, by default the one of temporary files."""
    parent = parent or Path(tempfile.gettempdir())
    remove_left(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_left(parent: Path) -> int:
    """Remove what killed owners left; returns how many folders."""
    removed = 0
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another's, or another removes it too
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
            finally:
                os.close(handle)
    return removed
