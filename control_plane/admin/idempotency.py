"""Idempotency keys of the admin API: a POST that creates is done once, however often it is sent with the same key.

The header is that of draft-ietf-httpapi-idempotency-key-header, as for jobs. Answers are remembered for some minutes by the
process that gave them, and never written anywhere: that of a new API key has its secret.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Depends, Header
from pydantic.json_schema import SkipJsonSchema
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.admin.actor import PRINCIPAL
from control_plane.admin.errors import render_error
from control_plane.core.errors import Conflict, ControlPlaneError, IdempotencyKeyReused, InvalidRequest, Overloaded
from control_plane.core.principal import ANONYMOUS, Principal

REPLAYED = "Idempotency-Replayed"
"""Header of an answer that an earlier request with the same key was given."""
KEEP_S = 600.0
"""Longer than any client tries the same request again; a secret should not stay in memory for longer than it must."""
_MOST = 1000
_KEY = re.compile(r'"?([\x21\x23-\x7e]{1,255})"?')
_CREATES = re.compile(r"/keys|/webhook-secrets|/keys/[^/]+/rotate|/rollouts/[^/]+")
_RULE = "Idempotency-Key must have 1 to 255 visible ASCII characters, as a UUID has; quotes around it are optional"

_Who = tuple[str, str, str]


@dataclass(slots=True)
class _Entry:
    """Record of the first request with an idempotency key, and of its answer."""

    digest: bytes
    """SHA-256 of the request's path, query and body."""
    until_s: float
    messages: list[Message] | None = None
    """Its answer; None while there is none."""
    is_cut_off: bool = False
    """Whether its caller left before there was an answer: nobody knows whether it was done."""


class Idempotency:
    """ASGI middleware that answers a repeated POST with what the first one was answered; within `AdminAccess`."""

    def __init__(self, app: ASGIApp, now_s: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._now_s = now_s
        self._entries: OrderedDict[_Who, _Entry] = OrderedDict()
        """Records by caller and idempotency key, the oldest first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        given = headers.getlist("idempotency-key")
        if not given or scope["method"] != "POST" or not _CREATES.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            found = _KEY.fullmatch(given[0]) if len(given) == 1 else None
            if found is None:
                raise InvalidRequest(_RULE)
            await self._once(found[1], scope, receive, send)
        except ControlPlaneError as error:
            await render_error(error, ", ".join(headers.getlist("accept")))(scope, receive, send)

    async def _once(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _whole(receive)
        principal: Principal = scope.get(PRINCIPAL, ANONYMOUS)
        who = principal.tenant, principal.key_id, key
        digest = sha256(b"%b\0%b\0%b" % (scope["path"].encode(), scope["query_string"], body)).digest()
        earlier = self._earlier(who)
        if earlier is not None:
            for message in _answer_of(earlier, digest):
                await send(message)
            return
        entry = self._entries[who] = _Entry(digest, self._now_s() + KEEP_S)
        await self._first(who, entry, scope, body, send)

    async def _first(self, who: _Who, entry: _Entry, scope: Scope, body: bytes, send: Send) -> None:
        """Answer the first request with a key, and remember the answer if something was created."""
        messages: list[Message] = []
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return pending.pop() if pending else {"type": "http.disconnect"}

        async def keep(message: Message) -> None:
            messages.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                # Before it is sent: a caller that leaves while it is sent will ask again.
                if messages[0]["status"] // 100 == 2:
                    entry.messages = messages
                else:
                    self._entries.pop(who, None)
                for each in messages:
                    await send(each)

        try:
            await self._app(scope, receive, keep)
        except BaseException:
            entry.is_cut_off = entry.messages is None
            raise

    def _earlier(self, who: _Who) -> _Entry | None:
        now_s = self._now_s()
        while self._entries and next(iter(self._entries.values())).until_s <= now_s:
            self._entries.popitem(last=False)
        found = self._entries.get(who)
        if found is None and len(self._entries) >= _MOST:
            # Forgetting a younger one would let its request be done twice.
            raise Overloaded(f"{_MOST} idempotency keys were used within {KEEP_S / 60:g} minutes; try again later")
        return found


def _answer_of(entry: _Entry, digest: bytes) -> list[Message]:
    """Return the messages of an answer that was given before. Raises IdempotencyKeyReused, Conflict."""
    if entry.digest != digest:
        raise IdempotencyKeyReused("this Idempotency-Key came before with another request; use a new key for a new request")
    if entry.is_cut_off:
        raise Conflict(
            "the request with this Idempotency-Key was cut off before it was answered, and may have been done: "
            "look whether what it creates is there, and use a new key"
        )
    if entry.messages is None:
        raise Conflict("a request with this Idempotency-Key is being answered now; ask again shortly")
    start, *rest = entry.messages
    return [{**start, "headers": [*start["headers"], (REPLAYED.lower().encode(), b"true")]}, *rest]


async def _whole(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _told(
    idempotency_key: Annotated[
        str | SkipJsonSchema[None],
        Header(
            description=f"A text that no other request has, such as a UUID: sent again with it within {KEEP_S / 60:g} minutes, to "
            "the same gateway, the request is answered as it was, and not done again.",
            json_schema_extra={"pattern": f"^{_KEY.pattern}$"},
        ),
    ] = None,
) -> None:
    """Tell OpenAPI of the header, which the middleware reads."""


Once = Depends(_told)
"""For handlers of paths that take idempotency keys."""
