"""From the rows of an imported corpus to its answers: one response a turn, in the form of a response shard.

What the source answered stands beside its prompt in the pool. An answer's text is adopted as it is; its token ids
are made anew, where a tokenizer is given: the prompt as the template renders it up to where the answer begins, over
the corpus's own earlier answers; then the answer's text, and the special token that the template writes right after
an answer, where it writes one. Without a tokenizer token ids are null: not known, which is another thing than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from corpus import identity
from corpus.errors import RowError
from corpus.records import Message, Prompt, decode_prompt
from corpus.responses import response_schema

if TYPE_CHECKING:
    import polars as pl

    from corpus.target import Renderer

TOKENISED_ROWS = 1_000  # at a time: token ids are Python integers until they are in a column
PROBE = "draftmill"
OPENED, CLOSED = "<think>", "</think>"
"""An answer that closes a thought was made with thinking on, and its prompt is rendered so."""

Tokens = tuple[list[int] | None, list[int] | None]
"""Token ids of prompt and answer; None where the template refuses the prompt, or cannot write the answer."""


def answer_rows(rows: pl.DataFrame, recipe_id: str) -> pl.DataFrame:
    """Every answer of some rows, judged and named, with the row's own columns beside.

    Args:
        rows: prompt_id, replica, turns, original of a pool's rows that hold a prompt.
    """
    import polars as pl

    answers = _answers(rows)
    owner = pl.Series([row for row, said in enumerate(answers) for _ in said], dtype=pl.UInt32)
    each = rows.drop("messages", "tools", "original", "turns", strict=False)[owner].with_columns(
        answer=pl.Series([one for said in answers for one in said], dtype=pl.String),
        turn=pl.Series([turn for said in answers for turn in range(len(said))], dtype=pl.Int32),
    )
    ids = [
        identity.response_id(prompt_id, recipe_id, replica, turn)
        for prompt_id, replica, turn in each.select("prompt_id", "replica", "turn").iter_rows()
    ]
    said = pl.col("answer")
    reason = pl.when(said.is_null()).then(pl.lit("no_answer")).when(said.str.strip_chars() == "").then(pl.lit("empty"))
    return each.with_columns(
        response_id=pl.Series(ids, dtype=pl.String),
        recipe_id=pl.lit(recipe_id),
        attempt=pl.lit(0),
        reason=reason.otherwise(None),
        state=pl.when(reason.otherwise(None).is_null()).then(pl.lit("accepted")).otherwise(pl.lit("rejected")),
        text=said.fill_null(""),
        run_id=pl.lit(recipe_id),  # not of the run that imported: a shard is the same whoever writes it
    ).drop("answer")


def shard_rows(answers: pl.DataFrame) -> pl.DataFrame:
    """Answers with exactly the columns of a response shard; what an import does not know is null."""
    import polars as pl

    have = set(answers.columns)
    return answers.select(
        [
            (pl.col(name) if name in have else pl.lit(None)).cast(kind).alias(name)
            for name, kind in response_schema().items()
        ]
    )


_decode_answers = msgspec.json.Decoder(list[str | None]).decode


def _answers(rows: pl.DataFrame) -> list[list[str | None]]:
    """Of each row the source's answer to each of its turns."""
    return [
        _decode_answers(original) if original else [None] * turns
        for original, turns in rows.select("original", "turns").iter_rows()
    ]


class AnswerEncoder:
    """Token ids of conversations whose answers are known, as a target's template and tokenizer make them."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._after, self.end = self._end_of_turn()

    def token_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """prompt_token_ids and token_ids of every answer of some rows, as answer_rows has them, one below the other."""
        import polars as pl

        schema = dict.fromkeys(("prompt_token_ids", "token_ids"), pl.List(pl.Int32))
        conversations = zip(rows.select("messages", "tools").iter_rows(), _answers(rows), strict=True)
        frames = [pl.DataFrame(schema=schema)]
        while batch := [(decode_prompt(*prompt), said) for prompt, said in islice(conversations, TOKENISED_ROWS)]:
            turns = [turn for row in self.encode(batch) for turn in row]
            frames.append(pl.DataFrame(turns, schema=schema, orient="row"))
        return pl.concat(frames)

    def encode(self, conversations: Sequence[tuple[Prompt, Sequence[str | None]]]) -> list[list[Tokens]]:
        """Of each conversation the tokens of its turns."""
        shown = [self._texts(prompt, said) for prompt, said in conversations]
        flat = [pair for turns in shown for pair in turns]
        prompts = self._encoded([prompt for prompt, _ in flat])
        written = self._encoded([answer for _, answer in flat])
        tokens: Iterator[Tokens] = (
            (prompt, [*answer, *self.end]) if prompt and answer else (None, None)
            for prompt, answer in zip(prompts, written, strict=True)
        )
        return [[next(tokens) for _ in turns] for turns in shown]

    def _encoded(self, texts: Sequence[str | None]) -> list[list[int] | None]:
        ids = iter(self._renderer.encode([text for text in texts if text]))
        return [next(ids) if text else None for text in texts]

    def _texts(self, prompt: Prompt, said: Sequence[str | None]) -> list[tuple[str | None, str | None]]:
        """(prompt, answer) of each turn as text; None for an answer that is not there or cannot be rendered."""
        ends = prompt.ends()
        texts: list[tuple[str | None, str | None]] = []
        for turn, answer in enumerate(said):
            before = said[:turn]
            if answer is None or not answer.strip() or (not prompt.recorded and not all(before)):
                texts.append((None, None))
                continue
            recorded = prompt.messages[ends[turn] : ends[turn] + 1] if prompt.recorded else ()
            message: Message = dict(recorded[0]) if recorded else _message(prompt, answer)
            texts.append(self._turn(prompt, prompt.context(turn, [one or "" for one in before]), message))
        return texts

    def _turn(self, prompt: Prompt, context: list[Message], answer: Message) -> tuple[str | None, str | None]:
        said = answer.get("content") or ""
        try:
            shown = self._renderer.text(context, prompt.tools, CLOSED in said)
            if not answer.get("tool_calls"):
                if shown.rstrip().endswith(OPENED) and said.lstrip().startswith(OPENED):
                    said = said.lstrip().removeprefix(OPENED).lstrip("\n")  # the prompt has opened it already
                return shown, said
            whole = self._render([*context, answer], prompt.tools)
        except RowError:
            return None, None
        # how calls are written is the template's: what it adds to the prompt is the answer
        return (shown, whole[len(shown) :].removesuffix(self._after)) if whole.startswith(shown) else (None, None)

    def _render(self, messages: list[Message], tools: Sequence[dict[str, Any]]) -> str:
        renderer = self._renderer
        try:
            text = renderer.tokenizer.apply_chat_template(
                messages, tools=list(tools) or None, chat_template=renderer.template, tokenize=False
            )
        except Exception as error:  # as in Renderer.text: a template runs what it likes
            raise RowError("template_error", type(error).__name__) from error
        return str(text)

    def _end_of_turn(self) -> tuple[str, tuple[int, ...]]:
        """(what the template writes after an answer, the special token that this begins with, if with one)."""
        try:
            whole = self._render([{"role": "user", "content": "?"}, {"role": "assistant", "content": PROBE}], ())
        except RowError:
            return "", ()
        after = whole.rpartition(PROBE)[2]
        ids = self._renderer.encode([after])[0] if after else []
        special = set(self._renderer.tokenizer.all_special_ids)
        special |= {at for at, token in self._renderer.tokenizer.added_tokens_decoder.items() if token.special}
        return after, tuple(ids[:1]) if ids and ids[0] in special else ()


def _message(prompt: Prompt, answer: str) -> Message:
    """An answer as a message. Calls without a text are stored as their JSON (formats.originals)."""
    offered = prompt.tools or any(message["role"] == "tool" for message in prompt.messages)
    if offered and answer.startswith("[{"):
        try:
            calls = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            calls = []
        if calls and all(isinstance(call, dict) and "function" in call for call in calls):
            return {"role": "assistant", "content": "", "tool_calls": calls}
    return {"role": "assistant", "content": answer}
