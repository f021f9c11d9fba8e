"""Text of others in Markdown: whatever it holds, a reader of Markdown sees the text and nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from corpus.card import Published, card_text
from corpus.markdown import code_block, code_span, escaped, table

READER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
NASTY = st.text(st.sampled_from(list("`*_[]()<>|~#+-=!\\&;:/.@$\"'1a w\n")) | st.characters(codec="utf-8"), max_size=40)


class Shown(HTMLParser):
    """Tags, and text by the tag that it is in."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def words(text: str) -> list[str]:
    return text.split()


def printable(text: str) -> str:
    """What reports hand over: `visible` has made the rest visible."""
    return "".join(ch for ch in text if ch.isprintable() or ch == "\n")


@given(NASTY)
def test_a_paragraph_reads_as_its_text(text: str) -> None:
    given_text = printable(text)
    shown = Shown(READER.render("So: " + escaped(given_text)))
    assert shown.tags == ["p"]
    assert words(shown.text) == words("So: " + given_text)


@given(NASTY)
def test_a_line_of_its_own_is_a_paragraph(text: str) -> None:
    given_text = printable(text).strip()
    shown = Shown(READER.render(escaped(given_text)))
    assert shown.tags == (["p"] if given_text else [])
    assert words(shown.text) == words(given_text)


@given(st.lists(st.tuples(NASTY, NASTY), min_size=1, max_size=3))
def test_cells_stay_in_their_cells(rows: list[tuple[str, str]]) -> None:
    cells = [[escaped(printable(one)), code_span(printable(other))] for one, other in rows]
    html = READER.render(table(["a", "b"], [False, True], cells))
    shown = Shown(html)
    assert shown.tags.count("tr") == len(rows) + 1
    assert shown.tags.count("td") == 2 * len(rows)
    assert set(shown.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}


@given(NASTY)
def test_code_reads_as_its_text(text: str) -> None:
    given_text = printable(text)
    shown = Shown(READER.render("So: " + code_span(given_text).replace("\\|", "|")))  # the escape is the table's
    assert shown.tags == (["p", "code"] if given_text.strip() else ["p"])
    assert words(shown.text) == words("So: " + given_text)


@given(NASTY)
def test_no_text_ends_a_block_of_code(text: str) -> None:
    given_text = printable(text)
    shown = Shown(READER.render(code_block(given_text, "yaml") + "\n\nafter"))
    assert shown.tags == ["pre", "code", "p"]
    assert words(shown.text) == [*words(given_text), "after"]


@pytest.mark.parametrize("text", ["https://evil.example/x", "www.evil.example", "mailto:a@b.example", "HTTP://EVIL"])
def test_bare_addresses_are_no_links(text: str) -> None:
    """GitHub links what it finds behind these marks; a backslash before them ends that, and CommonMark drops it."""
    assert not re.search(r"(?i)(?<!\\):(?=//)|www(?<!\\)\.|mailto:", escaped(text))
    assert Shown(READER.render(escaped(text))).text.strip() == text


def test_ordinary_names_stay_as_they_are() -> None:
    for name in ("cc-by-sa-4.0", "code-other", "46.5%", "2026-11-30 09:13 UTC", "cpu:0", "vllm 0.32.0", "1 (2 of 3)"):
        assert escaped(name) == name


def test_the_card_of_a_published_build_shows_hostile_names_as_text() -> None:
    mark = "<script>x</script> | [a](http://evil.example) `b`"
    composition = pl.DataFrame(
        {
            "stage": ["selected"],
            "category": [mark],
            "source": [mark],
            "rows": [3],
            "prompts": [3],
            "response_tokens": [9],
        }
    )
    sources = pl.DataFrame(
        {
            "source": [mark],
            "dataset": [mark],
            "config": [mark],
            "split": ["train"],
            "revision": [mark],
            "license": [mark],
        }
    )
    funnel = pl.DataFrame({"source": [mark], "reason": [mark], "rows": [3]})
    text = card_text(Published("me/x", "b" * 24, mark, 1, mark, None, 3, 0, None), composition, sources, funnel)
    body = text.split("\n---\n", 1)[1]
    shown = Shown(READER.render(body))
    assert not {"script", "a", "img"} & set(shown.tags)
    assert shown.text.count("<script>x</script>") >= 8
    assert [len(row.split("<td")) - 1 for row in READER.render(body).split("<tr>") if "<td" in row][-1] == 3
