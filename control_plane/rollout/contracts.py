"""Reads the contracts of loaded models from Triton, and refuses a next model that would break the present one's callers.

Called by `rollout/rollouts` before a rollout begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from control_plane.core.errors import Conflict, InvalidRequest, ModelNotFound, UpstreamFailed
from control_plane.objects.domain.route import arm_name
from control_plane.protocols.http1 import HttpRequest
from control_plane.rollout.domain.contract import Contract, breaks, contract_of, told_policy
from control_plane.triton.ports import Upstream

_TIMEOUT_S = 10.0


class ContractReader:
    """Reader of loaded models' contracts."""

    def __init__(self, reading: Callable[[str], Awaitable[Upstream]]) -> None:
        """`reading` returns a server that can describe a model; in a fleet it has the model loaded for that."""
        self._reading = reading

    async def require_kept(self, stable: tuple[str, str], candidate: tuple[str, str]) -> Contract:
        """Make sure that callers of one model (name and version) find what they rely on in another, and return what that is.

        Raises Conflict: they do not; the text says what differs, or that the model keeps only one of the two versions.
        ModelNotFound: one is not loaded. UpstreamUnavailable, UpstreamFailed, DeadlineExceeded.
        """
        if stable[0] == candidate[0]:
            await self._require_versions(stable[0], stable[1], candidate[1])
        else:
            await self._require_version(*candidate)
        before, after = await self._contract(*stable), await self._contract(*candidate)
        if broken := breaks(before, after):
            raise Conflict(f"model {arm_name(*candidate)!r} would break callers of {arm_name(*stable)!r}: {'; '.join(broken)}")
        return before

    async def _require_version(self, model: str, version: str) -> None:
        """Make sure that Triton has a version of another model loaded; empty: any. Raises ModelNotFound: it has not."""
        if version and version not in (loaded := await self._loaded(model)):
            raise ModelNotFound(f"version {version} of model {model!r} is not loaded; loaded are: {', '.join(loaded) or 'none'}")

    async def _loaded(self, model: str) -> list[str]:
        return [str(each) for each in (await self._read(model, "", "")).get("versions") or ()]

    async def _require_versions(self, model: str, *versions: str) -> None:
        """Make sure that Triton has all these versions of a model loaded. Raises Conflict: it has not, and why."""
        loaded = await self._loaded(model)
        missing = [each for each in versions if each not in loaded]
        if not missing:
            return
        there = ", ".join(loaded) or "none"
        policy = (await self._read(model, "", "/config")).get("version_policy") or {}
        specific = ", ".join(sorted({*versions}, key=int))
        raise Conflict(
            f"version {missing[0]} of model {model!r} is not loaded; loaded are: {there}. A rollout needs both versions: if the model's "
            f"folder has {missing[0]}, its version_policy, {told_policy(policy)}, leaves it out; set `version_policy: {{ specific: "
            f"{{ versions: [{specific}] }} }}` and load it again: `tidegate models load {model}`"
        )

    async def _contract(self, model: str, version: str) -> Contract:
        what = arm_name(model, version)
        try:
            return contract_of(await self._read(model, version, "/config"))
        except (KeyError, TypeError, ValueError) as exc:
            raise InvalidRequest(f"the configuration of model {what!r} cannot be read") from exc

    async def _read(self, model: str, version: str, path: str) -> dict[str, Any]:
        within = f"/versions/{version}" if version else ""
        server = await self._reading(model)
        answer = await server.http.send(HttpRequest(b"GET", f"/v2/models/{model}{within}{path}".encode()), timeout_s=_TIMEOUT_S)
        what = arm_name(model, version)
        if answer.status in (400, 404):
            raise ModelNotFound(f"the model {what!r} is not loaded, and a rollout needs both models ready: `tidegate models load {model}`")
        if answer.status != 200:
            raise UpstreamFailed(f"Triton does not say what model {what!r} is: status {answer.status}")
        try:
            found: dict[str, Any] = orjson.loads(answer.body)
        except orjson.JSONDecodeError as exc:
            raise InvalidRequest(f"what Triton says of model {what!r} cannot be read") from exc
        return found
