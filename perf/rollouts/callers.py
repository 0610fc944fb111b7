"""Callers of the two routes over HTTP, gRPC, streams and in sequences, each request with what became of it."""

from __future__ import annotations

import http.client
import itertools
import json
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc

from perf.rollouts.models import NUMBERS

PLAIN, SEQUENCE = "plain", "sequence"
USER = "x-user"
VALUES, NEW_VALUES = 500, 2**21
"""Contents of requests: a part comes again, and the response cache answers it; the rest is computed."""
_AGAIN = 0.3
STEPS = 5
STREAM = 20
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Answered:
    """Request that was answered, and the model that its answer names."""

    route: str
    way: str
    unit: str
    """What sticks: a user, a stream or a sequence."""
    sent_s: float
    """Seconds since 1970, as of the next."""
    answered_s: float
    model: str = ""
    """Model that the answer names."""
    wrong: str = ""
    """What is wrong with the answer: its numbers are not those of the model that it names."""
    failed: str = ""


class Callers:
    """Threads that ask until the block ends."""

    def __init__(self, http_address: str, grpc_address: str, *, pause_s: float) -> None:
        self._addresses, self._pause_s = {"http": http_address, "grpc": grpc_address}, pause_s
        self._ends = threading.Event()
        self._units = itertools.count(1)
        self.answered: list[Answered] = []
        ways: list[Callable[[random.Random], None]] = [self._http, self._http, self._grpc, self._stream, self._sequences]
        self._threads = [threading.Thread(target=self._run, args=(ask, random.Random(number))) for number, ask in enumerate(ways)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _run(self, ask: Callable[[random.Random], None], drawn: random.Random) -> None:
        """Ask again and again; on a connection that broke, anew."""
        while not self._ends.is_set():
            sent_s = time.time()
            try:
                ask(drawn)
            except (OSError, http.client.HTTPException, tritonclient.grpc.InferenceServerException, queue.Empty) as exc:
                self.answered.append(
                    Answered("", ask.__name__.strip("_"), "", sent_s, time.time(), failed=f"{type(exc).__name__}: {exc}"[:300])
                )
                time.sleep(0.05)

    def _http(self, drawn: random.Random) -> None:
        with closing(http.client.HTTPConnection(self._addresses["http"], timeout=_TIMEOUT_S)) as connection:
            for value, user in self._asked(drawn):
                sent_s = time.time()
                connection.request("POST", f"/v2/models/{PLAIN}/infer", _body(value), {USER: user})
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200:
                    self._note(PLAIN, "http", user, sent_s, failed=f"{answer.status} {body[:200]!r}")
                    continue
                said = json.loads(body)
                found = {output["name"]: output["data"][0] for output in said["outputs"]}
                named = answer.headers.get("tidegate-model") or said["model_name"]
                wrong = _wrong(said["model_name"], named, found["V"], found["Y"], 2 * value)
                self._note(PLAIN, "http", user, sent_s, model=said["model_name"], wrong=wrong)

    def _grpc(self, drawn: random.Random) -> None:
        with tritonclient.grpc.InferenceServerClient(self._addresses["grpc"]) as client:
            for value, user in self._asked(drawn):
                sent_s = time.time()
                result = client.infer(PLAIN, [_tensor(value)], headers={USER: user}, client_timeout=_TIMEOUT_S)
                self._read(PLAIN, "grpc", user, sent_s, result, 2 * value)

    def _stream(self, drawn: random.Random) -> None:
        unit = f"stream-{next(self._units)}"
        with _Stream(self._addresses["grpc"]) as stream:
            for value, _ in itertools.islice(self._asked(drawn), STREAM):
                sent_s = time.time()
                result = stream.ask(PLAIN, value)
                self._read(PLAIN, "stream", unit, sent_s, result, 2 * value)

    def _sequences(self, drawn: random.Random) -> None:
        """A sequence, to its end in any case: the next one would wait until Triton gives up one that has none."""
        number = next(self._units)
        with tritonclient.grpc.InferenceServerClient(self._addresses["grpc"]) as client:
            total = 0.0
            for step in range(STEPS):
                value, _ = self._drawn(drawn)
                time.sleep(self._pause_s)
                total += 2 * value
                sent_s = time.time()
                result = client.infer(
                    SEQUENCE, [_tensor(value)], sequence_id=number, sequence_start=step == 0, sequence_end=step == STEPS - 1,
                    client_timeout=_TIMEOUT_S,
                )  # fmt: skip
                self._read(SEQUENCE, "sequence", f"sequence-{number}", sent_s, result, total)

    def _asked(self, drawn: random.Random) -> Iterator[tuple[float, str]]:
        while not self._ends.is_set():
            yield self._drawn(drawn)
            time.sleep(self._pause_s)

    @staticmethod
    def _drawn(drawn: random.Random) -> tuple[float, str]:
        """Contents of a request, and its user."""
        value = drawn.randrange(VALUES) if drawn.random() < _AGAIN else drawn.randrange(VALUES, NEW_VALUES)
        return float(value), f"user-{drawn.randrange(10**6)}"

    def _read(self, route: str, way: str, unit: str, sent_s: float, result: Any, expected: float) -> None:
        model = result.get_response().model_name
        wrong = _wrong(model, model, result.as_numpy("V")[0], result.as_numpy("Y")[0], expected)
        self._note(route, way, unit, sent_s, model=model, wrong=wrong)

    def _note(self, route: str, way: str, unit: str, sent_s: float, **what: str) -> None:
        self.answered.append(Answered(route, way, unit, sent_s, time.time(), **what))


class _Stream:
    """A gRPC stream with one request at a time."""

    def __init__(self, address: str) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(address)
        self._answers: queue.Queue[Any] = queue.Queue()

    def __enter__(self) -> _Stream:
        self._client.start_stream(lambda result, error: self._answers.put(error or result))
        return self

    def __exit__(self, *error: object) -> None:
        self._client.stop_stream()
        self._client.close()

    def ask(self, model: str, value: float) -> Any:
        self._client.async_stream_infer(model, [_tensor(value)])
        answer = self._answers.get(timeout=_TIMEOUT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _wrong(model: str, named: str, number: int, value: float, expected: float) -> str:
    """What does not fit: the number of another version, such as from a wrong hit of the cache, or another result."""
    if named != model or NUMBERS.get(model) != number:
        return f"the answer of {model} says {named} and has number {number}"
    return "" if value == expected or model.startswith("bad_") else f"{model} has answered {value}, not {expected}"


def _body(value: float) -> str:
    return json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [value]}]})


def _tensor(value: float) -> tritonclient.grpc.InferInput:
    tensor = tritonclient.grpc.InferInput("X", [1], "FP32")
    tensor.set_data_from_numpy(np.array([value], dtype=np.float32))
    return tensor
