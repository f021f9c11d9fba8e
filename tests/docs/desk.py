"""A folder as the pages take it for granted, made small: manifests, an old corpus, a workspace with every stage done.

Answers are the fake engine's; states and the drafter are really made of the structured target. Nobody serves the
drafter: vLLM's figures are entered as serve-check enters them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.workspace import Workspace
from draftmill import generating
from draftmill.app import run_app
from tests.docs.blocks import ROOT, all_blocks

TARGET = ROOT / "tests" / "structured" / "target"
SHARES = {"coding": 3, "general": 2, "math": 2, "agent": 1, "code-other": 1}
SOURCES = {
    "human-eval": ("code.jsonl", "coding", "write code for task"),
    "mt-bench": ("talk.jsonl", "general", "tell me about thing"),
    "reasoning-gym": ("sums.jsonl", "math", "add one to"),
    "bfcl": ("agents.jsonl", "agent", "call the tool of"),
    "code-reading": ("other.jsonl", "code-other", "explain program"),
}
TWINS = [f"sort the numbers of the list that is given here below and then print of them {n}" for n in ("all", "half")]
SHARED = "a question that two sources have, word for word"
MORE = {"code.jsonl": TWINS, "talk.jsonl": [SHARED], "sums.jsonl": [SHARED]}
ROWS = 30


def manifest(**changes: Any) -> dict[str, Any]:
    """The desk's manifest as a mapping."""
    sources = [
        {"name": name, "path": path, "category": category, "license": "mit"}
        for name, (path, category, _) in SOURCES.items()
    ]
    return {
        "name": "first",
        "seed": 3,
        "mix": {"total": 45, "shares": SHARES, "holdout": 0.3},
        "sources": sources,
        "filters": {"prompt_tokens": 100},
        "dedup": {"near": 0.8},
        "target": {"model": str(TARGET), "dtype": "float32", "max_model_len": 192},
        "generation": {"max_tokens": 9, "reject": [], "thinking": {"share": 0, "off": {"temperature": 0.7}}},
        "extraction": {"features": 2, "dtype": "float32", "max_tokens_per_batch": 1024},
        "training": {
            "block_size": 4, "draft_layers": 1, "epochs": 1, "tokens_per_batch": 1024, "anchors_per_document": 4,
            "checkpoint_every": 100,
        },
        **changes,
    }  # fmt: skip


def lay_out(folder: Path) -> None:
    """All files but the workspace."""
    for path, _, asked in SOURCES.values():
        prompts = [f"{asked} {number}" for number in range(ROWS)] + MORE.get(path, [])
        rows = [{"id": f"{path[:-6]}-{n}", "prompt": text} for n, text in enumerate(prompts)]
        if path == "code.jsonl":
            rows = [row | {"id": f"task-{n}"} for n, row in enumerate(rows)]
        (folder / path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    shares = SHARES | {"coding": 2, "math": 3}
    written = {
        "mix.yaml": manifest(),
        "first.yaml": manifest(),
        "second.yaml": manifest(name="second", mix={"total": 45, "shares": shares, "holdout": 0.3}),
        "traffic.yaml": {"coding": 40, "math": 60},
        "adopted.yaml": adopted(),
    }
    for name, body in written.items():
        (folder / name).write_text(json.dumps(body))  # JSON is YAML
    (folder / "question.sql").write_text("SELECT source, reason, rows FROM funnel")
    shutil.copytree(ROOT / "manifests", folder / "manifests")
    old = folder / "old"
    old.mkdir()
    for number, text in enumerate(("Write a Python function that adds {}.", "Tell me a story about {}.")):
        chats = [
            {"messages": [{"role": "user", "content": text.format(n)}, {"role": "assistant", "content": f"Here: {n}"}]}
            for n in range(40)
        ]
        (old / f"part-{number}.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))


def adopted() -> dict[str, Any]:
    """The manifest of docs/adopting.md, of the desk's target."""
    (block,) = (block for block in all_blocks("yaml") if block.page == "adopting.md")
    body: dict[str, Any] = YAML(typ="safe", pure=True).load(block.text)
    body["target"] = manifest()["target"]
    return body


def make_desk(folder: Path) -> None:
    """Lay it out, build another mix, and build, answer, capture and train what `mix.yaml` says."""
    lay_out(folder)
    with at_desk(folder) as workspace:
        assert run_app(["build", "second.yaml"]) == 0
        for command in ("build", "generate", "extract", "train"):
            assert run_app([command, "mix.yaml", *(["--devices", "1"] if command != "build" else [])]) == 0, command
        enter(workspace, SERVED, SAMPLED)


def make_demo(folder: Path) -> None:
    """Lay it out, build the demo and answer it; what only engines and training can measure is entered."""
    lay_out(folder)
    demo = folder / "manifests" / "demo.yaml"  # an answer of one token, as the fake engine gives some, is taken too
    demo.write_text(demo.read_text().replace("  max_tokens: 48", "  max_tokens: 48\n  reject: []"))
    with at_desk(folder) as workspace:
        for command in (["build"], ["generate", "--devices", "2"]):
            assert run_app([*command, "manifests/demo.yaml"]) == 0, command
        enter(workspace, "DELETE FROM engine_samples", SAMPLED, *WALKED)


def enter(workspace: Workspace, *statements: str) -> None:
    """Put figures into the ledger and publish them."""
    with open_ledger(workspace, "desk") as ledger:
        for statement in statements:
            ledger.call(lambda connection, statement=statement: connection.execute(statement))


SERVED = (
    "INSERT INTO acceptance (drafter_id, build_id, category, measured_by, drafts, accepted_tokens, rows, measured_at) "
    "SELECT drafter_id, build_id, category, 'vllm', drafts, accepted_tokens, rows, measured_at "
    "FROM acceptance WHERE measured_by = 'walk'"
)
SAMPLED = (
    "INSERT INTO engine_samples (run_id, engine, device, sampled_at, running, waiting, tokens_per_s, kv_use) "
    "SELECT max(run_id), 'vllm 0.32.0', 'cpu:' || n, max(started_at), 16, 0, 110, 0.1 "
    "FROM runs, range(2) AS t(n) WHERE command = 'generate' GROUP BY n"
)
ROWS_MEASURED = {"agent": 2, "code-other": 1, "coding": 8, "general": 7, "math": 2}
WALKED = [
    f"INSERT INTO acceptance VALUES ('drafter', 'build', '{category}', 'walk', {50 * rows}, {20 * rows}, {rows}, "
    f"'2026-01-01', {2500 * rows}, {402 * rows}, {1000 * rows})"
    for category, rows in ROWS_MEASURED.items()
]
"""The sums over rows are those of rows that differ; one row has no interval."""


def stand_ins(workspace: Workspace) -> dict[str, str]:
    """What the pages name, and what stands for it here: a target on the Hub, a drafter's id."""
    (drafter_id,) = query(workspace, "SELECT coalesce(max(drafter_id), 'none') FROM drafters").row(0)
    return {"Qwen/Qwen3-8B": str(TARGET), "3f2a91": drafter_id[:6]}


@contextmanager
def at_desk(folder: Path) -> Iterator[Workspace]:
    """The folder is the current one while the context is open; engines are fake ones, and no Hub answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("DRAFTMILL_WORKSPACE", raising=False)
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        patch.setattr(generating, "GenerationRun", partial(generating.GenerationRun, factory="generation.fake:create"))
        yield Workspace(Path("workspace"))
