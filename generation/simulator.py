"""A run of many engines, simulated: when does each answer end under an order and a way to hand it out?

Contract: pure and exact for its model, no wall clock, the same input gives the same floats. An engine makes one
token for each running sequence a step; a step takes `base_s + per_running_s * running` and, where sequences start in
it, `per_prompt_token_s` for each of their prompt tokens. An engine holds `capacity` items (running, waiting, on their
way) and is handed another when it returns one. Not modelled: context length, prefix cache, preemption, failures.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from generation.engine import capacity_of


@dataclass(frozen=True)
class StepModel:
    """Seconds of an engine's step."""

    base_s: float
    per_running_s: float
    per_prompt_token_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.base_s >= 0 and self.per_running_s >= 0 and self.per_prompt_token_s >= 0 and self.step_s(1) > 0):
            raise ValueError(f"a step takes {self}; every part must be at least 0 and a step longer than 0 s")

    def step_s(self, running: int) -> float:
        """A step with `running` sequences and no prompt."""
        return self.base_s + self.per_running_s * running


@dataclass(frozen=True)
class Engines:
    """Equal engines, all ready at 0 s."""

    count: int
    max_num_seqs: int
    """Sequences that one runs at once."""
    step: StepModel
    latency_s: float = 0.0
    """From an answer's last step until the next item is in the engine's queue."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.max_num_seqs < 1 or not 0 <= self.latency_s < math.inf:
            raise ValueError(f"{self}: count and max_num_seqs must be at least 1, latency_s at least 0")

    @property
    def capacity(self) -> int:
        """Items that one holds."""
        return capacity_of(self.max_num_seqs)


@dataclass(frozen=True)
class Item:
    """One request."""

    prompt_tokens: int
    response_tokens: int
    """At least 1."""


@dataclass(frozen=True)
class Simulated:
    """What happened. Times are seconds from the start; items are in the order in which they were given."""

    engine_of: tuple[int, ...]
    started_s: tuple[float, ...]
    """The start of an item's first step."""
    ended_s: tuple[float, ...]
    """The end of its last."""
    end_s: float
    dry_s: float
    """When the last item was handed out."""
    busy_s: tuple[float, ...]
    """By engine, time in steps."""
    tokens: tuple[int, ...]
    """By engine, tokens made."""
    most_running: tuple[int, ...]
    """By engine."""
    full_share: float
    """Part of the engines' time until dry_s in which one had at least max_num_seqs items running or waiting; 1 where
    everything was handed out at once."""

    @property
    def idle_share(self) -> float:
        """Part of the engines' time until the end of the run in which one made no step."""
        return 1.0 - sum(self.busy_s) / (len(self.busy_s) * self.end_s) if self.end_s else 0.0


def fit_step(samples: Sequence[tuple[int, float]], per_prompt_token_s: float = 0.0) -> StepModel:
    """Least squares of step seconds on the running count.

    Args:
        samples: (running, seconds of a step without prompts). With one running count only, the base is 0.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("no step was measured; at least one sample is needed")
    running = np.array([count for count, _ in samples], dtype=np.float64)
    seconds = np.array([step_s for _, step_s in samples], dtype=np.float64)
    spread = running - running.mean()
    slope = float(spread @ seconds / (spread @ spread)) if spread.any() else math.inf
    base = float(seconds.mean() - slope * running.mean())
    if slope < 0:  # neither part of a step can be negative: the nearest model that is allowed has it at 0
        slope, base = 0.0, float(seconds.mean())
    elif base < 0 or math.isinf(slope):
        slope, base = float(running @ seconds / (running @ running)), 0.0
    return StepModel(base, slope, per_prompt_token_s)


def round_robin(count: int, engines: int) -> list[int]:
    """The engine of each of `count` items, dealt in turn."""
    return [place % engines for place in range(count)]


def static_split(count: int, engines: int) -> list[int]:
    """The engine of each of `count` items, cut into runs whose sizes differ by at most one."""
    return [place * engines // count for place in range(count)]


def total_work_s(items: Sequence[Item], engines: Engines) -> float:
    """Seconds that one always full engine needs for everything; divided by the count, no run can be shorter.

    A token of a step with n sequences costs step_s(n) / n, which is least at n = max_num_seqs.
    """
    token_s = engines.step.step_s(engines.max_num_seqs) / engines.max_num_seqs
    return sum(item.response_tokens * token_s + item.prompt_tokens * engines.step.per_prompt_token_s for item in items)


def longest_answer_s(items: Sequence[Item], engines: Engines) -> float:
    """Seconds of the answer that takes longest if each ran alone on its engine: no run can be shorter."""
    step = engines.step
    return max(
        (i.response_tokens * step.step_s(1) + i.prompt_tokens * step.per_prompt_token_s for i in items), default=0.0
    )


@dataclass
class _Engine:
    """One engine between two boundaries of its steps."""

    arriving: deque[tuple[float, int]] = field(default_factory=deque)
    """(time in its queue, item), in order: running on their way, or waiting."""
    running: list[tuple[int, int]] = field(default_factory=list)
    """Heap of (number of its last step, item)."""
    steps: int = 0
    busy_s: float = 0.0
    tokens: int = 0
    most_running: int = 0
    held: int = 0


def simulate(
    items: Sequence[Item], engines: Engines, order: Sequence[int], engine_of: Sequence[int] | None = None
) -> Simulated:
    """Run `items` in `order`, each on the engine that has most room when its turn comes.

    Args:
        order: positions in `items`, the first to be handed out first; a permutation.
        engine_of: by place in `order`, the engine that alone may take it; None lets every engine pull.

    Raises:
        ValueError: `order` is no permutation, an engine does not exist, or an item has no tokens.
    """
    _check(items, engines, order, engine_of)
    return _Run(items, engines, order, engine_of).run()


class _Run:
    """The state of one simulation."""

    def __init__(
        self, items: Sequence[Item], engines: Engines, order: Sequence[int], engine_of: Sequence[int] | None
    ) -> None:
        self.items, self.model = items, engines
        self.engines = [_Engine() for _ in range(engines.count)]
        one: deque[int] = deque()
        self.queues = [deque[int]() if engine_of else one for _ in self.engines]
        for place, item in enumerate(order):
            self.queues[engine_of[place] if engine_of else 0].append(item)
        self.chosen = [0] * len(items)
        self.started_s = [0.0] * len(items)
        self.ended_s = [0.0] * len(items)
        self.dry_s = 0.0
        self.levels: list[list[tuple[float, int]]] = [[] for _ in self.engines]
        """By engine, (time, change) of the items that it has running or waiting."""

    def run(self) -> Simulated:
        for _ in range(self.model.capacity):  # in turn: each pull goes to the engine that has most room
            for number in range(self.model.count):
                self._hand_out(number, 0.0)
        boundaries = [(self.model.latency_s, n) for n, engine in enumerate(self.engines) if engine.held]
        heapq.heapify(boundaries)
        while boundaries:
            at_s, number = boundaries[0]
            next_s = self._advance(number, at_s)
            if next_s is None:
                heapq.heappop(boundaries)
            else:
                heapq.heapreplace(boundaries, (next_s, number))
        return Simulated(
            tuple(self.chosen),
            tuple(self.started_s),
            tuple(self.ended_s),
            max(self.ended_s, default=0.0),
            self.dry_s,
            tuple(engine.busy_s for engine in self.engines),
            tuple(engine.tokens for engine in self.engines),
            tuple(engine.most_running for engine in self.engines),
            self._full_share(),
        )

    def _hand_out(self, number: int, at_s: float) -> None:
        if queue := self.queues[number]:
            item = queue.popleft()
            engine = self.engines[number]
            engine.arriving.append((at_s + self.model.latency_s, item))
            engine.held += 1
            self.chosen[item] = number
            self.dry_s = at_s
            self.levels[number].append((at_s + self.model.latency_s, 1))

    def _advance(self, number: int, at_s: float) -> float | None:
        """The boundary between steps after the one at `at_s` at which something ends or can start; None: done.

        What ends is returned when its boundary's turn comes, not when the jump to it is made: engines that reach
        theirs before must find the queue as it is then.
        """
        engine, step = self.engines[number], self.model.step
        while engine.running and engine.running[0][0] == engine.steps:
            _, item = heapq.heappop(engine.running)
            self.ended_s[item] = at_s
            engine.held -= 1
            self.levels[number].append((at_s, -1))
            self._hand_out(number, at_s)
        prompt_tokens = 0
        started = False
        while engine.arriving and engine.arriving[0][0] <= at_s and len(engine.running) < self.model.max_num_seqs:
            _, item = engine.arriving.popleft()
            heapq.heappush(engine.running, (engine.steps + self.items[item].response_tokens, item))
            self.started_s[item] = at_s
            prompt_tokens += self.items[item].prompt_tokens
            started = True
        running = len(engine.running)
        if not running:
            return engine.arriving[0][0] if engine.arriving else None
        engine.most_running = max(engine.most_running, running)
        step_s = step.step_s(running)
        steps = engine.running[0][0] - engine.steps
        if started:
            steps, seconds = 1, step_s + prompt_tokens * step.per_prompt_token_s
        else:
            if running < self.model.max_num_seqs and engine.arriving:
                # the first boundary at which what is on its way can start
                steps = min(steps, max(1, math.ceil((engine.arriving[0][0] - at_s) / step_s)))
            seconds = steps * step_s
        engine.steps += steps
        engine.busy_s += seconds
        engine.tokens += steps * running
        return at_s + seconds

    def _full_share(self) -> float:
        if not self.dry_s:
            return 1.0
        full_s = 0.0
        for changes in self.levels:
            level, since_s = 0, 0.0
            for at_s, change in sorted(changes):
                if level >= self.model.max_num_seqs:
                    full_s += max(0.0, min(at_s, self.dry_s) - since_s)
                level, since_s = level + change, min(at_s, self.dry_s)
        return full_s / (self.dry_s * self.model.count)


def _check(items: Sequence[Item], engines: Engines, order: Sequence[int], engine_of: Sequence[int] | None) -> None:
    if sorted(order) != list(range(len(items))):
        raise ValueError(f"order has {len(order)} places for {len(items)} items; it must name each item once")
    if engine_of is not None and (
        len(engine_of) != len(order) or not all(0 <= number < engines.count for number in engine_of)
    ):
        raise ValueError(f"engine_of must name one of {engines.count} engines for each of {len(order)} places")
    for position, item in enumerate(items):
        if item.response_tokens < 1 or item.prompt_tokens < 0:
            raise ValueError(f"items[{position}] is {item}; it must have at least 1 response token, 0 prompt tokens")
