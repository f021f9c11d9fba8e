"""What a run tells before its first row: how it cuts, what a worker takes, how long it will be."""

from __future__ import annotations

from dataclasses import dataclass

from extraction.messages import ExtractReady
from extraction.plan import Cut


@dataclass(frozen=True)
class Announcement:
    """Measured by the first worker that is up, planned for all."""

    ready: ExtractReady | None
    cut: Cut
    seconds: float | None
    """Of the whole run at the measured rate; None: nothing was measured."""
    workers: int

    def lines(self) -> list[str]:
        """For a person."""
        lines = [str(self.cut)]
        ready = self.ready
        if ready is None:
            return lines
        if ready.limit_bytes:
            lines.append(
                f"a worker takes at most {ready.announced_bytes / 1e9:.2f} GB of {ready.limit_bytes / 1e9:.1f}, "
                f"{ready.loaded_bytes / 1e9:.2f} GB of it the target"
            )
        lines.append(f"self-test passed: largest difference {ready.difference:.1g} of a layer's size")
        return lines
