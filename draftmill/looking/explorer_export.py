"""The rows that filters leave, as a file that is sent while it is made: csv, jsonl or parquet.

Answers have the columns of the view `provenance`, prompts and dropped rows those of their tables; with texts,
`messages`, `tools` (JSON) and `answer` follow, read from the workspace's files, and `unread`, which says why a row has
none: a file that is gone or damaged takes its own texts and no others. Memory holds one batch; what DuckDB joins
beyond its limit it spills to disk.
"""

from __future__ import annotations

import glob
import io
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.arrow import to_frame
from corpus.ledger.query import quoted
from draftmill.looking.explorer_rows import ANSWERS, DROPPED, PROMPTS
from draftmill.looking.filters import Filters, condition

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow as pa

    from draftmill.looking.explorer_snapshot import Snapshot

FORMS = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
BATCH_ROWS = 2_048

ROWS = {
    ANSWERS: """
SELECT p.* FROM provenance p
WHERE p.build_id = $build AND p.response_id IN (
    SELECT b.response_id FROM build_responses b JOIN {table} l ON l.place = b.rowid)""",
    PROMPTS: """
SELECT s.*, p.turns, p.prompt_chars, p.prompt_tokens, p.pool_id, p.chunk, p.file, p.row_index, p.upstream_id
FROM selections s JOIN {table} l ON l.place = s.rowid LEFT JOIN prompts p ON p.rowid = l.tried""",
    DROPPED: """
SELECT l.source, s.pool_id, s.chunk, s.file, s.row_index, s.upstream_id, s.prompt_id, s.reason, s.detail,
       NULL AS winner_prompt_id, NULL AS winner_source, NULL AS similarity, NULL AS eval_set, NULL AS eval_item
FROM source_rows s JOIN {table} l ON l.place = s.rowid AND l.tried = 1
UNION ALL BY NAME
SELECT d.source, d.pool_id, d.chunk, d.file, d.row_index, d.upstream_id, d.prompt_id, d.reason, d.detail,
       d.winner_prompt_id, d.winner_source, d.similarity, d.eval_set, d.eval_item
FROM drops d JOIN {table} l ON l.place = d.rowid AND l.tried = 2""",
}


def exported(snapshot: Snapshot, kind: str, build_id: str, filters: Filters, form: str, texts: bool) -> Iterator[bytes]:
    """The file, piece by piece."""
    import polars as pl
    import pyarrow as pa

    with snapshot.cursor() as cursor:
        schema, batches = _read(snapshot, cursor, kind, build_id, filters, texts)
        if form == "parquet":
            yield from _parquet(schema, batches)
            return
        is_first = True
        for batch in batches:
            yield from _lines(to_frame(pa.Table.from_batches([batch])), form, is_first)
            is_first = False
        if is_first:
            yield from _lines(pl.DataFrame(schema.empty_table()), form, True)


def _read(
    snapshot: Snapshot, cursor: duckdb.DuckDBPyConnection, kind: str, build_id: str, filters: Filters, texts: bool
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns and the batches. Where a file of texts ends it, each is read first, and the damaged ones left out."""
    import duckdb
    import pyarrow as pa

    def begun(proved: bool) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        sql, values = export_sql(snapshot, kind, build_id, filters, texts, proved)
        reader = cursor.sql(sql, params=values).to_arrow_reader(BATCH_ROWS)
        first = next(reader, None)
        return reader.schema, chain(() if first is None else (first,), reader)

    try:
        return begun(False)
    except (duckdb.Error, pa.ArrowException, OSError):
        if not texts:
            raise
    return begun(True)


def export_sql(
    snapshot: Snapshot, kind: str, build_id: str, filters: Filters, texts: bool, proved: bool = False
) -> tuple[str, dict[str, Any]]:
    """The question, and its parameters by name.

    Args:
        proved: read each file of texts first, and leave the damaged ones out.
    """
    where, given = condition(filters)
    values: dict[str, Any] = {"build": build_id} if kind == ANSWERS else {}
    for place, value in enumerate(given):
        where = where.replace("?", f"$f{place}", 1)
        values[f"f{place}"] = value
    # the list's names for columns that tables have too
    rows = ROWS[kind].format(table=f"(SELECT * FROM {snapshot.list_of(kind, build_id)} WHERE {where})")
    return (_with_texts(snapshot, kind, rows, proved) if texts else rows), values


NO_PROMPT = (
    "CASE WHEN w.prompt_id IS NOT NULL AND q.prompt_id IS NULL "
    "THEN 'prompt: its file of pools/ is gone or cannot be read' END"
)
NO_ANSWER = (
    "CASE WHEN w.shard IS NOT NULL AND a.response_id IS NULL "
    "THEN 'answer: responses/' || w.shard || ' is gone, cannot be read or holds it no more' END"
)


def _with_texts(snapshot: Snapshot, kind: str, rows: str, proved: bool) -> str:
    root = snapshot.workspace.root.resolve()
    pools = _files(root, "pools/*/*.parquet", "prompt_id, messages, tools", "prompt_id", proved)
    answers = _files(root, "responses/*.parquet", "response_id, attempt, text", "response_id", proved)
    unread = f"nullif(concat_ws('; ', {NO_PROMPT}{f', {NO_ANSWER}' if kind == ANSWERS else ''}), '') AS unread"
    joined = f"WITH wanted AS ({rows}) SELECT w.*, q.messages, q.tools"
    ends = (
        f"{unread} FROM wanted w "
        "LEFT JOIN (SELECT prompt_id, any_value(messages) AS messages, any_value(tools) AS tools "
        f"FROM ({pools}) WHERE prompt_id IN (SELECT prompt_id FROM wanted) GROUP BY prompt_id) q USING (prompt_id)"
    )
    if kind != ANSWERS:
        return f"{joined}, {ends}"
    return (
        f"{joined}, a.text AS answer, {ends} "
        f"LEFT JOIN ({answers}) a ON a.response_id = w.response_id AND a.attempt = w.attempt AND a.shard = w.shard"
    )


def _files(root: Path, pattern: str, columns: str, key: str, proved: bool) -> str:
    """A SELECT over parquet files; of none, no rows."""
    there = sorted(root.glob(pattern))
    if proved:
        there = [path for path in there if _is_whole(path, columns)]
    if not there:
        names = ", ".join(
            f"NULL::{'INTEGER' if name == 'attempt' else 'VARCHAR'} AS {name}" for name in columns.split(", ")
        )
        return f"SELECT {names}, NULL::VARCHAR AS shard WHERE false"
    named = [glob.escape(str(path)) for path in there] if proved else [f"{glob.escape(str(root))}/{pattern}"]
    listed = ", ".join(quoted(name) for name in named)
    files = f"read_parquet([{listed}], filename = true)"
    return f"SELECT {columns}, parse_filename(filename) AS shard FROM {files} WHERE {key} IS NOT NULL"


def _is_whole(path: Path, columns: str) -> bool:
    """Whether every value of these columns can be read."""
    import duckdb

    read = ", ".join(f"max(length({name}::VARCHAR))" for name in columns.split(", "))
    try:
        with duckdb.connect() as connection:
            connection.execute(f"SELECT {read} FROM read_parquet({quoted(glob.escape(str(path)))})").fetchall()
    except duckdb.Error:
        return False
    return True


def _lines(frame: pl.DataFrame, form: str, is_first: bool) -> Iterator[bytes]:
    import polars as pl

    if form == "jsonl":
        yield frame.write_ndjson().encode()
        return
    nested = [
        pl.col(name).cast(pl.List(pl.String)).list.join(", ") for name, kind in frame.schema.items() if kind.is_nested()
    ]
    yield frame.with_columns(nested).write_csv(include_header=is_first).encode()


def _parquet(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    sink = _Sink()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """A file that is only written onwards: what was written is taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._at

    def write(self, data: Any) -> int:
        """Keep it until it is taken."""
        piece = bytes(data)
        self._parts.append(piece)
        self._at += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        """What was written since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
