"""Shares are promises about what is accepted: how a build stands, and the rounds that bring it there.

Asks the ledger how many prompts of each category are accepted, decides with generation.topup, writes a round, plans
the build again and gives the run what that adds. At the end it says target, asked and accepted of each category.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corpus import building
from corpus.building import BuildPlan
from corpus.columns import table
from corpus.errors import UserError
from corpus.ledger.writer import LedgerWriter
from corpus.manifest import Manifest
from corpus.rounds import prefixes_of
from corpus.selection import GroupKey, split_quota
from corpus.target import ResolvedTarget
from generation.baseline import load_baseline
from generation.feed import conversations_of
from generation.plan import EARLIER_TURN_REJECTED, LABELS, ROW, GenerationPlan
from generation.progress import Baseline
from generation.rejections import rejection_line
from generation.stage import commit_plan, load_plan, load_prompts
from generation.topup import (
    Standing,
    rescaled,
    shortest_quota,
    still_short,
    surplus,
    top_ups,
)

if TYPE_CHECKING:
    import polars as pl


@dataclass
class Shares:
    """One build's shares while it is generated."""

    manifest: Manifest
    target: ResolvedTarget
    build: BuildPlan
    plan: GenerationPlan
    ledger: LedgerWriter
    retry_rejected: bool = False

    def top_up(self) -> pl.DataFrame | None:
        """What is asked beside, as conversations; None if the build needs no more, or has no more.

        Call it when all that came back is in the ledger.
        """
        more = top_ups(self.standings(), self.manifest.mix.tolerance)
        if not more:
            return None
        taken = self._prefixes()
        for category, prompts in more.items():
            taken |= self._longer(taken, category, prompts)
        self._commit(taken)
        known = self.plan.answers.select("response_id")
        rows = load_prompts(self.build, self.ledger)
        # what is in flight has no end in the ledger yet, and is asked already
        added = self._planned(rows).left.join(known, on="response_id", how="anti", maintain_order="left")
        return conversations_of(added, rows) if added.height else self.top_up()

    def judge(self) -> None:
        """Write what came of the answers that were asked: what other builds accept later does not enter this one."""
        self.retry_rejected = False  # it was asked again
        self._planned(load_prompts(self.build, self.ledger))

    def settle(self) -> list[str]:
        """Leave out what is too much, once nothing more is to be asked; returns what a person should know.

        Raises:
            UserError: a category is short for good, and shortage is fail or repeat.
        """
        standings = self.standings()
        short = still_short(standings, self.manifest.mix.tolerance)
        if short:
            raise UserError("\n  ".join([self._short_line(short), *self.lines()]))
        notes = []
        declared = sum(one.target for one in self._declared().values())
        whole = sum(one.target for one in standings.values())
        if whole < declared:
            unit = _unit(self.manifest)
            notes.append(f"total rescaled from {declared:,.0f} to {whole:,.0f} {unit}: a category has no more to give")
        too_much = surplus(standings, self.manifest.mix.tolerance)
        if too_much:
            taken = self._prefixes()
            brings = self._brings()
            for category, wanted in too_much.items():
                taken |= self._shorter(taken, category, wanted, brings)
                notes.append(f"{category}: a surplus is left out of the build; its answers stay in the ledger")
            self._commit(taken)
            self._planned(load_prompts(self.build, self.ledger))
        return notes

    def standings(self) -> dict[str, Standing]:
        """How each category stands, the holdout left out; with shortage: rescale by what can be reached."""
        declared = self._declared()
        return rescaled(declared) if self.manifest.mix.shortage == "rescale" else declared

    def _declared(self) -> dict[str, Standing]:
        mix = self.manifest.mix
        rows = self.ledger.rows(
            """
            WITH ended AS (
                SELECT response_id, bool_or(state = 'accepted') AS accepted,
                       sum(response_tokens) FILTER (state = 'accepted') AS tokens
                FROM responses WHERE state IN ('accepted', 'rejected') GROUP BY response_id
            ), prompts AS (
                SELECT b.category, coalesce(bool_or(e.accepted AND b.left_out IS NULL), false) AS accepted,
                       bool_or(e.response_id IS NULL AND b.left_out IS NULL) AS pending,
                       coalesce(sum(e.tokens) FILTER (b.left_out IS NULL), 0) AS tokens
                FROM build_responses b LEFT JOIN ended e USING (response_id)
                WHERE b.build_id = ? AND NOT b.holdout GROUP BY b.category, b.prompt_id, b.replica
            )
            SELECT category, count(*), count(*) FILTER (accepted), count(*) FILTER (pending AND NOT accepted),
                   sum(tokens) FILTER (accepted)
            FROM prompts GROUP BY category
            """,
            self.build.build_id,
        )
        found = {category: counts for category, *counts in rows}
        repeats = mix.max_repeats if mix.shortage == "repeat" else 1
        standings = {}
        for category, wanted in self.build.quotas.rows.items():
            asked, accepted, pending, tokens = found.get(category, (0, 0, 0, 0))
            in_tokens = mix.unit == "response_tokens"
            mean = mix.mean_response_tokens.get(category, 1.0)
            standings[category] = Standing(
                target=wanted * mean,
                asked=asked,
                accepted=accepted,
                pending=pending,
                got=float(tokens or 0) if in_tokens else float(accepted),
                room=max(self.build.available[category] * repeats - asked, 0),
                planned_mean=mean,
            )
        return standings

    def baseline(self) -> Baseline:
        """What the build has now, for a run that begins."""
        in_tokens = self.manifest.mix.unit == "response_tokens"
        return load_baseline(self.plan, self.standings(), in_tokens, self.ledger)

    def lines(self) -> list[str]:
        """Target, asked and accepted of each category, for a person."""
        standings = self.standings()
        tokens = self.manifest.mix.unit == "response_tokens"
        got, whole = sum(one.got for one in standings.values()), sum(one.target for one in standings.values())
        header = ["", "target", "asked", "accepted", *(["tokens"] if tokens else []), "share", "declared"]
        body = [
            [
                name, f"{one.target:,.0f}", f"{one.asked:,}", f"{one.accepted:,}",
                *([f"{one.got:,.0f}"] if tokens else []),
                f"{one.got / got:.1%}" if got else "-", f"{one.target / whole:.1%}" if whole else "-",
            ]
            for name, one in sorted(standings.items(), key=lambda item: -item[1].target)
        ]  # fmt: skip
        return table(header, body)

    def _short_line(self, short: dict[str, float]) -> str:
        what = ", ".join(f"{name} {missing:,.0f}" for name, missing in short.items())
        why = self.losses(short)
        cures = "".join(f"{line}. " for line in why)
        return (
            f"{self.manifest.name}: the accepted answers miss their shares by more than mix.tolerance, and the "
            f"candidates have no more: {what} {_unit(self.manifest)} short. All answers are kept. {cures}"
            f"{'Or add' if why else 'Add'} a source, set mix.reserve or mix.shortage: rescale, or raise mix.tolerance, "
            "and run the same command again."
        )

    def losses(self, categories: Iterable[str]) -> list[str]:
        """Of each category that lost answers: how many, mainly why, and what cures that."""
        rows = self.ledger.rows(
            """
            WITH ended AS (
                SELECT response_id, bool_or(state = 'accepted') AS accepted,
                       max_by(reason, (shard, shard_row)) FILTER (state = 'rejected') AS reason
                FROM responses WHERE state IN ('accepted', 'rejected') GROUP BY response_id
            )
            SELECT b.category, CASE WHEN e.accepted THEN b.left_out ELSE e.reason END AS reason, count(*)
            FROM build_responses b JOIN ended e USING (response_id)
            WHERE b.build_id = ? AND NOT b.holdout GROUP BY ALL
            """,
            self.build.build_id,
        )
        lost = []
        for name in categories:
            ended = {reason: n for category, reason, n in rows if category == name and reason != EARLIER_TURN_REJECTED}
            reasons = {reason: n for reason, n in ended.items() if reason is not None}
            if reasons:
                lost.append(rejection_line(self.manifest, name, reasons, sum(ended.values())))
        return lost

    def _planned(self, rows: pl.DataFrame) -> GenerationPlan:
        self.plan = load_plan(
            self.manifest, self.target, self.build.build_id, rows, self.ledger, limit=None,
            retry_rejected=self.retry_rejected,
        )  # fmt: skip
        commit_plan(self.plan, self.ledger)
        return self.plan

    def _commit(self, taken: dict[GroupKey, int]) -> None:
        building.commit_round(self.build, taken, self.ledger)

    def _prefixes(self) -> dict[GroupKey, int]:
        return prefixes_of(building.taken_groups(self.ledger.workspace, self.build))

    def _available(self, category: str) -> dict[str, int]:
        return {s: n for (c, s, holdout), n in self.build.counts.items() if c == category and not holdout}

    def _longer(self, taken: dict[GroupKey, int], category: str, prompts: int) -> dict[GroupKey, int]:
        """A category's prefixes with so many rows more."""
        quota = prompts + sum(n for (c, _, holdout), n in taken.items() if c == category and not holdout)
        return self._split(category, quota)

    def _split(self, category: str, quota: int) -> dict[GroupKey, int]:
        rows = split_quota(quota, self._available(category), self.build.weights)
        return {(category, source, False): rows.get(source, 0) for source in self._available(category)}

    def _shorter(
        self, taken: dict[GroupKey, int], category: str, wanted: float, brings: pl.DataFrame
    ) -> dict[GroupKey, int]:
        """A category's prefixes cut to the shortest that bring what is wanted."""
        import numpy as np

        of = brings.filter(brings["category"] == category)
        by_source = {}
        for (c, source, holdout), rows in taken.items():
            if c == category and not holdout:
                own = of.filter(of["source"] == source)
                amounts = np.zeros(rows)
                np.add.at(amounts, own["place"].to_numpy(), own["amount"].to_numpy())
                by_source[source] = amounts
        quota = shortest_quota(by_source, self.build.weights, self._available(category), wanted)
        return self._split(category, quota)

    def _brings(self) -> pl.DataFrame:
        """category, source, place (among the rows of its group) and amount of each accepted prompt."""
        import polars as pl

        rows = building.selected_rows(self.ledger.workspace, self.build, ["prompt_id"])
        rows = rows.filter(~pl.col("holdout"))
        groups = building.taken_groups(self.ledger.workspace, self.build).select(*LABELS, "available")
        placed = rows.join(groups, on=LABELS).with_columns(
            place=pl.col("source_rank") + pl.col("replica").cast(pl.Int64) * pl.col("available")
        )
        amount = "sum(r.response_tokens)" if self.manifest.mix.unit == "response_tokens" else "1"
        accepted = self.ledger.frame(
            f"SELECT b.prompt_id, b.replica, {amount}::DOUBLE AS amount FROM build_responses b "
            "JOIN accepted_responses r USING (response_id) WHERE b.build_id = ? AND b.left_out IS NULL "
            "GROUP BY b.prompt_id, b.replica",
            self.build.build_id,
        )
        joined = placed.join(accepted, on=ROW)
        return joined.select("category", "source", "place", "amount")


def _unit(manifest: Manifest) -> str:
    return "response tokens" if manifest.mix.unit == "response_tokens" else "prompts"
