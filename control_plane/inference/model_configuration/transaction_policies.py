"""Tells which models are decoupled: a decoupled model sends any number of responses to one request.

Triton refuses ModelInfer for decoupled models. So `frontends/kserve/grpc_stream` relays their requests over a stream to
Triton, and sends the requests to all other models as ModelInfer calls.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from control_plane.core.errors import ControlPlaneError
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.triton.ports import Upstream

_KEPT_S = 2.0
"""Seconds an answer is cached; short, since a model may be reloaded with the other transaction policy."""

_MAX_KEPT = 10_000


class TransactionPolicies:
    """Short-lived cache of each model's transaction policy, read from Triton's model configuration."""

    def __init__(self, dispatch: Dispatch, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._dispatch = dispatch
        self._now_s = now_s
        self._known: dict[str, tuple[bool, float]] = {}

    async def is_decoupled(self, model_name: str) -> bool | None:
        """Whether the model is decoupled; None if no server that has it loaded can say.

        The question does not count as a use of the model; in a fleet it loads nothing, and an only server's model that is
        loaded anew is not waited for.
        """
        known = self._known.get(model_name)
        if known is not None and self._now_s() < known[1]:
            return known[0]
        for answer in self._answers(model_name):
            try:
                is_decoupled = await answer
            except ControlPlaneError:
                continue
            if len(self._known) >= _MAX_KEPT:  # entries live for 2 s only, so starting anew is cheaper than ordering them
                self._known.clear()
            self._known[model_name] = (is_decoupled, self._now_s() + _KEPT_S)
            return is_decoupled
        return None

    def _answers(self, model_name: str) -> Iterator[Awaitable[bool]]:
        """The answers of one server after the other; each raises a ControlPlaneError where there is none."""
        catalogue = self._dispatch.catalogue
        if catalogue is None:
            yield self._ask_only_server(model_name)
        else:
            for server in catalogue.servers_of(model_name):
                yield server.ask(partial(_is_decoupled, model_name=model_name))

    async def _ask_only_server(self, model_name: str) -> bool:
        return await _is_decoupled(await self._dispatch.reading(model_name, timeout_s=0.0), model_name=model_name)


async def _is_decoupled(server: Upstream, *, model_name: str) -> bool:
    return await server.control.is_decoupled(model_name)
