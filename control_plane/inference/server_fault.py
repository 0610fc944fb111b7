"""What an answer says beyond what was computed: how it failed, that there is none, or that a process that it computes with is gone.

Asked by `fleet/routing/dispatch`, and for the request log. Triton tells the last by its words alone (server 24.10): it goes on listing the
model as READY.
"""

from __future__ import annotations

import re

import orjson

from control_plane.core.infer_call import Loss
from control_plane.metering.domain.usage import Told
from control_plane.protocols.grpc import GrpcAnswer
from control_plane.protocols.http1 import HttpAnswer

_DEAD_STUB = re.compile(rb"Stub process '([^']{1,300})' is not healthy")
_NUMBERS = re.compile("(_[0-9]+){1,2}$")
"""Of the instance group and of the instance in it."""
_READ_BYTES = 1000
"""Of an error's text; Triton puts its words first."""

_INTERNAL = 13


def loss_of(answer: object) -> Loss | None:
    """Why there is no answer of the server's; None: this is one."""
    return answer.loss if isinstance(answer, GrpcAnswer) else None


def dead_model_of(answer: object) -> str | None:
    """The model whose Python process is gone, for which it does not come back before a load; None: this says nothing of the kind."""
    if isinstance(answer, HttpAnswer):
        return dead_model_in(bytes(answer.body[:_READ_BYTES])) if answer.status == 500 else None
    return dead_model_in(answer.details.encode()) if isinstance(answer, GrpcAnswer) and answer.code == _INTERNAL else None


def told_by(answer: object) -> Told | None:
    """What it tells its caller; None of what is no answer of a server's. An error over HTTP is JSON, or Triton's plain words."""
    if isinstance(answer, GrpcAnswer):
        return Told(answer.code, answer.details if answer.code else "")
    if isinstance(answer, HttpAnswer):
        return Told(answer.status, "" if answer.status == 200 else _error_in(bytes(answer.body[:_READ_BYTES])))
    status = getattr(answer, "status", None)  # of one that comes in pieces
    return Told(status) if isinstance(status, int) else None


def _error_in(body: bytes) -> str:
    try:
        said = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        said = None
    return said if isinstance(said, str) else body.decode(errors="replace")


def dead_model_in(text: bytes) -> str | None:
    """The same of an error's words. Where the model's configuration names its instances, it is their name."""
    found = _DEAD_STUB.search(text[:_READ_BYTES])
    return None if found is None else _NUMBERS.sub("", found[1].decode(errors="replace"))
