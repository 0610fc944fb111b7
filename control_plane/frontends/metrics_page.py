"""The metrics port: our `tidegate_*` metrics, then Triton's own page unchanged, so that existing dashboards
keep working.

With several Tritons their pages are merged (`frontends/merged_metrics`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import METRICS_NEED
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.algorithms.steps import Steps
from control_plane.core.endpoints import ONLY
from control_plane.core.errors import ControlPlaneError
from control_plane.frontends.common.caller import identify
from control_plane.frontends.merged_metrics import merged_metrics_steps
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.server_state import ServerState
from control_plane.triton.servers import Servers

_log = logging.getLogger(__name__)

_TEXT_FORMAT = b"text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """The application behind the metrics port."""

    def __init__(
        self,
        *,
        render_own: Callable[[], Steps[bytes]],
        servers: Servers,
        access: Access,
        read: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`read` asks for what is not in memory, before each page."""
        self._read = read
        self._render_own = render_own
        self._servers = servers
        self._access = access

    def admit(self, request: HttpRequest) -> None:
        """Refuse a request by its head alone. Raises Unauthenticated, LimitExceeded, PermissionDenied."""
        self._access.require(identify(self._access, request), METRICS_NEED)

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer `GET /metrics`; without Triton's part while no Triton can be asked.

        Raises Unauthenticated, LimitExceeded, PermissionDenied.
        """
        self.admit(request)
        if request.target.partition(b"?")[0] != b"/metrics":
            return make_answer(404, b"the page is at /metrics\n", content_type=b"text/plain")
        if request.method not in (b"GET", b"HEAD"):
            return make_answer(405, b"GET only\n", content_type=b"text/plain")
        if self._read is not None:
            await self._read()
        own = await run_in_steps(self._render_own())
        return make_answer(200, own + await self._triton_page(), content_type=_TEXT_FORMAT)

    async def _triton_page(self) -> bytes:
        asked = self._servers.answering
        if not asked:
            _log.warning("Triton's metrics are missing from the page: no server is up and answers")
        pages = await asyncio.gather(*(_page_of(server) for server in asked.values()))
        if set(self._servers.members) <= {ONLY}:
            return b"".join(pages)
        # Also if only one server of a fleet is up: the `server` label must not come and go.
        return await run_in_steps(merged_metrics_steps(dict(zip(asked, pages, strict=True))))


async def _page_of(server: ServerState) -> bytes:
    try:
        return await server.ask(lambda upstream: upstream.metrics_text())
    except ControlPlaneError as exc:
        _log.warning("Triton's metrics are missing from the page, of server %s: %s", server.name, exc)
        return b""
