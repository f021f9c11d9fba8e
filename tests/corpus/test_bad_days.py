"""What a bad day brings to a build: odd columns, empty sources, changing files and digits, numbers without sense."""

from __future__ import annotations

import decimal
import json
import os
import re
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus import pools, readers
from corpus.artefacts import read_description, write_description
from corpus.building import BuildPlan, commit_build
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.rebuild import rebuild_workspace
from corpus.ledger.writer import open_ledger
from corpus.manifest import MOST_NGRAM
from corpus.near import plan_bands
from corpus.pools import PoolReader
from corpus.sources import FileDigests, resolve_source
from corpus.words import BLOCK

World = Any
TEXTS = [f"how is thing {i} done" for i in range(8)]


def coding(path: str, **source: Any) -> dict[str, Any]:
    mix = {"total": 4, "shares": {"coding": 1}, "holdout": 0.0, "shortage": "rescale"}
    return {"sources": [{"name": "a", "path": path, "category": "coding", **source}], "mix": mix}


def committed(world: World, **changes: Any) -> BuildPlan:
    with open_ledger(world.workspace, "build") as ledger:
        plan: BuildPlan = world.plan(world.manifest(**changes))
        commit_build(plan, world.workspace, ledger)
    return plan


def write_table(world: World, name: str, table: pa.Table) -> str:
    path = str(world.root / name)
    if name.endswith(".parquet"):
        pq.write_table(table, path)
    else:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    return name


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_part_of_a_table_of_which_where_leaves_nothing_is_no_damage(world: World, kind: str) -> None:
    rows = 25_000  # three pieces of one row group, the first two of them without a row that is kept
    table = pa.table({"prompt": [f"how is thing {i} done" for i in range(rows)], "n": list(range(rows))})
    name = write_table(world, f"x.{kind}", table)
    for skip in ("stop", "skip"):
        plan = world.plan(world.manifest(**coding(name, where=f"n >= {rows - 9}"), on_bad_row=skip))
        assert (plan.pools[0].rows, plan.available) == (9, {"coding": 9})


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
def test_two_columns_of_one_name_are_one_line(world: World, kind: str) -> None:
    if kind == "csv":
        (world.root / "x.csv").write_text("prompt,n,n\nwhat is this,1,2\n")
    else:
        write_table(
            world, f"x.{kind}", pa.Table.from_arrays([pa.array(TEXTS), *2 * [pa.array(range(8))]], ["prompt", "n", "n"])
        )
    with pytest.raises(
        UserError, match=rf"^source a: x\.{kind}: has 2 columns named n\. Rename or remove one of them\.$"
    ):
        world.plan(world.manifest(**coding(f"x.{kind}")))


ODD_COLUMNS = {
    "decimal256": pa.array([decimal.Decimal(10) ** 60] * 8, pa.decimal256(70, 2)),
    "offset": pa.array([0] * 8, pa.timestamp("s", "+05:30")),
    "nested": pa.array([{"at": 0, "much": decimal.Decimal(1)}] * 8,
                       pa.struct([("at", pa.timestamp("s", "+05:30")), ("much", pa.decimal256(70, 2))])),
    "interval": pa.array([(1, 2, 3)] * 8, pa.month_day_nano_interval()),
    "run_ends": pa.RunEndEncodedArray.from_arrays(pa.array([8], pa.int32()), pa.array(["y"])),
    "union": pa.UnionArray.from_sparse(pa.array([0] * 8, pa.int8()), [pa.array(range(8))]),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_COLUMNS)
def test_a_column_that_polars_cannot_hold_is_a_label_and_a_condition_all_the_same(world: World, name: str) -> None:
    column = ODD_COLUMNS[name]
    path = write_table(world, "x.arrow", pa.table({"prompt": TEXTS, "odd": column, "id": column}))
    body = coding(path, where="odd is not null")
    body["sources"][0]["category"] = {"column": "odd", "default": "coding"}
    plan = world.plan(world.manifest(**body))
    chunk = pl.read_parquet(world.workspace.pool(plan.pools[0].pool_id) / "0.parquet")
    assert chunk.select("upstream_label", "messages").null_count().row(0) == (0, 0)
    assert plan.available == {"coding": 8}


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.json", "x.parquet"])
def test_a_source_without_a_row_is_told_by_the_table_and_harms_no_other(world: World, name: str) -> None:
    (world.root / name).write_bytes({"x.jsonl": b"\n\n", "x.csv": b"prompt\n", "x.json": b"[]"}.get(name, b""))
    if name == "x.parquet":
        pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), world.root / name)
    for rule in ("coding", "classify", {"column": "kind", "default": "coding"}):
        body = coding(name, category=rule)
        with pytest.raises(UserError, match=r"too few prompts(.|\n)*Of 0 rows: none was dropped"):
            world.plan(world.manifest(**body, filters={"language": ["en"]}))
        body["sources"].append({"name": "b", "path": world.prompts("b", 9), "category": "coding"})
        plan = committed(world, **body, filters={"language": ["en"]})
        assert plan.selected == 4
        assert query(world.workspace, "SELECT DISTINCT source FROM funnel").rows() == [("b",)]


def test_a_condition_is_judged_beside_a_column_whose_name_is_no_text(world: World) -> None:
    world.jsonl("x.jsonl", [{"prompt": text, "a\ud800": 1} for text in TEXTS])
    assert world.plan(world.manifest(**coding("x.jsonl", where="prompt like '%3%'"))).pools[0].rows == 1


def test_a_file_name_that_is_no_text_is_one_line(world: World) -> None:
    (world.root / "data").mkdir()
    with open(os.fsencode(world.root / "data") + b"/\xff.jsonl", "w") as file:  # noqa: PTH123
        file.write('{"prompt": "what is this"}\n')
    with pytest.raises(
        UserError, match=r"^source a: the file name '\\udcff\.jsonl' is not UTF-8 .* Rename the file\.$"
    ):
        world.plan(world.manifest(**coding("data")))


def test_links_in_a_circle_below_a_pattern_are_gone_through_once(world: World) -> None:
    world.jsonl("data/b/x.jsonl", [{"prompt": "what is this"}])
    world.jsonl("data/.hidden/y.jsonl", [{"prompt": "what is that"}])
    world.jsonl("elsewhere/z.jsonl", [{"prompt": "what is there"}])
    for name, to in (("up", ".."), ("self", "."), ("dead.jsonl", "gone"), ("out", "../../elsewhere")):
        (world.root / "data/b" / name).symlink_to(to)
    for pattern in ("data/**/*.jsonl", "data/**", "data/**/b/**/?.jsonl"):
        found = resolve_source(
            world.manifest(**coding(pattern)).sources[0], world.root, FileDigests(world.root / "d.json")
        )
        assert sorted(file.name for file in found.files) == ["b/out/z.jsonl", "b/x.jsonl"], pattern


@pytest.mark.parametrize("skip", ["stop", "skip"])
def test_a_file_that_changes_while_it_is_read_is_one_line_and_no_pool(
    world: World, skip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = world.prompts("a", 50)
    real = readers.read_pieces

    def grown(file: Any, *rest: Any) -> Any:
        with (world.root / name).open("a") as more:
            more.write('{"prompt": "one more"}\n')
        return real(file, *rest)

    monkeypatch.setattr(pools, "read_pieces", grown)
    said = r"^source a: a\.jsonl: changed while it was read\. Run again when nothing writes to it\.$"
    with pytest.raises(UserError, match=said):
        world.plan(world.manifest(**coding(name), on_bad_row=skip))
    assert not list((world.workspace.root / "pools").rglob("*.parquet"))
    monkeypatch.undo()
    assert world.plan(world.manifest(**coding(name), on_bad_row=skip)).pools[0].rows == 51


def test_a_changed_digit_in_what_a_folder_says_of_itself_is_healed_and_never_another_build(world: World) -> None:
    plan = committed(world)
    places = [
        world.workspace.pool(plan.pools[0].pool_id) / "pool.json",
        world.workspace.candidates(plan.candidates_id) / "candidates.json",
        world.workspace.build(plan.build_id) / "build.json",
    ]
    for path in places:
        good = path.read_bytes()
        for number, found in enumerate(re.finditer(rb"\d", good)):
            path.write_bytes(good[: found.start()] + (b"7" if found[0] != b"7" else b"3") + good[found.end() :])
            with pytest.raises(ValueError, match=r"digest"):
                read_description(path)
            if number % 40 == 7:  # healing takes a moment
                assert committed(world).build_id == plan.build_id
                assert path.read_bytes() == good


def test_a_description_of_an_older_draftmill_is_believed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"rows": 3}))
    assert read_description(tmp_path / "a.json") == {"rows": 3}
    write_description(tmp_path / "b.json", {"rows": 3})
    assert read_description(tmp_path / "b.json") == {"rows": 3}
    for text in ("[]", "3", '{"of": 3}', '{"of": "0", "rows": NaN}', ""):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(ValueError, match=r"."):
            read_description(tmp_path / "c.json")


def test_name_licence_and_tolerance_of_a_build_are_those_of_its_last_manifest(world: World) -> None:
    first = committed(world)
    made = query(world.workspace, "SELECT created_at FROM builds").rows()
    body = world.body()
    body["mix"]["tolerance"], body["name"] = 2.0, "renamed"
    for source, licence in zip(body["sources"], ("cc-by-4.0", None), strict=True):
        source["license"] = licence
    assert committed(world, **body).build_id == first.build_id
    assert query(world.workspace, "SELECT name, tolerance FROM builds").rows() == [("renamed", 2.0)]
    assert query(world.workspace, "SELECT created_at FROM builds").rows() == made
    for table in ("sources", "pools"):
        licences = query(world.workspace, f"SELECT license FROM {table} ORDER BY ALL").rows()
        assert licences == [("cc-by-4.0",), (None,)]


def test_a_pool_that_a_dry_run_beside_has_read_deeper_is_not_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "CHUNK_ROWS", 10)
    for number in range(4):
        world.jsonl(f"data/{number}.jsonl", [{"prompt": f"question {number} {i}"} for i in range(10)])
    source = world.manifest(**coding("data")).sources[0]
    digests = FileDigests(world.root / "digests.json")
    mine, other = (PoolReader(world.workspace, resolve_source(source, world.root, digests), digests) for _ in range(2))
    real, path = mine._read_chunk, mine.folder / "pool.json"

    def beside(number: int, *rest: Any) -> Any:
        if number == 1:
            other.read(4)
        return real(number, *rest)

    monkeypatch.setattr(mine, "_read_chunk", beside)
    assert len(mine.read(2).chunks) == 2
    assert len(read_description(path)["chunks"]) == 4


def test_a_workspace_of_the_first_draftmill_is_rebuilt_and_nothing_of_it_is_lost(world: World) -> None:
    rows = [{"id": i, "prompt": f"question {i // 2} and more of it"} for i in range(60)]
    mix = {"total": 12, "shares": {"coding": 1}, "holdout": 0.1}
    source = {"name": "a", "path": world.jsonl("a.jsonl", rows), "category": "coding"}
    committed(world, sources=[source], mix=mix)
    names = ("prompts", "source_rows", "drops", "selections", "funnel", "composition", "prompt_sources")
    before = [query(world.workspace, f"SELECT * FROM {name} ORDER BY ALL").rows() for name in names]
    root = world.workspace.root
    for pattern, lacking in (
        ("candidates/*/drops.parquet", ["similarity", "eval_set", "eval_item", "overlap"]),
        ("builds/*/rounds/0.parquet", ["available"]),
        ("pools/*/0.parquet", ["original", "letters", "file"]),
    ):
        for path in root.glob(pattern):
            pl.read_parquet(path).drop(lacking).write_parquet(path)
    for path in (*root.glob("pools/*/pool.json"), *root.glob("builds/*/build.json"), *root.glob("candidates/*/*.json")):
        body = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("of", "rows_unread")}
        for chunk in body.get("chunks", []):
            chunk["file"] = chunk.pop("files")[0]
        path.write_text(json.dumps(body))
    rebuild_workspace(world.workspace)
    assert [query(world.workspace, f"SELECT * FROM {name} ORDER BY ALL").rows() for name in names] == before
    assert not list(root.rglob("*.damaged"))


def tokens(mean: float) -> dict[str, Any]:
    mix = {"total": 9, "unit": "response_tokens", "shares": {"coding": 1}, "mean_response_tokens": {"coding": mean}}
    return {"mix": mix}


SETS = [{"path": "x", "field": "q"}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dedup": {"near": 1e-9}}, "dedup.near: 1e-09 is too low; it must be at least 0.01"),
        ({"decontaminate": {"ngram": MOST_NGRAM + 1, "against": SETS}}, "it must be at most 65536"),
        (tokens(1e-300), "mix.mean_response_tokens.coding is 1e-300; it must be from 0.001 to 1e+09"),
        (tokens(1e300), "mix.mean_response_tokens.coding is 1e+300; it must be from 0.001 to 1e+09"),
    ],
)
def test_a_number_without_sense_is_one_line(world: World, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        world.manifest(**change)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_limits_of_a_manifest_are_those_of_the_code() -> None:
    assert MOST_NGRAM == BLOCK
    assert plan_bands(0.01).bands < 1000


def test_more_replicas_than_can_be_held_are_one_line(world: World) -> None:
    body = coding(world.prompts("a", 9))
    body["mix"] |= {"total": 10**12, "shortage": "repeat", "max_repeats": 10**15}
    with pytest.raises(UserError, match=r"^small: 1,000,000,000,000 prompts would be asked, .* Lower mix\.total\.$"):
        world.plan(world.manifest(**body))


def test_the_columns_of_a_shortage_stay_apart_whatever_their_numbers(world: World) -> None:
    mix = {"total": 10**15, "shares": {"coding": 1, "general": 1}, "holdout": 0.0}
    with pytest.raises(UserError) as caught:
        world.plan(world.manifest(mix=mix))
    assert str(caught.value).splitlines()[2].split() == ["coding", "500,000,000,000,000", "40", "499,999,999,999,960"]
