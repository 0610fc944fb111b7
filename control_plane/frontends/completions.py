"""OpenAI frontend over HTTP: `/v1/completions` and `/v1/chat/completions`, for unmodified OpenAI clients.

`frontends/openai` hands such calls over. A streamed answer, and a whole one that is still generated, ends with its caller's
rights.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from control_plane.auth.access import Access
from control_plane.auth.stream_rights import StreamRights
from control_plane.core.action import Action
from control_plane.core.infer_call import Frontend
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.common.caller import reauthenticate
from control_plane.frontends.http.answers.streams import begun_on, watched
from control_plane.frontends.openai_call import HttpOpenaiCall
from control_plane.generation.domain.completion_request import check_size
from control_plane.generation.generation import Generation
from control_plane.inference.inference import InferenceService
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.protocols.kserve.routes import V2Route
from control_plane.triton.ports import HttpStream, ModelStream, RegionUpstream


class HttpCompletionCall(HttpOpenaiCall):
    """One call for generated text over HTTP: `generation/generation.CompletionCall`."""

    __slots__ = ("is_chat",)

    def __init__(self, http: HttpRequest, principal: Principal, *, is_chat: bool) -> None:
        super().__init__(http, principal)
        self.is_chat = is_chat

    def stream_on(self, gateway: RegionUpstream, *, timeout_s: float) -> Awaitable[HttpAnswer | ModelStream]:
        return begun_on(gateway, self.http, timeout_s)


class CompletionsHttp:
    """Handler of the calls for generated text."""

    def __init__(self, generation: Generation, inference: InferenceService, access: Access, rights: StreamRights) -> None:
        self._generation = generation
        self._inference = inference
        self._access = access
        self._rights = rights

    def admit(self, request: HttpRequest, principal: Principal) -> None:
        """Refuse a call by its head alone. Raises PermissionDenied, LimitExceeded, PayloadTooLarge."""
        self._inference.refuse_by_head(Frontend.HTTP, principal, HttpOpenaiCall(request, principal))
        check_size(request.content_length, self._generation.limits)

    async def answer(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream:
        """Answer a call. Raises ControlPlaneError."""
        call = HttpCompletionCall(request, principal, is_chat=route.action is Action.CHAT)
        if principal is ANONYMOUS:
            return await self._generation.generate(call)
        watch = self._rights.watch(principal, partial(reauthenticate, self._access, request))
        return await watched(self._generation.generate(call), watch, target=request.target)
