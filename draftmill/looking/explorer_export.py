"""The rows that filters leave, as a file that is sent while it is made: csv, jsonl or parquet.

Answers have the columns of the view `provenance`, prompts and dropped rows those of their tables; with texts,
`messages`, `tools` (JSON) and `answer` follow, read from the workspace's files. Memory holds one batch; what DuckDB
joins beyond its limit it spills to disk.
"""

from __future__ import annotations

import glob
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from draftmill.looking.explorer_rows import ANSWERS, DROPPED, PROMPTS
from draftmill.looking.filters import Filters, condition

if TYPE_CHECKING:
    import polars as pl

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
    SELECT b.response_id FROM build_responses b JOIN {table} l ON l.place = b.rowid WHERE {where})""",
    PROMPTS: """
SELECT s.*, p.turns, p.prompt_chars, p.prompt_tokens, p.pool_id, p.chunk, p.file, p.row_index, p.upstream_id
FROM selections s JOIN {table} l ON l.place = s.rowid LEFT JOIN prompts p ON p.rowid = l.tried WHERE {where}""",
    DROPPED: """
SELECT l.source, s.pool_id, s.chunk, s.file, s.row_index, s.upstream_id, s.prompt_id, s.reason, s.detail,
       NULL AS winner_prompt_id, NULL AS winner_source, NULL AS similarity, NULL AS eval_set, NULL AS eval_item
FROM source_rows s JOIN {table} l ON l.place = s.rowid AND l.tried = 1 WHERE {where}
UNION ALL BY NAME
SELECT d.source, d.pool_id, d.chunk, d.file, d.row_index, d.upstream_id, d.prompt_id, d.reason, d.detail,
       d.winner_prompt_id, d.winner_source, d.similarity, d.eval_set, d.eval_item
FROM drops d JOIN {table} l ON l.place = d.rowid AND l.tried = 2 WHERE {where}""",
}


def exported(snapshot: Snapshot, kind: str, build_id: str, filters: Filters, form: str, texts: bool) -> Iterator[bytes]:
    """The file, piece by piece."""
    import polars as pl

    sql, values = export_sql(snapshot, kind, build_id, filters, texts)
    with snapshot.cursor() as cursor:
        reader = cursor.sql(sql, params=values).to_arrow_reader(BATCH_ROWS)
        if form == "parquet":
            yield from _parquet(reader)
            return
        is_first = True
        for batch in reader:
            yield from _lines(pl.DataFrame(batch), form, is_first)
            is_first = False
        if is_first:
            yield from _lines(pl.DataFrame(reader.schema.empty_table()), form, True)


def export_sql(
    snapshot: Snapshot, kind: str, build_id: str, filters: Filters, texts: bool
) -> tuple[str, dict[str, Any]]:
    """The question, and its parameters by name."""
    where, given = condition(filters)
    values: dict[str, Any] = {"build": build_id} if kind == ANSWERS else {}
    for place, value in enumerate(given):
        where = where.replace("?", f"$f{place}", 1)
        values[f"f{place}"] = value
    # the list's names for columns that tables have too
    rows = ROWS[kind].format(table=f"(SELECT * FROM {snapshot.list_of(kind, build_id)} WHERE {where})", where="true")
    return (_with_texts(snapshot, kind, rows) if texts else rows), values


def _with_texts(snapshot: Snapshot, kind: str, rows: str) -> str:
    root = snapshot.workspace.root.resolve()
    pools = _files(root, "pools/*/*.parquet", "prompt_id, messages, tools", "prompt_id")
    answers = _files(root, "responses/*.parquet", "response_id, attempt, text", "response_id")
    joined = f"WITH wanted AS ({rows}) SELECT w.*, q.messages, q.tools"
    ends = (
        "FROM wanted w LEFT JOIN (SELECT prompt_id, any_value(messages) AS messages, any_value(tools) AS tools "
        f"FROM ({pools}) WHERE prompt_id IN (SELECT prompt_id FROM wanted) GROUP BY prompt_id) q USING (prompt_id)"
    )
    if kind != ANSWERS:
        return f"{joined} {ends}"
    return (
        f"{joined}, a.text AS answer {ends} "
        f"LEFT JOIN ({answers}) a ON a.response_id = w.response_id AND a.attempt = w.attempt AND a.shard = w.shard"
    )


def _files(root: Any, pattern: str, columns: str, key: str) -> str:
    """A SELECT over parquet files; of none, no rows."""
    if not any(root.glob(pattern)):
        names = ", ".join(
            f"NULL::{'INTEGER' if name == 'attempt' else 'VARCHAR'} AS {name}" for name in columns.split(", ")
        )
        return f"SELECT {names}, NULL::VARCHAR AS shard WHERE false"
    path = f"{glob.escape(str(root))}/{pattern}".replace("'", "''")
    files = f"read_parquet('{path}', filename = true)"
    return f"SELECT {columns}, parse_filename(filename) AS shard FROM {files} WHERE {key} IS NOT NULL"


def _lines(frame: pl.DataFrame, form: str, is_first: bool) -> Iterator[bytes]:
    import polars as pl

    if form == "jsonl":
        yield frame.write_ndjson().encode()
        return
    nested = [
        pl.col(name).cast(pl.List(pl.String)).list.join(", ") for name, kind in frame.schema.items() if kind.is_nested()
    ]
    yield frame.with_columns(nested).write_csv(include_header=is_first).encode()


def _parquet(reader: Any) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    sink = _Sink()
    with pq.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
        for batch in reader:
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
