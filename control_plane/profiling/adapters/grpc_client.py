"""gRPC client of one model behind a gateway, as `profiling/profiler` asks for it; `cli/planning/profile` makes it.

Its messages are those of Triton's own clients. What is timed goes as bytes, so that to write and read messages counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import error as StructError  # noqa: N812 - a class, as its name says elsewhere
from struct import iter_unpack
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from control_plane.core.endpoints import UpstreamCredentials
from control_plane.core.errors import ControlPlaneError, InvalidRequest, ObjectNotFound, UpstreamUnavailable
from control_plane.profiling.inputs import TOKENS, message_of
from control_plane.protocols.kserve.messages import service_pb2, service_pb2_grpc
from control_plane.protocols.server_timing import ASKED_BY, SERVER_TIMING, read_timing
from control_plane.triton.adapters.credentials import make_channel_credentials

_TIMEOUT_S = 60.0
_STREAM_TIMEOUT_S = 600.0
_SERVICE = "/inference.GRPCInferenceService"
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # else all channels of a process to one address share a connection
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
_REFUSALS: Mapping[grpc.StatusCode, type[ControlPlaneError]] = {
    grpc.StatusCode.NOT_FOUND: ObjectNotFound,
    grpc.StatusCode.UNAVAILABLE: UpstreamUnavailable,
}
"""Errors by the status of a refusal; of others it is InvalidRequest."""
_NOBODY = "failed to connect"
"""How gRPC's own text begins where nobody is there; a gateway's UNAVAILABLE says what of it is away."""


class GrpcModelClient:
    """Client of one model on the gRPC data port; keeps one connection open.

    Every method raises UpstreamUnavailable if nobody answers in time, and InvalidRequest or ObjectNotFound if the gateway refuses.
    """

    def __init__(self, url: str, model: str, headers: Mapping[str, str], *, timeout_s: float = _TIMEOUT_S) -> None:
        """`url` is http://HOST:PORT, https://HOST:PORT or unix:PATH; `headers` are sent as metadata. Raises InvalidRequest."""
        self._url = url
        self._model = model
        self._timeout_s = timeout_s
        self._metadata = [(name.lower(), value) for name, value in headers.items()]
        self._channel = _channel(url)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer = self._channel.unary_unary(f"{_SERVICE}/ModelInfer")
        self._stream = self._channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")

    def ping(self) -> None:
        """Send a request that no model computes."""
        self._sent(self._stub.ServerLive, service_pb2.ServerLiveRequest())

    def metadata(self) -> dict[str, Any]:
        return _json(self._sent(self._stub.ModelMetadata, service_pb2.ModelMetadataRequest(name=self._model)))

    def config(self) -> dict[str, Any]:
        return _json(self._sent(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=self._model)).config)

    def statistics(self, model: str) -> Any:
        return _json(self._sent(self._stub.ModelStatistics, service_pb2.ModelStatisticsRequest(name=model)))

    def encoded(self, request: Mapping[str, Any]) -> bytes:
        """Write a request for `infer`. Raises InvalidRequest."""
        return message_of(self._model, request)

    def infer(self, request: bytes) -> dict[str, float]:
        """Have a request computed; its answer is dropped unread, as who asks times it. Return the milliseconds that the gateway
        tells of it."""
        _, call = self._sent(self._infer.with_call, request, (ASKED_BY, "1"))
        return read_timing(dict(call.trailing_metadata() or ()).get(SERVER_TIMING, ""))

    def encoded_stream(self, request: Mapping[str, Any]) -> bytes:
        """Write a request for `stream`. Raises InvalidRequest."""
        return self.encoded(request)

    def stream(self, request: bytes, heard: Callable[[int | None], None]) -> dict[str, float]:
        """Have a request answered response by response, and call `heard` at each with its tokens, as far as the model counts them.
        Of a stream the gateway tells no times over gRPC."""
        answers = self._stream(iter([request]), timeout=_STREAM_TIMEOUT_S, metadata=self._metadata)
        try:
            for each in answers:
                heard(_tokens_in(service_pb2.ModelStreamInferResponse.FromString(each)))
        except grpc.RpcError as exc:
            raise self._refusal(exc) from exc
        except (DecodeError, StructError) as exc:
            raise InvalidRequest(f"{self._url} has answered with what is no response of a model: {exc}") from exc
        finally:
            answers.cancel()
        return {}

    def close(self) -> None:
        self._channel.close()

    def _sent(self, call: Any, request: Any, *more: tuple[str, str]) -> Any:
        try:
            return call(request, timeout=self._timeout_s, metadata=[*self._metadata, *more])
        except grpc.RpcError as exc:
            raise self._refusal(exc) from exc

    def _refusal(self, error: Any) -> ControlPlaneError:
        code, text = error.code(), error.details() or "no reason given"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED or text.startswith(_NOBODY):
            return UpstreamUnavailable(f"no answer from {self._url}: {text}; is `tidegate serve` running there?")
        advice = "; commands send the key in TIDEGATE_API_KEY" if code is grpc.StatusCode.UNAUTHENTICATED else ""
        return _REFUSALS.get(code, InvalidRequest)(f"{text} (gRPC {code.name}){advice}")


def _channel(url: str) -> grpc.Channel:
    scheme, _, place = url.partition("://")
    if url.startswith("unix:"):
        return grpc.insecure_channel(url, options=_OPTIONS)
    if not place or scheme not in ("http", "https"):
        raise InvalidRequest(f"{url[:200]!r} is no URL to ask at: expected http://HOST:PORT, https://HOST:PORT or unix:PATH")
    if scheme == "https":
        return grpc.secure_channel(place, make_channel_credentials(UpstreamCredentials()), options=_OPTIONS)
    return grpc.insecure_channel(place, options=_OPTIONS)


def _tokens_in(answer: Any) -> int | None:
    if answer.error_message:
        raise InvalidRequest(f"{answer.error_message} (in the stream)")
    response = answer.infer_response
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name == TOKENS and output.datatype == "UINT32":
            return int(sum(count for (count,) in iter_unpack("<I", raw)))
    return None


def _json(message: Any) -> dict[str, Any]:
    """A message as Triton's HTTP API writes it, but for 64-bit numbers, which are texts."""
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return found
