"""The language of a prompt, and how much text it holds: what `filters.language` and the near-empty filter ask.

Language identifiers take code, formulas and links for languages, so these are taken out first. "und" (undetermined)
is an answer: too few letters, no language, or a guess that the model itself doubts; a filter never drops it. A script
that one language writes (Han, kana, Hangul, Thai, …) decides without the model, however short the text is; Han
without kana is zh. Otherwise the languages are those that ISO 639-1 has a code for.

Deterministic: py3langid's bundled model, in an identifier of our own (the library's global one can be narrowed by
anyone), loaded at the first use. It is given the start of a text alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

UNDETERMINED = "und"
MIN_LETTERS = 20
"""With fewer letters than this only the script can decide."""
MIN_CONFIDENCE = 0.5
"""Below this the model's guess is undetermined. On short prompts its wrong answers lie there."""
SCRIPT_SHARE = 0.5
"""The share of a text's letters that a decisive script must have."""
HAN_LETTERS = 2.5
"""How many letters of an alphabet one Han character is counted as: it says about as much."""
HEAD = 400
"""Characters of cleaned text that the model reads; the request stands there."""
RAW = 3000
"""Characters of a text that are cleaned at all."""

_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_TAKEN_OUT = re.compile(
    r"`[^`\n]*`"
    r"|\$\$.*?\$\$|\\\[.*?\\\]|\\\(.*?\\\)|\$[^$\s](?:[^$\n]{0,200}[^$\s])?\$(?!\d)|\\begin\{(\w+\*?)\}.*?\\end\{\1\}|\\[a-zA-Z]+"
    r"|https?://\S+|www\.\S+|\S+@\S+"
    r"|</?[a-zA-Z][^<>\n]*>",
    re.DOTALL,
)
_CODE_LINE = re.compile(
    r"(?m)^[ \t]*(?:(?:def|class|import|from|return|public|private|static|const|let|var|func|fn|for|if|while|else|elif|"
    r"try|except|print|#include|using|package|SELECT|INSERT|UPDATE|CREATE)\b[^\n]*[\]({};:=)>*,][^\n]*"
    r"|[^\n]*[;{}][ \t]*|@\w+[^\n]*|//[^\n]*|>>>[^\n]*|\w+(?:\.\w+)*(?:\([^\n]*\)|[ \t]*=[^\n]*))$"
)
_LETTERS = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W_]+")
_POLARS_WORD = r"[\p{L}\p{N}]"

_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_DECISIVE = tuple(
    (language, re.compile(f"[{script}]"))
    for language, script in (
        ("ja", r"\u3041-\u30ff"), ("ko", r"\uac00-\ud7a3\u1100-\u11ff"), ("th", r"\u0e00-\u0e7f"),
        ("el", r"\u0370-\u03ff"), ("he", r"\u0590-\u05ff"), ("hy", r"\u0530-\u058f"), ("ka", r"\u10a0-\u10ff"),
        ("ta", r"\u0b80-\u0bff"), ("te", r"\u0c00-\u0c7f"), ("ml", r"\u0d00-\u0d7f"), ("kn", r"\u0c80-\u0cff"),
        ("gu", r"\u0a80-\u0aff"), ("pa", r"\u0a00-\u0a7f"), ("si", r"\u0d80-\u0dff"), ("km", r"\u1780-\u17ff"),
        ("lo", r"\u0e80-\u0eff"), ("my", r"\u1000-\u109f"),
    )
)  # fmt: skip
"""Scripts that one language writes, as far as prompts go. Kana stands first: Japanese is written with Han too."""


def languages(texts: Sequence[str]) -> list[str]:
    """The ISO 639-1 code of each text, or "und"."""
    return [_language(text) for text in texts]


def letters(text: str) -> int:
    """How many letters and digits a text has (\\w without the underscore)."""
    return sum(map(len, _WORD.findall(text)))


def letters_of(texts: pl.Series) -> pl.Series:
    """`letters` of each text, null for null, at polars' speed.

    Equal to `letters` but for characters that Python's and polars' versions of Unicode do not both know.
    """
    return texts.str.count_matches(_POLARS_WORD)


def letters_up_to(texts: pl.Series, most: int) -> pl.Series:
    """`letters_of` each text, at most `most`: nearly always told from its beginning."""
    import polars as pl

    counts = letters_of(texts.str.head(2 * most)).clip(upper_bound=most)
    unsure = (counts < most) & (texts.str.len_bytes() > 2 * most)
    if unsure.any():
        rest = letters_of(texts.filter(unsure)).clip(upper_bound=most)
        counts = counts.scatter(unsure.arg_true(), rest.cast(pl.UInt32))
    return counts


def prose(text: str) -> str:
    """What is left of a text without code, formulas, links and markup: at most HEAD characters."""
    if "```" in text:
        text = _FENCED.sub(" ", text)
    text = _TAKEN_OUT.sub(" ", text[:RAW])
    return " ".join(_CODE_LINE.sub(" ", text).split())[:HEAD]


def _language(text: str) -> str:
    text = prose(text)
    count = len(_LETTERS.findall(text))
    if not text.isascii():
        decided = _by_script(text, count)
        if decided:
            return decided
    if count < MIN_LETTERS:
        return UNDETERMINED
    language, confidence = _identifier().classify(text)
    return language if len(language) == 2 and confidence >= MIN_CONFIDENCE else UNDETERMINED


def _by_script(text: str, count: int) -> str | None:
    """The language whose own script has SCRIPT_SHARE of a text's letters, if there is one."""
    han = len(_HAN.findall(text))
    for language, script in _DECISIVE:
        own = len(script.findall(text))
        if own:
            # without spaces between words, Han and kana count together
            shown = own + HAN_LETTERS * han if language == "ja" else own
            total = count + (HAN_LETTERS - 1) * han
            return language if shown >= SCRIPT_SHARE * total else None
    return "zh" if han and HAN_LETTERS * han >= SCRIPT_SHARE * (count + (HAN_LETTERS - 1) * han) else None


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages([*(label for label in identifier.labels if len(label) == 2), "zxx"])  # zxx: no language
    return identifier
