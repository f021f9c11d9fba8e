"""How many padded tokens one forward may hold, by length band: a memory model fitted to trial batches.

A band is the lengths above half of its top up to its top, a power of two; all short rows are one band. Of each band
the worker runs three trial batches (`trial_shapes`) and tells their peak memory; `fit` lays a line above them, and
`choose` takes the most tokens that the line lets into the memory there is. Rows of one band cost alike for each
token, so attention that grows with the square of the length is still a line within a band. Numbers in, numbers
out: how a peak is measured is `extraction.trials`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SHORT = 256
"""Top of the lowest band: below it a row's own length costs nothing that shows."""
MARGIN = 1.1
"""What the measured line is multiplied with: an allocator's pieces and another batch's shape cost a little more."""


@dataclass(frozen=True)
class Trial:
    """One trial batch: its peak above what the loaded target alone takes, and how long it ran."""

    rows: int
    length: int
    peak_bytes: int
    seconds: float

    @property
    def tokens(self) -> int:
        """Padded tokens."""
        return self.rows * self.length


@dataclass(frozen=True)
class BandModel:
    """Peak bytes of a batch of this band: fixed_bytes + bytes_per_token * padded tokens."""

    top: int
    fixed_bytes: float
    bytes_per_token: float
    tokens_per_s: float

    def peak_bytes(self, tokens: int) -> int:
        """Of a batch of so many padded tokens, with the margin."""
        return int(MARGIN * (self.fixed_bytes + self.bytes_per_token * tokens))


@dataclass(frozen=True)
class Budgets:
    """Padded tokens that a batch may hold, by the top of its band; `otherwise` for bands without an entry."""

    otherwise: int
    by_band: Mapping[int, int] = field(default_factory=dict)

    def of(self, length: int) -> int:
        """For a batch padded to this length."""
        return self.by_band.get(band_of(length), self.otherwise)

    def lowered(self, length: int, tokens: int) -> Budgets:
        """The band of this length has at most so many from now on."""
        return Budgets(self.otherwise, {**self.by_band, band_of(length): min(self.of(length), max(tokens, 1))})

    def below(self, earlier: Budgets) -> list[tuple[int, int]]:
        """(top, tokens) of each band that has fewer than it had."""
        return [(top, tokens) for top, tokens in self.by_band.items() if tokens < earlier.of(top)]


def band_of(length: int) -> int:
    """The top of the band of a length."""
    return max(SHORT, 1 << (length - 1).bit_length())


def bands_of(lengths: Iterable[int]) -> dict[int, int]:
    """The longest row of each band that these lengths have, by the band's top, shortest first."""
    longest: dict[int, int] = {}
    for length in lengths:
        top = band_of(length)
        longest[top] = max(longest.get(top, 0), length)
    return dict(sorted(longest.items()))


def trial_shapes(longest: int, most_tokens: int) -> tuple[tuple[int, int], ...]:
    """(rows, length) of a band's three trial batches, smallest first.

    As many rows as a quarter, a half and all of `most_tokens` hold; where they hold less than four, one row of a
    half, three quarters and all of the length: a long row is never run beside others only to be measured.
    """
    rows = most_tokens // longest
    if rows >= 4:
        return tuple((max(1, rows * part // 4), longest) for part in (1, 2, 4))
    return tuple((1, max(1, longest * part // 4)) for part in (2, 3, 4))


def fit(top: int, trials: Sequence[Trial]) -> BandModel:
    """The line of a band: the least-squares slope, raised until no trial lies above it.

    Raises:
        ValueError: no trial.
    """
    if not trials:
        raise ValueError(f"band {top}: no trial to fit")
    mean_tokens = sum(trial.tokens for trial in trials) / len(trials)
    mean_bytes = sum(trial.peak_bytes for trial in trials) / len(trials)
    spread = sum((trial.tokens - mean_tokens) ** 2 for trial in trials)
    together = sum((trial.tokens - mean_tokens) * (trial.peak_bytes - mean_bytes) for trial in trials)
    # peaks that do not grow are noise of the measuring: then the largest is laid on its tokens
    steepest = max(trial.peak_bytes / trial.tokens for trial in trials)
    slope = together / spread if spread and together > 0 else steepest
    fixed = max(0.0, *(trial.peak_bytes - slope * trial.tokens for trial in trials))
    best = max(trials, key=lambda trial: trial.tokens)
    return BandModel(top, fixed, slope, best.tokens / best.seconds if best.seconds > 0 else 0.0)


def choose(models: Sequence[BandModel], room_bytes: int, most_tokens: int) -> Budgets:
    """Of each band the most tokens whose peak the room holds, at most `most_tokens` and at least 1."""
    by_band = {}
    for model in models:
        fits = (
            (room_bytes / MARGIN - model.fixed_bytes) / model.bytes_per_token if model.bytes_per_token else most_tokens
        )
        by_band[model.top] = int(min(most_tokens, max(fits, 1)))
    return Budgets(min(by_band.values(), default=most_tokens), by_band)


def announced_bytes(models: Sequence[BandModel], budgets: Budgets, longest: Mapping[int, int]) -> int:
    """The largest peak that the model gives a batch that the budgets allow, above what the loaded target takes.

    Args:
        longest: the longest row by band: alone it may be more than its band's budget.
    """
    return max((model.peak_bytes(max(budgets.of(model.top), longest.get(model.top, 0))) for model in models), default=0)
