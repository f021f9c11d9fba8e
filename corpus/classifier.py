"""The category of a prompt, from its words and its structure: what stands behind `category: classify`.

The user's first and last turn are judged, with those between where these two say nothing; the system turn shows
whether tools are offered, and its rules count where the user's turns leave it open. The marks find structure (a code
fence, an equation) and write it down as words that begin with "~"; category_rules holds every rule: a pattern over
words, the category that it speaks for, a weight, and why. Where the highest sum is agent's, it is agent; else the
rules' sums and what words say (corpus.word_network) make a score for each of the other four; where these leave two
categories near each other, a small encoder reads the prompt as a whole (corpus.prompt_encoder). The highest score wins,
equal ones go by TIE_ORDER. docs/categories.md defines the categories.

Tables that come with the version, no download, no clock. Whatever changes an answer raises CLASSIFIER_VERSION, which is
part of an identity.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec

from corpus.category_rules import (
    BARRIER,
    CASED_MARKS,
    CHINESE_MARKS,
    NUMBER_WORDS,
    RULES,
    TEXT_MARKS,
    TOOL_MARKS,
    TOOL_TEXT,
    TOOL_TURNS,
    TOOLS,
    Both,
    Mark,
    Pair,
    Rule,
    Words,
)  # fmt: skip
from corpus.prompt_encoder import prompt_encoder
from corpus.records import Message
from corpus.word_network import COLUMNS, Said, word_network

CLASSIFIER_VERSION = 5

BASE = 2.0
"""What general has before any rule speaks: agent must have more to win."""
LAST_TURN = 0.5
"""The last user turn's weight beside the first one's: follow-ups are about what was asked first."""
TIE_ORDER = ("general", "agent", "code-other", "coding", "math")

NO_WORDS: frozenset[bytes] = frozenset()
ITS_WORDS = "its words"
"""How a reason begins that is the words' and no rule's."""
AS_A_WHOLE = "the prompt, read as a whole"
"""The reason that is the encoder's."""
OPEN = 2.5
"""Rules and words leave it open where the second category's score is not so far below the first one's: then an encoder
reads the prompt."""
LATIN = "\u024f"
"""The last letter of Latin Extended-B."""
WHOLE = 2.0
"""What the encoder's logarithms of shares weigh beside the scores of rules and words."""
TELLING = 4
"""How many words of a category are named where its score is explained."""
SPAN = 8
"""How many words before its second word a Pair's first one may stand."""
TOGETHER = 2048
"""Prompts that are scored at a time: enough that the encoder has work for many cores."""
HEAD, TAIL = 1600, 500
"""Characters of a turn that are judged, from its start and its end: requests stand there, pasted text between."""

SURE = 7.0
"""The system turn is judged too where no category has this much from the user's, and no rule speaks for general."""
MANY, MANY_SAID, MANY_ASKED = 4, 500, 1500
"""A turn holds many numbers with MANY or more, in at most MANY_SAID characters, or MANY_ASKED with a question mark."""
SHORT, DIGITS = 300, 0.2
"""A turn of at most SHORT characters of which DIGITS are digits, in two or more numbers, is largely numbers."""


MATHEMATICAL = frozenset({"~arithmetic", "~sum", "~equation", "~asked", "~matrix", "~money"})
"""Marks that are looked for outside fences alone: code is full of them."""
_FENCE = re.compile(r"(?s)```[ \t]*([\w+#-]*).*?(?:```|\Z)")
_NUMBER = re.compile(r"\d+")
_SPACED = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz0123456789+#~_-" else 32 for byte in range(256))

_CompiledMark = tuple[bytes, Callable[[str], object] | None]
_Marks = tuple[tuple[_CompiledMark, ...], tuple[tuple[int, tuple[str, ...]], ...], dict[bytes, list[int]]]
"""Marks; of those that a part of the text calls for, the place and the parts; the places that a word calls for."""
_CompiledRule = tuple[frozenset[bytes] | None, frozenset[bytes], bool]


def _split(words: str) -> frozenset[bytes]:
    return frozenset(words.encode().split())


def _compiled(pattern: Words | Both | Pair) -> _CompiledRule:
    """(the other words it needs, or None; the words that make it worth a look; whether their order counts)."""
    match pattern:
        case Words(any_of):
            return None, _split(any_of), False
        case Both(one, other):
            return _split(one), _split(other), False
        case Pair(first, then):
            return _split(first), _split(then), True


def _compiled_marks(marks: Iterable[Mark]) -> _Marks:
    listed = tuple(marks)
    by_word: dict[bytes, list[int]] = {}
    for place, mark in enumerate(listed):
        for word in _split(mark.words):
            by_word.setdefault(word, []).append(place)
    searches = (re.compile(mark.pattern).search if mark.pattern else None for mark in listed)
    compiled = tuple(zip((mark.word.encode() for mark in listed), searches, strict=True))
    return compiled, tuple((place, mark.inside) for place, mark in enumerate(listed) if mark.inside), by_word


_CASED = _compiled_marks(CASED_MARKS)
_TEXT = _compiled_marks(mark for mark in TEXT_MARKS + TOOL_MARKS if mark.word not in MATHEMATICAL)
_MATHEMATICAL = _compiled_marks(mark for mark in TEXT_MARKS if mark.word in MATHEMATICAL)
_CHINESE = _compiled_marks(CHINESE_MARKS)
_TOOL = _compiled_marks(TOOL_MARKS)
_CALLS = _compiled_marks(mark for mark in TOOL_MARKS if mark.word in ("~calls", "~react"))
_COMPILED = [_compiled(rule.pattern) for rule in RULES]
_BY_WORD: dict[bytes, list[int]] = {}
for _index, _rule in enumerate(_COMPILED):
    for _trigger in _rule[1]:
        _BY_WORD.setdefault(_trigger, []).append(_index)
_VOCABULARY = frozenset(_BY_WORD).union(
    *(rule[0] for rule in _COMPILED if rule[0]), _CASED[2], _TEXT[2], _MATHEMATICAL[2], NUMBER_WORDS
)


class Evidence(NamedTuple):
    """What a prompt shows: the rules that speak, each with the factor of its turn, and the words that are judged.

    `request` holds the words of the first user turn, in order, without what stands between fences; `messages` what an
    encoder reads where they leave it open.
    """

    rules: list[tuple[Rule, float]]
    words: AbstractSet[bytes]
    request: Sequence[bytes] = ()
    messages: Sequence[Message] = ()

    def sums(self) -> dict[str, float]:
        """The weights of the rules that spoke, by category."""
        return _sums(self.rules)

    def is_agent(self) -> bool:
        """Whether the rules alone say agent."""
        return _is_agent(self.sums())


def classify(messages: Sequence[Message], tools: Sequence[Any] | None = None) -> str:
    """The category of a prompt: messages as corpus.records has them; tools, if any, as a list."""
    return _highest(scored(evidence(messages, tools)))


def scored(found: Evidence) -> dict[str, float]:
    """The score of each category that may win: agent alone where the rules' sums say so, else the other four."""
    return _scored([found])[0]


def _scored(found: Sequence[Evidence]) -> list[dict[str, float]]:
    sums = [one.sums() for one in found]
    at = [place for place, rules in enumerate(sums) if not _is_agent(rules)]
    scores = word_network().scores([Said(sums[place], found[place].words, found[place].request) for place in at])
    unsure = [(score, found[place]) for place, score in zip(at, scores, strict=True) if _is_open(score, found[place])]
    for (score, _), whole in zip(unsure, _as_a_whole([one.messages for _, one in unsure]), strict=True):
        score.update({name: score[name] + part for name, part in whole.items()})
    others = dict(zip(at, scores, strict=True))
    return [others[place] if place in others else {"agent": rules["agent"]} for place, rules in enumerate(sums)]


def _is_open(scores: Mapping[str, float], found: Evidence) -> bool:
    """Whether rules and words leave a prompt to the encoder: two categories are near each other, and it can read it.

    It knows English first: where rules have read a prompt in another script, it has nothing to add.
    """
    first, second = sorted(scores.values(), reverse=True)[:2]
    if first - second >= OPEN:
        return False
    said = "".join(one.get("content") or "" for one in found.messages if one["role"] == "user")
    if found.rules:
        return not _in_other_script(said)
    return not said.isascii() or not found.words.isdisjoint(word_network().places)


def _in_other_script(text: str) -> bool:
    """Whether more than half of a text's letters are none of the Latin script."""
    letters = [one for one in _ends(text) if one.isalpha()]
    return sum(one > LATIN for one in letters) > len(letters) / 2


def _as_a_whole(prompts: Sequence[Sequence[Message]]) -> list[dict[str, float]]:
    """What the encoder adds to each prompt's scores; nothing is loaded where there is none."""
    read = prompt_encoder().scores(prompts) if prompts else []
    means = [sum(one.values()) / len(one) for one in read]
    return [
        {name: WHOLE * (score - mean) for name, score in one.items()} for one, mean in zip(read, means, strict=True)
    ]


def _highest(scores: Mapping[str, float]) -> str:
    return max(TIE_ORDER, key=lambda name: scores.get(name, -math.inf))  # the first of equals


def _sums(rules: Iterable[tuple[Rule, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for rule, factor in rules:
        sums[rule.category] = sums.get(rule.category, 0.0) + factor * rule.weight
    return sums


def _is_agent(sums: dict[str, float]) -> bool:
    """Whether agent has more than general with its BASE, and no less than any other."""
    agent = sums.get("agent", 0.0)
    return agent > sums.get("general", 0.0) + BASE and agent >= max(sums.values())


def explain(messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[tuple[str, str, float]]:
    """(category, why, part of its score) of every rule that spoke and of the words, the largest first.

    Words and the encoder speak against a category too: then their part is below 0. With the network's rest
    (corpus.word_network.Parts) a category's parts add up to its score.
    """
    found = evidence(messages, tools)
    sums = found.sums()
    said: dict[tuple[str, str], float] = defaultdict(float)
    parts = None if _is_agent(sums) else word_network().parts(Said(sums, found.words, found.request))
    wholes = {"agent": sums["agent"]} if parts is None else parts.rules
    for rule, factor in found.rules:
        if rule.category in wholes:
            said[rule.category, rule.why] += wholes[rule.category] * factor * rule.weight / sums[rule.category]
    if parts:
        for category, weight in parts.words.items():
            if weight:
                said[category, _telling(parts.by_word[category])] += weight
        scores = {name: parts.rules[name] + parts.words[name] + parts.rest[name] for name in COLUMNS}
        if _is_open(scores, found):
            for category, weight in _as_a_whole([messages])[0].items():
                said[category, AS_A_WHOLE] += weight
    return sorted(((*key, weight) for key, weight in said.items()), key=lambda one: (-one[2], *one[:2]))


def _telling(said: Mapping[bytes, float]) -> str:
    """Which words say most for a category."""
    heavy = sorted(said, key=lambda word: (-said[word], word))[:TELLING]
    named = [word.decode() for word in heavy if said[word] > 0]
    return f"{ITS_WORDS}: {', '.join(named)}" if named else f"{ITS_WORDS}, taken together"


def classify_rows(messages_json: Sequence[str], tools_json: Sequence[str | None]) -> list[str]:
    """`classify` over prompts as parquet holds them (corpus.records.encode_messages).

    Raises:
        ValueError: the two sequences are not of one length.
    """
    decode = msgspec.json.Decoder().decode
    found = [
        evidence(decode(messages), decode(tools) if tools else None)
        for messages, tools in zip(messages_json, tools_json, strict=True)
    ]
    return [_highest(scores) for at in range(0, len(found), TOGETHER) for scores in _scored(found[at : at + TOGETHER])]


def evidence(messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Evidence:
    """Every rule that speaks, with the factor of the turn it was found in, and the words of the turns judged."""
    if tools:
        return Evidence([(TOOLS, 1.0)], NO_WORDS)
    users: list[str] = []
    systems: list[str] = []
    words: set[bytes] = set()
    request: list[bytes] = []
    for message in messages:
        text = message.get("content") or ""
        if message["role"] == "user":
            users.append(text)
        elif message["role"] == "tool" or message.get("tool_calls"):
            return Evidence([(TOOL_TURNS, 1.0)], NO_WORDS)
        elif text:
            lower = _ends(text).lower()
            own = set(_words(lower))
            # an answer may speak about functions; calls are what proves a tool there
            if _marks(lower, own, _TOOL if message["role"] == "system" else _CALLS):
                return Evidence([(TOOL_TEXT, 1.0)], NO_WORDS)
            if message["role"] == "system":
                systems.append(text)
                words |= own
    found = [(rule, 1.0) for rule in _rules_of(users[0], words, request)] if users else []
    if len(users) > 1:  # its words count where the first turn was a greeting
        found += [(rule, LAST_TURN) for rule in _rules_of(users[-1], set() if found else words, [])]
    if not found and len(users) > 2:
        found = [(rule, 1.0) for rule in _rules_of("\n".join(users[1:-1]), words, [])]
    if systems and not _sure(found):
        found += [(rule, 1.0) for rule in _rules_of("\n".join(systems), words, [])]
    return Evidence(found, words, request, messages)


def _sure(found: list[tuple[Rule, float]]) -> bool:
    sums = _sums(found)
    return "general" in sums or max(sums.values(), default=0.0) >= SURE


def _rules_of(turn: str, words: set[bytes], request: list[bytes]) -> list[Rule]:
    """The rules that speak on one user turn, each once; its words are added to `words`, outside fences to `request`."""
    text = _ends(turn)
    lower = text.lower()
    order = _words(lower)
    words.update(order)
    known = set(_VOCABULARY.intersection(order))
    found = _marks(text, known, _CASED) + _marks(lower, known, _TEXT)
    if not text.isascii():
        found += _marks(text, known, _CHINESE)
    if "```" in turn:
        lower = _ends(_FENCE.sub(r" ~code~\1 ", turn)).lower()
        order = _words(lower)
        known = set(_VOCABULARY.intersection(order))
    request += order
    found += _marks(lower, known, _MATHEMATICAL)
    known.update(found)
    if b"~asked" in known or len(lower) <= (MANY_ASKED if "?" in lower else MANY_SAID):
        numbers = _NUMBER.findall(lower)
        if len(numbers) >= MANY and len(lower) <= MANY_ASKED:
            known.add(b"~many")
        short, some = len(text) <= SHORT, len(numbers) + len(NUMBER_WORDS.intersection(known)) > 1
        if some and (short or b"~asked" in known):
            known.add(b"~numbers")
            if short and sum(map(len, numbers)) >= DIGITS * len(text):
                known.add(b"~digits")
    candidates = {index for word in known if word in _BY_WORD for index in _BY_WORD[word]}
    return [RULES[index] for index in sorted(candidates) if _speaks(_COMPILED[index], known, order)]


def _words(lower: str) -> list[bytes]:
    return lower.encode("utf-8", "replace").translate(_SPACED).split()


def _ends(text: str) -> str:
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n\n{text[-TAIL:]}"


def _marks(text: str, words: set[bytes], marks: _Marks) -> list[bytes]:
    compiled, parted, by_word = marks
    places = {place for word in by_word.keys() & words for place in by_word[word]}
    for place, parts in parted:
        for part in parts:
            if part in text:
                places.add(place)
                break
    return [compiled[place][0] for place in places if (search := compiled[place][1]) is None or search(text)]


def _speaks(rule: _CompiledRule, known: set[bytes], order: list[bytes]) -> bool:
    first, then, ordered = rule
    if first is None:
        return True
    if first.isdisjoint(known):
        return False
    if not ordered:
        return True
    for word in then & known:
        place = -1
        for _ in range(order.count(word)):
            place = order.index(word, place + 1)
            for before in reversed(order[max(0, place - SPAN) : place]):
                if before in first:
                    return True
                if before in BARRIER:
                    break
    return False
