"""An audit told: lines of at most 80 columns for a person, or csv, JSON and Markdown for programs and pages.

Names, labels and prompts are somebody else's: in lines and csv nothing of them steers a terminal, in Markdown nothing
is markup, in JSON what is not ASCII is escaped. The verdict is always the first line. Pure.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from corpus.columns import table
from corpus.markdown import escaped
from corpus.markdown import table as markdown_table
from draftmill.looking.answers import WIDTH, percent
from draftmill.looking.audit_figures import alike
from draftmill.looking.audit_shares import State
from draftmill.looking.plain_text import unpiled
from draftmill.table import cut, printable

MOST_GROUPS = 24
FEW = 30
NAME, CATEGORY = 30, 20
SHARE_DIGITS = 4
"""Of shares as parts of one, in JSON."""

Figures = Mapping[str, Any]


def lines(found: Figures, *, detailed: bool = False) -> Iterator[str]:
    """An audit for a terminal, the verdict first."""
    yield cut(_safe(found["line"]), WIDTH)
    yield ""
    yield from _table(found)
    yield ""
    yield from _wrapped(_how(found))
    hint = _hint(found)
    if hint:
        yield from _wrapped(hint)
    yield ""
    yield from _lengths(found)
    yield from _wrapped(_also(found))
    for title, groups in _groupings(found):
        yield ""
        yield from _groups(title, groups)
    if found["why"]:
        yield ""
        yield from _why(found)
    for name, examples in found["examples"].items():
        yield ""
        yield cut(f"examples of {_safe(name)}", WIDTH)
        yield from _examples(examples, detailed=detailed)
    for name in found["changed"]:
        yield cut(f"changed while it was read: {_safe(name)}", WIDTH)


def _table(found: Figures) -> Iterator[str]:
    compared = found["tolerance"] is not None
    header = ["category", "share", "95% interval", *(["target", "off"] if compared else []), "as put", "read"]
    rows = [
        [
            cut(_safe(one["category"]), CATEGORY),
            percent(one["share"]),
            f"{100 * one['low']:.1f} to {100 * one['high']:.1f}",
            *([percent(one["target"]), f"{100 * one['off']:+.1f}"] if compared else []),
            percent(one["as_put"]),
            f"{one['prompts']:,}",
        ]
        for one in found["categories"]
    ]
    yield from table(header, rows)


def _how(found: Figures, as_put: str = "`as put`") -> str:
    """What was read, and what errs. `as_put`: the column of the classifier's own counts, if there is one."""
    files = sum(part["files"] for part in found["parts"])
    drawn = "all of them" if found["read"] == found["rows"] else f"seed {found['seed']}"
    text = f"Read {found['read']:,} of {found['rows']:,} rows in {files:,} file{'s' * (files != 1)} ({drawn})"
    if found["no_prompt"]:
        why = ", ".join(f"{count:,} {_safe(reason)}" for reason, count in list(found["no_prompt"].items())[:6])
        text += f"; {found['read'] - found['prompts']:,} hold no prompt: {why}"
    if found["label"] is not None:
        return f"{text}. Categories are the labels in column {_safe(found['label'])[:NAME]}; sampling alone errs."
    said = f"; {as_put} is what the classifier said" if as_put else ""
    return f"{text}. The interval holds sampling and classifier error together{said}."


def _hint(found: Figures) -> str | None:
    """What would tell more, where the interval is too wide; and that so few prompts tell little."""
    if found["prompts"] < FEW:
        counted = "1 prompt is" if found["prompts"] == 1 else f"{found['prompts']:,} prompts are"
        return f"{counted} few: shares of less than {FEW} say little."
    if found["verdict"] not in (State.cannot_tell.value, State.may_be_skewed.value):
        return None
    worst = next(one for one in found["categories"] if one["category"] == found["worst"])
    whole, sampled = worst["high"] - worst["low"], worst["as_put_high"] - worst["as_put_low"]
    if found["read"] < found["rows"] and (found["label"] is not None or sampled > whole / 2):
        return f"More rows tell more: --rows {min(4 * found['read'], found['rows'])}, or --all."
    if found["label"] is None:
        return "Most of the interval is the classifier's error: more rows hardly help, labels do (--label COLUMN)."
    return None


def _lengths(found: Figures) -> Iterator[str]:
    keys = ("prompt_chars_p50", "prompt_chars_p95", "answer_chars_p50", "answer_chars_p95")
    rows = [
        [cut(_safe(name), CATEGORY), *(_chars(one[key]) for key in keys)]
        for name, one in [*((one["category"], one) for one in found["categories"] if one["prompts"]),
                          ("all", found["all"])]
    ]  # fmt: skip
    yield from table(["characters", "prompt: half", "95% up to", "answer: half", "95% up to"], rows)


def _also(found: Figures) -> str:
    every = found["all"]
    languages = ", ".join(
        f"{_safe(name)} {percent(share, short=True)}" for name, share in list(found["languages"].items())[:6]
    )
    text = (
        f"With an answer {percent(every['with_answer'])}, with tools {percent(every['with_tools'])}, "
        f"several turns {percent(every['several_turns'])}. Languages: {languages}."
    )
    again = every["repeated_in_sample"]
    if again:
        text += f" {again:,} of the rows that were read repeat another's prompt"
        text += "." if found["read"] == found["rows"] else "; the whole corpus has more such."
    return text


def _groupings(found: Figures) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    if len(found["parts"]) > 1:
        yield "file", found["parts"]
    for column, groups in found["by"].items():
        yield _safe(column), groups


def _groups(title: str, groups: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Groups of rows with their categories as the classifier put them, one a line."""
    same = alike(groups)
    if same is not None:
        yield cut(f"all {len(groups):,} are mostly {_safe(same)}:", WIDTH)
    shown = groups[:MOST_GROUPS]
    rows = [[cut(_safe(one["name"]), NAME), f"{one['rows']:,}", f"{one['read']:,}"] for one in shown]
    heads = table([cut(title, NAME), "rows", "read"], rows)
    yield f"{heads[0]}  as put"
    for head, one in zip(heads[1:], shown, strict=True):
        told = ", ".join(f"{100 * share:.0f}% {_safe(name)}" for name, share in one["shares"].items() if share > 0)
        yield cut(f"{head}  {told or 'no prompt'}", WIDTH)
    if len(groups) > len(shown):
        yield f"and {len(groups) - len(shown):,} more (--format json has all)"


def _why(found: Figures) -> Iterator[str]:
    counts = {one["category"]: one["prompts"] for one in found["categories"]}
    for name, reasons in found["why"].items():
        yield cut(f"why {_safe(name)} (of {counts[name]:,} prompts)", WIDTH)
        for reason, count in reasons.items():
            yield cut(f"  {100 * count / max(counts[name], 1):3.0f}%  {_safe(reason)}", WIDTH)


def _examples(examples: Sequence[dict[str, Any]], *, detailed: bool) -> Iterator[str]:
    for one in examples:
        place = f" [{_safe(one['file'])[-24:]}:{one['row']}]"
        yield cut(f"  {_safe(' '.join(one['asked'].split()))}", WIDTH - len(place)) + place
        if detailed:
            for category, reason, weight in one["why"][:4] or [("general", "no rule spoke", 0.0)]:
                yield cut(f"    {weight:+.1f} {_safe(category)}: {_safe(reason)}", WIDTH)


def _chars(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, break_on_hyphens=False)


def _safe(text: str) -> str:
    """Text of which nothing steers a terminal, or piles up in it."""
    return unpiled(printable(text))


# for programs and pages


def as_json(found: Figures) -> str:
    """Everything, as one object."""
    return json.dumps(_rounded(found), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _rounded(value: Any) -> Any:
    """The same with shares to a hundredth of a point: no sample knows more."""
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return round(value, SHARE_DIGITS) if isinstance(value, float) else value


CSV_COLUMNS = ("scope", "name", "category", "rows", "read", "share", "low", "high", "target")


def as_csv(found: Figures) -> str:
    """One row for a category of the corpus (scope corpus), of a file (file) or of a column's value (the column)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for one in found["categories"]:
        numbers = [_number(one[key]) for key in ("share", "low", "high", "target")]
        writer.writerow(["corpus", "", _cell(one["category"]), found["rows"], one["prompts"], *numbers])
    scopes: list[tuple[str, Sequence[dict[str, Any]]]] = [("file", found["parts"]), *found["by"].items()]
    for scope, groups in scopes:
        for group in groups:
            for category, share in group["shares"].items():
                head = [_cell(scope), _cell(group["name"]), _cell(category), group["rows"], group["read"]]
                writer.writerow([*head, _number(share), "", "", ""])
    return text.getvalue()


def _cell(text: str) -> str:
    """A name that neither steers a terminal nor is a formula to a spreadsheet."""
    shown = _safe(text)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") else shown


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def as_markdown(found: Figures) -> str:
    """For a page or a pull request: verdict, categories, files."""
    compared = found["tolerance"] is not None
    header = ["category", "share", "95% interval", *(["target", "off"] if compared else [])]
    rows = [
        [
            _plain(one["category"]),
            percent(one["share"]),
            f"{100 * one['low']:.1f} to {100 * one['high']:.1f}",
            *([percent(one["target"]), f"{100 * one['off']:+.1f}"] if compared else []),
        ]
        for one in found["categories"]
    ]
    text = [f"**{_plain(found['line'])}**", markdown_table(header, [name != "category" for name in header], rows)]
    text.append(_plain(_how(found, "as put" if any(_groupings(found)) else "")))
    for title, groups in _groupings(found):
        told = [
            [
                _plain(cut(one["name"], WIDTH)),
                f"{one['rows']:,}",
                f"{one['read']:,}",
                _plain(", ".join(f"{percent(share)} {name}" for name, share in one["shares"].items())),
            ]
            for one in groups
        ]
        text.append(markdown_table([_plain(title), "rows", "read", "as put"], [False, True, True, False], told))
    for name, examples in found["examples"].items():
        shown = (f"- {_plain(cut(' '.join(one['asked'].split()), 200))}" for one in examples)
        text += [f"Examples of {_plain(name)}:", "\n".join(shown)]
    return "\n\n".join(text) + "\n"


def _plain(text: str) -> str:
    """Text in which Markdown finds no markup and no HTML, and a terminal nothing that steers it."""
    return escaped(_safe(text))


FORMATS: dict[str, Callable[[Figures], str]] = {"json": as_json, "csv": as_csv, "markdown": as_markdown}
