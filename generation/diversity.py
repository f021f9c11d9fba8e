"""Do answers differ as a sampler's should? A self-test of engines, and a watch over a run's own answers.

Requests that share a random stream get the same noise for their k-th token. Equal prompts then have equal answers.
Distinct prompts do not, and hardly show it: SmolLM2's answers at temperature 0.7 agreed at equal places in 1.34% of
tokens with one stream, in 1.05% without. So the self-test asks one prompt several times, as hot as engines allow, where
no model says the same twice by itself. The watch sees what breaks later, or a self-test does not reach (an engine that
writes the same to everyone); a sharp model repeats itself rightly, so the watch only warns. Pure; bounded memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

SELF_TEST_SAMPLING = {"temperature": 2.0}
"""The most that vLLM takes."""
SELF_TEST_TOKENS = 32
SELF_TEST_ANSWERS = 4
"""Answers an engine, all to one short prompt, asked at once."""
MIN_TOKENS = 16
"""Of an answer that the self-test can judge."""
SAME_SHARE = 0.5
"""Two answers share a stream if so many of their tokens agree, each with the one at its own place.

With one stream equal prompts have equal answers. Where independent answers agree by chance with probability c a token,
a pair of 32 tokens reaches the share with less than 2^32 c^16, 4e-23 at c = 0.01; 64 answers have 2,016 pairs.
"""

LONG = 32
"""Tokens of an answer that the watch looks at: shorter ones are equal by right, too often."""
MIN_SEEN = 200
"""The watch says nothing before so many answers or pairs."""
EQUAL_REPLICAS = 0.5
"""Share of replicas of one prompt that repeat another replica token by token. A shared stream comes near 1."""
EQUAL_ANSWERS = 0.05
"""Share of answers that repeat one to another prompt token by token: canned refusals stay below."""
WINDOW = 1000
"""At twice so many answers or pairs the counts are halved: what breaks after hours must not drown in what went well."""
KEPT = 20_000
"""Answers that each recipe's watch remembers."""


def diversity_verdict(answers_by_engine: Mapping[str, Sequence[Sequence[int]]]) -> str | None:
    """Judge a self-test.

    Args:
        answers_by_engine: token ids of SELF_TEST_ANSWERS answers of each engine, made with SELF_TEST_SAMPLING,
            SELF_TEST_TOKENS long, over the code path that the run's requests take.

    Returns:
        None if all answers, of one engine and of any two, have streams of their own; else what is wrong, in one line.
    """
    long = {
        engine: [list(answer[:SELF_TEST_TOKENS]) for answer in answers if len(answer) >= MIN_TOKENS]
        for engine, answers in answers_by_engine.items()
    }
    for engine, answers in long.items():
        if len(answers) < 2:
            return (
                f"{engine}: {len(answers)} of {len(answers_by_engine[engine])} self-test answers have {MIN_TOKENS} "
                "tokens; 2 are needed to tell whether requests share a random stream."
            )
        pairs = list(combinations(answers, 2))
        shared = sum(_share_stream(a, b) for a, b in pairs)
        if shared:
            return (
                f"{engine}: {shared} of {len(pairs)} pairs of self-test answers share one random stream. Give each "
                "request a seed of its own, or none."
            )
    for (one, answers), (other, others) in combinations(long.items(), 2):
        if any(_share_stream(a, b) for a in answers for b in others):
            return f"{one} and {other} share one random stream. Give each engine a seed of its own."
    return None


@dataclass
class _Watched:
    """What is known of one recipe's answers."""

    prompts: OrderedDict[tuple[str, int], set[int]] = field(default_factory=OrderedDict)
    """(prompt, turn) to the digests of its answers."""
    answers: OrderedDict[int, tuple[str, int]] = field(default_factory=OrderedDict)
    """Digest of an answer to the first prompt that had it."""
    seen: int = 0
    equal: int = 0
    replicas: int = 0
    equal_replicas: int = 0
    warned: set[str] = field(default_factory=set)


class DiversityCheck:
    """The watch. Fed each answer as it comes; says each thing that is wrong with a recipe once.

    Two rates a recipe, each over the last WINDOW or so and from MIN_SEEN on: replicas that repeat another replica of
    their prompt (over EQUAL_REPLICAS), and answers that repeat one to another prompt (over EQUAL_ANSWERS), token by
    token.
    """

    def __init__(self) -> None:
        self._recipes: dict[str, _Watched] = {}

    def add(
        self, recipe_id: str, prompt_id: str, turn: int, token_ids: Sequence[int], *, temperature: float
    ) -> str | None:
        """Take in one answer; a warning in one line where this answer makes it due.

        Answers below LONG tokens and greedy ones (temperature 0) do not count.

        Args:
            token_ids: every generated token.
        """
        if temperature <= 0 or len(token_ids) < LONG:
            return None
        watched = self._recipes.setdefault(recipe_id, _Watched())
        _count(watched, (prompt_id, turn), hash(tuple(token_ids)))
        for what, warning in _warnings(watched):
            if what not in watched.warned:
                watched.warned.add(what)
                return f"recipe {recipe_id}: {warning}"
        return None


def _count(watched: _Watched, key: tuple[str, int], answer: int) -> None:
    earlier = watched.prompts.setdefault(key, set())
    if earlier:
        watched.replicas += 1
        watched.equal_replicas += answer in earlier
    earlier.add(answer)
    watched.seen += 1
    watched.equal += watched.answers.setdefault(answer, key)[0] != key[0]
    if watched.seen >= 2 * WINDOW:
        watched.seen, watched.equal = WINDOW, watched.equal // 2
    if watched.replicas >= 2 * WINDOW:
        watched.replicas, watched.equal_replicas = WINDOW, watched.equal_replicas // 2
    for kept in (watched.prompts, watched.answers):
        if len(kept) > KEPT:
            kept.popitem(last=False)


def _warnings(watched: _Watched) -> list[tuple[str, str]]:
    """What is wrong by now: (which rate, the warning)."""
    found = []
    if watched.replicas >= MIN_SEEN and watched.equal_replicas > EQUAL_REPLICAS * watched.replicas:
        counts = f"{watched.equal_replicas} of the last {watched.replicas}"
        why = "they share a random stream, or the model is sure of them. Check the seeds."
        found.append(("replicas", f"{counts} replicas repeat another's answer; {why}"))
    if watched.seen >= MIN_SEEN and watched.equal > EQUAL_ANSWERS * watched.seen:
        counts = f"{watched.equal} of the last {watched.seen}"
        why = "an engine may be broken, or the prompts say the same. Look at them."
        found.append(("answers", f"{counts} answers are those to other prompts, token by token; {why}"))
    return found


def _share_stream(one: Sequence[int], other: Sequence[int]) -> bool:
    return _agreeing(one, other) >= SAME_SHARE * min(len(one), len(other))


def _agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that are equal at equal places."""
    return sum(a == b for a, b in zip(one, other, strict=False))
