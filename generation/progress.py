"""How far a run is, counted as it goes, and what that says of the time that is left.

A Tally counts; `Tally.progress` is a plain value of it, which a terminal shows and another shell reads from
runs/<run_id>/progress.json. Time left is the expected tokens of what is left over the measured rate, with a two-sigma
error from the spread of answers and of the rate. Clocks are passed in.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

RATE_WINDOW_S = 120.0
FEW = 8
"""Answers from which on a category's own mean is believed."""


class EngineProgress(msgspec.Struct, kw_only=True):
    """One engine as it last said."""

    device: str
    engine: str = ""
    running: int = 0
    waiting: int = 0
    max_num_seqs: int = 0
    tokens_per_s: float = 0.0
    kv_use: float | None = None
    prefix_hits: float | None = None
    heard_at: float = 0.0
    """When that was, by the coordinator's clock: UTC seconds since 1970; 0 where it has said nothing yet."""


class CategoryProgress(msgspec.Struct, kw_only=True):
    """Answers of one category, the holdout among them."""

    wanted: int = 0
    """Answers of this run."""
    accepted: int = 0
    rejected: int = 0
    truncated: int = 0
    """Of the accepted, those that ran into max_tokens."""
    tokens: int = 0


class Progress(msgspec.Struct, kw_only=True):
    """Where a run is. Counts are answers of this run."""

    run_id: str
    build_id: str
    updated_at: float
    """UTC seconds since 1970."""
    seconds: float
    """Since the first engine was ready."""
    total: int
    accepted: int
    rejected: int
    failed: int
    """Of the rejected, those that an engine's failure rejected."""
    truncated: int
    tokens: int
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

    @property
    def finished(self) -> int:
        """Answers with an end."""
        return self.accepted + self.rejected


PROGRESS_FILE = "progress.json"


def publish_progress(folder: Path, progress: Progress) -> None:
    """Let other shells see it. No artefact: it is not synced, and a full disk stops nothing here."""
    temporary = folder / f".{PROGRESS_FILE}.part"
    with contextlib.suppress(OSError):
        temporary.write_bytes(msgspec.json.encode(progress))
        temporary.replace(folder / PROGRESS_FILE)


def read_progress(folder: Path) -> Progress | None:
    """What a run published last; None before that, or where it is of another draftmill."""
    try:
        return msgspec.json.decode((folder / PROGRESS_FILE).read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError):
        return None


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
    """Counts of one run."""

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
    _lengths: dict[str, _Lengths] = field(default_factory=dict)
    _points: deque[tuple[float, int]] = field(default_factory=deque)

    def want(self, wanted: dict[str, int]) -> None:
        """So many answers more of each category."""
        for category, answers in wanted.items():
            self._category(category).wanted += answers

    def accept(self, category: str, tokens: int, truncated: bool) -> None:
        """An answer is accepted."""
        one = self._category(category)
        one.accepted += 1
        one.truncated += truncated
        one.tokens += tokens
        self._spent(category, tokens)

    def reject(self, category: str, reason: str, tokens: int, failed: bool) -> None:
        """An answer is rejected; tokens may have been made."""
        self._category(category).rejected += 1
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
        """Of all categories."""
        return sum(one.accepted for one in self.categories.values())

    @property
    def rejected(self) -> int:
        """Of all categories."""
        return sum(one.rejected for one in self.categories.values())

    def progress(self, monotonic_s: float, updated_at: float, in_flight: int, queued: int) -> Progress:
        """A value of it now."""
        rate, spread = self._rate(monotonic_s)
        left_s, error_s = self._left(rate, spread)
        return Progress(
            run_id=self.run_id,
            build_id=self.build_id,
            updated_at=updated_at,
            seconds=monotonic_s - self.started_s,
            total=sum(one.wanted for one in self.categories.values()),
            accepted=self.accepted,
            rejected=self.rejected,
            failed=self.failed,
            truncated=sum(one.truncated for one in self.categories.values()),
            tokens=self.tokens,
            tokens_per_s=rate,
            left_s=left_s,
            left_error_s=error_s,
            in_flight=in_flight,
            queued=queued,
            stopping=self.stopping,
            categories={name: msgspec.structs.replace(one) for name, one in self.categories.items()},
            engines=[msgspec.structs.replace(one) for _, one in sorted(self.engines.items())],
        )

    def _rate(self, now_s: float) -> tuple[float, float]:
        """(tokens/s over the last RATE_WINDOW_S, its relative spread among tenths of it)."""
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
        if len(steps) < 3 or rate <= 0:
            return rate, 0.0
        mean = sum(steps) / len(steps)
        deviation = math.sqrt(sum((step - mean) ** 2 for step in steps) / (len(steps) - 1))
        return rate, deviation / math.sqrt(len(steps)) / rate

    def _left(self, rate: float, spread: float) -> tuple[float | None, float | None]:
        """(seconds left, two sigma of it); None where nothing is known yet."""
        whole = _Lengths()
        for lengths in self._lengths.values():
            whole.n, whole.sum, whole.squares = (
                whole.n + lengths.n, whole.sum + lengths.sum, whole.squares + lengths.squares,
            )  # fmt: skip
        if not whole.n or rate <= 0:
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
