"""One call of OpenAI's API over HTTP as the services use it: its caller, its timeout, and its body."""

from __future__ import annotations

from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import Frontend, InferCall
from control_plane.core.principal import Principal
from control_plane.frontends.common.caller import timeout_s_of
from control_plane.inference.routes.targets import WHOLE_BYTES, ends_of
from control_plane.protocols.http1 import HttpRequest
from control_plane.protocols.openai import model_seen


class HttpOpenaiCall:
    """One call: the base class of those for embeddings and for generated text."""

    __slots__ = ("http", "principal")
    frontend = Frontend.HTTP

    def __init__(self, http: HttpRequest, principal: Principal) -> None:
        self.http = http
        self.principal = principal

    @property
    def timeout_s(self) -> float | None:
        return timeout_s_of(self.http)

    def name_seen(self) -> str:
        return model_seen(self.http.body)

    def header_id(self) -> str:
        return self.http.request_id

    def body_bytes(self) -> int:
        return len(self.http.body)

    def field(self, name: str) -> str | None:
        return self.http.text_header(name.encode())

    def unit(self, call: InferCall) -> tuple[bytes, ...]:
        body = self.http.body
        return (bytes(body),) if len(body) <= WHOLE_BYTES else ends_of(body)

    def body(self) -> bytes | bytearray:
        """The body. Raises InvalidRequest: it is encoded."""
        if self.http.header(b"content-encoding") is not None:
            raise InvalidRequest("a Content-Encoding is not supported here; send the body as it is")
        return self.http.body
