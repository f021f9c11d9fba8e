"""Rounds: what each takes of the nested order, that the last is in force, and what the ledger says of all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import building
from corpus.building import commit_build, commit_round, selected_rows, taken_groups
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.rebuild import rebuild_workspace
from corpus.ledger.writer import open_ledger
from corpus.rounds import last_round, round_files, taken_rows, write_round

World = Any
Group = tuple[str, str, bool]
GROUPS: list[Group] = [("coding", "a", False), ("coding", "a", True), ("coding", "b", False), ("math", "b", False)]
TAKEN = {"category": pl.String, "source": pl.String, "holdout": pl.Boolean, "prefix": pl.Int64, "available": pl.Int64}


def candidates(sizes: dict[Group, int]) -> pl.DataFrame:
    rows = [(f"{c}{s}{h}{rank}", c, s, h, rank, 1) for (c, s, h), n in sizes.items() for rank in range(n)]
    schema = {
        "prompt_id": pl.String, "category": pl.String, "source": pl.String, "holdout": pl.Boolean,
        "source_rank": pl.Int64, "turns": pl.Int32,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def plain_taken(frame: pl.DataFrame, prefixes: dict[Group, int], sizes: dict[Group, int]) -> list[tuple[str, int, int]]:
    """(prompt_id, replica, row): row i of a group of n prompts is its prompt i % n for the time i // n."""
    places = {(c, s, h, rank): row for row, (_, c, s, h, rank, _) in enumerate(frame.iter_rows())}
    found = []
    for group, prefix in prefixes.items():
        for i in range(prefix):
            row = places[*group, i % sizes[group]]
            found.append((frame["prompt_id"][row], i // sizes[group], row))
    return sorted(found, key=lambda one: (one[2], one[1]))


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 6), min_size=1),
    st.dictionaries(st.sampled_from(GROUPS), st.integers(0, 20)),
    st.randoms(use_true_random=False),
)
def test_what_is_taken_is_the_prefix_of_each_group_around_and_around(
    sizes: dict[Group, int], prefixes: dict[Group, int], random: Any
) -> None:
    frame = candidates(sizes)
    order = list(range(frame.height))
    random.shuffle(order)  # sources lie in the file as they were read, not by group
    frame = frame[order]
    prefixes = {group: prefix for group, prefix in prefixes.items() if group in sizes}
    taken = pl.DataFrame([(*group, n, sizes[group]) for group, n in prefixes.items()], schema=TAKEN, orient="row")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.parquet"
        frame.write_parquet(path)
        whole, some = taken_rows(path, taken), taken_rows(path, taken, ["prompt_id"])
    assert whole.select("prompt_id", "replica", "row").rows() == plain_taken(frame, prefixes, sizes)
    assert set(whole.columns) == {*frame.columns, "replica", "row"}
    assert some.equals(whole.select(some.columns))


def test_rounds_are_numbered_and_the_last_is_in_force_beyond_nine(tmp_path: Path) -> None:
    assert last_round(tmp_path) is None
    for number in range(12):
        taken = pl.DataFrame([("coding", "a", False, number, 20)], schema=TAKEN, orient="row")
        assert write_round(tmp_path, taken) == number
    assert [path.name for path in round_files(tmp_path)] == [f"{n}.parquet" for n in range(12)]
    last = last_round(tmp_path)
    assert last is not None
    assert last["prefix"].to_list() == [11]


@pytest.mark.parametrize("damage", [b"no parquet", b""])
def test_a_round_that_is_damaged_is_one_line(tmp_path: Path, damage: bytes) -> None:
    write_round(tmp_path, pl.DataFrame([("coding", "a", False, 1, 2)], schema=TAKEN, orient="row"))
    (tmp_path / "rounds" / "1.parquet").write_bytes(damage)
    with pytest.raises(UserError, match=r"1\.parquet: cannot be read .* Remove it") as caught:
        last_round(tmp_path)
    assert "\n" not in str(caught.value)


VIEWS = ("selections", "composition", "funnel", "builds", "build_targets")


def ledger_says(world: World) -> dict[str, pl.DataFrame]:
    return {name: query(world.workspace, f"SELECT * FROM {name} ORDER BY ALL") for name in VIEWS}


def test_the_ledger_selects_what_the_last_round_takes_and_knows_who_took_a_row_first(
    make_world: Callable[[], World],
) -> None:
    """Longer, shorter, longer again and replicas; a row that came back was first taken by the round before."""
    world = make_world()
    mix = {"total": 20, "shares": {"coding": 1, "general": 1}, "shortage": "repeat", "max_repeats": 9, "holdout": 0.1}
    plan = world.plan(world.manifest(mix=mix))
    group: Group = ("coding", "code", False)
    lengths = [plan.prefixes[group], 25, 6, 9, 90, 80]
    assert plan.counts[group] < 80 < 2 * plan.counts[group] + 20
    first: dict[tuple[str, int], int] = {}
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(plan, world.workspace, ledger)
        for number, prefix in enumerate(lengths):
            if number:
                assert commit_round(plan, plan.prefixes | {group: prefix}, ledger) == number
            rows = selected_rows(world.workspace, plan, ["prompt_id"])
            for one in rows.select("prompt_id", "replica").iter_rows():
                first.setdefault(one, number)
            here = set(rows.select("prompt_id", "replica").iter_rows())
            sql = "SELECT prompt_id, replica, category, source, holdout, round FROM selections ORDER BY ALL"
            selections = ledger.rows(sql)
            assert {(row[0], row[1]) for row in selections} == here
            assert len(selections) == len(here) == sum(plan.prefixes.values()) - plan.prefixes[group] + prefix
            assert {(row[0], row[1]): row[5] for row in selections} == {one: first[one] for one in here}
            counted = ledger.rows("SELECT selected, held_out FROM builds")
            assert counted == [(plan.selected - plan.prefixes[group] + prefix, plan.held_out)]
        commit_build(plan, world.workspace, ledger)  # the next start leaves the rounds alone
        assert [path.stem for path in round_files(world.workspace.build(plan.build_id))] == list("012345")
    before = ledger_says(world)
    rebuild_workspace(world.workspace)
    after = ledger_says(world)
    for name, frame in before.items():
        assert after[name].equals(frame), name


def test_a_build_before_its_first_round_takes_what_its_plan_says(world: World) -> None:
    plan = world.plan(world.manifest())
    assert taken_groups(world.workspace, plan).equals(plan.taken())
    assert building.selected_rows(world.workspace, plan).height == plan.selected + plan.held_out


def test_a_build_that_is_written_again_decides_its_later_rounds_again(world: World) -> None:
    plan = world.plan(world.manifest())
    folder = world.workspace.build(plan.build_id)
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(plan, world.workspace, ledger)
        commit_round(plan, {group: n + 1 for group, n in plan.prefixes.items()}, ledger)
        (folder / "build.json").write_text("{}")
        commit_build(plan, world.workspace, ledger)
        assert [path.name for path in round_files(folder)] == ["0.parquet"]
        assert ledger.rows("SELECT count(*) FROM selections") == [(plan.selected + plan.held_out,)]
