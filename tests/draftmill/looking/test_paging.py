"""Pages are disjoint, cover the list, and are there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftmill.looking.paging import Paging


@given(st.integers(0, 400), st.integers(1, 30))
def test_pages_cover_the_list_once(total: int, size: int) -> None:
    pages = [Paging(total, size, number) for number in range(1, Paging(total, size).pages + 1)]
    shown = [row for page in pages if total for row in range(page.first, page.last + 1)]
    assert shown == list(range(1, total + 1))


@given(st.integers(0, 10**9), st.integers(1, 100), st.integers(-5, 10**12))
def test_any_page_asked_for_is_one_that_is_there(total: int, size: int, asked: int) -> None:
    page = Paging(total, size, asked)
    assert 1 <= page.number <= page.pages
    assert 0 <= page.offset <= max(total - 1, 0)
    assert page.number in page.offered
    assert {1, page.pages} <= set(page.offered)
    assert all(1 <= one <= page.pages for one in page.offered)
    assert page.offered == sorted(set(page.offered))
    assert len(page.offered) <= 7
