"""What a build has when a run begins, read once: the ground that a run's live counts stand on.

Shares come from the standings that the final table shows; counts of answers from the plan, which knows what is asked
again; how an answer ended, from the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping

from corpus.ledger.writer import Readable
from generation.judge import FINISHED_BY_LENGTH
from generation.plan import ROW, GenerationPlan
from generation.progress import Baseline, CategoryProgress
from generation.stage import RETRIED_ON_DEMAND
from generation.topup import Standing


def load_baseline(
    plan: GenerationPlan, standings: Mapping[str, Standing], in_tokens: bool, ledger: Readable
) -> Baseline:
    """The baseline of a build.

    Args:
        standings: as the build is now.
        in_tokens: their unit is response tokens, else prompts.
    """
    import polars as pl

    ends = ledger.frame(
        """
        SELECT response_id, coalesce(any_value(r.finish_reason) FILTER (r.state = 'accepted'),
                                     any_value(r.finish_reason) FILTER (r.state = 'rejected')) = ? AS cut,
               coalesce(bool_or(list_contains(?, r.reason)), false) AS failed
        FROM build_responses b JOIN responses r USING (response_id)
        WHERE b.build_id = ? AND r.state IN ('accepted', 'rejected') GROUP BY response_id
        """,
        FINISHED_BY_LENGTH,
        list(RETRIED_ON_DEMAND),
        plan.build_id,
    )
    known = ends.select(pl.col("response_id").cast(pl.String), pl.col("cut", "failed").cast(pl.Boolean))
    accepted = pl.col("state") == "accepted"
    counts = (
        plan.answers.filter(pl.col("state") != "to_make")
        .join(known, on="response_id", how="left")
        .group_by("category")
        .agg(
            accepted=accepted.sum(),
            rejected=(~accepted).sum(),
            truncated=pl.col("cut").sum(),
            failed=(~accepted & pl.col("failed")).sum(),
        )
    )
    by_category = {row.pop("category"): row for row in counts.iter_rows(named=True)}
    categories = {}
    for name in {**standings, **by_category}:
        row, standing = by_category.get(name, {}), standings.get(name)
        ended = {one: int(row.get(one) or 0) for one in ("accepted", "rejected", "truncated")}
        categories[name] = CategoryProgress(
            wanted=ended["accepted"] + ended["rejected"],
            target=standing.target if standing else 0.0,
            got=standing.got if standing else 0.0,
            **ended,
        )
    alone = plan.answers.filter(pl.col("recorded") & accepted & ~pl.col("holdout"))
    begun = alone.select(ROW).unique().join(plan.left.select(ROW), on=ROW, how="semi")
    failed = sum(int(row["failed"] or 0) for row in by_category.values())
    return Baseline(categories, failed, in_tokens, frozenset(begun.iter_rows()))
