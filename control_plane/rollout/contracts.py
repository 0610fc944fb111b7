"""Reads the contracts of loaded models from Triton, and refuses a next model that would break the present one's callers.

Called by `rollout/rollouts` before a rollout begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson

from control_plane.core.errors import Conflict, InvalidRequest, ModelNotFound, UpstreamFailed
from control_plane.protocols.http1 import HttpRequest
from control_plane.rollout.domain.contract import Contract, breaks, contract_of
from control_plane.triton.ports import Upstream

_TIMEOUT_S = 10.0


class ContractReader:
    """Reader of loaded models' contracts."""

    def __init__(self, reading: Callable[[str], Awaitable[Upstream]]) -> None:
        """`reading` returns a server that can describe a model; in a fleet it has the model loaded for that."""
        self._reading = reading

    async def require_kept(self, stable: tuple[str, str], candidate: tuple[str, str]) -> None:
        """Make sure that callers of one model (name and version) find what they rely on in another.

        Raises Conflict: they do not; the text says what differs. ModelNotFound: one is not loaded. UpstreamUnavailable,
        UpstreamFailed, DeadlineExceeded.
        """
        broken = breaks(await self._contract(*stable), await self._contract(*candidate))
        if broken:
            raise Conflict(f"model {candidate[0]!r} would break callers of {stable[0]!r}: {'; '.join(broken)}")

    async def _contract(self, model: str, version: str) -> Contract:
        within = f"/versions/{version}" if version else ""
        server = await self._reading(model)
        answer = await server.http.send(HttpRequest(b"GET", f"/v2/models/{model}{within}/config".encode()), timeout_s=_TIMEOUT_S)
        what = f"{model!r}{f' version {version}' if version else ''}"
        if answer.status in (400, 404):
            raise ModelNotFound(f"the model {what} is not loaded, and a rollout needs both models ready: `tidegate models load {model}`")
        if answer.status != 200:
            raise UpstreamFailed(f"Triton does not say what model {what} is: status {answer.status}")
        try:
            return contract_of(orjson.loads(answer.body))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as exc:
            raise InvalidRequest(f"the configuration of model {what} cannot be read") from exc
