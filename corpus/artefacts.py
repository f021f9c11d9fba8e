"""Files that are whole or absent.

Writing order: a temporary file in the same directory, fsync, rename, fsync of the directory; only then may
the ledger name the file. A temporary file that a killed process left is removed at the next start. A full
disk removes the temporary file and becomes one line for the person.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.canonical import digest
from corpus.errors import RowError, UserError

TEMPORARY_SUFFIX = ".tmp"
WORKSPACE_LOCK = "workspace.lock"
SEAL = "of"  # the key of a description's own digest
_TEMPORARY = re.compile(r"\..+\.(\d+)-[0-9a-f]{8}\.tmp", re.DOTALL)  # ours alone: a workspace may hold files of others
_REPLACED = re.compile(r"\.(.+)\.(\d+)-[0-9a-f]{8}\.old\.tmp", re.DOTALL)
"""What replace_folder moved out of the way, while the new one takes its place."""
_OF_THE_PATH = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
    errno.ENODEV,
}
"""What the system says of a place where nothing can be written, whoever asks."""


@dataclass(frozen=True)
class Written:
    """A finished file: its size and checksum are what the ledger records."""

    path: Path
    size_bytes: int
    sha256: str


def write_atomically(path: Path, write: Callable[[Path], None]) -> Written:
    """Let `write` fill a temporary path, then put it at `path`.

    Raises:
        UserError: the disk is full, the folder cannot be written, or a device, pipe or folder stands there.
    """
    _refuse_special(path)
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        checksum = sha256_file(temporary)
        size_bytes = temporary.stat().st_size
        sync_path(temporary)
        temporary.replace(path)
        sync_path(path.parent)
    except BaseException as error:
        with suppress(OSError):  # a read-only disk refuses this too, and in the place of what was refused first
            temporary.unlink(missing_ok=True)
        _say_unwritable(error, path, temporary)
        raise
    return Written(path, size_bytes, checksum)


def _refuse_special(path: Path) -> None:
    """Refuse what a rename would replace by a plain file for good: /dev/null is one to every program of the machine."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # nothing is there, or whoever writes says what is
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is there and is no plain file; nothing was written. Name a file.")


def temporary_path(path: Path) -> Path:
    """A name beside `path` that remove_temporaries knows."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")


def replace_folder(final: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write files into a temporary folder beside `final`, then put it there in place of what was.

    What was there goes only when the new one is in its place. A process that is killed between the two leaves it under
    another name, under which remove_temporaries finds it.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    temporary = temporary_path(final)
    old = temporary.with_name(f"{temporary.name.removesuffix(TEMPORARY_SUFFIX)}.old{TEMPORARY_SUFFIX}")
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        for path in [*temporary.iterdir(), temporary]:
            sync_path(path)
        if os.path.lexists(final):
            final.rename(old)
        temporary.rename(final)
        sync_path(final.parent)
    except BaseException as error:
        if os.path.lexists(old) and not os.path.lexists(final):
            old.rename(final)
        shutil.rmtree(temporary, ignore_errors=True)
        _say_unwritable(error, final, temporary)
        raise
    finally:
        if os.path.lexists(final):
            _remove(old)


def write_text(path: Path, text: str) -> Written:
    """Write a UTF-8 text file atomically."""
    return write_atomically(path, lambda temporary: _write_bytes(temporary, text.encode()))


def write_description(path: Path, body: dict[str, Any]) -> Written:
    """Write what a folder of ours says of itself, with its own digest: a changed digit would be another build."""
    sealed = body | {SEAL: digest("description", body)}
    return write_text(path, json.dumps(sealed, indent=1, sort_keys=True))


def read_description(path: Path) -> dict[str, Any]:
    """The inverse of write_description; one without a digest is of an older draftmill, and is believed.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is not what was written.
    """
    body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    try:
        seal = body.pop(SEAL, None)
        if seal is not None and seal != digest("description", body):
            raise ValueError("its digest is of another text")
    except (AttributeError, TypeError, RowError) as error:
        raise ValueError("it is no description") from error
    return body


def say_full_disk(error: BaseException, path: Path) -> None:
    """Raise the line for a person, a UserError, if this error says that nothing more can be written at `path`."""
    reason = full_disk(error, path)
    if reason is not None:
        raise UserError(reason) from error


def _say_unwritable(error: BaseException, path: Path, temporary: Path) -> None:
    """say_full_disk, and the same for a place that is none: below a file, too long a name, a link to nowhere."""
    say_full_disk(error, path)
    if isinstance(error, OSError) and error.errno in _OF_THE_PATH and isinstance(error.filename, str | os.PathLike):
        named = Path(error.filename)
        if named in (path, temporary, *path.parents) or named.is_relative_to(temporary):
            raise UserError(
                f"{path}: cannot be written ({error.strerror}). Is each folder above it one, and the name a plain one?"
            ) from error


def full_disk(error: BaseException, path: Path) -> str | None:
    """The line for a person if this error says that nothing more can be written at `path`, else None.

    Libraries wrap the system's error in their own, so the chain of causes is searched, and the words of the
    C library for ENOSPC and EDQUOT, which is all that some of them keep.
    """
    seen: BaseException | None = error
    while seen is not None:
        number = getattr(seen, "errno", None)
        text = str(seen)
        if number in (errno.ENOSPC, errno.EDQUOT) or any(
            os.strerror(code) in text for code in (errno.ENOSPC, errno.EDQUOT)
        ):
            return (
                f"{path}: the disk is full; nothing half-written was kept. Free space there{spare(path)} and run again."
            )
        if number == errno.EFBIG or os.strerror(errno.EFBIG) in text:
            return f"{path}: may not grow further (`ulimit -f`); nothing half-written was kept. Raise the limit."
        if number in (errno.EACCES, errno.EROFS, errno.EPERM):
            return f"{path}: cannot be written ({os.strerror(number)}). Choose a place that you may write."
        seen = seen.__cause__ or seen.__context__
    return None


def spare(path: Path) -> str:
    """What nobody needs of the workspace that `path` is in, with its size, largest first; "" if there is nothing.

    That is what costs only time to make again, and copies: the cache, an older ledger, files that were set aside.
    """
    at = path.absolute()
    root = next((folder for folder in (at, *at.parents) if (folder / WORKSPACE_LOCK).exists()), None)
    if root is None:
        return ""
    sizes = {"cache/": _size_bytes(root / "cache"), "ledger.duckdb.old": _size_bytes(root / "ledger.duckdb.old")}
    with suppress(OSError):
        sizes["*.damaged"] = sum(_size_bytes(one) for one in root.rglob("*.damaged"))
    named = [
        f"{name}: {size / 1e6:,.0f} MB" for name, size in sorted(sizes.items(), key=lambda one: -one[1]) if size >= 1e6
    ]
    return f" ({root} can do without {', '.join(named)})" if named else ""


def _size_bytes(path: Path) -> int:
    """Of a file or a folder; of what cannot be looked at, 0."""
    try:
        return sum(one.stat().st_size for one in ([path] if path.is_file() else path.rglob("*")) if one.is_file())
    except OSError:
        return 0


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_temporaries(folder: Path) -> int:
    """Remove what killed writers left below a folder, files and whole folders; returns how many.

    A folder that was being replaced, and has no successor, is put back first.
    """
    stale = [path for path in folder.rglob(f".*{TEMPORARY_SUFFIX}") if _is_stale(path.name)]
    for path in stale:
        if (match := _REPLACED.fullmatch(path.name)) and not os.path.lexists(path.with_name(match[1])):
            with suppress(OSError):
                path.rename(path.with_name(match[1]))
            continue
        _remove(path)
    return len(stale)


def _remove(path: Path) -> None:
    """A file, a link or a whole folder, as far as it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_stale(name: str) -> bool:
    """True for a temporary of ours, unless its writer is at work: a dry run fills pools beside a coordinator."""
    match, replaced = _TEMPORARY.fullmatch(name), _REPLACED.fullmatch(name)
    if match is None and replaced is None:
        return False
    number = match[1] if match else replaced[2] if replaced else ""
    try:
        running = Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return True
    return int(number) == os.getpid() or b"draftmill" not in running


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def sync_path(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
