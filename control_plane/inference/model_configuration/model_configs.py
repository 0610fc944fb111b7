"""Cache of what is read from models' configurations, as Triton reports them; an entry is valid while its model is loaded.

Used by `models_of_kind`, `background_lanes`, `classes`, `sequence_types` and `time_left` beside this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from control_plane.core.algorithms.bounded_cache import BoundedCache
from control_plane.core.errors import ModelNotFound, UpstreamFailed, UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.http1 import HttpRequest
from control_plane.triton.ports import Upstream

ReadT = TypeVar("ReadT")

_KEPT_S = 2.0
"""Lifetime in seconds of an entry without a fingerprint: others may load the model anew without telling
us."""

_MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class _Known(Generic[ReadT]):
    """Cache entry of one model version."""

    read: ReadT
    fingerprint: Fingerprint | None
    until_s: float


class ModelConfigs(Generic[ReadT]):
    """Cache of what `read` makes of the JSON of a model's configuration; `read` raises UpstreamFailed for what is none."""

    def __init__(
        self,
        dispatch: Dispatch,
        fingerprints: Fingerprints,
        read: Callable[[bytes | bytearray], ReadT],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatch = dispatch
        self._fingerprints = fingerprints
        self._read = read
        self._now_s = now_s
        self._known = BoundedCache[tuple[str, str], _Known[ReadT]].of_entries(_MAX_ENTRIES)

    def known(self, name: str, version: str = "") -> ReadT | None:
        """What `read` made of the configuration, where that holds now; None: `get` asks for it."""
        known = self._valid(name, version, self._fingerprints.get(name))
        return None if known is None else known.read

    async def get(self, name: str, version: str = "", *, timeout_s: float, server: Upstream | None = None) -> ReadT:
        """What `read` makes of the configuration, from the cache or from that `server`; without one from any that has the model,
        by which the model is loaded if it must be.

        Raises:
            ModelNotFound: it is not loaded.
            UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        # Read before the configuration: if the model is loaded anew in between, the entry is stale at once.
        fingerprint = self._fingerprints.get(name)
        known = self._valid(name, version, fingerprint)
        if known is None:
            known = _Known(await self._ask(name, version, timeout_s, server), fingerprint, self._now_s() + _KEPT_S)
            self._known.forget((name, version))
            self._known.keep((name, version), known)
        return known.read

    def _valid(self, name: str, version: str, fingerprint: Fingerprint | None) -> _Known[ReadT] | None:
        known = self._known.get((name, version))
        if known is None or known.fingerprint is not fingerprint or (fingerprint is None and self._now_s() >= known.until_s):
            return None
        return known

    async def _ask(self, name: str, version: str, timeout_s: float, server: Upstream | None) -> ReadT:
        request = HttpRequest(b"GET", b"%b/config" % path_of_model(name, version))
        deadline_s = self._now_s() + timeout_s
        server = server or await self._dispatch.reading(name, timeout_s=timeout_s)
        answer = await server.http.send(request, timeout_s=deadline_s - self._now_s())
        if answer.status in (400, 404):  # Triton answers some GET calls about an unknown model with 400
            raise ModelNotFound(f"the model {name!r} does not exist, or is not loaded")
        if answer.status == 503:
            raise UpstreamUnavailable(f"model {name!r} is not ready; try again shortly")
        if answer.status != 200:
            raise UpstreamFailed(f"Triton does not say what model {name!r} is: status {answer.status}")
        return self._read(answer.body)


def path_of_model(name: str, version: str) -> bytes:
    """The HTTP path of a model version, to which Triton's calls append `/infer` or `/config`."""
    return f"/v2/models/{name}/versions/{version}".encode() if version else f"/v2/models/{name}".encode()
