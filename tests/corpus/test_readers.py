"""Files to rows: every kind that is read, in every compression, and each way in which a file can be broken."""

from __future__ import annotations

import gzip
import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from corpus.errors import UserError
from corpus.readers import Reading, SourceFile, file_kind, read_pieces

ROWS = [{"prompt": f"question {i}", "lang": "en" if i % 2 else "de", "n": i} for i in range(6)]


def encoded(kind: str, rows: list[dict[str, Any]]) -> bytes:
    if kind == "json":
        return json.dumps(rows).encode()
    if kind in ("jsonl", "ndjson"):
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    buffer = io.BytesIO()
    frame = pl.DataFrame(rows)
    if kind == "parquet":
        frame.write_parquet(buffer)
    else:
        frame.write_csv(buffer)
    return buffer.getvalue()


def compressed(data: bytes, compression: str) -> bytes:
    if compression == ".gz":
        return gzip.compress(data)
    if compression == ".zst":
        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    return data


def opened(name: str, data: bytes) -> SourceFile:
    return SourceFile(name, lambda: io.BytesIO(data))


def read(file: SourceFile, where: str | None = None) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    pieces = list(read_pieces(file, Reading("src", where)))
    rows = [pair for piece in pieces for pair in zip(piece.indexes, piece.rows, strict=True)]
    return rows, sum(len(piece.left_out) for piece in pieces)


def refusal(file: SourceFile, where: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        read(file, where)
    line = str(caught.value)
    assert line.startswith(f"source src: {file.name}: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "ndjson", "json", "csv"])
@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
def test_every_kind_in_every_compression_gives_the_same_rows(kind: str, compression: str) -> None:
    file = opened(f"d/x.{kind.upper()}{compression}", compressed(encoded(kind, ROWS), compression))
    rows, left_out = read(file)
    assert [index for index, _ in rows] == list(range(6))
    assert [row["prompt"] for _, row in rows] == [row["prompt"] for row in ROWS]
    assert [int(row["n"]) for _, row in rows] == list(range(6))
    assert left_out == 0


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json", "csv"])
@pytest.mark.parametrize(
    ("where", "kept"), [("lang = 'en'", [1, 3, 5]), ("1 = 1", [0, 1, 2, 3, 4, 5]), ("lang IS NULL", [])]
)
def test_where_leaves_rows_out_and_counts_them(kind: str, where: str, kept: list[int]) -> None:
    rows, left_out = read(opened(f"x.{kind}", encoded(kind, ROWS)), where)
    assert [index for index, _ in rows] == kept
    assert left_out == 6 - len(kept)


def test_where_is_judged_on_plain_values_and_unknown_is_no() -> None:
    rows = [{"a": 1, "c": [1]}, {"b": 2}, {"a": None}, {"a": "\ud800"}, {"a": 10**60}, {"a": "1"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    kept, left_out = read(opened("x.jsonl", lines), "a = '1'")
    assert [index for index, _ in kept] == [0, 5]
    assert left_out == 4


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nope = 1", "Columns are prompt, lang, n"),
        ("n", "where gives Int64, a condition (true or false) is expected"),
        ("lang = = 1", "where: "),
    ],
)
def test_a_where_that_does_not_fit(kind: str, where: str, said: str) -> None:
    assert said in refusal(opened(f"x.{kind}", encoded(kind, ROWS)), where)


def test_blank_lines_are_no_rows_and_keep_their_number() -> None:
    rows, _ = read(opened("x.jsonl", b'{"a": 1}\n\n  \n{"a": 2}'))
    assert [index for index, _ in rows] == [0, 3]


def test_json_rows_may_change_type_from_row_to_row() -> None:
    rows = [{"args": {"a": 1}}, {"args": ["x"]}, {"args": "text"}, {"args": None}]
    assert [row for _, row in read(opened("x.jsonl", encoded("jsonl", rows)))[0]] == rows


def test_a_lone_surrogate_is_read_so_that_it_can_be_a_drop() -> None:
    for line in (b'{"a": "x\\ud800"}', b'{"a": "x\xed\xa0\x80"}'):
        assert read(opened("x.jsonl", line))[0] == [(0, {"a": "x\ud800"})]


def test_a_document_may_hold_its_rows_under_one_key() -> None:
    rows, _ = read(opened("x.json", json.dumps({"version": 1, "data": ROWS}).encode()))
    assert [row for _, row in rows] == ROWS


BROKEN = {
    "cut line": ("x.jsonl", encoded("jsonl", ROWS)[:-9], "row 5 (line 6) is not valid JSON"),
    "cut line inside": ("x.jsonl", b'{"a": 1}\n{"a": \n{"a": 3}\n', "row 1 (line 2) is not valid JSON"),
    "not utf-8": ("x.jsonl", b'{"a": "caf\xe9"}\n', "row 0 (line 1) is not valid JSON"),
    "a row of another kind": ("x.jsonl", b'{"a": 1}\n[1]\n', "row 1 holds list; an object is expected"),
    "a row without a bottom": ("x.jsonl", b'{"a": ' + b"[" * 200_000 + b"}\n", "row 0 (line 1) is not valid JSON"),
    "a document without a bottom": ("x.json", b"[" * 200_000, "not valid JSON"),
    "cut document": ("x.json", encoded("json", ROWS)[:-9], "not valid JSON"),
    "document of numbers": ("x.json", b"[1, 2]", "row 0 holds int; an object is expected"),
    "cut parquet": ("x.parquet", encoded("parquet", ROWS)[:-9], "not a readable parquet file"),
    "not parquet": ("x.parquet", b"PAR1 and so on", "not a readable parquet file"),
    "empty parquet": ("x.parquet", b"", "not a readable parquet file"),
    "torn csv": ("x.csv", b'a,b\n"1,2\n', "csv"),
    "not zstd": ("x.jsonl.zst", b"plain text", "Fetch the file again"),
    "another kind": ("x.txt", b"", "files of this kind are not read"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_one_line(what: str) -> None:
    name, data, said = BROKEN[what]
    assert said in refusal(opened(name, data))


MANY = [{"prompt": f"{i * 7919 % 104729} question", "n": i} for i in range(4000)]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_a_truncated_archive_is_one_line(kind: str, compression: str) -> None:
    whole = compressed(encoded(kind, MANY), compression)
    line = refusal(opened(f"x.{kind}{compression}", whole[: len(whole) // 2]))
    assert "again" in line


def test_a_truncated_archive_names_the_last_row() -> None:
    whole = compressed(encoded("jsonl", MANY), ".gz")
    assert re.search(r"breaks off in row [1-9]\d{2,} ", refusal(opened("x.jsonl.gz", whole[: len(whole) // 2])))


def test_a_rotten_archive_is_one_line() -> None:
    whole = bytearray(compressed(encoded("jsonl", MANY), ".gz"))
    whole[200:260] = bytes(60)
    refusal(opened("x.jsonl.gz", bytes(whole)))


def test_a_file_that_is_gone() -> None:
    gone = SourceFile("x.jsonl", partial(Path("/nowhere/x.jsonl").open, "rb"))
    assert "no such file any more" in refusal(gone)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", (".parquet", "")), ("A.JSONL.GZ", (".jsonl", ".gz")), ("b.ndjson.zst", (".ndjson", ".zst")),
        ("notes.txt", None), ("x.gz", None), ("x.parquet.bak", None), ("README.md", None),
    ],
)  # fmt: skip
def test_kinds_of_files(name: str, kind: Any) -> None:
    assert file_kind(name) == kind
