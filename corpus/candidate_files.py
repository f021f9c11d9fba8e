"""The files of candidates/<id>/: the nested order with its texts, the drops, and the description of both.

Both are checked by digest when they are used again; what is damaged is made again, and is the same. Texts are gathered
source by source when they are written, so they are never held all at once.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.artefacts import Written, read_description, write_atomically, write_description
from corpus.pools import Pool, read_chunk
from corpus.sources import FileDigests
from corpus.workspace import Workspace

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("draftmill")

SCHEMA_VERSION = 2
TEXT_COLUMNS = ["messages", "tools", "original"]
ROW_GROUP_ROWS = 50_000
CANDIDATE_FILES = ("prompts.parquet", "drops.parquet")


def prompt_schema() -> dict[str, Any]:
    """Columns of prompts.parquet, the same for every source."""
    import polars as pl

    return {
        "prompt_id": pl.String,
        "messages": pl.String,
        "tools": pl.String,
        "original": pl.String,
        "category": pl.String,
        "source": pl.String,
        "holdout": pl.Boolean,
        "source_rank": pl.Int64,
        "turns": pl.Int32,
        "prompt_chars": pl.Int64,
        "prompt_tokens": pl.Int64,
        "pool_id": pl.String,
        "chunk": pl.Int32,
        "file": pl.String,
        "row_index": pl.Int64,
        "upstream_id": pl.String,
    }


def drop_schema() -> dict[str, Any]:
    """Columns of drops.parquet."""
    import polars as pl

    return {
        "source": pl.String,
        "pool_id": pl.String,
        "chunk": pl.Int32,
        "file": pl.String,
        "row_index": pl.Int64,
        "upstream_id": pl.String,
        "prompt_id": pl.String,
        "reason": pl.String,
        "detail": pl.String,
        "winner_prompt_id": pl.String,
        "winner_source": pl.String,
        "similarity": pl.Float64,
        "eval_set": pl.String,
        "eval_item": pl.String,
        "overlap": pl.String,
    }


def padded(rows: pl.DataFrame, schema: dict[str, Any]) -> pl.DataFrame:
    """Rows with the columns of a schema; those that they have not are null."""
    import polars as pl

    have = set(rows.columns)
    return rows.select(
        [pl.col(name) if name in have else pl.lit(None, kind).alias(name) for name, kind in schema.items()]
    )


def write_candidates(
    folder: Path,
    candidates_id: str,
    keys: list[dict[str, Any]],
    workspace: Workspace,
    pools: list[Pool],
    selected: tuple[pl.DataFrame, pl.DataFrame],
    digests: FileDigests,
) -> dict[str, Any]:
    """Write both files and what describes them; returns that.

    Args:
        selected: kept rows in nested order and dropped rows, without texts.
    """
    kept, drops = selected
    metadata = {"schema_version": str(SCHEMA_VERSION)}
    written = {
        "prompts.parquet": write_atomically(
            folder / "prompts.parquet", lambda to: _write_prompts(to, workspace, pools, kept, metadata)
        ),
        "drops.parquet": write_atomically(
            folder / "drops.parquet", lambda to: drops.write_parquet(to, compression_level=1, metadata=metadata)
        ),
    }
    marks = {name: _remembered(one, digests) for name, one in written.items()}
    groups = kept.group_by("category", "source", "holdout").len().sort("category", "source", "holdout")
    body = {
        "schema_version": SCHEMA_VERSION,
        "candidates_id": candidates_id,
        "pools": keys,
        "rows": kept.height,
        "counts": [list(row) for row in groups.iter_rows()],
        "dropped": _by_source(drops),
        "files": marks,
    }
    write_description(folder / "candidates.json", body)
    return body


def _by_source(drops: pl.DataFrame) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for source, reason, rows in drops.group_by("source", "reason").len().sort("source", "reason").iter_rows():
        counts.setdefault(source, {})[reason] = rows
    return counts


def _remembered(written: Written, digests: FileDigests) -> str:
    digests.remember(written.path, written.sha256)
    return written.sha256


def _write_prompts(
    path: Path, workspace: Workspace, pools: list[Pool], kept: pl.DataFrame, metadata: dict[str, str]
) -> None:
    """Write the nested order with its texts, source by source."""
    import polars as pl
    import pyarrow.parquet as pq

    schema = pl.DataFrame(schema=prompt_schema()).to_arrow().schema.with_metadata(metadata)
    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd", compression_level=1) as writer:
        for pool in sorted(pools, key=lambda pool: pool.source.name):
            rows = kept.filter(pl.col("source") == pool.source.name)
            if rows.height:
                table = _with_texts(workspace, pool, rows).select(list(prompt_schema())).to_arrow()
                writer.write_table(table.cast(schema), row_group_size=ROW_GROUP_ROWS)


def _with_texts(workspace: Workspace, pool: Pool, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of one source with their texts, in the order in which they come."""
    import polars as pl

    places, parts = [], []
    for chunk, where in rows.with_row_index("place").group_by("chunk"):
        parts.append(read_chunk(workspace, pool, int(chunk[0]), TEXT_COLUMNS)[where["at"]])
        places.append(where["place"])
    if not parts:
        return rows.with_columns([pl.lit(None, pl.String).alias(name) for name in TEXT_COLUMNS])
    texts = pl.concat(parts).with_columns(pl.concat(places)).sort("place").drop("place")
    return rows.hstack(texts)


def known_candidates(folder: Path, candidates_id: str, digests: FileDigests) -> dict[str, Any] | None:
    """What candidates.json says if these candidates are there, whole; what is damaged is made again, the same."""
    try:
        body = read_description(folder / "candidates.json")
        files = body["files"]
        whole = (
            body["candidates_id"] == candidates_id
            and all(len(row) == 4 for row in body["counts"])
            and all(isinstance(reasons, dict) for reasons in body["dropped"].values())
            and all(digests.is_whole(folder / name, files[name]) for name in CANDIDATE_FILES)
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        log.warning("%s is damaged or of an older draftmill; it is made again", folder)
    return body if whole else None
