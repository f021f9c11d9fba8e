"""How every worker that captures begins: load the target, check its states, measure what a batch takes, tell it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch

from corpus.errors import UserError
from extraction.capture import Capture
from extraction.limits import Held, Limits, measured
from extraction.messages import ExtractReady, SelfTestFailed, TargetConfig, WorkerAt
from extraction.selftest import check_capture
from extraction.trials import memory_of


def load_target(
    config: TargetConfig,
    sample: Sequence[Sequence[int]],
    held: Callable[[Capture], Held],
    tell: Callable[[ExtractReady | SelfTestFailed | WorkerAt], None],
) -> tuple[Capture, Limits]:
    """A capture that is fit for use, and what its batches are cut by.

    Args:
        sample: token ids of a few rows for the self-test; none: it is left out.
        held: what the worker will hold beside a batch.
        tell: gets what it is at, and the outcome.

    Raises:
        UserError: the folder holds no such target, or its states cannot be trusted.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    tell(WorkerAt(step="loading the target"))
    capture = Capture(
        config.target_dir,
        config.layer_ids,
        final_state=config.final_state,
        dtype=config.dtype,
        device=config.device,
        store_dtype=config.store_dtype,
        trust_remote_code=config.trust_remote_code,
    )
    if sample:
        tell(WorkerAt(step="self-test of the states"))
    try:
        difference = check_capture(capture, sample) if sample else 0.0
    except UserError as error:
        tell(SelfTestFailed(why=str(error)))
        raise
    tell(WorkerAt(step="measuring what a batch takes"))
    memory = memory_of(capture.device, config.memory_bytes)
    ready, limits = measured(config, capture, memory, held(capture))
    tell(msgspec.structs.replace(ready, difference=difference))
    return capture, limits
