"""A sample is random, the same for one seed, of rows that fit; it needs no answers and shows drops in pairs."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from corpus.errors import UserError
from corpus.ledger.query import query
from draftmill.looking.chosen import Build, all_builds, open_reader
from draftmill.looking.sample_lines import sample_lines
from draftmill.looking.sampling import Drawn, Wanted, _widening, draw

World = Any


def drawn(world: World, name: str = "small", **wanted: Any) -> tuple[Build, list[Drawn]]:
    reader = open_reader(world.workspace)
    build = next(one for one in all_builds(world.workspace, reader) if one.name == name)
    return build, draw(build, Wanted(**({"n": 5, "seed": 0} | wanted)), world.workspace, reader)


def ids(rows: list[Drawn]) -> list[str]:
    return [row.labels["response_id"] for row in rows]


def test_one_seed_draws_one_sample_and_another_another(asked: World) -> None:
    first = ids(drawn(asked)[1])
    assert len(set(first)) == 5
    assert first == ids(drawn(asked)[1])
    assert any(first != ids(drawn(asked, seed=seed)[1]) for seed in range(1, 4))


def test_a_larger_sample_begins_with_the_smaller(asked: World) -> None:
    assert ids(drawn(asked, n=9)[1])[:4] == ids(drawn(asked, n=4)[1])


def test_asked_for_all_there_are_all(asked: World) -> None:
    build, rows = drawn(asked, n=1000)
    wanted = query(
        asked.workspace, f"SELECT response_id FROM build_responses WHERE build_id = '{build.build_id}'"
    )  # fmt: skip
    assert sorted(ids(rows)) == sorted(wanted["response_id"])


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        ({"category": "coding"}, "category = 'coding'"),
        ({"source": "talk"}, "source = 'talk'"),
        ({"state": "rejected"}, "state = 'rejected'"),
        ({"state": "accepted", "category": "general"}, "state = 'accepted' AND category = 'general'"),
        ({"state": "truncated"}, "state = 'accepted' AND finish_reason = 'length'"),
        ({"state": "unfinished"}, "state = 'unfinished'"),
        ({"finish_reason": "stop"}, "finish_reason = 'stop'"),
        ({"holdout": True}, "holdout"),
        ({"holdout": False}, "NOT holdout"),
    ],
)
def test_filters_are_those_of_provenance(asked: World, filters: dict[str, Any], condition: str) -> None:
    for name in ("small", "larger"):
        build, rows = drawn(asked, name, n=1000, **filters)
        fitting = query(
            asked.workspace, f"SELECT response_id FROM provenance WHERE build_id = '{build.build_id}' AND {condition}"
        )
        assert sorted(ids(rows)) == sorted(fitting["response_id"])


def test_texts_are_those_of_the_rows(asked: World) -> None:
    _, rows = drawn(asked, state="accepted")
    for row in rows:
        assert row.prompt is not None
        assert row.answer is not None
        text = query(
            asked.workspace, f"SELECT text FROM response_text WHERE response_id = '{row.labels['response_id']}'"
        ).item()
        asked_ = query(
            asked.workspace, f"SELECT asked FROM prompt_text WHERE prompt_id = '{row.labels['prompt_id']}'"
        ).item()
        assert (row.prompt.asked, row.answer.text) == (asked_, text)


def test_near_duplicates_come_in_pairs(asked: World) -> None:
    build, (one,) = drawn(asked, dropped="near_duplicate")
    assert one.prompt is not None
    assert one.winner is not None
    assert one.prompt.asked != one.winner.asked
    lines = sample_lines(build, [one], 5, 400)
    assert any("% alike; kept is " in line for line in lines)
    assert "1 row fits; there are no more" in lines


def test_a_dropped_row_without_a_prompt_says_where_it_is(asked: World) -> None:
    build, rows = drawn(asked, dropped="empty_prompt")
    assert "   row code:code.jsonl:13" in sample_lines(build, rows, 1, 400)


def test_before_answers_there_are_prompts(world: World) -> None:
    from corpus.building import commit_build
    from corpus.ledger.writer import open_ledger

    manifest = world.manifest()
    with open_ledger(world.workspace, "build") as ledger:
        commit_build(world.plan(manifest), world.workspace, ledger)
    build, rows = drawn(world, n=3, category="coding")
    assert [row.labels["category"] for row in rows] == ["coding"] * 3
    assert all(row.prompt and row.prompt.asked.startswith("code question") for row in rows)
    assert all(cell_len(line) <= 80 for line in sample_lines(build, rows, 3, 400))
    with pytest.raises(UserError, match="has no answers yet"):
        drawn(world, state="accepted")


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"category": "codding"}, "Did you mean coding"),
        ({"source": "tall"}, "Did you mean talk"),
        ({"finish_reason": "stopp"}, "Did you mean stop"),
        ({"dropped": "near_dup"}, "Did you mean near_duplicate"),
    ],
)
def test_wrong_names_get_the_nearest(asked: World, filters: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        drawn(asked, **filters)


def test_hostile_rows_fit_and_do_nothing(asked: World) -> None:
    build, rows = drawn(asked, n=1000)
    lines = sample_lines(build, rows, 1000, 400)
    assert all(cell_len(line) <= 80 and line.isprintable() for line in lines)
    assert sum(len(line) for line in lines) < 60_000


def test_ids_are_looked_at_until_enough_fit() -> None:
    looked = []

    def ask(most: int) -> tuple[list[int], bool]:
        looked.append(most)
        fitting = [i for i in range(min(most, 10_000)) if i % 1000 == 999]
        return fitting, most >= 10_000

    assert _widening(3, ask) == [999, 1999, 2999]
    assert looked == [192, 12288]
    assert _widening(50, ask) == [999 + 1000 * i for i in range(10)]
