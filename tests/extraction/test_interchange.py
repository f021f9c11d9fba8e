"""Exported states: speculators' own dataset class reads the numbers of the shards, and a stopped export goes on."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from datasets import load_from_disk
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file

from corpus.artefacts import read_description
from corpus.errors import UserError
from corpus.ledger import ingest
from corpus.ledger.query import LedgerReader, query
from corpus.ledger.writer import open_ledger
from corpus.responses import read_rows_at
from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta, ShardReader
from draftmill.app import run_app
from draftmill.session import Session
from extraction import interchange_files, interchange_stage
from extraction.interchange import DESCRIPTION, Capture, Found, InterchangePlan, plan_interchange, train_ratio
from extraction.interchange_files import run_interchange
from extraction.interchange_stage import load_interchange
from extraction.items import rows_that_fit
from extraction.stage import plan_capture
from tests.conftest import World
from tests.training.references import reference_module

SHARDS = 4
NOT_CAPTURED = 2
CAPTURE = Capture("capture", "org/model", "rev", (1, 3), True, 8, "bfloat16")


@dataclass
class Captured:
    """A workspace with states, and what they are: by response_id the row of its first shard."""

    world: World
    manifest: Path
    build_id: str
    capture_id: str
    layer_ids: tuple[int, ...]
    rows: dict[str, CapturedRow]

    def plan(self, folder: Path, limit: int | None = None) -> InterchangePlan:
        session = Session(self.manifest, self.world.workspace)
        ledger = LedgerReader(self.world.workspace)
        return load_interchange(session.manifest, session.target, self.build_id, ledger, folder, limit)

    def command(self, folder: Path, *options: str, manifest: Path | None = None) -> list[str]:
        root = str(self.world.workspace.root)
        return ["export-states", str(manifest or self.manifest), str(folder), "--format", "speculators", "-w", root,
                *options]  # fmt: skip


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Answers of two sources, one without a licence; states of all but two in four shards, one row in two of them."""
    world = World(tmp_path_factory.mktemp("captured"))
    world.tiny_model()
    body: dict[str, Any] = {
        "sources": [
            {"name": "code", "path": world.prompts("code", 60), "category": "coding", "license": "mit"},
            {"name": "talk", "path": world.prompts("talk", 60), "category": "general"},
            {"name": "chat", "path": world.prompts("chat", 60), "category": "general", "license": "cc0"},
        ],
        "mix": {"total": 30, "shares": {"coding": 2, "general": 1}, "holdout": 0.2},
    }
    path, manifest = world.write(**body), world.manifest(**body)
    world.tell(manifest)
    (build_id,) = query(world.workspace, "SELECT build_id FROM builds")["build_id"]
    session = Session(path, world.workspace)
    capture_id, layer_ids = plan_capture(session.manifest, session.target)
    return Captured(world, path, build_id, capture_id, layer_ids, _capture(world, capture_id, layer_ids))


def _capture(world: World, capture_id: str, layer_ids: tuple[int, ...]) -> dict[str, CapturedRow]:
    places = query(world.workspace, "SELECT shard, shard_row FROM accepted_responses ORDER BY response_id").rows()
    made = [_states(*row, len(layer_ids)) for row in _tokens(world, places).iter_rows()]
    random.Random(3).shuffle(made)
    kept = made[NOT_CAPTURED:]
    again = replace(kept[0], states_TNH=kept[0].states_TNH + 1)
    stranger = _states("of another build", [1, 2], [3], len(layer_ids))
    shards = [kept[i::SHARDS] for i in range(SHARDS)]
    shards[2] += [again, stranger]
    meta = ShardMeta(capture_id, layer_ids, True, "model", "rev", "bfloat16")
    folder = world.workspace.hidden(capture_id)
    paths = [write_shard(folder / f"{i}.safetensors", rows, meta).path for i, rows in enumerate(shards)]
    with open_ledger(world.workspace, "extract") as ledger:
        for path in paths:
            ledger.call(lambda c, path=path: ingest.ingest_hidden_shard(c, path))
    return {row.response_id: row for row in kept}


def _tokens(world: World, places: list[Any]) -> pl.DataFrame:
    rows = read_rows_at(world.workspace.responses, places, ["response_id", "prompt_token_ids", "token_ids"])
    return rows.select("response_id", "prompt_token_ids", "token_ids")


def _states(response_id: str, prompt: list[int], answer: list[int], layers: int) -> CapturedRow:
    """States of any bits at all: NaN, infinities and both zeros too."""
    tokens = len(prompt) + len(answer)
    generator = torch.Generator().manual_seed(tokens)
    bits = torch.randint(-(2**15), 2**15, (tokens, layers + 1, 64), generator=generator, dtype=torch.int16)
    mask = torch.tensor([0] * len(prompt) + [1] * len(answer))
    return CapturedRow(response_id, torch.tensor([*prompt, *answer]), mask, bits.view(torch.bfloat16))


@pytest.fixture(scope="module")
def exported(captured: Captured, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole export, not to be changed."""
    folder = tmp_path_factory.mktemp("exported") / "states"
    run_interchange(captured.plan(folder), captured.world.workspace)
    return folder


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    assert one.dtype == other.dtype == torch.bfloat16
    return torch.equal(one.contiguous().view(torch.int16), other.contiguous().view(torch.int16))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(load_from_disk(str(folder)).with_format(None))


# what is written


def test_speculators_reads_what_the_shards_hold_and_its_split_is_ours(
    captured: Captured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "states"
    assert run_app(captured.command(folder)) == 0
    told = re.findall(r"--train-data-ratio (\S+)", capsys.readouterr().out)
    assert len(set(told)) == 1
    dataset_class = reference_module("speculators", "train.data").ArrowDataset
    labels = {
        row["response_id"]: row
        for row in query(
            captured.world.workspace,
            "SELECT p.response_id, p.prompt_id, p.category, p.source, p.license, b.holdout FROM provenance p "
            "JOIN build_responses b USING (build_id, response_id)",
        ).iter_rows(named=True)
    }
    seen = []
    for split in ("train", "val"):
        found = dataset_class(max_len=512, datapath=folder, on_missing="raise", train_ratio=float(told[0]), split=split)
        for i in range(len(found)):
            item, said = found[i], found.data[i]
            row = captured.rows[said["response_id"]]
            seen.append(row.response_id)
            assert same_bits(item["hidden_states"], row.states_TNH[:, :-1].flatten(1))
            assert same_bits(item["verifier_last_hidden_states"], row.states_TNH[:, -1])
            for name, expected in (("input_ids", row.input_ids_T), ("loss_mask", row.loss_mask_T)):
                assert torch.equal(item[name], expected.long())
                assert said[name].dtype == torch.int64
            assert found.approx_lengths[i] == len(row.input_ids_T)
            assert {name: said[name] for name in labels[row.response_id]} == labels[row.response_id]
            assert bool(said["holdout"]) == (split == "val")
    assert sorted(seen) == sorted(captured.rows)
    assert len({labels[one]["license"] for one in seen}) == 3  # one is none
    assert 0 < sum(labels[one]["holdout"] for one in seen) < len(seen)


def test_rows_are_in_the_order_of_the_shards(captured: Captured, exported: Path) -> None:
    places = {}
    for path in sorted(captured.world.workspace.hidden(captured.capture_id).glob("*.safetensors")):
        with ShardReader(path) as reader:
            for i, response_id in enumerate(reader.response_ids):
                places.setdefault(response_id, (path.name, i))
    found = [(row["holdout"], *places[row["response_id"]]) for row in rows_of(exported)]
    assert found == sorted(found)


def test_the_folder_says_what_it_is(captured: Captured, exported: Path) -> None:
    body, text = read_description(exported / DESCRIPTION), (exported / "README.md").read_text()
    rows = rows_of(exported)
    assert body["vllm_layer_ids"] == [i + 1 for i in captured.layer_ids]
    assert body["rows"] == len(rows)
    assert body["training_rows"] == sum(not row["holdout"] for row in rows)
    assert int(body["rows"] * body["train_ratio"]) == body["training_rows"]
    assert body["tokens"] == sum(row["seq_len"] for row in rows)
    assert body["longest_row"] == max(row["seq_len"] for row in rows)
    for said in (captured.build_id, captured.capture_id, "small", str(body["train_ratio"]), body["norm_rule"]):
        assert said in text
    ids = " ".join(map(str, body["vllm_layer_ids"]))
    assert f"--target-layer-ids {ids} " in text
    assert str(captured.world.root) not in text + json.dumps(body)


def test_the_trainer_has_the_options_that_the_folder_names(exported: Path) -> None:
    fields = (Path(reference_module("speculators", "train.data").__file__).parent / "config" / "schema.py").read_text()
    options = re.findall(r"--([a-z-]+)", (exported / "README.md").read_text())
    assert len(options) > 4
    for option in options:
        assert f"    {option.replace('-', '_')}: " in fields


def test_whoever_may_read_the_dataset_may_read_the_states(exported: Path) -> None:
    modes = {path.stat().st_mode & 0o444 for path in exported.rglob("*") if path.is_file()}
    assert modes == {0o444}


def test_no_more_is_written_than_was_announced(captured: Captured, exported: Path, tmp_path: Path) -> None:
    announced = captured.plan(tmp_path / "other").size_bytes
    written = sum(path.stat().st_size for path in exported.rglob("*") if path.is_file())
    assert announced / 4 < written <= announced
    assert captured.plan(exported).size_bytes == 0


def test_a_limit_takes_the_first_rows_of_each_group(captured: Captured, tmp_path: Path) -> None:
    nested = query(
        captured.world.workspace,
        "SELECT b.response_id, concat_ws('/', b.category, b.source, b.holdout) AS part FROM build_responses b "
        "JOIN builds USING (build_id) JOIN prompts p USING (candidates_id, prompt_id) "
        "JOIN (SELECT DISTINCT response_id FROM hidden_rows) USING (response_id) "
        "ORDER BY p.source_rank, b.prompt_id, b.replica, b.turn, b.response_id",
    )
    ids, parts = nested["response_id"].to_list(), nested["part"].to_list()
    before: set[str] = set()
    for limit in (3, 4, 9, 20, len(ids)):
        wanted = {ids[i] for i in rows_that_fit(parts, [1] * len(ids), limit)}
        assert set(captured.plan(tmp_path / "x", limit).rows["response_id"]) == wanted
        assert before < wanted
        before = wanted


# again, and after a stop


def test_a_second_run_does_nothing_and_says_so(
    captured: Captured, exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (exported, *exported.rglob("*"))}

    before = times()
    monkeypatch.setattr(interchange_files, "ShardReader", None)
    assert run_app(captured.command(exported)) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert times() == before


KILLED = """
import os, pathlib, signal, sys
import safetensors.torch
from draftmill.app import run_app
from extraction import interchange_files
save_file, sync_path, saved = safetensors.torch.save_file, interchange_files.sync_path, []
def torn(tensors, name):
    saved.append(name)
    if len(saved) == 7:
        save_file(tensors, name)
        os.truncate(name, os.path.getsize(name) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    save_file(tensors, name)
def last(path):
    if path.name == "state.json":
        os.kill(os.getpid(), signal.SIGKILL)
    sync_path(path)
if sys.argv[1] == "row":
    safetensors.torch.save_file = torn
else:
    interchange_files.sync_path = last
sys.exit(run_app(sys.argv[2:]))
"""


def test_a_killed_export_goes_on_where_it_was(
    captured: Captured, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "states"
    for place, there in (("row", 6), ("dataset", len(captured.rows))):
        done = subprocess.run([sys.executable, "-c", KILLED, place, *captured.command(folder)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert len(list(folder.glob("hidden_states/hs_*.safetensors"))) == there
        assert list(folder.rglob(".*.tmp"))
        with pytest.raises(FileNotFoundError):
            load_from_disk(str(folder))
        plan = captured.plan(folder)
        assert plan.rows["done"].sum() == there
        assert not plan.finished
    monkeypatch.setattr(ShardReader, "row", None)  # no states are read again
    assert run_app(captured.command(folder)) == 0
    assert captured.plan(folder).finished
    assert rows_of(folder) == rows_of(exported)
    states, expected = contents(folder), contents(exported)
    assert states.keys() == expected.keys()
    assert {name for name in states if states[name] != expected[name]} <= {"state.json"}  # it holds a random name


def test_a_file_that_is_gone_is_written_again_and_the_dataset_stays(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "states"
    run_interchange(captured.plan(folder), captured.world.workspace)
    before = contents(folder)
    dataset = folder / "state.json"
    kept = dataset.stat().st_mtime_ns
    gone = folder / "hidden_states" / "hs_3.safetensors"
    gone.unlink()
    opened = []
    monkeypatch.setattr(
        interchange_files, "ShardReader", lambda path: opened.append(path) or ShardReader(path)  # type: ignore[func-returns-value]
    )  # fmt: skip
    run_interchange(captured.plan(folder), captured.world.workspace)
    assert len(opened) == 1
    assert contents(folder) == before
    assert dataset.stat().st_mtime_ns == kept


def test_each_shard_is_opened_once_and_in_order(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        interchange_files, "ShardReader", lambda path: opened.append(path.name) or ShardReader(path)  # type: ignore[func-returns-value]
    )  # fmt: skip
    told: list[tuple[int, int]] = []
    run_interchange(
        captured.plan(tmp_path / "x"), captured.world.workspace, lambda done, rows: told.append((done, rows))
    )
    assert opened == [f"{i}.safetensors" for i in range(SHARDS)]
    assert told == [(i + 1, len(captured.rows)) for i in range(len(captured.rows))]


# refusals


def refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(arguments) == 2
    text = capsys.readouterr().err
    assert said in text
    assert text.count("\n") == 1


def changed(captured: Captured, **changes: Any) -> Path:
    path = captured.world.root / "changed.yaml"
    path.write_text(json.dumps(json.loads(captured.manifest.read_text()) | changes))
    return path


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    captured: Captured, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "states"
    no_final = changed(captured, extraction={"final_state": False})
    refused(captured.command(folder, manifest=no_final), "extraction.final_state", capsys)
    other = changed(captured, extraction={"features": 4})
    refused(captured.command(folder, manifest=other), "no captured rows", capsys)
    monkeypatch.setattr(interchange_stage.shutil, "disk_usage", lambda path: Free())
    refused(captured.command(folder), "are free", capsys)
    assert not folder.exists()


class Free:
    free = 10_000


def test_a_folder_that_is_something_else_is_refused(
    captured: Captured, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    refused(captured.command(tmp_path), "holds 'thesis.tex'", capsys)
    refused(captured.command(tmp_path / "thesis.tex"), "is no folder", capsys)
    refused(captured.command(tmp_path / "thesis.tex" / "states"), "is no folder", capsys)
    refused(captured.command(exported, "--limit", "9"), f"other rows (build {captured.build_id}", capsys)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / DESCRIPTION).write_text((exported / DESCRIPTION).read_text().replace("speculators", "speculator"))
    refused(captured.command(damaged), f"holds '{DESCRIPTION}'", capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "thesis.tex"]


def test_a_dry_run_prints_and_writes_nothing(
    captured: Captured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(captured.command(tmp_path / "states", "--dry-run")) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert f"{NOT_CAPTURED} accepted answers have no states" in out
    assert captured.build_id in out
    assert not (tmp_path / "states").exists()


def test_a_shard_that_is_not_what_the_ledger_says_stops_it(captured: Captured, tmp_path: Path) -> None:
    plan = captured.plan(tmp_path / "states")
    for change in (
        pl.col("tokens") + 1,
        pl.col("response_id") + "0",
        pl.col("shard_row") + 1000,
    ):
        with pytest.raises(UserError, match="that the ledger says"):
            run_interchange(replace(plan, rows=plan.rows.with_columns(change)), captured.world.workspace)
    with pytest.raises(UserError, match="no such shard"):
        run_interchange(replace(plan, rows=plan.rows.with_columns(shard=pl.lit("z"))), captured.world.workspace)
    assert not plan.folder.exists()


@pytest.mark.parametrize("gone", [True, False])
def test_shards_that_are_gone_or_cut_are_found_before_anything_is_written(
    captured: Captured, tmp_path: Path, capsys: pytest.CaptureFixture[str], gone: bool
) -> None:
    folder = captured.world.workspace.hidden(captured.capture_id)
    paths = [folder / f"{i}.safetensors" for i in (1, 3)]
    kept = [path.read_bytes() for path in paths]
    try:
        for path, data in zip(paths, kept, strict=True):
            path.unlink()
            if not gone:
                path.write_bytes(data[:-1])
        for options in ([], ["--dry-run"]):
            said = (
                "2 of 4 shards that the export needs are gone or damaged, 1.safetensors first. Run `draftmill extract`"
            )
            refused(captured.command(tmp_path / "states", *options), said, capsys)
    finally:
        for path, data in zip(paths, kept, strict=True):
            path.write_bytes(data)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_what_is_whole_stays(
    captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    save_file, saved = safetensors.torch.save_file, []

    def full(tensors: Any, name: str) -> None:
        saved.append(name)
        if len(saved) == 3:
            Path(name).write_bytes(b"half")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save_file(tensors, name)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    plan = captured.plan(tmp_path / "states")
    with pytest.raises(UserError, match="the disk is full"):
        run_interchange(plan, captured.world.workspace)
    there = sorted(path.name for path in (plan.folder / "hidden_states").iterdir())
    assert len(there) == 2
    for name in there:
        assert load_file(plan.folder / "hidden_states" / name)["hidden_states"].dtype == torch.bfloat16


# the plan alone


@given(training=st.integers(1, 10**7), held_out=st.integers(0, 10**6))
def test_the_ratio_splits_between_training_and_held_out_rows(training: int, held_out: int) -> None:
    rows = training + held_out
    ratio = train_ratio(training, rows)
    assert 0 < ratio <= 1
    assert int(rows * ratio) == training
    assert int(rows * float(str(ratio))) == training  # as a person types it
    assert (ratio == 1) == (held_out == 0)


ROW = st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.booleans(), st.integers(1, 500))


def frame(rows: list[Any]) -> pl.DataFrame:
    columns = {
        "response_id": [f"{shard}{row}" for shard, row, _, _ in rows],
        **{name: ["x"] * len(rows) for name in ("prompt_id", "category", "source", "license")},
        "holdout": [row[2] for row in rows],
        "shard": [row[0] for row in rows],
        "shard_row": [row[1] for row in rows],
        "tokens": [row[3] for row in rows],
    }
    return pl.DataFrame(columns, schema_overrides={"holdout": pl.Boolean, "shard_row": pl.Int64, "tokens": pl.Int64})


def made(rows: pl.DataFrame, found: Found | None = None, free_bytes: int = 1 << 60) -> InterchangePlan:
    return plan_interchange(Path("states"), "mix", "build", CAPTURE, rows, 0, found or Found(), free_bytes)


@given(rows=st.lists(ROW, min_size=1, max_size=40, unique_by=lambda row: row[:2]), data=st.data())
def test_rows_are_numbered_once_those_to_train_on_first_and_read_in_shard_order(rows: Any, data: st.DataObject) -> None:
    if all(row[2] for row in rows):
        with pytest.raises(UserError, match="but held-out ones"):
            made(frame(rows))
        return
    there = data.draw(st.sets(st.integers(0, len(rows) - 1)))
    plan = made(frame(rows))
    assert plan.export_id == made(frame(data.draw(st.permutations(rows)))).export_id
    by_number = plan.rows.sort("row")
    assert by_number["row"].to_list() == list(range(len(rows)))
    assert by_number["holdout"].to_list() == sorted(row[2] for row in rows)
    for _, part in by_number.group_by("holdout"):
        assert part.select("shard", "shard_row").rows() == sorted(part.select("shard", "shard_row").rows())
    assert plan.rows.select("shard", "shard_row").rows() == sorted(row[:2] for row in rows)
    again = made(frame(rows), Found("", plan.export_id, "it", frozenset(there), True))
    assert set(again.rows.filter("done")["row"]) == there
    assert again.finished == (len(there) == len(rows))
    left = again.rows.filter(~pl.col("done"))
    per_token = 3 * 8 * 2 + 8
    assert int(left["tokens"].sum()) * per_token <= again.size_bytes <= plan.size_bytes
    with pytest.raises(UserError, match="other rows"):
        made(frame(rows), Found("", "another", "it"))


def test_the_disk_is_asked_for_what_is_left_and_no_more() -> None:
    rows = frame([("a", i, i > 7, 100) for i in range(10)])
    plan = made(rows)
    assert made(rows, free_bytes=plan.size_bytes).size_bytes == plan.size_bytes
    with pytest.raises(UserError, match="--limit N"):
        made(rows, free_bytes=plan.size_bytes - 1)
    made(rows, Found("", plan.export_id, "it", frozenset(range(5))), free_bytes=plan.size_bytes - 1)


def test_a_capture_without_the_final_state_or_rows_makes_no_folder() -> None:
    rows = frame([("a", 0, False, 9)])
    with pytest.raises(UserError, match="final_state"):
        plan_interchange(Path("x"), "mix", "b", replace(CAPTURE, final_state=False), rows, 0, Found(), 1 << 60)
    with pytest.raises(UserError, match="no captured rows"):
        made(rows.clear())
    plan = made(rows)
    assert plan.train_ratio == 1
    assert "no row is held out" in plan.lines()[3]
    assert "--train-data-ratio" not in plan.readme()
