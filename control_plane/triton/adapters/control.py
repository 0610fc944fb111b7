"""Model control client over Triton's gRPC endpoint, with the typed stubs of Triton's own client; inference
uses `triton/adapters/grpc/client`.

Every load and unload goes this way: over HTTP ten parallel loads occupy all of Triton's HTTP threads (server
24.10).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from control_plane.core.endpoints import GRPC_CONTROL_FIELD, NO_CREDENTIALS, Address, TcpAddress, UpstreamCredentials
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, ModelLoadFailed, UpstreamFailed, UpstreamUnavailable
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.model import ModelOverride, ModelState, ModelVersion
from control_plane.protocols.kserve.messages import service_pb2, service_pb2_grpc
from control_plane.triton.adapters.connecting import short_path
from control_plane.triton.adapters.credentials import make_channel_credentials
from control_plane.triton.adapters.model_config import is_true, steps_of, string_parameters
from control_plane.triton.compute_time import ComputeTime
from control_plane.triton.triton_log import without_frames

_CONTROL_TIMEOUT_S = 10.0
"""Time limit of calls that only read; after days of uptime Triton takes up to 4 s for an index (server issue
5325).
"""

_INDEX = "/inference.GRPCInferenceService/RepositoryIndex"
_LARGE_INDEX_BYTES = 2**16
"""Length of an answer from which it is read in a thread: a thousand models and more take milliseconds."""

_STATES = {state.value: state for state in ModelState}

STATUS_ERRORS: dict[grpc.StatusCode, type[ControlPlaneError]] = {
    grpc.StatusCode.CANCELLED: UpstreamUnavailable,
    grpc.StatusCode.UNKNOWN: UpstreamFailed,
    grpc.StatusCode.INVALID_ARGUMENT: UpstreamFailed,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: UpstreamFailed,
    grpc.StatusCode.ALREADY_EXISTS: UpstreamFailed,
    grpc.StatusCode.PERMISSION_DENIED: UpstreamFailed,
    grpc.StatusCode.UNAUTHENTICATED: UpstreamFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: UpstreamFailed,
    grpc.StatusCode.FAILED_PRECONDITION: UpstreamFailed,
    grpc.StatusCode.ABORTED: UpstreamFailed,
    grpc.StatusCode.OUT_OF_RANGE: UpstreamFailed,
    grpc.StatusCode.UNIMPLEMENTED: UpstreamFailed,
    grpc.StatusCode.INTERNAL: UpstreamFailed,
    grpc.StatusCode.UNAVAILABLE: UpstreamUnavailable,
    grpc.StatusCode.DATA_LOSS: UpstreamFailed,
}
"""Our error for each status of a control call; on inference calls Triton's status passes through instead."""

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # A restarted Triton must be reachable within a second, and not only after gRPC's default backoff of up to
    # two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

LINES_PER_TURN = 64
"""Lines of statistics that are added up in one turn of the event loop: each has an entry for each batch size, which takes a
microsecond or two, and while charges are open they are read four times a second."""

_CHANNEL_CLOSED = "the connection to Triton has been closed"


class ControlClient:
    """Implementation of `triton/ports.ModelControl` over one gRPC channel."""

    def __init__(self, address: Address, *, control_secret: str = "", credentials: UpstreamCredentials = NO_CREDENTIALS) -> None:
        """Raises StartupError: a file of the credentials cannot be used."""
        secret = ((GRPC_CONTROL_FIELD, control_secret),) if control_secret else ()
        self._metadata = (*credentials.headers, *secret)
        self._held = ExitStack()
        self._channel = _channel(self._held.enter_context(grpc_target(address)), address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        serialize = service_pb2.RepositoryIndexRequest.SerializeToString
        self._stub.RepositoryIndex = self._channel.unary_unary(_INDEX, request_serializer=serialize)  # its answer stays in bytes
        self._index: tuple[bytes, list[ModelVersion]] = (b"", [])
        """The last answer for an index, and what it says."""

    async def is_live(self) -> bool:
        try:
            answer = await self._call("ServerLive", service_pb2.ServerLiveRequest(), 1.0)
        except ControlPlaneError:
            return False
        return bool(answer.live)

    async def index(self) -> list[ModelVersion]:
        answer = await self._call("RepositoryIndex", service_pb2.RepositoryIndexRequest(), _CONTROL_TIMEOUT_S)
        before, index = self._index
        if answer != before:
            index = _lines(answer) if len(answer) < _LARGE_INDEX_BYTES else await asyncio.to_thread(_lines, answer)
            self._index = answer, index
        return index

    async def load(self, name: str, *, override: ModelOverride | None = None, timeout_s: float) -> None:
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        if override is not None:
            if override.config is not None:
                request.parameters["config"].string_param = override.config
            for key, content in override.files.items():
                request.parameters[key].bytes_param = content
        await self._control("RepositoryModelLoad", request, timeout_s)

    async def unload(self, name: str, *, unload_dependents: bool = False, timeout_s: float) -> None:
        request = service_pb2.RepositoryModelUnloadRequest(model_name=name)
        if unload_dependents:
            request.parameters["unload_dependents"].bool_param = True
        await self._control("RepositoryModelUnload", request, timeout_s)

    async def loaded_config(self, name: str) -> LoadedConfig:
        answer = await self._call("ModelConfig", service_pb2.ModelConfigRequest(name=name), _CONTROL_TIMEOUT_S)
        config = answer.config
        return LoadedConfig(
            content=config.SerializeToString(deterministic=True),
            parameters=frozenset(string_parameters(config)),
            steps=frozenset(steps_of(config)),
            response_cache=bool(config.response_cache.enable),
            is_repeatable=not (config.model_transaction_policy.decoupled or config.HasField("sequence_batching")),
            is_batched=config.max_batch_size > 0,
            may_be_computed_twice=is_true(config, "tidegate_repeatable"),
        )

    async def server_version(self) -> str:
        answer = await self._call("ServerMetadata", service_pb2.ServerMetadataRequest(), _CONTROL_TIMEOUT_S)
        return str(answer.version)

    async def is_decoupled(self, name: str) -> bool:
        answer = await self._call("ModelConfig", service_pb2.ModelConfigRequest(name=name), _CONTROL_TIMEOUT_S)
        return bool(answer.config.model_transaction_policy.decoupled)

    async def memory_bytes(self) -> dict[str, int]:
        answer = await self._call("ModelStatistics", service_pb2.ModelStatisticsRequest(), _CONTROL_TIMEOUT_S)
        found: Counter[str] = Counter()
        for line in answer.model_stats:  # one for each version
            for usage in line.memory_usage:
                found[line.name] += usage.byte_size
        return dict(found)

    async def compute_times(self) -> dict[str, ComputeTime]:
        answer = await self._call("ModelStatistics", service_pb2.ModelStatisticsRequest(), _CONTROL_TIMEOUT_S)
        return await compute_times_of(answer.model_stats)

    async def close(self) -> None:
        with self._held:
            await self._channel.close()

    async def _control(self, method: str, request: Any, timeout_s: float) -> None:
        try:
            await self._call(method, request, timeout_s)
        except UpstreamFailed as exc:
            answer = exc.__cause__
            assert isinstance(answer, grpc.aio.AioRpcError)
            raise ModelLoadFailed(without_frames(answer.details() or str(exc)), upstream_code=answer.code().value[0]) from exc

    async def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as exc:
            raise STATUS_ERRORS[exc.code()](f"{method}: {exc.details()}") from exc
        except (asyncio.CancelledError, grpc.aio.UsageError) as exc:
            _reraise_own(exc)
            raise UpstreamUnavailable(f"{method}: {_CHANNEL_CLOSED}") from exc


async def compute_times_of(lines: Iterable[Any]) -> dict[str, ComputeTime]:
    """Add up Triton's statistics by model, over its versions (a line each) and batch sizes, in turns of the event loop."""
    found: dict[str, ComputeTime] = {}
    for number, line in enumerate(lines, 1):
        before = found.get(line.name, ComputeTime())
        inferences = sum(batch.compute_infer.count * batch.batch_size for batch in line.batch_stats)
        compute_ns = sum(batch.compute_infer.ns for batch in line.batch_stats)
        found[line.name] = ComputeTime(before.inferences + inferences, before.compute_ns + compute_ns)
        if number % LINES_PER_TURN == 0:
            await asyncio.sleep(0)
    return found


def _channel(target: str, address: Address) -> grpc.aio.Channel:
    if isinstance(address, TcpAddress) and address.tls is not None:
        return grpc.aio.secure_channel(target, make_channel_credentials(address.tls), options=_CHANNEL_OPTIONS)
    return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)


@contextmanager
def grpc_target(address: Address) -> Iterator[str]:
    """Yield the address as gRPC clients write it, ours and those of programs that we start; valid within the
    context, in which they may reconnect.
    """
    if isinstance(address, TcpAddress):
        yield address.authority
        return
    with short_path(address.path) as path:
        yield f"unix:{path}"


def _lines(answer: bytes) -> list[ModelVersion]:
    """Read an index. Raises UpstreamFailed."""
    try:
        return [_version(line) for line in service_pb2.RepositoryIndexResponse.FromString(answer).models]
    except DecodeError as exc:
        raise UpstreamFailed(f"RepositoryIndex: the answer cannot be read: {exc}") from exc


def _version(line: Any) -> ModelVersion:
    # Of a model that was never loaded Triton tells no state; it has one more, UNKNOWN, in which a model is not served either.
    return ModelVersion(line.name, line.version, _STATES.get(line.state, ModelState.UNAVAILABLE), without_frames(line.reason))


def _reraise_own(error: BaseException) -> None:
    """Re-raise a cancellation of the calling task; grpc.aio raises CancelledError too when `close` ends a
    call under way.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
