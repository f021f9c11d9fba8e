"""Laws of the build over real files, pools and candidates.

Nothing is lost, and nothing depends on what must not matter: folders, the order of sources, what was read before.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus import building, pools
from corpus.building import BuildPlan, commit_build, selected_rows
from corpus.candidates import TokenRule
from corpus.errors import UserError
from corpus.ledger.writer import open_ledger
from corpus.pools import PoolReader, load_chunks
from corpus.sources import FileDigests, resolve_source
from corpus.workspace import Workspace

World = Any
FEW = settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])

row = st.one_of(
    st.integers(0, 25).map(lambda n: {"prompt": f"Question {n}", "kind": "py"}),
    st.integers(0, 25).map(lambda n: {"prompt": f"question  {n}", "kind": "py"}),  # alike, not the same
    st.integers(0, 25).map(lambda n: {"prompt": f"sum {n}", "kind": "m"}),
    st.sampled_from([{"prompt": ""}, {"prompt": 3}, {"prompt": "\ud800"}, {"prompt": "unlabelled"}]),
    st.just({"prompt": "far too long " * 9, "kind": "py"}),
)
EVALS = [{"q": "is it question 7?"}, {"q": "sum 11"}]
tables = st.lists(st.lists(row, min_size=1, max_size=25), min_size=1, max_size=3)


def mixed(world: World, drawn: list[list[dict[str, Any]]], **changes: Any) -> dict[str, Any]:
    """Sources that overlap, hold broken rows, and are labelled by a column."""
    rule = {"column": "kind", "map": {"py": "coding", "m": "math"}}
    sources = []
    for number, rows in enumerate(drawn):
        world.jsonl(f"s{number}/a.jsonl", [{"prompt": f"coding {number}", "kind": "py"}, *rows])
        world.jsonl(f"s{number}/b.jsonl", [{"prompt": f"maths {number}", "kind": "m"}, *rows[::2]])
        sources.append({"name": f"s{number}", "path": f"s{number}", "category": rule, "priority": number % 2})
    return {
        "sources": sources,
        "mix": {"total": 6, "shares": {"coding": 2, "math": 1}, "shortage": "rescale", "holdout": 0.2},
        "filters": {"prompt_chars": [1, 60]},
        "dedup": {"near": 0.9},
        "decontaminate": {"ngram": 2, "against": [{"path": world.jsonl("evals.jsonl", EVALS), "field": "q"}]},
        **changes,
    }


def planned(world: World, body: dict[str, Any], workspace: Workspace | None = None) -> BuildPlan | None:
    try:
        return world.plan(world.manifest(**body), workspace)
    except UserError as error:
        assert "too few prompts" in str(error)
        return None


def taken(world: World, plan: BuildPlan, workspace: Workspace | None = None) -> pl.DataFrame:
    return selected_rows(workspace or world.workspace, plan).sort("prompt_id")


def frames(world: World, plan: BuildPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    folder = world.workspace.candidates(plan.candidates_id)
    return pl.read_parquet(folder / "prompts.parquet"), pl.read_parquet(folder / "drops.parquet")


def committed(world: World, manifest: Any) -> BuildPlan:
    with open_ledger(world.workspace, "build") as ledger:
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
    return plan


@FEW
@given(tables)
def test_what_is_read_is_kept_or_dropped_with_a_reason(
    make_world: Callable[[], World], drawn: list[list[dict[str, Any]]]
) -> None:
    world = make_world()
    plan = planned(world, mixed(world, drawn))
    if plan is None:
        return
    kept, drops = frames(world, plan)
    assert kept["prompt_id"].n_unique() == kept.height
    for number, (pool, rows) in enumerate(zip(plan.pools, drawn, strict=True)):
        read = load_chunks(world.workspace, pool)
        parse_drops = read.filter(pl.col("reason").is_not_null())
        own = [frame.filter(pl.col("source") == f"s{number}") for frame in (kept, drops)]
        assert read.height == 2 + len(rows) + len(rows[::2])
        assert read.height == parse_drops.height + own[0].height + own[1].height
        assert own[1]["reason"].null_count() == 0
        # every row of the source is in exactly one of the three
        places = [
            place for frame in (parse_drops, *own) for place in frame.select("file", "row_index").iter_rows()
        ]  # fmt: skip
        assert max(Counter(places).values()) == 1
    everything = pl.concat([load_chunks(world.workspace, pool) for pool in plan.pools])
    assert set(kept["prompt_id"]) <= set(everything["prompt_id"].drop_nulls())
    assert drops.filter(pl.col("reason") == "duplicate")["winner_prompt_id"].null_count() == 0
    assert set(drops["winner_prompt_id"].drop_nulls()) <= set(kept["prompt_id"])


@FEW
@given(tables)
def test_every_prompt_of_a_build_has_a_source_row_and_none_is_there_twice(
    make_world: Callable[[], World], drawn: list[list[dict[str, Any]]]
) -> None:
    world = make_world()
    plan = planned(world, mixed(world, drawn))
    if plan is None:
        return
    with open_ledger(world.workspace, "build") as ledger:
        commit_build(plan, world.workspace, ledger)
        twice = "SELECT prompt_id FROM selections GROUP BY prompt_id, replica HAVING count(*) > 1"
        assert ledger.rows(twice) == []
        without_row = (
            "SELECT s.prompt_id FROM selections s "
            "LEFT JOIN prompt_sources p ON p.prompt_id = s.prompt_id AND p.kept "
            "LEFT JOIN source_rows r ON r.pool_id = p.pool_id AND r.file = p.file AND r.row_index = p.row_index "
            "AND r.prompt_id = s.prompt_id WHERE r.prompt_id IS NULL"
        )
        assert ledger.rows(without_row) == []
        for source in (f"s{number}" for number in range(len(drawn))):
            reasons = dict(ledger.rows("SELECT reason, sum(rows) FROM funnel WHERE source = ? GROUP BY 1", source))
            assert reasons.pop("read") == sum(reasons.values())


@FEW
@given(tables, st.randoms())
def test_the_order_of_sources_changes_nothing(
    make_world: Callable[[], World], drawn: list[list[dict[str, Any]]], random: Any
) -> None:
    world = make_world()
    body = mixed(world, drawn)
    shuffled = list(body["sources"])
    random.shuffle(shuffled)
    one, other = planned(world, body), planned(world, body | {"sources": shuffled}, Workspace(world.root / "other"))
    assert (one is None) == (other is None)
    if one and other:
        assert (one.candidates_id, one.build_id, one.prefixes) == (other.candidates_id, other.build_id, other.prefixes)
        assert taken(world, one).equals(taken(world, other, Workspace(world.root / "other")))


@FEW
@given(tables, st.integers(1, 8), st.integers(0, 6))
def test_a_larger_total_is_a_superset_and_sorts_nothing_again(
    make_world: Callable[[], World], drawn: list[list[dict[str, Any]]], total: int, more: int
) -> None:
    world = make_world()
    body = mixed(world, drawn)

    def of(count: int) -> BuildPlan | None:
        return planned(world, body | {"mix": {**body["mix"], "total": count, "shares": {"coding": 1, "math": 1}}})

    small, large = of(2 * total), of(2 * (total + more))
    if small is None or large is None:
        return
    assert small.candidates_id == large.candidates_id
    assert set(taken(world, small)["prompt_id"]) <= set(taken(world, large)["prompt_id"])


@FEW
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), st.integers(1, 30))
def test_the_holdout_is_the_same_prompts_whatever_the_shares(
    make_world: Callable[[], World], a: int, b: int, c: int, d: int
) -> None:
    world = make_world()
    shares = ({"coding": a, "general": b}, {"coding": c, "general": d})
    plans = [
        planned(world, {"mix": {"total": 20, "shares": share, "holdout": 0.3, "shortage": "rescale"}, "seed": seed})
        for seed, share in enumerate(shares)
    ]
    if None in plans:
        return
    marked = [set(frames(world, plan)[0].filter(pl.col("holdout"))["prompt_id"]) for plan in plans if plan]
    assert marked[0] == marked[1]  # the seed moves the order, never the holdout
    for plan in plans:
        assert plan is not None
        rows = taken(world, plan)
        assert set(rows.filter(~pl.col("holdout"))["prompt_id"]).isdisjoint(marked[0])
        assert set(rows.filter(pl.col("holdout"))["prompt_id"]) <= marked[0]
        assert plan.selected == rows.filter(~pl.col("holdout")).height == sum(plan.quotas.rows.values())
        assert plan.held_out == rows.filter(pl.col("holdout")).height > 0


def test_the_same_manifest_in_another_folder_is_the_same_build(make_world: Callable[[], World]) -> None:
    one, other = make_world(), make_world()
    plans = [world.plan(world.manifest()) for world in (one, other)]
    assert plans[0].build_id == plans[1].build_id
    assert plans[0].candidates_id == plans[1].candidates_id
    assert [pool.pool_id for pool in plans[0].pools] == [pool.pool_id for pool in plans[1].pools]
    assert taken(one, plans[0]).equals(taken(other, plans[1]))


def test_shares_weights_and_recipes_read_and_sort_nothing_again(world: World) -> None:
    first = world.plan(world.manifest())
    files = {path: path.stat().st_mtime_ns for path in world.workspace.root.rglob("*.parquet")}
    sources = [{**source, "weight": 3.0} for source in world.body()["sources"]]
    second = world.plan(
        world.manifest(mix={"total": 12, "shares": {"coding": 5, "general": 1}, "holdout": 0.1}, sources=sources)
    )
    assert second.build_id != first.build_id
    assert {path: path.stat().st_mtime_ns for path in world.workspace.root.rglob("*.parquet")} == files


class Hub:
    """Resolves a "dataset" to local files, so that it is read file by file, as from the Hub."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __call__(self, source: Any, base: Path, digests: FileDigests) -> Any:
        local = source.model_copy(update={"dataset": None, "path": source.dataset.partition("/")[2]})
        return replace(resolve_source(local, base, digests), source=source)


@pytest.fixture
def hub(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A world whose source is read one file after the other; the manifest that takes six prompts of it."""
    for number in range(4):
        world.jsonl(f"data/{number}.jsonl", [{"prompt": f"question {number} {i}"} for i in range(10)])
    monkeypatch.setattr(building, "resolve_source", Hub(world))
    monkeypatch.setattr(pools, "CHUNK_ROWS", 10)
    return {
        "sources": [{"name": "hub", "dataset": "org/data", "category": "coding"}],
        "mix": {"total": 6, "shares": {"coding": 1}, "holdout": 0.0},
    }


def test_a_build_is_read_no_deeper_than_it_needs(world: World, hub: dict[str, Any]) -> None:
    depths = []
    for total in (6, 11, 21, 40):
        plan = world.plan(world.manifest(**{**hub, "mix": {**hub["mix"], "total": total}}))
        depths.append(len(plan.pools[0].chunks))
        assert plan.selected == total
    assert depths == [1, 2, 3, 4]
    with pytest.raises(UserError, match="too few prompts"):
        world.plan(world.manifest(**{**hub, "mix": {**hub["mix"], "total": 41}}))


def test_deeper_cached_pools_do_not_change_a_build(world: World, hub: dict[str, Any]) -> None:
    manifest = world.manifest(**hub)
    fresh = world.plan(manifest, Workspace(world.root / "fresh"))
    digests = FileDigests(world.root / "digests.json")
    resolved = Hub(world)(manifest.sources[0], world.root, digests)
    assert len(PoolReader(world.workspace, resolved, digests).read(4).chunks) == 4
    plan = world.plan(manifest)
    assert (plan.build_id, plan.candidates_id) == (fresh.build_id, fresh.candidates_id)
    assert taken(world, plan).equals(taken(world, fresh, Workspace(world.root / "fresh")))


def test_reading_deeper_takes_a_superset_also_beside_another_source(
    world: World, hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.jsonl("local.jsonl", [{"prompt": f"local {i}"} for i in range(60)])
    hub["sources"].append({"name": "local", "path": "local.jsonl", "category": "coding"})
    real = building.resolve_source

    def either(source: Any, *rest: Any) -> Any:
        return real(source, *rest) if source.dataset else resolve_source(source, *rest)

    monkeypatch.setattr(building, "resolve_source", either)
    before: set[str] = set()
    for total in (4, 20, 40, 60, 80):
        plan = world.plan(world.manifest(**{**hub, "mix": {**hub["mix"], "total": total}}))
        now = set(taken(world, plan)["prompt_id"])
        assert before <= now
        before = now


def test_a_shortage_is_a_table_and_nothing_is_built(world: World) -> None:
    manifest = world.manifest(mix={"total": 100, "shares": {"coding": 3, "general": 1}, "holdout": 0.0})
    with open_ledger(world.workspace, "build") as ledger:
        with pytest.raises(UserError) as caught:
            world.plan(manifest)
        assert ledger.rows("SELECT count(*) FROM builds") == [(0,)]
    lines = str(caught.value).splitlines()
    assert lines[0] == "small: too few prompts; nothing was built."
    assert [line.split() for line in lines[1:3]] == [
        ["category", "wanted", "available", "missing"],
        ["coding", "75", "40", "35"],
    ]
    assert [line.split()[1] for line in lines[3:6]] == ["fail", "rescale", "repeat"]
    assert "builds 53 of 100 prompts with these shares" in lines[4]
    assert "builds 100 with max_repeats: 2 (coding asked 1.9 times" in lines[5]
    assert not list((world.workspace.root / "builds").glob("*"))


def test_rescale_builds_what_fits_and_says_so(world: World) -> None:
    mix = {"total": 100, "shares": {"coding": 3, "general": 1}, "holdout": 0.0, "shortage": "rescale"}
    plan = world.plan(world.manifest(mix=mix))
    assert plan.quotas.rows == {"coding": 40, "general": 13}
    assert any("rescaled from 100 to 53" in note for note in plan.notes)


def test_rescale_never_builds_nothing(world: World) -> None:
    body = world.body(filters={"prompt_chars": 1}, mix={"total": 4, "shares": {"coding": 1}, "shortage": "rescale"})
    body["sources"] = body["sources"][:1]
    with pytest.raises(UserError) as caught:
        world.plan(world.manifest(**body))
    assert "Not even one prompt fits these shares" in str(caught.value)
    assert ["coding", "4", "0", "4"] in [line.split() for line in str(caught.value).splitlines()]


def test_a_token_filter_counts_only_survivors_and_drops_what_the_template_refuses(world: World) -> None:
    manifest = world.manifest(filters={"prompt_tokens": 3}, mix={"total": 8, "shares": {"coding": 1, "general": 1}})
    counted: list[str] = []

    def count(rows: Any) -> list[int | None]:
        counted.extend(messages for messages, _ in rows)
        return [None if '"talk question 7"' in m else 5 if "question 3" in m else 3 for m, _ in rows]

    plan = building.plan_build(manifest, world.root, world.workspace, TokenRule(count, "hash"))
    kept, drops = frames(world, plan)
    assert len(counted) == 80
    assert Counter(drops["reason"].to_list()) == {"too_many_tokens": 22, "template_error": 1}
    assert kept["prompt_tokens"].unique().to_list() == [3]
    assert kept.height + drops.height == 80


def test_a_column_that_no_row_has_is_named_with_those_that_are_there(world: World) -> None:
    source = {"name": "a", "path": world.prompts("a", 9), "category": {"column": "topik", "default": "coding"}}
    manifest = world.manifest(mix={"total": 4, "shares": {"coding": 1}}, sources=[source])
    with pytest.raises(UserError, match=r"a\.jsonl: no row has the column topik .* columns are id, prompt"):
        world.plan(manifest)


def test_a_shortage_says_where_the_rows_went(world: World) -> None:
    source = {"name": "a", "path": world.prompts("a", 9), "category": "coding", "where": "id < 5"}
    manifest = world.manifest(
        mix={"total": 40, "shares": {"coding": 1}}, sources=[source], filters={"prompt_chars": [50, 90]}
    )
    with pytest.raises(UserError, match=r"Of 9 rows: 5 too_few_chars, 4 left out by where\."):
        world.plan(manifest)


def test_a_build_is_committed_once_and_its_lock_holds_every_default(world: World) -> None:
    manifest = world.manifest()
    with open_ledger(world.workspace, "build") as ledger:
        plan = world.plan(manifest)
        assert commit_build(plan, world.workspace, ledger)
        assert not commit_build(plan, world.workspace, ledger)
        assert ledger.rows("SELECT selected, held_out FROM builds") == [(plan.selected, plan.held_out)]
    lock = json.loads((world.workspace.build(plan.build_id) / "manifest.lock.yaml").read_text())
    assert lock["manifest"] == manifest.model_dump(mode="json")
    assert [source["chunks"] for source in lock["sources"]] == [1, 1]
    assert [source["revision"] for source in lock["sources"]] == list(plan.revisions.values())
    with open_ledger(world.workspace, "build") as ledger:  # a recipe makes no new build, and the lock says it
        assert not commit_build(world.plan(world.manifest(generation={"max_tokens": 9})), world.workspace, ledger)
    lock = json.loads((world.workspace.build(plan.build_id) / "manifest.lock.yaml").read_text())
    assert lock["manifest"]["generation"]["max_tokens"] == 9


def test_a_build_whose_files_are_gone_is_written_again(world: World) -> None:
    plan = committed(world, world.manifest())
    shutil.rmtree(world.workspace.build(plan.build_id))
    committed(world, world.manifest())
    assert (world.workspace.build(plan.build_id) / "rounds" / "0.parquet").exists()
