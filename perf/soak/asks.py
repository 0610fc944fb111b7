"""The requests of `perf.soak` as bytes, and what their answers must have; one tenant's over both protocols."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from perf.load.echo_requests import GRPC_SERVICE, framed, grpc_request
from perf.load.inference_requests import binary_post, http_post
from perf.soak.models import COLD, FRESH, PARTS, REPEATED, STREAMED
from perf.soak.outcomes import DEADLINE_S

HTTP, GRPC, GRPC_STREAM = "http", "grpc", "grpc stream"
INFER, STREAM = GRPC_SERVICE + "ModelInfer", GRPC_SERVICE + "ModelStreamInfer"
COLD_DEADLINE_S = 30.0
_FLOATS = 64
_TEXT = b"the tide comes in"
_REPEATING = 5_000
"""Different requests of those that repeat."""
_STREAMED_PART, _REPEATED_PART = 0.1, 0.5
_BINARY_OUTPUT = '"parameters":{"binary_data_output":true}'


@dataclass(frozen=True, slots=True)
class Ask:
    """Request of the soak, with the answer that is right."""

    way: str
    model: str
    data: bytes
    answer: bytes
    """Bytes that a right answer has, `times` times."""
    times: int = 1
    deadline_s: float = DEADLINE_S
    is_cold: bool = False


class Asks:
    """Draws requests: half over either protocol, a tenth of them streamed, half of the rest such as came before."""

    def __init__(self, keys: Sequence[str], random: Random) -> None:
        self._keys, self._random, self._number = keys, random, 0
        self._http_head = {model: _http_head(model) for model in (FRESH, REPEATED, *COLD)}
        body = json.dumps({"text_input": _TEXT.decode()}).encode()
        self._http_stream = {key: _keyed(http_post(f"/v2/models/{STREAMED}/generate_stream", body), key) for key in keys}
        self._grpc_stream = _grpc_stream()
        self._made: dict[tuple[str, int, int, bool], Ask] = {}
        """Requests that were made once: to make one takes a client as long as to send it."""

    def hot(self) -> tuple[int, Ask]:
        """The next one, and which tenant's it is."""
        tenant = self._random.randrange(len(self._keys))
        is_http = self._random.random() < 0.5
        if self._random.random() < _STREAMED_PART:
            data = self._http_stream[self._keys[tenant]] if is_http else self._grpc_stream
            return tenant, Ask(HTTP if is_http else GRPC_STREAM, STREAMED, data, _TEXT, PARTS)
        if self._random.random() < _REPEATED_PART:
            # The square of an even draw: the first of them come far more often than the last.
            return tenant, self._infer(REPEATED, int(_REPEATING * self._random.random() ** 2), tenant, is_http=is_http)
        self._number = (self._number + 1) % _REPEATING  # nothing keeps its answers
        return tenant, self._infer(FRESH, self._number, tenant, is_http=is_http)

    def cold(self) -> tuple[int, Ask]:
        tenant = self._random.randrange(len(self._keys))
        made = self._make(self._random.choice(COLD), 0, tenant, True, COLD_DEADLINE_S)
        return tenant, Ask(HTTP, made.model, made.data, made.answer, deadline_s=COLD_DEADLINE_S, is_cold=True)

    def fresh(self, *, is_http: bool) -> Ask:
        """Return the first tenant's request to the model whose answers are not cached."""
        return self._make(FRESH, 0, 0, is_http)

    def _infer(self, model: str, number: int, tenant: int, *, is_http: bool) -> Ask:
        key = model, number, tenant, is_http
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(*key)
        return made

    def _make(self, model: str, number: int, tenant: int, is_http: bool, deadline_s: float = DEADLINE_S) -> Ask:
        tensor = np.full((1, _FLOATS), number, np.float32)
        tensor[0, 0] = -1.0  # what is not even is not found elsewhere in an answer
        answer = tensor.tobytes()
        if not is_http:
            return Ask(GRPC, model, _grpc_infer(model, tensor), answer)
        return Ask(HTTP, model, _keyed(self._http_head[model](answer), self._keys[tenant], deadline_s), answer)


def _http_head(model: str) -> Callable[[bytes], bytes]:
    size = f'"parameters":{{"binary_data_size":{4 * _FLOATS}}}'
    head = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,{_FLOATS}],{size}}}],{_BINARY_OUTPUT}}}'
    return lambda tensor: binary_post(model, head, tensor)


def _keyed(request: bytes, key: str, deadline_s: float = DEADLINE_S) -> bytes:
    fields = f"Host: localhost\r\nx-api-key: {key}\r\ntidegate-timeout-ms: {1e3 * deadline_s:.0f}\r\n"
    return request.replace(b"Host: localhost\r\n", fields.encode(), 1)


def _grpc_infer(model: str, tensor: NDArray[np.float32]) -> bytes:
    return framed(grpc_request(model, "INPUT0", tensor))


def _grpc_stream() -> bytes:
    message = service_pb2.ModelInferRequest(model_name=STREAMED, raw_input_contents=[len(_TEXT).to_bytes(4, "little") + _TEXT])
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    return framed(message)
