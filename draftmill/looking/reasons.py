"""Reason codes in plain words: why a source row holds no prompt, a prompt is no candidate, an answer is not taken.

One table; a code that is not in it stands for itself. docs/corpus.md and docs/generation.md explain each at length.
Pure.
"""

from __future__ import annotations

ROWS = {
    "no_user_turn": "asks nothing: no user turn",
    "empty_prompt": "asks nothing: empty user turns",
    "empty_conversation": "no messages",
    "not_messages": "not of the source's shape",
    "bad_role": "a role that chats do not have",
    "bad_tools": "tools that cannot be read",
    "bad_tool_call": "a tool call that cannot be read",
    "not_text": "not text: images, audio, numbers",
    "invalid_unicode": "not valid Unicode",
    "not_json": "not JSON",
    "not_utf8": "not UTF-8",
    "line_too_long": "a line that is too long",
    "ragged": "other columns than its file",
    "unreadable": "cannot be read",
    "no_category": "its label has no category",
    "not_in_mix": "its category has no share",
    "too_few_chars": "too short",
    "too_many_chars": "too long",
    "too_few_turns": "too few turns",
    "too_many_turns": "too many turns",
    "too_few_tokens": "too short",
    "too_many_tokens": "too long",
    "near_empty": "says next to nothing",
    "other_language": "in another language",
    "contaminated": "overlaps an evaluation set",
    "same_prompt": "another row has this prompt",
    "duplicate": "another but for case and spaces",
    "near_duplicate": "nearly the same as another",
    "template_error": "the chat template refuses it",
    "replica": "a prompt of the corpus once more",
}

NOT_NEEDED = "not_needed"
"""Not dropped: a candidate that the mix did not take. `sample --dropped` shows those too."""

ANSWERS = {
    "empty": "empty",
    "repetition": "ends in a loop",
    "no_answer": "thinks, and answers nothing",
    "other_language": "in a language not asked for",
    "broken_tool_call": "a broken tool call",
    "truncated": "ran into max_tokens",
    "prompt_too_long": "prompt too long for the target",
    "template_error": "the chat template refuses it",
    "engine_error": "the engine failed at it",
    "engine_crashed": "it crashed engines",
    "earlier_turn_rejected": "earlier turn was lost",
    "not answered yet": "not answered yet",
}


def row_words(code: str) -> str:
    """Why a source row or prompt was left out."""
    return "the mix has enough" if code == NOT_NEEDED else ROWS.get(code, "left out")


def answer_words(code: str) -> str:
    """Why a build has not this answer."""
    return ANSWERS.get(code, "rejected")
