"""`draftmill sql` reads and does nothing else: every way around that is refused in one line, and changes no file."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.query import query, readable_statement
from corpus.ledger.writer import open_ledger
from corpus.workspace import Workspace
from draftmill.app import run_app

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
    monkeypatch.setattr("corpus.ledger.query._shown", lambda relation, beyond: relation)
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


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT DATE '-infinity' AS x", "-infinity"),
        ("SELECT TIMESTAMP 'infinity' AS x", "infinity"),
        ("SELECT TIMESTAMPTZ 'infinity' AS x", "infinity"),
        ("SELECT TIMESTAMP '290000-01-01' AS x", "290000-01-01 00:00:00"),
        ("SELECT TIMESTAMP_S '10000-01-01' AS x", "10000-01-01 00:00:00"),
        ("SELECT DATE '9999-12-30' AS x", "9999-12-30"),
        ("SELECT [TIMESTAMP 'infinity'] AS x", "[infinity]"),
        ("SELECT {'a': DATE 'infinity'} AS x", "{'a': infinity}"),
        ("SELECT '101'::BIT AS x", "101"),
        ("SELECT 340282366920938463463374607431768211455::UHUGEINT AS x", "340282366920938463463374607431768211455"),
        ("SELECT TIMETZ '12:00:00+01' AS x", "12:00:00+01"),
        ("SELECT 'POINT(1 1)'::GEOMETRY AS x", "POINT (1 1)"),
        ("SELECT '\\x00a\\x5C'::BLOB AS x", r"\x00a\x5C"),
        ("SELECT {'a': '\\xFF'::BLOB} AS x", r"\xFF"),
        ("SELECT TIME '12:00:01.5' AS x", "12:00:01.5"),
    ],
)
def test_what_no_frame_or_date_of_python_can_hold_is_text_in_every_form(built: World, sql: str, shown: str) -> None:
    from draftmill.looking.explorer_text import cell
    from draftmill.rows import write_rows

    rows = query(built.workspace, sql)
    assert cell(rows["x"][0])
    texts = {}
    for form in ("csv", "json", "table", "parquet"):
        file = built.root / f"out.{form}"
        write_rows(rows, form, file)
        texts[form] = file.read_bytes().decode("utf-8", "replace")
    assert shown in texts["csv"].replace(r"\\", "\\")
    assert shown in str(json.loads(texts["json"])[0]["x"]).replace(r"\\", "\\")


def test_a_file_that_holds_no_select_is_refused_before_it_is_read(
    built: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large.sql").open("wb") as large:
        large.truncate(16_000_001)
    for name, said in (("pipe", "is no plain file"), ("large.sql", "has 16 MB, which is no SELECT"), ("no", "cannot")):
        assert run_app(["sql", "--file", str(tmp_path / name), "-w", str(built.workspace.root)]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == 1


def test_a_result_is_not_written_over_the_ledger(built: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(built.root)
    asked = [[*command, "--format", "json"] for command in (["sql", "FROM builds"], ["composition"], ["funnel"])]
    for command in (*asked, ["report"]):
        for name in ("ledger.snapshot.duckdb", "workspace.lock", "builds/new.csv"):
            file = str(built.workspace.root / name)
            assert run_app([*command, "--out", file, "-w", str(built.workspace.root)]) == 2, command
            told = capsys.readouterr().err
            assert "draftmill's own" in told
            assert told.count("\n") == 1
    assert everything(built.root) == before


def test_a_question_leaves_nothing_in_the_workspace(built: World) -> None:
    before = everything(built.root)
    rows = query(built.workspace, "SELECT current_setting('temp_directory') AS at")
    assert not Path(rows.item()).is_relative_to(built.root)
    assert everything(built.root) == before


def test_texts_whose_files_are_all_gone_are_an_error_and_not_an_empty_answer(built: World) -> None:
    pools = built.workspace.root / "pools"
    pools.rename(pools.with_name("away"))
    try:
        for view in ("prompt_text", "original_text"):
            with pytest.raises(UserError, match=rf"{view} cannot be read \(no file of pools/ is there") as caught:
                query(built.workspace, f"FROM {view}")
            assert "\n" not in str(caught.value)
        assert query(built.workspace, "SELECT count(*) FROM builds").item() == 1
        assert query(built.workspace, "FROM response_text").height == 0  # nothing is answered: truly none
    finally:
        pools.with_name("away").rename(pools)


def test_a_statement_is_judged_as_it_is_parsed_and_not_by_its_words() -> None:
    assert "COPY" in readable_statement("SELECT 'COPY x TO y' AS said")
    with pytest.raises(UserError, match="got COPY"):
        readable_statement("/* SELECT */ COPY (SELECT 1) TO 'x'")
