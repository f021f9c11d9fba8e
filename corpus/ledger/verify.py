"""The proof of the accounts: every selected answer is in one state, every file is whole, every id leads somewhere.

Looks at the published snapshot and at the files that it names; takes no lock and writes nothing, so it may run beside
a run. What a run has written since the snapshot is counted and is no breach. The checks are in accounts (per build),
references (ids) and shard_proof (files); here they are put in order, and prompts are held against their ids.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection
from pathlib import Path

from corpus.errors import UserError, first_line
from corpus.ledger.accounts import Build, check_selections, check_states, known_builds
from corpus.ledger.composition_proof import check_composition
from corpus.ledger.findings import Finding, Problems
from corpus.ledger.query import LedgerReader
from corpus.ledger.references import Scope, check_ids, check_references
from corpus.ledger.shard_proof import check_hidden_shards, check_response_shards
from corpus.ledger.writer import Readable
from corpus.workspace import Workspace

SAMPLED = 1_000
SEED = 17
BUILD_AGAIN = "`draftmill build MANIFEST` makes the candidates again, the same."


def verify(
    workspace: Workspace,
    build_id: str | None = None,
    *,
    all_prompts: bool = False,
    fast: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Every line of the proof, builds first; it holds where all of them do.

    Args:
        build_id: look at this build or import alone, and at the shards that hold its answers.
        all_prompts: make every selected prompt's id again, not those of SAMPLED of each build.
        fast: take the size of a file for its checksum, and leave the tokens of captured rows alone.
        report: told what is being looked at.

    Raises:
        UserError: nothing is published here, the snapshot cannot be read, or it has no such build.
    """
    workspace.published()
    ledger = LedgerReader(workspace)
    builds, scope = known_builds(ledger, build_id), Scope(build_id)
    if build_id is not None and not builds:
        raise UserError(
            f"{workspace.snapshot}: has no build {build_id}. Run the command that makes it, or verify all builds: "
            "`draftmill verify`."
        )
    findings = []
    for build in builds:
        report(f"build {build.name} {build.build_id[:8]}")
        findings += [
            check_selections(ledger, build), check_states(ledger, build), check_composition(ledger, build),
            _check_prompts(ledger, build, all_prompts),
        ]  # fmt: skip
    report("answers that no build wants")
    rest = check_states(ledger, None) if build_id is None else None
    findings += [rest] if rest and rest.checked else []
    report("ids")
    findings += [check_ids(ledger, scope), check_references(ledger, scope)]
    answers, sound = check_response_shards(ledger, scope, fast, report)
    return [*findings, answers, check_hidden_shards(ledger, scope, fast, report, sound)]


def prompt_digest(messages: str, tools: str | None) -> str:
    """Prompt.prompt_id of a stored prompt. Its parts are canonical JSON; to parse them could round their numbers."""
    body = f'prompt:v1:{{"messages":{messages},"tools":{tools or "[]"}}}'
    return hashlib.sha256(body.encode()).hexdigest()[:32]


def _check_prompts(ledger: Readable, build: Build, every: bool) -> Finding:
    """candidates/<id>/prompts.parquet has every selected prompt, under the digest of its messages and tools."""
    path = ledger.workspace.candidates(build.candidates_id) / "prompts.parquet"
    selected = [
        row[0]
        for row in ledger.rows(
            "SELECT DISTINCT prompt_id FROM selections WHERE build_id = ? AND prompt_id IS NOT NULL ORDER BY 1",
            build.build_id,
        )
    ]
    drawn = selected if every or len(selected) <= SAMPLED else random.Random(SEED).sample(selected, SAMPLED)
    problems = Problems()
    try:
        rows, missing, wrong = _read_prompts(path, selected, set(drawn))
    except (OSError, ValueError, KeyError) as error:
        problems.add(f"not readable ({first_line(error)[:120]})", [f"candidates/{build.candidates_id}/{path.name}"])
        return problems.finding("prompts", len(drawn), "", BUILD_AGAIN, build=build.build_id)
    known = ledger.rows("SELECT count(*) FROM prompts WHERE candidates_id = ?", build.candidates_id)[0][0]
    problems.add(f"rows more or less than the ledger's {known:,}", [f"{rows:,} in {path.name}"], abs(rows - known))
    problems.add("selected and not in the file", missing)
    problems.add("not the digest of messages and tools", wrong)
    part = (
        f"{len(drawn):,} of {len(selected):,} (--all takes every one)"
        if len(drawn) < len(selected)
        else f"{len(drawn):,}"
    )
    proven = "ids made again, the same"
    return problems.finding("prompts", len(drawn), part, BUILD_AGAIN, proven=proven, build=build.build_id)


def _read_prompts(path: Path, selected: list[str], drawn: Collection[str]) -> tuple[int, list[str], list[str]]:
    """(rows of the file, selected ids that it has not, drawn ids that are not their prompt's), group by group.

    Raises:
        OSError, ValueError, KeyError: it is gone, or no such file.
    """
    import pyarrow.parquet as pq

    missing, wrong = set(selected), []
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            ids = file.read_row_group(group, columns=["prompt_id"])["prompt_id"].to_pylist()
            missing.difference_update(ids)
            at = [i for i, prompt_id in enumerate(ids) if prompt_id in drawn]
            if at:
                texts = file.read_row_group(group, columns=["messages", "tools"]).take(at)
                pairs = zip(texts["messages"].to_pylist(), texts["tools"].to_pylist(), strict=True)
                made = [prompt_digest(messages or "", tools) for messages, tools in pairs]
                wrong += [ids[i] for i, one in zip(at, made, strict=True) if one != ids[i]]
        return file.metadata.num_rows, sorted(missing), wrong
