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
    from fleet.devices import Device


@dataclass
class Session:
    """One command's inputs."""

    manifest_path: Path
    workspace: Workspace
    devices_spec: str | None = None
    limit: int | None = None

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
        """The devices to use; a DeviceError if the machine has not got them."""
        from fleet.devices import choose_devices, find_devices

        return choose_devices(self.devices_spec, find_devices())

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
