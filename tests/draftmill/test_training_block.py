from __future__ import annotations

from draftmill.terminal import INDENT, WIDTH
from draftmill.training_block import category_lines, idle_lines, measured_lines, training_line
from draftmill.training_screen import TrainingScreen
from fleet.gang import Depth, MemberAccount
from training.messages import AcceptanceRow, SlotSums, TrainProgress

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
        AcceptanceRow(name, category, 10, 10 + i, 4, 0)
        for i, name in enumerate(("walk", "anchors", "ddtree_8", "ddtree_16", "ddtree_32"))
        for category in CATEGORIES
    ]
    lines = measured_lines(rows)
    assert lines[0].split() == ["τ", "walk", "anchors", "ddtree", "8", "ddtree", "16", "ddtree", "32", "rows"]
    assert lines[1].split() == ["agent", "2.00", "2.10", "2.20", "2.30", "2.40", "4"]
    assert max(map(len, lines)) <= WIDTH - INDENT
    assert measured_lines([]) == []
