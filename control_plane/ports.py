"""What services need of the world outside; adapters implement these, tests have fakes of them.

Adapters translate their client's exceptions into `domain.errors`; an answer of Triton's, good or bad, is a value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from control_plane.codec.grpc_message import GrpcAnswer, GrpcHead, MessageFrame
from control_plane.codec.http2_headers import Fields
from control_plane.codec.http_message import HttpAnswer, HttpRequest
from control_plane.codec.worker_message import FromWorker, ToWorker
from control_plane.domain.compute_time import ComputeTime
from control_plane.domain.demand import Exchange
from control_plane.domain.endpoints import TritonEndpoints
from control_plane.domain.fingerprint import Fingerprint, LoadedConfig, ModelContents
from control_plane.domain.fleet import DescribedModel, Tier
from control_plane.domain.inference import Door, Outcome
from control_plane.domain.lease import Lease
from control_plane.domain.model import ModelOverride, ModelVersion
from control_plane.domain.model_source import ModelSource, SourceFile, WarmCopy
from control_plane.domain.principal import NOBODY, Principal
from control_plane.domain.shared_cache_counts import SharedCacheCounts
from control_plane.domain.stored import Kind, Stored
from control_plane.domain.tuning import Candidate, Level
from control_plane.domain.usage import Usage, UsageBatch, UsageEvent, UsageKey
from control_plane.policy.compute_units import ModelCost


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """A unary call as it came in: its head, and its one message with the length before it."""

    head: GrpcHead
    frame: MessageFrame
    principal: Principal = NOBODY


class HttpStream(Protocol):
    """An answer of Triton's that comes piece by piece; `close` it in any case."""

    @property
    def status(self) -> int: ...

    @property
    def head(self) -> bytes:
        """As it came; it says that the body is chunked."""

    async def receive(self) -> bytes | None:
        """The next piece, None at the end. Raises UpstreamUnavailable when it breaks off, DeadlineExceeded."""

    def close(self) -> None:
        """Give it up when it is not at its end. Idempotent."""


class HttpUpstream(Protocol):
    """Triton's HTTP endpoint over pooled keep-alive connections."""

    async def send(self, request: HttpRequest, *, timeout_s: float, model_name: str = "") -> HttpAnswer:
        """`model_name` shares the connections among models. Cancelling drops the connection.

        Raises: UpstreamUnavailable (no connection, or it broke), DeadlineExceeded.
        """

    async def stream(self, request: HttpRequest, *, timeout_s: float, model_name: str = "") -> HttpAnswer | HttpStream:
        """As `send`, for a call whose answer may come piece by piece; then `timeout_s` bounds the wait for each piece."""

    async def close(self) -> None: ...


class GrpcStream(Protocol):
    """A streaming call to Triton, as a caller's own stream: several callers never share one."""

    @property
    def headers(self) -> Fields:
        """Triton's head; empty until its first message, and where it sent none."""

    @property
    def trailers(self) -> Fields:
        """How it ended, once `receive` has returned None."""

    async def send(self, frame: MessageFrame) -> None:
        """Send one message; returns when Triton has room for the next."""

    def half_close(self) -> None:
        """Say that no more messages follow."""

    async def receive(self) -> MessageFrame | None:
        """The next message, None at the end."""

    def cancel(self) -> None:
        """End it at Triton too. Idempotent."""


class GrpcUpstream(Protocol):
    """Triton's gRPC endpoint."""

    async def unary(self, call: GrpcCall, *, timeout_s: float) -> GrpcAnswer:
        """Any status, also of a broken connection, is in the answer. Cancelling cancels the call in Triton."""

    async def open_stream(self, head: GrpcHead, *, timeout_s: float) -> GrpcStream:
        """Open a call that streams both ways. Raises UpstreamUnavailable when no connection is to be had in `timeout_s`."""

    async def close(self) -> None: ...


class ModelStatisticsSource(Protocol):
    """What Triton has counted."""

    async def compute_times(self) -> dict[str, ComputeTime]:
        """By model, all versions together; only models that batch or are batched tell it. Raises UpstreamUnavailable, UpstreamFailed."""


class ModelControl(ModelStatisticsSource, Protocol):
    """Triton's model repository API, over gRPC only: over HTTP ten loads hold all its threads (server 24.10)."""

    async def is_live(self) -> bool: ...

    async def index(self) -> list[ModelVersion]:
        """Every model directory Triton sees, with state and reason. Raises UpstreamUnavailable, UpstreamFailed."""

    async def load(self, name: str, *, override: ModelOverride | None = None, timeout_s: float) -> None:
        """Return when the model is ready. Raises ModelLoadFailed, DeadlineExceeded, UpstreamUnavailable."""

    async def unload(self, name: str, *, unload_dependents: bool = False, timeout_s: float) -> None:
        """Return when Triton has accepted it; in-flight requests finish first. Raises as `load`."""

    async def loaded_config(self, name: str) -> LoadedConfig:
        """Of a model that is ready, as Triton has it. Raises UpstreamFailed (none is), UpstreamUnavailable."""

    async def server_version(self) -> str:
        """Raises UpstreamUnavailable."""

    async def is_decoupled(self, name: str) -> bool:
        """Whether a model answers a request any number of times. Raises UpstreamFailed (there is none), UpstreamUnavailable."""

    async def memory_bytes(self) -> dict[str, int]:
        """Resident bytes by model, for the backends that report them."""


class Upstream(Protocol):
    """One connected Triton."""

    @property
    def endpoints(self) -> TritonEndpoints:
        """Where it listens, for other processes to connect to it too."""

    @property
    def http(self) -> HttpUpstream: ...

    @property
    def grpc(self) -> GrpcUpstream: ...

    @property
    def control(self) -> ModelControl: ...

    async def metrics_text(self) -> bytes:
        """Triton's own Prometheus page; empty where there is none. Raises UpstreamUnavailable."""

    async def close(self) -> None:
        """Close every pooled connection: one idle keep-alive connection holds up Triton's exit (server 24.10)."""


Connect = Callable[[TritonEndpoints], Upstream]


class TritonProcess(Protocol):
    """One life of an embedded Triton."""

    @property
    def endpoints(self) -> TritonEndpoints: ...

    async def wait(self) -> str:
        """Return when it has ended: how, with the tail of its log."""

    def resident_bytes(self) -> int | None:
        """What it and all it started hold in main memory now, shared pages in parts; None where nobody can say. Reads files."""

    async def stop(self, *, grace_s: float) -> None:
        """End it and everything it started, in `grace_s` at most; return when all is gone. Idempotent."""


class TritonLauncher(Protocol):
    """Starts embedded Tritons."""

    async def start(self) -> TritonProcess:
        """Start one; it need not be live yet. Raises StartupError when it cannot be started at all."""


class ModelRepository(Protocol):
    """The folders that models come from, placed under the root that Triton reads."""

    def names(self) -> list[str]:
        """Every model in the sources now. Raises StartupError when two sources hold one name."""

    def place_all(self) -> None:
        """Place every model that can be placed, and remove placed ones whose source is gone."""

    def place(self, name: str) -> None:
        """Bring the placed copy (of an ensemble's composing models too) up to the source. Raises ModelNotFound."""


class ModelDescriptions(Protocol):
    """What the model repositories say of their models."""

    def read(self) -> Mapping[str, DescribedModel]:
        """By name; reads files, so a thread calls it. What cannot be read is left out."""


class Stop(Protocol):
    """Tells a thread to end what it does."""

    def is_set(self) -> bool: ...


class ModelStore(Protocol):
    """Where models come from that are on no disk here. It reads itself, so threads call it; each call has a deadline of its own, and ends
    soon after `stop` is set. Each raises StoreUnavailable."""

    @property
    def url(self) -> str:
        """As it may be shown."""

    def names(self, stop: Stop) -> list[str]:
        """Every model in it now."""

    def describe(self, name: str, stop: Stop) -> ModelSource:
        """Its files now. Raises ModelNotFound; ModelLoadFailed: they cannot be a model's."""

    def read(self, name: str, path: str, span: range, stop: Stop) -> Sequence[bytes]:
        """So many bytes of a file from there, in pieces. Raises ModelLoadFailed, as passing: there are fewer, or it is gone."""

    def close(self) -> None: ...


class PartialCopy(Protocol):
    """A warm copy that is being fetched; what an earlier attempt has brought is there already."""

    @property
    def new_bytes(self) -> int:
        """How many this attempt has brought."""

    @property
    def done_bytes(self) -> int:
        """How many are there."""

    def fetch(self, file: SourceFile, read: Callable[[range], Sequence[bytes]], stop: Stop) -> None:
        """Bring what is missing of it, and verify all of it. Raises ModelLoadFailed, as passing: it is damaged; Overloaded: the disk
        is full; as `read`."""

    def finish(self) -> WarmCopy:
        """Put it in the place of what is held of the model, in one step, once every file is there. Raises Overloaded."""


class WarmTier(Protocol):
    """Copies of models on this machine. It reads and writes files, so threads call it."""

    @property
    def max_bytes(self) -> int: ...

    def open(self) -> list[WarmCopy]:
        """What is held, least recently used first. Raises StartupError: it cannot be written, or another process has it."""

    def path(self, name: str) -> Path: ...

    def use(self, copy: WarmCopy) -> bool:
        """Note that it is used; False when a file is not as it was written."""

    def is_sound(self, copy: WarmCopy, stop: Stop) -> bool:
        """Whether every file's digest is what it was; reads all of it."""

    def begin(self, source: ModelSource) -> PartialCopy:
        """Fetch a copy, or go on with it. Raises Overloaded: the disk is full."""

    def remove(self, name: str) -> None:
        """From sight in one step."""

    def partial_bytes(self, but: Collection[str]) -> int:
        """Taken by copies that nobody fetches now; `but` are models that somebody does."""

    def drop_partials(self, but: Collection[str]) -> None: ...

    def drop_partial(self, name: str) -> None: ...

    def close(self) -> None: ...


class MoveObserver(Protocol):
    """Is told of every move of a model from one tier to another."""

    def moved(self, model: str, *, source: Tier, target: Tier, size_bytes: int, took_s: float) -> None: ...


class ModelReading(Protocol):
    """What loads read of the disk. Reads files itself, so threads call it; each method raises ModelLoadFailed."""

    def with_steps(self, name: str, override: ModelOverride | None) -> list[str]:
        """The model and, of an ensemble, every model that its load loads too, as their configurations are now."""

    def read(self, name: str, override: ModelOverride | None) -> ModelContents:
        """What a load would read now."""

    def make_look_changed(self, name: str) -> None:
        """Have Triton's next load read it anew, whether it has changed or not."""


class FingerprintBoard(Protocol):
    """Every process that may answer with what a model has answered before."""

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        """Return when all of them go by it; None is unknown."""

    async def forget(self, models: Iterable[str]) -> None:
        """What is unknown of them is unknown since they are not loaded here any more."""


class ModelAdministration(Protocol):
    """Loading and unloading, as both doors call it: `services.models`, or the way to it from a worker process."""

    async def load(self, name: str, override: ModelOverride | None = None) -> object:
        """Return when it is ready. A caller that leaves does not end the load.

        Raises:
            InvalidRequest: the name cannot be a model's. ModelNotFound: no repository has it. ModelLoadFailed: with
                Triton's own text and code. DeadlineExceeded, UpstreamUnavailable.
        """

    async def unload(self, name: str, *, unload_dependents: bool = False) -> object:
        """Return when Triton has accepted it, for a model it does not know too. Raises as `load`, but not ModelNotFound."""


class WorkerProcess(Protocol):
    """One life of a process that answers the data ports."""

    def send(self, message: ToWorker) -> None:
        """Without waiting; to one that has ended it goes nowhere."""

    async def receive(self) -> FromWorker | None:
        """Its next message; None when it says no more."""

    async def wait(self) -> str:
        """Return when it has ended: how."""

    def kill(self) -> None:
        """End it at once; idempotent."""


class WorkerLauncher(Protocol):
    """Starts workers."""

    async def start(self, number: int) -> WorkerProcess:
        """Start the one of that number, from 0; it listens when it is told to. Raises StartupError."""


class TuningServers(Protocol):
    """Serves one model in each of the ways that a tuner tries."""

    def serve(self, candidate: Candidate) -> AbstractAsyncContextManager[str]:
        """`HOST:PORT` of a server of its own, ready, until the block ends. Raises ControlPlaneError: it cannot be served that way."""


class LoadGenerator(Protocol):
    """Sends a model the requests of a mix."""

    async def measure(self, address: str, *, concurrency: int, duration_s: float) -> Level:
        """Keep so many requests in flight for about so long. Cancelling ends it. Raises UpstreamFailed, StartupError."""


class StateStore(Protocol):
    """What the control plane must remember, durably. Each method raises StoreUnavailable when the store cannot be reached."""

    async def get(self, kind: Kind, name: str) -> Stored | None:
        """As it is now; None where there is none."""

    async def list_all(self, kind: Kind) -> list[Stored]:
        """Every object of a kind, by name."""

    async def put(self, kind: Kind, name: str, body: Mapping[str, Any], *, expected: int | None = None) -> Stored:
        """Write it whole; durable when this returns.

        `expected` is the resource_version that it must have now, 0 that it must not exist. Raises Conflict.
        """

    async def delete(self, kind: Kind, name: str, *, expected: int | None = None) -> None:
        """Raises ObjectNotFound, Conflict."""

    async def changes(self, since: int, *, timeout_s: float) -> list[Stored]:
        """What has changed after `since`, each object once in its newest form, in order of change.

        Waits for a first change for `timeout_s` at most; then it is empty. `since` 0 gives everything, and is what to ask for
        after StoreUnavailable: the store may have lost changes, or be another one. (One whose last change is before
        `since` raises that too.)
        """

    async def restore(self, objects: Iterable[Stored]) -> None:
        """Hold these and nothing else, in one step; their resource_versions are new ones."""

    async def close(self) -> None: ...


class ModelCosts(Protocol):
    """What the model repositories say of their models' costs."""

    def read(self) -> Mapping[str, ModelCost]:
        """By model; reads files, so a thread calls it. What cannot be read is left out."""


class UsageStore(Protocol):
    """Durable sums of what was used. Each method raises StoreUnavailable when it cannot be reached."""

    async def add(self, batch: UsageBatch) -> None:
        """Count it, once, however often it is sent: a caller that does not know whether it arrived sends it again."""

    async def totals(self, *, since_day: str, until_day: str) -> list[tuple[UsageKey, Usage]]:
        """Sums of the days from `since_day` to `until_day`, both included, in order of their keys; of every batch that was added."""

    async def restore(self, totals: Iterable[tuple[UsageKey, Usage]]) -> None:
        """Hold these sums and nothing else, in one step."""

    async def run(self) -> None:
        """Do what goes on beside the rest, through outages, until cancelled; returns where there is nothing to do."""

    async def close(self) -> None: ...


class DemandBoard(Protocol):
    """Where processes that share tenants' limits tell each other what is asked of them; nothing of it lasts."""

    async def exchange(self, process: str, demand: Mapping[str, float]) -> Exchange:
        """Tell this process's demand, in place of what it told before, and hear that of all. Raises StoreUnavailable.

        A process that has not exchanged for `LIVE_S` counts no longer; `process` is a name that no other has.
        """

    async def leave(self, process: str) -> None:
        """It counts no longer; idempotent. Raises StoreUnavailable."""

    async def close(self) -> None: ...


class LeaseStore(Protocol):
    """Where processes agree which of them owns their fleet: one record, changed only by who knows it as it is.

    Keeps no time: `policy/ownership` does. Each method raises StoreUnavailable; then it may have been done, or not.
    """

    async def look(self) -> Lease | None:
        """As it is now; None: there is none, or it has been lost."""

    async def take(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease | None:
        """Put one with a higher token in place of `seen`; None: it is not as it was seen any more."""

    async def renew(self, lease: Lease) -> Lease | None:
        """The holder lives; None: somebody else has taken it, or it is gone."""

    async def release(self, lease: Lease) -> None:
        """The holder begins nothing more. Of one that somebody else has taken, nothing."""

    async def close(self) -> None: ...


class TokenVerifier(Protocol):
    """Checks the tokens (JWTs) of another issuer; without waiting, since every request asks."""

    def verify(self, token: str) -> Principal:
        """Whom it speaks for. Raises Unauthenticated: why it does not count, in words that repeat nothing of it."""


class UsageSpill(Protocol):
    """Where batches go that the store could not take before the process ended."""

    def batches(self) -> Iterator[UsageBatch]:
        """Those of earlier processes that have not been removed, in order; what cannot be read is left where it is."""

    def write(self, batch: UsageBatch) -> None:
        """Keep it for a later process. Raises StoreUnavailable."""

    def remove(self, batch: UsageBatch) -> None:
        """The store has it. One that is gone already is no error."""


class SharedCache(Protocol):
    """Level two of the response cache, which gateways share. It is never needed: what fails, is late or is damaged is not there."""

    @property
    def counts(self) -> SharedCacheCounts:
        """What became of lookups and writes so far; it goes on counting."""

    @property
    def is_open(self) -> bool:
        """Whether it is not asked for now, since it failed or was late too often."""

    async def get(self, keys: Sequence[bytes], *, timeout_s: float) -> list[bytes | None]:
        """Their values, in that order. Raises nothing; cancelling is heeded at once."""

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        """Keep it, soon, without waiting; whole seconds, one at least. What there is no room for now is dropped and counted."""

    async def run(self) -> None:
        """Write what was put until cancelled, through outages."""

    async def close(self) -> None: ...


class RequestLog(Protocol):
    """A line per request, for people and log collectors."""

    def write(self, event: UsageEvent) -> None:
        """Without waiting; what cannot be written is dropped and counted."""


class RequestRecorder(Protocol):
    """Counts what the gateway answered."""

    def record(self, *, model_name: str, door: Door, outcome: Outcome, duration_s: float, count: int = 1) -> None:
        """`count` of them that took `duration_s` each."""
