"""Connects a gateway to one node, and authenticates both sides: `node/ports.NodeConnector`."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from typing import Any

from control_plane.core.endpoints import authority
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
    decode,
    encode,
    expect,
)
from control_plane.node.ports import NodeRefused


class TcpNodeConnector:
    """Connector over TCP, with TLS if a context is given."""

    def __init__(self, host: str, port: int, *, fleet: str, gateway: str, secret: bytes | None, tls: ssl.SSLContext | None) -> None:
        self.address = authority(host, port)
        self._place = host, port
        self._fleet = fleet
        self._gateway = gateway
        self._secret = secret
        self._tls = tls

    async def connect(self, *, timeout_s: float) -> FrameLink:
        async with asyncio.timeout(timeout_s):
            options: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls, "server_hostname": self._place[0]}
            reader, writer = await asyncio.open_connection(*self._place, limit=2**18, **options)
            link = FrameLink(reader, writer)
            try:
                await self._handshake(link)
            except WrongMessage as exc:
                link.close()
                raise NodeRefused(f"what answers at {self.address} is no node of this version: {exc}") from None
            except BaseException:
                link.close()
                raise
            return link

    async def _handshake(self, link: FrameLink) -> None:
        hello = encode(Hello(*VERSIONS, secrets.token_hex(NONCE_BYTES), self._fleet, self._gateway))
        link.send_body(hello)
        body = await link.receive_body()
        challenge = expect(self._unless_refused(body), Challenge)
        assert body is not None
        if not VERSIONS[0] <= challenge.version <= VERSIONS[1]:
            raise NodeRefused(
                f"the node at {self.address} chose version {challenge.version} of the wire, which this gateway does not speak"
            )
        if challenge.wants_secret != (self._secret is not None):
            has = "wants a secret: give its file as --node-secret-file" if challenge.wants_secret else "has no secret to prove itself by"
            raise NodeRefused(f"the node at {self.address} {has}")
        handshake = None if self._secret is None else Handshake(self._secret, hello + body)
        link.send(GatewayProof(b"" if handshake is None else handshake.proof(GATEWAY)))
        welcome = expect(self._unless_refused(await link.receive_body()), Welcome)
        if handshake is not None and not handshake.is_proof(NODE, welcome.proof):
            raise NodeRefused(f"what answers at {self.address} does not have the node's secret")
        link.incarnation = welcome.incarnation
        link.seal(handshake, ours=GATEWAY, theirs=NODE)

    def _unless_refused(self, body: bytes | None) -> bytes:
        if body is None:
            raise ConnectionError("the connection was closed")
        if isinstance(message := decode(body), Refused):
            raise NodeRefused(f"the node at {self.address} refuses this gateway: {message.reason}")
        return body
