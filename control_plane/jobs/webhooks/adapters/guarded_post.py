"""HTTP/1.1 client of webhook receivers that callers have named; implements `webhooks/ports.Post`.

A name is resolved once, each of its addresses is judged, and the connection goes to one of those: what the name resolves
to a moment later (DNS rebinding) does not matter. No redirect is followed, no proxy used, and of the answer nothing is
read but its status. Each exchange has a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress

from control_plane.jobs.ports import NotDelivered
from control_plane.jobs.webhooks.domain.url import UrlRules, WebhookUrl
from control_plane.jobs.webhooks.ports import Resolver

_log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_MAX_LINE_BYTES, _MAX_INTERIM_LINES = 8192, 100
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_MOST_ADDRESSES = 4
"""Addresses that are tried one after the other; each gets an equal share of the time, and the exchange one, too."""
_NO_HTTP = "it does not speak HTTP/1.1"
_NOWHERE = "its name leads to no address of the public Internet"
"""Said of every name that is not connected to, whatever it is: a caller could else find out which names exist inside."""
_AGENT = "tidegate-webhooks/1"


class GuardedPost:
    """Client that connects to allowed addresses only."""

    def __init__(self, rules: UrlRules, resolver: Resolver, *, tls: ssl.SSLContext | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        """`tls` is how receivers are verified, `timeout_s` the limit of a whole exchange."""
        self._rules = rules
        self._resolver = resolver
        self._tls = tls
        self._timeout_s = timeout_s

    async def post(self, url: WebhookUrl, headers: Sequence[tuple[str, str]], body: bytes) -> int:
        until_s = asyncio.get_running_loop().time() + self._timeout_s
        addresses = await self._addresses(url.host, until_s)
        try:
            async with asyncio.timeout_at(until_s):
                return await self._exchange(addresses, url, _message(url, headers, body), until_s)
        except TimeoutError as exc:
            raise NotDelivered(f"no answer within {self._timeout_s:g} s") from exc
        except ssl.SSLCertVerificationError as exc:
            raise NotDelivered("its certificate is not valid for this name") from exc
        except (OSError, asyncio.IncompleteReadError) as exc:
            raise NotDelivered("it cannot be connected to, or hung up") from exc
        except asyncio.LimitOverrunError as exc:
            raise NotDelivered(_NO_HTTP) from exc

    async def close(self) -> None:
        """Nothing is kept open between exchanges."""

    async def _addresses(self, host: str, until_s: float) -> Sequence[str]:
        """Return addresses of the host. One that is not allowed spoils all of them: somebody is trying something."""
        found: Sequence[str] = [host] if _is_literal(host) else ()
        if not found:
            with suppress(TimeoutError):  # of name servers that do not answer
                async with asyncio.timeout_at(until_s):
                    found = await self._resolver.addresses(host)
        if not found or not all(self._rules.allow(address) for address in found):
            _log.info("a webhook's receiver, %s, is not connected to: its name leads to %s", host, ", ".join(found) or "no address")
            raise NotDelivered(_NOWHERE)
        return found[:_MOST_ADDRESSES]

    async def _exchange(self, addresses: Sequence[str], url: WebhookUrl, message: bytes, until_s: float) -> int:
        reader, writer = await self._connect(addresses, url, until_s)
        try:
            writer.write(message)
            await writer.drain()
            return await _status(reader)
        finally:
            writer.transport.abort()  # the answer's rest is not of interest, and a close could take as long as the peer likes

    async def _connect(
        self, addresses: Sequence[str], url: WebhookUrl, until_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that takes a connection in its share of the time. Raises OSError."""
        tls = self._context() if url.is_tls else None
        *others, last = addresses
        for tried, address in enumerate(others):
            left_s = until_s - asyncio.get_running_loop().time()
            with suppress(OSError):  # of which TimeoutError is one
                async with asyncio.timeout(left_s / (len(addresses) - tried + 1)):
                    return await self._open(address, url, tls)
        return await self._open(last, url, tls)

    async def _open(self, address: str, url: WebhookUrl, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = url.host if tls is not None else None
        return await asyncio.open_connection(address, url.port, ssl=tls, server_hostname=name, limit=_MAX_LINE_BYTES)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _message(url: WebhookUrl, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    fields = (("Host", url.authority), ("User-Agent", _AGENT), ("Content-Length", str(len(body))), ("Connection", "close"), *headers)
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"POST {url.target} HTTP/1.1\r\n{lines}\r\n".encode("ascii") + body


async def _status(reader: asyncio.StreamReader) -> int:
    """Read the status of the answer. Raises NotDelivered; ValueError: a line is too long."""
    for _ in range(_MAX_INTERIM_LINES):
        found = _STATUS.fullmatch(await reader.readuntil(b"\n"))
        if found is None:
            raise NotDelivered(_NO_HTTP)
        status = int(found[1])
        if status >= 200:
            return status
        for _ in range(_MAX_INTERIM_LINES):  # the fields of an interim answer
            if (await reader.readuntil(b"\n")).strip() == b"":
                break
    raise NotDelivered("it does not come to an answer")


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
