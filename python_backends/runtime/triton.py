"""Conversion between Triton's requests and responses and those of `execution.py`.

Importable only inside a Python stub, which provides `triton_python_backend_utils`. That module gets its
classes only after the backend was imported, so they are looked up at each use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.runtime.errors import (
    BackendError,
    ExecutionError,
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestExpired,
    Unavailable,
)
from python_backends.runtime.execution import Answer, InferenceRequest, Tensors

# Error -> the name of its code in TritonError.
ERROR_CODES: Mapping[type[BackendError], str] = {
    RequestError: "INVALID_ARG",
    RequestCancelled: "CANCELLED",
    RequestExpired: "UNAVAILABLE",  # as of what expires in Triton's own queues
    QueueFull: "UNAVAILABLE",
    Unavailable: "UNAVAILABLE",
    ExecutionError: "INTERNAL",
}

BACKGROUND = '"tidegate-background"'
"""Request parameter, made of the header field of this name, by which the gateway marks what yields to its callers."""

_TIME_LEFT = re.compile(r'"tidegate-time-left-ms":"(\d{1,12})"')
"""Request parameter, made of the header field of this name, by which the gateway tells how long the caller still waits."""


def version_directory(args: Mapping[str, str]) -> Path:
    """Return the directory of the version being loaded, from the arguments that Triton passes to
    `initialize`.
    """
    return Path(args["model_repository"], args["model_version"])


def serve(
    requests: Sequence[Any],
    execute: Callable[[Sequence[InferenceRequest]], Sequence[Answer]],
    prepare: Callable[[Tensors], Tensors] = lambda inputs: inputs,
) -> list[Any]:
    """Answer Triton's requests with one response each, in order; requests that `prepare` refuses do not reach
    `execute`.
    """
    prepared = [read(request, prepare) for request in requests]
    answers = iter(execute([request for request in prepared if isinstance(request, InferenceRequest)]))
    return [respond(next(answers) if isinstance(request, InferenceRequest) else request) for request in prepared]


def respond(answer: Answer) -> Any:
    """Make Triton's response of an answer."""
    if isinstance(answer, BackendError):
        code = getattr(pb_utils.TritonError, ERROR_CODES[type(answer)])
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answer), code))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in answer.items()])


def send(sender: Any, answer: Answer) -> None:
    """Send the only answer of a request through its response sender; if it cannot be made, send an error
    instead.
    """
    try:
        response = respond(answer)
    except Exception as exc:
        # For example if shared memory is full: an error needs less of it.
        response = respond(ExecutionError(f"the answer cannot be handed over: {exc}"))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def read(request: Any, prepare: Callable[[Tensors], Tensors]) -> InferenceRequest | BackendError:
    """Convert Triton's request, or return the error that `prepare` raised for it."""
    try:
        inputs = prepare({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
    except BackendError as exc:
        return exc
    given = request.parameters()
    yields = BACKGROUND in given  # JSON, in which no caller's text can have it unless it wants to yield
    left_s = _time_left_s(given, request.timeout())
    return InferenceRequest(inputs, request.requested_output_names(), request.is_cancelled, yields, left_s)


def _time_left_s(given: str, timeout_microseconds: int) -> float:
    """Return the seconds that a request may wait: what the gateway says, or its parameter `timeout`, whichever is less."""
    told = _TIME_LEFT.search(given)
    return min(timeout_microseconds / 1e6 or inf, int(told[1]) / 1e3 if told else inf)
