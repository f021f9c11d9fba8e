"""What `draftmill plan` rests on, read: a manifest, its target's files, and what the ledger has counted.

Nothing is written but the cache of digests, no source is read, no engine is started; a target that cannot be reached
leaves what follows from it unknown. Rates that the ledger measured are those of the machine that it lies on, so they
count unless another kind of GPU is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import selection
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.manifest import Manifest
from corpus.model_config import text_config
from corpus.workspace import Workspace
from draftmill.amounts import Amount
from draftmill.costing import CategoryNeed, EngineFit, Measured, Stage, TargetFacts, Training, plan_stages
from draftmill.doctor import looked_at
from draftmill.hardware import GPUS, Gpu, gpu_named, gpu_of_driver
from draftmill.session import Session
from extraction.stage import plan_capture
from fleet.devices import Device, DeviceError
from generation.cache_shape import DTYPE_BYTES
from generation.fit import Model, max_num_seqs, read_model

if TYPE_CHECKING:
    import polars as pl

MOST_GPUS = 8
"""The largest group that one engine is spread over."""
TURNS = Amount.of(1.0, 1.0, 2.0, "assumed", "one answer a prompt (nothing built yet)")
PROMPT_TOKENS = Amount.of(250.0, 100.0, 600.0, "assumed", "250 prompt tokens an answer (100 to 600)")
RESPONSE_TOKENS = Amount.of(500.0, 250.0, 1200.0, "assumed", "500 response tokens an answer (250 to 1,200)")
FEW = 30
"""Answers of a category below which a mean is hardly one: its range is widened by half."""


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
    elsewhere: tuple[tuple[Gpu, tuple[Stage, ...]], ...]
    """The same on every GPU of the table, by arithmetic alone."""
    notes: tuple[str, ...]
    devices: str = "GPU"
    unknown: str = ""
    """Why the target told nothing; "" where it did."""


def plan_costs(
    session: Session, hardware: str | None, gpus: int | None, price_usd: tuple[float, float] | None
) -> Costs:
    """Everything that `draftmill plan` shows.

    Raises:
        UserError: no manifest, a ledger that cannot be read, or hardware that the table does not have.
    """
    manifest = session.manifest
    named = gpu_named(hardware) if hardware else None
    local, local_gpu = _local(session)
    here = named is None or named == local_gpu
    gpu = named or local_gpu
    count = gpus or (len(local) if here and local else MOST_GPUS)
    notes: list[str] = []
    target, model, why = _target(session)
    if why and target is not None:
        notes.append(why)
    needs, built = _needs(session)
    notes += built.notes
    measured = _measured(session.workspace, manifest.target.model) if here else Measured()
    training = _training(manifest)
    mean = _mean_tokens(needs)

    def stages(on: Gpu | None, rates: Measured) -> tuple[Stage, ...]:
        engine = None if model is None or on is None else _engine_on(model, on, mean)
        if model is not None and on is not None and engine is None:
            notes.append(f"{on.name}: the target does not fit on {MOST_GPUS} of them")
        return plan_stages(needs, target, training, on, engine, rates, built.captured_tokens)

    chosen = stages(gpu, measured)
    bytes_alone = Measured(response_bytes_per_token=measured.response_bytes_per_token)
    elsewhere = tuple((one, stages(one, bytes_alone)) for one in GPUS) if target is not None else ()
    price = price_usd or (gpu.price_usd if gpu else None)
    kind = "GPU" if gpu is not None or not local or local[0].kind == "cuda" else "core"
    return Costs(
        manifest.name, manifest.target.model, needs, chosen, gpu, count, price, elsewhere,
        tuple(dict.fromkeys(notes)), kind, why if target is None else "",
    )  # fmt: skip


def _local(session: Session) -> tuple[Sequence[Device], Gpu | None]:
    """This machine's devices, and the GPU of the table that they are."""
    try:
        devices = session.devices
    except DeviceError:
        return (), None
    return devices, gpu_of_driver(devices[0].name) if devices and devices[0].kind == "cuda" else None


def _target(session: Session) -> tuple[TargetFacts | None, Model | None, str]:
    """The target's facts, what an engine makes of it, and why not."""
    name = session.manifest.target.model
    try:
        target = looked_at(session)
        if target is None:
            return None, None, f"{name} is converted before its first use: what follows from its size is known then"
        model = read_model(session.manifest, target.folder, target.config)
        capture, layer_ids = plan_capture(session.manifest, target)
    except UserError as error:
        return None, None, f"{error}"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return None, None, f"{name}: its config.json cannot be read ({type(error).__name__})"
    del capture
    if model.weights_bytes is None:
        return None, model, f"{name}: its weights are not told by its files; hours by arithmetic are unknown"
    config = text_config(dict(target.config))
    hidden, vocabulary = int(config["hidden_size"]), int(config["vocab_size"])
    section = session.manifest.extraction
    states = len(layer_ids) + section.final_state
    facts = TargetFacts(
        parameters=model.weights_bytes // DTYPE_BYTES[session.manifest.target.dtype],
        weights_bytes=model.weights_bytes,
        captured_bytes_per_token=states * hidden * DTYPE_BYTES[section.dtype] + 5,
        drafter_parameters=_drafter_parameters(session, target.folder, layer_ids),
        head_parameters=hidden * vocabulary,
        mixture=any("expert" in key for key in config),
    )
    return facts, model, "its experts are all counted, though few are active: hours are upper bounds" * facts.mixture


def _drafter_parameters(session: Session, folder: Path, layer_ids: tuple[int, ...]) -> int:
    from training.memory import parameter_counts
    from training.shape import shape_for_target

    section = session.manifest.training
    shape = shape_for_target(
        folder,
        target_layer_ids=layer_ids,
        draft_layers=section.draft_layers,
        block_size=section.block_size,
        mask_token_id=0,
        sliding_layers=min(section.sliding_layers, section.draft_layers),
        sliding_window=section.sliding_window,
    )
    return sum(parameter_counts(shape))


def _engine_on(model: Model, gpu: Gpu, mean_tokens: int) -> EngineFit | None:
    """The smallest group of these GPUs that the target fits on; None where it fits on no group."""
    gpus = 1
    while gpus <= MOST_GPUS:
        members = tuple(Device("cuda", i, gpu.driver, gpu.memory_bytes) for i in range(gpus))
        device = members[0] if gpus == 1 else Device("cuda", 0, gpu.driver, gpu.memory_bytes, members=members)
        fit = model.fit_on(device, mean_tokens)
        if fit.fits:
            shape = model.shape
            each = 0 if shape is None else shape.sequence_bytes(mean_tokens)
            return EngineFit(gpus, max(1, max_num_seqs(fit)), each)
        gpus *= 2
    return None


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
    captured_tokens: int
    notes: tuple[str, ...]


def _needs(session: Session) -> tuple[tuple[CategoryNeed, ...], Built]:
    manifest, workspace = session.manifest, session.workspace
    build_id = _built(manifest, workspace)
    rows = {name: (n, selection.holdout_quota(n, manifest.mix.holdout)) for name, n in _quotas(manifest).items()}
    planned: dict[str, int] = {}
    accepted: dict[str, int] = {}
    captured, notes = 0, ["nothing of this manifest is built yet: prompts are those that it asks for"]
    if build_id is not None:
        rows = _selected(workspace, build_id) or rows
        planned, accepted, captured = _there(workspace, build_id)
        there = sum(accepted.values())
        notes = [f"build {build_id[:8]} has {there:,} accepted answers; what is there is not counted again"]
    lengths = _lengths(manifest, workspace)
    needs = []
    for name in sorted(rows, key=lambda one: (-rows[one][0], one)):
        assumed = (TURNS, PROMPT_TOKENS, _at_most(manifest, name, RESPONSE_TOKENS), 0)
        turns, prompt, response, counted = lengths.get(name, assumed)
        brought = manifest.mix.mean_response_tokens.get(name)
        if brought is not None and not counted:
            mean = brought / turns.value
            response = Amount.of(mean, mean * 0.7, mean * 1.4, "assumed", "mix.mean_response_tokens")
        needs.append(
            CategoryNeed(name, *rows[name], turns, prompt, response, accepted.get(name, 0), planned.get(name), counted)
        )
    if manifest.generation.imported and not planned:
        notes.append(
            "answers of generation.imported are counted as to make until `draftmill generate` has planned them"
        )
    return tuple(needs), Built(build_id, captured, tuple(notes))


def _quotas(manifest: Manifest) -> dict[str, int]:
    """Prompts of each category, by largest remainder as a build takes them."""
    return selection.largest_remainder(manifest.mix.prompts, manifest.mix.prompt_weights())


def _at_most(manifest: Manifest, category: str, tokens: Amount) -> Amount:
    """No answer is longer than max_tokens."""
    most = manifest.generation.for_category(category).max_tokens
    return tokens.within(0.0, float(most or tokens.high))


def _built(manifest: Manifest, workspace: Workspace) -> str | None:
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
    return max(found, default=("", None))[1]


def _selected(workspace: Workspace, build_id: str) -> dict[str, tuple[int, int]]:
    rows = _asked(
        workspace,
        "SELECT category, count(*) FILTER (NOT holdout) AS rows, count(*) FILTER (holdout) AS held FROM selections "
        f"WHERE build_id = '{build_id}' GROUP BY category",
    )
    return {category: (int(taken), int(held)) for category, taken, held in rows.iter_rows()}


def _there(workspace: Workspace, build_id: str) -> tuple[dict[str, int], dict[str, int], int]:
    """By category answers that a build wants and those accepted of them; and tokens whose states are captured."""
    rows = _asked(
        workspace,
        "SELECT b.category, count(*) AS wanted, count(*) FILTER (r.response_id IS NOT NULL AND b.left_out IS NULL) "
        "AS accepted FROM build_responses b LEFT JOIN accepted_responses r USING (response_id) "
        f"WHERE b.build_id = '{build_id}' GROUP BY ALL",
    )
    hidden = _asked(
        workspace,
        "SELECT coalesce(sum(h.tokens), 0)::BIGINT AS tokens FROM (SELECT response_id, max(tokens) AS tokens "
        "FROM hidden_rows GROUP BY response_id) h JOIN build_responses b USING (response_id) "
        f"WHERE b.build_id = '{build_id}'",
    )
    planned = {category: int(wanted) for category, wanted, _ in rows.iter_rows()}
    accepted = {category: int(there) for category, _, there in rows.iter_rows()}
    return planned, accepted, int(hidden.item()) if hidden.height else 0


def _lengths(manifest: Manifest, workspace: Workspace) -> dict[str, tuple[Amount, Amount, Amount, int]]:
    """By category: turns of a prompt, prompt and response tokens of an answer, and how many answers were counted."""
    most = {name: manifest.generation.for_category(name).max_tokens for name in manifest.mix.shares}
    cases = " ".join(f"WHEN b.category = '{_doubled(name)}' THEN {tokens}" for name, tokens in sorted(most.items()))
    long = f"least(CASE {cases} END, CASE WHEN r.finish_reason = 'length' THEN 1e15 ELSE r.response_tokens END)"
    answers = _asked(
        workspace,
        f"SELECT b.category, count(*) AS n, avg(r.prompt_tokens) AS prompt, stddev_samp(r.prompt_tokens) AS prompt_sd, "
        f"avg({long}) AS response, stddev_samp({long}) AS response_sd, "
        "any_value(c.model) AS model FROM accepted_responses r "
        "JOIN (SELECT DISTINCT response_id, category FROM build_responses) b USING (response_id) "
        "LEFT JOIN recipes c USING (recipe_id) "
        f"WHERE r.response_tokens IS NOT NULL AND b.category IN ({_names(manifest)}) GROUP BY b.category",
    )
    prompts = _asked(
        workspace,
        "SELECT category, count(*) AS n, avg(turns) AS turns, avg(prompt_tokens) AS prompt, "
        f"stddev_samp(prompt_tokens) AS prompt_sd FROM prompts WHERE category IN ({_names(manifest)}) "
        "GROUP BY category",
    )
    found: dict[str, tuple[Amount, Amount, Amount, int]] = {}
    for row in prompts.iter_rows(named=True):
        source = "prompts of this ledger, by category"
        turns = Amount.of(row["turns"], row["turns"], row["turns"], "measured", source)
        prompt = PROMPT_TOKENS if row["prompt"] is None else _mean(row["prompt"], row["prompt_sd"], row["n"], source)
        found[row["category"]] = (turns, prompt, _at_most(manifest, row["category"], RESPONSE_TOKENS), 0)
    for row in answers.iter_rows(named=True):
        source = "answers of this ledger, by category"
        if row["model"] != manifest.target.model:
            source += f" ({row['model']})"
        turns = found[row["category"]][0] if row["category"] in found else TURNS
        prompt = _mean(row["prompt"], row["prompt_sd"], row["n"], source) if row["prompt"] else PROMPT_TOKENS
        found[row["category"]] = (turns, prompt, _mean(row["response"], row["response_sd"], row["n"], source), row["n"])
    return found


def _mean(mean: float, deviation: float | None, count: int, source: str) -> Amount:
    """A mean with its 95% range over the rows; of a few rows wider."""
    half = 1.96 * (deviation or mean * 0.5) / count**0.5 * (1.5 if count < FEW else 1.0)
    return Amount.of(float(mean), max(1.0, mean - half), float(mean + half), "measured", source)


def _measured(workspace: Workspace, model: str) -> Measured:
    """Rates of the newest runs over this target, and bytes of what was written."""
    generate = _asked(
        workspace,
        "SELECT r.run_id, sum(r.response_tokens) / epoch(max(r.ended_at) - min(r.started_at)) AS tokens_per_s, "
        "count(DISTINCT r.device) AS devices, sum(r.response_tokens)::BIGINT AS tokens "
        f"FROM responses r JOIN recipes c USING (recipe_id) WHERE c.model = '{_doubled(model)}' GROUP BY r.run_id "
        "HAVING sum(r.response_tokens) > 0 AND max(r.ended_at) > min(r.started_at) ORDER BY r.run_id DESC LIMIT 1",
    )
    extract = _asked(
        workspace,
        "SELECT s.run_id, avg(s.tokens_per_s) AS tokens_per_s FROM engine_samples s JOIN runs u USING (run_id) "
        "WHERE u.command = 'extract' AND s.tokens_per_s > 0 AND EXISTS (SELECT 1 FROM build_responses b JOIN recipes c "
        f"USING (recipe_id) WHERE b.build_id = u.build_id AND c.model = '{_doubled(model)}') "
        "GROUP BY s.run_id ORDER BY s.run_id DESC LIMIT 1",
    )
    trained = _asked(
        workspace,
        "SELECT m.drafter_id, median(m.value) AS tokens_per_s, count(*) AS steps FROM train_metrics m "
        "JOIN drafters d USING (drafter_id) JOIN captures c USING (capture_id) "
        f"WHERE m.metric = 'tokens_per_s' AND c.model = '{_doubled(model)}' GROUP BY ALL "
        "ORDER BY any_value(d.created_at) DESC LIMIT 1",
    )
    written = _asked(
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


def _asked(workspace: Workspace, sql: str) -> pl.DataFrame:
    """Rows of the published ledger; none where nothing is published."""
    import polars as pl

    return query(workspace, sql) if workspace.snapshot.exists() else pl.DataFrame()


def _names(manifest: Manifest) -> str:
    return ", ".join(f"'{_doubled(name)}'" for name in sorted(manifest.mix.shares))


def _doubled(text: str) -> str:
    return text.replace("'", "''")
