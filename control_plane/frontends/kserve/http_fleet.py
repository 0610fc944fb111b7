"""Answers of the HTTP frontend for a whole fleet, where a single Triton knows only itself: index, ready, statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson

from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.action import Action
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.view.catalogue import asked_of_all
from control_plane.frontends.kserve.sharded_answers import has_version, http_description
from control_plane.inference.dispatch.catalogue import Catalogue
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.kserve.merged_statistics import merged_statistics_steps, no_statistics
from control_plane.protocols.kserve.model_control import read_index_request
from control_plane.protocols.kserve.routes import V2Route

_READY = make_answer(200, content_type=b"text/plain")
_NOT_READY = make_answer(400, b'{"error":"Model version not ready"}')
"""Triton's own answer; it gives the same for models that it does not know."""


class HttpFleetAnswers:
    """Answers HTTP calls about all servers of a fleet."""

    def __init__(self, catalogue: Catalogue, *, timeout_s: float) -> None:
        self._catalogue = catalogue
        self._timeout_s = timeout_s

    async def answer(self, request: HttpRequest, route: V2Route) -> HttpAnswer | None:
        """Answer a call about the fleet; None: forward it to a single server.

        Raises UpstreamUnavailable, DeadlineExceeded, UnparsableRequest.
        """
        match route.action:
            case Action.INDEX:
                lines = await self._catalogue.index(only_ready=read_index_request(request.body))
                return make_answer(200, await asyncio.to_thread(_index, lines))  # thousands of models take milliseconds
            case Action.MODEL_READY:
                return await self._ready(request, route)
            case Action.READ if told := self._catalogue.told_config(route.model_name):
                is_config = request.target.partition(b"?")[0].endswith(b"/config")
                return http_description(route.model_name, route.model_version, told, is_config=is_config)
            case Action.STATISTICS:
                return await self._statistics(request, route)
        return None

    async def _ready(self, request: HttpRequest, route: V2Route) -> HttpAnswer:
        if not self._catalogue.is_ready(route.model_name):
            return _NOT_READY
        if self._catalogue.told_config(route.model_name):
            return _READY if has_version(route.model_version) else _NOT_READY
        holders = self._catalogue.servers_of(route.model_name) if route.model_version else []
        answers = await asked_of_all(holders, lambda server: server.http.send(request, timeout_s=self._timeout_s))
        # If a version was named, only the servers know which versions they have loaded.
        return next((answer for answer in answers if answer.status == 200), answers[0] if answers else _READY)

    async def _statistics(self, request: HttpRequest, route: V2Route) -> HttpAnswer:
        servers = self._catalogue.servers_of(route.model_name)
        answers = await asked_of_all(servers, lambda server: server.http.send(request, timeout_s=self._timeout_s))
        good = [answer for answer in answers if answer.status == 200]
        if len(good) > 1:
            merging = merged_statistics_steps(orjson.loads(answer.body)["model_stats"] for answer in good)
            return _statistics(await run_in_steps(merging))
        if answers:  # a single good answer is passed on unchanged; without one, the first error is
            return (good or answers)[0]
        if not self._catalogue.knows(route.model_name):
            return make_answer(400, orjson.dumps({"error": not_available(route.model_name)}))
        return _statistics([no_statistics(route.model_name, route.model_version)])


def not_available(model: str) -> str:
    """Triton's text for a call about statistics of an unknown model."""
    return f"requested model '{model}' is not available"


def _statistics(found: list[dict[str, Any]]) -> HttpAnswer:
    return make_answer(200, orjson.dumps({"model_stats": found}))


def _index(lines: Iterable[ModelVersion]) -> bytes:
    return orjson.dumps([_line(line) for line in lines])


def _line(line: ModelVersion) -> dict[str, str]:
    """One line of the index; like Triton, it leaves out what is not known."""
    if not line.version and line.state is ModelState.UNAVAILABLE and not line.reason:
        return {"name": line.name}
    told = {"name": line.name, "version": line.version, "state": line.state.value}
    return {**told, "reason": line.reason} if line.reason else told
