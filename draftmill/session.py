"""What one command line names: a manifest, a workspace, devices and a limit; and what they resolve to, once.

Resolving the target may fetch or convert a model, so it happens when a stage first needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.manifest import Manifest
from corpus.manifest_file import load_manifest
from corpus.workspace import Workspace

if TYPE_CHECKING:
    from corpus.target import Renderer, ResolvedTarget
    from corpus.token_counts import TokenCounts
    from fleet.crew import Launch
    from fleet.devices import Device
    from fleet.ray_cluster import RayCluster
    from fleet.topology import Topology


@dataclass
class Session:
    """One command's inputs."""

    manifest_path: Path
    workspace: Workspace
    devices_spec: str | None = None
    limit: int | None = None
    force_tensor_parallel: bool = False
    """Tensor parallelism that the manifest asks for is taken over PCIe too."""
    ray_address: str | None = None
    """The Ray cluster that generation and extraction run on; None is this machine."""

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest; a UserError if it is not one."""
        return load_manifest(self.manifest_path)

    @property
    def base(self) -> Path:
        """Relative paths of the manifest start here."""
        return self.manifest_path.parent

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices to use, of the cluster if there is one; a DeviceError if they are not there."""
        from fleet.devices import choose_devices, find_devices

        return choose_devices(self.devices_spec, self.cluster.devices if self.cluster else find_devices())

    @cached_property
    def local_devices(self) -> tuple[Device, ...]:
        """The devices for stages that run on this machine alone: all of it, where `devices` are a cluster's."""
        from fleet.devices import choose_devices, find_devices

        return choose_devices(None, find_devices()) if self.cluster else self.devices

    @cached_property
    def cluster(self) -> RayCluster | None:
        """The Ray cluster, joined; a DeviceError if it does not answer or its nodes cannot run draftmill."""
        if self.ray_address is None:
            return None
        from fleet.ray_cluster import RayCluster

        return RayCluster(self.ray_address)

    @property
    def launch(self) -> Launch:
        """How a pool starts its workers."""
        from fleet.process import WorkerProcess

        return self.cluster.launch if self.cluster else WorkerProcess

    def check_shared(self, path: Path, *, written: bool = False) -> None:
        """On a cluster, check that the nodes in use see this path too; a DeviceError names one that does not."""
        if self.cluster:
            self.cluster.check_shared_path(self.devices, path, written=written)

    @cached_property
    def topology(self) -> Topology:
        """The links between these devices, as the driver tells them."""
        from fleet.nvml import read_topology

        return self.cluster.topology(self.devices) if self.cluster else read_topology(self.devices)

    @cached_property
    def target(self) -> ResolvedTarget:
        """The target at its revision: tokenizer, template and configuration."""
        from corpus.sources import FileDigests
        from corpus.target import resolve_target

        digests = FileDigests(self.workspace.cache / "digests.json")
        target = resolve_target(self.manifest.target, self.base, digests)
        digests.save()
        return target

    @cached_property
    def target_with_weights(self) -> ResolvedTarget:
        """The target with all that an engine loads; may download it."""
        from corpus.target import fetch_weights

        fetch_weights(self.target, self.base)
        return self.target

    @cached_property
    def renderer(self) -> Renderer:
        """The target's template and tokenizer."""
        from corpus.target import Renderer

        return Renderer(self.target)

    def count_tokens(self, rows: Sequence[tuple[str, str | None]]) -> list[int | None]:
        """Tokens of each prompt's first turn, as the target is shown it; None where its template refuses."""
        return self._token_counts(rows)

    @cached_property
    def _token_counts(self) -> TokenCounts:
        from corpus.token_counts import TokenCounts

        return TokenCounts(self.renderer)
