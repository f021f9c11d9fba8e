"""Text of somebody else's in Markdown: it is shown as it is, and is never markup, HTML, a link or the end of a cell.

Pure. Whoever calls cuts and makes visible what no page should hold (control characters, marks that turn the direction
of writing); here a text only loses its power over Markdown as CommonMark and GitHub read it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ACTIVE = re.compile(r"[\\`*\[\]|~$@]|(?<![^\W_])_|_(?![^\W_])")
"""Active anywhere in a line; parentheses and exclamation marks are so beside brackets alone, `_` not within a word."""
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
LINK_COLON = re.compile(r"(?i):(?=//)|(?<=mailto):|(?<=xmpp):")
"""What a bare address is known by."""
LINK_WWW = re.compile(r"(?i)\b(www)\.")
LINE_START = re.compile(r"^(\s*)([-+#=]|\d+(?=[.)](?:\s|$)))")
"""Active where a line begins: a list, a heading, a rule."""
BARE_BAR = re.compile(r"(?<!\\)\|")


def escaped(text: str) -> str:
    """The text as one line of Markdown that reads as the text does."""
    line = " ".join(text.split("\n"))
    for character, entity in ENTITIES.items():
        line = line.replace(character, entity)
    line = ACTIVE.sub(lambda found: "\\" + found[0], line)
    line = LINK_COLON.sub(r"\\:", LINK_WWW.sub(r"\1\\.", line))
    start = LINE_START.match(line)
    if start and start[2].isdigit():
        return f"{start[0]}\\{line[start.end() :]}"
    return f"{start[1]}\\{line[start.start(2) :]}" if start else line


def code_span(text: str) -> str:
    """The text as code, in a table too; empty if it is."""
    line = " ".join(text.split("\n"))
    if not line.strip():
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    space = " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}".replace("|", "\\|")


def code_block(text: str, language: str = "") -> str:
    """The text as a block of code that nothing in it can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def table(header: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; `right` says which columns stand to the right."""
    rule = ["---:" if is_right else "---" for is_right in right]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(header), rule, *rows])
