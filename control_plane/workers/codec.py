"""Codec of the messages between the parent process and its workers: length-prefixed JSON frames."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter

from control_plane.workers.messages import FromWorker, Message, ToWorker

LENGTH_BYTES = 4  # before each frame, big-endian

_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(ToWorker), *get_args(FromWorker))}


@cache
def _adapter_of(kind: str) -> TypeAdapter[Any]:
    """Made with the first message of a kind: a gateway without workers sends none."""
    return TypeAdapter(_KINDS[kind])


def encode(message: Message) -> bytes:
    """Encode a message as one frame, length included."""
    kind = type(message).__name__
    body = orjson.dumps([kind, _adapter_of(kind).dump_python(message, mode="json")])
    return len(body).to_bytes(LENGTH_BYTES) + body


def decode(body: bytes) -> Message:
    """Decode the message in a frame, without its length."""
    kind, fields = orjson.loads(body)
    message: Message = _adapter_of(kind).validate_python(fields)
    return message
