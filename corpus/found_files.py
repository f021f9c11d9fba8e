"""The files that a person means who names a corpus: paths, a saved dataset, a folder of draftmill's own, or the Hub.

Found as an import finds them, but known by size and time and not by their bytes: to look at a corpus of gigabytes it
is not read twice. Nothing is written, and no workspace is needed. A path that is not there and reads as owner/name is
asked of the Hub.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from corpus.errors import UserError
from corpus.hub import HF
from corpus.import_source import ImportOptions, resolve_corpus
from corpus.manifest import Source
from corpus.pieces import COMPRESSIONS, SUFFIXES, SourceFile, file_kind
from corpus.sources import FileDigests, ResolvedSource, resolve_source
from corpus.workspace import is_workspace

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SPEAKER = re.compile(r"\A(?:source [^:]{1,200}|import): ")
DESCRIPTIONS = frozenset({"pool.json", "candidates.json"})
"""What draftmill lays beside its own parquet files."""


@dataclass(frozen=True)
class Place:
    """Where a corpus is said to lie. Paths are relative to where a person says it."""

    paths: tuple[str, ...]
    split: str = "train"
    config: str | None = None
    revision: str = "main"


@dataclass(frozen=True)
class FoundFiles:
    """Files in the order of their names, and if they are on the Hub."""

    files: tuple[SourceFile, ...]
    on_hub: bool
    folder: Path
    """The folder that was named, or that the first file lies in."""


class _Marks(FileDigests):
    """Files known by size and time: enough to see that one changes while it is read."""

    def sha256(self, file: Path) -> str:
        stat = file.stat()
        self.remember(file, f"{stat.st_size}-{stat.st_mtime_ns}")
        return f"{stat.st_size}-{stat.st_mtime_ns}"

    def save(self) -> None:
        """Keep nothing."""


def find_files(place: Place, base: Path, speaker: str) -> FoundFiles:
    """Every file of a corpus. `speaker` begins a line for a person.

    Raises:
        UserError: nothing is there that is read, or the Hub refuses.
    """
    named = base / place.paths[0]
    if len(place.paths) == 1 and named.is_dir() and is_workspace(named):
        raise UserError(
            f"{speaker}: {place.paths[0]}: is a workspace; name its responses, or a folder below its pools. Of its "
            "builds `draftmill sql 'FROM composition'` knows the categories."
        )
    with tempfile.TemporaryDirectory() as folder:  # what the Hub said is remembered beside the marks
        try:
            found = _resolve(place, base, _Marks(Path(folder) / "marks.json"), speaker)
        except UserError as error:
            raise UserError(_SPEAKER.sub(f"{speaker}: ", str(error))) from error
    files = tuple(
        sorted((file for file in found.files if Path(file.name).name not in DESCRIPTIONS), key=lambda file: file.name)
    )
    unread = next((file.name for file in files if file_kind(file.name) is None), None)
    if unread is not None:
        raise UserError(
            f"{speaker}: {unread}: files of this kind are not read. Read are {', '.join(SUFFIXES)}, each also with "
            f"{' or '.join(COMPRESSIONS)}: rename it to what it holds (--shape says what its rows look like)."
        )
    if not files:
        raise UserError(f"{speaker}: {place.paths[0]}: no file of rows there, only descriptions of them.")
    return FoundFiles(files, found.streamed, named if named.is_dir() else named.parent)


def _resolve(place: Place, base: Path, marks: _Marks, speaker: str) -> ResolvedSource:
    hub = next((path for path in place.paths if _is_hub_id(path, base)), None)
    if hub is None:
        return resolve_corpus(ImportOptions(place.paths, model="", split=place.split), base, marks)
    if len(place.paths) > 1:
        raise UserError(f"{speaker}: {hub}: nothing is there, and of datasets on the Hub one is read at a time.")
    said = {"name": "corpus", "dataset": hub, "split": place.split, "config": place.config, "revision": place.revision}
    try:
        source = Source.model_validate(said)
    except ValidationError as error:
        raise UserError(f"{speaker}: {hub}: no file and no dataset's name ({error.errors()[0]['msg']}).") from error
    try:
        return resolve_source(source, base, marks)
    except UserError as error:
        why = _SPEAKER.sub("", str(error))
        raise UserError(f"{speaker}: {hub}: no such file or folder here, so the Hub was asked: {why}") from error


def _is_hub_id(path: str, base: Path) -> bool:
    if path.startswith(HF) or not _HUB_ID.fullmatch(path) or file_kind(path):
        return False
    return not (base / path).exists() and not (base / path).parent.exists()


def unwatched(files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
    """The files, to be read as they are: whoever looks at a corpus that grows counts what there was."""
    return tuple(replace(file, changed=None) for file in files)


def grown(files: Sequence[SourceFile]) -> list[str]:
    """Names of files that changed since they were found."""
    return [file.name for file in files if file.changed is not None and file.changed()]
