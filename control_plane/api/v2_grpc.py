"""KServe v2 over gRPC, as unmodified Triton clients and perf_analyzer speak it: one table of methods.

Messages are read to be checked and travel as the bytes they came as, and so do Triton's answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tritonclient.grpc import service_pb2

from control_plane.api.grpc_call import GrpcHandler
from control_plane.api.status import message_of
from control_plane.api.v2_grpc_stream import InferMessage, StreamRelay
from control_plane.codec.grpc_message import GrpcAnswer, GrpcHead, message_answer, message_in, status_answer
from control_plane.codec.model_control import not_in_any_repository, override_of, unloads_dependents
from control_plane.domain.errors import InvalidRequest, ModelLoadFailed, ModelNotFound, NotSupported, PermissionDenied, RouteNotFound
from control_plane.domain.inference import Door, Outcome
from control_plane.ports import GrpcCall, ModelAdministration, Upstream
from control_plane.services.inference import SHARED_MEMORY_IS_OFF, InferenceService
from control_plane.services.model_kinds import ModelKinds
from control_plane.services.servers import Servers

SERVICE = "/inference.GRPCInferenceService/"
READ_METHODS = (
    *(SERVICE + name for name in ("ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig")),
    SERVICE + "ModelStatistics",
    "/grpc.health.v1.Health/Check",
)
"""Answered by Triton as they are; they change nothing."""

ADMINISTRATION_METHODS = tuple(SERVICE + name for name in ("RepositoryIndex", "TraceSetting", "LogSettings"))
SHARED_MEMORY_METHODS = tuple(
    f"{SERVICE}{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")
)
"""Both are Triton's to answer, for an administrator: until keys exist, who calls from this machine."""

_NOT_FOUND, _INTERNAL = 5, 13
_OUTCOMES = {0: Outcome.ANSWERED, _NOT_FOUND: Outcome.MODEL_NOT_FOUND}
_LIVE = message_answer(service_pb2.ServerLiveResponse(live=True).SerializeToString())

Unary = Callable[[GrpcCall], Awaitable[GrpcAnswer]]
MessageT = TypeVar("MessageT")


class GrpcInferRequest(InferMessage):
    """One ModelInfer call: `services.inference.InferRequest`."""

    __slots__ = ("_call",)
    door = Door.GRPC

    def __init__(self, call: GrpcCall, *, max_message_bytes: int) -> None:
        super().__init__(call.frame, call.head, max_bytes=max_message_bytes)
        self._call = call

    @property
    def timeout_s(self) -> float | None:
        return self._call.head.timeout_s

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[GrpcAnswer]:
        return server.grpc.unary(self._call, timeout_s=timeout_s)

    def outcome(self, answer: GrpcAnswer) -> Outcome:
        return _OUTCOMES.get(answer.code, Outcome.UPSTREAM_ERROR)


class V2Grpc:
    """The application behind the gRPC data port."""

    def __init__(
        self,
        *,
        inference: InferenceService,
        servers: Servers,
        models: ModelAdministration,
        max_message_bytes: int,
        read_timeout_s: float,
        allow_shared_memory: bool = False,
    ) -> None:
        self._inference = inference
        self._servers = servers
        self._models = models
        self._max_message_bytes = max_message_bytes
        self._read_timeout_s = read_timeout_s
        self._allow_shared_memory = allow_shared_memory
        relay = StreamRelay(
            inference=inference,
            servers=servers,
            kinds=ModelKinds(servers),
            max_message_bytes=max_message_bytes,
            request_timeout_s=read_timeout_s,
        )
        self._open: dict[str, GrpcHandler] = {
            SERVICE + "ModelInfer": GrpcHandler(unary=self._infer),
            SERVICE + "ModelStreamInfer": GrpcHandler(stream=relay.run),
            SERVICE + "ServerLive": GrpcHandler(unary=_live),
            **dict.fromkeys(READ_METHODS, GrpcHandler(unary=self._pass)),
        }
        self._administration: dict[str, GrpcHandler] = {
            SERVICE + "RepositoryModelLoad": GrpcHandler(unary=self._load),
            SERVICE + "RepositoryModelUnload": GrpcHandler(unary=self._unload),
            **dict.fromkeys((*ADMINISTRATION_METHODS, *SHARED_MEMORY_METHODS), GrpcHandler(unary=self._pass)),
        }

    def handler_for(self, head: GrpcHead, *, peer_is_local: bool) -> GrpcHandler:
        """What answers a method. Raises RouteNotFound, PermissionDenied."""
        handler = self._open.get(head.method)
        if handler is not None:
            return handler
        handler = self._administration.get(head.method)
        if handler is None:
            raise RouteNotFound(
                f"no method {head.method[:200]}; the port has inference.GRPCInferenceService and grpc.health.v1.Health/Check"
            )
        if not peer_is_local:
            raise PermissionDenied(f"{head.method} administers the server and is answered on the machine it runs on only")
        if head.method in SHARED_MEMORY_METHODS and not self._allow_shared_memory:
            raise PermissionDenied(SHARED_MEMORY_IS_OFF)
        return handler

    async def _infer(self, call: GrpcCall) -> GrpcAnswer:
        return await self._inference.infer(GrpcInferRequest(call, max_message_bytes=self._max_message_bytes))

    async def _pass(self, call: GrpcCall) -> GrpcAnswer:
        timeout_s = self._read_timeout_s if call.head.timeout_s is None else call.head.timeout_s
        return await self._servers.pick().grpc.unary(call, timeout_s=timeout_s)

    async def _load(self, call: GrpcCall) -> GrpcAnswer:
        request = self._read(call, service_pb2.RepositoryModelLoadRequest.FromString)
        _refuse_repository_name(request.repository_name)
        change = self._models.load(request.model_name, override_of(request.parameters))
        return await _administered(request.model_name, change, service_pb2.RepositoryModelLoadResponse())

    async def _unload(self, call: GrpcCall) -> GrpcAnswer:
        request = self._read(call, service_pb2.RepositoryModelUnloadRequest.FromString)
        _refuse_repository_name(request.repository_name)
        change = self._models.unload(request.model_name, unload_dependents=unloads_dependents(request.parameters))
        return await _administered(request.model_name, change, service_pb2.RepositoryModelUnloadResponse())

    def _read(self, call: GrpcCall, parse: Callable[[bytes], MessageT]) -> MessageT:
        message = message_in(call.frame, call.head.encoding, max_bytes=self._max_message_bytes)
        try:
            return parse(bytes(message))
        except Exception as exc:  # protobuf's DecodeError differs between its implementations
            raise InvalidRequest(f"the message of {call.head.method} cannot be read: {exc}") from exc


def _refuse_repository_name(name: str) -> None:
    if name:
        raise NotSupported("'repository_name' specification is not supported")


async def _administered(name: str, change: Awaitable[object], done: Any) -> GrpcAnswer:
    """Carry out a load or unload; failures are told as Triton tells them."""
    try:
        await change
    except ModelNotFound:
        return status_answer(_INTERNAL, not_in_any_repository(name))
    except ModelLoadFailed as exc:
        return status_answer(exc.upstream_code, message_of(exc))
    return message_answer(done.SerializeToString())


async def _live(call: GrpcCall) -> GrpcAnswer:
    return _LIVE
