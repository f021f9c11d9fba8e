"""What the person chose of an extraction, and what a large one tells before it begins.

States are large: what would take more than `ASK_BYTES` is measured, told, and begun only with --yes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from corpus.errors import UserError
from draftmill.terminal import clock
from extraction.announcement import Announcement
from extraction.stage import ExtractionPlan, gigabytes

ASK_BYTES = 10_000_000_000


@dataclass(frozen=True)
class Choice:
    """Options of `extract` beside the devices."""

    max_disk_bytes: int | None = None
    retry_set_aside: bool = False
    yes: bool = False


ALL_ROWS = Choice(yes=True)
"""What `run` does: whoever asks for the whole chain has asked for its states too, as long as the disk holds them."""


def asks(plan: ExtractionPlan, choice: Choice) -> bool:
    """Whether this capture is only measured and told."""
    return plan.size_bytes > ASK_BYTES and not choice.yes


def told(plan: ExtractionPlan, announcement: Announcement, root: Path) -> list[str]:
    """For a person: how it is cut, what it takes, how long it will be."""
    free = shutil.disk_usage(root).free
    lines = [*announcement.lines(), f"writes {gigabytes(plan.size_bytes)}; {gigabytes(free)} are free"]
    if announcement.seconds is not None:
        workers = f"{announcement.workers} worker{'s' if announcement.workers != 1 else ''}"
        lines.append(f"about {clock(announcement.seconds)} at the measured rate with {workers}")
    return lines


def unagreed(plan: ExtractionPlan) -> UserError:
    """Nothing was captured yet."""
    return UserError(
        f"extract: this writes {gigabytes(plan.size_bytes)}. Add --yes to begin, --max-disk SIZE to capture as much as "
        "fits (category shares are kept), or train without a disk (training.feed: live)."
    )
