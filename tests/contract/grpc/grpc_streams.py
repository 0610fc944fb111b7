"""ModelStreamInfer: decoupled models, several models and sequences on one stream, errors, ends of every kind.

Ordinary and decoupled requests never share a stream here, and no error of a model's is to be told as status: either can end
this Triton, now and then. `test_guards` has those.
"""

from __future__ import annotations

import struct
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_wire import Stream, infer
from tests.contract.http.http_tensors import strings


def repeat(*values: int, key: str = "", delay_s: float = 0.0, **parameters: Any) -> pb.ModelInferRequest:
    delay = [("DELAY_S", "FP32", [1], struct.pack("<f", delay_s))] if delay_s else []
    return infer("repeat", ("IN", "INT32", [len(values)], struct.pack(f"<{len(values)}i", *values)), *delay, key=key, **parameters)


def say(text: str, times: int, key: str = "", **parameters: Any) -> pb.ModelInferRequest:
    inputs = ("text_input", "BYTES", [1], strings(text.encode())), ("times", "INT32", [1], struct.pack("<i", times))
    return infer("say", *inputs, key=key, **parameters)


def same(*values: int, key: str = "") -> pb.ModelInferRequest:
    return infer("types", ("INT32", "INT32", [len(values)], struct.pack(f"<{len(values)}i", *values)), key=key)


def add(value: int, sequence: int | str, *, model: str = "accumulate", key: str = "", **flags: bool) -> pb.ModelInferRequest:
    return infer(model, ("IN", "INT32", [1, 1], struct.pack("<i", value)), key=key, sequence_id=sequence, **flags)


def fails(code: str, key: str = "") -> pb.ModelInferRequest:
    return infer("fails", ("CODE", "BYTES", [1], strings(code.encode())), key=key)


_FINAL = {"triton_enable_empty_final_response": True}
_AS_STATUS = (("triton_grpc_error", "true"),)
_START, _END = {"sequence_start": True}, {"sequence_end": True}

DECOUPLED = [
    Stream("stream: one response", (repeat(7, key="a"),)),
    Stream("stream: three responses", (repeat(7, 8, 9, key="a"),)),
    Stream("stream: no response", (repeat(key="a"),)),
    Stream("stream: no response, final flag asked for", (repeat(key="a", **_FINAL),)),
    Stream("stream: three responses, final flag asked for", (repeat(1, 2, 3, key="a", **_FINAL),)),
    Stream("stream: final flag not wanted", (repeat(1, key="a", triton_enable_empty_final_response=False),)),
    Stream("stream: 200 responses", (repeat(*range(200), key="a"),)),
    Stream("stream: two requests of one model", (repeat(1, 2, key="a"), repeat(3, 4, key="b")), unordered=True),
    Stream("stream: two decoupled models", (repeat(1, 2, key="a", **_FINAL), say("x", 2, key="b", **_FINAL)), unordered=True),
    Stream("stream: an error among responses", (repeat(1, -2, 3, key="a"),)),
    Stream("stream: an error at the end", (say("x", -2, key="a"),)),
    Stream("stream: triton_grpc_error false", (repeat(1, -2, 3, key="a"),), metadata=(("triton_grpc_error", "false"),)),
    Stream("stream: large responses", (say("x" * 3_000_000, 2, key="a"),)),
    Stream("stream: half-closed only after the responses", (repeat(1, 2, key="a"),), closes_after=2),
]

ORDINARY = [
    Stream("stream: nothing sent", ()),
    Stream("stream: one ordinary request", (same(1, 2, key="a"),)),
    Stream("stream: ordinary, final flag asked for", (infer("types", ("INT32", "INT32", [1], b"\1\0\0\0"), key="a", **_FINAL),)),
    Stream("stream: ten ordinary requests", tuple(same(number, key=f"{number}") for number in range(10)), unordered=True),
    Stream("stream: two ordinary models", (same(1, key="a"), infer("classify", ("IN", "FP32", [1, 4], bytes(16)))), unordered=True),
    Stream("stream: unknown model", (infer("nowhere", ("IN", "INT32", [1], b"\1\0\0\0"), key="a"),)),
    Stream("stream: unknown model, then a good one", (infer("nowhere", key="a"), same(1, key="b")), unordered=True),
    Stream("stream: unknown model as status", (infer("nowhere", key="a"), same(1, key="b")), metadata=_AS_STATUS, unordered=True),
    Stream("stream: a model that fails", (fails("UNAVAILABLE", key="a"),)),
    Stream("stream: wrong input", (infer("types", ("NOTHING", "INT32", [1], b"\1\0\0\0"), key="a"),)),
    Stream("stream: too few bytes", (infer("types", ("INT32", "INT32", [2], b"\1\0\0\0"), key="a"),)),
    Stream("stream: too few bytes as status", (infer("types", ("INT32", "INT32", [2], b"\1\0\0\0"), key="a"),), metadata=_AS_STATUS),
    Stream("stream: a string cut off", (infer("types", ("BYTES", "BYTES", [1], b"\x09\0\0\0a"), key="a"),)),
    Stream("stream: not a message", (b"\xff\xff",)),
]  # fmt: skip

SEQUENCES = [
    Stream("stream: a sequence", (add(1, 801, key="1", **_START), add(2, 801, key="2"), add(3, 801, key="3", **_END))),
    Stream("stream: a sequence with a string id", (
        add(1, "s1", model="accumulate_text", key="1", **_START), add(2, "s1", model="accumulate_text", key="2", **_END))),
    Stream("stream: two sequences", (add(1, 811, key="1", **_START), add(10, 812, key="2", **_START), add(1, 811, key="3", **_END),
                                     add(10, 812, key="4", **_END)), unordered=True),
    Stream("stream: a sequence of two models", (add(1, 821, key="1", **_START), add(9, "t1", model="accumulate_text", key="2", **_START),
           add(1, 821, key="3", **_END), add(9, "t1", model="accumulate_text", key="4", **_END)), unordered=True),
    Stream("stream: a sequence never started", (add(1, 831, key="1"),)),
    Stream("stream: a sequence never started, as status", (add(1, 831, key="1"),), metadata=_AS_STATUS),
]  # fmt: skip

ENDS = [
    Stream("stream: cancelled after two", (repeat(1, 2, 3, 4, 5, 6, key="a", delay_s=0.1),), cancels_after=2),
    Stream("stream: a deadline after some", (repeat(1, 2, 3, 4, key="a", delay_s=0.1),), timeout_s=0.25, only_end=True),
]

STREAMS = [*DECOUPLED, *ORDINARY, *SEQUENCES, *ENDS]
