"""What a person sees: one line a stage; on a terminal a block that is redrawn, elsewhere a plain line a minute.

A stage says what it does on stderr; data goes to stdout. Log lines that come meanwhile stand above the block. Nothing
of a row is ever printed.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import ExitStack
from textwrap import wrap
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from draftmill.progress_block import progress_line, progress_lines, stopping_note

if TYPE_CHECKING:
    from generation.progress import Progress
    from training.messages import TrainProgress

PLAIN_EVERY_S = 60.0
INDENT = 11
WIDTH = 80


def say(line: str) -> None:
    """One line for the person."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def say_below(*sentences: str) -> None:
    """Sentences below the line of a stage, wrapped."""
    for sentence in sentences:
        for line in wrap(sentence, WIDTH - INDENT):
            say(f"{'':<{INDENT}}{line}")


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
    """Rows, rate and time left."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total = total

    def show(self, rows: int, tokens: int, seconds: float) -> None:
        """Called by the run after every shard."""
        left = clock(seconds / rows * (self.total - rows)) if rows else "-"
        self.update(f"{rows:,} of {self.total:,} rows, {tokens / max(seconds, 1e-9):,.0f} tok/s, {left} left")


class TrainingScreen(Screen):
    """Steps, loss, held-out acceptance and time left."""

    def __init__(self) -> None:
        super().__init__()
        self._first: tuple[int, float] | None = None
        self._walk = ""

    def show(self, progress: TrainProgress) -> None:
        """Called by the run for every progress message."""
        now = time.monotonic()
        left = "-"
        if self._first is None:
            self._first = (progress.step, now)  # a resumed run has done steps that took none of this time
        elif progress.step > self._first[0]:
            per_step = (now - self._first[1]) / (progress.step - self._first[0])
            left = clock(per_step * (progress.steps - progress.step))
        drafts = sum(d for d, _ in progress.acceptance.values())
        if drafts:
            self._walk = f", held-out τ {1 + sum(a for _, a in progress.acceptance.values()) / drafts:.2f}"
        if progress.step >= progress.steps:
            self.update(f"step {progress.step:,}, loss {progress.loss:.3f}{self._walk}, measuring held-out rows")
        else:
            self.update(
                f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.3f}{self._walk}, {left} left"
            )

    def stopping(self) -> None:
        """An interrupt was asked for."""
        self.update("stopping: the worker writes a checkpoint; Ctrl-C again stops at once")
