"""Two builds side by side: which prompts stay, come and go, and what the new one costs. Pure: frames in, a plan out.

A row is a prompt and its replica under its labels (category, source, holdout), so in every group kept + added is
what NEW selects and kept + removed what OLD selected. What becomes of an answer is what `draftmill generate` plans:
reused where the ledger has it (or NEW takes it from an import), rejected where it will not be asked again or the
present policies leave it out, else to generate. The three are what NEW wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from draftmill.answer_lengths import BASES
from draftmill.quantities import duration
from generation.plan import LABELS, ROW

if TYPE_CHECKING:
    import polars as pl

MEANING = {
    "category": ("  ~ no answer was accepted under the new recipe: the category's mean under", "    others"),
    "max_tokens": ("  ≤ no answer was accepted there: max_tokens of every answer, an upper bound",),
}
MARKS = {"none": "", "measured": "", "category": "~", "assumed": "?", "max_tokens": "≤"}
COLUMNS = ("kept", "added", "removed", "reused", "to make", "tokens")
NAME_WIDTH = 12  # the least


@dataclass(frozen=True)
class DiffRow:
    """One category, source and side of the holdout."""

    category: str
    source: str
    holdout: bool
    kept: int
    added: int
    removed: int
    wanted: int
    """Answers that NEW wants."""
    reused: int
    rejected: int
    to_generate: int
    expected_tokens: int
    """Of the answers to generate."""
    tokens_basis: str
    """One of BASES: the weakest that a part of expected_tokens rests on."""


@dataclass(frozen=True)
class Rate:
    """Tokens per second of one generate run, all its engines together."""

    run_id: str
    tokens_per_s: float
    devices: int = 1


@dataclass(frozen=True)
class DiffPlan:
    """What becomes of OLD's prompts in NEW, and what NEW costs."""

    old: str
    new: str
    rows: tuple[DiffRow, ...]
    moved: int
    """Prompts of both builds whose labels differ: removed in one group, added in another."""
    rate: Rate | None
    changes: tuple[str, ...] = ()
    """What changed between the manifests, in words."""
    imported: tuple[tuple[str, int], ...] = ()
    """Imports that NEW takes answers from, and how many of the reused ones each has."""
    assumed: tuple[str, ...] = ()
    """What tokens of the basis `assumed` rest on."""

    def sum(self, name: str) -> int:
        """One of DiffRow's numbers over all groups."""
        return sum(getattr(row, name) for row in self.rows)

    @property
    def basis(self) -> str:
        """The weakest basis of any group."""
        return BASES[max((BASES.index(row.tokens_basis) for row in self.rows), default=0)]

    def hours(self, tokens: int) -> float | None:
        """How long so many tokens take; None where no rate was measured."""
        return tokens / self.rate.tokens_per_s / 3600 if self.rate else None

    def lines(self, width: int = 80) -> list[str]:
        """For a person: the changes, the groups, the cost."""
        header = [
            f"{self.old} -> {self.new}",
            *(
                line
                for change in self.changes
                for line in wrap(change, width, initial_indent="  ", subsequent_indent="    ")
            ),
        ]
        return [*header, "", *_table(self.rows, width), "", *self._cost()]

    def _cost(self) -> list[str]:
        lines = []
        tokens, make = self.sum("expected_tokens"), self.sum("to_generate")
        about = "at most" if self._bases() - {"none"} == {"max_tokens"} else "about"
        hours = self.hours(tokens)
        if not make:
            lines.append("nothing to generate")
        elif hours is None or self.rate is None:
            lines.append(f"{make:,} answers to generate, {about} {tokens:,} tokens: hours unknown")
            lines.append("  no answer of this target was timed yet")
        else:
            time = f"{about} {duration(hours)}" if hours >= 1 / 60 else "less than a minute"
            lines.append(f"{make:,} answers to generate, {about} {tokens:,} tokens: {time}")
            lines.append(f"  at {self.rate.tokens_per_s:,.0f} tokens/s, all engines of run {self.rate.run_id}")
        for name, rows in self.imported:
            told = f"{rows:,} of the reused answers are from the import {name}"
            lines += wrap(told, subsequent_indent="  ", break_on_hyphens=False, width=80)
        lines += [line for basis in BASES if basis in self._bases() for line in MEANING.get(basis, ())]
        for told in self.assumed if _weakest_of(self._bases()) == "assumed" else ():
            lines += wrap(f"? assumed: {told}", 80, initial_indent="  ", subsequent_indent="    ")
        if self.sum("rejected"):
            lines.append(f"{self.sum('rejected'):,} answers were rejected, or follow one that was: not asked again")
        if self.moved:
            lines.append(f"{self.moved:,} prompts are in both under other labels: removed there, added here")
        return lines

    def _bases(self) -> set[str]:
        return {row.tokens_basis for row in self.rows}

    def frame(self) -> pl.DataFrame:
        """One row a group, for programs."""
        import polars as pl

        kinds: dict[str, Any] = {"str": pl.String, "bool": pl.Boolean, "int": pl.Int64}
        schema = {field.name: kinds[str(field.type)] for field in fields(DiffRow)}
        rows = [{**asdict(row), "hours": self.hours(row.expected_tokens)} for row in self.rows]
        return pl.DataFrame(rows, schema=schema | {"hours": pl.Float64})


def plan_diff(
    names: tuple[str, str],
    old: pl.DataFrame,
    new: pl.DataFrame,
    answers: pl.DataFrame,
    lengths: pl.DataFrame,
    rate: Rate | None,
    changes: Iterable[str] = (),
) -> DiffPlan:
    """Compare two builds.

    Args:
        names: of OLD and NEW.
        old, new: their rows: ROW and LABELS.
        answers: those that NEW wants, as generation.plan.judged_answers says what becomes of them.
        lengths: of those that are to make, as answer_lengths.expected_lengths has them.
    """
    import polars as pl

    old, new = old.select(*ROW, *LABELS), new.select(*ROW, *LABELS)
    both = new.join(old, on=[*ROW, *LABELS], how="semi")
    moved = new.join(old, on=ROW, how="semi").height - both.height
    counts = pl.concat(
        [
            both.group_by(LABELS).agg(kept=pl.len()),
            new.join(old, on=[*ROW, *LABELS], how="anti").group_by(LABELS).agg(added=pl.len()),
            old.join(new, on=[*ROW, *LABELS], how="anti").group_by(LABELS).agg(removed=pl.len()),
            _costs(answers, lengths),
        ],
        how="diagonal",
    )
    numbers = [field.name for field in fields(DiffRow) if str(field.type) == "int"]
    missing = [pl.lit(0, pl.Int64).alias(name) for name in numbers if name not in counts.columns]
    total = (
        counts.with_columns(missing)
        .group_by(LABELS)
        .agg(pl.col(numbers).cast(pl.Int64).sum(), _weakest(pl.col("basis")))
        .sort("holdout", "category", "source")
    )
    named = total.with_columns(
        tokens_basis=pl.col("basis").fill_null(0).replace_strict(dict(enumerate(BASES)), return_dtype=pl.String)
    ).drop("basis")
    rows = tuple(DiffRow(**row) for row in named.iter_rows(named=True))
    imports = answers.drop_nulls("imported_from").group_by("imported_from").len().sort("imported_from")
    assumed = lengths.filter(pl.col("basis") >= BASES.index("assumed"))["source"].unique(maintain_order=True)
    return DiffPlan(*names, rows, moved, rate, tuple(changes), tuple(imports.rows()), tuple(assumed))


def _table(rows: Sequence[DiffRow], width: int) -> list[str]:
    """Prompts kept, added and removed, answers reused and to make, by category and source; the holdout apart."""
    body: list[tuple[str, tuple[str, ...]]] = []
    for holdout in (False, True):
        side = [row for row in rows if row.holdout == holdout]
        if holdout and side:
            body.append(("held out", ()))
        for category in sorted({row.category for row in side}):
            inside = [row for row in side if row.category == category]
            if len(inside) == 1:
                body.append((f"{category} ({inside[0].source})", _cells(inside)))
            else:
                body += [(category, _cells(inside)), *((f"  {row.source}", _cells([row])) for row in inside)]
    body.append(("all", _cells(rows)))
    widths = [max(len(cells[i]) for _, cells in [("", COLUMNS), *body] if cells) for i in range(len(COLUMNS))]
    room = max(NAME_WIDTH, width - sum(widths) - 2 * len(widths))
    name_width = min(room, max(len(name) for name, _ in body))

    def line(name: str, cells: Sequence[str]) -> str:
        shown = name if len(name) <= name_width else name[: name_width - 1] + "…"
        return "  ".join([shown.ljust(name_width), *(c.rjust(w) for c, w in zip(cells, widths, strict=False))]).rstrip()

    prompts, answers = sum(widths[:3]) + 4, sum(widths[3:]) + 4
    over = f"{'':<{name_width}}  {' prompts ':─^{prompts}}  {' answers ':─^{answers}}"
    return [over, line("", COLUMNS), *(line(name, cells) for name, cells in body)]


def _cells(rows: Sequence[DiffRow]) -> tuple[str, ...]:
    numbers = ("kept", "added", "removed", "reused", "to_generate")
    mark = MARKS[_weakest_of({row.tokens_basis for row in rows})]
    tokens = _short(sum(row.expected_tokens for row in rows))
    return (*(f"{sum(getattr(row, name) for row in rows):,}" for name in numbers), mark + tokens)


def _short(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**4)):
        if number >= size:
            return f"{number / (1000 if unit == 'k' else size):,.{0 if unit == 'k' else 1}f}{unit}"
    return f"{number:,}"


def _weakest_of(bases: set[str]) -> str:
    """Of several BASES; a bound beside anything else is none of the sum."""
    used = bases - {"none"}
    return "assumed" if {"max_tokens"} < used else max(used, key=BASES.index, default="none")


def _weakest(basis: pl.Expr) -> pl.Expr:
    """The same of places in BASES."""
    import polars as pl

    mixed = (basis.max() == BASES.index("max_tokens")) & (basis.filter(basis > 0).min() < basis.max())
    return pl.when(mixed).then(BASES.index("assumed")).otherwise(basis.max()).alias("basis")


def _costs(answers: pl.DataFrame, lengths: pl.DataFrame) -> pl.DataFrame:
    """By group: wanted, reused, rejected, to_generate, expected_tokens, basis (a place in BASES)."""
    import polars as pl

    makes = pl.col("state") == "to_make"
    groups = answers.group_by(*LABELS, "recipe_id", "max_tokens").agg(
        wanted=pl.len(),
        reused=(pl.col("state") == "accepted").sum(),
        rejected=pl.col("state").is_in(["rejected", "left_out"]).sum(),
        to_generate=makes.sum(),
    )
    each = lengths.select("category", "recipe_id", "max_tokens", "each", "basis")
    nothing = pl.col("to_generate") == 0
    tokens = pl.when(nothing).then(0.0).otherwise(pl.col("to_generate") * pl.col("each"))
    return (
        groups.join(each, on=["category", "recipe_id", "max_tokens"], how="left")
        .with_columns(
            basis=pl.when(nothing).then(0).otherwise(pl.col("basis")),
            expected_tokens=tokens.round().cast(pl.Int64),
        )
        .drop("recipe_id", "max_tokens", "each")
    )
