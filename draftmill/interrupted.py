"""How a stage ends that was stopped: a module of its own, so that the command line knows it without the stages."""

from __future__ import annotations

from corpus.errors import UserError


class StoppedEarly(Exception):
    """An interrupt drained a stage; the message says how to go on, and the command ends with exit code 1."""


class NotAgreed(UserError):
    """A stage told what it would take, and waits for a word of the person: it did not fail."""
