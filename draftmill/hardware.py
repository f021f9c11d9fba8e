"""GPUs that people rent or own: what their makers publish of them, and what they are rented for. Data alone.

Figures are of one GPU: memory and bandwidth as sold (decimal), bf16 tensor throughput without sparsity. Prices are
on-demand list prices, lowest and highest that the source names; None where no comparison was found.
`docs/generate.py` makes docs/hardware.md of this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from corpus.errors import UserError
from corpus.suggestions import nearest


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    """As the command line takes it."""
    driver: str
    """What is in the name that its driver tells."""
    memory_bytes: int
    bandwidth: float
    """Bytes/s of its memory."""
    bf16_flops: float
    """Dense, per second."""
    price_usd: tuple[float, float] | None
    """Of an hour."""
    source: str
    price_source: str = ""


MERCATUS = "mercatus-ai.com, cloud GPU pricing, May 2026"
PACKET = "packet.ai, GPU pricing models compared, June 2026"

GPUS = (
    Gpu("b200", "B200", 180_000_000_000, 7.7e12, 2.25e15, (3.75, 14.24), "NVIDIA HGX B200 datasheet", PACKET),
    Gpu("h200", "H200", 141_000_000_000, 4.8e12, 989e12, (2.50, 7.00), "NVIDIA H200 datasheet", MERCATUS),
    Gpu("h100", "H100 80GB HBM3", 80_000_000_000, 3.35e12, 989e12, (1.99, 5.00), "NVIDIA H100 SXM datasheet", MERCATUS),
    Gpu("h100-pcie", "H100 PCIe", 80_000_000_000, 2.0e12, 756e12, None, "NVIDIA H100 PCIe datasheet"),
    Gpu("a100", "A100", 80_000_000_000, 2.04e12, 312e12, (0.80, 3.00), "NVIDIA A100 80GB SXM datasheet", MERCATUS),
    Gpu("rtx-pro-6000", "RTX PRO 6000", 96_000_000_000, 1.6e12, 500e12, None,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet; bf16 is an eighth of its sparse FP4"),
    Gpu("l40s", "L40S", 48_000_000_000, 0.864e12, 362e12, None, "NVIDIA L40S datasheet"),
    Gpu("rtx-4090", "RTX 4090", 24_000_000_000, 1.008e12, 165e12, None, "NVIDIA Ada architecture paper"),
)  # fmt: skip


def gpu_named(name: str) -> Gpu:
    """The GPU that the command line means.

    Raises:
        UserError: the table has none of this name.
    """
    known = {gpu.name: gpu for gpu in GPUS}
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    if key in known:
        return known[key]
    shown = ascii(name)[1:-1][:40]
    raise UserError(f"--hardware is {shown}; docs/hardware.md has {', '.join(known)}.{nearest(key, known)}")


def gpu_of_driver(name: str) -> Gpu | None:
    """The GPU of the table that a driver's name means; None where it has none."""
    found = [gpu for gpu in GPUS if gpu.driver.lower() in name.lower()]
    return max(found, key=lambda gpu: len(gpu.driver), default=None)
