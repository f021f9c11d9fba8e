"""How much memory training a drafter will take, before the first step: numbers in, lines of bytes out.

Weights, gradients, moments and frozen tensors are counted exactly. Activations are counted as autograd keeps them (the
tests hold the count to what it does keep) for a pack that is full; a layer that is computed again keeps its input
alone. On a GPU weights and moments are float32, the computation bf16, attention sparse; on a CPU all is float32 and
attention dense. What the allocator loses between blocks and what the kernels' own libraries take is not in it. No
torch here.

Shapes: T context tokens, N captured layers, H hidden, Q block slots, K = T + Q, W all heads, G all key heads, I the
MLP's inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from training.shape import DrafterShape

FLOAT32, BFLOAT16 = 4, 2
CHUNK_BYTES_CPU = 64 << 20
CHUNK_BYTES_GPU = 1 << 30


@dataclass(frozen=True)
class Line:
    """One thing that takes memory."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Estimate:
    """All of it, largest first where `text` prints it."""

    lines: tuple[Line, ...]

    @property
    def total_bytes(self) -> int:
        """Their sum: the most that is in memory at once, in the backward of a full pack."""
        return sum(line.size_bytes for line in self.lines)

    def of(self, name: str) -> int:
        """Bytes of one line."""
        return next(line.size_bytes for line in self.lines if line.name == name)

    def text(self) -> str:
        """A table."""
        rows = [*sorted(self.lines, key=lambda line: -line.size_bytes), Line("in all", self.total_bytes)]
        return "\n".join(f"{line.size_bytes / 1e9:10.2f} GB  {line.name}" for line in rows)


WEIGHTS, GRADIENTS, MOMENTS = "weights", "their gradients", "moments of AdamW"
COPIES = "weights in bf16, while a step runs"
FROZEN = "the target's embeddings and head"
STATES = "the target's states of a pack"
KEPT = "activations kept for the backward"
OUTPUT = "the drafter's output, and its supervised slots"
AGAIN = "one layer, computed again"
BACKWARD = "gradients of activations"
CHUNK = "logits of a chunk"


def estimate(
    shape: DrafterShape,
    *,
    tokens_per_batch: int,
    anchors: int,
    on_gpu: bool,
    checkpoint_layers: bool,
    kl: bool = False,
    tied: bool = False,
    packs_on_device: int = 1,
) -> Estimate:
    """The memory of a full pack.

    Args:
        tokens_per_batch: T.
        anchors: blocks of a pack, see most_anchors.
        on_gpu: bf16 autocast over float32 weights, flex_attention; else float32 and a dense mask.
        checkpoint_layers: see training.dflash.Drafter.
        kl: the target's logits beside the drafter's.
        tied: the target's head is its embeddings.
        packs_on_device: packs whose states are on the device at once: the step's, and those on their way.
    """
    number = BFLOAT16 if on_gpu else FLOAT32
    slots = anchors * shape.block_size
    matrices, vectors = parameter_counts(shape)
    layer = _layer_bytes(shape, tokens_per_batch, slots, on_gpu=on_gpu)
    outside = slots * _norm_bytes(shape.hidden_size, number, kept_output=False)  # the last norm
    outside += tokens_per_batch * _norm_bytes(shape.hidden_size, number)  # hidden_norm
    inputs = number * shape.hidden_size * slots
    kept = outside + (inputs if checkpoint_layers else layer) * shape.draft_layers
    supervised_slots = anchors * shape.num_speculative_tokens
    gradient = number * shape.hidden_size * supervised_slots  # formed with the loss
    mask = 0 if on_gpu else slots * (slots + tokens_per_batch) * (1 + (0 < shape.sliding_layers < shape.draft_layers))
    widest = 2 * shape.intermediate_size + 2 * shape.hidden_size
    frozen_matrices = 1 if tied else 2
    logits = min(chunk_rows(shape.vocab_size, on_gpu=on_gpu), supervised_slots) * shape.vocab_size
    states = tokens_per_batch * len(shape.target_layer_ids) * shape.hidden_size * number
    lines = [
        Line(WEIGHTS, FLOAT32 * (matrices + vectors)),
        Line(GRADIENTS, FLOAT32 * (matrices + vectors)),
        Line(MOMENTS, 2 * FLOAT32 * (matrices + vectors)),
        Line(FROZEN, number * (frozen_matrices * shape.vocab_size + 1) * shape.hidden_size),
        Line(STATES, states * packs_on_device),
        Line(KEPT, kept + gradient + mask),
        Line(OUTPUT, number * shape.hidden_size * (slots + supervised_slots)),
        Line(BACKWARD, number * slots * widest),
        Line(CHUNK, FLOAT32 * logits * (3 if kl else 2)),
    ]
    if on_gpu:
        lines.append(Line(COPIES, BFLOAT16 * matrices))
    if checkpoint_layers:
        lines.append(Line(AGAIN, layer))
    return Estimate(tuple(lines))


def parameter_counts(shape: DrafterShape) -> tuple[int, int]:
    """(numbers in matrices, numbers in norms) of a drafter."""
    hidden, width, kv_width = shape.hidden_size, _width(shape), _kv_width(shape)
    of_layer = hidden * (2 * width + 2 * kv_width + 3 * shape.intermediate_size)
    matrices = shape.draft_layers * of_layer + len(shape.target_layer_ids) * hidden * hidden
    return matrices, shape.draft_layers * 2 * (hidden + shape.head_dim) + 2 * hidden


def most_anchors(lengths: Sequence[int], anchors_per_document: int) -> int:
    """Blocks that documents of one pack can have at most: an anchor has a successor."""
    return sum(min(anchors_per_document, max(length - 1, 0)) for length in lengths)


def chunk_rows(vocab_size: int, *, on_gpu: bool) -> int:
    """Slots whose float32 logits are in memory at once."""
    return max(16, (CHUNK_BYTES_GPU if on_gpu else CHUNK_BYTES_CPU) // (FLOAT32 * vocab_size))


def _layer_bytes(shape: DrafterShape, tokens: int, slots: int, *, on_gpu: bool) -> int:
    """What autograd keeps of one layer."""
    number = BFLOAT16 if on_gpu else FLOAT32
    hidden, width, kv_width = shape.hidden_size, _width(shape), _kv_width(shape)
    keys = tokens + slots
    norms = 2 * _norm_bytes(hidden, number) + _norm_bytes(width, number, kept_output=False)
    per_slot = norms + number * (3 * width + 4 * shape.intermediate_size)  # queries, mixed, o_proj's input; the MLP
    per_slot += FLOAT32 * shape.num_attention_heads  # log-sum-exp
    # dense attention repeats keys and values for every head of a group
    per_key = _norm_bytes(kv_width, number, kept_output=False) + 2 * number * (kv_width if on_gpu else width)
    return slots * per_slot + keys * per_key


def _norm_bytes(size: int, number: int, *, kept_output: bool = True) -> int:
    """Of one row of RMSNorm: its input in float32, what its weight multiplies, and the output if it is kept."""
    return size * (FLOAT32 + number + number * kept_output)


def _width(shape: DrafterShape) -> int:
    return shape.num_attention_heads * shape.head_dim


def _kv_width(shape: DrafterShape) -> int:
    return shape.num_key_value_heads * shape.head_dim
