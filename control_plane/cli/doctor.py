"""`tidegate doctor`: checks that this machine has what serving needs, without starting anything."""

from __future__ import annotations

import asyncio
import ctypes
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path

import typer
from rich.text import Text

from control_plane.admin.client import AdminClient
from control_plane.cli.common.options import StateDirOption, api_key
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.common.printing import print_table
from control_plane.core.endpoints import CONTROL_FIELD, Endpoints
from control_plane.core.errors import ControlPlaneError, StartupError
from control_plane.core.text.cpus import format_cpus
from control_plane.fleet.adapters.servers_file import ServersFile
from control_plane.host.cpu_affinity import allowed_cpus, require_cpus
from control_plane.host.memory.gpu_memory import GpuMemory, GpuMemoryUnknown
from control_plane.host.network.listening import bind_tcp
from control_plane.host.state_dir import read_endpoints
from control_plane.models.adapters.profile import NO_DEVICE, Profile, choose_profile
from control_plane.settings import Settings, load_settings, parse_triton_url, parse_triton_urls
from control_plane.triton.adopted.control_lock import flags_missing
from control_plane.triton.embedded.installation import MACHINE, MIN_GLIBC, numpy_refusal
from control_plane.triton.embedded.shared_libraries import own_libpython

_MIN_DISK_BYTES = 2 * 2**30
_FULL_DISK_BYTES = 16 * 2**20
"""Below this the databases of the state folder, with their logs, may not be able to grow."""
_HEALTH_TIMEOUT_S = 5.0
_MIN_SHARED_MEMORY_BYTES = 256 * 2**20
_SECCOMP_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")
"""Exists if the kernel has seccomp filters (since Linux 4.14), which keep Triton's shared memory private to
its user."""


class Verdict(Enum):
    """Result of one check; only MISSING prevents serving. Values are Rich markup for the table."""

    OK = "[green]ok[/]"
    NOTE = "[yellow]note[/]"
    MISSING = "[red]missing[/]"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check; `advice` says what to do where the verdict is not OK."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def doctor(output: ShapeOption = Shape.TABLE, state_dir: StateDirOption = None) -> None:
    """Check what this machine has and lacks for serving; exit status 1 if serving cannot work."""
    checks = list(run_checks(load_settings({"state_dir": state_dir})))
    rows = [(check.name, Text.from_markup(check.verdict.value), check.found, check.advice) for check in checks]
    told = [{"check": check.name, "verdict": check.verdict.name.lower(), "found": check.found, "advice": check.advice} for check in checks]
    print_found(told, output, lambda: print_table(("check", "", "found", "what to do"), rows, wraps=True))
    if any(check.verdict is Verdict.MISSING for check in checks):
        raise typer.Exit(1)


def run_checks(settings: Settings) -> Iterator[Check]:
    """Run every check, the most fundamental first; in front of Tritons that others run, none of what only one of our own needs."""
    is_attached = settings.is_attached or bool(settings.node.attach)
    yield _python()
    if not is_attached and settings.triton.tritonserver is None:
        yield _glibc()
        yield _libpython()
        yield _numpy(metadata.version("numpy"))
        yield _triton(settings.triton.cache_dir)
    if not is_attached:
        yield from _builds(settings.triton.model_repository)
    yield from _ports(settings)
    yield from _control_locks(settings)
    yield _cpus(settings)
    yield _disk(settings.process.state_dir)
    if not is_attached:
        yield _shared_memory()
    yield _gpu(choose_profile(settings.triton))
    yield from _gpu_memory(GpuMemory())


def _python() -> Check:
    found = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Check("Python", Verdict.OK if fits else Verdict.MISSING, found, "" if fits else "use Python 3.11, 3.12 or 3.13")


def _glibc() -> Check:
    library, found = platform.libc_ver()
    fits = library == "glibc" and tuple(map(int, found.split("."))) >= MIN_GLIBC
    advice = "" if fits else "Triton's binary needs glibc 2.35: Debian 12, Ubuntu 22.04 or newer"
    return Check("glibc", Verdict.OK if fits else Verdict.MISSING, f"{library} {found}".strip() or "none", advice)


def _libpython() -> Check:
    package = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
    own = own_libpython()
    try:
        ctypes.CDLL(str(own) if own else f"{package}.so.1.0")
    except OSError:
        return Check("libpython", Verdict.MISSING, f"no {package}.so.1.0", f"apt-get install {package} (Triton's Python stub links it)")
    return Check("libpython", Verdict.OK, f"{package}.so.1.0")


def _numpy(found: str) -> Check:
    refusal = numpy_refusal(found)
    return Check("NumPy", Verdict.OK if refusal is None else Verdict.MISSING, found, refusal or "")


def _triton(cache_dir: Path, machine: str | None = None) -> Check:
    machine = machine or platform.machine()
    if machine != MACHINE:
        return Check("embedded Triton", Verdict.MISSING, f"none for {machine}", f"use {MACHINE}, or one that runs elsewhere: --triton-url")
    unpacked = sorted(path.name for path in cache_dir.glob("triton-*") if path.is_dir())
    wheels = sorted(path.name for path in (cache_dir / "wheels").glob("nvidia_pytriton-*.whl"))
    if not unpacked and not wheels:
        return Check("embedded Triton", Verdict.MISSING, "not downloaded", "make setup")
    return Check("embedded Triton", Verdict.OK, (unpacked or wheels)[-1])


def _builds(repositories: list[Path]) -> Iterator[Check]:
    for recipe in sorted(recipe for root in repositories for recipe in root.glob("*/build.py")):
        built = any(recipe.parent.glob("[0-9]*/*"))
        name = f"model {recipe.parent.name}"
        yield Check(name, Verdict.OK, "built") if built else Check(name, Verdict.MISSING, "not built", "make setup")


def _ports(settings: Settings) -> Iterator[Check]:
    if endpoints := read_endpoints(settings.process.state_dir):
        yield Check("ports", Verdict.OK, "tidegate is running")
        for sentence in _degraded(endpoints):
            yield Check("health", Verdict.NOTE, sentence, "the log of `tidegate serve` says more")
        for sentence in _fleet_notes(endpoints):
            yield Check("fleet", Verdict.NOTE, sentence)
        return
    gateway, admin = settings.gateway, settings.admin
    ports = (
        ("http", gateway.host, gateway.http_port),
        ("grpc", gateway.host, gateway.grpc_port),
        ("metrics", gateway.host, gateway.metrics_port),
        ("admin", admin.admin_host, admin.admin_port),
    )
    for name, host, port in ports:
        try:
            bind_tcp(host, port, setting=f"--{name}-port").close()
            yield Check(f"{name} port", Verdict.OK, f"{port} is free")
        except StartupError as exc:
            yield Check(f"{name} port", Verdict.MISSING, f"{port}", str(exc))


def _degraded(endpoints: dict[str, str]) -> list[str]:
    """Return what the running tidegate says does not work as it should; empty if it does not answer."""
    try:
        readiness = _running_one(endpoints).ask("GET", "health", "ready")
        return [str(sentence) for sentence in readiness["degraded"]]
    except (ControlPlaneError, KeyError, TypeError):
        return []


def _fleet_notes(endpoints: dict[str, str]) -> list[str]:
    """Return what servers of the running tidegate lack; empty if it has no fleet, or does not answer."""
    try:
        return [str(sentence) for sentence in _running_one(endpoints).ask("GET", "fleet")["notes"]]
    except (ControlPlaneError, KeyError, TypeError):
        return []


def _running_one(endpoints: dict[str, str]) -> AdminClient:
    """Return a client of the running tidegate: of its Unix socket where it has one, which asks for no certificate."""
    return AdminClient(endpoints.get("admin_socket") or endpoints["admin"], api_key(), timeout_s=_HEALTH_TIMEOUT_S)


def _control_locks(settings: Settings) -> Iterator[Check]:
    """Check whether anybody may load models into Tritons that others have started."""
    for name, endpoints, missing in asyncio.run(_locks_missing(dict(_attached(settings)))):
        found = f"whoever reaches Triton at {endpoints.http} may load and unload models there, so nothing that it answers is cached"
        flags = " and ".join(f"{flag}=model-repository:{CONTROL_FIELD}=SECRET" for flag in missing)
        advice = f"start it with {flags} beside a `tidegate node` with --attach-secret-file; let only gateways reach its ports"
        yield Check(f"lock of {name}", Verdict.NOTE, found, advice)


async def _locks_missing(attached: Mapping[str, Endpoints]) -> list[tuple[str, Endpoints, list[str]]]:
    """Return the Tritons that lack locks, and their flags; one that is not there lacks none that is known."""
    async with asyncio.TaskGroup() as tasks:
        asked = {name: tasks.create_task(flags_missing(each, counts_silence=False), name=name) for name, each in attached.items()}
    return [(name, attached[name], missing) for name, task in asked.items() if (missing := task.result())]


def _attached(settings: Settings) -> Iterator[tuple[str, Endpoints]]:
    """Yield the Tritons that others have started: of the settings, and of a running node."""
    try:
        attached = parse_triton_urls(settings.triton.triton_url) if settings.triton.triton_url else []
        if settings.fleet.servers_file is not None:
            attached = ServersFile(settings.fleet.servers_file).read()
        yield from ((each.name, each.endpoints) for each in attached)
        if (running := (read_endpoints(settings.process.state_dir) or {}).get("triton")) is not None:
            yield "Triton", parse_triton_url(running)
    except StartupError:
        return  # what is wrong with them says the start


def _cpus(settings: Settings) -> Check:
    process, triton = settings.process, settings.triton
    try:
        require_cpus(process.gateway_cpus, setting="--gateway-cpus", at_least=process.workers)
        require_cpus(triton.triton_cpus, setting="--triton-cpus")
        require_cpus(triton.model_cpus, setting="--model-cpus")
    except StartupError as exc:
        return Check("CPUs", Verdict.MISSING, format_cpus(allowed_cpus()), str(exc))
    gateway, embedded = (format_cpus(cpus) or "all" for cpus in (process.gateway_cpus, triton.triton_cpus))
    return Check("CPUs", Verdict.OK, f"{len(allowed_cpus())}; the gateway takes {gateway}, Triton {embedded}")


def _disk(state_dir: Path, free_bytes: int | None = None) -> Check:
    existing = next(path for path in (state_dir, *state_dir.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free if free_bytes is None else free_bytes
    found = f"{free / 2**30:.1f} GiB free"
    if free >= _MIN_DISK_BYTES:
        return Check("disk", Verdict.OK, found)
    means = "keys cannot be made and usage waits in memory; " if free < _FULL_DISK_BYTES else ""
    return Check("disk", Verdict.NOTE, found, f"{means}2 GiB or more is safe")


def _shared_memory(mount: Path = Path("/dev/shm")) -> Check:  # noqa: S108 - the mount itself is what is asked about
    size = shutil.disk_usage(mount).total if mount.is_dir() else 0
    found = f"{size / 2**20:.0f} MiB"
    if size < _MIN_SHARED_MEMORY_BYTES:
        return Check("shared memory", Verdict.NOTE, found, "Python backends exchange tensors there; 256 MiB or more (docker: --shm-size)")
    if not _SECCOMP_ACTIONS.exists():
        advice = "other users of this machine could read Triton's shared memory: a kernel with seccomp filters prevents that"
        return Check("shared memory", Verdict.NOTE, found, advice)
    return Check("shared memory", Verdict.OK, found)


def _gpu(profile: Profile) -> Check:
    if profile.reason == NO_DEVICE:
        return Check("GPU", Verdict.OK, "none: models run on the CPU, and are weighed by main memory")
    if profile.name:
        return Check("GPU", Verdict.OK, f"models are served with their configs/{profile.name}.pbtxt: {profile.reason}")
    advice = "install onnxruntime-gpu or a CUDA build of PyTorch and run `make models`, or go on with the CPU"
    return Check("GPU", Verdict.NOTE, f"models are served on the CPU: {profile.reason}", advice)


def _gpu_memory(gpus: GpuMemory) -> Iterator[Check]:
    if not gpus.has_driver:
        return  # `_gpu` says what that means
    try:
        gpus.read(())
    except GpuMemoryUnknown as exc:
        advice = "pip install nvidia-ml-py, or `make extras`; else say sizes with the parameter tidegate_resident_bytes"
        yield Check("GPU memory", Verdict.NOTE, f"models are weighed by main memory: {exc}", advice)
    else:
        yield Check("GPU memory", Verdict.OK, "models are weighed by it, too")
