"""Triton's extensions over HTTP: sequences, parameters, statistics, repository, trace, logging, shared memory, generate."""

from __future__ import annotations

import base64
import gzip
import json
import os
import struct
from typing import Any

from tests.contract.http.http_tensors import infer
from tests.contract.http.http_wire import Talk, request

SHARED_MEMORY = f"tidegate_contract_{os.getpid()}"
"""A region in /dev/shm that the suite's fixture makes: two INT32, then room for as many."""
SHARED_BYTES = struct.pack("<4i", 11, -12, 0, 0)


def added(value: int, sequence: object, **parameters: object) -> dict[str, Any]:
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [value]}
    return {"inputs": [tensor], "parameters": {"sequence_id": sequence, **parameters}}


def sequence(name: str, model: str, *steps: dict[str, Any]) -> Talk:
    return Talk(f"sequence: {name}", tuple(request("POST", f"/v2/models/{model}/infer", step) for step in steps))


_START, _END = {"sequence_start": True}, {"sequence_end": True}
SEQUENCES = [
    *(sequence(f"numeric id {key}", "accumulate", added(1, key, **_START), added(2, key), added(3, key, **_END), added(4, key))
      for key in (7, 2**63 - 1, 2**64 - 1)),
    *(sequence(f"string id {key!r}", "accumulate_text", added(1, key, **_START), added(2, key), added(3, key, **_END), added(4, key))
      for key in ("abc", "a b/ä", "7")),
    sequence("two at once", "accumulate", added(1, 21, **_START), added(5, 22, **_START), added(1, 21), added(5, 22),
             added(1, 21, **_END), added(5, 22, **_END)),
    sequence("start and end in one", "accumulate", added(9, 31, **_START, **_END), added(1, 31)),
    sequence("start again", "accumulate", added(9, 41, **_START), added(1, 41, **_START), added(1, 41, **_END)),
    sequence("never started", "accumulate", added(1, 51)),
    sequence("numeric id at a string model", "accumulate_text", added(1, 61, **_START, **_END)),
    sequence("no id", "accumulate", {"inputs": added(1, 0)["inputs"]}),
    *(sequence(f"id {key!r}", "accumulate", added(1, key, **_START, **_END)) for key in (0, -1, 2**64, 1.5, True, None, "", [])),
    sequence("an id of 200 characters", "accumulate_text", added(1, "x" * 200, **_START, **_END)),
    *(sequence(f"sequence_start {flag!r}", "accumulate", added(1, 71, sequence_start=flag, **_END)) for flag in (1, "true", None)),
    sequence("at a model without", "facts", {"inputs": [{"name": "ANY", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}],
                                             "parameters": {"sequence_id": 5, **_START}}),
]  # fmt: skip

_ANY = {"inputs": [{"name": "ANY", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}]}
PARAMETERS: list[tuple[str, object]] = [
    ("x", 1), ("x", -1), ("x", 2**63), ("x", "text ä"), ("x", True), ("x", 1.5), ("x", None), ("x", []), ("x", {}),
    ("priority", 0), ("priority", 1), ("priority", 3), ("priority", 4), ("priority", -1), ("priority", "1"), ("priority", 1.5),
    ("timeout", 0), ("timeout", 5_000_000), ("timeout", -1), ("timeout", "1"), ("timeout", 2**64),
    ("triton_x", 1), ("triton_enable_empty_final_response", True), ("headers", "x"), ("binary_data_size", 4), ("", 1),
]  # fmt: skip

REQUESTS = [
    *(infer(f"parameter: {name}={value!r}", "facts", {**_ANY, "parameters": {name: value}}) for name, value in PARAMETERS),
    *(
        infer(f"parameter: {name}={value!r}", "facts", {**_ANY, "parameters": {name: value}})
        for name in ("sequence_id", "sequence_start", "sequence_end")
        for value in (1.5, "s", [1], {"a": 1}, 2**70)
    ),
    infer("parameter: several", "facts", {**_ANY, "id": "i1", "parameters": {"a": 1, "b": "two", "c": False, "priority": 2}}),
    infer("parameter: a timeout header of Triton's", "facts", _ANY, ("Request-Timeout", "1")),
    infer("parameter: a traceparent", "facts", _ANY, ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
]


def calls(name: str, *sent: bytes) -> Talk:
    return Talk(name, sent)


def get(path: str) -> bytes:
    return request("GET", path)


def post(path: str, body: bytes | dict[str, Any] = b"") -> bytes:
    return request("POST", path, body)


STATISTICS = [
    Talk(f"statistics: {path}", (get(f"/v2/models/{path}"),), counts=True)
    for path in ("stats", "types/stats", "versions/stats", "versions/versions/1/stats", "types/versions/9/stats", "nowhere/stats",
        "spare/stats",
                 "repeat/stats", "chain/stats")
]  # fmt: skip

_LOAD, _UNLOAD = "/v2/repository/models/spare/load", "/v2/repository/models/spare/unload"
_READY = get("/v2/models/spare/ready")
_INFER_SPARE = post("/v2/models/spare/infer", {"inputs": [{"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [5]}]})
_CONFIG = {
    "name": "spare", "backend": "python", "max_batch_size": 3,
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}], "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
    "instance_group": [{"kind": "KIND_CPU", "count": 1}],
}  # fmt: skip
_OTHER = b"""
import numpy, triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numpy.array([[99]], dtype=numpy.int32))]) for _ in requests]
"""
_WITH_CONFIG = {"parameters": {"config": json.dumps(_CONFIG)}}
_WITH_FILES = {"parameters": {"config": json.dumps(_CONFIG), "file:1/model.py": base64.b64encode(_OTHER).decode()}}

REPOSITORY = [
    calls("index", post("/v2/repository/index")),
    calls("index: ready ones", post("/v2/repository/index", {"ready": True})),
    calls("index: ready is false", post("/v2/repository/index", {"ready": False})),
    calls("index: ready is no boolean", post("/v2/repository/index", {"ready": 1})),
    calls("index: not JSON", post("/v2/repository/index", b"{")),
    calls("index: of one repository", post("/v2/repository/nothing/index")),
    calls("load and unload", post(_LOAD), _READY, get("/v2/models/spare"), _INFER_SPARE, post(_UNLOAD), _READY),
    calls("load: twice", post(_LOAD), post(_LOAD), _READY, post(_UNLOAD)),
    calls("load: with an empty object", post(_LOAD, {}), _READY, post(_UNLOAD, {})),
    calls("load: with a config", post(_LOAD, _WITH_CONFIG), get("/v2/models/spare/config"), _INFER_SPARE, post(_UNLOAD)),
    calls("load: with files", post(_LOAD, _WITH_FILES), _INFER_SPARE, post(_UNLOAD)),
    calls("load: plain after files", post(_LOAD, _WITH_FILES), post(_UNLOAD), post(_LOAD), _INFER_SPARE, post(_UNLOAD)),
    calls("load: a config that is not JSON", post(_LOAD, {"parameters": {"config": "{"}})),
    calls("load: a config that is no string", post(_LOAD, {"parameters": {"config": {}}})),
    calls("load: files without a config", post(_LOAD, {"parameters": {"file:1/model.py": "YQ=="}})),
    calls("load: a file that is not base64", post(_LOAD, {"parameters": {**_WITH_CONFIG["parameters"], "file:1/model.py": "*"}})),
    calls("load: an unknown parameter", post(_LOAD, {"parameters": {"nothing": 1}}), post(_UNLOAD)),
    calls("load: not JSON", post(_LOAD, b"{")),
    calls("load: a broken model", post("/v2/repository/models/broken/load")),
    calls("load: an unknown model", post("/v2/repository/models/nowhere/load")),
    calls("load: in a named repository", post("/v2/repository/nothing/models/spare/load"), post(_UNLOAD)),
    calls("load: GET", get(_LOAD)),
    calls("unload: one that is not loaded", post(_UNLOAD)),
    calls("unload: an unknown model", post("/v2/repository/models/nowhere/unload")),
    calls("unload: with dependents", post(_LOAD), post(_UNLOAD, {"parameters": {"unload_dependents": True}}), _READY),
    calls("unload: dependents no boolean", post(_LOAD), post(_UNLOAD, {"parameters": {"unload_dependents": 1}}), post(_UNLOAD)),
    calls("unload: not JSON", post(_UNLOAD, b"{")),
]

_TRACE, _LOGGING = "/v2/trace/setting", "/v2/logging"
_RESET = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
SETTINGS = [
    calls("trace: read", get(_TRACE), get("/v2/models/types/trace/setting"), get("/v2/models/nowhere/trace/setting")),
    calls("trace: write and reset", post(_TRACE, {"trace_rate": "500", "trace_level": ["TIMESTAMPS"]}), get(_TRACE), post(_TRACE, _RESET)),
    calls("trace: of one model", post("/v2/models/types/trace/setting", {"trace_count": "3"}), get("/v2/models/types/trace/setting"),
          post("/v2/models/types/trace/setting", _RESET)),
    *(calls(f"trace: {json.dumps(body)}", post(_TRACE, body)) for body in (
        {"trace_rate": "x"}, {"trace_level": "x"}, {"trace_level": ["NOTHING"]}, {"nothing": "1"}, {"trace_file": "x"}, {"trace_rate": []},
        {})),
    calls("trace: not JSON", post(_TRACE, b"{")),
    calls("trace: nothing", post(_TRACE)),
    calls("trace: PUT", request("PUT", _TRACE, b"{}")),
    calls("logging: read", get(_LOGGING)),
    calls("logging: write and reset", post(_LOGGING, {"log_verbose_level": 1}), get(_LOGGING), post(_LOGGING, {"log_verbose_level": 0})),
    *(calls(f"logging: {json.dumps(body)}", post(_LOGGING, body)) for body in (
        {"log_verbose_level": "x"}, {"log_info": 1}, {"nothing": 1}, {"log_format": "nothing"}, {"log_file": "x"}, {"log_info": True}, {})),
    calls("logging: not JSON", post(_LOGGING, b"{")),
    calls("logging: nothing", post(_LOGGING)),
]  # fmt: skip

_SHM, _CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
_REGISTER = post(f"{_SHM}/region/part/register", {"key": f"/{SHARED_MEMORY}", "offset": 0, "byte_size": 16})
_SHARED_INPUT = {
    "name": "INT32",
    "shape": [2],
    "datatype": "INT32",
    "parameters": {"shared_memory_region": "part", "shared_memory_byte_size": 8},
}
_SHARED_OUTPUT = {"name": "OUT_INT32",
                  "parameters": {"shared_memory_region": "part", "shared_memory_byte_size": 8, "shared_memory_offset": 8}}  # fmt: skip
_FORGET = post(f"{_SHM}/unregister")


def shared(name: str, *inputs: dict[str, Any], outputs: list[dict[str, Any]] | None = None) -> Talk:
    body = {"inputs": list(inputs), **({} if outputs is None else {"outputs": outputs})}
    return calls(f"shared memory: {name}", _REGISTER, post("/v2/models/types/infer", body), _FORGET)


def shared_as(**changes: Any) -> dict[str, Any]:
    return {**_SHARED_INPUT, "parameters": {**_SHARED_INPUT["parameters"], **changes}}


MEMORY = [
    calls("shared memory: register, status, unregister", get(f"{_SHM}/status"), _REGISTER, get(f"{_SHM}/status"),
        get(f"{_SHM}/region/part/status"),
          post(f"{_SHM}/region/part/unregister"), get(f"{_SHM}/status")),
    calls("shared memory: register twice", _REGISTER, _REGISTER, _FORGET),
    calls("shared memory: a key that does not exist", post(f"{_SHM}/region/x/register", {"key": "/nothing_at_all", "byte_size": 16})),
    calls("shared memory: larger than the key", post(f"{_SHM}/region/x/register", {"key": f"/{SHARED_MEMORY}", "byte_size": 1 << 20}),
        _FORGET),
    calls("shared memory: nothing said", post(f"{_SHM}/region/x/register"), post(f"{_SHM}/region/x/register", {}),
        post(f"{_SHM}/region/x/register", b"{")),
    calls("shared memory: unknown region", get(f"{_SHM}/region/x/status"), post(f"{_SHM}/region/x/unregister")),
    calls("shared memory: CUDA", get(f"{_CUDA}/status"), post(f"{_CUDA}/unregister"), get(f"{_CUDA}/region/x/status"),
          post(f"{_CUDA}/region/x/register", {"raw_handle": {"b64": "YQ=="}, "device_id": 0, "byte_size": 8}),
          post(f"{_CUDA}/region/x/unregister")),
    shared("input", _SHARED_INPUT),
    shared("input and output", _SHARED_INPUT, outputs=[_SHARED_OUTPUT]),
    shared("output", {"name": "INT32", "shape": [2], "datatype": "INT32", "data": [1, 2]}, outputs=[_SHARED_OUTPUT]),
    shared("an offset", shared_as(shared_memory_offset=4)),
    shared("beyond the region", shared_as(shared_memory_offset=12)),
    shared("a size that does not fit the shape", shared_as(shared_memory_byte_size=4)),
    shared("an unknown region", shared_as(shared_memory_region="nothing")),
    shared("no size", {**_SHARED_INPUT, "parameters": {"shared_memory_region": "part"}}),
    shared("beside data", {**_SHARED_INPUT, "data": [1, 2]}),
    shared("an output too small", _SHARED_INPUT, outputs=[{"name": "OUT_INT32", "parameters": {**_SHARED_OUTPUT["parameters"],
        "shared_memory_byte_size": 4}}]),
]  # fmt: skip


def generate(
    name: str, model: str, body: bytes | dict[str, Any], *, stream: bool = False, fields: tuple[tuple[str, str], ...] = ()
) -> Talk:
    path = f"/v2/models/{model}/generate" + ("_stream" if stream else "")
    return Talk(f"generate{'_stream' if stream else ''}: {name}", (request("POST", path, body, *fields),))


GENERATED: list[tuple[str, str, bytes | dict[str, Any]]] = [
    ("one", "say", {"text_input": "hello"}), ("id and parameters", "say", {"id": "i", "text_input": "a", "parameters": {"x": 1}}),
    ("three", "say", {"text_input": "a", "times": 3}), ("none", "say", {"text_input": "a", "times": 0}),
    ("text, then an error", "say", {"text_input": "a", "times": -2}),
    ("unicode", "say", {"text_input": "\u00e4\u2028\U0001f600\n\r\"\\"}), ("unknown member", "say", {"text_input": "a", "nothing": 1}),
    ("unknown object", "say", {"text_input": "a", "nothing": {"x": 1}}), ("input missing", "say", {"times": 1}), ("empty", "say", {}),
    ("not JSON", "say", b"{"), ("nothing", "say", b""),
    ("a list for one", "say", {"text_input": ["a"]}), ("two for one", "say", {"text_input": ["a", "b"]}),
    ("a number for a text", "say", {"text_input": 1}),
    ("a text for a number", "say", {"text_input": "a", "times": "1"}), ("null", "say", {"text_input": None}), ("an array", "say", b"[]"),
    ("unknown model", "nowhere", {"text_input": "a"}), ("not decoupled", "versions", {"IN": 1}),
    ("with batches", "classify", {"IN": [1, 2, 3, 4]}),
    ("many inputs", "types", {"INT32": [1, 2], "BYTES": ["x", "y"], "BOOL": [True], "FP32": [1.5]}),
    ("an ensemble", "chain", {"IN": [1, 2, 3, 4]}),
    ("a model that fails", "fails", {"CODE": "UNAVAILABLE"}), ("a version", "versions/versions/1", {"IN": 1}),
    ("an unknown version", "versions/versions/9", {"IN": 1}),
    ("a key twice", "say", b'{"text_input":"a","text_input":"b"}'),
    ("deep", "say", b'{"text_input":"a","x":' + b"[" * 50 + b"]" * 50 + b"}"),
]  # fmt: skip

GENERATE = [
    *(generate(name, model, body) for name, model, body in GENERATED),
    *(generate(name, model, body, stream=True) for name, model, body in GENERATED),
    generate("gzip request", "say", gzip.compress(b'{"text_input":"a"}', mtime=0), fields=(("Content-Encoding", "gzip"),)),
    generate("accepts gzip", "say", {"text_input": "a"}, fields=(("Accept-Encoding", "gzip"),)),
    generate("accepts events", "say", {"text_input": "a"}, stream=True, fields=(("Accept", "text/event-stream"),)),
    Talk("generate: GET", (get("/v2/models/say/generate"), get("/v2/models/say/generate_stream"))),
    Talk("generate_stream: two on one connection", (post("/v2/models/say/generate_stream", {"text_input": "a", "times": 2}),) * 2),
]

TALKS = [*SEQUENCES, *REQUESTS, *STATISTICS, *REPOSITORY, *SETTINGS, *MEMORY, *GENERATE]
