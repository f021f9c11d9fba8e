"""Rows to a person or a program: exact for programs, safe and narrow for people."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from draftmill.rows import write_rows
from draftmill.table import MIN_CELL, PIPED_WIDTH, _fit, format_table

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
frames = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.none() | texts,
            "count": st.none() | st.integers(-(2**40), 2**40),
            "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "yes": st.booleans(),
            "ids": st.lists(st.integers(0, 9), max_size=3),
        }
    ),
    max_size=8,
).map(
    lambda rows: pl.DataFrame(
        rows,
        schema={
            "name": pl.String, "count": pl.Int64, "share": pl.Float64, "yes": pl.Boolean, "ids": pl.List(pl.Int64)
        },
    )
)  # fmt: skip


def written(frame: pl.DataFrame, form: str, folder: Path) -> Path:
    path = folder / f"out.{form}"
    write_rows(frame, form, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@settings(max_examples=40)
@given(frames)
def test_json_and_parquet_are_exact(folder: Path, frame: pl.DataFrame) -> None:
    assert json.loads(written(frame, "json", folder).read_text()) == frame.to_dicts()
    assert pl.read_parquet(written(frame, "parquet", folder)).equals(frame)


@settings(max_examples=40)
@given(frames)
def test_csv_keeps_every_value(folder: Path, frame: pl.DataFrame) -> None:
    with written(frame, "csv", folder).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == frame.height
    for row, exact in zip(rows, frame.to_dicts(), strict=True):
        assert row["name"] == (exact["name"] or "")
        assert row["count"] == ("" if exact["count"] is None else str(exact["count"]))
        assert exact["share"] is None or float(row["share"]) == exact["share"]
        assert json.loads(row["ids"]) == exact["ids"]


@settings(max_examples=40)
@given(frames)
def test_a_table_is_one_line_a_row_and_prints_no_control_characters(folder: Path, frame: pl.DataFrame) -> None:
    lines = written(frame, "table", folder).read_text().split("\n")
    assert len(lines) == frame.height + 4
    assert lines[-2] == f"({frame.height} row{'' if frame.height == 1 else 's'})"
    assert all(line.isprintable() and cell_len(line) <= PIPED_WIDTH for line in lines)


def test_control_characters_are_shown_and_do_nothing(folder: Path) -> None:
    frame = pl.DataFrame({"text": ["\x1b[31mred\x07\nnext\u202eback"]})
    assert "\\x1b[31mred\\x07\\nnext\\u202eback" in written(frame, "table", folder).read_text()


HOSTILE = ("\x1b[2Jred", "\x9b31m", "\u202eback", "\x1b]0;title\x07", "a\x85b", "\U000e0001tag")


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_nothing_of_a_name_or_a_value_steers_a_terminal(
    form: str, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pl.DataFrame({text: [text, "two\nlines"], "ids": [[text], []]})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_rows(frame, form, None)
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.split("\n"))
    assert form != "json" or json.loads(shown) == frame.to_dicts()


@pytest.mark.parametrize("narrow", [True, False])
def test_marks_that_take_no_room_are_cut_too(narrow: bool) -> None:
    marks = "a" + "\u0301" * 3000
    columns = {f"column_{i}": ["x" * 30] for i in range(20)} if narrow else {}
    lines = format_table(pl.DataFrame({"text": [marks], marks: [1]} | columns)).splitlines()
    assert max(map(len, lines)) < 4 * PIPED_WIDTH
    assert any("…" in line for line in lines)


def test_a_whole_number_has_no_fraction_however_large() -> None:
    frame = pl.DataFrame({"rate": [9139.0, 110.0, 1234.56, 0.25]})
    assert [line.strip() for line in format_table(frame).splitlines()[2:-1]] == ["9139", "110", "1234.6", "0.25"]


def test_what_json_does_not_have_is_null_and_numbers_stay_numbers(folder: Path) -> None:
    frame = pl.DataFrame({"share": [math.nan, math.inf, 0.5], "sum": pl.Series([1, 2, 3], dtype=pl.Decimal(38, 0))})
    strict = json.loads(written(frame, "json", folder).read_text(), parse_constant=pytest.fail)
    assert strict == [{"share": None, "sum": 1}, {"share": None, "sum": 2}, {"share": 0.5, "sum": 3}]


def test_a_nested_null_is_an_empty_field(folder: Path) -> None:
    frame = pl.DataFrame({"ids": [[1], None], "pair": [{"a": 1}, None]})
    assert written(frame, "csv", folder).read_text() == 'ids,pair\n[1],"{""a"": 1}"\n,\n'


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.integers(1, 300))
def test_widths_shrink_only_as_far_as_they_must(widths: list[int], room: int) -> None:
    fitted = _fit(widths, room)
    assert all(new <= old for new, old in zip(fitted, widths, strict=True))
    assert sum(fitted) <= room or max(fitted) <= MIN_CELL
    if sum(widths) <= room:
        assert fitted == widths


@pytest.mark.parametrize(
    ("said", "wide"),
    [
        ("40", 40),
        ("1", MIN_CELL),
        ("9" * 5_000, 300),
        ("1234567x", PIPED_WIDTH),
        ("²²", PIPED_WIDTH),
        ("", PIPED_WIDTH),
    ],
)
def test_columns_of_a_pipe_are_as_said_where_that_is_a_number(
    said: str, wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", said)
    line = format_table(pl.DataFrame({"text": ["a" * 300]})).splitlines()[2]
    assert cell_len(line) == wide


def test_rows_to_standard_output(capsysbinary: Any) -> None:
    frame = pl.DataFrame({"a": [1, 2]})
    write_rows(frame, "parquet", None)
    assert pl.read_parquet(io.BytesIO(capsysbinary.readouterr().out)).equals(frame)
    write_rows(frame, "csv", None)
    assert capsysbinary.readouterr().out == b"a\n1\n2\n"


def test_a_row_that_does_not_fit_is_shown_a_field_a_line() -> None:
    columns = {f"column_{i}": ["x" * 30] for i in range(20)}
    lines = format_table(pl.DataFrame(columns)).splitlines()
    assert lines[:2] == [f"column_0   {'x' * 30}", f"column_1   {'x' * 30}"]
    assert lines[-1] == "(1 row)"


def test_figures_and_times_read_well() -> None:
    when = datetime(2026, 11, 29, 16, 25, 48, 735062, tzinfo=UTC)
    frame = pl.DataFrame({"tokens": [123456.0], "share": [0.26666], "at": [when], "name": ["漢字"]})
    header, _, line, _ = format_table(frame).splitlines()
    assert line.split() == ["123456", "0.2667", "2026-11-29", "16:25:48", "漢字"]
    assert header.index("name") == cell_len(line.partition("漢字")[0])
