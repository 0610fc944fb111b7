"""An only server that can end and come back, and requests to it."""

from __future__ import annotations

import asyncio
from typing import Any

from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.protocols.http1 import make_answer
from control_plane.triton.servers import Servers
from tests.fakes import FakeUpstream
from tests.unit.fleet.fleet_bench import call
from tests.unit.fleet.routing.dispatch_bench import Request
from tests.unit.fleet.routing.faults.losses_bench import repeatable

OK = make_answer(200, b"")


class Bench:
    def __init__(self) -> None:
        self.servers, self.upstreams = Servers(), [FakeUpstream()]
        self.one = SingleServerDispatch(self.servers, now_s=asyncio.get_running_loop().time)
        self.servers.up(self.upstreams[0])

    async def send(self, request: Request, *, is_repeatable: bool = True, timeout_s: float = 30.0) -> Any:
        return await self.one.send(request, call("a"), timeout_s=timeout_s, running=repeatable(is_repeatable))

    def restart(self, *, after_s: float = 0.1, takes_s: float = 3.0) -> None:
        """Let Triton end, be seen to have ended, and be up again, at these times."""

        def up() -> None:
            self.upstreams.append(FakeUpstream())
            self.servers.up(self.upstreams[-1])

        loop = asyncio.get_running_loop()
        loop.call_later(after_s, self.servers.lost, "Triton has crashed")
        loop.call_later(after_s + takes_s, up)
