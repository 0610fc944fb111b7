"""Copies of inference requests for a shadow model, which nobody waits for, and the tensors of their answers.

`frontends/kserve/http_infer` and `frontends/kserve/grpc_infer` make them for `rollout/shadow`. A copy holds none of its caller's
connection: no buffer, and no slot.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass

from control_plane.core.errors import InvalidRequest, PayloadTooLarge
from control_plane.protocols.content_encoding import decoded_pieces
from control_plane.protocols.grpc import GrpcAnswer, message_in
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.requests.body_limits import InflateBound
from control_plane.protocols.kserve.tensors.infer_answer import Tensors, json_outputs, proto_outputs
from control_plane.triton.ports import GrpcCall, Upstream

_BOUND = InflateBound(8 * 2**20, "an answer that is compared inflates to more than 8 MiB")
_JSON_BYTES = re.compile(rb"\r\ninference-header-content-length: *([0-9]{1,18})\r\n", re.IGNORECASE)
_ENCODED = re.compile(rb"\r\ncontent-encoding: *(gzip|deflate)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HttpCopy:
    """Copy of a request over HTTP."""

    http: HttpRequest

    @property
    def size_bytes(self) -> int:
        return len(self.http.body)

    @property
    def is_whole(self) -> bool:
        return True

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[HttpAnswer]:
        return server.http.send(self.http, timeout_s=timeout_s)

    def outputs(self, answer: HttpAnswer) -> Tensors | None:
        if answer.status != 200:
            return None
        body = bytes(answer.body)
        try:
            if _ENCODED.search(answer.head):
                body = b"".join(decoded_pieces(body, _BOUND))
        except PayloadTooLarge as exc:
            raise InvalidRequest(str(exc)) from exc
        found = _JSON_BYTES.search(answer.head)
        return json_outputs(body, None if found is None else int(found[1]))


@dataclass(frozen=True, slots=True)
class GrpcCopy:
    """Copy of a ModelInfer call."""

    call: GrpcCall

    @property
    def size_bytes(self) -> int:
        return len(self.call.frame)

    @property
    def is_whole(self) -> bool:
        return True

    def send(self, server: Upstream, *, timeout_s: float) -> Awaitable[GrpcAnswer]:
        return server.grpc.unary(self.call, timeout_s=timeout_s)

    def outputs(self, answer: GrpcAnswer) -> Tensors | None:
        if answer.code != 0:
            return None
        try:
            return proto_outputs(message_in(b"".join(answer.body), answer.encoding, _BOUND))
        except PayloadTooLarge as exc:
            raise InvalidRequest(str(exc)) from exc
