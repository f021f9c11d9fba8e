"""The ledger's views for a person: what each answers, and its columns, in 80 columns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from corpus.ledger.query import View
from draftmill.looking.answers import WIDTH


def view_lines(views: Iterable[View]) -> Iterator[str]:
    """Each view: its name, its comment, its columns; a column that has a comment has a line of its own."""
    for number, (name, comment, columns) in enumerate(views):
        if number:
            yield ""
        yield name
        if comment:
            yield from wrap(comment, WIDTH, initial_indent="  ", subsequent_indent="  ")
        plain = [column for column, _, said in columns if not said]
        yield from wrap(", ".join(plain), WIDTH, initial_indent="    ", subsequent_indent="    ")
        for column, kind, said in columns:
            if said:
                yield from wrap(
                    f"{column} ({kind.lower()}): {said}", WIDTH, initial_indent="    ", subsequent_indent="      "
                )
