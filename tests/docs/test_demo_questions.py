"""The ten questions, asked of a build of the demo's own manifest whose answers a fake engine gave.

What the build decides is as the page shows it, to the letter; what is measured has its shape. tests/e2e/test_demo.py
asks them of the real chain.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.demo_questions import answer, plain, questions, same
from tests.docs.desk import at_desk

ASKED = {question.number: question for question in questions()}


@pytest.fixture(scope="module")
def demo(demo_desk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The demo built and answered; figures of engines and of a drafter are entered."""
    with at_desk(shutil.copytree(demo_desk, tmp_path_factory.mktemp("questions") / "desk")):
        yield


def test_there_are_ten() -> None:
    assert list(ASKED) == list(range(1, 11))


@pytest.mark.parametrize("number", range(3, 11))
@pytest.mark.usefixtures("demo")
def test_the_answer_is_as_shown(number: int) -> None:
    """What is measured by its shape."""
    same(ASKED[number], answer(ASKED[number]))


@pytest.mark.usefixtures("demo")
def test_the_composition_is_as_shown_as_far_as_it_goes() -> None:
    shown = plain(ASKED[1].shown).splitlines()
    table = [line for line in answer(ASKED[1]).splitlines() if re.match(r"[a-z -]+ +[\d.]+%| +\d", line)]
    assert len(table) == 10
    for line in table:
        assert any(one.startswith(line) for one in shown), line


@pytest.mark.usefixtures("demo")
def test_the_rows_of_a_source_are_as_shown() -> None:
    """Without those that come after the answers."""
    shown = plain(ASKED[2].shown).splitlines()
    lines = answer(ASKED[2]).splitlines()
    assert [line for line in lines if line not in shown] == []
    assert sum("%" in line for line in lines) >= 6
