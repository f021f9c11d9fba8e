"""Sources to pools: which files a path means, and that a pool is read once, in a fixed order, and only deepens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import pools
from corpus.errors import UserError
from corpus.manifest import Source
from corpus.pools import Pool, PoolReader, load_chunks
from corpus.readers import SourceFile
from corpus.sources import FileDigests, ResolvedSource, in_reading_order, resolve_source
from corpus.workspace import Workspace

World = Any


def source(**changes: Any) -> Source:
    body = {"name": "src", "path": "data", "category": "coding", **changes}
    return Source.model_validate_json(json.dumps(body))


def resolve(world: World, **changes: Any) -> ResolvedSource:
    return resolve_source(source(**changes), world.root, FileDigests(world.workspace.cache / "digests.json"))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "CHUNK_ROWS", 5)


def read_pool(workspace: Workspace, resolved: ResolvedSource, chunks: int | None, skip_bad: bool = False) -> Pool:
    digests = FileDigests(workspace.cache / "digests.json")
    return PoolReader(workspace, resolved, digests, skip_bad).read(chunks)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "prompt": f"question {i}", "lang": "en" if i % 2 else "de"} for i in range(start, start + count)]


def folder(world: World, files: int = 4, each: int = 5) -> None:
    for number in range(files):
        world.jsonl(f"data/part-{number}.jsonl", rows(each, number * each))


class Opened:
    """Files of a resolved source that note when they are opened."""

    def __init__(self, resolved: ResolvedSource) -> None:
        self.names: list[str] = []
        self.resolved = replace(resolved, files=tuple(self._watched(file) for file in resolved.files))

    def _watched(self, file: SourceFile) -> SourceFile:
        def open_it() -> IO[bytes]:
            self.names.append(file.name)
            return file.open()

        return SourceFile(file.name, open_it)


# which files


def test_a_folder_gives_its_readable_files_in_an_order_that_no_file_system_decides(world: World) -> None:
    folder(world)
    (world.root / "data" / "README.md").write_text("not data")
    (world.root / "data" / "deep").mkdir()
    world.jsonl("data/deep/x.jsonl", rows(1))
    names = [file.name for file in resolve(world).files]
    assert sorted(names) == ["deep/x.jsonl", *(f"part-{n}.jsonl" for n in range(4))]
    assert names == in_reading_order(sorted(names, reverse=True))
    assert names != sorted(names)


@given(st.lists(st.text("abc/.", min_size=1, max_size=6), unique=True, max_size=12), st.randoms())
def test_the_reading_order_does_not_depend_on_the_order_of_listing(names: list[str], random: Any) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)
    assert in_reading_order(shuffled) == in_reading_order(names)
    assert sorted(in_reading_order(names)) == sorted(names)


def test_a_glob_and_a_single_file(world: World) -> None:
    folder(world)
    assert len(resolve(world, path="data/part-[01].jsonl").files) == 2
    assert [file.name for file in resolve(world, path="data/part-3.jsonl").files] == ["part-3.jsonl"]
    assert len(resolve(world, path="**/*.jsonl").files) == 4


def test_equal_file_names_below_a_glob_are_different_files(world: World) -> None:
    for name in ("a", "b"):
        world.jsonl(f"data/{name}/train.jsonl", [{"prompt": name}])
    assert sorted(file.name for file in resolve(world, path="data/*/train.jsonl").files) == [
        "a/train.jsonl",
        "b/train.jsonl",
    ]


def test_the_revision_is_the_content(world: World) -> None:
    folder(world)
    before = resolve(world).revision
    os.utime(world.root / "data" / "part-0.jsonl", (1, 1))
    assert resolve(world).revision == before
    world.jsonl("data/part-0.jsonl", rows(4))
    assert resolve(world).revision != before


@pytest.mark.parametrize("path", ["nothing", "data/*.parquet", "empty"])
def test_no_file_there(world: World, path: str) -> None:
    folder(world)
    (world.root / "empty").mkdir()
    with pytest.raises(UserError) as caught:
        resolve(world, path=path)
    assert f"source src: path {world.root / path}: no file there" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_of_no_known_kind(world: World) -> None:
    (world.root / "data.txt").write_text("x")
    with pytest.raises(UserError, match=r"data\.txt: files of this kind are not read"):
        read_pool(world.workspace, resolve(world, path="data.txt"), 1)


# what a pool holds


def test_a_pool_holds_every_row_with_its_origin(world: World) -> None:
    world.jsonl("data/x.jsonl", [{"id": "u1", "prompt": "a"}, {"id": "u2", "prompt": ""}, {"prompt": "b\ud800"}])
    pool = read_pool(world.workspace, resolve(world), 9)
    frame = load_chunks(world.workspace, pool)
    assert frame["row_index"].to_list() == [0, 1, 2]
    assert frame["upstream_id"].to_list() == ["u1", "u2", None]
    assert frame["reason"].to_list() == [None, "empty_prompt", "invalid_unicode"]
    assert frame["prompt_id"].null_count() == 2
    assert frame["file"].unique().to_list() == ["x.jsonl"]
    assert pool.complete
    assert pool.rows == 3
    metadata = pl.read_parquet_metadata(world.workspace.pool(pool.pool_id) / "0.parquet")
    assert metadata["schema_version"] == "2"


def test_a_label_column_is_kept_as_it_is_upstream(world: World) -> None:
    world.jsonl("data/x.jsonl", [{"prompt": "a", "kind": "py"}, {"prompt": "b", "kind": 3}, {"prompt": "c"}])
    rule = {"column": "kind", "map": {"py": "coding"}}
    frame = load_chunks(world.workspace, read_pool(world.workspace, resolve(world, category=rule), 1))
    assert frame["upstream_label"].to_list() == ["py", "3", None]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_limit_counts_what_where_keeps(world: World, kind: str) -> None:
    (world.root / "data").mkdir()
    for number in range(3):
        data = rows(10, number * 10)
        if kind == "parquet":
            pl.DataFrame(data).write_parquet(world.root / "data" / f"{number}.parquet")
        else:
            world.jsonl(f"data/{number}.jsonl", data)
    resolved = resolve(world, where="lang = 'en'", limit=7)
    pool = read_pool(world.workspace, resolved, 9)
    frame = load_chunks(world.workspace, pool)
    assert pool.rows == frame.height == 7
    assert [chunk["rows"] for chunk in pool.chunks] == [5, 2]
    assert pool.chunks[0]["left_out"] == 5
    assert pool.complete
    assert all(int(i) % 2 for i in frame["upstream_id"])
    everything = read_pool(world.workspace, resolve(world, where="lang = 'en'"), 9)
    assert everything.rows == 15
    assert sum(chunk["left_out"] for chunk in everything.chunks) == 15


def test_the_default_weight_is_what_the_source_has_however_deep_it_is_read(world: World) -> None:
    folder(world)
    local = resolve(world)
    assert read_pool(world.workspace, local, 9).weight() == 20
    hub = replace(local, source=source(path=None, dataset="a/b"), rows=None)
    assert read_pool(world.workspace, hub, 1).weight() == read_pool(world.workspace, hub, 3).weight() == 20
    assert read_pool(world.workspace, replace(hub, rows=1000), 1).weight() == 1000
    assert read_pool(world.workspace, replace(hub, source=source(path=None, dataset="a/b", weight=3)), 1).weight() == 3


# read once, only deeper


def test_a_pool_is_read_once(world: World) -> None:
    folder(world)
    resolved = resolve(world)
    first = read_pool(world.workspace, resolved, 9)
    before = load_chunks(world.workspace, first)
    for path in (world.root / "data").iterdir():
        path.unlink()
    watched = Opened(resolved)
    again = read_pool(world.workspace, watched.resolved, 9)
    assert watched.names == []
    assert again.pool_id == first.pool_id
    assert load_chunks(world.workspace, again).equals(before)


def test_a_pool_deepens_by_further_chunks_and_keeps_the_ones_it_has(world: World) -> None:
    folder(world)
    watched = Opened(resolve(world))

    def files(pool: Pool) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in world.workspace.pool(pool.pool_id).glob("*.parquet")}

    shallow = read_pool(world.workspace, watched.resolved, 1)
    assert watched.names == [watched.resolved.files[0].name]
    assert not shallow.complete
    had = files(shallow)
    deep = read_pool(world.workspace, watched.resolved, 3)
    assert watched.names == [file.name for file in watched.resolved.files[:3]]
    assert files(deep).items() >= had.items()
    assert len(files(deep)) == 3
    again = read_pool(world.workspace, watched.resolved, 1)
    assert again.chunks == shallow.chunks
    assert load_chunks(world.workspace, again).equals(load_chunks(world.workspace, shallow))
    assert len(watched.names) == 3
    assert not again.complete


def test_a_pool_whose_chunk_is_gone_is_read_again(world: World) -> None:
    folder(world)
    pool = read_pool(world.workspace, resolve(world), 2)
    before = load_chunks(world.workspace, pool)
    (world.workspace.pool(pool.pool_id) / "1.parquet").unlink()
    assert load_chunks(world.workspace, read_pool(world.workspace, resolve(world), 2)).equals(before)
    (world.workspace.pool(pool.pool_id) / "pool.json").write_text("{half")
    assert load_chunks(world.workspace, read_pool(world.workspace, resolve(world), 2)).equals(before)


# nothing half-written

BREAK: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in half": (lambda data: data[: len(data) // 2], "is not valid JSON"),
    "not a row": (lambda data: data + b"7\n", "row 5 holds int"),
    "unknown shape": (lambda data: b'{"a": 1}\n', "no known format (columns a). Say which: format: {fields:"),
}


@pytest.mark.parametrize("what", BREAK)
def test_a_broken_file_leaves_the_chunks_before_it_and_nothing_of_its_own(world: World, what: str) -> None:
    folder(world, files=2)
    first, second = resolve(world).files
    breaking, said = BREAK[what]
    broken = second if what != "unknown shape" else first
    path = world.root / "data" / broken.name
    whole = path.read_bytes()
    path.write_bytes(breaking(whole))
    resolved = resolve(world)
    with pytest.raises(UserError) as caught:
        read_pool(world.workspace, resolved, 2)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    found = list((world.workspace.root / "pools").glob("*/pool.json"))
    for body in (json.loads(pool.read_text()) for pool in found):
        assert [chunk["files"] for chunk in body["chunks"]] == [[first.name]]
        assert not body["complete"]
    assert len(found) == (what != "unknown shape")
    assert len(list(world.workspace.root.rglob("*.parquet"))) == len(found)
    assert not list(world.workspace.root.rglob("*.tmp"))
    path.write_bytes(whole)
    assert read_pool(world.workspace, resolve(world), 2).rows == 10


def test_a_build_over_a_broken_source_enters_nothing(world: World) -> None:
    world.jsonl("bad.jsonl", rows(5))
    with (world.root / "bad.jsonl").open("a") as file:
        file.write('{"prompt": "cut in ha')
    manifest = world.manifest(
        mix={"total": 2, "shares": {"coding": 1}}, sources=[{"name": "bad", "path": "bad.jsonl", "category": "coding"}]
    )
    with pytest.raises(UserError, match=r"source bad: bad\.jsonl: row 5 \(line 6\) is not valid JSON"):
        world.plan(manifest)
    assert not list((world.workspace.root).rglob("*.parquet"))


@pytest.mark.parametrize("unreadable", [b"PAR1", b""])
def test_an_unreadable_parquet(world: World, unreadable: bytes) -> None:
    (world.root / "x.parquet").write_bytes(unreadable)
    with pytest.raises(UserError, match="not a readable parquet file") as caught:
        read_pool(world.workspace, resolve(world, path="x.parquet"), 1)
    assert "\n" not in str(caught.value)


def test_file_digests_are_remembered_and_a_lost_memory_is_no_error(tmp_path: Path) -> None:
    file, memory = tmp_path / "f", tmp_path / "m.json"
    file.write_bytes(b"one")
    digests = FileDigests(memory)
    value = digests.sha256(file)
    digests.save()
    assert json.loads(memory.read_text())["files"][str(file)][2] == value
    memory.write_text("{half")
    assert FileDigests(memory).sha256(file) == value
