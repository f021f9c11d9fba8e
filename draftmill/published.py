"""The files of a published build: prompts and answers as parquet shards of bounded size, one schema for all of a kind.

Rows are read and written in batches, so memory does not grow with the build. Shards are cut by rows and bytes. Which
rows a build has is the plan's and the ledger's word; texts and token ids come from the workspace's own files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from corpus.responses import read_rows_at
from corpus.selection import numbered_replicas
from corpus.workspace import Workspace
from generation.plan import LABELS

if TYPE_CHECKING:
    import polars as pl

SHARD_ROWS = 200_000
SHARD_BYTES = 500 << 20
BATCH_ROWS = 5_000
RESPONSE_TEXTS = ["text", "prompt_token_ids", "token_ids"]


def prompt_schema() -> Any:
    """Columns of prompts-*.parquet, an arrow schema."""
    import pyarrow as pa

    text, number = pa.large_string(), pa.int64()
    return pa.schema(
        [
            ("prompt_id", text), ("replica", pa.int32()), ("category", text), ("source", text), ("holdout", pa.bool_()),
            ("messages", text), ("tools", text), ("original", text), ("turns", pa.int32()), ("prompt_chars", number),
            ("prompt_tokens", number), ("dataset", text), ("config", text), ("split", text), ("revision", text),
            ("file", text), ("row_index", number), ("upstream_id", text), ("license", text),
        ]
    )  # fmt: skip


def response_schema() -> Any:
    """Columns of responses-*.parquet, an arrow schema."""
    import pyarrow as pa

    text, number, ids = pa.large_string(), pa.int64(), pa.list_(pa.int32())
    return pa.schema(
        [
            ("response_id", text), ("prompt_id", text), ("replica", pa.int32()), ("turn", pa.int32()),
            ("category", text), ("source", text), ("holdout", pa.bool_()), ("text", text), ("prompt_token_ids", ids),
            ("token_ids", ids), ("finish_reason", text), ("model", text), ("recipe_id", text), ("thinking", pa.bool_()),
            ("prompt_tokens", number), ("response_tokens", number), ("license", text),
            ("imported_from", text),
        ]
    )  # fmt: skip


def write_prompts(folder: Path, candidates: Path, taken: pl.DataFrame, sources: pl.DataFrame) -> int:
    """Write the prompts that a build takes; returns their rows.

    Args:
        candidates: prompts.parquet of the nested order.
        taken: LABELS, prefix (rows of the group, replicas included) and available (its prompts).
        sources: source, dataset, config, split, revision, license.
    """
    return _write_shards(folder, "prompts", prompt_schema(), _prompt_batches(candidates, taken, sources))


def write_responses(folder: Path, workspace: Workspace, answers: pl.DataFrame) -> int:
    """Write accepted answers; returns their rows.

    Args:
        answers: the schema's columns but for RESPONSE_TEXTS, and shard and shard_row, sorted by these.

    Raises:
        UserError: a shard that the ledger names is gone or damaged.
    """
    return _write_shards(folder, "responses", response_schema(), _response_batches(workspace, answers))


def _prompt_batches(candidates: Path, taken: pl.DataFrame, sources: pl.DataFrame) -> Iterator[pl.DataFrame]:
    import polars as pl
    import pyarrow.parquet as pq

    with closing(pq.ParquetFile(candidates)) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            found = pl.DataFrame(batch).join(taken, on=LABELS, how="inner", maintain_order="left")
            yield numbered_replicas(found).join(sources, on="source", how="left", maintain_order="left")


def _response_batches(workspace: Workspace, answers: pl.DataFrame) -> Iterator[pl.DataFrame]:
    for rows in answers.partition_by("shard", maintain_order=True) if answers.height else []:
        places = list(rows.select("shard", "shard_row").iter_rows())
        texts = read_rows_at(workspace.responses, places, RESPONSE_TEXTS)
        yield from rows.join(texts, on=["shard", "shard_row"], how="left", maintain_order="left").iter_slices(
            BATCH_ROWS
        )


def _write_shards(folder: Path, kind: str, schema: Any, batches: Iterable[pl.DataFrame]) -> int:
    """At least one shard, so that a pattern finds a file; returns the rows of all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    total = number = rows = 0
    file: IO[bytes] = _shard(folder, kind, number).open("wb")
    writer = pq.ParquetWriter(file, schema, compression="zstd")
    try:
        for batch in batches:
            if not batch.height:
                continue
            if rows and (rows + batch.height > SHARD_ROWS or file.tell() >= SHARD_BYTES):
                writer.close()
                file.close()
                number, rows = number + 1, 0
                file = _shard(folder, kind, number).open("wb")
                writer = pq.ParquetWriter(file, schema, compression="zstd")
            table: pa.Table = batch.select(schema.names).to_arrow().cast(schema)
            writer.write_table(table)
            rows, total = rows + batch.height, total + batch.height
        writer.close()
    finally:
        file.close()
    return total


def _shard(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}-{number:05d}.parquet"
