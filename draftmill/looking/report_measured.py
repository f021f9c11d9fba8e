"""What was measured of a build's answers: lengths, ends, recipes, runs, states, acceptance. DuckDB counts and bins.

A million answers are a few hundred rows here. Everything is of one build; counts of accepted answers leave its holdout
out, as the view composition does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from corpus.acceptance import interval
from corpus.ledger.writer import Readable
from corpus.naming import published_model
from draftmill.looking.report_facts import Acceptance, Capture, Counted, Drafter, Lengths, Recipe, Run

MOST_LISTED = 1_000
"""Groups of any one kind: what a table could hold by far."""
ACCEPTED = """
FROM build_responses b JOIN accepted_responses r USING (response_id)
WHERE b.build_id = ? AND NOT b.holdout AND b.left_out IS NULL
"""


class Groups:
    """Accepted answers counted in several ways by one pass over them."""

    def __init__(self) -> None:
        self.bins: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        self.recipes: dict[str, int] = {}
        self.finish: tuple[Counted, ...] = ()


def accepted_groups(ledger: Readable, build_id: str) -> Groups:
    """Counts of a build's accepted answers outside its holdout."""
    groups, finish = Groups(), []
    rows = ledger.rows(
        "SELECT grouping(before, after, finish, recipe_id), category, before, after, finish, recipe_id, count(*) FROM ("
        "SELECT b.category, b.recipe_id, floor(2 * log2(greatest(r.prompt_tokens, 1)))::INTEGER AS before, "
        "floor(2 * log2(greatest(r.response_tokens, 1)))::INTEGER AS after, "
        f"coalesce(r.finish_reason, 'not known') AS finish {ACCEPTED}"
        ") GROUP BY GROUPING SETS ((category, before), (category, after), (category, finish), (recipe_id)) "
        "ORDER BY ALL",
        build_id,
    )
    for kind, category, before, after, reason, recipe, count in rows:
        if kind == 0b0111 and before is not None:
            groups.bins[category, "prompt"].append((before, count))
        elif kind == 0b1011 and after is not None:
            groups.bins[category, "response"].append((after, count))
        elif kind == 0b1101:
            finish.append(Counted(category, reason, count))
        elif kind == 0b1110:
            groups.recipes[recipe] = count
    groups.finish = tuple(finish)
    return groups


def read_lengths(ledger: Readable, build_id: str, groups: Groups) -> tuple[Lengths, ...]:
    """Means and percentiles by category, with the bins that were counted."""

    def figures(column: str) -> str:
        return (
            f"count({column}), avg({column}), min({column}), quantile_cont({column}, [0.5, 0.9, 0.99]), max({column})"
        )

    rows = ledger.rows(
        f"SELECT b.category, {figures('r.prompt_tokens')}, {figures('r.response_tokens')} {ACCEPTED} "
        "GROUP BY b.category ORDER BY b.category",
        build_id,
    )
    found = []
    for category, *numbers in rows:
        for kind, (count, mean, least, middle, most) in (("prompt", numbers[:5]), ("response", numbers[5:])):
            if count:
                bins = tuple(groups.bins.get((category, kind), ()))
                p50, p90, p99 = middle
                found.append(Lengths(category, kind, count, mean, least, p50, p90, p99, most, bins))
    return tuple(found)


def read_recipes(ledger: Readable, build_id: str, answers: dict[str, int], base: Path) -> tuple[Recipe, ...]:
    """The recipes that a build's answers are wanted by; `answers` are the accepted ones of each."""
    rows = ledger.rows(
        "SELECT c.recipe_id, coalesce(c.model, i.model, ''), coalesce(c.revision, i.revision), c.dtype, c.thinking, "
        "c.temperature, c.max_tokens, i.name "
        "FROM (SELECT DISTINCT recipe_id FROM build_responses WHERE build_id = ?) b "
        "JOIN recipes c USING (recipe_id) LEFT JOIN imports i ON i.import_id = c.recipe_id ORDER BY ALL",
        build_id,
    )
    return tuple(
        Recipe(
            recipe_id,
            published_model(model, base),
            revision,
            dtype,
            thinking,
            temperature,
            most,
            answers.get(recipe_id, 0),
            imported,
        )
        for recipe_id, model, revision, dtype, thinking, temperature, most, imported in rows
    )


def read_runs(ledger: Readable, build_id: str) -> tuple[Run, ...]:
    """The newest runs of a build."""
    rows = ledger.rows(
        "WITH own AS (SELECT * FROM runs WHERE build_id = ?), told AS ("
        "SELECT run_id, count(*) AS n FROM events SEMI JOIN own USING (run_id) GROUP BY run_id), made AS ("
        "SELECT run_id, count(*) AS n, sum(response_tokens)::BIGINT AS tokens FROM responses "
        "SEMI JOIN own USING (run_id) GROUP BY run_id) "
        "SELECT o.run_id, o.command, o.started_at, o.ended_at, o.outcome, coalesce(t.n, 0), m.n, m.tokens FROM own o "
        "LEFT JOIN told t USING (run_id) LEFT JOIN made m USING (run_id) ORDER BY o.run_id DESC "
        f"LIMIT {MOST_LISTED}",
        build_id,
    )
    return tuple(Run(*row) for row in rows)


def read_drafters(ledger: Readable, build_id: str) -> tuple[Drafter, ...]:
    """Drafters that were trained on a build or measured on it, its own and the newest first."""
    rows = ledger.rows(
        "SELECT d.drafter_id, d.algorithm, d.steps, d.rows, d.created_at, "
        "coalesce(d.build_id = ?, false) FROM drafters d "
        "WHERE d.build_id = ? OR d.drafter_id IN (SELECT drafter_id FROM acceptance WHERE build_id = ?) "
        f"ORDER BY 6 DESC, 5 DESC, 1 LIMIT {MOST_LISTED}",
        *[build_id] * 3,
    )
    return tuple(Drafter(*row) for row in rows)


def read_acceptance(ledger: Readable, build_id: str) -> tuple[Acceptance, ...]:
    """The newest measurements on a build's held-out prompts, by category and pooled."""
    rows = ledger.rows(
        "SELECT v.drafter_id, v.category, v.measured_by, v.acceptance_length, v.low, v.high, v.drafts, v.rows, "
        "v.accepted_tokens, a.sum_drafts_sq, a.sum_accepted_sq, a.sum_cross FROM acceptance_by_category v "
        "JOIN acceptance a USING (drafter_id, build_id, category, measured_by, measured_at) "
        f"WHERE v.build_id = ? ORDER BY 1, 3, 2 LIMIT {MOST_LISTED}",
        build_id,
    )
    found, pooled = [], defaultdict(list)
    for drafter, category, measure, tau, low, high, drafts, count, *sums in rows:
        if tau is not None:
            found.append(Acceptance(drafter, category, measure, tau, low, high, drafts, count))
            pooled[drafter, measure].append((drafts, sums[0], count, *sums[1:]))
    for (drafter, measure), own in pooled.items():
        drafts, accepted, count, *sums = map(_sum, zip(*own, strict=True))
        if drafts and accepted is not None and count is not None:
            sure = interval(drafts, accepted, count, *sums)
            low, high = sure or (None, None)
            found.append(Acceptance(drafter, "", measure, 1 + accepted / drafts, low, high, drafts, count))
    return tuple(found)


def _sum(values: Iterable[int | None]) -> int | None:
    """None if one of them is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def read_captures(ledger: Readable, build_id: str) -> tuple[Capture, ...]:
    """States that were taken of a build's answers."""
    rows = ledger.rows(
        "SELECT c.capture_id, c.layer_ids, c.final_state, c.dtype, c.hidden_size, count(*), sum(h.tokens)::BIGINT "
        "FROM hidden_rows h "
        "SEMI JOIN (SELECT response_id FROM build_responses WHERE build_id = ?) b USING (response_id) "
        "JOIN captures c USING (capture_id) GROUP BY ALL ORDER BY ALL",
        build_id,
    )
    return tuple(
        Capture(capture_id, tuple(layers or ()), final or "", dtype or "", size, count, tokens or 0)
        for capture_id, layers, final, dtype, size, count, tokens in rows
    )
