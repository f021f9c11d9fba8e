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

Z = 1.959964
"""The normal quantile of a two-sided 95%."""
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
