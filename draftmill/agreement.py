"""What the person chose of an extraction, and what a large one tells before it begins.

States are large: what would take more than `ASK_BYTES` is measured, told, and begun only with --yes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus.columns import counted
from draftmill.interrupted import NotAgreed
from draftmill.placement import shown
from draftmill.terminal import clock
from extraction.announcement import Announcement
from extraction.stage import ExtractionPlan, gigabytes
from fleet.devices import Device

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


def room_line(plan: ExtractionPlan, root: Path) -> str:
    """What the states take of what the disk has, for a person."""
    return f"writes {gigabytes(plan.size_bytes)}; {gigabytes(shutil.disk_usage(root).free)} are free"


def workers_line(devices: Sequence[Device], columns: int) -> str:
    """How many workers, and where, for a person."""
    workers = counted(len(devices), "worker") + " on "
    return workers + shown(devices, columns - len(workers))


def told(plan: ExtractionPlan, announcement: Announcement, root: Path) -> list[str]:
    """For a person: how it is cut, what it takes, how long it will be."""
    lines = [*announcement.lines(), room_line(plan, root)]
    if announcement.seconds is not None:
        workers = counted(announcement.workers, "worker")
        rate = announcement.cut.tokens / max(announcement.seconds, 1e-9)
        lines.append(f"about {clock(announcement.seconds)} with {workers} at the measured rate ({rate:,.0f} tokens/s)")
    return lines


def unagreed(plan: ExtractionPlan) -> NotAgreed:
    """Nothing was captured yet."""
    return NotAgreed(
        f"extract: this writes {gigabytes(plan.size_bytes)}. Add --yes to begin, --max-disk SIZE to capture as much as "
        "fits (category shares are kept), or train without a disk (training.feed: live)."
    )
