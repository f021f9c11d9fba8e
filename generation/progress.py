"""How far a build is, counted as a run goes, and what that says of the time that is left.

A Tally counts what a run adds to a Baseline, what the build had before; `Tally.progress` is a plain value of both,
which a terminal shows and another shell reads from runs/<run_id>/progress.json. Time left is the expected tokens of
what is left over the measured rate, with a two-sigma error from the spread of answers and of the rate; unknown until
both were measured. Clocks are passed in.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from corpus import run_files

RATE_WINDOW_S = 120.0
FEW = 8
"""Answers from which on a mean length is believed, a category's own or that of all."""
FEW_STEPS = 3
"""Parts of the rate's window from which on its spread is."""


class EngineProgress(msgspec.Struct, kw_only=True):
    """One engine as it last said."""

    device: str
    engine: str = ""
    starting: bool = False
    """It was started and is not up yet."""
    running: int = 0
    waiting: int = 0
    max_num_seqs: int = 0
    tokens_per_s: float = 0.0
    kv_use: float | None = None
    prefix_hits: float | None = None
    heard_at: float = 0.0
    """When that was, or when its start began, by the coordinator's clock: UTC seconds since 1970; 0 is unknown."""


class CategoryProgress(msgspec.Struct, kw_only=True):
    """One category of a build. Counts are answers, the holdout's among them."""

    wanted: int = 0
    """Those that have an end, and those that this run was given."""
    accepted: int = 0
    rejected: int = 0
    truncated: int = 0
    """Of both, those that ran into max_tokens."""
    tokens: int = 0
    """Of this run."""
    target: float = 0.0
    """What is declared, as generation.topup.Standing has it: in the mix's unit, the holdout left out."""
    got: float = 0.0
    """What of that is accepted, in the same unit."""


class Progress(msgspec.Struct, kw_only=True):
    """Where a build is. Counts are answers of the build, those of earlier runs among them."""

    run_id: str
    build_id: str
    updated_at: float
    """UTC seconds since 1970."""
    seconds: float
    """Since the first engine was ready."""
    total: int
    """Those that have an end, and those that this run was given."""
    accepted: int
    rejected: int
    failed: int
    """Of the rejected, those that an engine's failure rejected."""
    truncated: int
    """Of both, those that ran into max_tokens."""
    tokens: int
    """Of this run."""
    tokens_per_s: float
    """Of all engines, over the last minutes."""
    left_s: float | None
    left_error_s: float | None
    in_flight: int
    queued: int
    """Conversations that no engine has yet."""
    stopping: bool
    categories: dict[str, CategoryProgress]
    engines: list[EngineProgress]
    before: int = 0
    """Of those with an end, those that had it before this run."""
    warnings: list[str] = []
    """What a person should know now."""

    @property
    def finished(self) -> int:
        """Answers with an end."""
        return self.accepted + self.rejected


@dataclass(frozen=True)
class Baseline:
    """What a build has when a run begins."""

    categories: dict[str, CategoryProgress] = field(default_factory=dict)
    failed: int = 0
    in_tokens: bool = False
    """Shares are of response tokens, else of prompts."""
    begun: frozenset[tuple[str, int]] = frozenset()
    """(prompt_id, replica) with an accepted answer, of prompts whose turns are asked each by itself."""


PROGRESS_FILE = "progress.json"


def publish_progress(folder: Path, progress: Progress) -> None:
    """Let other shells see it."""
    run_files.publish(folder, PROGRESS_FILE, progress)


def read_progress(folder: Path) -> Progress | None:
    """What a run published last; None before that, or where it is of another draftmill."""
    return run_files.read(folder, PROGRESS_FILE, Progress)


@dataclass
class _Lengths:
    n: int = 0
    sum: float = 0.0
    squares: float = 0.0

    def add(self, tokens: int) -> None:
        self.n += 1
        self.sum += tokens
        self.squares += float(tokens) ** 2

    @property
    def mean(self) -> float:
        return self.sum / self.n if self.n else 0.0

    @property
    def variance(self) -> float:
        return max(self.squares / self.n - self.mean**2, 0.0) if self.n else 0.0


@dataclass
class Tally:
    """Counts of one run, beside what its build had before."""

    run_id: str
    build_id: str
    started_s: float
    """Monotonic."""
    categories: dict[str, CategoryProgress] = field(default_factory=dict)
    engines: dict[str, EngineProgress] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    tokens: int = 0
    stopping: bool = False
    warnings: list[str] = field(default_factory=list)
    baseline: Baseline = field(default_factory=Baseline)
    _begun: set[tuple[str, int]] = field(default_factory=set)
    _lengths: dict[str, _Lengths] = field(default_factory=dict)
    _points: deque[tuple[float, int]] = field(default_factory=deque)

    def want(self, wanted: dict[str, int]) -> None:
        """So many answers more of each category."""
        for category, answers in wanted.items():
            self._category(category).wanted += answers

    def begins(self, prompt_id: str, replica: int) -> bool:
        """Whether the build has nothing of a prompt yet; asked once it has. For turns that are asked by themselves."""
        row = (prompt_id, replica)
        first = row not in self._begun and row not in self.baseline.begun
        self._begun.add(row)
        return first

    def accept(self, category: str, tokens: int, truncated: bool, *, first: bool = True, holdout: bool = False) -> None:
        """An answer is accepted.

        Args:
            first: of its prompt.
            holdout: its prompt is held out, and counts for no share.
        """
        one = self._category(category)
        one.accepted += 1
        one.truncated += truncated
        one.tokens += tokens
        if not holdout:
            one.got += tokens if self.baseline.in_tokens else first
        self._spent(category, tokens)

    def reject(self, category: str, reason: str, tokens: int, failed: bool, truncated: bool = False) -> None:
        """An answer is rejected; tokens may have been made."""
        one = self._category(category)
        one.rejected += 1
        one.truncated += truncated
        self.reasons[reason] += 1
        self.failed += failed
        if tokens:
            self._spent(category, tokens)

    def spend(self, tokens: int) -> None:
        """Tokens of an attempt that is made again."""
        self.tokens += tokens

    def _category(self, name: str) -> CategoryProgress:
        return self.categories.setdefault(name, CategoryProgress())

    def _spent(self, category: str, tokens: int) -> None:
        self.tokens += tokens
        self._lengths.setdefault(category, _Lengths()).add(tokens)

    @property
    def accepted(self) -> int:
        """Of all categories, in this run."""
        return sum(one.accepted for one in self.categories.values())

    @property
    def rejected(self) -> int:
        """Of all categories, in this run."""
        return sum(one.rejected for one in self.categories.values())

    def progress(self, monotonic_s: float, updated_at: float, in_flight: int, queued: int) -> Progress:
        """A value of it now."""
        rate, spread = self._rate(monotonic_s)
        left_s, error_s = self._left(rate, spread)
        had = self.baseline.categories
        categories = {name: _sum(had.get(name), self.categories.get(name)) for name in {**had, **self.categories}}
        every = list(categories.values())
        return Progress(
            run_id=self.run_id,
            build_id=self.build_id,
            updated_at=updated_at,
            seconds=monotonic_s - self.started_s,
            total=sum(one.wanted for one in every),
            accepted=sum(one.accepted for one in every),
            rejected=sum(one.rejected for one in every),
            failed=self.baseline.failed + self.failed,
            truncated=sum(one.truncated for one in every),
            tokens=self.tokens,
            tokens_per_s=rate,
            left_s=left_s,
            left_error_s=error_s,
            in_flight=in_flight,
            queued=queued,
            stopping=self.stopping,
            categories=categories,
            engines=[_now(one, idle=not in_flight) for _, one in sorted(self.engines.items())],
            before=sum(one.accepted + one.rejected for one in had.values()),
            warnings=list(self.warnings),
        )

    def _rate(self, now_s: float) -> tuple[float, float | None]:
        """(tokens/s over the last RATE_WINDOW_S, its relative spread among parts of it; None of too few)."""
        points = self._points
        if not points or now_s - points[-1][0] >= RATE_WINDOW_S / 20:
            points.append((now_s, self.tokens))
        while len(points) > 2 and now_s - points[0][0] > RATE_WINDOW_S:
            points.popleft()
        since_s, before = points[0] if len(points) > 1 else (self.started_s, 0)
        rate = (self.tokens - before) / max(now_s - since_s, 1e-9)
        steps = [
            (after[1] - first[1]) / (after[0] - first[0])
            for first, after in zip(points, list(points)[1:], strict=False)
            if after[0] > first[0]
        ]
        if len(steps) < FEW_STEPS or rate <= 0:
            return rate, None
        mean = sum(steps) / len(steps)
        deviation = math.sqrt(sum((step - mean) ** 2 for step in steps) / (len(steps) - 1))
        return rate, deviation / math.sqrt(len(steps)) / rate

    def _left(self, rate: float, spread: float | None) -> tuple[float | None, float | None]:
        """(seconds left, two sigma of it); None where nothing is known yet."""
        whole = _Lengths()
        for lengths in self._lengths.values():
            whole.n, whole.sum, whole.squares = (
                whole.n + lengths.n, whole.sum + lengths.sum, whole.squares + lengths.squares,
            )  # fmt: skip
        if whole.n < FEW or rate <= 0 or spread is None:
            return None, None
        tokens = variance = 0.0
        for name, one in self.categories.items():
            left = max(one.wanted - one.accepted - one.rejected, 0)
            own = self._lengths.get(name, _Lengths())
            lengths = own if own.n >= FEW else whole
            tokens += left * lengths.mean
            variance += lengths.variance * (left + left**2 / lengths.n)
        left_s = tokens / rate
        return left_s, 2 * math.sqrt(variance / rate**2 + (spread * left_s) ** 2)


def _sum(before: CategoryProgress | None, now: CategoryProgress | None) -> CategoryProgress:
    """What the build had and what the run adds."""
    one, other = before or CategoryProgress(), now or CategoryProgress()
    return CategoryProgress(**{name: getattr(one, name) + getattr(other, name) for name in one.__struct_fields__})


def _now(one: EngineProgress, idle: bool) -> EngineProgress:
    """A copy; of an engine that has nothing in flight the last sample is older than that."""
    if idle and not one.starting:
        return msgspec.structs.replace(one, running=0, waiting=0, tokens_per_s=0.0)
    return msgspec.structs.replace(one)
