"""Triton with one generative model, which has the interface of Triton's vLLM backend: it says the words of its prompt again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from control_plane.core.model import ModelState
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.protocols.kserve.tensors.bytes_tensor import encode_bytes_elements
from tests.fakes.triton.upstream import FakeUpstream

OPTIONAL = ("stream", "exclude_input_in_output", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }} {{ message.content }}<|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def config_of(*, optional: Iterable[str] = OPTIONAL, **parameters: str) -> dict[str, Any]:
    """The model's configuration as Triton shows it."""
    texts = [{"name": "text_input", "data_type": "TYPE_STRING", "dims": ["1"], "optional": False}]
    texts += [{"name": "sampling_parameters", "data_type": "TYPE_STRING", "dims": ["1"], "optional": True}]
    return {
        "name": "m",
        "max_batch_size": 0,
        "input": [*texts, *({"name": name, "data_type": "TYPE_BOOL", "dims": ["1"], "optional": True} for name in optional)],
        "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": ["-1"]}],
        "model_transaction_policy": {"decoupled": True},
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }


def response(text: str = "", *, reason: str | None = None, read: int | None = None, written: int | None = None, error: str = "") -> bytes:
    """A ModelStreamInferResponse of the model."""
    if error:
        return bytes(service_pb2.ModelStreamInferResponse(error_message=error).SerializeToString())
    message = service_pb2.ModelStreamInferResponse()
    answer = message.infer_response
    answer.model_name, answer.model_version = "m", "1"
    found: list[tuple[str, str, bytes]] = [("text_output", "BYTES", encode_bytes_elements([text.encode()]))]
    if reason is not None:
        found.append(("finish_reason", "BYTES", encode_bytes_elements([reason.encode()])))
    counts = {"num_input_tokens": read, "num_output_tokens": written}
    found += [(name, "UINT32", count.to_bytes(4, "little")) for name, count in counts.items() if count is not None]
    for name, datatype, raw in found:
        answer.outputs.add(name=name, datatype=datatype, shape=[1])
        answer.raw_output_contents.append(raw)
    return bytes(message.SerializeToString())


@dataclass(frozen=True)
class Asked:
    """What a model was asked for."""

    prompt: str
    sampling: dict[str, Any]
    flags: dict[str, bool]

    @classmethod
    def of(cls, message: bytes) -> Asked:
        request = service_pb2.ModelInferRequest.FromString(message)
        raw = {tensor.name: data for tensor, data in zip(request.inputs, request.raw_input_contents, strict=True)}
        flags = {name: data == b"\1" for name, data in raw.items() if name not in ("text_input", "sampling_parameters")}
        return cls(raw["text_input"][4:].decode(), orjson.loads(raw["sampling_parameters"][4:]), flags)


def parrot(asked: Asked) -> list[bytes]:
    """Say the words of the prompt again, each in a response of its own where they are streamed."""
    most = asked.sampling["max_tokens"]
    words = asked.prompt.split(" ")
    said = words[:most]
    reason = "length" if len(words) > most else "stop"
    if not asked.flags.get("stream"):
        return [response(" ".join(said), reason=reason, read=len(words), written=len(said))]
    pieces = [response(word if not index else f" {word}", reason="None", read=len(words), written=1) for index, word in enumerate(said)]
    return [*pieces, response("", reason=reason, read=len(words), written=0)]


@dataclass
class FakeGenerativeModel:
    """The model `m` of `upstream`, which answers by `says`."""

    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    config: dict[str, Any] = field(default_factory=lambda: config_of(chat_template=TEMPLATE))
    asked: list[Asked] = field(default_factory=list)
    says: Any = parrot

    def __post_init__(self) -> None:
        self.upstream.control.states = {"m": ModelState.READY}
        self.upstream.http.answer = self._answer
        self.upstream.grpc.respond = self._respond

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        if request.target.startswith(b"/v2/models/m/"):
            return make_answer(200, orjson.dumps(self.config))
        return make_answer(404, b'{"error":"Request for unknown model: it is not found"}')

    def _respond(self, message: bytes) -> list[bytes]:
        self.asked.append(Asked.of(message))
        answers: list[bytes] = self.says(self.asked[-1])
        return answers
