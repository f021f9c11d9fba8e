"""Templates that raise, and prompts that render to nothing: a reason with the row, never a dead run."""

from __future__ import annotations

from typing import Any

import pytest

from corpus.building import commit_build
from corpus.errors import RowError
from corpus.ledger.writer import open_ledger
from corpus.records import Prompt, encode_messages
from corpus.target import Renderer
from draftmill.session import Session

World = Any
TINY = {"target": {"model": "model", "max_model_len": 64, "dtype": "float32"}}


def session(world: World, template: str) -> Session:
    (world.tiny_model() / "chat_template.jinja").write_text(template)
    return Session(world.write(**TINY), world.workspace)


@pytest.mark.parametrize(
    "template",
    ["{{ 1 / 0 }}", "{{ raise_exception('no') }}", "{{ messages[9].content.x.y }}", "{{ nosuch() }}", "{% for %}"],
)
def test_a_template_that_raises_is_a_reason(world: World, template: str) -> None:
    chosen = session(world, template)
    with pytest.raises(RowError, match="template_error"):
        Renderer(chosen.target).text([{"role": "user", "content": "x"}], [], thinking=False)
    prompt = Prompt(({"role": "user", "content": "x"},))
    assert chosen.count_tokens([encode_messages(prompt)]) == [None]


def test_a_prompt_that_renders_to_nothing_is_refused_when_tokens_are_counted(world: World) -> None:
    chosen = session(world, "{% if messages[0].content != 'x' %}question{% endif %}")
    rows = [encode_messages(Prompt(({"role": "user", "content": text},))) for text in ("x", "y")]
    assert chosen.count_tokens(rows) == [None, 1]


def test_a_prompt_that_renders_to_nothing_is_rejected_and_not_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.words, "text", lambda *_: "")
    manifest = world.manifest()
    with open_ledger(world.workspace, "test") as ledger:
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        summary = world.generate(manifest, plan, ledger)
        states = ledger.rows("SELECT DISTINCT state, reason FROM responses")
    assert summary is not None
    assert summary.accepted == 0
    assert states == [("rejected", "template_error")]
