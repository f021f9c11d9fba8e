"""Which rows a build takes: prefixes of the nested order, by its plan and by its files; and those rows without texts.

A build's files may hold later rounds than its plan, which knows the first; what both take is taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corpus import selection
from corpus.errors import UserError, first_line
from corpus.workspace import Workspace
from draftmill.differing import LABELS, ROW

if TYPE_CHECKING:
    import polars as pl

    from corpus.building import BuildPlan


def taken_by_plan(workspace: Workspace, plan: BuildPlan) -> pl.DataFrame:
    """What a plan and the later rounds of its build take of each group.

    Returns:
        LABELS, prefix (rows, replicas included) and available (prompts of the group).
    """
    import polars as pl

    planned = plan.taken()
    folder = workspace.build(plan.build_id)
    if not any((folder / "rounds").glob("*.parquet")):
        return planned
    return _longest(pl.concat([planned, taken_by_files(folder)]))


def taken_by_files(folder: Path) -> pl.DataFrame:
    """As taken_by_plan, by a build's folder alone.

    Raises:
        UserError: its rounds are gone or damaged.
    """
    import polars as pl

    try:
        rounds = [pl.read_parquet(path, glob=False) for path in sorted((folder / "rounds").glob("*.parquet"))]
        return _longest(pl.concat([frame.select(*LABELS, "prefix", "available") for frame in rounds]))
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:  # nothing to concat is a ValueError
        raise UserError(
            f"{folder / 'rounds'}: cannot be read ({first_line(error)[:200]}). `draftmill build` writes it again."
        ) from error


def light_rows(workspace: Workspace, candidates_id: str, taken: pl.DataFrame) -> pl.DataFrame:
    """The rows that are taken (as building.selected_rows), without texts: ROW, LABELS and turns."""
    import polars as pl

    path = workspace.candidates(candidates_id) / "prompts.parquet"
    light = pl.scan_parquet(path, glob=False).select("prompt_id", *LABELS, "source_rank", "turns")
    return selection.numbered_replicas(light.join(taken.lazy(), on=LABELS, how="inner").collect()).select(
        *ROW, *LABELS, "turns"
    )


def _longest(taken: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    return taken.group_by(LABELS, maintain_order=True).agg(pl.col("prefix", "available").max())
