"""The questions of docs/questions.md with commands and shown answers, and how an answer is held against the page."""

from __future__ import annotations

import io
import re
import subprocess
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from draftmill.app import run_app
from tests.docs.blocks import FENCE, ROOT, command_lines, pipeline

PAGE = ROOT / "docs" / "questions.md"
QUESTION = re.compile(r"^## (\d+)\. (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
WHEN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?: UTC)?|\d{8}T\d{9}Z-[0-9a-f]{6}")
ORIGIN, COST = 3, 9
"""The questions whose answers the build decides in part."""
TOKENS = 69
"""Where the column of tokens begins in the answer to COST."""


@dataclass(frozen=True)
class Question:
    """One of the page."""

    number: int
    commands: list[list[str]]
    shown: str
    measured: bool
    """Whether figures of the answer depend on the machine."""


def questions() -> list[Question]:
    """All of them, in order."""
    found = []
    for number, _, body in QUESTION.findall(PAGE.read_text(encoding="utf-8")):
        asked, shown = FENCE.finditer(body)
        assert (asked[1], shown[1]) == ("bash", "")
        measured = "*Measured " in body[asked.end() : shown.start()]
        commands = [part for line in command_lines(asked[2]) for part in pipeline(line)]
        found.append(Question(int(number), commands, shown[2], measured))
    return found


def answer(question: Question) -> str:
    """What the last command of it prints, without what the date changes. The folder is the current one."""
    *before, said = question.commands
    assert said[0] == "draftmill"
    if before:
        (program, *arguments), _, (out_file,) = before  # sed … > FILE
        done = subprocess.run([program, *arguments], capture_output=True, check=True)
        Path(out_file).write_bytes(done.stdout)
    out = io.StringIO()
    with redirect_stdout(out):
        assert run_app(said[1:]) == 0, said
    return plain(out.getvalue())


def plain(text: str) -> str:
    """Lines without their ends, dates without their digits."""
    return "\n".join(line.rstrip() for line in WHEN.sub("WHEN", text).rstrip().splitlines())


def shape(text: str) -> str:
    """An answer whose figures are the machine's: numbers are one letter, rules and spaces one space."""
    return re.sub(r"[ ─█▌▎▏▋▊▍▉]+", " ", re.sub(r"[\d.,]*\d", "N", plain(text))).strip()


def same(question: Question, seen: str) -> None:
    """Hold an answer against the page: to the letter where the build decides it, by its shape where it is measured."""
    shown = plain(question.shown)
    if question.number == ORIGIN:
        (origin, answers), (seen_origin, seen_answers) = (text.split("\nanswers\n") for text in (shown, seen))
        assert seen_origin == origin
        assert _labels(seen_answers) == _labels(answers)
    elif question.number == COST:
        (table, cost), (seen_table, seen_cost) = (text.split("\n\n13 answers to generate") for text in (shown, seen))
        assert [line[:TOKENS] for line in seen_table.splitlines()] == [line[:TOKENS] for line in table.splitlines()]
        assert "tokens" in cost
        assert "tokens" in seen_cost
    elif question.measured:
        assert shape(seen) == shape(shown)
    else:
        assert seen == shown


def _labels(answers: str) -> list[str]:
    """What is said of an answer, without what it is, up to its prompt."""
    return [line[:27].strip() for line in answers.partition("\n──")[0].splitlines()]
