"""What only a GPU can show, in one command of at most four minutes: speed, memory and exactness in a 27B's shapes.

    python benchmarks/gpu_check.py             a machine with one GPU (80 GB or more), no network, no vllm
    python benchmarks/gpu_check.py --tiny      the same code on a CPU, small: nothing timed or measured is judged

Weights are random, in the layer shapes of a 27B hybrid (hidden 5,120, MLP 17,408, 24 heads of 256 with 4 of keys,
three linear-attention layers and a full one; 248,320 tokens in the drafter's vocabulary). Checked, each as a line of
the table at the end: extraction beside a bare forward of the same batch, and its share of the GEMM rate that this
machine reaches (told, not judged); flex_attention compiled beside the dense reference, values and gradients, in packs
of several lengths: its error against float32 may be twice that of the reference in bf16; chunked loss beside whole
logits, and its memory; a training step with layers computed again beside one without, and beside the estimate that
training prints; one averaging round's memory on the GPU beside the step's. Exit 1 if a check fails or cannot run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_machine import TINY, Machine, Sizes, relative_error, table

from training import memory
from training.batch import Document
from training.dflash import Drafter, attend_dense, attend_flex
from training.frozen import FrozenTarget
from training.loss import block_loss, plain_loss
from training.masks import Visibility, visibility_of_blocks
from training.pack import position_ids
from training.shape import DrafterShape
from training.walk import precision

SEED = 17
BARE_WANTED = 0.93
"""Tokens/s of a capture / of a bare forward."""
ERROR_FACTOR = 2.0
"""Error of a fast path in bf16 / that of the reference in bf16, both against float32."""
NOISE = 1e-3
"""Relative error that bf16 has anyway."""
ROUNDING = 1e-2
"""Relative error of two ways in bf16 that round at other places."""
EXACT = 1e-4
"""Relative error of two ways in float32."""
ESTIMATE_FACTOR = 1.15
"""Measured peak / estimate."""
ROUND_BYTES = 64 << 20
"""What an averaging round may add on the GPU."""


def main() -> None:
    """Run all checks; the table comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        raise SystemExit("gpu_check: torch sees no GPU here; use --tiny for the small run on a CPU")
    machine = Machine("cpu", TINY) if options.tiny else Machine("cuda:0", Sizes())
    if options.tiny:
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", message="flex_attention called without")  # small enough
    began = time.monotonic()
    for check in (gemm, extraction, attention, chunked_loss, training_step):
        print(check.__name__.replace("_", " "), flush=True)
        try:
            check(machine)
        except Exception as error:  # the others still tell what they can
            words = (str(error).strip().splitlines() or [""])[0][:100]
            machine.tell(check.__name__, f"{type(error).__name__}: {words}", "runs", False)
        machine.free()
    name = torch.cuda.get_device_name() if machine.on_gpu else "CPU, tiny"
    print(f"\n{name}, torch {torch.__version__}, {time.monotonic() - began:.0f} s")
    print(table(machine.lines))
    raise SystemExit(1 if any(line.good is False for line in machine.lines) else 0)


def gemm(machine: Machine) -> None:
    """The rate of a matrix product of the MLP's shape."""
    m, k, n = machine.sizes.gemm
    a = torch.randn(m, k, device=machine.device, dtype=machine.dtype)
    b = torch.randn(k, n, device=machine.device, dtype=machine.dtype)
    machine.peak_flops = 2 * m * k * n / machine.seconds(lambda: a @ b)
    machine.tell("GEMM", f"{machine.peak_flops / 1e12:.2f} TFLOP/s")


def extraction(machine: Machine) -> None:
    """A capture of three layers and the final state beside the decoder alone, same batch."""
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig
    from transformers.utils import logging

    from extraction.capture import Capture

    logging.disable_progress_bar()
    sizes = machine.sizes
    config = Qwen3_5TextConfig(
        vocab_size=sizes.target_vocabulary, hidden_size=sizes.hidden, intermediate_size=sizes.inside,
        num_hidden_layers=4, num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim, linear_num_key_heads=sizes.linear_key_heads, tie_word_embeddings=True,
        linear_num_value_heads=sizes.linear_heads, linear_key_head_dim=sizes.linear_head_dim,
        linear_value_head_dim=sizes.linear_head_dim,
    )  # fmt: skip
    dtype = str(machine.dtype).removeprefix("torch.")
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(SEED)
        with torch.device(machine.device):
            model = AutoModelForCausalLM.from_config(config, dtype=machine.dtype)
        model.save_pretrained(folder)
        del model
        machine.free()
        capture = Capture(folder, (0, 1, 2), dtype=dtype, device=machine.device)
    rows = torch.randint(0, sizes.target_vocabulary, (sizes.rows, sizes.length)).tolist()
    input_ids = torch.tensor(rows, device=machine.device)
    with torch.no_grad():
        wanted = capture.decoder(input_ids=input_ids, use_cache=False, output_hidden_states=True).hidden_states
        states = capture.packed(rows)
        same = [relative_error(states[:, k], wanted[k + 1].flatten(0, 1)) for k in (0, 1, 2)]
        machine.tell(
            "captured states / transformers' own, error", f"{max(same):.1e}", f"{NOISE:.0e}", max(same) < NOISE
        )
        del wanted, states
        bare = machine.seconds(lambda: capture.decoder(input_ids=input_ids, use_cache=False))
        captured = machine.seconds(lambda: capture.packed(rows))
    ratio = bare / captured
    tokens = sizes.rows * sizes.length
    parameters = sum(p.numel() for name, p in capture.decoder.named_parameters() if "embed" not in name)
    flops = 2 * parameters * tokens / captured
    machine.tell_rate(
        "extraction / bare forward, tokens/s", f"{ratio:.3f}", f"at least {BARE_WANTED}", ratio >= BARE_WANTED
    )
    share = f"{flops / machine.peak_flops:.0%} of GEMM, {tokens / captured:,.0f} tokens/s in 4 layers"
    machine.tell("extraction, share of the GEMM rate", f"{share} ({linear_kernels()})")


def linear_kernels() -> str:
    """Which linear attention transformers runs."""
    from importlib.util import find_spec

    return "flash-linear-attention" if find_spec("fla") else "without flash-linear-attention"


def visibility_of(lengths: tuple[int, ...], anchors: int, block_size: int, device: str) -> Visibility:
    """Blocks at even distances in documents laid end to end."""
    places = [
        (i, at) for i, length in enumerate(lengths) for at in range(1, length - 1, max(1, (length - 2) // anchors + 1))
    ]
    return visibility_of_blocks(
        torch.tensor([i for i, length in enumerate(lengths) for _ in range(length)], device=device),
        torch.tensor(position_ids(lengths), device=device),
        torch.tensor([i for i, _ in places], device=device),
        torch.tensor([at for _, at in places], device=device),
        block_size,
    )


def attention(machine: Machine) -> None:
    """flex_attention beside the dense reference in packs of several lengths, full and sliding."""
    sizes = machine.sizes
    worst = {"values": 0.0, "gradients": 0.0}
    began = time.monotonic()
    for lengths in sizes.packs:
        for window in (None, sizes.window):
            visibility = visibility_of(lengths, sizes.anchors, sizes.block_size, machine.device)
            for part, excess in attention_errors(machine, visibility, window).items():
                worst[part] = max(worst[part], excess)
    for part, excess in worst.items():
        what = f"flex / dense attention, {part}: error / dense's own"
        if part == "gradients" and not machine.on_gpu:
            machine.tell(what, "a CPU has no backward of flex")
        else:
            machine.tell(what, f"{excess:.2f}", f"at most {ERROR_FACTOR}", excess <= ERROR_FACTOR)
    machine.tell("flex attention, all packs and windows, compiling included", f"{time.monotonic() - began:.0f} s")


def attention_errors(machine: Machine, visibility: Visibility, window: int | None) -> dict[str, float]:
    """By part, the error of flex / the largest error that is fine for the reference; both against float32."""
    sizes = machine.sizes
    chance = torch.Generator(machine.device).manual_seed(SEED)
    slots, keys = len(visibility.slot_block_Q), len(visibility.key_block_K)

    def draw(heads: int, length: int) -> Any:
        return torch.randn(1, heads, length, sizes.head_dim, device=machine.device, generator=chance)

    inputs = [draw(sizes.heads, slots), draw(sizes.kv_heads, keys), draw(sizes.kv_heads, keys)]
    outward = draw(sizes.heads, slots)

    def run(attend: Callable[..., Any], dtype: Any) -> list[Any]:
        own = [x.to(dtype).requires_grad_(machine.on_gpu) for x in inputs]
        out = attend(*own, visibility, window)
        gradients = torch.autograd.grad(out, own, outward.to(dtype)) if machine.on_gpu else []
        return [out.detach(), *gradients]

    exact = run(attend_dense, torch.float32)
    dense = run(attend_dense, machine.dtype)
    flex = run(attend_flex, machine.dtype)
    excess = [
        relative_error(ours, wanted) / max(relative_error(reference, wanted), NOISE)
        for ours, reference, wanted in zip(flex, dense, exact, strict=True)
    ]
    return {"values": excess[0], "gradients": max(excess[1:], default=0.0)}


def drafter_shape(sizes: Sizes) -> DrafterShape:
    """The drafter of the target, its first layer sliding."""
    return DrafterShape(
        hidden_size=sizes.hidden, intermediate_size=sizes.inside, num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads, head_dim=sizes.head_dim, vocab_size=sizes.vocabulary, rms_norm_eps=1e-6,
        rope_theta=1e7, max_position_embeddings=32_768, initializer_range=0.02, draft_layers=sizes.draft_layers,
        sliding_layers=1, sliding_window=sizes.window, block_size=sizes.block_size,
        mask_token_id=sizes.vocabulary - 1, num_target_layers=64, target_layer_ids=(1, 16, 31, 46, 61),
    )  # fmt: skip


def frozen_target(machine: Machine) -> FrozenTarget:
    """Random embeddings that are the head too."""
    sizes = machine.sizes
    matrix = torch.randn(sizes.vocabulary, sizes.hidden, device=machine.device, dtype=machine.dtype) * 0.02
    norm = torch.ones(sizes.hidden, device=machine.device, dtype=machine.dtype)
    return FrozenTarget(matrix, matrix, norm, 1e-6, False, None)


def chunked_loss(machine: Machine) -> None:
    """Cross-entropy and KL with both weightings beside whole logits, on as many slots as those fit for."""
    sizes = machine.sizes
    torch.manual_seed(SEED)
    target = frozen_target(machine)
    slots = sizes.block_size - 1
    count = sizes.loss_slots
    hidden = torch.randn(count, sizes.hidden, device=machine.device, dtype=machine.dtype)
    normed = torch.randn(count, sizes.hidden, device=machine.device, dtype=machine.dtype)
    label = torch.randint(0, sizes.vocabulary, (count,), device=machine.device)
    slot = torch.arange(count, device=machine.device) % slots + 1
    few = min(count, 16 * slots)  # whole logits, several times
    tolerance = ROUNDING if machine.on_gpu else EXACT
    for kl in (False, True):
        errors = []
        for weighting in ("decay", "d_pace"):
            ours = hidden[:few].clone().requires_grad_()
            fast = block_loss(
                ours, target, label[:few], slot[:few], weighting=weighting, chunk_rows=few // 3,
                normed_MH=normed[:few] if kl else None,
            ).loss  # fmt: skip
            fast.backward()
            whole = hidden[:few].clone().requires_grad_()
            of_target = target.logits(normed[:few]) if kl else None
            plain = plain_loss(
                target.logits(whole), label[:few], slot[:few], weighting=weighting, target_logits_MV=of_target
            )
            plain.backward()
            errors += [relative_error(fast.detach(), plain.detach()), relative_error(ours.grad, whole.grad)]
        name = "KL" if kl else "CE"
        what = f"chunked {name} / whole logits, loss and gradient: error"
        machine.tell(what, f"{max(errors):.1e}", f"at most {tolerance:.0e}", max(errors) <= tolerance)
        ours = hidden.clone().requires_grad_()

        def run(ours: Any = ours, kl: bool = kl) -> None:
            block_loss(ours, target, label, slot, weighting="d_pace", normed_MH=normed if kl else None).loss.backward()

        _, peak = machine.peak(run)
        rows = min(count, memory.chunk_rows(sizes.vocabulary, on_gpu=machine.on_gpu))
        of_chunk = memory.FLOAT32 * rows * sizes.vocabulary * (3 if kl else 2)
        limit = int(ESTIMATE_FACTOR * (of_chunk + 3 * hidden.nbytes))
        whole_bytes = memory.FLOAT32 * count * sizes.vocabulary
        told = f"{peak / 1e9:.2f} GB for {count:,} slots, whose logits are {whole_bytes / 1e9:.1f} GB"
        machine.tell_rate(f"chunked {name}: memory", told, f"at most {limit / 1e9:.2f} GB", peak <= limit)


def make_documents(machine: Machine) -> list[Document]:
    """Random states and tokens, all of them supervised."""
    sizes = machine.sizes
    return [
        Document(
            f"r{i}", "a", True, torch.randint(0, sizes.vocabulary - 1, (length,)), [1] * length,
            torch.randn(length, 5, sizes.hidden, dtype=machine.dtype),
        )
        for i, length in enumerate(sizes.step_documents)
    ]  # fmt: skip


def training_step(machine: Machine) -> None:
    """Layers computed again, the dense reference, the estimate, and one averaging round."""
    from training.anchors import draw_anchors
    from training.batch import make_batch

    sizes = machine.sizes
    torch.manual_seed(SEED)
    shape = drafter_shape(sizes)
    documents = make_documents(machine)
    anchors = [
        draw_anchors(d.loss_mask, sizes.anchors, seed=SEED, epoch=0, response_id=d.response_id) for d in documents
    ]
    tokens = sum(sizes.step_documents)
    blocks = sum(map(len, anchors))
    target = frozen_target(machine)
    drafter = Drafter(shape, SEED).to(machine.device)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=0.0)
    batch = make_batch(
        documents, anchors, block_size=shape.block_size, mask_token_id=shape.mask_token_id, labels="sampled",
        device=machine.device, pad_context_to=128 if machine.on_gpu else 1,
    )  # fmt: skip

    def gradients(*, checkpoint_layers: bool) -> float:
        optimizer.zero_grad(set_to_none=True)
        with precision(machine.device):
            embeddings = target.embed(batch.block_tokens_Q)
            hidden = drafter(
                batch.states_TNH, batch.position_T, embeddings, batch.visibility, checkpoint_layers=checkpoint_layers
            )
        loss = block_loss(hidden[batch.supervised_M], target, batch.label_M, batch.slot_M).loss
        del hidden
        loss.backward()
        return float(loss.detach())

    def kept() -> list[Any]:
        return [parameter.grad.to("cpu", copy=True) for parameter in drafter.parameters()]

    # moments, compiled kernels and masks are there before anything is measured
    gradients(checkpoint_layers=True)
    optimizer.step()
    outcomes, peaks, seconds = [], {}, {}
    for again in (False, True):
        optimizer.zero_grad(set_to_none=True)
        loss, peaks[again] = machine.peak(partial(gradients, checkpoint_layers=again))
        outcomes.append((loss, kept()))
        seconds[again] = machine.seconds(partial(gradients, checkpoint_layers=again))
    error = worst_error(outcomes[0], outcomes[1])
    tolerance = ROUNDING if machine.on_gpu else EXACT
    machine.tell(
        "layers computed again / kept, loss and gradients: error", f"{error:.1e}", f"at most {tolerance:.0e}",
        error <= tolerance,
    )  # fmt: skip
    machine.tell_rate(
        "layers computed again, memory of a step", f"{peaks[True] / 1e9:.2f} GB, kept {peaks[False] / 1e9:.2f} GB",
        "less", peaks[True] < peaks[False],
    )  # fmt: skip
    for again in (False, True):
        told = memory.estimate(
            shape, tokens_per_batch=len(batch.position_T), anchors=blocks, on_gpu=machine.on_gpu,
            checkpoint_layers=again, tied=True,
        )  # fmt: skip
        there = told.of(memory.WEIGHTS) + told.of(memory.MOMENTS) + told.of(memory.FROZEN) + told.of(memory.STATES)
        limit = int(ESTIMATE_FACTOR * (told.total_bytes - there))
        what = f"estimate of a step, layers {'computed again' if again else 'kept'}"
        machine.tell_rate(
            what, f"{peaks[again] / 1e9:.2f} GB, estimated {(told.total_bytes - there) / 1e9:.2f} GB",
            f"at most {limit / 1e9:.2f} GB", peaks[again] <= limit,
        )  # fmt: skip
    rates = ", ".join(f"{'again' if again else 'kept'} {tokens / one:,.0f}" for again, one in seconds.items())
    machine.tell("training step, tokens/s", f"{rates} ({blocks} blocks, {shape.draft_layers} layers)")

    if machine.on_gpu:
        batch.visibility = replace(batch.visibility, reference=True, _built={})
        dense = (gradients(checkpoint_layers=True), kept())
        error = worst_error(outcomes[1], dense)
        wanted = f"at most {5 * tolerance:.0e}"
        machine.tell("a step with flex / dense attention: error", f"{error:.1e}", wanted, error <= 5 * tolerance)
    averaging_round(machine, drafter, peaks[True])


def worst_error(one: tuple[float, list[Any]], other: tuple[float, list[Any]]) -> float:
    """Of loss and every gradient."""
    errors = [relative_error(a, b) for a, b in zip(one[1], other[1], strict=True)]
    return max([abs(one[0] - other[0]) / abs(other[0]), *errors])


def averaging_round(machine: Machine, drafter: Drafter, step_peak: int) -> None:
    """All trainable parameters through the CPU, in a group of one: what it needs of the GPU."""
    from torch import distributed

    from training.averaging import average

    before = [parameter.detach().to("cpu", copy=True) for parameter in drafter.parameters()]
    with tempfile.TemporaryDirectory() as folder:
        store = distributed.FileStore(str(Path(folder) / "meeting"), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            began = time.monotonic()
            _, peak = machine.peak(lambda: average(list(drafter.parameters()), 1.0))
            seconds = time.monotonic() - began
        finally:
            distributed.destroy_process_group()
    same = all(torch.equal(p.detach().cpu(), old) for p, old in zip(drafter.parameters(), before, strict=True))
    machine.tell("averaging a group of one changes nothing", "equal" if same else "differs", "equal", same)
    machine.tell_rate(
        "averaging round, memory on the GPU", f"{peak / 1e6:.0f} MB in {seconds:.1f} s, a step {step_peak / 1e6:,.0f}",
        f"at most {ROUND_BYTES / 1e6:.0f} MB", peak <= ROUND_BYTES,
    )  # fmt: skip


if __name__ == "__main__":
    main()
