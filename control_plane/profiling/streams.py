"""Measures the requests of a decoupled model, which answers one request with several responses, such as the tokens of a text;
`cli/planning/profile` prints it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from control_plane.core.errors import InvalidRequest
from control_plane.profiling.load import load
from control_plane.profiling.ports import Gateway
from control_plane.profiling.stages import Asked, Stage, measured, stages_of_first


@dataclass(frozen=True, slots=True)
class StreamProfile:
    """Where the time of a decoupled model's requests went."""

    protocol: str
    concurrency: int
    """Callers that asked at once."""
    requests: int
    requests_per_s: float
    stages: list[Stage]
    """Parts of the time to the first response."""
    first: Stage
    """Time to the first response at its client: to the first token of a model that sends one in each response."""
    following: Stage | None
    """Time from one response to the next; None where no answer has several."""
    whole: Stage
    """Time to the last response."""
    responses: int
    tokens: int | None
    """Tokens in all responses; None: the model does not count them."""
    computed: int
    """Requests of the model that Triton began meanwhile: more where others asked."""
    client_busy: float
    """CPU seconds of each second that this process used: near 1 its threads wait for each other, which is part of the network's time."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """One answer: when its responses came, in milliseconds since the request."""

    came_ms: Sequence[float]
    tokens: int | None
    told_ms: Mapping[str, float]


def measure_streams(callers: Sequence[Gateway], model: str, requests: Iterable[bytes], *, protocol: str = "HTTP") -> StreamProfile:
    """Have all callers send encoded requests, of which the first only warms up. Raises as the callers do, and InvalidRequest: a
    request was answered without any response."""
    pending = iter(requests)
    _heard(callers[0], next(pending))
    loaded = load(callers, model, pending, _heard)
    heard = loaded.asked
    asked = [Asked(each.came_ms[0], each.told_ms) for each in heard]
    pauses_ms = [later - earlier for each in heard for earlier, later in pairwise(each.came_ms)]
    counts = [each.tokens for each in heard if each.tokens is not None]
    return StreamProfile(
        protocol=protocol,
        concurrency=len(callers),
        requests=len(heard),
        requests_per_s=loaded.per_s,
        stages=stages_of_first(asked, model=loaded.model, steps=loaded.steps, protocol=protocol),
        first=measured("first response, at its client", [each.total_ms for each in asked]),
        following=measured("each further response", pauses_ms) if pauses_ms else None,
        whole=measured("the whole answer", [each.came_ms[-1] for each in heard]),
        responses=sum(len(each.came_ms) for each in heard),
        tokens=sum(counts) if len(counts) == len(heard) else None,
        computed=loaded.model.requests,
        client_busy=loaded.client_busy,
    )


def _heard(gateway: Gateway, request: bytes) -> _Heard:
    came_ms, counts, began_s = list[float](), list[int](), time.perf_counter()

    def note(tokens: int | None) -> None:
        came_ms.append(1e3 * (time.perf_counter() - began_s))
        if tokens is not None:
            counts.append(tokens)

    told_ms = gateway.stream(request, note)
    if not came_ms:
        raise InvalidRequest("the model has answered a request without any response, so there is no time to the first one")
    return _Heard(came_ms, sum(counts) if len(counts) == len(came_ms) else None, told_ms)
