"""Requests with streamed responses as another region may answer them; `inference/inference` hands them to `RegionFailover`."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from control_plane.core.infer_call import InferCall
from control_plane.inference.requests import GenerateRequest
from control_plane.protocols.http1 import HttpAnswer, with_header, with_line
from control_plane.triton.ports import HttpStream, RegionUpstream


@dataclass(frozen=True, slots=True)
class StreamableOn:
    """A request with a streamed response, as an `inference/requests.SendableOn`."""

    _request: GenerateRequest

    def field(self, name: str) -> str | None:
        return self._request.field(name)

    def body_bytes(self) -> int:
        return self._request.body_bytes()

    def content(self, call: InferCall) -> Sequence[bytes]:
        return self._request.content(call)

    def send_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[HttpAnswer | HttpStream]:
        return self._request.stream_on(gateway, timeout_s=timeout_s)

    def with_field(self, answer: HttpAnswer | HttpStream, name: str, value: str) -> HttpAnswer | HttpStream:
        line = f"{name}: {value}".encode()
        return with_header(answer, line) if isinstance(answer, HttpAnswer) else _HeadedStream(answer, with_line(answer.head, line))


class _HeadedStream:
    """Streamed response (`triton/ports.HttpStream`) with another head."""

    def __init__(self, stream: HttpStream, head: bytes) -> None:
        self.status = stream.status
        self.head = head
        self.receive = stream.receive
        self.close = stream.close
