"""The proof of the accounts: a sound workspace passes every check, and each thing that is broken is said by its check.

What is broken is the published snapshot, or a file beside it: the two things that `verify` looks at.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from corpus import identity
from corpus.artefacts import sha256_file, write_text
from corpus.building import commit_build
from corpus.errors import UserError
from corpus.import_source import ImportOptions
from corpus.importing import commit_import, plan_import, read_import, settle_labels
from corpus.ledger import ingest
from corpus.ledger.findings import MOST_EXAMPLES, Finding, Problems
from corpus.ledger.kept import keep_composition
from corpus.ledger.query import query
from corpus.ledger.references import RESPONSE_ID
from corpus.ledger.verify import prompt_digest, verify
from corpus.ledger.writer import open_ledger
from corpus.records import Prompt, encode_messages
from corpus.responses import read_rows_at
from corpus.set_aside import SetAside, write_set_aside
from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta, ShardReader, capture_body

World = Any
CHECKS = {"selections", "states", "composition", "prompts", "ids", "references", "response shards", "hidden shards"}
META = ShardMeta("capture", (1,), False, "org/double", "rev1", "float32")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every kind of thing: conversations, rejected and missing answers, replicas, an import, states; three builds."""
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("sound"))
    chats = [
        {"id": i, "messages": [{"role": "user", "content": f"talk {i}"}, {"role": "user", "content": "more"}]}
        for i in range(20)
    ]
    world.jsonl("talk.jsonl", [*chats, {"messages": [{"role": "user", "content": "unrenderable"}]}])
    sources = [
        {"name": "code", "path": world.prompts("code", 6), "category": "coding"},
        {"name": "talk", "path": "talk.jsonl", "category": "general"},
    ]
    mix = {"shares": {"coding": 1, "general": 1}, "holdout": 0.1, "shortage": "repeat", "max_repeats": 4}
    body = {"sources": sources, "generation": {"max_tokens": 40, "truncated": "drop"}}
    with open_ledger(world.workspace, "run") as ledger:
        for total, limit in ((24, None), (30, 4), (8, 0)):
            manifest = world.manifest(**body, mix={**mix, "total": total})
            plan = world.plan(manifest)
            commit_build(plan, world.workspace, ledger)
            if limit != 0:
                world.generate(manifest, plan, ledger, limit=limit)
        imported(world, ledger)
    capture(world)
    train(world)
    return world


def imported(world: World, ledger: Any) -> None:
    """A corpus in which one prompt stands twice, and one answer is empty."""
    said = [("Why?", "So."), ("Why?", "Because."), ("Where?", "Here."), ("When?", " ")]
    world.jsonl(
        "team.jsonl",
        [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in said],
    )
    plan = settle_labels(plan_import(ImportOptions(("team.jsonl",), model="m"), world.root, world.workspace), ledger)
    commit_import(plan, read_import(plan, world.workspace), ledger, lambda text: None)


def capture(world: World) -> None:
    """States of some accepted answers, and one that is set aside, as extraction writes and enters them."""
    *places, (shard, row) = query(
        world.workspace,
        "SELECT shard, shard_row FROM accepted_responses WHERE response_tokens > 0 ORDER BY response_id LIMIT 6",
    ).rows()
    (aside,) = read_rows_at(world.workspace.responses, [(shard, row)], ["response_id"])["response_id"]
    rows = read_rows_at(world.workspace.responses, places, ["response_id", "prompt_token_ids", "token_ids"])
    captured = [
        CapturedRow(
            response_id,
            torch.tensor([*prompt, *tokens]),
            torch.tensor([0] * len(prompt) + [1] * len(tokens)),
            torch.zeros(len(prompt) + len(tokens), 1, 4),
        )
        for response_id, prompt, tokens in rows.select("response_id", "prompt_token_ids", "token_ids").iter_rows()
    ]
    folder = world.workspace.hidden("capture")
    path = write_shard(folder / "a.safetensors", captured, META).path
    write_text(folder / "capture.json", json.dumps(capture_body(path)))
    write_set_aside(folder, {aside: SetAside(9, "out of memory with 9 tokens alone", "cpu:0")})
    with open_ledger(world.workspace, "extract") as ledger:
        ledger.call(lambda c: ingest.ingest_capture(c, world.workspace, "capture"))
        ledger.call(lambda c: ingest.ingest_hidden_shard(c, path))


def train(world: World) -> None:
    """A drafter of the captured answers, as training writes and enters it."""
    build_id = query(world.workspace, "SELECT build_id FROM builds WHERE total = 24").item()
    folder = world.workspace.drafter("drafter")
    folder.mkdir(parents=True)
    query(world.workspace, "SELECT response_id FROM hidden_rows").write_parquet(folder / "responses.parquet")
    body = {
        "build_id": build_id, "capture_id": "capture", "algorithm": "dflash", "steps": 1, "path": None, "rows": 5,
        "training": {}, "created_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    (folder / "drafter.json").write_text(json.dumps(body))
    with open_ledger(world.workspace, "train") as ledger:
        ledger.call(lambda c: ingest.ingest_drafter(c, world.workspace, "drafter"))


@pytest.fixture
def copy(sound: World, tmp_path: Path) -> Any:
    """A copy that a test may break."""
    from tests.conftest import World as Small

    shutil.copytree(sound.root, tmp_path / "copy")
    return Small(tmp_path / "copy")


@contextmanager
def ledger_of(world: World) -> Iterator[Any]:
    """The snapshot, to be broken."""
    with duckdb.connect(str(world.workspace.snapshot)) as connection:
        yield connection


def broken(world: World, *statements: str) -> None:
    with ledger_of(world) as connection:
        for statement in statements:
            changed = connection.execute(statement).fetchone()
            assert changed is None or changed[0], f"changes nothing: {statement}"


def breached(world: World, **options: Any) -> dict[str, Finding]:
    return {one.what: one for one in verify(world.workspace, **options) if not one.holds}


def of(findings: list[Finding], what: str) -> list[Finding]:
    return [one for one in findings if one.what == what]


# a sound workspace


def test_a_sound_workspace_passes_and_its_sums_are_those_of_the_ledger(sound: World) -> None:
    findings = verify(sound.workspace)
    assert [one for one in findings if one.breaches or one.examples or one.next_step] == []
    assert {one.what for one in findings} == CHECKS
    builds = query(sound.workspace, "SELECT build_id FROM builds ORDER BY created_at")["build_id"].to_list()
    assert len(builds) == 4
    assert {one.build for one in findings} == {*builds, None}
    for build in builds:
        counts = dict(
            query(
                sound.workspace, f"SELECT state, count(*) FROM provenance WHERE build_id = '{build}' GROUP BY ALL"
            ).rows()
        )
        (states,) = [one for one in of(findings, "states") if one.build == build]
        assert states.checked == sum(counts.values())
        sums = " + ".join(f"{counts.get(state, 0):,} {state}" for state in ("accepted", "rejected", "unfinished"))
        assert states.said == (f"{states.checked} wanted = {sums}" if counts else "nothing is wanted yet")
    said = " ".join(one.said + " ".join(one.notes) for one in findings)
    assert "not planned yet" in said
    assert "rejected: " in said
    for state in ("accepted", "rejected", "unfinished"):
        assert query(sound.workspace, f"SELECT count(*) FROM provenance WHERE state = '{state}'").item() > 0


def test_one_build_is_verified_with_what_it_names(sound: World) -> None:
    for (build,) in query(sound.workspace, "SELECT build_id FROM builds").rows():
        findings = verify(sound.workspace, build, all_prompts=True, fast=True)
        assert all(one.holds for one in findings)
        assert {one.build for one in findings} == {build, None}


def test_looking_writes_nothing_and_takes_no_lock(sound: World) -> None:
    def files() -> dict[Path, tuple[int, int]]:
        found = (path for path in sound.root.rglob("*") if path.is_file())
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}

    before = files()
    with sound.workspace.coordinate("generate"):
        held = files()
        assert all(one.holds for one in verify(sound.workspace))
        assert files() == held
    assert files().keys() == before.keys()


def test_what_a_run_has_written_since_is_counted_and_is_no_breach(copy: World) -> None:
    for pattern in ("responses/*.parquet", "hidden/*/*.safetensors"):
        path = next(copy.workspace.root.glob(pattern))
        shutil.copy(path, path.with_name(f"zz{path.suffix}"))
    findings = verify(copy.workspace)
    assert all(one.holds for one in findings)
    for what in ("response shards", "hidden shards"):
        assert of(findings, what)[0].notes == ("1 file is not entered yet; the next command that writes here does",)


def test_a_ledger_that_is_not_there_and_a_build_that_is_not(sound: World, world: World) -> None:
    with pytest.raises(UserError, match="holds no published ledger"):
        verify(world.workspace)
    with pytest.raises(UserError, match="has no build f00"):
        verify(sound.workspace, "f00")


# what is broken in the ledger

ONE_ANSWER = "response_id = (SELECT min(response_id) FROM build_responses)"
ONE_REJECTED = (
    "response_id = (SELECT min(response_id) FROM responses WHERE state = 'rejected' AND reason <> 'no_answer')"
)
ONE_ACCEPTED = "response_id = (SELECT min(response_id) FROM accepted_responses WHERE response_tokens > 0)"
ONE_SELECTED = "(build_id, prompt_id, replica) = (SELECT min((build_id, prompt_id, replica)) FROM selections)"

LEDGER: dict[str, tuple[str, set[str], str]] = {
    "a wanted answer is gone": (
        f"DELETE FROM build_responses WHERE {ONE_ANSWER}", {"selections"}, "1 selected and not wanted"),
    "a wanted answer stands twice": (
        f"INSERT INTO build_responses SELECT * FROM build_responses WHERE {ONE_ANSWER}", {"selections"},
        "1 wanted twice"),
    "a turn too many is wanted": (
        f"UPDATE build_responses SET turn = 7 WHERE {ONE_ANSWER}", {"selections", "ids"}, "1 wanted and not selected"),
    "two turns are one answer": (
        "UPDATE build_responses SET response_id = (SELECT max(response_id) FROM build_responses), turn = turn "
        "WHERE response_id = (SELECT response_id FROM build_responses JOIN (SELECT build_id FROM build_responses "
        "ORDER BY response_id DESC LIMIT 1) USING (build_id) ORDER BY response_id LIMIT 1)",
        {"selections", "ids"}, "1 counted for two turns"),
    "a label is another": (
        f"UPDATE build_responses SET category = 'other' WHERE {ONE_ANSWER}", {"selections"},
        "1 labelled otherwise than selected"),
    "a selected prompt is gone": (
        f"DELETE FROM selections WHERE {ONE_SELECTED}", {"selections"}, "wanted and not selected"),
    "a selected prompt stands twice": (
        f"INSERT INTO selections SELECT * FROM selections WHERE {ONE_SELECTED}", {"selections"}, "selected twice"),
    "a reason is gone": (
        f"UPDATE responses SET reason = NULL WHERE {ONE_REJECTED}", {"states"}, "1 rejected without a reason"),
    "a reason is empty": (
        f"UPDATE responses SET reason = ' ' WHERE {ONE_REJECTED}", {"states"}, "1 rejected without a reason"),
    "a state is none": (
        f"UPDATE responses SET state = 'lost', reason = 'x' WHERE {ONE_REJECTED}", {"states", "response shards"},
        "1 in a state that is none"),
    "a rejected answer is called accepted": (
        f"UPDATE responses SET state = 'accepted', reason = NULL WHERE {ONE_REJECTED}", {"response shards"},
        "1 of other states than in the ledger"),
    "an accepted answer is called rejected": (
        f"UPDATE responses SET state = 'rejected', reason = 'x' WHERE {ONE_ACCEPTED}",
        {"references", "response shards", "hidden shards"}, "1 rows whose answer is not accepted"),
    "an answer is gone": (
        f"DELETE FROM responses WHERE {ONE_REJECTED}", {"response shards"}, "rows, and the ledger counts"),
    "an answer's id is another": (
        f"UPDATE responses SET response_id = repeat('0', 32) WHERE {ONE_REJECTED}", {"ids", "response shards"},
        "1 not the digest of prompt, recipe, replica and turn"),
    "an answer is of another prompt": (
        f"UPDATE responses SET prompt_id = repeat('0', 32) WHERE {ONE_REJECTED}", {"ids", "response shards"},
        "1 of other ids than in the ledger"),
    "a count of tokens is another": (
        f"UPDATE responses SET response_tokens = response_tokens + 1 WHERE {ONE_REJECTED}", {"response shards"},
        "1 of other token counts than in the ledger"),
    "an imported answer is another's": (
        "UPDATE build_responses SET response_id = (SELECT max(response_id) FROM responses) WHERE response_id = "
        "(SELECT min(response_id) FROM imported_answers)", {"ids"}, "1 not the imported answer of its prompt and turn"),
    "a recipe is another": (
        "UPDATE recipes SET body = replace(body, '\"max_tokens\": 40', '\"max_tokens\": 41')", {"ids"},
        "2 no digest of its recipe"),
    "a recipe cannot be read": (
        "UPDATE recipes SET body = '{' WHERE recipe_id = (SELECT min(recipe_id) FROM recipes)", {"ids"},
        "1 no digest of its recipe"),
    "a run is gone": ("DELETE FROM runs", {"references"}, "attempts of no run"),
    "a recipe is gone": (
        "DELETE FROM recipes WHERE recipe_id IN (SELECT recipe_id FROM responses)", {"references"},
        "attempts of no recipe"),
    "a pool is gone": (
        "DELETE FROM pools WHERE pool_id = (SELECT min(pool_id) FROM sources)", {"references"}, "prompts of no pool"),
    "a source row is gone": (
        "DELETE FROM source_rows WHERE prompt_id = (SELECT min(prompt_id) FROM selections)", {"references"},
        "prompts of no source row"),
    "a source is gone": (
        "DELETE FROM sources WHERE source = 'code'", {"references"}, "selections of no source"),
    "a capture is gone": ("DELETE FROM captures", {"references"}, "1 hidden shards of no capture: capture"),
    "a row that is set aside is of no capture": (
        "UPDATE hidden_failures SET capture_id = 'gone'", {"references"}, "1 rows set aside of no capture: gone"),
    "a candidate is gone": (
        "DELETE FROM prompts WHERE prompt_id = (SELECT min(prompt_id) FROM selections)", {"references", "prompts"},
        "selected prompts that are no candidates"),
    "a shard is forgotten": ("DELETE FROM response_shards", {"references"}, "attempts of no shard"),
    "a state's tokens are others": (
        "UPDATE hidden_rows SET tokens = tokens + 1 WHERE shard_row = 1", {"hidden shards"},
        "1 rows of another length than their answer"),
    "a state is another's": (
        "UPDATE hidden_rows SET response_id = 'nobody' WHERE shard_row = 0", {"hidden shards"},
        "1 of other rows than in the ledger: capture/a.safetensors"),
    "a drafter is gone": ("DELETE FROM drafters", {"references"}, "5 trained answers of no drafter: drafter"),
    "a drafter's build is gone": (
        "UPDATE drafters SET build_id = 'gone'", {"references"}, "1 drafters of no build: gone"),
    "a drafter was trained on nothing": (
        "INSERT INTO drafter_responses VALUES ('drafter', 'nobody')", {"references"},
        "1 trained answers that are not accepted: nobody"),
}  # fmt: skip


@pytest.mark.parametrize("what", LEDGER)
def test_what_is_broken_in_the_ledger_is_said_by_its_check_and_no_other(copy: World, what: str) -> None:
    statement, checks, said = LEDGER[what]
    broken(copy, statement)
    found = breached(copy)
    assert found.keys() == checks, {one: finding.examples for one, finding in found.items()}
    assert any(said in line for one in found.values() for line in one.examples), found
    assert all(one.next_step and one.breaches > 0 for one in found.values())


def test_an_answer_that_is_accepted_twice(copy: World) -> None:
    """A second shard with the same answer, entered as accepted by a ledger that does not mark the second."""
    (chosen, shard) = query(copy.workspace, f"SELECT response_id, shard FROM responses WHERE {ONE_ACCEPTED}").row(0)
    path = copy.workspace.responses / "zz.parquet"
    pl.read_parquet(copy.workspace.responses / shard).filter(pl.col("response_id") == chosen).write_parquet(path)
    with open_ledger(copy.workspace, "test") as ledger:
        ledger.call(lambda c: ingest.ingest_response_shard(c, path))
    assert breached(copy) == {}, "the second is marked, and so rejected with its reason"
    broken(copy, "UPDATE responses SET state = 'accepted', reason = NULL WHERE shard = 'zz.parquet'")
    found = breached(copy)
    assert found.keys() == {"states"}
    assert found["states"].examples == (f"1 accepted more than once: {chosen}",)


def test_a_plan_that_is_not_entered_is_said_and_its_answers_are_still_looked_at(copy: World) -> None:
    build = query(copy.workspace, "SELECT build_id FROM builds WHERE total = 24").item()
    broken(copy, "DELETE FROM build_responses WHERE build_id NOT IN (SELECT import_id FROM imports)")
    findings = verify(copy.workspace)
    assert all(one.holds for one in findings)
    (selections,) = [one for one in of(findings, "selections") if one.build == build]
    assert "not planned yet" in selections.said
    assert "holds a plan that is not entered yet" in selections.notes[0]
    (nobodys,) = [one for one in of(findings, "states") if one.build is None]
    assert nobodys.checked > 10
    assert "that no build wants: " in nobodys.said
    broken(copy, f"UPDATE responses SET reason = NULL WHERE {ONE_REJECTED}")
    assert breached(copy).keys() == {"states"}


# what is broken in the files


def gone(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    """One bit, and the file's time as it was."""
    times, data = path.stat(), bytearray(path.read_bytes())
    data[random.Random(1).randrange(len(data))] ^= 4
    path.write_bytes(bytes(data))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


SHARDS = {"response shards": "responses/2*.parquet", "hidden shards": "hidden/*/*.safetensors"}
WAYS: dict[Callable[[Path], None], str] = {gone: "gone", cut: "of another size", flipped: "of another checksum"}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("what", SHARDS)
def test_a_shard_that_is_not_what_was_written(copy: World, what: str, way: Callable[[Path], None]) -> None:
    path = sorted(copy.workspace.root.glob(SHARDS[what]))[0]
    way(path)
    found = breached(copy)
    assert found.keys() == {what}
    assert found[what].breaches == 1
    assert found[what].examples[0].startswith(f"1 {WAYS[way]}: ")
    assert path.name in found[what].examples[0]


def entered(world: World, path: Path, table: str) -> None:
    """The ledger takes a file for the one that was written."""
    broken(
        world,
        f"UPDATE {table} SET size_bytes = {path.stat().st_size}, sha256 = '{sha256_file(path)}' "
        f"WHERE shard = '{path.name}'",
    )


def test_a_shard_of_other_rows_under_its_own_checksum(copy: World) -> None:
    path = sorted(copy.workspace.responses.glob("2*.parquet"))[0]
    rows = pl.read_parquet(path)
    for changed, said in (
        (rows[1:], f"1 with {rows.height - 1} rows, and the ledger counts {rows.height} and has {rows.height}"),
        (rows.reverse(), "1 of other ids than in the ledger"),
        (rows.with_columns(token_ids=pl.col("prompt_token_ids")), "1 of other token counts than in the ledger"),
        (rows.drop("token_ids"), "1 no response shard"),
    ):
        changed.write_parquet(path)
        entered(copy, path, "response_shards")
        found = breached(copy)
        assert found.keys() == {"response shards"}
        assert found["response shards"].examples[0].startswith(said)


def test_a_hidden_shard_of_another_capture_or_none_under_its_own_checksum(copy: World) -> None:
    path = next(copy.workspace.root.glob("hidden/*/*.safetensors"))
    row = CapturedRow("r", torch.tensor([1, 2]), torch.tensor([0, 1]), torch.zeros(2, 1, 4))
    other = ShardMeta("other", (1,), False, "t", "r", "float32")
    for write, said in (
        (lambda: write_shard(path, [row], other), "1 of another capture"),
        (lambda: write_shard(path, [row], META), "1 with 1 rows, and the ledger counts 5 and has 5"),
        (lambda: path.write_bytes(b"none"), "1 no hidden shard"),
    ):
        write()
        entered(copy, path, "hidden_shards")
        found = breached(copy)
        assert found.keys() == {"hidden shards"}
        assert found["hidden shards"].examples[0].startswith(said)


# what is in a hidden shard beside its states


def captured_anew(world: World, changed: int, change: Callable[[Any, Any, int], None]) -> None:
    """The hidden shard with one row changed by (input ids, loss mask, tokens of its prompt), entered as it is now."""
    path = next(world.workspace.root.glob(SHARDS["hidden shards"]))
    with ShardReader(path) as reader:
        rows = [CapturedRow(r.response_id, r.input_ids_T.clone(), r.loss_mask_T.clone(), r.states_TNH) for r in reader]
    row = rows[changed]
    change(row.input_ids_T, row.loss_mask_T, int((row.loss_mask_T == 0).sum()))
    write_shard(path, rows, META)
    entered(world, path, "hidden_shards")


OTHER_TOKENS = "1 rows of other tokens than their answer: capture/a.safetensors row {}"
OTHER_MASK = "1 rows whose loss_mask is not 1 on what was generated and 0 before: capture/a.safetensors row {}"
CAPTURED: dict[str, tuple[Callable[[Any, Any, int], None], str]] = {
    "a token of the prompt": (lambda ids, mask, prompt: ids[0].add_(1), OTHER_TOKENS),
    "the last token": (lambda ids, mask, prompt: ids[-1].add_(1), OTHER_TOKENS),
    "two tokens change places": (lambda ids, mask, prompt: ids[:2].copy_(ids[:2].flip(0)), OTHER_TOKENS),
    "a token and the mask": (lambda ids, mask, prompt: (ids[0].add_(1), mask.zero_()), OTHER_TOKENS),
    "the loss begins a token late": (lambda ids, mask, prompt: mask[prompt].zero_(), OTHER_MASK),
    "the loss begins a token early": (lambda ids, mask, prompt: mask[prompt - 1].fill_(1), OTHER_MASK),
    "the end of turn has no loss": (lambda ids, mask, prompt: mask[-1].zero_(), OTHER_MASK),
    "the first token has a loss": (lambda ids, mask, prompt: mask[0].fill_(1), OTHER_MASK),
    "a weight that is no mask": (lambda ids, mask, prompt: mask[prompt:].fill_(2), OTHER_MASK),
}


@pytest.mark.parametrize("what", CAPTURED)
def test_a_captured_row_is_its_answers_tokens_with_the_loss_on_what_was_generated(copy: World, what: str) -> None:
    change, said = CAPTURED[what]
    captured_anew(copy, 3, change)
    found = breached(copy)
    assert found.keys() == {"hidden shards"}
    assert found["hidden shards"].examples == (said.format(3),)
    assert "extract MANIFEST" in found["hidden shards"].next_step
    fast = verify(copy.workspace, fast=True)
    assert all(one.holds for one in fast)
    assert "tokens, loss masks" not in of(fast, "hidden shards")[0].said


def test_answers_that_were_made_again_are_not_those_that_were_captured(copy: World) -> None:
    """Another answer of the same length under the same id; the ledger may know of it, or not."""
    ids = query(copy.workspace, "SELECT response_id FROM hidden_rows")["response_id"]
    (shard,) = query(
        copy.workspace,
        "SELECT r.shard FROM accepted_responses r SEMI JOIN hidden_rows USING (response_id) ORDER BY ALL LIMIT 1",
    ).row(0)
    path = copy.workspace.responses / shard
    rows = pl.read_parquet(path)
    captured = pl.col("response_id").is_in(ids.to_list()) & (pl.col("state") == "accepted")
    other = pl.col("token_ids").list.eval(pl.element() + 1)
    rows.with_columns(token_ids=pl.when(captured).then(other).otherwise("token_ids")).write_parquet(path)
    count = rows.filter(captured).height
    findings = verify(copy.workspace)
    assert {one.what for one in findings if not one.holds} == {"response shards"}
    assert of(findings, "hidden shards")[0].notes == (
        f"{count:,} rows are not held against their answers, whose shards are not sound",
    )
    entered(copy, path, "response_shards")
    found = breached(copy)
    assert found.keys() == {"hidden shards"}
    assert found["hidden shards"].breaches == count
    assert found["hidden shards"].examples[0].startswith(f"{count} rows of other tokens than their answer: capture/a")


@pytest.mark.parametrize("name", ["input_ids", "loss_mask"])
def test_a_hidden_shard_without_its_tokens(copy: World, name: str) -> None:
    path = next(copy.workspace.root.glob(SHARDS["hidden shards"]))
    with safe_open(str(path), framework="pt") as file:
        texts = file.metadata()
    tensors = load_file(str(path))
    for changed in ({name: tensors[name].float()}, {name: tensors[name][1:].clone()}, {}):
        save_file({key: value for key, value in tensors.items() if key != name} | changed, str(path), metadata=texts)
        entered(copy, path, "hidden_shards")
        found = breached(copy)
        assert found.keys() == {"hidden shards"}
        what = "1 without readable input_ids and loss_mask" if changed else "1 no hidden shard"
        assert found["hidden shards"].examples == (f"{what}: capture/a.safetensors",)
        assert (breached(copy, fast=True) == {}) == bool(changed)  # a tensor that is gone is seen in the header


def test_rows_that_two_shards_hold_are_counted_and_no_breach(copy: World) -> None:
    """A worker whose coordinator was killed may end its shard after the next one has begun."""
    path = next(copy.workspace.root.glob(SHARDS["hidden shards"]))
    shutil.copy(path, path.with_name("b.safetensors"))
    with open_ledger(copy.workspace, "extract") as ledger:
        ledger.call(lambda c: ingest.ingest_hidden_shard(c, path.with_name("b.safetensors")))
    findings = verify(copy.workspace)
    assert all(one.holds for one in findings)
    assert of(findings, "hidden shards")[0].notes == ("5 rows are captured twice; the first of each is taken",)


def test_prompts_of_the_file_are_held_against_their_ids(copy: World) -> None:
    build, candidates = query(
        copy.workspace, "SELECT build_id, candidates_id FROM builds WHERE seed IS NOT NULL ORDER BY created_at LIMIT 1"
    ).row(0)
    path = copy.workspace.candidates(candidates) / "prompts.parquet"
    rows = pl.read_parquet(path)
    chosen = query(copy.workspace, f"SELECT min(prompt_id) FROM selections WHERE build_id = '{build}'").item()
    one = pl.col("prompt_id") == chosen
    for changed, said in (
        (rows.with_columns(messages=pl.when(one).then(pl.col("messages") + " ").otherwise("messages")),
         f"1 not the digest of messages and tools: {chosen}"),
        (rows.filter(~one), f"1 selected and not in the file: {chosen}"),
        (rows.drop("messages"), "1 not readable"),
    ):  # fmt: skip
        changed.write_parquet(path)
        findings = [one for one in verify(copy.workspace, build) if not one.holds]
        assert [one.what for one in findings] == ["prompts"]
        assert any(line.startswith(said) for line in findings[0].examples), findings[0].examples
    gone(path)
    assert breached(copy, build_id=build).keys() == {"prompts"}


def test_a_sample_is_drawn_where_there_are_many_and_every_one_is_read_on_demand(
    copy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corpus.ledger.verify.SAMPLED", 5)
    assert {one.checked for one in of(verify(copy.workspace), "prompts")} == {3, 5}
    assert max(one.checked for one in of(verify(copy.workspace, all_prompts=True), "prompts")) > 20


def test_without_checksums_a_flipped_bit_is_not_seen_and_that_is_said(copy: World) -> None:
    path = next(copy.workspace.root.glob(SHARDS["hidden shards"]))
    with safe_open(str(path), framework="pt") as file:
        assert not file.get_tensor("states").any()
    data = path.read_bytes()
    at = data.index(bytes(200))  # in the states, which are zero
    path.write_bytes(data[: at + 100] + b"\1" + data[at + 101 :])
    findings = verify(copy.workspace, fast=True)
    assert all(one.holds for one in findings)
    assert "checksum" not in " ".join(one.said for one in findings)
    assert breached(copy).keys() == {"hidden shards"}


def test_the_rounds_of_a_build_are_what_is_selected(copy: World) -> None:
    build = query(copy.workspace, "SELECT build_id FROM builds WHERE total = 24").item()
    folder = copy.workspace.build(build) / "rounds"
    first = pl.read_parquet(folder / "0.parquet")
    later = first.with_columns(prefix=pl.col("prefix") + 1, round=pl.lit(1, pl.Int32))
    later.write_parquet(folder / "1.parquet")
    findings = verify(copy.workspace, build)
    assert all(one.holds for one in findings)
    assert "round 1 is not entered yet" in of(findings, "selections")[0].notes
    gone(folder / "1.parquet")
    later.write_parquet(folder / "0.parquet")
    found = breached(copy, build_id=build)
    assert found.keys() == {"selections"}
    assert found["selections"].examples == (f"1 selection that no round of its build takes: {build}/rounds",)


def test_a_plan_may_be_older_than_the_last_round(copy: World) -> None:
    build = query(copy.workspace, "SELECT build_id FROM builds WHERE total = 24").item()
    folder = copy.workspace.build(build)
    first = pl.read_parquet(folder / "rounds" / "0.parquet")
    for step in (1, -1):
        later = first.with_columns(prefix=pl.col("prefix") + step, round=pl.lit(1, pl.Int32))
        later.write_parquet(folder / "rounds" / "1.parquet")
        with ledger_of(copy) as connection:
            ingest.ingest_build(connection, copy.workspace, build)
        findings = verify(copy.workspace, build)
        assert all(one.holds for one in findings), of(findings, "selections")
        assert "planned for round 0; a later round is not planned yet" in of(findings, "selections")[0].notes
    broken(copy, f"DELETE FROM build_responses WHERE build_id = '{build}' AND {ONE_OF.format(build)}")
    assert breached(copy, build_id=build).keys() == {"selections"}


ONE_OF = "response_id = (SELECT min(response_id) FROM build_responses WHERE build_id = '{}')"

# pure

names = st.text("0123456789abcdef", min_size=1, max_size=32)


@given(names, names, st.integers(0, 10**6), st.integers(0, 10**3))
def test_ids_in_sql_are_the_ids_in_python(prompt: str, recipe: str, replica: int, turn: int) -> None:
    made = duckdb.execute(
        f"SELECT {RESPONSE_ID} FROM (SELECT ? AS prompt_id, ? AS recipe_id, ?::INTEGER AS replica, ?::INTEGER AS turn)",
        [prompt, recipe, replica, turn],
    ).fetchone()
    assert made == (identity.response_id(prompt, recipe, replica, turn),)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aé\n\"\\0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
tools = st.lists(st.dictionaries(st.text("abc", min_size=1), values, max_size=3), max_size=2)


@given(st.text(st.characters(exclude_categories=["Cs"])), tools)
def test_a_stored_prompt_gives_its_own_id(text: str, offered: list[dict[str, Any]]) -> None:
    prompt = Prompt(({"role": "user", "content": text},), tuple(offered))
    try:
        stored = encode_messages(prompt)
    except Exception:  # text that has no canonical form is never stored
        return
    assert prompt_digest(*stored) == prompt.prompt_id


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.text("x", max_size=2), max_size=5)), max_size=8))
def test_problems_sum_and_their_lines_are_short(found: list[tuple[str, list[str]]]) -> None:
    problems = Problems()
    for kind, ids in found:
        problems.add(kind, ids)
    finding = problems.finding("what", 9, "said", "next")
    assert finding.breaches == sum(len(ids) for _, ids in found)
    assert finding.holds == (finding.breaches == 0) == (finding.examples == ()) == (finding.next_step == "")
    assert len(finding.examples) == len({kind for kind, ids in found if ids})
    assert all(line.count(", ") <= MOST_EXAMPLES for line in finding.examples)


def test_a_composition_that_says_other_than_the_tables_is_a_breach(copy: World) -> None:
    """What is kept of it is believed while the tables look the same; verify counts."""
    with open_ledger(copy.workspace, "run") as ledger:
        ledger.call(keep_composition)
        ledger.call(lambda c: c.execute("UPDATE kept_composition SET rows = rows + 1 WHERE stage = 'accepted'"))
    wrong = [one for one in of(verify(copy.workspace), "composition") if not one.holds]
    assert wrong
    assert all("accepted" in one.examples[0] and "composition says" in one.examples[0] for one in wrong)
