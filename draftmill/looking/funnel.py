"""What became of the rows of each source: read, left out and why, not needed, held out, selected; and of the answers.

Rows and answers are two accounts: the rows that were read are the sum of what became of them, and so are the answers
that a build wants. `Funnel.breaches` says where one does not add up. Pure, but for `read_funnels`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from corpus.errors import UserError
from corpus.ledger.query import LedgerReader
from corpus.suggestions import nearest
from draftmill.looking.chosen import Build
from draftmill.table import printable

if TYPE_CHECKING:
    import polars as pl

TAKEN = ("not_needed", "held_out", "selected")
"""What becomes of a candidate; every other reason is a drop."""
READ = "read"


@dataclass(frozen=True)
class Funnel:
    """One source of a build; of all sources, their sum."""

    source: str
    dataset: str | None
    license: str | None
    rows: dict[str, int]
    """Source rows by what became of them; read is all of them."""
    wanted: int
    """Answers that the build wants of it, the holdout included."""
    missing: dict[str, int]
    """Of these, the ones that it has not, by why."""
    accepted: int
    captured: int
    trained: int
    tokens: int
    """Response tokens of the accepted ones."""

    @property
    def read(self) -> int:
        """Rows read."""
        return self.rows.get(READ, 0)

    @property
    def drops(self) -> dict[str, int]:
        """Rows left out, by reason, the most first."""
        found = {code: rows for code, rows in self.rows.items() if code not in (READ, *TAKEN)}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    @property
    def breaches(self) -> list[str]:
        """Accounts that do not add up, in words."""
        found = []
        rest = sum(rows for code, rows in self.rows.items() if code != READ)
        if rest != self.read:
            found.append(f"{self.source}: {self.read:,} rows were read, and {rest:,} are accounted for")
        answers = self.accepted + sum(self.missing.values())
        if answers != self.wanted:
            found.append(f"{self.source}: {self.wanted:,} answers are wanted, and {answers:,} are accounted for")
        return found


def read_funnels(reader: LedgerReader, build: Build, source: str | None = None) -> list[Funnel]:
    """The funnels of a build's sources, by name.

    Raises:
        UserError: the build has no such source.
    """
    labels = {
        str(name): (dataset, license_)
        for name, dataset, license_ in reader.rows(
            "SELECT s.source, p.dataset, coalesce(s.license, p.license) FROM sources s LEFT JOIN pools p USING "
            "(pool_id) WHERE s.build_id = ?",
            build.build_id,
        )
    }
    if source is not None and source not in labels:
        raise UserError(
            f"{build.label}: has no source {ascii(source)[1:-1][:80]}.{printable(nearest(source, labels))} "
            f"Its sources: {printable(', '.join(sorted(labels)[:20]))}"
        )
    names = sorted(labels) if source is None else [source]
    rows: dict[str, dict[str, int]] = {name: {} for name in names}
    for name, reason, number in reader.rows(
        "SELECT source, reason, sum(rows) FROM funnel WHERE build_id = ? GROUP BY ALL", build.build_id
    ):
        if name in rows:
            rows[name][str(reason)] = rows[name].get(str(reason), 0) + int(number)
    answers = _answers(reader, build)
    return [
        Funnel(name, *labels[name], rows=rows[name], **vars(answers.get(name, _Answers())))
        for name in names
    ]  # fmt: skip


@dataclass
class _Answers:
    """Of one source."""

    wanted: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    accepted: int = 0
    captured: int = 0
    trained: int = 0
    tokens: int = 0


ANSWERS = """
    WITH refused AS (
        SELECT response_id, max_by(reason, (shard, shard_row)) AS reason FROM responses WHERE state <> 'accepted'
        GROUP BY response_id
    ), own AS (
        SELECT response_id FROM drafter_responses
        WHERE drafter_id IN (SELECT drafter_id FROM drafters WHERE build_id = $1)
    )
    SELECT w.source,
           CASE WHEN w.left_out IS NOT NULL OR a.response_id IS NULL
                THEN coalesce(w.left_out, r.reason, 'not answered yet') END AS why,
           count(*), coalesce(sum(a.response_tokens), 0),
           count(*) FILTER (w.response_id IN (SELECT response_id FROM hidden_rows)),
           count(*) FILTER (w.response_id IN (SELECT response_id FROM own))
    FROM (FROM build_responses WHERE build_id = $1) w
    LEFT JOIN accepted_responses a USING (response_id)
    LEFT JOIN refused r USING (response_id)
    GROUP BY ALL
"""
"""One pass: why is that of the view unfinished, and NULL of what the build has."""


def _answers(reader: LedgerReader, build: Build) -> dict[str, _Answers]:
    found: dict[str, _Answers] = {}
    for source, why, rows, tokens, captured, trained in reader.rows(ANSWERS, build.build_id):
        one = found.setdefault(str(source), _Answers())
        one.wanted += int(rows)
        one.trained += int(trained)
        if why is None:
            one.accepted, one.captured, one.tokens = int(rows), int(captured), int(tokens)
        else:
            one.missing[str(why)] = int(rows)
    return found


def summed(funnels: list[Funnel]) -> Funnel:
    """All sources as one."""
    rows: dict[str, int] = {}
    missing: dict[str, int] = {}
    for one in funnels:
        for total, part in ((rows, one.rows), (missing, one.missing)):
            for code, number in part.items():
                total[code] = total.get(code, 0) + number
    sums = [sum(getattr(one, name) for one in funnels) for name in ("accepted", "captured", "trained", "tokens")]
    return Funnel("all sources", None, None, rows, sum(one.wanted for one in funnels), missing, *sums)


def funnel_frame(build: Build, funnels: list[Funnel]) -> pl.DataFrame:
    """The same for programs: a row a source and what became of so many of its rows or answers."""
    import polars as pl

    rows: list[tuple[Any, ...]] = []
    for one in funnels:
        codes = [READ, *one.drops, *(code for code in TAKEN if code in one.rows)]
        rows += [(build.build_id, one.source, "rows", code, one.rows.get(code, 0)) for code in codes]
        answers = {"wanted": one.wanted, **one.missing, "accepted": one.accepted}
        answers |= {"captured": one.captured, "trained": one.trained}
        rows += [(build.build_id, one.source, "answers", code, number) for code, number in answers.items()]
    names = dict.fromkeys(("build_id", "source", "of", "reason"), pl.String())
    return pl.DataFrame(rows, schema={**names, "count": pl.Int64()}, orient="row")
