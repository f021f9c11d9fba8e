"""What a build takes of each group of the nested order: one file a round, the last of which is in force.

Round 0 is the build's own plan. A later one replaces what was rejected by the next prompts of the order (longer
prefixes), or leaves out a surplus (shorter ones), so that shares hold among what was accepted. A prefix counts rows,
replicas included: row i of a group of n prompts is its prompt i % n for the time i // n.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corpus.artefacts import write_atomically
from corpus.errors import UserError, first_line
from corpus.selection import GROUP, numbered_replicas

if TYPE_CHECKING:
    import polars as pl

    from corpus.selection import GroupKey


def round_files(folder: Path) -> list[Path]:
    """The rounds of a build's folder, in their order."""
    named = [path for path in (folder / "rounds").glob("*.parquet") if path.stem.isdecimal()]
    return sorted(named, key=lambda path: int(path.stem))


def prefixes_of(taken: pl.DataFrame) -> dict[GroupKey, int]:
    """Rows that are taken of each group of which any is.

    Args:
        taken: GROUP and prefix.
    """
    rows = taken.select(*GROUP, "prefix").iter_rows()
    return {(category, source, holdout): prefix for category, source, holdout, prefix in rows if prefix}


def last_round(folder: Path) -> pl.DataFrame | None:
    """GROUP, prefix and available as the last round has them; None before the first.

    Raises:
        UserError: it cannot be read.
    """
    import polars as pl

    files = round_files(folder)
    if not files:
        return None
    try:
        return pl.read_parquet(files[-1], glob=False).select(*GROUP, "prefix", "available")
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"{files[-1]}: cannot be read ({first_line(error)[:200]}). Remove it, and `draftmill generate` makes it "
            "again."
        ) from error


def write_round(folder: Path, taken: pl.DataFrame, number: int | None = None) -> int:
    """Write a round behind those that are there, or the one of this number; returns its number.

    Args:
        taken: GROUP, prefix and available.
    """
    import polars as pl

    if number is None:
        files = round_files(folder)
        number = int(files[-1].stem) + 1 if files else 0
    frame = taken.with_columns(round=pl.lit(number, pl.Int32))
    write_atomically(folder / "rounds" / f"{number}.parquet", frame.write_parquet)
    return number


def taken_rows(path: Path, taken: pl.DataFrame, columns: list[str] | None = None) -> pl.DataFrame:
    """The rows of prompts.parquet that are taken, once for each replica: its columns, replica and row.

    Args:
        path: candidates/<id>/prompts.parquet.
        taken: GROUP, prefix and available.
        columns: the columns to read beside GROUP; default all.

    Returns:
        in the file's order; row is the place in the file.
    """
    import polars as pl

    scan = pl.scan_parquet(path, glob=False)
    if columns is not None:
        scan = scan.select(*dict.fromkeys((*columns, *GROUP, "source_rank")))
    rows = (
        scan.with_row_index("row")
        .join(taken.lazy(), on=list(GROUP), how="inner", maintain_order="left")
        .filter(pl.col("source_rank") < pl.col("prefix"))
        .collect()
    )
    return numbered_replicas(rows).drop("prefix", "available")
