"""Codec of the requests and responses of generative models, with the interface of Triton's vLLM backend, as messages of
ModelStreamInfer.

Source: triton-inference-server/vllm_backend, `src/utils/request.py`: what a model is asked for is in its inputs, each response
has the text since the last one, and a whole answer is one response. A TensorRT-LLM ensemble would have its own codec beside
this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from control_plane.generation.domain.completion_request import CompletionRequest
from control_plane.generation.domain.generative_model import (
    FINISH_REASON,
    GENERATED,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    SAMPLING,
    STREAM,
    TEXT,
    WITHOUT_PROMPT,
    GenerativeModel,
)
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements

_COUNT_BYTES = 4


@dataclass(slots=True)
class Generated:
    """One response of a generative model. Never modified, but a frozen dataclass takes longer to make."""

    text: str = ""
    finish_reason: str = ""
    """Why it ends here; empty: it goes on, or the model does not say."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    """Tokens of this response; None where the model does not count them."""
    error: str = ""
    """The model's error, in place of all else."""


def request_message(wanted: CompletionRequest, model: GenerativeModel, prompt: str, *, name: str, version: str, request_id: str) -> bytes:
    """The ModelInferRequest that asks the model `name` for what is wanted."""
    message = service_pb2.ModelInferRequest(model_name=name, model_version=version, id=request_id)
    _add(message, TEXT, "BYTES", encode_bytes_elements([prompt.encode()]))
    _add(message, SAMPLING, "BYTES", encode_bytes_elements([orjson.dumps(wanted.sampling)]))
    flags = {STREAM: wanted.is_streamed, WITHOUT_PROMPT: True, **{f"return_{each}": True for each in model.returned}}
    for each, value in flags.items():
        if each in model.inputs:
            _add(message, each, "BOOL", b"\1" if value else b"\0")
    return bytes(message.SerializeToString())


def _add(message: Any, name: str, datatype: str, raw: bytes) -> None:
    message.inputs.add(name=name, datatype=datatype, shape=[1])
    message.raw_input_contents.append(raw)


def read_response(message: bytes | memoryview) -> Generated:
    """Read a ModelStreamInferResponse."""
    answer = service_pb2.ModelStreamInferResponse.FromString(bytes(message))
    if answer.error_message:
        return Generated(error=answer.error_message)
    response, found = answer.infer_response, Generated()
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name == GENERATED:
            found.text = _text(raw)
        elif output.name == FINISH_REASON:
            reason = _text(raw)
            found.finish_reason = "" if reason == "None" else reason  # a text of Python's None, where it goes on
        elif output.name == INPUT_TOKENS:
            found.input_tokens = _count(raw)
        elif output.name == OUTPUT_TOKENS:
            found.output_tokens = _count(raw)
    return found


def _text(raw: bytes) -> str:
    """The first element of a BYTES tensor; empty where it has none."""
    return raw[_COUNT_BYTES : _COUNT_BYTES + int.from_bytes(raw[:_COUNT_BYTES], "little")].decode("utf-8", "replace")


def _count(raw: bytes) -> int | None:
    return int.from_bytes(raw[:_COUNT_BYTES], "little") if len(raw) >= _COUNT_BYTES else None
