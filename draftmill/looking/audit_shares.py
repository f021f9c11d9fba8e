"""What an audit's counts say of the whole corpus: shares with 95% intervals, and the verdict against intended shares.

Sampling and classifier error are one interval (corpus.classifier_quality); where rows carry labels only sampling errs.
The verdict's rule: a category is skewed when its whole interval lies outside target ± tolerance, and may be skewed when
the estimate alone does; nothing is off when every interval lies inside; else the interval is too wide to tell. A run
is stopped for what is shown, not for what may be: stopping a good one costs as much as the doubt. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from corpus.classifier_quality import CATEGORIES, DRAWS, HIGH, LOW, SEED, Interval, Stratum, adjusted_shares
from corpus.errors import UserError
from corpus.suggestions import nearest
from draftmill.looking.answers import percent
from draftmill.looking.audit_seen import SPEAKER, Audit

DEFAULT_TOLERANCE = 0.05
_POINTS = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")


class State(StrEnum):
    """How a corpus compares with what it should be."""

    skewed = "skewed"
    may_be_skewed = "may be skewed"
    cannot_tell = "cannot tell"
    as_intended = "as intended"
    not_compared = "not compared"


@dataclass(frozen=True)
class Verdict:
    """The answer in one line, and what it is about."""

    state: State
    line: str
    worst: str
    """The category that the line names."""
    tolerance: float | None


@dataclass(frozen=True)
class Found:
    """The shares of a corpus's prompts."""

    shares: dict[str, Interval]
    """Estimates, the largest first."""
    sampling: dict[str, Interval]
    """As if the classifier were never wrong: the shares as it put them, with sampling error alone."""
    targets: dict[str, float] | None
    """Intended shares, which sum to one."""
    verdict: Verdict


def find_shares(audit: Audit, targets: Mapping[str, float] | None, tolerance: float | None) -> Found:
    """Shares and verdict.

    Args:
        targets: intended weights by category; None: there is nothing to compare with.
        tolerance: how far a share may be off, as a part of one; None is DEFAULT_TOLERANCE.

    Raises:
        UserError: the targets are of other categories than the corpus's.
    """
    strata = [Stratum(part.counts, part.read, part.population) for part in audit.parts if part.prompts]
    labelled = audit.asked.label is not None
    wanted = None if targets is None else normalised(targets)
    if wanted is not None:
        known = sorted({name for stratum in strata for name in stratum.counts}) if labelled else CATEGORIES
        _refuse_foreign(wanted, known, audit.asked.label)
    sampling = sampled_shares(strata)
    shares = sampling if labelled else adjusted_shares(strata)
    names = sorted({*shares, *(wanted or ())}, key=lambda name: (-shares.get(name, NOTHING).estimate, name))
    shares = {name: shares.get(name, NOTHING) for name in names}
    sampling = {name: sampling.get(name, NOTHING) for name in names}
    verdict = judge(shares, wanted, DEFAULT_TOLERANCE if tolerance is None else tolerance)
    return Found(shares, sampling, wanted, verdict)


NOTHING = Interval(0.0, 0.0, 0.0)


def sampled_shares(strata: Sequence[Stratum]) -> dict[str, Interval]:
    """Shares of any categories whose counts are right, with intervals for sampling alone.

    What was not read of a stratum is a Dirichlet-multinomial given what was, so one that was read whole does not vary:
    Ericson 1969, "Subjective Bayesian models in sampling finite populations". A stratum's prior is one pseudo-count,
    spread as the whole corpus is.
    """
    names = sorted({name for stratum in strata for name, count in stratum.counts.items() if count})
    counts = np.array([[stratum.counts.get(name, 0) for name in names] for stratum in strata], dtype=float)
    read = counts.sum(axis=1)
    held = np.rint(read * [(one.population or one.sampled) / one.sampled for one in strata])
    weights = held / held.sum()
    estimate = weights @ (counts / read[:, None])
    prior = weights @ ((counts + 1 / len(names)) / (counts + 1 / len(names)).sum(axis=1, keepdims=True))
    rng = np.random.default_rng(SEED)
    drawn = np.zeros((DRAWS, len(names)))
    for i, row in enumerate(counts):
        unread = int(held[i] - read[i])
        more = rng.multinomial(unread, rng.dirichlet(row + prior, size=DRAWS)) if unread else 0
        drawn += weights[i] * (row + more) / held[i]
    low, high = np.quantile(drawn, [LOW, HIGH], axis=0)
    return {
        name: Interval(float(estimate[i]), float(min(low[i], estimate[i])), float(max(high[i], estimate[i])))
        for i, name in enumerate(names)
    }


def judge(shares: Mapping[str, Interval], targets: Mapping[str, float] | None, tolerance: float) -> Verdict:
    """The verdict on estimated shares; `targets` sum to one, and what they do not name is not wanted."""
    if targets is None:
        worst = max(shares, key=lambda name: shares[name].estimate)
        return Verdict(
            State.not_compared, f"mostly {share_text(worst, shares[worst])}; no target was given", worst, None
        )
    off = {name: share.estimate - targets.get(name, 0.0) for name, share in shares.items()}
    shown = {
        name: max(share.low - targets.get(name, 0.0), targets.get(name, 0.0) - share.high)
        for name, share in shares.items()
    }
    reach = {
        name: max(share.high - targets.get(name, 0.0), targets.get(name, 0.0) - share.low)
        for name, share in shares.items()
    }

    def far(name: str) -> tuple[float, float]:
        return round(abs(off[name]), 9), off[name]  # of two that are equally off the one that is too much

    def line(name: str, state: State, more: str = "") -> Verdict:
        target = f"target {percent(targets.get(name, 0.0), short=True)}"
        return Verdict(state, f"{share_text(name, shares[name])}, {target}: {state.value}{more}", name, tolerance)

    skewed = [name for name in shares if shown[name] > tolerance]
    if skewed:
        return line(max(skewed, key=far), State.skewed)
    outside = [name for name in shares if abs(off[name]) > tolerance]
    if outside:
        return line(max(outside, key=far), State.may_be_skewed)
    widest = max(shares, key=lambda name: round(reach[name], 9))
    if reach[widest] > tolerance:
        return line(widest, State.cannot_tell, f" to ± {points(tolerance)}")
    text = f"no category is off by more than {points(_up(reach[widest]))} ({widest}): as intended"
    return Verdict(State.as_intended, text, widest, tolerance)


def share_text(name: str, share: Interval) -> str:
    """A share with its interval: coding 77.2% (74.5 to 79.7)."""
    return f"{name} {percent(share.estimate)} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def points(share: float) -> str:
    """A difference of shares in percentage points."""
    text = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{text} point{'s' * (text != '1')}"


def _up(share: float) -> float:
    """Rounded up to a tenth of a point: what is promised holds."""
    return float(np.ceil(share * 1000 - 1e-9)) / 1000


def normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights as shares of one."""
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()}


def read_shares(text: str) -> dict[str, float]:
    """Intended weights as they are written: coding=46,general=26.

    Raises:
        UserError: it is not that.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.strip().rpartition("=")
        number = _POINTS.fullmatch(weight)
        name = name.strip()
        if not equals or not name or number is None or not math.isfinite(float(number[1])):
            shown = ascii(part.strip())[:60]
            raise UserError(f"{SPEAKER}: --shares holds {shown}; write CATEGORY=WEIGHT, as in coding=46,general=26.")
        if name in found:
            raise UserError(f"{SPEAKER}: --shares names {ascii(name)[1:-1]} twice. Name each category once.")
        found[name] = float(number[1])
    if not math.isfinite(sum(found.values())):
        raise UserError(f"{SPEAKER}: --shares add up to more than a number holds; write smaller weights.")
    if not sum(found.values()) > 0:
        raise UserError(f"{SPEAKER}: --shares are all zero; at least one category needs a weight.")
    return found


def read_tolerance(text: str) -> float:
    """Percentage points, written 5% or 5, as a part of one.

    Raises:
        UserError: it is no such number, or might mean two things.
    """
    number = _POINTS.fullmatch(text)
    if number is None:
        raise UserError(f"{SPEAKER}: --fail-on-skew is {ascii(text)[:40]}; write percentage points, such as 5%.")
    value, sign = float(number[1]), number[2]
    if not sign and 0 < value < 1:
        raise UserError(
            f"{SPEAKER}: --fail-on-skew {text.strip()} may be {100 * value:g} points or {value:g} of one; "
            f"write {100 * value:g}% or {value:g}%."
        )
    if not 0 < value < 100:
        raise UserError(f"{SPEAKER}: --fail-on-skew is {text.strip()}; it lies between 0% and 100%, such as 5%.")
    return value / 100


def _refuse_foreign(targets: Mapping[str, float], known: Sequence[str], label: str | None) -> None:
    foreign = [name for name in targets if name not in known and targets[name] > 0]
    shown = ", ".join(ascii(name)[1:-1] for name in known[:8])
    if foreign and label is None:
        raise UserError(
            f"{SPEAKER}: shares name {ascii(foreign[0])[1:-1]}, which the classifier does not know ({shown})."
            f"{nearest(foreign[0], known)} Rows that carry labels are counted by --label COLUMN."
        )
    if label is not None and len(foreign) == len(targets):
        raise UserError(
            f"{SPEAKER}: column {ascii(label)[1:-1]} holds {shown}; shares name none of them. Use the same names."
        )
