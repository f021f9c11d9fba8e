"""What a drafter is worth, as serving sees it: by kind, in real vLLM, float32, temperature 0, held-out prompts.

Read from the chain's ledger (tests/e2e/chain.py): its drafter of one layer and one with random weights were both
served by `draftmill serve-check` on the same prompts. The recorded answers are plain decoding, without a drafter.
"""

from __future__ import annotations

import re

import pytest

from tests.e2e.chain import SHARES, Chain

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

TRAINED, UNTRAINED = "d.build_id IS NOT NULL", "d.path = 'untrained'"
SAME = re.compile(r"(?P<kind>[a-z-]+): (?P<same>\d+) of (?P<rows>\d+) greedy answers are the recorded ones.*")


def acceptance(chain: Chain, which: str, measured_by: str) -> dict[str, tuple[float, int]]:
    """(acceptance length, rows) by kind."""
    found = chain.ask(
        f"""
        SELECT category, acceptance_length, a.rows FROM acceptance_by_category a JOIN drafters d USING (drafter_id)
        WHERE a.build_id = '{chain.build_id()}' AND measured_by = '{measured_by}' AND {which}
        """
    )
    assert found["category"].n_unique() == found.height
    return {kind: (float(tau), rows) for kind, tau, rows in found.iter_rows()}


def test_every_kind_is_served_on_held_out_prompts(chain: Chain) -> None:
    held_out = dict(
        chain.ask(
            f"""
            SELECT category, count(*) FROM build_responses b JOIN responses r USING (response_id)
            WHERE b.build_id = '{chain.build_id()}' AND holdout AND left_out IS NULL AND r.state = 'accepted'
            GROUP BY ALL
            """
        ).iter_rows()
    )
    assert set(held_out) == set(SHARES)
    assert min(held_out.values()) >= 12
    for which in (TRAINED, UNTRAINED):
        assert {kind: rows for kind, (_, rows) in acceptance(chain, which, "vllm").items()} == held_out


def test_an_untrained_drafter_is_worth_nothing(chain: Chain) -> None:
    for kind, (tau, _) in acceptance(chain, UNTRAINED, "vllm").items():
        assert 1.0 <= tau <= 1.05, (kind, tau)


def test_a_drafter_of_one_layer_is_accepted_in_every_kind(chain: Chain) -> None:
    for kind, (tau, _) in acceptance(chain, TRAINED, "vllm").items():
        assert tau >= 2.0, (kind, tau)


@pytest.mark.parametrize("which", [TRAINED, UNTRAINED])
def test_the_walk_is_what_vllm_counts(chain: Chain, which: str) -> None:
    served, walked = acceptance(chain, which, "vllm"), acceptance(chain, which, "walk")
    assert set(served) == set(walked) == set(SHARES)
    for kind, (tau, _) in served.items():
        assert abs(tau - walked[kind][0]) <= 0.01 * walked[kind][0], (kind, tau, walked[kind])


def test_output_is_plain_decoding_token_for_token(chain: Chain) -> None:
    said = chain.ask("SELECT message FROM events JOIN runs USING (run_id) WHERE kind = 'same_tokens'")["message"]
    found = [SAME.fullmatch(message) for message in said]
    assert all(found)
    kinds = [match["kind"] for match in found if match]
    assert sorted(kinds) == sorted([*SHARES, *SHARES]), "both drafters, every kind"
    rows = {kind: count for kind, (_, count) in acceptance(chain, TRAINED, "vllm").items()}
    for match in found:
        assert match and match["same"] == match["rows"] == str(rows[match["kind"]]), said.to_list()
