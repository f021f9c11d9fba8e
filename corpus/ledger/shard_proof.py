"""Files that the ledger names: each there, whole, and holding row by row what the ledger says.

Shards are read one at a time and nothing that was remembered of them is believed: a checksum is made again. A shard
that breaks several rules is said once, by the first. Files that the ledger does not name are no breach: a run writes
the file first, and what a killed one left is adopted at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from corpus.artefacts import sha256_file
from corpus.errors import UserError
from corpus.ledger.accounts import REBUILD
from corpus.ledger.findings import MOST_EXAMPLES, Finding, Problems
from corpus.ledger.references import Scope
from corpus.ledger.token_proof import AnswerTokens
from corpus.ledger.writer import Readable
from corpus.shards import shard_index

Report = Callable[[str], None]

ANSWERS_AGAIN = f"Put the file back; or {REBUILD.removesuffix('.')}, and `draftmill generate` makes lost answers again."
STATES_AGAIN = "Remove the file; the next `draftmill extract MANIFEST` captures its rows again."
ID_COLUMNS = ["response_id", "prompt_id", "recipe_id", "replica", "turn", "attempt"]


def check_response_shards(ledger: Readable, scope: Scope, fast: bool, report: Report) -> tuple[Finding, frozenset[str]]:
    """responses/: size, checksum, rows, and of each row its ids, its state and how many tokens it has.

    Returns:
        The finding, and the shards that keep to it.
    """
    folder = ledger.workspace.responses
    shards = ledger.rows(
        f"SELECT shard, rows, size_bytes, sha256 FROM response_shards WHERE {_holding(scope, 'responses')} ORDER BY 1"
    )
    problems, rows, sound = Problems(), 0, set()
    for number, (shard, count, size_bytes, sha256) in enumerate(shards, start=1):
        report(f"response shard {number:,} of {len(shards):,}")
        rows += count
        wrong = _damage(folder / shard, size_bytes, None if fast else sha256) or _answers(ledger, folder / shard, count)
        if wrong:
            problems.add(wrong, [shard])
        else:
            sound.add(shard)
    said, proven = f"{len(shards):,} with {rows:,} rows", f"{_proven(fast)}, ids, token counts"
    unnamed = _unnamed(ledger, folder.glob("*.parquet"), "SELECT shard FROM response_shards", lambda path: path.name)
    finding = problems.finding("response shards", len(shards), said, ANSWERS_AGAIN, proven=proven, notes=unnamed)
    return finding, frozenset(sound)


def check_hidden_shards(ledger: Readable, scope: Scope, fast: bool, report: Report, sound: Collection[str]) -> Finding:
    """hidden/: size, checksum, rows, lengths; and every captured row is of an accepted answer: its length, and unless
    `fast` its tokens and which of them were generated.

    Args:
        sound: response shards whose answers can be believed.
    """
    root = ledger.workspace.root / "hidden"
    shards = ledger.rows(
        "SELECT capture_id, shard, rows, tokens, size_bytes, sha256 FROM hidden_shards "
        f"WHERE {_holding(scope, 'hidden_rows')} ORDER BY 1, 2"
    )
    answers = AnswerTokens(ledger, scope, sound, report) if shards and not fast else None
    problems, rows = Problems(), 0
    for number, (capture_id, shard, count, tokens, size_bytes, sha256) in enumerate(shards, start=1):
        report(f"hidden shard {number:,} of {len(shards):,}")
        rows += count
        where, path = f"{capture_id}/{shard}", root / capture_id / shard
        wrong = _damage(path, size_bytes, None if fast else sha256) or _states(ledger, capture_id, path, count, tokens)
        try:
            for kind, row in answers.breaches(capture_id, path) if answers and not wrong else ():
                problems.add(kind, [f"{where} row {row}"])
        except UserError:
            wrong = "without readable input_ids and loss_mask"
        if wrong:
            problems.add(wrong, [where])
    for kind, count, ids in ledger.rows(
        f"""
        WITH accepted AS (
            SELECT response_id, min(prompt_tokens + response_tokens) AS tokens FROM accepted_responses GROUP BY ALL
        )
        SELECT CASE WHEN a.response_id IS NULL THEN 'rows whose answer is not accepted'
                    WHEN a.tokens IS DISTINCT FROM h.tokens THEN 'rows of another length than their answer' END AS kind,
               count(*), min(response_id, {MOST_EXAMPLES})
        FROM hidden_rows h LEFT JOIN accepted a USING (response_id) WHERE {scope.where("response_id")} GROUP BY kind
        """
    ):
        if kind is not None:
            problems.add(kind, ids, count)
    notes = _captured_twice(ledger, scope)
    if answers and answers.not_read:
        notes.append(f"{answers.not_read:,} rows are not held against their answers, whose shards are not sound")
    proven = f"{_proven(fast)}, ids, token counts{'' if fast else ', tokens, loss masks'}"
    said = f"{len(shards):,} with {rows:,} rows"
    unnamed = _unnamed(
        ledger, root.glob("*/*.safetensors"), "SELECT capture_id || '/' || shard FROM hidden_shards",
        lambda path: f"{path.parent.name}/{path.name}",
    )  # fmt: skip
    return problems.finding("hidden shards", len(shards), said, STATES_AGAIN, proven=proven, notes=[*unnamed, *notes])


def _holding(scope: Scope, table: str) -> str:
    """The condition that a shard holds rows of the scope."""
    if scope.build_id is None:
        return "true"
    return f"shard IN (SELECT shard FROM {table} WHERE {scope.where('response_id')})"


def _proven(fast: bool) -> str:
    return "size, rows" if fast else "checksum, rows"


def _damage(path: Path, size_bytes: int, sha256: str | None) -> str | None:
    """What is wrong with a file's bytes."""
    try:
        if not path.is_file():
            return "gone"
        if path.stat().st_size != size_bytes:
            return "of another size"
        return "of another checksum" if sha256 is not None and sha256_file(path) != sha256 else None
    except OSError as error:
        return f"not readable ({error.strerror})"


def _answers(ledger: Readable, path: Path, rows: int) -> str | None:
    """What is wrong with the rows of a response shard: in the file, or in the ledger."""
    import polars as pl

    lengths = [pl.col(name).list.len().cast(pl.Int64) for name in ("prompt_token_ids", "token_ids")]
    try:
        file = pl.scan_parquet(path, glob=False).select(*ID_COLUMNS, "state", *lengths).collect()
    except (OSError, pl.exceptions.PolarsError):
        return "no response shard"
    named = ledger.rows(
        f"SELECT shard_row, {', '.join(ID_COLUMNS)}, state, reason, prompt_tokens, response_tokens FROM responses "
        "WHERE shard = ? ORDER BY shard_row",
        path.name,
    )
    if not rows == file.height == len(named):
        return f"with {file.height:,} rows, and the ledger counts {rows:,} and has {len(named):,}"
    if [row[0] for row in named] != list(range(rows)):
        return "without each row once in the ledger"
    end = len(ID_COLUMNS) + 1
    if file.select(ID_COLUMNS).rows() != [row[1:end] for row in named]:
        return "of other ids than in the ledger"
    # of two accepted answers the ledger keeps one, and says so of the other
    told = ["accepted" if reason == "answered_twice" else state for *_, state, reason, _, _ in named]
    if file["state"].to_list() != told:
        return "of other states than in the ledger"
    if file.select("prompt_token_ids", "token_ids").rows() != [row[-2:] for row in named]:
        return "of other token counts than in the ledger"
    return None


def _states(ledger: Readable, capture_id: str, path: Path, rows: int, tokens: int) -> str | None:
    """What is wrong with the rows of a hidden shard: in its index, or in the ledger."""
    try:
        meta, response_ids, lengths = shard_index(path)
    except UserError:
        return "no hidden shard"
    named: list[tuple[Any, ...]] = ledger.rows(
        "SELECT shard_row, response_id, tokens FROM hidden_rows WHERE capture_id = ? AND shard = ? ORDER BY shard_row",
        capture_id,
        path.name,
    )
    if meta.capture_id != capture_id:
        return "of another capture"
    if not rows == len(response_ids) == len(named):
        return f"with {len(response_ids):,} rows, and the ledger counts {rows:,} and has {len(named):,}"
    if sum(lengths) != tokens:
        return f"with {sum(lengths):,} tokens, and the ledger counts {tokens:,}"
    if named != list(zip(range(rows), response_ids, lengths, strict=True)):
        return "of other rows than in the ledger"
    return None


def _captured_twice(ledger: Readable, scope: Scope) -> list[str]:
    """A note on rows that lie in two shards: a run that was killed late may leave one that the next one adopts."""
    more = ledger.rows(
        "SELECT count(*) - count(DISTINCT (capture_id, response_id)) FROM hidden_rows "
        f"WHERE {scope.where('response_id')}"
    )[0][0]
    rows = "row is" if more == 1 else "rows are"
    return [f"{more:,} {rows} captured twice; the first of each is taken"] if more else []


def _unnamed(ledger: Readable, there: Any, named: str, name: Callable[[Path], str]) -> list[str]:
    """A note on files that the ledger does not name."""
    known = {row[0] for row in ledger.rows(named)}
    more = sum(name(path) not in known for path in there)
    files = "file is" if more == 1 else "files are"
    return [f"{more:,} {files} not entered yet; the next command that writes here does"] if more else []
