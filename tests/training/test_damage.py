"""Damaged checkpoints, shards and drafters: found by checksum, one line, and the next run makes them again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from corpus.artefacts import sha256_file
from corpus.errors import DamagedError, Retryable, UserError
from corpus.workspace import Workspace
from tests.training.test_loop import item, run  # noqa: F401  # the fixture
from training.checkpoint import load_weights
from training.data import TrainingData
from training.messages import TrainItem
from training.record import add_acceptance, read_acceptance, read_metrics, write_metrics
from training.run import exported_files, is_trained, stopped


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 64
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["drafter.safetensors", "optimizer.safetensors", "state.json"])
def test_a_changed_bit_of_a_checkpoint_is_found(item: TrainItem, tmp_path: Path, name: str) -> None:  # noqa: F811
    with pytest.raises(Retryable):
        run(item, tmp_path, stop_after=2)
    if name == "state.json":
        (tmp_path / "step-00000002" / name).write_text("{half")
    else:
        flip(tmp_path / "step-00000002" / name)
    folder = tmp_path / "step-00000002"
    with pytest.raises(
        UserError, match=r"a damaged checkpoint \(.+\)\. Remove .* and run again: .*begins anew"
    ) as caught:
        run(item, tmp_path)
    assert str(caught.value).startswith(f"{folder / name}: ")


def test_a_best_checkpoint_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the best checkpoint is gone or damaged .*nothing is trained twice"):
        load_weights(tmp_path / "checkpoints" / "step-00000002", None)


def test_a_changed_bit_of_hidden_states_is_found(item: TrainItem, tmp_path: Path) -> None:  # noqa: F811
    shard = item.shards[0]
    path = tmp_path / "a.safetensors"
    path.write_bytes(Path(shard.path).read_bytes())
    named = msgspec.structs.replace(shard, path=str(path), sha256=sha256_file(path))
    TrainingData([named], item.layer_ids, item.labels).used_token_ids()
    flip(path)
    with pytest.raises(DamagedError, match=r"Remove it and run `draftmill extract`"):
        TrainingData([named], item.layer_ids, item.labels).used_token_ids()


def figures(*steps: int, metric: str = "loss", value: float = 1.0) -> list[dict[str, Any]]:
    return [{"step": step, "epoch": 0, "metric": metric, "category": None, "value": value} for step in steps]


def test_figures_of_a_killed_run_stay_and_those_made_again_are_replaced(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    write_metrics(tmp_path, [], figures(10, 20, 30))
    earlier = read_metrics(tmp_path)
    write_metrics(tmp_path, earlier, figures(20, 30, 40, value=2.0))
    assert [(row["step"], row["value"]) for row in read_metrics(tmp_path)] == [(10, 1), (20, 2), (30, 2), (40, 2)]
    earlier = read_metrics(tmp_path)
    write_metrics(tmp_path, earlier, [])  # all steps were taken before
    assert read_metrics(tmp_path) == earlier
    write_metrics(tmp_path, earlier, figures(40, metric="label_agreement"))
    write_metrics(tmp_path, read_metrics(tmp_path), figures(40, metric="label_agreement"))
    write_metrics(tmp_path, read_metrics(tmp_path), [])
    assert len(read_metrics(tmp_path)) == len(earlier) + 1
    (tmp_path / "metrics.parquet").write_bytes(b"half")
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{half", "[1]", '[{"build_id": "b"}]', "{}x"])
def test_measurements_that_cannot_be_read_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "acceptance.json").write_text(text)
    for command in (lambda: read_acceptance(tmp_path), lambda: add_acceptance(tmp_path, [])):
        with pytest.raises(UserError, match=r"damaged\. Remove it and run `draftmill serve-check` again"):
            command()


def test_a_drafter_is_trained_only_while_its_files_are_what_was_written(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder = workspace.drafter("d")
    (folder / "export").mkdir(parents=True)
    weights, card = folder / "export" / "model.safetensors", folder / "export" / "README.md"
    weights.write_bytes(b"weights")
    card.write_text("card")
    files = {f"export/{path.name}": sha256_file(path) for path in (weights, card)}
    described = {"training": {"mask_token_id": 1}, "files": files}
    (folder / "drafter.json").write_text(json.dumps(described))
    ledger = cast(Any, SimpleNamespace(workspace=workspace, rows=lambda *_: [(1,)]))
    plan = cast(Any, SimpleNamespace(drafter_id="d"))
    assert is_trained(plan, ledger)
    card.write_text("edited")
    assert is_trained(plan, ledger)
    card.unlink()
    assert is_trained(plan, ledger)
    assert exported_files(folder) == ["model.safetensors"]
    flip(weights)
    assert not is_trained(plan, ledger)
    weights.unlink()
    assert not is_trained(plan, ledger)
    for text in ("", "[1]", "{half", '{"training": {}}', '{"training": {"mask_token_id": 1}, "files": {}}'):
        (folder / "drafter.json").write_text(text)
        assert not is_trained(plan, ledger)
        with pytest.raises(DamagedError, match=r"drafter.json: damaged\. Run `draftmill train`"):
            exported_files(folder)
    (folder / "drafter.json").write_text('{"files": {"export/../../secret": "0"}}')
    with pytest.raises(DamagedError):
        exported_files(folder)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("DamagedError: a: cut. Remove it.", "training stopped: a: cut. Remove it. No checkpoint was written yet."),
        ("d 0 on cpu:0 failed: UserError: x. Do y (its log is l)",
         "training stopped: d 0 on cpu:0 failed: x. Do y (its log is l). No checkpoint was written yet."),
        ("ValueError: odd", "training stopped: ValueError: odd. Go on. No checkpoint was written yet."),
    ],
)  # fmt: skip
def test_how_a_run_ended_is_sentences_with_one_end_each(tmp_path: Path, told: str, said: str) -> None:
    assert stopped(told, tmp_path / "checkpoints", again="Go on.") == said


def test_what_is_kept_is_said_where_there_is_something(item: TrainItem, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(Retryable):
        run(item, tmp_path, stop_after=3)
    assert stopped("UserError: x.", tmp_path) == "training stopped: x. The checkpoint of step 3 is kept."
