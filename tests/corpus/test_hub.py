"""Hub datasets against a stand-in Hub: what is resolved, what is read of it, and what its refusals say.

What is read is counted at the server: a build reads the files that its quotas need and no other, and of a large file
the part that it needs.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus.ledger.query import query
from tests.corpus.standin_hub import (
    CARD,
    COMMIT,
    CONVERTED,
    NOBODY,
    Hub,
    Repository,
    draftmill,
    jsonl,
    parquet,
    python,
    serving,
)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with serving() as endpoint:
        yield endpoint


@pytest.fixture
def sent() -> list[tuple[str, int]]:
    Hub.sent.clear()
    return Hub.sent


def data_files(sent: list[tuple[str, int]]) -> set[str]:
    return {name for name, _ in sent if name.endswith((".parquet", ".jsonl"))}


def mix(world: Any, total: int, **source: Any) -> str:
    sources = [{"name": "hub", "dataset": "owner/open", "category": "coding", **source}]
    shares = {"total": total, "shares": {"coding": 1}, "holdout": 0}
    return str(world.write(mix=shares, sources=sources))


def test_a_build_reads_the_files_that_it_needs_at_the_commit_that_it_locks(
    world: Any, hub: str, sent: list[tuple[str, int]]
) -> None:
    first = draftmill(hub, world.root, "build", mix(world, 20), "-w", "ws")
    assert first.returncode == 0, first.stderr
    pools = query(world.workspace, "SELECT dataset, revision, license, chunks, complete FROM pools")
    assert pools.rows() == [("owner/open", COMMIT, "cc-by-4.0", 1, True)]
    (lock,) = world.workspace.root.glob("builds/*/manifest.lock.yaml")
    assert json.loads(lock.read_text())["sources"][0]["chunks"] == 1
    assert query(world.workspace, "FROM selections").height == 20
    origins = query(world.workspace, "SELECT DISTINCT file, upstream_id FROM source_rows WHERE row_index = 0")
    assert sorted(origins.rows()) == [("data/part-0.parquet", "a0"), ("data/part-1.parquet", "b0")]

    sent.clear()
    again = draftmill(hub, world.root, "build", mix(world, 20), "-w", "ws")
    assert "unchanged" in again.stderr
    assert not data_files(sent)


def test_only_the_files_that_a_depth_needs_are_opened(tmp_path: Path, hub: str, sent: list[tuple[str, int]]) -> None:
    assert read(hub, tmp_path, chunk_rows=30)[:2] == [30, False]
    first = data_files(sent)
    assert len(first) == 1
    sent.clear()
    rows, complete, pool = read(hub, tmp_path, 2, chunk_rows=30)
    assert (rows, complete, pool["license"], pool["revision"]) == (60, True, "cc-by-4.0", COMMIT)
    assert data_files(sent) == {"data/part-0.parquet", "data/part-1.parquet"} - first
    sent.clear()
    assert read(hub, tmp_path, 2, chunk_rows=30)[0] == 60
    assert not data_files(sent)


RESOLVE = """
import json, sys
from pathlib import Path
from corpus.errors import UserError
from corpus.manifest import Source
from corpus.sources import FileDigests, resolve_source
for changes in json.loads(sys.argv[1]):
    origin = {} if "path" in changes else {"dataset": "owner/open"}
    source = Source(name="src", category="coding", **{**origin, **changes})
    try:
        found = resolve_source(source, Path(), FileDigests(Path("cache/digests.json")))
        print(json.dumps([found.revision, sorted(file.name for file in found.files), found.license, found.rows]))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def resolve(endpoint: str, home: Path, *sources: dict[str, Any]) -> list[Any]:
    return [json.loads(line) for line in python(endpoint, home, RESOLVE, json.dumps(sources))]


READ = """
import json, sys
from pathlib import Path
from corpus.errors import UserError
from corpus.manifest import Source
from corpus import pools
from corpus.sources import FileDigests, resolve_source
from corpus.workspace import Workspace
changes, chunks, skip, pools.CHUNK_ROWS = json.loads(sys.argv[1])
origin = {} if "path" in changes else {"dataset": "owner/open"}
source = Source(name="src", category="coding", **{**origin, **changes})
digests, workspace = FileDigests(Path("ws/cache/digests.json")), Workspace(Path("ws"))
try:
    pool = pools.PoolReader(workspace, resolve_source(source, Path(), digests), digests, skip).read(chunks)
    print(json.dumps([pool.rows, pool.complete, json.loads((workspace.pool(pool.pool_id) / "pool.json").read_text())]))
except UserError as error:
    print(json.dumps(str(error)))
"""


def read(
    endpoint: str, home: Path, chunks: int | None = 1, skip: bool = False, chunk_rows: int = 50_000, **source: Any
) -> Any:
    return json.loads(python(endpoint, home, READ, json.dumps([source, chunks, skip, chunk_rows]))[-1])


MANY_CONFIGS = b"""---
license: [mit, apache-2.0]
configs:
- {config_name: easy, data_files: [{split: train, path: easy/*.jsonl}]}
- {config_name: hard, data_files: [{split: train, path: hard/*.jsonl}, {split: test, path: test/*.jsonl}]}
dataset_info:
- {config_name: easy, splits: [{name: train, num_examples: 5, num_bytes: 1}]}
- {config_name: hard, splits: [{name: train, num_examples: 12, num_bytes: 1}]}
---
"""


@pytest.fixture(scope="module", autouse=True)
def datasets() -> None:
    Hub.datasets["owner/many"] = Repository(
        {
            "README.md": MANY_CONFIGS, "easy/a.jsonl": jsonl("e", 5), "hard/a.jsonl": jsonl("h", 7),
            "hard/b.jsonl": jsonl("i", 5), "test/a.jsonl": jsonl("t", 3),
        },
        ["mit", "apache-2.0"],
    )  # fmt: skip
    Hub.datasets["owner/script"] = Repository(
        {"README.md": b"# old", "script.py": b"raise SystemExit", "data.jsonl": jsonl("s", 3)},
        converted={"easy/train/0000.parquet": parquet("e", 4), "hard/partial-train/0000.parquet": parquet("h", 4),
                   "hard/test/0000.parquet": parquet("t", 4)},
    )  # fmt: skip
    Hub.datasets["owner/walled"] = Repository({"README.md": CARD, "data/a.parquet": parquet("w", 3)}, walled=True)
    Hub.datasets["owner/text"] = Repository({"README.md": b"# text", "a.txt": b"one line\n"})


REFUSED = {
    "gated": ({"dataset": "owner/gated"}, "is gated. Accept its terms at https://huggingface.co/datasets/owner/gated"),
    "token": ({"dataset": "owner/gated"}, "then set HF_TOKEN or run `hf auth login`"),
    "missing": ({"dataset": "owner/nothing"}, "does not exist on the Hub, or needs a token"),
    "private": ({"dataset": "owner/private"}, "needs a token (HF_TOKEN or `hf auth login`)"),
    "revision": ({"revision": "v9"}, "has no revision v9"),
    "split": ({"split": "validation"}, "has no split validation; it has train"),
    "config": ({"config": "other"}, "has no configuration other. Set config: to one of default"),
    "no config": ({"dataset": "owner/many"}, "has 2 configurations. Set config: to one of easy, hard"),
    "script": ({"dataset": "owner/script"}, "loaded by a script (script.py), and no script is run"),
    "trusted script": (
        {"dataset": "owner/script", "trust_remote_code": True}, "parquet copy: revision: refs/convert/parquet"
    ),
    "no rows": ({"dataset": "owner/text"}, "has no files that are read"),
    "copy's config": (
        {"dataset": "owner/script", "revision": CONVERTED},
        "has no configuration default; it has easy, hard. Set config:",
    ),
    "copy's split": (
        {"dataset": "owner/script", "revision": CONVERTED, "config": "hard", "split": "dev"},
        "has no split dev; it has test, train",
    ),
    "a path to nothing": ({"path": "hf://datasets/owner/open/nowhere/*.jsonl"}, "no file there at c0ffee000000"),
    "a path of another kind": ({"path": "hf://models/owner/open"}, "hf://datasets/OWNER/NAME[@REVISION]/FILE"),
    "a path to nobody": ({"path": "hf://datasets/owner/nothing/x.jsonl"}, "does not exist on the Hub, or needs"),
    "a gated path": ({"path": "hf://datasets/owner/gated/x.jsonl"}, "is gated. Accept its terms at"),
    "a path's revision": ({"path": "hf://datasets/owner/open@v9/data"}, "has no revision v9"),
    "two revisions": ({"path": "hf://datasets/owner/open@v9/data", "revision": "v8"}, "Remove one"),
}  # fmt: skip


def test_what_the_hub_refuses_is_one_line_with_the_next_step(tmp_path: Path, hub: str) -> None:
    answers = resolve(hub, tmp_path, *(changes for changes, _ in REFUSED.values()))
    for answer, (changes, said) in zip(answers, REFUSED.values(), strict=True):
        origin = f"path {changes['path']}" if "path" in changes else f"dataset {changes.get('dataset', 'owner/open')}"
        assert isinstance(answer, str), changes
        assert answer.startswith(f"source src: {origin}: ") or answer.startswith("source src: path ")
        assert said in answer
        assert "\n" not in answer


def test_configurations_splits_and_the_hubs_own_parquet_copy(tmp_path: Path, hub: str) -> None:
    copy = {"dataset": "owner/script", "revision": CONVERTED}
    answers = resolve(
        hub, tmp_path, {"dataset": "owner/many", "config": "hard"},
        {"dataset": "owner/many", "config": "hard", "split": "test"},
        {**copy, "config": "easy"}, {**copy, "config": "hard"},
        {**copy, "config": "easy", "revision": f"{CONVERTED}@{'d' * 40}"},
    )  # fmt: skip
    assert answers == [
        [COMMIT, ["hard/a.jsonl", "hard/b.jsonl"], "mit, apache-2.0", 12],
        [COMMIT, ["test/a.jsonl"], "mit, apache-2.0", None],
        ["d" * 40, ["easy/train/0000.parquet"], None, None],
        ["d" * 40, ["hard/partial-train/0000.parquet"], None, None],
        ["d" * 40, ["easy/train/0000.parquet"], None, None],
    ]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("hf://datasets/owner/many/hard/*.jsonl", ["hard/a.jsonl", "hard/b.jsonl"]),
        ("hf://datasets/owner/many/hard/b.jsonl", ["hard/b.jsonl"]),
        ("hf://datasets/owner/many/hard/", ["hard/a.jsonl", "hard/b.jsonl"]),
        ("hf://datasets/owner/many", ["easy/a.jsonl", "hard/a.jsonl", "hard/b.jsonl", "test/a.jsonl"]),
        (f"hf://datasets/owner/many@{COMMIT}/**/a.jsonl", ["easy/a.jsonl", "hard/a.jsonl", "test/a.jsonl"]),
        ("hf://datasets/owner/many@main/[et]*/a.jsonl", ["easy/a.jsonl", "test/a.jsonl"]),
    ],
)
def test_a_path_on_the_hub_is_a_file_a_folder_or_a_glob_at_a_commit(
    tmp_path: Path, hub: str, path: str, names: list[str]
) -> None:
    assert resolve(hub, tmp_path, {"path": path}) == [[COMMIT, names, "mit, apache-2.0", None]]


def test_a_path_may_name_the_hubs_parquet_copy(tmp_path: Path, hub: str) -> None:
    for revision in (CONVERTED, CONVERTED.replace("/", "%2F")):
        (found,) = resolve(hub, tmp_path, {"path": f"hf://datasets/owner/script@{revision}/easy/train/*.parquet"})
        assert found[:2] == ["d" * 40, ["easy/train/0000.parquet"]]


def test_a_path_on_the_hub_is_a_source_and_an_evaluation_set(world: Any, hub: str) -> None:
    path = world.write(
        mix={"total": 5, "shares": {"coding": 1}, "holdout": 0},
        sources=[{"name": "hub", "path": "hf://datasets/owner/many/hard/*.jsonl", "category": "coding"}],
        decontaminate={"ngram": 3, "against": [{"path": "hf://datasets/owner/many/hard/b.jsonl", "field": "prompt"}]},
    )
    done = draftmill(hub, world.root, "build", str(path), "-w", "ws")
    assert done.returncode == 0, done.stderr
    pools = query(world.workspace, "SELECT dataset, revision, license FROM pools")
    assert pools.rows() == [("hf://datasets/owner/many/hard/*.jsonl", COMMIT, "mit, apache-2.0")]
    files = query(world.workspace, "SELECT DISTINCT file FROM source_rows ORDER BY ALL")["file"]
    assert files.to_list() == ["hard/a.jsonl", "hard/b.jsonl"]
    dropped = dict(query(world.workspace, "SELECT reason, count(*) FROM drops GROUP BY ALL").rows())
    assert list(dropped.values()) == [5]


# what is fetched


def long_parquet(groups: int, each: int) -> bytes:
    """Prompts beside a column that is ten times as long and that nobody asks for."""
    buffer, schema = io.BytesIO(), pa.schema([("prompt", pa.string()), ("lang", pa.string()), ("blob", pa.binary(400))])
    with pq.ParquetWriter(buffer, schema) as writer:
        for group in range(groups):
            prompts = [f"question {group} {i} {i * 7919 % 104729}" for i in range(each)]
            blobs = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(400), each, [None, pa.py_buffer(os.urandom(400 * each))]
            )
            lang = ["en" if group == groups - 1 else "de"] * each
            writer.write_table(pa.table([prompts, lang, blobs], schema=schema))
    return buffer.getvalue()


def test_of_a_long_parquet_only_the_row_groups_and_columns_that_a_quota_needs_are_fetched(
    world: Any, hub: str, sent: list[tuple[str, int]]
) -> None:
    data = long_parquet(20, 10_000)
    Hub.datasets["owner/long"] = Repository({"README.md": CARD, "data/a.parquet": data}, "mit")
    done = draftmill(hub, world.root, "build", mix(world, 20, dataset="owner/long"), "-w", "ws")
    assert done.returncode == 0, done.stderr
    rows, complete = query(world.workspace, "SELECT rows_read, complete FROM pools").row(0)
    assert (rows, complete) == (50_000, False)
    fetched = sum(size for name, size in sent if name.endswith(".parquet"))
    assert fetched < len(data) / 25
    print(f"parquet: {fetched:,} of {len(data):,} bytes in {len(sent)} requests")


def test_where_reads_its_own_column_first_and_the_others_only_where_a_row_is_left(
    tmp_path: Path, hub: str, sent: list[tuple[str, int]]
) -> None:
    data = long_parquet(20, 10_000)
    Hub.datasets["owner/filtered"] = Repository({"README.md": CARD, "data/a.parquet": data}, "mit")
    rows, complete, pool = read(hub, tmp_path, dataset="owner/filtered", where="lang = 'en'")
    assert (rows, complete, pool["chunks"][0]["left_out"]) == (10_000, True, 190_000)
    assert (pool["rows_total"], pool["rows_unread"]) == (200_000, 0)
    fetched = sum(size for name, size in sent if name.endswith(".parquet"))
    assert fetched < len(data) / 25


def test_of_long_json_lines_only_the_beginning_is_fetched(
    tmp_path: Path, hub: str, sent: list[tuple[str, int]]
) -> None:
    line = b'{"prompt": "question %08d ' + b"x" * 250 + b'"}\n'
    data = b"".join(line % i for i in range(400_000))
    Hub.datasets["owner/lines"] = Repository({"README.md": b"# lines", "train.jsonl": data})
    rows, complete, _ = read(hub, tmp_path, dataset="owner/lines")
    assert rows >= 50_000
    assert not complete
    fetched = sum(size for name, size in sent if name == "train.jsonl")
    assert fetched <= 17 << 20 < len(data) / 6
    print(f"jsonl: {fetched:,} of {len(data):,} bytes")
    sent.clear()
    assert read(hub, tmp_path, 2, dataset="owner/lines")[0] >= rows + 50_000
    assert sum(size for name, size in sent if name == "train.jsonl") <= 17 << 20  # what was read is not fetched again


# a Hub that is there no more


def test_a_file_that_vanished_after_it_was_listed_is_one_line(tmp_path: Path, hub: str) -> None:
    Hub.datasets["owner/gone"] = Repository(
        {"README.md": CARD, "data/a.parquet": parquet("a", 3)}, gone={"data/a.parquet"}
    )
    for skip in (False, True):
        said = read(hub, tmp_path, dataset="owner/gone", skip=skip)
        assert said.startswith("source src: data/a.parquet: is not on the Hub any more at c0ffee000000 (")
        assert "\n" not in said


def test_a_gate_before_the_files_is_one_line_with_the_page_and_the_token(tmp_path: Path, hub: str) -> None:
    said = read(hub, tmp_path, dataset="owner/walled")
    assert said == (
        "source src: data/a.parquet: is gated. Accept its terms at https://huggingface.co/datasets/owner/walled, "
        "then set HF_TOKEN or run `hf auth login`."
    )


def test_a_network_that_is_lost_while_reading_drops_no_row(tmp_path: Path, hub: str) -> None:
    repository = Repository({"README.md": CARD, "data/a.parquet": parquet("a", 3)}, cut_off=True)
    Hub.datasets["owner/lost"] = repository
    # huggingface_hub tries five times more and waits 23 s in all
    asked = json.dumps([{"dataset": "owner/lost"}, 1, True, 50_000])
    said = json.loads(python(hub, tmp_path, f"import time\ntime.sleep = lambda s: None\n{READ}", asked)[-1])
    assert said.startswith("source src: data/a.parquet: cannot be read on (")
    assert "Run again: what was read is kept" in said
    repository.cut_off = False
    assert read(hub, tmp_path, dataset="owner/lost", skip=True)[0] == 3


WAITING_IS_TOLD = """
import sys, time
from draftmill.app import run_app
sys.stderr, time.sleep = sys.stdout, lambda seconds: print("waits", seconds)
print(run_app(sys.argv[1:]))
"""


def test_a_hub_that_is_not_there_is_said_at_once(world: Any) -> None:
    said, code = python(NOBODY, world.root, WAITING_IS_TOLD, "build", mix(world, 5), "-w", "ws")
    assert code == "2"
    assert said.startswith("draftmill: source hub: dataset owner/open: cannot be resolved (")
    assert "Is the Hub reachable (HF_ENDPOINT)?" in said


def test_a_full_commit_is_built_again_without_a_hub(tmp_path: Path, hub: str) -> None:
    asked = {"revision": COMMIT}
    first = read(hub, tmp_path, **asked)
    assert read(NOBODY, tmp_path, **asked) == first
    assert "Is the Hub reachable" in read(NOBODY, tmp_path)  # of main nobody knows what it is today
    (tmp_path / "ws" / "cache" / "hub.json").write_text("{half")
    assert "Is the Hub reachable" in read(NOBODY, tmp_path, **asked)
    assert read(hub, tmp_path, **asked) == first


def test_a_model_on_a_hub_that_is_not_there(world: Any) -> None:
    path = world.write(target={"model": "owner/model"}, filters={"prompt_tokens": 9})
    done = draftmill(NOBODY, world.root, "build", str(path), "-w", "ws")
    assert done.returncode == 2, done.stderr
    assert "target owner/model: there is no folder " in done.stderr
    assert "owner/model, and the Hub cannot be asked (" in done.stderr
    assert done.stderr.count("\n") == 1


RESOLVE_TARGET = """
import sys
from pathlib import Path
from corpus.errors import UserError
from corpus.manifest import Target
from corpus.sources import FileDigests
from corpus.target import Renderer, fetch_weights, resolve_target
try:
    target = resolve_target(Target(model=sys.argv[1]), Path.cwd(), FileDigests(Path("digests.json")))
    print(target.revision, sorted(path.name for path in target.folder.iterdir()))
    print(Renderer(target).text([{"role": "user", "content": "question 1"}], [], thinking=False))
    fetch_weights(target, Path.cwd())
    print("model.safetensors" in {path.name for path in target.folder.iterdir()})
except UserError as error:
    print(error)
"""


def test_a_target_on_the_hub_is_locked_and_its_weights_come_when_an_engine_needs_them(
    world: Any, hub: str, sent: list[tuple[str, int]]
) -> None:
    folder = world.tiny_model()
    Hub.models["owner/model"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    first, text, weights = python(hub, world.root, RESOLVE_TARGET, "owner/model")
    assert first.startswith(COMMIT)
    assert "model.safetensors" not in first
    assert text == "user : question 1 assistant :"
    assert weights == "True"
    assert [name for name, _ in sent].count("model.safetensors") == 1


def test_a_target_on_the_hub_without_weights_is_one_line(world: Any, hub: str) -> None:
    folder = world.tiny_model()
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".safetensors"}
    Hub.models["owner/empty"] = files
    assert "has no weights (*.safetensors)" in python(hub, world.root, RESOLVE_TARGET, "owner/empty")[-1]


READ_DRAFTER = """
import sys
from corpus.errors import UserError
from training import serve
try:
    found = serve.read_drafter(sys.argv[1])
    print(found.drafter_id, found.block_size, found.layer_ids, found.origin)
except UserError as error:
    print(error)
"""


def test_a_drafter_on_the_hub_is_known_by_its_files(world: Any, hub: str) -> None:
    config = {"block_size": 16, "dflash_config": {"target_layer_ids": [1, 16], "mask_token_id": 5}}
    Hub.models["owner/drafter"] = {"config.json": json.dumps(config).encode(), "model.safetensors": b"weights"}
    Hub.models["owner/no-drafter"] = {"config.json": b"{}", "model.safetensors": b"weights"}
    said = {}
    for name in ("owner/drafter", "owner/no-drafter", "owner/nothing"):
        (said[name],) = python(hub, world.root, READ_DRAFTER, name)
    assert re.fullmatch(r"export-[0-9a-f]{24} 16 \(1, 16\) owner/drafter", said["owner/drafter"])
    assert "holds no DFlash drafter" in said["owner/no-drafter"]
    assert "the Hub has no such drafter" in said["owner/nothing"]
    assert "the Hub cannot be asked" in python(NOBODY, world.root, READ_DRAFTER, "owner/other")[0]
