"""The mission's manifest over fixtures in the real shapes of its five datasets: one build, and where every row went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from corpus.building import commit_build, plan_build, selected_rows
from corpus.candidates import TokenRule
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.manifest import CATEGORIES
from corpus.manifest_file import parse_manifest

World = Any
ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "tests" / "corpus" / "shapes"
FIXTURES = {
    "nemotron-code": "nemotron-v2-code.parquet",
    "nemotron-math": "nemotron-v2-math.parquet",
    "nemotron-chat": "nemotron-v2-chat.parquet",
    "nemotron-stem": "nemotron-v2-stem.parquet",
    "infinity-instruct": "infinity-instruct-0625.parquet",
    "hermes-single": "hermes-func-calling-singleturn.json",
    "hermes-multi": "hermes-func-calling.json",
    "hermes-glaive": "hermes-glaive-function-calling-5k.json",
    "hermes-json-agentic": "hermes-json-mode-agentic.json",
    "hermes-json-single": "hermes-json-mode-singleturn.json",
    "agent-training": "agent-training.jsonl",
    "wildclaw": "wildclaw-opus.jsonl",
}


@pytest.fixture
def mission(world: World) -> dict[str, Any]:
    """The manifest with its datasets in the place of which the fixtures stand, and a leaked evaluation item."""
    body: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "manifests/dflash-qwen3.6-27b.yaml").read_text())
    sources = []
    for source in body["sources"]:
        if source["name"] in FIXTURES:
            kept = {k: v for k, v in source.items() if k not in ("dataset", "config", "split", "revision")}
            sources.append({**kept, "path": str(SHAPES / FIXTURES[source["name"]]), "license": "mit"})
    assert len(sources) == len(FIXTURES)
    for number, one in enumerate(body["decontaminate"]["against"]):
        name = f"evals{number}.jsonl"
        world.jsonl(name, [{one["field"]: f"what nobody asks, number {number}"}])
        body["decontaminate"]["against"][number] = {"path": name, "field": one["field"]}
    body["sources"] = sources
    body["dedup"]["near"] = 0.99  # the fixtures' few sentences are alike; real prompts are not
    return body


def count(rows: Any) -> list[int | None]:
    """Tokens without the target, which is not here: words."""
    return [len(messages.split()) + 20 for messages, _ in rows]


def test_the_mission_builds_over_its_five_datasets_shapes_and_every_row_is_accounted_for(
    world: World, mission: dict[str, Any]
) -> None:
    manifest = parse_manifest(json.dumps(mission), "mission")
    with open_ledger(world.workspace, "build") as ledger:
        plan = plan_build(manifest, world.root, world.workspace, TokenRule(count, "words"))
        commit_build(plan, world.workspace, ledger)
    rows = selected_rows(world.workspace, plan)
    shares = {"coding": 46, "general": 26, "math": 11, "agent": 9, "code-other": 7}
    assert plan.selected == sum(plan.quotas.rows.values()) > 20
    assert {name: round(99 * rows_ / plan.selected) for name, rows_ in plan.quotas.rows.items()} == pytest.approx(
        shares, abs=3
    )
    assert set(rows["category"]) == set(CATEGORIES)
    agent = rows.filter(category="agent")
    assert agent["original"].null_count() < agent.height
    funnel = query(world.workspace, "SELECT source, reason, rows FROM funnel")
    for source in FIXTURES:
        own = {reason: n for name, reason, n in funnel.iter_rows() if name == source}
        assert own.pop("read") == sum(own.values()), source
    assert {"not_text", "invalid_unicode", "empty_conversation"} <= set(funnel["reason"])
    assert query(world.workspace, "SELECT DISTINCT license FROM composition WHERE stage = 'selected'").rows() == [
        ("mit",)
    ]


def test_every_dataset_of_the_mission_has_a_fixture() -> None:
    body = YAML(typ="safe", pure=True).load((ROOT / "manifests/dflash-qwen3.6-27b.yaml").read_text())
    names = {source["name"] for source in body["sources"]}
    assert names - set(FIXTURES) == {"agent-training-validation"}  # the same shape as agent-training
