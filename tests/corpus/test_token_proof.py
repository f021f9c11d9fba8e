"""Captured rows are held against the right answers, wherever both lie, and nothing of it needs torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import polars as pl
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus.ledger import ingest
from corpus.ledger.findings import Finding
from corpus.ledger.references import Scope
from corpus.ledger.shard_proof import check_hidden_shards
from corpus.ledger.writer import LedgerWriter, open_ledger
from corpus.responses import packed_tokens, write_responses
from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta
from corpus.token_ids import pack_ids
from tests.corpus.test_ledger import attempt

World = Any
IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)
ANSWERS = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=9)
SHUFFLE = """
    CREATE TEMP TABLE shuffled AS SELECT * FROM hidden_rows ORDER BY md5(capture_id || shard || shard_row);
    DELETE FROM hidden_rows;
    INSERT INTO hidden_rows SELECT * FROM shuffled;
"""


def answered(world: World, ledger: LedgerWriter, answers: list[Any], spread: list[int]) -> set[str]:
    """Answer i as r<i> in response shard spread[i]; returns the shards."""
    for number in sorted(set(spread)):
        rows = [
            attempt(f"r{i}", prompt_token_ids=pack_ids(prompt), token_ids=pack_ids(tokens))
            for i, (prompt, tokens) in enumerate(answers)
            if spread[i] == number
        ]
        path = write_responses(world.workspace.responses / f"{number}.parquet", rows).path
        ledger.call(lambda c, path=path: ingest.ingest_response_shard(c, path))
    return {f"{number}.parquet" for number in spread}


def captured(
    world: World, ledger: LedgerWriter, place: tuple[str, str], answers: list[Any], order: list[int], changed: set[int]
) -> set[str]:
    """A hidden shard of these answers, some with another token; returns where those are."""
    rows, wrong = [], set()
    for row, i in enumerate(order):
        prompt, tokens = answers[i]
        input_ids = torch.tensor([*prompt, *tokens], dtype=torch.int32)
        if i in changed:
            input_ids[row % len(input_ids)] ^= 1
            wrong.add(f"{place[0]}/{place[1]} row {row}")
        loss_mask = torch.tensor([0] * len(prompt) + [1] * len(tokens))
        rows.append(CapturedRow(f"r{i}", input_ids, loss_mask, torch.zeros(len(input_ids), 1, 1)))
    meta = ShardMeta(place[0], (1,), False, "t", "r", "float32")
    path = write_shard(world.workspace.hidden(place[0]) / place[1], rows, meta).path
    ledger.call(lambda c: ingest.ingest_hidden_shard(c, path))
    return wrong


def found(ledger: LedgerWriter, sound: set[str]) -> Finding:
    return check_hidden_shards(ledger, Scope(), False, lambda text: None, sound)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_exactly_the_rows_that_are_not_their_answers_are_found(
    make_world: Callable[[], World], data: st.DataObject
) -> None:
    answers = data.draw(ANSWERS)
    numbers = range(len(answers))
    spread = data.draw(st.lists(st.integers(0, 2), min_size=len(answers), max_size=len(answers)))
    world, wrong = make_world(), set()
    with open_ledger(world.workspace, "test") as ledger:
        sound = answered(world, ledger, answers, spread)
        # one capture in two shards, and another of the same answers
        for place, chosen in (
            (("one", "b.safetensors"), numbers[::2]),
            (("one", "a.safetensors"), numbers[1::2]),
            (("two", "a.safetensors"), numbers),
        ):
            if chosen:
                order = data.draw(st.permutations(list(chosen)))
                changed = data.draw(st.sets(st.sampled_from(order)))
                wrong |= captured(world, ledger, place, answers, order, changed)
        ledger.call(lambda c: c.execute(SHUFFLE))
        finding = found(ledger, sound)
        believed = data.draw(st.sets(st.sampled_from(sorted(sound))))
        fewer = found(ledger, believed)
    assert finding.breaches == len(wrong)
    assert finding.notes == ()
    assert {place for line in finding.examples for place in line.partition(": ")[2].split(", ")} <= {*wrong, "…"}
    not_held = 2 * sum(f"{number}.parquet" not in believed for number in spread)  # of either capture
    rows = f"{not_held} rows are not held against their answers, whose shards are not sound"
    assert fewer.notes == ((rows,) if not_held else ())
    assert fewer.breaches <= finding.breaches


def test_an_answer_of_another_length_is_said_once(world: World) -> None:
    with open_ledger(world.workspace, "test") as ledger:
        captured(world, ledger, ("one", "a.safetensors"), [([1, 2], [3])], [0], set())
        sound = answered(world, ledger, [([1, 2], [3, 4])], [0])
        assert found(ledger, sound).examples == ("1 rows of another length than their answer: r0",)


@given(st.lists(st.tuples(st.none() | st.lists(st.integers(0, 9)), st.none() | st.lists(st.integers(0, 9)))))
def test_packed_tokens_are_prompt_and_answer_of_each_row(rows: list[tuple[list[int] | None, list[int] | None]]) -> None:
    kind = pl.List(pl.Int32)
    schema = {"prompt_token_ids": kind, "token_ids": kind}
    flat, lengths, prompts = packed_tokens(pl.DataFrame(rows, schema=schema, orient="row"))
    left = flat.tolist()
    for (prompt, tokens), length, of_prompt in zip(rows, lengths.tolist(), prompts.tolist(), strict=True):
        row, left = left[:length], left[length:]
        assert row == [*(prompt or []), *(tokens or [])]
        assert of_prompt == len(prompt or [])
    assert left == []
    assert flat.dtype == "<i4"


def test_the_proof_needs_no_torch(world: World) -> None:
    with open_ledger(world.workspace, "test") as ledger:
        answered(world, ledger, [([1, 2], [3])], [0])
        captured(world, ledger, ("one", "a.safetensors"), [([1, 2], [3])], [0], set())
    code = (
        "import sys\nfrom pathlib import Path\nfrom corpus.ledger.verify import verify\n"
        "from corpus.workspace import Workspace\n"
        "checked = {one.what: one for one in verify(Workspace(Path(sys.argv[1])))}['hidden shards']\n"
        "print(checked.breaches, checked.said, 'torch' in sys.modules, sep='; ')"
    )
    command = [sys.executable, "-c", code, str(world.workspace.root)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.strip() == "0; 1 with 1 rows: checksum, rows, ids, token counts, tokens, loss masks; False"
