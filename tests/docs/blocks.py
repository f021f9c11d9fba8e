"""The fenced blocks of the pages, and how their shell lines are read. Pure but for reading the pages.

A block that no test can run has a comment right above it, `<!-- not run: why -->`; of a shell block in which some lines
cannot be run, `<!-- not run (make demo, draftmill run): why -->` names how these begin. Output and drawings are fences
without a language; lines of one below `<!-- prints -->` are printed by the command line before it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
LANGUAGES = ("bash", "sql", "yaml", "python")
FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- not run(?: \(([^)]*)\))?: ((?:(?!-->).)+) -->\s*\Z", re.DOTALL)
JOINS = ("|", "&&", ">")


@dataclass(frozen=True)
class Block:
    """One fence of a page, and what its page says of running it."""

    page: str
    line: int
    language: str
    text: str
    why_not: str | None
    """Why it, or some lines of it, are not run."""
    not_run: tuple[str, ...]
    """How those lines begin; empty: all."""
    printed: bool
    """Whether its lines are what the line before it prints."""

    @property
    def where(self) -> str:
        """As an editor opens it."""
        return f"{self.page}:{self.line}"

    def is_run(self, line: str) -> bool:
        """Whether this line of a shell block is run."""
        return self.why_not is None or (bool(self.not_run) and not line.startswith(self.not_run))


def blocks(page: Path) -> list[Block]:
    """Every fence of a page, in order."""
    text, found = page.read_text(encoding="utf-8"), []
    for fence in FENCE.finditer(text):
        mark = MARK.search(text[: fence.start()])
        named = tuple(part.strip() for part in (mark[1] or "").split(",") if part.strip()) if mark else ()
        line = text.count("\n", 0, fence.start()) + 1
        printed = text[: fence.start()].endswith("<!-- prints -->\n")
        found.append(Block(page.name, line, fence[1], fence[2], mark and mark[2], named, printed))
    return found


def all_blocks(language: str) -> list[Block]:
    """The blocks of one language of all pages."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def command_lines(text: str) -> Iterator[str]:
    """The command lines of a shell block's text; what a backslash or an open quote breaks is one."""
    begun = ""
    for line in text.replace("\\\n", " ").splitlines():
        begun += line + "\n"
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:  # a quote is open
            continue
        if words:
            yield begun.strip()
        begun = ""
    assert not begun, f"a quote is not closed: {begun}"


def pipeline(line: str) -> list[list[str]]:
    """The commands of one line, each as words, and between them what joins them as a list of one word.

    Comments are left out; quotes are taken off.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in JOINS:
            commands += [[word], []]
        else:
            commands[-1].append(word)
    return [command for command in commands if command]
