"""Which engine settings are worth a try, and which of those that were measured to recommend: pure.

A staged search that reacts to results: sequences at once, then tokens of a step at the best of these, then the KV
dtypes that were asked for. The present engine section is measured first, and again at the end where another beat it;
only what beats it beyond the spread is recommended. A KV dtype changes what is said, so it must also agree with the
present one about as well as that agrees with itself. Starts no engine and reads no file; `tune_run` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from corpus.manifest import Engine
from generation.engine import AUTO_MAX_NUM_SEQS, CPU_BATCHED_TOKENS
from generation.fit import Fit, max_num_seqs

AUTO_BATCHED_TOKENS = {"cuda": 8192, "cpu": CPU_BATCHED_TOKENS}
"""What auto means for offline use, by kind of device: vLLM's own choice, on the CPU ours."""
LARGE_GPU_BYTES = 70 * (1 << 30)
LARGE_GPU_BATCHED_TOKENS = 16384
"""The same on a GPU of at least so much memory."""
GREEDY_TOKENS = 64
"""First tokens of each greedy answer that are compared."""
MARGIN = 0.01
"""What a KV dtype's agreement may fall short of the present one's agreement with itself."""


@dataclass(frozen=True)
class Setting:
    """What is tried of an engine."""

    max_num_seqs: int
    max_num_batched_tokens: int | None
    """None: the engine's own choice."""
    kv_cache_dtype: str

    def __str__(self) -> str:
        tokens = "auto" if self.max_num_batched_tokens is None else f"{self.max_num_batched_tokens:,}"
        return f"{self.max_num_seqs:,} sequences, {tokens} tokens a step, KV cache {self.kv_cache_dtype}"


@dataclass(frozen=True)
class Search:
    """What is known before anything is measured."""

    present: Setting
    """The manifest's engine section, the automatic max_num_seqs resolved."""
    auto_num_seqs: int
    most_num_seqs: int | None
    """What fits; None is unknown."""
    auto_batched_tokens: int
    """The engine's own choice, as far as it is known from outside."""
    max_model_len: int
    kv_cache_dtypes: tuple[str, ...] = ()
    """To be tried besides the present one."""
    settings: int = 6
    """Most settings that are tried; the present one's second time is not counted."""

    @property
    def largest_num_seqs(self) -> int:
        """The most sequences among the settings that are tried first: samples are sized by it."""
        return max(setting.max_num_seqs for setting in next_settings(self, ()))


@dataclass(frozen=True)
class Outcome:
    """What became of a setting: rates, or an error."""

    setting: Setting
    rates: tuple[float, ...] = ()
    """Generated tokens/s of each round; none where it failed."""
    start_s: float | None = None
    """None: it did not start."""
    error: str | None = None
    greedy: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Passes over the same prompts at temperature 0, the token ids of each answer; where they are compared."""

    @property
    def tokens_per_s(self) -> float:
        """The median round; of one that failed, 0."""
        return median(self.rates) if self.rates else 0.0


@dataclass(frozen=True)
class Exactness:
    """How far greedy answers of a KV dtype are those of the present one; parts of 1."""

    agreement: float
    itself: float
    """A second pass of the present one against its first: what batching alone changes."""

    @property
    def enough(self) -> bool:
        """Whether it may be recommended."""
        return self.agreement >= self.itself - MARGIN


@dataclass(frozen=True)
class Advice:
    """The setting to take, and its rate over that of the present one."""

    setting: Setting
    gain: float | None
    """None: the present section did not run, or is the advice."""


@dataclass(frozen=True)
class Timed:
    """When an answer was made. UTC seconds."""

    started_at: float
    first_token_at: float
    ended_at: float
    tokens: int


def search_for(
    engine: Engine,
    fit: Fit,
    kind: str,
    memory_bytes: int,
    max_model_len: int,
    kv_cache_dtypes: Sequence[str] = (),
    settings: int = 6,
) -> Search:
    """The search around a manifest's engine section.

    Args:
        fit: what fits on the device that measures.
        kind: of that device: cpu or cuda.
        memory_bytes: of one GPU; 0 is unknown.
        kv_cache_dtypes: that were asked for.
        settings: most settings that are tried, the present one included.
    """
    auto = max_num_seqs(fit) if kind == "cuda" else AUTO_MAX_NUM_SEQS[kind]
    bounds = [bound for bound in (fit.concurrency, fit.state_blocks) if bound is not None]
    large = kind == "cuda" and memory_bytes >= LARGE_GPU_BYTES
    tokens = None if engine.max_num_batched_tokens == "auto" else engine.max_num_batched_tokens
    present = Setting(auto if engine.max_num_seqs == "auto" else engine.max_num_seqs, tokens, engine.kv_cache_dtype)
    return Search(
        present=present,
        auto_num_seqs=auto,
        most_num_seqs=max(1, min(bounds)) if bounds else None,
        auto_batched_tokens=LARGE_GPU_BATCHED_TOKENS if large else AUTO_BATCHED_TOKENS[kind],
        max_model_len=max_model_len,
        kv_cache_dtypes=tuple(dict.fromkeys(dtype for dtype in kv_cache_dtypes if dtype != present.kv_cache_dtype)),
        settings=settings,
    )


def next_settings(search: Search, outcomes: Sequence[Outcome]) -> tuple[Setting, ...]:
    """What to measure next, all at once if there are devices; nothing when the search is over.

    The first is the present setting, and so is the last where another beat it. Called again when all that it named has
    an outcome.
    """
    if sum(outcome.setting == search.present for outcome in outcomes) > 1:
        return ()  # the second time is the last, whatever it makes the best
    tried = {outcome.setting for outcome in outcomes}
    most = search.settings - len(search.kv_cache_dtypes)  # what was asked for has room first
    rooms = (max(min(2, most), most - 2), most, search.settings)
    for propose, room in zip((_sequences, _batched, _kv_dtypes), rooms, strict=True):
        left = max(0 if tried else 1, room - len(tried))
        fresh = [one for one in dict.fromkeys(propose(search, outcomes)) if one not in tried][:left]
        if fresh:
            return tuple(fresh)
    return _again(search, outcomes)


def when_present_is_best(search: Search) -> tuple[Setting, ...]:
    """What the search would try if nothing beat the present setting: what a dry run shows."""
    outcomes: list[Outcome] = []
    while batch := next_settings(search, outcomes):
        outcomes += [Outcome(setting, (2.0 if setting == search.present else 1.0,)) for setting in batch]
    return tuple(outcome.setting for outcome in outcomes)


def _sequences(search: Search, outcomes: Sequence[Outcome]) -> list[Setting]:
    """The present and the automatic number, twice and half of it; while the end is the best, on from there."""
    middle = search.auto_num_seqs
    counts = [middle, 2 * middle, middle // 2]
    if (best := best_of(outcomes)) is not None:
        seen = [outcome.setting.max_num_seqs for outcome in outcomes]
        at = best.setting.max_num_seqs
        counts += [at * 2] if at == max(seen) else [at // 2] if at == min(seen) else []
    most = search.most_num_seqs
    fitting = dict.fromkeys(min(count, most or count) for count in counts if count > 0)
    return [search.present, *(_with(search.present, max_num_seqs=count) for count in fitting)]


def _batched(search: Search, outcomes: Sequence[Outcome]) -> list[Setting]:
    """Twice and four times the engine's own tokens of a step, as far as the sequences can fill one."""
    present, best = search.present, best_of(outcomes)
    if best is None or any(one.setting != _with(present, max_num_seqs=one.setting.max_num_seqs) for one in outcomes):
        return []  # nothing ran, or this was done
    base, most = search.auto_batched_tokens, best.setting.max_num_seqs * search.max_model_len
    now = best.setting.max_num_batched_tokens or base
    steps = [tokens for tokens in (2 * base, 4 * base) if tokens != now and tokens < 2 * most]
    if now != base:
        steps.insert(0, base)
    return [_with(best.setting, max_num_batched_tokens=tokens) for tokens in steps]


def _kv_dtypes(search: Search, outcomes: Sequence[Outcome]) -> list[Setting]:
    """The KV dtypes that were asked for, at the best of the present one's settings."""
    best = best_of([one for one in outcomes if one.setting.kv_cache_dtype == search.present.kv_cache_dtype])
    tried = {outcome.setting.kv_cache_dtype for outcome in outcomes}
    if best is None:
        return []
    return [replace(best.setting, kv_cache_dtype=dtype) for dtype in search.kv_cache_dtypes if dtype not in tried]


def _again(search: Search, outcomes: Sequence[Outcome]) -> tuple[Setting, ...]:
    """The present setting once more where another beat it: the machine may have been busier at first."""
    advice = advise(search, outcomes)
    return () if advice is None or advice.gain is None else (search.present,)


def _with(setting: Setting, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None) -> Setting:
    """Changed; a step always has a token for each sequence, as the engine demands."""
    seqs = max_num_seqs or setting.max_num_seqs
    tokens = max_num_batched_tokens or setting.max_num_batched_tokens
    return replace(setting, max_num_seqs=seqs, max_num_batched_tokens=None if tokens is None else max(tokens, seqs))


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The fastest that ran; of equals the one that was tried first."""
    return max((one for one in outcomes if one.rates), key=lambda one: one.tokens_per_s, default=None)


def agreement(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> float:
    """Part of greedy tokens that two passes share before each answer's first difference; 1 where all are equal.

    Of each answer the first GREEDY_TOKENS count, of two lengths the longer one.
    """
    shared = total = 0
    for one, other in zip(first, second, strict=True):
        a, b = one[:GREEDY_TOKENS], other[:GREEDY_TOKENS]
        total += max(len(a), len(b))
        shared += next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
    return shared / total if total else 1.0


def exactness(search: Search, outcome: Outcome, outcomes: Sequence[Outcome]) -> Exactness | None:
    """How exact a setting of another KV dtype is; None where it, or the present one, gave no answers to compare."""
    twice = next((one.greedy for one in outcomes if one.setting == search.present), ())
    if len(twice) < 2 or not outcome.greedy:
        return None
    return Exactness(agreement(twice[0], outcome.greedy[0]), agreement(twice[0], twice[1]))


def allowed(search: Search, outcome: Outcome, outcomes: Sequence[Outcome]) -> bool:
    """Whether a setting may be recommended: of the present KV dtype, or exact enough."""
    if outcome.setting.kv_cache_dtype == search.present.kv_cache_dtype:
        return True
    exact = exactness(search, outcome, outcomes)
    return exact is not None and exact.enough


def advise(search: Search, outcomes: Sequence[Outcome]) -> Advice | None:
    """The fastest allowed setting whose slowest round beats the present section's fastest, else the present one.

    None where nothing ran.
    """
    usable = [one for one in outcomes if one.rates and allowed(search, one, outcomes)]
    present = present_rates(search, outcomes)
    if not present:
        best = best_of(usable)
        return None if best is None else Advice(best.setting, None)
    best = best_of([one for one in usable if min(one.rates) > max(present)])
    if best is None:
        return Advice(search.present, None)
    return Advice(best.setting, best.tokens_per_s / median(present))


def not_shown(search: Search, outcomes: Sequence[Outcome]) -> Outcome | None:
    """The fastest allowed setting, where it beats the present section in the median but not beyond the spread."""
    present = present_rates(search, outcomes)
    best = best_of([one for one in outcomes if one.setting != search.present and allowed(search, one, outcomes)])
    if best is None or not present or best.tokens_per_s <= median(present):
        return None
    return None if min(best.rates) > max(present) else best


def present_rates(search: Search, outcomes: Sequence[Outcome]) -> tuple[float, ...]:
    """Generated tokens/s of every round of the present setting, each time that it was measured."""
    return tuple(rate for one in outcomes if one.setting == search.present for rate in one.rates)


def changes(engine: Engine, search: Search, setting: Setting) -> dict[str, Any]:
    """The keys of the engine section that a setting changes, with their values."""
    present, changed = search.present, {}
    for name in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype"):
        value = getattr(setting, name)
        if value != getattr(present, name):
            changed[name] = value
    assert set(changed) <= set(type(engine).model_fields)
    return changed


def round_rates(answers: Sequence[Timed], max_num_seqs: int, rounds: int) -> tuple[float, ...]:
    """Generated tokens/s in `rounds` equal parts of the time in which the engine was full.

    From the start of the answer that filled it to the start of the last one: before, it fills, after, it runs dry, and
    in hours of generation neither counts. An answer's tokens are laid evenly between its first and its end.

    Raises:
        ValueError: the engine was never full: max_num_seqs answers, or fewer, or all at once.
    """
    started = sorted(answer.started_at for answer in answers)
    if len(started) <= max_num_seqs:
        raise ValueError(f"{len(started)} answers fill no engine of {max_num_seqs} sequences")
    begin, end = started[max_num_seqs - 1], started[-1]
    part_s = (end - begin) / rounds
    if part_s <= 0:
        raise ValueError("all answers began at once, which leaves no time to measure")
    edges = [begin + i * part_s for i in range(rounds + 1)]
    return tuple(sum(_tokens_within(answer, low, high) for answer in answers) / part_s for low, high in pairwise(edges))


def _tokens_within(answer: Timed, low: float, high: float) -> float:
    length = answer.ended_at - answer.first_token_at
    if length <= 0:
        return float(answer.tokens) if low <= answer.ended_at < high else 0.0
    overlap = min(high, answer.ended_at) - max(low, answer.first_token_at)
    return answer.tokens * max(0.0, overlap) / length
