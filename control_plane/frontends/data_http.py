"""Dispatches requests on the HTTP data port by their path, to the KServe or the OpenAI frontend."""

from __future__ import annotations

from collections.abc import Awaitable

from control_plane.frontends.http.limits import StreamedBody
from control_plane.frontends.kserve.http import V2Http
from control_plane.frontends.openai import OpenaiHttp
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.routes import is_openai
from control_plane.triton.ports import HttpStream


class DataHttp:
    """The application behind the HTTP data port: KServe v2 and OpenAI's API as one."""

    def __init__(self, v2: V2Http, openai: OpenaiHttp) -> None:
        self._v2 = v2
        self._openai = openai

    def admit(self, request: HttpRequest) -> None:
        """Refuse a request by its head alone; see `V2Http.admit`."""
        (self._openai if is_openai(request.target) else self._v2).admit(request)

    def streams(self, request: HttpRequest) -> StreamedBody | None:
        """Which kind of body `answer` receives piece by piece of such a request: those that go to disk."""
        path = request.target.partition(b"?")[0]
        if request.method != b"POST":
            return None
        if path.endswith(b"/jobs") and path.startswith(b"/v2/models/"):
            return StreamedBody.BODY
        return StreamedBody.UPLOAD if path == b"/v1/files" else None

    def answer(self, request: HttpRequest) -> Awaitable[HttpAnswer | HttpStream]:
        """Answer one request; see `V2Http.answer` and `OpenaiHttp.answer`."""
        # The first test is the cheaper one, and settles it for nearly all.
        is_v2 = request.target.startswith(b"/v2/") or not is_openai(request.target)
        return self._v2.answer(request) if is_v2 else self._openai.answer(request)
