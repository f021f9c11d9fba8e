"""What an id, its first digits, or a place means: a prompt, response, build, drafter, run, source row or shard row.

Everything that it may mean is found, and nothing is guessed: whoever asks decides what several matches are. Ids are
compared by their first digits (six at least), places exactly. Reads the published ledger.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Literal

from corpus.ledger.query import LedgerReader
from corpus.suggestions import nearest
from draftmill.table import printable

Kind = Literal["prompt", "response", "build", "drafter", "run", "source row"]
FEWEST_DIGITS = 6
MOST = 20
"""Matches that are looked for; more are not listed."""
MOST_SHARD = 22
DIGITS = re.compile(rf"[0-9a-f]{{{FEWEST_DIGITS},32}}")
PLACE = re.compile(r"(?P<where>.+):(?P<row>\d{1,18})", re.DOTALL)
RUN = re.compile(r"\d{6,8}(T\d{0,9}(Z(-[0-9a-f]{0,6})?)?)?")


@dataclass(frozen=True)
class Match:
    """One thing that was found."""

    kind: Kind
    id: str
    """Its id; of a source row SOURCE:FILE:ROW."""
    place: tuple[str, int, str, int] | None = None
    """Of a source row: pool_id, chunk, file, row_index."""
    said: str = ""
    """What tells it from others, for a list."""


def find(named: str, reader: LedgerReader) -> list[Match]:
    """Everything that is called so, at most MOST of each kind."""
    if "\0" in named or named != named.encode("utf-8", "replace").decode():
        return []  # no id, and nothing that a database takes
    digits = named.lower() if DIGITS.fullmatch(named.lower()) else None
    found = _by_digits(digits, reader) if digits else []
    if RUN.fullmatch(named) or digits:
        found += _runs(named, reader)
    if found:
        return found
    place = PLACE.fullmatch(named)
    found = _at(place["where"], int(place["row"]), reader) if place else []
    return found or _by_name(named, reader)


def _by_digits(digits: str, reader: LedgerReader) -> list[Match]:
    prompts = "SELECT DISTINCT prompt_id, NULL FROM source_rows WHERE starts_with(prompt_id, ?)"
    responses = (
        "SELECT response_id, min(category) FROM (SELECT response_id, category FROM build_responses "
        "WHERE starts_with(response_id, $1) UNION ALL SELECT response_id, NULL FROM responses "
        "WHERE starts_with(response_id, $1)) GROUP BY response_id"
    )
    builds = "SELECT build_id, name FROM builds WHERE starts_with(build_id, ?)"
    drafters = "SELECT drafter_id, algorithm FROM drafters WHERE starts_with(drafter_id, ?)"
    asked: list[tuple[Kind, str]] = [
        ("prompt", prompts), ("response", responses), ("build", builds), ("drafter", drafters)
    ]  # fmt: skip
    return [
        Match(kind, str(id_), said=str(said or ""))
        for kind, sql in asked
        for id_, said in reader.rows(f"{sql} ORDER BY 1 LIMIT {MOST}", digits)
    ]


def _runs(named: str, reader: LedgerReader) -> list[Match]:
    rows = reader.rows(
        "SELECT run_id, command || ', ' || coalesce(outcome, 'not ended') FROM runs "
        f"WHERE starts_with(run_id, $1) OR split_part(run_id, '-', 2) = $1 ORDER BY 1 LIMIT {MOST}",
        named,
    )
    return [Match("run", str(run_id), said=str(said)) for run_id, said in rows]


def _at(where: str, row: int, reader: LedgerReader) -> list[Match]:
    """Rows of shards, else of sources or datasets."""
    shard = where.rsplit("/", maxsplit=1)[-1]
    begins = f"length($2) >= {FEWEST_DIGITS} AND starts_with(shard, $2)"
    rows = reader.rows(
        "SELECT DISTINCT response_id, shard FROM (SELECT response_id, shard FROM responses WHERE shard_row = $1 AND "
        f"(shard = $2 OR {begins}) UNION ALL SELECT response_id, shard FROM hidden_rows "
        f"WHERE shard_row = $1 AND (shard = $2 OR {begins})) ORDER BY ALL LIMIT {MOST}",
        row, shard,
    )  # fmt: skip
    if rows:
        return [
            Match("response", str(response_id), said=f"row {row:,} of {_tail(str(name))}") for response_id, name in rows
        ]
    named = reader.rows(
        "WITH names AS (SELECT pool_id, source AS name FROM sources UNION SELECT pool_id, dataset FROM pools) "
        "SELECT r.pool_id, r.chunk, r.file, r.row_index, min(n.name) FROM source_rows r JOIN names n USING (pool_id) "
        "WHERE r.row_index = $1 AND (n.name = $2 OR n.name || ':' || r.file = $2) "
        f"GROUP BY ALL ORDER BY ALL LIMIT {MOST}",
        row, where,
    )  # fmt: skip
    return [_row(name, *place) for *place, name in named]


def _tail(shard: str) -> str:
    """The end of a shard's name, which tells it from the others of its run."""
    return shard if len(shard) <= MOST_SHARD else f"…{shard[1 - MOST_SHARD :]}"


def _by_name(named: str, reader: LedgerReader) -> list[Match]:
    """Builds by name, and source rows by the id that their dataset gives them."""
    builds = reader.rows(
        f"SELECT build_id, name FROM builds WHERE name = ? ORDER BY created_at DESC LIMIT {MOST}", named
    )
    if builds:
        return [Match("build", str(build_id), said=str(name)) for build_id, name in builds]
    rows = reader.rows(
        "SELECT r.pool_id, r.chunk, r.file, r.row_index, coalesce(min(s.source), p.dataset) FROM source_rows r "
        "JOIN pools p USING (pool_id) LEFT JOIN sources s USING (pool_id) WHERE r.upstream_id = ? "
        f"GROUP BY r.pool_id, r.chunk, r.file, r.row_index, p.dataset ORDER BY ALL LIMIT {MOST}",
        named,
    )
    return [_row(name, *place) for *place, name in rows]


def _row(name: Any, pool_id: Any, chunk: Any, file: Any, row_index: Any) -> Match:
    place = (str(pool_id), int(chunk), str(file), int(row_index))
    return Match("source row", f"{name}:{file}:{row_index}", place, f"in pool {pool_id[:8]}")


def not_found(named: str, reader: LedgerReader) -> str:
    """What was looked for, and where; for a name that is near a known one, that. Safe to print."""
    return printable(_not_found(named, reader))


def _other_kind(named: str, reader: LedgerReader) -> str | None:
    """What a name is that show has nothing for, and which command answers; None for a name of nothing."""
    quoted = shlex.quote(named)
    asked = (
        ("SELECT 1 FROM sources WHERE source = ?",
         f"a source. Ask draftmill funnel --source {quoted}, or show one of its rows: {quoted}:ROW."),
        ("SELECT 1 FROM prompts WHERE category = ? UNION ALL SELECT 1 FROM build_targets WHERE category = $1",
         f"a category. Ask draftmill composition, or draftmill sample --category {quoted}."),
        ("SELECT 1 FROM pools WHERE dataset = ?",
         f"a dataset. Show one of its rows: {quoted}:ROW; draftmill funnel says what became of all."),
        ("SELECT 1 FROM runs WHERE command = ?",
         f'a command. Its runs: draftmill sql "FROM runs WHERE command = \'{named}\'"; show takes a run\'s id.'),
    )  # fmt: skip
    for sql, what in asked:
        if reader.rows(f"{sql.replace('?', '$1')} LIMIT 1", named):
            return what
    return None


def _not_found(named: str, reader: LedgerReader) -> str:
    said = ascii(named)[1:-1][:120]
    place = PLACE.fullmatch(named)
    if place is None and re.fullmatch(r"[0-9a-fA-F]{1,5}", named):
        return f"{said}: too short for an id; its first {FEWEST_DIGITS} digits are needed."
    names = {
        str(name)
        for (name,) in reader.rows(
            "SELECT source FROM sources UNION SELECT dataset FROM pools UNION SELECT name FROM builds"
        )
        if name
    }
    what = _other_kind(named, reader) if place is None else None
    if what is not None:
        return f"{said}: is {what}"
    if place is None:
        looked = "no prompt, response, build, drafter or run has this id, no row this upstream id, no build this name"
        return f"{said}: {looked}, in the published ledger.{nearest(named, names)}"
    where = place["where"]
    source = max((name for name in names if where == name or where.startswith(f"{name}:")), key=len, default=None)
    if source is None:
        return (
            f"{said}: no shard and no source or dataset is called {ascii(where)[1:-1][:80]} here."
            f"{nearest(where.split(':')[0], names)}"
        )
    ranges = reader.rows(
        "SELECT r.file, max(r.row_index) FROM source_rows r WHERE r.pool_id IN (SELECT pool_id FROM sources "
        "WHERE source = $1 UNION SELECT pool_id FROM pools WHERE dataset = $1) GROUP BY r.file ORDER BY ALL LIMIT 3",
        source,
    )
    files = ", ".join(f"{file} (rows up to {last:,})" for file, last in ranges)
    return f"{said}: {source} has no such row here; what was read of it: {files or 'nothing'}."
