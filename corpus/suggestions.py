"""The end of an error's line: what a person who wrote a name that nothing has may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAR = 0.6
"""Below it two names are taken for two different ones."""


def nearest(name: str, known: Iterable[str], cutoff: float = NEAR) -> str:
    """ " Did you mean X?", or nothing where no known name is near. Case does not matter."""
    folded: dict[str, str] = {}
    for one in sorted(known):
        folded.setdefault(one.casefold(), one)
    near = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=cutoff)
    return f" Did you mean {folded[near[0]]}?" if near else ""


def nearest_file(name: str, names: Iterable[str]) -> str | None:
    """The file name that is nearest without its suffixes: those make any two files alike."""
    by_stem: dict[str, str] = {}
    for one in sorted(names):
        by_stem.setdefault(_stem(one), one)
    near = difflib.get_close_matches(_stem(name), list(by_stem), n=1, cutoff=NEAR)
    return by_stem[near[0]] if near else None


def _stem(name: str) -> str:
    return name[:1] + name[1:].split(".", maxsplit=1)[0]
