"""How sure an acceptance length is: its 95% interval from raw sums over rows.

Drafts of one row are no independent draws (a row that goes well goes well throughout), so rows are the clusters and
the drafts in them are not counted as a sample. acceptance length is 1 + R with R = sum a / sum d over n rows of a
accepted tokens in d drafts: the ratio estimator, whose variance the delta method gives (Cochran, Sampling
Techniques, 3rd ed. 1977, section 6.4, without the finite population's correction):

    var(R) = n / (n - 1) * sum (a - R d)^2 / (sum d)^2
    sum (a - R d)^2 = sum a^2 - 2 R sum a d + R^2 sum d^2

times the quantile of Student's t with n - 1 degrees, as its expansion about the normal one has it (Fisher and
Cornish 1960; 0.7% short at 3 degrees, 3% at 2, 24% at 1). The view acceptance_by_category has the same formula in SQL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Z = 1.959964
"""The normal quantile of a two-sided 95%."""
FEW_ROWS = 5
"""Fewer rows make an interval that nothing should rest on: three that happen to be alike give one of no width."""
T_TERMS = (2.372271, 2.822501, 2.555850)
"""What 1, 2 and 3 powers of 1 / degrees of freedom add to it."""


def interval(
    drafts: int,
    accepted: int,
    rows: int,
    sum_drafts_sq: int | None,
    sum_accepted_sq: int | None,
    sum_cross: int | None,
) -> tuple[float, float] | None:
    """(low, high) of an acceptance length, bonus token included; at least 1.

    The sums are over rows: of drafts^2, accepted^2 and drafts * accepted. None without them (vLLM's counters have
    none), without a draft, or with fewer than 2 rows.
    """
    if sum_drafts_sq is None or sum_accepted_sq is None or sum_cross is None or rows < 2 or drafts < 1:
        return None
    ratio = accepted / drafts
    squares = max(0.0, sum_accepted_sq - 2 * ratio * sum_cross + ratio**2 * sum_drafts_sq)
    half = quantile(rows - 1) * math.sqrt(rows / (rows - 1) * squares) / drafts
    return max(1.0, 1 + ratio - half), 1 + ratio + half


def quantile(degrees: int) -> float:
    """Student's t of a two-sided 95%, nearly."""
    first, second, third = T_TERMS
    return Z + first / degrees + second / degrees**2 + third / degrees**3


def nonsense(row: Mapping[str, Any], block_size: int | None) -> str:
    """What of a measurement cannot have been measured; empty: nothing.

    Args:
        row: drafts, accepted_tokens, rows and the sums over rows, as the ledger has them; sums may be None or missing.
        block_size: the drafter's, the known token counted; None where it is not known.
    """
    for key in ("drafts", "accepted_tokens", "rows"):
        if not _is_count(row[key]):
            return f"{key} is {row[key]!r}"
    for key in ("sum_drafts_sq", "sum_accepted_sq", "sum_cross"):
        if row.get(key) is not None and not _is_count(row[key]):
            return f"{key} is {row[key]!r}"
    drafts, accepted = row["drafts"], row["accepted_tokens"]
    if accepted and not drafts:
        return f"{accepted:,} accepted tokens of no draft"
    if block_size is not None and accepted > drafts * (block_size - 1):
        return f"{accepted:,} accepted tokens of {drafts:,} drafts of {block_size - 1}"
    return ""


def _is_count(value: object) -> bool:
    """A whole number that the ledger can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
