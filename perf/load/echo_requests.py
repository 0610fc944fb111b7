"""One inference of the model `echo` as scenarios need it: as bytes of each protocol, and as a client's call that is checked."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

MODEL, INPUT = "echo", "INPUT0"
HTTP_PATH = f"/v2/models/{MODEL}/infer"
GRPC_SERVICE = "/inference.GRPCInferenceService/"
GRPC_PATH = GRPC_SERVICE + "ModelInfer"
HEADER_LENGTH = "Inference-Header-Content-Length"
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A body: JSON, then a tensor; `header_length` bytes of it are the JSON."""

    body: bytes
    header_length: int


class Echo:
    """An inference of a tensor `[1, tensor_bytes / 4] FP32`, and the answer that the model gives."""

    def __init__(self, tensor_bytes: int) -> None:
        self.tensor_bytes = tensor_bytes
        self._tensor = np.arange(tensor_bytes // 4, dtype=np.float32).reshape(1, -1)
        self._datatype = {"datatype": "FP32", "shape": list(self._tensor.shape)}

    def http_request(self) -> HttpMessage:
        return http_request(INPUT, self._tensor)

    def http_answer(self) -> HttpMessage:
        """As Triton 2.51 writes it."""
        head = (
            f'{{"model_name":"{MODEL}","model_version":"1","outputs":[{{"name":"OUTPUT0","datatype":"FP32",'
            f'"shape":[1,{self._tensor.size}],"parameters":{{"binary_data_size":{self._tensor.nbytes}}}}}]}}'
        ).encode()
        return HttpMessage(head + self._tensor.tobytes(), len(head))

    def grpc_request(self) -> bytes:
        """One length-prefixed message."""
        return framed(grpc_request(MODEL, INPUT, self._tensor))

    def grpc_answer(self) -> bytes:
        """One length-prefixed message."""
        message = service_pb2.ModelInferResponse(model_name=MODEL, model_version="1", raw_output_contents=[self._tensor.tobytes()])
        message.outputs.add(name="OUTPUT0", **self._datatype)
        return framed(message)

    def check(self, protocol: str, address: str, *, key: str = "none") -> None:
        """Ask once, showing `key`, with NVIDIA's client: fast but wrong would be no peer. Raises RuntimeError."""
        library = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
        try:
            answer = self._infer(library, address, key)
        except InferenceServerException as exc:
            raise RuntimeError(f"{protocol} at {address}: {exc}") from exc
        if not np.array_equal(answer, self._tensor):
            raise RuntimeError(f"{protocol} at {address} answered something else than what it was asked")

    def _infer(self, library: Any, address: str, key: str) -> Any:
        tensor = library.InferInput(INPUT, list(self._tensor.shape), "FP32")
        tensor.set_data_from_numpy(self._tensor)
        timeouts = {"network_timeout": _TIMEOUT_S} if library is tritonclient.http else {}
        with library.InferenceServerClient(address, **timeouts) as client:
            return client.infer(MODEL, [tensor], headers={"x-api-key": key}).as_numpy("OUTPUT0")


def http_request(name: str, tensor: Any) -> HttpMessage:
    """One FP32 input as binary data; the outputs are wanted as binary data as well, which is what this client asks for."""
    given = tritonclient.http.InferInput(name, list(tensor.shape), "FP32")
    given.set_data_from_numpy(tensor)
    body, length = tritonclient.http.InferenceServerClient.generate_request_body([given])
    return HttpMessage(bytes(body), length)


def grpc_request(model: str, name: str, tensor: Any) -> Any:
    """A ModelInferRequest of one FP32 input."""
    message = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[tensor.tobytes()])
    message.inputs.add(name=name, datatype="FP32", shape=tensor.shape)
    return message


def framed(message: Any) -> bytes:
    """A protobuf message as gRPC sends it: flag, length, bytes."""
    data: bytes = message.SerializeToString()
    return b"\0" + struct.pack(">I", len(data)) + data
