"""What is behind the HTTP data port: two protocols, told apart by the path."""

from __future__ import annotations

from collections.abc import Awaitable

from control_plane.frontends.kserve.http import V2Http
from control_plane.frontends.openai import OpenaiHttp
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.routes import is_openai
from control_plane.triton.ports import HttpStream


class DataHttp:
    """KServe v2 and OpenAI's, as one application."""

    def __init__(self, v2: V2Http, openai: OpenaiHttp) -> None:
        self._v2 = v2
        self._openai = openai

    def admit(self, request: HttpRequest) -> None:
        """As `V2Http.admit`."""
        (self._openai if is_openai(request.target) else self._v2).admit(request)

    def answer_at_once(self, request: HttpRequest, message: bytes) -> HttpAnswer | None:
        """As `V2Http.answer_at_once`, which knows only requests that it has answered before."""
        return self._v2.answer_at_once(request, message)

    def answer_known(self, message: bytes) -> bytes | None:
        """As `V2Http.answer_known`."""
        return self._v2.answer_known(message)

    def answer(self, request: HttpRequest) -> Awaitable[HttpAnswer | HttpStream]:
        """As `V2Http.answer`."""
        return self._openai.answer(request) if is_openai(request.target) else self._v2.answer(request)
