"""KServe v2 over gRPC: unary calls as raw bytes, so that Triton's answers pass through unchanged."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from control_plane.api.status import STATUS, message_of
from control_plane.codec.infer_proto import check_infer_request
from control_plane.domain.errors import ControlPlaneError, InvalidRequest
from control_plane.domain.inference import Door, InferCall, Outcome
from control_plane.ports import GrpcAnswer, GrpcCall, GrpcMetadata, Upstream
from control_plane.services.inference import InferenceService
from control_plane.services.servers import Servers

_log = logging.getLogger(__name__)

SERVICE = "/inference.GRPCInferenceService/"
READ_METHODS = frozenset(
    SERVICE + name
    for name in ("ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex")
)
"""Answered by Triton as they are; they change nothing."""

_LIVE: bytes = service_pb2.ServerLiveResponse(live=True).SerializeToString()
_OUTCOMES = {0: Outcome.ANSWERED, grpc.StatusCode.NOT_FOUND.value[0]: Outcome.MODEL_NOT_FOUND}
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_RESERVED_PREFIXES = ("grpc-", ":")
_RESERVED_METADATA = frozenset(("user-agent", "content-type", "te"))

Context = Any  # grpc.aio.ServicerContext; grpcio ships no types
UnaryHandler = Callable[[bytes, Context], Awaitable[bytes]]


class GrpcInferRequest:
    """One ModelInfer call: `services.inference.InferRequest`."""

    __slots__ = ("_call", "timeout_s")
    door = Door.GRPC

    def __init__(self, call: GrpcCall, timeout_s: float | None) -> None:
        self._call = call
        self.timeout_s = timeout_s

    def read(self) -> InferCall:
        try:
            message = service_pb2.ModelInferRequest.FromString(self._call.message)
        except Exception as exc:  # protobuf's DecodeError differs between its implementations
            raise InvalidRequest(f"not a ModelInferRequest: {exc}") from exc
        return check_infer_request(message)

    async def send(self, server: Upstream, *, timeout_s: float) -> GrpcAnswer:
        return await server.grpc.unary(self._call, timeout_s=timeout_s)

    def outcome(self, answer: GrpcAnswer) -> Outcome:
        return _OUTCOMES.get(answer.code, Outcome.UPSTREAM_ERROR)


class V2Grpc(grpc.GenericRpcHandler):
    """The generic handler behind the gRPC data port."""

    def __init__(self, *, inference: InferenceService, servers: Servers, read_timeout_s: float) -> None:
        self._inference = inference
        self._servers = servers
        self._read_timeout_s = read_timeout_s

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method
        metadata = _forwarded(handler_call_details.invocation_metadata)
        if method == SERVICE + "ModelInfer":
            return grpc.unary_unary_rpc_method_handler(self._rooted(self._infer, method, metadata))
        if method in READ_METHODS:
            return grpc.unary_unary_rpc_method_handler(self._rooted(self._read, method, metadata))
        if method == SERVICE + "ServerLive":
            return grpc.unary_unary_rpc_method_handler(_live)
        return None

    async def _infer(self, call: GrpcCall, timeout_s: float | None) -> GrpcAnswer:
        return await self._inference.infer(GrpcInferRequest(call, timeout_s))

    async def _read(self, call: GrpcCall, timeout_s: float | None) -> GrpcAnswer:
        return await self._servers.pick().grpc.unary(call, timeout_s=self._read_timeout_s if timeout_s is None else timeout_s)

    def _rooted(
        self, answer: Callable[[GrpcCall, float | None], Awaitable[GrpcAnswer]], method: str, metadata: GrpcMetadata
    ) -> UnaryHandler:
        """Bind a call's method and metadata, and turn errors and Triton's own statuses into the call's status."""

        async def handle(message: bytes, context: Context) -> bytes:
            try:
                got = await answer(GrpcCall(method, message, metadata), context.time_remaining())
            except ControlPlaneError as exc:
                await context.abort(STATUS[exc.code].grpc, message_of(exc))
            except Exception:
                _log.exception("a call failed in the gateway; this is a defect")
                await context.abort(grpc.StatusCode.INTERNAL, "internal error of the gateway; its log has the details")
            if got.code != 0:
                await context.abort(_CODES[got.code], got.details, got.trailing_metadata)
            return got.message

        return handle


async def _live(message: bytes, context: Context) -> bytes:
    return _LIVE


def _forwarded(metadata: GrpcMetadata | None) -> GrpcMetadata:
    """What the caller sent, without what belongs to its own connection; names starting `grpc-` are gRPC's."""
    return tuple((key, value) for key, value in metadata or () if key not in _RESERVED_METADATA and not key.startswith(_RESERVED_PREFIXES))
