"""Counts what an engine does between two samples: pure numbers, for the real engine and the fake one.

The handler counts items in and out; the engine's statistics, where it gives any, refine running, waiting,
tokens and the use of the KV cache. The clock is passed in.
"""

from __future__ import annotations

from generation.messages import EngineSample


class Meter:
    """Counters of one engine."""

    def __init__(self, max_num_seqs: int, monotonic_s: float) -> None:
        self._max_num_seqs = max_num_seqs
        self._since_s = monotonic_s
        self._tokens = 0
        self._running: int | None = None
        self._kv_use: float | None = None
        self._looked_up = self._hits = 0
        self.in_flight = 0
        self.last_step_s = monotonic_s

    def began(self, monotonic_s: float) -> None:
        """An item came in."""
        if not self.in_flight:
            self.last_step_s = monotonic_s  # an idle engine makes no steps, and has not stalled
        self.in_flight += 1

    def ended(self) -> None:
        """An item went out, answered or not."""
        self.in_flight -= 1

    def step(self, monotonic_s: float, tokens: int, running: int | None = None, kv_use: float | None = None) -> None:
        """The engine made a step, or several."""
        self.last_step_s = monotonic_s
        self._tokens += tokens
        self._running = running if running is not None else self._running
        self._kv_use = kv_use if kv_use is not None else self._kv_use

    def looked_up(self, tokens: int, hits: int) -> None:
        """Prompt tokens were looked up in the prefix cache, and so many were there."""
        self._looked_up += tokens
        self._hits += hits

    def stalled_s(self, monotonic_s: float) -> float:
        """How long the engine has had work and made no step."""
        return monotonic_s - self.last_step_s if self.in_flight else 0.0

    def sample(self, sampled_at: float, monotonic_s: float) -> EngineSample:
        """A sample of the time since the last one."""
        seconds = max(monotonic_s - self._since_s, 1e-9)
        known = self._max_num_seqs if self._running is None else self._running
        running = min(known, self.in_flight)
        sample = EngineSample(
            sampled_at=sampled_at,
            running=running,
            waiting=self.in_flight - running,
            tokens_per_s=self._tokens / seconds,
            kv_use=self._kv_use,
            prefix_hits=self._hits / self._looked_up if self._looked_up else None,
        )
        self._tokens, self._since_s = 0, monotonic_s
        self._looked_up = self._hits = 0
        return sample
