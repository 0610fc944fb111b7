"""Callers that show one key at one frontend over and over, and remember until when it was accepted."""

from __future__ import annotations

import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e import raw_http
from tests.e2e.tidegate import LONG_S, Tidegate

VALUES = np.arange(4, dtype=np.float32).reshape(1, 4)
ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": VALUES.flatten().tolist()}]}
_INTERVAL_S = 0.02
_TIMEOUT_S = LONG_S
_REFUSALS = ("401", "429", "StatusCode.UNAUTHENTICATED", "StatusCode.RESOURCE_EXHAUSTED")
"""Whoever fails often is slowed as well."""

Ask = Callable[[], bool]
"""Whether the key was accepted; anything else is an error."""


class Probe(threading.Thread):
    """Asks until it is told to stop."""

    def __init__(self, name: str, make: Callable[[ExitStack], Ask]) -> None:
        super().__init__(name=name)
        self._make = make
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self.accepted = 0
        self.refused = 0
        self.accepted_until_s = 0.0
        """When the last request that was accepted was sent."""

    def run(self) -> None:
        try:
            with ExitStack() as held:  # in this thread, as tritonclient's HTTP client wants it
                ask = self._make(held)
                while not self._is_over.is_set():
                    self._ask_once(ask)
                    time.sleep(_INTERVAL_S)
        except BaseException as exc:
            self._failure = exc

    def end(self) -> None:
        self._is_over.set()
        self.join(_TIMEOUT_S)
        assert not self.is_alive(), f"{self.name} hangs"
        if self._failure is not None:
            raise AssertionError(f"{self.name}: {self._failure!r}") from self._failure

    def _ask_once(self, ask: Ask) -> None:
        sent_s = time.monotonic()
        if ask():
            self.accepted += 1
            self.accepted_until_s = sent_s
        else:
            self.refused += 1


@contextmanager
def probing(probes: Iterable[Probe]) -> Iterator[list[Probe]]:
    """A block beside which they ask; each has been accepted before it begins."""
    started = list(probes)
    for probe in started:
        probe.start()
    try:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while any(not probe.accepted and probe.is_alive() for probe in started) and time.monotonic() < deadline_s:
            time.sleep(_INTERVAL_S)
        yield started
    finally:
        failed = []
        for probe in started:
            try:
                probe.end()
            except AssertionError as exc:
                failed.append(str(exc))
    assert not failed, failed
    assert all(probe.accepted for probe in started), [probe.name for probe in started if not probe.accepted]


def probes_at(gateways: Iterable[Tidegate], key: str, frontends: Iterable[str] = ()) -> list[Probe]:
    """One for each frontend of each, or for these frontends."""
    return [
        Probe(f"{frontend} of {gateway.state_dir.name}", make_of(gateway, key, PROTOCOLS[frontend]))
        for gateway in gateways
        for frontend in frontends or PROTOCOLS
    ]


def make_of(gateway: Tidegate, key: str, frontend: Callable[..., Ask]) -> Callable[[ExitStack], Ask]:
    return lambda held: frontend(gateway, key, held)


def _http(gateway: Tidegate, key: str, held: ExitStack) -> Ask:
    client = held.enter_context(tritonclient.http.InferenceServerClient(gateway.address("http"), network_timeout=_TIMEOUT_S))
    tensor = _tensor(tritonclient.http)
    return lambda: _is_accepted(lambda: client.infer("echo", [tensor], headers={"x-api-key": key}))


def _grpc(gateway: Tidegate, key: str, held: ExitStack) -> Ask:
    client = held.enter_context(tritonclient.grpc.InferenceServerClient(gateway.address("grpc")))
    tensor = _tensor(tritonclient.grpc)
    bearer = {"authorization": f"Bearer {key}"}
    return lambda: _is_accepted(lambda: client.infer("echo", [tensor], headers=bearer, client_timeout=_TIMEOUT_S))


def _open_stream(gateway: Tidegate, key: str, held: ExitStack) -> Ask:
    """On one stream, as long as it lasts."""
    client = held.enter_context(tritonclient.grpc.InferenceServerClient(gateway.address("grpc")))
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue(maxsize=16)
    client.start_stream(lambda result, error: answers.put((result, error)), headers={"x-api-key": key})
    held.callback(client.stop_stream, cancel_requests=True)
    tensor = _tensor(tritonclient.grpc)
    has_ended = False

    def ask() -> bool:
        nonlocal has_ended
        if not has_ended:
            with suppress(InferenceServerException):  # it has ended between two requests, and `answers` has why
                client.async_stream_infer("echo", [tensor])
            _, error = answers.get(timeout=_TIMEOUT_S)
            has_ended = error is not None
            assert error is None or error.status() in _REFUSALS, error
        return not has_ended

    return ask


def fresh_http(gateway: Tidegate, key: str, held: ExitStack) -> Ask:
    """Each request on a connection of its own, which the kernel gives to any worker."""
    return lambda: _is_200(raw_http.status(raw_http.infer(gateway.port("http"), "echo", ECHO, fields=[("x-api-key", key)])))


def fresh_grpc(gateway: Tidegate, key: str, held: ExitStack) -> Ask:
    tensor = _tensor(tritonclient.grpc)
    own_connection = [("grpc.use_local_subchannel_pool", 1)]

    def ask() -> bool:
        with tritonclient.grpc.InferenceServerClient(gateway.address("grpc"), channel_args=own_connection) as client:
            return _is_accepted(lambda: client.infer("echo", [tensor], headers={"x-api-key": key}, client_timeout=_TIMEOUT_S))

    return ask


def _metrics(gateway: Tidegate, key: str, held: ExitStack) -> Ask:
    return lambda: _is_200(status_of(gateway.endpoints["metrics"], key))


def _admin(gateway: Tidegate, key: str, held: ExitStack) -> Ask:
    return lambda: _is_200(status_of(gateway.endpoints["admin"] + "/tenants", key))


PROTOCOLS: dict[str, Callable[[Tidegate, str, ExitStack], Ask]] = {
    "http": _http,
    "grpc": _grpc,
    "an open stream": _open_stream,
    "metrics": _metrics,
    "admin": _admin,
}


def status_of(url: str, key: str) -> int:
    request = urllib.request.Request(url, headers={"x-api-key": key})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code


def _tensor(library: Any) -> Any:
    tensor = library.InferInput("INPUT0", list(VALUES.shape), "FP32")
    tensor.set_data_from_numpy(VALUES)
    return tensor


def _is_accepted(infer: Callable[[], Any]) -> bool:
    try:
        answer = infer()
    except InferenceServerException as exc:
        if exc.status() not in _REFUSALS:
            raise
        return False
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), VALUES)
    return True


def _is_200(status: int) -> bool:
    assert status == 200 or str(status) in _REFUSALS, status
    return status == 200
