"""Inference over HTTP: every data type as JSON and as binary, what is asked of the outputs, and mistakes in all of it."""

from __future__ import annotations

import json
import struct
from typing import Any

from tests.contract.http.http_wire import Talk, request


def infer(name: str, model: str, body: bytes | dict[str, Any], *fields: tuple[str, str]) -> Talk:
    return Talk(name, (request("POST", f"/v2/models/{model}/infer", body, *fields),))


def typed(datatype: str, data: Any, shape: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    """A request of the model that answers what it is sent, of this type."""
    return {"inputs": [{"name": datatype, "shape": [len(data)] if shape is None else shape, "datatype": datatype, "data": data}], **changes}


def binary(
    name: str, model: str, header: dict[str, Any], *parts: bytes, length: int | str | None = None, sizes: list[int] | None = None
) -> Talk:
    """A request whose inputs are `parts` behind the JSON; their sizes go into its parameters."""
    for tensor, part in zip(header["inputs"], sizes or [len(part) for part in parts], strict=True):
        tensor["parameters"] = {"binary_data_size": part}
    encoded = json.dumps(header).encode()
    field = ("Inference-Header-Content-Length", str(len(encoded) if length is None else length))
    return infer(name, model, encoded + b"".join(parts), field)


def bare(datatype: str, shape: list[int], **changes: Any) -> dict[str, Any]:
    """A request whose one input has no data yet."""
    return {"inputs": [{"name": datatype, "shape": shape, "datatype": datatype}], **changes}


def strings(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


VALUES: dict[str, tuple[list[Any], bytes]] = {
    "BOOL": ([True, False], b"\1\0"),
    "UINT8": ([0, 255], b"\0\xff"),
    "UINT16": ([0, 65535], struct.pack("<2H", 0, 65535)),
    "UINT32": ([0, 2**32 - 1], struct.pack("<2I", 0, 2**32 - 1)),
    "UINT64": ([0, 2**64 - 1], struct.pack("<2Q", 0, 2**64 - 1)),
    "INT8": ([-128, 127], b"\x80\x7f"),
    "INT16": ([-(2**15), 2**15 - 1], struct.pack("<2h", -(2**15), 2**15 - 1)),
    "INT32": ([-(2**31), 2**31 - 1], struct.pack("<2i", -(2**31), 2**31 - 1)),
    "INT64": ([-(2**63), 2**63 - 1], struct.pack("<2q", -(2**63), 2**63 - 1)),
    "FP16": ([1.5, -2], struct.pack("<2e", 1.5, -2)),
    "BF16": ([1.5, -2], b"\xc0\x3f\x00\xc0"),
    "FP32": ([0.1, -1e38], struct.pack("<2f", 0.1, -1e38)),
    "FP64": ([0.1, -1e308], struct.pack("<2d", 0.1, -1e308)),
    "BYTES": (["a\u00e4\U0001f600", ""], strings("a\u00e4\U0001f600".encode(), b"")),
}
IN_JSON = {"parameters": {"binary_data_output": False}}
IN_BINARY = {"parameters": {"binary_data_output": True}}

TYPES = [
    *(infer(f"{name}: JSON", "types", typed(name, values)) for name, (values, _) in VALUES.items()),
    *(infer(f"{name}: JSON in, binary out", "types", typed(name, values, **IN_BINARY)) for name, (values, _) in VALUES.items()),
    *(binary(f"{name}: binary both ways", "types", bare(name, [2], **IN_BINARY), data) for name, (_, data) in VALUES.items()),
    *(binary(f"{name}: binary in, JSON out", "types", bare(name, [2]), data) for name, (_, data) in VALUES.items()),
    *(binary(f"{name}: empty, binary", "types", bare(name, [0], **IN_BINARY), b"") for name in VALUES),
    *(infer(f"{name}: empty, JSON", "types", typed(name, [])) for name in VALUES),
]

STRANGE: list[tuple[str, str, str]] = [
    ("FP32", "NaN", "NaN"), ("FP32", "Infinity", "Infinity"), ("FP32", "-Infinity", "-Infinity"), ("FP64", "1e999", "beyond FP64"),
    ("FP32", "1e300", "beyond FP32"), ("FP32", "1e-300", "underflow"), ("FP32", '"1"', "a string for a number"), ("FP32", "null", "null"),
    ("FP32", "true", "true for a number"), ("FP32", "-0.0", "negative zero"), ("FP32", "123456789012345678901234567890", "30 digits"),
    ("FP64", "0.1234567890123456789", "many digits"), ("FP32", "inf", "inf"), ("FP32", "1.", "a point without digits"),
    ("FP32", "+1", "a plus"), ("FP32", "01", "a leading zero"), ("FP32", "0x10", "hexadecimal"), ("FP32", "[1]", "nested deeper"),
    ("INT32", "1.0", "1.0 for an integer"), ("INT32", "1.5", "1.5 for an integer"), ("INT32", "1e2", "1e2 for an integer"),
    ("INT32", "2147483648", "beyond INT32"), ("INT64", "9223372036854775808", "beyond INT64"), ("UINT8", "256", "beyond UINT8"),
    ("UINT8", "-1", "negative UINT8"), ("UINT64", "18446744073709551616", "beyond UINT64"), ("INT8", "128", "beyond INT8"),
    ("BOOL", "1", "1 for BOOL"), ("BOOL", "2", "2 for BOOL"), ("BOOL", '"true"', "a string for BOOL"), ("BOOL", "0.5", "0.5 for BOOL"),
    ("BYTES", "1", "a number for BYTES"), ("BYTES", "null", "null for BYTES"), ("BYTES", r'"\u0000"', "NUL"),
    ("BYTES", r'"\ud83d\ude00"', "a pair"),
    ("BYTES", r'"a\"b\\\n\t/\/"', "escapes"), ("BYTES", r'"\ud83d"', "half of a pair"), ("BYTES", '"\t"', "a raw tab"),
    ("BYTES", '"\x7f"', "DEL"),
]  # fmt: skip

NUMBERS = [
    infer(f"value: {said}", "types", b'{"inputs":[{"name":"%b","shape":[1],"datatype":"%b","data":[%b]}]}' % (t.encode(), t.encode(),
        v.encode()))
    for t, v, said in STRANGE
]  # fmt: skip

STRINGS = [
    binary("BYTES: not UTF-8, binary out", "types", bare("BYTES", [1], **IN_BINARY), strings(b"\xff\xfe")),
    binary("BYTES: not UTF-8, JSON out", "types", bare("BYTES", [1]), strings(b"\xff\xfe")),
    binary("BYTES: NUL inside, JSON out", "types", bare("BYTES", [1]), strings(b"a\0b")),
    binary("BYTES: 100 KB", "types", bare("BYTES", [1], **IN_BINARY), strings(b"a" * 100_000)),
    binary("BYTES: a length beyond its buffer", "types", bare("BYTES", [1]), struct.pack("<I", 100) + b"ab"),
    binary("BYTES: a length cut off", "types", bare("BYTES", [1]), b"\1\0"),
    binary("BYTES: more elements than the shape", "types", bare("BYTES", [1]), strings(b"a", b"b")),
    binary("BYTES: fewer elements than the shape", "types", bare("BYTES", [3]), strings(b"a", b"b")),
]

ONE = typed("INT32", [7])
BINARY = [
    binary("binary: too few bytes", "types", bare("INT32", [2]), b"\0" * 4),
    binary("binary: too many bytes", "types", bare("INT32", [2]), b"\0" * 12),
    binary("binary: the body ends early", "types", bare("INT32", [2]), b"\0" * 4, sizes=[8]),
    binary("binary: bytes follow", "types", bare("INT32", [2]), b"\0" * 12, sizes=[8]),
    binary("binary: header length beyond the body", "types", bare("INT32", [2]), b"\0" * 8, length=10_000),
    binary("binary: header length too short", "types", bare("INT32", [2]), b"\0" * 8, length=20),
    binary("binary: header length negative", "types", bare("INT32", [2]), b"\0" * 8, length=-1),
    binary("binary: header length not a number", "types", bare("INT32", [2]), b"\0" * 8, length="abc"),
    binary("binary: header length with a sign", "types", bare("INT32", [2]), b"\0" * 8, length="+85"),
    binary("binary: header length of the whole body", "types", bare("INT32", [0]), b""),
    binary("binary: two inputs", "types", {"inputs": bare("INT32", [1])["inputs"] + bare("FP32", [1])["inputs"]}, b"\1\0\0\0", b"\0\0\0\0"),
    binary("binary: one in, both ways out", "types", {
        "inputs": bare("INT32", [1])["inputs"] + bare("BYTES", [1])["inputs"],
        "outputs": [{"name": "OUT_INT32", "parameters": {"binary_data": True}},
            {"name": "OUT_BYTES", "parameters": {"binary_data": False}}],
    }, b"\1\0\0\0", strings(b"x")),
    infer("binary: size beside data", "types", {"inputs": [{**ONE["inputs"][0], "parameters": {"binary_data_size": 4}}]}),
    infer("binary: size that is a string", "types",
        {"inputs": [{**bare("INT32", [1])["inputs"][0], "parameters": {"binary_data_size": "4"}}]}),
    infer("binary: size that is negative", "types",
        {"inputs": [{**bare("INT32", [1])["inputs"][0], "parameters": {"binary_data_size": -4}}]}),
    infer("raw: a text is the one input", "fails", strings(b"UNAVAILABLE"), ("Inference-Header-Content-Length", "0")),
    infer("raw: a model with batches", "classify", struct.pack("<4f", 1, 2, 3, 4), ("Inference-Header-Content-Length", "0")),
    infer("raw: of a model with many inputs", "types", b"\0" * 4, ("Inference-Header-Content-Length", "0")),
    infer("raw: nothing", "classify", b"", ("Inference-Header-Content-Length", "0")),
    infer("raw: too few bytes", "classify", b"\0" * 6, ("Inference-Header-Content-Length", "0")),
]  # fmt: skip

_SCORES = {"inputs": [{"name": "IN", "shape": [2, 4], "datatype": "FP32", "data": [0.25, 1.5, -1, 3, 4, 3, 2, 1]}]}


def asking(*outputs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**_SCORES, "outputs": list(outputs), **changes}


def classified(count: object, **more: Any) -> dict[str, Any]:
    return asking({"name": "SCORES", "parameters": {"classification": count, **more}})


OUTPUTS = [
    *(infer(f"classification: {count!r}", "classify", classified(count)) for count in (1, 2, 4, 9, 0, -1, "1", 1.5, True)),
    infer("classification: binary", "classify", classified(2, binary_data=True)),
    infer("classification: of integers without labels", "types",
        {**ONE, "outputs": [{"name": "OUT_INT32", "parameters": {"classification": 1}}]}),
    infer("outputs: none named", "classify", _SCORES),
    infer("outputs: an empty list", "classify", asking()),
    infer("outputs: unknown", "classify", asking({"name": "NOTHING"})),
    infer("outputs: twice the same", "classify", asking({"name": "SCORES"}, {"name": "SCORES"})),
    infer("outputs: without a name", "classify", asking({})),
    infer("outputs: no list", "classify", {**_SCORES, "outputs": {"name": "SCORES"}}),
    infer("outputs: binary", "classify", asking({"name": "SCORES", "parameters": {"binary_data": True}})),
    infer("outputs: binary_data no boolean", "classify", asking({"name": "SCORES", "parameters": {"binary_data": 1}})),
    infer("outputs: binary_data_output", "classify", {**_SCORES, **IN_BINARY}),
    infer("outputs: named overrides binary_data_output", "classify", asking({"name": "SCORES"}, **IN_BINARY)),
    infer("outputs: binary_data_output no boolean", "classify", {**_SCORES, "parameters": {"binary_data_output": "true"}}),
    infer("outputs: of an ensemble", "chain", _SCORES),
    infer("outputs: of an ensemble, binary", "chain", {**_SCORES, **IN_BINARY}),
    infer("outputs: of an ensemble, with an id and parameters", "chain", {**_SCORES, "id": "i", "parameters": {"x": 1}}),
    infer("outputs: in the model's order", "facts", {
        "inputs": [{"name": "ANY", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}],
        "outputs": [{"name": "OTHER"}, {"name": "FACTS"}]}),
]  # fmt: skip


def spoilt(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**ONE["inputs"][0], **changes}]}


def without(*names: str) -> dict[str, Any]:
    return {"inputs": [{name: value for name, value in ONE["inputs"][0].items() if name not in names}]}


ROW = b'{"name":"INT32","shape":[1],"datatype":"INT32","data":[1]}'
MISTAKES: list[tuple[str, bytes | dict[str, Any]]] = [
    ("nothing", b""), ("not JSON", b'{"inputs":[}'), ("no object", b"[]"), ("null", b"null"), ("a number", b"1"), ("no inputs", b"{}"),
    ("inputs null", {"inputs": None}), ("inputs an object", {"inputs": {}}), ("inputs empty", {"inputs": []}),
    ("an input null", {"inputs": [None]}),
    ("an input twice", {"inputs": ONE["inputs"] * 2}), ("unknown input", spoilt(name="NOTHING")), ("name missing", without("name")),
    ("shape missing", without("shape")), ("datatype missing", without("datatype")), ("data missing", without("data")),
    ("name a number", spoilt(name=1)), ("name empty", spoilt(name="")), ("shape a number", spoilt(shape=1)),
    ("shape of strings", spoilt(shape=["1"])),
    ("shape of floats", spoilt(shape=[1.0])), ("shape negative", spoilt(shape=[-1])), ("shape empty", spoilt(shape=[])),
    ("rank too high", spoilt(shape=[1, 1])),
    ("datatype unknown", spoilt(datatype="INT33")), ("datatype in lower case", spoilt(datatype="int32")),
    ("datatype of another", spoilt(datatype="FP32")),
    ("datatype STRING", spoilt(datatype="STRING")), ("data too long", spoilt(data=[1, 2])), ("data too short", spoilt(shape=[3])),
    ("data a number", spoilt(data=1)), ("data nested", spoilt(data=[[1]])), ("data ragged", spoilt(shape=[3], data=[[1, 2], 3])),
    ("data null", spoilt(data=None)),
    ("id a number", {**ONE, "id": 1}), ("id empty", {**ONE, "id": ""}), ("id", {**ONE, "id": "a/b c\u00e4"}),
    ("id null", {**ONE, "id": None}),
    ("unknown member", {**ONE, "nothing": [1]}), ("parameters null", {**ONE, "parameters": None}),
    ("parameters a list", {**ONE, "parameters": []}),
    ("white space around", b" \r\n\t" + json.dumps(ONE).encode() + b" \n"), ("bytes behind", json.dumps(ONE).encode() + b"x"),
    ("two documents", json.dumps(ONE).encode() * 2), ("a comment", b"/**/" + json.dumps(ONE).encode()),
    ("a trailing comma", b'{"inputs":[' + ROW + b",]}"),
    ("a byte order mark", b"\xef\xbb\xbf" + json.dumps(ONE).encode()), ("not UTF-8", b'{"inputs":[' + ROW + b'],"id":"\xff"}'),
    ("UTF-16", json.dumps(ONE).encode("utf-16")),
    ("a key twice", b'{"inputs":[' + ROW + b'],"inputs":[]}'), ("a key twice, harmless", b'{"id":"a","inputs":[' + ROW + b'],"id":"b"}'),
    ("an escaped key", b'{"\\u0069nputs":[' + ROW + b"]}"),
    ("deeply nested", b'{"inputs":[' + ROW + b'],"x":' + b"[" * 60 + b"]" * 60 + b"}"),
    ("input parameters", spoilt(parameters={"x": 1})), ("input parameters a list", spoilt(parameters=[])),
]  # fmt: skip

ERRORS = [
    *(infer(f"request: {said}", "types", body) for said, body in MISTAKES),
    infer("model: unknown", "nowhere", ONE),
    infer("model: not loaded", "spare", ONE),
    infer("model: broken", "broken", ONE),
    infer("model: decoupled", "repeat", {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]}),
    infer("model: batch too large", "classify", {"inputs": [{"name": "IN", "shape": [9, 4], "datatype": "FP32", "data": [0] * 36}]}),
    infer("model: batch of none", "classify", {"inputs": [{"name": "IN", "shape": [0, 4], "datatype": "FP32", "data": []}]}),
    infer("model: wrong inner dimension", "classify", {"inputs": [{"name": "IN", "shape": [1, 3], "datatype": "FP32", "data": [0] * 3}]}),
    *(infer(f"version: {number}", f"versions/versions/{number}",
        {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]})
      for number in ("1", "2", "7", "-1", "0", "x")),
    infer("version: the latest", "versions", {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]}),
    *(infer(f"fails: {code}", "fails", {"inputs": [{"name": "CODE", "shape": [1], "datatype": "BYTES", "data": [code]}]})
      for code in ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED",
          "an exception")),
]  # fmt: skip

TALKS = [*TYPES, *NUMBERS, *STRINGS, *BINARY, *OUTPUTS, *ERRORS]
