"""Where gpu_check runs and what it tells: sizes, clocks, peaks of memory, and the table of what was found.

On a GPU everything is computed in bf16, timed and measured; on a CPU in float32, small, and nothing timed or measured
is judged. Knows nothing of draftmill.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True)
class Sizes:
    """What is run."""

    hidden: int = 5120
    inside: int = 17_408
    heads: int = 24
    kv_heads: int = 4
    head_dim: int = 256
    linear_heads: int = 48
    linear_key_heads: int = 16
    linear_head_dim: int = 128
    vocabulary: int = 248_320
    target_vocabulary: int = 8_192
    """Of the target that is extracted from: its embedding costs time to make, and no arithmetic."""
    rows: int = 16
    length: int = 1024
    draft_layers: int = 2
    block_size: int = 16
    window: int = 512
    packs: tuple[tuple[int, ...], ...] = ((700, 320, 980), (350, 1250), (64, 900, 333, 251))
    """Lengths of documents, for attention."""
    step_documents: tuple[int, ...] = (335,) * 8
    anchors: int = 64
    """Of a document."""
    loss_slots: int = 7_680
    gemm: tuple[int, int, int] = (16_384, 5_120, 17_408)
    repeats: int = 5


TINY = Sizes(
    hidden=64, inside=96, heads=6, kv_heads=2, head_dim=16, linear_heads=4, linear_key_heads=2, linear_head_dim=8,
    vocabulary=997, target_vocabulary=211, rows=2, length=24, block_size=4, window=6, packs=((14, 9), (20,)),
    step_documents=(20, 14), anchors=5, loss_slots=60, gemm=(64, 64, 96), repeats=1,
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of the table. `good` None: told, not judged."""

    what: str
    measured: str
    wanted: str = ""
    good: bool | None = None


@dataclass
class Machine:
    """Where it runs: a GPU in bf16, or a CPU in float32 where nothing timed or measured is judged."""

    device: str
    sizes: Sizes
    peak_flops: float = 0.0
    """Of a GEMM, measured."""
    lines: list[Line] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """A GPU."""
        return self.device != "cpu"

    @property
    def dtype(self) -> Any:
        """What is computed in."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    def tell(self, what: str, measured: str, wanted: str = "", good: bool | None = None) -> None:
        """Add a line, and print it at once."""
        self.lines.append(Line(what, measured, wanted, good))
        print(f"  {what}: {measured}", flush=True)

    def tell_rate(self, what: str, measured: str, wanted: str, good: bool) -> None:
        """A line that is judged on a GPU alone."""
        self.tell(what, measured, wanted, good if self.on_gpu else None)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Median of some runs, after one that warms up."""
        times = []
        for number in range(self.sizes.repeats + 1):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            if number:
                times.append(time.perf_counter() - began)
        return median(times)

    def wait(self) -> None:
        """Until the GPU is done."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def peak(self, work: Callable[[], Any]) -> tuple[Any, int]:
        """(what work returns, the most memory it had on the GPU beyond what was there before)."""
        if not self.on_gpu:
            return work(), 0
        self.free()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = work()
        self.wait()
        return result, torch.cuda.max_memory_allocated() - before

    def free(self) -> None:
        """Give back what nobody holds."""
        if self.on_gpu:
            self.wait()
            torch.cuda.empty_cache()


def table(lines: list[Line]) -> str:
    """All lines, in columns."""
    words = {True: "ok", False: "FAILED", None: "-"}
    rows = [("check", "measured", "wanted", "")]
    rows += [(line.what, line.measured, line.wanted, words[line.good]) for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def relative_error(got: Any, wanted: Any) -> float:
    """Root mean square of the difference / of what is wanted."""
    difference = (got.float() - wanted.float()).pow(2).mean().sqrt()
    return float(difference / wanted.float().pow(2).mean().sqrt().clamp_min(1e-20))
