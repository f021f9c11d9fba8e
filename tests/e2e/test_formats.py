"""A trained drafter in either format is one drafter to vLLM: the same drafts, the same acceptance, by kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.chain import Chain, draftmill
from training.serve import read_drafter

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]


def test_the_trained_drafter_is_said_in_both_formats_and_published_by_name(chain: Chain, tmp_path: Path) -> None:
    where = ["--workspace", chain.workspace.root]
    for form in ("zlab", "speculators"):
        draftmill("export", chain.manifest, "--out", tmp_path / form, "--format", form, *where)
        card = (tmp_path / form / "README.md").read_text()
        for kind, tau in served(chain, "d.build_id IS NOT NULL").items():
            assert f"| {kind} | served by vLLM, greedy | {1 + tau[1] / tau[0]:.2f} |" in card
        told = draftmill("push-drafter", chain.manifest, "--repo", "me/demo", "--format", form, "--dry-run", *where)
        assert "to me/demo (private)" in told.stdout
    zlab, speculators = (read_drafter(str(tmp_path / form)) for form in ("zlab", "speculators"))
    assert (zlab.block_size, zlab.layer_ids) == (speculators.block_size, speculators.layer_ids)


@pytest.mark.full
def test_both_formats_are_accepted_alike(chain: Chain, tmp_path: Path) -> None:
    """An engine of its own; z-lab's figures are the chain's."""
    where = ["--workspace", chain.workspace.root]
    folder = tmp_path / "speculators"
    draftmill("export", chain.manifest, "--out", folder, "--format", "speculators", *where)
    draftmill("serve-check", chain.manifest, "--drafter", folder, *where)
    name = read_drafter(str(folder)).drafter_id
    assert served(chain, f"d.drafter_id = '{name}'") == served(chain, "d.build_id IS NOT NULL")


def served(chain: Chain, which: str) -> dict[str, tuple[int, int, int]]:
    """(drafts, accepted tokens, rows) in vLLM by kind."""
    found = chain.ask(
        f"""
        SELECT category, drafts, accepted_tokens, a.rows
        FROM acceptance_by_category a JOIN drafters d USING (drafter_id)
        WHERE a.build_id = '{chain.build_id()}' AND measured_by = 'vllm' AND {which}
        """
    )
    assert found.height
    return {kind: (drafts, accepted, rows) for kind, drafts, accepted, rows in found.iter_rows()}
