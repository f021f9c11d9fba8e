"""The questions that docs/generation.md asks of a workspace are asked of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from corpus.ledger.query import query

World = Any
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "generation.md").read_text()
QUESTIONS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_question_of_the_page_has_an_answer(world: World) -> None:
    assert len(QUESTIONS) >= 4
    prompts = world.prompts("coding", 12)
    manifest = world.manifest(
        mix={"total": 12, "shares": {"coding": 1}, "holdout": 0.0},
        sources=[{"name": "a", "path": prompts, "category": "coding"}],
        engine={"extra": {"sample_every_s": 0.01, "latency_s": 0.05}},
        generation={"max_tokens": 6, "reject": []},
    )
    world.tell(manifest)
    answers = [query(world.workspace, question) for question in QUESTIONS]
    ended, noticed, speed, happened = answers
    assert ended["answers"].sum() >= 12
    assert noticed.columns == ["category", "note", "answers"]
    assert speed.height >= 1
    assert "engine_ready" in happened["kind"].to_list()


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_questions_fit_a_page(question: str) -> None:
    assert max(map(len, question.splitlines())) <= 120
