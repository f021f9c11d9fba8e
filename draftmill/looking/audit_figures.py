"""An audit as figures: one plain mapping for programs, from which every way of telling it takes its numbers.

Parts are weighed by how many rows of the corpus one of theirs stands for, so that a small file of which many rows were
read counts for no more than it is. Keys are a contract: these stay, more may follow. Shares are parts of one. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from corpus.classifier import CLASSIFIER_VERSION
from draftmill.looking.audit_seen import Audit
from draftmill.looking.audit_shares import Found

QUANTILES = (0.5, 0.95)

Floats = npt.NDArray[np.float64]


def figures(audit: Audit, found: Found) -> dict[str, Any]:
    """Everything that an audit found."""
    weights = np.array([part.weight for part in audit.parts])
    labelled = audit.asked.label is not None
    return {
        "verdict": found.verdict.state.value,
        "line": found.verdict.line,
        "worst": found.verdict.worst,
        "tolerance": found.verdict.tolerance,
        "rows": audit.population,
        "read": audit.read,
        "prompts": audit.prompts,
        "seed": None if audit.asked.rows is None else audit.asked.seed,
        "interval": 0.95,
        "errors": ["sampling"] if labelled else ["sampling", "classifier"],
        "classifier": None if labelled else CLASSIFIER_VERSION,
        "label": audit.asked.label,
        "categories": [_category(name, audit, found, weights) for name in found.shares],
        "no_prompt": dict(audit.reasons.most_common()),
        "parts": [
            {
                "name": part.name,
                "files": part.files,
                "rows": part.population,
                "read": part.read,
                "prompts": part.prompts,
                "shares": _shares(part.counts),
            }
            for part in audit.parts
        ],
        "by": {column: _by(counts, weights) for column, counts in audit.by.items()},
        "all": _all(audit, weights),
        "languages": _languages(audit, weights),
        "examples": {
            name: [
                {"file": one.file, "row": one.row, "asked": one.asked, "why": [list(said) for said in one.why]}
                for one in examples
            ]
            for name, examples in audit.examples.items()
        },
        "why": {name: dict(counts.most_common(5)) for name, counts in audit.why.items()},
        "changed": audit.changed,
    }


def _category(name: str, audit: Audit, found: Found, weights: Floats) -> dict[str, Any]:
    share, target = found.shares[name], None if found.targets is None else found.targets.get(name, 0.0)
    code = audit.categories.index(name) if name in audit.categories else -1
    inside = np.asarray(audit.facts.category) == code
    return {
        "category": name,
        "share": share.estimate,
        "low": share.low,
        "high": share.high,
        "target": target,
        "off": None if target is None else share.estimate - target,
        "as_put": found.sampling[name].estimate,
        "as_put_low": found.sampling[name].low,
        "as_put_high": found.sampling[name].high,
        "prompts": int(inside.sum()),
        **_lengths(audit, weights, inside),
    }


def _all(audit: Audit, weights: Floats) -> dict[str, Any]:
    facts, everything = audit.facts, np.ones(audit.prompts, dtype=bool)
    of = weights[np.asarray(facts.part)]
    repeated = len(facts.likeness) - len(np.unique(np.asarray(facts.likeness)))
    return {
        **_lengths(audit, weights, everything),
        "with_answer": _mean(np.asarray(facts.answer_chars) >= 0, of),
        "with_tools": _mean(np.asarray(facts.tools) > 0, of),
        "several_turns": _mean(np.asarray(facts.several_turns) > 0, of),
        "repeated_in_sample": repeated,
    }


def _lengths(audit: Audit, weights: Floats, inside: npt.NDArray[np.bool_]) -> dict[str, float | None]:
    facts = audit.facts
    of = weights[np.asarray(facts.part)]
    found: dict[str, float | None] = {}
    for what, values in (("prompt_chars", facts.prompt_chars), ("answer_chars", facts.answer_chars)):
        chars = np.asarray(values)
        there = inside & (chars >= 0)
        for quantile in QUANTILES:
            found[f"{what}_p{round(100 * quantile)}"] = weighted_quantile(chars[there], of[there], quantile)
    return found


def weighted_quantile(values: npt.NDArray[Any], weights: Floats, quantile: float) -> float | None:
    """The least value at or below which at least `quantile` of the weight lies; None of nothing."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][int(np.searchsorted(reached, quantile * reached[-1] * (1 - 1e-12)))])


def _mean(values: npt.NDArray[np.bool_], weights: Floats) -> float:
    return float((values * weights).sum() / weights.sum())


def _shares(counts: Mapping[str, float]) -> dict[str, float]:
    """Shares of counts, the largest first."""
    whole = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return {name: count / whole for name, count in ordered} if whole else {}


def _by(counts: Mapping[tuple[int, str], Counter[str]], weights: Floats) -> list[dict[str, Any]]:
    """Every value of a column: how many rows of the corpus have it, about, and their categories."""
    rows: Counter[str] = Counter()
    read: Counter[str] = Counter()
    by: dict[str, dict[str, float]] = {}
    for (part, value), inside in counts.items():
        read[value] += inside.total()
        rows[value] += inside.total() * weights[part]
        held = by.setdefault(value, {})
        for category, count in inside.items():
            held[category] = held.get(category, 0.0) + count * weights[part]
    ordered = sorted(by, key=lambda value: (-rows[value], value))
    return [
        {"name": value, "rows": round(rows[value]), "read": read[value], "shares": _shares(by[value])}
        for value in ordered
    ]


def _languages(audit: Audit, weights: Floats) -> dict[str, float]:
    held: dict[str, float] = {}
    for part, language in audit.languages:
        held[language] = held.get(language, 0.0) + weights[part]
    return _shares(held)


def alike(groups: Sequence[Mapping[str, Any]]) -> str | None:
    """The category that leads in every one of several groups; None where they differ."""
    leading = {next(iter(group["shares"])) for group in groups if group["shares"]}
    return leading.pop() if len(leading) == 1 and len(groups) > 1 else None
