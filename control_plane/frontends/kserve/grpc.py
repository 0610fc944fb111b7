"""KServe v2 frontend over gRPC, for unmodified Triton clients and perf_analyzer: one table of methods.

Messages are parsed only to be checked; requests and Triton's answers are forwarded as the bytes they arrived
as.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from control_plane.auth.domain.authorization import OVERRIDE_NEED, need_of_call
from control_plane.core.action import Action
from control_plane.core.errors import (
    ControlPlaneError,
    InvalidRequest,
    ModelLoadFailed,
    ModelNotFound,
    NotSupported,
    PermissionDenied,
    RouteNotFound,
)
from control_plane.core.infer_call import Frontend
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.common.inflating import inflated
from control_plane.frontends.common.status import message_of
from control_plane.frontends.grpc.handler import GrpcHandler, VerbatimAnswers
from control_plane.frontends.kserve.grpc_fleet import GrpcFleetAnswers
from control_plane.frontends.kserve.grpc_infer import GrpcInferContext, GrpcInferRequest
from control_plane.frontends.kserve.grpc_stream import StreamRelay
from control_plane.frontends.kserve.grpc_verbatim import GrpcVerbatimCache
from control_plane.frontends.kserve.services import KServeServices
from control_plane.inference.inference import SHARED_MEMORY_IS_OFF
from control_plane.inference.timed_request import timed
from control_plane.protocols.grpc import (
    GrpcAnswer,
    GrpcHead,
    GrpcStatus,
    frame_message,
    message_answer,
    message_in,
    status_answer,
)
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.protocols.kserve.model_control import not_in_any_repository, override_of, unloads_dependents
from control_plane.protocols.kserve.model_reference import ADMINISTERED_MODEL_FIELDS, MODEL_FIELDS, ReferenceFields, model_in, with_model
from control_plane.protocols.kserve.requests.body_limits import InflateBound
from control_plane.protocols.kserve.visible_statistics import visible_message
from control_plane.triton.ports import GrpcCall

SERVICE = "/inference.GRPCInferenceService/"
_HEALTH_METHODS = (SERVICE + "ServerReady", "/grpc.health.v1.Health/Check")
_READY, _STATISTICS, _INDEX = SERVICE + "ModelReady", SERVICE + "ModelStatistics", SERVICE + "RepositoryIndex"
_CONFIG = SERVICE + "ModelConfig"
_MODEL_METHODS = (_READY, SERVICE + "ModelMetadata", _CONFIG, _STATISTICS)
READ_METHODS = (*_HEALTH_METHODS, *_MODEL_METHODS, SERVICE + "ServerMetadata")
"""Read-only methods, which are passed to Triton unchanged."""

_LOAD, _UNLOAD, _TRACE = SERVICE + "RepositoryModelLoad", SERVICE + "RepositoryModelUnload", SERVICE + "TraceSetting"
ADMINISTRATION_METHODS = (_INDEX, _TRACE, SERVICE + "LogSettings")
SHARED_MEMORY_METHODS = tuple(
    f"{SERVICE}{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")
)
"""Methods that are passed to Triton for administrators only; without API keys these are callers on this
machine."""


class _Method(NamedTuple):
    """A gRPC method's entry in the table."""

    action: Action
    names: ReferenceFields | None = None
    """The fields in which its message names a model; the name is checked before the handler runs."""


_METHODS: Mapping[str, _Method] = {
    # The next two have no `names`: their messages are validated as a whole, names included, by
    # `protocols/kserve/requests/infer_proto`.
    SERVICE + "ModelInfer": _Method(Action.INFER),
    SERVICE + "ModelStreamInfer": _Method(Action.INFER),
    SERVICE + "ServerLive": _Method(Action.LIVE),
    SERVICE + "ServerMetadata": _Method(Action.READ),
    **dict.fromkeys(_HEALTH_METHODS, _Method(Action.READY)),
    **dict.fromkeys(_MODEL_METHODS, _Method(Action.READ, MODEL_FIELDS)),
    **dict.fromkeys(ADMINISTRATION_METHODS, _Method(Action.ADMIN)),
    **dict.fromkeys(SHARED_MEMORY_METHODS, _Method(Action.SHARED_MEMORY)),
    _LOAD: _Method(Action.LOAD, ADMINISTERED_MODEL_FIELDS),
    _UNLOAD: _Method(Action.UNLOAD, ADMINISTERED_MODEL_FIELDS),
    _TRACE: _Method(Action.ADMIN, ADMINISTERED_MODEL_FIELDS),
}

_STATISTICS_BOUND = InflateBound(2**26, "the statistics are too large")
"""Bound on the statistics of all models; those of one version are some hundred bytes."""
_CONTROL = InflateBound(2**20, f"the message of this call exceeds its limit of {2**20} bytes")
"""Bound on the message of a call that carries neither tensors nor a model's files."""
_UNNAMED = InflateBound(2**16, f"the message of this call exceeds its limit of {2**16} bytes")
"""Bound on the message of a call that names no model, which has a few fields at most; some are answered without a key."""

_STREAM_PLACEHOLDER = GrpcHandler()
"""Placeholder in the method table; a handler that can authenticate its caller again is made for each
stream."""

_LIVE = message_answer(service_pb2.ServerLiveResponse(live=True).SerializeToString())
_NOT_READY = {
    SERVICE + "ServerReady": message_answer(service_pb2.ServerReadyResponse(ready=False).SerializeToString()),
    "/grpc.health.v1.Health/Check": message_answer(b"\x08\x02"),  # HealthCheckResponse(status=NOT_SERVING)
}
"""The answers of a gateway that is stopping, by method."""

Unary = Callable[[GrpcCall], Awaitable[GrpcAnswer]]
MessageT = TypeVar("MessageT")


class V2Grpc:
    """The application behind the gRPC data port."""

    def __init__(self, services: KServeServices) -> None:
        self._inference, self._access, self._servers = services.inference, services.access, services.servers
        self._models, self._budget, self._limits = services.models, services.budget, services.limits
        self._read_timeout_s, self._allow_shared_memory = services.read_timeout_s, services.allow_shared_memory
        self._verbatim = GrpcVerbatimCache(
            self._inference.verbatim.make(Frontend.GRPC),
            self._access,
            services.forwarding,
            are_traced=self._inference.tracer is not None,
        )
        self._context = GrpcInferContext(self._verbatim, self._limits, services.forwarding, self._access)
        catalogue = self._inference.dispatch.catalogue
        self._fleet = None if catalogue is None else GrpcFleetAnswers(catalogue)
        self._relay = StreamRelay(services)
        # Two tables, since methods of administrators are refused to other machines where there are no API
        # keys.
        self._open: dict[str, GrpcHandler] = {
            SERVICE + "ModelInfer": GrpcHandler(unary=self._infer, admit=self._admit, late=partial(self._late, Frontend.GRPC)),
            SERVICE + "ModelStreamInfer": _STREAM_PLACEHOLDER,
            SERVICE + "ServerLive": GrpcHandler(unary=_live, max_bytes=_UNNAMED.max_bytes),
            **self._unary(
                dict.fromkeys(READ_METHODS, self._forward)
                | dict.fromkeys(_MODEL_METHODS, self._read_model)
                | dict.fromkeys(_HEALTH_METHODS, self._ready)
            ),
        }
        self._administration = self._unary(
            dict.fromkeys((*ADMINISTRATION_METHODS, *SHARED_MEMORY_METHODS), self._forward)
            | {_LOAD: self._load, _UNLOAD: self._unload, _INDEX: self._index}
        )

    def _unary(self, methods: Mapping[str, Unary]) -> dict[str, GrpcHandler]:
        return {method: self._checked(method, unary) for method, unary in methods.items()}

    def _checked(self, method: str, unary: Unary) -> GrpcHandler:
        bound, names = _bound_of(method), _METHODS[method].names

        async def checked(call: GrpcCall) -> GrpcAnswer:
            message = self._message(call)  # whatever is compressed, Triton would inflate it without a bound
            if names is not None:
                model_in(message, names)
            return await unary(call)

        return GrpcHandler(unary=checked, max_bytes=None if bound is None else bound.max_bytes)

    def handler_for(self, head: GrpcHead, *, peer: str, peer_is_local: bool) -> tuple[GrpcHandler, Principal]:
        """The handler of a method, and the authenticated caller.

        Raises RouteNotFound, Unauthenticated, LimitExceeded, PermissionDenied.
        """
        handler = self._open.get(head.method) or self._administration.get(head.method)
        if handler is None:
            raise RouteNotFound(
                f"no method {head.method[:200]}; the port has inference.GRPCInferenceService and grpc.health.v1.Health/Check"
            )
        action = _METHODS[head.method].action
        principal = self._principal(head, action, peer) if self._access.is_on else ANONYMOUS
        if head.method in self._administration and not peer_is_local and not self._access.is_on:
            raise PermissionDenied(f"{head.method} administers the server and is answered on the machine it runs on only")
        if action is Action.SHARED_MEMORY and not self._allow_shared_memory:
            raise PermissionDenied(SHARED_MEMORY_IS_OFF)
        if handler is _STREAM_PLACEHOLDER:
            self._admit(principal)
            run = partial(self._relay.run, identify=partial(self._confirm, head, peer))
            handler = GrpcHandler(stream=run, late=partial(self._late, Frontend.GRPC_STREAM))
        return handler, principal

    def _principal(self, head: GrpcHead, action: Action, peer: str) -> Principal:
        """Authenticate the caller, and authorise it unless the right depends on the model in the message
        (inference).

        An inference is authorised when its message is parsed, so that a refusal is recorded under the model's
        name.
        """
        need = need_of_call(action)
        if need is None:
            return ANONYMOUS
        principal = self._identify(head, peer)
        if action is not Action.INFER:
            self._access.require(principal, need)
        return principal

    def _admit(self, principal: Principal) -> None:
        """Refuse a large inference before its message arrives. Raises PermissionDenied, LimitExceeded."""
        self._inference.refuse_by_head(Frontend.GRPC, principal)

    def _late(self, frontend: Frontend, principal: Principal, left_s: float, count: int = 1) -> ControlPlaneError:
        return self._inference.running.late(frontend, principal, left_s, count)

    def _identify(self, head: GrpcHead, peer: str) -> Principal:
        if not self._access.is_on:
            return ANONYMOUS
        return self._access.identify(authorization=head.authorization, api_key=head.api_key, peer=peer, forwarded_for=head.forwarded_for)

    def _confirm(self, head: GrpcHead, peer: str) -> Principal:
        return self._access.reauthenticate(
            authorization=head.authorization, api_key=head.api_key, peer=peer, forwarded_for=head.forwarded_for
        )

    def verbatim_answers(self, *, max_header_bytes: int) -> VerbatimAnswers:
        """The verbatim cache as one connection asks it; for a call that has to be parsed it has None."""
        return self._verbatim.of_connection(max_header_bytes=max_header_bytes)

    def _infer(self, call: GrpcCall) -> Awaitable[GrpcAnswer]:
        # No coroutine of its own: every inference would be passed through it twice.
        request = GrpcInferRequest(call, self._context)
        return self._inflated(request) if request.is_compressed else self._answered(request)

    def _answered(self, request: GrpcInferRequest) -> Awaitable[GrpcAnswer]:
        return timed(self._inference, request) if request.head.asks_times else self._inference.infer(request)

    async def _inflated(self, request: GrpcInferRequest) -> GrpcAnswer:
        async with inflated(request, self._budget):
            return await self._answered(request)

    async def _read_model(self, call: GrpcCall) -> GrpcAnswer:
        """Answer a read-only call about a model or a route; its name is in the message."""
        if not self._access.needs_model_name and self._fleet is None and not self._servers.under_repair.ready_s:
            return await self._forward(call)
        message = self._message(call)
        name, version = model_in(message)
        self._access.require(call.principal, need_of_call(Action.READ, name))
        route = self._access.route(name)
        if route is not None:
            name, version = route.model, version or route.version
            call = GrpcCall(call.head, frame_message(with_model(message, name, version)))
        answer = await self._forward_to_model(call, name, version)
        return answer if name or call.head.method != _STATISTICS else self._visible(answer, call.principal)

    def _visible(self, answer: GrpcAnswer, principal: Principal) -> GrpcAnswer:
        """Filter the statistics of all models to those that the caller may read."""
        if principal is ANONYMOUS or answer.code != 0:
            return answer
        message = message_in(b"".join(answer.body), answer.encoding, _STATISTICS_BOUND)
        visible = visible_message(message, partial(self._access.readable, principal))
        return answer if visible is None else message_answer(visible)

    async def _forward(self, call: GrpcCall) -> GrpcAnswer:
        return await self._servers.ask(lambda server: server.grpc.unary(call, timeout_s=self._timeout_s(call)))

    async def _ready(self, call: GrpcCall) -> GrpcAnswer:
        return _NOT_READY[call.head.method] if self._servers.is_stopping else await self._forward(call)

    async def _index(self, call: GrpcCall) -> GrpcAnswer:
        if self._fleet is None:
            return await self._forward(call)
        return await self._fleet.index(self._read(call, service_pb2.RepositoryIndexRequest.FromString))

    async def _forward_to_model(self, call: GrpcCall, model: str, version: str) -> GrpcAnswer:
        """Forward a read-only call to a server with the model, or answer it for the fleet as a whole."""
        method, fleet = call.head.method, self._fleet
        if fleet is None:
            if method in (_READY, _STATISTICS):  # said at once, even while the model is loaded anew
                return await self._forward(call)
        elif method == _READY:
            return await fleet.ready(call, model, version, timeout_s=self._timeout_s(call))
        elif method == _STATISTICS:
            return await fleet.statistics(call, model, version, timeout_s=self._timeout_s(call))
        elif (known := fleet.description(model, version, is_config=method == _CONFIG)) is not None:
            return known
        server = await self._inference.dispatch.reading(model, timeout_s=self._timeout_s(call))
        return await server.grpc.unary(call, timeout_s=self._timeout_s(call))

    def _timeout_s(self, call: GrpcCall) -> float:
        return self._read_timeout_s if call.head.timeout_s is None else call.head.timeout_s

    async def _load(self, call: GrpcCall) -> GrpcAnswer:
        if len(call.frame) > _CONTROL.max_bytes:  # a model's configuration or files: what else a load says is short
            self._access.require(call.principal, OVERRIDE_NEED)
        request = self._read(call, service_pb2.RepositoryModelLoadRequest.FromString)
        _refuse_repository_name(request.repository_name)
        override = override_of(request.parameters)
        self._access.require_override(call.principal, override)
        change = self._models.load(request.model_name, override)
        return await _administered(request.model_name, change, service_pb2.RepositoryModelLoadResponse())

    async def _unload(self, call: GrpcCall) -> GrpcAnswer:
        request = self._read(call, service_pb2.RepositoryModelUnloadRequest.FromString)
        _refuse_repository_name(request.repository_name)
        change = self._models.unload(request.model_name, unload_dependents=unloads_dependents(request.parameters))
        return await _administered(request.model_name, change, service_pb2.RepositoryModelUnloadResponse())

    def _message(self, call: GrpcCall) -> bytes | memoryview:
        return message_in(call.frame, call.head.encoding, _bound_of(call.head.method) or self._limits.inflated(len(call.frame)))

    def _read(self, call: GrpcCall, parse: Callable[[bytes], MessageT]) -> MessageT:
        message = self._message(call)
        try:
            return parse(bytes(message))
        except Exception as exc:  # protobuf's DecodeError differs between its implementations
            raise InvalidRequest(f"the message of {call.head.method} cannot be read: {exc}") from exc


def _bound_of(method: str) -> InflateBound | None:
    """The bound on a method's message; None for a load, which may have a model's files."""
    if method == _LOAD:
        return None
    return _UNNAMED if _METHODS[method].names is None else _CONTROL


def _refuse_repository_name(name: str) -> None:
    if name:
        raise NotSupported("'repository_name' specification is not supported")


async def _administered(name: str, change: Awaitable[object], done: Any) -> GrpcAnswer:
    """Await a load or unload; failures are rendered as Triton renders them."""
    try:
        await change
    except ModelNotFound:
        return status_answer(GrpcStatus.INTERNAL, not_in_any_repository(name))
    except ModelLoadFailed as exc:
        return status_answer(exc.upstream_code, message_of(exc))
    return message_answer(done.SerializeToString())


async def _live(call: GrpcCall) -> GrpcAnswer:
    return _LIVE
