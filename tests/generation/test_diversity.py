"""Shared random streams are seen, healthy ones are not blamed: a sampler of made-up models, with seeds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from generation.diversity import (
    EQUAL_REPLICAS,
    KEPT,
    MIN_SEEN,
    SELF_TEST_ANSWERS,
    SELF_TEST_SAMPLING,
    SELF_TEST_TOKENS,
    WINDOW,
    DiversityCheck,
    diversity_verdict,
)

VOCABULARY = 2000


def sample(
    models: np.random.Generator, prompts: int, streams: list[np.random.Generator], *, temperature: float, tokens: int
) -> list[list[int]]:
    """One answer a stream, to distinct prompts (or one prompt). Common words are common everywhere; contexts differ.

    As engines sample: the token with the greatest p / q, q exponential noise of the request's own stream.
    """
    common = -1.2 * np.log(np.arange(1, VOCABULARY + 1))
    answers: list[list[int]] = [[] for _ in streams]
    for _ in range(tokens):
        contexts: npt.NDArray[np.float64] = common + models.normal(0, 3.0, (prompts, VOCABULARY))
        for i, stream in enumerate(streams):
            logits = contexts[i % prompts]
            noise = -np.log(stream.exponential(size=VOCABULARY))
            answers[i].append(int(np.argmax(logits / temperature + noise)))
    return answers


def own(count: int, seed: int) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, i]) for i in range(count)]


def shared(count: int, seed: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for _ in range(count)]


def self_test(seed: int, prompts: int, engines: list[list[np.random.Generator]]) -> dict[str, list[list[int]]]:
    return {
        f"engine {i}": sample(
            np.random.default_rng([seed, 99]),
            prompts,
            streams,
            temperature=SELF_TEST_SAMPLING["temperature"],
            tokens=SELF_TEST_TOKENS,
        )
        for i, streams in enumerate(engines)
    }


@pytest.mark.parametrize("seed", range(5))
def test_the_self_test(seed: int) -> None:
    k, prompts = SELF_TEST_ANSWERS, 1
    assert diversity_verdict(self_test(seed, prompts, [own(k, 10 + i) for i in range(4)])) is None
    within = diversity_verdict(self_test(seed, prompts, [own(k, 10), shared(k, 11)]))
    assert within is not None
    assert within.startswith("engine 1: 6 of 6 pairs")
    between = diversity_verdict(self_test(seed, prompts, [own(k, 10), own(k, 11), own(k, 10)]))
    assert between is not None
    assert between.startswith("engine 0 and engine 2 share")


def test_a_self_test_that_shows_nothing_is_no_pass() -> None:
    verdict = diversity_verdict({"engine 0": [[1] * 3, list(range(32))]})
    assert verdict is not None
    assert verdict.startswith("engine 0: 1 of 2")


def watch(answers: list[list[int]], check: DiversityCheck | None = None) -> list[str]:
    check = check or DiversityCheck()
    said = (check.add("r", f"p{i}", 0, ids, temperature=0.7) for i, ids in enumerate(answers))
    return [warning for warning in said if warning]


def test_healthy_answers_to_distinct_prompts() -> None:
    count = MIN_SEEN + 60
    models = np.random.default_rng(99)
    assert watch(sample(models, count, own(count, 3), temperature=0.7, tokens=40)) == []


def test_equal_answers_to_distinct_prompts() -> None:
    rng = np.random.default_rng(5)
    canned = list(range(40))
    answers = [canned if i % 10 == 0 else rng.integers(0, 500, 40).tolist() for i in range(3 * MIN_SEEN)]
    warnings = watch(answers)
    assert len(warnings) == 1
    assert "answers are those to other prompts" in warnings[0]
    rare = [canned if i % 50 == 0 else rng.integers(0, 500, 40).tolist() for i in range(3 * MIN_SEEN)]
    assert watch(rare) == []


@pytest.mark.parametrize(("equal", "warned"), [(0.9, True), (0.2, False)])
def test_replicas(equal: float, warned: bool) -> None:
    assert (equal > EQUAL_REPLICAS) is warned
    rng = np.random.default_rng(6)
    check, warnings = DiversityCheck(), []
    for i in range(2 * MIN_SEEN):
        first = rng.integers(0, 500, 40).tolist()
        second = first if rng.random() < equal else rng.integers(0, 500, 40).tolist()
        for ids in (first, second):
            warnings += [w for w in [check.add("r", f"p{i}", 0, ids, temperature=1.0)] if w]
    assert len(warnings) == warned
    assert all("replicas repeat" in warning for warning in warnings)


def test_an_engine_that_breaks_after_long() -> None:
    rng = np.random.default_rng(8)
    check = DiversityCheck()
    healthy = rng.integers(0, 500, (20 * WINDOW, 40)).tolist()
    assert watch(healthy, check) == []
    assert len(watch([[0] * 40] * WINDOW, check)) == 1


def test_what_does_not_count() -> None:
    check = DiversityCheck()
    for i in range(2 * MIN_SEEN):
        assert check.add("greedy", f"p{i}", 0, [7] * 40, temperature=0.0) is None
        assert check.add("short", f"p{i}", 0, [7] * 20, temperature=1.0) is None
        assert check.add(f"recipe {i}", "p", 0, [7] * 40, temperature=1.0) is None


def test_memory_is_bounded() -> None:
    check = DiversityCheck()
    rng = np.random.default_rng(7)
    for i in range(KEPT + 500):
        check.add("r", f"p{i}", 0, rng.integers(0, 9999, 32).tolist(), temperature=1.0)
    watched = check._recipes["r"]
    assert len(watched.answers) == len(watched.prompts) == KEPT
