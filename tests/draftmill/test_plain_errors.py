"""What data or a library had to say never steers the terminal through an error or a log line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.errors import UserError
from corpus.ledger.findings import Finding
from draftmill import app as command
from draftmill import verifying
from draftmill.app import run_app
from draftmill.looking.charts import Bar, Bars
from draftmill.looking.report_blocks import Document, Figure, Section
from draftmill.looking.report_html import html_text
from draftmill.table import printable_lines

World = Any
HOSTILE = "\x1b[31mred \x1b]0;title\x07 \u202ebidi\u2066 \r\x9b2J end"


def is_plain(text: str) -> bool:
    return all(ch.isprintable() or ch == "\n" for ch in text)


@given(st.text())
def test_lines_stay_and_nothing_of_them_steers(text: str) -> None:
    shown = printable_lines(text)
    assert is_plain(shown)
    assert shown.count("\n") == text.count("\n")
    assert printable_lines(shown) == shown


def test_an_error_with_text_of_data_is_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UserError(f"somewhere: {HOSTILE}")

    monkeypatch.setattr(command, "app", fail)
    assert run_app(["status"]) == 2
    told = capsys.readouterr().err
    assert is_plain(told)
    assert told.count("\n") == 1
    assert "\\x1b[31mred" in told
    assert "\\u202ebidi" in told


def test_what_duckdb_quotes_of_data_is_plain(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.tell(world.manifest())
    for statement in ("SELECT error(chr(27) || '[31mred' || chr(8238))", "SELECT (chr(27) || '[31m')::INTEGER"):
        assert run_app(["sql", statement, "-w", str(world.workspace.root)]) == 2
        told = capsys.readouterr().err
        assert is_plain(told)
        assert "\\x1b[31m" in told
        assert told.count("\n") == 1


def test_log_lines_are_plain() -> None:
    code = (
        "import logging; from draftmill.app import _log_to_stderr; _log_to_stderr(); "
        f"logging.getLogger('draftmill').warning('said %s', {HOSTILE!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    told = done.stderr.decode()
    assert told.startswith("draftmill: said \\x1b[31mred")
    assert is_plain(told)


def test_a_proof_is_plain(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.tell(world.manifest())
    said = Finding("ids", 1, 1, (HOSTILE,), HOSTILE, (HOSTILE,), HOSTILE)
    assert all(is_plain(line) for line in verifying.proof_lines([said], world.workspace))


def test_the_line_below_a_figure_is_visible() -> None:
    figure = Figure(Bars((("g", (Bar("a", 1.0, "1"),)),), 1.0), HOSTILE)
    text = html_text(Document("t", (), (), (Section("s", "title", (figure,)),)))
    assert is_plain(text)
