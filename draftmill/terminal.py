"""What a person sees: one line a stage; on a terminal a block that is redrawn, elsewhere a plain line a minute.

A stage says what it does on stderr; data goes to stdout. Log lines that come meanwhile stand above the block. Nothing
of a row is ever printed.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import wrap
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from draftmill.progress_block import progress_line, progress_lines, stopping_note

if TYPE_CHECKING:
    from generation.progress import Progress

PLAIN_EVERY_S = 60.0
INDENT = 11
WIDTH = 80


def say(line: str) -> None:
    """One line for the person."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def say_below(*sentences: str) -> None:
    """Sentences below the line of a stage, wrapped between words."""
    for line in laid_out(sentences, " " * INDENT, " " * INDENT):
        say(line)


def say_stage(name: str, *sentences: str) -> None:
    """The first lines of a stage: its name, and sentences beside and below it, wrapped between words."""
    for line in laid_out(sentences, f"{name:<{INDENT}}", " " * INDENT):
        say(line)


def laid_out(sentences: Iterable[str], first: str = "", below: str = "  ") -> Iterator[str]:
    """Sentences as lines of 80 columns, one by one as they come; a name or an option is never broken.

    Args:
        first: what the first line begins with.
        below: what all others begin with.
    """
    for i, sentence in enumerate(sentences):
        yield from wrap(
            sentence, WIDTH, initial_indent=below if i else first, subsequent_indent=below,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def workspace_flag(root: Path) -> str:
    """What a command that is to be copied names its workspace with; nothing where it is the usual one."""
    return "" if root == Path("workspace") else f" -w {shlex.quote(str(root))}"


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def draws(stream: Any) -> bool:
    """Whether lines of it can be written over."""
    return bool(stream.isatty()) and os.environ.get("TERM") not in ("dumb", "unknown")


class Screen:
    """One line that is rewritten on a terminal, and printed once a minute elsewhere."""

    def __init__(
        self,
        text: str = "starting workers",
        *,
        stream: Literal["stdout", "stderr"] = "stderr",
        plain_every_s: float = PLAIN_EVERY_S,
        indent: int = INDENT,
    ) -> None:
        self._live: Any = None
        self._started = self._plain_at = time.monotonic()
        self._text, self._stream, self._plain_every_s = text, stream, plain_every_s
        self._indent = " " * indent
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        stream = getattr(sys, self._stream)
        if draws(stream):
            from rich.console import Console
            from rich.live import Live

            console = Console(file=stream, highlight=False, emoji=False)
            self._live = Live(
                console=console,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
                get_renderable=self._render,
            )
            self._live.start()
            self._undo.callback(self._live.stop)
            self._log_above()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._undo.close()

    def _log_above(self) -> None:
        """Handlers hold the stream that they were made with; through the display's own, a line tears no block."""
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.__stderr__, sys.__stdout__):
                before = handler.setStream(sys.stderr)
                self._undo.callback(handler.setStream, before)

    def update(self, text: str, *, now: bool = False) -> None:
        """Replace the line. `now`: it is printed at once where lines are not rewritten."""
        self._text = text
        if self._live is None and (now or time.monotonic() - self._plain_at >= self._plain_every_s):
            self._plain_at = time.monotonic()
            stream = getattr(sys, self._stream)
            stream.write(f"{self._indent}{text}\n")
            stream.flush()

    def lines(self, width: int, height: int) -> list[str]:
        """What a terminal of this size shows now; asked some times a second, in a thread of its own."""
        return [f"{self._indent}{clock(time.monotonic() - self._started)}  {self._text}"]

    def _render(self) -> Any:
        from rich.text import Text

        size = self._live.console.size if self._live is not None else None
        shown = self.lines(size.width, size.height - 1) if size else [self._text]
        return Text("\n".join(shown), overflow="ellipsis", no_wrap=True)


class GenerationScreen(Screen):
    """Shares, engines, rate and time left."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: Progress | None = None
        self._stops_at: float | None = None
        self._warned = 0

    def show(self, progress: Progress) -> None:
        """Called by the run now and then. A warning is said once, and stays above the block."""
        for warning in progress.warnings[self._warned :]:
            say_below(f"warning: {warning}")
        self._warned = len(progress.warnings)
        begins_to_stop = progress.stopping and self._stops_at is None
        if begins_to_stop:
            from generation.run import DRAIN_S

            self._stops_at = time.monotonic() + DRAIN_S
        self._progress = progress
        self.update(self._note(progress) if progress.stopping else progress_line(progress), now=begins_to_stop)

    def lines(self, width: int, height: int) -> list[str]:
        """The block."""
        progress = self._progress  # replaced by the run meanwhile, never changed
        if progress is None:
            return super().lines(width, height)
        return progress_lines(progress, width, height, [self._note(progress)] if progress.stopping else [])

    def _note(self, progress: Progress) -> str:
        left_s = max(0.0, (self._stops_at or 0.0) - time.monotonic())
        return f"{stopping_note(progress, left_s)}; Ctrl-C again stops at once"


class ExtractionScreen(Screen):
    """What workers begin with, then rows, rate and time left; what it waits for once it stops."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total = total
        self._stopping = ""

    def show(self, rows: int, tokens: int, seconds: float) -> None:
        """Called by the run before the first row and after every shard."""
        if self._stopping:
            self.update(self._stopping)
        elif not rows:
            self.update(f"capturing: 0 of {self.total:,} rows")
        else:
            left = clock(seconds / rows * (self.total - rows))
            rate = f"{tokens / max(seconds, 1e-9):,.0f} tok/s"
            self.update(f"capturing: {rows:,} of {self.total:,} rows, {rate}, {left} left")

    def stopping(self, shards: int) -> None:
        """An interrupt was asked for."""
        waits = f"{shards} shard{'s' if shards != 1 else ''} at work"
        self._stopping = f"stopping after {waits}; Ctrl-C again stops at once"
        self.update(self._stopping, now=True)
