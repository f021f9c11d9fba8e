"""Where a source lies: its files, in a fixed order, at a resolved revision.

Local paths are resolved against the manifest's folder; their revision is a digest of their bytes. What lies on the
Hub is resolved to a commit (see hub). Files are read in an order fixed by a salt, so that the first chunk of a
sorted dataset is not all of one kind.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, cast

from corpus.artefacts import sha256_file, write_text
from corpus.canonical import digest
from corpus.errors import RowError, UserError
from corpus.hub import HF, find_on_hub, hub_file
from corpus.manifest import Source
from corpus.pieces import COMPRESSIONS, SUFFIXES, SourceFile, file_kind
from corpus.saved import is_beside_rows, read_saved

ORDER_SALT = "draftmill file order 1"


@dataclass(frozen=True)
class ResolvedSource:
    """A source at one revision: files in reading order, and what its card says."""

    source: Source
    revision: str
    files: tuple[SourceFile, ...]
    license: str | None
    rows: int | None
    """Rows of the split, where a card says so."""
    split: str | None = None

    @property
    def streamed(self) -> bool:
        """True if it is read from the Hub, as deep as it is needed."""
        return _on_hub(self.source)


def resolve_source(source: Source, base: Path, digests: FileDigests) -> ResolvedSource:
    """Find a source's files.

    Raises:
        UserError: nothing is there, or the Hub refuses.
    """
    if not _on_hub(source):
        return _resolve_local(source, base, digests)
    listing = find_on_hub(source, digests.path.with_name("hub.json"))
    files = tuple(hub_file(source, listing, name) for name in in_reading_order(listing.names))
    split = source.split if source.dataset else None
    return ResolvedSource(source, listing.commit, files, source.license or listing.license, listing.rows, split)


def _on_hub(source: Source) -> bool:
    return source.path is None or source.path.startswith(HF)


class FileDigests:
    """SHA-256 of files, remembered by size and time so that unchanged ones are not read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, list[Any]] = {}
        self._changed = False
        try:
            body = json.loads(path.read_text())
            if body["of"] == digest("digests", body["files"]):  # a changed digit would name another revision
                self._known = body["files"]
        except (OSError, ValueError, KeyError, TypeError, RowError):
            pass  # it costs only time to make again

    def sha256(self, file: Path) -> str:
        """Hex digest of the file's bytes."""
        stat = file.stat()
        key = os.fsencode(file.resolve()).decode("utf-8", "backslashreplace")
        mark = [stat.st_size, stat.st_mtime_ns]
        known = self._known.get(key)
        if known and known[:2] == mark:
            return str(known[2])
        value = sha256_file(file)
        self._known[key] = [*mark, value]
        self._changed = True
        return value

    def remember(self, file: Path, sha256: str) -> None:
        """Note the digest of a file that was just written."""
        stat = file.stat()
        key = os.fsencode(file.resolve()).decode("utf-8", "backslashreplace")
        self._known[key] = [stat.st_size, stat.st_mtime_ns, sha256]
        self._changed = True

    def is_whole(self, file: Path, sha256: str) -> bool:
        """True if the file is there and has this digest."""
        return file.is_file() and self.sha256(file) == sha256

    def save(self) -> None:
        """Write what was learnt."""
        if self._changed:
            write_text(self.path, json.dumps({"of": digest("digests", self._known), "files": self._known}))
            self._changed = False


def in_reading_order(names: list[str]) -> list[str]:
    """Names sorted by their salted hash: fixed, and unlike the upstream order."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{ORDER_SALT}:{name}".encode()).hexdigest())


def _resolve_local(source: Source, base: Path, digests: FileDigests) -> ResolvedSource:
    pattern = base / cast(str, source.path)
    at = f"source {source.name}"
    try:
        saved = read_saved(pattern, source.split, f"{at}: path {source.path}") if pattern.is_dir() else None
        paths, root = (saved.files, pattern) if saved else _local_paths(pattern, base, cast(str, source.path))
    except (OSError, ValueError) as error:  # a name that no system takes: too long, or with a null in it
        first = getattr(error, "strerror", None) or error
        raise UserError(f"{at}: path {ascii(source.path)[:200]}: cannot be looked at ({first}).") from error
    if not paths:
        known = ", ".join(SUFFIXES)
        raise UserError(f"{at}: path {source.path}: no file there ({pattern}); {known} ({', '.join(COMPRESSIONS)}).")
    by_name = {path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name: path for path in paths}
    try:
        marks = {name: digests.sha256(path) for name, path in by_name.items()}
    except OSError as error:
        raise UserError(f"{at}: {error.filename}: cannot be read ({error.strerror}).") from error
    revision = hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:40]
    files = tuple(SourceFile(name, partial(_open_local, by_name[name])) for name in in_reading_order(list(by_name)))
    licence = source.license or (saved.license if saved else None)
    return ResolvedSource(source, revision, files, licence, None, saved.split if saved else None)


def _local_paths(pattern: Path, base: Path, written: str) -> tuple[list[Path], Path]:
    """Regular files that a path means (a pipe would be waited for), and the folder that their names start at."""
    if pattern.is_dir():
        found = (path for path in pattern.rglob("*") if path.is_file() and file_kind(path.name))
        return sorted(path for path in found if not is_beside_rows(path)), pattern
    if pattern.exists():
        return [pattern] if pattern.is_file() else [], pattern.parent
    names = glob.glob(written, root_dir=base, recursive=True)  # noqa: PTH207
    root = base.joinpath(*takewhile(lambda part: not glob.has_magic(part), Path(written).parts))
    return sorted(path for path in (base / name for name in names) if path.is_file()), root


def _open_local(path: Path) -> IO[bytes]:
    return path.open("rb")
