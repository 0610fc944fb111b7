"""Choice of the configurations that models are served with: those for a GPU only where something can compute
on one: a library in Python, or the ONNX Runtime backend of a Triton of NVIDIA's.

That there is a device proves little: with the CPU build of PyTorch, which README suggests, no library can use
it, and every model that asks for a GPU would fail to load. Called at start, by `app/` and the command line.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from control_plane.host import gpu_probe
from control_plane.settings import Settings, TritonSettings
from control_plane.triton.config_name import AUTO
from control_plane.triton.embedded.stub_python import stub_python

GPU = "gpu"
NVIDIA = "nvidia"
"""For Triton's native backends, which are in NVIDIA's image."""
PLAIN = ""
NO_DEVICE = "there is no NVIDIA device"

_NVIDIA_DEVICE = Path("/dev/nvidia0")
_PROBE_TIMEOUT_S = 60.0
"""Time limit of the probe, which imports three heavy libraries and makes the driver's first call."""

_PROBE = "gpu_probe.py"
_MAX_CHARACTERS = 300

_ANY_VARIANT = "onnxruntime"
"""Library that runs a model's plain variant on a GPU as well; the others need a variant built for a GPU and
for them.
"""

_NATIVE = "backends/onnxruntime/libonnxruntime_providers_cuda.so"
"""Library of a native ONNX Runtime backend that computes on GPUs, beside the folder of `tritonserver`."""

_log = logging.getLogger(__name__)

Tried = Mapping[str, str]
"""Result of the probe: by library why it cannot compute on the GPU; empty if it can."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Preferred `configs/NAME.pbtxt` of models, and the reason; an empty name is the plain config.pbtxt."""

    name: str
    reason: str


def with_profile(settings: Settings, *, choose: Callable[[TritonSettings], Profile] | None = None) -> Settings:
    """Return the settings with `model_config_name` decided if it is AUTO; the log says whether a device that
    is there is used.
    """
    if settings.triton.model_config_name != AUTO or settings.is_attached:
        return settings
    profile = (choose or choose_profile)(settings.triton)
    if profile.name:
        _log.info("models are served with their configs/%s.pbtxt: %s", profile.name, profile.reason)
    elif profile.reason != NO_DEVICE:
        _log.warning("models are served on the CPU: %s", profile.reason)
    return replace(settings, triton=settings.triton.model_copy(update={"model_config_name": profile.name}))


def choose_profile(settings: TritonSettings, *, device: Path = _NVIDIA_DEVICE, ask: Callable[[], Tried] | None = None) -> Profile:
    """Choose the profile by what this machine has; takes seconds where there is a device, since the probe
    imports libraries.
    """
    if settings.model_config_name != AUTO:
        return Profile(settings.model_config_name, "TIDEGATE_MODEL_CONFIG_NAME says so")
    if not device.exists():
        return Profile(PLAIN, NO_DEVICE)
    tried = ask() if ask else ask_libraries(probe(stub_python(settings.tritonserver)))
    working = [name for name, why_not in tried.items() if not why_not]
    unserved = next(_unserved(settings.model_repository, working), None)
    if working and unserved is None:
        return Profile(GPU, f"{' and '.join(working)} can use the GPU")
    if settings.tritonserver is not None and (settings.tritonserver.resolve().parents[1] / _NATIVE).is_file():
        return Profile(NVIDIA, f"the backend onnxruntime of {settings.tritonserver} can use the GPU")
    if working:
        return Profile(
            PLAIN, f"{' and '.join(working)} can use the GPU, but {unserved} has no variant for that: tidegate models build {unserved}"
        )
    reasons = "; ".join(f"{name}: {why_not}" for name, why_not in tried.items())
    return Profile(PLAIN, f"there is an NVIDIA device ({device}), but nothing that computes on it: {reasons}")


def probe(python: str) -> Sequence[str]:
    """Return the command by which a Python says what computes on the GPU."""
    return (python, "-I", gpu_probe.__file__)


def ask_libraries(command: Sequence[str] = probe(sys.executable), *, timeout_s: float = _PROBE_TIMEOUT_S) -> Tried:
    """Run the probe, by the Python whose packages the stubs import, and return what it finds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return {_PROBE: str(exc)}
    try:
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {_PROBE: f"it ended with status {done.returncode} and said nothing of use: {done.stderr[-_MAX_CHARACTERS:]}"}
    return found


def _unserved(sources: Sequence[Path], working: Sequence[str]) -> Iterator[str]:
    """Yield models with a configuration for GPUs whose built variants could none of them be served
    with it.
    """
    if _ANY_VARIANT in working:
        return
    for model in (entry for source in sources if source.is_dir() for entry in sorted(source.iterdir())):
        manifests = list(map(_read, sorted(model.glob("[0-9]*/[!.]*/manifest.json"))))
        fits = any(each.get("device") == GPU and each.get("runtime") in working for each in manifests)
        if manifests and not fits and (model / "configs" / f"{GPU}.pbtxt").is_file():
            yield model.name


def _read(manifest: Path) -> dict[str, Any]:
    try:
        read = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}
