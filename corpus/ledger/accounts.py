"""The accounts of a build: what is selected is wanted, and what is wanted is in exactly one state.

Set-wise SQL over the ledger, one build at a time. Every selected (prompt, replica) wants turns 0 to turns - 1, each
once, and nothing else is wanted; an imported corpus wants its further rows of one prompt too, as replicas. A plan may
be older than the last round of the selection: it is then held against the round that it was made for. No file is read
but the rounds of a build.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

from corpus.import_files import REPLICA
from corpus.ledger.findings import MOST_EXAMPLES, Finding, Problems
from corpus.ledger.query import quoted
from corpus.ledger.writer import Readable
from corpus.rounds import prefixes_of, round_files
from corpus.selection import GroupKey

STATES = ("accepted", "rejected", "retried")
REBUILD = "`draftmill ledger rebuild` makes the ledger again from the files."
PLAN_AGAIN = f"`draftmill generate MANIFEST` plans it again; if that changes nothing, {REBUILD}"

SELECTED = "SELECT prompt_id, replica FROM selections WHERE build_id = $1"
IMPORTED = f"""
    SELECT prompt_id, replica FROM selections WHERE build_id = $1
    UNION ALL
    SELECT prompt_id, row_number() OVER (PARTITION BY prompt_id) FROM drops
    WHERE candidates_id = $2 AND reason = '{REPLICA}'
"""
IN_ROUND = """
    SELECT prompt_id, unnest(range((prefix - source_rank + n - 1) // n)) AS replica
    FROM (
        SELECT p.prompt_id, p.source_rank, t.prefix, coalesce(t.available, count(*) OVER (
            PARTITION BY p.category, p.source, p.holdout)) AS n
        FROM prompts p JOIN read_parquet({file}) t USING (category, source, holdout) WHERE p.candidates_id = $2
    ) WHERE source_rank < prefix AND $1 IS NOT NULL
"""
COMPARED = """
    WITH asked AS ({asked}), turns AS (
        SELECT prompt_id, max(turns) AS turns FROM prompts WHERE candidates_id = $2 GROUP BY prompt_id
    ), expected AS (
        SELECT prompt_id, replica, unnest(range(turns)) AS turn, n
        FROM (SELECT prompt_id, replica, count(*) AS n FROM asked GROUP BY ALL) JOIN turns USING (prompt_id)
    ), found AS (
        SELECT prompt_id, replica, turn, count(*) AS n FROM build_responses
        WHERE build_id = $1 AND (  -- a selected prompt that is nowhere is said by the references
            prompt_id IN (SELECT prompt_id FROM turns) OR prompt_id NOT IN (SELECT prompt_id FROM asked)
        ) GROUP BY ALL
    )
    SELECT CASE WHEN e.n > 1 THEN 'selected twice' WHEN f.n IS NULL THEN 'selected and not wanted'
                WHEN e.n IS NULL THEN 'wanted and not selected' WHEN f.n > 1 THEN 'wanted twice' END AS kind,
           count(*), min(prompt_id || ' replica ' || replica || ' turn ' || turn, {most})
    FROM expected e FULL JOIN found f USING (prompt_id, replica, turn) GROUP BY kind ORDER BY kind
"""
ATTEMPTS = """
    WITH wanted AS ({wanted}), attempts AS (
        SELECT response_id, count(*) FILTER (state = 'accepted') AS accepted,
               count(*) FILTER (state = 'rejected') AS rejected,
               count(*) FILTER (state = 'rejected' AND coalesce(trim(reason), '') = '') AS unexplained,
               count(*) FILTER (state IS NULL OR NOT list_contains($1, state)) AS unknown,
               max_by(reason, (shard, shard_row)) FILTER (state = 'rejected') AS reason
        FROM responses SEMI JOIN wanted USING (response_id) GROUP BY response_id
    ), judged AS (
        SELECT w.response_id, CASE WHEN w.left_out IS NOT NULL AND a.accepted > 0 THEN 'left out'
                                   WHEN a.accepted > 0 THEN 'accepted'
                                   WHEN a.rejected > 0 OR w.left_out = 'earlier_turn_rejected' THEN 'rejected'
                                   ELSE 'unfinished' END AS state,
               CASE WHEN a.accepted > 0 THEN NULL ELSE coalesce(w.left_out, a.reason) END AS reason,
               CASE WHEN a.unknown > 0 THEN 'in a state that is none' WHEN a.accepted > 1 THEN 'accepted more than once'
                    WHEN a.unexplained > 0 THEN 'rejected without a reason' END AS kind
        FROM wanted w LEFT JOIN attempts a USING (response_id)
    )
    SELECT state, reason, kind, count(*), min(response_id, {most}) FROM judged GROUP BY ALL ORDER BY 4 DESC, 2, 3
"""
NOBODYS = (
    "SELECT DISTINCT response_id, NULL::VARCHAR AS left_out FROM responses "
    "ANTI JOIN build_responses USING (response_id) WHERE $2 IS NOT NULL"
)


@dataclass(frozen=True)
class Build:
    """A build or an import, as the ledger has it."""

    build_id: str
    candidates_id: str
    name: str
    selected: int
    held_out: int
    imported: bool


def known_builds(ledger: Readable, build_id: str | None) -> list[Build]:
    """The builds of the ledger, oldest first; the one of this id."""
    rows = ledger.rows(
        "SELECT b.build_id, b.candidates_id, b.name, b.selected, b.held_out, i.import_id IS NOT NULL "
        "FROM builds b LEFT JOIN imports i ON i.import_id = b.build_id WHERE b.build_id = coalesce(?, b.build_id) "
        "ORDER BY b.created_at, b.build_id",
        build_id,
    )
    return [Build(*row) for row in rows]


def check_selections(ledger: Readable, build: Build) -> Finding:
    """Selections times turns is exactly what the build wants, and the selection is what its rounds take."""
    problems, notes = Problems(), []
    counts = ledger.rows(
        "SELECT category, source, holdout, count(*) FROM selections WHERE build_id = ? GROUP BY ALL", build.build_id
    )
    for what, kept, named in (("selected", False, build.selected), ("held out", True, build.held_out)):
        there = sum(rows for _, _, holdout, rows in counts if holdout == kept)
        if there != named:
            problems.add(f"{what} prompts more or less than {named:,}", [f"{there:,} are there"], abs(there - named))
    folder = ledger.workspace.build(build.build_id)
    notes += _held_against_rounds(
        folder, {(category, source, held): rows for category, source, held, rows in counts}, problems
    )
    wanted = ledger.rows("SELECT count(*) FROM build_responses WHERE build_id = ?", build.build_id)[0][0]
    prompts = sum(row[3] for row in counts)
    if not wanted:
        if (folder / "responses.parquet").exists():
            notes.append("its folder holds a plan that is not entered yet; the next `draftmill generate` does")
        said = f"{prompts:,} prompts; their answers are not planned yet"
        return problems.finding("selections", prompts, said, REBUILD, notes=notes, build=build.build_id)
    missed = _differences(ledger, build, IMPORTED if build.imported else SELECTED)
    older = _planned_round(ledger, build, folder) if missed and not build.imported else None
    if older is None:
        for kind, count, ids in missed:
            problems.add(kind, ids, count)
    else:
        notes.append(f"planned for round {older}; a later round is not planned yet")
    problems.add(*_twice(ledger, build))
    problems.add(*_labelled_otherwise(ledger, build))
    said, proven = f"{prompts:,} prompts, {wanted:,} answers wanted", "each turn once"
    return problems.finding("selections", wanted, said, PLAN_AGAIN, proven=proven, notes=notes, build=build.build_id)


def check_states(ledger: Readable, build: Build | None) -> Finding:
    """What is wanted is accepted once (and left out, if the build's last plan says so), rejected with its reason, or
    unfinished. None: answers that no build wants."""
    wanted = NOBODYS if build is None else "SELECT response_id, left_out FROM build_responses WHERE build_id = $2"
    problems, states = Problems(), dict.fromkeys(("accepted", "left out", "rejected", "unfinished"), 0)
    reasons: dict[str, int] = {}
    for state, reason, kind, count, ids in ledger.rows(
        ATTEMPTS.format(wanted=wanted, most=MOST_EXAMPLES), list(STATES), build.build_id if build else ""
    ):
        states[state] += count
        if kind is not None:
            problems.add(kind, ids, count)
        if state == "rejected":
            name = reason or "(no reason)"
            reasons[name] = reasons.get(name, 0) + count
    total = sum(states.values())
    sums = " + ".join(f"{count:,} {state}" for state, count in states.items() if count or state != "left out")
    said = f"{total:,} wanted = {sums}" if build else f"{total:,} that no build wants: {sums}"
    said = said if total else "nothing is wanted yet"
    notes = ["rejected: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())] if reasons else []
    return problems.finding("states", total, said, REBUILD, notes=notes, build=build.build_id if build else None)


def _differences(ledger: Readable, build: Build, asked: str) -> list[tuple[str, int, list[str]]]:
    """(kind, how many, first few) of the (prompt, replica, turn) that are not both asked and wanted once."""
    found = ledger.rows(COMPARED.format(asked=asked, most=MOST_EXAMPLES), build.build_id, build.candidates_id)
    return [(kind, count, ids) for kind, count, ids in found if kind is not None]


def _planned_round(ledger: Readable, build: Build, folder: Path) -> int | None:
    """The round that the plan was made for, if it is an earlier one."""
    for path in reversed(round_files(folder)):
        if _read_round(path) is not None:
            file = quoted(glob.escape(str(path.resolve())))
            if not _differences(ledger, build, IN_ROUND.format(file=file)):
                return int(path.stem)
    return None


def _held_against_rounds(folder: Path, selected: dict[GroupKey, int], problems: Problems) -> list[str]:
    """A selection is what one of its rounds takes; notes say if it is not the last one."""
    rounds = {int(path.stem): _read_round(path) for path in round_files(folder)}
    fitting = [number for number, taken in rounds.items() if taken == selected]
    if not fitting:
        whole = [number for number, taken in rounds.items() if taken is not None]
        kind = "selection that no round of its build takes" if whole else "selection whose rounds are gone or damaged"
        problems.add(kind, [f"{folder.name}/rounds"])
        return []
    return [f"round {max(rounds)} is not entered yet"] if max(fitting) < max(rounds) else []


def _read_round(path: Path) -> dict[GroupKey, int] | None:
    """Rows that a round takes of each group; None where the file cannot be read."""
    import polars as pl

    try:
        return prefixes_of(pl.read_parquet(path, glob=False))
    except (OSError, pl.exceptions.PolarsError):
        return None


def _twice(ledger: Readable, build: Build) -> tuple[str, list[str], int]:
    rows = ledger.rows(
        "SELECT count(*), min(response_id, 3) FROM (SELECT response_id FROM build_responses WHERE build_id = ? "
        "GROUP BY response_id HAVING count(*) > 1 AND count(DISTINCT (prompt_id, replica, turn)) > 1)",
        build.build_id,
    )
    return "counted for two turns", rows[0][1] or [], rows[0][0]


def _labelled_otherwise(ledger: Readable, build: Build) -> tuple[str, list[str], int]:
    rows = ledger.rows(
        "SELECT count(*), min(response_id, 3) FROM build_responses b "
        "JOIN selections s USING (build_id, prompt_id, replica) "
        "WHERE b.build_id = ? AND (b.category, b.source, b.holdout) IS DISTINCT FROM (s.category, s.source, s.holdout)",
        build.build_id,
    )
    return "labelled otherwise than selected", rows[0][1] or [], rows[0][0]
