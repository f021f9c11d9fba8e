"""What is captured for a training that is fed live: held-out rows alone, and of these no more than are asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.manifest import Manifest
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from extraction.configuration import feed_config
from extraction.feed_messages import FeedRow
from extraction.run import ExtractionRun
from extraction.stage import ExtractionPlan, plan_extraction
from fleet.devices import Device
from fleet.interrupt import Interrupt
from tests.conftest import World
from tests.extraction.answered import answered_world, sections

PROMPTS = {"coding": 80, "general": 40}
MIX = {"total": 30, "holdout": 0.4}


@dataclass(frozen=True)
class Answered:
    """A world with answers, some of them held out."""

    world: World
    build_id: str
    held_out: dict[str, str]
    """Category of each held-out answer."""
    trained: dict[str, str]
    """And of each other one."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Answered:
    texts = {name: [f"{name} {i} " + "word " * (i % 9) for i in range(count)] for name, count in PROMPTS.items()}
    world = answered_world(tmp_path_factory.mktemp("held out"), texts, MIX)
    rows = query(
        world.workspace,
        "SELECT response_id, category, holdout FROM build_responses JOIN accepted_responses USING (response_id)",
    ).rows()
    held_out, trained = ({row[0]: row[1] for row in rows if row[2] == held} for held in (True, False))
    assert len(trained) == MIX["total"]
    assert len(held_out) >= 12
    assert set(held_out.values()) == set(PROMPTS)
    return Answered(world, world.plan(manifest_of(world)).build_id, held_out, trained)


def manifest_of(world: World, *layers: int) -> Manifest:
    return world.manifest(**sections(PROMPTS, MIX, layers=list(layers) or [1, 3]))


def target_of(world: World) -> ResolvedTarget:
    return ResolvedTarget(manifest_of(world).target, "rev1", world.root / "model", "template", "tokenizer")


def plan_of(told: Answered, *layers: int, **options: Any) -> ExtractionPlan:
    manifest = manifest_of(told.world, *layers)
    with open_ledger(told.world.workspace, "plan") as ledger:
        return plan_extraction(manifest, target_of(told.world), told.build_id, ledger, **options)


def ids(plan: ExtractionPlan) -> set[str]:
    return {row.response_id for row in plan.rows}


def test_held_out_rows_alone_are_planned_when_asked(told: Answered) -> None:
    plan = plan_of(told, holdout_only=True)
    assert ids(plan) == set(told.held_out)
    assert (plan.captured, plan.left_out) == (0, 0)
    assert ids(plan_of(told)) == set(told.held_out) | set(told.trained)


def test_a_limit_of_held_out_rows_takes_the_first_of_each_category(told: Answered) -> None:
    shares = Counter(told.held_out.values())
    before: set[str] = set()
    for limit in range(1, len(told.held_out) + 3):
        plan = plan_of(told, holdout_only=True, holdout_limit=limit)
        assert len(plan.rows) == min(limit, len(told.held_out))
        assert plan.left_out == len(told.held_out) - len(plan.rows)
        assert before < ids(plan) or limit > len(told.held_out)
        before = ids(plan)
        for category, count in Counter(told.held_out[one] for one in before).items():
            assert abs(count - shares[category] / len(told.held_out) * len(before)) <= 1
    assert before == set(told.held_out)


def test_the_limit_of_held_out_rows_leaves_the_others_alone(told: Answered) -> None:
    plan = plan_of(told, holdout_limit=5)
    assert ids(plan) == set(told.trained) | ids(plan_of(told, holdout_only=True, holdout_limit=5))
    assert plan.left_out == len(told.held_out) - 5
    assert ids(plan_of(told, holdout_limit=0)) == set(told.trained)


def test_what_is_captured_counts_for_the_limit(told: Answered) -> None:
    layers = 0, 2  # other states than those of the other tests
    world, manifest, target = told.world, manifest_of(told.world, *layers), target_of(told.world)
    first = plan_of(told, *layers, holdout_only=True, holdout_limit=6)
    with open_ledger(world.workspace, "extract") as ledger:
        log = RunLog(ledger, "extract", told.build_id)
        run = ExtractionRun(first, manifest, target, ledger, log, factory="tests.extraction.faulty:create_quick")
        assert asyncio.run(run.run([Device("cpu", 0)], Interrupt()))
        log.finish("done")
    again = plan_of(told, *layers, holdout_only=True, holdout_limit=6)
    assert (again.rows, again.captured, again.left_out) == ((), 6, len(told.held_out) - 6)
    more = plan_of(told, *layers, holdout_only=True, holdout_limit=9)
    assert len(more.rows) == 3
    assert not ids(more) & ids(first)


def test_a_target_worker_is_told_what_the_manifest_says(told: Answered) -> None:
    manifest, target = manifest_of(told.world), target_of(told.world)
    plan = plan_of(told, holdout_limit=0)
    rows = [FeedRow(row.shard, row.shard_row, row.response_id, "coding", True) for row in plan.rows]
    tokens = [row.tokens for row in plan.rows]
    config = feed_config(manifest, target, Device("cpu", 1, memory_bytes=5), told.world.workspace, rows, tokens, 99)
    assert (config.layer_ids, config.final_state, config.store_dtype, config.dtype) == (
        (1, 3), True, "float32", "float32",
    )  # fmt: skip
    assert (config.device, config.threads, config.memory_bytes, config.job_tokens) == ("cpu", 1, 5, 99)
    assert config.longest == (max(tokens),)
    sampled = [tokens[rows.index(row)] for row in config.sample]
    assert (min(sampled), max(sampled)) == (min(tokens), max(tokens))
