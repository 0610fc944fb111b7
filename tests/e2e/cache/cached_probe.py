"""A model whose answers say which of its versions gave them, others that call it, and a client that asks over each protocol."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.tidegate import LONG_S, Tidegate

MODEL = """
import json, time
import numpy as np
import triton_python_backend_utils as pb_utils

FACTOR = {factor}

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            asked = json.loads(request.parameters() or "{{}}")
            time.sleep(float(asked.get("takes_s", 0)))
            if asked.get("fails"):
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("as told")))
                continue
            y = FACTOR * x + float(asked.get("plus", 0))
            outputs = [pb_utils.Tensor("Y", y.astype(np.float32)), pb_utils.Tensor("ROWS", np.array([x.shape[0]], dtype=np.int32))]
            answers.append(pb_utils.InferenceResponse([each for each in outputs if each.name() in request.requested_output_names()]))
        return answers
"""
CALLER = """
import triton_python_backend_utils as pb_utils

NAMES = ["Y", "ROWS"]

class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(pb_utils.get_input_tensor_by_name(request, "X")) for request in requests]

    def ask(self, tensor):
        answer = pb_utils.InferenceRequest(model_name="probe", requested_output_names=NAMES, inputs=[tensor]).exec()
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, name) for name in NAMES])
"""
TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, -1 ] }, { name: "ROWS" data_type: TYPE_INT32 dims: [ 1 ] } ]
response_cache { enable: true }
"""
CONFIG = 'backend: "python"\n' + TENSORS + "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
MAPS = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } output_map { key: "ROWS" value: "ROWS" }'
ENSEMBLE = 'platform: "ensemble"\n' + TENSORS + f'ensemble_scheduling {{ step [ {{ model_name: "probe" model_version: -1 {MAPS} }} ] }}\n'
SIX = [float(number) for number in range(6)]


@dataclass(frozen=True)
class Answer:
    status: int
    cache: str
    outputs: dict[str, tuple[list[int], list[float]]]
    id: str = ""


def write_models(folder: Path, *, factor: float = 2) -> None:
    """Only what differs: Triton loads anew what has been written."""
    for name in ("probe", "whole", "caller"):
        (folder / name / "1").mkdir(parents=True, exist_ok=True)
    texts = {"probe/config.pbtxt": CONFIG, "whole/config.pbtxt": ENSEMBLE, "probe/1/model.py": MODEL.format(factor=factor)}
    texts |= {"caller/config.pbtxt": CONFIG, "caller/1/model.py": CALLER}
    for name, text in texts.items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)


class Client:
    """Asks over HTTP with JSON or binary data, or over gRPC, as it is told."""

    def __init__(self, gateway: Tidegate, model: str = "probe") -> None:
        self.gateway = gateway
        self.model = model

    def ask(self, shape: tuple[int, int] = (1, 6), *, over: str = "json", data: list[float] = SIX, **more: Any) -> Answer:
        return (self._over_grpc if over == "grpc" else self._over_http)(shape, data, more, binary=over == "binary")

    def _over_http(self, shape: tuple[int, int], data: list[float], more: dict[str, Any], *, binary: bool) -> Answer:
        tensor: dict[str, Any] = {"name": "X", "datatype": "FP32", "shape": list(shape)}
        raw = np.array(data, dtype=np.float32).tobytes() if binary else b""
        tensor |= {"parameters": {"binary_data_size": len(raw)}} if binary else {"data": data}
        body: dict[str, Any] = {"inputs": [tensor]}
        if "outputs" in more:
            body["outputs"] = [{"name": name} for name in more["outputs"]]
        for field in ("id", "parameters"):
            if field in more:
                body[field] = more[field]
        text = json.dumps(body).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))} if binary else {}
        status, head, answer = self.call("POST", f"/v2/models/{self.model}/infer", text + raw, {**headers, **more.get("headers", {})})
        parsed = json.loads(answer)
        outputs = {each["name"]: (each["shape"], each["data"]) for each in parsed.get("outputs", ())}
        return Answer(status, head.get("tidegate-cache", ""), outputs, parsed.get("id", ""))

    def call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port("http"), timeout=LONG_S)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def _over_grpc(self, shape: tuple[int, int], data: list[float], more: dict[str, Any], *, binary: bool) -> Answer:
        request = service_pb2.ModelInferRequest(model_name=self.model, id=more.get("id", ""))
        request.raw_input_contents.append(np.array(data, dtype=np.float32).tobytes())
        request.inputs.add(name="X", datatype="FP32", shape=shape)
        for name in more.get("outputs", ()):
            request.outputs.add(name=name)
        for name, value in more.get("parameters", {}).items():
            request.parameters[name].string_param = str(value)
        metadata = [(name.lower(), value) for name, value in more.get("headers", {}).items()]
        with tritonclient.grpc.grpc.insecure_channel(self.gateway.address("grpc")) as channel:
            answer, call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.with_call(
                request, metadata=metadata, timeout=LONG_S
            )
        outputs = {}
        for described, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
            datatype = np.float32 if described.datatype == "FP32" else np.int32
            outputs[described.name] = (list(described.shape), np.frombuffer(raw, dtype=datatype).tolist())
        return Answer(200, dict(call.trailing_metadata()).get("tidegate-cache", ""), outputs, answer.id)

    def load(self, model: str = "probe") -> None:
        status, _, answer = self.call("POST", f"/v2/repository/models/{model}/load")
        assert status == 200, answer

    def unload(self, model: str = "probe") -> None:
        assert self.call("POST", f"/v2/repository/models/{model}/unload")[0] == 200

    def computed(self) -> int:
        """Inferences that Triton has done since the model was loaded."""
        statistics = json.loads(self.call("GET", "/v2/models/probe/stats")[2])
        return int(statistics["model_stats"][0]["inference_count"])
