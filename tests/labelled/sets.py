"""The labelled sets as files: their rows read, and written so that the same rows are the same bytes."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

HERE = Path(__file__).parent
FIRST, SECOND, THIRD = (
    HERE / name for name in ("prompts.jsonl.gz", "second-prompts.jsonl.gz", "third-prompts.jsonl.gz")
)
SETS = (FIRST, SECOND, THIRD)
WRITTEN = HERE / "written.jsonl.gz"
"""Prompts written for the purpose, as README.md says: category and messages."""
UNLABELLED = HERE / "unlabelled.jsonl.gz"
"""Prompts that nobody labelled, with a model's opinion: see teach.py."""


def labelled_rows(paths: Iterable[Path] = SETS) -> list[Row]:
    """Every prompt with its category, half, package and the rest that README.md names."""
    return [row for path in paths for _, row in json_lines(path)]


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(number, value) of each line that holds one."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    for index, line in enumerate(text.split("\n")):  # not splitlines(): strings hold other separators of lines
        if line.strip():
            yield index, json.loads(line)


def write_set(path: Path, found: dict[str, Row]) -> None:
    """Rows by id, in the order of their ids."""
    write_lines(path, [row for _, row in sorted(found.items())])


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Rows as JSON lines, the same bytes whenever they are the same."""
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", compresslevel=9, mtime=0) as file:
        for row in rows:
            file.write((json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    path.write_bytes(data.getvalue())
