"""`draftmill --help` at 80 columns: every command on one line, whole, in the group where a user looks for it."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from draftmill.app import app, run_app
from draftmill.commands.contents import CONTENTS

MADE: Any = typer.main.get_command(app)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert run_app(["--help"]) == 0
    return capsys.readouterr().out


def test_every_command_is_in_one_group() -> None:
    listed = [name for group in CONTENTS.values() for name in group]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(MADE.commands)


def test_no_line_is_cut_or_wrapped(shown: str) -> None:
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert "..." not in shown.split("Options:")[1]
    assert "…" not in shown
    for title, group in CONTENTS.items():
        first = lines.index(f"{title}:") + 1
        for line, (name, phrase) in zip(lines[first:], group.items(), strict=False):
            assert line.split(maxsplit=1) == [name, phrase], "one line a command, in this order"


def test_the_ledgers_commands_are_whole_too(shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["ledger", "--help"]) == 0
    listed = capsys.readouterr().out.split("Commands:\n")[1]
    assert [line.split()[0] for line in listed.splitlines()] == ["path", "rebuild"]
    assert "..." not in listed


def test_completion_has_the_same_order_and_words() -> None:
    context = typer.main.get_command(app).make_context("draftmill", [], resilient_parsing=True)
    offered = {item.value: item.help for item in MADE.shell_complete(context, "")}
    for group in CONTENTS.values():
        for name, phrase in group.items():
            assert offered[name] == phrase
