"""Where a source lies: its files, in a fixed order, at a resolved revision.

Local paths are resolved against the manifest's folder; their revision is a digest of their bytes. What lies on the
Hub is resolved to a commit (see hub). Files are read in an order fixed by a salt, so that the first chunk of a
sorted dataset is not all of one kind.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import IO, Any, cast

from corpus.artefacts import sha256_file, write_text
from corpus.canonical import digest
from corpus.errors import RowError, UserError
from corpus.hub import HF, find_on_hub, hub_file
from corpus.manifest import Source
from corpus.pieces import COMPRESSIONS, SUFFIXES, SourceFile, called, file_kind
from corpus.saved import is_beside_rows, read_saved
from corpus.suggestions import nearest_file

ORDER_SALT = "draftmill file order 1"
LISTED = 10_000
"""Entries of a folder among which a near name is looked for."""


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
        key = _key(file)
        mark = [stat.st_size, stat.st_mtime_ns]
        known = self._known.get(key)
        if known and known[:2] == mark:
            return str(known[2])
        value = sha256_file(file)
        self._known[key] = [*mark, value]
        self._changed = True
        return value

    def is_changed(self, file: Path) -> bool:
        """True if the file is not the one whose digest is known here; False for one that is gone: opening says it."""
        try:
            stat = file.stat()
        except OSError:
            return False
        return self._known[_key(file)][:2] != [stat.st_size, stat.st_mtime_ns]

    def remember(self, file: Path, sha256: str) -> None:
        """Note the digest of a file that was just written."""
        stat = file.stat()
        self._known[_key(file)] = [stat.st_size, stat.st_mtime_ns, sha256]
        self._changed = True

    def is_whole(self, file: Path, sha256: str) -> bool:
        """True if the file is there and has this digest."""
        return file.is_file() and self.sha256(file) == sha256

    def save(self) -> None:
        """Write what was learnt."""
        if self._changed:
            write_text(self.path, json.dumps({"of": digest("digests", self._known), "files": self._known}))
            self._changed = False


def _key(file: Path) -> str:
    return os.fsencode(file.resolve()).decode("utf-8", "backslashreplace")


def in_reading_order(names: list[str]) -> list[str]:
    """Names sorted by their salted hash: fixed, and unlike the upstream order."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{ORDER_SALT}:{name}".encode()).hexdigest())


def _resolve_local(source: Source, base: Path, digests: FileDigests) -> ResolvedSource:
    pattern = base / cast(str, source.path)
    at = called(source.name)
    try:
        saved = read_saved(pattern, source.split, f"{at}: path {source.path}") if pattern.is_dir() else None
        paths, root = (saved.files, pattern) if saved else _local_paths(pattern, base, cast(str, source.path))
    except (OSError, ValueError) as error:  # a name that no system takes: too long, or with a null in it
        first = getattr(error, "strerror", None) or error
        raise UserError(f"{at}: path {ascii(source.path)[:200]}: cannot be looked at ({first}).") from error
    if not paths:
        known = f"{', '.join(SUFFIXES)}, each also with {' or '.join(COMPRESSIONS)}"
        raise UserError(
            f"{at}: path {pattern.absolute()}: no file there{_nothing_there(pattern, source)} Read are {known}."
        )
    by_name = {path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name: path for path in paths}
    for name in by_name:
        if name.encode("utf-8", "replace").decode() != name:
            raise UserError(f"{at}: the file name {name!a} is not UTF-8 and could not be recorded. Rename the file.")
    try:
        marks = {name: digests.sha256(path) for name, path in by_name.items()}
    except OSError as error:
        raise UserError(f"{at}: {error.filename}: cannot be read ({error.strerror}).") from error
    revision = hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:40]
    files = tuple(
        SourceFile(name, partial(_open_local, by_name[name]), changed=partial(digests.is_changed, by_name[name]))
        for name in in_reading_order(list(by_name))
    )
    licence = source.license or (saved.license if saved else None)
    return ResolvedSource(source, revision, files, licence, None, saved.split if saved else None)


def _local_paths(pattern: Path, base: Path, written: str) -> tuple[list[Path], Path]:
    """Regular files that a path means (a pipe would be waited for), and the folder that their names start at."""
    if pattern.is_dir():
        found = (path for path in pattern.rglob("*") if path.is_file() and file_kind(path.name))
        return sorted(path for path in found if not is_beside_rows(path)), pattern
    if pattern.exists():
        return [pattern] if pattern.is_file() else [], pattern.parent
    root = base.joinpath(*takewhile(lambda part: not glob.has_magic(part), Path(written).parts))
    if "**" in Path(written).parts:
        matching: Iterator[Path] = _below(
            root, list(dropwhile(lambda part: not glob.has_magic(part), Path(written).parts))
        )
    else:
        matching = (base / name for name in glob.glob(written, root_dir=base))  # noqa: PTH207
    return sorted(path for path in matching if path.is_file()), root


def _below(root: Path, parts: list[str]) -> Iterator[Path]:
    """What a pattern with `**` matches. Links to folders are followed, but never round in a circle, as glob goes."""
    shown = r"(?!\.)"  # a pattern means no hidden file unless it says the dot
    any_folders = f"(?:{shown}[^/]+/)*"
    last = [*parts, "*"] if parts[-1] == "**" else parts
    texts = [any_folders if p == "**" else f"{'' if p[0] == '.' else shown}{_of_part(p)}/" for p in last]
    pattern = re.compile("".join(texts), re.DOTALL)
    inside: dict[str, set[tuple[int, int]]] = {str(root): {_inode(root)}}
    for folder, folders, names in os.walk(root, followlinks=True):
        above = inside.pop(folder)
        marks = {name: _inode(Path(folder, name)) for name in folders}
        folders[:] = [name for name in folders if marks[name] not in above]
        inside |= {os.path.join(folder, name): above | {marks[name]} for name in folders}  # noqa: PTH118
        for path in (Path(folder, name) for name in names):
            if pattern.fullmatch(f"{path.relative_to(root).as_posix()}/"):
                yield path


def _of_part(part: str) -> str:
    """One part of a pattern as a regular expression that stays within the part."""
    return fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z").replace(".*", "[^/]*")


def _inode(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _nothing_there(pattern: Path, source: Source) -> str:
    """Why a path means no file, as the end of a sentence, and the near name that its folder has."""
    if pattern.is_dir():
        return " that is read: the folder and those below hold none."
    if pattern.exists():
        return ": it is no regular file."
    if pattern.is_symlink():
        return ": it is a link that leads nowhere."
    if glob.has_magic(cast(str, source.path)):
        return ": nothing matches."
    missing = pattern
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    if not missing.parent.is_dir():
        return f": {missing.parent.name} is a file."
    names: list[str] = []
    with suppress(OSError), os.scandir(missing.parent) as entries:
        names = [e.name for e in islice(entries, LISTED) if e.is_dir() or (missing == pattern and file_kind(e.name))]
    near = nearest_file(missing.name, names)
    what = "." if missing == pattern else f": {missing.parent.name or missing.parent} has no {missing.name}."
    return f"{what} Did you mean {near}?" if near else what


def _open_local(path: Path) -> IO[bytes]:
    return path.open("rb")
