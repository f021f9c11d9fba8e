"""The questions that docs/training.md asks of a workspace are asked of one with two drafters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from corpus.ledger.query import query
from corpus.ledger.writer import LedgerWriter, open_ledger

World = Any
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text()
QUESTIONS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def question(start: str) -> str:
    """The one that follows a line that begins so."""
    found = re.search(rf"^{re.escape(start)}.*?^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, start
    return found[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two drafters on two builds, measured in two categories; the older one on the newer one's build too."""
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("trained"))
    with open_ledger(world.workspace, "test") as ledger:
        for day, (drafter, accepted) in enumerate({"old": 1000, "new": 2000}.items(), start=1):
            insert(ledger, "INSERT INTO drafters (drafter_id, build_id, created_at) VALUES (?, ?, ?)",
                   drafter, f"build of {drafter}", f"2026-01-0{day}")  # fmt: skip
            for category, more in {"coding": 0, "math": 500}.items():
                measured(ledger, drafter, f"build of {drafter}", category, accepted + more)
                for step, agreed in ((10, 0.5), (20, 0.75)):
                    insert(ledger, "INSERT INTO train_metrics VALUES (?, ?, 1, 'label_agreement', ?, ?)",
                           drafter, step, category, agreed + more / 5000)  # fmt: skip
        measured(ledger, "old", "build of new", "coding", 9)
    return world


def measured(ledger: LedgerWriter, drafter: str, build: str, category: str, accepted: int) -> None:
    """20 rows of 50 drafts each, all alike."""
    sums = (20 * 50**2, round(accepted**2 / 20), 50 * accepted)
    insert(
        ledger, "INSERT INTO acceptance VALUES (?, ?, ?, 'walk', 1000, ?, 20, '2026-01-03', ?, ?, ?)",
        drafter, build, category, accepted, *sums,
    )  # fmt: skip


def insert(ledger: LedgerWriter, sql: str, *values: object) -> None:
    ledger.call(lambda connection: connection.execute(sql, list(values)))


def test_every_question_of_the_page_can_be_asked(trained: World) -> None:
    for asked in QUESTIONS:
        query(trained.workspace, asked)


def test_two_drafters_stand_side_by_side(trained: World) -> None:
    answer = query(trained.workspace, question("Acceptance length by category of the two newest drafters"))
    assert answer["category"].to_list() == ["coding", "math"]
    assert answer["measured_by"].to_list() == ["walk", "walk"]
    assert answer.select("old", "new").rows() == [("old", "new")] * 2
    assert answer["before"].to_list() == [2.0, 2.5], "on the build that it was trained on, not on another"
    assert answer["now"].to_list() == [3.0, 3.5]
    bounds = answer.select("before_low", "before_high", "now_low", "now_high")
    assert bounds.rows() == [(2.0, 2.0, 3.0, 3.0), (2.5, 2.5, 3.5, 3.5)]


def test_agreement_is_that_of_the_last_step(trained: World) -> None:
    answer = query(trained.workspace, question("How often do the sampled token"))
    assert answer.rows() == [("coding", 0.75), ("math", 0.85)], "of the newest drafter alone"


def test_loss_and_tau_go_over_the_steps_of_the_newest_drafter(trained: World) -> None:
    with open_ledger(trained.workspace, "test") as ledger:
        for drafter, step, metric, category, value in (
            ("new", 10, "loss", None, 2.0), ("new", 10, "loss", "coding", 9.0), ("new", 20, "loss", None, 1.0),
            ("new", 20, "walk_acceptance_length", "coding", 2.0), ("new", 20, "walk_acceptance_length", "math", 3.0),
            ("old", 20, "loss", None, 7.0), ("new", 30, "gradient_norm", None, 1.0),
        ):  # fmt: skip
            values = (drafter, step, metric, category, value)
            insert(ledger, "INSERT INTO train_metrics VALUES (?, ?, 1, ?, ?, ?)", *values)
    answer = query(trained.workspace, question("How do loss and held-out"))
    assert answer.rows() == [(10, 2.0, None), (20, 1.0, 2.5)]


@pytest.mark.parametrize("asked", QUESTIONS)
def test_the_questions_fit_a_page(asked: str) -> None:
    assert max(map(len, asked.splitlines())) <= 120
