"""A sample for a person: of each row one line of labels, its texts cut to fit, and the id that `show` takes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from corpus.ledger.texts import PromptTexts
from corpus.records import Prompt
from draftmill.looking.answers import WIDTH, said
from draftmill.looking.chosen import Build, heading
from draftmill.looking.plain_text import text_lines
from draftmill.looking.reasons import NOT_NEEDED, answer_words, row_words
from draftmill.looking.sampling import Drawn
from draftmill.table import cut, printable

ID_DIGITS = 12
RULE = "──"


def sample_lines(build: Build, drawn: list[Drawn], n: int, chars: int, age: str | None = None) -> list[str]:
    """All rows of a sample."""
    lines = [*said(heading(build)), *(said(age) if age else [])]
    if not drawn:
        return [*lines, "no row fits"]
    if len(drawn) < n:
        lines += said(f"{len(drawn):,} {'rows fit' if len(drawn) != 1 else 'row fits'}; there are no more")
    for number, one in enumerate(drawn, start=1):
        lines += ["", *_row(number, one, chars)]
    return [*lines, "", "draftmill show ID has the whole of a row."]


def _row(number: int, one: Drawn, chars: int) -> Iterator[str]:
    labels = one.labels
    yield cut(printable(f"{RULE} {number}  {', '.join(_labels(labels))}"), WIDTH)
    if labels.get("similarity") is not None or labels.get("winner_prompt_id"):
        yield cut(printable(_why_lost(labels)), WIDTH)
    elif labels.get("detail"):
        yield cut(printable(f"   detail {labels['detail']}"), WIDTH)
    if labels.get("eval_item") or labels.get("eval_set"):
        yield cut(printable(f"   {labels.get('eval_set')}, item {labels.get('eval_item')}: "
                            f"{labels.get('overlap') or ''}"), WIDTH)  # fmt: skip
    if labels.get("prompt_id") is None and labels.get("file") is not None:
        yield cut(printable(f"   row {labels['source']}:{labels['file']}:{labels['row_index']}"), WIDTH)
    title = "dropped" if one.winner is not None else "prompt"
    if one.prompt is not None:
        shown = _until(one.prompt, labels.get("turn"))
        yield from _prompt(title, labels.get("prompt_id"), shown, chars)
    if one.winner is not None:
        yield from _prompt("kept", labels.get("winner_prompt_id"), one.winner, chars)
    if one.answer is not None:
        yield from _part(f"answer {str(labels.get('response_id'))[:ID_DIGITS]}", one.answer.text, one.answer.why, chars)
    elif labels.get("response_id"):
        yield f"   answer {labels['response_id'][:ID_DIGITS]}: none yet"


def _labels(labels: dict[str, Any]) -> Iterator[str]:
    for key in ("category", "source"):
        if labels.get(key):
            yield str(labels[key])
    if labels.get("holdout"):
        yield "held out"
    reason = labels.get("reason")
    if "state" in labels:
        yield str(labels["state"]).replace("_", " ") + (f" ({answer_words(reason)}: {reason})" if reason else "")
        if labels.get("finish_reason"):
            yield f"finish {labels['finish_reason']}"
        if labels.get("response_tokens") is not None:
            yield f"{labels['response_tokens']:,} tokens"
        if labels.get("turn"):
            yield f"turn {labels['turn'] + 1}"
    elif reason == NOT_NEEDED:
        yield f"not needed: {row_words(reason)} ({reason})"
    elif reason:
        yield f"dropped: {row_words(reason)} ({reason})"


def _why_lost(labels: dict[str, Any]) -> str:
    alike = f"{100 * labels['similarity']:.0f}% alike; " if labels.get("similarity") is not None else ""
    winner = str(labels.get("winner_prompt_id") or "?")[:ID_DIGITS]
    return f"   {alike}kept is {winner} of {labels.get('winner_source') or 'an unknown source'}"


def _prompt(title: str, prompt_id: str | None, prompt: PromptTexts, chars: int) -> Iterator[str]:
    """The user turns, and what else is shown with them."""
    roles = Counter(str(message.get("role")) for message in prompt.messages)
    others = [f"{number} {role}" for role, number in roles.items() if role != "user"]
    if prompt.tools:
        others.append(f"{len(prompt.tools)} tool{'s' * (len(prompt.tools) != 1)}")
    more = f" (beside {', '.join(others)})" if others else ""
    yield from _part(f"{title} {str(prompt_id)[:ID_DIGITS]}{more}", prompt.asked, prompt.why, chars)


def _until(prompt: PromptTexts, turn: int | None) -> PromptTexts:
    """What a turn's answer answers: the prompt up to there. `turn` counts from 0, as the ledger does; None is all."""
    if turn is None or not all(isinstance(message.get("role"), str) for message in prompt.messages):
        return prompt
    ends = Prompt(tuple(prompt.messages)).ends() if prompt.messages else []
    return replace(prompt, messages=prompt.messages[: ends[turn]]) if turn < len(ends) else prompt


def _part(title: str, text: str, why: str | None, chars: int) -> Iterator[str]:
    yield cut(printable(f"   {title}"), WIDTH)
    yield from text_lines((text if why is None else f"no text: {why}").strip("\n"), WIDTH, chars, "   │ ")
