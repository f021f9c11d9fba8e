"""What `draftmill plan` rests on, put together: a manifest, its target's files, and what the ledger has counted.

Nothing is written but the cache of digests, no source is read, no engine is started; a target that cannot be reached
leaves what follows from it unknown. Rates that the ledger measured are those of the machine that it lies on, so they
count unless another kind of GPU is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus import selection
from corpus.errors import UserError
from corpus.ledger.query import LedgerReader
from corpus.manifest import Manifest
from draftmill.amounts import Amount
from draftmill.builds import Known
from draftmill.comparing import measured_rate, planned_answers
from draftmill.costing import Captured, CategoryNeed, EngineFit, Measured, Stage, plan_stages
from draftmill.hardware import GPUS, Gpu, gpu_named, gpu_of_driver
from draftmill.lengths import Lengths, read_lengths
from draftmill.session import Session
from draftmill.target_facts import MOST_GPUS, engine_on, planned_target
from draftmill.verifying import build_of
from extraction.stage import plan_capture
from fleet.devices import Device, DeviceError

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
    ledger = LedgerReader(session.workspace)
    build_id = build_of(manifest, session.workspace)
    rows = {name: (n, selection.holdout_quota(n, manifest.mix.holdout)) for name, n in _quotas(manifest).items()}
    if build_id is not None:
        rows = _selected(ledger, build_id) or rows
    built = _built(session, build_id, ledger)
    needs = _needs(rows, built, read_lengths(manifest, ledger, _identity(session, ledger)))
    measured = _measured(ledger, manifest.target.model) if here else Measured()
    mean = _mean_tokens(needs)
    notes = [*([target.said] if target.said and target.facts else []), *built.notes]

    def on(one: Gpu | None, rates: Measured) -> tuple[EngineFit | None, tuple[Stage, ...]]:
        engine = None if target.model is None or one is None else engine_on(target.model, one, mean)
        return engine, plan_stages(needs, target.facts, manifest.training, one, engine, rates, built.captured)

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


def _mean_tokens(needs: Sequence[CategoryNeed]) -> int:
    """Prompt and answer of a mean sequence."""
    answers = sum(need.answers.value for need in needs)
    tokens = sum(need.answers.value * (need.prompt_tokens + need.response_tokens).value for need in needs)
    return max(1, round(tokens / answers)) if answers else 1


@dataclass(frozen=True)
class Built:
    """What the workspace has of this manifest: answers wanted and accepted, by category, and states."""

    answers: Mapping[str, Mapping[bool, tuple[int, int]]]
    """By category, with thinking and without."""
    captured: Captured
    notes: tuple[str, ...]


def _needs(
    rows: Mapping[str, tuple[int, int]], built: Built, lengths: Mapping[str, Lengths]
) -> tuple[CategoryNeed, ...]:
    """What each category of the mix needs. `rows`: prompts and held-out ones."""
    needs = []
    for name in sorted(rows, key=lambda one: (-rows[one][0], one)):
        known, kinds = lengths[name], built.answers.get(name, {})
        planned = {thinking: count for thinking, (count, _) in kinds.items()}
        left = {thinking: count - there for thinking, (count, there) in kinds.items()}
        needs.append(
            CategoryNeed(
                name, *rows[name], known.turns, known.prompt_tokens,
                response_tokens=known.response_tokens_at(_thinking(planned, known)),
                left_tokens=known.response_tokens_at(_thinking(left, known)),
                accepted=sum(there for _, there in kinds.values()),
                planned=sum(planned.values()) if kinds else None,
                counted=known.counted,
            )
        )  # fmt: skip
    return tuple(needs)


def _thinking(counts: Mapping[bool, int], known: Lengths) -> float:
    """The part of some answers that thinks; that of the manifest where there are none."""
    answers = sum(counts.values())
    return counts.get(True, 0) / answers if answers else known.thinking_share


def _identity(session: Session, ledger: LedgerReader) -> Mapping[str, Any] | None:
    """The target's identity, where answers here may be its own and its files are at hand."""
    model = session.manifest.target.model
    ((made,),) = ledger.rows("SELECT count(*) FROM recipes WHERE model = ?", model)
    try:
        return session.target.identity() if made else None
    except UserError:
        return None


def _built(session: Session, build_id: str | None, ledger: LedgerReader) -> Built:
    """What is there of a build, or would be taken over by it."""
    if build_id is None:
        notes = ["nothing of this manifest is built yet: prompts are those that it asks for"]
        if session.manifest.generation.imported:
            notes.append("answers of generation.imported are counted as to make until the manifest is built")
        return Built({}, Captured(), tuple(notes))
    answers, captured, why = _there(session, build_id, ledger)
    there = sum(accepted for kinds in answers.values() for _, accepted in kinds.values())
    notes = [f"build {build_id[:8]} has {there:,} accepted answers; what is there is not counted again"]
    notes += [f"as it was planned last: {why}"] if why else []
    ((trained,),) = ledger.rows("SELECT count(*) FROM drafters WHERE build_id = ?", build_id)
    notes += [f"{trained} of its drafters trained already; the hours are of one more"] if trained else []
    return Built(answers, captured, tuple(notes))


def _there(
    session: Session, build_id: str, ledger: LedgerReader
) -> tuple[dict[str, dict[bool, tuple[int, int]]], Captured, str]:
    """Answers wanted and accepted, states of this capture, and why they are not of this very manifest."""
    import polars as pl

    try:
        wanted = planned_answers(session, Known(build_id, session.manifest.name, "", imported=False))
        capture, _ = plan_capture(session.manifest, session.target)
        states = ledger.frame(
            "SELECT response_id, max(tokens) AS tokens FROM hidden_rows WHERE capture_id = ? GROUP BY ALL", capture
        )
        why = ""
    except UserError as error:
        wanted = ledger.frame(
            "SELECT response_id, b.category, CASE WHEN r.response_id IS NOT NULL AND b.left_out IS NULL "
            "THEN 'accepted' ELSE 'to_make' END AS state, coalesce(c.thinking, false) AS thinking "
            "FROM build_responses b LEFT JOIN accepted_responses r USING (response_id) "
            "LEFT JOIN recipes c ON c.recipe_id = b.recipe_id WHERE b.build_id = ?",
            build_id,
        )
        states = ledger.frame("SELECT response_id, max(tokens) AS tokens FROM hidden_rows GROUP BY ALL")
        why = str(error)
    accepted = (pl.col("state") == "accepted").sum().alias("accepted")
    answers: dict[str, dict[bool, tuple[int, int]]] = {}
    for category, thinking, count, there in wanted.group_by("category", "thinking").agg(pl.len(), accepted).iter_rows():
        answers.setdefault(category, {})[thinking] = (count, there)
    found = wanted.join(states, on="response_id", how="inner")["tokens"]
    return answers, Captured(len(found), int(found.sum())), why


def _quotas(manifest: Manifest) -> dict[str, int]:
    """Prompts of each category, by largest remainder as a build takes them."""
    return selection.largest_remainder(manifest.mix.prompts, manifest.mix.prompt_weights())


def _selected(ledger: LedgerReader, build_id: str) -> dict[str, tuple[int, int]]:
    """Prompts of a build and held-out ones, by category."""
    rows = ledger.rows(
        "SELECT category, count(*) FILTER (NOT holdout), count(*) FILTER (holdout) FROM selections "
        "WHERE build_id = ? GROUP BY category",
        build_id,
    )
    return {category: (taken, held) for category, taken, held in rows}


def _measured(ledger: LedgerReader, model: str) -> Measured:
    """Rates of the newest runs over this target, and bytes of what was written."""
    generate = measured_rate(ledger, model)
    extract = ledger.rows(
        "SELECT avg(s.tokens_per_s), s.run_id FROM engine_samples s JOIN runs u USING (run_id) "
        "WHERE u.command = 'extract' AND s.tokens_per_s > 0 AND EXISTS (SELECT 1 FROM build_responses b JOIN recipes c "
        "USING (recipe_id) WHERE b.build_id = u.build_id AND c.model = ?) "
        "GROUP BY s.run_id ORDER BY s.run_id DESC LIMIT 1",
        model,
    )
    trained = ledger.rows(
        "SELECT median(m.value), m.drafter_id FROM train_metrics m "
        "JOIN drafters d USING (drafter_id) JOIN captures c USING (capture_id) "
        "WHERE m.metric = 'tokens_per_s' AND c.model = ? GROUP BY ALL ORDER BY any_value(d.created_at) DESC LIMIT 1",
        model,
    )
    written = ledger.rows(
        "SELECT sum(s.size_bytes) / sum(r.tokens), 'of this ledger' FROM response_shards s JOIN (SELECT shard, "
        "sum(coalesce(prompt_tokens, 0) + coalesce(response_tokens, 0)) AS tokens FROM responses GROUP BY shard) r "
        "USING (shard) HAVING sum(r.tokens) > 0"
    )
    return Measured(
        _about(generate.tokens_per_s / generate.devices, f"generate {generate.run_id}") if generate else None,
        *(
            _about(rows[0][0], f"{what} {rows[0][1]}") if rows and rows[0][0] else None
            for what, rows in (("extract", extract), ("training of drafter", trained), ("response shards", written))
        ),
    )


def _about(value: float, source: str) -> Amount:
    """A measured rate; a tenth about it, for runs differ."""
    return Amount.of(value, value * 0.9, value * 1.1, "measured", source)
