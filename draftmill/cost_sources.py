"""What each number of a plan rests on, by the table's own columns and rows, at 80 columns. Pure.

A number that is made of others (tokens of rows and lengths, hours of tokens) names what it adds to them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from draftmill.amounts import SURENESS, Amount, Source
from draftmill.costing import Stage
from draftmill.planning import Costs
from draftmill.table import printable

WIDTH = 80


def source_lines(costs: Costs) -> list[str]:
    """A line or more for each column, in the order of the tables; then what was noticed."""
    named = [(need.name, need) for need in costs.needs]
    columns = [
        ("answers", [(name, need.answers) for name, need in named]),
        ("prompt tok.", [(name, need.prompt_tokens) for name, need in named]),
        ("resp. tok.", [(name, need.response_tokens) for name, need in named]),
    ]
    below = {source for _, amounts in columns for _, amount in amounts for source in amount.sources}
    prompts = costs.stages[0].rows
    lines = _told("prompts, held out", prompts.sources)
    for column, amounts in columns:
        lines += _grouped(column, amounts, set())
    lines += _line("rows, tokens: the columns above, less what is there; drafter: training.epochs times")
    below |= set(prompts.sources)
    lines += _grouped("disk", _known(costs.stages, "disk_bytes"), below)
    lines += _grouped(f"{costs.devices}-hours", _known(costs.stages, "gpu_hours"), below)
    if costs.price_usd:
        listed = costs.gpu is not None and costs.price_usd == costs.gpu.price_usd
        lines += _line(f"USD: {costs.gpu.price_source}" if listed and costs.gpu else "USD: --price")
    return [*lines, *(line for note in costs.notes for line in _line(note))]


def _known(stages: Sequence[Stage], name: str) -> list[tuple[str, Amount]]:
    found = [(stage.name, getattr(stage, name)) for stage in stages]
    return [(stage, amount) for stage, amount in found if amount is not None]


def _grouped(column: str, amounts: Sequence[tuple[str, Amount]], below: set[Source]) -> list[str]:
    """The column's sources beyond `below`; the rows are named where they differ in them."""
    groups: dict[tuple[Source, ...], list[str]] = {}
    for row, amount in amounts:
        groups.setdefault(tuple(source for source in amount.sources if source not in below), []).append(row)
    groups.pop((), None)
    if len(groups) == 1 and sum(map(len, groups.values())) == len(amounts):
        return _told(column, next(iter(groups)))
    return [line for sources, rows in groups.items() for line in _told(f"{column} of {', '.join(rows)}", sources)]


def _told(what: str, sources: Iterable[Source]) -> list[str]:
    """Its sources, the surest first."""
    kinds = {sure: [said for of, said in sources if of == sure] for sure in SURENESS}
    return _line(f"{what}: {'; '.join(f'{sure}, ' + '; '.join(said) for sure, said in kinds.items() if said)}")


def _line(text: str) -> list[str]:
    return wrap(printable(text), WIDTH - 2, initial_indent="  ", subsequent_indent="    ")
