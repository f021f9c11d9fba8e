"""README.md of an exported drafter: its target, its data and how it was sampled, what it accepts, how it is served.

Written by the coordinator when the figures are there: after training, and anew for every copy that `draftmill export`
and `push-drafter` make, which may know more (what vLLM measured). The folder's config.json says shape and format. The
header is the Hub's own metadata. Names of this machine's folders are cut to what tells them apart. No torch.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.acceptance import FEW_ROWS, interval
from corpus.artefacts import write_text
from corpus.card import HUB_LICENSES, UNSTATED, markdown_table
from corpus.errors import UserError
from corpus.gguf import PREFIX, is_gguf_target
from corpus.ledger.writer import Readable
from corpus.manifest import Manifest
from corpus.manifest import Source as ManifestSource
from corpus.naming import published_path
from corpus.target import ResolvedTarget
from training.export_speculators import is_speculators
from training.outlook import labels_of_auto
from training.plan import TrainingPlan
from training.progress import DESCRIBED
from training.shape import DrafterShape, in_zlab_words, shape_of_config

CARD, CONFIG = "README.md", "config.json"
TAGS = ["speculative-decoding", "dflash", "draftmill"]
ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
MEASURES = {
    "vllm": "served by vLLM, greedy",
    "walk": "sequential walk over recorded answers",
    "anchors": "every position of recorded answers",
}
AS_SERVED = ("vllm", "walk")
LOCAL_TARGET = "TARGET_FOLDER"
OTHER_WORDS = (
    "Measured in other ways on the same prompts: at every position, and as a decoder would that verifies a tree of "
    "drafts a step. Neither compares with the figures above."
)
WORDS = (
    "The acceptance length τ is tokens a step of the target, its own one included: 1 + accepted / drafts, pooled over "
    "drafts. All of it is measured on held-out prompts, which were never trained on."
)


@dataclass(frozen=True)
class Source:
    """Where training rows come from."""

    name: str
    dataset: str
    revision: str
    license: str | None
    rows: int
    on_hub: bool = True


@dataclass(frozen=True)
class Init:
    """The drafter that training started from."""

    name: str
    """Hub id, or a folder's name."""
    revision: str
    """The Hub's commit; else the digest of its files."""
    license: str | None


@dataclass(frozen=True)
class Trained:
    """What a run found, which no manifest says."""

    steps: int
    best_step: int
    tokens_per_batch: int


@dataclass(frozen=True)
class CardFacts:
    """What a card says beyond the shape and the figures."""

    target: str
    """Hub id, or the folder's name."""
    on_hub: bool
    revision: str
    target_license: str | None
    drafter_id: str
    build_id: str
    manifest: str
    mix: tuple[tuple[str, float], ...]
    sampling: tuple[tuple[str, str], ...]
    training: tuple[tuple[str, str], ...]
    sources: tuple[Source, ...]
    init: Init | None = None

    @property
    def license(self) -> str | None:
        """The Hub's identifier of the licence that target, sources and the drafter that it started from share.

        `other` if they are several, None if one is unknown.
        """
        own = [self.target_license, *(s.license for s in self.sources), *([self.init.license] if self.init else [])]
        stated = {name.lower() if name else None for name in own}
        if None in stated:
            return None
        (first, *more) = sorted(str(name) for name in stated)
        return first if not more and first in HUB_LICENSES else "other"


def write_card(folder: Path, facts: CardFacts, acceptance: Sequence[Mapping[str, Any]], name: str = "") -> None:
    """Write README.md into an exported folder of either format.

    Args:
        acceptance: rows of acceptance.json (see training.record) of this drafter; other builds' are left out.
        name: how the drafter is loaded: a repository, or a folder; THIS_FOLDER where it is not known.

    Raises:
        UserError: the folder holds no drafter, or the disk is full.
    """
    path = folder / CONFIG
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no drafter's config.json ({type(error).__name__}).") from error
    write_text(folder / CARD, card_text(config, facts, acceptance, name))


def card_text(config: dict[str, Any], facts: CardFacts, acceptance: Sequence[Mapping[str, Any]], name: str = "") -> str:
    """The README.md beside this config.json, of either format.

    Raises:
        UserError: it is no drafter's.
    """
    shape = shape_of_config(in_zlab_words(config, CONFIG), CONFIG)
    speculators = is_speculators(config)
    parts = [
        f"# A DFlash drafter for {facts.target}" + ("" if facts.on_hub else ", a model that is not on the Hub"),
        _what(shape, facts),
        "## Acceptance",
        _acceptance([row for row in acceptance if row["build_id"] == facts.build_id]),
        "## Serving",
        _serving(shape, facts.target if facts.on_hub else LOCAL_TARGET, name or "THIS_FOLDER", speculators),
        "## Data",
        "The answers that this drafter was trained on are the target's own. Shares are of prompts, as declared.",
        markdown_table(("category", "share"), [(category, f"{share:.1%}") for category, share in facts.mix]),
        _sources(facts),
        "## Recipe",
        markdown_table(("", ""), [*facts.sampling, *facts.training]),
    ]
    return f"---\n{_metadata(facts, speculators)}\n---\n\n" + "\n\n".join(parts) + "\n"


def gather(
    plan: TrainingPlan, manifest: Manifest, target: ResolvedTarget, ledger: Readable, trained: Trained | None = None
) -> CardFacts:
    """What manifest, plan and ledger say of a drafter.

    Args:
        trained: what the run found; where it is None, what the drafter's own folder says of it.
    """
    trained = trained or read_trained(ledger.workspace.drafter(plan.drafter_id))
    hub = {source.name for source in manifest.sources if _is_hub_dataset(source)}
    rows = Counter(row.source for row in plan.live)
    rows.update(row.source for own in plan.rows.values() for row in own if not row.holdout)
    found = ledger.rows(
        "SELECT s.source, p.dataset, p.config, p.split, p.revision, coalesce(s.license, p.license) "
        "FROM sources s JOIN pools p USING (pool_id) WHERE s.build_id = ? ORDER BY s.source",
        plan.build_id,
    )
    known = {
        source: (" ".join(part for part in (published_path(dataset), config, split) if part), revision, license)
        for source, dataset, config, split, revision, license in found
    }
    unknown = ("", "", None)
    return CardFacts(
        target=target_name(target),
        on_hub=is_on_hub(target),
        revision=target.revision,
        target_license=target_license(target.folder),
        drafter_id=plan.drafter_id,
        build_id=plan.build_id,
        manifest=manifest.name,
        mix=tuple(manifest.mix.normalised().items()),
        sampling=sampling_lines(manifest),
        training=training_lines(plan, manifest, trained),
        sources=tuple(
            Source(name, *known.get(name, unknown), count, name in hub) for name, count in sorted(rows.items())
        ),
        init=_init(plan, manifest),
    )


def read_trained(folder: Path) -> Trained | None:
    """What drafter.json says of the run; None where it is not there or says nothing of it."""
    try:
        body = json.loads((folder / DESCRIBED).read_text(encoding="utf-8"))
        training = body["training"]
        return Trained(int(body["steps"]), int(training["best_step"]), int(training["tokens_per_batch"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _init(plan: TrainingPlan, manifest: Manifest) -> Init | None:
    named = manifest.training.init_from
    if not named:
        return None
    folder = Path(plan.init_dir)
    if Path(named).expanduser().is_dir() or not ON_HUB.fullmatch(named):
        # one of this workspace is in <drafter_id>/export, and its card says the rest
        name = folder.parent.name if folder.name == "export" else folder.name
        return Init(name, plan.init, target_license(folder))
    return Init(named, folder.name, target_license(folder))  # the cache's folder is named by the commit


def _is_hub_dataset(source: ManifestSource) -> bool:
    return bool(source.dataset) or (source.path or "").startswith("hf://datasets/")


def sampling_lines(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """How the target's answers were sampled."""
    generation = manifest.generation
    share = generation.thinking.share
    kinds = [("on", share, generation.thinking.on)] * (share > 0)
    kinds += [("off", 1 - share, generation.thinking.off)] * (share < 1)
    lines = [
        (f"sampling, thinking {word}", f"{part:.0%} of prompts: {_sampling(kind.model_dump(exclude_none=True))}")
        for word, part, kind in kinds
    ]
    lines.append(("most tokens of an answer", f"{generation.max_tokens:,} ({generation.truncated} what is cut)"))
    for category, own in generation.by_category.items():
        changed = own.model_dump(exclude_none=True, exclude_defaults=True, mode="json")
        if changed:
            lines.append((f"sampling of {category}", _sampling(changed)))
    return tuple(lines)


def training_lines(
    plan: TrainingPlan, manifest: Manifest, trained: Trained | None = None
) -> tuple[tuple[str, str], ...]:
    """How the drafter was trained, `auto` resolved."""
    training = manifest.training
    weights = f"decay, gamma {training.gamma:g}" if training.loss_weights == "decay" else "D-PACE"
    labels = training.labels if training.labels != "auto" else f"auto: {labels_of_auto(plan, manifest)}"
    tokens = trained.tokens_per_batch if trained else training.tokens_per_batch
    return (
        ("rows", f"{plan.training_rows:,}, and {plan.holdout_rows:,} held out"),
        ("labels", labels),
        ("loss weights", weights),
        ("epochs, anchors a document", f"{training.epochs}, {training.anchors_per_document}"),
        *(_steps(plan, trained) if trained else ()),
        ("tokens a pack, packs a step", f"{tokens}, {training.gradient_accumulation}"),
        ("learning rate, warm-up", f"{training.learning_rate:g} (AdamW, cosine), {training.warmup:.0%}"),
        ("weight decay, gradient clip", f"{training.weight_decay:g}, {training.clip:g}"),
        ("seed", str(plan.seed)),
        ("dtype", manifest.target.dtype),
    )


def _steps(plan: TrainingPlan, trained: Trained) -> tuple[tuple[str, str], ...]:
    chosen = "best walk on held-out rows" if plan.holdout_rows else "the last one: nothing was held out"
    return (("steps, exported checkpoint", f"{trained.steps:,}, step {trained.best_step:,} ({chosen})"),)


def is_on_hub(target: ResolvedTarget) -> bool:
    """Whether the target's name is a Hub id: no file, and no folder of this machine."""
    model = target.target.model
    if is_gguf_target(model) or not ON_HUB.fullmatch(model):
        return False
    return not target.folder.as_posix().endswith(model)


def target_name(target: ResolvedTarget) -> str:
    """The target as others may know it: a folder or a file by its last part."""
    model = target.target.model
    if is_on_hub(target) or model.startswith(PREFIX):
        return model
    return Path(model).expanduser().resolve().name


def target_license(folder: Path) -> str | None:
    """What the target's own card says, if it lies beside its weights."""
    from huggingface_hub import ModelCard

    try:
        found = ModelCard.load(folder / CARD).data.license if (folder / CARD).is_file() else None
    except Exception:  # ModelCard lets through whatever its YAML parser raises, and a card is no condition
        return None
    return str(found) if found else None


def _metadata(facts: CardFacts, speculators: bool) -> str:
    from huggingface_hub import ModelCardData

    more: dict[str, Any] = {"license": facts.license} if facts.license else {}
    if facts.license == "other":
        more |= {"license_name": "by-source", "license_link": "README.md#data"}
    if facts.on_hub:
        more["base_model"] = facts.target
    datasets = sorted({name for s in facts.sources if s.on_hub and (name := _dataset_id(s.dataset))})
    data = ModelCardData(
        library_name="speculators" if speculators else "transformers",
        pipeline_tag="text-generation",
        tags=[*TAGS, *(["speculators"] if speculators else [])],
        datasets=datasets or None,
        **more,
    )
    return str(data.to_yaml())


def _dataset_id(dataset: str) -> str:
    """owner/name of a source on the Hub, as it is said: with config and split, or as hf://datasets/…; else empty."""
    name = dataset.split(" ", maxsplit=1)[0]
    if name.startswith("hf://datasets/"):
        name = "/".join(name.removeprefix("hf://datasets/").split("/")[:2]).partition("@")[0]
    return name if ON_HUB.fullmatch(name) else ""


def _what(shape: DrafterShape, facts: CardFacts) -> str:
    rows = [
        ("target", f"`{facts.target}` at `{facts.revision}`"),
        ("drafter", f"`{facts.drafter_id}`"),
        ("build", f"`{facts.build_id}` ({facts.manifest})"),
        ("draft layers", f"{shape.draft_layers}, the first {shape.sliding_layers} sliding by {shape.sliding_window}")
        if shape.sliding_layers
        else ("draft layers", f"{shape.draft_layers}, full attention"),
        ("block size", f"{shape.block_size}: {shape.num_speculative_tokens} drafted tokens"),
        ("target layers read", f"{', '.join(map(str, shape.target_layer_ids))} (0-based outputs)"),
        ("mask token", str(shape.mask_token_id)),
    ]
    if facts.init:
        licence = facts.init.license or UNSTATED
        rows.append(("started from", f"`{facts.init.name}` at `{facts.init.revision}`, licence: {licence}"))
    return (
        "Drafts a block of tokens at once for speculative decoding; the target checks them, so what is answered is "
        f"the target's alone. Trained by draftmill.\n\n{markdown_table(('', ''), rows)}"
    )


def _acceptance(rows: Sequence[Mapping[str, Any]]) -> str:
    """vLLM's own counters and the walk first; what does not compare with serving below, in a table of its own."""
    newest = {(row["measured_by"], row["category"]): row for row in sorted(rows, key=lambda row: row["measured_at"])}
    if not newest:
        return "Not measured."
    served: list[tuple[str, ...]] = []
    others: list[tuple[str, ...]] = []
    for measure in sorted({name for name, _ in newest}, key=_order):
        lines = served if measure in AS_SERVED else others
        own = [row for (name, _), row in sorted(newest.items()) if name == measure]
        how = MEASURES.get(measure, measure.replace("ddtree_", "walk with a tree of ") + " drafts")
        for row in own:
            lines.append(_figure(str(row["category"]), how, row))
        if len(own) > 1:
            keys = ("drafts", "accepted_tokens", "rows", "sum_drafts_sq", "sum_accepted_sq", "sum_cross")
            sums = {key: _sum([row.get(key) for row in own]) for key in keys}
            lines.append(_figure("all, pooled", how, sums))
    header = ("category", "measured by", "τ", "95% interval", "drafts", "prompts")
    parts = [WORDS, *([markdown_table(header, served)] if served else [])]
    return "\n\n".join([*parts, *([OTHER_WORDS, markdown_table(header, others)] if others else [])])


def _order(measure: str) -> tuple[int, int]:
    """As MEASURES has them, then trees by their size."""
    size = measure.rpartition("_")[2]
    return (
        list(MEASURES).index(measure) if measure in MEASURES else len(MEASURES),
        int(size) if size.isdigit() else 0,
    )


def _figure(category: str, how: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    drafts, accepted = row["drafts"], row["accepted_tokens"]
    sure = interval(
        drafts, accepted, row["rows"], row.get("sum_drafts_sq"), row.get("sum_accepted_sq"), row.get("sum_cross")
    )
    few = " (few rows)" if row["rows"] is not None and row["rows"] < FEW_ROWS else ""
    between = f"{sure[0]:.2f} to {sure[1]:.2f}{few}" if sure else few.strip()
    tau = f"{1 + accepted / drafts:.2f}" if drafts else ""
    return category, how, tau, between, f"{drafts:,}", f"{row['rows']:,}"


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(value or 0 for value in values)


def _serving(shape: DrafterShape, target: str, name: str, speculators: bool) -> str:
    drafts = json.dumps({"method": "dflash", "model": name, "num_speculative_tokens": shape.num_speculative_tokens})
    mixed = 0 < shape.sliding_layers < shape.draft_layers
    where = f"{LOCAL_TARGET} is where the target lies on your machine.\n\n" if target == LOCAL_TARGET else ""
    vllm = f"{'VLLM_USE_V2_MODEL_RUNNER=1 ' if mixed else ''}vllm serve {target} \\\n  --speculative-config '{drafts}'"
    if speculators:
        return (
            f"{where}vLLM:\n\n```bash\n{vllm}\n```\n\n"
            f"or `vllm serve {name}`, which takes target and settings from the config."
        )
    sglang = (
        f"python -m sglang.launch_server --model-path {target} \\\n  --speculative-algorithm DFLASH "
        f"--speculative-draft-model-path {name} \\\n  --speculative-num-draft-tokens {shape.block_size}"
    )
    return (
        f"{where}vLLM:\n\n```bash\n{vllm}\n```\n\n"
        f"SGLang (which counts the block's first token; acceptance above is vLLM's):"
        f"\n\n```bash\n{sglang}\n```"
    )


def _sources(facts: CardFacts) -> str:
    rows = [
        (
            source.name,
            f"`{source.dataset}`" if source.dataset else "",
            f"`{source.revision}`" if source.revision else "",
            source.license or UNSTATED,
            f"{source.rows:,}",
        )
        for source in facts.sources
    ]
    words = f"The target's own licence: {facts.target_license or UNSTATED + ' beside its weights'}."
    return f"{markdown_table(('source', 'dataset', 'revision', 'licence', 'rows'), rows)}\n\n{words}"


def _sampling(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_said(value)}" for key, value in values.items())


def _said(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
