"""The three families of errors that draftmill raises on purpose; anything else is a bug.

A UserError is one line that a person can act on (what, where, got, expected, next step); the command
prints it and exits 2. A RowError concerns one row and becomes a drop or a rejected response. A Retryable
may succeed when tried again. No message ever holds a whole payload, a token or a key.
"""

from __future__ import annotations


class UserError(Exception):
    """A person must act: the message is one line, printed without a traceback, exit code 2."""


class DamagedError(UserError):
    """A file of ours is not what was written: cut, changed, or of something else."""


class RowError(Exception):
    """One row cannot be used. `reason` is its code in the drops table, `detail` what was seen."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Retryable(Exception):
    """The same call may succeed later: a lost connection, a worker that died."""


def first_line(error: BaseException) -> str:
    """The first line of a library's message, to be quoted in one of ours; the error's name where it says nothing."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
