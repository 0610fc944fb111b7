"""Client of one model over HTTP, for `tidegate profile`: of its metadata, and to time its answers.

`profiling/adapters/grpc_client` is the same over gRPC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from control_plane.admin.connection import IS_IT_RUNNING, asked, authorization, connected, path_of, refusal, streamed, trusted_at
from control_plane.admin.events.lines import parsed_events
from control_plane.core.errors import InvalidRequest, UpstreamUnavailable
from control_plane.profiling.inputs import TOKENS, generate_body
from control_plane.protocols.server_timing import ASKED_BY, SERVER_TIMING, read_timing

_TIMEOUT_S = 60.0


class ModelClient:
    """Client of one model on the data port; keeps one connection open. Raises as `admin/client.AdminClient` does."""

    def __init__(self, url: str, model: str, api_key: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> None:
        """`url` may be `unix:PATH`. Raises as `admin/client.AdminClient` does."""
        self._url = url
        self._model = model
        self._client = connected(url, timeout_s, authorization(api_key), trusted_at(url))

    def ping(self) -> None:
        """Send a request that no model computes."""
        self._sent(lambda: self._client.get("/v2/health/live"))

    def metadata(self) -> dict[str, Any]:
        return self._ask("v2", "models", self._model)

    def config(self) -> dict[str, Any]:
        return self._ask("v2", "models", self._model, "config")

    def statistics(self, model: str) -> Any:
        return self._ask("v2", "models", model, "stats")

    def encoded(self, request: Mapping[str, Any]) -> bytes:
        """Write a request for `infer`."""
        return json.dumps(request).encode()

    def infer(self, request: bytes) -> dict[str, float]:
        """Have a request in JSON computed; its answer is dropped unread, as who asks times it. Return the milliseconds that the
        gateway tells of it."""
        path = path_of(("v2", "models", self._model, "infer"))
        response = self._sent(lambda: self._client.post(path, content=request, headers={ASKED_BY: "1"}))
        if not response.is_success:
            raise refusal(response)
        return read_timing(response.headers.get(SERVER_TIMING, ""))

    def encoded_stream(self, request: Mapping[str, Any]) -> bytes:
        """Write a request for `stream`. Raises InvalidRequest."""
        return json.dumps(generate_body(request)).encode()

    def stream(self, request: bytes, heard: Callable[[int | None], None]) -> dict[str, float]:
        """Have a request answered response by response, and call `heard` at each with its tokens, as far as the model counts them.
        Return the milliseconds that the gateway tells of the first response."""
        path = path_of(("v2", "models", self._model, "generate_stream"))
        broken_off, fields = f"the answer from {self._url} has broken off", {ASKED_BY: "1"}
        with streamed(self._client, "POST", path, broken_off=broken_off, advice=IS_IT_RUNNING, content=request, headers=fields) as response:
            for event in parsed_events(response.iter_lines()):
                heard(_tokens_in(event["data"]))
            return read_timing(response.headers.get(SERVER_TIMING, ""))

    def close(self) -> None:
        self._client.close()

    def _sent(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        try:
            return send()
        except httpx.HTTPError as exc:
            raise UpstreamUnavailable(f"no answer from {self._url}: {exc}{IS_IT_RUNNING}") from exc

    def _ask(self, *segments: str) -> dict[str, Any]:
        found = asked(self._url, lambda: self._client.get(path_of(segments)))
        if not isinstance(found, dict):
            raise InvalidRequest(f"{self._url} answers otherwise than a gateway does; is that its data port?")
        return found


def _tokens_in(response: Any) -> int | None:
    if not isinstance(response, dict):
        raise ValueError("a response is no object")
    if "error" in response:
        raise InvalidRequest(f"{response['error']} (in the stream)")
    found = response.get(TOKENS)
    counts = found if isinstance(found, list) else [found]
    return sum(counts) if all(isinstance(each, int) for each in counts) else None
