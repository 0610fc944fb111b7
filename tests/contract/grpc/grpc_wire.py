"""gRPC calls as raw messages, and everything of their outcome that a client can see."""

from __future__ import annotations

import queue
import re
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

from tests.contract.http.http_wire import STILL_IN_USE

SERVICE = "/inference.GRPCInferenceService/"
DEADLINE_S = 10.0
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
_VOLATILE = frozenset(("date", "grpc-accept-encoding", "accept-encoding"))

Metadata = tuple[tuple[str, str | bytes], ...]


class Outcome(NamedTuple):
    """How one call ended; `messages` are bytes, or what `read` made of them."""

    code: str
    details: str
    messages: tuple[Any, ...]
    initial: tuple[tuple[str, str | bytes], ...]
    trailing: tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True)
class Call:
    """One unary call. `counts`: numbers in the answer are counters and times, so that only its form is compared."""

    name: str
    method: str
    message: bytes | Message = b""
    metadata: Metadata = ()
    counts: bool = False
    reads: type[Message] | None = None
    """The answer's class, where Triton writes its map in a new order each time: compared as written in one order."""
    timeout_s: float = DEADLINE_S
    compression: grpc.Compression | None = None


@dataclass(frozen=True)
class Stream:
    """One ModelStreamInfer: all messages are sent, then the client's half is closed unless it cancels after so many responses."""

    name: str
    messages: tuple[bytes | Message, ...]
    metadata: Metadata = ()
    cancels_after: int | None = None
    closes_after: int = 0
    """Half-close only once so many responses are there."""
    timeout_s: float = DEADLINE_S
    only_end: bool = False
    """What had arrived by then, and which end noticed first, is chance."""
    unordered: bool = False
    """Responses to different requests come in any order; those to one request do not."""


def _bytes(message: bytes | Message) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def channel(address: str, *options: tuple[str, Any]) -> grpc.Channel:
    return grpc.insecure_channel(address, options=(*OPTIONS, *options))


def call(over: grpc.Channel, what: Call) -> Outcome:
    """Make it and wait for its end; as often as it takes where Triton still uses what it is told to forget."""
    while STILL_IN_USE.search((outcome := _call_once(over, what)).details):
        time.sleep(0.01)
    return outcome


def _call_once(over: grpc.Channel, what: Call) -> Outcome:
    method = over.unary_unary(what.method if what.method.startswith("/") else SERVICE + what.method)
    future = method.future(_bytes(what.message), timeout=what.timeout_s, metadata=what.metadata, compression=what.compression)
    messages = (future.result(),) if future.exception() is None else ()
    if what.counts:
        messages = tuple(without_counts(each) for each in messages)
    if what.reads:
        messages = tuple(what.reads.FromString(each).SerializeToString(deterministic=True) for each in messages)
    return _outcome(future, messages)


def talk(over: grpc.Channel, what: Stream) -> Outcome:
    """Hold the whole conversation."""
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for message in what.messages:
        outgoing.put(_bytes(message))
    if not what.closes_after and what.cancels_after is None:
        outgoing.put(None)
    running = over.stream_stream(SERVICE + "ModelStreamInfer")(iter(outgoing.get, None), timeout=what.timeout_s, metadata=what.metadata)
    got: list[bytes] = []
    try:
        for response in running:
            got.append(response)
            if what.closes_after == len(got):
                outgoing.put(None)
            if what.cancels_after == len(got):
                running.cancel()
    except grpc.RpcError:
        pass
    finally:
        outgoing.put(None)
    if what.only_end:
        return Outcome(running.code().name, "", (), (), ())
    shown = tuple(sorted(got, key=_request_of)) if what.unordered else tuple(got)
    return _outcome(running, shown)


def _request_of(response: bytes) -> tuple[str, str]:
    answer = service_pb2.ModelStreamInferResponse.FromString(response)
    return answer.infer_response.model_name, answer.infer_response.id


def _outcome(done: Any, messages: tuple[Any, ...]) -> Outcome:
    initial, trailing = done.initial_metadata() or (), done.trailing_metadata() or ()
    details = re.sub("/tmp/folder[A-Za-z0-9]+", "/tmp/folder", done.details() or "")  # where Triton puts the files of an override
    return Outcome(done.code().name, details, messages, _shown(initial), _shown(trailing))


def _shown(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    return tuple(sorted((key, value) for key, value in metadata if key not in _VOLATILE))


def without_counts(message: bytes) -> str:
    """A ModelStatisticsResponse with every number that is set replaced by its being there."""
    answer = service_pb2.ModelStatisticsResponse.FromString(message)
    return "\n".join(line if '"' in line else line.partition(":")[0] for line in str(answer).splitlines())


def summary(seen: Outcome) -> str:
    return f"{seen.code} {len(seen.messages)}"


def infer(
    model: str,
    *inputs: tuple[str, str, list[int], bytes],
    key: str = "",
    version: str = "",
    outputs: tuple[str, ...] = (),
    **parameters: Any,
) -> service_pb2.ModelInferRequest:
    """A ModelInferRequest with raw contents; `inputs` are name, datatype, shape and bytes."""
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=key)
    for name, datatype, shape, content in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(content)
    for name in outputs:
        request.outputs.add(name=name)
    for name, value in parameters.items():
        set_parameter(request.parameters[name], value)
    return request


def set_parameter(parameter: Any, value: Any) -> None:
    """Set the member of the union that goes with the type of `value`."""
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    setattr(parameter, kinds[type(value)], value)
