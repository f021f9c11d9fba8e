"""Tokens a second of every engine of a build, over its runs laid end to end: at most BINS points an engine.

The time between two runs is left out, and where the next begins is kept. A bin is the mean of an engine's samples in
it; all engines together are the sum of their bins, so an engine that was not sampled in one counts as not running.
"""

from __future__ import annotations

from collections import defaultdict

from corpus.ledger.writer import Readable
from draftmill.looking.report_facts import Engine, Rates

BINS = 240
MOST_ENGINES = 64
LEAST_BIN_S = 1.0
SAMPLES_A_BIN = 1.5
"""Of the slowest sampled run: a bin without one would look like an engine that stood still."""
LEAST_BINS = 5


def read_rates(ledger: Readable, build_id: str) -> tuple[Rates, ...]:
    """Of every command that has samples, in the order in which they first ran."""
    spans = ledger.rows(
        "SELECT r.command, s.run_id, epoch(min(s.sampled_at)), epoch(max(s.sampled_at)), "
        "count(*) / count(DISTINCT (s.engine, s.device)) "
        "FROM engine_samples s JOIN runs r USING (run_id) WHERE r.build_id = ? AND isfinite(s.sampled_at) "
        "GROUP BY ALL ORDER BY 2",
        build_id,
    )
    by_command: dict[str, list[tuple[str, float, float, float]]] = defaultdict(list)
    for command, run_id, first, last, samples in spans:
        by_command[command].append((run_id, first, last, samples))
    return tuple(_rates(ledger, command, runs) for command, runs in by_command.items())


def _rates(ledger: Readable, command: str, runs: list[tuple[str, float, float, float]]) -> Rates:
    seconds = sum(last - first for _, first, last, _ in runs)
    every = max((last - first) / max(samples - 1, 1) for _, first, last, samples in runs)
    width = max(seconds / BINS, min(every * SAMPLES_A_BIN, seconds / LEAST_BINS), LEAST_BIN_S)
    starts: list[float] = []
    reached = 0.0
    for _, first, last, _ in runs:
        starts.append(reached)
        reached += max(last - first, width)
    samples = ledger.rows(
        "WITH own AS ("
        "SELECT unnest(?::VARCHAR[]) AS run_id, unnest(?::DOUBLE[]) AS first, unnest(?::DOUBLE[]) AS start) "
        "SELECT coalesce(s.engine, ''), coalesce(s.device, ''), "
        "least(floor((o.start + epoch(s.sampled_at) - o.first) / ?)::BIGINT, ?) AS bin, count(*), avg(s.tokens_per_s), "
        "avg(s.running), avg(s.kv_use), avg(s.prefix_hits) FROM engine_samples s JOIN own o USING (run_id) "
        "WHERE s.tokens_per_s IS NOT NULL AND isfinite(s.sampled_at) GROUP BY ALL ORDER BY ALL",
        [run for run, *_ in runs],
        [first for _, first, *_ in runs],
        starts,
        width,
        max(int(reached / width) - 1, 0),  # what is left at the end is no bin of its own: it would look like a fall
    )
    total: dict[int, float] = defaultdict(float)
    own: dict[tuple[str, str], list[tuple[int, int, float, float | None, float | None, float | None]]] = defaultdict(
        list
    )
    for engine, device, place, *figures in samples:
        own[engine, device].append((place, *figures))
        total[place] += figures[1]
    engines = tuple(_engine(command, name, device, bins, width) for (name, device), bins in sorted(own.items()))
    return Rates(command, reached, _points(total, width), engines[:MOST_ENGINES], tuple(starts[1:]))


def _engine(
    command: str,
    name: str,
    device: str,
    bins: list[tuple[int, int, float, float | None, float | None, float | None]],
    width: float,
) -> Engine:
    samples = sum(count for _, count, *_ in bins)

    def mean(place: int) -> float | None:
        known = [(one[1], one[place]) for one in bins if one[place] is not None]
        weight = sum(count for count, _ in known)
        return sum(count * (value or 0.0) for count, value in known) / weight if weight else None

    rates = {place: rate for place, _, rate, *_ in bins}
    return Engine(
        command, name, device, samples, mean(2) or 0.0, max(rates.values()), mean(3), mean(4), mean(5),
        _points(rates, width),
    )  # fmt: skip


def _points(bins: dict[int, float], width: float) -> tuple[tuple[float, float | None], ...]:
    """Bins in order, with a gap where one or more is missing."""
    points: list[tuple[float, float | None]] = []
    before: int | None = None
    for place in sorted(bins):
        if before is not None and place > before + 2:
            points.append(((before + 1) * width, None))
        points.append(((place + 0.5) * width, bins[place]))
        before = place
    return tuple(points)
