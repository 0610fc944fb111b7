"""Routes: any request line's method and target mean one call or none, and names are just what stands in the path."""

from __future__ import annotations

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.core.action import Action
    from control_plane.core.errors import InvalidRequest, MethodNotAllowed, ModelNotFound, RouteNotFound
    from control_plane.protocols.kserve.routes import is_openai, read_route

METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"DELETE")

OPENAIS = (Action.EMBED, Action.COMPLETE, Action.CHAT, Action.LIST_MODELS)


def check(data: bytes) -> None:
    chosen, target = (data[0] % 8, data[1:]) if data else (0, b"")
    method = METHODS[chosen] if chosen < len(METHODS) else target[:4]
    try:
        route = read_route(method, target)
    except (InvalidRequest, MethodNotAllowed, ModelNotFound, RouteNotFound) as exc:
        str(exc).encode()
        return
    path = target.partition(b"?")[0].decode("latin-1")
    assert "/" not in route.model_name
    assert not route.model_version or route.model_version.isdigit()
    assert not route.model_name or f"/{route.model_name}" in path
    assert not route.model_version or f"/versions/{route.model_version}" in path
    assert read_route(method, target) == route
    assert route.action is Action.OPTIONS or is_openai(target) == (route.action in OPENAIS)


if __name__ == "__main__":
    fuzz(check)
