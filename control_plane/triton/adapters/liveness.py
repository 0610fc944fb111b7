"""Liveness probe of one Triton, as `triton/ports.LivenessProbe`.

It has connections of its own, so neither inference nor loads hold it up on this side. On Triton's side gRPC is
asked first, since over HTTP loads and large bodies occupy the threads that answer; if gRPC is late HTTP is asked
as well, since gRPC answers nothing while it lists a large repository (server 24.10: one thread for both).
"""

from __future__ import annotations

import asyncio
import ssl

from control_plane.core.endpoints import Endpoints
from control_plane.core.errors import ControlPlaneError
from control_plane.core.infer_call import SendFailure
from control_plane.protocols.grpc import GrpcHead, frame_message
from control_plane.protocols.http1 import HttpRequest
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.adapters.http.client import HttpClient
from control_plane.triton.ports import GrpcCall, Liveness

_SERVER_LIVE = GrpcCall(
    GrpcHead("/inference.GRPCInferenceService/ServerLive", ((b"content-type", b"application/grpc"),)), frame_message(b"")
)
HEALTH_LIVE = HttpRequest(b"GET", b"/v2/health/live")

_LATE_S = 0.1
"""Time for gRPC to answer alone."""
_ATTEMPTS = 2
"""A connection may have been closed, in good order too, since the last call: then a new one is tried."""


class LivenessProbeClient:
    """Client that opens its connections when they are first needed, and new ones after a call that was not
    answered: the old ones may lead to a machine that is gone.
    """

    def __init__(self, endpoints: Endpoints, *, http_tls: ssl.SSLContext | None = None, grpc_tls: ssl.SSLContext | None = None) -> None:
        self._endpoints = endpoints
        self._http_tls, self._grpc_tls = http_tls, grpc_tls
        self._grpc: GrpcClient | None = None
        self._http: HttpClient | None = None

    async def ask(self, *, timeout_s: float) -> Liveness:
        """Ask, as `triton/ports.LivenessProbe.ask` says."""
        async with asyncio.TaskGroup() as tasks:
            over_grpc = tasks.create_task(self._ask_grpc(timeout_s), name="liveness-grpc")
            asked = {over_grpc}
            await asyncio.wait(asked, timeout=min(_LATE_S, timeout_s))
            if not over_grpc.done():
                asked.add(tasks.create_task(self._ask_http(timeout_s - _LATE_S), name="liveness-http"))
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            found = {task.result() for task in asked if task.done()}
            for task in asked:
                task.cancel()
        if found == {Liveness.SILENT}:
            await self.close()
        return min(found)

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        grpc, http = self._grpc, self._http
        self._grpc = self._http = None
        if grpc is not None:
            await grpc.close()
        if http is not None:
            await http.close()

    async def _ask_grpc(self, timeout_s: float) -> Liveness:
        client = self._grpc = self._grpc or GrpcClient(
            self._endpoints.grpc, tls=self._grpc_tls, headers=self._endpoints.credentials.headers
        )
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        for _ in range(_ATTEMPTS):
            answer = await client.unary(_SERVER_LIVE, timeout_s=deadline_s - asyncio.get_running_loop().time())
            if answer.loss is not SendFailure.CONNECTION_LOST:
                break
        if asyncio.get_running_loop().time() >= deadline_s:
            return Liveness.SILENT
        is_live = answer.code == 0 and service_pb2.ServerLiveResponse.FromString(answer.message).live
        return Liveness.LIVE if is_live else Liveness.NOT_LIVE

    async def _ask_http(self, timeout_s: float) -> Liveness:
        """Only whether it is live: an HTTP endpoint may be switched off, and a refusal means nothing while gRPC
        has not refused."""
        client = self._http = self._http or HttpClient(
            self._endpoints.http, max_connections=1, tls=self._http_tls, headers=self._endpoints.credentials.headers
        )
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            answer = await client.send(HEALTH_LIVE, timeout_s=timeout_s)
        except ControlPlaneError:
            await asyncio.sleep(deadline_s - asyncio.get_running_loop().time())
            return Liveness.SILENT
        return Liveness.LIVE if answer.status == 200 else Liveness.NOT_LIVE
