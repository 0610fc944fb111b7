"""gRPC inference requests: any message ends in a verdict, and a large one, read without its data, in the same."""

from __future__ import annotations

from dataclasses import replace

from tritonclient.grpc import service_pb2

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.core.algorithms.steps import finish
    from control_plane.core.errors import InvalidRequest, PayloadTooLarge, UnparsableRequest
    from control_plane.core.infer_call import InferCall
    from control_plane.protocols.kserve.ensemble_proto import read_given
    from control_plane.protocols.kserve.requests.infer_proto import infer_request_steps

UNKNOWN_BYTES = 70_000
UNKNOWN_FIELD = b"\xfa\x7f\xf0\xa2\x04" + bytes(UNKNOWN_BYTES)
"""Field 2047 with so many bytes: changes what nobody reads, and makes the message large."""


def check(data: bytes) -> None:
    small, large = read(data), read(UNKNOWN_FIELD + data)
    assert large in (small, None), (small, large)
    if small is None:
        return
    compare_tensors(small, data)
    parsed = service_pb2.ModelInferRequest.FromString(data)
    parsed.DiscardUnknownFields()  # groups, which nothing of ours has: refused in what is large, passed over in what is small
    assert read(UNKNOWN_FIELD + parsed.SerializeToString()) == small
    assert [(each.name, each.datatype, tuple(each.shape)) for each in parsed.inputs] == [
        (tensor.name, tensor.datatype, tensor.shape) for tensor in small.inputs
    ]
    assert (small.model_name, small.model_version, small.request_id) == (parsed.model_name, parsed.model_version, parsed.id)


def compare_tensors(call: InferCall, data: bytes) -> None:
    """What the gateway reads of a request to a sharded model is what was checked, or it is refused."""
    if call.uses_shared_memory:
        return  # refused before it is read
    try:
        given = read_given(data)
    except (InvalidRequest, PayloadTooLarge) as exc:
        str(exc).encode()
        return
    assert tuple(raw.tensor for raw in given.inputs.values()) == call.inputs


def read(message: bytes) -> InferCall | None:
    """Without the bytes of texts that are nowhere in it, of which only a bound by the message's size is known."""
    try:
        call = finish(infer_request_steps(message, service_pb2.ModelInferRequest.FromString))
    except (InvalidRequest, UnparsableRequest, PayloadTooLarge) as exc:
        str(exc).encode(errors="surrogatepass")
        return None
    return replace(call, text_bytes=0)


if __name__ == "__main__":
    fuzz(check)
