"""Training rows on disk become documents in memory, one at a time.

Shards stay open in a small pool; a row is read when its step comes. What the target would have said (the
teacher) is worked out once a row and kept, as a few bytes a token, up to a limit; states are never kept.
Which rows there are and what they are for comes from the coordinator; shards are only asked whether they are
the ones meant.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from corpus.artefacts import sha256_file
from corpus.errors import DamagedError, UserError
from corpus.shards import ShardReader, shard_index
from training.batch import Document, teach
from training.frozen import FrozenTarget
from training.messages import ShardRows, TrainRow

OPEN_SHARDS = 16
KEPT_TEACHER_TOKENS = 50_000_000


class TrainingData:
    """Documents by index: `train` and `holdout` list the indices of each.

    Raises:
        UserError: a shard is missing or damaged, is of another capture than the rest, has other layers than the
            drafter asks for, or holds another response than named; or there is nothing to train on.
    """

    def __init__(self, shards: Sequence[ShardRows], layer_ids: Sequence[int], labels: str) -> None:
        self.layer_ids = tuple(layer_ids)
        self.labels = labels
        self.rows: list[TrainRow] = []
        self.lengths: list[int] = []
        self._paths: list[Path] = []
        self.agreement: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._sha256: dict[Path, str] = {}
        self._open: OrderedDict[Path, ShardReader] = OrderedDict()
        self._teacher: dict[int, Any] = {}
        self._kept_tokens = 0
        self._counted: set[int] = set()
        captures = set()
        for shard in shards:
            captures.add(self._add(Path(shard.path), shard.rows))
            self._sha256[Path(shard.path)] = shard.sha256
        if len(captures) > 1:
            raise UserError(f"hidden states of {len(captures)} captures ({sorted(captures)}); train on one")
        self.train = [i for i, row in enumerate(self.rows) if not row.holdout]
        self.holdout = [i for i, row in enumerate(self.rows) if row.holdout]
        if not self.train:
            raise UserError(f"no training rows: {len(self.rows)} rows, all of them held out. Extract more.")

    def used_token_ids(self) -> set[int]:
        """Every token id that occurs in the shards."""
        used: set[int] = set()
        for path in dict.fromkeys(self._paths):
            used.update(self._reader(path).token_ids().unique().tolist())
        return used

    def document(self, index: int, target: FrozenTarget) -> Document:
        """Row `index` with its states, loss mask and teacher."""
        row = self.rows[index]
        captured = self._reader(self._paths[index]).row(row.row)
        features = len(self.layer_ids)
        document = Document(
            response_id=row.response_id,
            category=row.category,
            greedy=row.greedy,
            input_ids_T=captured.input_ids_T.long(),
            loss_mask=captured.loss_mask_T.tolist(),
            states_TNH=captured.states_TNH[:, :features],
        )
        has_final = captured.states_TNH.shape[1] > features
        if has_final and (self.labels == "kl" or index not in self._teacher):
            document.normed_TH = target.normed(captured.states_TNH[:, features])
        if index in self._teacher:
            document.teacher_T = self._teacher[index].long()
        elif has_final:
            teach(document, target)
            self._keep(index, document)
        if self.labels != "kl":
            document.normed_TH = None
        return document

    def close(self) -> None:
        """Close every shard."""
        while self._open:
            self._open.popitem()[1].close()

    def _add(self, path: Path, rows: Sequence[TrainRow]) -> str:
        meta, response_ids, tokens = shard_index(path)
        if meta.layer_ids != self.layer_ids:
            raise UserError(
                f"{path}: holds layers {list(meta.layer_ids)}; the drafter reads {list(self.layer_ids)}. "
                "Extract again with these layers."
            )
        if self.labels in ("teacher", "kl") and not meta.final_state:
            raise UserError(
                f"{path}: holds no final state, which training.labels: {self.labels} needs. "
                "Set extraction.final_state: true and extract again, or labels: sampled."
            )
        for row in rows:
            if row.row >= len(response_ids) or response_ids[row.row] != row.response_id:
                raise UserError(f"{path}: row {row.row} is not response {row.response_id}. Run the extraction.")
            self.rows.append(row)
            self.lengths.append(tokens[row.row])
            self._paths.append(path)
        return meta.capture_id

    def _keep(self, index: int, document: Document) -> None:
        """Remember a teacher while there is room, and count once whether the sampled tokens are its own."""
        if self._kept_tokens + len(document) <= KEPT_TEACHER_TOKENS:
            self._kept_tokens += len(document)
            self._teacher[index] = document.teacher_T.int()
        row = self.rows[index]
        if row.holdout or index in self._counted:
            return
        self._counted.add(index)
        supervised = torch.tensor(document.loss_mask[1:], dtype=torch.bool)
        same = document.teacher_T[:-1] == document.input_ids_T[1:]
        agreed, total = self.agreement[row.category]
        self.agreement[row.category] = (agreed + int(same[supervised].sum()), total + int(supervised.sum()))

    def _reader(self, path: Path) -> ShardReader:
        if path not in self._open:
            known = self._sha256.pop(path, "")
            if known and sha256_file(path) != known:
                raise DamagedError(
                    f"{path}: its checksum is another than when it was written. Remove it and run `draftmill extract`."
                )
            self._open[path] = ShardReader(path)
            if len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(path)
        return self._open[path]
