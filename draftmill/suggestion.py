"""The next mix from what was measured of the last one: numbers in, numbers and reasons out. No I/O.

Serving spends 1 / tau_c verify steps on a token of category c, so traffic t_c takes sum t_c / tau_c steps, and its mean
acceptance length is the harmonic one. If tau grows by the same part of itself in every category when its rows grow by
the same part (the assumption where growth is not measured), a row helps most where t_c / tau_c / n_c is largest, and
rows n_c in proportion to t_c / tau_c are best: rows where the time goes. docs/training.md has it at length.

Hence a category *wants* `pull` times its share: growth * (t_c / share_c) * (mean / tau_c), the last factor only where
tau's interval does not hold the mean. Who wants more gets it within `STEP`; whoever is pulled down pays first, then
everybody pays the same part. A lower tau, its interval in proportion and all else equal, never gives a smaller share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len

from corpus.acceptance import FEW_ROWS
from draftmill.table import cut, printable

STEP = 1.5
"""The most that a share is multiplied or divided by."""
FLOOR = 1.0
"""Percentage points below which no share is taken; one that is smaller is not taken from."""
GROWTH = 2.0
"""The most that measured growth multiplies or divides a pull by: slopes of few builds are rough."""
SPREAD = 1.2
"""Builds whose rows of a category differ by a smaller factor say nothing of its growth."""
Z = 1.959964
LEAST_ERROR = 0.01
"""Of tau: the least error of one measurement in a fit. Training varies too, which its rows cannot show."""
NAME = 14
WHY = 23  # columns: with all others 80


@dataclass(frozen=True)
class Measured:
    """The acceptance length of one category, and its 95% interval where there is one."""

    tau: float
    low: float | None = None
    high: float | None = None
    rows: int | None = None
    """It rests on; None: not known."""

    @property
    def few(self) -> bool:
        """An interval of so few rows is no interval: three that are alike give one of no width."""
        return self.rows is not None and self.rows < FEW_ROWS


@dataclass(frozen=True)
class Build:
    """One category in one build: rows trained on, and what was measured then."""

    rows: int
    measured: Measured


@dataclass(frozen=True)
class Change:
    """One category's share, in percent, and why it is what it is."""

    category: str
    share: float
    next: float
    traffic: float
    measured: Measured | None
    why: str


@dataclass(frozen=True)
class Suggestion:
    """Shares in percent, exact; `rounded` has them as a manifest does."""

    changes: tuple[Change, ...]
    mean: float
    """Tokens a step over the traffic of what was measured: its harmonic mean."""
    grown: tuple[str, ...]
    """Categories whose growth with rows was measured."""

    @property
    def shares(self) -> dict[str, float]:
        """The next share of each category."""
        return {one.category: one.next for one in self.changes}

    @property
    def rounded(self) -> dict[str, float]:
        """The same with as few digits as leave each its size, summing to exactly 100."""
        return rounded(self.shares)

    @property
    def moved(self) -> bool:
        """Whether any share differs once they are written."""
        return self.rounded != rounded({one.category: one.share for one in self.changes})

    def lines(self) -> list[str]:
        """For a person: a line a category with its reason, at most 80 columns."""
        width = min(NAME, max(cell_len(name) for name in ("category", *self.shares)))
        told = [f"{'category':<{width}}  share   next  traffic      τ        95%  why"]
        written = self.rounded
        for one in self.changes:
            name = cut(printable(one.category), width)
            told.append(
                f"{name}{' ' * (width - cell_len(name))}  {_figure(one.share)}  {_figure(written[one.category])}  "
                f"{_figure(one.traffic):>7}  {_tau(one.measured)}  {one.why}"
            )
        return told


def suggest(
    shares: Mapping[str, float],
    measured: Mapping[str, Measured],
    traffic: Mapping[str, float] | None = None,
    growth: Mapping[str, float] | None = None,
) -> Suggestion:
    """The next mix.

    Args:
        shares: weights of the present one, all above 0.
        measured: by category; those that are missing are left as they are.
        traffic: weights of the categories in what is served, tokens generated; the shares where it is None.
        growth: how fast tau grows with rows, beside the average, as `relative_growth` gives it.

    Raises:
        ValueError: no category with traffic was measured.
    """
    share = _percent(shares)
    flow = share if traffic is None else _percent({name: traffic.get(name, 0.0) for name in shares})
    served = {name: flow[name] for name in share if name in measured and flow[name] > 0}
    if not served:
        raise ValueError("no category with traffic was measured")
    mean = sum(served.values()) / sum(part / measured[name].tau for name, part in served.items())
    pulls = {
        name: (growth or {}).get(name, 1.0) * flow[name] / share[name] * _slower(measured[name], mean)
        for name in share
        if name in measured
    }
    following = _shifted(share, pulls)
    changes = []
    for name in shares:
        change = Change(name, share[name], following[name], flow[name], measured.get(name), "")
        changes.append(replace(change, why=_why(change, pulls.get(name), mean)))
    return Suggestion(tuple(changes), mean, tuple(sorted(set(growth or {}) & set(pulls))))


def relative_growth(builds: Mapping[str, Sequence[Build]]) -> dict[str, float]:
    """How fast tau grows with rows in each category, 1 being the average of those that are known; within GROWTH.

    tau is fitted against the logarithm of the rows, weighted by its errors; growth is the slope over tau's mean. A
    category is known where the slope's 95% interval leaves 0 out. Fewer than two known ones cannot be compared.
    """
    known = {name: found for name, there in builds.items() if (found := _growth(there)) is not None}
    rising = [found for found in known.values() if found > 0]
    if len(known) < 2 or not rising:
        return {}
    average = math.fsum(rising) / len(rising)
    return {name: min(GROWTH, max(1 / GROWTH, found / average)) for name, found in sorted(known.items())}


def rounded(shares: Mapping[str, float]) -> dict[str, float]:
    """Percentages with as few digits as leave the smallest its size; they sum to exactly 100.

    What rounding leaves over goes to the largest remainders.
    """
    digits = 1
    while digits < 9 and min(shares.values()) < 10 ** (1 - digits):
        digits += 1
    units = {name: share * 10**digits for name, share in shares.items()}
    whole = {name: max(1, math.floor(unit + 1e-6)) for name, unit in units.items()}
    left = 100 * 10**digits - sum(whole.values())
    order = sorted(units, key=lambda name: (whole[name] - units[name], name))
    for name in order[: max(0, left)]:
        whole[name] += 1
    return {name: round(number / 10**digits, digits) for name, number in whole.items()}


def _growth(builds: Sequence[Build]) -> float | None:
    """The slope of tau against ln rows, over tau's mean; None where it cannot be told from 0."""
    points = [
        (math.log(one.rows), one.measured.tau, max((m.high - m.low) / 2 / Z, LEAST_ERROR * m.tau))
        for one in builds
        if one.rows > 0 and (m := one.measured).low is not None and m.high is not None and not m.few
    ]
    if not points or max(x for x, _, _ in points) - min(x for x, _, _ in points) < math.log(SPREAD):
        return None
    weights = [1 / error**2 for _, _, error in points]
    whole = math.fsum(weights)
    middle = math.fsum(w * x for w, (x, _, _) in zip(weights, points, strict=True)) / whole
    tau = math.fsum(w * y for w, (_, y, _) in zip(weights, points, strict=True)) / whole
    spread = math.fsum(w * (x - middle) ** 2 for w, (x, _, _) in zip(weights, points, strict=True))
    slope = math.fsum(w * (x - middle) * (y - tau) for w, (x, y, _) in zip(weights, points, strict=True)) / spread
    return slope / tau if abs(slope) > Z / math.sqrt(spread) else None


def _slower(one: Measured, mean: float) -> float:
    """How much more time a token takes than the mean one; 1 where that cannot be told."""
    return 1.0 if _holds(one, mean) else mean / one.tau


def _holds(one: Measured, mean: float) -> bool:
    """Whether tau cannot be told from the mean."""
    return one.few or one.low is None or one.high is None or one.low <= mean <= one.high


def _shifted(share: Mapping[str, float], pulls: Mapping[str, float]) -> dict[str, float]:
    """Shares after one step: what some want more is what others give, within the bounds.

    Each of the others gives at most `room` of its share. Those pulled down offer what they are pulled by; if the
    offers exceed the wants, they give in proportion, else everybody gives at least one common part.
    """
    room = {name: 1 - max(1 / STEP, min(1.0, FLOOR / share[name])) for name, pull in pulls.items() if pull <= 1}
    offers = {name: min(room[name], 1 - pulls[name]) for name in room}
    wants = {name: share[name] * (min(STEP, pulls[name]) - 1) for name in pulls if pulls[name] > 1}
    wanted, offered = math.fsum(wants.values()), math.fsum(share[name] * offers[name] for name in offers)
    if wanted <= offered:
        met, parts = 1.0, {name: offer * (wanted / offered if offered else 0.0) for name, offer in offers.items()}
    else:
        most = math.fsum(share[name] * room[name] for name in room)
        met = min(1.0, most / wanted)
        parts = _common_part(share, room, offers, min(wanted, most))
    return {
        name: here + wants[name] * met if name in wants else here * (1 - parts.get(name, 0.0))
        for name, here in share.items()
    }


def _common_part(
    share: Mapping[str, float], room: Mapping[str, float], offers: Mapping[str, float], wanted: float
) -> dict[str, float]:
    """Parts given that bring `wanted`: one common part, or the offer where that is more, or the room where less."""

    def parts(common: float) -> dict[str, float]:
        return {name: min(room[name], max(offers[name], common)) for name in room}

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if math.fsum(share[name] * part for name, part in parts(middle).items()) < wanted:
            low = middle
        else:
            high = middle
    return parts(high)


def _why(change: Change, pull: float | None, mean: float) -> str:
    """The reason of one share, at most WHY columns."""
    one, times = change.measured, change.next / change.share
    if one is None or pull is None:
        return "left: not measured"
    if math.isclose(times, 1, rel_tol=1e-9):
        if _holds(one, mean):
            if one.low is None:
                return "left: no interval"
            return "left: few rows" if one.few else "left: holds the mean"
        if pull < 1:
            return "at the floor" if change.share <= FLOOR else "none wants its share"
        return "wants more; none gives"
    rises = times > 1
    if not rises and pull >= 1:
        return "gives as all others do"
    bound = math.isclose(times, STEP if rises else 1 / STEP, rel_tol=1e-6)
    step = f", {'x' if rises else '/'}{STEP:g}" if bound else ""
    reasons = {
        "τ below mean" if rises else "τ above mean": _slower(one, mean),
        "more traffic" if rises else "less traffic": change.traffic / change.share,
    }
    if any((factor > 1) == rises and factor != 1 for factor in reasons.values()):
        return (max if rises else min)(reasons, key=lambda reason: reasons[reason]) + step
    return ("grows fast" if rises else "grows slowly") + step


def _tau(one: Measured | None) -> str:
    """tau and its interval, 16 columns."""
    if one is None:
        return f"{'-':>5}  {'-':>9}"
    if one.low is None or one.high is None:
        return f"{one.tau:5.2f}  {'-':>9}"
    digits = 2 if one.high < 10 else 1
    return f"{one.tau:5.2f}  {f'{one.low:.{digits}f}-{one.high:.{digits}f}':>9}"


def _figure(percent: float) -> str:
    return f"{percent:5.1f}" if percent >= 1 or percent == 0 else f"{percent:5.2g}"


def _percent(weights: Mapping[str, float]) -> dict[str, float]:
    whole = math.fsum(weights.values())
    if not whole > 0:
        raise ValueError("no weight is above 0")
    return {name: 100 * weight / whole for name, weight in weights.items()}
