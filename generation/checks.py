"""What is noted of an answer beside its tokens: codes in a fixed order, the same for equal input.

Which of them reject an answer is the manifest's choice, not known here. Every check would rather miss than blame: a
note says that something is wrong, no note does not say that all is well. The reasoning is looked at for repetition
alone; language and tool calls are those of the answer. Pure; no tokenizer, no engine. Costs microseconds, but for
texts that are not plainly English (corpus.language: 0.1 ms a text).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from corpus.language import HEAD, MIN_LETTERS, RAW, UNDETERMINED, languages, letters, prose
from corpus.language_codes import LANGUAGES
from generation.repetition import is_repetition_loop
from generation.spans import Spans, ThinkMarkers, answer_text
from generation.toolcheck import is_broken_tool_call, tool_names, without_calls

EMPTY = "empty"
REPETITION = "repetition"
NO_ANSWER = "no_answer"
OTHER_LANGUAGE = "other_language"
BROKEN_TOOL_CALL = "broken_tool_call"
NOTES = {
    EMPTY: "nothing but white space, special tokens and empty thinking",
    REPETITION: "a repetition loop",
    NO_ANSWER: "reasoning that no answer follows",
    OTHER_LANGUAGE: "the answer's language is neither shown nor named by the prompt",
    BROKEN_TOOL_CALL: "a tool call that is cut, cannot be read, or names a tool that was not offered",
}
"""Every code, in the order of notes, with what it means."""

LANGUAGE_HEAD = 600
"""Characters of an answer that its language is told from."""
MIN_ANSWER_LETTERS = 80
"""An answer with fewer is not judged, unless its script decides."""
MIN_PROMPT_LETTERS = 40
PARAGRAPHS = 40
"""Paragraphs of a prompt that are looked at for the answer's language."""
KIN = (
    {"no", "nn", "da"}, {"hr", "sr", "bs", "sl", "mk"}, {"id", "ms", "jv"}, {"cs", "sk"}, {"hi", "mr", "ne", "sa"},
    {"gl", "pt", "es", "an", "oc", "ca"}, {"nl", "af"}, {"xh", "zu"}, {"zh", "ja"}, {"ru", "uk", "be", "bg"},
    {"kk", "ky", "tt", "ba"}, {"fa", "ps", "ur", "ku"}, {"de", "lb"}, {"az", "tr", "tk", "uz"}, {"fo", "is"},
)  # fmt: skip
"""Languages that are taken for one another on short texts; between them nothing is noted."""
DECISIVE = {"zh", "ja", "ko", "th", "el", "he", "hy", "ka"}
"""Languages of scripts of their own: few letters are enough."""

_ENGLISH = frozenset(
    {"the", "and", "of", "that", "with", "this", "which", "from", "your", "you", "what", "how", "have", "are", "should"}
    | {"there", "would", "these", "following", "when", "they", "their", "into", "because"}
    | {"its", "it's", "but", "our", "using", "here", "here's", "then", "each", "where", "them", "could", "does", "used"}
)
_ENGLISH_WORDS = 4
_ENGLISH_HEAD = 400
_TRANSLATES = re.compile(
    r"translat|übersetz|tradu|tradui|vertaal|tłumacz|překl|çevir|przekład|oversæt|oversett|översätt|перев[оеё]|"
    r"переклад|翻译|翻譯|翻訳|訳し|번역|ترجم|अनुवाद|dịch|terjemah|แปล|μετάφρασ|תרגם",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Asked:
    """What the checks know of a prompt; made once a prompt, used for each of its answers."""

    text: str
    """The user turns shown so far."""
    tools: frozenset[str] = frozenset()
    """Names of the tools offered; empty where none are."""

    @classmethod
    def of(cls, text: str, tools: Sequence[dict[str, Any]] = ()) -> Asked:
        """From the user turns and the tools as OpenAI writes them."""
        return cls(text, tool_names(tools))

    @cached_property
    def language(self) -> str:
        """ISO 639-1, or "und"."""
        if _plainly_english(self.text):
            return "en"
        language = languages([self.text])[0]
        enough = language in DECISIVE or letters(prose(self.text)) >= MIN_PROMPT_LETTERS
        return language if enough else UNDETERMINED

    @cached_property
    def shown_languages(self) -> frozenset[str]:
        """Languages of its paragraphs, each alone, and those that it names in English."""
        paragraphs = [line for line in self.text.splitlines() if len(line) >= MIN_LETTERS][:PARAGRAPHS]
        words = self.text.lower()
        return frozenset(languages(paragraphs)) | {code for code, name in LANGUAGES.items() if name.lower() in words}


def notes_of(
    text: str,
    token_ids: Sequence[int],
    spans: Spans,
    asked: Asked,
    *,
    finished: bool,
    markers: ThinkMarkers | None,
    decode: Callable[[Sequence[int]], str],
) -> tuple[str, ...]:
    """The notes of one answer, in the order of NOTES.

    An empty answer has no other note than that and repetition (of white space).

    Args:
        text: of all tokens, without special tokens.
        token_ids: every generated token.
        spans: `generation.spans.answer_span` of them.
        finished: the model ended the answer; False where it was cut.
        decode: token ids to text without special tokens; asked only where thinking markers are special tokens.
    """
    looping = (REPETITION,) if is_repetition_loop(token_ids, finished=finished) else ()
    if _is_empty(text, markers):
        return (EMPTY, *looping)
    answer = answer_text(text, token_ids, spans, markers, decode)
    if not answer or answer.isspace():
        return (*looping, NO_ANSWER)
    notes = list(looping)
    if is_other_language(answer, asked):
        notes.append(OTHER_LANGUAGE)
    if is_broken_tool_call(answer, asked.tools):
        notes.append(BROKEN_TOOL_CALL)
    return tuple(notes)


def is_other_language(answer: str, asked: Asked) -> bool:
    """True if the answer is in a language that the prompt neither is in, nor shows, nor names.

    Both languages must be told with confidence, from enough letters, from the beginning of the answer and from its
    middle. Tool calls, answers that are mostly code or JSON, prompts that ask for a translation and languages that are
    KIN are not judged.
    """
    answer = without_calls(answer)
    if _plainly_english(answer) and asked.language in ("en", UNDETERMINED):
        return False
    if asked.language == UNDETERMINED or answer.lstrip().startswith(("{", "[")):
        return False
    language = languages([answer[:LANGUAGE_HEAD]])[0]
    if language in (asked.language, UNDETERMINED):
        return False
    # few answers come so far; from here on care is cheaper than blame
    if any(language in kin and asked.language in kin for kin in KIN) or _TRANSLATES.search(asked.text):
        return False
    shown = prose(answer)
    if language not in DECISIVE and letters(shown) < MIN_ANSWER_LETTERS:
        return False
    mostly_code = len(shown) < HEAD and 2 * len(shown) < len(answer[:RAW])
    if mostly_code:
        return False
    if languages([answer[len(answer) // 2 :]])[0] not in (language, UNDETERMINED):
        return False
    return language not in asked.shown_languages


def _is_empty(text: str, markers: ThinkMarkers | None) -> bool:
    if not text or text.isspace():
        return True
    if markers is None or len(text) > 200:  # longer than markers and line breaks are
        return False
    return not text.replace(markers.open_text, "").replace(markers.close_text, "").strip()


def _plainly_english(text: str) -> bool:
    """True if a text begins in English beyond doubt: a short way past the identifier, which says the same."""
    return len(_ENGLISH.intersection(text[:_ENGLISH_HEAD].lower().split())) >= _ENGLISH_WORDS
