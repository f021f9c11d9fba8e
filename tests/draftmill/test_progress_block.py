"""The block of a run: no line wider and no block higher than asked, whatever the run; figures are aligned."""

from __future__ import annotations

import re
import string
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from draftmill.progress_block import (
    MANY_ENGINES,
    SILENT_S,
    STARTS_S,
    count,
    fit_table,
    left,
    percent,
    progress_line,
    progress_lines,
    result_line,
    span,
    stopping_note,
)
from generation.progress import Baseline, CategoryProgress, EngineProgress, Progress, Tally

NUMBERS = st.integers(0, 10**15)
RATES = st.floats(0, allow_infinity=True) | st.just(float("nan"))
PARTS = st.none() | st.floats(0, 1)
NAMES = st.text(min_size=1, max_size=60) | st.sampled_from(["数学" * 30, "e\u0301" * 50, "\x1b[2J", "👩‍👩‍👧" * 20])
CATEGORIES = st.builds(
    CategoryProgress, wanted=NUMBERS, accepted=NUMBERS, rejected=NUMBERS, truncated=NUMBERS, tokens=NUMBERS,
    target=RATES, got=RATES,
)  # fmt: skip
ENGINES = st.builds(
    EngineProgress, device=NAMES, starting=st.booleans(), running=NUMBERS, waiting=NUMBERS, max_num_seqs=NUMBERS,
    tokens_per_s=RATES, kv_use=PARTS, prefix_hits=PARTS, heard_at=st.sampled_from([0.0, 900.0, 999.0]),
)  # fmt: skip
PROGRESS = st.builds(
    Progress, run_id=st.just("r"), build_id=st.just("b"), updated_at=st.just(1000.0), seconds=RATES, total=NUMBERS,
    accepted=NUMBERS, rejected=NUMBERS, failed=NUMBERS, truncated=NUMBERS, tokens=NUMBERS, tokens_per_s=RATES,
    left_s=st.none() | RATES, left_error_s=st.none() | RATES, in_flight=NUMBERS, queued=NUMBERS,
    stopping=st.booleans(), categories=st.dictionaries(NAMES, CATEGORIES, max_size=12),
    engines=st.lists(ENGINES, max_size=20), before=NUMBERS,
    warnings=st.lists(st.text(max_size=200), max_size=2),
)  # fmt: skip


def progress(**changes: Any) -> Progress:
    """Eight full engines in the middle of a run."""
    shares = {"coding": 414_000, "general": 234_000, "math": 99_000, "agent": 81_000, "code-other": 72_000}
    body: dict[str, Any] = {
        "run_id": "r", "build_id": "b", "updated_at": 1000.0, "seconds": 9000.0, "total": 900_000, "accepted": 400_000,
        "rejected": 12_300, "failed": 12, "truncated": 4_560, "tokens": 10**9, "tokens_per_s": 12_345.6,
        "left_s": 6_120.0, "left_error_s": 380.0, "in_flight": 2_048, "queued": 485_652, "stopping": False,
        "categories": {
            name: CategoryProgress(wanted=wanted, accepted=wanted * 4 // 9, rejected=7, target=wanted, got=wanted / 3)
            for name, wanted in shares.items()
        },
        "engines": [
            EngineProgress(
                device=f"cuda:{i}", running=128, waiting=128, max_num_seqs=128, tokens_per_s=1_543.2, kv_use=0.87,
                prefix_hits=0.12,
            )
            for i in range(8)
        ],
    }  # fmt: skip
    return Progress(**body | changes)


@given(PROGRESS, st.integers(20, 200), st.none() | st.integers(1, 60))
def test_a_block_fits_every_terminal(shown: Progress, width: int, height: int | None) -> None:
    lines = progress_lines(shown, width, height, [stopping_note(shown, 120.0)])
    assert max(map(cell_len, lines)) <= width
    assert height is None or len(lines) <= height
    assert all(ch.isprintable() for line in lines for ch in line)


@given(PROGRESS)
def test_a_plain_line_is_one_line_of_a_terminal(shown: Progress) -> None:
    for line in (progress_line(shown), result_line(shown)):
        assert line.isprintable()
        assert cell_len(line) <= 110


def test_a_run_on_eight_engines_fits_a_terminal_of_24_lines_and_leaves_nothing_out() -> None:
    lines = progress_lines(progress(), 80, 24)
    assert lines[:2] == [
        "412,300 of 900,000 answers (45.8%), 12,346 tok/s, 1:42 h ± 6 min left",
        "12,300 rejected (12 failed), 4,560 truncated, 2,048 in flight, 485,652 queued",
    ]
    words = [line.split() for line in lines]
    assert ["coding", "46.0%", "46.0%", "184,000", "414,000", "7", "0"] in words
    assert ["cuda:7", "1,543", "128/128", "128", "87%", "12%"] in words
    assert ["all", "8", "12,346", "1,024/1,024", "1,024"] in words
    assert len([line for line in lines if line.startswith("cuda:")]) == 8
    assert len(lines) <= 20


def test_figures_end_in_the_same_column_as_their_heads() -> None:
    lines = progress_lines(progress(), 80)
    at = next(i for i, line in enumerate(lines) if line.startswith("category"))
    ends = [match.end() for match in re.finditer(r"\S+", lines[at])][1:]
    for line in lines[at + 1 : at + 6]:
        assert [match.end() for match in re.finditer(r"\S+", line)][1:] == ends


def test_the_start_of_a_run_says_what_is_not_known() -> None:
    tally = Tally("r", "b", started_s=5.0)
    tally.want({"coding": 10})
    tally.baseline = Baseline({"coding": CategoryProgress(target=10.0)})
    tally.engines["cpu:0"] = EngineProgress(device="cpu:0", max_num_seqs=4)
    first = tally.progress(5.0, 1000.0, in_flight=0, queued=10)
    assert progress_line(first) == "0 of 10 answers (0.0%), 0 tok/s, time left unknown"
    lines = [line.split() for line in progress_lines(first)]
    assert ["coding", "-", "100.0%", "0", "10", "0", "0"] in lines
    assert ["cpu:0", "0", "0/4", "0", "-", "-"] in lines
    del tally.engines["cpu:0"]
    nothing = Tally("r", "b", started_s=5.0).progress(5.0, 1000.0, 0, 0)
    assert progress_lines(nothing)[0] == "0 of 0 answers (-), 0 tok/s, time left unknown"


def test_many_engines_are_summed_up() -> None:
    engines = [
        EngineProgress(
            device=f"cuda:{i}", running=i, waiting=2, max_num_seqs=64, tokens_per_s=100.0 + i, kv_use=i / 100
        )
        for i in range(MANY_ENGINES + 1)
    ]
    words = [line.split() for line in progress_lines(progress(engines=engines))]
    assert ["least", "100", "0", "2", "0%", "-"] in words
    assert ["median", "108", "8", "2", "8%", "-"] in words
    assert ["most", "116", "16", "2", "16%", "-"] in words
    assert ["all", "17", "1,836", "136/1,088", "34"] in words
    assert not [line for line in words if line and line[0].startswith("cuda")]


def test_a_low_terminal_keeps_the_engines_in_sum_and_says_what_it_leaves_out() -> None:
    lines = progress_lines(progress(), 80, 10)
    assert [line.split()[0] for line in lines[2:]] == [
        "category",
        "coding",
        "and",
        "engine",
        "least",
        "median",
        "most",
        "all",
    ]
    assert "and 4 more" in lines


def test_what_a_silent_engine_said_last_counts_no_more() -> None:
    engines = [
        EngineProgress(device=name, running=4, tokens_per_s=100.0, heard_at=heard_at)
        for name, heard_at in (("cuda:0", 999.0), ("cuda:1", 1000.0 - SILENT_S - 15))
    ]
    words = [line.split() for line in progress_lines(progress(engines=engines))]
    assert ["cuda:1", "-", "silent", "45", "s"] in words
    assert ["1", "of", "2", "100", "4", "0"] in words


def test_an_engine_that_starts_has_a_row_and_counts_for_nothing() -> None:
    engines = [
        EngineProgress(device="cuda:0", running=4, tokens_per_s=100.0, heard_at=999.0),
        EngineProgress(device="cuda:1", starting=True, heard_at=960.0),
        EngineProgress(device="cuda:2", starting=True, heard_at=1000.0 - STARTS_S),
    ]
    words = [line.split() for line in progress_lines(progress(engines=engines))]
    assert ["cuda:1", "-", "starting", "40", "s"] in words
    assert ["cuda:2", "-", "down", "15", "min"] in words
    assert ["1", "of", "3", "100", "4", "0"] in words


def test_shares_are_of_what_is_accepted_beside_what_is_declared_rounded_and_no_counts_of_the_run() -> None:
    categories = {
        "coding": CategoryProgress(wanted=5, accepted=900, got=2.0, target=46.0),
        "math": CategoryProgress(wanted=95, accepted=1, got=1.0, target=54.0),
    }
    words = [line.split() for line in progress_lines(progress(categories=categories))]
    head = words.index(["category", "share", "declared", "accepted", "of", "rejected", "truncated"])
    assert words[head + 1][:3] == ["math", "33.3%", "54.0%"]
    assert words[head + 2][:3] == ["coding", "66.7%", "46.0%"]


def test_the_end_of_a_resumed_run_says_which_tokens_it_counts() -> None:
    assert result_line(progress(before=0)).endswith(" tokens")
    assert result_line(progress(before=12)).endswith(" tokens in this run")


def test_a_run_that_stops_says_so_in_place_of_a_time_left() -> None:
    stopping = progress(stopping=True)
    note = stopping_note(stopping, 118.0)
    assert note == "stopping: 2,048 in flight, waits 2 min at most"
    lines = progress_lines(stopping, notes=[note])
    assert note in lines
    assert not [line for line in lines if " left" in line]


@pytest.mark.parametrize(
    ("seconds", "error_s", "said"),
    [
        (None, None, "time left unknown"),
        (float("inf"), 1.0, "time left unknown"),
        (130.0, 20.0, "2:10 ± 0:20 min left"),
        (130.0, None, "2:10 min left"),
        (6_120.0, 380.0, "1:42 h ± 6 min left"),
        (6_120.0, 20.0, "1:42 h ± 2 min left"),
        (43_200.0, 7_200.0, "12:00 h ± 2:00 h left"),
        (432_000.0, 43_200.0, "5.0 ± 0.5 days left"),
    ],
)
def test_time_left_is_said_as_finely_as_it_is_known(seconds: float | None, error_s: float | None, said: str) -> None:
    assert left(seconds, error_s) == said


@pytest.mark.parametrize(("seconds", "said"), [(40, "40 s"), (120, "2 min"), (4_200, "70 min"), (36_000, "10:00 h")])
def test_spans(seconds: float, said: str) -> None:
    assert span(seconds) == said


@given(st.integers(0, 10**6), st.integers(1, 10**6))
@example(999_999, 10**6)
def test_100_percent_is_all_of_it(part: int, whole: int) -> None:
    said = percent(part, whole)
    assert part >= whole or float(said.removesuffix("%")) < 100
    if part == whole:
        assert said == "100.0%"


@given(NUMBERS)
def test_a_count_has_nine_columns_at_most(number: int) -> None:
    assert len(count(number)) <= 9


@given(
    st.lists(st.tuples(st.text(string.ascii_letters, min_size=1, max_size=40), st.just("12")), min_size=1, max_size=5)
)
def test_names_are_cut_before_figures_are(rows: list[tuple[str, ...]]) -> None:
    for line in fit_table(("name", "n"), rows, 20)[1:]:
        assert line.endswith("12")
