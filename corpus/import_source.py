"""Where an imported corpus lies: what a person says of it, its files as one source, and whether its format was misread.

Several paths are one corpus, whose identity knows neither their order nor how they are written: what its files are
called starts at the folder that holds them all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from corpus.chunks import RECOGNISED_ROWS
from corpus.errors import RowError, UserError
from corpus.formats import recognise_rows
from corpus.hub import HF
from corpus.manifest import Source
from corpus.pieces import Reading, SourceFile
from corpus.readers import read_pieces
from corpus.sources import FileDigests, ResolvedSource, in_reading_order, resolve_source


@dataclass(frozen=True)
class ImportOptions:
    """What a person says of a corpus. Paths are relative to where they say it, and are one corpus together."""

    paths: tuple[str, ...]
    model: str
    revision: str | None = None
    name: str | None = None
    license: str | None = None
    split: str = "train"
    format: str = "auto"
    where: str | None = None
    limit: int | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    skip_bad: bool = False


def resolve_corpus(options: ImportOptions, base: Path, digests: FileDigests) -> ResolvedSource:
    """All paths as one source.

    Raises:
        UserError: nothing is there, an option does not fit, or several paths are not all on this machine.
    """
    hub = next((path for path in options.paths if path.startswith(HF)), None)
    if hub is not None and len(options.paths) > 1:
        raise UserError(f"import: {hub}: is on the Hub, where one PATH is read at a time. Import it alone.")
    each = [resolve_source(_source(options, path), base, digests) for path in options.paths]
    if len(each) == 1:
        return each[0]
    places = {_place(file): file for one in each for file in one.files}
    top = Path(os.path.commonpath([place.parent for place in places]))
    named = {place.relative_to(top).as_posix(): (place, file) for place, file in places.items()}
    marks = {name: digests.sha256(place) for name, (place, _) in named.items()}
    here = base.resolve()
    shown = top.relative_to(here).as_posix() if top.is_relative_to(here) else str(top)
    source = _source(options, shown).model_copy(update={"name": options.name or _name_of(str(top))})
    if len(places) == 1:
        (name,) = named
        source = source.model_copy(update={"path": name if shown == "." else f"{shown}/{name}"})
    licences = {one.license for one in each}
    return ResolvedSource(
        source,
        _revision(marks),
        tuple(replace(named[name][1], name=name) for name in in_reading_order(list(named))),
        licences.pop() if len(licences) == 1 else None,
        None,
    )


def misread(resolved: ResolvedSource, at: str) -> str | None:
    """A line that says so where the rows are of another shape than was said; None where they are not."""
    source = resolved.source
    if source.format == "auto":
        return None
    for file in resolved.files:
        reading = Reading(source.name, source.where, skip_bad=True, piece_rows=RECOGNISED_ROWS)
        with closing(read_pieces(file, reading)) as pieces:
            rows = next((piece.rows for piece in pieces if piece.rows), [])[:RECOGNISED_ROWS]
        if rows:
            break
    else:
        return None
    try:
        form = recognise_rows(list(rows[0]), rows)
    except RowError:
        return None
    if form == source.format:
        return None
    columns = ascii(", ".join(sorted({name for row in rows for name in row})[:8]))[1:-1]
    shape = form if isinstance(form, str) else "rows with " + ", ".join(f"{k} in {v}" for k, v in form.fields.items())
    return (
        f"{at} as --format {source.format} reads them; nothing was entered. Their columns are {columns}, "
        f"which --format auto would read as {shape}."
    )


def _source(options: ImportOptions, path: str) -> Source:
    said = {
        "name": options.name or _name_of(path),
        "path": path,
        **{key: getattr(options, key) for key in ("split", "format", "where", "limit", "license")},
    }
    try:
        return Source.model_validate({**said, "category": "classify", "keep_original": True})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else "path"
        option = "PATH" if key == "path" else f"--{key}"
        raise UserError(f"import: {option} is {ascii(said.get(key))[:60]}: {first['msg']}.") from error


def _place(file: SourceFile) -> Path:
    """Where a local file lies, without links in its folders: one file is one file however it is written."""
    with file.open() as stream:
        path = Path(stream.name)
    return path.parent.resolve() / path.name


def _revision(marks: dict[str, str]) -> str:
    """The revision of local files by the digest of each, as corpus.sources makes it of one path."""
    return hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:40]


def _name_of(path: str) -> str:
    """A label from a path: its last part that is more than endings and magic, without them."""
    for part in reversed(Path(path).parts):
        stem = re.split(r"\.(?:jsonl?|ndjson|parquet|arrow|csv)\b", part)[0]
        label = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:80]
        if label:
            return label
    return "imported"
