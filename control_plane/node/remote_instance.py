"""A server of the fleet that a node runs on another host: `fleet/ports.ServerInstance` over the node's wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

from control_plane.core.errors import ControlPlaneError
from control_plane.core.held_memory import HeldMemory
from control_plane.models.domain.description import DescribedModel
from control_plane.node.domain.fence import Term
from control_plane.node.domain.messages import Done, Hold, Leave, Load, LookMemory, Memory, Prepare, Replace, Unload
from control_plane.node.remote_node import RemoteNode

_MEMORY_TIMEOUT_S = 5.0


@dataclass(slots=True)
class RemotePreparedLoad:
    """Load that a node has prepared."""

    node: RemoteNode
    number: int
    term: Callable[[], Term]
    asked_s: float | None = field(default=None, init=False)

    async def load(self) -> None:
        """See `fleet/ports.PreparedLoad.load`."""
        message = Load(self.node.call_number(), self.number, self.term())
        self.asked_s = asyncio.get_running_loop().time()
        await self.node.call(message, message.number, Done)


class RemoteInstance:
    """Server instance of a node."""

    def __init__(self, node: RemoteNode, *, term: Callable[[], Term]) -> None:
        """`term` returns the right to change models now. Raises UpstreamUnavailable: this process is not the
        leader."""
        self._node = node
        self._term = term

    @asynccontextmanager
    async def prepared(self, name: str) -> AsyncIterator[RemotePreparedLoad]:
        number = self._node.call_number()
        load = RemotePreparedLoad(self._node, number, self._term)
        try:
            await self._node.call(Prepare(number, name), number, Done)
            yield load
        finally:
            if load.asked_s is None:  # a load that was asked for ends by itself
                self._node.tell(Leave(number, is_well=False))

    async def unload_now(self, name: str, *, unload_dependents: bool = False) -> None:
        number = self._node.call_number()
        await self._node.call(Unload(number, name, unload_dependents, self._term()), number, Done)

    @asynccontextmanager
    async def replacing(self, models: Collection[str]) -> AsyncIterator[None]:
        number = self._node.call_number()
        async with self._holding(number, Replace(number, tuple(sorted(models)))):
            yield

    def held_locally(self, name: str) -> AbstractAsyncContextManager[None]:
        number = self._node.call_number()
        return self._holding(number, Hold(number, name))

    async def held_memory(self) -> HeldMemory | None:
        number = self._node.call_number()
        with suppress(ControlPlaneError, TimeoutError):
            async with asyncio.timeout(_MEMORY_TIMEOUT_S):
                return (await self._node.call(LookMemory(number), number, Memory)).held
        return None

    def described(self) -> Mapping[str, DescribedModel]:
        return self._node.models

    @asynccontextmanager
    async def _holding(self, number: int, message: Replace | Hold) -> AsyncIterator[None]:
        is_well = False
        try:
            await self._node.call(message, number, Done)
            yield
            is_well = True
        finally:
            self._node.tell(Leave(number, is_well=is_well))
