"""The edge to Triton: its requests as plain ones, and answers as its responses.

Importable only inside a Python stub, which provides `triton_python_backend_utils`. That module gets its classes after a backend has been
imported, so they are looked up when used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.runtime.errors import BackendError, ExecutionError, QueueFull, RequestCancelled, RequestError
from python_backends.runtime.execution import Answer, InferenceRequest, Tensors

# Error -> the name of its code in TritonError.
ERROR_CODES: Mapping[type[BackendError], str] = {
    RequestError: "INVALID_ARG",
    RequestCancelled: "CANCELLED",
    QueueFull: "UNAVAILABLE",
    ExecutionError: "INTERNAL",
}


def version_directory(args: Mapping[str, str]) -> Path:
    """The directory of the version being loaded, from what Triton passes to `initialize`."""
    return Path(args["model_repository"], args["model_version"])


def serve(
    requests: Sequence[Any],
    execute: Callable[[Sequence[InferenceRequest]], Sequence[Answer]],
    prepare: Callable[[Tensors], Tensors] = lambda inputs: inputs,
) -> list[Any]:
    """Answer Triton's requests, one response each in their order; one that `prepare` refuses does not reach `execute`."""
    prepared = [read(request, prepare) for request in requests]
    answers = iter(execute([request for request in prepared if isinstance(request, InferenceRequest)]))
    return [respond(next(answers) if isinstance(request, InferenceRequest) else request) for request in prepared]


def respond(answer: Answer) -> Any:
    """Triton's response for an answer."""
    if isinstance(answer, BackendError):
        code = getattr(pb_utils.TritonError, ERROR_CODES[type(answer)])
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answer), code))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in answer.items()])


def send(sender: Any, answer: Answer) -> None:
    """Answer a request through its response sender; no other answer follows. One that cannot be made is told as an error."""
    try:
        response = respond(answer)
    except Exception as exc:
        # Shared memory that is full, for one: an error takes less of it.
        response = respond(ExecutionError(f"the answer cannot be handed over: {exc}"))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def read(request: Any, prepare: Callable[[Tensors], Tensors]) -> InferenceRequest | BackendError:
    """Triton's request as a plain one, or what `prepare` has against it."""
    try:
        inputs = prepare({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
    except BackendError as exc:
        return exc
    return InferenceRequest(inputs, request.requested_output_names(), request.is_cancelled)
