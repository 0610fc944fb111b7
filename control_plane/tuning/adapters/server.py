"""Starts an embedded Triton for each candidate of `tidegate tune`; implements `tuning/ports.TuningServers`.

Each reads a temporary repository with links to the models' files, in which only the tuned model's
configuration is new. Requests reach it over gRPC without a gateway, on a Unix socket unless
`triton_transport` is `tcp`. When its block ends, nothing of it is left; when this process is killed, no
process.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from control_plane.core.errors import StartupError
from control_plane.core.text.cpus import parse_cpus
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.settings import TritonSettings
from control_plane.triton.adapters.connected import UpstreamClient
from control_plane.triton.adapters.control import grpc_target
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.embedded.process import EmbeddedTriton, EmbeddedTritonLauncher
from control_plane.tuning.adapters.config import PARAMETERS
from control_plane.tuning.domain.candidates import Candidate, Knob

_STOP_GRACE_S = 1.0
"""Time for a stop; Triton is killed after half of it. No requests are in flight by then, and nothing of it is
kept."""

_POLL_S = 0.05


class EmbeddedTuningServers:
    """Servers of `model` in which the tuned model has a candidate's configuration."""

    def __init__(self, settings: TritonSettings, *, model: str, tuned: Path, config_of: Callable[[Candidate], str]) -> None:
        """`tuned` is the tuned model's folder: `model` itself, or a step of it; `config_of` makes a
        candidate's config.
        """
        self._settings = settings
        self._model = model
        self._tuned = tuned
        self._config_of = config_of

    @asynccontextmanager
    async def serve(self, candidate: Candidate) -> AsyncIterator[str]:
        """Run a Triton until the block ends. Raises StartupError or ModelLoadFailed if it cannot serve the
        candidate.
        """
        cpus = {knob: parse_cpus(str(value)) for knob, value in candidate.changes if knob in (Knob.MODEL_CPUS, Knob.TRITON_CPUS)}
        with tempfile.TemporaryDirectory(prefix="tidegate-tune-") as folder:
            self._place(candidate, Path(folder))
            settings = self._settings.model_copy(update={"model_cpus": cpus.get(Knob.MODEL_CPUS, self._settings.model_cpus)})
            triton_cpus = cpus.get(Knob.TRITON_CPUS, self._settings.triton_cpus)
            triton = await EmbeddedTritonLauncher(settings, Path(folder), cpus=triton_cpus).start()
            try:
                await self._load(triton)
                with grpc_target(triton.endpoints.grpc) as address:
                    yield address
            finally:
                await triton.stop(grace_s=_STOP_GRACE_S)

    def _place(self, candidate: Candidate, folder: Path) -> None:
        models = folder / "models"
        models.mkdir()
        for source in self._settings.model_repository:
            for entry in source.resolve().iterdir():
                if entry.is_dir() and entry.name != self._tuned.name and not (models / entry.name).exists():
                    (models / entry.name).symlink_to(entry)
        tuned = models / self._tuned.name
        tuned.mkdir()
        for entry in self._tuned.resolve().iterdir():
            if entry.name not in ("config.pbtxt", "configs"):
                (tuned / entry.name).symlink_to(entry)
        (tuned / "config.pbtxt").write_text(self._config_of(candidate), encoding="utf-8")
        config_name = config_name_in_force(self._settings.model_config_name)
        names = {entry.name for entry in models.iterdir()}
        parameters = {name: self._fixed(name, its) for name, its in self._settings.model_parameter.items() if name in names}
        ManagedRepository([models], folder, config_name=config_name, parameters=parameters).place(self._model)

    def _fixed(self, name: str, parameters: Mapping[str, str]) -> dict[str, str]:
        """Return the parameters that no candidate changes."""
        swept = PARAMETERS.values() if name == self._tuned.name else ()
        return {key: value for key, value in parameters.items() if key not in swept}

    async def _load(self, triton: EmbeddedTriton) -> None:
        upstream = UpstreamClient(triton.endpoints, max_connections=1)
        try:
            await self._wait_until_live(triton, upstream)
            await upstream.control.load(self._model, timeout_s=self._settings.load_timeout_s)
        finally:
            await upstream.close()

    async def _wait_until_live(self, triton: EmbeddedTriton, upstream: UpstreamClient) -> None:
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                while not await upstream.is_serving():
                    await _refuse_end_within(triton, _POLL_S)
        except TimeoutError as exc:
            raise StartupError(f"Triton was not live within {self._settings.start_timeout_s:g} s") from exc


async def _refuse_end_within(triton: EmbeddedTriton, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            reason = await triton.wait()
    except TimeoutError:
        return
    raise StartupError(reason)
