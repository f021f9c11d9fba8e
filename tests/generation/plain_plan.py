"""A generation plan as loops over prompts and turns, slow and plain: what generation.plan's columns are held to.

Recipes and ids are the code's own (tests/corpus/test_identity.py holds those); which answers are wanted, taken from
elsewhere, accepted, left out, rejected or to be made is decided here once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from corpus import identity, selection
from corpus.manifest import Manifest
from corpus.reuse import ImportedConversation
from generation.plan import done_schema, finished_schema, make_recipe

CHECKS = ("empty", "repetition", "no_answer", "other_language", "broken_tool_call")
EARLIER = "earlier_turn_rejected"


@dataclass(frozen=True)
class Ended:
    """What a ledger says of an answer that has an end."""

    accepted: bool
    reason: str | None = None
    finish_reason: str | None = "stop"
    notes: tuple[str, ...] = ()
    place: int | None = None
    """Where it stands among all answers in the order in which they were written; None where that is not looked at."""


@dataclass(frozen=True)
class Finished:
    """An accepted answer that stopped by itself."""

    prompt_id: str
    replica: int
    turn: int
    recipe_id: str
    family_id: str
    response_id: str
    response_tokens: int


@dataclass(frozen=True)
class Wanted:
    """One answer that a build wants, and what becomes of it."""

    prompt_id: str
    replica: int
    turn: int
    category: str
    source: str
    holdout: bool
    recorded: bool
    recipe_id: str
    response_id: str
    max_tokens: int
    imported_from: str | None = None
    state: str = ""
    left_out: str | None = None


Done = Mapping[str, Ended]


def plain_plan(
    manifest: Manifest,
    target: dict[str, Any],
    prompts: pl.DataFrame,
    done: Done,
    *,
    imported: Mapping[str, Sequence[ImportedConversation]] | None = None,
    finished: Sequence[Finished] = (),
    retry: Iterable[str] = (),
) -> list[Wanted]:
    """Every wanted answer with its state, in the order of the prompts and their turns."""
    answers: list[Wanted] = []
    for row in prompts.iter_rows(named=True):
        own = manifest.generation.for_category(row["category"])
        position = int(selection.spread([row["prompt_id"]], selection.THINKING_SALT)[0]) / 2.0**64
        recipe = make_recipe(manifest, target, row["category"], position < (own.thinking_share or 0.0))
        turns = [
            Wanted(
                row["prompt_id"], row["replica"], turn, row["category"], row["source"], row["holdout"],
                row["recorded"], recipe.recipe_id,
                identity.response_id(row["prompt_id"], recipe.recipe_id, row["replica"], turn), recipe.max_tokens,
            )
            for turn in range(row["turns"])
        ]  # fmt: skip
        there = (imported or {}).get(row["prompt_id"], ())
        if row["replica"] < len(there) and not row["holdout"]:
            one = there[row["replica"]]
            turns = [
                replace(turn, recipe_id=one.recipe_id, response_id=response_id, imported_from=one.imported_from)
                for turn, response_id in zip(turns, one.response_ids, strict=True)
            ]
        else:
            turns = taken_from_elsewhere(turns, recipe.family_id, done, finished)
        answers += judged(turns, done, manifest, set(retry))
    return answers


def taken_from_elsewhere(turns: list[Wanted], family_id: str, done: Done, finished: Sequence[Finished]) -> list[Wanted]:
    """One conversation's turns, those under another max_tokens in their place where they may be taken."""

    def is_own(turn: Wanted) -> bool:
        return turn.response_id in done and done[turn.response_id].accepted

    usable: dict[tuple[str, int], Finished] = {
        (one.recipe_id, one.turn): one
        for one in finished
        for turn in turns
        if (one.prompt_id, one.replica, one.turn) == (turn.prompt_id, turn.replica, turn.turn)
        and one.family_id == family_id
        and one.recipe_id != turn.recipe_id
        and one.response_tokens <= turn.max_tokens
    }
    others = sorted({recipe_id for recipe_id, _ in usable})
    taken: dict[int, Finished] = {}
    if turns and turns[0].recorded:
        for turn in turns:
            if not is_own(turn):
                first = next((usable[other, turn.turn] for other in others if (other, turn.turn) in usable), None)
                taken |= {} if first is None else {turn.turn: first}
    elif turns and not is_own(turns[0]):
        whole = [other for other in others if all((other, turn.turn) in usable for turn in turns)]
        taken = {turn.turn: usable[whole[0], turn.turn] for turn in turns} if whole else {}
    return [
        replace(turn, recipe_id=taken[turn.turn].recipe_id, response_id=taken[turn.turn].response_id)
        if turn.turn in taken
        else turn
        for turn in turns
    ]


def judged(turns: list[Wanted], done: Done, manifest: Manifest, retry: set[str]) -> list[Wanted]:
    """One conversation's turns with their states."""
    found: list[Wanted] = []
    broken = ended = False  # by an earlier turn that does not count; by one that the build will not have
    written = -1  # where the turn before stands
    for turn in turns:
        own = manifest.generation.for_category(turn.category)
        rejects = set(own.reject or ())
        end = done.get(turn.response_id)
        left_out = None
        if turn.imported_from is not None:
            found.append(replace(turn, state="accepted"))
            continue
        if end is not None and end.accepted:
            noted = next((note for note in end.notes if note in rejects), None)
            cut = own.truncated == "drop" and end.finish_reason == "length"
            stale = not turn.recorded and end.place is not None and end.place < written
            left_out = "truncated" if cut else noted or (EARLIER if broken or stale else None)
            state = "left_out" if left_out else "accepted"
        elif end is not None and not (
            end.reason in {EARLIER, *retry}
            or (end.reason == "truncated" and own.truncated != "drop")
            or (end.reason in CHECKS and end.reason not in rejects)
        ):
            state, left_out = "rejected", end.reason
        elif ended:
            state, left_out = "rejected", EARLIER
        else:
            state = "to_make"
        written = -1 if end is None or end.place is None else end.place
        broken = not turn.recorded and (broken or state != "accepted")
        ended = not turn.recorded and (ended or state in ("left_out", "rejected"))
        found.append(replace(turn, state=state, left_out=left_out))
    return found


def done_frame(done: Done) -> pl.DataFrame:
    """As plan_generation is given it."""
    rows = [
        (response_id, one.reason, one.finish_reason if one.accepted else None, one.accepted,
         list(one.notes) if one.accepted else None, one.place)
        for response_id, one in done.items()
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=done_schema(), orient="row")


def finished_frame(finished: Sequence[Finished]) -> pl.DataFrame:
    """As plan_generation is given it."""
    columns = finished_schema()
    return pl.DataFrame([[getattr(one, name) for name in columns] for one in finished], schema=columns, orient="row")


def same(answers: pl.DataFrame, plain: Sequence[Wanted]) -> bool:
    """True if a plan's answers are those, in that order, column by column."""
    columns = [name for name in Wanted.__dataclass_fields__ if name in answers.columns]
    return answers.select(columns).rows() == [tuple(getattr(one, name) for name in columns) for one in plain]
