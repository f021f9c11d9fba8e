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
    source_url: str = ""
    """Its maker's page or paper; "" where no public address is known."""
    price_url: str = ""


MERCATUS = ("mercatus-ai.com, cloud GPU pricing, May 2026", "https://www.mercatus-ai.com/blog/cloud-gpu-pricing")
PACKET = ("packet.ai, GPU pricing models compared, June 2026", "https://packet.ai/blog/gpu-pricing-models-compared")
NVIDIA = "https://www.nvidia.com/en-us/data-center/"
ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
NO_PRICE = ("", "")
ENTERED = "November 2026"
"""When figures without a public address were entered."""


def _gpu(
    name: str, driver: str, memory_gb: int, tb_per_s: float, tflops: float, price_usd: tuple[float, float] | None,
    figures: tuple[str, str], prices: tuple[str, str] = NO_PRICE,
) -> Gpu:  # fmt: skip
    return Gpu(
        name, driver, memory_gb * 10**9, tb_per_s * 1e12, tflops * 1e12, price_usd, figures[0], prices[0], figures[1],
        prices[1],
    )  # fmt: skip


GPUS = (
    _gpu("b200", "B200", 180, 7.7, 2250, (3.75, 14.24), ("NVIDIA HGX B200 datasheet", NVIDIA + "hgx/"), PACKET),
    _gpu("h200", "H200", 141, 4.8, 989, (2.50, 7.00), ("NVIDIA H200 datasheet", NVIDIA + "h200/"), MERCATUS),
    _gpu("h100", "H100 80GB HBM3", 80, 3.35, 989, (1.99, 5.00), ("NVIDIA H100 SXM datasheet", NVIDIA + "h100/"),
         MERCATUS),
    _gpu("h100-pcie", "H100 PCIe", 80, 2.0, 756, None, ("NVIDIA H100 PCIe datasheet", "")),
    _gpu("a100", "A100", 80, 2.04, 312, (0.80, 3.00), ("NVIDIA A100 80GB SXM datasheet", NVIDIA + "a100/"), MERCATUS),
    _gpu("rtx-pro-6000", "RTX PRO 6000", 96, 1.6, 500, None,
         ("NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet; bf16 is an eighth of its sparse FP4",
          NVIDIA + "rtx-pro-6000-blackwell-server-edition/")),
    _gpu("l40s", "L40S", 48, 0.864, 362, None, ("NVIDIA L40S datasheet", NVIDIA + "l40s/")),
    _gpu("rtx-4090", "RTX 4090", 24, 1.008, 165, None, ("NVIDIA Ada architecture paper", ADA)),
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
