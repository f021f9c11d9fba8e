"""Targets and drafters at once, as real processes on the CPU: every pack once, whatever happens, and no waiting for
what is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest
from safetensors.torch import load_file

from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.manifest import Live, Manifest
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from draftmill import live_feed
from draftmill.live_feed import LiveRun, live_run
from extraction.feed_messages import RowLeftOut, encode_event
from extraction.run import ExtractionRun
from extraction.stage import plan_capture, plan_extraction
from fleet import gang
from fleet.devices import Device
from fleet.gang import Account, Depth, Gang
from fleet.interrupt import Interrupt
from fleet.pool import Pool
from tests.conftest import World
from tests.extraction.answered import answered_world, sections
from training import run as training_run
from training import worker
from training.live import Producers, share_devices, without
from training.messages import TrainProgress, TrainSummary
from training.plan import TrainingPlan, plan_training
from training.run import run_training

CATEGORIES = {"coding": 40, "general": 20}
TRAINING = {
    "feed": "live", "block_size": 4, "draft_layers": 1, "anchors_per_document": 6, "tokens_per_batch": 256,
    "epochs": 2, "checkpoint_every": 6, "learning_rate": 3e-3, "live": {"average_every": 3},
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A world with answers and captured held-out rows."""

    world: World
    build_id: str

    def manifest(self, **training: Any) -> Manifest:
        return self.world.manifest(**with_holdout(), training={**TRAINING, **training})

    def target(self) -> ResolvedTarget:
        manifest = self.manifest()
        return ResolvedTarget(manifest.target, "rev1", self.world.root / "model", "template", "tokenizer")

    def plan(self, ledger: Any, **training: Any) -> TrainingPlan:
        manifest = self.manifest(**training)
        capture_id, layer_ids = plan_capture(manifest, self.target())
        return plan_training(manifest, self.build_id, capture_id, layer_ids, ledger)


@dataclass
class Ended:
    """A live run, and what it told."""

    run: LiveRun
    summary: TrainSummary | None
    account: Account | None
    told: list[TrainProgress]
    error: str


class Watching:
    """A screen that calls somebody at each message."""

    def __init__(self, then: Callable[[TrainProgress], None]) -> None:
        self.told: list[TrainProgress] = []
        self._then = then

    def show(self, progress: TrainProgress) -> None:
        self.told.append(progress)
        self._then(progress)

    def fed(self, depth: Depth) -> None:
        """Nothing is shown."""

    def stopping(self) -> None:
        """Nothing is shown."""


def with_holdout() -> dict[str, Any]:
    body = sections(CATEGORIES, layers=[1, 3])
    return body | {"mix": {**body["mix"], "total": 48, "holdout": 0.15}}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    texts = {
        name: [" ".join(f"{name}{i}w{j}" for j in range(4 + (7 * i) % 60)) for i in range(count)]
        for name, count in CATEGORIES.items()
    }
    world = answered_world(tmp_path_factory.mktemp("live"), texts)
    manifest = world.manifest(**with_holdout())
    world.tell(manifest)
    scene = Scene(world, world.plan(manifest).build_id)
    with open_ledger(world.workspace, "extract") as ledger:
        plan = plan_extraction(manifest, scene.target(), scene.build_id, ledger, holdout_only=True)
        assert 2 <= len(plan.rows) < 20
        run = ExtractionRun(plan, manifest, scene.target(), ledger, RunLog(ledger, "extract", scene.build_id))
        asyncio.run(run.run([Device("cpu", 0)], Interrupt()))
    return scene


def train(
    scene: Scene, targets: int, drafters: int, then: Callable[[TrainProgress, Interrupt], None] | None = None,
    **training: Any,
) -> Ended:  # fmt: skip
    """One command's worth of live training."""
    live = {**TRAINING["live"], "targets": targets, "drafters": drafters, **training.pop("live", {})}
    manifest = scene.manifest(live=live, **training)
    devices = [Device("cpu", number % 2) for number in range(targets + drafters)]
    interrupt = Interrupt()
    screen = Watching(lambda progress: then(progress, interrupt) if then else None)
    summary, error = None, ""
    with open_ledger(scene.world.workspace, "train") as ledger:
        plan = scene.plan(ledger, live=live, **training)
        session = SimpleNamespace(
            manifest=manifest, target=scene.target(), target_with_weights=scene.target(),
            workspace=scene.world.workspace, local_devices=devices,
        )  # fmt: skip
        run = live_run(cast(Any, session), plan)
        log = RunLog(ledger, "train", scene.build_id)
        try:
            summary = asyncio.run(run.run(ledger, log, interrupt, cast(Any, screen)))
        except UserError as caught:
            error = str(caught)
        log.finish("done")
    return Ended(run, summary, run.account, screen.told, error)


def state_of(scene: Scene, ended: Ended) -> dict[str, Any]:
    """The newest checkpoint's."""
    folder = scene.world.workspace.drafter(ended.run.plan.drafter_id) / "checkpoints"
    newest = max(folder.glob("step-*"))
    return cast(dict[str, Any], json.loads((newest / "state.json").read_text()))


def test_three_targets_feed_two_drafters_every_pack_once(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    ended = train(scene, 3, 2)
    assert ended.error == ""
    assert ended.summary is not None
    state, account = state_of(scene, ended), ended.account
    assert account is not None
    packs = ended.summary.steps
    assert packs > 12
    assert state["done"] == [[0, packs]]
    assert sum(account.batches_by_consumer.values()) == packs
    assert all(account.batches_by_consumer.values()), "a drafter had nothing"
    assert {one.worker for one in ended.told} == {0, 1}
    assert account.peak_bytes <= account.queue_bytes == ended.run.room_bytes
    # documents of the first epoch: each was supervised, whoever took it, once
    rows = pl.DataFrame({"n": [of for _, of in ended.summary.label_agreement.values()]})["n"].sum()
    assert rows == sum(ended.run.plan.answers) - 0
    with capsys.disabled():
        print("", *account_of(ended), sep="\n  ")
    said = query(
        scene.world.workspace,
        "SELECT metric, value FROM train_metrics WHERE metric LIKE 'idle_share%' OR metric = 'queue_peak_bytes'",
    )
    assert set(said["metric"]) == {
        *(f"idle_share target {n}" for n in range(3)), *(f"idle_share drafter {n}" for n in range(2)),
        "queue_peak_bytes",
    }  # fmt: skip
    trained = query(
        scene.world.workspace,
        f"SELECT count(*) FROM drafter_responses WHERE drafter_id = '{ended.run.plan.drafter_id}'",
    )
    assert trained.item() == len(ended.run.plan.live) == 48


def account_of(ended: Ended) -> list[str]:
    return ended.run.ended()


def test_fed_live_by_one_target_a_drafter_is_the_one_of_the_shards(scene: Scene) -> None:
    ended = train(scene, 1, 1, seed=5)
    assert ended.summary is not None
    live_folder = scene.world.workspace.drafter(ended.run.plan.drafter_id)
    manifest = scene.manifest(feed="shards", seed=5)
    with open_ledger(scene.world.workspace, "both") as ledger:
        extraction = plan_extraction(manifest, scene.target(), scene.build_id, ledger)
        log = RunLog(ledger, "extract", scene.build_id)
        run = ExtractionRun(extraction, manifest, scene.target(), ledger, log)
        asyncio.run(run.run([Device("cpu", 0)], Interrupt()))
        plan = scene.plan(ledger, feed="shards", seed=5)
        told: list[TrainProgress] = []
        summary = asyncio.run(
            run_training(
                plan, manifest, scene.target(), ledger, RunLog(ledger, "train", scene.build_id), Device("cpu", 0), 1,
                Interrupt(), told.append, lambda: None,
            )
        )  # fmt: skip
    assert summary is not None
    assert plan.drafter_id != ended.run.plan.drafter_id
    assert [(one.step, one.epoch) for one in told] == [(one.step, one.epoch) for one in ended.told]
    for one, two in zip(told, ended.told, strict=True):
        assert one.loss == pytest.approx(two.loss, abs=1e-5)
    assert summary.label_agreement == ended.summary.label_agreement
    shard_folder = scene.world.workspace.drafter(plan.drafter_id)
    one, two = (load_file(str(folder / "export" / "model.safetensors")) for folder in (shard_folder, live_folder))
    for name in one:
        assert (one[name] - two[name]).abs().max() < 1e-4, name


def test_a_stop_writes_a_checkpoint_and_any_crew_goes_on_from_it(scene: Scene) -> None:
    def stop(progress: TrainProgress, interrupt: Interrupt) -> None:
        if progress.acceptance:  # the first checkpoint
            interrupt.asked.set()

    stopped = train(scene, 2, 2, stop, seed=6, epochs=12)
    assert stopped.error == ""
    assert stopped.summary is None
    done = state_of(scene, stopped)["done"]
    trained = sum(end - start for start, end in done)
    resumed = train(scene, 1, 1, seed=6, epochs=12)
    assert resumed.run.plan.drafter_id == stopped.run.plan.drafter_id
    assert resumed.summary is not None
    assert 6 <= trained < resumed.summary.steps
    assert state_of(scene, resumed)["done"] == [[0, resumed.summary.steps]]
    assert resumed.account is not None
    assert sum(resumed.account.batches_by_consumer.values()) == resumed.summary.steps - trained
    assert resumed.told[0].step > trained


@pytest.mark.parametrize(
    "who", ["drafter 0", *(pytest.param(who, marks=pytest.mark.full) for who in ("target 1", "drafter 1"))]
)
def test_whoever_is_killed_the_run_ends_with_its_name_and_goes_on(
    scene: Scene, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gangs: list[Gang] = []
    killed: list[int] = []
    run, sleep = Gang.run, asyncio.sleep

    async def seen(self: Gang, *arguments: Any) -> dict[str, bytes]:
        gangs.append(self)
        return await run(self, *arguments)

    async def until_told(seconds: float) -> None:
        """What a death breaks is told before it, how long so ever: the time is over when it is told."""
        await (gangs[0]._seats[who].exited.wait() if seconds == gang.SETTLE_S else sleep(seconds))

    monkeypatch.setattr(Gang, "run", seen)
    monkeypatch.setattr(gang, "SETTLE_S", 600.0)
    monkeypatch.setattr(asyncio, "sleep", until_told)

    def kill(progress: TrainProgress, _: Interrupt) -> None:
        if progress.acceptance and not killed:
            killed.append(gangs[0].pids()[who])
            os.kill(killed[0], signal.SIGKILL)

    seed = 10 + ["target 1", "drafter 1", "drafter 0"].index(who)
    ended = train(scene, 2, 2, kill, seed=seed, epochs=12)
    assert ended.summary is None
    assert ended.error.startswith(f"training stopped: {who} on cpu:")
    assert "killed by signal 9" in ended.error
    assert "\n" not in ended.error
    assert gangs[0].pids() == {}
    resumed = train(scene, 2, 2, seed=seed, epochs=12)
    assert resumed.summary is not None
    assert state_of(scene, resumed)["done"] == [[0, resumed.summary.steps]]
    assert resumed.account is not None
    assert 0 < sum(resumed.account.batches_by_consumer.values()) < resumed.summary.steps


def create_patient(config: bytes, emit: Callable[[bytes], None]) -> Any:
    """The real worker, which from step 20 on trains no further until it is asked to stop."""
    handler, train = worker.create(config, emit), worker.train_drafter

    def patient(item: Any, tell: Callable[[TrainProgress], None], stop: Callable[[], bool]) -> TrainSummary:
        def told(progress: TrainProgress) -> None:
            tell(progress)
            if progress.step >= 20:
                handler._stop.wait()

        return train(item, told, stop)

    worker.train_drafter = patient
    return handler


def test_a_stop_from_shards_keeps_every_figure_and_the_next_run_adds_its_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = scene.manifest(feed="shards", seed=8, epochs=12, checkpoint_every=15)
    told: list[TrainProgress] = []

    def run(then: Callable[[TrainProgress, Interrupt], None] | None) -> TrainSummary | None:
        interrupt = Interrupt()

        def hear(progress: TrainProgress) -> None:
            told.append(progress)
            if then:
                then(progress, interrupt)

        with open_ledger(scene.world.workspace, "train") as ledger:
            extraction = plan_extraction(manifest, scene.target(), scene.build_id, ledger)
            if extraction.rows:
                log = RunLog(ledger, "extract", scene.build_id)
                capture = ExtractionRun(extraction, manifest, scene.target(), ledger, log)
                asyncio.run(capture.run([Device("cpu", 0)], Interrupt()))
            plan = scene.plan(ledger, feed="shards", seed=8, epochs=12, checkpoint_every=15)
            log = RunLog(ledger, "train", scene.build_id)
            return asyncio.run(
                run_training(
                    plan, manifest, scene.target(), ledger, log, Device("cpu", 0), 1, interrupt, hear, lambda: None
                )
            )

    def stop(progress: TrainProgress, interrupt: Interrupt) -> None:
        if progress.step >= 20:
            interrupt.asked.set()

    with monkeypatch.context() as patched:
        patient = "tests.training.test_live:create_patient"
        patched.setattr(training_run, "Pool", lambda _, *rest, **named: Pool(patient, *rest, **named))
        assert run(stop) is None
    first = [one.step for one in told if one.own_steps]
    stopped = told[-1]
    assert stopped.saved
    summary = run(None)
    assert summary is not None
    steps = [one.step for one in told if one.own_steps]
    assert steps == sorted(set(steps))
    assert steps[len(first)] > stopped.step
    said = query(
        scene.world.workspace,
        "SELECT DISTINCT step FROM train_metrics WHERE metric = 'loss' AND category IS NULL "
        f"AND drafter_id = '{scene_drafter(scene, manifest)}' ORDER BY step",
    )
    assert said["step"].to_list() == steps


def scene_drafter(scene: Scene, manifest: Manifest) -> str:
    capture_id, layer_ids = plan_capture(manifest, scene.target())
    with open_ledger(scene.world.workspace, "ask") as ledger:
        return plan_training(manifest, scene.build_id, capture_id, layer_ids, ledger).drafter_id


def test_rows_that_no_target_could_capture_are_not_entered_as_trained(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[TrainingPlan] = []

    async def told(plan: TrainingPlan, *arguments: Any) -> tuple[None, None]:
        """In place of the run: one row is left out, in two epochs."""
        (producers,) = [one for one in arguments if isinstance(one, Producers)]
        for pack in (1, 9):
            event = RowLeftOut(pack=pack, response_id=plan.live[3].response_id, tokens=5, reason="out of memory")
            producers.hear(encode_event(event))
        entered.append(without(plan, producers.left_out))
        return None, None

    monkeypatch.setattr(live_feed, "run_live", told)
    ended = train(scene, 1, 1)
    plan = ended.run.plan
    (trained,) = entered
    assert trained.training_ids == [row.response_id for i, row in enumerate(plan.live) if i != 3]
    assert (len(trained.tokens), len(trained.answers)) == (47, 47)
    assert trained.drafter_id == plan.drafter_id
    assert ended.run.ended() == [
        f"1 row had no states and was left out: {plan.live[3].response_id[:12]}, out of memory"
    ]


def devices(count: int) -> list[Device]:
    return [Device("cuda", number) for number in range(count)]


@pytest.mark.parametrize(
    ("live", "count", "targets", "drafters"),
    [
        ({}, 8, 5, 3), ({}, 2, 1, 1), ({}, 3, 2, 1), ({}, 1, 1, 1), ({"drafters": 2}, 8, 6, 2),
        ({"targets": 4}, 8, 4, 4), ({"targets": 1, "drafters": 1}, 4, 1, 1), ({"drafters": 3}, 4, 1, 3),
    ],
)  # fmt: skip
def test_devices_are_shared(live: dict[str, int], count: int, targets: int, drafters: int) -> None:
    crew = share_devices(Live.model_validate(live), devices(count))
    assert (len(crew.targets), len(crew.drafters)) == (targets, drafters)
    assert count == 1 or not set(crew.targets) & set(crew.drafters)


@pytest.mark.parametrize(
    ("live", "count"), [({"targets": 2}, 1), ({"targets": 3, "drafters": 2}, 4), ({"drafters": 2}, 2)]
)
def test_more_workers_than_devices_are_refused(live: dict[str, int], count: int) -> None:
    with pytest.raises(UserError, match="Give it more --devices"):
        share_devices(Live.model_validate(live), devices(count))


def test_a_queue_that_holds_no_pack_is_refused(scene: Scene) -> None:
    assert "the largest pack alone has" in train_error(scene, live={"queue_gb": 0.00001})


def train_error(scene: Scene, **training: Any) -> str:
    with pytest.raises(UserError) as caught:
        train(scene, 1, 1, **training)
    return str(caught.value)
