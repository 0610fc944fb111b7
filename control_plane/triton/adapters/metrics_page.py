"""Triton's page of metrics, read anew each time; only whoever has a page of its own reads it."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import httpx

from control_plane.concurrency.used_connection import UsedConnection
from control_plane.core.endpoints import Address, TcpAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.triton.adapters.connecting import short_path

_TIMEOUT_S = 5.0
_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""TLS context without authorities, for pages over plain HTTP: by default each new client would read all
authorities of this machine, which blocks the event loop for 25 ms.
"""


async def read_metrics(address: Address, tls: ssl.SSLContext | None, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the page. Raises UpstreamUnavailable."""
    try:
        with _transport(address, tls) as transport:
            client = httpx.AsyncClient(transport=transport, timeout=_TIMEOUT_S, trust_env=False)
            async with client, UsedConnection() as used:
                scheme = "http" if tls is None else "https"
                response = await client.get(f"{scheme}://{address.authority}/metrics", headers=dict(headers), extensions=used.trace)
        response.raise_for_status()
    except httpx.HTTPError as exc:
        raise UpstreamUnavailable(f"Triton's metrics at {address} cannot be read: {exc}") from exc
    return response.content


@contextmanager
def _transport(address: Address, tls: ssl.SSLContext | None) -> Iterator[httpx.AsyncHTTPTransport]:
    if isinstance(address, TcpAddress):
        yield httpx.AsyncHTTPTransport(verify=tls or _NO_AUTHORITIES)
        return
    with short_path(address.path) as path:
        yield httpx.AsyncHTTPTransport(verify=_NO_AUTHORITIES, uds=path)
