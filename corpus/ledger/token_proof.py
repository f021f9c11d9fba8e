"""Tokens of captured rows held against those of their answers, without a state being read.

Answers are read once, response shard by response shard, and of each captured one 24 bytes are kept: a digest of its
tokens, how many are its prompt's, and its row in the hidden shard. Hidden shards then come one at a time. What
cannot be compared is left to the check that says so: a row without one accepted answer of its own length, and an
answer whose shard is not sound.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from corpus.ledger.references import Scope
from corpus.ledger.writer import Readable
from corpus.responses import each_shard, packed_tokens
from corpus.shards import shard_tokens

DIGEST_BYTES = 16
NOT_READ = -1
PLACES = """
    WITH one AS (
        SELECT response_id, any_value(shard) AS answer_shard, any_value(shard_row) AS answer_row,
               any_value(prompt_tokens + response_tokens) AS tokens
        FROM accepted_responses GROUP BY response_id HAVING count(*) = 1
    )
    SELECT h.capture_id, h.shard, h.shard_row, one.answer_shard, one.answer_row
    FROM hidden_rows h JOIN one USING (response_id) WHERE h.tokens = one.tokens AND {scope}
    ORDER BY h.capture_id, h.shard, h.shard_row
"""


class AnswerTokens:
    """What the tokens of every captured row should be.

    Args:
        scope: whose answers are looked at.
        sound: response shards that are what the ledger says.
        report: told which shard is being read.
    """

    def __init__(self, ledger: Readable, scope: Scope, sound: Collection[str], report: Callable[[str], None]) -> None:
        import polars as pl

        places = ledger.frame(PLACES.format(scope=scope.where("response_id"))).with_row_index("place")
        self.not_read = 0
        """Rows whose answer is in another shard."""
        self._rows = array("q", places["shard_row"].to_numpy().tobytes())
        self._prompts = array("q", [NOT_READ]) * len(places)
        self._digests = bytearray(DIGEST_BYTES * len(places))
        ends = places.group_by("capture_id", "shard").agg(first=pl.col("place").min(), rows=pl.len())
        self._places = {(capture, shard): range(n, n + rows) for capture, shard, n, rows in ends.iter_rows()}
        answers = places.select("answer_shard", "answer_row", "place").sort("answer_shard", "answer_row")
        del places
        parts = answers.partition_by("answer_shard", as_dict=True, include_key=False)
        for number, (key, part) in enumerate(parts.items(), start=1):
            report(f"answers of captured rows, shard {number:,} of {len(parts):,}")
            shard, (rows, at) = str(key[0]), (part[name].to_list() for name in ("answer_row", "place"))
            if shard in sound:
                self._read(ledger.workspace.responses, shard, rows, at)
            else:
                self.not_read += len(rows)

    def breaches(self, capture_id: str, path: Path) -> Iterator[tuple[str, int]]:
        """(what is wrong, row) of every row of a hidden shard that is not its answer's tokens.

        Raises:
            UserError: its input_ids and loss_mask cannot be read.
        """
        places = self._places.get((capture_id, path.name))
        if places is None:
            return
        rows = shard_tokens(path)
        for place in places:
            prompt = self._prompts[place]
            if prompt == NOT_READ:
                continue
            row = self._rows[place]
            input_ids, loss_mask = rows[row]
            if token_digest(input_ids) != self._digest(place):
                yield "rows of other tokens than their answer", row
            elif loss_mask != bytes(prompt) + b"\1" * (len(loss_mask) - prompt):
                yield "rows whose loss_mask is not 1 on what was generated and 0 before", row

    def _read(self, folder: Path, shard: str, rows: list[int], places: list[int]) -> None:
        """Digests of the answers at these rows, in ascending order, of one response shard."""
        (answers,) = each_shard(folder, [(shard, row) for row in rows], ["prompt_token_ids", "token_ids"])
        flat, lengths, prompts = packed_tokens(answers)
        tokens, end = memoryview(flat).cast("B"), 0
        for place, length, prompt in zip(places, lengths.tolist(), prompts.tolist(), strict=True):
            start, end = end, end + 4 * length
            self._digests[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)] = token_digest(tokens[start:end])
            self._prompts[place] = prompt

    def _digest(self, place: int) -> bytearray:
        return self._digests[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)]


def token_digest(tokens: bytes | memoryview) -> bytes:
    """Of token ids as int32."""
    return hashlib.blake2b(tokens, digest_size=DIGEST_BYTES).digest()
