"""The card of a published build: the Hub reads its header, and its tables say what the views said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from huggingface_hub import DatasetCard
from hypothesis import given
from hypothesis import strategies as st

from corpus.card import HUB_LICENSES, Published, card_text, one_license, size_category

BUILD = Published("me/demo", "b" * 24, "small: a build", 17, "org/model", "rev1", 220, 20, 190)
SOURCES = {
    "source": ["code", "talk"],
    "dataset": ["owner/code", "data/talk | more.jsonl"],
    "config": ["0625", None],
    "split": ["train", None],
    "revision": ["c0ffee" + "0" * 34, "d" * 40],
    "license": ["mit", "mit"],
}
FUNNEL = pl.DataFrame(
    [("code", "selected", 100), ("code", "duplicate", 7), ("code", "read", 1107), ("code", "not_needed", 1000)],
    schema=["source", "reason", "rows"],
    orient="row",
)


def sources(*licenses: str | None) -> pl.DataFrame:
    return pl.DataFrame({**SOURCES, "license": list(licenses) or SOURCES["license"]})


def composition() -> pl.DataFrame:
    rows = [
        ("target", "coding", None, 120, 120, None), ("target", "general", None, 80, 80, None),
        ("selected", "coding", "code", 120, 110, None), ("selected", "general", "talk", 80, 80, None),
        ("accepted", "coding", "code", 115, 105, 5000), ("accepted", "general", "talk", 75, 60, 2500),
    ]  # fmt: skip
    return pl.DataFrame(
        rows, schema=["stage", "category", "source", "rows", "prompts", "response_tokens"], orient="row"
    )


def text(build: Published = BUILD, of: pl.DataFrame | None = None) -> str:
    return card_text(build, composition(), sources() if of is None else of, FUNNEL)


def test_the_header_is_what_the_hub_reads() -> None:
    data: Any = DatasetCard(text()).data
    assert (data.license, data.pretty_name, data.size_categories) == ("mit", "small: a build", ["n<1K"])
    assert {"speculative-decoding", "draftmill"} <= set(data.tags)
    assert [config["config_name"] for config in data.configs] == ["prompts", "responses"]
    assert data.configs[0]["data_files"] == [{"split": "train", "path": "data/prompts-*.parquet"}]
    assert data.language is None


def test_several_licences_are_all_listed() -> None:
    data: Any = DatasetCard(text(of=sources("mit", "CC-BY-4.0"))).data
    assert (data.license, data.to_dict()["licenses"]) == ("other", ["CC-BY-4.0", "mit"])
    unstated = text(of=sources("mit", None))
    assert "license: other" in unstated
    assert "| not stated |" in unstated


@pytest.mark.parametrize(
    ("licenses", "said"),
    [
        (("mit", "MIT"), "mit"),
        (("mit", "apache-2.0"), "other"),
        (("my own", "my own"), "other"),
        ((None, None), "unknown"),
        (("mit", None), "other"),
    ],
)
def test_one_licence(licenses: tuple[str | None, ...], said: str) -> None:
    assert one_license(sources(*licenses)) == said
    assert said in HUB_LICENSES


def test_tables_say_what_the_views_said() -> None:
    card = text()
    assert "| coding | 60.0% | 120 | 60.0% | 105 | 63.6% | 115 | 5,000 |" in card
    assert "| general | 40.0% | 80 | 40.0% | 60 | 36.4% | 75 | 2,500 |" in card
    assert "| code | coding | `owner/code` 0625 train | `c0ffee0" in card
    assert "| talk | general | `data/talk \\| more.jsonl` | " in card
    assert card.index("| code | read | 1,107 |") < card.index("| code | selected | 100 |")
    assert "| code | duplicate | 7 |" in card
    for said in ("b" * 24, "org/model", "rev1", "| seed | 17 |", "20 are held out", "manifest.lock.yaml"):
        assert said in card
    assert 'datasets.load_dataset("me/demo", "responses", split="train")' in card


def test_prompts_alone_promise_no_answers() -> None:
    card = text(replace(BUILD, responses=None))
    assert [config["config_name"] for config in DatasetCard(card).data.configs] == ["prompts"]
    for word in ("responses", "answered", "token_ids"):
        assert word not in card


@given(st.integers(0, 10**13))
def test_sizes_are_the_hubs_words(rows: int) -> None:
    word = size_category(rows)
    units = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}

    def number(end: str) -> int:
        return int(end[:-1]) * units[end[-1]] if end[-1] in units else int(end)

    ends = word.split("<") if "<" in word else [word.split(">")[1], "n"]
    low, high = (ends[0], ends[-1]) if len(ends) == 3 or ">" in word else ("0", ends[1])
    assert number(low) <= rows
    assert high == "n" or rows < number(high)
