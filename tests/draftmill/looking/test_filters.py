"""Filters: what SQL counts is what a frame counts, and an address says all of them."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.errors import UserError
from draftmill.looking.filters import BOUNDS, CHOICES, MOST_VALUES, Filters, condition, read_filters, write_filters

VALUES = ["", "a", "b'; DROP TABLE rows; --", '"><script>', "\u202eb", "100%"]
names = st.sampled_from(VALUES)
limits = st.none() | st.integers(0, 40)
tuples = st.lists(names, unique=True, max_size=3).map(tuple)
filters_of = st.builds(
    Filters, category=tuples, source=tuples, state=tuples, reason=tuples, finish_reason=tuples,
    holdout=st.sampled_from([(), ("yes",), ("no",), ("yes", "no"), ("perhaps",)]),
    prompt_min=limits, prompt_max=limits, answer_min=limits, answer_max=limits,
)  # fmt: skip
rows_of = st.lists(
    st.fixed_dictionaries({
        **dict.fromkeys(("category", "source", "state", "reason", "finish_reason"), st.none() | names),
        "holdout": st.none() | st.booleans(),
        "prompt_tokens": st.none() | st.integers(0, 40),
        "response_tokens": st.none() | st.integers(0, 40),
    }),
    max_size=12,
)  # fmt: skip
SCHEMA = {
    **dict.fromkeys(("category", "source", "state", "reason", "finish_reason"), pl.String()),
    "holdout": pl.Boolean(), "prompt_tokens": pl.Int64(), "response_tokens": pl.Int64(),
}  # fmt: skip


def plainly(frame: pl.DataFrame, filters: Filters) -> pl.DataFrame:
    """The same filter as polars has it."""
    kept = frame
    for name in CHOICES:
        wanted = getattr(filters, name)
        if name == "holdout":
            column = pl.when(pl.col("holdout").fill_null(False)).then(pl.lit("yes")).otherwise(pl.lit("no"))
        else:
            column = pl.col(name).fill_null("")
        if wanted:
            kept = kept.filter(column.is_in(list(wanted)))
    for key, (column_name, sign) in BOUNDS.items():
        limit = getattr(filters, key)
        if limit is not None:
            kept = kept.filter(pl.col(column_name) >= limit if sign == ">=" else pl.col(column_name) <= limit)
    return kept


@given(rows_of, filters_of)
def test_every_filter_counts_what_polars_counts(rows: list[dict[str, Any]], filters: Filters) -> None:
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    where, values = condition(filters)
    with duckdb.connect() as connection:
        connection.register("rows", frame.to_arrow())
        found = pl.DataFrame(connection.sql(f"SELECT * FROM rows WHERE {where}", params=values).to_arrow_table())
    assert found.rows() == plainly(frame, filters).rows()


@given(filters_of)
def test_an_address_says_all_filters(filters: Filters) -> None:
    assert read_filters(write_filters(filters)) == filters


def test_other_keys_and_empty_limits_are_passed_over() -> None:
    assert read_filters([("page", "3"), ("prompt_min", " "), ("nonsense", "x"), ("category", "a")]).count == 1


@pytest.mark.parametrize("value", ["-1", "1.5", "1e3", "abc", "9" * 30, "²", "0x10"])
def test_a_limit_is_a_whole_number(value: str) -> None:
    with pytest.raises(UserError, match=r"prompt_max: got .* expected a whole number"):
        read_filters([("prompt_max", value)])


def test_an_address_of_thousands_of_values_is_refused_in_one_line() -> None:
    most = [("category", f"c{i}") for i in range(MOST_VALUES)]
    assert len(read_filters(most + most).category) == MOST_VALUES
    with pytest.raises(UserError, match=r"the address names 401 values; at most 400"):
        read_filters([*most, ("source", "x")])
