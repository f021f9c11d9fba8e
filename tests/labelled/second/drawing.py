"""How rows of the second set are drawn. A package lies in one half, by a hash of its name."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from .mended import Mended
from .reading import Read, Row, known

SEED = 9
LONGEST = 6000
"""Characters of a row's messages; longer ones are left out."""
PER_FILE, PER_PACKAGE = 40, 90

ELSEWHERE = Path(__file__).with_name("elsewhere.json")


class Case(NamedTuple):
    """A row before the draw; `row` is its place in the file, or among the files where each is one row."""

    category: str
    file: Path
    row: int
    messages: list[Row]
    tools: list[Row] | None = None


class Package(NamedTuple):
    """A package whose reader yields all of its rows, and how many of them are drawn."""

    version: str
    licence: str
    read: Callable[[Path], Iterator[Case]]
    limit: int = PER_PACKAGE


class Source(NamedTuple):
    """A file (or folder) of a package, the category that it is of, and how many of its rows are drawn.

    Two sources of one file are written differently ("a/./b"): what is written seeds the draw.
    """

    category: str
    file: str
    limit: int
    read: Read


class Sources(NamedTuple):
    """A package whose files are drawn one by one."""

    version: str
    licence: str
    sources: list[Source]


def _mends(mended: Mended) -> dict[tuple[str, str, int], str | None]:
    return {
        (package, file, row): category
        for package, files in mended.items()
        for file, some in files.items()
        for category, _, rows in some
        for row in map(int, rows.split())
    }


def _row(name: str, package: Package | Sources, case: Case, file: str, category: str) -> Row:
    return {
        "category": category, "package": name, "version": package.version, "file": file, "row": case.row,
        "licence": package.licence, "half": "held_out" if hashlib.sha256(name.encode()).digest()[0] % 2 else "develop",
        "messages": case.messages, "tools": case.tools,
    }  # fmt: skip


def place(row: Row) -> tuple[str, str, int]:
    return row["package"], row["file"], row["row"]


def plain(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower())


def draw_by_package(folder: Path, packages: dict[str, Package], mended: Mended) -> list[Row]:
    """At most PER_FILE rows of a file, then `limit` of a package; of rows that ask the same, the first stands."""
    mends, seen, drawn = _mends(mended), set(), []
    for name, package in packages.items():
        files: dict[str, list[Case]] = {}
        for case in package.read(folder / name):
            texts = [one["content"] for one in case.messages]
            if not known(case.messages) or not known(case.tools) or not all(map(str.strip, texts)):
                continue
            key = plain(texts[-1]) + (texts[0][:80] if len(texts) > 1 else "")
            if len(json.dumps(case.messages, ensure_ascii=False)) <= LONGEST and key not in seen:
                seen.add(key)
                files.setdefault(case.file.relative_to(folder / name).as_posix(), []).append(case)
        some = []
        for file, cases in sorted(files.items()):
            fewer = cases if len(cases) <= PER_FILE else Random(f"{SEED} {name} {file}").sample(cases, PER_FILE)
            some += [(file, case) for case in fewer]
        if len(some) > package.limit:
            some = Random(f"{SEED} {name}").sample(some, package.limit)
        for file, case in some:
            category = mends.get((name, file, case.row), case.category)
            if category:
                drawn.append(_row(name, package, case, file, category))
    return sorted(drawn, key=place)


def digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:14]


def draw_by_source(folder: Path, packages: dict[str, Sources], mended: Mended, elsewhere: str) -> list[Row]:
    """At most `limit` rows of each source; no text twice, none of that list of ELSEWHERE."""
    mends, seen, drawn = _mends(mended), set(), []
    others = set(json.loads(ELSEWHERE.read_text())[elsewhere]) if elsewhere else set()
    for name, package in packages.items():
        for source in package.sources:
            file = posixpath.normpath(source.file)
            cases = [Case(source.category, Path(file), *one) for one in source.read(folder / name / source.file)]
            fitting = []
            for case in cases:
                texts = [one["content"] for one in case.messages]
                last = plain(texts[-1]).strip()
                again = len(last) >= 20 and {digest(last[:120]), digest(last[-120:])} & others
                if texts[-1].strip() and len("\n".join(texts)) <= LONGEST and not again:
                    fitting.append((case, (last or texts[-1])[:500]))
            Random(f"{name}/{source.file}/{source.category}").shuffle(fitting)
            room = source.limit
            for case, key in fitting:
                category = mends.get((name, file, case.row), case.category)
                if room and category and key not in seen:
                    room -= 1
                    seen.add(key)
                    drawn.append(_row(name, package, case, file, category))
    return sorted(drawn, key=place)
