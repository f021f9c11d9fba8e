"""Questions to a workspace: one SELECT over the published snapshot, read-only in fact.

The statement is judged as DuckDB parses it, not by its words; the connection may read below the workspace and
nowhere else, and its configuration is locked. The two text views read the parquet files in place.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corpus.errors import UserError
from corpus.ledger.writer import migrate, refuse_newer
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import duckdb
    import polars as pl

EXPLAIN = re.compile(r"\s*EXPLAIN(\s+ANALYZE)?\s+(?!ANALYZE\b)(.*)", re.IGNORECASE | re.DOTALL)

NOT_IN_FRAMES = re.compile(r"\b(INTERVAL|UNION)\b")


def query(workspace: Workspace, sql: str) -> pl.DataFrame:
    """The rows of one statement.

    Raises:
        UserError: no ledger yet, not a single SELECT, or SQL that DuckDB refuses.
    """
    import duckdb
    import polars as pl

    statement = readable_statement(sql)
    with connect(workspace) as connection:
        try:
            table = _shown(connection.sql(statement)).to_arrow_table()
            return pl.DataFrame(table.rename_columns(_distinct(table.column_names)))
        except (duckdb.Error, RuntimeError) as error:
            if workspace.snapshot.name in str(error) or "Corrupt database file" in str(error):
                raise _unreadable(workspace, error) from error
            raise UserError(f"sql: {_short(error)}") from error
        except pl.exceptions.PolarsError as error:
            raise UserError(f"sql: a column cannot be shown ({_short(error)}). CAST it to VARCHAR.") from error


def _shown(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The same with what no data frame has a type for as text: differences of times (00:01:02.5), unions."""
    if not NOT_IN_FRAMES.search(str(relation.types)):
        return relation
    columns = [
        f"#{place}{'::VARCHAR' if NOT_IN_FRAMES.search(str(kind)) else ''} AS {_name(name)}"
        for place, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True), start=1)
    ]
    return relation.project(", ".join(columns))


def readable_statement(sql: str) -> str:
    """The statement, if it only reads.

    Raises:
        UserError: it is not one SELECT, DESCRIBE, SUMMARIZE, or EXPLAIN of a SELECT.
    """
    import duckdb

    if sql.encode("utf-8", "replace").decode() != sql:
        raise UserError("sql: holds text that is not UTF-8.")
    statements = _parse(sql)
    if len(statements) != 1:
        raise UserError(f"sql: got {len(statements)} statements; one SELECT is expected.")
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        match = EXPLAIN.fullmatch(statements[0].query.strip().rstrip(";"))
        inner = _parse(match[2]) if match else []
        if match and len(inner) == 1 and inner[0].type == duckdb.StatementType.SELECT:
            return f"EXPLAIN{' ANALYZE' if match[1] else ''} {inner[0].query}"
        raise UserError("sql: EXPLAIN of anything but a SELECT is refused; the ledger is read-only here.")
    if kind != duckdb.StatementType.SELECT:
        name = str(kind).rsplit(".", 1)[-1]
        raise UserError(
            f"sql: got {name}; SELECT, DESCRIBE, SUMMARIZE and EXPLAIN of a SELECT are allowed, "
            "the ledger is read-only here."
        )
    return str(statements[0].query)


def connect(workspace: Workspace) -> duckdb.DuckDBPyConnection:
    """A locked read-only connection to the snapshot, with the text views.

    Raises:
        UserError: nothing has been published here yet, or the snapshot cannot be read.
    """
    import duckdb

    if not workspace.snapshot.exists():
        raise UserError(
            f"{workspace.root.absolute()}: holds no published ledger. It is the workspace that -w or "
            "DRAFTMILL_WORKSPACE chooses, else ./workspace, wherever the manifest lies. Choose the one that was built "
            f"in, or run `draftmill build MANIFEST -w {shlex.quote(str(workspace.root))}` first."
        )
    root = workspace.root.resolve()
    try:
        connection = duckdb.connect(str(workspace.snapshot.absolute()), read_only=True)
        refuse_newer(connection, str(workspace.snapshot))
        connection.execute("SET TimeZone = 'UTC'")
    except (duckdb.Error, UnicodeError) as error:
        raise _unreadable(workspace, error) from error
    for name, statement in text_views(workspace).items():
        try:
            connection.execute(statement)
        except duckdb.Error as error:  # one damaged file must not close the other views: asked, this one says why
            why = f"{name} cannot be read ({_short(error)})"
            first = EMPTY_VIEWS[name].replace("NULL::VARCHAR", f"error({_quoted(why)})::VARCHAR", 1)
            connection.execute(first.removesuffix(" WHERE false"))
    # a view's pattern is judged as it is written, the files that it finds by their names
    allowed = dict.fromkeys((f"{root}/", f"{glob.escape(str(root))}/"))
    connection.execute(f"SET allowed_directories = [{', '.join(map(_quoted, allowed))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _unreadable(workspace: Workspace, error: BaseException) -> UserError:
    return UserError(
        f"{workspace.snapshot}: cannot be read ({_short(error)}). Remove it; the next command that writes here, or "
        "`draftmill ledger rebuild`, publishes it again."
    )


class LedgerReader:
    """The published ledger with the writer's `rows`, for plans that only look; empty where none is published."""

    def __init__(self, workspace: Workspace) -> None:
        import duckdb

        self.workspace = workspace
        if workspace.snapshot.exists():
            self._connection = connect(workspace)
        else:
            self._connection = duckdb.connect()
            migrate(self._connection, "an empty ledger")

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        with self._explained():
            return list(self._connection.execute(sql, list(values)).fetchall())

    def frame(self, sql: str, *values: Any) -> pl.DataFrame:
        """The same as a frame."""
        import polars as pl

        with self._explained():
            return pl.DataFrame(self._connection.sql(sql, params=list(values)).to_arrow_table())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            self._connection.close()
            raise _unreadable(self.workspace, error) from error


EMPTY_VIEWS = {
    "prompt_text": "CREATE TEMP VIEW prompt_text AS "
    "SELECT NULL::VARCHAR AS prompt_id, NULL::VARCHAR AS messages, NULL::VARCHAR AS tools, NULL::VARCHAR AS asked "
    "WHERE false",
    "original_text": "CREATE TEMP VIEW original_text AS "
    "SELECT NULL::VARCHAR AS prompt_id, NULL::VARCHAR AS file, NULL::BIGINT AS row_index, NULL::VARCHAR[] AS answers "
    "WHERE false",
    "response_text": "CREATE TEMP VIEW response_text AS "
    "SELECT NULL::VARCHAR AS response_id, NULL::INTEGER AS attempt, NULL::VARCHAR AS text, "
    "NULL::INTEGER[] AS prompt_token_ids, NULL::INTEGER[] AS token_ids WHERE false",
}


def text_views(workspace: Workspace) -> dict[str, str]:
    """SQL of the views that read texts from the parquet files, by name."""
    root = workspace.root.resolve()
    prompts = _parquet(root, "pools/*/*.parquet")
    responses = _parquet(root, "responses/*.parquet")
    views = dict(EMPTY_VIEWS)
    if prompts:
        views["prompt_text"] = (
            "CREATE TEMP VIEW prompt_text AS SELECT prompt_id, messages, tools, array_to_string(list_transform("
            'list_filter(from_json(messages, \'[{"role": "VARCHAR", "content": "VARCHAR"}]\'), '
            "lambda m: m.role = 'user'), lambda m: m.content), chr(10)) AS asked "
            f"FROM (SELECT DISTINCT prompt_id, messages, tools FROM {prompts} WHERE prompt_id IS NOT NULL)"
        )
        views["original_text"] = (
            "CREATE TEMP VIEW original_text AS SELECT prompt_id, file, row_index, CAST(original::JSON AS VARCHAR[]) "
            f"AS answers FROM {prompts.removesuffix(')')}, union_by_name = true) WHERE original IS NOT NULL"
        )
    if responses:
        views["response_text"] = (
            "CREATE TEMP VIEW response_text AS SELECT response_id, attempt, text, prompt_token_ids, token_ids "
            f"FROM {responses} WHERE state = 'accepted'"
        )
    return views


def _parquet(root: Any, pattern: str) -> str | None:
    path = f"{glob.escape(str(root))}/{pattern}"
    return f"read_parquet({_quoted(path)})" if any(root.glob(pattern)) else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _distinct(names: list[str]) -> list[str]:
    """Names with a number behind those that came before: a join may give two columns one name."""
    made: list[str] = []
    for name in names:
        number, free = 1, name
        while free in made:
            number, free = number + 1, f"{name}_{number}"
        made.append(free)
    return made


def _parse(sql: str) -> list[Any]:
    import duckdb

    try:
        return list(duckdb.extract_statements(sql))
    except duckdb.Error as error:
        raise UserError(f"sql: {_short(error)}") from error


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(" ".join(lines[:2]).split())[:300] if lines else type(error).__name__
