"""What a manifest will take, stage by stage: rows, tokens, disk and GPU-hours. Pure: counts, lengths and rates in.

GPU-hours rest on rates that this ledger measured, else on arithmetic over published figures of a GPU. Of a dense
model of P parameters, a forward pass is 2 P operations a token, a decode step reads all weights and the running
sequences' caches once, and training is three forward passes (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). The
shares of a GPU's peak that are reached are the assumptions at the top; docs/hardware.md says what they rest on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corpus.manifest import Training
from draftmill.amounts import Amount, total
from draftmill.hardware import Gpu

FORWARD_SHARE = Amount.of(0.5, 0.3, 0.65, "estimated", "a forward pass at 30 to 65% of bf16 peak")
DECODE_SHARE = Amount.of(0.5, 0.3, 0.75, "estimated", "decoding at 30 to 75% of memory bandwidth")
TRAIN_SHARE = Amount.of(0.3, 0.15, 0.45, "estimated", "training at 15 to 45% of bf16 peak")
STARTED = Amount.of(1.05, 1.0, 1.15, "estimated", "up to 15% for starts and the end of a run")
RESPONSE_BYTES = Amount.of(4.0, 2.5, 8.0, "assumed", "2.5 to 8 bytes a token: ids, text, times, compressed")
PROMPT_BYTES = Amount.of(3.0, 1.5, 6.0, "assumed", "1.5 to 6 bytes a token of compressed text")
NUMBER_BYTES = 4


@dataclass(frozen=True)
class CategoryNeed:
    """One category of the mix."""

    name: str
    prompts: int
    """Wanted, replicas counted, the holdout not."""
    held_out: int
    turns: Amount
    """Answers that a prompt brings."""
    prompt_tokens: Amount
    """Of one answer's prompt, earlier turns included."""
    response_tokens: Amount
    """Of one answer."""
    left_tokens: Amount | None = None
    """Of one answer that is not there yet, where those think more or less often than all do."""
    accepted: int = 0
    """Answers that the build has already, held-out ones too."""
    planned: int | None = None
    """Answers that a plan of the build counted; None before there is one."""
    counted: int = 0
    """Answers under the same recipe that response_tokens are of; 0: they are assumed."""

    @property
    def answers(self) -> Amount:
        """All that the build wants, and the holdout."""
        if self.planned is not None:
            return Amount.exact(self.planned, "the build's own plan")
        return self.turns.times(self.prompts + self.held_out)

    @property
    def to_make(self) -> Amount:
        """Answers that are not there yet."""
        return self.answers.less(self.accepted)

    @property
    def to_write(self) -> Amount:
        """Their tokens."""
        return self.to_make * (self.left_tokens or self.response_tokens)


@dataclass(frozen=True)
class TargetFacts:
    """A target as its files tell it, and the drafter that the manifest asks for."""

    parameters: int
    weights_bytes: int
    captured_bytes_per_token: int
    """Of a hidden shard."""
    drafter_parameters: int
    head_parameters: int
    """hidden_size x vocab_size: the target's head, that training runs through."""
    mixture: bool = False
    """Experts: all are counted, though few are active."""


@dataclass(frozen=True)
class EngineFit:
    """One engine on one kind of GPU."""

    gpus: int
    """That it needs."""
    sequences: int
    """That it runs at once."""
    sequence_bytes: int
    """Of cache, read at each step, a sequence of mean length."""


@dataclass(frozen=True)
class Measured:
    """What this ledger has counted; None is not measured."""

    generate_tokens_per_s: Amount | None = None
    """Response tokens a second of one device."""
    extract_tokens_per_s: Amount | None = None
    """Captured tokens a second of one device."""
    train_tokens_per_s: Amount | None = None
    """Context tokens a second of one trainer."""
    response_bytes_per_token: Amount | None = None


@dataclass(frozen=True)
class Captured:
    """Whose states are there already."""

    rows: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Stage:
    """One stage's needs. None is not known."""

    name: str
    rows: Amount
    tokens: Amount
    disk_bytes: Amount | None
    gpu_hours: Amount | None


def plan_stages(
    needs: Sequence[CategoryNeed],
    target: TargetFacts | None,
    training: Training,
    gpu: Gpu | None,
    engine: EngineFit | None,
    measured: Measured,
    captured: Captured = Captured(),
) -> tuple[Stage, ...]:
    """The four stages in their order.

    Args:
        needs: of each category.
        target: None where it cannot be read.
        gpu, engine: what arithmetic may rest on; None where only measured rates count.
        captured: of the wanted answers.
    """
    prompts = sum(need.prompts + need.held_out for need in needs)
    source = "mix.total and mix.holdout"
    prompt_tokens = total(need.prompt_tokens * need.answers for need in needs)
    stages = [Stage("prompts", Amount.exact(prompts, source), prompt_tokens, prompt_tokens * PROMPT_BYTES, None)]
    asked = total(need.to_make for need in needs)
    read = total(need.to_make * need.prompt_tokens for need in needs)
    written = total(need.to_write for need in needs)
    each = measured.response_bytes_per_token or RESPONSE_BYTES
    hours = generation_hours(read, written, target, gpu, engine, measured.generate_tokens_per_s)
    stages.append(Stage("responses", asked, written, (read + written) * each, hours))
    rows = {held: total(_rows(need, held) for need in needs) for held in (False, True)}
    tokens = {held: total(_rows(need, held) * _row_tokens(need) for need in needs) for held in (False, True)}
    capture = tokens[True] if training.feed == "live" else tokens[False] + tokens[True]
    left = capture.less(captured.tokens)
    states = (rows[True] if training.feed == "live" else rows[False] + rows[True]).less(captured.rows)
    left = left if states.high else left.times(0.0)
    disk = None
    if target is not None:
        per_token = Amount.exact(target.captured_bytes_per_token, "bytes of a token's states: the capture's layers")
        disk = left * per_token
    hours = extraction_hours(left, target, gpu, measured.extract_tokens_per_s)
    stages.append(Stage("hidden states", states, left, disk, hours))
    seen = tokens[False].times(training.epochs)
    hours = training_hours(needs, seen, target, training, gpu, measured)
    kept = None
    if target is not None:  # weights and two moments, two checkpoints
        kept = Amount.exact(target.drafter_parameters * NUMBER_BYTES * 3 * 2, "two checkpoints in float32")
    stages.append(Stage("drafter", rows[False], seen, kept, hours))
    return tuple(stages)


def generation_hours(
    read: Amount, written: Amount, target: TargetFacts | None, gpu: Gpu | None, engine: EngineFit | None,
    rate: Amount | None,
) -> Amount | None:  # fmt: skip
    """GPU-hours to answer: decoding, and the prompts' forward pass."""
    if rate is not None:
        return (written / rate).times(1 / 3600)
    if target is None or gpu is None or engine is None:
        return None
    bandwidth = _published(gpu, gpu.bandwidth * engine.gpus) * DECODE_SHARE
    step_bytes = target.weights_bytes + engine.sequences * engine.sequence_bytes
    by_memory = Amount.exact(step_bytes) / bandwidth
    operations = Amount.exact(2.0 * target.parameters * engine.sequences)
    by_compute = operations / _flops(gpu, engine.gpus, FORWARD_SHARE)
    step_s = by_memory if by_memory.value >= by_compute.value else by_compute
    decode_s = (written * step_s).times(1 / engine.sequences)
    prefill_s = read.times(2.0 * target.parameters) / _flops(gpu, engine.gpus, FORWARD_SHARE)
    return ((decode_s + prefill_s) * STARTED).times(engine.gpus / 3600)


def extraction_hours(tokens: Amount, target: TargetFacts | None, gpu: Gpu | None, rate: Amount | None) -> Amount | None:
    """GPU-hours of one forward pass over all tokens."""
    if rate is not None:
        return (tokens / rate).times(1 / 3600)
    if target is None or gpu is None:
        return None
    seconds = tokens.times(2.0 * target.parameters) / _flops(gpu, 1, FORWARD_SHARE)
    return (seconds * STARTED).times(1 / 3600)


def training_hours(
    needs: Sequence[CategoryNeed], seen: Amount, target: TargetFacts | None, training: Training, gpu: Gpu | None,
    measured: Measured,
) -> Amount | None:  # fmt: skip
    """GPU-hours of all epochs: the drafter over its blocks, the target's frozen head, and, live, the target itself."""
    if measured.train_tokens_per_s is not None:
        hours: Amount | None = (seen / measured.train_tokens_per_s).times(1 / 3600)
    elif target is None or gpu is None:
        return None
    else:
        slots = total(_rows(need, False) * _anchors(need, training) for need in needs)
        slots = slots.times(training.block_size * training.epochs)
        # the head is frozen: its backward pass is one product, not two; teacher labels are one more forward
        each = 6.0 * target.drafter_parameters + 6.0 * target.head_parameters
        hours = (slots.times(each) / _flops(gpu, 1, TRAIN_SHARE) * STARTED).times(1 / 3600)
    if training.feed != "live":
        return hours
    fed = extraction_hours(seen, target, gpu, measured.extract_tokens_per_s)
    return None if hours is None or fed is None else hours + fed


def _flops(gpu: Gpu, gpus: int, share: Amount) -> Amount:
    return _published(gpu, gpu.bf16_flops * gpus) * share


def _published(gpu: Gpu, figure: float) -> Amount:
    return Amount.of(figure, figure, figure, "estimated", f"{gpu.name} as published (docs/hardware.md)")


def _rows(need: CategoryNeed, held_out: bool) -> Amount:
    """Answers outside the holdout, or those of it."""
    prompts = need.prompts + need.held_out
    return need.answers.times((need.held_out if held_out else need.prompts) / prompts if prompts else 0.0)


def _row_tokens(need: CategoryNeed) -> Amount:
    return need.prompt_tokens + need.response_tokens


def _anchors(need: CategoryNeed, training: Training) -> Amount:
    """Blocks of one row: an anchor at each supervised token, up to the manifest's number."""
    return need.response_tokens.within(0.0, float(training.anchors_per_document))
