"""`draftmill sql` reads and does nothing else: every way around that is refused in one line, and changes no file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.query import query, readable_statement
from corpus.ledger.writer import open_ledger
from corpus.workspace import Workspace

World = Any


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("built"))
    with open_ledger(world.workspace, "build") as ledger:
        commit_build(world.plan(world.manifest()), world.workspace, ledger)
    (world.root / "outside.csv").write_text("a\n1\n")
    return world


def everything(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


ALLOWED = [
    "SELECT 1 AS a",
    "FROM builds",
    "  select count(*) from builds ;  ",
    "-- a remark\nSELECT /* COPY */ 'DROP TABLE x; COPY' AS text",
    "WITH a AS (SELECT 1 AS x) SELECT * FROM a",
    "DESCRIBE builds",
    "SUMMARIZE selections",
    "EXPLAIN SELECT * FROM builds",
    "explain analyze SELECT * FROM builds",
    "SHOW TABLES",
    "VALUES (1), (2)",
]


@pytest.mark.parametrize("sql", ALLOWED)
def test_questions_are_answered(built: World, sql: str) -> None:
    assert query(built.workspace, sql).width > 0


REFUSED = [
    "COPY (SELECT 1) TO '{ws}/x.csv'",
    "copy builds to '{ws}/x.parquet' (format parquet)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{ws}/x.csv'",
    "explain analyze copy (SELECT 1) TO '{ws}/x.csv'",
    "EXPLAIN /* x */ ANALYZE COPY (SELECT 1) TO '{ws}/x.csv'",
    "EXPLAIN ANALYZE /* x */ COPY (SELECT 1) TO '{ws}/x.csv'",
    "/* SELECT */ EXPLAIN ANALYZE COPY (SELECT 1) TO '{ws}/x.csv'",
    "-- SELECT 1\nEXPLAIN ANALYZE COPY (SELECT 1) TO '{ws}/x.csv'",
    "EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{ws}/x.csv'",
    "EXPLAIN EXPLAIN ANALYZE COPY (SELECT 1) TO '{ws}/x.csv'",
    "EXPLAIN ANALYZE EXPLAIN ANALYZE COPY (SELECT 1) TO '{ws}/x.csv'",
    "EXPLAIN ANALYZE INSERT INTO runs (run_id) VALUES ('x')",
    "SELECT 1; COPY (SELECT 1) TO '{ws}/x.csv'",
    "SELECT 1; SELECT 2",
    "",
    ";",
    "SELEC 1",
    "ATTACH '{ws}/ledger.duckdb' AS l",
    "ATTACH '{ws}/new.duckdb'",
    "DETACH memory",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET enable_external_access",
    "INSTALL httpfs",
    "LOAD httpfs",
    "EXPORT DATABASE '{ws}/out'",
    "IMPORT DATABASE '{ws}'",
    "CHECKPOINT",
    "VACUUM",
    "CALL pragma_version()",
    "USE memory",
    "CREATE TABLE x (a INT)",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "DROP TABLE runs",
    "DELETE FROM runs",
    "UPDATE runs SET command = 'x'",
    "INSERT INTO runs (run_id) VALUES ('x')",
    "WITH a AS (SELECT 1) INSERT INTO runs (run_id) SELECT 'x'",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "SELECT * FROM read_csv('{root}/outside.csv')",
    "SELECT * FROM '{root}/outside.csv'",
    "SELECT * FROM read_csv('{ws}/../outside.csv')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM read_parquet('/etc/passwd')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_json('https://example.org/x.json')",
    "SELECT * FROM no_such_table",
    "SELECT nope FROM builds",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_everything_else_is_refused_in_one_line_and_changes_nothing(built: World, sql: str) -> None:
    before = everything(built.root)
    with pytest.raises(UserError) as caught:
        query(built.workspace, sql.format(ws=built.workspace.root, root=built.root))
    assert str(caught.value).startswith("sql: ")
    assert "\n" not in str(caught.value)
    assert everything(built.root) == before


def test_python_variables_are_no_tables(built: World) -> None:
    import polars as pl

    secret = pl.DataFrame({"a": [1]})
    with pytest.raises(UserError, match="secret"):
        query(built.workspace, "FROM secret")
    assert secret.height == 1


def test_nothing_is_published_yet(world: World) -> None:
    relative = Workspace(Path("my runs"))
    with pytest.raises(UserError) as caught:
        query(relative, "SELECT 1")
    line = str(caught.value)
    assert line.startswith(f"{Path.cwd() / 'my runs'}: holds no published ledger. ")
    assert "-w or DRAFTMILL_WORKSPACE chooses, else ./workspace, wherever the manifest lies" in line
    assert line.endswith("run `draftmill build MANIFEST -w 'my runs'` first.")
    with pytest.raises(UserError, match="holds no published ledger"):
        query(world.workspace, "SELECT 1")
    assert not world.workspace.root.exists()


def test_a_damaged_snapshot_is_one_line(world: World) -> None:
    world.workspace.root.mkdir()
    world.workspace.snapshot.write_bytes(b"no database" * 2000)
    with pytest.raises(UserError, match="cannot be read") as caught:
        query(world.workspace, "SELECT 1")
    assert "\n" not in str(caught.value)


def test_columns_of_one_name_are_told_apart(built: World) -> None:
    rows = query(built.workspace, "SELECT 1 AS a, 2 AS a")
    assert rows.row(0) == (1, 2)
    assert rows.columns == ["a", "a_1"]


def test_types_that_a_ledger_or_a_question_may_give(built: World) -> None:
    rows = query(
        built.workspace,
        "SELECT sum(x) AS total, max(x) AS most, [1, 2] AS list, {'a': 1} AS pair, 'nan'::DOUBLE AS nan, "
        "TIMESTAMPTZ '2024-01-02 03:04:05+00' AS at, NULL AS nothing, true AS yes, map {'k': 1} AS map, "
        "uuid() AS id, 1.5::DECIMAL(9, 2) AS money, '\\x00'::BLOB AS blob "
        "FROM (SELECT unnest([1, 2, 3]) AS x)",
    )
    row = rows.row(0, named=True)
    assert (row["total"], row["most"], row["list"], row["pair"]) == (6, 3, [1, 2], {"a": 1})
    assert math.isnan(row["nan"])


def test_a_type_that_cannot_be_shown_is_one_line(built: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.ledger.query._shown", lambda relation: relation)
    with pytest.raises(UserError, match="CAST it to VARCHAR") as caught:
        query(built.workspace, "SELECT union_value(a := 1) AS one")
    assert "\n" not in str(caught.value)


def test_differences_of_times_are_text(built: World) -> None:
    rows = query(
        built.workspace,
        'SELECT 1 AS n, TIMESTAMP \'2024-01-02 00:01:02.5\' - TIMESTAMP \'2024-01-02\' AS "it ""took""", 2 AS n',
    )
    assert rows.row(0) == (1, "00:01:02.5", 2)
    assert rows.columns == ["n", 'it "took"', "n_1"]
    nested = query(built.workspace, "SELECT [INTERVAL 3 DAY] AS spans, {'a': union_value(b := 1)} AS one")
    assert nested.row(0) == ("[3 days]", "{'a': 1}")


def test_a_statement_is_judged_as_it_is_parsed_and_not_by_its_words() -> None:
    assert "COPY" in readable_statement("SELECT 'COPY x TO y' AS said")
    with pytest.raises(UserError, match="got COPY"):
        readable_statement("/* SELECT */ COPY (SELECT 1) TO 'x'")
