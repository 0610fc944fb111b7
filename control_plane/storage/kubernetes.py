"""Client of the Kubernetes API server for a pod with its own token: the few calls that a gateway needs, over httpx.

Follows "Kubernetes API Concepts": a list says its resourceVersion, a watch goes on from there, `410 Gone` means that
the server does not remember so far back and all has to be listed again; a write that names the resourceVersion which
it is based on is refused with `409 Conflict` where the object has another one by now.

The official client is not used: it takes 50 MB and a second to import for these calls, and its watch retries by itself
without a bound on silence. Called by the adapters of `fleet` and `operator`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx
import orjson

from control_plane.concurrency.used_connection import UsedConnection
from control_plane.core.errors import StartupError

_TIMEOUT_S = 10.0
"""Longest wait for a connection, and for a part of an answer, of a list."""

_ANSWER_S = 60.0
"""Longest time for a whole answer: one that comes a byte at a time is never silent."""

_PAGE = 500
"""Objects in one answer of a list."""

_MAX_LINE_BYTES = 32 * 2**20
"""Longest event of a watch: many times a slice of 1,000 endpoints."""

_REJECTED = (httpx.codes.BAD_REQUEST, httpx.codes.REQUEST_ENTITY_TOO_LARGE, httpx.codes.UNPROCESSABLE_ENTITY)


class Gone(Exception):
    """The server does not remember this resourceVersion: everything has to be listed again."""


class ApiUnavailable(Exception):
    """The server cannot be reached, or answers with an error; the text says which, without secrets."""


class NotThere(ApiUnavailable):
    """There is no such object, or the server does not know objects of that kind: their definition is not installed."""


class Rejected(ApiUnavailable):
    """The server does not take what was written, and would not again: it breaks a rule of its definition, or is too large."""


class ChangedMeanwhile(Exception):
    """The object is not as it was when it was read: somebody has changed, created or deleted it."""


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

    def __init__(
        self, url: str, account: Path, *, watching: Watching | None = None, keep_s: float = 0.0, answer_s: float = _ANSWER_S
    ) -> None:
        """`account` has the pod's token and the certificate of the API server's authority; an idle connection is kept for
        `keep_s`, and an answer that is no watch may take `answer_s`. Raises StartupError: that certificate cannot be
        read."""
        self._answer_s = answer_s
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
        # A connection that is kept may be half open, and would cost the next call its whole time-out.
        kept = httpx.Limits(max_keepalive_connections=1 if keep_s else 0, keepalive_expiry=keep_s)
        # Proxies of the environment are for the world outside, and must not see the token.
        self._client = httpx.AsyncClient(base_url=url, verify=verify, trust_env=False, timeout=_TIMEOUT_S, limits=kept)

    async def get(self, path: str) -> dict[str, Any] | None:
        """Return an object as it is now (a quorum read, never the server's cache); None if there is none. Raises
        ApiUnavailable."""
        try:
            return await self._call("GET", path)
        except NotThere:
            return None

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection `path`, and return it. Raises ChangedMeanwhile: there is one of that name;
        ApiUnavailable."""
        return await self._call("POST", path, body=body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object, or with a path that ends in `/status` its status, and return it.

        Raises ChangedMeanwhile: its resourceVersion is not that of `body` any more, or it is gone; Rejected; ApiUnavailable.
        """
        try:
            return await self._call("PUT", path, body=body)
        except NotThere as exc:
            raise ChangedMeanwhile(str(exc)) from None

    async def list_all(self, path: str, selector: str = "") -> tuple[list[Mapping[str, Any]], str]:
        """Return the objects that a label selector chooses, and the resourceVersion to watch from.

        Raises Gone, if the list changed too much while it was read, and ApiUnavailable.
        """
        found: list[Mapping[str, Any]] = []
        query = {**_chosen_by(selector), "limit": str(_PAGE)}
        while True:
            page = await self._call("GET", path, query)
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
            **_chosen_by(selector),
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watching.ends_s),
        }
        longest_s = self._watching.ends_s + self._watching.silent_s
        silent = httpx.Timeout(_TIMEOUT_S, read=longest_s)
        async with self._asking("GET", path, query, timeout=silent) as answer:
            async for line in _lines(_within(answer, longest_s)):
                event = _json(line)
                kind, it = event.get("type"), event.get("object")
                if not isinstance(it, dict) or kind == "ERROR":
                    _refuse(_code(it), _text(it), in_watch=True)
                yield str(kind), it

    async def close(self) -> None:
        await self._client.aclose()

    async def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, *, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        async with self._asking(method, path, query or {}, body=body, timeout=httpx.Timeout(_TIMEOUT_S)) as answer:
            return _json(b"".join([part async for part in _within(answer, self._answer_s)]))

    @asynccontextmanager
    async def _asking(
        self, method: str, path: str, query: Mapping[str, str], *, body: Mapping[str, Any] | None = None, timeout: httpx.Timeout
    ) -> AsyncIterator[httpx.Response]:
        """Send one request; the token is read anew each time, since it is replaced every hour."""
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except OSError as exc:
            raise ApiUnavailable(
                f"{self._token_file} cannot be read: {exc.strerror}; the pod needs automountServiceAccountToken: true"
            ) from None
        except UnicodeDecodeError:
            raise ApiUnavailable(f"{self._token_file} has no token") from None
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        content = None
        if body is not None:
            headers["content-type"], content = "application/json", orjson.dumps(body)
        used = UsedConnection()
        call = self._client.stream(
            method, path, params=dict(query), headers=headers, content=content, timeout=timeout, extensions=used.trace
        )
        try:
            async with used, call as answer:
                used.stream = answer.extensions["network_stream"]
                if not answer.is_success:
                    told = b"".join([part async for part in _within(answer, self._answer_s)])
                    _refuse(answer.status_code, _text(_json(told, default={})))
                yield answer
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise ConnectionLost(f"{type(exc).__name__} {exc}".strip()) from None


def _chosen_by(selector: str) -> dict[str, str]:
    return {"labelSelector": selector} if selector else {}


async def _within(answer: httpx.Response, longest_s: float) -> AsyncIterator[bytes]:
    """Yield the parts of an answer as they come. Raises ConnectionLost: they go on for longer."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + longest_s
    async for part in answer.aiter_bytes():
        yield part
        if loop.time() > ends_s:
            raise ConnectionLost(f"the answer goes on for more than {longest_s:g} s")


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of an answer as they come; a last one without an end was cut off, and is dropped."""
    kept = b""
    async for part in parts:
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


def _refuse(code: int, text: str, *, in_watch: bool = False) -> NoReturn:
    if code == httpx.codes.GONE:
        raise Gone(text)
    if code == httpx.codes.CONFLICT and not in_watch:
        raise ChangedMeanwhile(text[:500])
    told = f"{code} {text[:500]}".strip()
    if code == httpx.codes.NOT_FOUND:
        raise NotThere(told)
    raise Rejected(told) if code in _REJECTED else ApiUnavailable(told)


def api_url(address: str, setting: str) -> str:
    """Return the API server's URL by its host and port. Raises StartupError: there is none, as this is no pod."""
    if not address:
        raise StartupError(f"{setting} asks the Kubernetes API server, and this is not running in a pod")
    return f"https://{address}"


def place_of(reference: str, account: Path, setting: str) -> tuple[str, str]:
    """Return the namespace and the name that `[NAMESPACE/]NAME` means for this pod. Raises StartupError."""
    namespace, slash, name = reference.rpartition("/")
    if slash:
        return namespace, name
    try:
        return (account / "namespace").read_text().strip(), name
    except OSError as exc:
        raise StartupError(f"{account / 'namespace'} cannot be read: {exc.strerror}; say {setting} NAMESPACE/{name}") from None
