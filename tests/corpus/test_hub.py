"""Hub datasets against a stand-in Hub: a small HTTP server that answers what the real clients ask.

The commands run in processes of their own, because the clients read HF_ENDPOINT when they are imported. What is
read is counted at the server: a build reads the files that its quotas need and no other.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import polars as pl
import pytest

from corpus.ledger.query import query

COMMIT = "c0ffee" + "0" * 34
CARD = b"""---
license: cc-by-4.0
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
---
# A small dataset
"""


def parquet(tag: str, count: int) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame([{"id": f"{tag}{i}", "prompt": f"{tag} question {i}"} for i in range(count)]).write_parquet(buffer)
    return buffer.getvalue()


class Hub(BaseHTTPRequestHandler):
    """owner/open is public, owner/gated asks for terms, everything else is not there."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes]] = {
        "README.md": CARD, "data/part-0.parquet": parquet("a", 30), "data/part-1.parquet": parquet("b", 30),
    }  # fmt: skip
    models: ClassVar[dict[str, dict[str, bytes]]] = {}
    """Model files by owner/name; tests fill it."""
    bodies_sent: ClassVar[list[str]] = []

    def log_message(self, *_: Any) -> None:
        """The log stays empty."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        model = re.match(r"(?:/api/models)?/(owner/[\w-]+)/(revision|tree|resolve)/(\w+)/?(.*)$", path)
        if model and model[1] in self.models:
            return self._model(self.models[model[1]], model[2], model[3], model[4])
        repository = re.match(r"(?:/api)?/datasets/owner/(\w+)(?:/(\w+)/(\w+))?/?(.*)$", path)
        if not repository:
            return self._refuse(404, "RepoNotFound")
        name, kind, revision, rest = repository.groups()
        if name == "gated":
            return self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        if name != "open":
            return self._refuse(404, "RepoNotFound")
        if revision not in (None, "main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if kind == "tree":
            return self._json(self._listing(rest))
        if kind == "resolve":
            return self._file(rest)
        return self._json({"id": "owner/open", "sha": COMMIT, "siblings": [], "cardData": {"license": "cc-by-4.0"}})

    def _model(self, files: dict[str, bytes], kind: str, revision: str, name: str) -> None:
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if kind == "revision":
            return self._json({"id": "owner/model", "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]})
        if kind == "tree":
            return self._json([{"type": "file", "path": n, "oid": "f" * 40, "size": len(d)} for n, d in files.items()])
        return self._file(name, files)

    def _listing(self, folder: str) -> list[dict[str, Any]]:
        below = [name for name in self.files if name.startswith(folder)]
        folders = {name.split("/")[0] for name in below if not folder and "/" in name}
        plain = [name for name in below if bool(folder) == ("/" in name)]
        return [{"type": "directory", "path": name, "oid": "d" * 40, "size": 0} for name in folders] + [
            {"type": "file", "path": name, "oid": "f" * 40, "size": len(self.files[name])} for name in plain
        ]

    def _file(self, name: str, files: dict[str, bytes] | None = None) -> None:
        data = (self.files if files is None else files).get(name)
        if data is None:
            return self._refuse(404, "EntryNotFound")
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}  # noqa: S324
        span = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if self.command == "GET":
            self.bodies_sent.append(name)
        if not span:
            return self._send(200, data, headers)
        start, end = int(span[1]), int(span[2] or len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return self._send(206, data[start : end + 1], headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b'{"error": "no"}', {"X-Error-Code": code, "Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def sent() -> list[str]:
    Hub.bodies_sent.clear()
    return Hub.bodies_sent


def environment(endpoint: str, home: Path) -> dict[str, str]:
    hidden = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return hidden | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf")}


def draftmill(endpoint: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "draftmill", *arguments],
        capture_output=True, text=True, env=environment(endpoint, home), cwd=home, check=False,
    )  # fmt: skip


def mix(world: Any, total: int, **source: Any) -> str:
    sources = [{"name": "hub", "dataset": "owner/open", "category": "coding", **source}]
    shares = {"total": total, "shares": {"coding": 1}, "holdout": 0}
    return str(world.write(mix=shares, sources=sources))


def test_a_build_reads_the_files_that_it_needs_at_the_commit_that_it_locks(
    world: Any, hub: str, sent: list[str]
) -> None:
    first = draftmill(hub, world.root, "build", mix(world, 20), "-w", "ws")
    assert first.returncode == 0, first.stderr
    read = [name for name in sent if name.endswith(".parquet")]
    assert len(set(read)) == 1
    pools = query(world.workspace, "SELECT dataset, revision, license, chunks, complete FROM pools")
    assert pools.rows() == [("owner/open", COMMIT, "cc-by-4.0", 1, False)]
    (lock,) = world.workspace.root.glob("builds/*/manifest.lock.yaml")
    assert json.loads(lock.read_text())["sources"][0]["chunks"] == 1
    taken = query(world.workspace, "FROM selections").height
    assert taken == 20

    sent.clear()
    deeper = draftmill(hub, world.root, "build", mix(world, 40), "-w", "ws")
    assert deeper.returncode == 0, deeper.stderr
    assert {name for name in sent if name.endswith(".parquet")} == {
        "data/part-0.parquet", "data/part-1.parquet"
    } - set(read)  # fmt: skip
    kept = query(
        world.workspace,
        "SELECT count(*) FROM (SELECT prompt_id FROM selections GROUP BY prompt_id HAVING count(*) = 2)",
    )
    assert kept.item() == 20  # the larger quota is a superset
    origins = query(world.workspace, "SELECT DISTINCT file, upstream_id FROM source_rows WHERE row_index = 0")
    assert sorted(origins.rows()) == [("data/part-0.parquet", "a0"), ("data/part-1.parquet", "b0")]

    sent.clear()
    again = draftmill(hub, world.root, "build", mix(world, 20), "-w", "ws")
    assert "unchanged" in again.stderr
    assert not [name for name in sent if name.endswith(".parquet")]


REFUSED = {
    "gated": ({"dataset": "owner/gated"}, "is gated. Accept its terms at https://huggingface.co/datasets/owner/gated"),
    "missing": ({"dataset": "owner/nothing"}, "does not exist on the Hub, or needs a token"),
    "revision": ({"revision": "v9"}, "has no revision v9"),
    "split": ({"split": "validation"}, "it has no split validation; it has train"),
    "config": ({"config": "other"}, "other"),
}
RESOLVE = """
import json, sys
from pathlib import Path
from corpus.errors import UserError
from corpus.manifest import Source
from corpus.sources import resolve_source
for changes in json.loads(sys.argv[1]):
    source = Source(name="src", category="coding", **{"dataset": "owner/open", **changes})
    try:
        print(json.dumps(str(resolve_source(source, Path(), None).revision)))
    except UserError as error:
        print(json.dumps(str(error)))
"""


def resolve(endpoint: str, home: Path, *sources: dict[str, str]) -> list[str]:
    made = subprocess.run(
        [sys.executable, "-c", RESOLVE, json.dumps(sources)],
        capture_output=True, text=True, env=environment(endpoint, home), cwd=home, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return [json.loads(line) for line in made.stdout.splitlines()]


def test_what_the_hub_refuses_is_one_line_with_the_next_step(tmp_path: Path, hub: str) -> None:
    answers = resolve(hub, tmp_path, *(changes for changes, _ in REFUSED.values()))
    for answer, (changes, said) in zip(answers, REFUSED.values(), strict=True):
        assert answer.startswith(f"source src: dataset {changes.get('dataset', 'owner/open')}: ")
        assert said in answer
        assert "\n" not in answer


def test_a_hub_that_is_not_there(world: Any) -> None:
    done = draftmill("http://127.0.0.1:9", world.root, "build", mix(world, 5), "-w", "ws")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("draftmill: source hub: dataset owner/open: cannot be resolved (")
    assert "Is the Hub reachable (HF_ENDPOINT)?" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_model_on_a_hub_that_is_not_there(world: Any) -> None:
    path = world.write(target={"model": "owner/model"}, filters={"prompt_tokens": 9})
    done = draftmill("http://127.0.0.1:9", world.root, "build", str(path), "-w", "ws")
    assert done.returncode == 2, done.stderr
    assert "target owner/model: no such folder, and the Hub cannot be asked (" in done.stderr
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
    world: Any, hub: str, sent: list[str]
) -> None:
    folder = world.tiny_model()
    Hub.models["owner/model"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE_TARGET, "owner/model"],
        capture_output=True, text=True, env=environment(hub, world.root), cwd=world.root, check=True,
    )  # fmt: skip
    first, text, weights = done.stdout.splitlines()
    assert first.startswith(COMMIT)
    assert "model.safetensors" not in first
    assert text == "user : question 1 assistant :"
    assert weights == "True"
    assert sent.count("model.safetensors") == 1


def test_a_target_on_the_hub_without_weights_is_one_line(world: Any, hub: str) -> None:
    folder = world.tiny_model()
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".safetensors"}
    Hub.models["owner/empty"] = files
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE_TARGET, "owner/empty"],
        capture_output=True, text=True, env=environment(hub, world.root), cwd=world.root, check=True,
    )  # fmt: skip
    assert "has no weights (*.safetensors)" in done.stdout.splitlines()[-1]


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
        done = subprocess.run(
            [sys.executable, "-c", READ_DRAFTER, name],
            capture_output=True, text=True, env=environment(hub, world.root), cwd=world.root, check=True,
        )  # fmt: skip
        said[name] = done.stdout.strip()
    assert re.fullmatch(r"export-[0-9a-f]{24} 16 \(1, 16\) owner/drafter", said["owner/drafter"])
    assert "holds no DFlash drafter" in said["owner/no-drafter"]
    assert "the Hub has no such drafter" in said["owner/nothing"]
    there = subprocess.run(
        [sys.executable, "-c", READ_DRAFTER, "owner/other"],
        capture_output=True, text=True, env=environment("http://127.0.0.1:9", world.root), cwd=world.root, check=True,
    )  # fmt: skip
    assert "the Hub cannot be asked" in there.stdout
