"""What a person sees: one line a stage, a progress line on a terminal, plain lines elsewhere.

Everything here goes to stderr; data goes to stdout. Nothing of a row is ever printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from generation.run import Progress
    from training.messages import TrainProgress

PLAIN_EVERY_S = 60.0


def say(line: str) -> None:
    """One line for the person."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned names, right-aligned figures."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )

    return [line(header), *(line(row) for row in rows)]


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


class Screen:
    """One line that is rewritten on a terminal, and printed once a minute elsewhere."""

    def __init__(self, text: str = "starting workers") -> None:
        self._live: Any = None
        self._started = self._plain_at = time.monotonic()
        self._text = text

    def __enter__(self) -> Any:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            console = Console(file=sys.stderr)
            self._live = Live(
                Text(self._text), console=console, refresh_per_second=4, transient=True, get_renderable=self._render
            )
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, text: str) -> None:
        """Replace the line."""
        self._text = text
        if self._live is None and time.monotonic() - self._plain_at >= PLAIN_EVERY_S:
            self._plain_at = time.monotonic()
            say(f"           {text}")

    def _render(self) -> Any:
        from rich.text import Text

        elapsed = clock(time.monotonic() - self._started)
        return Text(f"           {elapsed}  {self._text}", overflow="ellipsis", no_wrap=True)


class GenerationScreen(Screen):
    """Answers, rate and time left."""

    def show(self, progress: Progress) -> None:
        """Called by the run after every change."""
        seconds = time.monotonic() - progress.started
        done, total = progress.finished, progress.total
        if progress.stopping:
            self.update(f"stopping: {progress.in_flight} answers in flight; Ctrl-C again stops at once")
            return
        left = clock(seconds / done * (total - done)) if done else "-"
        rejected = f", {progress.rejected:,} rejected" if progress.rejected else ""
        self.update(
            f"{done:,} of {total:,} ({done / max(total, 1):.0%}){rejected}, "
            f"{progress.tokens / max(seconds, 1e-9):,.0f} tok/s, {left} left"
        )


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
