"""Unary calls: every method, every data type, metadata, parameters, and mistakes in all of it."""

from __future__ import annotations

import json
import struct
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_wire import Call, infer, set_parameter
from tests.contract.http.http_extensions import SHARED_MEMORY
from tests.contract.http.http_tensors import VALUES, strings

SMALL = infer("types", ("INT32", "INT32", [2], struct.pack("<2i", 7, -8)), key="a/1")
ANY = ("ANY", "BYTES", [1, 1], strings(b"a"))
FOUR = struct.pack("<4f", 0.25, 4, -1, 3)


def shaped(said: str, **changes: Any) -> Call:
    """The small request with another input."""
    tensor = {"name": "INT32", "datatype": "INT32", "shape": [2], **changes}
    request = pb.ModelInferRequest(model_name="types", raw_input_contents=SMALL.raw_input_contents)
    request.inputs.add(**tensor)
    return Call(f"grpc infer: {said}", "ModelInfer", request)


def in_contents(name: str, datatype: str, **contents: Any) -> Call:
    """A request whose data is in InferTensorContents, as clients that do not use raw contents send it."""
    request = pb.ModelInferRequest(model_name="types")
    tensor = request.inputs.add(name=datatype, datatype=datatype, shape=[2])
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return Call(f"grpc contents: {name}", "ModelInfer", request)


def both_contents() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest.FromString(SMALL.SerializeToString())
    request.inputs[0].contents.int_contents.extend([1, 2])
    return request


def contents_count(*raw: bytes) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest.FromString(SMALL.SerializeToString())
    del request.raw_input_contents[:]
    request.raw_input_contents.extend(raw)
    return request


def classified(count: int) -> pb.ModelInferRequest:
    request = infer("classify", ("IN", "FP32", [1, 4], FOUR), outputs=("SCORES",))
    set_parameter(request.outputs[0].parameters["classification"], count)
    return request


def in_shared_memory() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="types")
    tensor = request.inputs.add(name="INT32", datatype="INT32", shape=[2])
    tensor.parameters["shared_memory_region"].string_param = "part"
    tensor.parameters["shared_memory_byte_size"].int64_param = 8
    return request


READS = [
    Call("grpc: live", "ServerLive", pb.ServerLiveRequest()),
    Call("grpc: ready", "ServerReady", pb.ServerReadyRequest()),
    Call("grpc: server metadata", "ServerMetadata", pb.ServerMetadataRequest()),
    *(Call(f"grpc: {what} of {model!r} {version!r}", f"Model{what}", getattr(pb, f"Model{what}Request")(name=model, version=version))
      for what in ("Ready", "Metadata", "Config")
      for model, version in (("types", ""), ("types", "1"), ("types", "9"), ("types", "x"), ("nowhere", ""), ("spare", ""), ("", ""),
          ("chain", ""), ("types", "01"), ("types", " 1"), ("types", "1abc"), ("types\0_public", ""))),
    *(Call(f"grpc: statistics of {model!r} {version!r}", "ModelStatistics", pb.ModelStatisticsRequest(name=model, version=version),
        counts=True)
      for model, version in (("", ""), ("types", ""), ("versions", ""), ("versions", "2"), ("types", "9"), ("nowhere", ""), ("repeat",
          ""), ("types\0_public", ""))),
    Call("grpc: index", "RepositoryIndex", pb.RepositoryIndexRequest()),
    Call("grpc: index of ready ones", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
    Call("grpc: index of a named repository", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="nothing")),
    Call("grpc: trace settings", "TraceSetting", pb.TraceSettingRequest(), reads=pb.TraceSettingResponse),
    Call("grpc: trace settings of a model", "TraceSetting", pb.TraceSettingRequest(model_name="types"), reads=pb.TraceSettingResponse),
    Call("grpc: trace settings of an unknown model", "TraceSetting", pb.TraceSettingRequest(model_name="nowhere")),
    Call("grpc: trace settings of a name with a NUL", "TraceSetting", pb.TraceSettingRequest(model_name="types\0_public"),
        reads=pb.TraceSettingResponse),
    Call("grpc: log settings", "LogSettings", pb.LogSettingsRequest(), reads=pb.LogSettingsResponse),
    Call("grpc: system shared memory", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
    Call("grpc: system shared memory, unknown region", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="x")),
    Call("grpc: CUDA shared memory", "CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
    Call("grpc: unknown method", "Nothing"),
    Call("grpc: unknown service", "/nothing.Nothing/Nothing"),
    Call("grpc: no method", "/nothing"),
    Call("grpc health: of the server", "/grpc.health.v1.Health/Check"),
    Call("grpc health: of the service", "/grpc.health.v1.Health/Check", b"\n\x20inference.GRPCInferenceService"),
    Call("grpc health: of an unknown service", "/grpc.health.v1.Health/Check", b"\n\x01x"),
    Call("grpc health: not a message", "/grpc.health.v1.Health/Check", b"\xff"),
    Call("grpc reflection: v1alpha", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"\x3a\x00"),
    Call("grpc reflection: v1", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", b"\x3a\x00"),
]  # fmt: skip

INFERS = [
    Call("grpc infer: plain", "ModelInfer", SMALL),
    *(Call(f"grpc {name}: raw", "ModelInfer", infer("types", (name, name, [2], data))) for name, (_, data) in VALUES.items()),
    *(Call(f"grpc {name}: empty", "ModelInfer", infer("types", (name, name, [0], b""))) for name in VALUES),
    in_contents("INT32", "INT32", int_contents=[1, -2]), in_contents("INT8", "INT8", int_contents=[1, -2]),
    in_contents("INT8 out of range", "INT8", int_contents=[1, 300]), in_contents("UINT64", "UINT64", uint64_contents=[1, 2]),
    in_contents("FP32", "FP32", fp32_contents=[1, -2]), in_contents("FP64", "FP64", fp64_contents=[1, -2]),
    in_contents("BOOL", "BOOL", bool_contents=[True, False]), in_contents("BYTES", "BYTES", bytes_contents=[b"a", b"\xff"]),
    in_contents("of another type", "INT32", fp32_contents=[1, -2]), in_contents("too few", "INT32", int_contents=[1]),
    in_contents("none", "INT32"), in_contents("FP16", "FP16", fp32_contents=[1, 2]),
    Call("grpc contents: both kinds", "ModelInfer", both_contents()),
    Call("grpc raw: two for one input", "ModelInfer", contents_count(b"\0" * 8, b"\0" * 8)),
    Call("grpc raw: too few bytes", "ModelInfer", contents_count(b"\0" * 4)),
    Call("grpc raw: too many bytes", "ModelInfer", contents_count(b"\0" * 12)),
    shaped("unknown input", name="NOTHING"), shaped("unknown datatype", datatype="FP8"), shaped("no datatype", datatype=""),
    shaped("datatype of another", datatype="FP32"), shaped("negative shape", shape=[-2]), shaped("no shape", shape=[]),
    shaped("rank too high", shape=[1, 2]),
    Call("grpc infer: unknown model", "ModelInfer", infer("nowhere", ANY)),
    *(Call(f"grpc infer: of {name!r}", "ModelInfer", infer(name, ANY)) for name in ("facts\0_public", "no where", "../facts")),
    Call("grpc infer: no model", "ModelInfer", infer("", ANY)),
    Call("grpc infer: nothing at all", "ModelInfer"),
    Call("grpc infer: no message", "ModelInfer", b"\xff\xff"),
    Call("grpc infer: a decoupled model", "ModelInfer", infer("repeat", ("IN", "INT32", [1], b"\1\0\0\0"))),
    *(Call(f"grpc infer: version {version!r}", "ModelInfer", infer("versions", ("IN", "INT32", [1], b"\1\0\0\0"), version=version))
      for version in ("", "1", "2", "9", "01", "x", "-1", "1abc", " 1", "1\0", "99999999999999999999")),
    *(Call(f"grpc fails: {code}", "ModelInfer", infer("fails", ("CODE", "BYTES", [1], strings(code.encode()))))
      for code in ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED",
          "an exception")),
    Call("grpc infer: an ensemble", "ModelInfer", infer("chain", ("IN", "FP32", [1, 4], FOUR), key="i"), reads=pb.ModelInferResponse),
    Call("grpc outputs: named", "ModelInfer", infer("facts", ANY, outputs=("OTHER",))),
    Call("grpc outputs: unknown", "ModelInfer", infer("facts", ANY, outputs=("NOTHING",))),
    *(Call(f"grpc classification: {count}", "ModelInfer", classified(count)) for count in (1, 3, 9, 0, -1)),
    Call("grpc infer: an unknown field", "ModelInfer", SMALL.SerializeToString() + b"\xfa\x7f\x03abc"),
    Call("grpc infer: 6 MB both ways", "ModelInfer", infer("types", ("UINT8", "UINT8", [6 << 20], bytes(6 << 20)))),
    Call("grpc infer: gzip", "ModelInfer", SMALL, compression=grpc.Compression.Gzip),
    Call("grpc infer: deflate", "ModelInfer", SMALL, compression=grpc.Compression.Deflate),
    Call("grpc infer: gzip, large", "ModelInfer", infer("types", ("UINT8", "UINT8", [1 << 20], bytes(1 << 20))),
        compression=grpc.Compression.Gzip),
    Call("grpc infer: a deadline that is over", "ModelInfer",
         infer("patient", ("SECONDS", "FP32", [1, 1], struct.pack("<f", 1.0))), timeout_s=0.15),
    Call("grpc metadata: text and binary", "ModelInfer", infer("facts", ANY),
        metadata=(("x-a", "1"), ("x-a", "2"), ("x-b-bin", b"\0\xff\1"))),
    Call("grpc metadata: Triton's own names", "ModelInfer", infer("facts", ANY), metadata=(("triton_grpc_error", "true"),)),
    Call("grpc metadata: 6 KB", "ModelInfer", infer("facts", ANY), metadata=(("x-large", "a" * 6000),)),
    Call("grpc metadata: empty values", "ModelInfer", infer("facts", ANY), metadata=(("x-a", ""), ("x-b-bin", b""))),
]  # fmt: skip

PARAMETERS = [
    Call(f"grpc parameter: {name}={value!r}", "ModelInfer", infer("facts", ANY, **{name: value}))
    for name, value in (
        ("x", 1), ("x", -1), ("x", "text ä"), ("x", True), ("x", 1.5), ("priority", 1), ("priority", 0), ("priority", 9), ("priority", "1"),
        ("priority", -1),
        ("timeout", 5_000_000), ("timeout", "x"), ("timeout", -1), ("sequence_id", 5), ("sequence_id", "abc"), ("sequence_id", True),
        ("sequence_start", True),
        ("sequence_start", 1), ("triton_x", 1), ("triton_enable_empty_final_response", True), ("binary_data_output", True),
        ("headers", "x"),
    )
]  # fmt: skip


def load(**parameters: bytes | str) -> pb.RepositoryModelLoadRequest:
    request = pb.RepositoryModelLoadRequest(model_name="spare")
    for name, value in parameters.items():
        setattr(request.parameters[name], "bytes_param" if isinstance(value, bytes) else "string_param", value)
    return request


_CONFIG = json.dumps({
    "name": "spare", "backend": "python", "max_batch_size": 3, "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}], "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
})  # fmt: skip
_SPARE = Call("", "ModelInfer", infer("spare", ("IN", "INT32", [1, 1], b"\5\0\0\0")))
_UNLOAD = Call("", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="spare"))
_REGISTER = Call("", "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="part", key=f"/{SHARED_MEMORY}", byte_size=16))
_STATUS = Call("", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest())
_FORGET = Call("", "SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest())


def log_level(level: int) -> Call:
    request = pb.LogSettingsRequest()
    request.settings["log_verbose_level"].uint32_param = level
    return Call("", "LogSettings", request, reads=pb.LogSettingsResponse)


def trace(**values: list[str]) -> Call:
    request = pb.TraceSettingRequest()
    for name, value in values.items():
        request.settings[name].value.extend(value)
    return Call("", "TraceSetting", request, reads=pb.TraceSettingResponse)


ADMINISTERING: dict[str, tuple[Call, ...]] = {
    "load, infer, unload": (Call("", "RepositoryModelLoad", load()), _SPARE, _UNLOAD, _SPARE),
    "load with a config": (Call("", "RepositoryModelLoad", load(config=_CONFIG)),
        Call("", "ModelConfig", pb.ModelConfigRequest(name="spare")), _UNLOAD),
    "load with a file": (
        Call("", "RepositoryModelLoad", load(config=_CONFIG, **{"file:1/model.py": b"raise RuntimeError('as told')"})), _UNLOAD),
    "load a config that is no string": (Call("", "RepositoryModelLoad", load(config=b"x")), _UNLOAD),
    "load a broken model": (Call("", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="broken")),),
    "load an unknown model": (Call("", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nowhere")),),
    "load in a named repository": (Call("", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(repository_name="x", model_name="spare")),
        ),
    "unload an unknown model": (Call("", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="nowhere")),),
    "shared memory": (_REGISTER, _STATUS, Call("", "ModelInfer", in_shared_memory()), _FORGET, _STATUS,
        Call("", "ModelInfer", in_shared_memory())),
    "shared memory of nothing": (Call("", "SystemSharedMemoryRegister",
        pb.SystemSharedMemoryRegisterRequest(name="x", key="/nothing_at_all", byte_size=8)),),
    "CUDA shared memory": (Call("", "CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(name="x", raw_handle=b"a", byte_size=8)),
                           Call("", "CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest())),
    "log settings": (log_level(1), log_level(0)),
    "trace settings": (trace(trace_count=["3"]), trace(trace_count=[])),
    "trace settings, wrong": (trace(trace_rate=["x"]), trace(nothing=["x"])),
}  # fmt: skip

CALLS = [*READS, *INFERS, *PARAMETERS]
