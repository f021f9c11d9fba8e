"""The serve check: a drafter in real vLLM on held-out prompts, beside the offline walk over the same rows.

Ours or anybody's. vLLM decodes at temperature 0; its counters pool over steps, as the walk's sums do. Both go into
the drafter's acceptance.json and from there into the ledger. A foreign drafter gets an id from its files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from corpus.artefacts import sha256_file, write_text
from corpus.canonical import digest
from corpus.errors import UserError, first_line
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.manifest import Manifest
from corpus.responses import read_rows_at
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from corpus.workspace import Workspace
from fleet.devices import Device
from fleet.pool import Done, Pool, PoolError
from training import serve_messages
from training.messages import AcceptanceRow, MeasureItem
from training.plan import TrainingPlan, train_item
from training.progress import DESCRIBED
from training.published import WEIGHTS, weight_files
from training.record import acceptance_row, acceptance_rows, add_acceptance
from training.run import plainly
from training.same_tokens import compare
from training.serve_messages import ServeConfig, ServeItem, ServeResult
from training.shape import drafts_of, from_exported_config, read_exported_config
from training.threads import choose_threads


@dataclass(frozen=True)
class Exported:
    """A drafter's folder in either format, and what its config says."""

    drafter_id: str
    folder: Path
    block_size: int
    layer_ids: tuple[int, ...]
    origin: str
    """What the ledger records as its path: relative to the workspace, a folder's name, or a Hub id."""


@dataclass(frozen=True)
class Served:
    """Raw sums by category: (drafts, accepted tokens, rows)."""

    drafter_id: str
    vllm: dict[str, tuple[int, int, int]]
    walk: dict[str, tuple[int, int, int]]

    @classmethod
    def from_ledger(cls, drafter_id: str, build_id: str, ledger: Readable) -> Served:
        """The newest measurements of a drafter on a build's held-out rows."""
        rows = ledger.rows(
            "SELECT measured_by, category, drafts, accepted_tokens, rows FROM acceptance_by_category "
            "WHERE drafter_id = ? AND build_id = ? ORDER BY category",
            drafter_id,
            build_id,
        )
        by = {name: {row[1]: (row[2], row[3], row[4]) for row in rows if row[0] == name} for name in ("vllm", "walk")}
        return cls(drafter_id, by["vllm"], by["walk"])

    def table_rows(self) -> list[tuple[str, str, str, str, str]]:
        """For a person: by category, then pooled over all."""
        rows = []
        for category in [*sorted(self.vllm), "all"]:
            vllm, walk = (_pooled(side) if category == "all" else side.get(category) for side in (self.vllm, self.walk))
            drafts, _, count = vllm or (0, 0, 0)
            rows.append((category, _tau(vllm), _tau(walk), f"{drafts:,}", f"{count:,}"))
        return rows


def exported(drafter: str | None, own_id: str, ledger: Readable) -> Exported:
    """Find a drafter: the plan's own, a folder, or a Hub id.

    Raises:
        UserError: it is not trained yet, or the folder or repository holds no DFlash drafter.
    """
    root = ledger.workspace.root
    if drafter is None:
        folder = ledger.workspace.drafter(own_id) / "export"
        if not (folder / "config.json").exists():
            raise UserError(f"{folder}: drafter {own_id} is not trained yet. Run `draftmill train` first.")
        return _read(folder, own_id, folder.relative_to(root).as_posix())
    folder, home = Path(drafter).expanduser(), (root / "drafters").resolve()
    if folder.resolve().is_relative_to(home) and folder.resolve().name == "export":
        name = folder.resolve().relative_to(home).parts[0]
        return _read(folder, name, f"drafters/{name}/export")
    found = read_drafter(drafter)
    own = own_export(found.folder, ledger.workspace)
    return replace(found, drafter_id=own, origin=f"drafters/{own}/export") if own else found


def own_export(folder: Path, workspace: Workspace) -> str | None:
    """The drafter of this workspace whose export a folder is, in either format; None if it is no such copy.

    Equal are the bytes of the weights, and all that the config says of the drafter's shape.
    """
    weights = sorted(folder.glob("*.safetensors"))
    if [path.name for path in weights] != [WEIGHTS]:
        return None
    mark = ""
    for described in sorted((workspace.root / "drafters").glob(f"*/{DESCRIBED}")):
        export = described.parent / "export"
        try:
            body = json.loads(described.read_text(encoding="utf-8"))
            if body["build_id"] is None:
                continue
            if from_exported_config(folder / "config.json") != from_exported_config(export / "config.json"):
                continue
            mark = mark or sha256_file(weights[0])
            if body["files"][f"export/{WEIGHTS}"] == mark:
                return described.parent.name
        except (OSError, ValueError, KeyError, TypeError, UserError):  # a damaged one is nobody's original
            continue
    return None


def read_drafter(drafter: str) -> Exported:
    """Somebody's drafter: a folder, or else a Hub id.

    Raises:
        UserError: it holds no DFlash drafter, or the Hub refuses.
    """
    folder = Path(drafter).expanduser()
    if folder.is_dir():
        return _read(folder, None, folder.resolve().name)
    return _read(_from_hub(drafter), None, drafter)


async def serve_check(
    chosen: Exported,
    plan: TrainingPlan,
    manifest: Manifest,
    target: ResolvedTarget,
    ledger: LedgerWriter,
    log: RunLog,
    devices: Sequence[Device],
    limit: int | None,
    report: Callable[[str], None],
) -> Served:
    """Measure a drafter both ways on the plan's held-out rows, and enter what was measured.

    Raises:
        UserError: there are no held-out rows, or the engine refuses target or drafter.
    """
    device = devices[0]
    items, recorded = _items(plan, ledger, limit)
    if not items:
        raise UserError(f"{manifest.name}: build {plan.build_id} has no captured held-out rows. Set mix.holdout.")
    walked = await _walk(chosen, plan, manifest, target, ledger, log, device, report)
    report("starting vLLM with target and drafter")
    config = ServeConfig(
        target_dir=str(target.folder),
        dtype=manifest.target.dtype,
        max_model_len=manifest.target.max_model_len,
        drafter_dir=str(chosen.folder.resolve()),
        num_speculative_tokens=chosen.block_size - 1,
        gpu_memory_utilization=manifest.engine.gpu_memory_utilization,
        device=device.label,
        trust_remote_code=manifest.target.trust_remote_code,
        extra=manifest.engine.extra,
    )
    results: list[ServeResult] = []
    payload = serve_messages.encode(config)
    for outcome in await _through("training.serve_worker:create", payload, items, device, log, report):
        results.append(serve_messages.decode_result(outcome))
        own = results[-1]
        log.event("same_tokens", compare(own.category, own.token_ids, recorded[own.category], own.max_tokens).line())
    now = datetime.now(UTC).isoformat()
    measured = [(r.category, "vllm", r.drafts, r.accepted_tokens, r.rows) for r in results]
    rows = [acceptance_row(plan.build_id, *sums, now) for sums in measured]
    rows += acceptance_rows(plan.build_id, walked, now)
    folder = ledger.workspace.drafter(chosen.drafter_id)
    if not (folder / DESCRIBED).exists():
        write_text(folder / DESCRIBED, json.dumps(_foreign(chosen, now), indent=1, sort_keys=True))
    add_acceptance(folder, rows)
    ledger.call(lambda connection: ingest.ingest_drafter(connection, ledger.workspace, chosen.drafter_id))
    return Served.from_ledger(chosen.drafter_id, plan.build_id, ledger)


async def _walk(
    chosen: Exported,
    plan: TrainingPlan,
    manifest: Manifest,
    target: ResolvedTarget,
    ledger: LedgerWriter,
    log: RunLog,
    device: Device,
    report: Callable[[str], None],
) -> list[AcceptanceRow]:
    """The offline estimate, where the captured layers are the drafter's; the plan's own drafter has it already."""
    if chosen.drafter_id == plan.drafter_id:
        return []
    if chosen.layer_ids != plan.layer_ids:
        log.event("no_walk", f"the drafter reads layers {chosen.layer_ids}, captured are {plan.layer_ids}")
        return []
    try:
        from_exported_config(chosen.folder / "config.json")
    except UserError as error:
        log.event("no_walk", str(error))
        return []
    threads = choose_threads().count if device.kind == "cpu" else 0
    item = MeasureItem(
        drafter_dir=str(chosen.folder.resolve()), rows=train_item(plan, manifest, target, ledger, device, threads)
    )
    payloads = {"walk": msgspec.msgpack.encode(item)}
    report("walking the held-out rows")
    answers = await _through("training.measure_worker:create", b"", payloads, device, log, report)
    return msgspec.msgpack.decode(answers[0], type=list[AcceptanceRow])


async def _through(
    factory: str,
    config: bytes,
    payloads: dict[str, bytes],
    device: Device,
    log: RunLog,
    report: Callable[[str], None],
) -> list[bytes]:
    answers: list[bytes] = []
    try:
        async with Pool(factory, lambda _: config, [device], log_dir=log.folder / "workers") as pool:
            for item_id, payload in payloads.items():
                pool.submit(item_id, payload)
            async for outcome in pool.outcomes():
                if not isinstance(outcome, Done):
                    raise UserError(f"serve check of {outcome.item_id} stopped: {plainly(outcome.error)}")
                answers.append(outcome.payload)
                done = f"{len(answers)} of {len(payloads)} categories measured, {outcome.item_id} last"
                report(done if len(answers) < len(payloads) else "all measured, its process ends")
    except PoolError as error:
        raise UserError(f"serve check stopped: {plainly(error)}") from error
    return answers


def _items(
    plan: TrainingPlan, ledger: Readable, limit: int | None
) -> tuple[dict[str, bytes], dict[str, list[list[int] | None]]]:
    """(what is served, and what was recorded of it where the row is greedy), by category, rows in one order."""
    held_out = {row.response_id: row.category for rows in plan.rows.values() for row in rows if row.holdout}
    found = ledger.rows(
        "SELECT r.response_id, r.shard, r.shard_row, rc.max_tokens, rc.temperature = 0 FROM accepted_responses r "
        "JOIN recipes rc USING (recipe_id) WHERE list_contains(?, r.response_id) ORDER BY r.response_id",
        sorted(held_out),
    )
    found = [found[i] for i in in_shares([held_out[row[0]] for row in found])][:limit]
    columns = ["response_id", "prompt_token_ids", "token_ids"]
    read = read_rows_at(ledger.workspace.responses, [(row[1], row[2]) for row in found], columns)
    tokens = {response_id: (prompt, answer) for response_id, prompt, answer in read.select(columns).iter_rows()}
    by_category: dict[str, list[tuple[list[int], int]]] = {}
    recorded: dict[str, list[list[int] | None]] = {}
    for response_id, _, _, max_tokens, greedy in found:
        prompt, answer = tokens[response_id]
        by_category.setdefault(held_out[response_id], []).append((prompt, max_tokens))
        recorded.setdefault(held_out[response_id], []).append(answer if greedy else None)
    items = {
        category: serve_messages.encode(
            ServeItem(category=category, prompts=[p for p, _ in rows], max_tokens=[m for _, m in rows])
        )
        for category, rows in sorted(by_category.items())
    }
    return items, recorded


def in_shares(categories: Sequence[str]) -> list[int]:
    """An order of rows of which every beginning has each category by its share; within one, the order is kept."""
    counts = Counter(categories)
    seen: Counter[str] = Counter()
    places = []
    for i, category in enumerate(categories):
        seen[category] += 1
        places.append(((seen[category] - 0.5) / counts[category], category, i))
    return [i for _, _, i in sorted(places)]


def _read(folder: Path, drafter_id: str | None, origin: str) -> Exported:
    """A drafter's folder; without an id it gets one from its files.

    Raises:
        UserError: its config is no drafter's, or its weights are not there.
    """
    try:
        block, layer_ids = drafts_of(read_exported_config(folder / "config.json"))
        if drafter_id is None:
            files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
            drafter_id = f"export-{digest('export', [sha256_file(path) for path in files], length=24)}"
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder}: holds no DFlash drafter, in z-lab's format (config.json with block_size and dflash_config) or "
            f"speculators' ({first_line(error)[:160]})."
        ) from error
    weight_files(folder)
    return Exported(drafter_id, folder, block, layer_ids, origin)


def _from_hub(drafter: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
    from huggingface_hub.utils import httpx

    try:
        return Path(snapshot_download(drafter, allow_patterns=["*.json", "*.safetensors", "README.md"]))
    except HFValidationError as error:
        raise UserError(f"{drafter}: no such folder, and not the name of a Hub repository.") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{drafter}: no such folder, and the Hub has no such drafter (a private one needs HF_TOKEN)."
        ) from error
    except (httpx.HTTPError, OSError, ValueError) as error:
        first = first_line(error)[:200]
        raise UserError(f"{drafter}: no such folder, and the Hub cannot be asked ({first}).") from error


def _foreign(chosen: Exported, now: str) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "drafter_id": chosen.drafter_id,
        "build_id": None,
        "capture_id": None,
        "algorithm": "dflash",
        "training": {"block_size": chosen.block_size, "target_layer_ids": list(chosen.layer_ids)},
        "steps": None,
        "rows": None,
        "path": chosen.origin,
        "created_at": now,
    }


def _pooled(side: dict[str, tuple[int, int, int]]) -> tuple[int, int, int] | None:
    return (sum(v[0] for v in side.values()), sum(v[1] for v in side.values()), sum(v[2] for v in side.values()))


def _tau(sums: tuple[int, int, int] | None) -> str:
    return f"{1 + sums[1] / sums[0]:.3f}" if sums and sums[0] else "-"
