"""Codec of the messages between the parent process and its workers: length-prefixed JSON frames."""

from __future__ import annotations

from typing import Any, get_args

import orjson
from pydantic import TypeAdapter

from control_plane.workers.messages import FromWorker, Message, ToWorker

LENGTH_BYTES = 4  # before each frame, big-endian

_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in (*get_args(ToWorker), *get_args(FromWorker))}


def encode(message: Message) -> bytes:
    """Encode a message as one frame, length included."""
    kind = type(message).__name__
    body = orjson.dumps([kind, _ADAPTERS[kind].dump_python(message, mode="json")])
    return len(body).to_bytes(LENGTH_BYTES) + body


def decode(body: bytes) -> Message:
    """Decode the message in a frame, without its length."""
    kind, fields = orjson.loads(body)
    message: Message = _ADAPTERS[kind].validate_python(fields)
    return message
