"""Ledgers that lack what a whole one has: who looks at one is told what there is, and no reader breaks off."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from rich.cells import cell_len

from corpus.workspace import Workspace
from draftmill.app import run_app
from draftmill.looking.explorer_export import exported
from draftmill.looking.explorer_record import find_record
from draftmill.looking.explorer_rows import ANSWERS, KINDS, PROMPTS, choices, listed
from draftmill.looking.explorer_snapshot import Published
from draftmill.looking.filters import Filters
from draftmill.looking.report import make_report

World = Any
IDS = {
    "build_id", "prompt_id", "response_id", "candidates_id", "pool_id", "recipe_id", "capture_id", "drafter_id",
    "run_id", "import_id", "shard", "shard_row", "chunk", "row_index", "turn", "replica", "round",
}  # fmt: skip


def columns(ledger: duckdb.DuckDBPyConnection) -> list[tuple[str, str, str]]:
    return ledger.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal AND is_nullable "
        "AND table_name IN (SELECT table_name FROM duckdb_tables())"
    ).fetchall()


def set_all(value: Callable[[str, str], str | None]) -> Callable[[duckdb.DuckDBPyConnection], None]:
    """Set every column that is no id, and may have it, to a value by its name and type."""

    def change(ledger: duckdb.DuckDBPyConnection) -> None:
        for table, name, kind in columns(ledger):
            wanted = value(name, kind)
            if name not in IDS and wanted is not None:
                try:
                    ledger.execute(f'UPDATE {table} SET "{name}" = {wanted}')
                except duckdb.ConstraintException:
                    continue

    return change


def empty(ledger: duckdb.DuckDBPyConnection) -> None:
    for (table,) in ledger.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall():
        if table not in ("builds", "migrations"):
            ledger.execute(f"DELETE FROM {table}")


ODD = {
    "nothing known": set_all(lambda name, kind: "NULL"),
    "half the categories": set_all(
        lambda name, kind: "CASE WHEN rowid % 2 = 0 THEN category END" if name == "category" else None
    ),
    "no numbers": set_all(lambda name, kind: "'nan'::DOUBLE" if kind == "DOUBLE" else None),
    "below zero": set_all(lambda name, kind: "-5" if kind in ("BIGINT", "INTEGER") else None),
    "endless times": set_all(lambda name, kind: "'infinity'" if "TIMESTAMP" in kind else None),
    "one build alone": empty,
}


@pytest.fixture(params=ODD)
def odd(asked: World, tmp_path: Path, request: pytest.FixtureRequest) -> Workspace:
    made = asked.with_own_snapshot(tmp_path)
    with duckdb.connect(str(made.snapshot)) as ledger:
        ODD[request.param](ledger)
    return made


def known(workspace: Workspace, sql: str) -> str:
    with duckdb.connect(str(workspace.snapshot), read_only=True) as ledger:
        found = ledger.execute(sql).fetchone()
    return str(found[0]) if found else "none"


def test_every_command_answers_or_says_why(odd: Workspace, asked: World, capsys: pytest.CaptureFixture[str]) -> None:
    build = known(odd, "SELECT build_id FROM builds")
    ids = [known(odd, f"SELECT {name} FROM {table}") for name, table in (
        ("prompt_id", "selections"), ("response_id", "responses"), ("build_id", "builds"), ("run_id", "runs"),
    )]  # fmt: skip
    for arguments in (
        ["composition", build], ["composition", build, "--by", "source"], ["composition", build, "--stage", "accepted"],
        ["funnel", build], ["sample", build, "-n", "3"], ["status"], ["plan", str(asked.root / "mix.yaml")],
        *(["show", one] for one in ids),
    ):  # fmt: skip
        capsys.readouterr()
        code = run_app([*arguments, "-w", str(odd.root)])
        out, err = capsys.readouterr()
        assert code in (0, 2, 3)
        assert code != 2 or err.count("\n") == 1
        assert all(cell_len(line) <= 80 for line in out.splitlines()), arguments


def test_the_report_and_the_explorer_show_what_there_is(odd: Workspace) -> None:
    build = known(odd, "SELECT build_id FROM builds")
    for markdown in (True, False):
        assert make_report(odd, build, Path(), markdown=markdown)
    snapshot = Published(odd).now()
    for kind in KINDS:
        assert choices(snapshot, kind, build)
        rows = listed(snapshot, kind, build, Filters(), 1, "longest").rows
        for row in rows[:2]:
            name = {ANSWERS: "response_id", PROMPTS: "prompt_id"}.get(kind)
            if name is not None:
                assert find_record(odd, snapshot, row[name], None).title
        for form in ("csv", "jsonl", "parquet"):
            b"".join(exported(snapshot, kind, build, Filters(), form, texts=True))


def test_a_hostile_name_is_one_line_and_a_long_one_fits(
    asked: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Workspace(tmp_path)
    shutil.copy(asked.workspace.snapshot, made.snapshot)
    with duckdb.connect(str(made.snapshot)) as ledger:
        ledger.execute("UPDATE builds SET name = 'two' || chr(10) || 'lines ' || chr(27) || '[31m and many more words'")
    for arguments in (["status"], ["composition"], ["funnel", "--source", "x"], ["sample", "--category", "x"]):
        code = run_app([*arguments, "-w", str(tmp_path)])
        out, err = capsys.readouterr()
        assert (code == 0) == (len(arguments) == 1)
        assert err.count("\n") == (code == 2)
        assert all(ch.isprintable() or ch == "\n" for ch in out + err)
        assert all(cell_len(line) <= 80 for line in out.splitlines())


def test_a_report_needs_no_folder_of_the_build(
    asked: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(asked.workspace.snapshot, tmp_path)
    for named in ([], ["larger"], [known(Workspace(tmp_path), "SELECT build_id FROM builds")[:8]]):
        assert run_app(["report", *named, "--out", str(tmp_path / "a.md"), "-w", str(tmp_path)]) == 0
        assert "larger" in (tmp_path / "a.md").read_text() or named
        capsys.readouterr()
