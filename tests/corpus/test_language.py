"""The language of a prompt: what is told apart, what is left undetermined, and what is not looked at."""

from __future__ import annotations

import subprocess
import sys
import time

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.language import UNDETERMINED, languages, letters, letters_of, letters_up_to, prose

ENGLISH = (
    "Write a Python function that sorts a list of dictionaries by a key.",
    "What is the capital of Australia, and why is it not Sydney?",
    "John has 12 tubes of orange paint and 9 tubes of yellow paint. How many tubes does he have?",
    "Compose an engaging travel blog post about a recent trip to Hawaii.",
)
SAMPLES = (
    *(("en", text) for text in ENGLISH),
    ("de", "Schreibe ein kurzes Gedicht über den Herbst und erkläre danach, warum die Blätter fallen."),
    ("fr", "Écris une fonction qui trie une liste et explique comment elle fonctionne."),
    ("es", "¿Cuál es la capital de Francia y cuántos habitantes tiene la ciudad?"),
    ("it", "Scrivi una breve storia su un drago che ha paura del fuoco."),
    ("pt", "Escreva um programa que leia um arquivo e conte quantas palavras ele tem."),
    ("nl", "Schrijf een korte brief aan mijn huisbaas over de kapotte verwarming."),
    ("pl", "Napisz krótkie opowiadanie o smoku, który boi się ognia i ciemności."),
    ("ru", "Напиши функцию, которая сортирует список, и объясни, как она работает."),
    ("ar", "اكتب قصة قصيرة عن تنين يخاف من النار والظلام."),
    ("hi", "आग से डरने वाले एक अजगर के बारे में एक छोटी कहानी लिखिए।"),
    ("tr", "Ateşten korkan bir ejderha hakkında kısa bir hikâye yazar mısın?"),
    ("vi", "Viết một câu chuyện ngắn về một con rồng sợ lửa."),
    ("zh", "请写一个关于害怕火的龙的短篇故事，并解释它为什么害怕。"),
    ("ja", "火を怖がるドラゴンについての短い物語を書いてください。"),
    ("ko", "불을 무서워하는 용에 대한 짧은 이야기를 써 주세요."),
    ("th", "เขียนเรื่องสั้นเกี่ยวกับมังกรที่กลัวไฟ"),
    ("el", "Γράψε μια σύντομη ιστορία για έναν δράκο που φοβάται τη φωτιά."),
    ("he", "כתוב סיפור קצר על דרקון שמפחד מאש."),
)
CODE = "def total(values):\n    result = 0\n    for value in values:\n        result += value\n    return result"


@pytest.mark.parametrize(("code", "text"), SAMPLES)
def test_a_sentence_is_known_by_its_language(code: str, text: str) -> None:
    assert languages([text]) == [code]


@pytest.mark.parametrize("text", ["", "hi", "Is 7 prime?", "x+y = 4z", "1234567890" * 9, "!!!", "Solve 3x+5=20"])
def test_too_few_letters_are_undetermined(text: str) -> None:
    assert languages([text]) == [UNDETERMINED]


@pytest.mark.parametrize(
    ("code", "text"), [("zh", "写一首诗"), ("ja", "詩を書いて"), ("ko", "시를 써 줘"), ("th", "สวัสดี"), ("el", "Γεια")]
)
def test_a_script_of_one_language_decides_however_short_the_text_is(code: str, text: str) -> None:
    assert languages([text]) == [code]


def test_chinese_with_english_terms_is_chinese() -> None:
    assert languages(["用Python写一个快速排序", "解释一下 REST API 和 GraphQL 的区别"]) == ["zh", "zh"]


def test_a_foreign_word_in_a_sentence_changes_nothing() -> None:
    assert languages(["What does the Chinese greeting 你好 mean in English, and when is it said?"]) == ["en"]


@pytest.mark.parametrize(
    "text", [f"```python\n{CODE}\n```", CODE, f"```\n{CODE}", "`SELECT name FROM people WHERE age > 30`"]
)
def test_code_alone_has_no_language(text: str) -> None:
    assert languages([text]) == [UNDETERMINED]


def test_code_formulas_and_links_are_taken_out_before_judging() -> None:
    german = "Erkläre bitte, was dieses Programm macht und warum es so langsam ist."
    assert languages([f"{german}\n```python\n{CODE}\n```", f"{CODE}\n\n{german}"]) == ["de", "de"]
    assert (
        prose("See https://example.org/a?b=c and `x = 1` for $x^2 + 1$ or \\(y\\) or <b>bold</b>")
        == "See and for or or bold"
    )
    assert prose("It costs $5 and then $10 more") == "It costs $5 and then $10 more"


def test_the_librarys_global_identifier_is_not_touched_and_does_not_matter() -> None:
    import py3langid  # type: ignore[import-untyped]

    py3langid.set_languages(["de", "fr"])
    try:
        assert languages(ENGLISH) == ["en"] * len(ENGLISH)
    finally:
        py3langid.set_languages()


def test_each_text_is_judged_alone() -> None:
    texts = [text for _, text in SAMPLES]
    assert languages(texts) == [languages([text])[0] for text in texts]
    assert languages([]) == []


def test_importing_the_module_loads_no_model_and_no_polars() -> None:
    script = (
        "import sys, corpus.language; print([name for name in ('numpy', 'polars', 'py3langid') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


@given(st.text())
def test_any_text_has_an_answer(text: str) -> None:
    (code,) = languages([text])
    assert code == UNDETERMINED or (len(code) == 2 and code.isalpha())


@pytest.mark.parametrize("piece", ["\n", " ", "```", "$", "\\[", "\\begin{a}", "select ", "<a", "x = f("])
def test_no_text_takes_long(piece: str) -> None:
    languages(ENGLISH)  # the model is loaded once
    start = time.process_time()
    languages([piece * 20_000])
    assert time.process_time() - start < 5


def test_letters_are_letters_and_digits_of_any_script() -> None:
    assert letters("") == letters(" \n_-!?") == 0
    assert letters("a_b 1.") == 3
    assert letters("你好, Ünï ٣") == 6


@given(st.lists(st.text(alphabet="ab1_ .é中\n", max_size=30)), st.integers(1, 9))
def test_letters_are_counted_as_far_as_is_asked(texts: list[str], most: int) -> None:
    found = letters_up_to(pl.Series(texts, dtype=pl.String), most)
    assert found.to_list() == [min(letters(text), most) for text in texts]


@given(st.lists(st.text(st.characters(max_codepoint=0x2FFF, categories=("L", "N", "P", "Z")))))
def test_letters_of_a_series_are_the_letters_of_each(texts: list[str]) -> None:
    assert letters_of(pl.Series(texts, dtype=pl.String)).to_list() == [letters(text) for text in texts]
