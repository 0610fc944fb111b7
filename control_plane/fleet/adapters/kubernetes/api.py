"""The Kubernetes API server as a pod reaches it: list and watch, with the pod's own token.

Follows "Kubernetes API Concepts": a list says its resourceVersion, a watch goes on from there, `410 Gone` means that
the server does not remember so far back and all has to be listed again.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx
import orjson

from control_plane.core.errors import StartupError

_TIMEOUT_S = 10.0
"""Longest wait for a connection, and for a part of an answer, of a list."""

_NO_REUSE = httpx.Limits(max_keepalive_connections=0)
"""A connection that is kept may be half open, and would cost the next call its whole time-out."""

_PAGE = 500
"""Objects in one answer of a list."""

_MAX_LINE_BYTES = 32 * 2**20
"""Longest event of a watch: many times a slice of 1,000 endpoints."""


class Gone(Exception):
    """The server does not remember this resourceVersion: everything has to be listed again."""


class ApiUnavailable(Exception):
    """The server cannot be reached, or answers with an error; the text says which, without secrets."""


class ConnectionLost(ApiUnavailable):
    """The server does not answer, or no longer: there is no connection to it, or it broke or fell silent."""


@dataclass(frozen=True, slots=True)
class Watching:
    """Limits of a watch, in seconds."""

    ends_s: int = 20
    """After so long the server ends the watch, and another one begins: a connection that is half open says nothing
    for ever, which only this tells from a Service in which nothing happens."""

    silent_s: float = 5.0
    """How much later than that the connection is given up. Together with the list that follows they are the longest
    time for which a change may stay unseen."""


class KubernetesApi:
    """HTTP client of the API server; it connects when it is first used."""

    def __init__(self, url: str, account: Path, *, watching: Watching | None = None) -> None:
        """`account` has the pod's token and the certificate of the API server's authority. Raises StartupError:
        that certificate cannot be read."""
        self._token_file = account / "token"
        self._watching = watching or Watching()
        verify: ssl.SSLContext | bool = True
        if url.startswith("https:"):
            try:
                verify = ssl.create_default_context(cafile=account / "ca.crt")
            except OSError as exc:
                raise StartupError(
                    f"{account / 'ca.crt'} cannot be read: {exc.strerror}; the pod needs automountServiceAccountToken: true"
                ) from None
        # Proxies of the environment are for the world outside, and must not see the token.
        self._client = httpx.AsyncClient(base_url=url, verify=verify, trust_env=False, timeout=_TIMEOUT_S, limits=_NO_REUSE)

    async def list_all(self, path: str, selector: str) -> tuple[list[Mapping[str, Any]], str]:
        """Return the objects that a label selector chooses, and the resourceVersion to watch from.

        Raises Gone, if the list changed too much while it was read, and ApiUnavailable.
        """
        found: list[Mapping[str, Any]] = []
        query = {"labelSelector": selector, "limit": str(_PAGE)}
        while True:
            page = await self._read(path, query)
            found += page.get("items") or ()
            metadata = page.get("metadata") or {}
            if not (more := metadata.get("continue")):
                return found, str(metadata.get("resourceVersion", ""))
            query["continue"] = more

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield (type, object) of each change since `version`, until the server ends the watch.

        Raises Gone, and ApiUnavailable also when it says nothing any more.
        """
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watching.ends_s),
        }
        silent = httpx.Timeout(_TIMEOUT_S, read=self._watching.ends_s + self._watching.silent_s)
        async with self._asking(path, query, silent) as answer:
            async for line in _lines(answer):
                event = _json(line)
                kind, it = event.get("type"), event.get("object")
                if not isinstance(it, dict) or kind == "ERROR":
                    _refuse(_code(it), _text(it))
                yield str(kind), it

    async def close(self) -> None:
        await self._client.aclose()

    async def _read(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        async with self._asking(path, query, httpx.Timeout(_TIMEOUT_S)) as answer:
            return _json(await answer.aread())

    @asynccontextmanager
    async def _asking(self, path: str, query: Mapping[str, str], timeout: httpx.Timeout) -> AsyncIterator[httpx.Response]:
        """Send one request; the token is read anew each time, since it is replaced every hour."""
        try:
            token = self._token_file.read_text().strip()
        except OSError as exc:
            raise ApiUnavailable(
                f"{self._token_file} cannot be read: {exc.strerror}; the pod needs automountServiceAccountToken: true"
            ) from None
        try:
            headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
            async with self._client.stream("GET", path, params=dict(query), headers=headers, timeout=timeout) as answer:
                if answer.status_code != httpx.codes.OK:
                    _refuse(answer.status_code, _text(_json(await answer.aread(), default={})))
                yield answer
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise ConnectionLost(f"{type(exc).__name__} {exc}".strip()) from None


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of an answer as they come; a last one without an end was cut off, and is dropped."""
    kept = b""
    async for part in answer.aiter_bytes():
        *whole, kept = (kept + part).split(b"\n")
        for line in whole:
            if line:
                yield line
        if len(kept) > _MAX_LINE_BYTES:
            raise ApiUnavailable(f"an event is longer than {_MAX_LINE_BYTES} bytes")


def _json(text: bytes, default: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        read = default
    if not isinstance(read, dict):
        raise ApiUnavailable("the answer is no JSON object; is this a Kubernetes API server?")
    return read


def _code(status: Any) -> int:
    code = status.get("code") if isinstance(status, dict) else None
    return code if isinstance(code, int) else 0


def _text(status: Any) -> str:
    return str(status.get("message", "")) if isinstance(status, dict) else ""


def _refuse(code: int, text: str) -> NoReturn:
    if code == httpx.codes.GONE:
        raise Gone(text)
    raise ApiUnavailable(f"{code} {text[:500]}".strip())


def api_url(address: str) -> str:
    """Return the API server's URL by its host and port. Raises StartupError: there is none, as this is no pod."""
    if not address:
        raise StartupError(
            "--triton-service looks for the pods of a Kubernetes Service, and this is not running in a pod; use --triton-url or "
            "--servers-file"
        )
    return f"https://{address}"
