"""Response shards: every attempt, accepted or not, with the exact token ids that the engine saw and wrote.

One parquet schema for every shard, its version in the file's metadata. A shard is written whole and then entered;
its rows never change. Reading finds a response by shard and row, as the ledger names them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from corpus.artefacts import Written, write_atomically
from corpus.errors import UserError, first_line

if TYPE_CHECKING:
    import polars as pl

SCHEMA_VERSION = "2"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try at one answer. Times are UTC seconds since 1970."""

    response_id: str
    prompt_id: str
    recipe_id: str
    replica: int
    turn: int
    attempt: int
    state: str
    """accepted or rejected"""
    reason: str | None
    prompt_token_ids: bytes
    """int32, as generation.messages packs them"""
    token_ids: bytes
    text: str
    finish_reason: str | None
    stop_reason: str | None
    seed: int | None
    engine: str | None
    device: str | None
    queued_at: float | None
    started_at: float | None
    first_token_at: float | None
    ended_at: float | None
    run_id: str
    notes: tuple[str, ...] = ()
    """Findings of generation.checks, in its order."""
    reasoning_tokens: int | None = None
    """Tokens of token_ids, from the first on, that are reasoning and its end mark; None where nothing was generated."""
    extends_turn: int | None = None
    """The earlier turn whose prompt and answer, token by token, this prompt begins with."""
    token_logprobs: bytes | None = None
    """float32, one a token."""


TOKENS = ("prompt_token_ids", "token_ids", "token_logprobs")


def response_schema() -> dict[str, Any]:
    """Columns of a response shard."""
    import polars as pl

    numbers = dict.fromkeys(("replica", "turn", "attempt", "reasoning_tokens", "extends_turn"), pl.Int32)
    times = dict.fromkeys(("queued_at", "started_at", "first_token_at", "ended_at"), pl.Float64)
    lists = dict.fromkeys(("prompt_token_ids", "token_ids"), pl.List(pl.Int32))
    special = {**lists, "seed": pl.Int64, "notes": pl.List(pl.String), "token_logprobs": pl.List(pl.Float32)}
    return {name: {**numbers, **times, **special}.get(name, pl.String) for name in Attempt.__struct_fields__}


def write_responses(path: Path, attempts: Sequence[Attempt]) -> Written:
    """Write a shard.

    Raises:
        UserError: the disk is full.
    """
    import polars as pl

    schema = response_schema()
    columns: dict[str, pl.Series] = {}
    for name, kind in schema.items():
        values = [getattr(attempt, name) for attempt in attempts]
        columns[name] = _packed(values, kind) if name in TOKENS else pl.Series(name, values, dtype=kind)
    frame = pl.DataFrame(columns, schema=schema)
    return write_atomically(
        path, lambda to: frame.write_parquet(to, compression_level=3, metadata={"schema_version": SCHEMA_VERSION})
    )


def _packed(values: Sequence[bytes | None], kind: Any) -> pl.Series:
    """Lists of numbers from their bytes, without a Python object a number."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    kinds = {pl.List(pl.Int32): (np.int32, pa.int32()), pl.List(pl.Float32): (np.float32, pa.float32())}
    numpy_kind, arrow_kind = kinds[kind]
    flat = np.frombuffer(b"".join(value for value in values if value), dtype=numpy_kind)
    ends = array("q", [0])
    for value in values:
        ends.append(ends[-1] + len(value or b"") // 4)
    offsets = np.frombuffer(ends, dtype=np.int64)
    missing = np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    mask = pa.array(missing) if missing.any() else None
    lists = pa.LargeListArray.from_arrays(offsets, pa.array(flat, type=arrow_kind), mask=mask)
    series = pl.from_arrow(lists)
    assert isinstance(series, pl.Series)
    return series.cast(kind)


def read_rows_at(folder: Path, places: Sequence[tuple[str, int]], columns: Sequence[str]) -> pl.DataFrame:
    """Rows of shards by (shard, row), with columns shard and shard_row; shard by shard, in no other order.

    Raises:
        UserError: a shard that the ledger names is gone or damaged.
    """
    import polars as pl

    frames = list(each_shard(folder, places, columns))
    if frames:
        return pl.concat(frames)
    schema = {name: kind for name, kind in response_schema().items() if name in columns}
    return pl.DataFrame(schema={**schema, "shard": pl.String, "shard_row": pl.Int64})


def packed_tokens(frame: pl.DataFrame) -> tuple[Any, Any, Any]:
    """Token ids of rows with prompt_token_ids and token_ids; a row without them has none.

    Returns:
        All ids as little-endian int32, of each row its prompt's and then its answer's; how many each row has; how
        many of them are the prompt's.
    """
    import numpy as np
    import polars as pl

    no_ids = pl.lit([], dtype=pl.List(pl.Int32))
    lists = [pl.col(name).fill_null(no_ids) for name in ("prompt_token_ids", "token_ids")]
    both = frame.select(prompts=lists[0].list.len(), tokens=pl.concat_list(lists))
    flat = both["tokens"].explode(empty_as_null=False).to_numpy().astype("<i4", copy=False)
    return flat, both["tokens"].list.len().to_numpy().astype(np.int64), both["prompts"].to_numpy().astype(np.int64)


def used_token_ids(folder: Path, places: Sequence[tuple[str, int]]) -> set[int]:
    """Every token id that occurs in these rows, prompts and answers.

    Raises:
        UserError: as read_rows_at.
    """
    import numpy as np

    used: set[int] = set()
    for frame in each_shard(folder, places, ["prompt_token_ids", "token_ids"]):
        used.update(np.unique(packed_tokens(frame)[0]).tolist())
    return used


def each_shard(folder: Path, places: Sequence[tuple[str, int]], columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The same, one shard after another."""
    import polars as pl

    by_shard: dict[str, list[int]] = {}
    for shard, row in places:
        by_shard.setdefault(shard, []).append(row)
    for shard, rows in sorted(by_shard.items()):
        index = pl.Series("shard_row", sorted(rows), dtype=pl.Int64)
        yield read_shard(folder, shard, columns)[index].with_columns(shard=pl.lit(shard), shard_row=index)


def read_shard(folder: Path, shard: str, columns: Sequence[str]) -> pl.DataFrame:
    """All rows of one shard, in its order.

    Raises:
        UserError: it is gone or damaged.
    """
    import polars as pl

    try:
        return pl.read_parquet(folder / shard, columns=list(columns), glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        first = first_line(error)
        raise UserError(
            f"{folder / shard}: the ledger names this shard and it cannot be read ({first}). Put it back, or run "
            "`draftmill ledger rebuild`: its answers are then made again."
        ) from error
