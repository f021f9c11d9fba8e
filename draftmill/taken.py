"""Which rows a build takes, by its files: prefixes of the nested order, and those rows without texts.

The last round of a build is in force; its plan knows the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corpus.errors import UserError
from corpus.records import RECORDED_MARK
from corpus.rounds import last_round, taken_rows
from corpus.workspace import Workspace
from generation.plan import LABELS, ROW

if TYPE_CHECKING:
    import polars as pl


def taken_by_files(folder: Path) -> pl.DataFrame:
    """What the last round of a build takes (as building.taken_groups), by its folder alone.

    Raises:
        UserError: its rounds are gone or damaged.
    """
    last = last_round(folder)
    if last is None:
        raise UserError(f"{folder / 'rounds'}: is gone. `draftmill build` writes it again.")
    return last


def light_rows(workspace: Workspace, candidates_id: str, taken: pl.DataFrame) -> pl.DataFrame:
    """The rows that are taken (as building.selected_rows), without texts: ROW, LABELS, turns and recorded."""
    import polars as pl

    path = workspace.candidates(candidates_id) / "prompts.parquet"
    rows = taken_rows(path, taken, ["prompt_id", "turns"])
    several = pl.scan_parquet(path, glob=False).with_row_index("row").filter(pl.col("turns") > 1)
    recorded = several.filter(pl.col("messages").str.contains(RECORDED_MARK, literal=True)).select("row").collect()
    # of a prompt with one turn it does not matter
    known = rows.with_columns(recorded=pl.col("row").is_in(recorded["row"].implode()))
    return known.select(*ROW, *LABELS, "turns", "recorded")
