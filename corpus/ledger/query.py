"""Questions to a workspace: one SELECT over the published snapshot, read-only in fact.

The statement is judged as DuckDB parses it, not by its words; the connection may read below the workspace and
nowhere else, and its configuration is locked. The two text views read the parquet files in place.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corpus.arrow import beyond_years
from corpus.errors import UserError
from corpus.ledger.spill import Limits, process_folder
from corpus.ledger.writer import migrate, refuse_newer
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import duckdb
    import polars as pl

EXPLAIN = re.compile(r"\s*EXPLAIN(\s+ANALYZE)?\s+(?!ANALYZE\b)(.*)", re.IGNORECASE | re.DOTALL)

NOT_IN_FRAMES = re.compile(r"\b(INTERVAL|UNION|BIGNUM|UHUGEINT|BIT|VARIANT|GEOMETRY|TIME_NS|TIME WITH TIME ZONE)\b")


def query(workspace: Workspace, sql: str, limits: Limits | None = None) -> pl.DataFrame:
    """The rows of one statement; what no frame has a type or a value for is text.

    Args:
        limits: what it may take; None is as much as DuckDB takes by itself.

    Raises:
        UserError: no ledger yet, not a single SELECT, or SQL that DuckDB refuses.
    """
    import duckdb
    import polars as pl

    statement = readable_statement(sql)
    with connect(workspace, statement, limits) as connection:
        try:
            relation = connection.sql(statement)
            table = _shown(relation, ()).to_arrow_table()
            beyond = [place for place, column in enumerate(table.columns) if beyond_years(column)]
            if beyond:  # seldom: so the question is asked again, and no other pays for looking before
                table = _shown(relation, beyond).to_arrow_table()
            return pl.DataFrame(table.rename_columns(_distinct(table.column_names)))
        except (duckdb.Error, RuntimeError) as error:
            if isinstance(error, duckdb.PermissionException):
                raise UserError(
                    f"sql: only files of the workspace can be read ({_short(error)}). For others open the file that "
                    "`draftmill ledger path` names in your own DuckDB client."
                ) from error
            if workspace.snapshot.name in str(error) or "Corrupt database file" in str(error):
                raise _unreadable(workspace, error) from error
            older = _older(workspace, connection, error)
            raise UserError(f"sql: {_short(error)}{older or ''}") from error
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, OverflowError) as error:
            raise UserError(f"sql: a column cannot be shown ({_short(error)}). CAST it to VARCHAR.") from error


def _shown(relation: duckdb.DuckDBPyRelation, beyond: Collection[int]) -> duckdb.DuckDBPyRelation:
    """The same with what no data frame has a type for as text: differences of times (00:01:02.5), unions.

    Args:
        beyond: places of further columns to be text, from 0.
    """
    odd = {
        place for place, kind in enumerate(map(str, relation.types)) if place in beyond or NOT_IN_FRAMES.search(kind)
    }
    if not odd:
        return relation
    columns = [
        f"#{place + 1}{'::VARCHAR' if place in odd else ''} AS {_name(name)}"
        for place, name in enumerate(relation.columns)
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


def is_explain(sql: str) -> bool:
    """Whether a statement that only reads is answered with a plan: a drawing of several lines.

    Raises:
        UserError: it does more than read.
    """
    return readable_statement(sql).startswith("EXPLAIN")


def connect(workspace: Workspace, asked: str | None = None, limits: Limits | None = None) -> duckdb.DuckDBPyConnection:
    """A locked read-only connection to the snapshot, with the text views.

    Args:
        asked: what will be run. Text views that it does not name are there without a row: to look at the files of a
            million answers takes longer than most questions.
        limits: what its questions may take, where this process has not opened the snapshot yet.

    Raises:
        UserError: nothing has been published here yet, or the snapshot cannot be read.
    """
    import duckdb

    snapshot = workspace.published()
    try:
        connection = duckdb.connect(str(snapshot.absolute()), read_only=True)
        refuse_newer(connection, str(workspace.snapshot))
        _lock(connection, workspace, limits)
    except (duckdb.Error, UnicodeError) as error:
        raise _unreadable(workspace, error) from error
    wanted = list(EMPTY_VIEWS) if asked is None else _texts_named(asked)
    for name, statement in {**EMPTY_VIEWS, **(text_views(workspace) if wanted else {})}.items():
        if name in wanted:
            _make_text_view(connection, name, statement)
        else:
            connection.execute(EMPTY_VIEWS[name])
    return connection


def _lock(connection: duckdb.DuckDBPyConnection, workspace: Workspace, limits: Limits | None) -> None:
    """Read below the workspace and nowhere else. A second connection of one process shares what the first has set."""
    locked = connection.execute("SELECT current_setting('lock_configuration')").fetchone()
    if locked and locked[0]:
        return
    root = workspace.root.resolve()
    # a view's pattern is judged as it is written, the files that it finds by their names
    allowed = dict.fromkeys((f"{root}/", f"{glob.escape(str(root))}/"))
    connection.execute(f"SET temp_directory = {quoted(str(limits.folder if limits else process_folder()))}")
    if limits is not None:
        connection.execute(f"SET memory_limit = '{limits.memory_bytes}B'")
        connection.execute(f"SET max_temp_directory_size = '{limits.spill_bytes}B'")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute(f"SET allowed_directories = [{', '.join(map(quoted, allowed))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _make_text_view(connection: duckdb.DuckDBPyConnection, name: str, statement: str) -> None:
    """Make a view of texts; one damaged file must not close the other views: asked, this one says why."""
    import duckdb

    why = ""
    try:
        connection.execute(statement.replace("CREATE", "CREATE OR REPLACE", 1))
        pattern, rows = FILES[name]
        if statement == EMPTY_VIEWS[name] and connection.execute(f"SELECT EXISTS ({rows})").fetchall() == [(True,)]:
            why = f"{name} cannot be read (no file of {pattern} is there, and the ledger has rows of them)"
    except duckdb.Error as error:
        why = f"{name} cannot be read ({_short(error)})"
    if why:
        first = EMPTY_VIEWS[name].replace("NULL::VARCHAR", f"error({quoted(why)})::VARCHAR", 1)
        connection.execute(first.removesuffix(" WHERE false").replace("CREATE", "CREATE OR REPLACE", 1))


def _texts_named(sql: str) -> list[str]:
    """The text views that a question names."""
    return [name for name in EMPTY_VIEWS if name in sql.lower()]


View = tuple[str, str, list[tuple[str, str, str]]]
"""Name, comment, and of each column its name, type and comment."""

INNER = ("fingerprint", "counted_composition")
"""Views that composition is made of: no part of the contract."""

COLUMNS = """
    SELECT v.view_name, v.comment, c.column_name, c.data_type, c.comment
    FROM duckdb_views() v JOIN duckdb_columns() c ON c.table_oid = v.view_oid AND c.database_oid = v.database_oid
    WHERE NOT v.internal ORDER BY v.view_name, c.column_index
"""


def views(workspace: Workspace | None = None) -> list[View]:
    """The views that can be asked, those of texts too, by name: of a published ledger, else those that it would have.

    Raises:
        UserError: the snapshot cannot be read.
    """
    if workspace is not None and workspace.snapshot.exists():
        with connect(workspace, "") as connection:
            return _views(connection)
    with _schema_alone() as connection:
        return _views(connection)


def _views(connection: duckdb.DuckDBPyConnection) -> list[View]:
    found: dict[str, View] = {}
    for name, comment, column, kind, said in connection.execute(COLUMNS).fetchall():
        if name in INNER:
            continue
        what, columns = TEXT_COMMENTS.get(name, (comment or "", {}))
        found.setdefault(name, (name, what, []))[2].append((column, kind, said or columns.get(column, "")))
    return list(found.values())


def _schema_alone() -> duckdb.DuckDBPyConnection:
    """An empty ledger of this draftmill, with its text views."""
    import duckdb

    connection = duckdb.connect()
    migrate(connection, "an empty ledger")
    for statement in EMPTY_VIEWS.values():
        connection.execute(statement)
    return connection


def _older(workspace: Workspace, connection: duckdb.DuckDBPyConnection, error: BaseException) -> str | None:
    """What to do where an error is one of names, and the snapshot lacks a table, view or column of this draftmill."""
    import duckdb

    if not isinstance(error, duckdb.BinderException | duckdb.CatalogException):
        return None
    listed = "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal"
    there = set(connection.execute(listed).fetchall())
    with _schema_alone() as ours:
        lacking = sorted(set(ours.execute(listed).fetchall()) - there)
    if not lacking:
        return None
    tables = {table for table, _ in there}
    named = dict.fromkeys(table if table not in tables else f"{table}.{column}" for table, column in lacking)
    first, more = ", ".join(list(named)[:3]), len(named) - 3
    return (
        f" The published ledger is of an older draftmill and lacks {first}{f' and {more} more' if more > 0 else ''}: "
        f"run `draftmill ledger rebuild -w {shlex.quote(str(workspace.root))}`."
    )


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
        self._made: set[str] = set()
        if workspace.snapshot.exists():
            self._connection = connect(workspace, "")
        else:
            self._connection = duckdb.connect()
            migrate(self._connection, "an empty ledger")

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        with self._explained():
            self._texts(sql)
            return list(self._connection.execute(sql, list(values)).fetchall())

    def frame(self, sql: str, *values: Any) -> pl.DataFrame:
        """The same as a frame."""
        import polars as pl

        with self._explained():
            self._texts(sql)
            return pl.DataFrame(self._connection.sql(sql, params=list(values)).to_arrow_table())

    def _texts(self, sql: str) -> None:
        """Make the text views that a question names; connect made them without a row."""
        named = [name for name in _texts_named(sql) if name not in self._made]
        if not named or not self.workspace.snapshot.exists():
            return
        made = text_views(self.workspace)
        for name in named:
            _make_text_view(self._connection, name, made[name])
            self._made.add(name)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            older = _older(self.workspace, self._connection, error) if self.workspace.snapshot.exists() else None
            self._connection.close()
            if older is not None:
                raise UserError(f"{self.workspace.snapshot}: {older.strip()}") from error
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


FILES = {
    "prompt_text": ("pools/", "FROM prompts"),
    "original_text": ("pools/", "FROM prompts"),
    "response_text": ("responses/", "FROM responses WHERE state = 'accepted'"),
}
"""Of each text view: where its files lie, and rows of the ledger that come from them."""


TEXT_COMMENTS: dict[str, tuple[str, dict[str, str]]] = {
    "prompt_text": (
        "Texts of every prompt that was read, dropped ones too, from the files of pools/",
        {"messages": "JSON: what the target is shown", "tools": "JSON", "asked": "The user turns, one under another"},
    ),
    "original_text": (
        "Answers that the sources' own rows have, where keep_original is set, from the files of pools/",
        {"row_index": "0-based, in file", "answers": "One a turn"},
    ),
    "response_text": (
        "Texts and token ids of accepted answers, from the files of responses/",
        {"prompt_token_ids": "As the engine saw them", "token_ids": "As the engine wrote them"},
    ),
}
"""Comments of the text views, which are temporary and so have none in the ledger, and of their columns."""


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
    return f"read_parquet({quoted(path)})" if any(root.glob(pattern)) else None


def quoted(text: str) -> str:
    """Text as a string of SQL, where no value can be bound."""
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
