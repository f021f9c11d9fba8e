"""What `draftmill train` says before, at a stop and at the end; the training itself is a stand-in's."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corpus.artefacts import write_description
from corpus.errors import UserError
from corpus.ledger.query import LedgerReader
from corpus.ledger.writer import open_ledger
from corpus.manifest import Manifest
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from draftmill import drafting
from draftmill.interrupted import StoppedEarly
from draftmill.session import Session
from draftmill.suggesting import own_drafter
from draftmill.terminal import WIDTH
from draftmill.training_brief import training_brief
from extraction.run import ExtractionRun
from extraction.stage import plan_extraction
from fleet.devices import Device
from fleet.interrupt import Interrupt
from tests.conftest import World
from tests.extraction.answered import answered_world, sections
from training.begun import all_begun
from training.messages import AcceptanceRow, TrainSummary
from training.progress import Progress

CATEGORIES = {"coding": 16, "general": 8}
TRAINING = {
    "block_size": 4, "draft_layers": 1, "anchors_per_document": 6, "tokens_per_batch": 256, "epochs": 2,
    "checkpoint_every": 6,
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A world with answers and states."""

    world: World
    build_id: str

    def manifest(self, **training: Any) -> Manifest:
        return self.world.manifest(**body(), training={**TRAINING, **training})

    def session(self, manifest: Manifest) -> Any:
        target = ResolvedTarget(manifest.target, "rev1", self.world.root / "model", "template", "tokenizer")
        return SimpleNamespace(
            manifest=manifest, manifest_path=Path("mix.yaml"), target=target, target_with_weights=target,
            workspace=self.world.workspace, local_devices=[Device("cpu", 0)], limit=None,
        )  # fmt: skip


def body() -> dict[str, Any]:
    own = sections(CATEGORIES, layers=[1, 3])
    return own | {"mix": {**own["mix"], "total": 18, "holdout": 0.2}}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    texts = {
        name: [" ".join(f"{name}{i}w{j}" for j in range(4 + (7 * i) % 60)) for i in range(count)]
        for name, count in CATEGORIES.items()
    }
    world = answered_world(tmp_path_factory.mktemp("stage"), texts)
    manifest = world.manifest(**body())
    world.tell(manifest)
    scene = Scene(world, world.plan(manifest).build_id)
    target = scene.session(manifest).target
    with open_ledger(world.workspace, "extract") as ledger:
        plan = plan_extraction(manifest, target, scene.build_id, ledger)
        run = ExtractionRun(plan, manifest, target, ledger, RunLog(ledger, "extract", scene.build_id))
        asyncio.run(run.run([Device("cpu", 0)], Interrupt()))
    return scene


def save(folder: Path, step: int, best_step: int, tau: float) -> None:
    """A checkpoint's state, without weights."""
    own = Progress(step, "f", tau=tau, best_step=best_step, best_tau=tau, done=[[0, step]])
    place = folder / "checkpoints" / f"step-{step:08d}"
    place.mkdir(parents=True)
    write_description(place / "state.json", dataclasses.asdict(own) | {"files": {}, "rng": ""})


def stage(scene: Scene, monkeypatch: Any, run: Callable[[Any], TrainSummary | None], **training: Any) -> str:
    """Train with a stand-in; returns the drafter's id."""
    manifest = scene.manifest(**training)

    async def stand_in(plan: Any, *_: Any) -> TrainSummary | None:
        return run(plan)

    monkeypatch.setattr(drafting, "run_training", stand_in)
    with open_ledger(scene.world.workspace, "train") as ledger:
        build = cast(Any, SimpleNamespace(build_id=scene.build_id))
        return drafting.train_stage(scene.session(manifest), ledger, build).drafter_id


def summary(best_step: int, steps: int = 14) -> TrainSummary:
    rows = [AcceptanceRow("walk", "coding", 10, 20, 3, 0)]
    return TrainSummary(
        item_id="d", checkpoint="c", export="e", steps=steps, best_step=best_step, mask_token_id=106, training_rows=18,
        holdout_rows=3, acceptance=rows, label_agreement={}, seconds=65.0,
    )  # fmt: skip


def test_a_new_drafter_a_stop_and_a_resume(scene: Scene, monkeypatch: Any, capsys: Any) -> None:
    drafter_ids: list[str] = []

    def stop(plan: Any) -> None:
        drafter_ids.append(plan.drafter_id)
        save(scene.world.workspace.drafter(plan.drafter_id), 4, 4, 2.5)

    with pytest.raises(StoppedEarly) as stopped:
        stage(scene, monkeypatch, stop)
    said = capsys.readouterr().err
    assert "a new drafter: no checkpoint of it is there" in said
    steps = next(line.split()[0] for line in said.splitlines() if " epochs of " in line)
    first, second = str(stopped.value).splitlines()
    assert first == f"training stopped at step 4 of {steps}."
    assert second == "4 of them were done in this run. Run the same command to go on."
    (own,) = [one for one in all_begun(scene.world.workspace) if one.drafter_id in drafter_ids]
    assert (own.step, own.steps, own.finished) == (4, int(steps), False)
    stage(scene, monkeypatch, lambda _: summary(14))
    said = capsys.readouterr().err
    assert f"resumes at step 4 of {steps}, best τ 2.50 at step 4" in said
    assert "10 steps in 1:05, after 4 in earlier runs, best at 14 of 14" in said
    assert "3 (few)" in said
    assert "exported to" in said
    assert "`draftmill serve-check mix.yaml -w" in " ".join(said.split())
    paths = str(scene.world.root)
    assert all(len(line) <= WIDTH or paths in line for line in said.splitlines())


def test_an_edit_that_makes_another_drafter_is_seen(scene: Scene, monkeypatch: Any, capsys: Any) -> None:
    stage(scene, monkeypatch, lambda _: summary(2), epochs=3)
    capsys.readouterr()
    stage(scene, monkeypatch, lambda _: summary(2), epochs=3, learning_rate=1e-3, checkpoint_every=3)
    said = " ".join(capsys.readouterr().err.split())
    assert "which differs in learning_rate" in said
    assert "the last 12 steps did not raise τ" in said


def test_without_held_out_rows_the_brief_warns_and_the_end_says_what_is_exported(scene: Scene) -> None:
    manifest = scene.manifest()
    session = scene.session(manifest)
    with open_ledger(scene.world.workspace, "train") as ledger:
        plan = drafting.training_plan(session, ledger, scene.build_id)
    bare = dataclasses.replace(
        plan, rows={shard: tuple(row for row in own if not row.holdout) for shard, own in plan.rows.items()}
    )
    device = session.local_devices[0]
    assert not any("nothing is held out" in line for line in training_brief(session, plan, device, 9, []).sentences)
    assert any("nothing is held out" in line for line in training_brief(session, bare, device, 9, []).sentences)
    ended = drafting._ended_sentences(session, bare, summary(14), 0)
    assert ended[0] == "14 steps in 1:05; the last checkpoint is exported: nothing is held out to measure on"
    with pytest.raises(UserError, match=r"Set mix\.holdout"):
        drafting.check_held_out(session, bare)


def test_a_finished_drafter_and_one_of_an_older_draftmill_are_both_known(scene: Scene) -> None:
    folder = scene.world.workspace.drafter("a" * 24)
    folder.mkdir(parents=True)
    described = {"build_id": "b", "capture_id": "c", "training": {"epochs": 9}, "rows": 3, "steps": 7}
    (folder / "drafter.json").write_text(json.dumps(described))
    (own,) = [one for one in all_begun(scene.world.workspace) if one.drafter_id == "a" * 24]
    assert (own.finished, own.step, own.asked.rows_digest) == (True, 7, "")


def test_suggest_tells_the_manifests_own_drafter_from_the_published_ledger_alone(
    scene: Scene, monkeypatch: Any
) -> None:
    """The build is the one that is named: sources may have moved since, and nothing is written."""
    monkeypatch.setattr(Session, "target", scene.session(scene.manifest()).target)
    path, workspace = scene.world.write("own.yaml", **body(), training=TRAINING), scene.world.workspace
    with open_ledger(workspace, "train") as ledger:
        expected = drafting.training_plan(scene.session(scene.manifest()), ledger, scene.build_id)
    sources = [scene.world.root / f"{name}.jsonl" for name in CATEGORIES]
    kept = [source.read_bytes() for source in sources]
    before = sorted(workspace.root.rglob("*"))
    try:
        for source in sources:
            source.unlink()
        own = own_drafter(path, workspace, LedgerReader(workspace), scene.build_id)
        assert own is not None
        assert own.drafter_id == expected.drafter_id
        assert (own.asked.rows, own.asked.capture_id) == (len(expected.training_ids), expected.capture_id)
        assert own_drafter(path, workspace, LedgerReader(workspace), "b" * 24) is None
    finally:
        for source, data in zip(sources, kept, strict=True):
            source.write_bytes(data)
    assert sorted(workspace.root.rglob("*")) == before


def test_what_is_no_folder_in_the_drafters_place_is_one_line_before_anything_is_written(
    scene: Scene, monkeypatch: Any
) -> None:
    with open_ledger(scene.world.workspace, "train") as ledger:
        plan = drafting.training_plan(scene.session(scene.manifest(epochs=7)), ledger, scene.build_id)
    place = scene.world.workspace.drafter(plan.drafter_id)
    place.parent.mkdir(exist_ok=True)
    place.write_text("x")
    try:
        with pytest.raises(UserError, match=rf"{plan.drafter_id}: is no folder, and checkpoints go into it\. Move it"):
            stage(scene, monkeypatch, lambda _: summary(2), epochs=7)
    finally:
        place.unlink()
