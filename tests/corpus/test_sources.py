"""Local sources that are more than a file: saved datasets, folders of many files, and how their rows are counted."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus import pools
from corpus.errors import UserError
from corpus.evalsets import resolve_eval_sets
from corpus.manifest import Source
from corpus.pools import Pool, PoolReader, load_chunks
from corpus.sources import FileDigests, ResolvedSource, resolve_source

World = Any
MANY = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def resolve(world: World, path: str = "data", **changes: Any) -> ResolvedSource:
    source = Source.model_validate_json(json.dumps({"name": "src", "path": path, "category": "coding", **changes}))
    return resolve_source(source, world.root, FileDigests(world.workspace.cache / "digests.json"))


def read(world: World, resolved: ResolvedSource, chunks: int | None = None) -> Pool:
    digests = FileDigests(world.workspace.cache / "digests.json")
    return PoolReader(world.workspace, resolved, digests).read(chunks)


def body(world: World, pool: Pool) -> dict[str, Any]:
    return dict(json.loads((world.workspace.pool(pool.pool_id) / "pool.json").read_text()))


def refused(world: World, said: str, **source: Any) -> None:
    with pytest.raises(UserError) as caught:
        resolve(world, **source)
    line = str(caught.value)
    assert said in line
    assert line.startswith("source src: path ")
    assert "\n" not in line


# saved datasets

SAVE = """
import sys, datasets
datasets.disable_progress_bars()
rows = datasets.Dataset.from_list([{"id": i, "prompt": f"question {i}"} for i in range(40)])
rows.info.license = "mit"
rows.select([7, 3, 30]).save_to_disk(sys.argv[1] + "/one")
splits = datasets.DatasetDict({"train": rows, "test": rows.select(range(4))})
splits.save_to_disk(sys.argv[1] + "/two", num_shards={"train": 3, "test": 1})
loaded = datasets.load_from_disk(sys.argv[1] + "/one")
loaded.filter(lambda row: row["id"] == 7)  # leaves a cache file beside the rows
"""


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    subprocess.run([sys.executable, "-c", SAVE, str(folder)], check=True, capture_output=True)
    return folder


def test_a_saved_dataset_is_its_rows_in_the_order_of_its_selection(world: World, saved: Path) -> None:
    assert list((saved / "one").glob("cache-*.arrow"))
    resolved = resolve(world, str(saved / "one"))
    assert [file.name for file in resolved.files] == ["data-00000-of-00001.arrow"]
    assert resolved.license == "mit"
    assert resolve(world, str(saved / "one"), license="apache-2.0").license == "apache-2.0"
    assert load_chunks(world.workspace, read(world, resolved))["upstream_id"].to_list() == ["7", "3", "30"]


def test_a_saved_dataset_dict_takes_a_split(world: World, saved: Path) -> None:
    train = resolve(world, str(saved / "two"))
    assert sorted(file.name for file in train.files) == [f"train/data-0000{i}-of-00003.arrow" for i in range(3)]
    pool = read(world, train)
    assert (pool.rows, body(world, pool)["split"], train.license) == (40, "train", "mit")
    test = read(world, resolve(world, str(saved / "two"), split="test"))
    assert (test.rows, body(world, test)["split"]) == (4, "test")
    assert test.pool_id != pool.pool_id
    refused(world, "has no split dev; it has train, test", path=str(saved / "two"), split="dev")


def test_a_folder_above_saved_datasets_gives_their_rows_and_nothing_that_lies_beside(world: World, saved: Path) -> None:
    names = sorted(file.name for file in resolve(world, str(saved)).files)
    assert names == [
        "one/data-00000-of-00001.arrow", "two/test/data-00000-of-00001.arrow",
        *(f"two/train/data-0000{i}-of-00003.arrow" for i in range(3)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ('{"_data_files": [{"filename": "data-7.arrow"}]}', "data-7.arrow is missing, which saved/state.json names"),
        ("{half", "saved/state.json cannot be read ("),
        ("[]", "saved/state.json names no data files"),
        ('{"_data_files": [], "_indices_data_files": [{"filename": "x"}]}', "selection by an indices file"),
    ],
)
def test_a_saved_dataset_that_is_not_whole_is_one_line(world: World, state: str, said: str) -> None:
    folder = world.root / "saved"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(state)
    refused(world, said, path="saved")


# a path that means no file

READ = " Read are .parquet, .jsonl, .ndjson, .json, .csv, .arrow, each also with .gz or .zst."


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("raw/pref.jsonl", ". Did you mean prefs.jsonl.gz?"),
        ("raw/talk.jsonl", "."),
        ("rwa/prefs.jsonl.gz", ": {base} has no rwa. Did you mean raw?"),
        ("raw/prefs.jsonl.gz/more.jsonl", ": prefs.jsonl.gz is a file."),
        ("raw/*.csv", ": nothing matches."),
        ("empty", " that is read: the folder and those below hold none."),
        ("raw/pipe.jsonl", ": it is no regular file."),
        ("raw/link.jsonl", ": it is a link that leads nowhere."),
    ],
)
def test_a_path_without_a_file_is_said_once_with_why_and_what_is_near(world: World, path: str, said: str) -> None:
    world.jsonl("raw/prefs.jsonl.gz", [])
    world.jsonl("raw/notes.txt", [])
    world.jsonl("empty/pref.txt", [])
    os.mkfifo(world.root / "raw" / "pipe.jsonl")
    (world.root / "raw" / "link.jsonl").symlink_to("gone.jsonl")
    whole = world.root / path
    line = f"path {whole}: no file there{said.format(base=world.root.name)}{READ}"
    with pytest.raises(UserError) as caught:
        resolve(world, path=path)
    assert str(caught.value) == f"source src: {line}"


def test_an_evaluation_set_that_is_not_there_is_not_called_a_source(world: World) -> None:
    manifest = world.manifest(decontaminate={"against": [{"path": "evals.jsonl", "field": "q"}]})
    digests = FileDigests(world.workspace.cache / "digests.json")
    with pytest.raises(UserError) as caught:
        resolve_eval_sets(manifest, world.root, digests)
    assert str(caught.value).startswith(f"decontaminate.against[0]: path {world.root / 'evals.jsonl'}: no file there")


# what a limit leaves unread


def parquet_files(world: World) -> None:
    (world.root / "data").mkdir()
    for number in range(3):
        rows = [{"prompt": f"question {number} {i}", "lang": "en" if i % 2 else "de"} for i in range(10)]
        pl.DataFrame(rows).write_parquet(world.root / "data" / f"{number}.parquet", row_group_size=4)


@given(limit=st.integers(1, 35), where=st.booleans(), chunk_rows=st.integers(1, 12))
@MANY
def test_what_a_source_has_is_read_left_out_by_where_or_left_unread_by_limit(
    make_world: Any, limit: int, where: bool, chunk_rows: int
) -> None:
    world = make_world()
    parquet_files(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "CHUNK_ROWS", chunk_rows)
        pool = read(world, resolve(world, limit=limit, where="lang = 'en'" if where else None))
    said = body(world, pool)
    left_out = sum(chunk["left_out"] for chunk in pool.chunks)
    assert pool.rows == min(limit, 15 if where else 30)
    assert said["rows_total"] == 30 == pool.rows + left_out + said["rows_unread"]
    assert pool.complete


def test_what_a_limit_leaves_unread_of_json_lines_nobody_knows(world: World) -> None:
    world.jsonl("data/a.jsonl", [{"prompt": f"question {i}"} for i in range(9)])
    said = body(world, read(world, resolve(world, limit=4)))
    assert (said["rows_total"], said["rows_unread"], said["complete"]) == (None, None, True)
    said = body(world, read(world, resolve(world, limit=9)))
    assert (said["rows_total"], said["rows_unread"]) == (9, 0)


# a source is the same rows however it is read

KINDS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet", "csv", "json", "arrow")
rows_of_files = st.lists(
    st.lists(st.text("ab \u00e9\n", max_size=6), min_size=0, max_size=12), min_size=1, max_size=4
)  # fmt: skip


def write(path: Path, kind: str, prompts: list[str]) -> None:
    rows = [{"prompt": prompt, "id": f"{path.name}-{i}"} for i, prompt in enumerate(prompts)]
    frame = pl.DataFrame(rows, schema={"prompt": pl.String, "id": pl.String})
    if kind.startswith("jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(compressed(text, kind))
    elif kind == "parquet":
        frame.write_parquet(path, row_group_size=3)
    elif kind == "arrow":
        frame.write_ipc_stream(path)
    elif kind == "csv":
        frame.write_csv(path)
    else:
        path.write_text(json.dumps(rows))


def compressed(data: bytes, kind: str) -> bytes:
    if kind.endswith(".gz"):
        return gzip.compress(data)
    return bytes(pa.compress(data, codec="zstd", asbytes=True)) if kind.endswith(".zst") else data


@given(
    files=rows_of_files,
    kinds=st.data(),
    chunk_rows=st.integers(1, 9),
    piece=st.integers(1, 5),
    limit=st.integers(1, 30),
)
@MANY
def test_a_pool_read_at_once_is_the_pool_read_chunk_by_chunk_and_after_any_loss(
    make_world: Any, files: list[list[str]], kinds: Any, chunk_rows: int, piece: int, limit: int
) -> None:
    at_once, slowly = make_world(), make_world()
    (at_once.root / "data").mkdir()
    for number, prompts in enumerate(files):
        kind = kinds.draw(st.sampled_from(KINDS))
        write(at_once.root / "data" / f"{number}.{kind}", kind, prompts)
    (at_once.root / "data" / "first.jsonl").write_text('{"prompt": "first", "id": "first"}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "CHUNK_ROWS", chunk_rows)
        for module in ("corpus.tables", "corpus.pieces"):
            patch.setattr(f"{module}.PIECE_ROWS", piece)
        patch.setattr("corpus.lines.PIECE_BYTES", piece * 40)
        resolved = resolve(at_once, limit=limit, format="prompt")
        whole = read(at_once, resolved)
        for depth in range(1, len(whole.chunks) + 1):
            part = read(slowly, resolved, depth)
            assert part.chunks == whole.chunks[:depth]
            if kinds.draw(st.booleans()):  # a kill, or a file lost: the last chunk is gone
                (slowly.workspace.pool(part.pool_id) / f"{depth - 1}.parquet").unlink()
        deep = read(slowly, resolved)
        assert deep.chunks == whole.chunks
        assert body(slowly, deep) == body(at_once, whole)
        assert load_chunks(slowly.workspace, deep).equals(load_chunks(at_once.workspace, whole))
    expected = min(limit, 1 + sum(map(len, files)))
    assert whole.rows == expected


DAMAGE = {
    "half of it": lambda text: text[: len(text) // 2],
    "another format": lambda text: text.replace('"format": "prompt"', '"format": {"fields": {}}'),
    "a list": lambda text: "[]",
    "no place to go on": lambda text: text.replace('"next"', '"then"'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_pool_json_is_made_again(world: World, damage: Any) -> None:
    world.jsonl("data/a.jsonl", [{"prompt": f"question {i}"} for i in range(9)])
    whole = read(world, resolve(world))
    path = world.workspace.pool(whole.pool_id) / "pool.json"
    text = path.read_text()
    path.write_text(damage(text))
    assert path.read_text() != text
    assert read(world, resolve(world)) == whole
    assert path.read_text() == text


# many files, long files


def test_a_folder_of_many_tiny_files_is_few_chunks(world: World) -> None:
    (world.root / "data").mkdir()
    for number in range(2000):
        trace = {"messages": [{"role": "user", "content": f"task {number}"}, {"role": "assistant", "content": "ok"}]}
        (world.root / "data" / f"{number}.json").write_text(json.dumps(trace))
    pool = read(world, resolve(world))
    assert (pool.rows, len(pool.chunks), len(pool.chunks[0]["files"])) == (2000, 1, 2000)
    frame = load_chunks(world.workspace, pool)
    assert frame["reason"].null_count() == 2000
    asked = [json.loads(text)[0]["content"] for text in frame["messages"]]
    assert sorted(asked) == sorted(f"task {number}" for number in range(2000))
    assert all(text == f"task {name.removesuffix('.json')}" for text, name in zip(asked, frame["file"], strict=True))


def test_an_evaluation_set_that_cannot_be_read_is_not_called_a_source(world: World) -> None:
    (world.root / "evals.jsonl").write_text('{"q": "cut')
    against = [{"path": "evals.jsonl", "field": "q"}]
    with pytest.raises(UserError, match=r"^decontaminate\.against\[0\]: evals\.jsonl: row 0 "):
        world.plan(world.manifest(decontaminate={"against": against}))
