"""EXPLAIN draws a plan over several lines: it is shown so, in a terminal and on the explorer's page."""

from __future__ import annotations

import json
from typing import Any

from corpus.ledger.query import query
from draftmill.app import run_app
from draftmill.looking.explorer_sql import answer

World = Any
ASKED = "EXPLAIN SELECT count(*) AS \"a\x1b[31mb\" FROM builds WHERE name = '\x1b[31mred'"


def test_a_plan_is_printed_line_by_line_and_steers_nothing(asked: World, capsys: Any) -> None:
    def ran(*options: str) -> str:
        assert run_app(["sql", ASKED, *options, "-w", str(asked.workspace.root)]) == 0
        return str(capsys.readouterr().out)

    drawn = query(asked.workspace, ASKED)["explain_value"].item()
    shown = ran()
    assert len(shown.splitlines()) == len(drawn.rstrip().splitlines()) > 5
    assert "explain_key" not in shown
    assert "\\n" not in shown
    assert "\x1b" not in shown
    assert json.loads(ran("--format", "json"))[0]["explain_value"] == drawn


def test_the_page_keeps_its_lines(asked: World) -> None:
    told = answer(asked.workspace, ASKED)
    assert told.error is None
    assert told.plan is not None
    assert len(told.plan.splitlines()) > 5
    assert "\x1b" not in told.plan
    assert told.rows == []
    assert answer(asked.workspace, "SELECT 1").plan is None
