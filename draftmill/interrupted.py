"""What a drained stage raises: a module of its own, so that the command line knows it without importing the stages."""

from __future__ import annotations


class StoppedEarly(Exception):
    """An interrupt drained a stage; the message says how to go on, and the command ends with exit code 1."""
