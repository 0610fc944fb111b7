"""Listens for gateways on a node's port, authenticates them, and hands them to `node/service`.

Whoever can load models can run code, so nothing but a few small frames within a few seconds is taken from a
connection before both sides have shown the secret or, over TLS, certificates.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections import Counter
from typing import Any
from uuid import uuid4

from control_plane.auth.domain.source import Source, source_of_address
from control_plane.host.network.accept_failures import AcceptFailures
from control_plane.host.network.refusal_log import RefusalLog
from control_plane.node.adapters.frames import FrameLink
from control_plane.node.domain.handshake import GATEWAY, NODE, NONCE_BYTES, Handshake
from control_plane.node.domain.messages import (
    VERSIONS,
    Challenge,
    GatewayProof,
    Hello,
    Refused,
    Welcome,
    WrongMessage,
    common_version,
    encode,
    expect,
)
from control_plane.node.service import NodeService

_log = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT_S = 5.0
_FLUSH_TIMEOUT_S = 1.0
_ACCEPT_PAUSE_S = 0.1
MAX_GATEWAYS = 256
MAX_STRANGERS = 64
"""Connections that are not authenticated yet, those among them that have not ended their TLS handshake. Another one has the oldest
closed of the source that has most: a gateway is no stranger for long, and were the new one refused, whoever only connects would
keep gateways out."""


class NodeServer:
    """Listener of a node: the handshake with each gateway, and limits on those who have not shown who they are."""

    def __init__(self, service: NodeService, *, secret: bytes | None, tls: ssl.SSLContext | None = None) -> None:
        """Without a `secret` gateways show certificates, or the node listens on loopback."""
        self._service = service
        self._secret = secret
        self._tls = tls
        self._incarnation = uuid4().hex
        self._strangers: dict[asyncio.Task[None], Source] = {}
        """Tasks that serve connections which are not authenticated yet, the oldest first."""
        self._gateways = 0
        self._refusals = RefusalLog()

    async def run(self, bound: socket.socket) -> None:
        """Serve gateways on a bound socket until cancelled."""
        bound.listen(MAX_STRANGERS)
        bound.setblocking(False)
        loop, failures = asyncio.get_running_loop(), AcceptFailures()
        async with asyncio.TaskGroup() as tasks:
            while True:
                # Not by `asyncio.start_server`, which tells of a connection only after its TLS handshake.
                try:
                    accepted, address = await loop.sock_accept(bound)
                except OSError as exc:
                    failures.failed(exc, loop.time())
                    await asyncio.sleep(_ACCEPT_PAUSE_S)
                    continue
                failures.accepted(loop.time())
                self._take_on(accepted, source_of_address(address[0]), tasks)

    def _take_on(self, accepted: socket.socket, source: Source, tasks: asyncio.TaskGroup) -> None:
        """Serve a connection as one of a stranger, or close it where there are as many gateways as may be."""
        accepted.setblocking(False)
        if self._gateways >= MAX_GATEWAYS:
            accepted.close()
            return
        if len(self._strangers) >= MAX_STRANGERS:
            ((most, _),) = Counter(self._strangers.values()).most_common(1)
            oldest = next(task for task, its in self._strangers.items() if its == most)
            del self._strangers[oldest]
            oldest.cancel()
        serving = tasks.create_task(self._serve(accepted), name="gateway")
        self._strangers[serving] = source

        def ended(task: asyncio.Task[None]) -> None:
            self._strangers.pop(task, None)
            accepted.close()  # a task that is cancelled before it first runs has not

        serving.add_done_callback(ended)

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            link = await self._open(accepted)
        except OSError:  # TLS's errors and time-outs among them
            return
        try:
            if await self._is_let_in(link):
                task = asyncio.current_task()
                assert task is not None
                self._strangers.pop(task, None)
                self._gateways += 1
                try:
                    await self._service.serve(link)
                finally:
                    self._gateways -= 1
        except Exception:  # the root of a task: one gateway, or who is none, must not end the node
            _log.exception("the connection of a gateway failed")
        finally:
            link.close()

    async def _open(self, accepted: socket.socket) -> FrameLink:
        """Open an accepted connection, by a TLS handshake where there is TLS. Raises OSError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        options: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls, "ssl_handshake_timeout": _HANDSHAKE_TIMEOUT_S}
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, **options)
        return FrameLink(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _is_let_in(self, link: FrameLink) -> bool:
        """Whether both sides have shown who they are; otherwise the connection is closed."""
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                why = await self._handshake(link)
        except (WrongMessage, TimeoutError) as exc:
            why = str(exc) or "it did not say in time who it is"
        if why is None:
            return True
        self._refusals.refused(link.peer, why, asyncio.get_running_loop().time())
        link.send(Refused(why))
        await link.flush(timeout_s=_FLUSH_TIMEOUT_S)
        link.close()
        return False

    async def _handshake(self, link: FrameLink) -> str | None:
        """Return why the gateway is refused; None if it is welcome. Raises WrongMessage."""
        first = await link.receive_body()
        hello = expect(first, Hello)
        if (version := common_version(hello.oldest, hello.newest)) is None:
            return (
                f"the gateway speaks versions {hello.oldest} to {hello.newest} of the node's wire, the node {VERSIONS[0]} to "
                f"{VERSIONS[1]}; upgrade the older of the two"
            )
        challenge = encode(Challenge(version, secrets.token_hex(NONCE_BYTES), self._secret is not None))
        link.send_body(challenge)
        proof = expect(await link.receive_body(), GatewayProof).proof
        assert first is not None
        handshake = None if self._secret is None else Handshake(self._secret, first + challenge)
        if handshake is not None and not handshake.is_proof(GATEWAY, proof):
            return "the gateway does not have the node's secret (--node-secret-file)"
        link.fleet, link.gateway = hello.fleet, hello.gateway
        link.send(Welcome(b"" if handshake is None else handshake.proof(NODE), self._incarnation))
        link.seal(handshake, ours=NODE, theirs=GATEWAY)
        return None
