"""The table of contents of the command line: every command, in the order in which one works, in a phrase each."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

CONTENTS = {
    "Make": {
        "run": "the whole chain, from the manifest to a measured drafter",
        "build": "select prompts by the mix: sources, duplicates, shares",
        "generate": "have the target answer every selected prompt",
        "extract": "capture the target's hidden states of the answers",
        "train": "train the drafter, and measure it on held-out rows",
        "export": "write the drafter as a folder that vLLM loads",
        "serve-check": "measure the drafter in vLLM on held-out prompts",
        "import": "adopt a corpus of prompts and answers as a build",
    },
    "Before it costs": {
        "doctor": "check this machine, and what of the target fits",
        "plan": "what a manifest takes: rows, hours, money, disk",
        "diff": "what an edit changes, and what it costs",
        "tune": "measure engine settings on the build's own prompts",
        "suggest": "the next mix, from the acceptance that was measured",
        "schema": "print the manifest's JSON Schema, for editors",
    },
    "Look": {
        "status": "how far each build is, and what runs now",
        "composition": "what a build is made of, against its target",
        "funnel": "what became of the rows of each source",
        "sample": "rows of a build at random, to be read",
        "show": "all of one row, prompt, answer, build or run",
        "report": "one build on one page, to be kept or sent",
        "explore": "builds and rows in a browser, on this machine",
        "sql": "ask the ledger anything with one SELECT",
        "audit": "what a corpus of anybody is made of, labels or not",
    },
    "Share and keep": {
        "push": "publish the build as a dataset on the Hub",
        "push-drafter": "publish the drafter as a model on the Hub",
        "export-states": "hidden states as files for other trainers",
        "verify": "prove that nothing was lost or doubled",
        "ledger": "where the ledger lies, and making it again",
    },
}
WIDTH = max(len(name) for group in CONTENTS.values() for name in group)


class Grouped(TyperGroup):
    """Commands under the titles of CONTENTS."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in this order."""
        return [name for group in CONTENTS.values() for name in group]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A list a title."""
        for title, group in CONTENTS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(WIDTH), phrase) for name, phrase in group.items()])


def give_phrases(app: typer.Typer) -> None:
    """Each command of the app its phrase, which completion shows too."""
    phrases = {name: phrase for group in CONTENTS.values() for name, phrase in group.items()}
    for command in app.registered_commands:
        command.short_help = phrases[str(command.name)]
    for group in app.registered_groups:
        group.short_help = phrases[str(group.name)]
