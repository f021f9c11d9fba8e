"""Notes of answers: each on what it is for, and none on what looks like it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.language import languages
from generation.checks import DECISIVE, KIN, NOTES, Asked, _plainly_english, is_other_language, notes_of
from generation.spans import ThinkMarkers, answer_span

MARKERS = ThinkMarkers("<think>", "</think>", (90,), (91,))
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]

TEXTS = {
    "en": "The ship left the harbour in the early morning, and nobody on the quay knew what she had on board. "
    "When the fog lifted, they saw that she had changed her course and was now heading for the islands.",
    "de": "Das Schiff verließ den Hafen am frühen Morgen, und niemand am Kai wusste, was es geladen hatte. "
    "Als der Nebel sich hob, sahen sie, dass es den Kurs geändert hatte und nun auf die Inseln zuhielt.",
    "fr": "Le navire a quitté le port tôt le matin, et personne sur le quai ne savait ce qu'il avait à bord. "
    "Quand le brouillard s'est levé, ils ont vu qu'il avait changé de cap et se dirigeait vers les îles.",
    "es": "El barco salió del puerto de madrugada, y nadie en el muelle sabía qué llevaba a bordo. "
    "Cuando se levantó la niebla, vieron que había cambiado de rumbo y que iba ahora hacia las islas.",
    "ru": "Корабль вышел из гавани рано утром, и никто на причале не знал, что у него на борту. "
    "Когда туман рассеялся, они увидели, что он изменил курс и теперь шёл к островам.",
    "zh": "船一大早就离开了港口，码头上没有人知道船上装着什么。雾散以后，他们看到它改变了航向，现在正朝着群岛驶去。",
    "ja": "船は朝早く港を出たが、何を積んでいるのか岸壁の誰も知らなかった。"
    "霧が晴れると、船が針路を変え、島々へ向かっているのが見えた。",
}
APART = [
    (a, b) for a in TEXTS for b in TEXTS if a != b and not any(a in kin and b in kin for kin in KIN)
]  # fmt: skip


def notes(
    text: str,
    ids: Sequence[int] = (1, 2),
    asked: str = "?",
    tools: Sequence[dict[str, object]] = (),
    *,
    opened: bool = False,
) -> tuple[str, ...]:
    spans = answer_span(ids, MARKERS, opened=opened)
    return notes_of(
        text,
        ids,
        spans,
        Asked.of(asked, tools),
        finished=True,
        markers=MARKERS,
        decode=lambda ids: "decoded " * len(ids),
    )


@pytest.mark.parametrize(
    ("text", "ids", "opened", "noted"),
    [
        ("An answer.", [1, 2], False, ()),
        ("", [2], False, ("empty",)),
        (" \n\n ", [1, 2], False, ("empty",)),
        ("<think>\n\n</think>\n\n", [90, 1, 91, 1, 2], False, ("empty",)),
        ("\n", [1, 2], True, ("empty",)),
        ("<think>Hm.</think>\n\nYes.", [90, 1, 91, 1, 3, 2], False, ()),
        ("<think>Hm.</think>\n\n", [90, 1, 91, 1, 2], False, ("no_answer",)),
        ("<think>Hm.", [90, 1, 1], False, ("no_answer",)),
        ("Hm.", [1, 1], True, ("no_answer",)),
        ("Hm. Yes.", [1, 91, 1, 2], True, ()),  # the markers are special tokens
        ("\n" * 800, [1] * 800, False, ("empty", "repetition")),
        ("ha " * 600, [1] * 600, False, ("repetition",)),
        ("ha " * 600, [1] * 600, True, ("repetition", "no_answer")),
    ],
)
def test_empty_repetition_no_answer(text: str, ids: list[int], opened: bool, noted: tuple[str, ...]) -> None:
    assert notes(text, ids, opened=opened) == noted


def test_the_order_is_that_of_the_table() -> None:
    broken = TEXTS["fr"] + "<tool_call>{</tool_call>"
    noted = notes(broken, [5] * 400, TEXTS["en"], TOOLS)
    assert noted == ("repetition", "other_language", "broken_tool_call")
    assert sorted(noted, key=list(NOTES).index) == list(noted)


def test_reasoning_is_not_judged_as_the_answer() -> None:
    thought = "<think>" + TEXTS["zh"] + "<tool_call>{</think>"
    ids = [90, 1, 91, 3, 2]
    assert notes(thought + TEXTS["en"], ids, TEXTS["en"], TOOLS) == ()
    assert notes(thought + TEXTS["zh"], ids, TEXTS["en"], TOOLS) == ("other_language",)


@pytest.mark.parametrize(("asked", "answered"), APART)
def test_another_language(asked: str, answered: str) -> None:
    assert notes(TEXTS[answered], asked=TEXTS[asked]) == ("other_language",)


@pytest.mark.parametrize("language", TEXTS)
def test_the_same_language(language: str) -> None:
    first, rest = TEXTS[language][: len(TEXTS[language]) // 2], TEXTS[language][len(TEXTS[language]) // 3 :]
    assert notes(rest, asked=first) == ()
    code = "\n```python\n" + "for item in items:\n    print(item)\n" * 10 + "```\n"
    assert notes(code + rest, asked=first) == ()


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        # a translation, a language that is named or shown
        ("Translate into French: " + TEXTS["en"], TEXTS["fr"]),
        ("Please answer in french. " + TEXTS["en"], TEXTS["fr"]),
        ("Übersetze den folgenden Satz ins Französische: " + TEXTS["de"], TEXTS["fr"]),
        (TEXTS["en"] + "\nWhat comes next in this story?\n" + TEXTS["fr"], TEXTS["fr"]),
        # too short, JSON, a call, code
        (TEXTS["en"], "Bonjour, mon ami!"),
        (TEXTS["en"], '{"reponse": "' + TEXTS["fr"] + '"}'),
        (TEXTS["en"], '<tool_call>{"name": "search", "arguments": {"q": "' + TEXTS["fr"] + '"}}</tool_call>'),
        (
            TEXTS["en"],
            "```\n" + "x = fonction(le_navire)\n" * 40 + "```\n" + TEXTS["fr"],
        ),
        # a prompt without a language
        ("def f(x):\n    return x + 1", TEXTS["fr"]),
        ("1 + 1 = ?", TEXTS["fr"]),
    ],
    ids=[
        "translate",
        "named",
        "german translate",
        "shown",
        "short",
        "json",
        "call",
        "code",
        "code asked",
        "nothing asked",
    ],
)
def test_languages_that_are_not_judged(asked: str, answer: str) -> None:
    assert notes(answer, asked=asked) == ()


def test_a_few_letters_of_a_script_of_its_own_are_enough() -> None:
    assert "zh" in DECISIVE
    assert is_other_language(TEXTS["zh"][:30], Asked.of(TEXTS["en"]))


@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 60), st.integers(100, 200))
def test_the_short_way_for_english_says_what_the_identifier_says(language: str, start: int, length: int) -> None:
    text = TEXTS[language][start : start + length]
    if _plainly_english(text):
        assert languages([text]) == ["en"]
    assert not (_plainly_english(text) and language != "en")


def test_the_short_way_is_taken() -> None:
    assert _plainly_english(TEXTS["en"])
