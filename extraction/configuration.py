"""What workers are told once: a manifest, its target, a device and the rows' lengths in, a configuration out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corpus.manifest import Manifest
from corpus.target import ResolvedTarget
from corpus.workspace import Workspace
from extraction.budget import bands_of
from extraction.feed_messages import FeedConfig, FeedRow
from extraction.items import sample_rows
from extraction.messages import TargetConfig
from extraction.stage import plan_capture
from fleet.devices import Device


def target_config(manifest: Manifest, target: ResolvedTarget, device: Device, tokens: Sequence[int]) -> TargetConfig:
    """What every worker that captures is told.

    Args:
        tokens: of each row that it may be asked for, prompt and answer.

    Raises:
        UserError: the manifest's layers do not fit the target.
    """
    _, layer_ids = plan_capture(manifest, target)
    section, on_cpu = manifest.extraction, device.kind == "cpu"
    return TargetConfig(
        target_dir=str(target.folder),
        dtype=manifest.target.dtype,
        store_dtype=section.dtype,
        layer_ids=layer_ids,
        final_state=section.final_state,
        device=device.torch_name,
        memory_bytes=device.memory_bytes if on_cpu else 0,
        longest=tuple(bands_of(max(count, 1) for count in tokens).values()),
        max_tokens_per_batch=0 if section.max_tokens_per_batch == "auto" else section.max_tokens_per_batch,
        threads=1 if on_cpu else 0,
        trust_remote_code=manifest.target.trust_remote_code,
    )


def feed_config(
    manifest: Manifest,
    target: ResolvedTarget,
    device: Device,
    workspace: Workspace,
    rows: Sequence[FeedRow],
    tokens: Sequence[int],
    job_tokens: int,
    leave_bytes: int = 0,
) -> FeedConfig:
    """What a target worker that feeds drafters is told.

    Args:
        rows: every row that it may be asked for.
        tokens: of each row, prompt and answer.
        job_tokens: of the largest job.
        leave_bytes: of the device, for whoever else works on it.

    Raises:
        UserError: as target_config.
    """
    return FeedConfig(
        **msgspec.structs.asdict(target_config(manifest, target, device, tokens)),
        responses_dir=str(workspace.responses),
        cache_dir=str(workspace.cache),
        job_tokens=job_tokens,
        leave_bytes=leave_bytes,
        sample=tuple(rows[i] for i in sample_rows(tokens)),
    )
