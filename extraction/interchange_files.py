"""The thin run of an export: shards in, the folder of speculators' offline trainer out.

Each shard is read once, in order, and of each row that is not there its file is written; the dataset's two parts
(rows to train on, held-out rows) grow beside it and are put in place last. Every file is whole or absent, so a killed
run goes on where it was. In memory are one row's states and one shard's tokens.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.artefacts import remove_temporaries, say_full_disk, sync_path, temporary_path, write_description, write_text
from corpus.errors import UserError
from corpus.shards import CapturedRow, ShardReader, shard_index, shard_tokens
from corpus.workspace import Workspace
from extraction.interchange import DESCRIPTION, LABELS, STATES, InterchangePlan

if TYPE_CHECKING:
    import polars as pl

FILE_MODE = 0o644
"""As of all other files here; safetensors lets nobody else read what it writes."""
LAST = "state.json"
"""Without it `datasets` opens no folder."""


def run_interchange(
    plan: InterchangePlan, workspace: Workspace, report: Callable[[int, int], None] = lambda done, rows: None
) -> None:
    """Write what is left of the plan.

    Args:
        report: called with (rows done, all rows) after every row.

    Raises:
        UserError: a shard is gone or is not what the ledger says, or the disk is full.
    """
    if plan.finished:
        return
    folder = plan.folder
    _check_shards(plan, workspace)
    dataset = temporary_path(folder / "dataset")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(folder)
        write_description(folder / DESCRIPTION, plan.description())
        write_text(folder / "README.md", plan.readme())
        (folder / STATES).mkdir(exist_ok=True)
        dataset.mkdir()
        with _Parts(dataset) as parts:
            _write_rows(plan, workspace, parts, report)
            if not plan.dataset_there:
                _put_dataset(parts.save(), folder)
    except UserError:
        raise
    except Exception as error:
        say_full_disk(error, folder)
        raise
    finally:
        shutil.rmtree(dataset, ignore_errors=True)


def _write_rows(plan: InterchangePlan, workspace: Workspace, parts: _Parts, report: Callable[[int, int], None]) -> None:
    states, hidden, done_rows = plan.folder / STATES, workspace.hidden(plan.capture.capture_id), 0
    for (shard,), group in plan.rows.group_by("shard", maintain_order=True):
        if plan.dataset_there and group["done"].all():
            done_rows += group.height
            continue
        tokens = shard_tokens(hidden / str(shard))
        with ShardReader(hidden / str(shard)) as reader:
            for row, shard_row, done in group.select("row", "shard_row", "done").iter_rows():
                if not done:
                    _put_row(states / f"hs_{row}.safetensors", reader.row(shard_row))
                done_rows += 1
                report(done_rows, plan.rows.height)
        sync_path(states)
        if not plan.dataset_there:
            parts.add(group, [tokens[shard_row] for shard_row in group["shard_row"]])


def _check_shards(plan: InterchangePlan, workspace: Workspace) -> None:
    """Refuse shards whose rows are not those of the ledger, by their headers, before anything is written."""
    hidden = workspace.hidden(plan.capture.capture_id)
    for (shard,), rows in plan.unread.group_by("shard", maintain_order=True):
        path = hidden / str(shard)
        _, response_ids, lengths = shard_index(path)
        for shard_row, response_id, length in rows.select("shard_row", "response_id", "tokens").iter_rows():
            if response_ids[shard_row : shard_row + 1] != (response_id,) or lengths[shard_row] != length:
                raise UserError(
                    f"{path}: row {shard_row} is not the answer of {length:,} tokens that the ledger says. "
                    "Run `draftmill verify`."
                )


def _put_row(path: Path, row: CapturedRow) -> None:
    """Write one row's file, whole or not at all; its name is made to last with those of its shard."""
    import torch
    from safetensors.torch import save_file

    temporary = temporary_path(path)
    try:
        tensors = {"hidden_states": row.states_TNH.contiguous(), "token_ids": row.input_ids_T.to(torch.int64)}
        save_file(tensors, str(temporary))
        temporary.chmod(FILE_MODE)
        sync_path(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _put_dataset(made: Path, folder: Path) -> None:
    names = sorted((path.name for path in made.iterdir()), key=lambda name: (name == LAST, name))
    for name in names:
        sync_path(made / name)
        if name == LAST:
            sync_path(folder)
        (made / name).replace(folder / name)
    sync_path(folder)


class _Parts:
    """The dataset as its rows come: one arrow file of those to train on, one of the held-out ones."""

    def __init__(self, folder: Path) -> None:
        from datasets import Features, List, Value
        from datasets.arrow_writer import ArrowWriter

        kinds = {"holdout": Value("bool")}
        self.folder = folder
        self._features = Features(
            {
                "input_ids": List(Value("int64")),
                "loss_mask": List(Value("int64")),
                "seq_len": Value("int64"),
                **{name: kinds.get(name, Value("string")) for name in LABELS},
            }
        )
        self._paths = {False: folder / "train.arrow", True: folder / "holdout.arrow"}
        self._writers: dict[bool, Any] = {
            held_out: ArrowWriter(features=self._features, path=str(path)) for held_out, path in self._paths.items()
        }

    def add(self, rows: pl.DataFrame, tokens: Sequence[tuple[bytes, bytes]]) -> None:
        """Rows of one shard, in its order, with (input ids, loss mask) of each as the shard has them."""
        for held_out, writer in self._writers.items():
            chosen = [i for i, value in enumerate(rows["holdout"]) if value == held_out]
            if chosen:
                writer.write_table(_table(rows[chosen].select(LABELS), [tokens[i] for i in chosen], self._features))

    def save(self) -> Path:
        """The whole as `datasets` saves it, tensors when it is read; returns its folder."""
        from datasets import Dataset, concatenate_datasets

        for writer in self._writers.values():
            writer.finalize()
        with _no_progress_bars():
            whole = concatenate_datasets([Dataset.from_file(str(path)) for path in self._paths.values()])
            whole.set_format("torch")
            whole.save_to_disk(str(self.folder / "saved"))
        return self.folder / "saved"

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()


def _table(labels: pl.DataFrame, tokens: Sequence[tuple[bytes, bytes]], features: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    lengths = [len(loss_mask) for _, loss_mask in tokens]
    starts = pa.array(np.cumsum([0, *lengths]), pa.int32())
    lists = [
        pa.ListArray.from_arrays(starts, pa.array(np.frombuffer(b"".join(part), dtype).astype(np.int64)))
        for part, dtype in zip(zip(*tokens, strict=True), ("<i4", "u1"), strict=True)
    ]
    schema = features.arrow_schema
    said = [pa.array(labels[name].to_list(), schema.field(name).type) for name in LABELS]
    columns = zip([*lists, pa.array(lengths, pa.int64()), *said], schema, strict=True)
    return pa.Table.from_arrays([column.cast(field.type) for column, field in columns], schema=schema)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """The command shows its own."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()
