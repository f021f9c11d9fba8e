"""What is still to be asked, in the order of generation.order, its texts read a window at a time.

A build's prompts are gigabytes of text: only the next window is held. The order of what is left is decided anew for
each window, by the lengths that were measured until then. Methods that read are slow and belong in a thread; one
caller at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.records import decode_prompt
from generation.conversation import Answer, Conversation
from generation.order import expected_tokens, feed_order
from generation.plan import ROW

if TYPE_CHECKING:
    import polars as pl

WINDOW = 16_384
TEXT_ROWS = 50_000

Said = dict[tuple[str, int], dict[int, str]]
"""(prompt_id, replica) to the accepted answers, by turn, of conversations that have begun."""


def conversations_of(left: pl.DataFrame, prompts: pl.DataFrame) -> pl.DataFrame:
    """A plan's answers to be made, one row a conversation.

    Args:
        left: GenerationPlan.left, holdout among its columns.
        prompts: ROW, row (the place in prompts.parquet), prompt_chars, prefix_key.

    Returns:
        ROW, category, holdout, recipe_id, recorded, turns_left, response_ids, recipe_ids, turns, row, prompt_chars,
        prefix_key.
    """
    import polars as pl

    part = pl.when("recorded").then("turn").otherwise(0)
    grouped = (
        left.group_by([*ROW, part.alias("part")], maintain_order=True)
        .agg(
            pl.col("category").first(),
            pl.col("holdout").first(),
            recipe_id=pl.col("recipe_id").first(),
            recorded=pl.col("recorded").first(),
            turns_left=pl.len().cast(pl.Int64),
            response_ids=pl.col("response_id"),
            recipe_ids=pl.col("recipe_id"),
            turns=pl.col("turn"),
        )
        .drop("part")
    )
    kept = prompts.select(*ROW, "row", "prompt_chars", "prefix_key")
    return grouped.join(kept, on=ROW, how="left", maintain_order="left")


def turns_by_category(conversations: pl.DataFrame) -> dict[str, int]:
    """How many answers conversations are."""
    import polars as pl

    return dict(conversations.group_by("category").agg(pl.col("turns_left").sum()).sort("category").iter_rows())


class Feed:
    """Conversations that are not asked yet."""

    def __init__(
        self,
        prompts: Path,
        budgets: Mapping[str, int],
        measured: Callable[[], pl.DataFrame],
        said: Callable[[pl.DataFrame], Said],
    ) -> None:
        """Args: prompts.parquet; max_tokens by recipe; as expected_tokens takes it; earlier answers of some rows."""
        self._prompts, self._budgets, self._measured, self._said = prompts, budgets, measured, said
        self._left: pl.DataFrame | None = None
        self._window: deque[Conversation] = deque()
        self._handed_out = 0

    def __len__(self) -> int:
        return len(self._window) + (0 if self._left is None else self._left.height)

    @property
    def turns(self) -> dict[str, int]:
        """Answers by category, of what is added and not read yet."""
        return {} if self._left is None else turns_by_category(self._left)

    @property
    def low(self) -> bool:
        """True where the next window should be read."""
        return self._left is not None and self._left.height > 0 and len(self._window) < WINDOW // 4

    def add(self, conversations: pl.DataFrame) -> None:
        """More to ask, as conversations_of."""
        import polars as pl

        self._left = conversations if self._left is None else pl.concat([self._left, conversations])

    def take(self, most: int) -> list[Conversation]:
        """The next conversations, of those whose texts are read."""
        return [self._window.popleft() for _ in range(min(most, len(self._window)))]

    def read(self) -> None:
        """Read the next window."""
        import polars as pl

        if self._left is None or not self._left.height:
            return
        rows = self._left.with_columns(pl.col("turns_left").cast(pl.Int64))
        expected = expected_tokens(rows, self._measured(), self._budgets)
        order = feed_order(rows.select("prefix_key").with_columns(expected_tokens=expected))
        ordered = rows[order]
        window, self._left = ordered.head(WINDOW), ordered.slice(WINDOW)
        said = self._said(window)
        wanted = window.select("row").unique()
        texts = (
            pl.scan_parquet(self._prompts, glob=False)
            .select("messages", "tools")
            .with_row_index("row")
            .join(wanted.lazy(), on="row", how="semi")
            .collect()
        )
        by_row = {row: (messages, tools) for row, messages, tools in texts.iter_rows()}
        columns = (*ROW, "row", "category", "holdout", "prompt_chars", "response_ids", "recipe_ids", "turns")
        taken = window.select(columns).iter_rows()
        for prompt_id, replica, row, category, holdout, chars, ids, recipes, turns in taken:
            answers = deque(
                Answer(response_id, prompt_id, recipe_id, replica, turn, category)
                for response_id, recipe_id, turn in zip(ids, recipes, turns, strict=True)
            )
            earlier = dict(said.get((prompt_id, replica), {}))
            # the pool hands out the heaviest first: its queue keeps the order of the feed
            conversation = Conversation(decode_prompt(*by_row[row]), answers, earlier, -float(self._handed_out))
            conversation.prompt_chars, conversation.counted = chars, bool(earlier)
            conversation.holdout = holdout
            self._handed_out += 1
            self._window.append(conversation)
