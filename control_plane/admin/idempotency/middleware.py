"""Idempotency keys of the admin API: a POST that creates is done once, however often and to whichever gateway it is sent.

The header is that of draft-ietf-httpapi-idempotency-key-header, as for jobs. Gateways share the records of these requests;
an answer is kept sealed (`admin/idempotency/sealed_answer`), since that of a new API key has its secret. Where the store of the
records is away nothing is done, as nothing could be created either.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

import orjson
from fastapi import Depends, Header
from pydantic.json_schema import SkipJsonSchema
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.admin.actor import PRINCIPAL
from control_plane.admin.errors import render_error
from control_plane.admin.idempotency.ports import KEEP_S, IdempotencyRecords, Record
from control_plane.admin.idempotency.sealed_answer import AnswerSeal
from control_plane.core.errors import Conflict, ControlPlaneError, IdempotencyKeyReused, InvalidRequest, StoreUnavailable
from control_plane.core.principal import ANONYMOUS, Principal

_log = logging.getLogger(__name__)

REPLAYED = "Idempotency-Replayed"
"""Header of an answer that an earlier request with the same key was given."""
MAX_ANSWER_BYTES = 64 << 10
"""Size of an answer that is kept; the answer to a new rollout has some 20 KB at most."""
_KEY = re.compile(r'"?([\x21\x23-\x7e]{22,255})"?')
"""22 characters: 128 bits, where they are drawn from 64. Where no API key is shown this alone seals the answer."""
_CREATES = re.compile(r"/keys|/webhook-secrets|/keys/[^/]+/rotate|/rollouts/[^/]+")
_RULE = "Idempotency-Key must have 22 to 255 visible ASCII characters that nobody guesses, as a UUID has; quotes are optional"


class Idempotency:
    """ASGI middleware that answers a repeated POST with what the first one was answered; within `AdminAccess`."""

    def __init__(self, app: ASGIApp, records: IdempotencyRecords) -> None:
        self._app = app
        self._records = records

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
            await self._once(_seal_of(found[1], scope, headers), scope, receive, send)
        except ControlPlaneError as error:
            await render_error(error, ", ".join(headers.getlist("accept")))(scope, receive, send)

    async def _once(self, seal: AnswerSeal, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _whole(receive)
        digest = sha256(b"%b\0%b\0%b" % (scope["path"].encode(), scope["query_string"], body)).hexdigest()
        earlier = await self._records.begin(seal.name, digest)
        for message in () if earlier is None else _answer_of(earlier, seal, digest):
            await send(message)
        if earlier is None:
            await self._first(seal, digest, scope, body, send)

    async def _first(self, seal: AnswerSeal, digest: str, scope: Scope, body: bytes, send: Send) -> None:
        """Answer the first request with a key, and keep the answer if something was created.

        A caller that leaves, and a gateway that ends, leave a record without an answer: nobody knows what was done.
        """
        messages: list[Message] = []
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return pending.pop() if pending else {"type": "http.disconnect"}

        async def keep(message: Message) -> None:
            messages.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                # Before it is sent: a caller that leaves while it is sent will ask again.
                await self._keep(seal, digest, messages)
                for each in messages:
                    await send(each)

        await self._app(scope, receive, keep)

    async def _keep(self, seal: AnswerSeal, digest: str, messages: Sequence[Message]) -> None:
        try:
            if messages[0]["status"] // 100 != 2:
                await self._records.forget(seal.name, digest)
            elif len(answer := _pack(messages)) <= MAX_ANSWER_BYTES:
                await self._records.answer(seal.name, digest, seal.seal(answer, digest=digest))
        except StoreUnavailable as exc:  # it is done: who asks again is told that nobody knows
            _log.warning("the answer to a request with an Idempotency-Key is not kept: %s", exc)


def _seal_of(key: str, scope: Scope, headers: Headers) -> AnswerSeal:
    principal: Principal = scope.get(PRINCIPAL, ANONYMOUS)
    # A token is another one when it is renewed: only an API key is the same for whoever asks again.
    shows_key = bool(principal.key_id) and principal.is_known
    secret = (headers.get("x-api-key") or headers.get("authorization", "").partition(" ")[2].strip()) if shows_key else ""
    return AnswerSeal(key, tenant=principal.tenant, key_id=principal.key_id, secret=secret)


def _answer_of(earlier: Record, seal: AnswerSeal, digest: str) -> list[Message]:
    """Return the messages of an answer that was given before. Raises IdempotencyKeyReused, Conflict."""
    if earlier.digest != digest:
        raise IdempotencyKeyReused("this Idempotency-Key came before with another request; use a new key for a new request")
    if not earlier.answer:
        raise Conflict(
            "a request with this Idempotency-Key is being answered now, or was cut off before it was answered and may have been "
            "done: ask again shortly; else look whether what it creates is there, and use a new key"
        )
    answer = seal.open(earlier.answer, digest=digest)
    if answer is None:
        raise Conflict("the request with this Idempotency-Key was done, and only the API key that was shown then opens its answer")
    return _unpack(answer)


def _pack(messages: Sequence[Message]) -> bytes:
    start, *rest = messages
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in start["headers"]]
    body = b"".join(message.get("body", b"") for message in rest)
    return orjson.dumps([start["status"], headers, base64.b64encode(body).decode()])


def _unpack(answer: bytes) -> list[Message]:
    status, told, body = orjson.loads(answer)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told]
    return [
        {"type": "http.response.start", "status": status, "headers": [*headers, (REPLAYED.lower().encode(), b"true")]},
        {"type": "http.response.body", "body": base64.b64decode(body), "more_body": False},
    ]


async def _whole(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _declare_header(
    idempotency_key: Annotated[
        str | SkipJsonSchema[None],
        Header(
            description=f"A text that no other request has, such as a UUID: sent again with it within {KEEP_S / 60:g} minutes, to "
            "any gateway, the request is answered as it was, and not done again.",
            json_schema_extra={"pattern": f"^{_KEY.pattern}$"},
        ),
    ] = None,
) -> None:
    """Tell OpenAPI of the header, which the middleware reads."""


Once = Depends(_declare_header)
"""For handlers of paths that take idempotency keys."""
