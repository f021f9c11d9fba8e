"""Rows by their number are those that the readers give, in every kind of file, and a long one is no likelier."""

from __future__ import annotations

import csv
import gzip
import io
import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import line_picks
from corpus.errors import UserError
from corpus.line_picks import count_lines, line_blocks, pick_lines
from corpus.pieces import BadRow, SourceFile
from corpus.row_picks import Held, Item, Place, Row, RowFiles
from corpus.sampling import Reservoir

ROWS = [{"prompt": f"question {i} " + "x" * (i % 7) * 40, "n": str(i)} for i in range(50)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write(path: Path) -> Path:
    """The rows as a file of the kind that its name says."""
    name = path.name
    if name.endswith(".parquet"):
        pl.DataFrame(ROWS).write_parquet(path, row_group_size=8)
    elif name.endswith(".arrow"):
        table = pa.Table.from_pylist(ROWS)
        with pa.ipc.new_stream(path, table.schema) as out:
            out.write_table(table, max_chunksize=7)
    elif name.endswith(".csv"):
        text = io.StringIO()
        writer = csv.DictWriter(text, ["prompt", "n"])
        writer.writeheader()
        writer.writerows(ROWS)
        path.write_text(text.getvalue())
    elif name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(LINES))
    elif name.endswith(".jsonl.zst"):
        path.write_bytes(pa.compress(LINES, "zstd", asbytes=True))
    elif name == "lines.json":
        path.write_bytes(LINES)
    elif name.endswith(".json"):
        path.write_text(json.dumps(ROWS))
    else:
        path.write_bytes(LINES)
    return path


def files(*paths: Path, skip_bad: bool = False) -> RowFiles:
    return RowFiles([SourceFile(p.name, partial(p.open, "rb")) for p in paths], "audit", skip_bad=skip_bad)


def picked(found: RowFiles, size: int, seed: int) -> tuple[int, list[Row]]:
    reservoir = Reservoir[Item](size, np.random.default_rng(seed))
    for number in range(len(found.files)):
        found.offer(number, reservoir)
    return reservoir.seen, found.fetch(reservoir.held, lambda _: None)


KINDS = ("a.jsonl", "a.ndjson", "a.jsonl.gz", "a.jsonl.zst", "a.json", "lines.json", "a.csv", "a.parquet", "a.arrow")


@pytest.mark.parametrize("name", KINDS)
def test_rows_are_those_of_their_numbers(name: str, tmp_path: Path) -> None:
    found = files(write(tmp_path / name))
    population, rows = picked(found, 1000, 0)
    assert population == 50
    assert {row.row: row.value for row in rows} == dict(enumerate(ROWS))
    population, some = picked(found, 12, 3)
    assert (population, len(some)) == (50, 12)
    assert all(row.value == ROWS[row.row] for row in some)
    assert len({row.row for row in some}) == 12
    assert [row.row for row in picked(found, 12, 3)[1]] == [row.row for row in some]
    assert {row.row for row in picked(found, 12, 4)[1]} != {row.row for row in some}


def test_of_a_table_only_the_columns_that_are_wanted_are_read(tmp_path: Path) -> None:
    found = files(write(tmp_path / "a.parquet"))
    rows = found.fetch([Place(0, 9), Place(0, 3)], lambda _: frozenset({"n", "other"}))
    assert [(row.row, row.value) for row in rows] == [(3, {"n": "3"}), (9, {"n": "9"})]


@given(lines=st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b".")), max_size=30), ended=st.booleans())
def test_lines_are_found_wherever_blocks_end(lines: list[bytes], ended: bool) -> None:
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    expected = text.split(b"\n")
    expected = expected[:-1] if not expected[-1] else expected
    with patch.object(line_picks, "BLOCK_BYTES", 16):
        ends = count_lines(io.BytesIO(text))
        assert ends.lines == len(expected)
        found = list(pick_lines(io.BytesIO(text), ends, range(ends.lines)))
        assert [line.removesuffix(b"\n") for line in found] == expected
        streamed = [block.line(i) for block in line_blocks(io.BytesIO(text)) for i in range(len(block))]
        assert [line.removesuffix(b"\n") for line in streamed] == expected
        assert [line.removesuffix(b"\n") for line in pick_lines(io.BytesIO(text), ends, range(0, ends.lines, 3))] == (
            expected[::3]
        )


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_long_line_is_as_likely_as_a_short_one(name: str, tmp_path: Path) -> None:
    rows = [{"prompt": "x" * (20_000 if i % 4 == 0 else 10), "n": i} for i in range(200)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / name).write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
    found = files(tmp_path / name)
    long = 0
    for seed in range(100):
        long += sum(_n(row) % 4 == 0 for row in picked(found, 20, seed)[1])
    assert abs(long / 2000 - 0.25) < 4.5 * (0.25 * 0.75 / 2000) ** 0.5


def _n(row: Row) -> int:
    assert isinstance(row.value, dict)
    return int(row.value["n"])


def test_bad_rows_are_rows_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "one"}\n\nnot json\n[1]\n{"prompt": "\\ud800"}\n{"prompt": "\xff"}')
    population, rows = picked(files(path), 100, 0)
    assert population == 6
    reasons = {row.row: row.value.reason for row in rows if isinstance(row.value, BadRow)}
    assert reasons == {1: "blank_line", 2: "not_json", 3: "not_json", 5: "not_utf8"}
    assert sorted(row.row for row in rows) == list(range(6))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow", "a.csv.gz"])
def test_a_file_that_is_cut_off_is_an_error_or_a_bad_row(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    many: list[dict[str, Any]] = [
        {"prompt": np.random.default_rng(i).bytes(300).hex(), "n": str(i)} for i in range(400)
    ]
    with (
        patch(f"{__name__}.ROWS", many),
        patch(f"{__name__}.LINES", "".join(json.dumps(row) + "\n" for row in many).encode()),
    ):
        if name.endswith(".csv.gz"):
            path.write_bytes(gzip.compress(write(tmp_path / "a.csv").read_bytes()))
        else:
            write(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"audit: {name}: .*--skip-bad") as said:
        picked(files(path), 5, 0)
    assert "\n" not in str(said.value)
    population, rows = picked(files(path, skip_bad=True), 1000, 0)
    assert population >= 1
    assert [row.value.reason for row in rows if isinstance(row.value, BadRow)] == ["unreadable"]


def test_a_damaged_row_group_is_an_error_or_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"prompt": [np.random.default_rng(i).bytes(50).hex() for i in range(400)]}).write_parquet(
        path, row_group_size=100, compression="uncompressed"
    )
    group = pq.read_metadata(path).row_group(2).column(0)
    data = bytearray(path.read_bytes())
    data[group.data_page_offset : group.data_page_offset + 30] = b"\xff" * 30
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a\.parquet: .*--skip-bad"):
        picked(files(path), 400, 0)
    population, rows = picked(files(path, skip_bad=True), 400, 0)
    assert (population, len(rows)) == (400, 400)
    assert {row.row for row in rows if isinstance(row.value, dict)} >= set(range(200))
    assert {row.row for row in rows if isinstance(row.value, BadRow)} >= set(range(200, 300))


def test_places_are_held_for_files_that_can_be_counted(tmp_path: Path) -> None:
    for name, kind in (("a.jsonl", Place), ("a.parquet", Place), ("a.arrow", Place), ("a.jsonl.gz", Held)):
        reservoir = Reservoir[Item](5, np.random.default_rng(0))
        files(write(tmp_path / name)).offer(0, reservoir)
        assert {type(item) for item in reservoir.held} == {kind}
