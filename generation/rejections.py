"""Which answers of a category are rejected, and what a person can change about it. Pure.

`Rejections` counts as a run goes and says it early, once a category, where nearly all of its first answers are lost;
`rejection_line` says the same of a category that stays short. Turns behind a rejected one are its consequence, and
count for nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from corpus.manifest import Manifest
from generation.plan import CHECKS, EARLIER_TURN_REJECTED, TRUNCATED

MANY = 20
"""Ended answers of a category from which on it may be told."""
NEARLY_ALL = 0.8


class Rejections:
    """Ends of one run's answers, by category."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._ended: Counter[str] = Counter()
        self._reasons: dict[str, Counter[str]] = {}
        self._told: set[str] = set()

    def accepted(self, category: str) -> None:
        """One more."""
        self._ended[category] += 1

    def rejected(self, category: str, reason: str) -> str | None:
        """One more; returns the warning, where this is the moment for it."""
        if reason == EARLIER_TURN_REJECTED:
            return None
        self._ended[category] += 1
        reasons = self._reasons.setdefault(category, Counter())
        reasons[reason] += 1
        ended = self._ended[category]
        if category in self._told or ended < MANY or reasons.total() < NEARLY_ALL * ended:
            return None
        self._told.add(category)
        return rejection_line(self._manifest, category, reasons, ended, so_far=True)


def rejection_line(
    manifest: Manifest, category: str, reasons: Mapping[str, int], ended: int, so_far: bool = False
) -> str:
    """How many of a category's answers are rejected, mainly why, and what cures that.

    Args:
        reasons: rejected answers by reason; not empty.
        ended: answers with an end.
        so_far: more will come.
    """
    rejected = sum(reasons.values())
    main, count = max(reasons.items(), key=lambda item: (item[1], item[0]))
    why = f"all {main}" if count == rejected else f"{count:,} of them {main}"
    return (
        f"{category}: {count_of(rejected, ended)} rejected{' so far' if so_far else ''}, {why}; "
        f"{cure(manifest, category, main)}"
    )


def count_of(part: int, whole: int) -> str:
    """`24 of 24 answers`."""
    return f"{part:,} of {whole:,} answers"


def cure(manifest: Manifest, category: str, reason: str) -> str:
    """What to change so that answers are not rejected for this reason, as a clause."""
    general = manifest.generation
    own = general.by_category.get(category)

    def key(name: str) -> str:
        mine = own is not None and getattr(own, name) is not None
        return f"generation.by_category.{category}.{name}" if mine else f"generation.{name}"

    most = f"{key('max_tokens')} ({general.for_category(category).max_tokens})"
    if reason == TRUNCATED:
        return f"raise {most} or set {key('truncated')}: keep"
    if reason in CHECKS:
        first = {
            "empty": "see that the chat template and engine.extra suit the target, ",
            "repetition": "raise the sampling temperature, ",
            "no_answer": f"raise {most}, ",
        }.get(reason, "")
        return f"{first}{'or ' if first else ''}take {reason} out of {key('reject')}"
    known = {
        "prompt_too_long": f"raise target.max_model_len ({manifest.target.max_model_len})",
        "template_error": "drop the rows that the chat template refuses from their source",
        "engine_error": "the events say why (kind item_failed); then ask again with --retry-rejected",
        "engine_crashed": "the events say why (kind item_failed); then ask again with --retry-rejected",
    }
    return known.get(reason, "the workers' logs (runs/*/workers) may say why")
