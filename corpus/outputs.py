"""Where a person wants a result: the FILE of --out, and what may stand there.

A plain file is replaced whole, as artefacts does it. A pipe, a terminal or /dev/stdout is written to and stays what it
is: a rename over it would put a plain file in its place. Folders, disks and sockets are refused, and so are the files
that draftmill itself keeps in a workspace (its reports are not): a result over a ledger would end the workspace.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from corpus.artefacts import WORKSPACE_LOCK, say_full_disk, write_atomically
from corpus.errors import UserError
from corpus.workspace import is_workspace

LEDGERS = ("ledger.duckdb", "ledger.snapshot")
"""What the names of a workspace's ledgers begin with: the writer's, the published one, older ones, their logs."""
OWN_FOLDERS = frozenset(
    ("pools", "candidates", "builds", "imports", "responses", "hidden", "drafters", "runs", "cache")
)
STREAMS = ("/dev", "/proc")
"""What lies below is another's open file, whatever it leads to: never renamed over."""


def write_output(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary path, then bring that to `path`.

    Raises:
        UserError: nothing may be, or can be, written there.
    """
    refuse_output(path)
    if not is_stream(path):
        write_atomically(path, write)
        return
    with TemporaryDirectory(prefix="draftmill-out-") as folder:
        whole = Path(folder) / "whole"
        write(whole)
        try:
            with whole.open("rb") as made, path.open("wb") as stream:
                shutil.copyfileobj(made, stream)
        except BrokenPipeError:
            raise
        except OSError as error:
            say_full_disk(error, path)
            raise UserError(f"{path}: cannot be written ({error.strerror}). Name a file.") from error


def write_output_text(path: Path, text: str) -> None:
    """Write a UTF-8 text.

    Raises:
        UserError: as write_output.
    """
    write_output(path, lambda to: _write(to, text))


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


def is_stream(path: Path) -> bool:
    """Whether bytes are only written onwards there: a pipe, a terminal, whatever lies in /dev or /proc."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    inside = any(str(path.absolute()).startswith(f"{folder}/") for folder in STREAMS)
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or (inside and stat.S_ISREG(mode))


def refuse_output(path: Path) -> None:
    """Refuse a place where no result belongs.

    Raises:
        UserError: it is a folder, a disk or a socket, or draftmill's own.
    """
    what = _no_file(path)
    if what is not None:
        raise UserError(f"{path}: is {what}; nothing was written. Name a file with --out FILE.")
    refuse_own(path)


def refuse_own(path: Path) -> None:
    """Refuse what a workspace keeps itself.

    Raises:
        UserError: it is.
    """
    try:
        whole = path.parent.resolve() / path.name
        known = {whole, path.resolve()}  # the name itself, and where a link leads
    except (OSError, RuntimeError, ValueError):
        return  # a loop of links, too long a name: whoever writes says so
    for place in known:
        root = next((folder for folder in place.parents if is_workspace(folder)), None)
        if root is None:
            continue
        first = place.relative_to(root).parts[0]
        if first == WORKSPACE_LOCK or first.startswith(LEDGERS) or first in OWN_FOLDERS:
            raise UserError(
                f"{path}: is draftmill's own, in the workspace {root}; nothing was written. Name a file elsewhere, or "
                f"in {root / 'reports'}."
            )


def _no_file(path: Path) -> str | None:
    """What stands there that cannot be written as a file, in words; None if it can."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISBLK, "a disk"), (stat.S_ISSOCK, "a socket"))
    return next((words for is_it, words in kinds if is_it(mode)), None)
