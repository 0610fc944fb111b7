"""Authorization of admin API calls, before a large body is read, so that calls of strangers cost little."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.admin.actor import PRINCIPAL
from control_plane.admin.errors import render_error, render_foreign_origin
from control_plane.auth.access import Access
from control_plane.auth.domain.authorization import need_of_admin_call
from control_plane.core.errors import ControlPlaneError
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.host.network.exposure import is_loopback


class AdminAccess:
    """ASGI middleware that refuses calls without the needed permission, and calls from other sites' web
    pages.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin, accept = headers.get("origin"), ", ".join(headers.getlist("accept"))
        if origin is not None and not _is_own_page(origin, headers.get("host", ""), needs_key=self._access.is_on):
            await render_foreign_origin(origin, accept)(scope, receive, send)
            return
        try:
            scope[PRINCIPAL] = self.authorize(scope, self._access)
        except ControlPlaneError as error:
            await render_error(error, accept)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def authorize(scope: Scope, access: Access) -> Principal:
        """Check that the caller may do this, and return who it is. Raises Unauthenticated, PermissionDenied, LimitExceeded."""
        need, headers = need_of_admin_call(scope["method"], scope["path"]), Headers(scope=scope)
        if need is None:
            return ANONYMOUS
        principal = access.identify(
            authorization=_whole(headers, "authorization"),
            api_key=_whole(headers, "x-api-key"),
            peer=(scope.get("client") or ("",))[0],
            forwarded_for=_whole(headers, "x-forwarded-for"),
        )
        access.require(principal, need)
        return principal


def _whole(headers: Headers, name: str) -> str | None:
    """Return all header fields of a name, joined by commas (RFC 9110, 5.3); None if there is none."""
    fields = headers.getlist(name)
    return ", ".join(fields) if fields else None


def _is_own_page(origin: str, host: str, *, needs_key: bool) -> bool:
    """Whether the Origin is a page of this API, the console or the documentation, not a site that a browser on this machine
    has open.

    A site whose name resolves to this machine (DNS rebinding) sends that name as Host too, so Host must be a
    name of loopback, unless callers show a key, which such a site has not.
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return bool(name) and origin.partition("://")[2] == host and (needs_key or is_loopback(name or ""))
