"""Answers of the gRPC frontend for a whole fleet, where a single Triton knows only itself: index, ready, statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import json_format

from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.algorithms.steps import Steps
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.view.catalogue import asked_of_all
from control_plane.frontends.kserve.http_fleet import not_available
from control_plane.frontends.kserve.sharded_answers import grpc_description, has_version
from control_plane.inference.dispatch.catalogue import Catalogue
from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus, message_answer, message_in, status_answer
from control_plane.protocols.kserve.merged_statistics import PER_STEP, merged_statistics_steps, no_statistics
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.protocols.kserve.requests.body_limits import InflateBound
from control_plane.triton.ports import GrpcCall

_BOUND = InflateBound(1 << 26, "a server's statistics are too large")
"""Bound on the statistics of one server; those of one model version are some hundred bytes."""


class GrpcFleetAnswers:
    """Answers gRPC calls about all servers of a fleet; it gets parsed messages."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def index(self, request: Any) -> GrpcAnswer:
        """Answer RepositoryIndex. Raises UpstreamUnavailable."""
        if request.repository_name:
            return status_answer(GrpcStatus.UNIMPLEMENTED, "'repository_name' specification is not supported")
        lines = await self._catalogue.index(only_ready=request.ready)
        return message_answer(await asyncio.to_thread(_index, lines))  # thousands of models take tens of milliseconds

    async def ready(self, call: GrpcCall, model: str, version: str, *, timeout_s: float) -> GrpcAnswer:
        """Answer ModelReady. Raises UpstreamUnavailable."""
        is_ready = self._catalogue.is_ready(model) and (not self._catalogue.told_config(model) or has_version(version))
        holders = self._catalogue.servers_of(model) if version and is_ready else []
        answers = await asked_of_all(holders, lambda server: server.grpc.unary(call, timeout_s=timeout_s))
        if answers:  # a version was named, and only the servers know which versions they have loaded
            return next((answer for answer in answers if _says_ready(answer)), answers[0])
        return message_answer(service_pb2.ModelReadyResponse(ready=is_ready).SerializeToString())

    def description(self, model: str, version: str, *, is_config: bool) -> GrpcAnswer | None:
        """Answer ModelMetadata or ModelConfig of a sharded model; None: a server does. Raises ModelLoadFailed."""
        told = self._catalogue.told_config(model)
        return grpc_description(model, version, told, is_config=is_config) if told else None

    async def statistics(self, call: GrpcCall, model: str, version: str, *, timeout_s: float) -> GrpcAnswer:
        """Answer ModelStatistics, added up over all servers. Raises UpstreamUnavailable: no server is up."""
        servers = self._catalogue.servers_of(model)
        answers = await asked_of_all(servers, lambda server: server.grpc.unary(call, timeout_s=timeout_s))
        good = [answer for answer in answers if answer.code == 0]
        if len(good) > 1:
            return await run_in_steps(_merged_steps(good))
        if answers:
            return (good or answers)[0]
        if not self._catalogue.knows(model):
            return status_answer(GrpcStatus.INVALID_ARGUMENT, not_available(model))
        return await run_in_steps(_statistics_steps([no_statistics(model, version)]))


def _index(lines: Iterable[ModelVersion]) -> bytes:
    answer = service_pb2.RepositoryIndexResponse()
    for line in lines:
        is_known = line.version or line.reason or line.state is not ModelState.UNAVAILABLE
        answer.models.add(name=line.name, version=line.version, state=line.state.value if is_known else "", reason=line.reason)
    return bytes(answer.SerializeToString())


def _says_ready(answer: GrpcAnswer) -> bool:
    return answer.code == 0 and bool(service_pb2.ModelReadyResponse.FromString(_message_in(answer)).ready)


def _merged_steps(answers: Iterable[GrpcAnswer]) -> Steps[GrpcAnswer]:
    found = yield from merged_statistics_steps(map(_read, answers))
    return (yield from _statistics_steps(found))


def _read(answer: GrpcAnswer) -> Iterator[dict[str, Any]]:
    message = service_pb2.ModelStatisticsResponse.FromString(_message_in(answer))
    return (json_format.MessageToDict(each, preserving_proto_field_name=True) for each in message.model_stats)


def _message_in(answer: GrpcAnswer) -> bytes:
    return bytes(message_in(b"".join(answer.body), answer.encoding, _BOUND))


def _statistics_steps(found: Iterable[dict[str, Any]]) -> Steps[GrpcAnswer]:
    message = service_pb2.ModelStatisticsResponse()
    for number, each in enumerate(found, 1):
        json_format.ParseDict(each, message.model_stats.add())
        if number % PER_STEP == 0:
            yield
    return message_answer(message.SerializeToString())
