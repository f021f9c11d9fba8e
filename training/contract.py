"""The contract of training and serving: what a drafter is trained to be, what serving would make of its export, and
what the captured states are. Every difference is a line of its own; all of them are found before the first step.

How vLLM 0.32 reads an export (qwen3_dflash, SpeculativeConfig, the speculators configs), and so what must hold:

- RoPE comes from the drafter's own config alone. A target's YaRN, llama3, partial or multi-axis RoPE never reaches the
  drafter (of a multi-axis one it is given the text's positions), so a drafter of default RoPE is served as trained.
- A drafter's positions end at its own max_position_embeddings; behind them vLLM stops drafting.
- Causality is by layer in z-lab's format (sliding: causal) and one for all layers in speculators'.
- The target's layers are captured in ascending order, each once, whatever the order of the ids.
- Another vocabulary than the target's makes vLLM map draft ids by a table, of zeros where none is shipped.
- The drafter's norms weigh by w, whatever the target's do; the target's embeddings and head are used unscaled.

Checks are pure over what `training.facts` reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from corpus.errors import UserError
from corpus.layers import to_vllm_ids
from training.facts import Captured, Served, TargetFacts, read_captured, read_target_facts, served_by
from training.messages import AUTO_MASK_TOKEN, TrainItem
from training.shape import DrafterShape, shape_for_target, to_zlab_config

DTYPES = ("float32", "bfloat16", "float16")
LEAST_AGREEMENT, LEAST_POSITIONS = 0.9, 64


def check_contract(
    shape: DrafterShape,
    target: TargetFacts,
    config: Mapping[str, Any],
    captured: Sequence[Captured],
    *,
    labels: str,
    dtype: str,
    max_model_len: int | None = None,
    used_token_ids: Collection[int] = (),
    mask_chosen: bool = True,
) -> list[str]:
    """Every difference between training, serving and the captured states, a line each; none: they are one.

    Args:
        shape: what is trained.
        config: its exported config.json, in z-lab's words (see shape.read_exported_config).
        dtype: numbers that the target is served in.
        max_model_len: of serving; None leaves it out.
        used_token_ids: that occur in training rows.
        mask_chosen: False before the mask token is chosen (training.mask_token_id: auto).
    """
    try:
        served = served_by(config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"export: config.json cannot be read as a DFlash drafter's ({type(error).__name__}: {error})"]
    return [
        *_rope(shape, served),
        *_attention(shape, served),
        *_layers(shape, target, served),
        *(_mask(shape, target, served, used_token_ids) if mask_chosen else []),
        *_vocabulary(shape, target, served, used_token_ids),
        *_norms(shape, target, served, labels),
        *_sizes(shape, target, served),
        *_positions(shape, target, served, captured, max_model_len),
        *([] if served.dtype == dtype else [f"dtype: weights are {served.dtype}, the target is served in {dtype}"]),
        *([] if dtype in DTYPES else [f"dtype: {dtype} is none of {', '.join(DTYPES)}"]),
        *_states(shape, captured, labels),
    ]


def contract_of_item(
    item: TrainItem,
    shape: DrafterShape | None = None,
    *,
    used_token_ids: Collection[int] = (),
    max_model_len: int | None = None,
) -> list[str]:
    """The contract of a training item, as check_contract; files are read.

    Args:
        shape: the drafter's, where it is there: with its mask token. None before that: as the item asks for it.

    Raises:
        UserError: the target has no config that can be read, or a shard is damaged.
    """
    target = read_target_facts(item.target_dir, classes=shape is not None)
    captured = read_captured([shard.path for shard in item.shards])
    known = shape is not None or item.mask_token_id != AUTO_MASK_TOKEN
    try:
        shape = shape or shape_for_target(
            item.target_dir,
            target_layer_ids=tuple(item.layer_ids),
            draft_layers=item.draft_layers,
            block_size=item.block_size,
            mask_token_id=item.mask_token_id,
            sliding_layers=item.sliding_layers,
            sliding_window=item.sliding_window,
        )
    except UserError as error:
        return [str(error)]
    return check_contract(
        shape,
        target,
        to_zlab_config(shape, item.export_dtype),
        captured,
        labels=item.labels,
        dtype=item.export_dtype,
        max_model_len=max_model_len,
        used_token_ids=used_token_ids,
        mask_chosen=known,
    )


def require(problems: Sequence[str]) -> None:
    """Stop if there are differences.

    Raises:
        UserError: with each of them on a line of its own.
    """
    if problems:
        many = f"{len(problems)} things differ" if len(problems) > 1 else "one thing differs"
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise UserError(f"training: {many} between training, its states and serving; nothing was trained:{listed}")


def check_final_state(agreed: int, of: int) -> list[str]:
    """Greedy answers are the target's arg max: of sampled tokens at temperature 0, how many the final states say too.

    A capture of another layer, or a norm of the other kind, agrees far less than the numbers' own noise makes them.
    """
    if of < LEAST_POSITIONS or agreed >= LEAST_AGREEMENT * of:
        return []
    return [
        f"final state: through the target's norm and head it gives {agreed / of:.0%} of {of:,} greedily sampled "
        f"tokens, at least {LEAST_AGREEMENT:.0%} are expected; it is not the last layer's output, or of another model. "
        "Extract again, or set training.labels: sampled."
    ]


def _rope(shape: DrafterShape, served: Served) -> list[str]:
    problems = []
    kind = served.rope.get("rope_type", "default")
    if kind != "default":
        problems.append(f"rope type: trained with default RoPE, serving reads {kind}")
    theta = served.rope.get("rope_theta")
    if theta != shape.rope_theta:
        problems.append(f"rope theta: trained with {shape.rope_theta:g}, serving reads {theta}")
    partial = served.rope.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        problems.append(f"partial rotary: trained with whole heads turned, serving turns {partial:g} of each")
    known = {"rope_type", "rope_theta", "partial_rotary_factor"}
    scaling = {key: value for key, value in served.rope.items() if key not in known}
    if scaling:
        problems.append(f"rope scaling: trained without, serving reads {scaling}")
    if not served.is_neox_style:
        problems.append("rope layout: trained with the head's halves as coordinates, serving takes pairs")
    return problems


def _attention(shape: DrafterShape, served: Served) -> list[str]:
    problems = []
    causal = [shape.window(i) is not None for i in range(shape.draft_layers)]
    windows = [shape.window(i) for i in range(shape.draft_layers)]
    if served.causal != causal:
        problems.append(f"causality: layers are trained {_causal(causal)}, serving reads {_causal(served.causal)}")
    if served.windows != windows:
        problems.append(f"windows: layers are trained with {_windows(windows)}, serving has {_windows(served.windows)}")
    return problems


def _layers(shape: DrafterShape, target: TargetFacts, served: Served) -> list[str]:
    ids = shape.target_layer_ids
    problems = []
    outside = [i for i in ids if not 0 <= i < target.num_layers]
    if outside:
        problems.append(f"layer ids: {outside} of {list(ids)} are none of the target's 0 to {target.num_layers - 1}")
    if len(set(ids)) < len(ids):
        problems.append(f"layer ids: {list(ids)} names a layer twice; serving captures it once")
    if list(ids) != sorted(ids):
        problems.append(f"layer ids: {list(ids)} do not ascend; serving gives the states in ascending order")
    if served.vllm_layer_ids != to_vllm_ids(ids):
        problems.append(
            f"layer ids: trained on outputs {list(ids)}, which are {list(to_vllm_ids(ids))} counted as vLLM and "
            f"speculators do; serving reads {list(served.vllm_layer_ids)}"
        )
    if shape.num_target_layers != target.num_layers:
        problems.append(
            f"target layers: the drafter says {shape.num_target_layers}, the target has {target.num_layers}"
        )
    return problems


def _mask(shape: DrafterShape, target: TargetFacts, served: Served, used: Collection[int]) -> list[str]:
    mask = shape.mask_token_id
    rows = min(target.embedding_rows or target.vocab_size, target.vocab_size)
    problems = []
    if not 0 <= mask < rows:
        problems.append(f"mask token: {mask} is no row of the target's {rows:,} embeddings")
    if mask in target.reserved_ids:
        problems.append(f"mask token: {mask} is an end, begin, pad or unknown token of the target")
    if mask in used:
        problems.append(f"mask token: {mask} occurs in training rows")
    if served.mask_token_id != mask:
        problems.append(f"mask token: trained with {mask}, serving reads {served.mask_token_id}")
    return problems


def _vocabulary(shape: DrafterShape, target: TargetFacts, served: Served, used: Collection[int]) -> list[str]:
    problems = []
    for what, size in (("the drafter says", shape.vocab_size), ("its export", served.vocab_size)):
        if size != target.vocab_size:
            problems.append(f"vocabulary: {what} {size:,} tokens, the target has {target.vocab_size:,}")
    if served.draft_vocab_size != target.vocab_size:
        problems.append(
            f"vocabulary: serving maps {served.draft_vocab_size:,} draft tokens to the target's {target.vocab_size:,} "
            "by a table that the export does not have"
        )
    for what, rows in (("embeddings", target.embedding_rows), ("head", target.head_rows)):
        if rows is not None and rows != target.vocab_size:
            problems.append(
                f"vocabulary: the target's {what} have {rows:,} rows, its config says {target.vocab_size:,}"
            )
    if target.tokenizer_size > target.vocab_size:
        problems.append(
            f"vocabulary: the tokenizer has ids up to {target.tokenizer_size - 1:,}, the target {target.vocab_size:,} "
            "rows"
        )
    beyond = [token for token in used if token >= target.vocab_size]
    if beyond:
        problems.append(f"vocabulary: training rows hold token {min(beyond)}; the target has {target.vocab_size:,}")
    return problems


def _norms(shape: DrafterShape, target: TargetFacts, served: Served, labels: str) -> list[str]:
    problems = []
    if served.sizes["rms_norm_eps"] != shape.rms_norm_eps:
        problems.append(
            f"norm: trained with eps {shape.rms_norm_eps:g}, serving reads {served.sizes['rms_norm_eps']:g}"
        )
    if labels == "sampled":
        return problems
    if not target.has_rms_norm:
        problems.append(
            f"norm: {target.model_type} has no rms_norm_eps: its final norm is none that the teacher's labels can be "
            "made with. Set training.labels: sampled."
        )
    if target.norm_adds_one is not None and target.norm_adds_one != target.taken_to_add_one:
        words = {True: "1 + w", False: "w", None: "nothing"}
        problems.append(
            f"norm: {target.model_type}'s final norm weighs by {words[target.norm_adds_one]}, the teacher's labels are "
            f"made with {words[target.taken_to_add_one]}. Set training.labels: sampled."
        )
    return problems


def _sizes(shape: DrafterShape, target: TargetFacts, served: Served) -> list[str]:
    problems = []
    if shape.block_size < 2:
        problems.append(
            f"block size: {shape.block_size} drafts nothing; it counts the token that is known, so at least 2"
        )
    if served.block_size != shape.block_size:
        problems.append(f"block size: trained with {shape.block_size}, serving reads {served.block_size}")
    for name, value in served.sizes.items():
        if name != "rms_norm_eps" and getattr(shape, name) != value:
            problems.append(f"{name}: trained with {getattr(shape, name)}, serving reads {value}")
    if shape.hidden_size != target.hidden_size:
        problems.append(f"hidden size: the drafter's is {shape.hidden_size}, the target's {target.hidden_size}")
    if shape.num_attention_heads % max(shape.num_key_value_heads, 1):
        problems.append(f"heads: {shape.num_attention_heads} do not share {shape.num_key_value_heads} key-value heads")
    if shape.head_dim % 2:
        problems.append(f"head_dim: {shape.head_dim} is odd; RoPE turns pairs")
    problems += [f"{key}: serving reads {value!r}, which training does not have" for key, value in served.plain.items()]
    return problems


def _positions(
    shape: DrafterShape,
    target: TargetFacts,
    served: Served,
    captured: Sequence[Captured],
    max_model_len: int | None,
) -> list[str]:
    problems = []
    if served.max_positions != shape.max_position_embeddings:
        problems.append(
            f"max positions: the drafter says {shape.max_position_embeddings:,}, serving reads {served.max_positions:,}"
        )
    if served.max_positions < target.longest:
        problems.append(
            f"max positions: the target goes to {target.longest:,}, the drafter to {served.max_positions:,}: vLLM "
            "stops drafting there"
        )
    if max_model_len is not None and max_model_len > served.max_positions:
        problems.append(
            f"max positions: target.max_model_len is {max_model_len:,}, the drafter goes to {served.max_positions:,}"
        )
    longest = max((own.longest for own in captured), default=0)
    if longest > served.max_positions:
        problems.append(f"max positions: a row of {longest:,} tokens, the drafter goes to {served.max_positions:,}")
    return problems


def _states(shape: DrafterShape, captured: Sequence[Captured], labels: str) -> list[str]:
    problems = []
    if len({(own.target, own.revision) for own in captured}) > 1:
        which = ", ".join(sorted({f"{own.target} at {own.revision}" for own in captured}))
        problems.append(f"states: of several targets ({which})")
    for own in captured:
        if own.layer_ids != shape.target_layer_ids:
            problems.append(
                f"states: of layers {list(own.layer_ids)}, the drafter reads {list(shape.target_layer_ids)}"
            )
        if own.hidden_size != shape.hidden_size:
            problems.append(f"states: {own.hidden_size} numbers a layer, the drafter reads {shape.hidden_size}")
        if labels in ("teacher", "kl") and not own.final_state:
            problems.append(f"states: without the final state, which training.labels: {labels} needs")
    return problems


def _causal(layers: Sequence[bool]) -> str:
    return ", ".join("causal" if one else "bidirectional" for one in layers)


def _windows(layers: Sequence[int | None]) -> str:
    return ", ".join("full attention" if one is None else f"a window of {one}" for one in layers)
