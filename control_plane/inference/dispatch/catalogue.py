"""Port for the merged model catalogue of a fleet; `fleet/view/catalogue` implements it, the KServe frontends read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from control_plane.core.model import ModelVersion
from control_plane.triton.ports import Upstream

AnswerT = TypeVar("AnswerT")


class Askable(Protocol):
    """A server to be asked something that must not wait for one that is frozen: `triton/server_state.ServerState`."""

    async def ask(self, ask: Callable[[Upstream], Awaitable[AnswerT]]) -> AnswerT:
        """Raises UpstreamUnavailable: the server is down, or silent before it has answered."""


class Catalogue(Protocol):
    """Model catalogue of a fleet: presents the models of several Tritons as if one server had them."""

    async def index(self, *, only_ready: bool = False) -> list[ModelVersion]:
        """The repository index: every model by name and version, in the best state it has on any server.

        Raises UpstreamUnavailable.
        """

    def knows(self, model: str) -> bool:
        """Whether a model of that name exists, loaded or not."""

    def is_ready(self, model: str) -> bool:
        """Whether a request for the model would be served, if necessary after loading it."""

    def is_repeatable(self, model: str) -> bool:
        """Whether the model's own configuration says that computing a request twice does no harm."""

    def is_loaded(self, model: str) -> bool:
        """Whether a request for the model would be served without any load; of a sharded model, for all of its parts."""

    def has_idle_server(self, model: str) -> bool | None:
        """Whether a server that has the model loaded has nothing to do; None: no server has it."""

    def told_config(self, model: str) -> str:
        """The configuration (JSON) of a sharded model, which no server has; empty for any other."""

    def servers_of(self, model: str) -> Sequence[Askable]:
        """The servers that answer and have the model ready; for an empty name, all that answer.

        Raises UpstreamUnavailable: no server does.
        """
