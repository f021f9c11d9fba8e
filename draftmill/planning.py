"""What `draftmill plan` rests on, put together: a manifest, its target's files, and what the ledger has counted.

Nothing is written but the cache of digests, no source is read, no engine is started; a target that cannot be reached
leaves what follows from it unknown. Rates that the ledger measured are those of the machine that it lies on, so they
count unless another kind of GPU is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import selection
from corpus.errors import UserError
from corpus.manifest import Manifest
from corpus.workspace import Workspace
from draftmill.amounts import Amount
from draftmill.builds import Known
from draftmill.comparing import planned_answers
from draftmill.costing import Captured, CategoryNeed, EngineFit, Measured, Stage, Training, plan_stages
from draftmill.hardware import GPUS, Gpu, gpu_named, gpu_of_driver
from draftmill.lengths import asked, assumed, doubled, read_lengths
from draftmill.session import Session
from draftmill.target_facts import MOST_GPUS, engine_on, planned_target
from fleet.devices import Device, DeviceError

if TYPE_CHECKING:
    import polars as pl

MOST_USD = 1e6
"""Of an hour: beyond it a price is a slip."""


@dataclass(frozen=True)
class Elsewhere:
    """The same on another GPU of the table, by arithmetic alone."""

    gpu: Gpu
    engine: EngineFit | None
    """None: the target fits on no group of them."""
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Costs:
    """What a manifest takes on one kind of hardware; without `gpu`, at the rates that were measured here."""

    name: str
    model: str
    needs: tuple[CategoryNeed, ...]
    stages: tuple[Stage, ...]
    gpu: Gpu | None
    gpus: int
    price_usd: tuple[float, float] | None
    elsewhere: tuple[Elsewhere, ...]
    """On every GPU of the table, at list prices."""
    notes: tuple[str, ...]
    devices: str = "GPU"
    unknown: str = ""
    """Why the target told nothing; "" where it did."""


def plan_costs(
    session: Session,
    hardware: str | None,
    gpus: int | None,
    price_usd: tuple[float, float] | None,
    config: Path | None = None,
) -> Costs:
    """Everything that `draftmill plan` shows.

    Args:
        config: a config.json of the target, where that is not here.

    Raises:
        UserError: no manifest, a ledger that cannot be read, hardware that the table does not have, a price that is
            none.
        DeviceError: devices that are asked for are not there.
    """
    manifest = session.manifest
    if price_usd and not all(math.isfinite(price) and price <= MOST_USD for price in price_usd):
        raise UserError(f"--price is {price_usd[0]:g}; USD an hour of one GPU are expected.")
    if hardware and session.devices_spec:
        raise UserError("plan: --devices are of this machine; with --hardware say how many: --gpus N.")
    named = gpu_named(hardware) if hardware else None
    local, local_gpu = _local(session)
    here = named is None or named == local_gpu
    gpu = named or local_gpu
    count = gpus or (len(local) if here and local else MOST_GPUS)
    target = planned_target(session, config)
    needs, built = _needs(session)
    measured = _measured(session.workspace, manifest.target.model) if here else Measured()
    training = _training(manifest)
    mean = _mean_tokens(needs)
    notes = [*([target.said] if target.said and target.facts else []), *built.notes]

    def on(one: Gpu | None, rates: Measured) -> tuple[EngineFit | None, tuple[Stage, ...]]:
        engine = None if target.model is None or one is None else engine_on(target.model, one, mean)
        return engine, plan_stages(needs, target.facts, training, one, engine, rates, built.captured)

    engine, chosen = on(gpu, measured)
    if target.model is not None and gpu is not None and engine is None:
        notes.append(f"{gpu.name}: the target does not fit on {MOST_GPUS} of them")
    elif engine is not None and gpu is not None and engine.gpus > 1:
        notes.append(f"an engine takes {engine.gpus} {gpu.name}: the target does not fit on fewer")
    bytes_alone = Measured(response_bytes_per_token=measured.response_bytes_per_token)
    elsewhere = tuple(Elsewhere(one, *on(one, bytes_alone)) for one in GPUS) if target.facts is not None else ()
    price = price_usd or (gpu.price_usd if gpu else None)
    kind = "GPU" if gpu is not None or not local or local[0].kind == "cuda" else "core"
    return Costs(
        manifest.name, manifest.target.model, needs, chosen, gpu, count, price, elsewhere,
        tuple(dict.fromkeys(notes)), kind, target.said if target.facts is None else "",
    )  # fmt: skip


def _local(session: Session) -> tuple[Sequence[Device], Gpu | None]:
    """This machine's devices, and the GPU of the table that they are."""
    try:
        devices = session.devices
    except DeviceError:
        if session.devices_spec:
            raise
        return (), None
    return devices, gpu_of_driver(devices[0].name) if devices and devices[0].kind == "cuda" else None


def _training(manifest: Manifest) -> Training:
    section = manifest.training
    return Training(section.epochs, section.block_size, section.anchors_per_document, section.feed == "live")


def _mean_tokens(needs: Sequence[CategoryNeed]) -> int:
    """Prompt and answer of a mean sequence."""
    answers = sum(need.answers.value for need in needs)
    tokens = sum(need.answers.value * (need.prompt_tokens + need.response_tokens).value for need in needs)
    return max(1, round(tokens / answers)) if answers else 1


@dataclass(frozen=True)
class Built:
    """What the workspace has of this very manifest."""

    build_id: str | None
    captured: Captured
    notes: tuple[str, ...]


def _needs(session: Session) -> tuple[tuple[CategoryNeed, ...], Built]:
    manifest, workspace = session.manifest, session.workspace
    build = _built(manifest, workspace)
    rows = {name: (n, selection.holdout_quota(n, manifest.mix.holdout)) for name, n in _quotas(manifest).items()}
    answers: dict[str, tuple[int, int]] = {}
    captured, notes = Captured(), ["nothing of this manifest is built yet: prompts are those that it asks for"]
    if build is not None:
        rows = _selected(workspace, build.build_id) or rows
        answers, told = _answers(session, build)
        captured = _captured(workspace, build.build_id)
        there = sum(accepted for _, accepted in answers.values())
        notes = [
            f"build {build.build_id[:8]} has {there:,} accepted answers; what is there is not counted again",
            *told,
        ]
        trained = asked(workspace, f"SELECT count(*) FROM drafters WHERE build_id = '{build.build_id}'")
        if trained.height and trained.item():
            notes.append(f"{trained.item()} of its drafters trained already; the hours are of one more")
    elif manifest.generation.imported:
        notes.append("answers of generation.imported are counted as to make until the manifest is built")
    lengths = read_lengths(manifest, workspace)
    needs = []
    for name in sorted(rows, key=lambda one: (-rows[one][0], one)):
        known = lengths.get(name) or assumed(manifest, name)
        response = known.response_tokens
        brought = manifest.mix.mean_response_tokens.get(name)
        if brought is not None and not known.counted:
            mean = brought / known.turns.value
            response = Amount.of(mean, mean * 0.7, mean * 1.4, "assumed", "mix.mean_response_tokens")
        planned, accepted = answers.get(name, (None, 0))
        needs.append(
            CategoryNeed(
                name, *rows[name], known.turns, known.prompt_tokens, response, accepted, planned, known.counted
            )
        )
    return tuple(needs), Built(build.build_id if build else None, captured, tuple(notes))


def _answers(session: Session, build: Known) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """By category answers that a build wants and those that it has or would take over; and what is not known of it."""
    try:
        states = planned_answers(session, build)
    except UserError as error:
        wanted = _there(session.workspace, build.build_id)
        return wanted, [] if wanted else [f"what it would reuse is not known: {error}"]
    found: dict[str, tuple[int, int]] = {}
    for category, state, count in states.group_by("category", "state").len().iter_rows():
        planned, accepted = found.get(category, (0, 0))
        found[category] = (planned + count, accepted + count * (state == "accepted"))
    return found, []


def _quotas(manifest: Manifest) -> dict[str, int]:
    """Prompts of each category, by largest remainder as a build takes them."""
    return selection.largest_remainder(manifest.mix.prompts, manifest.mix.prompt_weights())


def _built(manifest: Manifest, workspace: Workspace) -> Known | None:
    """The newest build whose lock holds this very manifest."""
    body = manifest.model_dump(mode="json")
    found: list[tuple[str, str]] = []
    for path in workspace.root.glob("builds/*/manifest.lock.yaml"):
        try:
            lock = json.loads(path.read_text())
            made = json.loads((path.parent / "build.json").read_text())
        except (OSError, ValueError):
            continue
        if isinstance(lock, dict) and lock.get("manifest") == body:
            found.append((str(made.get("created_at", "")), path.parent.name))
    created_at, build_id = max(found, default=("", ""))
    return Known(build_id, manifest.name, created_at, imported=False) if build_id else None


def _selected(workspace: Workspace, build_id: str) -> dict[str, tuple[int, int]]:
    rows = asked(
        workspace,
        "SELECT category, count(*) FILTER (NOT holdout) AS rows, count(*) FILTER (holdout) AS held FROM selections "
        f"WHERE build_id = '{build_id}' GROUP BY category",
    )
    return {category: (int(taken), int(held)) for category, taken, held in rows.iter_rows()}


def _there(workspace: Workspace, build_id: str) -> dict[str, tuple[int, int]]:
    """By category answers that a build wants, as it was planned last, and those accepted of them."""
    rows = asked(
        workspace,
        "SELECT b.category, count(*) AS wanted, count(*) FILTER (r.response_id IS NOT NULL AND b.left_out IS NULL) "
        "AS accepted FROM build_responses b LEFT JOIN accepted_responses r USING (response_id) "
        f"WHERE b.build_id = '{build_id}' GROUP BY ALL",
    )
    return {category: (int(wanted), int(accepted)) for category, wanted, accepted in rows.iter_rows()}


def _captured(workspace: Workspace, build_id: str) -> Captured:
    """What of a build's answers is captured already."""
    hidden = asked(
        workspace,
        "SELECT count(*) AS rows, coalesce(sum(h.tokens), 0)::BIGINT AS tokens FROM (SELECT response_id, max(tokens) "
        "AS tokens FROM hidden_rows GROUP BY response_id) h JOIN build_responses b USING (response_id) "
        f"WHERE b.build_id = '{build_id}'",
    )
    return Captured(*(int(number) for number in hidden.row(0))) if hidden.height else Captured()


def _measured(workspace: Workspace, model: str) -> Measured:
    """Rates of the newest runs over this target, and bytes of what was written."""
    generate = asked(
        workspace,
        "SELECT r.run_id, sum(r.response_tokens) / epoch(max(r.ended_at) - min(r.started_at)) AS tokens_per_s, "
        "count(DISTINCT r.device) AS devices, sum(r.response_tokens)::BIGINT AS tokens "
        f"FROM responses r JOIN recipes c USING (recipe_id) WHERE c.model = '{doubled(model)}' GROUP BY r.run_id "
        "HAVING sum(r.response_tokens) > 0 AND max(r.ended_at) > min(r.started_at) ORDER BY r.run_id DESC LIMIT 1",
    )
    extract = asked(
        workspace,
        "SELECT s.run_id, avg(s.tokens_per_s) AS tokens_per_s FROM engine_samples s JOIN runs u USING (run_id) "
        "WHERE u.command = 'extract' AND s.tokens_per_s > 0 AND EXISTS (SELECT 1 FROM build_responses b JOIN recipes c "
        f"USING (recipe_id) WHERE b.build_id = u.build_id AND c.model = '{doubled(model)}') "
        "GROUP BY s.run_id ORDER BY s.run_id DESC LIMIT 1",
    )
    trained = asked(
        workspace,
        "SELECT m.drafter_id, median(m.value) AS tokens_per_s, count(*) AS steps FROM train_metrics m "
        "JOIN drafters d USING (drafter_id) JOIN captures c USING (capture_id) "
        f"WHERE m.metric = 'tokens_per_s' AND c.model = '{doubled(model)}' GROUP BY ALL "
        "ORDER BY any_value(d.created_at) DESC LIMIT 1",
    )
    written = asked(
        workspace,
        "SELECT sum(s.size_bytes) / sum(r.tokens) AS each FROM response_shards s JOIN (SELECT shard, "
        "sum(coalesce(prompt_tokens, 0) + coalesce(response_tokens, 0)) AS tokens FROM responses GROUP BY shard) r "
        "USING (shard) HAVING sum(r.tokens) > 0",
    )
    return Measured(
        _rate_of(generate, "tokens_per_s", "devices", "generate"),
        _rate_of(extract, "tokens_per_s", None, "extract"),
        _rate_of(trained, "tokens_per_s", None, "training of drafter"),
        _rate_of(written, "each", None, "response shards"),
    )


def _rate_of(rows: pl.DataFrame, column: str, over: str | None, what: str) -> Amount | None:
    """A measured rate, of one device; a tenth about it, for runs differ."""
    if not rows.height or not rows[column][0]:
        return None
    row = rows.row(0, named=True)
    value = float(row[column]) / (row[over] if over else 1)
    named = str(row.get("run_id") or row.get("drafter_id") or "of this ledger")
    return Amount.of(value, value * 0.9, value * 1.1, "measured", f"{what} {named[:26]}")
