"""The facts of one build, read from the ledger: every count is DuckDB's.

Reads what is published, or through the writer what is committed; writes nothing. Names of this machine's folders are
cut to what tells them apart (corpus.naming). The files of the build are asked for its manifest alone; where they are
damaged, the report says less and does not fail.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corpus.errors import UserError
from corpus.ledger.writer import Readable
from corpus.locked import pinned_lock
from corpus.naming import changed_keys, is_on_hub, published_lock, published_path
from draftmill.looking.composition import NO_NAME
from draftmill.looking.report_changes import changes_since
from draftmill.looking.report_facts import Build, Changes, Counted, Facts, Part, Recipe, SameRows, Source
from draftmill.looking.report_measured import (
    MOST_LISTED,
    accepted_groups,
    read_acceptance,
    read_captures,
    read_drafters,
    read_lengths,
    read_recipes,
    read_runs,
)
from draftmill.looking.report_rates import read_rates
from draftmill.version import installed_version

LOCK = "manifest.lock.yaml"
BUILD = """
SELECT b.build_id, b.candidates_id, b.name, b.seed, b.unit, b.total, b.selected, b.held_out, b.shortage, b.tolerance,
       b.created_at, i.import_id IS NOT NULL
FROM builds b LEFT JOIN imports i ON i.import_id = b.build_id
"""


def read_facts(
    ledger: Readable, build_id: str, *, published_at: datetime | None, base: Path, writing: str | None = None
) -> Facts:
    """What the ledger says of a build.

    Args:
        published_at: when the snapshot that `ledger` reads was published; None for the writer's own.
        base: the manifest's relative paths start here.
        writing: who writes there meanwhile.

    Raises:
        UserError: the ledger has no such build, or cannot be read.
    """
    build = _build(ledger, build_id)
    groups = accepted_groups(ledger, build_id)
    runs = read_runs(ledger, build_id)
    drafters = read_drafters(ledger, build_id)
    recipes = read_recipes(ledger, build_id, groups.recipes, base)
    targets = ledger.rows("SELECT category, share, response_tokens FROM build_targets WHERE build_id = ?", build_id)
    by_source, composition = _composition(ledger, build_id)
    return Facts(
        build=build,
        made_at=datetime.now(UTC),
        published_at=published_at,
        writing=writing,
        version=installed_version(),
        shares={_category(name): share or 0.0 for name, share, _ in targets},
        target_tokens={_category(name): tokens for name, _, tokens in targets if tokens is not None},
        composition=composition,
        funnel=_funnel(ledger, build_id),
        sources=_sources(ledger, build_id, by_source),
        lengths=read_lengths(ledger, build_id, groups),
        finish=groups.finish,
        unfinished=_counted(
            ledger,
            "SELECT category, why, count(*) FROM unfinished WHERE build_id = ? GROUP BY ALL ORDER BY 3 DESC, 1, 2",
            build_id,
        ),
        attempts=_counted(
            ledger,
            "SELECT '', coalesce(r.reason, 'not stated'), count(*) FROM responses r SEMI JOIN "
            "(SELECT response_id FROM build_responses WHERE build_id = ?) b USING (response_id) "
            "WHERE r.state = 'rejected' GROUP BY ALL ORDER BY 3 DESC, 1, 2",
            build_id,
        ),
        set_aside=_counted(
            ledger,
            "SELECT h.capture_id, coalesce(h.reason, 'not stated'), count(*) FROM hidden_failures h SEMI JOIN "
            "(SELECT response_id FROM build_responses WHERE build_id = ?) b USING (response_id) "
            "GROUP BY ALL ORDER BY 3 DESC, 1, 2",
            build_id,
        ),
        labels=_labels(ledger, build),
        shared=_shared(ledger, build),
        recipes=recipes,
        runs=runs,
        events=_counted(
            ledger,
            "SELECT r.command, e.kind, count(*) FROM events e JOIN runs r USING (run_id) WHERE r.build_id = ? "
            "GROUP BY ALL ORDER BY 1, 3 DESC, 2",
            build_id,
        ),
        rates=read_rates(ledger, build_id),
        drafters=drafters,
        acceptance=read_acceptance(ledger, build_id),
        captures=read_captures(ledger, build_id),
        changes=None if build.imported else _changes(ledger, build),
        **_lock(ledger.workspace.build(build_id), recipes, base),
    )


def _build(ledger: Readable, build_id: str) -> Build:
    found = ledger.rows(f"{BUILD} WHERE b.build_id = ?", build_id)
    if not found:
        raise UserError(
            f"{ledger.workspace.root}: build {build_id} is not in its ledger. Run `draftmill build`, or `draftmill "
            "ledger rebuild` if its folder is there."
        )
    return _as_build(found[0])


def _as_build(row: Sequence[Any]) -> Build:
    build_id, candidates_id, name, seed, unit, total, selected, held_out, shortage, tolerance, created_at, imported = (
        row
    )
    return Build(
        build_id, candidates_id or "", name or "", seed, unit or "", total or 0, selected or 0, held_out or 0,
        shortage or "", tolerance, created_at, bool(imported),
    )  # fmt: skip


def _counted(ledger: Readable, sql: str, *values: Any) -> tuple[Counted, ...]:
    rows = ledger.rows(f"{sql} LIMIT {MOST_LISTED}", *values)
    return tuple(Counted(str(name or ""), str(reason or ""), int(count)) for name, reason, count in rows)


def _composition(ledger: Readable, build_id: str) -> tuple[dict[tuple[str, str], tuple[int, int]], tuple[Part, ...]]:
    """((source, stage) to rows and response tokens; by category and stage)."""
    rows = ledger.rows(
        "SELECT stage, category, source, prompts, rows, prompt_tokens, response_tokens FROM composition "
        "WHERE build_id = ?",
        build_id,
    )
    sums: dict[tuple[str, str], list[int | None]] = defaultdict(lambda: [0, 0, None, None])
    by_source: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for stage, category, source, *numbers in rows:
        held = sums[stage, _category(category)]
        for i, number in enumerate(numbers):
            if number is not None:
                held[i] = (held[i] or 0) + number
        if source is not None:
            count, tokens = by_source[source, stage]
            by_source[source, stage] = (count + numbers[1], tokens + (numbers[3] or 0))
    parts = tuple(
        Part(stage, category, prompts or 0, count or 0, before, after)
        for (stage, category), (prompts, count, before, after) in sorted(sums.items())
    )
    return by_source, parts


def _category(name: str | None) -> str:
    """Of a damaged ledger, rows may have none."""
    return NO_NAME if name is None else name


def _funnel(ledger: Readable, build_id: str) -> tuple[Counted, ...]:
    rows = ledger.rows("SELECT source, reason, rows FROM funnel WHERE build_id = ? ORDER BY ALL", build_id)
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for source, reason, count in rows:
        sums[source, reason] += count
    return tuple(Counted(source, reason, count) for (source, reason), count in sums.items())


def _sources(ledger: Readable, build_id: str, by_source: dict[tuple[str, str], tuple[int, int]]) -> tuple[Source, ...]:
    rows = ledger.rows(
        "SELECT s.source, p.dataset, p.config, p.split, p.revision, coalesce(s.license, p.license), s.category_rule "
        "FROM sources s LEFT JOIN pools p USING (pool_id) WHERE s.build_id = ? ORDER BY s.source",
        build_id,
    )
    return tuple(
        Source(
            name, published_path(dataset or ""), config, split, revision, licence, _rule(rule),
            by_source.get((name, "selected"), (0, 0))[0], *by_source.get((name, "accepted"), (0, 0)),
        )
        for name, dataset, config, split, revision, licence, rule in rows
    )  # fmt: skip


def _rule(text: str | None) -> str:
    """A category rule for a person: the category, `classify`, or the column that has it."""
    try:
        rule = json.loads(text or "null")
    except ValueError:
        return str(text)
    if isinstance(rule, dict):
        return f"by column {rule.get('column')}"
    return "" if rule is None else str(rule)


def _labels(ledger: Readable, build: Build) -> tuple[tuple[str, str, str, int], ...]:
    rows = ledger.rows(
        "SELECT p.source, r.upstream_label, p.category, count(*) FROM (SELECT source, pool_id FROM sources "
        "WHERE build_id = ? AND category_rule LIKE '{%') s "
        "JOIN source_rows r USING (pool_id) JOIN prompts p ON p.candidates_id = ? AND p.source = s.source AND "
        "p.pool_id = r.pool_id AND p.file = r.file AND p.row_index = r.row_index "
        "WHERE r.upstream_label IS NOT NULL GROUP BY ALL ORDER BY 1, 4 DESC, 2, 3 "
        f"LIMIT {MOST_LISTED}",
        build.build_id,
        build.candidates_id,
    )
    return tuple((str(source), str(label), str(category), int(count)) for source, label, category, count in rows)


def _shared(ledger: Readable, build: Build) -> tuple[SameRows, ...]:
    """Sources with one category alone: what a column or the classifier said of a dropped row is not kept."""
    rows = ledger.rows(
        "SELECT d.source, p.source, count(*), count(*) FILTER (s.category_rule = to_json(p.category)::VARCHAR) "
        "FROM drops d JOIN prompts p ON p.candidates_id = d.candidates_id AND p.prompt_id = d.winner_prompt_id "
        "JOIN sources s ON s.build_id = ? AND s.source = d.source AND s.category_rule NOT LIKE '{%' "
        "AND s.category_rule <> '\"classify\"' "
        "WHERE d.candidates_id = ? AND d.winner_prompt_id IS NOT NULL AND p.source <> d.source GROUP BY ALL "
        f"ORDER BY 3 DESC, 1, 2 LIMIT {MOST_LISTED}",
        build.build_id,
        build.candidates_id,
    )
    return tuple(SameRows(*row) for row in rows)


def _changes(ledger: Readable, build: Build) -> Changes | None:
    before = ledger.rows(
        f"{BUILD} WHERE i.import_id IS NULL AND (b.created_at, b.build_id) < "
        "(SELECT (created_at, build_id) FROM builds WHERE build_id = ?) "
        "ORDER BY b.created_at DESC, b.build_id DESC LIMIT 1",
        build.build_id,
    )
    return changes_since(ledger, _as_build(before[0]), build) if before else None


def _lock(folder: Path, recipes: Sequence[Recipe], base: Path) -> dict[str, Any]:
    """What the facts have of a build's lock."""
    own = [one for one in recipes if one.imported_from is None and one.revision]
    answered_by = max(((one.answers, one.model, one.revision) for one in own), default=(0, "", None))[1:]
    try:
        pinned = pinned_lock(json.loads((folder / LOCK).read_text(encoding="utf-8")), answered_by, base)
        told, model = published_lock(pinned, base), pinned["manifest"]["target"]["model"]
        return {
            "lock": json.dumps(told, indent=1, sort_keys=True),
            "cut_paths": tuple(changed_keys(pinned["manifest"], told["manifest"])),
            "target_pinned": model == answered_by[0] or not is_on_hub(model, base),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # damaged, or an import's: the report says that it is not there
