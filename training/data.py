"""Training rows on disk become documents in memory, one at a time.

Shards stay open in a small pool; a row is read when its step comes. What the target would have said (the
teacher) is worked out once a row and kept, as a few bytes a token, up to a limit; states are never kept. That they are
numbers is seen once a row.
Which rows there are and what they are for comes from the coordinator; shards are only asked whether they are
the ones meant.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corpus.artefacts import sha256_file
from corpus.errors import DamagedError, UserError
from corpus.shards import ShardReader, shard_index, shard_tokens
from training.anchors import candidates
from training.batch import Document, teach
from training.frozen import FrozenTarget, finite
from training.messages import ShardRows, TrainRow

OPEN_SHARDS = 16
KEPT_TEACHER_TOKENS = 50_000_000


class TrainingData:
    """Documents by index: `train` and `holdout` list the indices of each.

    Raises:
        UserError: a shard is missing or damaged, is of another capture than the rest, has other layers than the
            drafter asks for, or holds another response than named; or there is nothing to train on.
    """

    def __init__(
        self, shards: Sequence[ShardRows], layer_ids: Sequence[int], labels: str, *, held_out_only: bool = False
    ) -> None:
        self.layer_ids = tuple(layer_ids)
        self.labels = labels
        self.rows: list[TrainRow] = []
        self.lengths: list[int] = []
        self._paths: list[Path] = []
        self._sha256: dict[Path, str] = {}
        self._open: OrderedDict[Path, ShardReader] = OrderedDict()
        self._teacher: dict[int, Any] = {}
        self._kept_tokens = 0
        self._sound: set[int] = set()
        self._used: set[int] | None = None
        captures = set()
        for shard in shards:
            captures.add(self._add(Path(shard.path), shard.rows))
            self._sha256[Path(shard.path)] = shard.sha256
        if len(captures) > 1:
            raise UserError(f"hidden states of {len(captures)} captures ({sorted(captures)}). Extract all with one.")
        # by id, not by place: however rows came into shards, and fed live, the packs are the same
        own = [i for i, row in enumerate(self.rows) if not row.holdout]
        self.train = sorted(own, key=lambda i: self.rows[i].response_id)
        self.holdout = [i for i, row in enumerate(self.rows) if row.holdout]
        if not self.train and not held_out_only:
            raise UserError(f"no training rows: {len(self.rows)} rows, all of them held out. Extract more.")

    def used_token_ids(self) -> set[int]:
        """Every token id that occurs in the shards, which are read for it once."""
        if self._used is None:
            self._used = set()
            for path in dict.fromkeys(self._paths):
                self._used.update(self._reader(path).token_ids().unique().tolist())
        return self._used

    def teaches(self) -> bool:
        """Whether any training row has an anchor: two generated tokens in a row. No state is read for it."""
        by_path: dict[Path, list[int]] = {}
        for i in self.train:
            by_path.setdefault(self._paths[i], []).append(self.rows[i].row)
        for path, rows in by_path.items():
            masks = [mask for _, mask in shard_tokens(path)]
            if any(candidates(masks[row]) for row in rows):
                return True
        return False

    def document(self, index: int, target: FrozenTarget) -> Document:
        """Row `index` with its states, loss mask and teacher.

        Raises:
            UserError: its states are no numbers, or the shard is damaged.
        """
        row = self.rows[index]
        captured = self._reader(self._paths[index]).row(row.row)
        if index not in self._sound and not finite(captured.states_TNH):
            raise DamagedError(
                f"{self._paths[index]}: row {row.row}, response {row.response_id}, has states that are no numbers (NaN "
                "or infinite). Remove the file and run `draftmill extract`."
            )
        self._sound.add(index)
        document = make_document(
            row.response_id,
            row.category,
            row.greedy,
            captured.input_ids_T,
            captured.loss_mask_T,
            captured.states_TNH,
            target,
            features=len(self.layer_ids),
            labels=self.labels,
            teacher_T=self._teacher.get(index),
        )
        if index not in self._teacher and document.teacher_T is not None:
            self._keep(index, document)
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
        """Remember a teacher while there is room."""
        if self._kept_tokens + len(document) <= KEPT_TEACHER_TOKENS:
            self._kept_tokens += len(document)
            self._teacher[index] = document.teacher_T.int()

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


def make_document(
    response_id: str,
    category: str,
    greedy: bool,
    input_ids_T: Any,
    loss_mask_T: Any,
    states_TLH: Any,
    target: FrozenTarget,
    *,
    features: int,
    labels: str,
    teacher_T: Any = None,
) -> Document:
    """A captured row with its teacher; the first `features` of L states are the drafter's, a further one is final.

    Args:
        teacher_T: the teacher, where it is known from an earlier epoch.
    """
    document = Document(
        response_id=response_id,
        category=category,
        greedy=greedy,
        input_ids_T=input_ids_T.long(),
        loss_mask=loss_mask_T.tolist(),
        states_TNH=states_TLH[:, :features],
    )
    has_final = states_TLH.shape[1] > features
    if has_final and (labels == "kl" or teacher_T is None):
        document.normed_TH = target.normed(states_TLH[:, features])
    if teacher_T is not None:
        document.teacher_T = teacher_T.long()
    elif has_final:
        teach(document, target)
    if labels != "kl":
        document.normed_TH = None
    return document
