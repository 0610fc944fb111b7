"""Port to a running gateway, as one client of one model sees it, over a connection of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Gateway(Protocol):
    """Client of one model behind a gateway: `cli/clients/model` over HTTP, `profiling/adapters/grpc_client` over gRPC."""

    def ping(self) -> None:
        """Send a request that no model computes."""

    def infer(self, request: bytes) -> Mapping[str, float]:
        """Have an encoded request computed; return the milliseconds that the gateway tells of it (`protocols/server_timing`)."""

    def stream(self, request: bytes, heard: Callable[[int | None], None]) -> Mapping[str, float]:
        """Have an encoded request answered response by response, and call `heard` at each with its tokens; None: the model does not
        count them. Return the milliseconds that the gateway tells of the first response.
        """

    def config(self) -> Mapping[str, Any]:
        """Return the model's configuration."""

    def statistics(self, model: str) -> Any:
        """Return Triton's statistics of a model, as the statistics extension answers them."""
