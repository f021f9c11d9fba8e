"""An acceptance length's interval: it covers what it says it covers, and SQL and Python have one formula."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.acceptance import Z, interval, quantile
from corpus.ledger.ingest import ingest_drafter
from corpus.ledger.query import query
from corpus.ledger.rebuild import rebuild_workspace
from corpus.ledger.writer import migrate, open_ledger

World = Any
Rows = list[tuple[int, int]]
"""(drafts, accepted) of each row."""

rows_of = st.lists(st.integers(1, 2000).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, 15 * d))), max_size=12)


def sums(rows: Rows) -> tuple[int, int, int, int, int, int]:
    """Arguments of interval."""
    drafts, accepted = ([row[i] for row in rows] for i in (0, 1))
    return (
        sum(drafts), sum(accepted), len(rows), sum(d * d for d in drafts), sum(a * a for a in accepted),
        sum(d * a for d, a in rows),
    )  # fmt: skip


@pytest.mark.parametrize(("documents", "least"), [(5, 0.90), (12, 0.92), (100, 0.935)])
def test_about_95_of_100_intervals_hold_the_truth_where_drafts_of_a_document_go_alike(
    documents: int, least: float
) -> None:
    rng = np.random.default_rng(7)
    held = naive = 0
    trials = 1500
    # a document has its own chance of accepting a token; expected lengths by the same chances give the truth
    chances = np.array([0.35, 0.5, 0.65, 0.8])
    truth = 1 + float(np.mean(chances))  # one drafted token, and as many drafts of each kind
    for _ in range(trials):
        drafts = rng.integers(10, 60, documents)
        accepted = rng.binomial(drafts, rng.choice(chances, documents))
        found = interval(*sums(list(zip(drafts.tolist(), accepted.tolist(), strict=True))))
        assert found is not None
        held += found[0] <= truth <= found[1]
        ratio = accepted.sum() / drafts.sum()
        naive += abs(1 + ratio - truth) <= Z * (ratio * (1 - ratio) / drafts.sum()) ** 0.5
    assert least <= held / trials <= 0.98
    assert naive / trials < 0.8, "documents are clusters here: drafts as independent draws are far too sure"


def test_the_quantile_is_students() -> None:
    for degrees, exact, off in ((3, 3.18245, 0.01), (4, 2.77645, 0.003), (10, 2.22814, 1e-3), (10**6, Z, 1e-5)):
        assert quantile(degrees) == pytest.approx(exact, rel=off)


@given(rows_of)
def test_it_is_around_the_estimate_and_by_the_rows_themselves(rows: Rows) -> None:
    found = interval(*sums(rows))
    if len(rows) < 2:
        assert found is None
        return
    assert found is not None
    drafts, accepted = np.array(rows, dtype=float).T
    ratio = accepted.sum() / drafts.sum()
    error = np.sqrt(len(rows) / (len(rows) - 1) * np.sum((accepted - ratio * drafts) ** 2)) / drafts.sum()
    half = quantile(len(rows) - 1) * error
    assert list(found) == pytest.approx([max(1, 1 + ratio - half), 1 + ratio + half], abs=1e-4)
    assert 1 <= found[0] <= 1 + ratio <= found[1]


def test_no_interval_without_sums_or_drafts() -> None:
    assert interval(10, 5, 4, None, None, None) is None
    assert interval(10, 5, 1, 100, 25, 50) is None
    assert interval(0, 0, 4, 0, 0, 0) is None


@pytest.fixture(scope="module")
def empty() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        migrate(connection, "x")
        yield connection


@given(categories=st.lists(rows_of, min_size=1, max_size=6))
def test_the_view_has_the_same_formula(empty: duckdb.DuckDBPyConnection, categories: list[Rows]) -> None:
    insert = (
        "INSERT INTO acceptance (drafter_id, category, measured_by, drafts, accepted_tokens, rows, sum_drafts_sq, "
        "sum_accepted_sq, sum_cross) VALUES ('d', ?, 'walk', ?, ?, ?, ?, ?, ?)"
    )
    empty.execute("DELETE FROM acceptance")
    empty.executemany(insert, [[str(number), *sums(rows)] for number, rows in enumerate(categories)])
    found = empty.execute("SELECT category, low, high FROM acceptance_by_category").fetchall()
    assert len(found) == len(categories)
    for category, low, high in found:
        bounds = interval(*sums(categories[int(category)]))
        assert (None if low is None else (low, high)) == (None if bounds is None else pytest.approx(bounds, rel=1e-9))


def test_rows_with_sums_and_without_them_come_into_the_ledger_and_out_of_a_rebuild(world: World) -> None:
    def row(category: str, **more: int) -> dict[str, Any]:
        return {
            "build_id": "b", "category": category, "measured_by": "walk", "drafts": 30, "accepted_tokens": 40,
            "rows": 3, "measured_at": "2026-01-02T03:04:05+00:00", **more,
        }  # fmt: skip

    sums_of = {"sum_drafts_sq": 300, "sum_accepted_sq": 600, "sum_cross": 410}
    folder = world.workspace.drafter("d1")
    folder.mkdir(parents=True)
    drafter = {
        "build_id": "b", "capture_id": "c", "algorithm": "dflash", "steps": 1, "path": "p", "rows": 1, "training": {},
        "created_at": "2026-01-02T03:04:05+00:00", "drafter_id": "d1",
    }  # fmt: skip
    (folder / "drafter.json").write_text(json.dumps(drafter))
    told = [row("old"), row("new", **sums_of), row("newer draftmill", what_is_this=3)]
    (folder / "acceptance.json").write_text(json.dumps(told))
    asked = "SELECT category, acceptance_length, low, high FROM acceptance_by_category ORDER BY 1"
    with open_ledger(world.workspace, "test") as ledger:
        ledger.call(lambda connection: ingest_drafter(connection, world.workspace, "d1"))
        entered = ledger.rows(asked)
    bounds = interval(30, 40, 3, 300, 600, 410)
    assert bounds is not None
    assert [found[2:] for found in entered] == [
        (pytest.approx(bounds[0]), pytest.approx(bounds[1])), (None, None), (None, None),
    ]  # fmt: skip
    rebuild_workspace(world.workspace)
    assert query(world.workspace, asked).rows() == entered
