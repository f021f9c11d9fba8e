"""How many tokens the target is shown for a prompt's first turn, for a million prompts on two cores.

The count is the length of `Renderer.encode([Renderer.text(…)])`, exactly, for every tokenizer. Byte-level BPE cuts
a text into pre-tokens by regular expressions and encodes each alone, so a text's count is the sum over its
pre-tokens, and the counts of pre-tokens are remembered (`PretokenCounts`). What has another structure is counted by
the tokenizer itself. Structure alone is never trusted: nasty texts and a thin sample of the rows are counted by the
renderer too, and a way of counting that differs once is given up for the next, the renderer's own being the last.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from corpus.records import Message, Prompt, decode_prompt

if TYPE_CHECKING:
    from corpus.target import Renderer

log = logging.getLogger("draftmill")

Row = tuple[str, str | None]
"""(messages, tools) as canonical JSON, the form in which parquet holds them."""

BLOCK_ROWS = 4096
SAMPLE_EVERY = 1000
FIRST_SAMPLE_EVERY = 32
CACHE_PRETOKENS = 1_000_000
CACHE_CHARS = 64  # longer pre-tokens do not come twice

NASTY_TEXTS = (
    "", " ", "  ", "\n", "\t", "a ", " a", "a  b", "a \n b", "\r\n\r\n", " \n\n\t x", "x\u00a0\u2003y",
    "\x1c\x1d\x85\u2028", "\x00\x01\x7f", "\u0378\u05ff\ue000\uffff\ufdd0", "zero\u200bwidth\u200d \ufeff\u2060",
    "I'll we're IT'S 'S 'ſ don’t o'clock '' '' 'll'LL", "0 12 345 6789 1234567 ½ ² ٣٤ ⅷ 三", "snake_case CamelCase",
    "def f(x):\n    return x  # ok\n\n\n\tif a<b&&c>d: {[('\"`~!@#$%^*|\\/?.,;:-=+_', 1)]}", "..!!??\n\n--/\n/",
    "naïve Zürich", "cafe\u0301 A\u030a e\u0301\u0323 \u0323\u0301", "Ὀδυσσεύς Привет мир", "नमस्ते दुनिया",
    "한국어 \u1112\u1161\u11ab", "日本語のテキスト、漢字。", "สวัสดีชาวโลก", "שָׁלוֹם עולם", "مَرحبا بالعالم",
    "\ufa6c\uf900 ﬁ ﬆ 'ﬆ ß 'ß İ ı K Å Ω ǅ", "😀👍🏽 🇩🇪 👩\u200d👧", "𝒳𝟙 𠀀", "α+β≤γ → ∞ ∑_{i=0}^n",
    "https://example.org/a?b=c&d=%20#e", "<|end|> <s></s> [INST]",
    "a" * 300, "=" * 300, " " * 100, "\n" * 50, "1" * 50, "e\u0301" * 50,
)  # fmt: skip


class TokenCounts:
    """Counts the tokens of first turns. Keeps what it has learnt of the tokenizer from call to call."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._ways: list[Callable[[list[str]], list[int]]] = [renderer.lengths]
        self._sample_every = FIRST_SAMPLE_EVERY
        try:
            self._pretokens = PretokenCounts(renderer.tokenizer)
            self._ways.insert(0, self._added_up)
        except UnusualTokenizerError as reason:
            log.info("prompt tokens are counted by the tokenizer itself, which takes longer: %s", reason)
        added = [str(token) for token in renderer.tokenizer.added_tokens_decoder.values()]
        texts = [*NASTY_TEXTS, *(f"a {token}b\n{token} {token}" for token in added)]
        lengths = [len(ids) for ids in renderer.encode(texts)]
        while self._ways and self._ways[0](texts) != lengths:
            self._give_up()

    def __call__(self, rows: Sequence[Row]) -> list[int | None]:
        """Tokens of each row's first turn; None where the template refuses it, or renders it to nothing.

        Where a sampled row shows a way of counting to be wrong, all rows of this call are counted another way.
        """
        while self._ways:
            counts = self._checked(self._ways[0], rows)
            if counts is not None:
                return counts
            self._give_up()
        return [count for block in _blocks(rows) for count in self._by_renderer(block)]

    def _checked(self, way: Callable[[list[str]], list[int]], rows: Sequence[Row]) -> list[int | None] | None:
        """The counts by one way of counting texts; None where a sampled row shows that it is wrong."""
        counts: list[int | None] = []
        for block in _blocks(rows):
            texts = [self._renderer.text_or_none(*_first_turn(row), thinking=False) for row in block]
            lengths = iter(way([text for text in texts if text]))
            found = [next(lengths) or None if text else None for text in texts]
            if found[:: self._sample_every] != self._by_renderer(block[:: self._sample_every]):
                return None
            self._sample_every = SAMPLE_EVERY
            counts += found
        return counts

    def _added_up(self, texts: list[str]) -> list[int]:
        """Sums over pre-tokens, and the tokenizer's word for the texts that have none."""
        counts = [self._pretokens.count(text) for text in texts]
        rest = iter(self._renderer.lengths([text for text, count in zip(texts, counts, strict=True) if count is None]))
        return [next(rest) if count is None else count for count in counts]

    def _by_renderer(self, rows: Sequence[Row]) -> list[int | None]:
        """The reference: what generation shows the target."""
        prompts = [decode_prompt(*row) for row in rows]
        texts = [self._renderer.text_or_none(p.context(0, []), p.tools, thinking=False) for p in prompts]
        ids = iter(self._renderer.encode([text for text in texts if text is not None]))
        return [None if text is None else len(next(ids)) or None for text in texts]

    def _give_up(self) -> None:
        way = self._ways.pop(0)
        self._sample_every = FIRST_SAMPLE_EVERY
        log.warning("token counts by %s differ from the tokenizer's; counted another way", way.__name__.strip("_"))


def _blocks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS))


def _first_turn(row: Row) -> tuple[list[Message], list[dict[str, Any]]]:
    """(context of the first turn, tools); most rows are one question, whose context is all there is."""
    messages: list[Message] = msgspec.json.decode(row[0])
    tools: list[dict[str, Any]] = msgspec.json.decode(row[1]) if row[1] else []
    roles = [message["role"] for message in messages]
    if roles.count("user") == 1 and "assistant" not in roles:
        return messages, tools
    return Prompt(tuple(messages)).context(0, []), tools


class UnusualTokenizerError(Exception):
    """A tokenizer of which it is not known that its pre-tokens' counts add up; says what is unusual."""


class PretokenCounts:
    """Token counts of texts, as sums over pre-tokens whose counts are remembered.

    Raises:
        UnusualTokenizerError: the tokenizer is no plain byte-level BPE.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.is_fast:
            raise UnusualTokenizerError("no tokenizer.json")
        backend = tokenizer.backend_tokenizer
        body = json.loads(backend.to_str())
        if body["model"]["type"] != "BPE" or body["model"].get("dropout"):
            raise UnusualTokenizerError(f"model {body['model']['type']}, dropout {body['model'].get('dropout')}")
        normalizers = {step["type"] for step in _steps(body["normalizer"], "normalizers")}
        if not normalizers <= {"NFC"}:
            raise UnusualTokenizerError(f"normalizer {sorted(normalizers)}")
        if tokenizer.split_special_tokens or any(
            token["single_word"] or token["lstrip"] or token["rstrip"] for token in body["added_tokens"]
        ):
            raise UnusualTokenizerError("added tokens that strip, need a word's edge or are not cut out")
        self._normalize: Callable[[str], str] = backend.normalizer.normalize_str if normalizers else str
        raw = [token["content"] for token in body["added_tokens"] if not token["normalized"]]
        normal = [self._normalize(token["content"]) for token in body["added_tokens"] if token["normalized"]]
        self._cut_raw, self._cut_normal = _literals(raw), _literals(normal)
        try:
            self._stages = [re.compile(stage).findall for stage in _stages(body["pre_tokenizer"])]
        except re.error as error:
            raise UnusualTokenizerError(f"Python cannot read its expression: {error}") from error
        self._counts = _RememberedCounts(backend.model)

    def count(self, text: str) -> int | None:
        """How many tokens this text is; None where only the tokenizer can tell."""
        parts = self._cut_raw(text)
        if not text.isascii():
            parts = [part if part.isascii() else self._normalize(part) for part in parts]
            if any(map(_beyond_classes, parts)):
                return None
        if self._cut_normal is not _whole:
            parts = list(chain.from_iterable(map(self._cut_normal, parts)))
        added = len(parts) - 1
        pieces: Iterable[str] = parts
        for findall in self._stages:
            pieces = chain.from_iterable(map(findall, pieces))
        return added + sum(map(self._counts.__getitem__, pieces))


class _RememberedCounts(dict[str, int]):
    """Pre-token to number of tokens; forgets all when full, since the frequent ones are soon back."""

    def __init__(self, model: Any) -> None:
        from tokenizers.pre_tokenizers import ByteLevel

        super().__init__()
        self._as_bytes = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
        self._tokenize = model.tokenize

    def __missing__(self, pretoken: str) -> int:
        count = sum(len(self._tokenize(letters)) for letters, _ in self._as_bytes(pretoken))
        if len(self) >= CACHE_PRETOKENS:
            self.clear()
        if len(pretoken) <= CACHE_CHARS:
            self[pretoken] = count
        return count


def _steps(body: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences taken apart."""
    if body is None:
        return []
    if body["type"] != "Sequence":
        return [body]
    return [step for part in body[key] for step in _steps(part, key)]


def _whole(text: str) -> list[str]:
    return [text]


def _literals(contents: list[str]) -> Callable[[str], list[str]]:
    """Cuts a text at these, the longest of those that begin at one place."""
    longest_first = sorted(filter(None, contents), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))).split if longest_first else _whole


# --- Oniguruma's expressions as Python's, for texts of the basic plane ---

BMP = "".join(chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000)
_beyond_classes = re.compile("[\U00010000-\U0010ffff]").search
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a ByteLevel pre-tokenizer with use_regex cuts by (tokenizers, pre_tokenizers/byte_level.rs)."""
_ELEMENT = re.compile(
    r"(?P<fold>\(\?i:['’A-Za-z|]*\))|(?P<members>\\[pP]\{\w+\}|\\[sSdD])|(?P<opening>\[\^?(?!\]))"
    r"|(?P<group>\(\?[:!=])|(?P<capture>\((?!\?))|(?P<plain>\\[rnt]|\\[^\w\s]|[^\\\[\](^$.])"
)
_ELEMENT_OF_CLASS = re.compile(
    r"(?P<members>\\[pP]\{\w+\}|\\[sSdD])|(?P<closing>\])|(?P<plain>\\[rnt]|\\[^\w\s]|[^\\\[\]&]|&(?!&))"
)
_REPEATED_REPETITION = re.compile(r"\{[\d,]+\}[+?]")  # possessive or lazy in Python, something else in Oniguruma


def _stages(body: dict[str, Any] | None) -> Iterator[str]:
    """Each stage of the pre-tokenizer as the expression whose matches are the pieces."""
    from tokenizers.pre_tokenizers import Digits

    *steps, last = _steps(body, "pretokenizers") or [{"type": "none"}]
    if last["type"] != "ByteLevel" or last["add_prefix_space"] or not (steps or last["use_regex"]):
        raise UnusualTokenizerError(f"pre-tokenizer {last}")
    for step in steps:
        if step["type"] == "Digits":
            digits = _ranges(text for text, _ in Digits().pre_tokenize_str(BMP)[1::2])  # U+0000 is none
            yield f"[{digits}]{'' if step['individual_digits'] else '+'}|[^{digits}]+"
        elif step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
            pattern = step["pattern"]
            yield _isolating(_as_python(pattern["Regex"]) if "Regex" in pattern else re.escape(pattern["String"]))
        else:
            raise UnusualTokenizerError(f"pre-tokenizer {step}")
    if last["use_regex"]:
        yield _isolating(_as_python(GPT2))


def _isolating(expression: str) -> str:
    """What lies between two matches is a piece too."""
    if re.fullmatch(expression, "") is not None:
        raise UnusualTokenizerError("its expression matches nothing")
    return f"{expression}|(?:(?!{expression})(?s:.))+"


def _as_python(pattern: str) -> str:
    """Oniguruma's expression as Python's; what \\p{L} or (?i:s) hold is asked of Oniguruma itself."""
    if _REPEATED_REPETITION.search(pattern):
        raise UnusualTokenizerError(f"expression {pattern}")
    python, position, in_class = "", 0, False
    while position < len(pattern):
        found = (_ELEMENT_OF_CLASS if in_class else _ELEMENT).match(pattern, position)
        if found is None:
            raise UnusualTokenizerError(f"expression {pattern} at {position}")
        kind, element, position = found.lastgroup, found[0], found.end()
        if kind == "fold":
            python += "(?:" + re.sub("[A-Za-z]", lambda letter: f"[{_members(f'(?i:{letter[0]})')}]", element[4:])
        elif kind == "members":
            python += _members(element) if in_class else f"[{_members(element)}]"
        else:
            in_class = kind == "opening" or (in_class and kind != "closing")
            python += "(?:" if kind == "capture" else element
    return python


@cache
def _members(atom: str) -> str:
    """The characters of the basic plane that one atom of an expression matches, as ranges for a class."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    runs = Split(Regex(f"{atom}+"), "removed", invert=True).pre_tokenize_str(BMP)
    if not runs:
        raise UnusualTokenizerError(f"{atom} holds nothing in the basic plane")
    return _ranges(text for text, _ in runs)


def _ranges(runs: Iterable[str]) -> str:
    return "".join(f"\\u{ord(run[0]):04x}-\\u{ord(run[-1]):04x}" for run in runs)
