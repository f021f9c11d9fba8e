"""The looking commands as a person types them: which build, what is refused, what programs get, and at what width."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.cells import cell_len

from corpus.ledger.query import query
from draftmill.app import run_app
from draftmill.looking.chosen import age_note

World = Any


def ran(world: World, capsys: Any, *arguments: str, code: int = 0) -> str:
    assert run_app([*arguments, "-w", str(world.workspace.root)]) == code
    ended = capsys.readouterr()
    return str(ended.out if code in (0, 3) else ended.err)


def test_the_newest_build_is_meant_and_named(asked: World, capsys: Any) -> None:
    text = ran(asked, capsys, "composition")
    build_id = query(asked.workspace, "SELECT build_id FROM latest_build").item()
    assert text.startswith(f"larger {build_id[:8]}, the newest build, made ")
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert ran(asked, capsys, "composition", "larger") == ran(asked, capsys, "composition", build_id[:6]) == text


def test_a_build_is_named_by_its_manifest(asked: World, capsys: Any) -> None:
    path = asked.root / "first.yaml"
    path.write_text(asked.first.model_dump_json(exclude_unset=True))
    assert ran(asked, capsys, "funnel", str(path)).startswith("small ")


@pytest.mark.parametrize("command", ["composition", "funnel", "sample"])
def test_a_build_that_is_not_there_is_one_line(asked: World, capsys: Any, command: str) -> None:
    text = ran(asked, capsys, command, "largr", code=2)
    assert "neither a manifest nor a build in " in text
    assert text.rstrip().endswith("Did you mean larger?")
    assert text.count("\n") == 1


@pytest.mark.parametrize("command", [["composition"], ["funnel"], ["sample"], ["show", "abcdef"]])
def test_where_nothing_is_published_it_says_so_and_makes_nothing(world: World, capsys: Any, command: list[str]) -> None:
    assert "holds no published ledger" in ran(world, capsys, *command, code=2)
    assert not world.workspace.root.exists()


def test_a_workspace_that_is_not_there_is_told_in_one_wording(world: World, capsys: Any) -> None:
    asked = (
        ["sql", "SELECT 1"],
        ["composition"],
        ["report"],
        ["verify"],
        ["explore", "--no-browser"],
        ["ledger", "path"],
    )
    (told,) = {ran(world, capsys, *command, code=2) for command in asked}
    assert "-w or DRAFTMILL_WORKSPACE chooses" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", ["composition", "funnel", "sql"])
def test_a_file_that_cannot_be_written_is_refused_before_the_ledger_is_asked(
    world: World, capsys: Any, command: str, tmp_path: Path
) -> None:
    said = {"sql": ["SELECT 1"]}.get(command, [])
    assert "is a folder" in ran(world, capsys, command, *said, "--out", str(tmp_path), code=2)
    assert "no format is called" in ran(world, capsys, command, *said, "--out", str(tmp_path / "a.xls"), code=2)


@pytest.mark.parametrize("command", [["composition"], ["funnel"], ["sample"]])
def test_a_ledger_without_builds_says_so(world: World, capsys: Any, command: list[str]) -> None:
    from corpus.ledger.writer import open_ledger

    with open_ledger(world.workspace, "test"):
        pass
    assert "has no build yet" in ran(world, capsys, *command, code=2)


def test_programs_get_the_figures_of_the_view(asked: World, capsys: Any, tmp_path: Path) -> None:
    body = json.loads(ran(asked, capsys, "composition", "small", "-f", "json", "--by", "source"))
    view = query(
        asked.workspace,
        "SELECT stage, category, source, rows, prompts, prompt_tokens, response_tokens, share_prompts AS share "
        "FROM composition JOIN builds USING (build_id) WHERE name = 'small' ORDER BY ALL",
    )
    mine = pl.DataFrame(body, infer_schema_length=None).select(view.columns).sort(pl.all(), nulls_last=True)
    theirs = view.sort(pl.all(), nulls_last=True)
    assert mine.drop("share").cast(pl.String).equals(theirs.drop("share").cast(pl.String))
    assert mine["share"].to_list() == pytest.approx(theirs["share"].to_list())
    path = tmp_path / "f.parquet"
    ran(asked, capsys, "funnel", "--out", str(path))
    assert set(pl.read_parquet(path)["of"]) == {"rows", "answers"}


def test_a_source_alone_and_a_stage_alone(asked: World, capsys: Any) -> None:
    assert "talk" not in ran(asked, capsys, "funnel", "--source", "code")
    text = ran(asked, capsys, "composition", "small", "--stage", "accepted", "--by", "source")
    assert re.search(r"^  code .*█", text, re.MULTILINE)
    assert all(cell_len(line) <= 80 for line in text.splitlines())


def test_a_funnel_that_does_not_add_up_exits_3(asked: World, capsys: Any, monkeypatch: Any) -> None:
    from draftmill.looking import funnel

    monkeypatch.setattr(
        funnel.Funnel, "breaches", property(lambda self: ["a: 5 rows were read, and 4 are accounted for"])
    )
    assert "BREACH a: 5 rows were read" in ran(asked, capsys, "funnel", code=3)


def test_dropped_rows_take_no_filter_of_answers(asked: World, capsys: Any) -> None:
    text = ran(asked, capsys, "sample", "--dropped", "duplicate", "--state", "accepted", code=2)
    assert "give --source or --license" in text


def test_the_age_is_said_while_a_run_writes_and_it_matters(asked: World) -> None:
    published = asked.workspace.snapshot.stat().st_mtime
    assert age_note(asked.workspace, published + 500) is None
    with asked.workspace.coordinate("generate"):
        assert age_note(asked.workspace, published + 59) is None
        assert age_note(asked.workspace, published + 125.5) == "a run is writing here; this is as published 2:05 ago"


def test_a_build_that_is_being_made_says_by_what(asked: World, capsys: Any, tmp_path: Path) -> None:
    import shutil
    from types import SimpleNamespace

    from corpus.ledger.writer import open_ledger
    from corpus.runlog import RunLog
    from corpus.workspace import Workspace

    shutil.copytree(asked.workspace.root, tmp_path / "ws")
    copy = SimpleNamespace(workspace=Workspace(tmp_path / "ws"))
    build_id = query(asked.workspace, "SELECT build_id FROM builds WHERE name = 'small'").item()
    with open_ledger(copy.workspace, "extract") as ledger:
        RunLog(ledger, "extract", build_id)
        ledger.publish()
        text = ran(copy, capsys, "composition", "small")
        assert "extract is running" in text
        assert "extract is running" not in ran(copy, capsys, "composition", "larger")
    assert os.path.exists(copy.workspace.snapshot)  # noqa: PTH110


# sql


def test_sql_from_a_file(asked: World, capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "q.sql"
    path.write_text("-- how many\nSELECT count(*) AS n FROM builds;\n")
    assert ran(asked, capsys, "sql", "--file", str(path), "-f", "csv") == "n\n2\n"
    assert f"run it with --file {path}" in ran(asked, capsys, "sql", str(path), code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the SELECT is missing"),
        (["SELECT 1", "--file", "x.sql"], "the SELECT is said twice"),
        (["--file", "no.sql"], "no.sql: cannot be read (No such file or directory)"),
        (["SELECT 1", "--views"], "--views lists the views and runs nothing"),
    ],
)
def test_sql_takes_one_select_from_one_place(asked: World, capsys: Any, arguments: list[str], said: str) -> None:
    assert said in ran(asked, capsys, "sql", *arguments, code=2)


def test_views_are_listed_without_a_workspace(world: World, capsys: Any) -> None:
    text = ran(world, capsys, "sql", "--views")
    names = {line for line in text.splitlines() if re.fullmatch(r"[a-z_]+", line)}
    assert names >= {"composition", "funnel", "provenance", "unfinished", "throughput", "acceptance_by_category"}
    assert names >= {"prompt_text", "response_text"}
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert not world.workspace.root.exists()


def test_views_of_a_workspace_are_those_that_can_be_asked(asked: World, capsys: Any) -> None:
    text = ran(asked, capsys, "sql", "--views")
    for name in re.findall(r"^[a-z_]+$", text, re.MULTILINE):
        query(asked.workspace, f"FROM {name} LIMIT 0")
