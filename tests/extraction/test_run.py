"""The run around the workers: what it enters, what it sets aside, what it plans; workers are real processes.

One world of accepted answers serves all tests; each capture is another one by its layers, so none sees another's
states.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl
import pytest

from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.rebuild import adopt
from corpus.ledger.verify import verify
from corpus.ledger.writer import open_ledger
from corpus.manifest import Manifest
from corpus.runlog import RunLog
from corpus.shards import ShardReader
from corpus.target import ResolvedTarget
from draftmill import agreement, capturing
from draftmill.app import run_app
from extraction.plan import Cut
from extraction.run import ExtractionRun
from extraction.stage import ExtractionPlan, plan_extraction
from fleet.devices import Device
from fleet.interrupt import Interrupt
from tests.conftest import World
from tests.extraction.answered import answered_world, sections
from tests.extraction.faulty import HOLDS, POISON

CATEGORIES = {"coding": 24, "general": 12}
ROWS = sum(CATEGORIES.values())
MOST = 2 * HOLDS
"""Padded tokens that the manifest allows a batch."""


@dataclass(frozen=True)
class Told:
    """A world whose prompts are all answered, and two of its answers."""

    world: World
    build_id: str
    tokens: dict[str, int]
    """Of each accepted answer, its prompt included."""
    poisoned: str
    longest: str

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """One query, as a user asks it."""
        return query(self.world.workspace, sql).rows()


@dataclass(frozen=True)
class Extracted:
    """One run, and what the ledger said after it."""

    plan: ExtractionPlan
    whole: bool
    cut: Cut
    failed: int
    captured: list[str]
    """Response ids, as often as they were captured."""
    failures: list[tuple[Any, ...]]
    """response_id, tokens, reason, device."""
    events: list[tuple[str, str]]


def prompts() -> dict[str, list[str]]:
    """By category; two are longer than all others, one is much longer."""
    draw = random.Random(5)

    def text(words: int) -> str:
        return " ".join("".join(draw.choices("abcdefghij", k=6)) for _ in range(words))

    texts = {name: [text(draw.randint(3, 40)) for _ in range(count)] for name, count in CATEGORIES.items()}
    texts["coding"][3] = f"{text(99)} poison"
    texts["general"][4] = text(100)
    texts["general"][7] = text(300)
    return texts


def manifest_of(*layers: int) -> dict[str, Any]:
    """Sections of a manifest that captures these layers."""
    return sections(CATEGORIES, layers=list(layers), max_tokens_per_batch=MOST)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    world = answered_world(tmp_path_factory.mktemp("told"), prompts())
    lengths = "SELECT response_id, prompt_tokens + response_tokens FROM accepted_responses"
    tokens = dict(query(world.workspace, lengths).iter_rows())
    assert len(tokens) == ROWS
    by_length = sorted(tokens, key=tokens.__getitem__)
    poisoned = [one for one in tokens if POISON in token_ids(world, one)[0]]
    assert len(poisoned) == 1
    assert set(poisoned) < set(by_length[-3:])
    assert HOLDS < 2 * tokens[by_length[-3]] <= 2 * tokens[by_length[-2]] <= MOST < tokens[by_length[-1]]
    return Told(world, world.plan(world.manifest(**manifest_of(0))).build_id, tokens, poisoned[0], by_length[-1])


def token_ids(world: World, response_id: str) -> tuple[list[int], list[int]]:
    """(prompt, answer) as the response shard has them."""
    frame = pl.read_parquet(world.workspace.responses / "*.parquet")
    row = frame.filter(response_id=response_id, state="accepted").row(0, named=True)
    return row["prompt_token_ids"], row["token_ids"]


def target_of(world: World, manifest: Manifest) -> ResolvedTarget:
    return ResolvedTarget(manifest.target, "rev1", world.root / "model", "template", "tokenizer")


def plan_of(told: Told, *layers: int, **options: Any) -> ExtractionPlan:
    """What a run would capture now."""
    manifest = told.world.manifest(**manifest_of(*layers))
    with open_ledger(told.world.workspace, "plan") as ledger:
        return plan_extraction(manifest, target_of(told.world, manifest), told.build_id, ledger, **options)


def extract(told: Told, factory: str, *layers: int, **options: Any) -> Extracted:
    """One run of extraction over what is left."""
    world, manifest = told.world, told.world.manifest(**manifest_of(*layers))
    target = target_of(world, manifest)
    with open_ledger(world.workspace, "extract") as ledger:
        adopt(ledger)
        plan = plan_extraction(manifest, target, told.build_id, ledger, **options)
        log = RunLog(ledger, "extract", told.build_id)
        run = ExtractionRun(plan, manifest, target, ledger, log, factory=factory)
        whole = asyncio.run(run.run([Device("cpu", 0)], Interrupt()))
        log.finish("done")
    of_it = f"WHERE capture_id = '{plan.capture_id}'"
    return Extracted(
        plan, whole, run.cut, run.failed,
        [row[0] for row in told.ask(f"SELECT response_id FROM hidden_rows {of_it} ORDER BY ALL")],
        told.ask(f"SELECT response_id, tokens, reason, device FROM hidden_failures {of_it} ORDER BY ALL"),
        told.ask(f"SELECT kind, message FROM events WHERE run_id = '{log.run_id}' ORDER BY happened_at"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def small(told: Told) -> Extracted:
    """A run on a device that is full above HOLDS padded tokens."""
    return extract(told, "tests.extraction.faulty:create_small", 1, 4)


@pytest.fixture(scope="module")
def left(told: Told, small: Extracted) -> tuple[ExtractionPlan, ExtractionPlan]:
    """What is left after it, without and with what was set aside."""
    return plan_of(told, 1, 4), plan_of(told, 1, 4, retry_set_aside=True)


@pytest.fixture(scope="module")
def retried(told: Told, left: object) -> Extracted:
    """The next one, with room, which is asked to try again what was set aside."""
    return extract(told, "tests.extraction.faulty:create_quick", 1, 4, retry_set_aside=True)


def test_a_run_that_meets_the_end_of_memory_adapts_and_loses_no_row(told: Told, small: Extracted) -> None:
    assert small.whole
    assert small.captured == sorted(set(told.tokens) - {told.longest})
    assert (small.cut.rows, small.cut.tokens) == (ROWS - 1, sum(told.tokens.values()) - told.tokens[told.longest])
    assert small.cut.padded_tokens <= small.cut.batches * HOLDS
    lowered: dict[str, list[int]] = {}
    for kind, message in small.events:
        if kind == "out_of_memory":
            found = re.fullmatch(r"cpu:0: rows up to (\d+) tokens in batches of (\d+) now", message)
            assert found
            lowered.setdefault(found[1], []).append(int(found[2]))
    assert lowered.keys() == {"256", "512"}
    for budgets in lowered.values():
        assert all(after < before for before, after in pairwise([MOST + 1, *budgets]))
    assert lowered["256"][-1] <= HOLDS


def test_a_row_that_cannot_fit_alone_is_set_aside_with_its_reason(told: Told, small: Extracted) -> None:
    tokens = told.tokens[told.longest]
    assert small.failed == 1
    assert small.failures == [(told.longest, tokens, f"out of memory with {tokens} tokens alone", "cpu:0")]
    assert [message for kind, message in small.events if kind == "not_captured"] == [
        f"{told.longest}: out of memory with {tokens} tokens alone"
    ]


def test_what_was_set_aside_is_tried_again_when_asked_alone(
    told: Told, left: tuple[ExtractionPlan, ExtractionPlan]
) -> None:
    again, asked = left
    assert (again.rows, again.captured, again.set_aside, again.left_out) == ((), ROWS - 1, 1, 0)
    assert [row.response_id for row in asked.rows] == [told.longest]
    assert asked.set_aside == 0


def test_a_row_that_is_captured_after_all_is_no_failure_any_more(told: Told, retried: Extracted) -> None:
    assert [row.response_id for row in retried.plan.rows] == [told.longest]
    assert retried.failed == 0
    assert retried.captured == sorted(told.tokens)
    assert retried.failures == []
    breached = [finding for finding in verify(told.world.workspace) if not finding.holds]
    assert not breached


def test_a_shard_holds_prompt_and_answer_and_the_loss_sees_the_answer(told: Told, small: Extracted) -> None:
    folder = told.world.workspace.hidden(small.plan.capture_id)
    rows = told.ask(
        f"SELECT response_id, shard, shard_row FROM hidden_rows WHERE capture_id = '{small.plan.capture_id}'"
    )
    assert {row[0] for row in rows} >= set(small.captured)
    for response_id, shard, place in rows:
        prompt, answer = token_ids(told.world, response_id)
        with ShardReader(folder / shard) as reader:
            row = reader.row(place)
        assert row.response_id == response_id
        assert row.input_ids_T.tolist() == prompt + answer
        assert row.loss_mask_T.tolist() == [0] * len(prompt) + [1] * len(answer)
        assert tuple(row.states_TNH.shape) == (len(prompt) + len(answer), 3, 32)


def test_a_row_that_ends_workers_is_found_by_halves_and_all_others_are_captured(told: Told) -> None:
    done = extract(told, "tests.extraction.faulty:create_mortal", 0, 3)
    assert done.whole
    assert done.captured == sorted(set(told.tokens) - {told.poisoned})
    ((response_id, tokens, reason, device),) = done.failures
    assert (response_id, tokens, device) == (told.poisoned, told.tokens[told.poisoned], "cpu:0")
    assert re.match(r"\d workers died with it, .*killed by signal 9", reason)
    assert "\n" not in reason
    halved = [message for kind, message in done.events if kind == "item_halved"]
    assert [message.partition(":")[0] for message in halved] == ["2 rows"]
    assert not list(told.world.workspace.hidden(done.plan.capture_id).glob(".*"))  # what it was writing when it died
    assert plan_of(told, 0, 3).rows == ()


def test_a_shard_whose_worker_died_before_it_said_so_doubles_no_row(told: Told) -> None:
    done = extract(told, "tests.extraction.faulty:create_late", 2, 4)
    assert done.captured == sorted(set(told.tokens) - {told.poisoned})
    assert [row[0] for row in done.failures] == [told.poisoned]
    folder = told.world.workspace.hidden(done.plan.capture_id)
    named = told.ask(f"SELECT shard FROM hidden_shards WHERE capture_id = '{done.plan.capture_id}' ORDER BY ALL")
    assert [(path.name,) for path in sorted(folder.glob("*.safetensors"))] == named


def test_a_shard_in_the_folder_of_another_capture_is_put_aside_and_its_rows_are_captured_again(told: Told) -> None:
    here, there = (extract(told, "extraction.start:create", layer) for layer in (5, 6))
    folder, others = (told.world.workspace.hidden(done.plan.capture_id) for done in (here, there))
    moved = min(others.glob("*.safetensors"))
    moved.rename(folder / moved.name)
    again = extract(told, "extraction.start:create", 6)
    assert again.captured == there.captured
    assert (folder / f"{moved.name}.damaged").exists()
    assert not (folder / moved.name).exists()
    assert extract(told, "extraction.start:create", 5).captured == here.captured
    assert [finding for finding in verify(told.world.workspace) if not finding.holds] == []


def test_what_is_large_is_told_and_begun_only_when_agreed_to(
    told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = told.world
    monkeypatch.setattr(agreement, "ASK_BYTES", 1000)
    quick = functools.partial(ExtractionRun, factory="tests.extraction.faulty:create_quick")
    monkeypatch.setattr(capturing, "ExtractionRun", quick)
    command = ["extract", str(world.write(**manifest_of(3, 5))), "-w", str(world.workspace.root), "--devices", "2"]
    before = told.ask("SELECT count(*) FROM hidden_rows")
    assert run_app(command) == 2
    said = capsys.readouterr().err
    assert re.search(r"draftmill: extract: this writes \d+\.\d+ [kM]B\. Add --yes to begin, --max-disk SIZE", said)
    assert re.search(
        r"writes \d+\.\d+ [kM]B; \S+ [GT]B are free\n"
        r" +about 0:\d\d with 2 workers at the measured rate \([\d,]+ tokens/s\)\n",
        said,
    )
    assert told.ask("SELECT count(*) FROM hidden_rows") == before
    assert run_app([*command, "--yes"]) == 0
    assert told.ask("SELECT count(*) FROM hidden_rows") == [(before[0][0] + ROWS,)]


def test_a_failed_self_test_stops_the_command_with_one_line(
    told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = told.world
    wrong = functools.partial(ExtractionRun, factory="tests.extraction.faulty:create_wrong")
    monkeypatch.setattr(capturing, "ExtractionRun", wrong)
    path = world.write(**manifest_of(2, 5))
    code = run_app(["extract", str(path), "-w", str(world.workspace.root), "--devices", "1"])
    said = capsys.readouterr().err.splitlines()
    assert code == 2
    assert re.fullmatch(
        r"draftmill: extraction stopped: cpu:\d+: capture self-test: layer \d differs from an unpadded forward by .*",
        said[-1],
    )
    assert not [line for line in said if "Traceback" in line or "captured in" in line]
    assert told.ask("SELECT outcome FROM runs WHERE command = 'extract' ORDER BY run_id DESC LIMIT 1") == [("failed",)]
    captured = {row[0] for row in told.ask("SELECT capture_id FROM hidden_rows")}
    (folder,) = [one for one in world.workspace.hidden("x").parent.iterdir() if one.name not in captured]
    assert [one.name for one in folder.iterdir()] == ["capture.json"]


@pytest.mark.parametrize("limit", [1, 3, 10, 18, ROWS, ROWS + 5])
def test_a_limit_keeps_the_shares(told: Told, limit: int) -> None:
    plan = plan_of(told, 3, limit=limit)
    assert len(plan.rows) == min(limit, ROWS)
    assert plan.left_out == ROWS - len(plan.rows)
    check_shares(told, plan)


def test_a_disk_with_less_room_takes_the_first_rows_of_each_category(told: Told) -> None:
    whole = plan_of(told, 3)
    before: set[str] = set()
    for part in (0.2, 0.5, 0.8, 1.0):
        room_bytes = int(part * whole.size_bytes)
        plan = plan_of(told, 3, max_disk_bytes=room_bytes)
        assert 0 < plan.size_bytes <= room_bytes
        check_shares(told, plan)
        ids = {row.response_id for row in plan.rows}
        assert before < ids
        before = ids
    assert len(before) == ROWS
    with pytest.raises(UserError, match=r"--max-disk: .* hold not one row"):
        plan_of(told, 3, max_disk_bytes=1000)


def test_states_that_are_there_count_for_the_room_of_the_disk(told: Told) -> None:
    first = extract(told, "tests.extraction.faulty:create_quick", 0, 6, limit=12)
    there_bytes = first.plan.size_bytes
    assert len(first.captured) == 12
    full = plan_of(told, 0, 6, max_disk_bytes=there_bytes)
    assert (full.rows, full.captured, full.left_out) == ((), 12, ROWS - 12)
    more = plan_of(told, 0, 6, max_disk_bytes=2 * there_bytes)
    assert more.rows
    assert more.size_bytes <= there_bytes
    assert not {row.response_id for row in more.rows} & set(first.captured)


def check_shares(told: Told, plan: ExtractionPlan) -> None:
    """Two thirds are coding, as near as whole rows come."""
    categories = dict(told.ask("SELECT response_id, category FROM build_responses"))
    counts = Counter(categories[row.response_id] for row in plan.rows)
    assert abs(counts["coding"] - 2 / 3 * len(plan.rows)) <= 1
