"""Reads the text of a server's errors: its form for the request log, and the model whose Python stub has died.

Called by the request log, by the table of faults (`inference/retries/faults`), and by `fleet/routing/resending`.
"""

from __future__ import annotations

import re

import orjson

from control_plane.core.errors import ControlPlaneError
from control_plane.metering.domain.usage import ClientStatus
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus
from control_plane.protocols.http1 import HttpAnswer

_DEAD_STUB = re.compile(
    rb"(?:\{\"error\": ?(?:\{\"message\": ?)?\")?"
    rb"(?:in ensemble '[^']{1,300}', "
    rb"|Failed to process the request\(s\) for model (?:instance )?'[^']{1,300}', message: "
    rb"|TritonModelException: )*"
    rb"Stub process '([^']{1,300})' is not healthy"
)
"""Triton's words, after those of ensembles and of models that call this one (BLS): they begin the text. Further behind they may be
a caller's, whom a model quotes in its own error: he could have models ended and loaded anew."""
_ERROR_EVENT = re.compile(rb"(?:^|\n)data: ?(?=\{\"error\":)")
_NUMBERS = re.compile("(_[0-9]+){1,2}$")
"""Suffix that Triton appends to a model's name: the numbers of the instance group and of the instance in
it."""
READ_BYTES = 1000
"""How much of an error's text is searched; Triton puts the words in question first."""


def dead_stub_model_of(came: object) -> str | None:
    """The model whose Python stub process has died, by an error, or an answer or a piece of a stream that is one; None for all else.

    Triton does not restart the stub: the model stays broken until it is loaded again.
    """
    if isinstance(came, bytes):
        return dead_stub_model_in_event(came)
    if isinstance(came, HttpAnswer):
        text = bytes(came.body[:READ_BYTES])
        if came.status == 400:
            return dead_stub_model_in_event(text)
        return dead_stub_model_in(text) if came.status == 500 else None
    if isinstance(came, GrpcAnswer) and came.code == GrpcStatus.INTERNAL:
        return dead_stub_model_in(came.details.encode())
    return dead_stub_model_in(str(came).encode()) if isinstance(came, ControlPlaneError) else None


def is_error_event(text: bytes) -> bool:
    """Whether this is an error in place of a stream's first piece, which over HTTP has the status 400, whatever it is."""
    return _ERROR_EVENT.search(text[:READ_BYTES]) is not None


def client_status_in(answer: object) -> ClientStatus | None:
    """The status and error text that the caller sees, for the request log; None where `answer` is not a
    server's answer.

    An error body over HTTP is JSON, or in some cases Triton's plain text.
    """
    if isinstance(answer, GrpcAnswer):
        return ClientStatus(answer.code, answer.details if answer.code else "")
    if isinstance(answer, HttpAnswer):
        return ClientStatus(answer.status, "" if answer.status == 200 else _error_in(bytes(answer.body[:READ_BYTES])))
    status = getattr(answer, "status", None)  # a streamed answer has a status and no body yet
    return ClientStatus(status) if isinstance(status, int) else None


def _error_in(body: bytes) -> str:
    try:
        said = orjson.loads(body)["error"]
        if isinstance(said, dict):
            said = said["message"]  # in OpenAI's form
    except (orjson.JSONDecodeError, KeyError, TypeError):
        said = None
    return said if isinstance(said, str) else body.decode(errors="replace")


def dead_stub_model_in(text: bytes) -> str | None:
    """The model whose stub has died, by an error's text; an instance group's own name, if the configuration
    sets one."""
    found = _DEAD_STUB.match(text[:READ_BYTES])
    return None if found is None else _NUMBERS.sub("", found[1].decode(errors="replace"))


def dead_stub_model_in_event(text: bytes) -> str | None:
    """As `dead_stub_model_in`, by a text that has an error as an event; None where it has none."""
    found = _ERROR_EVENT.search(text[:READ_BYTES])
    return None if found is None else dead_stub_model_in(text[found.end() :])
