from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from draftmill.terminal import INDENT, WIDTH
from draftmill.training_block import (
    best_line,
    category_lines,
    checkpoint_line,
    headway_line,
    idle_lines,
    measured_lines,
    past_sentence,
    training_line,
)
from draftmill.training_screen import TrainingScreen
from fleet.gang import Depth, MemberAccount
from training.headway import read_headway
from training.messages import AcceptanceRow, SlotSums, TrainProgress
from training.progress import Progress

CATEGORIES = ("coding", "general", "math", "agent", "code-other")


def sums(slots: int = 15) -> SlotSums:
    return SlotSums(
        loss=20.0, slots=10, correct_by_slot=[9 - i % 9 for i in range(slots)], total_by_slot=[10] * slots, streak=25,
        blocks=10,
    )  # fmt: skip


def progress(step: int, worker: int = 0, **changes: object) -> TrainProgress:
    body: dict[str, object] = {
        "item_id": "d", "step": step, "steps": 2_000_000, "epoch": 0, "loss": 2.125, "lr": 6e-4, "gradient_norm": 1.0,
        "by_category": {name: sums() for name in CATEGORIES}, "tokens_per_s": 9_000.0, "worker": worker,
        "own_steps": 10,
    }  # fmt: skip
    return TrainProgress(**{**body, **changes})  # type: ignore[arg-type]


def account() -> Depth:
    members = tuple(
        MemberAccount(f"{name} {i}", role, busy_s=9.0, waiting_s=1.0, batches=3)
        for name, role, count in (("target", "producer", 5), ("drafter", "consumer", 3))
        for i in range(count)
    )
    return Depth(members, 1_000_000, 250_000)


def test_a_table_by_category_fits_beside_its_indent() -> None:
    lines = category_lines(progress(1).by_category, {"coding": (10, 25), "math": (0, 0)})
    assert [line.split()[0] for line in lines[1:]] == sorted(CATEGORIES)
    assert max(len(line) for line in lines) <= WIDTH - INDENT
    (coding,) = [line for line in lines if line.startswith("coding")]
    assert coding.split()[1:] == ["2.000", "90%", "80%", "60%", "20%", "2.50", "3.50"]
    (math,) = [line for line in lines if line.startswith("math")]
    assert math.split()[-1] == "-"
    short = category_lines({"coding": sums(3)}, {})
    assert "slot 2" in short[0]
    assert "slot 4" not in short[0]
    assert category_lines({}, {}) == []


def test_one_line_says_where_the_run_is() -> None:
    line = training_line(progress(1_234_567), 123_456.0, 3700.0, account())
    assert line == "step 1,234,567 of 2,000,000, loss 2.125, 123,456 tok/s, queue 25%, 1:01:40 left"
    assert "left" not in training_line(progress(1), 1.0, None, None)
    assert training_line(progress(2_000_000), 1.0, 0.0, None).endswith("measuring held-out rows")


def test_rates_of_all_drafters_add_up_and_the_newest_walk_stays() -> None:
    screen = TrainingScreen()
    screen.show(progress(10, acceptance={"coding": (10, 10)}))
    screen.show(progress(20, worker=1))
    screen.fed(account())
    lines = screen.lines(WIDTH, 40)
    assert "18,000 tok/s" in lines[0]
    assert any(line.split()[0] == "coding" and line.split()[-1] == "2.00" for line in lines)
    assert lines[-2:] == [f"{' ' * INDENT}{line}" for line in idle_lines(account())]
    assert lines[-1].endswith("drafters idle 10%, 10%, 10%")
    assert len(screen.lines(WIDTH, 3)) == 3


def test_every_measure_is_a_column() -> None:
    rows = [
        AcceptanceRow(name, category, 10, 10 + i, 5, 0)
        for i, name in enumerate(("walk", "anchors", "ddtree_8", "ddtree_16", "ddtree_32"))
        for category in CATEGORIES
    ]
    lines = measured_lines(rows)
    assert lines[0].split() == ["τ", "walk", "anchors", "ddtree", "8", "ddtree", "16", "ddtree", "32", "rows"]
    assert lines[1].split() == ["agent", "2.00", "2.10", "2.20", "2.30", "2.40", "5"]
    assert max(map(len, lines)) <= WIDTH - INDENT
    assert measured_lines([]) == []


def test_few_rows_are_said_to_be_few() -> None:
    lines = measured_lines([AcceptanceRow("walk", "math", 10, 10, 4, 0), AcceptanceRow("walk", "coding", 10, 10, 5, 0)])
    assert [line.split()[2:] for line in lines[1:]] == [["5"], ["4", "(few)"]]


def test_right_after_one_step_there_are_no_figures_but_a_note() -> None:
    lines = category_lines(progress(1).by_category, {"coding": (10, 25)}, young=True)
    assert lines[0].split() == category_lines(progress(1).by_category, {})[0].split()
    assert lines[-1] == "-: figures follow after some steps"
    (coding,) = [line for line in lines if line.startswith("coding")]
    assert coding.split()[1:] == ["-", "-", "-", "-", "-", "-", "3.50"]
    screen = TrainingScreen()
    screen.show(progress(1, own_steps=1))
    assert "figures follow" in "\n".join(screen.lines(WIDTH, 40))
    screen.show(progress(11, own_steps=10))
    assert "90%" in "\n".join(screen.lines(WIDTH, 40))


def saved(step: int, accepted: int | None, **changes: object) -> TrainProgress:
    walked = {} if accepted is None else {"coding": (10, accepted), "math": (0, 0)}
    tau = None if accepted is None else 1 + accepted / 10
    return progress(step, saved=True, acceptance=walked, tau=tau, **changes)


def test_a_pipe_has_a_line_for_every_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingScreen(saved=Progress(4, "f", best_step=4, best_tau=2.0)) as screen:
        for step, accepted in ((5, 5), (10, 15), (20, 12), (30, 11), (40, 13), (50, None)):
            best = {"best_step": 4, "best_tau": 2.0} if step == 5 else {"best_step": 10, "best_tau": 2.5}
            screen.show(saved(step, accepted, **best))
            screen.show(progress(step + 1, **best))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines[:3] == [
        "step 5 of 2,000,000 saved: walk τ 1.50, best 2.00 at 4",
        "step 10 of 2,000,000 saved: walk τ 2.50, the best so far",
        "step 20 of 2,000,000 saved: walk τ 2.20, best 2.50 at 10",
    ]
    assert lines[5] == "best τ 2.50 at step 10, none better in 3 checkpoints"
    assert lines[6].startswith("step 50 of 2,000,000 saved")
    assert len(lines) == 7
    assert "best τ 2.50 at step 10" in "\n".join(screen.lines(WIDTH, 40))


def test_every_line_of_a_checkpoint_fits_beside_its_indent() -> None:
    line = checkpoint_line(saved(1_600_000, 15, best_step=400_000, best_tau=2.6))
    assert len(line) <= WIDTH - INDENT
    assert len(best_line((1_400_000, 12.25), 1234)) <= WIDTH - INDENT
    screen = TrainingScreen()
    screen.stopping()
    assert max(map(len, screen.lines(WIDTH, 40))) <= WIDTH


def test_a_best_checkpoint_that_is_long_past_is_said() -> None:
    assert past_sentence(150, 240, 30) is not None
    assert past_sentence(180, 240, 30) is None
    assert past_sentence(240, 240, 30) is None


def test_a_best_checkpoint_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    screen = TrainingScreen(360, Progress(90, "f", best_step=60, best_tau=3.0), tmp_path)
    screen.show(progress(90, steps=360, own_steps=0, by_category={}, best_step=90, best_tau=2.0))
    own = read_headway(tmp_path)
    assert own is not None
    assert (own.step, own.best_step, own.best_tau, own.loss) == (90, 90, 2.0, None)
    screen.show(saved(120, 15, steps=360, best_step=120, best_tau=2.5))
    own = read_headway(tmp_path)
    assert own is not None
    assert (own.best_step, own.best_tau) == (120, 2.5)
    screen.show(progress(121, worker=1, steps=360))
    assert "best τ 2.50 at step 120" in "\n".join(screen.lines(WIDTH, 40))


def test_other_shells_are_told_where_a_run_is(tmp_path: Path) -> None:
    screen = TrainingScreen(360, Progress(90, "f", best_step=60, best_tau=2.0), tmp_path)
    own = read_headway(tmp_path)
    assert own is not None
    assert (own.step, own.steps, own.best_step, own.loss) == (90, 360, 60, None)
    assert headway_line(own, own.updated_at) == "step 90 of 360, best τ 2.00 at 60"
    screen.show(saved(120, 15, steps=360, best_step=120, best_tau=2.5))
    own = read_headway(tmp_path)
    assert own is not None
    assert own.best_step == 120
    assert headway_line(own, own.updated_at).startswith("step 120 of 360, loss 2.125, 9,000 tok/s")
    later = headway_line(msgspec.structs.replace(own, left_s=100.0), own.updated_at + 40)
    assert "1:00 left" in later
    screen.stopping()
    own = read_headway(tmp_path)
    assert own is not None
    assert "stopping at a checkpoint" in headway_line(own, 0.0)
    (tmp_path / "training.json").write_text("{half")
    assert read_headway(tmp_path) is None
