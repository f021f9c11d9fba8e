from __future__ import annotations

import asyncio
import json
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from corpus.errors import DamagedError, Retryable, UserError
from corpus.shard_writer import write_shard
from corpus.shards import ShardReader
from tests.training.tiny_data import PROMPTS, make_item
from training.averaging import Alone
from training.data import TrainingData
from training.dflash import Drafter
from training.evaluation import measure
from training.export import export_untrained, load_exported
from training.frozen import load_frozen
from training.loop import Report, ShardFeed, train
from training.messages import TrainItem, TrainProgress, TrainSummary, tokens_per_pack
from training.pack import all_packs
from training.step import Pack, Stepper, batch_loss, draw_pack, make_step_batch
from training.tree import TREE_SIZES
from training.worker import (
    acceptance_sums,
    create,
    drafter_shape,
    evaluation_settings,
    loop_settings,
    make_drafter,
    train_drafter,
)


@pytest.fixture(scope="module")
def item(tmp_path_factory: pytest.TempPathFactory) -> TrainItem:
    return make_item(tmp_path_factory.mktemp("loop"))


def run(item: TrainItem, folder: Path, stop_after: int | None = None) -> tuple[Drafter, list[Report]]:
    """One run of the loop below `folder`, stopped after some steps if asked."""
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    target = load_frozen(item.target_dir)
    drafter = make_drafter(item, data, target)
    packs = all_packs([data.lengths[i] for i in data.train], tokens_per_pack(item), epochs=item.epochs, seed=item.seed)
    reports: list[Report] = []
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls == stop_after

    try:
        train(
            loop_settings(item, len(packs)),
            drafter,
            target,
            lambda progress: ShardFeed(data, target, packs, progress.done, stop),
            data,
            Alone(),
            folder,
            report=reports.append,
        )
    finally:
        data.close()
    return drafter, reports


def test_twenty_steps_are_ten_and_ten(item: TrainItem, tmp_path: Path) -> None:
    item = msgspec.structs.replace(item, checkpoint_every=100)
    straight, reports = run(item, tmp_path / "a")
    assert reports[-1].step == reports[-1].steps == 20
    with pytest.raises(Retryable, match="after step 10 of 20"):
        run(item, tmp_path / "b", stop_after=10)
    torch.rand(7)  # whatever else the process drew
    resumed, later = run(item, tmp_path / "b")
    assert later[0].step == 20
    for name, want in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], want), name
    for file in ("drafter.safetensors", "optimizer.safetensors"):
        one = load_file(str(tmp_path / "a" / "step-00000020" / file))
        two = load_file(str(tmp_path / "b" / "step-00000020" / file))
        assert all(torch.equal(one[key], two[key]) for key in one), file
    assert later[0].sums.loss == reports[-1].sums.loss


def first_step(item: TrainItem, data: TrainingData, cuts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Gradients of one step over documents 0 .. n in packs of these indices."""
    target = load_frozen(item.target_dir)
    stepper = Stepper(loop_settings(item, 1).step, make_drafter(item, data, target), target)
    packs = [Pack(n, 0, [data.document(i, target) for i in own]) for n, own in enumerate(cuts)]
    assert stepper.step(packs, lr=0.0) > 0
    assert stepper.take_sums().tokens == sum(data.lengths[i] for own in cuts for i in own)
    return {name: parameter.grad.clone() for name, parameter in stepper.drafter.named_parameters()}


@pytest.mark.parametrize("weights", ["decay", "d_pace"])
def test_how_a_step_is_cut_into_packs_changes_rounding_alone(item: TrainItem, weights: str) -> None:
    item = msgspec.structs.replace(item, loss_weights=weights, clip=1e9)
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    whole = first_step(item, data, [[0, 1, 2, 3]])
    cut = first_step(item, data, [[0], [1, 2], [3]])
    for name, gradient in whole.items():
        assert torch.allclose(cut[name], gradient, rtol=1e-4, atol=1e-7), name
    data.close()


def test_packs_of_a_step_are_steps_of_the_schedule(item: TrainItem, tmp_path: Path) -> None:
    _, reports = run(msgspec.structs.replace(item, packs_per_step=3), tmp_path)
    assert reports[-1].step == reports[-1].steps == 7  # of 20 packs
    assert reports[-1].lr == pytest.approx(0, abs=item.learning_rate / 5)


def test_it_starts_from_a_published_drafter_of_its_shape_alone(item: TrainItem, tmp_path: Path) -> None:
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    target = load_frozen(item.target_dir)
    shape = drafter_shape(msgspec.structs.replace(item, mask_token_id=77), data, target)
    export_untrained(shape, tmp_path / "published", target_dir=item.target_dir, seed=99)
    start = msgspec.structs.replace(item, init_dir=str(tmp_path / "published"), init="export-1")
    drafter = make_drafter(start, data, target)
    assert drafter.shape.mask_token_id == 77  # its own, where the manifest leaves it open
    published = load_exported(tmp_path / "published").state_dict()
    assert all(torch.equal(value, published[name]) for name, value in drafter.state_dict().items())
    assert start.fingerprint() != item.fingerprint()
    assert msgspec.structs.replace(start, init_dir="/moved").fingerprint() == start.fingerprint()
    with pytest.raises(UserError, match=r"training.init_from: .* has draft_layers 1; this drafter would have 2"):
        make_drafter(msgspec.structs.replace(start, draft_layers=2), data, target)
    with pytest.raises(UserError, match="has mask_token_id 77; this drafter would have 78"):
        make_drafter(msgspec.structs.replace(start, mask_token_id=78), data, target)
    data.close()


def train_in_a_process(item: bytes) -> None:
    """Train an item in its own process, until it is killed somewhere behind step 50."""
    train_drafter(
        msgspec.msgpack.decode(item, type=TrainItem), lambda told: threading.Event().wait() if told.step > 50 else None
    )


def test_killed_after_step_fifty_of_a_hundred_it_ends_where_a_straight_run_does(
    item: TrainItem, tmp_path: Path
) -> None:
    item = msgspec.structs.replace(item, checkpoint_every=50, epochs=25, tokens_per_batch=102, eval_rows=1)
    straight = train_drafter(msgspec.structs.replace(item, out_dir=str(tmp_path / "straight")))
    assert straight.steps == 100
    killed = msgspec.structs.replace(item, out_dir=str(tmp_path / "killed"))
    process = multiprocessing.get_context("spawn").Process(
        target=train_in_a_process, args=(msgspec.msgpack.encode(killed),)
    )
    process.start()
    half = tmp_path / "killed" / "checkpoints" / "step-00000050"
    while not half.exists():
        assert process.is_alive()
        time.sleep(0.02)
    process.kill()
    process.join()
    assert sorted(path.name for path in half.parent.glob("step-*")) == [half.name]
    told: list[TrainProgress] = []
    resumed = train_drafter(killed, told.append)
    assert [one.step for one in told] == [60, 70, 80, 90, 100]
    assert resumed.acceptance == straight.acceptance
    for file in ("drafter.safetensors", "optimizer.safetensors"):
        one, two = (load_file(str(Path(run.checkpoint) / file)) for run in (straight, resumed))
        assert all(torch.allclose(one[key], two[key], atol=1e-6) for key in one)


def test_a_checkpoint_of_other_settings_is_refused(item: TrainItem, tmp_path: Path) -> None:
    with pytest.raises(Retryable):
        run(item, tmp_path, stop_after=2)
    with pytest.raises(UserError, match="other data or training settings"):
        run(msgspec.structs.replace(item, gamma=5.0), tmp_path)
    (tmp_path / "step-00000002" / "optimizer.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="damaged checkpoint"):
        run(item, tmp_path)


def test_newest_and_best_stay(item: TrainItem, tmp_path: Path) -> None:
    run(msgspec.structs.replace(item, checkpoint_every=3), tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    state = json.loads((tmp_path / left[-1] / "state.json").read_text())
    assert left == sorted({"step-00000020", f"step-{state['best_step']:08d}"})


def test_fingerprint(item: TrainItem) -> None:
    same = {
        "out_dir": "/x", "device": "cuda:0", "threads": 8, "target_dir": "/y", "checkpoint_every": 3, "eval_rows": 7,
    }  # fmt: skip
    other = {"seed": 8, "gamma": 1.0, "epochs": 6, "block_size": 8, "layer_ids": (1, 2, 3)}
    for name, value in same.items():
        assert msgspec.structs.replace(item, **{name: value}).fingerprint() == item.fingerprint(), name
    for name, value in other.items():
        assert msgspec.structs.replace(item, **{name: value}).fingerprint() != item.fingerprint(), name
    # packs are numbered, and `auto` is another number of tokens on another kind of device
    auto = msgspec.structs.replace(item, tokens_per_batch=0)
    assert msgspec.structs.replace(auto, device="cuda:0").fingerprint() != auto.fingerprint()
    more = [msgspec.structs.replace(item.shards[0], rows=item.shards[0].rows[:-1])]  # one held-out row less
    assert msgspec.structs.replace(item, shards=more).fingerprint() == item.fingerprint()
    moved = [msgspec.structs.replace(item.shards[0], path="/elsewhere")]
    assert msgspec.structs.replace(item, shards=moved).fingerprint() == item.fingerprint()
    fewer = [msgspec.structs.replace(item.shards[0], rows=item.shards[0].rows[1:])]
    assert msgspec.structs.replace(item, shards=fewer).fingerprint() != item.fingerprint()


def damaged(item: TrainItem, folder: Path, value: float, *, row: int = 0, layer: slice = slice(None)) -> TrainItem:
    """The item over a shard of which one row has states of `value`."""
    shard = item.shards[0]
    with ShardReader(Path(shard.path)) as reader:
        rows, meta = list(reader), reader.meta
    rows[row].states_TNH[:, layer] = value
    path = write_shard(folder / "hidden.safetensors", rows, meta).path
    return msgspec.structs.replace(item, shards=[msgspec.structs.replace(shard, path=str(path))])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("layer", [slice(0, 1), slice(-1, None)])
@pytest.mark.parametrize("row", [0, PROMPTS - 1])
def test_states_that_are_no_numbers_stop_it_and_name_the_row(
    item: TrainItem, tmp_path: Path, row: int, layer: slice, value: float
) -> None:
    bad = damaged(item, tmp_path, value, row=row, layer=layer)
    with pytest.raises(
        DamagedError, match=rf"row {row}, response r{row:02d}, has states that are no numbers"
    ) as caught:
        run(msgspec.structs.replace(bad, checkpoint_every=1), tmp_path / "run")
    assert str(caught.value).startswith(bad.shards[0].path)
    assert "\n" not in str(caught.value)


def test_states_are_looked_at_once_a_row(item: TrainItem, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("training.data.finite", lambda states: not seen.append(states))
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    target = load_frozen(item.target_dir)
    for index in (*data.train, *data.train, *data.holdout):
        data.document(index, target)
    data.close()
    assert len(seen) == len(data.train) + len(data.holdout)


def test_finite_states_of_which_the_drafter_makes_none_are_not_measured(item: TrainItem, tmp_path: Path) -> None:
    bad = damaged(item, tmp_path, 3e38, row=PROMPTS - 1)
    with pytest.raises(UserError, match=rf"held-out response r{PROMPTS - 1:02d}: the drafter's output is no number"):
        run(msgspec.structs.replace(bad, checkpoint_every=1), tmp_path / "run")


def test_no_number_stops_and_names_the_rows(item: TrainItem, tmp_path: Path) -> None:
    bad = msgspec.structs.replace(item, checkpoint_every=99, tokens_per_batch=30, learning_rate=1e30, warmup=0.0)
    with pytest.raises(UserError, match=r"the loss is (nan|inf) .* Rows of this step: r\d\d\. Look") as caught:
        run(bad, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists(), "weights that are no numbers are not saved"


def test_a_greedy_drafter_overfits_and_beats_the_untrained_one(item: TrainItem, tmp_path: Path) -> None:
    everything = [msgspec.structs.replace(row, holdout=False) for row in item.shards[0].rows]
    item = msgspec.structs.replace(
        item,
        shards=[msgspec.structs.replace(item.shards[0], rows=everything)],
        epochs=20,
        anchors_per_document=30,
        checkpoint_every=1000,
    )
    drafter, reports = run(item, tmp_path / "run")
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    data.holdout = data.train  # what it was trained on
    target = load_frozen(item.target_dir)
    trained = acceptance_sums(measure(drafter, target, data, evaluation_settings(item)))
    untrained = acceptance_sums(measure(Drafter(drafter.shape, 3), target, data, evaluation_settings(item)))

    def tau(rows: list[Any], by: str = "walk") -> float:
        walked = [row for row in rows if row.measured_by == by]
        return 1 + sum(row.accepted_tokens for row in walked) / sum(row.drafts for row in walked)

    assert tau(untrained) < 1.3
    assert tau(trained) > tau(untrained) + 1.0
    # a larger tree holds the smaller one, and all hold more than the one path: no step accepts less
    taus = [tau(trained), *(tau(trained, f"ddtree_{size}") for size in TREE_SIZES)]
    assert taus == sorted(taus)
    assert reports[-1].sums.loss < 0.3 * reports[0].sums.loss
    assert {row.category for row in trained} == {"coding", "math"}
    data.close()


@pytest.mark.parametrize("labels", ["teacher", "sampled", "kl", "auto"])
def test_labels(item: TrainItem, labels: str, tmp_path: Path) -> None:
    rows = [msgspec.structs.replace(row, greedy=row.row % 2 == 0) for row in item.shards[0].rows]
    item = msgspec.structs.replace(item, labels=labels, shards=[msgspec.structs.replace(item.shards[0], rows=rows)])
    data = TrainingData(item.shards, item.layer_ids, labels)
    target = load_frozen(item.target_dir)
    drafter = Drafter(drafter_shape(item, data, target), item.seed)
    documents = [data.document(i, target) for i in (0, 1)]
    for document in documents:  # as if sampled at a temperature: the teacher says something else
        document.teacher_T = (document.teacher_T + 1) % 97
    settings = loop_settings(item, 1).step
    batch = make_step_batch(settings, drafter, documents, draw_pack(settings, Pack(0, 0, documents)))
    taught = batch.label_M == batch.teacher_M
    sampled = batch.label_M == batch.sampled_M
    expected = {"teacher": [1, 1], "kl": [1, 1], "sampled": [0, 0], "auto": [1, 0]}[labels]
    for document, teacher in enumerate(expected):
        own = batch.document_M == document
        assert bool((taught if teacher else sampled)[own].all())
    assert (batch.normed_MH is not None) == (labels == "kl")
    loss = batch_loss(settings, drafter, target, batch).loss
    loss.backward()
    assert torch.isfinite(loss)
    data.close()


def test_a_worker_trains_measures_and_exports(item: TrainItem, tmp_path: Path) -> None:
    item = msgspec.structs.replace(item, out_dir=str(tmp_path / "drafter"))
    heard: list[bytes] = []

    async def handle() -> bytes:
        handler = create(b"", heard.append)
        answer = await handler.handle(msgspec.msgpack.encode(item))
        handler.close()
        return answer

    summary = msgspec.msgpack.decode(asyncio.run(handle()), type=TrainSummary)
    progress = [msgspec.msgpack.decode(one, type=TrainProgress) for one in heard]
    assert [one.step for one in progress] == [10, 20]
    assert summary.steps == 20
    for one in progress:
        for own in one.by_category.values():
            assert len(own.total_by_slot) == 3
            assert sum(own.total_by_slot) == own.slots > 0
            assert 0 < own.blocks <= own.slots
            assert own.streak <= sum(own.correct_by_slot)
    assert set(progress[-1].acceptance) == {"coding", "math"}
    assert set(progress[-1].by_category) == {"coding", "math"}
    assert {(row.measured_by, row.category) for row in summary.acceptance} == {
        (by, category)
        for by in ("walk", "anchors", *(f"ddtree_{size}" for size in TREE_SIZES))
        for category in ("coding", "math")
    }
    assert all(row.rows == 1 and row.drafts > 0 for row in summary.acceptance)
    for agreed, total in summary.label_agreement.values():
        assert agreed == total == 6 * 24  # greedy: sampled tokens are the teacher's
    assert (summary.training_rows, summary.holdout_rows) == (12, 2)
    with ShardReader(Path(item.shards[0].path)) as reader:
        assert summary.mask_token_id not in {0, 1, 2, *reader.token_ids().tolist()}
    exported = load_exported(Path(summary.export))
    best = load_file(str(Path(summary.checkpoint) / "drafter.safetensors"))
    assert all(torch.equal(exported.state_dict()[name], best[name]) for name in best)
    export_untrained(exported.shape, tmp_path / "floor", target_dir=item.target_dir)
    again = train_drafter(item)  # done already: nothing is trained, the answer is the same
    assert again.acceptance == summary.acceptance
    assert again.steps == 20


def test_wrong_data_is_one_line(item: TrainItem, tmp_path: Path) -> None:
    shard = item.shards[0]
    swapped = [msgspec.structs.replace(shard, rows=[msgspec.structs.replace(shard.rows[0], row=3)])]
    held = [msgspec.structs.replace(shard, rows=[row for row in shard.rows if row.holdout])]
    for shards, layers, words in (
        (swapped, item.layer_ids, "is not response r00"),
        (held, item.layer_ids, "no training rows"),
        (item.shards, (1, 2, 3), "holds layers"),
    ):
        with pytest.raises(UserError, match=words):
            TrainingData(shards, layers, "auto")
