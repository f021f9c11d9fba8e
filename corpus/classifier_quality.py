"""How often the classifier is right, as data, and what that makes of counts that it gave: shares with intervals.

HELD_OUT holds the confusion of the held-out half of tests/labelled, measured for MEASURED_VERSION of the classifier
(a test compares both with the set). `adjusted_shares` turns predicted counts into estimates of the true shares, with
intervals that hold sampling and classifier error together. It uses P(predicted | true), which stays where the mix
moves, so a corpus may be mixed in another way than the labelled set. It does not know files, prompts or the classifier:
numbers in, numbers out; seeded, the same draws on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CATEGORIES = ("coding", "general", "math", "agent", "code-other")
"""The order of rows and columns below."""
MEASURED_VERSION = 5
"""The CLASSIFIER_VERSION that HELD_OUT was measured for."""
HELD_OUT: tuple[tuple[int, ...], ...] = (
    (310, 8, 2, 0, 21),
    (8, 676, 20, 0, 47),
    (5, 5, 250, 0, 4),
    (1, 1, 0, 183, 1),
    (23, 36, 4, 0, 437),
)
"""Rows: the true category; columns: the predicted one; prompts of the held-out half."""
DESIGN_EFFECT = 10.0
"""Prompts of one package are alike: as evidence of how other sources fare, so many of them count as one (Kish 1965,
8.2). By package, the rows of HELD_OUT have 5.6 (coding), 2.5, 2.5, 3.2 and 3.8 (code-other). Corpora of a random half
of these packages, judged by the matrix of the other half, had coding's share in the interval in 57% of draws with 1, in
78% with 3, in 95% with 10; all five shares in 79%, 90% and 97%."""
DRAWS, SEED = 4000, 20
LOW, HIGH = 0.025, 0.975
_PRIOR = 1 / len(CATEGORIES)
"""Pseudo-counts a cell (Perks): a cell where nothing was seen is small, not impossible."""

_Array = npt.NDArray[np.float64]


class Stratum(NamedTuple):
    """What was seen of one part of a corpus (a file): predicted counts by category, rows sampled, rows that it has.

    `counts` may sum to less than `sampled` (rows that hold no prompt): the part is then weighed by its prompts,
    population x prompts / sampled. `population` None: unknown, the sample is small beside it; then all must be None,
    and the parts are weighed by their samples.
    """

    counts: Mapping[str, int]
    sampled: int
    population: int | None = None


class Interval(NamedTuple):
    """A share between 0 and 1: low <= estimate <= high."""

    estimate: float
    low: float
    high: float


def adjusted_shares(
    strata: Sequence[Stratum],
    *,
    confusion: Sequence[Sequence[int]] | None = HELD_OUT,
    design_effect: float = DESIGN_EFFECT,
    draws: int = DRAWS,
    seed: int = SEED,
) -> dict[str, Interval]:
    """The true share of each category, with a 95% interval over sampling and classifier error together.

    `confusion` None: the counts are of labels that are right, so sampling alone errs. `design_effect`: prompts of
    `confusion` that are worth one; 1 where the corpus is of the very sources that it was measured on.

    With q the predicted and p the true shares, q = p M where M[true, predicted] = P(predicted | true), whence
    p = q M^-1: Rogan and Gladen 1978 for two classes, Buonaccorsi 2010 (ch. 2) for more; the interval, as Lang and
    Reiczigel 2014, lets q and M both vary. Here by draws: M's rows are Dirichlet with the measured counts over
    design_effect; what was not read of a stratum is a Dirichlet-multinomial given what was (so a stratum read whole
    does not vary); the predicted counts of a corpus of N rows vary about p M too, as N rows classified once. The
    bounds are quantiles of the unbounded p, cut to 0 and 1; the estimate is the likeliest p on the simplex (EM), so
    estimates sum to one.

    Raises:
        ValueError: no row was classified, a category is unknown, counts exceed `sampled` or `sampled` the population,
            or populations are known of some strata only.
    """
    counts, population = _checked(strata)
    rng = np.random.default_rng(seed)
    return _adjusted(counts, population, confusion, design_effect, draws, rng)


def _checked(strata: Sequence[Stratum]) -> tuple[_Array, _Array | None]:
    """(predicted counts by stratum and category, prompts in each stratum if known), of strata that hold prompts."""
    for stratum in strata:
        seen, (counts, sampled, population) = sum(stratum.counts.values()), stratum
        if unknown := sorted(set(counts) - set(CATEGORIES)):
            raise ValueError(f"unknown category {unknown[0]!r}; known are {', '.join(CATEGORIES)}")
        if min(counts.values(), default=0) < 0 or seen > sampled or (population is not None and sampled > population):
            raise ValueError(f"{seen} classified of {sampled} sampled of {population} rows: each holds the one before")
    if len({stratum.population is None for stratum in strata}) > 1:
        raise ValueError("the population is known of some strata only: give all or none")
    held = [stratum for stratum in strata if sum(stratum.counts.values())]
    if not held:
        raise ValueError("no row was classified: there is nothing to estimate from")
    counted = np.array([[stratum.counts.get(one, 0) for one in CATEGORIES] for stratum in held], dtype=float)
    if held[0].population is None:
        return counted, None
    whole = np.array([(stratum.population or 0) / stratum.sampled for stratum in held])
    return counted, np.rint(counted.sum(axis=1) * whole)


def _adjusted(
    counts: _Array,
    population: _Array | None,
    confusion: Sequence[Sequence[int]] | None,
    design_effect: float,
    draws: int,
    rng: np.random.Generator,
) -> dict[str, Interval]:
    read = counts.sum(axis=1)
    weights = (read if population is None else population) / (read if population is None else population).sum()
    predicted = weights @ (counts / read[:, None])
    varied = _varied_predictions(counts, population, weights, draws, rng)
    if confusion is None:
        return _intervals(predicted, varied)
    measured: _Array = np.asarray(confusion, dtype=np.float64)
    matrix = (measured + _PRIOR) / (measured + _PRIOR).sum(axis=1, keepdims=True)
    estimate = _likeliest(predicted, matrix)
    matrices = np.stack([rng.dirichlet((row + _PRIOR) / design_effect, size=draws) for row in measured], axis=1)
    if population is not None:
        rows = np.rint(estimate * population.sum()).astype(int)
        for true, many in enumerate(rows):
            varied = varied + (rng.multinomial(many, matrix[true], size=draws) - many * matrix[true]) / population.sum()
    solved = np.linalg.solve(matrices.transpose(0, 2, 1), varied[:, :, None])[:, :, 0]
    return _intervals(estimate, solved.astype(np.float64))


def _varied_predictions(
    counts: _Array, population: _Array | None, weights: _Array, draws: int, rng: np.random.Generator
) -> _Array:
    """Draws of the corpus's predicted shares, given the counts of what was read: draws x categories."""
    pooled = weights @ ((counts + _PRIOR) / (counts + _PRIOR).sum(axis=1, keepdims=True))
    varied: _Array = np.zeros((draws, counts.shape[1]))
    for i, row in enumerate(counts):
        read = row.sum()
        shares: _Array = rng.dirichlet(row + pooled, size=draws)
        if population is not None:
            shares = (row + rng.multinomial(int(population[i] - read), shares)) / population[i]
        varied += weights[i] * shares
    return varied


def _likeliest(predicted: _Array, matrix: _Array, steps: int = 2000, close: float = 1e-10) -> _Array:
    """The shares p on the simplex under which `predicted` is likeliest: EM from uniform shares."""
    shares: _Array = np.full(len(matrix), 1 / len(matrix))
    for _ in range(steps):
        joint = shares[:, None] * matrix
        after: _Array = (joint / joint.sum(axis=0)) @ predicted
        if np.abs(after - shares).max() < close:
            return after
        shares = after
    return shares


def _intervals(estimate: _Array, draws: _Array) -> dict[str, Interval]:
    low, high = np.clip(np.quantile(draws, [LOW, HIGH], axis=0), 0, 1)
    return {
        category: Interval(float(estimate[i]), float(min(low[i], estimate[i])), float(max(high[i], estimate[i])))
        for i, category in enumerate(CATEGORIES)
    }


def coding_error(mix: Sequence[float], confusion: Sequence[Sequence[int]] = HELD_OUT) -> float:
    """Predicted minus true share of coding, in a corpus of `mix` (weights in the order of CATEGORIES)."""
    shares = np.asarray(mix, dtype=float) / sum(mix)
    measured = np.asarray(confusion, dtype=float)
    return float((shares @ (measured / measured.sum(axis=1, keepdims=True)))[0] - shares[0])
