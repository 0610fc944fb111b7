"""Bodies of calls that read none: refused, since whoever sends one, as with a field of Triton's own API, believes that it does
something. A dependency of every call of the admin API.
"""

from __future__ import annotations

from fastapi import Request

from control_plane.core.errors import InvalidRequest

_SAYS_NOTHING = (b"", b"{}")
"""An empty object is what some clients send with every POST."""


async def refuse_unread_body(request: Request) -> None:
    """Raise InvalidRequest for a body that says something to a call that reads none. One of a GET means nothing (RFC 9110, 9.3.1)."""
    route = request.scope["route"]
    if request.method == "GET" or route.body_field is not None or (await request.body()).strip() in _SAYS_NOTHING:
        return
    names = ", ".join(field.alias for field in route.dependant.query_params)
    raise InvalidRequest("this call takes no body, leave it out" + (f"; what it takes is in the query: {names}" if names else ""))
